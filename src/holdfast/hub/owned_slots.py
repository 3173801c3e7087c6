"""Slots that belong to one owner each: a client (``sharing: per-client``) or a user (``sharing: per-user``, SEC-13).

Theory of operation. Each is a slot with the same machine as a shared one, so a lost connection comes back for its
owner. Their number is limited per server. ``OwnedSlots`` has the slots and their use. What differs between clients and
users is in an ``Owners``: the limits, and what their slots are given.

The end of a slot. An owner that says goodbye takes its slots along (``release``). One that can leave without notice has
slots that *expire*: a slot ends when no call, no subscription and no stream used it for long enough. A user can always
leave so. A use is counted from ``use`` to ``unuse``; a slot in use never expires.

Users. A user is a verified principal. For each ``per-user`` server she has a slot: her own connection, or her own
process, with her own login. What it lists is her part of the catalog (``UserCatalogs`` in publisher.py). ``local`` is a
user too: the one of a hub that asks for no credentials, and of a program that uses the hub as a library. The shared
slot of a per-user server is hers alone. So a hub with one user works as if it were shared.

Whose evidence it is:

* What a slot learns about the *server* (it is down, it is slow, it is back) goes to the slots of all users: they are
  peers, as the replicas of a fleet are (``_UserPeer``).
* What it learns about *credentials* (a denial) stays in the slot. To the others it says that the server answers.

What must never happen: an answer, a notification or a token of one owner reaches another one. So no slot is found by a
server's name alone: every question has an owner.

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
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

import anyio
import anyio.to_thread

from holdfast.access import LOCAL
from holdfast.auth import Ladders, UserGrants
from holdfast.config import UNIX, Config, ServerSpec, Settings
from holdfast.core import Catalog, Listing, State, events as on
from holdfast.errors import ServerBusy
from holdfast.hub.approvals import Approvals
from holdfast.hub.hub_clock import sleep_until_poll
from holdfast.hub.journal import Journal
from holdfast.hub.lease import FindRelay
from holdfast.hub.publisher import UserCatalogs
from holdfast.hub.slot import Slot, SlotContext, remedy_for
from holdfast.wire import PRINCIPAL_HEADER

__all__ = ["CLIENTS", "OwnedSlots", "Owners", "UserHomes", "UserSlots", "user_owners"]

LOGIN_SECONDS = 1.0
"""How often it is looked for logins that another process stored."""


@dataclass(eq=False)
class _Own:
    """One owner's slot for one server."""

    slot: Slot
    expires: bool
    """Whether the owner can leave without notice."""
    principal: str
    unused_since: float
    uses: int = 0


@dataclass(frozen=True)
class Owners:
    """What the slots of one kind of owner have in common."""

    kind: Literal["client", "user"]
    idle: Callable[[Settings], float]
    """How long a slot may be unused, in seconds."""
    context: Callable[[SlotContext, Hashable], SlotContext]
    """What the slot of an owner is given, made of what the shared slots have."""
    check: Callable[[ServerSpec, list[str], str, Settings], None]
    """Raises ``ServerBusy`` if a principal may have no slot more; the list has those that have one each already."""


@dataclass(frozen=True)
class OwnedHost:
    """The ``SlotHost`` of one owner's slots."""

    shown: Callable[[], Catalog]
    publish: Callable[[Listing], None]
    """Gets what they list."""

    @property
    def catalog(self) -> Catalog:
        """What its owner is shown now."""
        return self.shown()

    def withdraw(self, server: str, *, removed: bool) -> None:
        """Do nothing: a slot that ends because it is idle keeps its listing, and all others are withdrawn for all."""

    def reinstate(self, server: str) -> None:
        """Do nothing: a disabled server ends the slots of its owners."""


class OwnedSlots:
    """The slots of all owners that have slots of their own."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._context: SlotContext
        """What the shared slots have; from ``open`` on. No owner has a slot before."""
        self._own: dict[tuple[Hashable, str], _Own] = {}
        """By owner and server."""
        self.servers_of: dict[Hashable, set[str]] = {}
        """By owner, the servers that it has a slot for: a call of one client looks at no other client."""
        self._changed = anyio.Event()

    def open(self, context: SlotContext) -> None:
        """Start; ``context`` is that of the shared slots."""
        self._context = context
        context.tasks.start_soon(self._expire, name=f"unused connections of {self._owners.kind}s")

    def adopt(self, settings: Settings) -> None:
        """Use other settings, for existing connections too."""
        self._context = replace(self._context, settings=settings)
        self._changed.set()

    def of(
        self, owner: Hashable, spec: ServerSpec, relay: FindRelay, *, expires: bool = False, principal: str = ""
    ) -> Slot:
        """The owner's slot for a server; started if it is new, replaced if the definition changed.

        ``principal`` is whose quota it counts for; empty where there is one user alone.
        """
        own = self._own.get((owner, spec.id))
        if own is not None and own.slot.spec == spec:
            return own.slot
        # Only its limits changed: the process of this client, with all that it keeps, goes on.
        if own is not None and spec.connects_like(own.slot.spec):
            own.slot.adopt(spec, self._context.settings)
            return own.slot
        # It takes no place more: the old one goes in the same step, so the limit is not asked.
        if own is not None:
            own.slot.handle(on.RemoveRequested())
        else:
            principals = [one.principal for (_, server), one in self._own.items() if server == spec.id]
            self._owners.check(spec, principals, principal, self._context.settings)
        slot = Slot(spec, replace(self._owners.context(self._context, owner), relay=relay))
        self._own[owner, spec.id] = _Own(slot, expires, principal, unused_since=self._context.clock.now())
        self.servers_of.setdefault(owner, set()).add(spec.id)
        self._context.tasks.start_soon(slot.run, name=f"{spec.id} of one {self._owners.kind}")
        slot.handle(on.StartRequested())
        self._changed.set()
        return slot

    def find(self, owner: Hashable, server: str) -> Slot | None:
        """The owner's slot for a server, or None."""
        own = self._own.get((owner, server))
        return own.slot if own is not None else None

    def use(self, owner: Hashable, server: str) -> _Own | None:
        """Count one more use of the owner's slot, until ``leave``."""
        if (own := self._own.get((owner, server))) is not None:
            own.uses += 1
        return own

    def leave(self, owner: Hashable, server: str) -> None:
        """Count one use less."""
        self.unuse(self._own.get((owner, server)))

    def unuse(self, own: object) -> None:
        """End a use that ``use`` began."""
        if isinstance(own, _Own):
            # Not below zero: a slot that was replaced meanwhile never saw the beginning of this use.
            own.uses = max(own.uses - 1, 0)
            # From the end of the last use, not from its beginning: a long call is no idleness.
            own.unused_since = self._context.clock.now()

    def keep(self, owner: Hashable, *, until_unused: bool = False) -> None:
        """The owner is there, and its slots stay. ``until_unused``: it may come back; they end when unused for long."""
        for server in self.servers_of.get(owner, ()):
            own = self._own[owner, server]
            own.expires, own.unused_since = until_unused, self._context.clock.now()
            self._changed.set()

    def release(self, owner: Hashable, server: str | None = None) -> None:
        """End all slots of an owner that has left, or the one for a server."""
        servers = self.servers_of.get(owner, set())
        self._end([(owner, one) for one in servers if server in (None, one)])

    def end(self, server: str) -> None:
        """End all slots for a server that was removed or disabled."""
        self._end([key for key in self._own if key[1] == server])

    def all(self) -> list[Slot]:
        """Every slot."""
        return [own.slot for own in self._own.values()]

    def _end(self, keys: list[tuple[Hashable, str]]) -> None:
        for owner, server in keys:
            servers = self.servers_of[owner]
            servers.discard(server)
            if not servers:
                del self.servers_of[owner]
            self._own.pop((owner, server)).slot.handle(on.RemoveRequested())

    def __repr__(self) -> str:
        return f"<OwnedSlots {len(self._own)} of {len(self.servers_of)} {self._owners.kind}s>"

    async def _expire(self) -> None:
        """End the slots that are unused for too long; runs until cancelled."""
        while True:
            self._changed = anyio.Event()
            # The event is new before the look: a change during the look ends the wait at once.
            context = self._context
            idle, now = self._owners.idle(context.settings), context.clock.now()
            # One in use counts as if its use ended now: it cannot be due earlier. So the end of a use, which each call
            # has, need not wake this task.
            due = {key: (now if own.uses else own.unused_since) + idle for key, own in self._own.items() if own.expires}
            self._end([key for key, at in due.items() if at <= now])
            await context.clock.wait(self._changed, min((at for at in due.values() if at > now), default=None))


def _client_context(shared: SlotContext, _: Hashable) -> SlotContext:
    # What is published is what the shared slot lists, whichever connection a call uses.
    host = OwnedHost(lambda: shared.host.catalog, lambda _: None)
    # Without the fleet: what one client's connection saw is no evidence about the server for other replicas.
    return replace(shared, host=host, one_client=True, fleet=None)


def _check_clients(spec: ServerSpec, principals: list[str], principal: str, settings: Settings) -> None:
    share, most = settings.quotas.client_connections, settings.per_client.connections
    if principal and principals.count(principal) >= share:
        raise ServerBusy(
            f"the clients of this caller have {share} connections to MCP server '{spec.id}', which is their quota; "
            "end a client, or raise `holdfast.quotas.clientConnections`",
            server_id=spec.id,
            state="connected",
        )
    if len(principals) >= most:
        raise ServerBusy(
            f"MCP server '{spec.id}' has reached its limit of {most} client connections; "
            "wait until a client leaves, or raise `holdfast.perClient.connections`",
            server_id=spec.id,
            state="connected",
        )


CLIENTS = Owners("client", lambda settings: settings.per_client.idle, _client_context, _check_clients)
"""Clients as owners: their slots publish nothing, because the shared slot lists the server."""


class UserHomes(Protocol):
    """Which replica runs the processes of a user."""

    def user_home(self, principal: str) -> str | None:
        """The address of the replica that runs them; None if it is this one."""


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
        self.slots = OwnedSlots(user_owners(ladders, self.catalogs, others=self.of_server))

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
        # Before her first call she has none; the state that she is shown then is that of the server for all.
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
                    self.places.moved.add((principal, server))

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
            now = await anyio.to_thread.run_sync(self.tokens.stamp)
            # The stamp first: the logins of thousands of users are not read again while no file changed.
            if now == stamp:
                continue
            followed = [await self._follow_logins(str(owner)) for owner in list(self.slots.servers_of)]
            # A store that could not be read is looked at again, also if nothing changes by then.
            stamp = now if all(followed) else None

    async def _follow_logins(self, principal: str) -> bool:
        """Let the slots of a user use what another process stored; False if her logins could not be read."""
        grants = self.grants(principal)
        if not await grants.up_to_date():
            return False
        news = grants.take_news()
        for server in list(self.slots.servers_of.get(principal, ())) if news else ():
            slot = self.slots.find(principal, server)
            if slot is not None and grants.address_of(slot.spec) in news:
                self.use_login(principal, server)
        return True

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
        self.moved: set[tuple[str, str]] = set()
        """The users and servers whose processes are on another replica now; each is told once (``take_moved``)."""

    def of(self, principal: str, spec: ServerSpec) -> ServerSpec:
        """The definition of a user's server as this replica reaches it."""
        # A process is a command, or is behind the one process that runs the commands of all workers.
        if self._homes is not None and (spec.transport == "stdio" or spec.hub.startswith(UNIX)):
            home = self._homes.user_home(principal)
            spec = spec.behind(home) if home is not None else spec
        # A hub of the fleet lists for the user whom each request names.
        return replace(spec, headers={PRINCIPAL_HEADER: json.dumps(principal)}) if spec.hub else spec

    def take_moved(self, principal: str, server: str) -> bool:
        """Whether the process of a user was on another replica before; one of her clients is told."""
        # Told once: the next client of the same user meets a connection that is as she left it.
        moved = (principal, server) in self.moved
        self.moved.discard((principal, server))
        return moved

    def __repr__(self) -> str:
        return f"<UserPlaces {'of a fleet' if self._homes is not None else 'of one hub'}>"


def user_owners(ladders: Ladders, catalogs: UserCatalogs, *, others: Callable[[str], list[tuple[str, Slot]]]) -> Owners:
    """Users as owners. ``others`` finds the users that have a slot for a server, and their slots."""

    def context(shared: SlotContext, owner: Hashable) -> SlotContext:
        principal = str(owner)
        return replace(
            shared,
            host=OwnedHost(partial(catalogs.of, principal), partial(catalogs.publish, principal)),
            one_client=True,
            principal=principal,
            authorize=partial(ladders.authorize, principal),
            fleet=_UserPeer(others, shared, principal),
        )

    return Owners("user", lambda settings: settings.per_user.idle, context, _check_users)


def _check_users(spec: ServerSpec, principals: list[str], _: str, settings: Settings) -> None:
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
            granted = on.ClaimGranted(until=math.inf)
            self._context.tasks.start_soon(self._tell, server, granted, True, name=f"{server} claim")

    def release(self, server: str, delay: float) -> None:
        """Nothing: the right was not taken from another slot."""

    def share(self, server: str, evidence: on.Event) -> None:
        """Tell the others. A denial is about this user's login: of the server it says that it answers."""
        # The server answered her, so it is up. That is all that the others may learn of her login.
        if isinstance(evidence, on.PeerTripped) and evidence.status == "denied":
            evidence = on.PeerRecovered()
        self._context.tasks.start_soon(self._tell, server, evidence, False, name=f"{server} evidence")

    async def _tell(self, server: str, event: on.Event, itself: bool) -> None:
        for principal, slot in self._others(server):
            # A login is missing there: that the server answers changes nothing.
            answers = slot.state is State.DENIED and isinstance(event, on.PeerRecovered)
            if (principal == self._principal) is itself and not answers:
                slot.handle(event)

    def __repr__(self) -> str:
        return f"<_UserPeer {self._principal}>"
