"""Positions in a configuration: in a file, or in a mapping that a program passed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from holdfast.errors import Problem

if TYPE_CHECKING:
    from holdfast.config.jsonc import Document, Mark

__all__ = ["KeyPath", "SourceMap", "joined", "quoted"]

KeyPath: TypeAlias = tuple[str | int, ...]
"""The path from the top of a document to a value: keys of objects and indexes of lists."""

_LONGEST = 60
_SIMPLE_KEY = re.compile(r"[\w$-]+")


class SourceMap:
    """Maps a path inside a configuration to its position in the source."""

    def __init__(self, document: Document | None = None, *, file: Path | None = None) -> None:
        self.file = file
        self._values: Mapping[KeyPath, Mark] = document.values if document else {}
        self._keys: Mapping[KeyPath, Mark] = document.keys if document else {}

    def problem(self, path: KeyPath, message: str, *, hint: str = "", at_key: bool = False) -> Problem:
        """A problem with the value at ``path`` (or with its key); a missing value has its parent's position."""
        line, column = self._mark(path, at_key=at_key) or (0, 0)
        return Problem(message=message, hint=hint, file=self.file, line=line, column=column, path=joined(path))

    def label(self, path: KeyPath) -> str:
        """The position in short form: ``mcp.json:12:7``."""
        mark = self._mark(path, at_key=False)
        if mark is None:
            return joined(path)
        return f"{self.file.name if self.file else 'line'}:{mark.line}:{mark.column}"

    def _mark(self, path: KeyPath, *, at_key: bool) -> Mark | None:
        if at_key and path in self._keys:
            return self._keys[path]
        while path and path not in self._values:
            path = path[:-1]
        return self._values.get(path)


def joined(path: KeyPath) -> str:
    """A path as text: ``mcpServers.github.args[1]``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _SIMPLE_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f'["{_visible(step)}"]'
    return text


def quoted(text: str) -> str:
    """A name from a configuration in backquotes, shortened, without control characters."""
    return f"`{_visible(text)}`"


def _visible(text: str) -> str:
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in shown)
