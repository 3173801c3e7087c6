"""Legacy sessions over HTTP: the SDK's session manager, with resumption and the knowledge of who has a stream open.

Each session has its own event log: a stream is named by the id of its request, and every client counts from one, so
a shared log would give one client's answers to another. A resumed stream (``Last-Event-ID``) follows its log until
the answer is sent, so no event is lost in between. All logs together stay within bounds: the oldest events are
dropped, and a client that asks for dropped events gets none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    LAST_EVENT_ID_HEADER,
    MCP_SESSION_ID_HEADER,
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

__all__ = ["EventLog", "HttpSessions", "OpenStreams", "ReplayBudget"]

SESSION_EVENTS = 1_000
SESSION_BYTES = 4 * 1024 * 1024
LONGEST_ID = 19
ALL_BYTES = 64 * 1024 * 1024


@dataclass(eq=False)
class _Event:
    log: EventLog
    number: int
    stream: str
    message: JSONRPCMessage | None
    size: int

    @property
    def is_answer(self) -> bool:
        return isinstance(self.message, JSONRPCResponse | JSONRPCError) and self.stream != GET_STREAM_KEY


class ReplayBudget:
    """The bound on the events of all sessions of a hub."""

    def __init__(self, most: int = ALL_BYTES) -> None:
        self._most = most
        self._events: dict[_Event, None] = {}
        self.held = 0
        """Bytes on the wire."""

    def add(self, event: _Event) -> None:
        """Add an event; drop the oldest of all sessions if the bound is exceeded."""
        self._events[event] = None
        self.held += event.size
        while self.held > self._most and len(self._events) > 1:
            oldest = next(iter(self._events))
            oldest.log.drop(oldest)

    def remove(self, event: _Event) -> None:
        """Remove an event."""
        del self._events[event]
        self.held -= event.size


class EventLog(EventStore):
    """One session's log; ``on_follow`` gets 1 when a client resumes its notification stream, and -1 when that ends."""

    def __init__(self, bounds: ReplayBudget, on_follow: Callable[[int], None]) -> None:
        self._bounds = bounds
        self._on_follow = on_follow
        self._events: dict[int, _Event] = {}
        self._number = 0
        self._held = 0
        self._came = anyio.Event()
        self._closed = False

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store a message (None marks the start of a stream) and return the event's id."""
        size = len(message.model_dump_json(by_alias=True, exclude_unset=True)) if message is not None else 0
        self._number += 1
        if not self._closed:
            event = self._events[self._number] = _Event(self, self._number, stream_id, message, size)
            self._held += size
            self._bounds.add(event)
            while len(self._events) > SESSION_EVENTS or (self._held > SESSION_BYTES and len(self._events) > 1):
                self.drop(next(iter(self._events.values())))
        self._wake()
        return str(self._number)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send the later events of the same stream, and follow it until its answer.

        It returns None, not the stream's name: the SDK would then follow the stream itself and miss events between.
        """
        known = last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < LONGEST_ID
        start = self._events.get(int(last_event_id)) if known else None
        if start is None or start.is_answer:
            return None
        watching = start.stream == GET_STREAM_KEY
        self._on_follow(watching)
        try:
            await self._follow(start, send_callback)
        finally:
            self._on_follow(-watching)
        return None

    def drop(self, event: _Event) -> None:
        """Drop one event."""
        del self._events[event.number]
        self._held -= event.size
        self._bounds.remove(event)

    def close(self) -> None:
        """End the session: drop all events."""
        self._closed = True
        for event in list(self._events.values()):
            self.drop(event)
        self._wake()

    async def _follow(self, start: _Event, send: EventCallback) -> None:
        reached = start.number
        while not self._closed:
            came = self._came
            for event in [one for one in self._events.values() if one.number > reached and one.stream == start.stream]:
                reached = event.number
                if event.message is not None:
                    await send(EventMessage(event.message, str(event.number)))
                if event.is_answer:
                    return
            await came.wait()

    def _wake(self) -> None:
        self._came.set()
        self._came = anyio.Event()


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

    def is_open(self, session: str) -> bool:
        """Whether a session has one open now."""
        return session in self._open

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
