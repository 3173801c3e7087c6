"""Whom it concerns what no client asked for: a message of a server, a changed list, an updated resource.

**A message of a server** (``Attribution``, the hub's relay). A server's request or log message goes to the client whose
call it belongs to. If the transport does not show that (stdio, a shared stream), it goes to the client with calls in
flight, if that is one client, else to the only client there is. In every other case it is refused and reported as a
finding: nothing here guesses.

What must never happen: a message reaches a principal that it may not concern. So a connection that served more than
one principal gets no answer at all outside a call: a late message may belong to an earlier call of another principal.
A new process has served only the calls in flight. A server over HTTP goes on behind a new connection, and may ask late
for a call of the one before; it keeps its principals.

**A change** (``Announcer``): lists that look different, resources that were updated, a new status of the hub. Each
client is told of what its endpoint shows, in the way of its era: a legacy client by a notification on its own stream, a
modern one by an event of its subscription. What a session missed while it had no stream is told when it
opens one. Telling never waits.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import mcp_types as types
from mcp import MCPError
from mcp.shared.subscriptions import (
    SUBSCRIPTION_ID_META_KEY,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
    event_matches,
    event_to_notification,
)
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST

from holdfast.access import LOCAL
from holdfast.core import STATUS_URI, AccessChanged, BreakerChanged, Kind, NameKey, RetryPlanned, State, Transition
from holdfast.endpoint.clients import Call, Client
from holdfast.endpoint.view import EndpointAddress, View, lists_tools_of, news
from holdfast.hub import ConfigApplied, Hub, HubRecord, ListFailed, Missed, OneClientRecord, Published, Slot
from holdfast.wire import CALL_NOTIFICATIONS, SHARED_CAPABILITIES, Caller, Relay, without_task_capabilities

__all__ = ["Announcer", "Attribution", "ClientRelay", "UserRelay", "notify"]

log = logging.getLogger("holdfast.front")


class OwnerRelay(Relay):
    """What the relays of all connections have in common; each knows whose a message is that names no call."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the hub declares to a server whose clients come and go."""
        return SHARED_CAPABILITIES

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """Send a server's request to the client whose call it belongs to, or to the one that it must mean."""
        whose = caller or self._whose(server)
        if whose is None:
            raise self._unattributed(server, method)
        return await whose.ask(method, params)

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """Forward a server's notification to the clients that it concerns."""
        uri = (params or {}).get("uri")
        if method == "notifications/resources/updated":
            if isinstance(uri, str):
                self._updated(server, uri)
        elif method in CALL_NOTIFICATIONS and (whose := self._whose(server)) is not None:
            whose.tell(method, params)

    @abstractmethod
    def _whose(self, server: str) -> Call | Client | None:
        """Whose a message of a server is that names no call; None if that is not certain."""

    @abstractmethod
    def _updated(self, server: str, uri: str) -> None:
        """A resource changed."""

    def _unattributed(self, server: str, method: str) -> MCPError:
        """The refusal of a request that may be any client's."""
        return MCPError(INVALID_REQUEST, f"{method} cannot be attributed to one client of this user")


@dataclass
class Served:
    """The principals that one connection of a server served.

    A call keeps the one of its beginning: when it ends, the server may have another connection, which the call never
    used.
    """

    lease: object
    principals: set[str]


class Attribution(OwnerRelay):
    """The relay of shared connections: it knows the calls at every server, and who was served."""

    def __init__(
        self, hub: Hub, clients: Mapping[Hashable, Client], announcer: Announcer, findings: dict[str, str]
    ) -> None:
        self._registry = hub.registry
        self.clients = clients
        self.announcer = announcer
        self._findings = findings
        self.calls: dict[Call, Served] = {}
        """The calls that are at servers now, from ``Broker.begin`` on, each with whom the connection served then."""
        self._served: dict[str, Served] = {}
        self._roots_of: dict[str, Client | None] = {}
        """Whose roots a server has that asked outside a call; None where no client could be asked."""

    # The calls.

    def began_early(self, call: Call) -> None:
        """A call is over that began before its connection stood: the connection of now may have served it."""
        if self._shares(call.principal, call.server):
            self.served_by(call.server).principals.add(call.principal)

    def served_by(self, server: str) -> Served:
        """Whom the shared connection of a server served."""
        slot = self._registry.slots.get(server)
        lease = slot.lease if slot is not None else None
        served = self._served.get(server)
        # Looked at when it is asked for: no one has to be told of each new connection. The calls in flight go with it.
        if served is None or served.lease is not lease:
            using = (call.principal for call in self.calls if call.server == server)
            here = {one for one in using if self._shares(one, server)}
            if served is not None and slot is not None and slot.spec.transport != "stdio":
                here |= served.principals  # no new process: it may still ask for a call of the connection before
            served = self._served[server] = Served(lease, here)
        return served

    def _shares(self, principal: str, server: str) -> bool:
        """Whether a principal's calls use the shared connection of a server."""
        return not self._registry.users.has_own(principal, server)

    # Requests and notifications of servers (the ``Relay`` of the wire).

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """Send a server's request to the client whose call it belongs to, or to the only client."""
        if caller is None and method == "roots/list":
            self._roots_of[server] = self._only_client(server)
        if caller is None and isinstance(whose := self._whose(server), Client):
            # It is served too: what the server asks next may be about its answer.
            self.served_by(server).principals.add(whose.principal)
        return await super().asked(server, method, params, caller)

    def _whose(self, server: str) -> Call | Client | None:
        return only_caller(*self._candidates(server))

    def _updated(self, server: str, uri: str) -> None:
        self.announcer.updated(server, uri)

    def announce_roots(self) -> list[Slot]:
        """The servers that read the roots of no client or of another one: once they are told, they ask again."""
        found = []
        for server, before in list(self._roots_of.items()):
            # A server asks for roots at its start, when no client may be there yet. After a change it asks again.
            client = self._only_client(server)
            if client in (None, before) or client.modern or "roots" not in client.capabilities:
                continue
            self._roots_of[server] = client
            if server in self._registry.slots:
                found.append(self._registry.slot(server))
        return found

    def _only_client(self, server: str) -> Client | None:
        """The only client of a server; None if there is none, or more than one."""
        clients = self._candidates(server)[1]
        return clients[0] if len({client.owner for client in clients}) == 1 else None

    def _candidates(self, server: str) -> tuple[list[Call], list[Client]]:
        """Whose an unattributed message can be: never a principal's that the connection did not serve."""
        principals = self.served_by(server).principals
        if len(principals) > 1:
            return [], []
        calls, clients = self.candidates(server, lambda principal: self._shares(principal, server))
        return calls, [client for client in clients if not principals or client.principal in principals]

    def candidates(self, server: str, uses: Callable[[str], bool]) -> tuple[list[Call], list[Client]]:
        """The calls and the clients of those principals that use a connection of a server."""
        clients = [client for client in self.clients.values() if client.seen.covers(server) and client.is_present()]
        calls = [call for call in self.calls if call.server == server and uses(call.principal)]
        return calls, [client for client in clients if uses(client.principal)]

    def _unattributed(self, server: str, method: str) -> MCPError:
        """The refusal of a server's request; what the operator should change becomes a finding."""
        if len(self.served_by(server).principals) > 1:
            why = ": this connection served more than one user"
            text = (
                f"{method} is refused: the shared connection of this server served more than one user, so the request "
                'may belong to any of them. Set "sharing": "per-client" to give each client a connection of its own.'
            )
        elif not any(self._candidates(server)):
            return MCPError(INVALID_REQUEST, f"no client is connected that could answer {method}")
        else:
            why = " to one of several clients"
            text = (
                f"{method} from this server cannot be attributed to one of several clients, so the hub refuses it. "
                'Set "sharing": "per-client" to give each client a connection of its own.'
            )
        if server not in self._findings:
            log.warning("%s: %s", server, text)
        self._findings[server] = text
        return MCPError(INVALID_REQUEST, f"{method} cannot be attributed{why}")

    def __repr__(self) -> str:
        return f"<Attribution of {len(self.calls)} calls, {len(self.clients)} clients>"


class ClientRelay(OwnerRelay):
    """The relay of a connection that belongs to one client: everything goes to that client."""

    def __init__(self, attribution: Attribution, client: Client) -> None:
        self._attribution = attribution
        self._client = client

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client declares; a server's own requests are no tasks here."""
        return without_task_capabilities(self._client.capabilities)

    def _whose(self, server: str) -> Call | Client:
        owner, calls = self._client.owner, self._attribution.calls
        own = [call for call in calls if call.server == server and call.client.owner == owner]
        # Without a call it is the client itself, or the session that was rebuilt for it.
        return own[-1] if own else self._attribution.clients.get(owner, self._client)

    def _updated(self, server: str, uri: str) -> None:
        self._attribution.announcer.updated(server, uri, only=self._client.owner)


class UserRelay(OwnerRelay):
    """The relay of a connection that belongs to one user: everything goes to one of her clients, or to none."""

    def __init__(self, attribution: Attribution, principal: str) -> None:
        self._attribution = attribution
        self._principal = principal

    def _whose(self, server: str) -> Call | Client | None:
        return only_caller(*self._attribution.candidates(server, lambda principal: principal == self._principal))

    def _updated(self, server: str, uri: str) -> None:
        self._attribution.announcer.updated(server, uri, principal=self._principal)


def only_caller(calls: Sequence[Call], clients: Sequence[Client]) -> Call | Client | None:
    """The only possible caller; None if there is none, or more than one."""
    if len({call.client.owner for call in calls} or {client.owner for client in clients}) != 1:
        return None
    return calls[-1] if calls else clients[0]


async def notify(slot: Slot, method: str, params: Mapping[str, Any] | None) -> None:
    """Send a notification to a server, if it is connected and of the era that has it."""
    connection = slot.lease.connection if slot.lease is not None else None
    if connection is not None and connection.era == "legacy":
        await connection.notify(method, params)


_CHANGED: Final[Mapping[str, ServerEvent]] = {
    "tools": ToolsListChanged(),
    "prompts": PromptsListChanged(),
    "resources": ResourcesListChanged(),
    "templates": ResourcesListChanged(),
}
"""How a modern client learns that a list of this kind changed."""


class Announcer:
    """Tells the clients of all endpoints."""

    def __init__(self, hub: Hub, clients: Mapping[Hashable, Client]) -> None:
        self._hub = hub
        self._clients = clients
        self._streams: set[_SubscriptionStream] = set()
        """The modern clients that listen now, at all endpoints."""
        self._told = hub.registry.catalog
        """The last catalog whose changes the clients were told, all of them."""

    def begin(self) -> None:
        """Tell changes from the catalog of this moment on.

        The journal drops records of a reader that is late (``Missed``). What was dropped is found by comparing the
        catalog with the last one whose changes were all told. So a record moves that mark only if it is of the catalog
        of now: an older record is followed by others.
        """
        self._told = self._hub.registry.catalog

    async def handle(self, record: HubRecord) -> None:
        """A record of the hub."""
        match record:
            case OneClientRecord(principal=principal) if principal:
                await self._changed_for(principal, record)
            case Published():
                if record.version == self._hub.catalog.version:
                    self._told = self._hub.catalog
                await self._changed(record.server, record.kinds, record.own_kinds)
            case Missed():
                self._told, before = self._hub.catalog, self._told
                for server, (shown, own) in self._told.changes(before).items():
                    await self._changed(server, tuple(kind.value for kind in shown), tuple(kind.value for kind in own))
            case ConfigApplied():
                self._servers_changed(record)
            case Transition() | ListFailed() | RetryPlanned() | BreakerChanged() | AccessChanged():
                self._status_changed(record.server)

    async def listen(self, call: Call, wanted: types.SubscriptionFilter) -> dict[str, Any]:
        """Acknowledge, then send events until the endpoint closes; a client that leaves cancels it."""
        listener = _SubscriptionStream(call, _honored(wanted))
        if sum(one.address == listener.address for one in self._streams) >= MAX_SUBSCRIPTIONS:
            raise MCPError(INTERNAL_ERROR, "Subscription limit reached")
        told = listener.wanted.model_dump(by_alias=True, mode="json", exclude_none=True)
        call.reply.tell("notifications/subscriptions/acknowledged", {"notifications": told, "_meta": listener.meta})
        self._streams.add(listener)
        try:
            await listener.ended
        finally:
            self._streams.discard(listener)
        return {"_meta": listener.meta}

    def close(self, address: EndpointAddress) -> None:
        """End every stream of an endpoint cleanly: its client gets the result of its request."""
        for listener in self._streams:
            if listener.address == address and not listener.ended.done():
                listener.ended.set_result(None)

    def updated(self, server: str, uri: str, *, principal: str | None = None, only: Hashable = None) -> None:
        """A resource changed: of a shared server, of a user's own, or on the connection of ``only`` one client."""
        for reader in self._readers(self._readers_of(server, principal), only=only):
            if _sees(reader.seen, server, uri):
                # Each replica with this session has the subscription, and a connection to a shared server.
                reader.updated(server, uri, everywhere=only is None)

    def missed(self, client: Client, kinds: Collection[str]) -> None:
        """Tell a legacy client that its lists of these kinds changed, and that what it subscribed to may have."""
        client.changed(kinds)
        for server, uri in list(client.subscribed):
            if _sees(client.seen, server, uri):
                client.updated(server, uri, everywhere=True)

    async def _changed_for(self, principal: str, about: OneClientRecord) -> None:
        """Something changed that belongs to one user."""
        server, record = about.server, about.record
        if isinstance(record, Published):
            await self._changed(server, record.kinds, record.own_kinds, principal=principal)
        elif isinstance(record, Transition):
            if State.DENIED in (record.old, record.new):  # `holdfast_login` comes or goes
                for reader in self._readers(principal):
                    if reader.seen.covers(server) and lists_tools_of(reader.seen, server):
                        reader.changed((Kind.TOOL.value,))
            self._status_changed(server, principal=principal)

    def _status_changed(self, server: str, *, principal: str | None = None) -> None:
        """Tell those who see the server that the hub's status looks different; all, or those of one user."""
        for reader in self._readers(principal):
            if reader.seen.covers(server):
                reader.updated("", STATUS_URI, everywhere=True)

    async def _changed(
        self, server: str, kinds: tuple[str, ...], own_kinds: tuple[str, ...], *, principal: str | None = None
    ) -> None:
        """Tell each reader of a view in which a list of the server looks different; ``own_kinds`` for its own names.

        With ``principal``, it looks different for one user alone. What the rules hide from a reader may be all that
        changed, so those who do not see everything are told by what they see (``news``, SEC-14).
        """
        of_view: dict[View, Collection[str]] = {}
        for reader in self._readers(self._readers_of(server, principal)):
            view = reader.seen
            if view not in of_view:
                seen = kinds if view.server is None else own_kinds
                shown = {kind for kind in seen if kind != Kind.TOOL.value or lists_tools_of(view, server)}
                told = shown if view.covers(server) else set[str]()
                of_view[view] = told if view.grants is None else await news(view, otherwise=told)
            reader.changed(of_view[view])

    def _servers_changed(self, record: ConfigApplied) -> None:
        """In find mode the list names the servers, and what is pinned may have changed; so may a profile."""
        if record.added or record.removed or record.settings:
            for reader in self._readers():
                view = reader.seen
                if view.profile is not None or "holdfast.access" in record.settings:
                    reader.changed(_CHANGED)
                elif view.tools == "find" or "holdfast.large_results" in record.settings:  # `read_result` comes or goes
                    reader.changed((Kind.TOOL.value,))

    def _readers_of(self, server: str, principal: str | None) -> str | None:
        """Whom a change of a server concerns. The shared connection to a per-user server is that of ``local``."""
        return LOCAL.name if principal is None and server in self._hub.registry.users.servers else principal

    def _readers(self, principal: str | None = None, *, only: Hashable = None) -> list[_Reader]:
        """Those who are told of changes now: all, or those of one user or of one client."""
        found: list[_Reader] = [*self._streams]
        found += [client for client in self._clients.values() if not client.modern]
        return [one for one in found if principal in (None, one.principal) and only in (None, one.owner)]

    def __repr__(self) -> str:
        return f"<Announcer to {len(self._clients)} clients and {len(self._streams)} streams>"


def _sees(view: View, server: str, uri: str) -> bool:
    """Whether a resource is there for those who see this view; the hub's own is of no server."""
    return not server or (view.covers(server) and view.shows(NameKey(Kind.RESOURCE, server, uri)))


# Subscriptions of the modern era.

MAX_SUBSCRIPTIONS = 1024


class _SubscriptionStream:
    """One client that listens; events go out as they come."""

    def __init__(self, call: Call, wanted: types.SubscriptionFilter) -> None:
        self.owner = call.client.owner
        self.principal = call.principal
        self.address = call.client.view.address
        self._call = call
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wanted = wanted
        self._uris = frozenset(wanted.resource_subscriptions or ())
        self.meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: call.message.key}

    @property
    def seen(self) -> View:
        """What its client may see now; rules that change hold for an open stream too."""
        return self._call.client.view.seen_by(self._call.identity)

    def changed(self, kinds: Collection[str]) -> None:
        """Its lists of these kinds look different."""
        for event in {event for kind, event in _CHANGED.items() if kind in kinds}:
            self._take(event)

    def updated(self, server: str, uri: str, *, everywhere: bool) -> None:
        """A resource changed. This stream is on one replica, so it is never told ``everywhere``."""
        _ = everywhere
        self._take(ResourceUpdated(self.seen.uris.shown(server, uri)))

    def _take(self, event: ServerEvent) -> None:
        """Send an event, if it is wanted."""
        if event_matches(self.wanted, self._uris, event):
            notice = event_to_notification(event, self.meta).model_dump(by_alias=True, mode="json", exclude_none=True)
            self._call.reply.tell(notice["method"], notice.get("params"))


_Reader: TypeAlias = Client | _SubscriptionStream
"""Someone who is told of changes."""


def _honored(wanted: types.SubscriptionFilter) -> types.SubscriptionFilter:
    """What is delivered: all that was asked for, without what says nothing."""
    return types.SubscriptionFilter(
        tools_list_changed=True if wanted.tools_list_changed else None,
        prompts_list_changed=True if wanted.prompts_list_changed else None,
        resources_list_changed=True if wanted.resources_list_changed else None,
        resource_subscriptions=list(wanted.resource_subscriptions) if wanted.resource_subscriptions else None,
    )
