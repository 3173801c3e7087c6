"""One request of a client, under way to a server: who is asked, who is told, and in which order.

Progress and log messages go out in the order in which they came, all of them before the result.
A legacy client is asked at once, on the stream of its own request. A modern client is asked by an answer
that says what is needed (``input_required``), while the call to the server stays open: see ``rounds.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from mcp import MCPError
from mcp_types import INTERNAL_ERROR

from holdfast.front.clients import Channel, Client, refuse_unasked

__all__ = ["Call"]

OUTBOX = 4_096
"""How many log messages may wait for a client that reads slowly; then the oldest give way."""


class Call:
    """A request under way; the ``Caller`` of the wire."""

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
        """What the client can be asked."""
        return self.client.capabilities

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Ask the client, on the stream of its own request."""
        refuse_unasked(self.client, method, params)
        if self.client.modern or self._channel is None:
            raise MCPError(INTERNAL_ERROR, f"{method} cannot reach this client: its protocol knows no such request")
        await self.flush()
        return await self._channel.ask(method, params)

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Put a notice in line."""
        if method == "notifications/message" and not self.client.wants_log((params or {}).get("level")):
            return
        if method == "notifications/elicitation/complete" and self.client.modern:
            return  # the modern era has no such notice: whoever repeats the request learns it
        self._outbox.append((method, params))
        self._wake()

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Tell of progress, if the client asked for it."""
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
        """Send what waits, in order; whoever comes meanwhile waits until it is out."""
        async with self._sending:
            while self._outbox and self._channel is not None:
                await self._channel.tell(*self._outbox.popleft())
