"""The methods that the hub answers itself: lists, ``server/discover``, ``ping``, subscriptions and log levels.

What the hub itself reads of a request is checked here against the protocol version of its client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import mcp_types as types
from mcp import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, methods as protocol

from holdfast.core import STATUS_URI, Kind, NameKey
from holdfast.endpoint.announcements import Listeners
from holdfast.endpoint.broker import Broker
from holdfast.endpoint.capabilities import discover
from holdfast.endpoint.clients import Call, Client
from holdfast.endpoint.instructions import unknown_name
from holdfast.endpoint.lists import Lists, next_digest
from holdfast.endpoint.view import LIST_METHODS, View
from holdfast.wire import LOG_LEVELS, RawObject

__all__ = ["Handler", "OwnMethods", "checked_values", "find_item", "unknown_method"]

Handler: TypeAlias = Callable[[Call], Awaitable[RawObject]]


class OwnMethods:
    """Answers for one endpoint."""

    def __init__(self, broker: Broker, view: View, listeners: Listeners) -> None:
        self._broker = broker
        self._view = view
        self._listeners = listeners
        self._lists = Lists(view)
        self.handlers: Mapping[str, Handler] = {
            **dict.fromkeys(LIST_METHODS, self._list),
            "tasks/list": unknown_method,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "logging/setLevel": self._set_level,
            "server/discover": self._discover,
            "subscriptions/listen": self._listen,
            "ping": self._ping,
        }

    async def tell_missed(self, client: Client, listed: Mapping[str, str] | None) -> None:
        """Tell a client which of its lists changed while it could not be told, and that its resources may have.

        ``listed`` is what it was given; None if that is not known: then all of them.
        """
        if listed is None:
            changed = set(LIST_METHODS)
        else:
            await self._broker.servers.wait_for_first_listing(self._view)
            changed = {method for method, seen in listed.items() if await self._lists.differs(method, seen)}
        self._broker.announcer.missed(client, {LIST_METHODS[method][0].value for method in changed})

    async def _list(self, call: Call) -> RawObject:
        cursor = checked_values(call).get("cursor") if call.params else None
        await self._broker.servers.wait_for_first_listing(self._view)
        client = call.client
        page, start, digest = await self._lists.page(call.method, cursor, modern=client.modern)
        if not client.modern:
            client.listed = client.listed or {}
            client.listed[call.method] = next_digest(client.listed.get(call.method, ""), start, digest)
        return page

    async def _discover(self, call: Call) -> RawObject:
        checked_values(call)
        servers = self._broker.servers
        return discover(self._view, [one for one in self._view.servers if servers.is_stateless(call.client, one)])

    async def _ping(self, call: Call) -> RawObject:
        checked_values(call)
        return RawObject.of({})

    async def _subscribe(self, call: Call) -> RawObject:
        uri = str(checked_values(call)["uri"])
        if uri == STATUS_URI:
            call.client.subscribed.add(("", uri))
            return RawObject.of({})
        key = await find_item(self._broker, self._view, Kind.RESOURCE, uri, call.client)
        await self._broker.servers.subscribe(call.client, key.server, key.original)
        return RawObject.of({})

    async def _unsubscribe(self, call: Call) -> RawObject:
        uri = str(checked_values(call)["uri"])
        call.client.subscribed.discard(("", uri))
        found = self._view.find(Kind.RESOURCE, uri)
        if isinstance(found, NameKey):
            await self._broker.servers.check_home(call.client, found.server)
            self._broker.servers.unsubscribe(call.client, found.server, found.original)
        return RawObject.of({})

    async def _set_level(self, call: Call) -> RawObject:
        level = checked_values(call).get("level")
        if level not in LOG_LEVELS:
            raise MCPError(INVALID_PARAMS, "Invalid request parameters")
        self._broker.servers.set_log_level(call.client, str(level))
        return RawObject.of({})

    async def _listen(self, call: Call) -> RawObject:
        params = types.SubscriptionsListenRequestParams.model_validate(checked_values(call), by_name=False)
        for uri in params.notifications.resource_subscriptions or ():
            found = self._view.find(Kind.RESOURCE, str(uri))
            if isinstance(found, NameKey):
                await self._broker.servers.subscribe(call.client, found.server, found.original)
        result = await self._listeners.listen(call.client.owner, call.reply, call.message.key, params.notifications)
        return RawObject.of(result)


def checked_values(call: Call) -> dict[str, Any]:
    """The parameters as values, checked against the client's version of the protocol."""
    values = call.message.values()
    try:
        protocol.validate_client_request(call.method, call.version, values or None)
    except KeyError:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", call.method) from None
    return values


async def unknown_method(call: Call) -> RawObject:
    """Refuse a method of the protocol that the hub does not have."""
    checked_values(call)
    raise MCPError(METHOD_NOT_FOUND, "Method not found", call.method)


async def find_item(broker: Broker, view: View, kind: Kind, name: str, client: Client) -> NameKey:
    """The owner of an item; servers that were never listed get a moment first. Raises ``MCPError``."""
    found = view.find(kind, name)
    if not isinstance(found, NameKey):
        await broker.servers.wait_for_first_listing(view)
        found = view.find(kind, name)
    if not isinstance(found, NameKey):
        raise unknown_name(kind, found, modern=client.modern)
    return found
