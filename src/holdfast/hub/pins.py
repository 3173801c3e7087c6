"""Pins: the version of each watched text that was first seen or last approved, in memory and in a file.

The file lies beside the hub's state, because a server cannot be asked again for what it first said. Several hubs of one
configuration share it. So a hub never writes its own picture over the file: it collects changes (``PinChanges``) and
merges them under a lock. In a merge the version that was seen first stays, unless a person approved another one.

What must never happen:

* A version that is in the file is replaced by one that no person approved, because two hubs wrote at the same time.
* A file that cannot be read counts as empty: then everything would be new and pinned as it is now. While ``unread`` is
  true, no text has a baseline, and what is held stays held. A file that does not parse is set aside and kept.
* A change that could not be written is forgotten: ``not_saved`` puts it back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.files import FileStamp, file_stamp, locked, replace_file, set_aside

__all__ = ["PinChanges", "PinFile", "PinnedTools", "Pins", "ToolTexts", "merged"]

log = logging.getLogger("holdfast.hub")

FORMAT = 1

ToolTexts: TypeAlias = dict[str, Mapping[str, Any]]
"""The watched parts of tools, by their keys (``core.key_of``)."""


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


class Pins:
    """The pins of one hub, and the current version of what changed. Without a file they last for this run."""

    def __init__(self, file: Path | None, seen: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None) -> None:
        self.file = file
        self.seen: dict[str, ToolTexts] = {server: dict(texts) for server, texts in (seen or {}).items()}
        """By server, the version of each text that was first seen or last approved."""
        self.changed: dict[str, ToolTexts] = {}
        """By server, the current version of the texts that differ from their pins."""
        self.unread = False
        """Whether a file may exist that could not be read."""
        self.unsaved = False
        """Whether changes wait to be written."""
        self._file = PinFile(file) if file is not None else None
        self._touched: set[str] = set()
        """Servers whose changes are known better here than in the file."""
        self._approved: set[tuple[str, str]] = set()
        self._dropped: set[tuple[str, str]] = set()
        self._gone: set[str] = set()

    def __repr__(self) -> str:
        waiting = sum(map(len, self.changed.values()))
        state = "unread" if self.unread else "unsaved" if self.unsaved else "saved"
        return f"<Pins of {len(self.seen)} servers, {waiting} changed, {state}>"

    def of(self, server: str) -> Mapping[str, Mapping[str, Any]]:
        """The pinned texts of a server, by their keys."""
        return self.seen.get(server, {})

    def pin(self, server: str, key: str, text: Mapping[str, Any], *, approved: bool) -> None:
        """Pin a text: the first version that was seen, or one that was approved and replaces another."""
        self.seen.setdefault(server, {})[key] = text
        self.unsaved = True
        self._dropped.discard((server, key))
        if approved:
            self._approved.add((server, key))

    def note_changes(self, server: str, changed: ToolTexts) -> None:
        """Use the result of a comparison with the server's latest listing."""
        self.unsaved |= changed != self.changed.get(server, {})
        self.changed[server] = changed
        self._touched.add(server)

    def drop(self, server: str, keys: Sequence[str]) -> None:
        """Drop some pins of a server."""
        for key in keys:
            del self.seen[server][key]
            self._dropped.add((server, key))
            self.unsaved = True

    def forget(self, server: str) -> None:
        """Drop everything about a removed server."""
        self.unsaved |= self.seen.pop(server, None) is not None
        self.changed.pop(server, None)
        self._touched.discard(server)
        self._gone.add(server)
        self._approved = {one for one in self._approved if one[0] != server}

    def load(self) -> None:
        """Read the file; while it cannot be read, no tool has a baseline."""
        if self._file is None:
            return
        try:
            known = self._file.read()
        except OSError as exc:
            self.unread = True
            until = "until then, the tools of servers whose changes are held are held"
            log.warning("%s cannot be read (%s): %s", self.file, exc, until)
            return
        self.unread = False
        for server, texts in known.seen.items():
            if server not in self._gone:
                ours = self.seen.get(server, {})
                # What was approved here since the last write is newer than the file.
                approved = {key: text for key, text in ours.items() if (server, key) in self._approved}
                self.seen[server] = {**ours, **texts, **approved}
        self.changed |= {server: dict(texts) for server, texts in known.changed.items() if server not in self._touched}

    def stamp(self) -> FileStamp:
        """Changes when a hub writes the file."""
        return file_stamp(self.file) if self.file is not None else None

    def to_save(self) -> PinChanges:
        """Take the changes that must be written; from now on they count as written."""
        touched = {*self._touched, *(server for server, _ in self._approved)}
        known = PinnedTools(
            {server: dict(texts) for server, texts in self.seen.items()},
            {server: dict(texts) for server, texts in self.changed.items() if server in touched},
        )
        changes = PinChanges(
            known=known,
            approved=frozenset(self._approved),
            dropped=frozenset(self._dropped),
            gone=frozenset(self._gone),
        )
        self._approved, self._dropped, self._gone, self.unsaved = set(), set(), set(), False
        return changes

    def save(self, changes: PinChanges) -> bool:
        """Write the changes; False if that failed. For a worker thread, one at a time."""
        return self._file is None or self._file.add(changes)

    def not_saved(self, changes: PinChanges) -> None:
        """The changes were not written: write them the next time."""
        self._approved |= changes.approved
        self._dropped |= changes.dropped
        self._gone |= changes.gone
        self.unsaved = True


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
        server: {tool: what for tool, what in tools.items() if server in seen and what != seen[server].get(tool)}
        for server, tools in changed.items()
    }
