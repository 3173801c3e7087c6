"""The review of a listing: what is new is pinned, what changed is reported and may be held (SEC-5, SEC-9).

A server can change a tool, a prompt or its instructions after people, or their models, came to trust it, or add one.
Each listing is compared with the pins before it is published:

* At the first listing of a server everything is pinned. Later only a kind that was never listed before is: a new tool
  is a change.
* What differs from its pin, or has none, is a change. It is reported once. In the mode ``hold`` it is shown as first
  seen, or not at all if it is new, until a person approves it. A tool without a recorded baseline is held too.
* A server that is per user may describe one tool differently to two users. There an approved text does not replace the
  pinned one: it is pinned beside it, by its hash (``beside``), and both are known from then on.
* In a fleet the other replicas may have seen the server before this one. Until that is known (``SharedPins``), a first
  sight here is no first sight: nothing is pinned, and what is held for it is not yet reported as a change.

A listing may have ten thousands of items. So the review is a generator that yields between its steps. A small listing
is reviewed in one go, in the step in which its server becomes connected; for a large one the publisher lets other tasks
run between the steps (SEC-7).

Pins are the version of each watched text that was first seen or last approved, in memory and in a file.

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

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from holdfast.config import ApprovalMode
from holdfast.core import WATCHED, ApprovalKind, Item, Kind, Listing, key_of, kind_of, said
from holdfast.files import FileStamp, file_stamp, locked, replace_file, set_aside
from holdfast.hub.journal import Journal, ToolChanged
from holdfast.turns import Turns

__all__ = [
    "ALONE",
    "HELD",
    "INSTRUCTIONS",
    "ListingReview",
    "PinChanges",
    "PinFile",
    "PinnedTools",
    "Pins",
    "SharedPins",
    "ToolTexts",
    "beside",
    "beside_mark",
    "merged",
]

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

    def has(self, server: str, key: str, text: Mapping[str, Any]) -> bool:
        """Whether a text is the pinned one, or one that was approved beside it."""
        return _is_known(self.of(server), key, text)

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
            read = msgspec.convert(json.loads(self._file.read_text(encoding="utf-8")), _Content)
        except FileNotFoundError:
            return PinnedTools()
        except RecursionError as exc:
            raise ValueError("it is nested too deeply") from exc
        return PinnedTools(read.seen, _still_changed(read.seen, read.changed))

    def _writing(self) -> AbstractContextManager[None]:
        return locked(self._file.with_name(f"{self._file.name}.lock"))


class _Content(msgspec.Struct):
    """The file, as it must be. Neither part has a default: a file without one is damaged, and counts as unread."""

    seen: dict[str, ToolTexts]
    changed: dict[str, ToolTexts]


def _still_changed(seen: Mapping[str, ToolTexts], changed: Mapping[str, ToolTexts]) -> dict[str, ToolTexts]:
    return {
        server: {
            tool: what for tool, what in tools.items() if server in seen and not _is_known(seen[server], tool, what)
        }
        for server, tools in changed.items()
    }


_BESIDE = "\0beside\0"


def beside(key: str, text: Mapping[str, Any]) -> str:
    """The key under which a text is pinned beside the first one of its key: it has the hash of the text."""
    written = json.dumps(text, sort_keys=True, separators=(",", ":")).encode()
    return f"{_BESIDE}{hashlib.sha256(written).hexdigest()}\0{key}"


def beside_mark(key: str) -> Mapping[str, Any]:
    """What is pinned under that key. No text of a tool has this part: no server can pin it by a name that it chose."""
    return {"beside": key}


def _is_known(pinned: Mapping[str, Mapping[str, Any]], key: str, text: Mapping[str, Any]) -> bool:
    return pinned.get(key) == text or (key in pinned and pinned.get(beside(key, text)) == beside_mark(key))


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


class SharedPins(Protocol):
    """What the other replicas of a fleet have seen, as a review asks for it."""

    @property
    def is_settled(self) -> bool:
        """Whether it is known here what they have seen: then a first sight is one."""

    @property
    def not_shared_since(self) -> float | None:
        """Since when nothing is shared; None while it is, or will be in a moment."""

    def note_pin(self, server: str, key: str, text: Mapping[str, Any], approved: bool, /) -> None:
        """Told of each first sight and of each approval."""


class _Alone:
    """A hub without replicas."""

    is_settled = True
    not_shared_since = None

    def note_pin(self, server: str, key: str, text: Mapping[str, Any], approved: bool, /) -> None:
        """Tell no one."""


ALONE: SharedPins = _Alone()


class ListingReview:
    """Compares listings with the pins. ``mode`` tells what happens with a server's changes.

    With ``locked`` pins nothing is ever pinned: they are a lock, and all that differs from it is held.
    """

    def __init__(
        self,
        pins: Pins,
        *,
        mode: Callable[[str], ApprovalMode],
        journal: Journal,
        shared: SharedPins = ALONE,
        locked: bool = False,
    ) -> None:
        self._pins = pins
        self._mode = mode
        self._journal = journal
        self._shared = shared
        self._locked = locked
        self.latest: dict[str, Listing] = {}
        """By server, its latest listing in this run, as the server sent it."""
        self._waiting: set[str] = set()
        """Servers whose first listing came before it was known whether it is the first."""
        self._untold: dict[str, set[str]] = {}
        """By server, what is held and not reported until it is known whether the fleet has seen it."""

    def __repr__(self) -> str:
        return f"<ListingReview of {len(self.latest)} listings, {len(self._waiting)} waiting for the fleet>"

    def review(self, listing: Listing, *, of_one: bool = False) -> Listing:
        """Compare a new listing with the pins; returns it as it may be published.

        ``of_one``: it is what one user of many has. What others have of the server stays as it is.
        """
        *_, reviewed = self._steps(listing, of_one=of_one)
        return reviewed

    async def review_in_turns(self, listing: Listing, *, of_one: bool = False) -> Listing:
        """Review a listing of many items, with turns for other tasks between the steps."""
        reviewed, turns = listing, Turns()
        for step in self._steps(listing, of_one=of_one):
            reviewed = step
            await turns.offer()
        return reviewed

    def as_shown(self, listing: Listing) -> Listing:
        """A listing that was reviewed before, as it may be shown now."""
        if self._mode(listing.server) != "hold":
            return listing
        watched, pinned = _watched(listing), self._pins.of(listing.server)
        return self._held_back(
            listing, {key: text for key, text in watched.items() if not _is_known(pinned, key, text)}
        )

    def _steps(self, listing: Listing, *, of_one: bool = False) -> Iterator[Listing]:
        """Compare a new listing with the pins, in steps; the last step gives it as it may be published."""
        if not of_one:
            self.latest[listing.server] = listing
        if self._pins.unread:
            self._pins.load()
        watched: ToolTexts = {}
        for part in _parts(listing):
            watched |= _watched(part)
            yield listing
        self._pin_new(listing, watched, of_one=of_one)
        changed, keys = ToolTexts(), [*watched] if self._mode(listing.server) != "off" else []
        for start in range(0, len(keys), COMPARED_AT_ONCE):
            pinned = self._pins.of(listing.server)
            some = keys[start : start + COMPARED_AT_ONCE]
            changed |= {key: watched[key] for key in some if not _is_known(pinned, key, watched[key])}
            yield listing
        if of_one:  # what another user's listing changed is still changed, until it is approved
            pinned, before = self._pins.of(listing.server), self._pins.changed.get(listing.server, {})
            changed = {key: text for key, text in before.items() if not _is_known(pinned, key, text)} | changed
        yield self._reviewed(listing, changed)

    def tell_held(self) -> None:
        """It will not be known soon what the fleet has seen: report what is held meanwhile."""
        untold, self._untold = self._untold, {}
        for server, keys in untold.items():
            for key in sorted(keys):
                self._report(server, key)

    def forget(self, server: str) -> None:
        """Drop everything about a removed server."""
        self._untold.pop(server, None)
        self.latest.pop(server, None)

    def _pin_new(self, listing: Listing, watched: ToolTexts, *, of_one: bool) -> None:
        """Pin what is seen for the first time: all at the first listing, later only kinds that were not watched yet."""
        pins, server, mode = self._pins, listing.server, self._mode(listing.server)
        first = not pins.of(server) if server in self._waiting else server not in pins.seen
        seen = pins.seen.setdefault(server, {})
        if self._locked:
            return
        if (pins.unread or not self._shared.is_settled) and mode == "hold":
            self._waiting |= {server} if first and not pins.unread else set()
            return
        self._waiting.discard(server)
        older = INSTRUCTIONS not in seen and listing.instructions is not None
        prompts = LISTED_PROMPTS not in seen and Kind.PROMPT not in listing.failed
        for key, text in watched.items():
            kind, _ = kind_of(key)
            fresh = {"tool": first, "prompt": prompts, "instructions": older}[kind] or mode == "off"
            if key not in seen and fresh:
                self._pin(server, key, text)
            elif older and not first and _without_icons(text) == seen.get(key) != text:
                pins.pin(server, key, text, approved=True)  # an earlier version of Holdfast did not pin icons
        if prompts:
            self._pin(server, LISTED_PROMPTS, {})
        if mode != "hold" and not of_one:
            unlisted = [key for key in seen if key not in watched and not key.startswith("\0")]
            pins.drop(server, unlisted[:-REMEMBERED])

    def _pin(self, server: str, key: str, text: Mapping[str, Any]) -> None:
        self._pins.pin(server, key, text, approved=False)
        self._shared.note_pin(server, key, text, False)

    def _reviewed(self, listing: Listing, changed: ToolTexts) -> Listing:
        """Note and report what changed; the listing as it may be published."""
        server = listing.server
        seen, before = self._pins.of(server), self._pins.changed.get(server, {})
        holds = self._mode(server) == "hold"
        if Kind.PROMPT in listing.failed:  # nothing new is known of them
            changed |= {key: text for key, text in before.items() if kind_of(key)[0] == "prompt"}
        joins = not self._shared.is_settled and self._shared.not_shared_since is None
        untold = self._untold.setdefault(server, set())
        untold.intersection_update(changed)
        for key in sorted(changed):
            if before.get(key) == changed[key] and key not in untold:
                continue
            if holds and joins and key not in seen:
                untold.add(key)
            else:
                untold.discard(key)
                self._report(server, key)
        self._pins.note_changes(server, changed)
        return self._held_back(listing, changed) if holds else listing

    def _held_back(self, listing: Listing, changed: ToolTexts) -> Listing:
        """The listing with what is held as it was first seen."""
        if not changed:
            return listing
        seen = self._pins.of(listing.server)
        return replace(
            listing,
            tools=self._shown("tool", listing.tools, changed, seen),
            prompts=self._shown("prompt", listing.prompts, changed, seen),
        )

    def _shown(
        self, kind: ApprovalKind, items: Sequence[Item], changed: ToolTexts, seen: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Item, ...]:
        """The items as they may be shown: a held one as first seen; a new one is hidden."""
        shown: list[Item] = []
        for item in items:
            key = key_of(kind, item.name)
            if key not in changed:
                shown.append(item)
            elif key in seen:
                shown.append(_as_seen(item, seen[key]))
            elif self._pins.unread:
                shown.append(_as_seen(item, UNKNOWN if kind == "tool" else {}))
        return tuple(shown)

    def _report(self, server: str, key: str) -> None:
        (kind, name), at = kind_of(key), self._journal.clock.now()
        new, held = key not in self._pins.of(server), self._mode(server) == "hold"
        self._journal.write(ToolChanged(server=server, tool=name, kind=kind, new=new, held=held, at=at))


def _watched(listing: Listing) -> ToolTexts:
    """What is watched of a listing, by its keys."""
    watched: ToolTexts = {key_of("tool", item.name): said(item.raw) for item in listing.tools}
    watched |= {key_of("prompt", item.name): said(item.raw) for item in listing.prompts}
    if listing.instructions is not None:
        watched[INSTRUCTIONS] = {"instructions": listing.instructions}
    return watched


def _parts(listing: Listing) -> Iterator[Listing]:
    """The listing in parts that are looked at in one step each."""
    yield replace(listing, tools=(), prompts=())
    for start in range(0, len(listing.tools), COMPARED_AT_ONCE):
        yield replace(listing, tools=listing.tools[start : start + COMPARED_AT_ONCE], prompts=())
    for start in range(0, len(listing.prompts), COMPARED_AT_ONCE):
        yield replace(listing, tools=(), prompts=listing.prompts[start : start + COMPARED_AT_ONCE])


def _without_icons(what: Mapping[str, Any]) -> Mapping[str, Any]:
    return {part: text for part, text in what.items() if part != "icons"}


def _as_seen(item: Item, seen: Mapping[str, Any]) -> Item:
    rest = {key: value for key, value in item.raw.items() if key not in WATCHED}
    meta = rest.get("_meta")
    rest["_meta"] = {**(meta if isinstance(meta, Mapping) else {}), HELD: True}
    return Item(item.name, {**rest, **seen})
