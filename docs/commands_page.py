"""The page of all commands, from their ``--help``: prose as prose, options as lists, subcommands with their command."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from unittest import mock

from holdfast.cli.entry import run

HEAD = """\
# Commands

What `--help` says of each command. `make docs` writes this page; a test fails if it is out of date.

All commands write data to stdout and everything else to stderr. They use colour only on a terminal, and not with
`NO_COLOR`. `HOLDFAST_DEBUG=1` shows the traceback of an unexpected error. Every command has `-h` (help) and `-q`
(results and errors, and no notes); they are not repeated below.
"""

TERMINAL = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
"""What the help is formatted for."""

EVERYWHERE = ("-q, --quiet", "-h, --help")
Group = tuple[str, list[tuple[str, str]]]


def commands() -> str:
    """The page."""
    _, about, groups = _read(_help())
    parts = [HEAD]
    for title, entries in groups:
        if title != "Options":
            parts.append(f"**{title}**\n")
            parts.append("".join(f"- [`{name}`](#holdfast-{name}): {says}\n" for name, says in entries))
    parts.append(about[-1] + "\n")
    for title, entries in groups:
        for name, _ in entries if title != "Options" else []:
            parts += _section(name)
    return "\n".join(parts)


def _section(*command: str) -> Iterator[str]:
    usage, prose, groups = _read(_help(*command))
    yield f"{'#' * (len(command) + 1)} holdfast {' '.join(command)}\n"
    yield f"```text\n{usage}\n```\n"
    yield "\n\n".join(prose) + "\n"
    below = []
    for title, entries in groups:
        if title == "Commands":
            below = [name for name, _ in entries]
            continue
        shown = [(name, says) for name, says in entries if name not in EVERYWHERE]
        if shown:
            yield f"*{title}*\n"
            yield "".join(f"- `{name}`: {_marked(says)}\n" for name, says in shown)
    for name in below:
        yield from _section(*command, name)


def _help(*command: str) -> str:
    """Run in this process: starting Python for each command would take most of a minute."""
    printed = io.StringIO()
    with mock.patch.dict(os.environ, TERMINAL), contextlib.redirect_stdout(printed):
        if code := run([*command, "--help"]):
            raise SystemExit(f"holdfast {' '.join(command)} --help ended with {code}")
    return printed.getvalue()


def _read(text: str) -> tuple[str, list[str], list[Group]]:
    """The usage, the paragraphs, and the groups of options, arguments or commands with what each is for."""
    usage, *blocks = re.split(r"\n\s*\n", text.strip("\n"))
    prose: list[str] = []
    groups: list[Group] = []
    for block in blocks:
        first, *rest = block.splitlines()
        if first.endswith(":") and rest and all(line.startswith("  ") for line in rest):
            groups.append((first.removesuffix(":"), list(_entries(rest))))
        else:
            text = " ".join(line.strip() for line in block.splitlines())
            if text.startswith("holdfast "):
                prose.append(f"```text\n{text}\n```")
            else:
                prose += [_marked(part) for part in re.split(r" (?=Exit code )", text)]
    return usage.removeprefix("Usage: "), prose, groups


def _entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    name, says = "", ""
    for line in lines:
        if line[2] == " ":  # it goes on
            says = f"{says} {line.strip()}".strip()
            continue
        if name:
            yield name, says
        name, _, says = (part.strip() for part in re.sub(r"(?<=\S)  +", "\0", line.strip(), count=1).partition("\0"))
    yield name, says


def _marked(text: str) -> str:
    """With options as code, and nothing that Markdown would take for its own."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [
        re.sub(r"(?<![\w-])(--?[a-z][a-z-]*|\$[A-Z_]+)", r"`\1`", part.replace("<", "&lt;").replace("*", "\\*"))
        for part in parts[::2]
    ]
    return "".join(parts)
