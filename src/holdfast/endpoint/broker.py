"""Connects clients and servers: who is connected, which calls are in flight, and where a message goes.

A server's request or log message goes to the client whose call it belongs to. If the transport does not show that
(stdio, a shared stream), it goes to the client with calls in flight, if that is one client, else to the only client
there is. In every other case it is refused and reported: the broker never guesses. A connection that served more than
one principal gets no such answer at all: a late message may belong to an earlier call of another principal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
from mcp import MCPError
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types import INVALID_REQUEST

from holdfast.access import HOW_TO_BE_KNOWN, LOCAL
from holdfast.core import STATUS_URI, AccessChanged, BreakerChanged, Catalog, RetryPlanned, State, Transition
from holdfast.endpoint.clients import Call, Client, require_capability
from holdfast.endpoint.homes import CALL_LOST, LivesElsewhere, RequestHomes
from holdfast.endpoint.input_required import PendingCalls
from holdfast.endpoint.subscriptions import Subscriptions
from holdfast.endpoint.tasks import TaskIds
from holdfast.endpoint.view import View
from holdfast.errors import HoldfastError
from holdfast.hub import Hub, HubRecord, ListFailed, Missed, Published, Slot
from holdfast.wire import CALL_NOTIFICATIONS, Caller, Era, Relay, without_task_capabilities

__all__ = ["Broker", "ClientRelay", "IdleCaller"]


class IdleCaller:
    """A connected client without a call in flight; messages go to its notification stream."""

    client_key: str | None = None
    via: tuple[str, ...] = ()

    def __init__(self, broker: Broker, client: Client) -> None:
        self._broker = broker
        self._client = client

    @property
    def era(self) -> Era:
        """The era that the client speaks."""
        return "modern" if self._client.modern else "legacy"

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client declares."""
        return self._client.capabilities

    @property
    def principal(self) -> str:
        """The name of the principal that the client acts for."""
        return self._client.principal

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Send a request; a modern client can receive one only in the result of its own call."""
        require_capability(self._client, method, params)
        if self._client.modern:
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach this client now: it has no call in flight")
        return await self._client.channel.ask(method, params)

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification, if the client wants it."""
        if method != "notifications/message" or self._client.wants_log((params or {}).get("level")):
            self._client.channel.tell(method, params)


class ClientRelay(Relay):
    """The relay of a connection that belongs to one client: everything goes to that client."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self._broker = broker
        self._client = client

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client declares; a server's own requests are no tasks here."""
        return without_task_capabilities(self._client.capabilities)

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """Send a server's request to the client."""
        return await (caller or self._broker.caller_of(self._current, server)).ask(method, params)

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a server's notification to the client."""
        uri = (params or {}).get("uri")
        client = self._current
        if method in CALL_NOTIFICATIONS:
            self._broker.caller_of(client, server).tell(method, params)
        elif method == "notifications/resources/updated" and isinstance(uri, str):
            self._broker.post_updated(server, uri, only=client.owner)
            if not client.modern:
                self._broker.tell(client, method, {"uri": client.view.shown_uri(server, uri)})

    @property
    def _current(self) -> Client:
        """The client itself, or the session that was rebuilt for it."""
        return self._broker.of_owner(self._client.owner) or self._client


log = logging.getLogger("holdfast.front")

SHARED_CAPABILITIES: Mapping[str, Any] = {
    "sampling": {},
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
}
"""What the hub declares to a shared server, before any client is known."""

_CHANGED: Mapping[str, tuple[str, ServerEvent]] = {
    "tools": ("notifications/tools/list_changed", ToolsListChanged()),
    "prompts": ("notifications/prompts/list_changed", PromptsListChanged()),
    "resources": ("notifications/resources/list_changed", ResourcesListChanged()),
    "templates": ("notifications/resources/list_changed", ResourcesListChanged()),
}


@dataclass
class _Served:
    """The principals that one connection of a server served."""

    lease: object
    principals: set[str]


class Broker:
    """One for all endpoints of the hub; it is the hub's relay."""

    def __init__(self, hub: Hub, homes: RequestHomes | None = None) -> None:
        self.hub = hub
        self.homes = homes
        """Finds requests that belong to another replica; None without others."""
        self.pending_calls = PendingCalls(self.homes.tag if self.homes is not None else "")
        self.task_ids = TaskIds()
        self.findings: dict[str, str] = {}
        """What an operator should change, by server."""
        self._subscriptions: list[Subscriptions] = []
        self._clients: dict[Hashable, Client] = {}
        """By their owner: one that comes back takes the place of the one that left."""
        self._calls: dict[Call, None] = {}
        self._served: dict[str, _Served] = {}
        self._roots_of: dict[str, Client | None] = {}
        """Whose roots a server has that asked outside a call; None where no client could be asked."""
        self._told = hub.registry.catalog
        """The last catalog whose changes the clients were told, all of them."""
        self._all_listed: Catalog | None = None
        """The catalog in which every server is known to have a listing: it need not be looked through again."""
        self._quiet = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self.draining = False
        """Whether new calls are refused."""
        hub.registry.attach(self)

    # Lifetime.

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Forward the hub's records to clients, until cancelled."""
        records, self._told = self.hub.events(), self.hub.registry.catalog
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self.pending_calls.expire)
            task_status.started()
            try:
                async for record in records:
                    self._handle(record)
                await anyio.sleep_forever()
            finally:
                self.pending_calls.close()
                self._tasks = None
                tasks.cancel_scope.cancel()

    def start(self, work: Callable[..., Any], *args: Any) -> None:
        """Run a task in the background, for as long as the broker runs."""
        if self._tasks is not None:
            self._tasks.start_soon(work, *args)

    async def drain(self, within: float) -> bool:
        """Refuse new calls, and wait for those in flight; False if some are left after ``within`` seconds."""
        self.draining = True
        with anyio.move_on_after(within):
            while self._calls:
                self._quiet = anyio.Event()
                await self._quiet.wait()
        return not self._calls

    # Clients and their calls.

    def add_subscriptions(self, subscriptions: Subscriptions) -> None:
        """Send events to the subscribers of an endpoint from now on."""
        self._subscriptions.append(subscriptions)

    def remove_subscriptions(self, subscriptions: Subscriptions) -> None:
        """An endpoint closed."""
        self._subscriptions.remove(subscriptions)

    def attach(self, client: Client) -> None:
        """A client connected."""
        self._clients[client.owner] = client
        self.hub.registry.clients.keep(client.owner)
        self._announce_roots()

    def of_owner(self, owner: Hashable) -> Client | None:
        """The client that owns connections now, or None."""
        return self._clients.get(owner)

    def notify(self, slot: Slot, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification to a server, if it is connected and of the era that has it."""
        lease = slot.lease
        if lease is not None and lease.connection is not None and lease.connection.era == "legacy":
            self.start(lease.connection.notify, method, params)

    def detach(self, client: Client, *, lingering: bool = False) -> None:
        """A client left: end its subscriptions and its own connections; those of one that may come back linger."""
        if self._clients.get(client.owner) is client:
            del self._clients[client.owner]
            self._announce_roots()
        for server, uri in list(client.subscribed):
            self._unsubscribe(client, server, uri)
        if lingering:
            self.hub.registry.clients.linger(client.owner)
        elif not client.calls:
            self.release(client)

    def restore(self, client: Client, subscribed: Collection[tuple[str, str]]) -> None:
        """Subscribe a rebuilt session again to what it was subscribed to; a server that is gone is left out."""
        for server, uri in subscribed:
            if not server:
                client.subscribed.add((server, uri))
            elif server in self.hub.registry.slots and client.view.covers(server):
                self.start(self._subscribe_quietly, client, server, uri)

    async def _subscribe_quietly(self, client: Client, server: str, uri: str) -> None:
        try:
            await self.subscribe(client, server, uri)
        except LivesElsewhere:
            pass  # the replica with the client's connection has the subscription
        except (HoldfastError, MCPError) as exc:
            log.info("%s: a subscription of a session from before was not made again: %s", server, exc)

    def tell_missed(self, client: Client, kinds: Collection[str]) -> None:
        """Tell a legacy client that its lists of these kinds changed, and that what it subscribed to may have."""
        for method in dict.fromkeys(method for kind, (method, _) in _CHANGED.items() if kind in kinds):
            self.tell(client, method, everywhere=True)
        for server, uri in list(client.subscribed):
            shown = {"uri": client.view.shown_uri(server, uri)}
            self.tell(client, "notifications/resources/updated", shown, everywhere=True)

    def release(self, client: Client) -> None:
        """Close the client's own connections, unless its owner goes on."""
        if not client.persistent:
            self.hub.registry.clients.release(client.owner)

    def begin(self, call: Call) -> tuple[_Served, object]:
        """The call is in flight, until ``end`` gets what this returns."""
        if self.draining:
            raise MCPError(INVALID_REQUEST, "Holdfast is shutting down and takes no new calls; try again in a moment")
        served = self._served_by(call.server)
        served.principals.add(call.client.principal)
        self._calls[call] = None
        call.client.calls += 1
        return served, self.hub.registry.clients.use(call.client.owner, call.server)

    def end(self, call: Call, begun: tuple[_Served, object]) -> None:
        """The call is over."""
        served, use = begun
        if served.lease is None:  # the call waited for its connection, and the connection may stand now
            self._served_by(call.server).principals.add(call.client.principal)
        self.hub.registry.clients.unuse(use)
        self._calls.pop(call, None)
        call.client.calls -= 1
        if self.draining:
            self._quiet.set()

    def slot(self, client: Client, server: str) -> Slot:
        """Return the slot that a client uses: the shared one, or its own, which starts now if needed."""
        registry = self.hub.registry
        shared = registry.slots.get(server) or registry.slot(server)
        spec = shared.spec
        if spec.sharing != "per-client" or not self.is_per_client(server):
            return shared
        if self.is_stateless(client, server):
            self._report_stateless(server)
        relay = ClientRelay(self, client)
        if self.hub.registry.clients.find(client.owner, server) is None:
            lost = self.homes.lost_connection(client) if self.homes is not None else client.rebuilt
            client.restarted |= {server} if lost else set()
        principal = client.principal if client.principal != LOCAL.name else ""
        return self.hub.registry.clients.of(
            client.owner, spec, lambda: relay, expires=client.expires, principal=principal
        )

    async def check_home(self, client: Client, server: str) -> None:
        """Raise ``LivesElsewhere`` if another replica has this client's own connection to a server."""
        if self.homes is not None and self.is_per_client(server):
            await self.homes.check(client)

    async def check_pending(self, state: str | None) -> None:
        """Raise ``LivesElsewhere`` if a state is of a call that is pending on another replica."""
        if self.homes is not None and (tag := self.pending_calls.tag_of(state)):
            there = await self.homes.replica_of(tag)
            if there is not None:
                raise LivesElsewhere(there, CALL_LOST)

    def check_task(self, home: str) -> bool:
        """Raise ``LivesElsewhere`` if another replica has a task; False if the one that had it is gone."""
        return self.homes is None or not home or self.homes.check_task(home)

    def is_per_client(self, server: str) -> bool:
        """Whether each client has its own connection to a server; a disabled server has none."""
        registry = self.hub.registry
        slot = registry.slots.get(server) or registry.slot(server)
        spec = slot.spec
        per_client = spec.sharing == "per-client" and spec.enabled
        return per_client and slot.state not in (State.DISABLING, State.DISABLED)

    def is_stateless(self, client: Client, server: str) -> bool:
        """Whether a server keeps no state for this client between calls: the client sends no key."""
        return (
            client.modern and not client.persistent and server in self.hub.registry.slots and self.is_per_client(server)
        )

    def existing_slot(self, client: Client, server: str) -> Slot | None:
        """The same as ``slot``, but it starts no connection."""
        return (
            self.hub.registry.clients.find(client.owner, server)
            if self.is_per_client(server)
            else self.hub.registry.slot(server)
        )

    async def wait_for_first_listing(self, view: View) -> None:
        """Wait a moment for servers that were never listed: many clients list only once."""
        if self._all_listed is self.hub.catalog:
            return
        within = self.hub.config.settings.call.ready_timeout
        if all(source.listing is not None for source in self.hub.catalog.servers.values()):
            self._all_listed = self.hub.catalog
            return
        with anyio.move_on_after(within):
            for server in view.servers:
                source = self.hub.catalog.servers.get(server)
                if source is not None and source.listing is None:
                    slot = self.hub.registry.slot(server)
                    await self.hub.registry.clock.wait(slot.has_outcome, slot.begun + within)

    # Subscriptions and log levels.

    async def subscribe(self, client: Client, server: str, uri: str) -> None:
        """Notify a client when a resource changes; raise if the server refuses."""
        if (server, uri) in client.subscribed:
            return
        await self.check_home(client, server)
        slot = self.slot(client, server)
        self._served_by(server).principals.add(client.principal)
        first = slot.desired_state.watch(uri)
        client.subscribed.add((server, uri))
        if first and _era(slot) != "modern":
            try:
                await self.hub.registry.request(server, "resources/subscribe", {"uri": uri}, repeatable=True, slot=slot)
            except BaseException:
                client.subscribed.discard((server, uri))
                slot.desired_state.unwatch(uri)
                raise
        self.hub.registry.clients.use(client.owner, server)

    def _unsubscribe(self, client: Client, server: str, uri: str) -> None:
        client.subscribed.discard((server, uri))
        slot = self.existing_slot(client, server) if server in self.hub.registry.slots else None
        if slot is None:
            return
        if slot.desired_state.unwatch(uri) and _era(slot) == "legacy":
            self.start(self._request_quietly, server, "resources/unsubscribe", {"uri": uri}, slot)
        self.hub.registry.clients.leave(client.owner, server)

    def unsubscribe(self, client: Client, server: str, uri: str) -> None:
        """Stop notifying a client about a resource."""
        if (server, uri) in client.subscribed:
            self._unsubscribe(client, server, uri)

    def wants_log(self, client: Client, server: str, level: str) -> None:
        """Ask a server to log at the lowest level that one of its clients wants."""
        slot = self.existing_slot(client, server)
        lease = slot.lease if slot is not None else None
        if slot is None or not slot.desired_state.log(level) or lease is None or lease.connection is None:
            return
        if lease.connection.era == "legacy" and "logging" in lease.connection.capabilities:
            self.start(self._request_quietly, server, "logging/setLevel", {"level": level}, slot)

    async def _request_quietly(self, server: str, method: str, params: Mapping[str, Any], slot: Slot) -> None:
        with suppress(HoldfastError):
            await self.hub.registry.request(server, method, params, repeatable=True, slot=slot)

    # Requests and notifications of servers (the ``Relay`` of the wire).

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the hub declares to a shared server."""
        return SHARED_CAPABILITIES

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """Send a server's request to the client whose call it belongs to, or to the only client."""
        whose = caller or self._only_caller(server)
        if method == "roots/list" and caller is None:
            self._roots_of[server] = self._only_client(server)
        if whose is None:
            raise self._unattributed(server, method)
        if isinstance(whose, IdleCaller):
            self._served_by(server).principals.add(whose.principal)
        return await whose.ask(method, params)

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """Forward a server's notification to the clients that it concerns."""
        if method == "notifications/resources/updated":
            uri = (params or {}).get("uri")
            if isinstance(uri, str):
                self._updated(server, uri)
        elif method in CALL_NOTIFICATIONS and (whose := self._only_caller(server)) is not None:
            whose.tell(method, params)

    def tell(
        self, client: Client, method: str, params: Mapping[str, Any] | None = None, *, everywhere: bool = False
    ) -> None:
        """Send a notification to a client on its own stream; ``everywhere`` if other replicas tell the same."""
        client.channel.tell(method, params, everywhere=everywhere)

    def _only_caller(self, server: str) -> Caller | None:
        """Return the only possible caller; None if there is none, or more than one."""
        calls, clients = self._candidates(server)
        if len({call.client.owner for call in calls} or {client.owner for client in clients}) != 1:
            return None
        return calls[-1] if calls else IdleCaller(self, clients[0])

    def _only_client(self, server: str) -> Client | None:
        """Return the only client of a server; None if there is none, or more than one."""
        clients = self._candidates(server)[1]
        return clients[0] if len({client.owner for client in clients}) == 1 else None

    def _served_by(self, server: str) -> _Served:
        """Return whom the shared connection of a server served.

        A new process served only the calls in flight. A server over HTTP goes on behind a new connection, and may ask
        late for a call of the one before: it keeps its principals.
        """
        slot = self.hub.registry.slots.get(server)
        lease = slot.lease if slot is not None else None
        served = self._served.get(server)
        if served is None or served.lease is not lease:
            here = {call.client.principal for call in self._calls if call.server == server}
            if served is not None and slot is not None and slot.spec.transport != "stdio":
                here |= served.principals
            served = self._served[server] = _Served(lease, here)
        return served

    def _announce_roots(self) -> None:
        """Notify a server that read the roots of no client or of another one: it then asks again."""
        for server, before in list(self._roots_of.items()):
            client = self._only_client(server)
            if client in (None, before) or client.modern or "roots" not in client.capabilities:
                continue
            self._roots_of[server] = client
            if server in self.hub.registry.slots:
                self.notify(self.hub.registry.slot(server), "notifications/roots/list_changed", None)

    def _candidates(self, server: str) -> tuple[list[Call], list[Client]]:
        """Return whose an unattributed message can be: never a principal's that the connection did not serve."""
        principals = self._served_by(server).principals
        if len(principals) > 1:
            return [], []
        clients = [client for client in self._clients.values() if client.view.covers(server) and client.is_present()]
        calls = [call for call in self._calls if call.server == server]
        return calls, [client for client in clients if not principals or client.principal in principals]

    def caller_of(self, client: Client, server: str) -> Caller:
        """Return a client's call to this server if one is in flight, else the client itself."""
        own = [call for call in self._calls if call.server == server and call.client.owner == client.owner]
        return own[-1] if own else IdleCaller(self, client)

    def _report_stateless(self, server: str) -> None:
        text = (
            "a client of protocol 2026-07-28 over HTTP sends no client key: each of its calls gets a new connection, "
            f"and the server keeps no state for it between calls. {HOW_TO_BE_KNOWN}"
        )
        if server not in self.findings:
            log.warning("%s: %s", server, text)
        self.findings[server] = text

    def _unattributed(self, server: str, method: str) -> MCPError:
        principals = self._served_by(server).principals
        if len(principals) > 1:
            return self._mixed(server, method)
        if not any(self._candidates(server)):
            return MCPError(INVALID_REQUEST, f"no client is connected that could answer {method}")
        if server not in self.findings:
            log.warning(
                "%s: %s cannot be attributed to one of several clients and was refused; "
                'set "sharing": "per-client" on this server',
                server,
                method,
            )
        self.findings[server] = (
            f"{method} from this server cannot be attributed to one of several clients, so the hub refuses it. "
            'Set "sharing": "per-client" to give each client a connection of its own.'
        )
        return MCPError(INVALID_REQUEST, f"{method} cannot be attributed to one of several clients")

    def _mixed(self, server: str, method: str) -> MCPError:
        text = (
            f"{method} is refused: the shared connection of this server served more than one user, so the request may "
            'belong to any of them. Set "sharing": "per-client" to give each client a connection of its own.'
        )
        if server not in self.findings:
            log.warning("%s: %s", server, text)
        self.findings[server] = text
        return MCPError(INVALID_REQUEST, f"{method} cannot be attributed: this connection served more than one user")

    # Records of the hub.

    def _handle(self, record: HubRecord) -> None:
        match record:
            case Published():
                if record.version == self.hub.catalog.version:
                    self._told = self.hub.catalog
                self._changed(record.server, record.kinds, record.own_kinds)
            case Missed():
                self._told, before = self.hub.catalog, self._told
                for server, (shown, own) in self._told.changes(before).items():
                    self._changed(server, tuple(kind.value for kind in shown), tuple(kind.value for kind in own))
            case Transition() | ListFailed() | RetryPlanned() | BreakerChanged() | AccessChanged():
                for each in self._subscriptions:
                    if each.view.covers(record.server):
                        each.post(ResourceUpdated(STATUS_URI))
                self._notify_subscribers("", STATUS_URI, about=record.server)
            case _:
                pass

    def _changed(self, server: str, kinds: tuple[str, ...], own_kinds: tuple[str, ...]) -> None:
        """Tell each client of a view in which a list of the server looks different; ``own_kinds`` for its own names."""
        everywhere, alone = ({_CHANGED[kind] for kind in some} for some in (kinds, own_kinds))
        for each in self._subscriptions:
            if each.view.covers(server):
                for _, event in everywhere if each.view.server is None else alone:
                    each.post(event)
        for client in self._clients.values():
            if not client.modern and client.view.covers(server):
                for method, _ in everywhere if client.view.server is None else alone:
                    self.tell(client, method, everywhere=True)

    def _updated(self, server: str, uri: str) -> None:
        self.post_updated(server, uri)
        self._notify_subscribers(server, uri)

    def post_updated(self, server: str, uri: str, *, only: Hashable = None) -> None:
        """Tell all subscribers, or those of one client, that a resource changed."""
        for each in self._subscriptions:
            if each.view.covers(server):
                each.post(ResourceUpdated(each.view.shown_uri(server, uri)), only=only)

    def _notify_subscribers(self, server: str, uri: str, *, about: str = "") -> None:
        """Tell legacy clients that a resource changed; ``about`` is the server that the hub's own status concerns."""
        for client in self._clients.values():
            if not client.modern and (server, uri) in client.subscribed and client.view.covers(about or server):
                shown = {"uri": client.view.shown_uri(server, uri)}
                # Each replica with this session has the subscription, and a connection to a shared server.
                self.tell(client, "notifications/resources/updated", shown, everywhere=True)


def _era(slot: Slot) -> str | None:
    lease = slot.lease
    return lease.connection.era if lease is not None and lease.connection is not None else None
