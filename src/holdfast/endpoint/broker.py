"""The broker connects clients and servers. One is made for a hub, and all of its endpoints use it.

It has the table of clients and the lifetime of all that runs for them; each of its parts has one concern:

- ``attribution``: whose a message of a server is. It is the hub's relay.
- ``servers``: which connection a client uses, its subscriptions and its log level (``ClientServers``).
- ``announcer``: what clients are told of changes.
- ``pending``: calls that wait for answers of modern clients.
- ``gate``: what must be decided before a call is made.

A client is attached when it sent its first message after its handshake, and detached when it left. The owner of its
connections may come back (a session that was dropped from memory, a client key): then its own connections linger.
A server is shared by all clients, or has one connection for each client (``"sharing": "per-client"``). The connections
of a client belong to its owner: its session, its pipe, or its client key. A modern client over HTTP without a key has a
new connection for each call, and is told so. In a fleet the connections of a client are on one replica, its home:
``LivesElsewhere`` says which one that is, before anything was done for the request.

Calls are counted from ``begin`` to ``end``: ``drain`` waits for them, and refuses new ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import anyio.abc
from mcp import MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST

from holdfast.access import HOW_TO_BE_KNOWN, LOCAL, AuditTrail
from holdfast.config import CallPolicy
from holdfast.core import Catalog, State, events as on
from holdfast.endpoint.attribution import Announcer, Attribution, ClientRelay, UserRelay, notify
from holdfast.endpoint.call_gate import CallAudit, CallGate
from holdfast.endpoint.clients import Call, Client, LivesElsewhere, RequestHomes
from holdfast.endpoint.input_required import PendingCalls
from holdfast.endpoint.tasks import TaskIds
from holdfast.endpoint.user_login import LoginLinks, LoginsInConversation
from holdfast.endpoint.view import View
from holdfast.errors import HoldfastError, ServerBusy
from holdfast.hub import Hub, OwnedSlots, Slot
from holdfast.keys import KeyRing
from holdfast.wire import Connection, RawObject, forget_client

__all__ = [
    "LONGEST_WAIT",
    "PATIENCE",
    "Broker",
    "ClientServers",
    "check_subscriptions",
    "era_of",
    "first_list_seconds",
]


class Broker:
    """The clients of a hub, and their calls."""

    def __init__(
        self,
        hub: Hub,
        homes: RequestHomes | None = None,
        *,
        keys: Callable[[], KeyRing] | None = None,
        audit: AuditTrail | None = None,
        links: LoginLinks | None = None,
    ) -> None:
        """``keys`` sign the ids of tasks, where replicas share them. ``links`` lead users to their logins."""
        self.hub = hub
        self.audit = CallAudit(audit) if audit is not None else None
        self.homes = homes
        """Finds requests that belong to another replica; None without others."""
        self.gate = CallGate(hub, self.homes)
        self.pending = PendingCalls(self.homes, self.start)
        self.task_ids = TaskIds(keys, self.homes.long_tag) if self.homes is not None else TaskIds()
        self.findings: dict[str, str] = {}
        """What an operator should change, by server."""
        self._clients: dict[Hashable, Client] = {}
        """By their owner: one that comes back takes the place of the one that left."""
        self.announcer = Announcer(hub, self._clients)
        self.attribution = Attribution(hub, self._clients, self.announcer, self.findings)
        self.servers = ClientServers(
            hub,
            self.homes,
            self.attribution,
            self.findings,
            start=self.start,
        )
        self.logins = LoginsInConversation(hub, links, slot_of=self.servers.user_slot, start=self.start)
        self._quiet = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self.draining = False
        """Whether new calls are refused."""
        hub.registry.attach(self.attribution)

    # Lifetime.

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Forward the hub's records to clients, until cancelled."""
        records = self.hub.events()
        self.announcer.begin()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self.pending.expire)
            task_status.started()
            try:
                async for record in records:
                    await self.announcer.handle(record)
                await anyio.sleep_forever()
            finally:
                self.gate.close()
                self.pending.close()
                self._tasks = None
                tasks.cancel_scope.cancel()

    def start(self, work: Callable[..., Any], *args: Any) -> None:
        """Run a task in the background, for as long as the broker runs."""
        if self._tasks is not None:
            self._tasks.start_soon(work, *args)

    async def drain(self, within: float) -> bool:
        """Refuse new calls, and wait for those in flight; False if some are left after ``within`` seconds."""
        self.draining = True
        calls = self.attribution.calls
        with anyio.move_on_after(within):
            while calls:
                self._quiet = anyio.Event()
                await self._quiet.wait()
        return not calls

    # Clients and their calls.

    def attach(self, client: Client) -> None:
        """A client is there: servers may ask it, and it learns of changes."""
        self._clients[client.owner] = client
        self.hub.registry.clients.keep(client.owner)
        self._announce_roots()

    def detach(self, client: Client, *, lingering: bool = False) -> None:
        """A client left: end its subscriptions and its own connections; those of one that may come back linger."""
        if self._clients.get(client.owner) is client:
            del self._clients[client.owner]
            self._announce_roots()
        for server, uri in list(client.subscribed):
            self.servers.unsubscribe(client, server, uri)
        if lingering:
            self.hub.registry.clients.keep(client.owner, until_unused=True)
        elif not client.modern or not client.calls:
            # A modern client is one request, whose call may still be pending: then ``end`` of that call releases it.
            # The calls of a legacy client were cancelled before it left, and ``end`` does nothing for it.
            self.release(client)

    def release(self, client: Client) -> None:
        """Close the client's own connections, unless its owner goes on."""
        if not client.persistent:
            self.hub.registry.clients.release(client.owner)
            if client.key is not None:
                self._release_behind(client.key, client.principal)

    def _release_behind(self, key: str, principal: str) -> None:
        """Tell each hub behind this one that a client left."""
        hubs: dict[str, Connection] = {}
        for slot in self.hub.registry.slots.values():
            connection = slot.lease.connection if slot.lease is not None else None
            if connection is not None and connection.hub is not None:
                hubs[slot.spec.hub or urlsplit(slot.spec.url).netloc] = connection
        for connection in hubs.values():
            self.start(forget_client, connection, key, principal)

    def begin(self, call: Call, slot: Slot) -> Callable[[], None] | None:
        """The call is at its server, until ``end`` gets what this returns: it ends the use of a slot of its own."""
        if self.draining:
            raise MCPError(INVALID_REQUEST, "Holdfast is shutting down and takes no new calls; try again in a moment")
        call.client.calls += 1
        served = self.attribution.calls[call] = self.attribution.served_by(call.server)
        if slot.spec.sharing == "shared":
            served.principals.add(call.principal)
            return None
        slots, owner = self.servers.owned(call.client, call.server)
        if slots is not self.hub.registry.users.slots:
            served.principals.add(call.principal)
        return partial(slots.unuse, slots.use(owner, call.server))

    def end(self, call: Call, unuse: Callable[[], None] | None) -> None:
        """The call is over."""
        served = self.attribution.calls.pop(call)
        if served.lease is None:
            self.attribution.began_early(call)
        if unuse is not None:
            unuse()
        call.client.calls -= 1
        if call.client.modern:
            self.release(call.client)  # a modern client without a key ends with its call
        if self.draining:
            self._quiet.set()

    def _announce_roots(self) -> None:
        for slot in self.attribution.announce_roots():
            self.start(notify, slot, "notifications/roots/list_changed", None)

    def __repr__(self) -> str:
        state = " draining" if self.draining else ""
        return f"<Broker of {len(self._clients)} clients, {len(self.attribution.calls)} calls{state}>"


log = logging.getLogger("holdfast.front")

DEFAULT_READY = CallPolicy().ready_timeout


class ClientServers:
    """Finds the slot of a client, and keeps what clients want of servers.

    A server has one of three kinds of slots for a client, by its ``sharing``: the shared one, which is always there;
    one of the client's own (``per-client``), found by its owner; or its user's (``per-user``), found by the principal.
    Those of a client or a user start when they are first needed, and end when nothing uses them for a time: a call and
    a subscription are uses. ``local`` has none of its own: for it a per-user server is shared.

    What clients want of a server is part of the desired state of its slot, which every new connection is asked for
    again. The server itself is asked for a resource when the first client subscribes to it, and no more when the last
    one does not.
    """

    def __init__(
        self,
        hub: Hub,
        homes: RequestHomes | None,
        attribution: Attribution,
        findings: dict[str, str],
        *,
        start: Callable[..., None],
    ) -> None:
        """``start`` runs a task in the background."""
        self._hub = hub
        self._registry = hub.registry
        self._homes = homes
        self._attribution = attribution
        self._findings = findings
        self._start = start
        self._all_listed: Catalog | None = None
        """The catalog in which every server is known to have a listing: it need not be looked through again."""

    # Connections.

    def slot(self, client: Client, server: str) -> Slot:
        """The slot that a client uses: the shared one, or its own, which starts now if needed."""
        shared = self._registry.slots.get(server) or self._registry.slot(server)
        spec = shared.spec
        if spec.sharing == "per-user":
            client.restarted |= {server} if self._registry.users.places.take_moved(client.principal, server) else set()
            return self.user_slot(client.principal, server)
        if spec.sharing != "per-client" or not self.is_per_client(server):
            return shared
        if self.is_stateless(client, server):
            _report_stateless(self._findings, server)
        if self._registry.clients.find(client.owner, server) is None:
            lost = self._homes.lost_connection(client) if self._homes is not None else client.rebuilt
            client.restarted |= {server} if lost else set()
        principal = client.principal if client.principal != LOCAL.name else ""
        relay = ClientRelay(self._attribution, client)
        return self._registry.clients.of(client.owner, spec, lambda: relay, expires=client.expires, principal=principal)

    def user_slot(self, principal: str, server: str) -> Slot:
        """The slot that a user uses for a per-user server, which starts now if needed; that of ``local`` is shared.

        Raises ``ServerBusy`` if too many users are connected.
        """
        shared, users = self._registry.slot(server), self._registry.users
        off = not shared.spec.enabled or shared.state in (State.DISABLING, State.DISABLED)
        if off or not users.has_own(principal, server):
            return shared
        relay = UserRelay(self._attribution, principal)
        return users.of(principal, shared.spec, lambda: relay)

    def existing_slot(self, client: Client, server: str) -> Slot | None:
        """The slot that a client uses; None if it is the client's own, or its user's, and was not started."""
        slots, owner = self.owned(client, server)
        if slots is self._registry.clients and not self.is_per_client(server):
            return self._registry.slot(server)
        return slots.find(owner, server)

    def owned(self, client: Client, server: str) -> tuple[OwnedSlots, Hashable]:
        """Where the slot of a client's own for a server is, and whose it is there: its user's, or its own."""
        if self._registry.users.has_own(client.principal, server):
            return self._registry.users.slots, client.principal
        return self._registry.clients, client.owner

    def is_per_client(self, server: str) -> bool:
        """Whether each client has its own connection to a server; a disabled server has none."""
        slot = self._registry.slots.get(server) or self._registry.slot(server)
        spec = slot.spec
        per_client = spec.sharing == "per-client" and spec.enabled
        return per_client and slot.state not in (State.DISABLING, State.DISABLED)

    def is_stateless(self, client: Client, server: str) -> bool:
        """Whether a server keeps no state for this client between calls: the client sends no key."""
        unknown = client.modern and not client.persistent
        return unknown and server in self._registry.slots and self.is_per_client(server)

    async def check_home(self, client: Client, server: str) -> None:
        """Raise ``LivesElsewhere`` if another replica has this client's own connection to a server."""
        if self._homes is not None and self.is_per_client(server):
            await self._homes.check(client)

    async def wait_for_first_listing(
        self, view: View, asker: Client | None = None, *, at_most: float | None = None
    ) -> None:
        """Wait a moment for servers that were never listed, from when each of them began.

        ``asker`` is a client that asks for the tools: for its first list it waits for as long as it bears
        (``first_list_seconds``), because many clients list only once. A shorter ``readyTimeout`` counts for it too.
        """
        catalog = view.now.catalog
        if self._all_listed is catalog:
            return
        if all(source.listing is not None for source in catalog.servers.values()):
            self._all_listed = catalog
            return
        _start_own(self, view)
        clock, within = self._registry.clock, self._hub.config.settings.call.ready_timeout
        first = asker is not None and not asker.rebuilt and "tools/list" not in (asker.listed or {})
        if asker is not None and first and within >= DEFAULT_READY:
            within = max(within, first_list_seconds(asker.program))
        until = clock.now() + (within if at_most is None else at_most)
        for server in view.servers:
            source = view.now.catalog.servers.get(server)
            if source is not None and source.listing is None:
                slot = view.slot(server)
                # A modern client over HTTP is not known from its last request: each of its lists is a first one.
                known = at_most is not None or (asker is not None and first and not asker.modern)
                await clock.wait(slot.has_outcome, until if known else min(until, slot.begun + within))

    # Subscriptions and log levels.

    async def subscribe(self, client: Client, server: str, uri: str) -> None:
        """Notify a client when a resource changes; raise if the server refuses."""
        if len(uri) > LONGEST_SUBSCRIBED:
            raise MCPError(INVALID_PARAMS, f"the URI of a subscription has {LONGEST_SUBSCRIBED} characters at most")
        await self.check_home(client, server)  # first: another request of the client may subscribe meanwhile
        if (server, uri) in client.subscribed:
            return
        check_subscriptions(len(client.subscribed) + 1)
        slot = self.slot(client, server)
        self._attribution.served_by(server).principals.add(client.principal)
        slots, owner = self.owned(client, server)
        slots.use(owner, server)
        first = slot.desired_state.watch(uri)
        client.subscribed.add((server, uri))
        if first and era_of(slot) != "modern":
            try:
                await self._registry.request(server, "resources/subscribe", {"uri": uri}, repeatable=True, slot=slot)
            except BaseException:
                if (server, uri) in client.subscribed:  # else the client left meanwhile, and all of this was ended
                    self._forget(client, server, uri, slot)
                raise

    def unsubscribe(self, client: Client, server: str, uri: str) -> None:
        """Stop notifying a client about a resource."""
        if (server, uri) not in client.subscribed:
            return
        slot = self.existing_slot(client, server) if server in self._registry.slots else None
        if slot is None:
            client.subscribed.discard((server, uri))
        elif self._forget(client, server, uri, slot) and era_of(slot) == "legacy":
            self._start(_request_quietly, slot, "resources/unsubscribe", {"uri": uri})

    def _forget(self, client: Client, server: str, uri: str, slot: Slot) -> bool:
        """A client has no subscription any more, which is a use of its slot; whether it was the last one of the URI."""
        client.subscribed.discard((server, uri))
        slots, owner = self.owned(client, server)
        slots.leave(owner, server)
        return slot.desired_state.unwatch(uri)

    def follow_subscriptions(self, client: Client, subscribed: Collection[tuple[str, str]]) -> None:
        """A session has these subscriptions: it was rebuilt, or another replica changed them."""
        for server, uri in client.subscribed.difference(subscribed):
            self.unsubscribe(client, server, uri)
        for server, uri in subscribed:
            if not server:
                client.subscribed.add((server, uri))
            elif server in self._registry.slots and client.seen.covers(server):
                self._start(_subscribe_quietly, self, client, server, uri)

    def set_log_level(self, client: Client, level: str | None) -> None:
        """The lowest level of log messages that a client wants."""
        client.log_level = level
        for server in client.seen.servers if level is not None else ():
            self.ask_for_logs(client, server)

    def ask_for_logs(self, client: Client, server: str) -> None:
        """Ask a server to log at the lowest level that one of its clients wants."""
        slot = self.existing_slot(client, server)
        connection = slot.lease.connection if slot is not None and slot.lease is not None else None
        level = client.log_level
        if slot is None or level is None or not slot.desired_state.log(level) or connection is None:
            return
        if connection.era == "legacy" and "logging" in connection.capabilities:
            self._start(_request_quietly, slot, "logging/setLevel", {"level": level})


async def _subscribe_quietly(servers: ClientServers, client: Client, server: str, uri: str) -> None:
    try:
        await servers.subscribe(client, server, uri)
    except LivesElsewhere:
        pass  # the replica with the client's connection has the subscription
    except (HoldfastError, MCPError) as exc:
        log.info("%s: a subscription of a session from before was not made again: %s", server, exc)


async def _request_quietly(slot: Slot, method: str, params: Mapping[str, Any]) -> None:
    """Send a request that no one waits for."""
    with suppress(HoldfastError):
        await slot.call(method, RawObject.of(params).members, repeatable=True)


def _start_own(servers: ClientServers, view: View) -> None:
    """Start the slots of a user's own servers that she has not used yet: until then nothing of them is listed."""
    registry = view.hub.registry
    for server in view.servers if registry.users.servers else ():
        slot = registry.slots.get(server)
        if slot is None or slot.spec.sharing != "per-user":
            continue
        if registry.users.has_own(view.principal, server):
            with suppress(ServerBusy):  # her calls say it
                servers.user_slot(view.principal, server)
        elif slot.state is State.IDLE and not slot.spec.lazy:
            slot.handle(on.CallWaiting())  # `local` is here, and was not expected


def _report_stateless(findings: dict[str, str], server: str) -> None:
    text = (
        "a client of protocol 2026-07-28 over HTTP sends no client key: each of its calls gets a new connection, "
        f"and the server keeps no state for it between calls. {HOW_TO_BE_KNOWN}"
    )
    if server not in findings:
        log.warning("%s: %s", server, text)
    findings[server] = text


def era_of(slot: Slot) -> str | None:
    """The era that a server speaks; None while it is not connected."""
    lease = slot.lease
    return lease.connection.era if lease is not None and lease.connection is not None else None


# How long the first list of tools waits for servers that are starting (HUB-13).
#
# Many clients ask for the tools once, at their start, and never again: what is not in that list does not exist for
# them. So where no listing of a server is known from before, the first list waits for the servers that are starting.
# It must not wait longer than the client does: one that gives up has no tools at all. A client is known by the name
# that it gives itself. For the others the wait stays below the shortest limit that was seen in the field, which is 5 s.

UNKNOWN_WAIT: Final = 4.0
"""OpenAI Agents, Google ADK, Pydantic AI and Cline give up after 5 s. The Python SDK calls all its clients `mcp`."""

LONGEST_WAIT: Final = 15.0

MOST_SUBSCRIBED: Final = 500
LONGEST_SUBSCRIBED: Final = 2_048
"""How many resources a client may subscribe to, and the characters of each URI. They stay in memory, in the store of
sessions and in the desired state of the server for as long as the session lasts (SEC-11)."""


def check_subscriptions(number: int) -> None:
    """Refuse more subscriptions than a client may have."""
    if number > MOST_SUBSCRIBED:
        words = f"a client has {MOST_SUBSCRIBED} subscriptions at most; end one of them first"
        raise MCPError(INVALID_PARAMS, words)


PATIENCE: Final[dict[str, float]] = {
    # Claude Desktop; the limit of its TypeScript SDK: DEFAULT_REQUEST_TIMEOUT_MSEC = 60000
    "claude-ai": 60,
    # Claude Code's documentation: MCP_TIMEOUT, 30 s by default
    "claude-code": 30,
    # Codex: DEFAULT_STARTUP_TIMEOUT is 10 s for the handshake and the first list
    "codex-mcp-client": 10,
    # Gemini CLI: 30 s for the discovery of a server over stdio, 10 min before
    "gemini-cli-mcp-client": 30,
}
"""After how many seconds programs give up on an answer, unless their users have set another time; by the beginning of
the name that a client gives itself: some add the name of the server."""


def first_list_seconds(program: str) -> float:
    """How long the first list may wait for servers: half of what the client bears, so that its answer is in time."""
    known = next((one for name, one in PATIENCE.items() if program == name or program.startswith(f"{name}-")), None)
    return min(known / 2, LONGEST_WAIT) if known is not None else UNKNOWN_WAIT
