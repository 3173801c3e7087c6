"""Routes server-initiated requests and notifications that belong to no call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mcp import MCPError
from mcp_types import INVALID_REQUEST

from holdfast.front.clients import Client, require_capability
from holdfast.wire.relay import OF_A_CALL, Caller, Relay

if TYPE_CHECKING:
    from holdfast.front.desk import Desk

__all__ = ["ClientRelay", "IdleCaller"]


class IdleCaller:
    """A connected client without a call in flight; messages go to its notification stream."""

    def __init__(self, broker: Desk, client: Client) -> None:
        self._broker = broker
        self._client = client

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client declares."""
        return self._client.capabilities

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Send a request; a modern client can receive one only in the result of its own call."""
        require_capability(self._client, method, params)
        if self._client.modern:
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach this client now: it has no call in flight")
        return await self._client.channel.ask(method, params)

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification, if the client wants it."""
        if method != "notifications/message" or self._client.wants_log((params or {}).get("level")):
            self._broker.start(self._client.channel.tell, method, params)


class ClientRelay(Relay):
    """The relay of a connection that belongs to one client: everything goes to that client."""

    def __init__(self, broker: Desk, client: Client) -> None:
        self._broker = broker
        self._client = client

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client declares."""
        return self._client.capabilities

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """Send a server's request to the client."""
        return await (caller or self._broker.caller_of(self._client, server)).ask(method, params)

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a server's notification to the client."""
        uri = (params or {}).get("uri")
        if method in OF_A_CALL:
            self._broker.caller_of(self._client, server).tell(method, params)
        elif method == "notifications/resources/updated" and isinstance(uri, str):
            self._broker.post_updated(server, uri, only=self._client.owner)
            if not self._client.modern:
                self._broker.tell(self._client, method, {"uri": self._client.view.shown_uri(server, uri)})
