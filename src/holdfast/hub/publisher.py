"""The publisher of the catalog: listings come in, a new catalog goes out, and its readers are told.

Theory of operation. ``catalog`` is an immutable snapshot with a version. It is replaced as a whole, in one step of the
event loop, and each replacement writes one ``Published`` record for each server that it changes. A reader takes one
reference and keeps it, so it never sees half of a change.

* A listing is reviewed before it is published (review.py): what is held is shown as it was first seen.
* A small catalog is made at once, in the step in which its server becomes connected: a reader that sees the state sees
  the tools. A large one takes longer than a step may (SEC-7): the listing waits, ``run`` reviews it in turns and a
  thread makes the catalog. If the catalog or the listing changed meanwhile, it is made again; nothing is lost, and
  nothing older replaces anything newer.
* While a listing waits, all later ones wait too: so the order of one server's listings stays.
* A server that is disabled is withdrawn: its items are not shown, and its last good listing is kept (LIFE-4). A server
  that is removed is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import anyio
import anyio.to_thread

from holdfast.config import Config
from holdfast.core import Catalog, ChangedKinds, Collision, Kind, Listing, NameKey, quoted_name
from holdfast.hub.approvals import Approvals
from holdfast.hub.journal import Journal, ListFailed, Published
from holdfast.hub.replica_link import ListingSharing
from holdfast.hub.state_store import written_prefixes
from holdfast.wire import Fields, dumps, text_of

__all__ = ["AT_ONCE", "NAMED_CALLS", "Publisher", "finding", "findings", "prepared"]

NAMED_CALLS = {"tools/call": Kind.TOOL, "prompts/get": Kind.PROMPT}
"""The requests that name an item with a prefix, and its kind."""

AT_ONCE = 3_000
"""A catalog of so many items is made at once; that takes about 15 ms of the event loop."""

ARRANGE_TRIES = 3


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
        size = sum(len(listing.of(kind)) for kind in Kind) + len(self.catalog.names)
        if size > AT_ONCE or self._waiting:
            self._waiting.pop(listing.server, None)
            self._waiting[listing.server] = listing
            self._wanted.set()
            return
        reviewed = self._approvals.listings.review(listing)
        self._show(self.catalog.publish(reviewed))
        self._published((reviewed,))

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

    def prepared(self, server: str, method: str, params: Fields, *, late: bool) -> Fields:
        """The parameters of a call to send now; ``late`` if they were made before the server was connected.

        Raises ``ToolHeld`` for a tool or a prompt that waits for approval.
        """
        return prepared(self.catalog, self._approvals, server, method, params, late=late)

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
        if self.catalog.servers[listing.server].withdrawn:
            catalog = catalog.withdraw(listing.server)
        self._show(catalog)

    async def arranged(self, config: Config) -> tuple[Catalog, Mapping[str, ChangedKinds]]:
        """The catalog with the servers of a configuration, and what that changes, for ``replace``."""
        for _ in range(ARRANGE_TRIES):
            before = self.catalog
            made = await anyio.to_thread.run_sync(_arranged, before, config)
            if self.catalog is before:
                return made
        return _arranged(self.catalog, config)  # other servers publish all the time: now none can

    def replace(self, catalog: Catalog, changes: Mapping[str, ChangedKinds]) -> None:
        """Show another catalog, and tell what changed. Listings of servers that are gone no longer wait."""
        if catalog is self.catalog:
            return
        self.catalog = catalog
        self._waiting = {server: one for server, one in self._waiting.items() if server in catalog.servers}
        for server, (shown, own) in changes.items():
            self._journal.write(
                Published(
                    server=server,
                    version=catalog.version,
                    kinds=tuple(sorted(kind.value for kind in shown)),
                    own_kinds=tuple(sorted(kind.value for kind in own)),
                    at=self._journal.clock.now(),
                )
            )
        self._on_change()

    async def run(self) -> None:
        """Publish the listings that wait, all together, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            while self._waiting:
                taken = dict(self._waiting)
                reviewed = [await self._approvals.listings.review_in_turns(listing) for listing in taken.values()]
                before = self.catalog
                made, changes = await anyio.to_thread.run_sync(_made, before, reviewed)
                newer = any(self._waiting.get(server) is not listing for server, listing in taken.items())
                if newer or self.catalog is not before:
                    continue  # a newer listing came, or the catalog changed meanwhile: once more
                for server in taken:
                    del self._waiting[server]
                self.replace(made, changes)
                self._published(reviewed)

    def _show(self, catalog: Catalog) -> None:
        if catalog is not self.catalog:
            self.replace(catalog, catalog.changes(self.catalog))

    def _published(self, reviewed: Iterable[Listing]) -> None:
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


def prepared(catalog: Catalog, approvals: Approvals, server: str, method: str, params: Fields, *, late: bool) -> Fields:
    """The parameters of a call to send now, by this catalog; see ``SlotHost``. Raises ``ToolHeld``."""
    kind = NAMED_CALLS.get(method)
    if kind is None or not (late or approvals.pins.changed.get(server)):
        return params
    name = text_of(params.get("name")) or ""
    if late:
        listed = catalog.listed_name(NameKey(kind, server, name))
        params, name = {**params, "name": dumps(listed)}, listed
    approvals.refuse_held(server, name, "tool" if kind is Kind.TOOL else "prompt")
    return params


def _made(before: Catalog, listings: Sequence[Listing]) -> tuple[Catalog, Mapping[str, ChangedKinds]]:
    """The catalog with these listings, and what they change."""
    made = before.publish_all(listings)
    return made, made.changes(before)


def _arranged(before: Catalog, config: Config) -> tuple[Catalog, Mapping[str, ChangedKinds]]:
    made = before.arrange(written_prefixes(config), longest=config.settings.name_length)
    return made, made.changes(before)


# What is wrong with servers that are up all the same.


def findings(catalog: Catalog) -> dict[str, str]:
    """What is wrong with servers that are up all the same, in words, by server."""
    taken: dict[str, list[Collision]] = {}
    for one in catalog.collisions:
        if not one.holder.server:
            taken.setdefault(one.key.server, []).append(one)
    return {one: words for one in catalog.servers if (words := _finding(catalog, one, taken.get(one, ())))}


def finding(catalog: Catalog, server: str) -> str:
    """What is wrong with one server that is up all the same; empty if there is nothing."""
    of_hub = [one for one in catalog.collisions if not one.holder.server and one.key.server == server]
    return _finding(catalog, server, of_hub)


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
