"""What is shown to whom: listings come in, new catalogs go out, and their readers are told.

Theory of operation. A catalog is an immutable snapshot with a version. It is replaced as a whole, in one step of the
event loop, and each replacement writes one ``Published`` record for each server that it changes. A reader takes one
reference and keeps it, so it never sees half of a change. ``Publisher`` has the catalog of the hub, ``UserCatalogs``
those of users with connections of their own:

    shared catalog, without the listings of per-user servers      the same for all users
    + the listings of her own slots                               her catalog (``UserCatalogs.of``)

How a listing is published:

* It is reviewed before (``ListingReview`` in approvals.py): what is held is shown as it was first seen.
* A small catalog is made at once, in the step in which its server becomes connected: a reader that sees the state sees
  the tools. A large one takes longer than a step may (SEC-7): the listing waits, ``run`` reviews it in turns and a
  thread makes the catalog. If the catalog or the listing changed meanwhile, it is made again; nothing is lost, and
  nothing older replaces anything newer.
* While a listing waits, all later ones wait too: so the order of one server's listings stays.
* A server that is disabled is withdrawn: its items are not shown, and its last good listing is kept (LIFE-4). A server
  that is removed is forgotten.

What must never happen: an item of one user reaches another one (SEC-13). So nothing of ``UserCatalogs`` is found by a
server's name alone: every question has a principal. Listings and catalogs with the same content are one object for all
users that have it, which saves memory and tells nothing: each of them has all of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from holdfast.access import LOCAL
from holdfast.config import Config
from holdfast.core import Catalog, ChangedKinds, Collision, Kind, Listing, NameKey, quoted_name
from holdfast.hub.approvals import Approvals
from holdfast.hub.journal import Journal, ListFailed, OneClientRecord, Published
from holdfast.hub.state_store import arranged, written_prefixes

__all__ = ["AT_ONCE", "ListingSharing", "Publisher", "UserCatalogs", "findings"]

AT_ONCE = 3_000
"""A catalog of so many items is made at once; that takes about 15 ms of the event loop."""

ARRANGE_TRIES = 3
"""How often a catalog is made in a thread that another one replaced meanwhile; then it is made on the loop."""

MOST_USERS = 4_096
"""Users whose listings are remembered; of others the next list waits for their servers again."""

MOST_CATALOGS = 64
"""Catalogs that are kept for users with the same listings."""

ALIKE = 8
"""Listings of one server that a new one is compared with."""


class ListingSharing(Protocol):
    """What servers list, as the publisher tells it."""

    def published(self, listing: Listing) -> None:
        """This hub published a listing."""


class Publisher:
    """The catalog of one hub. It is the ``SlotHost`` of the shared slots.

    ``on_change`` is called after each change that the state file keeps, ``on_withdraw`` with each server that goes,
    ``on_review`` with each server that may show other content now.
    """

    def __init__(
        self,
        approvals: Approvals,
        journal: Journal,
        *,
        listings: ListingSharing | None,
        on_change: Callable[[], None],
        on_withdraw: Callable[[str], None],
        on_review: Callable[[str], None],
    ) -> None:
        self.catalog = Catalog()
        """What is published now."""
        self._approvals = approvals
        self._journal = journal
        self._shared_listings = listings
        self._on_change = on_change
        self._on_withdraw = on_withdraw
        self._on_review = on_review
        self._waiting: dict[str, Listing] = {}
        """Listings that wait to be published, because the catalog is large."""
        self._wanted = anyio.Event()

    def __repr__(self) -> str:
        return f"<Publisher version={self.catalog.version} waiting={sorted(self._waiting)}>"

    def start_with(self, catalog: Catalog) -> None:
        """Show what is known from before, before the first slot starts."""
        self.catalog = catalog

    # For the slots (``SlotHost`` in slot.py).

    def publish(self, listing: Listing) -> None:
        """Publish a newer complete listing, except for what is held; a large catalog is made in the background."""
        if listing.server not in self.catalog.servers:
            return  # it was removed a moment ago
        self._note_failed_lists(listing)
        size = _count(listing) + len(self.catalog.names)
        # Also a small one while others wait: it would pass an older listing of the same server, which would then
        # replace it.
        if size > AT_ONCE or self._waiting:
            self._waiting.pop(listing.server, None)  # it goes to the end, and a newer listing replaces an older one
            self._waiting[listing.server] = listing
            self._wanted.set()
            return
        reviewed = self._approvals.listings.review(listing)
        self._show(self.catalog.publish(reviewed))
        self._share((reviewed,))

    def withdraw(self, server: str, *, removed: bool) -> None:
        """Withdraw a server's items."""
        self._waiting.pop(server, None)
        self._on_withdraw(server)
        if removed:
            self._approvals.forget(server)
        self._show(self.catalog.remove(server) if removed else self.catalog.withdraw(server))

    def reinstate(self, server: str) -> None:
        """Publish a server's last good listing again."""
        self._show(self.catalog.reinstate(server))

    # For operators, other hubs and the configuration.

    def publish_again(self, server: str) -> None:
        """Review and publish the latest listing again: what is approved has changed."""
        self._on_review(server)
        listing = self._approvals.listings.latest.get(server)
        source = self.catalog.servers.get(server)
        if listing is not None and source is not None and not source.withdrawn:
            self.publish(listing)

    def show_unverified(self, listing: Listing) -> None:
        """Show what a peer listed of a server that was not listed here."""
        catalog = self.catalog.publish(listing)
        # To publish is to show again; a server that is disabled here stays hidden.
        # Shown and hidden in one step: no reader sees the catalog in between.
        if self.catalog.servers[listing.server].withdrawn:
            catalog = catalog.withdraw(listing.server)
        self._show(catalog)

    async def arranged(self, config: Config) -> tuple[Catalog, Mapping[str, ChangedKinds]]:
        """The catalog with the servers of a configuration, and what that changes, for ``replace``."""
        for _ in range(ARRANGE_TRIES):
            before = self.catalog
            made = await anyio.to_thread.run_sync(_made, before, partial(arranged, before, config))
            if self.catalog is before:
                return made
        # Other servers publish all the time: now none can.
        return _made(self.catalog, partial(arranged, self.catalog, config))

    def replace(self, catalog: Catalog, changes: Mapping[str, ChangedKinds]) -> None:
        """Show another catalog, and tell what changed. Listings of servers that are gone no longer wait."""
        if catalog is self.catalog:
            return
        self.catalog = catalog
        # The catalog is in place before its records: a listener looks at once, and must see what they tell.
        self._waiting = {server: one for server, one in self._waiting.items() if server in catalog.servers}
        for server, changed in changes.items():
            self._journal.write(_published(server, catalog, changed, at=self._journal.clock.now()))
        self._on_change()

    async def run(self) -> None:
        """Publish the listings that wait, all together, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            while self._waiting:
                # A copy: listings come while these are reviewed, and are told by their identity from those that were
                # taken.
                taken = dict(self._waiting)
                reviewed = [await self._approvals.listings.review_in_turns(listing) for listing in taken.values()]
                before = self.catalog
                made, changes = await anyio.to_thread.run_sync(_made, before, partial(before.publish_all, reviewed))
                newer = any(self._waiting.get(server) is not listing for server, listing in taken.items())
                if newer or self.catalog is not before:
                    continue  # a newer listing came, or the catalog changed meanwhile: once more
                for server in taken:
                    del self._waiting[server]
                self.replace(made, changes)
                self._share(reviewed)

    def _show(self, catalog: Catalog) -> None:
        if catalog is not self.catalog:
            self.replace(catalog, catalog.changes(self.catalog))

    def _share(self, reviewed: Iterable[Listing]) -> None:
        if self._shared_listings is not None:
            for listing in reviewed:
                self._shared_listings.published(listing)
        if self._approvals.pins.unsaved:
            self._on_change()

    def _note_failed_lists(self, listing: Listing) -> None:
        known = self.catalog.servers[listing.server].listing
        for kind, reason in listing.failed.items():
            if known is None or known.failed.get(kind) != reason:
                at = self._journal.clock.now()
                self._journal.write(ListFailed(server=listing.server, kind=kind.value, reason=reason, at=at))


def _count(listing: Listing) -> int:
    """How many items a listing has."""
    return sum(len(listing.of(kind)) for kind in Kind)


def _published(server: str, catalog: Catalog, changed: ChangedKinds, *, at: float) -> Published:
    """The record of what changed of a server."""
    shown, own = (tuple(sorted(kind.value for kind in kinds)) for kinds in changed)
    return Published(server=server, version=catalog.version, kinds=shown, own_kinds=own, at=at)


def _made(before: Catalog, make: Callable[[], Catalog]) -> tuple[Catalog, Mapping[str, ChangedKinds]]:
    """The next catalog, and what it changes."""
    made = make()
    return made, made.changes(before)


class UserCatalogs:
    """What each user's servers offer. ``servers`` are those that are per user."""

    def __init__(
        self,
        *,
        config: Callable[[], Config],
        catalog: Callable[[], Catalog],
        approvals: Approvals,
        journal: Journal,
        servers: Callable[[], frozenset[str]],
        is_connected: Callable[[str], bool],
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._approvals = approvals
        self._journal = journal
        self._servers = servers
        self._is_connected = is_connected
        self._listings: OrderedDict[str, dict[str, Listing]] = OrderedDict()
        """By user and server, what her server listed, as it sent it."""
        self._alike: dict[str, list[Listing]] = {}
        self._approved = 0
        """How often what is approved has changed: a catalog from before may show something else."""
        self._made: OrderedDict[tuple[int, ...], _Made] = OrderedDict()
        # Weak: it must not keep catalogs that ``_made`` dropped, one for each user who ever looked.
        self._shown: WeakValueDictionary[str, _Made] = WeakValueDictionary()
        """By user, what she saw last; it is shown while a large one is made."""
        self._waiting: dict[tuple[str, str], Listing] = {}
        """By user and server, large listings that are not shown yet."""
        self._stale: dict[str, None] = {}
        """Users whose large catalog must be made."""
        self._wanted = anyio.Event()

    def of(self, principal: str) -> Catalog:
        """What a user's servers offer; the catalog of the hub where no server is per user.

        A large one that was not made yet takes a moment: until then it is what she saw last.
        """
        if principal == LOCAL.name or not self._servers():
            return self._catalog()
        parts = self._parts(principal)
        made = self._made.get(parts.key)
        if made is None and parts.size <= AT_ONCE:
            made = self._keep(parts, parts.made(self._approvals))
        if made is not None:
            self._made.move_to_end(parts.key)
            self._shown[principal] = made
            return made.catalog
        # What she saw last is never wrong for her, only old. An empty list would look as if her tools were gone.
        self._stale[principal] = None
        self._wanted.set()
        before = self._shown.get(principal)
        return before.catalog if before is not None else arranged(Catalog(), parts.config)

    def publish(self, principal: str, listing: Listing) -> None:
        """A user's slot listed its server. A large listing is shown in the background."""
        size = _count(listing) + self._parts(principal).size
        if size > AT_ONCE or self._waiting:
            self._waiting.pop((principal, listing.server), None)
            self._waiting[principal, listing.server] = listing
            self._wanted.set()
            return
        before = self.of(principal)
        # ``before`` is read first: once the listing is taken, nothing would seem to have changed.
        same = _one_of(self._alike.get(listing.server, ()), listing)
        self._take(principal, listing, same)
        self._approvals.listings.review(listing, of_one=True)
        for server, changed in self.of(principal).changes(before).items():
            self._tell(principal, server, changed)

    async def run(self) -> None:
        """Take large listings and make large catalogs, in turns and in threads, until cancelled (SEC-7)."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            while self._waiting:
                # One at a time, and asked for again after each wait: a newer listing may have taken its place.
                (principal, server), listing = next(iter(self._waiting.items()))
                alike = tuple(self._alike.get(server, ()))
                same = await anyio.to_thread.run_sync(_one_of, alike, listing)
                if same is None:  # else it was reviewed with another user
                    await self._approvals.listings.review_in_turns(listing, of_one=True)
                if self._waiting.get((principal, server)) is listing:
                    del self._waiting[principal, server]
                    self._take(principal, listing, same)
                    self._stale[principal] = None
            while self._stale:
                principal = next(iter(self._stale))
                del self._stale[principal]
                await self._make(principal)

    async def _make(self, principal: str) -> None:
        """Make the large catalog of a user, and tell her what changed. One that another user has is not made again.

        Its parts are read before the wait and are its key. If one changes meanwhile, ``of`` finds no catalog for the
        new key, and asks for another one.
        """
        parts, before = self._parts(principal), self._shown.get(principal)
        made = self._made.get(parts.key)
        if made is None:
            made = self._keep(parts, await anyio.to_thread.run_sync(parts.made, self._approvals))
        if before is made:
            return
        self._shown[principal] = made
        older = before.catalog if before is not None else arranged(Catalog(), parts.config)
        for server, changed in (await anyio.to_thread.run_sync(made.catalog.changes, older)).items():
            self._tell(principal, server, changed)

    def publish_again(self, server: str) -> None:
        """What is approved has changed: tell the users who have the server to look again."""
        self._approved += 1
        for principal, listings in self._listings.items():
            if server in listings:
                self._tell(principal, server, _ALL_KINDS)

    def withdrawn(self, server: str) -> None:
        """A server was disabled or removed: forget what it listed."""
        self._alike.pop(server, None)
        self._waiting = {key: one for key, one in self._waiting.items() if key[1] != server}
        for listings in self._listings.values():
            listings.pop(server, None)

    def _take(self, principal: str, listing: Listing, same: Listing | None) -> None:
        """Remember a listing, or the one of another user with the same content."""
        known = self._listings.setdefault(principal, {})
        self._listings.move_to_end(principal)
        if same is None:
            alike = self._alike.setdefault(listing.server, [])
            alike.append(listing)
            del alike[:-ALIKE]
        # A slot that began again counts its generations from 1: what it lists is newer all the same.
        known[listing.server] = same or listing
        # Those who left go first. A connected user loses what her server listed only where all are connected.
        while len(self._listings) > MOST_USERS:
            idle = (one for one in self._listings if not self._is_connected(one))
            del self._listings[next(idle, next(iter(self._listings)))]

    def _parts(self, principal: str) -> _Parts:
        catalog, config, per_user = self._catalog(), self._config(), self._servers()
        known = self._listings.get(principal, {})
        return _Parts(
            catalog,
            config,
            per_user,
            tuple(
                one
                for name, one in known.items()
                if name in per_user and name in catalog.servers and not catalog.servers[name].withdrawn
            ),
            self._approved,
        )

    def _keep(self, parts: _Parts, catalog: Catalog) -> _Made:
        made = self._made[parts.key] = _Made(parts, catalog)
        while len(self._made) > MOST_CATALOGS:
            self._made.popitem(last=False)
        return made

    def _tell(self, principal: str, server: str, changed: ChangedKinds) -> None:
        record = _published(server, self._catalog(), changed, at=self._journal.clock.now())
        self._journal.write(OneClientRecord(server=server, record=record, principal=principal))

    def __repr__(self) -> str:
        return f"<UserCatalogs of {len(self._listings)} users>"


@dataclass(frozen=True)
class _Parts:
    """What the catalog of a user is made of. Users with the same parts have one catalog."""

    catalog: Catalog
    """That of the hub."""
    config: Config
    per_user: frozenset[str]
    listings: tuple[Listing, ...]
    """Her own, as her servers sent them."""
    approved: int

    @property
    def key(self) -> tuple[int, ...]:
        """Recognises the parts while they are held: two objects at one time have two ids."""
        return self.approved, id(self.catalog), id(self.config), *map(id, self.listings)

    @property
    def size(self) -> int:
        """How many items there are."""
        return len(self.catalog.names) + sum(map(_count, self.listings))

    def made(self, approvals: Approvals) -> Catalog:
        """The catalog of the hub without what per-user servers listed for ``local``, and with her listings."""
        written = written_prefixes(self.config)
        others = {name: prefix for name, prefix in written.items() if name not in self.per_user}
        # A server that goes and comes back has no listing, and the place and the prefix that it had.
        base = self.catalog.arrange(others).arrange(written)
        # Disabled for all is disabled for her: her own listing must not bring it back.
        for name in self.per_user:
            if name in self.catalog.servers and self.catalog.servers[name].withdrawn:
                base = base.withdraw(name)
        shown = [approvals.listings.as_shown(one) for one in self.listings if one.server in base.servers]
        return base.publish_all(shown) if shown else base


@dataclass(frozen=True, eq=False, repr=False)
class _Made:
    """A catalog, and what it was made of: while it is held, no other parts have its key."""

    parts: _Parts
    catalog: Catalog


def _one_of(alike: Sequence[Listing], listing: Listing) -> Listing | None:
    """The listing of another user with the same content, if there is one."""
    return next((one for one in alike if replace(listing, generation=one.generation) == one), None)


_ALL_KINDS = ChangedKinds(frozenset(Kind), frozenset(Kind))


# What is wrong with servers that are up all the same.


def findings(
    catalog: Catalog, shows: Callable[[NameKey], bool] = lambda _: True, *, servers: Iterable[str] | None = None
) -> dict[str, str]:
    """What is wrong with some servers, or all, that are up all the same, in words. It names what ``shows`` allows."""
    taken: dict[str, list[Collision]] = {}
    for one in catalog.collisions:
        if one.of_hub and shows(one.key):
            taken.setdefault(one.key.server, []).append(one)
    asked = catalog.servers if servers is None else servers
    return {one: words for one in asked if (words := _finding(catalog, one, taken.get(one, ())))}


def _finding(catalog: Catalog, server: str, of_hub: Sequence[Collision]) -> str:
    source = catalog.servers.get(server)
    failed = source.listing.failed if source is not None and source.listing is not None else {}
    found = [f"its {kind.value} could not be listed: {why}" for kind, why in failed.items()]
    return "; ".join([*found, *([_names_of_the_hub(of_hub)] if of_hub else [])])


MOST_NAMED = 3
"""How many names of a server a finding shows."""


def _names_of_the_hub(taken: Sequence[Collision]) -> str:
    """What is said of a server that uses names of the hub (SEC-21)."""
    said = [
        f"{quoted_name(one.wanted)} {f'is shown as {one.given}' if one.given else 'is not shown'}"
        for one in taken[:MOST_NAMED]
    ]
    more = f", and {len(taken) - MOST_NAMED} more" if len(taken) > MOST_NAMED else ""
    return f"it uses names that are Holdfast's own: {', '.join(said)}{more}"
