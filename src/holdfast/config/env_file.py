"""Reads a file of variables, as ``envFile`` names one: lines of ``NAME=value``, quoted or not, with comments.

A line that does not define a variable is a problem with its position. A problem never quotes the line: it may hold a
secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import Problem

__all__ = ["EnvFile", "read_env_file"]

LARGEST = 1 << 20
"""Bytes; a file of variables is smaller."""

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][\w.-]*)\s*=\s*(.*?)\s*", re.ASCII)
_QUOTED = re.compile(r"""(["'])(.*?)(?<!\\)\1\s*(?:#.*)?""")
_COMMENT = re.compile(r"\s+#.*$")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, kw_only=True)
class EnvFile:
    """The variables of a file, their lines, and the lines that cannot be read."""

    path: Path
    values: Mapping[str, str]
    lines: Mapping[str, int]
    problems: tuple[Problem, ...]


def read_env_file(path: Path) -> EnvFile:
    """Read ``path``; raises ``OSError``, or ``ValueError`` if it is not UTF-8 or too large."""
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
    return _parse(path, data.decode("utf-8-sig"))


def _parse(path: Path, text: str) -> EnvFile:
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        value = _value(match.group(2)) if match else None
        if match is None or value is None or "\0" in value:
            problems.append(_unreadable(path, number))
            continue
        values[match.group(1)], lines[match.group(1)] = value, number
    return EnvFile(path=path, values=values, lines=lines, problems=tuple(problems))


def _value(written: str) -> str | None:
    if not written.startswith(("'", '"')):
        return _COMMENT.sub("", written)
    match = _QUOTED.fullmatch(written)
    if match is None:
        return None
    if match.group(1) == "'":
        return match.group(2)
    return _ESCAPE.sub(lambda escape: _ESCAPES.get(escape.group(1), escape.group(1)), match.group(2))


def _unreadable(path: Path, line: int) -> Problem:
    return Problem(
        message="this line does not define a variable",
        hint='write NAME=value or NAME="value" on one line, or start it with # to make it a comment',
        file=path,
        line=line,
        column=1,
    )
