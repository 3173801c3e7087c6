"""One request of a client that is in flight to a server.

Progress and log messages go out in the order in which they came, all of them before the result. A legacy client
gets a server's request at once, on the stream of its own request. A modern client gets an ``input_required``
result, while the call to the server stays open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from mcp import MCPError
from mcp_types import INTERNAL_ERROR

from holdfast.front.clients import Channel, Client, require_capability

__all__ = ["Call"]

OUTBOX = 4_096
"""How many log messages may wait for a client that reads slowly; then the oldest are dropped."""


class Call:
    """A request in flight; it is the ``Caller`` of the wire."""

    def __init__(
        self, client: Client, server: str, *, channel: Channel | None, token: str | int | None, wake: Callable[[], None]
    ) -> None:
        self.client = client
        self.server = server
        self._channel = channel
        self._token = token
        self._wake = wake
        self._outbox: deque[tuple[str, Mapping[str, Any] | None]] = deque(maxlen=OUTBOX)
        self._sending = anyio.Lock()

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client declares."""
        return self.client.capabilities

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Send a server's request to the client, on the stream of the client's own request."""
        require_capability(self.client, method, params)
        if self.client.modern or self._channel is None:
            raise MCPError(INTERNAL_ERROR, f"{method} cannot reach this client: its protocol knows no such request")
        await self.flush()
        return await self._channel.ask(method, params)

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Queue a notification."""
        if method == "notifications/message" and not self.client.wants_log((params or {}).get("level")):
            return
        if method == "notifications/elicitation/complete" and self.client.modern:
            return  # the modern era has no such notification: the client learns it when it repeats the request
        self._outbox.append((method, params))
        self._wake()

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress, if the client asked for it."""
        if self._token is None:
            return
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        self._outbox.append(("notifications/progress", params))
        await self.flush()

    async def flush(self) -> None:
        """Send the queued notifications in order; a second caller waits until they are sent."""
        async with self._sending:
            while self._outbox and self._channel is not None:
                await self._channel.tell(*self._outbox.popleft())
