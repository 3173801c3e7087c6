"""The server side of streamable HTTP, both eras: sessions, streams, resumption, and the calls in flight.

A request of the modern era stands alone. A legacy client has a session: its id, what the client declared, its
requests in flight, the stream of its notices and a log of the events that it may have missed. An answer is plain
JSON; it becomes an event stream at the first message that precedes the result, or when the result takes long.
A client that closes its connection cancels a modern request. A legacy one goes on, as its protocol has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from uuid import uuid4

from mcp import MCPError
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    InboundLadderRejection,
    classify_inbound_request,
    unsupported_protocol_version_rejection,
)
from mcp_types import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_REQUEST, ErrorData
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from holdfast.front.access.principals import Principal
from holdfast.front.clients import ASK_SECONDS, Client
from holdfast.front.inbound import (
    ClientRequest,
    Message,
    error_message,
    error_of,
    meta_of,
    notice_message,
    params_of,
    read_message,
    request_message,
    result_message,
    settle,
)
from holdfast.front.listener import Reply, Request
from holdfast.front.server import McpServer
from holdfast.wire import loads, text_of

__all__ = ["Backlog", "HttpSessions"]

log = logging.getLogger("holdfast.front")

RETRY_MILLISECONDS: Final = 1_000
"""How soon a client whose stream was cut is asked to come back."""

OPENING_SECONDS: Final = 5.0
"""How long a client may take to open its stream of notices, before it counts as having none."""

SESSION_IDLE_SECONDS: Final = 1_800.0
SWEEP_SECONDS: Final = 60.0
MOST_SESSIONS: Final = 10_000

PRIMED_SINCE: Final = "2025-11-25"
"""From this version on a client understands an event without data, which tells where a stream can be resumed."""

LOGGED_EVENTS, LOGGED_BYTES = 1_000, 4 * 1024 * 1024
"""How much of what a client was sent is kept for it, should its stream break."""

ALL_LOGGED_BYTES: Final = 64 * 1024 * 1024
SESSION_UNREAD_BYTES: Final = 32 * 1024 * 1024
ALL_UNREAD_BYTES: Final = 256 * 1024 * 1024

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"


# What clients have not read yet, and what they may ask for again.


class Backlog:
    """What all clients together have not read; the one that reads least is cut off where it is too much."""

    def __init__(self, *, per_session: int = SESSION_UNREAD_BYTES, most: int = ALL_UNREAD_BYTES) -> None:
        self._per_session = per_session
        self._most = most
        self._unread: dict[Reply, object] = {}

    def wrote(self, reply: Reply, owner: object) -> None:
        """Something was written; cut this reader off if it, or all together, are over a bound."""
        if reply.unread == 0:
            self._unread.pop(reply, None)
            return
        self._unread[reply] = owner
        for one in [one for one in self._unread if one.lost or one.unread == 0]:
            del self._unread[one]
        own = [one for one, whose in self._unread.items() if whose is owner]
        if len(own) > 1 and sum(one.unread for one in own) > self._per_session:
            self._cut(reply)
        while len(self._unread) > 1 and sum(one.unread for one in self._unread) > self._most:
            self._cut(max(self._unread, key=lambda one: one.unread))

    def _cut(self, reply: Reply) -> None:
        log.warning("a client does not read its answers: its connection is closed (%d bytes unread)", reply.unread)
        self._unread.pop(reply, None)
        reply.abort()


class LogBounds:
    """How much the event logs of all sessions may hold."""

    def __init__(self, most: int = ALL_LOGGED_BYTES) -> None:
        self._most = most
        self._events: dict[_Event, None] = {}
        self.held = 0
        """Bytes, as they go over the wire."""

    def add(self, event: _Event) -> None:
        """One more; the oldest of all give way to it."""
        self._events[event] = None
        self.held += len(event.message)
        while self.held > self._most and len(self._events) > 1:
            oldest = next(iter(self._events))
            oldest.log.drop(oldest)

    def remove(self, event: _Event) -> None:
        """One less."""
        del self._events[event]
        self.held -= len(event.message)


class _Event:
    __slots__ = ("log", "message", "number", "stream")

    def __init__(self, log: EventLog, number: int, stream: MessageStream, message: bytes) -> None:
        self.log = log
        self.number = number
        self.stream = stream
        self.message = message


class EventLog:
    """What one session was sent on its streams, so that a stream that broke can be read on (``Last-Event-ID``)."""

    def __init__(self, bounds: LogBounds) -> None:
        self._bounds = bounds
        self._events: dict[int, _Event] = {}
        self._number = 0
        self._held = 0

    def add(self, stream: MessageStream, message: bytes) -> int:
        """Keep a message; the number of its event. An empty one marks where a stream begins."""
        self._number += 1
        event = self._events[self._number] = _Event(self, self._number, stream, message)
        self._held += len(message)
        self._bounds.add(event)
        while len(self._events) > LOGGED_EVENTS or (self._held > LOGGED_BYTES and len(self._events) > 1):
            self.drop(next(iter(self._events.values())))
        return self._number

    def stream_of(self, event_id: str) -> tuple[MessageStream, int] | None:
        """The stream of an event, and the event's number; None if it is not kept any more."""
        known = event_id.isascii() and event_id.isdigit() and len(event_id) < 20
        event = self._events.get(int(event_id)) if known else None
        return (event.stream, event.number) if event is not None else None

    def after(self, stream: MessageStream, number: int) -> Iterator[tuple[int, bytes]]:
        """What followed on the same stream."""
        for event in list(self._events.values()):
            if event.number > number and event.stream is stream and event.message:
                yield event.number, event.message

    def drop(self, event: _Event) -> None:
        """Forget one."""
        del self._events[event.number]
        self._held -= len(event.message)
        self._bounds.remove(event)

    def close(self) -> None:
        """Forget all."""
        for event in list(self._events.values()):
            self.drop(event)


# A session and its streams.


class MessageStream:
    """The messages of one request, or a session's notices, on their way to the client. A ``Channel``."""

    __slots__ = ("backlog", "done", "logged", "reply", "session")

    def __init__(self, session: HttpSession | None, reply: Reply | None, backlog: Backlog) -> None:
        self.session = session
        self.reply = reply
        self.backlog = backlog
        self.logged = False
        self.done = False
        if reply is not None and session is not None:
            reply.on_stream = self._prime

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification; a client that takes no event stream gets the result alone."""
        self.send(notice_message(method, params))

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """The client's answer; only a session can be asked."""
        if self.session is None or (self.reply is not None and not self.reply.streams):
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach the client: it takes no event stream")
        # A call that was answered meanwhile has no stream any more: the client's own is left.
        return await self.session.ask(self.session.notices if self.done else self, method, params)

    def send(self, message: bytes) -> None:
        """A message that precedes the result."""
        reply = self.reply
        if self.done or (reply is not None and not reply.streams):
            return
        if reply is not None and not reply.started and not reply.lost:
            reply.begin()
        number = self._log(message)
        if reply is not None and not reply.done:
            reply.event(message, event_id=number)
            self.backlog.wrote(reply, self.session or reply)

    def finish(self, message: bytes, *, status: int = 200, resumable: bool = True) -> None:
        """The result. A client of the first TypeScript SDK resumes after an error that has an event id."""
        if self.done:
            return
        reply = self.reply
        number = self._log(message) if resumable and reply is not None and reply.started else b""
        self.done = True
        if reply is not None and not reply.done:
            reply.result(message, status=status, event_id=number)
            self.backlog.wrote(reply, self.session or reply)

    def resume(self, reply: Reply, after: int) -> None:
        """Go on at another connection: first what was missed, then what comes."""
        session = self.session
        assert session is not None  # noqa: S101 - only a session has a log
        before, self.reply = self.reply, reply
        if before is not None and before is not reply and not before.done:
            before.end()
        for number, message in session.log.after(self, after):
            reply.event(message, event_id=b"%d" % number)
        if self.done:
            reply.end()

    def _prime(self) -> bytes:
        """The first event, which says where the stream can be resumed."""
        session = self.session
        if session is None or session.version < PRIMED_SINCE:
            return b""
        self.logged = True
        return b"id: %d\nretry: %d\ndata: \n\n" % (session.log.add(self, b""), RETRY_MILLISECONDS)

    def _log(self, message: bytes) -> bytes:
        return b"%d" % self.session.log.add(self, message) if self.session is not None else b""


class CallInFlight:
    """A request that is being served, and the task that serves it."""

    __slots__ = ("_task", "cancelled", "done")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.cancelled = False
        self.done = False

    def cancel(self) -> None:
        """End it; its task goes on with the next message."""
        if not self.done and not self.cancelled and self._task is not None:
            self.cancelled = True
            self._task.cancel()

    def absorb(self) -> bool:
        """Whether a cancellation was meant for the call; then the task is no longer cancelled."""
        if self.cancelled and self._task is not None:
            return self._task.uncancel() == 0
        return False


class HttpSession:
    """One legacy client."""

    def __init__(self, session_id: str, *, principal: Principal, bounds: LogBounds, backlog: Backlog) -> None:
        self.id = session_id
        self.header = b"mcp-session-id: " + session_id.encode("ascii") + b"\r\n"
        self.principal = principal
        self.version = ""
        self.client: Client | None = None
        self.attached = False
        self.log = EventLog(bounds)
        self.notices = MessageStream(self, None, backlog)
        self.calls: dict[str | int, CallInFlight] = {}
        self.used_at = 0.0
        self.serving = 0
        self.ended = False
        self._asked = 0
        self._questions: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._opened: asyncio.Future[None] | None = None

    async def ask(self, stream: MessageStream, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Put a question on a stream and wait for the client's answer."""
        if stream is self.notices and not await self._reachable():
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach the client: it has no notification stream open")
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        stream.send(request_message(number, method, params))
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await answer
        except TimeoutError:
            stream.tell("notifications/cancelled", {"requestId": number, "reason": "it took too long"})
            raise MCPError(INVALID_REQUEST, f"the client did not answer {method} in time") from None
        except asyncio.CancelledError:
            stream.tell("notifications/cancelled", {"requestId": number, "reason": "the answer is no longer needed"})
            raise
        finally:
            del self._questions[number]

    def answered(self, message: Message) -> None:
        """The client's answer to a question; an answer without a waiting question is dropped."""
        question = self._questions.get(message.key) if isinstance(message.key, int) else None
        if question is None or question.done():
            return
        settle(question, message)

    def opened(self) -> None:
        """The stream of notices is open."""
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)

    @property
    def listening(self) -> bool:
        """Whether its stream of notices is open."""
        reply = self.notices.reply
        return reply is not None and not reply.done and not reply.lost

    async def _reachable(self) -> bool:
        if not self.listening:
            self._opened = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(OPENING_SECONDS):
                    await self._opened
            except TimeoutError:
                return False
        return True

    def end(self) -> None:
        """It is over: nothing of it goes on."""
        self.ended = True
        for call in list(self.calls.values()):
            call.cancel()
        for question in self._questions.values():
            if not question.done():
                question.set_exception(MCPError(INVALID_REQUEST, "the client ended its session"))
        reply = self.notices.reply
        if reply is not None and not reply.done:
            reply.end()
        self.log.close()


class HttpSessions:
    """Serves one view of the hub to HTTP clients of either era."""

    def __init__(
        self,
        server: McpServer,
        *,
        bounds: LogBounds,
        backlog: Backlog,
        largest: Callable[[], int],
        forget: Callable[[Mapping[str, str], Principal], bool],
    ) -> None:
        self.server = server
        self._bounds = bounds
        self._backlog = backlog
        self._largest = largest
        self._forget = forget
        self._sessions: dict[str, HttpSession] = {}
        self._posts = 0
        self._idle: asyncio.Future[None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    # Their life.

    async def wait_until_idle(self, *, within: float) -> None:
        """Wait until every client has the answer to what it asked, at most so many seconds."""
        try:
            async with asyncio.timeout(within):
                while self._posts:
                    self._idle = asyncio.get_running_loop().create_future()
                    await self._idle
        except TimeoutError:
            return

    def close(self) -> None:
        """End every session."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for session in list(self._sessions.values()):
            self._end(session)

    def _open(self, principal: Principal) -> HttpSession | None:
        if len(self._sessions) >= MOST_SESSIONS:
            return None
        session = HttpSession(new_session_id(), principal=principal, bounds=self._bounds, backlog=self._backlog)
        self._sessions[session.id] = session
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        return session

    def _find(self, session_id: str, principal: Principal) -> HttpSession | None:
        """The session of an id; one of another principal is not found either."""
        session = self._sessions.get(session_id)
        return session if session is not None and session.principal == principal else None

    def _end(self, session: HttpSession) -> None:
        self._sessions.pop(session.id, None)
        session.end()
        if session.client is not None and session.attached:
            self.server.detach(session.client)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time() - SESSION_IDLE_SECONDS
        for session in [one for one in self._sessions.values() if not one.serving and one.used_at < before]:
            self._end(session)
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep) if self._sessions else None

    # Requests.

    async def serve(self, request: Request, reply: Reply, principal: Principal) -> None:
        """Answer one HTTP request."""
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await self._serve_modern(request, reply, principal, version)
        else:
            await self._serve_legacy(request, reply, principal)

    async def _serve_legacy(self, request: Request, reply: Reply, principal: Principal) -> None:
        session, named = None, request.headers.get("mcp-session-id")
        if named is not None:
            session = self._find(named, principal)
            if session is None:
                _refuse(reply, 404, "HttpSession not found")
                return
            session.serving += 1
        elif request.method == "DELETE" and self._forget(request.headers, principal):
            reply.plain(204, b"", b"")
            return
        try:
            await self._serve_session(request, reply, session, principal)
        finally:
            if session is not None:
                session.serving -= 1
                session.used_at = asyncio.get_running_loop().time()

    async def _serve_session(
        self, request: Request, reply: Reply, session: HttpSession | None, principal: Principal
    ) -> None:
        takes_json, takes_events = accepted(request.headers.get("accept", ""))
        headers = session.header if session is not None else b""
        if request.method == "POST":
            if not takes_json:
                _refuse(reply, 406, "Not Acceptable: Client must accept application/json", headers)
            elif not _is_json(request.headers.get("content-type", "")):
                _refuse(reply, 415, "Unsupported Media Type: Content-Type must be application/json", headers)
            else:
                reply.streams = takes_events
                await self._post(request, reply, session, principal)
        elif session is None:
            if request.method in ("GET", "DELETE"):
                _refuse(reply, 400, "Bad Request: Missing session ID")
            else:
                _refuse(reply, 405, "Method Not Allowed", b"allow: GET, POST, DELETE\r\n")
        elif request.method == "GET":
            if not takes_events:
                _refuse(reply, 406, "Not Acceptable: Client must accept text/event-stream", headers)
            else:
                await self._get(request, reply, session)
        elif request.method == "DELETE":
            self._end(session)
            reply.plain(200, b"", headers)
        else:
            _refuse(reply, 405, "Method Not Allowed", b"allow: GET, POST, DELETE\r\n" + headers)

    async def _get(self, request: Request, reply: Reply, session: HttpSession) -> None:
        """A stream: of notices, or one that broke and goes on."""
        last = request.headers.get("last-event-id")
        reply.streams = True
        reply.wait_for_result(session.header)
        if last is None:
            if session.listening:
                _refuse(reply, 409, "Conflict: Only one SSE stream is allowed per session", session.header)
                return
            session.notices.reply = reply
            reply.begin()
            session.opened()
        else:
            found = session.log.stream_of(last)
            reply.begin()
            if found is None:
                reply.end()
                return
            stream, number = found
            stream.resume(reply, number)
            if stream is session.notices:
                session.opened()
        gone = asyncio.Event()
        request.on_gone = reply.on_done = gone.set
        if not reply.done and not reply.lost:
            await gone.wait()

    async def _post(self, request: Request, reply: Reply, session: HttpSession | None, principal: Principal) -> None:
        headers = session.header if session is not None else b""
        try:
            message = read_message(await request.body(self._largest()))
        except MCPError as exc:
            reply.plain(400, error_message(None, exc.error), _JSON_HEADER + headers)
            return
        if message.is_request and message.method == "initialize":
            self._initialize(message, reply, session, principal)
            return
        if session is None:
            _refuse(reply, 400, "Bad Request: Missing session ID")
            return
        if session.client is not None:
            session.client.seen_at = asyncio.get_running_loop().time()
            if not session.attached:
                session.attached = True
                self.server.attach(session.client)
        if message.is_request:
            await self._request(message, request, reply, session)
            return
        reply.plain(202, b"", headers)
        if message.method is None:
            session.answered(message)
        elif message.method == "notifications/cancelled":
            _cancel(session, message)
        elif session.client is not None:
            await self._notice(session.client, session.version, message)

    def _initialize(self, message: Message, reply: Reply, session: HttpSession | None, principal: Principal) -> None:
        """The handshake; no server behind the hub is waited for."""
        assert message.id is not None  # noqa: S101 - it is a request
        try:
            params = {key: loads(value) for key, value in params_of(message).items()}
            result, version, capabilities = self.server.initialize(params)
        except (MCPError, ValidationError, ValueError) as exc:
            reply.plain(200, error_message(message.id, error_of(exc)))
            return
        opened = session or self._open(principal)
        if opened is None:
            _refuse(reply, 503, "Too many open sessions", b"retry-after: 60\r\n", INTERNAL_ERROR)
            return
        opened.version = version
        opened.used_at = asyncio.get_running_loop().time()
        if opened.client is None:
            opened.client = self.server.new_client(
                channel=opened.notices, capabilities=capabilities, principal=principal
            )
            opened.client.stream_open = lambda: opened.listening
        else:
            opened.client.capabilities = capabilities
        reply.plain(200, result_message(message.id, result), _JSON_HEADER + opened.header)

    async def _request(self, message: Message, request: Request, reply: Reply, session: HttpSession) -> None:
        assert message.id is not None  # noqa: S101 - it is a request
        assert message.key is not None  # noqa: S101 - as above
        assert session.client is not None  # noqa: S101 - a session has shaken hands
        if message.key in session.calls:
            text = "a request with this id is in flight already"
            error = error_message(None, ErrorData(code=INVALID_REQUEST, message=text))
            reply.plain(400, error, _JSON_HEADER + session.header)
            return
        stream = MessageStream(session, reply, self._backlog)
        reply.wait_for_result(session.header)
        call = session.calls[message.key] = CallInFlight()
        self._posts += 1
        try:
            asked = ClientRequest(
                message,
                version=session.version,
                client=session.client,
                channel=stream,
                headers=request.headers,
                principal=session.principal,
            )
            stream.finish(result_message(message.id, await self.server.answer(asked)))
        except asyncio.CancelledError:
            if not call.absorb():
                raise
            if reply.streams and not reply.started:
                reply.begin()  # a client that leaves takes a plain answer to a request that it gave up for a fault
            stream.finish(error_message(message.id, _CANCELLED), resumable=False)
        except Exception as exc:  # noqa: BLE001 - every request gets an answer
            stream.finish(error_message(message.id, error_of(exc)), resumable=False)
        finally:
            call.done = True
            session.calls.pop(message.key, None)
            self._one_less()

    async def _notice(self, client: Client, version: str, message: Message) -> None:
        try:
            await self.server.noticed(client, version, message)
        except (MCPError, ValidationError, ValueError) as exc:
            log.debug("a notification of a client was dropped: %s", type(exc).__name__)

    def _one_less(self) -> None:
        self._posts -= 1
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    # The modern era: a request stands alone.

    async def _serve_modern(self, request: Request, reply: Reply, principal: Principal, version: str) -> None:
        if request.method != "POST":
            if request.method == "DELETE" and self._forget(request.headers, principal):
                reply.plain(204, b"", b"")
            else:
                reply.plain(405, b"", b"allow: POST\r\n")
            return
        takes_json, takes_events = accepted(request.headers.get("accept", ""))
        if not takes_json:
            reply.plain(406, b"", b"")
            return
        try:
            message = read_message(await request.body(self._largest()))
            if message.method is None:
                raise MCPError(INVALID_REQUEST, "Body must be a single JSON-RPC request or notification object")
        except MCPError as exc:
            reply.plain(400, error_message(None, exc.error))
            return
        if not message.is_request:
            _acknowledge(reply, version)
            return
        if message.method == "subscriptions/listen" and not takes_events:
            reply.plain(406, b"", b"")
            return
        reply.streams = takes_events
        await self._request_modern(message, request, reply, principal)

    async def _request_modern(self, message: Message, request: Request, reply: Reply, principal: Principal) -> None:
        assert message.id is not None  # noqa: S101 - it is a request
        stream = MessageStream(None, reply, self._backlog)
        reply.wait_for_result()
        call = CallInFlight()
        request.on_gone = call.cancel
        client: Client | None = None
        self._posts += 1
        try:
            client, version = self._modern_client(message, request, stream, principal)
            asked = ClientRequest(
                message, version=version, client=client, channel=stream, headers=request.headers, principal=principal
            )
            self.server.check_mirrored(asked)
            stream.finish(result_message(message.id, await self.server.answer(asked)))
        except asyncio.CancelledError:
            if not call.absorb():
                raise
            stream.done = True
        except Exception as exc:  # noqa: BLE001 - every request gets an answer
            error = error_of(exc)
            stream.finish(error_message(message.id, error), status=ERROR_CODE_HTTP_STATUS.get(error.code, 200))
        finally:
            call.done = True
            request.on_gone = None
            if client is not None:
                self.server.detach(client)
            self._one_less()

    def _modern_client(
        self, message: Message, request: Request, stream: MessageStream, principal: Principal
    ) -> tuple[Client, str]:
        """Check that the request agrees with itself; the client that it is of, and its version."""
        if (twice := _repeated(request)) is not None:
            raise MCPError(HEADER_MISMATCH, f"{twice} header appears more than once")
        params = params_of(message)
        meta = meta_of(params)
        read: dict[str, Any] = {"_meta": meta} if "_meta" in params else {}
        key = NAME_BEARING_METHODS.get(message.method or "")
        if key is not None and key in params:
            read[key] = text_of(params[key])
        route = classify_inbound_request({"method": message.method, "params": read}, headers=request.headers)
        if isinstance(route, InboundLadderRejection):
            raise MCPError(route.code, route.message, route.data)
        capabilities = route.client_capabilities
        client = self.server.new_client(
            channel=stream,
            capabilities=capabilities if isinstance(capabilities, dict) else {},
            principal=principal,
            headers=request.headers,
            meta=meta,
        )
        return client, route.protocol_version


# One function makes the id of a session and one finds it (`HttpSessions._find`): sealed ids change those two alone.


def new_session_id() -> str:
    """An id that cannot be guessed."""
    return uuid4().hex


_JSON_HEADER: Final = b"content-type: application/json\r\n"
REQUEST_CANCELLED: Final = -32800
"""What a legacy client's request ends with that it cancelled; its stream would not end otherwise."""

_CANCELLED: Final = ErrorData(code=REQUEST_CANCELLED, message="Request cancelled")
_ROUTING: Final = tuple(
    name.encode("ascii") for name in (MCP_PROTOCOL_VERSION_HEADER, MCP_METHOD_HEADER, MCP_NAME_HEADER)
)


def accepted(accept: str) -> tuple[bool, bool]:
    """Whether a client takes JSON, and whether it takes event streams; wildcards count."""
    if accept == "application/json, text/event-stream":
        return True, True
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    every = "*/*" in kinds
    return every or bool(kinds & {_JSON, "application/*"}), every or bool(kinds & {_EVENTS, "text/*"})


def _is_json(content_type: str) -> bool:
    return content_type == _JSON or content_type.partition(";")[0].strip().lower() == _JSON


def _refuse(reply: Reply, status: int, text: str, headers: bytes = b"", code: int = INVALID_REQUEST) -> None:
    reply.plain(status, error_message(None, ErrorData(code=code, message=text)), _JSON_HEADER + headers)


def _acknowledge(reply: Reply, version: str) -> None:
    """A notification of the modern era: it is accepted, and there is nothing that it could change."""
    if (rejected := unsupported_protocol_version_rejection(version)) is not None:
        error = ErrorData(code=rejected.code, message=rejected.message, data=rejected.data)
        reply.plain(400, error_message(None, error))
    else:
        reply.plain(202, b"", b"")


def _cancel(session: HttpSession, message: Message) -> None:
    try:
        raw = params_of(message).get("requestId")
        wanted = loads(raw) if raw is not None else None
    except (MCPError, ValueError):
        return
    call = session.calls.get(wanted) if isinstance(wanted, str | int) else None
    if call is not None:
        call.cancel()


def _repeated(request: Request) -> str | None:
    names = [name for name, _ in request.raw_headers]
    return next((name.decode() for name in _ROUTING if names.count(name) > 1), None)
