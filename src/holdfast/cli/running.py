"""Run a command so that whatever goes wrong is a clear error with a hint, never a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

import typer

from holdfast.cli.output import print_error
from holdfast.errors import HoldfastError, UsageError

__all__ = ["run_app"]

FAILED, USAGE, INTERRUPTED = 1, 2, 130


def run_app(load_app: Callable[[], typer.Typer], argv: list[str], *, program: str) -> int:
    """Run a typer app; returns the exit code. ``HOLDFAST_DEBUG=1`` shows where an error came from."""
    try:
        typer.main.get_command(load_app()).main(argv, prog_name=program)
    except SystemExit as exc:  # how typer ends, also after telling of wrong usage
        return _flushed(exc.code if isinstance(exc.code, int) else FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except HoldfastError as exc:
        print_error(exc.message, exc.hint)
        return USAGE if isinstance(exc, UsageError) else FAILED
    except Exception as exc:  # noqa: BLE001 - the last place where a traceback can become a sentence
        return _unexpected(exc)
    return 0


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output went away (`| head`): nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _unexpected(exc: Exception) -> int:
    if os.environ.get("HOLDFAST_DEBUG"):
        traceback.print_exception(exc)
    print_error(
        f"an unexpected error in Holdfast ({type(exc).__name__})",
        "this is a bug: run the command again with HOLDFAST_DEBUG=1 and report what it prints",
    )
    return FAILED
