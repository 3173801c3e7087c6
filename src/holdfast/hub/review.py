"""The review of a listing: what is new is pinned, what changed is reported and may be held (SEC-5, SEC-9).

A server can change a tool, a prompt or its instructions after people, or their models, came to trust it, or add one.
Each listing is compared with the pins (pins.py) before it is published:

* At the first listing of a server everything is pinned. Later only a kind that was never listed before is: a new tool
  is a change.
* What differs from its pin, or has none, is a change. It is reported once. In the mode ``hold`` it is shown as first
  seen, or not at all if it is new, until a person approves it. A tool without a recorded baseline is held too.
* In a fleet the other replicas may have seen the server before this one. Until that is known (``SharedPins``), a first
  sight here is no first sight: nothing is pinned, and what is held for it is not yet reported as a change.

A listing may have ten thousands of items. So the review is a generator that yields between its steps. A small listing
is reviewed in one go, in the step in which its server becomes connected; for a large one the publisher lets other tasks
run between the steps (SEC-7).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from holdfast.config import ApprovalMode
from holdfast.core import WATCHED, ApprovalKind, Item, Kind, Listing, key_of, kind_of, said
from holdfast.hub.journal import Journal
from holdfast.hub.pins import Pins, ToolTexts
from holdfast.hub.records import ToolChanged
from holdfast.turns import Turns

__all__ = ["ALONE", "HELD", "INSTRUCTIONS", "ListingReview", "SharedPins"]

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

    def review(self, listing: Listing) -> Listing:
        """Compare a new listing with the pins; returns it as it may be published."""
        steps = self._steps(listing)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                reviewed: Listing = done.value
                return reviewed

    async def review_in_turns(self, listing: Listing) -> Listing:
        """Review a listing of many items, with turns for other tasks between the steps."""
        steps, turns = self._steps(listing), Turns()
        while True:
            try:
                next(steps)
            except StopIteration as done:
                reviewed: Listing = done.value
                return reviewed
            await turns.offer()

    def _steps(self, listing: Listing) -> Generator[None, None, Listing]:
        """Compare a new listing with the pins, in steps; returns it as it may be published."""
        self.latest[listing.server] = listing
        if self._pins.unread:
            self._pins.load()
        watched: ToolTexts = {}
        for part in _parts(listing):
            watched |= _watched(part)
            yield
        self._pin_new(listing, watched)
        changed, keys = ToolTexts(), [*watched] if self._mode(listing.server) != "off" else []
        for start in range(0, len(keys), COMPARED_AT_ONCE):
            pinned = self._pins.of(listing.server)
            some = keys[start : start + COMPARED_AT_ONCE]
            changed |= {key: watched[key] for key in some if watched[key] != pinned.get(key)}
            yield
        return self._reviewed(listing, changed)

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

    def _pin_new(self, listing: Listing, watched: ToolTexts) -> None:
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
        if mode != "hold":
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
        if not changed or not holds:
            return listing
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
