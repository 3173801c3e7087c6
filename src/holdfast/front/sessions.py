"""The server side of streamable HTTP, both eras: sessions, requests, and the calls in flight.

A request of the modern era stands alone. A legacy client has a session: its id, what the client declared, its
requests in flight, the stream of its notices and a log of the events that it may have missed. An answer is plain
JSON; it becomes an event stream at the first message that precedes the result, or when the result takes long.
A client that closes its connection cancels a modern request. A legacy one goes on, as its protocol has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Final

from mcp import MCPError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import INVALID_REQUEST, ErrorData
from pydantic import ValidationError

from holdfast.access import Principal, QuotaExceeded, Quotas
from holdfast.endpoint import (
    LIST_METHODS,
    Client,
    ClientRequest,
    LivesElsewhere,
    McpServer,
    Message,
    cancelled_id,
    error_message,
    error_of,
    read_message,
    read_small,
    result_message,
    result_pieces,
    small_values,
)
from holdfast.front.batches import is_batch, serve_batch
from holdfast.front.bodies import UNCOUNTED, BodyBudget
from holdfast.front.endpoint_headers import EndpointHeaders, is_encoded
from holdfast.front.http_session import CallInFlight, HttpSession
from holdfast.front.modern_route import KnownRoutes, check_routing, is_routed, route_of
from holdfast.front.own_answers import (
    ANSWER_LOST,
    CANCELLED,
    JSON_HEADER,
    NO_WAY_TO_REPLICAS,
    UNKNOWN_QUESTION,
    acknowledge,
    over_quota,
    refuse,
    refuse_encoded,
)
from holdfast.front.peer_requests import PeerRequests, RequestOwner
from holdfast.front.requests import Reply, Request
from holdfast.front.seal import SessionTicket
from holdfast.front.session_ids import SessionIds
from holdfast.front.session_store import NOTE_SECONDS, SessionRecord
from holdfast.front.shared_events import SharedEvent
from holdfast.front.streams import Backlog, LogBounds, LostEvent, MessageStream, lost_event
from holdfast.wire import SMALL_BYTES, RawObject

__all__ = ["HttpSessions"]

log = logging.getLogger("holdfast.front")

SESSION_IDLE_SECONDS = 300.0
"""A session without a stream and without a request is dropped from memory after this time, and rebuilt when used."""

SWEEP_SECONDS = 60.0

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"


class HttpSessions:
    """Serves one view of the hub to HTTP clients of either era."""

    def __init__(  # noqa: PLR0913 - what all endpoints share
        self,
        server: McpServer,
        *,
        bounds: LogBounds,
        backlog: Backlog,
        largest: Callable[[], int],
        forget: Callable[[Mapping[str, str], Principal], bool],
        quotas: Quotas,
        bodies: BodyBudget,
        ids: SessionIds,
    ) -> None:
        self.server = server
        self.peers: PeerRequests | None = None
        """The way to other replicas; None if there are none."""
        self._loop = asyncio.get_running_loop()
        self._ids = ids
        self._bounds = bounds
        self._backlog = backlog
        self._largest = largest
        self._forget = forget
        self._quotas = quotas
        self._bodies = bodies
        self._sessions: dict[str, HttpSession] = {}
        self._by_ticket: dict[bytes, HttpSession] = {}
        self._routes: KnownRoutes = {}
        self._posts = 0
        self._idle: asyncio.Future[None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    # Their life.

    async def wait_until_idle(self, *, within: float) -> None:
        """Wait until every client has the answer to what it asked, at most so many seconds."""
        try:
            async with asyncio.timeout(within):
                while self._posts:
                    if self._idle is None or self._idle.done():
                        self._idle = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._idle)
        except TimeoutError:
            return

    @property
    def is_idle(self) -> bool:
        """Whether every client has the answer to what it asked."""
        return not self._posts

    def end_streams(self) -> None:
        """End the streams of notices, and the questions to clients: they cannot be answered here any more."""
        for session in list(self._sessions.values()):
            session.end_questions("the hub is shutting down")
            session.end_notices()

    def close(self) -> None:
        """Drop every session: its streams end, and its id stays valid."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for session in list(self._sessions.values()):
            self._drop(session)

    @property
    def in_memory(self) -> int:
        """How many sessions are in memory."""
        return len(self._sessions)

    def _add(self, session_id: str, ticket: SessionTicket, principal: Principal) -> HttpSession:
        tag = self.peers.tag if self.peers is not None else ""
        session = HttpSession(
            session_id, ticket, principal=principal, bounds=self._bounds, backlog=self._backlog, tag=tag
        )
        if self.peers is not None:
            session.post = partial(self._post_elsewhere, session)
            session.find_stream = partial(self.peers.find_stream, session, self.server.view.server)
        session.used_at = asyncio.get_running_loop().time()
        session.client = self.server.new_client(
            channel=session.notices, capabilities=ticket.capabilities, principal=principal, session=ticket.id
        )
        session.client.stream_open = lambda: session.listening
        self._sessions[session_id] = self._by_ticket[ticket.id] = session
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        return session

    async def _rebuild(self, session_id: str, principal: Principal) -> HttpSession | QuotaExceeded | None:
        """The session of an id that is not in memory; None if the id is not valid for this principal here."""
        endpoint = self.server.view.server
        opened = await self._ids.open(session_id, endpoint=endpoint, principal=principal.name)
        if opened is None:
            return None
        ticket, record = opened
        listed = await self._ids.listed(ticket)
        if self._ids.has_ended(ticket):
            return None
        if (session := self._sessions.get(session_id)) is not None:  # another request was faster
            return session
        if (exceeded := self._quotas.begin_session(principal.name)) is not None:
            return exceeded
        session = self._add(session_id, ticket, principal)
        session.rebuilt = session.attached = True
        assert session.client is not None  # noqa: S101 - see _add
        session.client.rebuilt = True
        session.client.listed = dict(listed) if listed is not None else None
        session.keeps_lists = listed is not None
        self.server.attach(session.client)
        if record is not None:
            self._restore(session, session.client, record)
        return session

    def _restore(self, session: HttpSession, client: Client, record: SessionRecord) -> None:
        session.noted_at = record.seen
        self.server.set_log_level(client, record.log_level)
        self.server.restore(client, record.subscribed)

    def end(self, session: bytes) -> None:
        """Another hub ended a session."""
        if (one := self._by_ticket.get(session)) is not None:
            self._drop(one, released=True)

    def in_use(self, session_id: str, principal: str) -> HttpSession | None:
        """A session in memory, if it is of this principal."""
        found = self._sessions.get(session_id)
        return found if found is not None and found.principal.name == principal else None

    def changed(self, session: bytes, record: SessionRecord) -> None:
        """Another replica changed a session; if it is in memory here too, its log level and subscriptions follow."""
        one = self._by_ticket.get(session)
        if one is not None and one.client is not None:
            one.noted_at = max(one.noted_at, record.seen)
            if one.client.log_level != record.log_level:
                self.server.set_log_level(one.client, record.log_level)
            self.server.follow_subscriptions(one.client, record.subscribed)

    def idle_sessions(self, principal: str) -> list[HttpSession]:
        """The sessions of a principal with nothing under way."""
        return [one for one in self._sessions.values() if one.idle and one.principal.name == principal]

    def busy_principals(self) -> Iterator[str]:
        """The principal of each session that has something under way."""
        return (one.principal.name for one in self._sessions.values() if not one.idle)

    def drop_idle(self, session: HttpSession) -> None:
        """Forget a session that has nothing under way; it is rebuilt when it is used."""
        self._drop(session)

    def _drop(self, session: HttpSession, *, released: bool = False) -> None:
        """Forget a session. Unless it is over, its own connections stay for a while: it may come back."""
        if self._sessions.pop(session.id, None) is not None:
            self._by_ticket.pop(session.ticket.id, None)
            self._quotas.end_session(session.principal.name)
        session.end()
        if session.client is not None:
            self.server.detach(session.client, lingering=not released)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now, wall = loop.time(), self._ids.wall()
        to_note = []
        for session in list(self._sessions.values()):
            seen = wall if session.serving else wall - (now - session.used_at)
            if seen - session.noted_at > NOTE_SECONDS:
                session.noted_at = seen
                to_note.append(partial(self._ids.note, session.ticket, seen=seen))
                if session.listening and session.client is not None and session.client.listed is not None:
                    to_note.append(partial(self._ids.keep_listed, session.ticket, session.client.listed))
            if self._ids.is_over(session.ticket):
                self._drop(session, released=True)
            elif session.idle and session.used_at < now - SESSION_IDLE_SECONDS:
                self._drop(session)
        if to_note:
            self.server.start(_one_by_one, to_note)
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep) if self._sessions else None

    def _keep(self, session: HttpSession) -> Callable[[], Awaitable[None]]:
        """Write what a rebuilt session needs: as it is now, when the result is called."""
        client = session.client
        assert client is not None  # noqa: S101 - a session has a client
        return partial(
            self._ids.keep,
            session.ticket,
            seen=session.noted_at,
            log_level=client.log_level,
            subscribed=frozenset(client.subscribed),
        )

    # Requests.

    def serve(self, request: Request, reply: Reply, principal: Principal) -> Coroutine[Any, Any, None]:
        """Answer one HTTP request."""
        if is_encoded(request.headers):
            return refuse_encoded(reply)
        asked = EndpointHeaders(request.headers)
        if asked.modern is not None:
            return self._serve_modern(request, reply, principal, asked, asked.modern)
        return self._serve_legacy(request, reply, principal, asked)

    async def _serve_legacy(self, request: Request, reply: Reply, principal: Principal, asked: EndpointHeaders) -> None:
        session, named = None, asked.session
        if named is not None:
            found = self._sessions.get(named) or await self._rebuild(named, principal)
            if isinstance(found, QuotaExceeded):
                over_quota(reply, None, found)
                return
            if found is None or (found.principal is not principal and found.principal != principal):
                refuse(reply, 404, "Session not found")
                return
            session = found
            session.serving += 1
        elif request.method == "DELETE" and self._forget(request.headers, principal):
            reply.plain(204, b"", b"")
            return
        try:
            if (served := self._serve_session(request, reply, session, principal, asked)) is not None:
                await served
        finally:
            if session is not None:
                session.serving -= 1
                session.used_at = self._loop.time()

    def _serve_session(
        self, request: Request, reply: Reply, session: HttpSession | None, principal: Principal, asked: EndpointHeaders
    ) -> Coroutine[Any, Any, None] | None:
        """Answer a request of the legacy era; the result is what is left to be done for it, if anything is."""
        headers = session.header if session is not None else b""
        if request.method == "POST":
            if not asked.takes_json:
                refuse(reply, 406, "Not Acceptable: Client must accept application/json", headers)
            elif not asked.sends_json:
                refuse(reply, 415, "Unsupported Media Type: Content-Type must be application/json", headers)
            else:
                reply.streams = asked.takes_events
                return self._post(request, reply, session, principal)
        elif session is None:
            if request.method in ("GET", "DELETE"):
                refuse(reply, 400, "Bad Request: Missing session ID")
            else:
                refuse(reply, 405, "Method Not Allowed", b"allow: GET, POST, DELETE\r\n")
        elif request.method == "GET":
            if not asked.takes_events:
                refuse(reply, 406, "Not Acceptable: Client must accept text/event-stream", headers)
            else:
                return self._get(request, reply, session)
        elif request.method == "DELETE":
            return self._delete(reply, session)
        else:
            refuse(reply, 405, "Method Not Allowed", b"allow: GET, POST, DELETE\r\n" + headers)
        return None

    async def _delete(self, reply: Reply, session: HttpSession) -> None:
        await self._ids.end(session.ticket)
        self._drop(session, released=True)
        reply.plain(200, b"", session.header)

    async def _get(self, request: Request, reply: Reply, session: HttpSession) -> None:
        """A stream: of notices, or one that broke and goes on."""
        last = request.headers.get("last-event-id")
        elsewhere = self.peers if last is not None and session.log.stream_of(last) is None else None
        if elsewhere is not None and await elsewhere.resume(last or "", request, reply, self._whose(session)):
            return
        reply.streams = True
        reply.wait_for_result(session.header)
        found = session.log.stream_of(last) if last is not None else None
        lost = lost_event(last) if last is not None and found is None else None
        if found is not None:
            stream, number = found
            reply.begin()
            stream.resume(reply, number)
            if stream is session.notices:
                session.missed = False  # it was in what followed
                session.opened()
        elif last is None or (lost is not None and not lost.call):
            missed = [event async for event in self._shared(session, lost, reply)] if lost is not None else []
            if session.listening:
                refuse(reply, 409, "Conflict: Only one SSE stream is allowed per session")
                return
            session.notices.reply = reply
            reply.begin()
            for event_id, event in missed:
                reply.event(event.message, event_id=event_id)
            session.opened()
            self._tell_missed(session, lost is not None)
            self._keep_listed(session)
        else:
            reply.begin()
            if lost is not None:
                await self._resume_lost(session, lost, reply)
            reply.end()
        gone = asyncio.Event()
        request.on_gone = reply.on_done = gone.set
        if not reply.done and not reply.lost:
            await gone.wait()

    async def _resume_lost(self, session: HttpSession, lost: LostEvent, reply: Reply) -> None:
        """Send what followed in the stream of a request on another replica; or that its answer is lost."""
        async for event_id, event in self._shared(session, lost, reply):
            reply.event(event.message, event_id=event_id)
            if event.final:
                return
        if lost.request is not None:
            reply.event(error_message(lost.request, ANSWER_LOST))

    async def _shared(
        self, session: HttpSession, lost: LostEvent, reply: Reply
    ) -> AsyncIterator[tuple[bytes, SharedEvent]]:
        """The events of a stream that another replica had, with their ids, as far as the replicas share them."""
        if self._ids.events is None:
            return
        following = self._ids.events.follow(
            session.ticket.id,
            lost.mark,
            lost.suffix,
            after=lost.number,
            wanted=lambda: not reply.lost and not session.ended,
        )
        async for event in following:
            yield f"{lost.mark}.{event.number}{lost.suffix}".encode(), event

    def _tell_missed(self, session: HttpSession, events_lost: bool) -> None:
        """Let a client list and read again what may have changed while it could not be told."""
        if session.client is not None and (session.rebuilt or session.missed or events_lost):
            session.rebuilt = session.missed = False
            self.server.start(self._tell_changed, session, session.client)

    async def _tell_changed(self, session: HttpSession, client: Client) -> None:
        # Another worker may have given out a list: the file has what all of them gave out.
        listed = client.listed if self.peers is None else await self._ids.listed(session.ticket)
        await self.server.tell_missed(client, listed)

    def _keep_listed(self, session: HttpSession) -> None:
        """Write which lists a client has that can be told of a change."""
        if session.client is not None and session.client.listed is not None:
            session.keeps_lists = True
            self.server.start(self._ids.keep_listed, session.ticket, dict(session.client.listed))

    def _post(
        self, request: Request, reply: Reply, session: HttpSession | None, principal: Principal
    ) -> Coroutine[Any, Any, None] | None:
        body = request.at_hand(self._largest())
        if body is None or len(body) > UNCOUNTED:
            return self._post_later(body, request, reply, session, principal)
        try:
            message = read_small(body)
            check_routing(message, request)
        except MCPError as exc:
            request.whole = body
            return self._no_message(exc, request, reply, session, principal)
        if self.peers is not None:
            request.whole = body
        return self._take(message, request, reply, session, principal)

    async def _post_later(
        self, body: bytes | None, request: Request, reply: Reply, session: HttpSession | None, principal: Principal
    ) -> None:
        """The same for a body that is not here yet, or large."""
        request.whole = await self._whole_body(body, request, principal)
        try:
            message = await read_message(request.whole)
            check_routing(message, request)
        except MCPError as exc:
            served = self._no_message(exc, request, reply, session, principal)
        else:
            served = self._take(message, request, reply, session, principal)
        if served is not None:
            await served

    async def _whole_body(self, body: bytes | None, request: Request, principal: Principal) -> bytes:
        """The body of a request, with room for it."""
        hold = partial(self._bodies.hold, request, principal.name)
        if body is None:
            return await request.body(self._largest(), hold=hold)
        hold(len(body))
        return body

    def _no_message(
        self, exc: MCPError, request: Request, reply: Reply, session: HttpSession | None, principal: Principal
    ) -> Coroutine[Any, Any, None] | None:
        """A body that is no message is a batch, or refused."""
        body = request.whole
        if session is not None and not is_routed(request) and is_batch(body, session.version):
            take = partial(self._take, session=session, principal=principal)
            return serve_batch(body, request, reply, session.header, take)
        reply.plain(400, error_message(None, exc.error), JSON_HEADER + (session.header if session else b""))
        return None

    def _take(
        self, message: Message, request: Request, reply: Reply, session: HttpSession | None, principal: Principal
    ) -> Coroutine[Any, Any, None] | None:
        """Take a message of a client; what is left to be done for it, if anything is."""
        if message.is_request and message.method == "initialize":
            self._initialize(message, reply, principal)
            return None
        if session is None:
            refuse(reply, 400, "Bad Request: Missing session ID")
            return None
        if session.client is not None:
            session.client.seen_at = self._loop.time()
            if not session.attached:
                session.attached = True
                self.server.attach(session.client)
        if message.is_request:
            return self._request(message, request, reply, session)
        if message.method is None:
            if session.answered(message):
                reply.plain(202, b"", session.header)
            else:
                return self._answered_elsewhere(message, request, reply, session)
            return None
        reply.plain(202, b"", session.header)
        if message.method == "notifications/cancelled":
            self._cancel(session, message)
        elif session.client is not None:
            return self._notice(session, request, message)
        return None

    def _initialize(self, message: Message, reply: Reply, principal: Principal) -> None:
        """The handshake; no server behind the hub is waited for."""
        assert message.id is not None  # noqa: S101 - it is a request
        try:
            params = small_values(message)
            result, version, capabilities = self.server.initialize(params)
        except (MCPError, ValidationError, ValueError) as exc:
            reply.plain(200, error_message(message.id, error_of(exc)))
            return
        if (exceeded := self._quotas.begin_session(principal.name)) is not None:
            over_quota(reply, message, exceeded)
            return
        # A client that shakes hands again declares itself again: its earlier id stays what it was.
        session_id, ticket = self._ids.issue(
            endpoint=self.server.view.server,
            principal=principal.name,
            version=version,
            client=_client_info(params.get("clientInfo")),
            capabilities=capabilities,
        )
        opened = self._add(session_id, ticket, principal)
        reply.plain(200, result_message(message.id, result), JSON_HEADER + opened.header)

    async def _request(self, message: Message, request: Request, reply: Reply, session: HttpSession) -> None:
        assert message.id is not None  # noqa: S101 - it is a request
        assert message.key is not None  # noqa: S101 - as above
        assert session.client is not None  # noqa: S101 - a session has shaken hands
        if message.key in session.calls:
            text = "a request with this id is in flight already"
            error = error_message(None, ErrorData(code=INVALID_REQUEST, message=text))
            reply.plain(400, error, JSON_HEADER + session.header)
            return
        whose = session.principal.name
        if not request.forwarded and (exceeded := self._quotas.begin_call(whose)) is not None:
            over_quota(reply, message, exceeded, session.header)
            return
        stream = MessageStream(session, reply, self._backlog, message.id)
        reply.wait_for_result(session.header)
        call = session.calls[message.key] = CallInFlight(self._loop)
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
            try:
                result: RawObject | None = await self.server.answer(asked)
            except LivesElsewhere as found:
                result = await self._elsewhere(found, asked, request, reply, partial(session.serves, message.key, call))
            if result is None:
                stream.done = True
                return
            if message.method in _KEPT:
                await self._keep_after(message.method, session)
            stream.finish((result_pieces if result.is_large else result_message)(message.id, result))
        except asyncio.CancelledError:
            if not call.absorb():
                raise
            if reply.streams and not reply.started:
                reply.begin()  # a client that leaves takes a plain answer to a request that it gave up for a fault
            stream.finish(error_message(message.id, CANCELLED), resumable=False)
        except LivesElsewhere:
            raise  # the replica that sent it here looks again
        except Exception as exc:  # noqa: BLE001 - every request gets an answer
            stream.finish(error_message(message.id, error_of(exc)), resumable=False)
        finally:
            call.done = True
            if not request.forwarded:  # the replica that it came in at counts it
                self._quotas.end_call(whose)
            session.forget(message.key, call)
            self._one_less()

    async def _keep_after(self, method: str, session: HttpSession) -> None:
        """Write what a request changed, so that it outlives the process."""
        if method in _CHANGES_SESSION:
            session.noted_at = self._ids.wall()
            await self._keep(session)()
        elif session.keeps_lists or self.peers is not None:
            self._keep_listed(session)

    async def _notice(self, session: HttpSession, request: Request, message: Message) -> None:
        assert session.client is not None  # noqa: S101 - a session has shaken hands
        try:
            home = await self.server.noticed(session.client, session.version, message)
        except (MCPError, ValidationError, ValueError) as exc:
            log.debug("a notification of a client was dropped: %s", type(exc).__name__)
            return
        if home is not None and self.peers is not None and not request.forwarded:
            await self.peers.pass_notice(home, request, self._whose(session))

    def _one_less(self) -> None:
        self._posts -= 1
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    # Requests that belong to another replica.

    async def _elsewhere(
        self,
        found: LivesElsewhere,
        asked: ClientRequest,
        request: Request,
        reply: Reply,
        serves: Callable[[bool], object] = lambda _: None,
    ) -> RawObject | None:
        """The result of a request of another replica; None if that one answers. A forwarded one goes no further."""
        if self.peers is None or request.forwarded:
            raise found
        return await self.peers.answer(found, self.server, asked, request, reply, serves)

    async def _answered_elsewhere(self, message: Message, request: Request, reply: Reply, session: HttpSession) -> None:
        """A client's answer to a question that was not asked here: the replica that asked takes it."""
        why: str | None = NO_WAY_TO_REPLICAS if self._ids.keys.shared else UNKNOWN_QUESTION
        if self.peers is not None:
            why = await self.peers.pass_answer(message, request, reply, self._whose(session))
        if why is not None:
            refuse(reply, 400, why, session.header)

    def _whose(self, session: HttpSession) -> RequestOwner:
        return RequestOwner(self.server.view.server, session.principal)

    def _cancel(self, session: HttpSession, message: Message) -> None:
        """A client gave up a request: it may be served on another replica."""
        wanted = cancelled_id(message)
        call = session.calls.get(wanted) if wanted is not None else None
        if call is not None:
            call.cancel()
        elif wanted is not None and self.peers is not None:
            self.server.start(self.peers.cancel, session, self.server.view.server, wanted)

    def _post_elsewhere(self, session: HttpSession, message: bytes) -> None:
        """A notice for a client whose stream is not here."""
        if self.peers is not None and self.peers.post(session, message):
            self.server.start(self.peers.carry, session, self.server.view.server)

    # The modern era: a request stands alone.

    async def _serve_modern(
        self, request: Request, reply: Reply, principal: Principal, asked: EndpointHeaders, version: str
    ) -> None:
        if request.method != "POST":
            if request.method == "DELETE" and self._forget(request.headers, principal):
                reply.plain(204, b"", b"")
            else:
                reply.plain(405, b"", b"allow: POST\r\n")
            return
        if not asked.takes_json:
            refuse(reply, 406, "Not Acceptable: Client must accept application/json")
            return
        try:
            whole = request.at_hand(self._largest())
            if whole is None or len(whole) > UNCOUNTED:
                whole = await self._whole_body(whole, request, principal)
            request.whole = whole
            message = read_small(whole) if len(whole) <= SMALL_BYTES else await read_message(whole)
            if message.method is None:
                raise MCPError(INVALID_REQUEST, "Body must be a single JSON-RPC request or notification object")
        except MCPError as exc:
            reply.plain(400, error_message(None, exc.error))
            return
        if not message.is_request:
            acknowledge(reply, version)
            return
        if message.method == "subscriptions/listen" and not asked.takes_events:
            refuse(reply, 406, "Not Acceptable: Client must accept text/event-stream")
            return
        reply.streams = asked.takes_events
        await self._request_modern(message, request, reply, principal)

    async def _request_modern(self, message: Message, request: Request, reply: Reply, principal: Principal) -> None:
        assert message.id is not None  # noqa: S101 - it is a request
        listens = message.method == "subscriptions/listen"  # a stream for long: a connection, and no call
        counted = not listens and not request.forwarded  # the replica that it came in at counts it
        if counted and (exceeded := self._quotas.begin_call(principal.name)) is not None:
            over_quota(reply, message, exceeded)
            return
        stream = MessageStream(None, reply, self._backlog)
        reply.wait_for_result()
        call = CallInFlight(self._loop)
        request.on_gone = call.cancel
        client: Client | None = None
        self._posts += 1
        try:
            route = route_of(message, request, self._routes)
            client = self.server.new_client(
                channel=stream,
                capabilities=route.capabilities,
                principal=principal,
                headers=request.headers,
                meta=route.meta,
            )
            made = ClientRequest(
                message,
                version=route.version,
                client=client,
                channel=stream,
                headers=request.headers,
                principal=principal,
            )
            try:
                result: RawObject | None = await self.server.answer(made)
            except LivesElsewhere as found:
                result = await self._elsewhere(found, made, request, reply)
            if result is None:
                stream.done = True
                return
            stream.finish((result_pieces if result.is_large else result_message)(message.id, result))
        except asyncio.CancelledError:
            if not call.absorb():
                raise
            stream.done = True
        except LivesElsewhere:
            raise  # the replica that sent it here looks again
        except Exception as exc:  # noqa: BLE001 - every request gets an answer
            error = error_of(exc)
            stream.finish(error_message(message.id, error), status=ERROR_CODE_HTTP_STATUS.get(error.code, 200))
        finally:
            call.done = True
            if counted:
                self._quotas.end_call(principal.name)
            request.on_gone = None
            if client is not None:
                self.server.detach(client)
            self._one_less()


async def _one_by_one(work: list[Callable[[], Awaitable[None]]]) -> None:
    for one in work:
        await one()


def _client_info(info: object) -> dict[str, str]:
    named = info if isinstance(info, Mapping) else {}
    return {key: value for key in ("name", "version") if isinstance(value := named.get(key), str)}


_CHANGES_SESSION: Final = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
_KEPT: Final = _CHANGES_SESSION | LIST_METHODS.keys()
