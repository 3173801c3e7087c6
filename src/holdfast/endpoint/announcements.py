"""What clients are told of changes: lists that look different, resources that were updated, a new status of the hub.

Each client is told of what its endpoint shows, in the way of its era: a legacy client by a notification on its own
stream, a modern one by an event of its subscription. What a session missed while it had no stream is told when it opens
one. Telling never waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from functools import partial
from typing import Any, Final

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
from mcp_types import INTERNAL_ERROR

from holdfast.access import LOCAL
from holdfast.core import STATUS_URI, AccessChanged, BreakerChanged, Kind, NameKey, RetryPlanned, State, Transition
from holdfast.endpoint.clients import Call, Client
from holdfast.endpoint.view import View, lists_tools_of
from holdfast.hub import ConfigApplied, Hub, HubRecord, ListFailed, Missed, OneClientRecord, Published

__all__ = ["Announcer", "Listeners"]

_CHANGED: Final[Mapping[str, tuple[str, ServerEvent]]] = {
    "tools": ("notifications/tools/list_changed", ToolsListChanged()),
    "prompts": ("notifications/prompts/list_changed", PromptsListChanged()),
    "resources": ("notifications/resources/list_changed", ResourcesListChanged()),
    "templates": ("notifications/resources/list_changed", ResourcesListChanged()),
}
"""How a client learns that a list of this kind changed, in either era."""

_UPDATED: Final = "notifications/resources/updated"


class Announcer:
    """Tells the clients of all endpoints."""

    def __init__(self, hub: Hub, clients: Mapping[Hashable, Client]) -> None:
        self._hub = hub
        self._clients = clients
        self.listeners: list[Listeners] = []
        """The subscribers of each endpoint."""
        self._told = hub.registry.catalog
        """The last catalog whose changes the clients were told, all of them."""

    def begin(self) -> None:
        """Tell changes from the catalog of this moment on."""
        self._told = self._hub.registry.catalog

    def handle(self, record: HubRecord) -> None:
        """A record of the hub."""
        match record:
            case OneClientRecord(principal=principal) if principal:
                self._changed_for(principal, record)
            case Published():
                if record.version == self._hub.catalog.version:
                    self._told = self._hub.catalog
                self._changed(record.server, record.kinds, record.own_kinds)
            case Missed():
                self._told, before = self._hub.catalog, self._told
                for server, (shown, own) in self._told.changes(before).items():
                    self._changed(server, tuple(kind.value for kind in shown), tuple(kind.value for kind in own))
            case ConfigApplied():
                self._servers_changed(record)
            case Transition() | ListFailed() | RetryPlanned() | BreakerChanged() | AccessChanged():
                self._status_changed(record.server)
            case _:
                pass

    def updated(self, server: str, uri: str, *, principal: str | None = None) -> None:
        """A resource changed: of a shared server, or of a user's own."""
        self._post_updated(server, uri, principal=principal)
        self._tell_subscribed(server, uri, principal=principal)

    def updated_for(self, client: Client, server: str, uri: str) -> None:
        """A resource changed on a connection that belongs to one client."""
        self._post_updated(server, uri, only=client.owner)
        if not client.modern and _sees(client.seen, server, uri):
            client.outlet.tell(_UPDATED, {"uri": client.view.shown_uri(server, uri)})

    def missed(self, client: Client, kinds: Collection[str]) -> None:
        """Tell a legacy client that its lists of these kinds changed, and that what it subscribed to may have."""
        for method in dict.fromkeys(method for kind, (method, _) in _CHANGED.items() if kind in kinds):
            client.outlet.tell(method, None, everywhere=True)
        for server, uri in list(client.subscribed):
            if not _sees(client.seen, server, uri):
                continue
            client.outlet.tell(_UPDATED, {"uri": client.view.shown_uri(server, uri)}, everywhere=True)

    def _changed_for(self, principal: str, about: OneClientRecord) -> None:
        """Something changed that belongs to one user."""
        server, record = about.server, about.record
        if isinstance(record, Published):
            self._changed(server, record.kinds, record.own_kinds, principal=principal)
        elif isinstance(record, Transition):
            if State.DENIED in (record.old, record.new):  # `holdfast_login` comes or goes
                self._changed(server, (Kind.TOOL.value,), (), principal=principal)
            self._status_changed(server, principal=principal)

    def _status_changed(self, server: str, *, principal: str | None = None) -> None:
        """Tell those who see the server that the hub's status looks different; all, or those of one user."""
        for each in self.listeners:
            for stream in each.all(principal=principal):
                if stream.seen.covers(server):
                    stream.take(ResourceUpdated(STATUS_URI))
        self._tell_subscribed("", STATUS_URI, about=server, principal=principal)

    def _changed(
        self, server: str, kinds: tuple[str, ...], own_kinds: tuple[str, ...], *, principal: str | None = None
    ) -> None:
        """Tell each client of a view in which a list of the server looks different; ``own_kinds`` for its own names.

        With ``principal``, it looks different for one user alone. A listing of the shared connection to a per-user
        server is that of ``local``.
        """
        if principal is None and server in self._hub.registry.users.servers:
            principal = LOCAL.name
        for view, tell in self._readers(principal):
            if view.covers(server):
                seen = kinds if view.server is None else own_kinds
                shown = {kind for kind in seen if kind != Kind.TOOL.value or lists_tools_of(view, server)}
                tell({_CHANGED[kind] for kind in shown})

    def _servers_changed(self, record: ConfigApplied) -> None:
        """In find mode the list names the servers, and what is pinned may have changed; so may a profile."""
        if record.added or record.removed or record.settings:
            for view, tell in self._readers():
                if view.profile is not None or "holdfast.access" in record.settings:
                    tell(set(_CHANGED.values()))
                elif view.tools == "find" or "holdfast.large_results" in record.settings:  # `read_result` comes or goes
                    tell({_CHANGED[Kind.TOOL.value]})

    def _readers(
        self, principal: str | None = None
    ) -> Iterator[tuple[View, Callable[[Collection[tuple[str, ServerEvent]]], None]]]:
        """Each view that someone reads, and what tells its readers of changes; all, or those of one user."""
        for each in self.listeners:
            for stream in each.all(principal=principal):
                yield stream.seen, partial(_post, stream)
        for client in list(self._clients.values()):
            if not client.modern and principal in (None, client.principal):
                yield client.seen, partial(_tell, client)

    def _post_updated(self, server: str, uri: str, *, only: Hashable = None, principal: str | None = None) -> None:
        for each in self.listeners:
            for stream in each.all(only=only, principal=principal):
                if _sees(stream.seen, server, uri):
                    stream.take(ResourceUpdated(stream.seen.shown_uri(server, uri)))

    def _tell_subscribed(self, server: str, uri: str, *, about: str = "", principal: str | None = None) -> None:
        """Tell legacy clients that a resource changed; ``about`` is the server that the hub's own status concerns."""
        if principal is None and server in self._hub.registry.users.servers:
            principal = LOCAL.name
        for client in self._clients.values():
            if principal not in (None, client.principal) or client.modern or (server, uri) not in client.subscribed:
                continue
            if client.seen.covers(about) if about else _sees(client.seen, server, uri):
                # Each replica with this session has the subscription, and a connection to a shared server.
                client.outlet.tell(_UPDATED, {"uri": client.view.shown_uri(server, uri)}, everywhere=True)

    def __repr__(self) -> str:
        return f"<Announcer to {len(self._clients)} clients and {len(self.listeners)} endpoints>"


def _sees(view: View, server: str, uri: str) -> bool:
    """Whether a resource is there for those who see this view; the hub's own is of no server."""
    return not server or (view.covers(server) and view.shows(NameKey(Kind.RESOURCE, server, uri)))


def _post(stream: _SubscriptionStream, changes: Collection[tuple[str, ServerEvent]]) -> None:
    for _, event in changes:
        stream.take(event)


def _tell(client: Client, changes: Collection[tuple[str, ServerEvent]]) -> None:
    for method, _ in changes:
        client.outlet.tell(method, None, everywhere=True)


# Subscriptions of the modern era.

MAX_SUBSCRIPTIONS = 1024


class _SubscriptionStream:
    """One client that listens; events go out as they come."""

    def __init__(self, call: Call, wanted: types.SubscriptionFilter, meta: dict[str, Any]) -> None:
        self.owner = call.client.owner
        self.principal = call.principal
        self._view = call.client.view
        self._identity = call.identity
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outlet = call.reply
        self._wanted = wanted
        self._uris = frozenset(wanted.resource_subscriptions or ())
        self._meta = meta

    @property
    def seen(self) -> View:
        """What its client may see now; rules that change hold for an open stream too."""
        return self._view.seen_by(self._identity)

    def take(self, event: ServerEvent) -> None:
        """Send an event, if it is wanted."""
        if event_matches(self._wanted, self._uris, event):
            notice = event_to_notification(event, self._meta).model_dump(by_alias=True, mode="json", exclude_none=True)
            self._outlet.tell(notice["method"], notice.get("params"))

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Listeners:
    """The listeners of one endpoint. Publishing never waits, and an event can be limited to one client."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._listeners: set[_SubscriptionStream] = set()

    def all(self, *, only: Hashable = None, principal: str | None = None) -> list[_SubscriptionStream]:
        """Those who listen now: all, or those of one client or one user."""
        return [one for one in self._listeners if only in (None, one.owner) and principal in (None, one.principal)]

    async def listen(self, call: Call, wanted: types.SubscriptionFilter) -> dict[str, Any]:
        """Acknowledge, then send events until the endpoint closes; a client that leaves cancels it."""
        if len(self._listeners) >= MAX_SUBSCRIPTIONS:
            raise MCPError(INTERNAL_ERROR, "Subscription limit reached")
        honored = _honored(wanted)
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: call.message.key}
        told = honored.model_dump(by_alias=True, mode="json", exclude_none=True)
        call.reply.tell("notifications/subscriptions/acknowledged", {"notifications": told, "_meta": meta})
        listener = _SubscriptionStream(call, honored, meta)
        self._listeners.add(listener)
        try:
            await listener.ended
        finally:
            self._listeners.discard(listener)
        return {"_meta": meta}

    def close(self) -> None:
        """End every stream cleanly: its client gets the result of its request."""
        for listener in list(self._listeners):
            listener.end()


def _honored(wanted: types.SubscriptionFilter) -> types.SubscriptionFilter:
    """What is delivered: all that was asked for, without what says nothing."""
    return types.SubscriptionFilter(
        tools_list_changed=True if wanted.tools_list_changed else None,
        prompts_list_changed=True if wanted.prompts_list_changed else None,
        resources_list_changed=True if wanted.resources_list_changed else None,
        resource_subscriptions=list(wanted.resource_subscriptions) if wanted.resource_subscriptions else None,
    )
