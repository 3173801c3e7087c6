"""What clients are told of changes: lists that look different, resources that were updated, a new status of the hub.

Each client is told of what its endpoint shows, in the way of its era: a legacy client by a notification on its own
stream, a modern one by an event of its subscription. What a session missed while it had no stream is told when it opens
one. Telling never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from functools import partial
from typing import Final

from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from holdfast.core import STATUS_URI, AccessChanged, BreakerChanged, Kind, RetryPlanned, Transition
from holdfast.endpoint.clients import Client
from holdfast.endpoint.subscriptions import Listeners
from holdfast.endpoint.view import View, lists_tools_of
from holdfast.hub import ConfigApplied, Hub, HubRecord, ListFailed, Missed, Published

__all__ = ["Announcer"]

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
                for each in self.listeners:
                    if each.view.covers(record.server):
                        each.post(ResourceUpdated(STATUS_URI))
                self._tell_subscribed("", STATUS_URI, about=record.server)
            case _:
                pass

    def updated(self, server: str, uri: str) -> None:
        """A resource of a shared server changed."""
        self._post_updated(server, uri)
        self._tell_subscribed(server, uri)

    def updated_for(self, client: Client, server: str, uri: str) -> None:
        """A resource changed on a connection that belongs to one client."""
        self._post_updated(server, uri, only=client.owner)
        if not client.modern:
            client.outlet.tell(_UPDATED, {"uri": client.view.shown_uri(server, uri)})

    def missed(self, client: Client, kinds: Collection[str]) -> None:
        """Tell a legacy client that its lists of these kinds changed, and that what it subscribed to may have."""
        for method in dict.fromkeys(method for kind, (method, _) in _CHANGED.items() if kind in kinds):
            client.outlet.tell(method, None, everywhere=True)
        for server, uri in list(client.subscribed):
            client.outlet.tell(_UPDATED, {"uri": client.view.shown_uri(server, uri)}, everywhere=True)

    def _changed(self, server: str, kinds: tuple[str, ...], own_kinds: tuple[str, ...]) -> None:
        """Tell each client of a view in which a list of the server looks different; ``own_kinds`` for its own names."""
        for view, tell in self._readers():
            if view.covers(server):
                seen = kinds if view.server is None else own_kinds
                shown = {kind for kind in seen if kind != Kind.TOOL.value or lists_tools_of(view, server)}
                tell({_CHANGED[kind] for kind in shown})

    def _servers_changed(self, record: ConfigApplied) -> None:
        """In find mode the list names the servers, and what is pinned may have changed; so may a profile."""
        if record.added or record.removed or record.settings:
            for view, tell in self._readers():
                if view.profile is not None:
                    tell(set(_CHANGED.values()))
                elif view.tools == "find":
                    tell({_CHANGED[Kind.TOOL.value]})

    def _readers(self) -> Iterator[tuple[View, Callable[[Collection[tuple[str, ServerEvent]]], None]]]:
        """Each view that someone reads, and what tells its readers of changes."""
        for each in self.listeners:
            yield each.view, partial(_post, each)
        for client in list(self._clients.values()):
            if not client.modern:
                yield client.view, partial(_tell, client)

    def _post_updated(self, server: str, uri: str, *, only: Hashable = None) -> None:
        for each in self.listeners:
            if each.view.covers(server):
                each.post(ResourceUpdated(each.view.shown_uri(server, uri)), only=only)

    def _tell_subscribed(self, server: str, uri: str, *, about: str = "") -> None:
        """Tell legacy clients that a resource changed; ``about`` is the server that the hub's own status concerns."""
        for client in self._clients.values():
            if not client.modern and (server, uri) in client.subscribed and client.view.covers(about or server):
                # Each replica with this session has the subscription, and a connection to a shared server.
                client.outlet.tell(_UPDATED, {"uri": client.view.shown_uri(server, uri)}, everywhere=True)

    def __repr__(self) -> str:
        return f"<Announcer to {len(self._clients)} clients and {len(self.listeners)} endpoints>"


def _post(listeners: Listeners, changes: Collection[tuple[str, ServerEvent]]) -> None:
    for _, event in changes:
        listeners.post(event)


def _tell(client: Client, changes: Collection[tuple[str, ServerEvent]]) -> None:
    for method, _ in changes:
        client.outlet.tell(method, None, everywhere=True)
