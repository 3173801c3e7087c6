"""A tool that says something else than it did: what of it changed, as a person can read it. Nothing here decides."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

__all__ = ["WATCHED", "ChangedTool", "said"]

WATCHED = ("description", "title", "inputSchema", "outputSchema", "annotations")
"""What a model goes by when it calls a tool."""


@dataclass(frozen=True, kw_only=True)
class ChangedTool:
    """One tool that waits for somebody to look at it."""

    server: str
    tool: str
    """Its name, as its server has it."""
    held: bool
    """Whether it is not called until the change is approved."""
    was: Mapping[str, Any]
    now: Mapping[str, Any]

    @property
    def parts(self) -> tuple[str, ...]:
        """Which of the things that it says of itself are others now: ``description``, ``inputSchema`` and so on."""
        return tuple(part for part in WATCHED if self.was.get(part) != self.now.get(part))

    @property
    def mark(self) -> str:
        """Stands for what it says now: whoever approves what they looked at gives it, and approves nothing newer."""
        return hashlib.blake2s(json.dumps(self.now, sort_keys=True).encode(), digest_size=8).hexdigest()

    @property
    def diff(self) -> str:
        """The change line by line, part by part. What a terminal, or an eye, could be deceived by is spelled out."""
        return "\n".join(line for part in self.parts for line in self._diff(part))

    def _diff(self, part: str) -> Iterator[str]:
        was, now = (_lines(said.get(part)) for said in (self.was, self.now))
        yield from unified_diff(was, now, f"{part} (first seen)", f"{part} (now)", lineterm="")


def said(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool, as its server listed it, says of itself."""
    return {key: raw[key] for key in WATCHED if raw.get(key) is not None}


def _lines(part: object) -> list[str]:
    if part is None:
        return []
    text = part if isinstance(part, str) else json.dumps(part, indent=2, sort_keys=True, ensure_ascii=False)
    return [_plain(line) for line in text.split("\n")]


def _plain(line: str) -> str:
    """Invisible characters are how a description hides what it asks of a model."""
    return "".join(c if c.isprintable() or c == "\t" else f"\\u{ord(c):04x}" for c in line)
