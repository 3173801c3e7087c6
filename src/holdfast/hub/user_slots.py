"""Users with connections of their own: the slots, the catalogs and the logins of ``sharing: per-user`` (SEC-13).

Theory of operation. A user is a verified principal. For each ``per-user`` server she has a slot: her own connection, or
her own process, with her own login. What it lists is her part of the catalog:

    shared catalog, without the listings of per-user servers      the same for all users (``_base``)
    + the listings of her own slots                               her catalog (``UserCatalogs.of``)

``local`` is a user too: the one of a hub that asks for no credentials, and of a program that uses the hub as a library.
The shared slot of a per-user server is hers alone. So a hub with one user works as if it were shared.

Whose evidence it is:

* What a slot learns about the *server* (it is down, it is slow, it is back) goes to the slots of all users: they are
  peers, as the replicas of a fleet are (``_UserPeer``).
* What it learns about *credentials* (a denial) stays in the slot. To the others it says that the server answers.

What must never happen: an item, an answer, a notification or a token of one user reaches another one. So nothing here
is found by a server's name alone: every question has a principal. Listings and catalogs with the same content are one
object for all users that have it, which saves memory and tells nothing: each of them has all of it.

Where her processes are. A connection to a URL is made by every replica of a fleet that she uses. A process is hers
alone and has a state, so one replica runs it: her home, which every replica computes alike (``UserHomes``). The slot of
any other replica is a connection to that one, as to a hub behind this one, which is told her principal with each
request.

Content is approved by what it says, for all users: a tool that was seen with one user is no news with the next one.
Each sees what her own server lists; what is held is held for all.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from holdfast.access import LOCAL
from holdfast.auth import Ladders, UserGrants
from holdfast.config import UNIX, Config, ServerSpec, Settings
from holdfast.core import Catalog, ChangedKinds, Kind, Listing, State, events as on
from holdfast.errors import ServerBusy
from holdfast.hub.approvals import Approvals
from holdfast.hub.hub_clock import sleep_until_poll
from holdfast.hub.journal import Journal, OneClientRecord, Published
from holdfast.hub.lease import FindRelay
from holdfast.hub.owned_slots import OwnedSlots
from holdfast.hub.publisher import AT_ONCE, prepared
from holdfast.hub.replica_link import UserHomes
from holdfast.hub.slot import Slot, SlotContext, SlotKey, SlotScope, remedy_for
from holdfast.hub.state_store import written_prefixes
from holdfast.wire import PRINCIPAL_HEADER, Fields

__all__ = ["UserSlots"]

MOST_USERS = 4_096
"""Users whose listings are remembered; of others the next list waits for their servers again."""

MOST_CATALOGS = 64
"""Catalogs that are kept for users with the same listings."""

ALIKE = 8
"""Listings of one server that a new one is compared with."""

LOGIN_SECONDS = 1.0
"""How often it is looked for logins that another process stored."""


class UserSlots:
    """The users but ``local``: their slots, their catalogs and their logins."""

    def __init__(
        self,
        *,
        config: Callable[[], Config],
        catalog: Callable[[], Catalog],
        approvals: Approvals,
        journal: Journal,
        ladders: Ladders,
        shared: Callable[[str], Slot],
        homes: UserHomes | None = None,
    ) -> None:
        """``shared`` gives the shared slot of a server, ``ladders`` the credentials; ``homes`` are those of a fleet."""
        self.tokens = ladders.tokens
        """The logins of the users."""
        self._config = config
        self._ladders = ladders
        self._shared = shared
        self.places = UserPlaces(homes)
        """Where the processes of users are."""
        self._servers: tuple[Config, frozenset[str]] | None = None
        self.catalogs = UserCatalogs(
            config=config,
            catalog=catalog,
            approvals=approvals,
            journal=journal,
            servers=lambda: self.servers,
            is_connected=lambda principal: principal in self.slots.servers_of,
        )
        self.slots = OwnedSlots(UserOwners(ladders, self.catalogs, others=self.of_server))

    @property
    def servers(self) -> frozenset[str]:
        """The servers with a connection for each user."""
        config = self._config()
        if self._servers is None or self._servers[0] is not config:
            found = (name for name, spec in config.servers.items() if spec.sharing == "per-user")
            self._servers = config, frozenset(found)
        return self._servers[1]

    def has_own(self, principal: str, server: str) -> bool:
        """Whether a user has a slot of her own for a server, or would get one."""
        return principal != LOCAL.name and server in self.servers

    def of(self, principal: str, spec: ServerSpec, relay: FindRelay) -> Slot:
        """A user's slot for a server; started if it is new. Raises ``ServerBusy`` over the limit."""
        slot = self.slots.of(principal, self.places.of(principal, spec), relay, expires=True, principal=principal)
        # She may have come with another credential than the one that did not serve.
        if slot.state is not State.CONNECTED and self._ladders.has_news(principal, spec.id):
            self.use_login(principal, spec.id)
        return slot

    def slot(self, principal: str, server: str) -> Slot:
        """The slot that a user's calls go to: her own if it was started, else the shared one."""
        own = self.slots.find(principal, server) if self.has_own(principal, server) else None
        return own or self._shared(server)

    def of_server(self, server: str) -> list[tuple[str, Slot]]:
        """The users that have a slot for a server, and their slots."""
        found = ((str(owner), self.slots.find(owner, server)) for owner in self.slots.servers_of)
        return [(principal, slot) for principal, slot in found if slot is not None]

    def grants(self, principal: str) -> UserGrants:
        """The logins of a user."""
        return self.tokens.of(principal)

    def lacking_login(self, principal: str) -> tuple[str, ...]:
        """The servers that deny a user access because her login is missing or has ended."""
        if principal == LOCAL.name:
            return ()
        servers = self.slots.servers_of.get(principal, ())
        return tuple(sorted(one for one in servers if self._lacks_login(principal, one)))

    def use_login(self, principal: str, server: str) -> None:
        """A user logged in to a server, or out: her slot begins again with what is stored now."""
        slot = self.slots.find(principal, server)
        if slot is not None:
            waits = slot.state in (State.DENIED, State.PERMANENTLY_FAILED)
            # A connection that stands is that of the login before.
            slot.handle(on.LoginSucceeded() if waits else on.ReconnectRequested())

    def review_homes(self) -> None:
        """Replicas came or left: end the slots of users whose processes belong to another replica now."""
        for server in self.servers:
            for principal, slot in self.of_server(server):
                if slot.spec.hub != self.places.of(principal, self._shared(server).spec).hub:
                    self.slots.release(principal, server)
                    self.places.moved(principal, server)

    def withdrawn(self, server: str) -> None:
        """A server was disabled or removed: end its slots, and forget what they listed."""
        self.slots.end(server)
        self.catalogs.withdrawn(server)

    async def watch_logins(self) -> None:
        """Follow logins that other processes store, until cancelled: `holdfast login --user` is one."""
        stamp = None
        while True:
            await sleep_until_poll(LOGIN_SECONDS)
            if not self.slots.servers_of:
                continue
            now = await anyio.to_thread.run_sync(self.tokens.look)
            if now == stamp:
                continue
            stamp = now
            for owner in list(self.slots.servers_of):
                await self._follow_login(str(owner))

    async def _follow_login(self, principal: str) -> None:
        grants = self.grants(principal)
        before = {server: one.login for one in grants.known for server in one.servers}
        if not await grants.logins.reading.up_to_date():
            return
        after = {server: one.login for one in grants.known for server in one.servers}
        for server in list(self.slots.servers_of.get(principal, ())):
            slot = self.slots.find(principal, server)
            address = grants.address_of(slot.spec) if slot is not None else ""
            if before.get(address) != after.get(address):
                self.use_login(principal, server)

    def _lacks_login(self, principal: str, server: str) -> bool:
        slot = self.slots.find(principal, server)
        if slot is None or slot.state is not State.DENIED:
            return False
        # A login that is stored may be rejected all the same: it expired, or was revoked, and cannot be renewed.
        # One that lacks a scope is no missing login.
        remedy = remedy_for(slot)
        return bool(remedy.login and not remedy.scope) or self._ladders.lacks_login(principal, slot.spec)

    def __repr__(self) -> str:
        return f"<UserSlots of {len(self.slots.servers_of)} users, {self.catalogs!r}>"


class UserPlaces:
    """Where the processes of users are: on this replica, or on another one. A hub that is alone has no ``homes``."""

    def __init__(self, homes: UserHomes | None) -> None:
        self._homes = homes
        self._moved: set[tuple[str, str]] = set()

    def of(self, principal: str, spec: ServerSpec) -> ServerSpec:
        """The definition of a user's server as this replica reaches it."""
        # A process is a command, or is behind the one process that runs the commands of all workers.
        if self._homes is not None and (spec.transport == "stdio" or spec.hub.startswith(UNIX)):
            home = self._homes.user_home(principal)
            spec = spec.behind(home) if home is not None else spec
        # A hub of the fleet lists for the user whom each request names.
        return replace(spec, headers={PRINCIPAL_HEADER: json.dumps(principal)}) if spec.hub else spec

    def moved(self, principal: str, server: str) -> None:
        """The process of a user is on another replica now."""
        self._moved.add((principal, server))

    def take_moved(self, principal: str, server: str) -> bool:
        """Whether the process of a user was on another replica before; one of her clients is told."""
        moved = (principal, server) in self._moved
        self._moved.discard((principal, server))
        return moved

    def __repr__(self) -> str:
        return f"<UserPlaces {'of a fleet' if self._homes is not None else 'of one hub'}>"


class UserOwners:
    """Users as ``Owners`` of slots. ``others`` finds the users that have a slot for a server, and their slots."""

    scope: SlotScope = "user"

    def __init__(
        self, ladders: Ladders, catalogs: UserCatalogs, *, others: Callable[[str], list[tuple[str, Slot]]]
    ) -> None:
        self._ladders = ladders
        self._catalogs = catalogs
        self._others = others

    def idle(self, settings: Settings) -> float:
        """See ``Owners``."""
        return settings.per_user.idle

    def context(self, shared: SlotContext, key: SlotKey) -> SlotContext:
        """See ``Owners``."""
        principal = str(key.owner)
        return replace(
            shared,
            host=_UserHost(self._catalogs, principal),
            one_client=True,
            principal=principal,
            authorize=partial(self._ladders.authorize, principal),
            fleet=_UserPeer(self._others, shared, principal),
        )

    def check(self, spec: ServerSpec, principals: list[str], principal: str, settings: Settings) -> None:
        """See ``Owners``."""
        limits = settings.per_user
        most, setting = limits.connections, "connections"
        if spec.transport == "stdio":
            most, setting = limits.processes, "processes"
        if len(principals) >= most:
            raise ServerBusy(
                f"MCP server '{spec.id}' has reached its limit of {most} users at the same time; "
                f"wait until one is idle, or raise `holdfast.perUser.{setting}`",
                server_id=spec.id,
                state="connected",
            )

    def __repr__(self) -> str:
        return "<UserOwners>"


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
        self._stale[principal] = None
        self._wanted.set()
        before = self._shown.get(principal)
        return before.catalog if before is not None else Catalog().arrange(written_prefixes(parts.config))

    def publish(self, principal: str, listing: Listing) -> None:
        """A user's slot listed its server. A large listing is shown in the background."""
        size = sum(len(listing.of(kind)) for kind in Kind) + self._parts(principal).size
        if size > AT_ONCE or self._waiting:
            self._waiting.pop((principal, listing.server), None)
            self._waiting[principal, listing.server] = listing
            self._wanted.set()
            return
        before = self.of(principal)
        same = _one_of(self._alike.get(listing.server, ()), listing)
        self._take(principal, listing, same)
        self._approvals.listings.review(listing, of_one=True)
        changes = self.of(principal).changes(before)
        self._tell(principal, listing.server, changes.get(listing.server, _NOTHING))

    async def run(self) -> None:
        """Take large listings and make large catalogs, in turns and in threads, until cancelled (SEC-7)."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            while self._waiting:
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
        """Make the large catalog of a user, and tell her what changed. One that another user has is not made again."""
        parts, before = self._parts(principal), self._shown.get(principal)
        made = self._made.get(parts.key)
        if made is None:
            made = self._keep(parts, await anyio.to_thread.run_sync(parts.made, self._approvals))
        if before is made:
            return
        self._shown[principal] = made
        older = before.catalog if before is not None else Catalog().arrange(written_prefixes(parts.config))
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

    def prepared(self, principal: str, server: str, method: str, params: Fields, *, late: bool) -> Fields:
        """The parameters of a user's call; see ``SlotHost``."""
        return prepared(self.of(principal), self._approvals, server, method, params, late=late)

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
        shown, own = changed
        if shown or own:
            record = Published(
                server=server,
                version=self._catalog().version,
                kinds=_names(shown),
                own_kinds=_names(own),
                at=self._journal.clock.now(),
            )
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
        return len(self.catalog.names) + sum(len(one.of(kind)) for one in self.listings for kind in Kind)

    def made(self, approvals: Approvals) -> Catalog:
        """The catalog of the hub without what per-user servers listed for ``local``, and with her listings."""
        written = written_prefixes(self.config)
        others = {name: prefix for name, prefix in written.items() if name not in self.per_user}
        base = self.catalog.arrange(others).arrange(written)
        for name in self.per_user:
            if name in self.catalog.servers and self.catalog.servers[name].withdrawn:
                base = base.withdraw(name)
        shown = [approvals.listings.as_shown(one) for one in self.listings if one.server in base.servers]
        return base.publish_all(shown) if shown else base


class _Made:
    """A catalog, and what it was made of: while it is held, no other parts have its key."""

    def __init__(self, parts: _Parts, catalog: Catalog) -> None:
        self.parts = parts
        self.catalog = catalog

    def __repr__(self) -> str:
        return f"<_Made of {len(self.parts.listings)} listings>"


def _one_of(alike: Sequence[Listing], listing: Listing) -> Listing | None:
    """The listing of another user with the same content, if there is one."""
    return next((one for one in alike if replace(listing, generation=one.generation) == one), None)


_NOTHING = ChangedKinds(frozenset(), frozenset())
_ALL_KINDS = ChangedKinds(frozenset(Kind), frozenset(Kind))


def _names(kinds: Iterable[Kind]) -> tuple[str, ...]:
    return tuple(sorted(kind.value for kind in kinds))


class _UserHost:
    """The ``SlotHost`` of one user's slots."""

    def __init__(self, catalogs: UserCatalogs, principal: str) -> None:
        self._catalogs = catalogs
        self._principal = principal

    def publish(self, listing: Listing) -> None:
        """Show it to this user."""
        self._catalogs.publish(self._principal, listing)

    def withdraw(self, server: str, *, removed: bool) -> None:
        """Do nothing: a slot that ends because it is idle keeps its listing, and all others are withdrawn for all."""

    def reinstate(self, server: str) -> None:
        """Do nothing: a disabled server ends the slots of its users."""

    def prepared(self, server: str, method: str, params: Fields, *, late: bool) -> Fields:
        """The names are those of this user's catalog; what is held is held for all."""
        return self._catalogs.prepared(self._principal, server, method, params, late=late)

    def __repr__(self) -> str:
        return f"<_UserHost of {self._principal}>"


class _UserPeer:
    """What one user's slot tells the slots of other users about their server (``EvidenceSharing``)."""

    def __init__(self, others: Callable[[str], list[tuple[str, Slot]]], context: SlotContext, principal: str) -> None:
        self._others = others
        self._context = context
        self._principal = principal

    def claim(self, server: str, at: float | None, number: int) -> None:
        """Every user may try: a try of one replaces the next try of the others (``PeerTripped``)."""
        if at is not None:
            # In a step of its own: this is called while the slot does its effects.
            self._context.tasks.start_soon(self._grant, server, name=f"{server} claim")

    def release(self, server: str, delay: float) -> None:
        """Nothing: the right was not taken from another slot."""

    def share(self, server: str, evidence: on.Event) -> None:
        """Tell the others. A denial is about this user's login: of the server it says that it answers."""
        if isinstance(evidence, on.PeerTripped) and evidence.status == "denied":
            evidence = on.PeerRecovered()
        self._context.tasks.start_soon(self._tell, server, evidence, name=f"{server} evidence")

    async def _grant(self, server: str) -> None:
        for principal, slot in self._others(server):
            if principal == self._principal:
                slot.handle(on.ClaimGranted(until=math.inf))

    async def _tell(self, server: str, evidence: on.Event) -> None:
        for principal, slot in self._others(server):
            # A login is missing there: that the server answers changes nothing.
            answers = slot.state is State.DENIED and isinstance(evidence, on.PeerRecovered)
            if principal != self._principal and not answers:
                slot.handle(evidence)

    def __repr__(self) -> str:
        return f"<_UserPeer {self._principal}>"
