"""Runs a command, prints its help, and turns each exception into an error with a hint, never a traceback.

A command is a function whose parameters are its options, or a ``typer.Typer`` with subcommands. The list in
``entry.py`` names it; ``command_named`` imports its module.

The help is plain text that fits 80 columns, in which nothing is cut. Typer's own help puts options into a table: at 80
columns it cuts long names and leaves a few words a line. Here a name that is too long for the left column has its own
line. Options are in groups, in the order of their declaration (``rich_help_panel`` names the group). The reference of
the documentation is the same text.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from difflib import SequenceMatcher
from importlib import import_module
from typing import Any

import typer

from holdfast.cli.entry import COMMANDS
from holdfast.cli.output import keep_quiet, print_error
from holdfast.core import Redactor, invocation, typed_as
from holdfast.errors import HoldfastError, UsageError
from holdfast.serve import here

__all__ = ["command_named", "run_command"]

FAILED, USAGE, INTERRUPTED = 1, 2, 130

COMMAND_LINE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""The base of typer's errors about a command line. Typer does not export it."""

UNWRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""The system errors that mean: the output cannot be stored."""

CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS})
"""The system errors that mean: this user cannot use that file. The machine is to be changed, not Holdfast."""


def command_named(name: str) -> Any:
    """The command of this name, as typer runs it."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_module(f"holdfast.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        found.command(name)(function)
    return typer.main.get_command(found)


def run_command(load: Callable[[], Any], argv: list[str], *, program: str) -> int:
    """Run the command that ``load`` imports. Returns the exit code. ``HOLDFAST_DEBUG=1`` prints the traceback."""
    with typed_as(here(argv, os.environ)):
        return _run(load, argv, program)


def _run(load: Callable[[], Any], argv: list[str], program: str) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal cannot show must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        command = load()
        end = argv.index("--") if "--" in argv else len(argv)
        own, others = argv[:end], argv[end:]  # what follows `--` belongs to another program
        quiet = "-q" in own or "--quiet" in own
        argv = [*(word for word in own if word not in ("-q", "--quiet")), *others]
        if "-h" in own or "--help" in own or (not argv and getattr(command, "no_args_is_help", False)):
            meant, path = _subcommand(command, argv)
            sys.stdout.write(_help_of(meant, " ".join((program, *path))))
            return _flushed(0)
        with keep_quiet() if quiet else nullcontext():
            code = command.main(argv, prog_name=program, standalone_mode=False)
        return _flushed(code if isinstance(code, int) else 0)
    except SystemExit as exc:
        return _flushed(exc.code if isinstance(exc.code, int) else FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as exc:  # noqa: BLE001 - the last place to turn a traceback into a message
        return _failed(exc, program)


def _failed(exc: Exception, program: str) -> int:
    """Tell a person why a command failed; returns the exit code."""
    while isinstance(exc, ExceptionGroup):  # a task group wraps what ended its tasks
        exc = exc.exceptions[0]
    match exc:
        case typer.Abort():  # Ctrl-C or the end of stdin at a question
            print_error("aborted: nothing was changed")
        case HoldfastError():
            print_error(exc.message, exc.hint)
            return USAGE if isinstance(exc, UsageError) else FAILED
        case BrokenPipeError():  # the reader closed the pipe (`| head`): an error message has no reader
            _discard_output()
        case OSError():
            return _system_failed(exc)
        case _ if isinstance(exc, COMMAND_LINE_ERROR):
            return _wrong_usage(exc, program)
        case _:
            return _unexpected(exc)
    return FAILED


def _wrong_usage(exc: Any, program: str) -> int:
    """Print an error of typer in the style of all other errors."""
    words = " ".join(exc.format_message().split()).replace("'", "`").replace("Value error, ", "")
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


# Help

NARROW, WIDE = 80, 100
"""Columns: of a terminal that does not tell, and from which on lines are hard to read."""

LEFT = 28
"""The widest left column. A longer name has a line of its own."""

COMMON = (
    ("-q, --quiet", "Print results and errors, and no notes"),
    ("-h, --help", "Show this help"),
)
"""The options of every command."""


def _subcommand(command: Any, argv: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that is meant by the words before the options, and those words."""
    path: list[str] = []
    for word in argv:
        if word in getattr(command, "commands", {}):
            command, path = command.commands[word], [*path, word]
        elif not word.startswith("-"):
            break
    return command, path


def _help_of(command: Any, program: str) -> str:
    """The whole help of a command."""
    width = min(max(shutil.get_terminal_size((NARROW, 24)).columns, 40), WIDE)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    subcommands = getattr(command, "commands", {}).values()
    usage = [program, *(["COMMAND"] if subcommands else []), "[OPTIONS]", *(_usage_of(one) for one in arguments)]
    parts = [_wrapped(f"Usage: {' '.join(usage)}", width, hang=7), *_paragraphs(command.help or "", width)]
    if subcommands:
        rows = [(one.name, one.get_short_help_str(200)) for one in subcommands]
        parts.append(_section("Commands", rows, width))
    if arguments:
        rows = [(_name_of(one), one.help or "") for one in arguments]
        parts.append(_section("Arguments", rows, width))
    context = typer.Context(command)
    groups: dict[str, list[tuple[str, str]]] = {}
    for one in command.params:
        row = one.get_help_record(context)  # its names and value, its help with its default; None if it is hidden
        if row is not None and one.param_type_name == "option" and "--help" not in one.opts:
            groups.setdefault(one.rich_help_panel or "Options", []).append(row)
    last = groups.pop("Options", [])
    parts += [_section(title, rows, width) for title, rows in groups.items()]
    parts.append(_section("Other options" if groups else "Options", [*last, *COMMON], width))
    parts += _paragraphs(command.epilog or "", width)
    return "\n\n".join(parts) + "\n"


def _usage_of(argument: Any) -> str:
    name = _name_of(argument)
    if name.startswith("["):
        return name
    repeated = f"{name}…" if argument.nargs == -1 else name
    return repeated if argument.required else f"[{repeated}]"


def _name_of(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _section(title: str, rows: Sequence[tuple[str, str]], width: int) -> str:
    left = max((len(name) for name, _ in rows if len(name) <= LEFT), default=0)
    lines = [f"{title}:"]
    for name, words in rows:
        text = textwrap.wrap(" ".join(words.split()), width - left - 4, break_long_words=False, break_on_hyphens=False)
        if len(name) > left:
            lines.append(f"  {name}")
            lines += [f"{'':{left + 4}}{line}" for line in text]
            continue
        first, *more = text or [""]
        lines.append(f"  {name:<{left}}  {first}".rstrip())
        lines += [f"{'':{left + 4}}{line}" for line in more]
    return "\n".join(lines)


def _paragraphs(text: str, width: int) -> Iterator[str]:
    """The paragraphs of a docstring. The exit codes begin a line of their own."""
    for paragraph in textwrap.dedent(text.replace("\b", "")).strip().split("\n\n"):
        lines: list[str] = []
        for line in paragraph.strip().splitlines():
            if not lines or line.startswith("Exit code "):
                lines.append(line.strip())
            else:
                lines[-1] += f" {line.strip()}"
        if lines:
            yield "\n".join(_wrapped(line, width) for line in lines)


def _wrapped(text: str, width: int, *, hang: int = 0) -> str:
    return textwrap.fill(text, width, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False)
