"""Run a command so that whatever goes wrong is a clear error with a hint, never a traceback."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Callable

import typer

from holdfast.cli.output import print_error
from holdfast.core.redact import Redactor
from holdfast.errors import HoldfastError, UsageError

__all__ = ["run_app"]

FAILED, USAGE, INTERRUPTED = 1, 2, 130

UNWRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""How the system says that there is no room for what we print."""


def run_app(load_app: Callable[[], typer.Typer], argv: list[str], *, program: str) -> int:
    """Run a typer app; returns the exit code. ``HOLDFAST_DEBUG=1`` shows where an error came from."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that a terminal does not have must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        typer.main.get_command(load_app()).main(argv, prog_name=program)
    except SystemExit as exc:  # how typer ends, also after telling of wrong usage
        return _flushed(exc.code if isinstance(exc.code, int) else FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except HoldfastError as exc:
        print_error(exc.message, exc.hint)
        return USAGE if isinstance(exc, UsageError) else FAILED
    except BrokenPipeError:  # the reader of our output went away (`| head`): nobody is left to tell
        _forget_output()
        return FAILED
    except OSError as exc:
        return _unwritten(exc) if exc.errno in UNWRITTEN else _unexpected(exc)
    except Exception as exc:  # noqa: BLE001 - the last place where a traceback can become a sentence
        return _unexpected(exc)
    return 0


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # as above; the command itself had ended by then
        _forget_output()
    except OSError as exc:
        return _unwritten(exc)
    return code


def _unwritten(exc: OSError) -> int:
    _forget_output()
    print_error(f"the output could not be written: {os.strerror(exc.errno or 0)}")
    return FAILED


def _forget_output() -> None:
    """Else Python tries once more to write it, at the very end, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unexpected(exc: Exception) -> int:
    if os.environ.get("HOLDFAST_DEBUG"):
        sys.stderr.write(Redactor().mask("".join(traceback.format_exception(exc))))
    print_error(
        f"an unexpected error in Holdfast ({type(exc).__name__})",
        "this is a bug: run the command again with HOLDFAST_DEBUG=1 and report what it prints",
    )
    return FAILED
