"""Runs a command, and turns each exception into an error with a hint, never a traceback."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from difflib import SequenceMatcher
from typing import Any

import typer

from holdfast.cli.help_text import asks_for_help, help_of, subcommand
from holdfast.cli.output import keep_quiet, print_error
from holdfast.core import Redactor, invocation, typed_as
from holdfast.errors import HoldfastError, UsageError
from holdfast.serve import here

__all__ = ["run_app"]

FAILED, USAGE, INTERRUPTED = 1, 2, 130

COMMAND_LINE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""The base of typer's errors about a command line. Typer does not export it."""

UNWRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""The system errors that mean: the output cannot be stored."""

CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS})
"""The system errors that mean: this user cannot use that file. The machine is to be changed, not Holdfast."""


def run_app(load_app: Callable[[], typer.Typer], argv: list[str], *, program: str) -> int:
    """Run a typer app. Returns the exit code. ``HOLDFAST_DEBUG=1`` prints the traceback."""
    with typed_as(here(argv, os.environ)):
        return _run(load_app, argv, program)


def _run(load_app: Callable[[], typer.Typer], argv: list[str], program: str) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal cannot show must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        command = typer.main.get_command(load_app())
        if asks_for_help(argv) or (not argv and getattr(command, "no_args_is_help", False)):
            meant, path = subcommand(command, argv)
            sys.stdout.write(help_of(meant, " ".join((program, *path))))
            return _flushed(0)
        argv, quiet = _without_quiet(argv)
        with keep_quiet() if quiet else nullcontext():
            code = command.main(argv, prog_name=program, standalone_mode=False)
        return _flushed(code if isinstance(code, int) else 0)
    except SystemExit as exc:
        return _flushed(exc.code if isinstance(exc.code, int) else FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Abort:  # Ctrl-C or the end of stdin at a question
        print_error("aborted: nothing was changed")
        return FAILED
    except COMMAND_LINE_ERROR as exc:
        return _wrong_usage(exc, program)
    except HoldfastError as exc:
        print_error(exc.message, exc.hint)
        return USAGE if isinstance(exc, UsageError) else FAILED
    except BrokenPipeError:  # the reader closed the pipe (`| head`): an error message has no reader
        _discard_output()
        return FAILED
    except OSError as exc:
        return _system_failed(exc)
    except Exception as exc:  # noqa: BLE001 - the last place to turn a traceback into a message
        return _unexpected(exc)


def _without_quiet(argv: list[str]) -> tuple[list[str], bool]:
    """The command line without ``-q``, and whether it was there. What follows ``--`` belongs to another program."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    left = [word for word in own if word not in ("-q", "--quiet")]
    return [*left, *argv[len(own) :]], len(left) < len(own)


def _wrong_usage(exc: Any, program: str) -> int:
    """Print an error of typer in the style of all other errors."""
    if type(exc).__name__ == "NoArgsIsHelpError":  # typer's way to print the help of a command without arguments
        exc.show()
        return int(exc.exit_code)
    words = " ".join(exc.format_message().split()).replace("'", "`")
    message, _, near = (
        words.partition(" (Possible options: ") if "(Possible" in words else words.partition(" Did you mean ")
    )
    known = [name.strip(" `?)") for name in near.split(",") if name.strip()]
    given = message.rpartition(" ")[2].strip("`.")
    known.sort(key=lambda name: SequenceMatcher(None, given, name).ratio(), reverse=True)
    context = getattr(exc, "ctx", None)
    path = context.command_path if context is not None else program
    usage = f"`{path.replace('holdfast', invocation().program, 1)} --help` shows the usage"
    print_error(message[:1].lower() + message[1:].rstrip("."), f"did you mean `{known[0]}`?" if known else usage)
    return int(exc.exit_code)


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # as above; the command itself is complete
        _discard_output()
    except OSError as exc:
        return _output_failed(exc)
    return code


def _system_failed(exc: OSError) -> int:
    if exc.errno in UNWRITTEN:
        return _output_failed(exc)
    if exc.errno not in CLOSED or not isinstance(exc.filename, str):
        return _unexpected(exc)
    home = os.environ.get("HOME", "")
    in_home = bool(home) and exc.filename.startswith(home.rstrip("/"))
    if in_home and not (os.path.isdir(home) and os.access(home, os.R_OK | os.X_OK)):  # noqa: PTH112 - a text
        hint = f"HOME is {home}, which is not a folder that you can read: set HOME to one that you can read and write"
    else:
        hint = "check its permissions, and those of the folders above it"
    print_error(f"cannot use {exc.filename}: {os.strerror(exc.errno)}", hint)
    return FAILED


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
