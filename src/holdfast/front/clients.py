"""The clients of the hub, the channels to them, their calls in flight, and the notifications that wait for them.

In the legacy era a client is a session. The modern era has no sessions: over HTTP each request is a client of its
own, unless it carries a client key; over stdio the pipe is the client. Equal "changed" notifications coalesce,
so a slow client costs bounded memory and delays no other client. Progress and log messages of a call go out in the
order in which they came, all of them before its result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.session import ServerSession
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, RequestId
from pydantic import ValidationError

from holdfast.front.access.principals import LOCAL
from holdfast.front.view import View
from holdfast.wire import LOG_LEVELS, Era, RawNotification, RawRequest, RawResult

__all__ = ["ASK_SECONDS", "Call", "Channel", "Client", "require_capability"]

ASK_SECONDS = 600.0
"""How long a person or a model may take to answer a server's request."""

ABSENT_SECONDS = 60.0
"""After this time without a stream and without a request, a client counts as gone for a server's requests."""

_CAPABILITY = {"sampling/createMessage": "sampling", "elicitation/create": "elicitation", "roots/list": "roots"}


@dataclass(frozen=True)
class Channel:
    """A channel to a client: the stream of one request, or the stream that it keeps open for notifications."""

    session: ServerSession
    request_id: RequestId | None = None
    reachable: Callable[[], Awaitable[bool]] | None = None
    """Waits a moment for the client's notification stream and says whether it is open; None where none is needed."""

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the client's answer; raise ``MCPError`` if there is none."""
        if self.reachable is not None and not await self.reachable():
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach the client: it has no notification stream open")
        request = cast("types.ServerRequest", RawRequest(method=method, params=dict(params or {})))
        related = ServerMessageMetadata(related_request_id=self.request_id) if self.request_id is not None else None
        try:
            with anyio.fail_after(ASK_SECONDS):
                return (await self.session.send_request(request, RawResult, metadata=related)).raw
        except TimeoutError:
            raise MCPError(INVALID_REQUEST, f"the client did not answer {method} in time") from None
        except ValidationError:
            raise MCPError(INVALID_REQUEST, f"the client's answer to {method} does not follow the protocol") from None

    async def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notice."""
        notice = RawNotification(method=method, params=dict(params or {}))
        await self.session.send_notification(cast("types.ServerNotification", notice), self.request_id)


@dataclass(eq=False)
class Client:
    """One client, for as long as it is connected."""

    view: View
    channel: Channel
    capabilities: Mapping[str, Any]
    modern: bool
    owner: Hashable
    """The owner of the connections that are not shared."""
    principal: str = LOCAL.name
    """The name of the principal that it acts for."""
    stream_open: Callable[[], bool] | None = None
    """Whether its notification stream is open; None where the connection itself shows that it is there (stdio)."""
    seen_at: float = field(default_factory=anyio.current_time)
    """When it last sent a request."""
    persistent: bool = False
    """Whether the owner outlives this object: a pipe, or a client with a key, sends many modern requests."""
    expires: bool = False
    """Whether the owner can leave without a notice; its connections then end after a time without use."""
    log_level: str | None = None
    subscribed: set[tuple[str, str]] = field(default_factory=set)
    """Server and original URI of each resource that it subscribed to."""
    _pending: dict[tuple[str, str], Mapping[str, Any] | None] = field(default_factory=dict)
    _sending: bool = False

    def is_present(self) -> bool:
        """Whether it is still there: a client can leave without a word (no stream, no request for a while)."""
        if self.stream_open is None or self.stream_open():
            return True
        return anyio.current_time() - self.seen_at < ABSENT_SECONDS

    def wants_log(self, level: object) -> bool:
        """Whether it wants a log message of this level."""
        if self.log_level is None or level not in LOG_LEVELS:
            return not self.modern
        return LOG_LEVELS.index(str(level)) >= LOG_LEVELS.index(self.log_level)

    def queue(self, method: str, params: Mapping[str, Any] | None = None) -> bool:
        """Queue a notification for its own stream; True if ``flush`` must be started."""
        self._pending[method, str((params or {}).get("uri", ""))] = params
        return not self._sending

    async def flush(self) -> None:
        """Send all queued notifications."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._pending:
                (method, uri), params = next(iter(self._pending.items()))
                del self._pending[method, uri]
                await self.channel.tell(method, params)
        finally:
            self._sending = False

    def __repr__(self) -> str:
        return f"<Client {'modern' if self.modern else 'legacy'} of {self.view.server or 'all servers'}>"


def require_capability(client: Client, method: str, params: Mapping[str, Any] | None) -> None:
    """Raise if the client cannot answer this request: the server gets an error, not silence."""
    capability = _CAPABILITY[method]
    declared = client.capabilities.get(capability)
    if declared is None:
        raise MCPError(INVALID_REQUEST, f"the client does not support {capability}")
    mode = (params or {}).get("mode", "form")
    if method == "elicitation/create" and mode != "form" and mode not in declared:
        raise MCPError(INVALID_REQUEST, f"the client does not support elicitation by {mode}")


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
    def era(self) -> Era:
        """The era that the client speaks."""
        return "modern" if self.client.modern else "legacy"

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
        try:
            return await self._channel.ask(method, params)
        except NoBackChannelError:  # the call was answered meanwhile: the client's own stream is left
            return await self.client.channel.ask(method, params)

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
