"""Ways to one client beside the stream of a request: where a server's questions and notices go that are its alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mcp import MCPError
from mcp_types import INVALID_REQUEST

from holdfast.front.clients import Client, refuse_unasked
from holdfast.wire.relay import OF_A_CALL, Caller, Relay

if TYPE_CHECKING:
    from holdfast.front.desk import Desk

__all__ = ["OwnRelay", "Standing"]


class Standing:
    """A client that has no call under way, but is there: asked and told on its own stream."""

    def __init__(self, desk: Desk, client: Client) -> None:
        self._desk = desk
        self._client = client

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What it can be asked."""
        return self._client.capabilities

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Ask it; a modern client can be asked only by the answer to a call of its own."""
        refuse_unasked(self._client, method, params)
        if self._client.modern:
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach this client now: it has no call under way")
        return await self._client.channel.ask(method, params)

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Tell it what it wants to be told."""
        if method != "notifications/message" or self._client.wants_log((params or {}).get("level")):
            self._desk.start(self._client.channel.tell, method, params)


class OwnRelay(Relay):
    """The relay of a connection that one client has for itself: everything is that client's."""

    def __init__(self, desk: Desk, client: Client) -> None:
        self._desk = desk
        self._client = client

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What it can be asked."""
        return self._client.capabilities

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """Ask the client."""
        return await (caller or self._desk.standing(self._client, server)).ask(method, params)

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """Tell the client."""
        uri = (params or {}).get("uri")
        if method in OF_A_CALL:
            self._desk.standing(self._client, server).tell(method, params)
        elif method == "notifications/resources/updated" and isinstance(uri, str):
            self._desk.post_updated(server, uri, only=self._client.owner)
            if not self._client.modern:
                self._desk.tell(self._client, method, {"uri": self._client.view.shown_uri(server, uri)})
