"""HTTP/1.1 as the hub serves it: one connection is one task that answers one request after the other.

The MCP endpoints are answered here, on the transport itself: no queue, no task and no copy lies between a request
and its answer. Every other path goes to the ASGI application behind.

Four parts make a connection, and each can be read alone:

- ``RequestParser`` (request_parser.py) says what the bytes mean. It has no socket.
- ``InboundRequests`` pulls requests out of it, two at most: the one that is answered, and the next one. The rest of
  what a client sends ahead stays unread, and the socket is paused.
- ``AnswerWriter`` (answer_writer.py) writes the answers.
- ``HttpConnection`` is the protocol of the event loop and the task that serves.

What must never happen:

- A client that is not known yet holds much: a head has 10 s, a body that no reader asked for is counted for all
  connections together, an idle connection is closed, one timer serves a connection (SEC-11).
- An answer depends on what its sender happened to send in the same moment. Bytes that are no request are refused when
  those before them have their answers.
- A fault while bytes are read stops the event loop or another connection: it is one line of the log.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from holdfast.core import fault_line
from holdfast.front.acceptor import AdmittedProtocol
from holdfast.front.answer_writer import AnswerWriter, OutputBuffer
from holdfast.front.asgi import AsgiExchange
from holdfast.front.request_parser import BadRequest, RequestEnd, RequestHead, RequestParser
from holdfast.front.requests import BodyBudget, Gone, NoRoom, Reply, Request, TooLarge
from holdfast.turns import STEP_SECONDS, Turns
from holdfast.wire import dumps

__all__ = ["HttpConnection", "MessageEndpoint"]

HEAD_SECONDS: Final = 10.0
"""How long a connection may take for the head of its first request, and of each later one once it has begun."""

IDLE_SECONDS: Final = 75.0
"""How long a connection may stay open between two requests."""

MANY_BYTES: Final = 8 * 1024
"""So much may hold more requests, headers or chunks than are pulled in one step of the event loop."""

PASSED_OVER_BYTES, PASSED_OVER_SECONDS = 64 * 1024 * 1024, 10.0
"""How much of a body that is not wanted is passed over, and for how long, so that its sender can read the answer."""

LAST_ANSWER_SECONDS: Final = 60.0
"""How long the request under way may take, and a stream stay open, once the client's certificate does not count."""

LONGEST_TIMER: Final = 24 * 3600.0
"""Seconds; a certificate may be valid for longer than an event loop can count, and clocks are set."""

log = logging.getLogger("holdfast.front")


class MessageEndpoint(Protocol):
    """What is served on the transport itself."""

    @property
    def retiring(self) -> bool:
        """Whether each answer is the last one of its connection."""

    @property
    def bodies(self) -> BodyBudget:
        """The room for bodies."""

    def claims(self, path: str) -> bool:
        """Whether a path is one of its own."""

    async def serve(self, request: Request, reply: Reply) -> None:
        """Answer one request."""


class ConnectionTimer:
    """The one timer of a connection: what is to be done later replaces what was to be done later before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = 0.0
        self._then: Callable[[], None] | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._ended = False

    def arm(self, seconds: float, then: Callable[[], None]) -> None:
        """Do something later."""
        if self._ended:
            return  # its client left while it was served: a timer would keep it for no one
        due = self._due = self._loop.time() + seconds
        self._then = then
        handle = self._handle
        if handle is None or handle.when() > due:
            if handle is not None:
                handle.cancel()
            self._handle = self._loop.call_at(due, self._ring)

    def disarm(self) -> None:
        """Do nothing later. The event loop's timer stays: most often it is armed again before it comes."""
        self._then = None

    def end(self) -> None:
        """The connection is gone."""
        self._ended, self._then = True, None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle, then = None, self._then
        if then is None:
            return
        if self._loop.time() < self._due:
            self._handle = self._loop.call_at(self._due, self._ring)
            return
        self._then = None
        then()

    def __repr__(self) -> str:
        return f"<ConnectionTimer {'idle' if self._then is None else f'in {self._due - self._loop.time():.1f} s'}>"


class ClientCertificate:
    """The certificate that TLS verified, if there is one.

    When it does not count any more, because it expired or its authority is not trusted, ``shutdown`` is called: no
    further request, the one under way is answered. ``abort`` follows a while later.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, tls: Any, shutdown: Callable[[], None], abort: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._shutdown = shutdown
        self._abort = abort
        self._timer: asyncio.TimerHandle | None = None
        self._forget_trust: Callable[[], object] = _nothing
        asked = tls is not None and tls.context.verify_mode != ssl.CERT_NONE
        found: Mapping[str, Any] = (tls.getpeercert() or {}) if asked else {}
        self.names = _names_in(found)
        self.verified = bool(found)
        if found:
            self._until_expiry(ssl.cert_time_to_seconds(found["notAfter"]))
            trust = getattr(tls.context, "client_trust", None)
            if trust is not None:
                self._forget_trust = trust.add(self._distrust)

    def _until_expiry(self, at: float) -> None:
        left = at - time.time()
        if left > 0:
            self._timer = self._loop.call_later(min(left, LONGEST_TIMER), self._until_expiry, at)
        else:
            self._distrust()

    def _distrust(self) -> None:
        if self.verified:
            self.verified = False
            self._shutdown()
            self._timer = self._loop.call_later(LAST_ANSWER_SECONDS, self._abort)

    def end(self) -> None:
        """The connection is gone."""
        self._forget_trust()
        if self._timer is not None:
            self._timer.cancel()

    def __repr__(self) -> str:
        return f"<ClientCertificate {sorted(self.names)} {'verified' if self.verified else 'does not count'}>"


class InboundRequests:
    """The requests of one connection that have no answer yet: two at most. The rest stays unread with the parser."""

    def __init__(
        self,
        transport: Any,
        writer: AnswerWriter,
        timer: ConnectionTimer,
        bodies: BodyBudget,
        refuse: Callable[[int], None],
        make: Callable[[InboundRequests, RequestHead], Request],
    ) -> None:
        self._transport = transport
        self._writer = writer
        self._timer = timer
        self._refuse = refuse
        """Ends the connection with a status."""
        self._make = make
        self._bodies = bodies
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser()
        self.queue: deque[Request] = deque()
        self.refused = 0
        """The status for bytes that are no request, once those before them have their answers."""
        self.total = 0
        self._counted = 0
        """Bytes of bodies that no reader asked for, as they were counted last."""
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self.lost = False

    def receive(self, data: bytes) -> None:
        """Bytes came. More of them than are pulled in one step are pulled later."""
        if not self.refused:
            self._parser.receive(data)
            self._pull()

    def _pull(self) -> None:
        """Pull events until a second request is complete, or a step of the event loop has taken its time."""
        was_in_head, many = self._parser.in_head, self._parser.unread > MANY_BYTES
        until = time.perf_counter() + STEP_SECONDS
        try:
            while len(self.queue) < 2 or not self.queue[-1].complete:
                event = self._parser.next_event()
                if event is None:
                    break
                if isinstance(event, RequestHead):
                    self.total += 1
                    self.queue.append(self._make(self, event))
                elif isinstance(event, RequestEnd):
                    self.queue[-1].complete = True
                else:
                    self.queue[-1].feed(event)
                if many and time.perf_counter() > until and self._parser.unread:
                    self.pause()
                    self._loop.call_soon(self._go_on)
                    break
        except BadRequest as exc:
            # What came before gets the answer that it would have got without these bytes: no answer depends on what
            # its sender happened to send in the same moment.
            self.refused = exc.status
            self._parser.close()
            if self.queue and not self.queue[-1].complete:
                self.queue[-1].refuse(exc.status)
            if not self.queue:
                self._refuse(exc.status)
        if len(self.queue) > 1:
            self.pause()  # a client that sends ahead waits for the answer before
        if not self.queue and not was_in_head and self._parser.in_head:
            self._timer.arm(HEAD_SECONDS, self.too_slow)
        if not self.count():
            self._refuse(503)
        self._wake()

    def count(self) -> bool:
        """Count what came of bodies that no reader asked for; False if all connections hold too much of it."""
        now = 0 if self.lost else self._parser.unread
        for request in self.queue if not self.lost else ():
            if request.lease is None:
                now += request.waiting
        before, self._counted = self._counted, now
        return now == before or self._bodies.wait(before, now)

    def too_slow(self) -> None:
        """The time for a head, or for the next piece of a body, is over."""
        self._refuse(408)

    # What requests use.

    async def wait(self, within: float | None = None) -> None:
        """Wait until bytes came, the time is over, or the client is gone; for the connection's own task alone."""
        waiter = self._waiter = self._loop.create_future()
        if within is not None:
            self._timer.arm(within, self.too_slow)
        try:
            await waiter
        finally:
            self._waiter = None
            if within is not None:
                self._timer.disarm()

    def want_body(self) -> None:
        """A reader waits: take more of what was sent, or read more."""
        if self._parser.unread:
            self._loop.call_soon(self._go_on)
        else:
            self._resume()

    def continue_body(self, request: Request) -> None:
        """Tell a client that asks first that its body is wanted."""
        self._writer.continue_body(request)

    def await_next(self, close: Callable[[], None]) -> None:
        """All requests have their answers: the next one has its time to come, else the connection is closed."""
        if self._parser.in_head:
            self._timer.arm(HEAD_SECONDS, self.too_slow)
        else:
            self._timer.arm(IDLE_SECONDS, close)
        self.want_body()

    def pause(self) -> None:
        """Read no more for now."""
        if not self._paused and not self.lost:
            self._paused = True
            self._transport.pause_reading()

    def end(self) -> None:
        """The client is gone."""
        self.lost = True
        self._parser.close()
        self.count()
        for request in self.queue:
            request.client_left()
        self._wake()

    def _go_on(self) -> None:
        if not self.lost and not self.refused:
            self._pull()
            last = self.queue[-1] if self.queue else None
            if not self._parser.unread and (last is None or last.wants_more):
                self._resume()

    def _resume(self) -> None:
        if self._paused and not self.lost:
            self._paused = False
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<InboundRequests waiting={len(self.queue)} {self._parser!r}>"


class HttpConnection(AdmittedProtocol):
    """One connection of a client. Made by the ``Acceptor``; uvicorn's server owns the end."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        self._loop = _loop or asyncio.get_event_loop()
        self._app = config.loaded_app
        self._endpoint: MessageEndpoint = config.app.state.endpoint
        self._server = server_state
        self._app_state = app_state
        self._timer = ConnectionTimer(self._loop)
        self._ending = False
        """Whether no further request is served."""
        self._passing_over = False
        """Whether the present request has its answer, and its body is still coming."""

    @property
    def lost(self) -> bool:
        """Whether the client is gone."""
        return self._out.lost

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = transport
        tls = transport.get_extra_info("ssl_object")
        self._out = OutputBuffer(transport, sliced=tls is not None)
        self._writer = AnswerWriter(self._out, lambda: self._ending or self._endpoint.retiring)
        self._inbound = InboundRequests(
            transport, self._writer, self._timer, self._endpoint.bodies, self.refuse, self._begin
        )
        self._certificate = ClientCertificate(self._loop, tls, self.shutdown, self._out.abort)
        self._server.connections.add(self)
        task = self._loop.create_task(self._run())
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)
        self._timer.arm(HEAD_SECONDS, self._out.close)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of many that were sent ahead."""
        if not self._ending:
            try:
                self._inbound.receive(data)
            except Exception as exc:  # noqa: BLE001 - a fault here is one line in the log, and ends this connection alone
                log.error("a connection failed in the hub itself: %s", fault_line(exc))  # noqa: TRY400 - as it says
                self._out.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone. One that sends no more is too: that is how one leaves that gives up its call."""
        if self.admission is not None:
            self.admission.end()
        self._server.connections.discard(self)
        self._certificate.end()
        self._timer.end()
        self._out.drop()
        self._inbound.end()

    def pause_writing(self) -> None:
        """The client reads slower than it is written to."""
        self._out.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._out.resume()

    def shutdown(self) -> None:
        """The server ends: no further request; the one under way is answered."""
        self._ending = True
        if not self._inbound.queue:
            self._out.close()

    # The connection's task.

    def _begin(self, inbound: InboundRequests, head: RequestHead) -> Request:
        self._server.total_requests += 1
        known = self._certificate
        return Request(inbound, head, admission=self.admission, verified=known.verified, names=known.names)

    def refuse(self, status: int) -> None:
        """Refuse and close, unless the client has its answer and is still sending."""
        self._ending = True
        if not self._passing_over:
            self._writer.refuse(status)
        self._out.close()

    async def _run(self) -> None:
        inbound = self._inbound
        try:
            while not inbound.lost and (inbound.queue or not self._ending):
                if not inbound.queue:
                    await inbound.wait()
                    continue
                request = inbound.queue[0]
                reply = Reply(self._writer, self._timer, request)
                self._timer.disarm()
                try:
                    if self._endpoint.claims(request.path):
                        await self._endpoint.serve(request, reply)
                        await self._out.drained()
                    else:
                        other = AsgiExchange(self._writer, request, self._app, self.refuse)
                        await other.run(self._transport, self._app_state)
                except Exception as exc:  # noqa: BLE001 - a request that fails costs no other connection
                    self._failed(exc, request, reply)
                    await self._out.drained()
                finally:
                    if request.lease is not None:
                        request.lease.end()
                    inbound.count()
                if not request.complete:
                    await self._pass_over(request)
                inbound.queue.popleft()
                if not self._goes_on(request):
                    break
                if inbound.queue:
                    await Turns().give()  # those that were sent ahead: other clients get their turns
        finally:
            self._out.close()

    def _goes_on(self, request: Request) -> bool:
        """Whether the connection may serve another request after this one."""
        inbound = self._inbound
        if not request.keep_alive or self._ending:
            self._ending = True  # a request that was sent ahead is not served: its client sends it elsewhere
        elif not inbound.queue and inbound.refused:
            self.refuse(inbound.refused)
        elif not inbound.queue:
            inbound.await_next(self._out.close)
        return not self._ending

    def _failed(self, exc: Exception, request: Request, reply: Reply) -> None:
        """Answer a request that could not be served."""
        match exc:
            case Gone():
                pass
            case TooLarge():
                reply.plain(413, b'{"error":"the body is too large"}')
            case NoRoom():
                reply.plain(*_no_room(exc))
            case BadRequest():
                self.refuse(exc.status)
            case _:
                log.error("a request failed in the hub itself", exc_info=exc)
                if not reply.started and not reply.done:
                    reply.plain(500, b'{"error":"the hub failed to serve this request"}')
                request.keep_alive = False

    async def _pass_over(self, request: Request) -> None:
        """Pass over what is left of the body; a client that sends too much of it, or too slowly, does not go on."""
        inbound = self._inbound
        passed, until = 0, self._loop.time() + PASSED_OVER_SECONDS
        self._passing_over = True
        while not request.complete and not inbound.lost and request.keep_alive and not inbound.refused:
            passed += len(request.take())
            if passed > PASSED_OVER_BYTES or self._loop.time() > until:
                request.keep_alive = False
                break
            inbound.want_body()
            await inbound.wait(PASSED_OVER_SECONDS)
        if not request.complete:
            request.keep_alive = False  # what follows is the rest of its body
        self._passing_over = False

    def __repr__(self) -> str:
        peer = self.admission.peer.name if self.admission is not None else "a client"
        return f"<HttpConnection of {peer}{' ending' if self._ending else ''} {self._inbound!r} {self._out!r}>"


def _no_room(exc: NoRoom) -> tuple[int, bytes, bytes]:
    """The answer to a request whose body finds no room."""
    headers = b"content-type: application/json\r\nretry-after: 1\r\n"
    if exc.of_principal:
        said = "the requests of this caller that are under way use up `holdfast.quotas.bodyBytes`; try again in 1 s"
        return 429, dumps({"error": said}), headers
    return 503, b'{"error":"the requests under way use up the memory for them; try again in 1 s"}', headers


def _nothing() -> None:
    """There is nothing to end."""


def _names_in(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The common name, and the DNS names and URIs of the subject."""
    subject = [value for parts in certificate.get("subject", ()) for name, value in parts if name == "commonName"]
    other = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    return frozenset((*subject, *other))
