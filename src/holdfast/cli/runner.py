"""Runs a command, and turns each exception into an error with a hint, never a traceback."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Callable

import typer

from holdfast.cli.output import print_error
from holdfast.core import Redactor
from holdfast.errors import HoldfastError, UsageError

__all__ = ["run_app"]

FAILED, USAGE, INTERRUPTED = 1, 2, 130

UNWRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""The system errors that mean: the output cannot be stored."""


def run_app(load_app: Callable[[], typer.Typer], argv: list[str], *, program: str) -> int:
    """Run a typer app. Returns the exit code. ``HOLDFAST_DEBUG=1`` prints the traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal cannot show must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        typer.main.get_command(load_app()).main(argv, prog_name=program)
    except SystemExit as exc:  # typer ends this way, also after wrong usage
        return _flushed(exc.code if isinstance(exc.code, int) else FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except HoldfastError as exc:
        print_error(exc.message, exc.hint)
        return USAGE if isinstance(exc, UsageError) else FAILED
    except BrokenPipeError:  # the reader closed the pipe (`| head`): an error message has no reader
        _discard_output()
        return FAILED
    except OSError as exc:
        return _output_failed(exc) if exc.errno in UNWRITTEN else _unexpected(exc)
    except Exception as exc:  # noqa: BLE001 - the last place to turn a traceback into a message
        return _unexpected(exc)
    return 0


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # as above; the command itself is complete
        _discard_output()
    except OSError as exc:
        return _output_failed(exc)
    return code


def _output_failed(exc: OSError) -> int:
    _discard_output()
    print_error(f"cannot write the output: {os.strerror(exc.errno or 0)}")
    return FAILED


def _discard_output() -> None:
    """Discard the output. Else Python tries to write it again at exit, and prints an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unexpected(exc: Exception) -> int:
    if os.environ.get("HOLDFAST_DEBUG"):
        sys.stderr.write(Redactor().mask("".join(traceback.format_exception(exc))))
    print_error(
        f"an unexpected error in Holdfast ({type(exc).__name__})",
        "this is a bug: run the command again with HOLDFAST_DEBUG=1 and report what it prints",
    )
    return FAILED
