"""HTTP sessions of the SDK, with resumption (an event log each) and the knowledge of who has a stream open."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http import LAST_EVENT_ID_HEADER, MCP_SESSION_ID_HEADER, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from holdfast.front.replay import EventLog, ReplayBudget

__all__ = ["HttpSessions", "OpenStreams"]

RETRY_MILLISECONDS = 1_000
"""After what time a client should reconnect a broken stream."""

OPENING_SECONDS = 5.0
"""How long the hub waits for a client to open its notification stream."""


class OpenStreams:
    """Which sessions have a notification stream open: only there can a client get a request outside its own calls."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._changed = anyio.Event()

    def change(self, session: str, by: int) -> None:
        """Add ``by`` open streams to a session."""
        self._open[session] = self._open.get(session, 0) + by
        if self._open[session] <= 0:
            del self._open[session]
        self._changed.set()
        self._changed = anyio.Event()

    async def reachable(self, session: str) -> bool:
        """Whether a session has one open, now or within a moment."""
        with anyio.move_on_after(OPENING_SECONDS):
            while session not in self._open:
                await self._changed.wait()
        return session in self._open


class HttpSessions(StreamableHTTPSessionManager):
    """All sessions of one endpoint."""

    def __init__(
        self, app: Server[Any], *, streams: OpenStreams, bounds: ReplayBudget, max_request_body_size: int
    ) -> None:
        super().__init__(app, retry_interval=RETRY_MILLISECONDS, max_request_body_size=max_request_body_size)
        self._streams = streams
        self._bounds = bounds
        self._logs: dict[str, EventLog] = {}
        self._posts = 0
        self._post_ended = anyio.Event()

    async def wait_until_idle(self, *, within: float) -> None:
        """Wait until every POST is answered, at most ``within`` seconds."""
        with anyio.move_on_after(within):
            while self._posts:
                await self._post_ended.wait()

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; count open POSTs and notification streams meanwhile."""
        headers = Headers(scope=scope)
        session = headers.get(MCP_SESSION_ID_HEADER)
        if scope["method"] == "GET" and session is not None and LAST_EVENT_ID_HEADER not in headers:
            await self._handle_notices(session, scope, receive, send)
            return
        self._posts += scope["method"] == "POST"
        try:
            await super().handle_request(scope, receive, send)
        finally:
            self._posts -= scope["method"] == "POST"
            self._post_ended.set()
            self._post_ended = anyio.Event()

    async def _handle_notices(self, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        opened = 0

        async def counted(message: Message) -> None:
            nonlocal opened
            if message["type"] == "http.response.start" and message["status"] == 200:
                opened = 1
                self._streams.change(session, 1)
            await send(message)

        try:
            await super().handle_request(scope, receive, counted)
        finally:
            self._streams.change(session, -opened)

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        transport = super()._admit_session(requestor)
        if transport is not None and transport.mcp_session_id is not None:
            session = transport.mcp_session_id
            log = self._logs[session] = EventLog(self._bounds, partial(self._streams.change, session))
            transport._event_store = log  # noqa: SLF001 - the SDK gives one store to all sessions
        return transport

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        if (log := self._logs.pop(session_id, None)) is not None:
            log.close()
        await super()._discard_session(session_id, transport)
