"""What a model reads of a server, and what changed in it, as a person can read it. Nothing here decides.

Tools, prompts and the server's instructions are watched. Each has a key: the name of a tool, and for the other kinds a
text that no such name equals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from functools import cached_property
from typing import Any, Literal, TypeAlias

__all__ = ["WATCHED", "ApprovalKind", "ChangedTool", "key_of", "kind_of", "said"]

WATCHED = (
    "description", "title", "inputSchema", "outputSchema", "annotations", "arguments", "icons", "instructions"
)  # fmt: skip
"""The parts that a model, or the person beside it, reads."""

ApprovalKind: TypeAlias = Literal["tool", "prompt", "instructions"]

_MARK = "\0"


def key_of(kind: ApprovalKind, name: str) -> str:
    """The key of a watched text: a tool's name, or a text that no tool of that name has."""
    return name if kind == "tool" and not name.startswith(_MARK) else f"{_MARK}{kind}{_MARK}{name}"


def kind_of(key: str) -> tuple[ApprovalKind, str]:
    """The kind and the name of a key."""
    if not key.startswith(_MARK):
        return "tool", key
    _, kind, name = key.split(_MARK, 2)
    return ("prompt" if kind == "prompt" else "instructions" if kind == "instructions" else "tool"), name


@dataclass(frozen=True, kw_only=True)
class ChangedTool:
    """One changed or new tool, prompt or text of instructions, which waits for a review."""

    server: str
    tool: str
    """Its name at its server; empty for the instructions."""
    kind: ApprovalKind = "tool"
    new: bool = False
    """Whether it appeared after the server was first listed: nothing of it was seen before."""
    held: bool
    """Whether it is not called until the change is approved."""
    was: Mapping[str, Any]
    now: Mapping[str, Any]

    @property
    def label(self) -> str:
        """What it is, in words: a tool's name, ``prompt x``, ``instructions``."""
        return self.tool if self.kind == "tool" else f"{self.kind} {self.tool}".strip()

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that changed: ``description``, ``inputSchema`` and so on."""
        return tuple(part for part in WATCHED if self.was.get(part) != self.now.get(part))

    @cached_property
    def mark(self) -> str:
        """Identifies the current content: an approval names it, and so approves nothing newer."""
        return hashlib.blake2s(json.dumps(self.now, sort_keys=True).encode(), digest_size=8).hexdigest()

    @cached_property
    def diff(self) -> str:
        """The change line by line, part by part. Characters that could deceive a terminal or a reader are escaped."""
        return "\n".join(line for part in self.parts for line in self._diff(part))

    def _diff(self, part: str) -> Iterator[str]:
        was, now = (_lines(said.get(part)) for said in (self.was, self.now))
        same = _common_lead(was, now)
        lead = max(same - CONTEXT, 0)
        yield from unified_diff(
            was[lead : lead + MOST_LINES],
            now[lead : lead + MOST_LINES],
            f"{part} (first seen)",
            f"{part} (now)",
            lineterm="",
        )
        if max(len(was), len(now)) > lead + MOST_LINES:
            yield f"… (cut: {part} has {len(now)} lines now and had {len(was)})"


def said(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The watched parts of a tool, as its server listed it."""
    return {key: raw[key] for key in WATCHED if raw.get(key) is not None}


CONTEXT = 3
MOST_LINES = 200
"""How many lines of a part are compared: the time for a comparison grows with the square of them."""

LONGEST_PART = 64 * 1024
"""Characters of a part that are looked at."""

LONGEST_LINE = 500
"""Characters of a line that are shown."""


def _common_lead(was: list[str], now: list[str]) -> int:
    """How many lines are the same at the beginning; so a change far down is still seen."""
    return next((at for at, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))


def _lines(part: object) -> list[str]:
    if part is None:
        return []
    text = part if isinstance(part, str) else json.dumps(part, indent=2, sort_keys=True, ensure_ascii=False)
    return [_plain(line[:LONGEST_LINE]) for line in text[:LONGEST_PART].split("\n")]


def _plain(line: str) -> str:
    """Escapes invisible characters: a description can hide instructions to a model in them."""
    return "".join(c if c.isprintable() or c == "\t" else f"\\u{ord(c):04x}" for c in line)
