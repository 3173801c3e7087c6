"""Approvals: what a model reads is pinned when it is first seen; a change is reported, and can be held (SEC-5, SEC-9).

A server can change a tool, a prompt or its instructions after people, or their models, came to trust it, or add one.
The version that was first seen is pinned in a file beside the hub's state, because the servers cannot be asked for it
again. Several hubs of one configuration share this file, so a hub merges its changes into it under a lock. Changes that
wait for approval are stored too, so that they can be reviewed while their server is down. What is held is shown as it
was first seen, or not at all if it is new, and cannot be used until the change is approved. A tool without a recorded
baseline is held too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.config import ApprovalMode, Config
from holdfast.core import (
    WATCHED,
    ApprovalKind,
    CatalogEntry,
    ChangedTool,
    Item,
    Kind,
    Listing,
    command_line,
    key_of,
    kind_of,
    said,
)
from holdfast.errors import ToolHeld, UnknownTool
from holdfast.files import FileStamp, file_stamp, locked, replace_file, set_aside
from holdfast.hub.approvals_lock import ApprovalsLock, write_lock
from holdfast.hub.journal import Journal
from holdfast.hub.records import ToolApproved, ToolChanged

__all__ = [
    "HELD",
    "UNVERIFIED",
    "Approvals",
    "PinChanges",
    "PinFile",
    "PinnedTools",
    "ToolTexts",
    "approval_mode",
    "merged",
    "refuse_held",
    "shown",
]

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
        server: {tool: what for tool, what in tools.items() if server in seen and what != seen[server].get(tool)}
        for server, tools in changed.items()
    }


UNVERIFIED = "holdfast/unverified"
"""The key in ``_meta`` of an entry from before a restart that its server has not listed since (LIFE-21)."""


def shown(entry: CatalogEntry) -> Mapping[str, Any]:
    """The server's description; marked if the server has not listed the entry in this run."""
    raw = entry.item.raw
    if entry.verified:
        return raw
    meta = raw.get("_meta")
    return {**raw, "_meta": {**(meta if isinstance(meta, Mapping) else {}), UNVERIFIED: True}}


HELD = "holdfast/held"
"""The key in ``_meta`` of a held tool."""

REMEMBERED = 1_000
"""How many tools that a server no longer lists stay pinned, in case they come back.

Where changes are held, no pin is dropped for another: a server could list so many tools once that the first version of
a tool is lost.
"""

COMPARED_AT_ONCE = 200

UNKNOWN = {"inputSchema": {"type": "object", "properties": {}}}
"""How a tool without a recorded baseline is shown: a client needs that much.

Some clients (smolagents) lose every tool of the list if one schema has no ``properties``.
"""


INSTRUCTIONS = key_of("instructions", "")
LISTED_PROMPTS = "\0listed\0prompts"
"""Pinned with the first list of prompts, which may be empty: a later prompt is then a new one."""


class Approvals:
    """The pinned version of everything watched, and the changes that wait. Without a state file they last for this run.

    ``mode`` tells what happens with a server's changes.
    """

    def __init__(self, state_file: Path | None, *, mode: Callable[[str], ApprovalMode], journal: Journal) -> None:
        self._path = state_file.with_suffix(".tools.json") if state_file is not None else None
        self._file = PinFile(self._path) if self._path is not None else None
        self._unread = False
        """Whether a file may exist that could not be read."""
        self._mode = mode
        self._journal = journal
        self._seen: dict[str, ToolTexts] = {}
        self._now: dict[str, ToolTexts] = {}
        """The current version of the tools that changed."""
        self._latest: dict[str, Listing] = {}
        self._approved: set[tuple[str, str]] = set()
        self._dropped: set[tuple[str, str]] = set()
        self._gone: set[str] = set()
        self.unsaved = False
        """Whether changes wait to be written."""
        self._waiting: set[str] = set()
        """Servers whose first listing came before it was known whether it is the first."""
        self.lock: ApprovalsLock | None = None
        """What alone may be used; None if changes can be approved here."""
        self._untold: dict[str, set[str]] = {}
        """Held, and not told as a change until it is known whether the fleet has seen it."""
        self.joins: Callable[[], bool] = lambda: False
        """Whether it will be known in a moment what the fleet has seen."""
        self.may_pin: Callable[[], bool] = lambda: True
        """Whether a tool that is seen for the first time here is new: in a fleet, a peer may have seen it before."""
        self.on_pin: Callable[[str, str, Mapping[str, Any], bool], None] = lambda *_: None
        """Told of each first sight and of each approval (True)."""

    def use_lock(self, lock: ApprovalsLock) -> None:
        """Hold all that differs from a lock, before the hub is entered. Neither a file nor a fleet changes that."""
        self.lock, self._file, self._path = lock, None, None
        self._seen = {server: dict(texts) for server, texts in lock.servers.items()}

    def pinned(self, server: str) -> Mapping[str, Mapping[str, Any]]:
        """What is approved of a server, by its keys."""
        return dict(self._seen.get(server, {}))

    @property
    def changed(self) -> Mapping[str, frozenset[str]]:
        """By server, what changed since it was first seen: tools by their names, ``prompt x``, ``instructions``."""
        return {server: frozenset(map(_label, keys)) for server, keys in self._now.items() if keys}

    def count(self, server: str) -> int:
        """How many changes of a server wait for approval."""
        return len(self._now.get(server, ()))

    def held(self, server: str) -> tuple[str, ...]:
        """What of a server is held, sorted, by the words of ``changed``."""
        return tuple(sorted(map(_label, self._now.get(server, ())))) if self._holds(server) else ()

    def _holds(self, server: str) -> bool:
        return self._mode(server) == "hold"

    def pending(self, server: str | None = None) -> tuple[ChangedTool, ...]:
        """Every change that waits for approval, of one server or of all, sorted by name."""
        servers = sorted(self._now) if server is None else [server]
        return tuple(
            self._change(one, key, now) for one in servers for key, now in sorted(self._now.get(one, {}).items())
        )

    def _change(self, server: str, key: str, now: Mapping[str, Any]) -> ChangedTool:
        kind, name = kind_of(key)
        seen = self._seen.get(server, {})
        return ChangedTool(
            server=server,
            tool=name,
            kind=kind,
            new=key not in seen,
            held=self._holds(server),
            was=seen.get(key, {}),
            now=now,
        )

    def has_pending(self, server: str) -> bool:
        """Whether a change of this server waits for approval: then a call looks whether it is held."""
        return bool(self._now.get(server))

    def is_held(self, server: str, tool: str, kind: ApprovalKind = "tool") -> bool:
        """Whether a tool or a prompt cannot be used until its change is approved."""
        changed = self._now.get(server)
        if not changed:
            return False
        return key_of(kind, tool) in changed and self._holds(server)

    def instructions(self, server: str, said_now: str) -> str:
        """The server's instructions as they may be shown: held ones as first seen, none where nothing was seen."""
        if not self._holds(server):
            return said_now
        pinned = self._seen.get(server, {}).get(INSTRUCTIONS)
        return str(pinned.get("instructions", "")) if pinned is not None else ""

    def review(self, listing: Listing) -> Listing:
        """Compare a new listing with the pins; returns it as it may be published."""
        self._begin(listing)
        watched = _watched(listing)
        self._pin_new(listing, watched)
        return self._reviewed(listing, self._changes(listing.server, watched))

    async def review_in_steps(self, listing: Listing) -> Listing:
        """The same for a listing of many items, with turns for other tasks in between."""
        self._begin(listing)
        watched: ToolTexts = {}
        for part in _parts(listing):
            watched |= _watched(part)
            await asyncio.sleep(0)
        self._pin_new(listing, watched)
        keys, now = [*watched], ToolTexts()
        for start in range(0, len(keys), COMPARED_AT_ONCE):
            some = {key: watched[key] for key in keys[start : start + COMPARED_AT_ONCE]}
            now |= self._changes(listing.server, some)
            await asyncio.sleep(0)
        return self._reviewed(listing, now)

    def _begin(self, listing: Listing) -> None:
        self._latest[listing.server] = listing
        if self._unread:
            self.load()

    def _changes(self, server: str, watched: ToolTexts) -> ToolTexts:
        if self._mode(server) == "off":
            return {}
        seen = self._seen[server]
        return {key: what for key, what in watched.items() if what != seen.get(key)}

    def _reviewed(self, listing: Listing, now: ToolTexts) -> Listing:
        server = listing.server
        seen, before, holds = self._seen[server], self._now.get(server, {}), self._holds(server)
        if Kind.PROMPT in listing.failed:  # nothing new is known of them
            now |= {key: what for key, what in before.items() if kind_of(key)[0] == "prompt"}
        untold = self._untold.setdefault(server, set())
        untold.intersection_update(now)
        for key in sorted(now):
            if before.get(key) != now[key] or key in untold:
                if holds and key not in seen and self.joins():
                    untold.add(key)
                    continue
                untold.discard(key)
                self._tell(server, key, held=holds)
        self.unsaved |= now != before
        self._now[server] = now
        if not now or not holds:
            return listing
        return replace(
            listing,
            tools=self._shown("tool", listing.tools, now, seen),
            prompts=self._shown("prompt", listing.prompts, now, seen),
        )

    def _shown(self, kind: ApprovalKind, items: Sequence[Item], now: ToolTexts, seen: ToolTexts) -> tuple[Item, ...]:
        """The items as they may be shown: a held one as first seen; a new one is hidden."""
        shown: list[Item] = []
        for item in items:
            key = key_of(kind, item.name)
            if key not in now:
                shown.append(item)
            elif key in seen:
                shown.append(_as_seen(item, seen[key]))
            elif self._unread:
                shown.append(_as_seen(item, UNKNOWN if kind == "tool" else {}))
        return tuple(shown)

    def approve(
        self, server: str, tool: str | None = None, *, mark: str | None = None, kind: ApprovalKind = "tool"
    ) -> tuple[str, ...]:
        """Approve the pending changes of a server, one or all; returns the names of what was approved.

        With the ``mark`` of the change that was reviewed, a newer change is not approved.
        """
        if self.lock is not None:
            raise ToolHeld(
                f"nothing can be approved here: this hub uses what {self.lock.source or 'its lock'} has",
                hint=f"approve it at a hub without a lock, and make a new lock there: `{write_lock()}`",
            )
        pending = {key_of(change.kind, change.tool): change for change in self.pending(server)}
        one = key_of(kind, tool or "") if tool is not None or kind != "tool" else None
        if one is not None and one not in pending and one not in self._seen.get(server, {}):
            raise UnknownTool(f"`{server}` has no {kind} named `{tool}`", hint=_waiting(pending))
        wanted = [change for key, change in pending.items() if one in (None, key)]
        if mark is not None and any(change.mark != mark for change in wanted):
            raise ToolHeld(
                f"the {_label(one or '')} of `{server}` changed again since it was reviewed",
                hint="review the current change, and approve it",
            )
        for change in wanted:
            key = key_of(change.kind, change.tool)
            self._seen[server][key] = self._now[server].pop(key)
            self._approved.add((server, key))
            self.unsaved = True
            self.on_pin(server, key, self._seen[server][key], True)
            at = self._journal.clock.now()
            self._journal.write(ToolApproved(server=server, tool=change.tool, kind=change.kind, at=at))
        return tuple(change.tool for change in wanted)

    def take_pin(self, server: str, tool: str, text: Mapping[str, Any]) -> bool:
        """Use the version of a tool that the fleet agreed on; whether it is another one."""
        seen = self._seen.setdefault(server, {})
        if seen.get(tool) == text or self.lock is not None:
            return False
        seen[tool] = text
        self._approved.add((server, tool))
        self.unsaved = True
        if self._now.get(server, {}).get(tool) == text:
            del self._now[server][tool]
            kind, name = kind_of(tool)
            self._journal.write(ToolApproved(server=server, tool=name, kind=kind, at=self._journal.clock.now()))
        return True

    def share_pins(self, server: str) -> None:
        """Report every pinned tool of a server as a first sight: it may be from before this hub joined a fleet."""
        for tool, text in self._seen.get(server, {}).items():
            self.on_pin(server, tool, text, False)

    def latest(self, server: str) -> Listing | None:
        """The latest listing of a server in this run."""
        return self._latest.get(server)

    def tell_held(self) -> None:
        """It will not be known soon what the fleet has seen: tell what is held meanwhile."""
        untold, self._untold = self._untold, {}
        for server, keys in untold.items():
            for key in sorted(keys):
                self._tell(server, key, held=self._holds(server))

    def _tell(self, server: str, key: str, *, held: bool) -> None:
        kind, name = kind_of(key)
        at, new = self._journal.clock.now(), key not in self._seen[server]
        self._journal.write(ToolChanged(server=server, tool=name, kind=kind, new=new, held=held, at=at))

    def forget(self, server: str) -> None:
        """Drop everything about a removed server."""
        self._untold.pop(server, None)
        if self.lock is not None:
            self._now.pop(server, None)
            self._latest.pop(server, None)
            return
        self.unsaved |= self._seen.pop(server, None) is not None
        self._now.pop(server, None)
        self._latest.pop(server, None)
        self._gone.add(server)
        self._approved = {one for one in self._approved if one[0] != server}

    # The file.

    def load(self) -> None:
        """Read the file; while it cannot be read, no tool has a baseline."""
        if self._file is None:
            return
        try:
            known = self._file.read()
        except OSError as exc:
            self._unread = True
            until = "until then, the tools of servers whose changes are held are held"
            log.warning("%s cannot be read (%s): %s", self._path, exc, until)
            return
        self._unread = False
        self._take(known)

    @property
    def file(self) -> Path | None:
        """Where they are kept."""
        return self._path

    def stamp(self) -> FileStamp:
        """Changes when a hub writes the file."""
        return file_stamp(self._path) if self._path is not None else None

    def follow(self) -> tuple[str, ...]:
        """Read what another hub wrote; returns the servers whose listing must be published again."""
        before = {server: dict(tools) for server, tools in self._now.items()}
        self.load()
        for server, tools in before.items():
            for tool, text in tools.items():
                if self._was(server, tool) == text:
                    self._now[server].pop(tool, None)
                    kind, name = kind_of(tool)
                    at = self._journal.clock.now()
                    self._journal.write(ToolApproved(server=server, tool=name, kind=kind, at=at))
        return tuple(self._latest)

    def to_save(self) -> PinChanges:
        """Take the changes that must be written; from now on they count as written."""
        touched = {*self._latest, *(server for server, _ in self._approved)}
        known = PinnedTools(
            {server: dict(tools) for server, tools in self._seen.items()},
            {server: dict(tools) for server, tools in self._now.items() if server in touched},
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

    def _take(self, known: PinnedTools) -> None:
        """Use the content of the file, except for tools that were approved since."""
        for server, tools in known.seen.items():
            if server in self._gone:
                continue
            ours = self._seen.get(server, {})
            approved = {tool: what for tool, what in ours.items() if (server, tool) in self._approved}
            self._seen[server] = {**ours, **tools, **approved}
        for server, tools in known.changed.items():
            if server not in self._latest:
                self._now[server] = dict(tools)

    def _was(self, server: str, tool: str) -> Mapping[str, Any]:
        return self._seen.get(server, {}).get(tool, {})

    def _pin_new(self, listing: Listing, watched: ToolTexts) -> None:
        """Pin what is seen for the first time: all at the first listing, later only kinds that were not watched yet."""
        server, mode = listing.server, self._mode(listing.server)
        first = not self._seen.get(server) if server in self._waiting else server not in self._seen
        seen = self._seen.setdefault(server, {})
        if self.lock is not None:
            return
        if (self._unread or not self.may_pin()) and mode == "hold":
            self._waiting |= {server} if first and not self._unread else set()
            return
        self._waiting.discard(server)
        older = INSTRUCTIONS not in seen and listing.instructions is not None
        prompts = LISTED_PROMPTS not in seen and Kind.PROMPT not in listing.failed
        for key, what in watched.items():
            kind, _ = kind_of(key)
            fresh = {"tool": first, "prompt": prompts, "instructions": older}[kind] or mode == "off"
            if key not in seen and fresh:
                seen[key], self.unsaved = what, True
                self.on_pin(server, key, what, False)
                self._dropped.discard((server, key))
            elif older and not first and _without_icons(what) == seen.get(key) != what:
                # An earlier version of Holdfast did not pin icons.
                seen[key], self.unsaved = what, True
                self._approved.add((server, key))
        if prompts:
            seen[LISTED_PROMPTS], self.unsaved = {}, True
            self.on_pin(server, LISTED_PROMPTS, {}, False)
        if mode != "hold":
            unlisted = [key for key in seen if key not in watched and not key.startswith("\0")]
            self._drop(server, unlisted[:-REMEMBERED])

    def _drop(self, server: str, tools: Sequence[str]) -> None:
        for tool in tools:
            del self._seen[server][tool]
            self._dropped.add((server, tool))
            self.unsaved = True


def approval_mode(config: Config, server: str, default: ApprovalMode) -> ApprovalMode:
    """What happens with a server's changes: its own setting wins, then that of all servers, then ``default``."""
    spec = config.servers.get(server)
    own = spec.approvals if spec is not None else None
    return own or config.settings.approvals or default


def refuse_held(approvals: Approvals, server: str, name: str, kind: ApprovalKind) -> None:
    """Raise ``ToolHeld`` for a tool or a prompt that waits for approval."""
    if approvals.is_held(server, name, kind):
        command = command_line("approve", server, name, *([] if kind == "tool" else ["--kind", kind]))
        raise ToolHeld(
            f"the {kind} `{name}` of `{server}` is held: it is not known to be unchanged since it was first seen",
            hint=f"A person must review the change and approve it first: `{command}`",
        )


def _watched(listing: Listing) -> ToolTexts:
    """What is watched of a listing, by its keys."""
    watched: ToolTexts = {key_of("tool", item.name): said(item.raw) for item in listing.tools}
    watched |= {key_of("prompt", item.name): said(item.raw) for item in listing.prompts}
    if listing.instructions is not None:
        watched[INSTRUCTIONS] = {"instructions": listing.instructions}
    return watched


def _parts(listing: Listing) -> Iterator[Listing]:
    """The same listing in parts that are looked at in one step each."""
    yield replace(listing, tools=(), prompts=())
    for start in range(0, len(listing.tools), COMPARED_AT_ONCE):
        yield replace(listing, tools=listing.tools[start : start + COMPARED_AT_ONCE], prompts=())
    for start in range(0, len(listing.prompts), COMPARED_AT_ONCE):
        yield replace(listing, tools=(), prompts=listing.prompts[start : start + COMPARED_AT_ONCE])


def _without_icons(what: Mapping[str, Any]) -> Mapping[str, Any]:
    return {part: text for part, text in what.items() if part != "icons"}


def _label(key: str) -> str:
    """A key in words: a tool's name, ``prompt x``, ``instructions``."""
    kind, name = kind_of(key)
    return name if kind == "tool" else f"{kind} {name}".strip()


def _as_seen(item: Item, seen: Mapping[str, Any]) -> Item:
    rest = {key: value for key, value in item.raw.items() if key not in WATCHED}
    meta = rest.get("_meta")
    rest["_meta"] = {**(meta if isinstance(meta, Mapping) else {}), HELD: True}
    return Item(item.name, {**rest, **seen})


def _waiting(pending: Mapping[str, ChangedTool]) -> str:
    return f"waiting for approval: {', '.join(map(_label, pending)) or 'none'}"
