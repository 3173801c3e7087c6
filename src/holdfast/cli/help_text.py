"""The help of every command: plain text that fits 80 columns, in which nothing is cut.

Typer's own help puts options into a table: at 80 columns it cuts long names and leaves a few words a line. Here a name
that is too long for the left column has its own line. Options are in groups, in the order of their declaration
(``rich_help_panel`` names the group). The reference of the documentation is the same text.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

__all__ = ["asks_for_help", "help_of", "subcommand"]

NARROW, WIDE = 80, 100
"""Columns: of a terminal that does not tell, and from which on lines are hard to read."""

LEFT = 28
"""The widest left column. A longer name has a line of its own."""

COMMON = (
    ("-q, --quiet", "Print results and errors, and no notes"),
    ("-h, --help", "Show this help"),
)
"""The options of every command."""


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether a command line asks for help. What follows ``--`` belongs to another program."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    return "-h" in own or "--help" in own


def subcommand(command: Any, argv: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that is meant by the words before the options, and those words."""
    path: list[str] = []
    for word in argv:
        if word in getattr(command, "commands", {}):
            command, path = command.commands[word], [*path, word]
        elif not word.startswith("-"):
            break
    return command, path


def help_of(command: Any, program: str) -> str:
    """The whole help of a command."""
    width = min(max(shutil.get_terminal_size((NARROW, 24)).columns, 40), WIDE)
    arguments = [one for one in command.params if one.param_type_name == "argument" and not _is_hidden(one)]
    subcommands = [one for one in getattr(command, "commands", {}).values() if not _is_hidden(one)]
    usage = [program, *(["COMMAND"] if subcommands else []), "[OPTIONS]", *(_usage_of(one) for one in arguments)]
    parts = [_wrapped(f"Usage: {' '.join(usage)}", width, hang=7), *_paragraphs(command.help or "", width)]
    if subcommands:
        rows = [(one.name, one.get_short_help_str(200)) for one in subcommands]
        parts.append(_section("Commands", rows, width))
    if arguments:
        rows = [(_name_of(one), one.help or "") for one in arguments]
        parts.append(_section("Arguments", rows, width))
    groups: dict[str, list[tuple[str, str]]] = {}
    for one in command.params:
        if one.param_type_name == "option" and not _is_hidden(one) and "--help" not in one.opts:
            panel = getattr(one, "rich_help_panel", None) or "Options"
            groups.setdefault(panel, []).append((_option_name(one), _option_words(one)))
    last = groups.pop("Options", [])
    parts += [_section(title, rows, width) for title, rows in groups.items()]
    parts.append(_section("Other options" if groups else "Options", [*last, *COMMON], width))
    parts += _paragraphs(command.epilog or "", width)
    return "\n\n".join(parts) + "\n"


def _is_hidden(parameter: Any) -> bool:
    return bool(getattr(parameter, "hidden", False))


def _usage_of(argument: Any) -> str:
    name = _name_of(argument)
    if name.startswith("["):
        return name
    repeated = f"{name}…" if argument.nargs == -1 else name
    return repeated if argument.required else f"[{repeated}]"


def _name_of(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _option_name(option: Any) -> str:
    names = [*sorted(option.opts, key=len), *option.secondary_opts]
    value = _value_of(option)
    lead = "" if names[0].startswith("--") else ", ".join(names[:1]) + ", "
    rest = names if not lead else names[1:]
    shown = "/".join(rest) if option.secondary_opts else ", ".join(rest)
    return f"{lead}{shown}{f' {value}' if value else ''}"


def _value_of(option: Any) -> str:
    """What stands for the value; empty for a flag."""
    if getattr(option, "is_flag", False) or getattr(option, "count", False):
        return ""
    kind = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(one.value) for one in kind)
    return str(option.metavar or "VALUE")


def _option_words(option: Any) -> str:
    words = str(option.help or "")
    default = option.default
    if isinstance(default, Enum):
        default = default.value
    if "[default:" in words or not getattr(option, "show_default", True):
        return words
    if not isinstance(default, str | int | float) or default in (False, ""):
        return words
    if default is True:
        return f"{words} [default: {max(option.opts, key=len).lstrip('-')}]"
    return f"{words} [default: {default}]"


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
