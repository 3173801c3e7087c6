"""Who has to be told of a change: open ``subscriptions/listen`` streams, and clients of the handshake era."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

__all__ = ["Audience"]


class Audience:
    """Remembers the clients of the handshake era and what each subscribed to; the others have the bus."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self._sessions: WeakKeyDictionary[Connection, ServerSession] = WeakKeyDictionary()
        self._watched: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()

    def notice(self, context: ServerRequestContext[Any]) -> None:
        """A client has connected; from now on it gets notifications of changed lists."""
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._sessions.setdefault(context.session._connection, context.session)

    def subscribe(self, context: ServerRequestContext[Any], uri: str) -> None:
        """From now on the client is told when the resource changes."""
        self._watched.setdefault(context.session._connection, set()).add(uri)

    def unsubscribe(self, context: ServerRequestContext[Any], uri: str) -> None:
        """The client wants to hear no more of the resource."""
        self._watched.get(context.session._connection, set()).discard(uri)

    async def tell(self, event: ServerEvent) -> None:
        """Tell everyone whom the event concerns."""
        await self.bus.publish(event)
        for connection, session in list(self._sessions.items()):
            if isinstance(event, ToolsListChanged):
                await session.send_tool_list_changed()
            elif isinstance(event, PromptsListChanged):
                await session.send_prompt_list_changed()
            elif isinstance(event, ResourceUpdated) and event.uri in self._watched.get(connection, ()):
                await session.send_resource_updated(event.uri)
