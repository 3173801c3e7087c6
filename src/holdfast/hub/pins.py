"""The file of pinned tools: their descriptions when they were first seen or last approved.

Several hubs of one configuration share this file. So no hub overwrites it with its own memory: under a lock, the
file is read, the changes of this hub are merged, and the file is replaced. A file that does not parse is set aside,
never deleted; a file that cannot be read is not changed. This module does not decide what is changed or held.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.files import locked, replace_file, set_aside

__all__ = ["PinChanges", "PinFile", "PinnedTools", "ToolTexts", "merged"]

log = logging.getLogger("holdfast.hub")

FORMAT = 1

ToolTexts: TypeAlias = dict[str, Mapping[str, Any]]
"""The watched parts of tools, by their names."""


@dataclass(frozen=True)
class PinnedTools:
    """The content of the file, by server."""

    seen: Mapping[str, ToolTexts] = field(default_factory=dict)
    """As first seen, or as last approved."""
    changed: Mapping[str, ToolTexts] = field(default_factory=dict)
    """The current version of those that changed."""


@dataclass(frozen=True, kw_only=True)
class PinChanges:
    """The changes of one hub since its last write."""

    known: PinnedTools
    approved: frozenset[tuple[str, str]] = frozenset()
    """Servers and tools that were approved: only these replace a pinned version."""
    dropped: frozenset[tuple[str, str]] = frozenset()
    """Servers and tools that are dropped."""
    gone: frozenset[str] = frozenset()
    """Servers that are no longer configured."""


def merged(pinned: PinnedTools, changes: PinChanges) -> PinnedTools:
    """The content with the changes: the version that was seen first stays, unless another one was approved."""
    seen = {server: dict(tools) for server, tools in pinned.seen.items() if server not in changes.gone}
    for server, tool in changes.dropped:
        seen.get(server, {}).pop(tool, None)
    for server, tools in changes.known.seen.items():
        there = seen.setdefault(server, {})
        there.update(
            {tool: what for tool, what in tools.items() if tool not in there or (server, tool) in changes.approved}
        )
    changed = {server: tools for server, tools in pinned.changed.items() if server not in changes.gone}
    return PinnedTools(seen, _still_changed(seen, {**changed, **changes.known.changed}))


class PinFile:
    """The file of one configuration. Its methods block for a moment."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> PinnedTools:
        """The content; an ``OSError`` says that a file may exist which cannot be read now."""
        try:
            return self._parsed()
        except ValueError:
            with self._writing():
                return self._read_locked()

    def add(self, changes: PinChanges) -> bool:
        """Merge the changes of a hub into the file; False if that failed, which is logged."""
        try:
            with self._writing():
                known = merged(self._read_locked(), changes)
                replace_file(self._file, json.dumps({"format": FORMAT, "seen": known.seen, "changed": known.changed}))
        except OSError as exc:
            log.warning("%s could not be written: %s", self._file, exc)
            return False
        return True

    def _read_locked(self) -> PinnedTools:
        """Read the file, and set it aside if it does not parse; the lock keeps other hubs out."""
        try:
            return self._parsed()
        except ValueError as exc:
            aside = set_aside(self._file)
            log.warning("%s cannot be read (%s): every tool counts as new", self._file, exc)
            log.warning("it was kept as %s", aside)
            return PinnedTools()

    def _parsed(self) -> PinnedTools:
        try:
            return _checked(json.loads(self._file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return PinnedTools()
        except RecursionError as exc:
            raise ValueError("it is nested too deeply") from exc

    def _writing(self) -> AbstractContextManager[None]:
        return locked(self._file.with_name(f"{self._file.name}.lock"))


def _checked(read: object) -> PinnedTools:
    if not isinstance(read, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - the content of a file is a value, not a type
    seen = _by_server(read.get("seen"))
    return PinnedTools(seen, _still_changed(seen, _by_server(read.get("changed"))))


def _by_server(read: object) -> dict[str, ToolTexts]:
    if not isinstance(read, dict) or not all(isinstance(tools, dict) for tools in read.values()):
        raise ValueError("it does not hold tools by server")
    if not all(isinstance(what, dict) for tools in read.values() for what in tools.values()):
        raise ValueError("it does not hold descriptions of tools")
    return read


def _still_changed(seen: Mapping[str, ToolTexts], changed: Mapping[str, ToolTexts]) -> dict[str, ToolTexts]:
    return {
        server: {
            tool: what for tool, what in tools.items() if tool in seen.get(server, {}) and what != seen[server][tool]
        }
        for server, tools in changed.items()
    }
