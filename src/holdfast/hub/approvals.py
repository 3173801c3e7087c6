"""Approvals: what a model reads is pinned when it is first seen; a change is reported, and can be held (SEC-5, SEC-9).

A server can change a tool, a prompt or its instructions after people, or their models, came to trust it, or add one.
Each listing is compared with the pins before it is published (``ListingReview``):

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

``Approvals`` answers what changed and what is held, and takes the decisions of people. A change waits until a person
approves it, here or at another hub of the same configuration, or until the server takes it back. Changes that wait are
stored with the pins (``Pins`` in state_store.py), so that they can be reviewed while their server is down.

A lock of approvals (``ApprovalsLock``) is what a hub approved and disabled, as a file that another hub is started with.
That hub uses the lock as its pins: it has no file of its own and pins nothing. A tool, a prompt or instructions that
changed, or that the lock does not have, are held, and nothing can be approved there. A new lock is made where changes
can be reviewed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

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
from holdfast.errors import HoldfastError, ToolHeld, UnknownTool, UsageError
from holdfast.hub.journal import Journal, ToolApproved, ToolChanged
from holdfast.hub.state_store import PinnedTools, Pins, ToolTexts, beside, beside_mark
from holdfast.turns import Turns

__all__ = [
    "ALONE",
    "HELD",
    "UNVERIFIED",
    "Approvals",
    "ApprovalsLock",
    "ListingReview",
    "SharedPins",
    "approval_mode",
    "shown",
    "write_lock",
]

KIND = "holdfast approvals lock"
FORMAT = 1
LARGEST = 64 * 1024 * 1024


def write_lock() -> str:
    """The command that writes a lock."""
    return command_line("approve", "--export", "FILE")


def _hint() -> str:
    return f"write one with `{write_lock()}`"


@dataclass(frozen=True)
class ApprovalsLock:
    """The approved texts by server, and the servers that are disabled."""

    servers: Mapping[str, Mapping[str, Mapping[str, Any]]]
    disabled: frozenset[str] = frozenset()
    source: Path | None = field(default=None, compare=False)

    def text(self) -> str:
        """The content of the file. It is sorted, so that a difference between two locks can be read."""
        content = {
            "kind": KIND,
            "format": FORMAT,
            "disabled": sorted(self.disabled),
            "servers": self.servers,
        }
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    @classmethod
    def read(cls, file: Path) -> ApprovalsLock:
        """Read a file; raises ``HoldfastError``. A lock that cannot be used must not become no lock."""
        try:
            with file.open("rb") as opened:
                content = opened.read(LARGEST + 1)
        except OSError as exc:
            raise HoldfastError(f"cannot read the approvals lock {file}: {exc.strerror}", hint=_hint()) from exc
        if len(content) > LARGEST:
            raise UsageError(
                f"the approvals lock {file} is larger than {LARGEST // 1024**2} MiB",
                hint=_hint(),
            )
        try:
            read = json.loads(content)
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"the approvals lock {file} is no JSON", hint=_hint()) from exc
        return cls._checked(read, file)

    @classmethod
    def _checked(cls, read: object, file: Path) -> ApprovalsLock:
        if not isinstance(read, dict) or read.get("kind") != KIND:
            raise UsageError(f"{file} is no approvals lock", hint=_hint())
        if read.get("format") != FORMAT:
            raise UsageError(
                f"the approvals lock {file} has format {read.get('format')!r}, and this version reads {FORMAT}",
                hint="write it with this version of Holdfast",
            )
        match read:
            case {"servers": dict(servers), "disabled": list(disabled)} if (
                all(isinstance(texts, dict) for texts in servers.values())
                and all(isinstance(text, dict) for texts in servers.values() for text in texts.values())
                and all(isinstance(one, str) for one in disabled)
            ):
                return cls(servers, frozenset(disabled), file)
        raise UsageError(f"the approvals lock {file} is damaged", hint=_hint())


UNVERIFIED = "holdfast/unverified"
"""The key in ``_meta`` of an entry from before a restart that its server has not listed since (LIFE-21)."""


def shown(entry: CatalogEntry) -> Mapping[str, Any]:
    """The server's description; marked if the server has not listed the entry in this run."""
    raw = entry.item.raw
    if entry.verified:
        return raw
    meta = raw.get("_meta")
    return {**raw, "_meta": {**(meta if isinstance(meta, Mapping) else {}), UNVERIFIED: True}}


def approval_mode(config: Config, server: str, default: ApprovalMode) -> ApprovalMode:
    """What happens with a server's changes: its own setting wins, then that of all servers, then ``default``."""
    spec = config.servers.get(server)
    own = spec.approvals if spec is not None else None
    return own or config.settings.approvals or default


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


class Approvals:
    """What changed, what is held, and what people decided. Without a state file it lasts for this run.

    ``mode`` tells what happens with a server's changes; with a ``lock`` everything that differs from it is held.
    """

    def __init__(
        self,
        state_file: Path | None,
        *,
        mode: Callable[[str], ApprovalMode],
        journal: Journal,
        lock: ApprovalsLock | None = None,
        shared: SharedPins = ALONE,
        is_per_user: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.lock = lock
        """What alone may be used; None if changes can be approved here."""
        self._written_mode = mode
        self._is_per_user = is_per_user
        self.pins = Pins(
            state_file.with_suffix(".tools.json") if state_file is not None else None,
            lock=lock.servers if lock is not None else None,
        )
        self._journal = journal
        self._shared = shared
        self.listings = ListingReview(self.pins, mode=self._mode, journal=journal, shared=shared)

    def _mode(self, server: str) -> ApprovalMode:
        return "hold" if self.lock is not None else self._written_mode(server)

    def __repr__(self) -> str:
        return f"<Approvals {self.pins!r}{', locked' if self.lock is not None else ''}>"

    # What changed.

    def pending(self, server: str | None = None) -> tuple[ChangedTool, ...]:
        """Every change that waits for approval, of one server or of all, sorted by name."""
        changed = self.pins.changed
        servers = sorted(changed) if server is None else [server]
        return tuple(
            self._change(one, key, now) for one in servers for key, now in sorted(changed.get(one, {}).items())
        )

    def _change(self, server: str, key: str, now: Mapping[str, Any]) -> ChangedTool:
        (kind, name), seen, held = kind_of(key), self.pins.of(server), self._mode(server) == "hold"
        was = seen.get(key, {})
        return ChangedTool(server=server, tool=name, kind=kind, new=key not in seen, held=held, was=was, now=now)

    # What is held.

    def held(self, server: str) -> tuple[str, ...]:
        """What of a server is held, sorted: tools by their names, ``prompt x``, ``instructions``."""
        return tuple(sorted(map(_label, self.pins.changed.get(server, ())))) if self._mode(server) == "hold" else ()

    def is_held(self, server: str, tool: str, kind: ApprovalKind = "tool") -> bool:
        """Whether a tool or a prompt cannot be used until its change is approved."""
        changed = self.pins.changed.get(server, {})
        return key_of(kind, tool) in changed and self._mode(server) == "hold"

    def refuse_held(self, server: str, name: str, kind: ApprovalKind) -> None:
        """Raise ``ToolHeld`` for a tool or a prompt that waits for approval."""
        if self.is_held(server, name, kind):
            command = command_line("approve", server, name, *([] if kind == "tool" else ["--kind", kind]))
            raise ToolHeld(
                f"the {kind} `{name}` of `{server}` is held: it is not known to be unchanged since it was first seen",
                hint=f"A person must review the change and approve it first: `{command}`",
            )

    def instructions(self, server: str, said_now: str) -> str:
        """The server's instructions as they may be shown: held ones as first seen, none where nothing was seen."""
        if self._mode(server) != "hold":
            return said_now
        pinned = self.pins.of(server).get(INSTRUCTIONS)
        return str(pinned.get("instructions", "")) if pinned is not None else ""

    def forget(self, server: str) -> None:
        """Drop everything about a removed server; a lock keeps what it has."""
        self.listings.forget(server)
        self.pins.forget(server)

    # Decisions of people, here and elsewhere.

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
        if one is not None and one not in pending and one not in self.pins.of(server):
            waiting = f"waiting for approval: {', '.join(map(_label, pending)) or 'none'}"
            raise UnknownTool(f"`{server}` has no {kind} named `{tool}`", hint=waiting)
        wanted = {key: change for key, change in pending.items() if one in (None, key)}
        # All or nothing: a person reviewed one state of the server, and approves no part of another one.
        if mark is not None and any(change.mark != mark for change in wanted.values()):
            raise ToolHeld(
                f"the {_label(one or '')} of `{server}` changed again since it was reviewed",
                hint="review the current change, and approve it",
            )
        for key, change in wanted.items():
            # One user's text does not take the place of another's.
            adds = self._is_per_user(server) and key in self.pins.of(server)
            pinned, text = (beside(key, change.now), beside_mark(key)) if adds else (key, change.now)
            self.pins.pin(server, pinned, text, approved=True)
            self._shared.note_pin(server, pinned, text, True)
            self._approved(server, key)
        return tuple(change.tool for change in wanted.values())

    def take_pin(self, server: str, key: str, text: Mapping[str, Any]) -> bool:
        """Use the version of a text that the fleet agreed on; whether it is another one."""
        if self.pins.of(server).get(key) == text or self.lock is not None:
            return False
        self.pins.pin(server, key, text, approved=True)
        # A copy: `_approved` takes out of it what is approved now.
        for changed, now in list(self.pins.changed.get(server, {}).items()):
            if key in (changed, beside(changed, now)) and self.pins.has(server, changed, now):
                self._approved(server, changed)
        return True

    def follow(self, known: PinnedTools | None) -> tuple[str, ...]:
        """Use what another hub wrote; returns the servers whose listing must be published again."""
        # Before the pins change: what waited and is known now was approved by a person at another hub, and is recorded
        # here too.
        before = {server: dict(texts) for server, texts in self.pins.changed.items()}
        self.pins.take(known)
        if known is None:
            return ()
        for server, texts in before.items():
            for key, text in texts.items():
                if self.pins.has(server, key, text):
                    self._approved(server, key)
        return tuple(self.listings.latest)

    def _approved(self, server: str, key: str) -> None:
        self.pins.changed.get(server, {}).pop(key, None)
        kind, name = kind_of(key)
        self._journal.write(ToolApproved(server=server, tool=name, kind=kind, at=self._journal.clock.now()))


def _label(key: str) -> str:
    """A key in words: a tool's name, ``prompt x``, ``instructions``."""
    kind, name = kind_of(key)
    return name if kind == "tool" else f"{kind} {name}".strip()


# The review of listings.


HELD = "holdfast/held"
"""The key in ``_meta`` of a held tool."""

REMEMBERED = 1_000
"""How many tools that a server no longer lists stay pinned, in case they come back.

Where changes are held, no pin is dropped for another: a server could list so many tools once that the first version of
a tool is lost.
"""

UNKNOWN = {"inputSchema": {"type": "object", "properties": {}}}
"""How a tool without a recorded baseline is shown: a client needs that much.

Some clients (smolagents) lose every tool of the list if one schema has no ``properties``.
"""


class ListingReview:
    """Compares listings with the pins. ``mode`` tells what happens with a server's changes."""

    def __init__(
        self,
        pins: Pins,
        *,
        mode: Callable[[str], ApprovalMode],
        journal: Journal,
        shared: SharedPins = ALONE,
    ) -> None:
        self._pins = pins
        self._mode = mode
        self._journal = journal
        self._shared = shared
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
        return self._held_back(listing, self._unknown(listing.server, dict(_watched(listing))))

    def _steps(self, listing: Listing, *, of_one: bool = False) -> Iterator[Listing]:
        """Compare a new listing with the pins, in steps; the last step gives it as it may be published."""
        if not of_one:
            self.latest[listing.server] = listing
        watched: ToolTexts = {}
        for key, text in _watched(listing):
            watched[key] = text
            yield listing
        self._pin_new(listing, watched, of_one=of_one)
        changed: ToolTexts = {}
        for key, text in (watched if self._mode(listing.server) != "off" else {}).items():
            if not self._pins.has(listing.server, key, text):
                changed[key] = text
            yield listing
        if of_one:  # what another user's listing changed is still changed, until it is approved
            changed = self._unknown(listing.server, self._pins.changed.get(listing.server, {})) | changed
        yield self._reviewed(listing, changed)

    def _unknown(self, server: str, texts: ToolTexts) -> ToolTexts:
        """Those that are neither pinned nor approved beside what is pinned."""
        return {key: text for key, text in texts.items() if not self._pins.has(server, key, text)}

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
        # A server whose first listing had to wait for the fleet has an entry without pins: it is still seen for the
        # first time, unless the fleet knew it.
        first = not pins.of(server) if server in self._waiting else server not in pins.seen
        seen = pins.seen.setdefault(server, {})
        if pins.is_lock:
            return
        if (pins.unread or not self._shared.is_settled) and mode == "hold":
            self._waiting |= {server} if first and not pins.unread else set()
            return
        self._waiting.discard(server)
        prompts = LISTED_PROMPTS not in seen and Kind.PROMPT not in listing.failed
        for key, text in watched.items():
            kind, _ = kind_of(key)
            fresh = {"tool": first, "prompt": prompts, "instructions": True}[kind] or mode == "off"
            if key not in seen and fresh:
                self._pin(server, key, text)
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
        # What is held while a replica joins may be known to the fleet. It is held all the same, and told only if it is
        # news.
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


def _watched(listing: Listing) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What is watched of a listing, each with its key."""
    yield from ((key_of("tool", item.name), said(item.raw)) for item in listing.tools)
    yield from ((key_of("prompt", item.name), said(item.raw)) for item in listing.prompts)
    if listing.instructions is not None:
        yield INSTRUCTIONS, {"instructions": listing.instructions}


def _as_seen(item: Item, seen: Mapping[str, Any]) -> Item:
    rest = {key: value for key, value in item.raw.items() if key not in WATCHED}
    meta = rest.get("_meta")
    rest["_meta"] = {**(meta if isinstance(meta, Mapping) else {}), HELD: True}
    return Item(item.name, {**rest, **seen})
