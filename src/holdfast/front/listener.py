"""HTTP/1.1 as the hub serves it: how connections come, and how each one answers one request after the other.

**New connections** (``Acceptor``): each one gets a place, and the user at its other end is found (SEC-10, SEC-11). A
readable listening socket calls ``_ready``, which takes some connections and returns: a flood of them must not keep the
event loop from the clients that are served. Each one gets a place (``ConnectionLimits``) in the same step in which it
is accepted, before its TLS handshake begins. So a client that never completes one is counted, and is the first to give
way. A task opens it then. Its place knows how it is closed: first by the end of that task, and from then on by its
transport. What can happen: no place is left, and the new connection is closed. The process has no descriptor left: the
connection that waits longest is closed, and the rest stay in the queue of the system. The user is asked of the kernel
at once, because a peer that leaves meanwhile has no owner any more.

**A connection** is one task. Requests are answered on the transport itself: no queue, no task and no copy lies between
a request and its answer. Four parts make it, and each can be read alone:

- ``RequestParser`` (request_parser.py) says what the bytes mean. It has no socket.
- ``InboundRequests`` pulls requests out of it, two at most: the one that is answered, and the next one. The rest of
  what a client sends ahead stays unread, and the socket is paused.
- ``Reply`` and ``OutputBuffer`` (requests.py) write the answers.
- ``HttpConnection`` is the protocol of the event loop and the task that serves. ``HttpConnections`` owns all of them.

What must never happen:

- A client that is not known yet holds much: a head has 10 s, a body that no reader asked for is counted for all
  connections together, an idle connection is closed, one timer serves a connection (SEC-11).
- An answer depends on what its sender happened to send in the same moment. Bytes that are no request are refused when
  those before them have their answers.
- A fault while bytes are read stops the event loop or another connection: it is one line of the log.
- A descriptor stays open that no place counts. So what ends the task of a new connection before its first step closes
  the socket too (``Acceptor._opened``).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import anyio

from holdfast.access import Admission, ClientPeer, ConnectionLimits, PeerUids, has_left, peer_at
from holdfast.core import fault_line
from holdfast.front.request_parser import BadRequest, RequestHead, RequestParser
from holdfast.front.requests import (
    BUFFERED_BYTES,
    JSON_HEADER,
    UNCOUNTED,
    BodyBudget,
    Gone,
    NoRoom,
    OutputBuffer,
    Reply,
    Request,
    TooLarge,
    last_answer,
)
from holdfast.front.tls import HANDSHAKE_SECONDS, ClientCertificate, Handshakes
from holdfast.turns import STEP_SECONDS, Turns
from holdfast.wire import dumps, unix_peer_uid

__all__ = ["Acceptor", "HttpConnection", "HttpConnections", "MessageEndpoint", "RequestHandler"]

HEAD_SECONDS: Final = 10.0
"""How long a connection may take for the head of its first request, and of each later one once it has begun."""

IDLE_SECONDS: Final = 75.0
"""How long a connection may stay open between two requests."""

MANY_BYTES: Final = 8 * 1024
"""So much may hold more requests, headers or chunks than are pulled in one step of the event loop."""

PASSED_OVER_BYTES, PASSED_OVER_SECONDS = 64 * 1024 * 1024, 10.0
"""How much of a body that is not wanted is passed over, and for how long, so that its sender can read the answer."""

END_SECONDS: Final = 5.0
"""How long the end of what is cut may take."""

log = logging.getLogger("holdfast.front")


class RequestHandler(Protocol):
    """What answers a request that was admitted."""

    async def serve(self, request: Request, reply: Reply) -> None:
        """Answer one request."""


class MessageEndpoint(Protocol):
    """Finds what answers the requests of one listening socket."""

    @property
    def retiring(self) -> bool:
        """Whether each answer is the last one of its connection."""

    @property
    def bodies(self) -> BodyBudget:
        """The room for bodies."""

    async def admit(self, request: Request, reply: Reply) -> RequestHandler | None:
        """Find out who sends a request, and what answers it; None if it has its answer."""


class HttpConnections:
    """Owns the connections of one endpoint, and what is served on them.

    ``trusts`` tells whether what verified the certificate of a client is still in force; None where clients have none.
    """

    def __init__(self, endpoint: MessageEndpoint, *, trusts: Callable[[ssl.SSLObject], bool] | None = None) -> None:
        self.endpoint = endpoint
        self.trusts = trusts
        self.connections: set[HttpConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._left = asyncio.Event()
        """Set when a connection closed, or its task ended."""
        self.total_requests = 0

    def connection(self, admission: Admission) -> HttpConnection:
        """A connection that was accepted."""
        return HttpConnection(self, admission)

    def opened(self, connection: HttpConnection, task: asyncio.Task[None]) -> None:
        """A connection is open, and its task runs."""
        self.connections.add(connection)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def lost(self, connection: HttpConnection) -> None:
        """A connection is closed."""
        self.connections.discard(connection)
        self._left.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._left.set()

    async def disconnected(self) -> None:
        """Wait until no client is connected, and nothing is served any more."""
        while self.connections or self._tasks:
            self._left.clear()
            await self._left.wait()

    async def close(self, within: float) -> None:
        """Serve no further request. What is under way after so many seconds is cut."""
        for one in list(self.connections):
            one.shutdown()
        with anyio.move_on_after(within):
            await self.disconnected()
        for task in list(self._tasks):
            task.cancel()
        for one in list(self.connections):
            one.out.abort()
        with anyio.move_on_after(END_SECONDS):
            await self.disconnected()

    def __repr__(self) -> str:
        return f"<HttpConnections of {self.endpoint!r}: {len(self.connections)} connections>"


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
        # A timer of the event loop that comes too early is set again then (``_ring``). Most often it is armed for later
        # with each request, and a new timer for each would cost more than the one look.
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


class InboundRequests:
    """The requests of one connection that have no answer yet: two at most. The rest stays unread with the parser."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser()
        self.queue: deque[Request] = deque()
        self.refused = 0
        """The status for bytes that are no request, once those before them have their answers."""
        self._in_head = False
        """Whether the next request has begun, and its time runs."""
        self.counted = 0
        """Bytes of bodies that no reader asked for, as they were counted last."""
        self._paused = False
        self.waiter: asyncio.Future[None] = self._loop.create_future()
        """What the task of the connection waits for last; it is done when bytes came, or the client is gone."""
        self.lost = False

    def receive(self, data: bytes = b"") -> None:
        """Bytes came, or there is room for those that came before.

        Events are pulled until a second request is complete, or a step of the event loop has taken its time.
        """
        if self.refused:
            return
        parser, queue, connection = self._parser, self.queue, self._connection
        parser.receive(data)
        # What is small cannot take longer than a step: no clock is asked for almost every request.
        until = time.perf_counter() + STEP_SECONDS if parser.unread > MANY_BYTES else 0.0
        try:
            while parser.unread and (len(queue) < 2 or not queue[-1].complete):
                event = parser.next_event()
                if event is None:
                    break
                if isinstance(event, RequestHead):
                    connection.server.total_requests += 1
                    admission, certificate = connection.admission, connection.certificate
                    queue.append(Request(self, event, admission, certificate, event.headers, event.keep_alive))
                elif event:
                    queue[-1].feed(event)
                queue[-1].complete = not parser.in_body
                if until and time.perf_counter() > until and parser.unread:
                    self.pause()
                    self._loop.call_soon(self._go_on)
                    break
        except BadRequest as exc:
            # What came before gets the answer that it would have got without these bytes: no answer depends on what
            # its sender happened to send in the same moment.
            self.refused = exc.status
            parser.close()
            if queue and not queue[-1].complete:
                queue[-1].refuse(exc.status)
            if not queue:
                connection.refuse(exc.status)
        if len(queue) > 1:
            self.pause()  # a client that sends ahead waits for the answer before
        # The time of a head runs from its first byte, and a further byte does not give it more.
        if not queue and parser.begun and not self._in_head:
            self._in_head = True
            self._connection.timer.arm(HEAD_SECONDS, self.overdue)
        if not self.count():
            connection.refuse(503)
        self._wake()

    @property
    def in_body(self) -> bool:
        """Whether the request that is answered now has not come whole."""
        return bool(self.queue) and not self.queue[0].complete

    def count(self) -> bool:
        """Count what came of bodies that no reader asked for; False if all connections hold too much of it."""
        came = self._parser.unread
        for request in self.queue:  # no generator: this runs with each read
            came += 0 if request.held else request.waiting
        now = came if came > UNCOUNTED and not self.lost else 0
        before, self.counted = self.counted, now
        return now == before or self._connection.server.endpoint.bodies.wait(before, now)

    def overdue(self) -> None:
        """The time for the next request is over: refuse one that has begun, and close a connection that is idle."""
        # The timer is not disarmed when a request is here, so what it rings for is looked at now. While a request is
        # served, its reply has the timer, or nothing is to be done.
        if not self.queue and self._parser.begun:
            self._connection.refuse(408)
        elif not self.queue:
            self._connection.out.close()

    # What the task of the connection uses, and nothing else: one future is all that waits here.

    async def wait(self, within: float) -> None:
        """Wait until more of a body came, or the client is gone. Where the time is over, the connection ends."""
        waiter = self.waiter = self._loop.create_future()
        self._connection.timer.arm(within, partial(self._connection.refuse, 408))
        try:
            await waiter
        finally:
            self._connection.timer.disarm()

    def want_body(self) -> None:
        """A reader waits: take more of what was sent, or read more."""
        if self._parser.unread:
            self._loop.call_soon(self._go_on)
        elif self._paused:
            self._resume()

    def continue_body(self, request: Request) -> None:
        """Tell a client that asks first that its body is wanted, also if it did not wait for that."""
        asks = request.headers.get("expect", "").lower() == "100-continue"
        if asks and request.head.http_version != "1.0" and not self._connection.out.lost:
            self._connection.out.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def await_next(self) -> None:
        """All requests have their answers: the next one has its time to come, else the connection is closed."""
        self._in_head = self._parser.begun > 0
        self._connection.timer.arm(HEAD_SECONDS if self._in_head else IDLE_SECONDS, self.overdue)
        if self._paused or self._parser.unread:
            self.want_body()

    def pause(self) -> None:
        """Read no more for now."""
        if not self._paused and not self.lost:
            self._paused = True
            self._connection.out.transport.pause_reading()

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
            self.receive()
            if not self._parser.unread and (not self.queue or self.queue[-1].waiting <= BUFFERED_BYTES):
                self._resume()

    def _resume(self) -> None:
        if self._paused and not self.lost:
            self._paused = False
            self._connection.out.transport.resume_reading()

    def _wake(self) -> None:
        if not self.waiter.done():
            self.waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<InboundRequests waiting={len(self.queue)} {self._parser!r}>"


class HttpConnection(asyncio.Protocol):
    """One connection of a client. Made for the ``Acceptor``; ``HttpConnections`` owns the end."""

    out: OutputBuffer

    def __init__(self, server: HttpConnections, admission: Admission) -> None:
        self.server = server
        self.admission = admission
        self._loop = asyncio.get_running_loop()
        self.timer = ConnectionTimer(self._loop)
        self._ending = False
        """Whether no further request is served."""
        self._passing_over = False
        """Whether the present request has its answer, and its body is still coming."""

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        tls = transport.get_extra_info("ssl_object")
        self.out = OutputBuffer(transport, sliced=tls is not None)
        self._inbound = InboundRequests(self)
        self.certificate = ClientCertificate(self._loop, tls, self.shutdown, self.out.abort, self.server.trusts)
        self.server.opened(self, self._loop.create_task(self._run()))
        self.timer.arm(HEAD_SECONDS, self._inbound.overdue)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of many that were sent ahead."""
        # A server that ends still takes the body of the request that it is about to answer.
        if not self._ending or self._inbound.in_body:
            try:
                self._inbound.receive(data)
            except Exception as exc:  # noqa: BLE001 - a fault here is one line in the log, and ends this connection alone
                log.error("a connection failed in the hub itself: %s", fault_line(exc))  # noqa: TRY400 - as it says
                self.out.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone. One that sends no more is too: that is how one leaves that gives up its call."""
        self.admission.end()
        self.server.lost(self)
        self.certificate.end()
        self.timer.end()
        self.out.drop()
        self._inbound.end()

    def pause_writing(self) -> None:
        """The client reads slower than it is written to."""
        self.out.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.out.resume()

    def shutdown(self) -> None:
        """The server ends: no further request; the one under way is answered."""
        self._ending = True
        if not self._inbound.queue:
            self.out.close()

    @property
    def is_last(self) -> bool:
        """Whether the next answer ends the connection."""
        return self._ending or self.server.endpoint.retiring

    # The connection's task.

    def refuse(self, status: int) -> None:
        """Refuse and close, unless the client has its answer and is still sending."""
        self._ending = True
        self._inbound.refused = status  # also where the close has to wait: no answer follows this one
        if not self._passing_over and not self.out.lost:
            self.out.write(last_answer(status))
        self.out.close()

    async def _run(self) -> None:
        inbound, endpoint = self._inbound, self.server.endpoint
        try:
            while not inbound.lost and (inbound.queue or not self._ending):
                if not inbound.queue:
                    inbound.waiter = self._loop.create_future()
                    await inbound.waiter
                    continue
                request = inbound.queue[0]
                reply = Reply(self, request, self.out, self.timer)
                try:
                    if (handler := await endpoint.admit(request, reply)) is not None:
                        await handler.serve(request, reply)
                except Exception as exc:  # noqa: BLE001 - a request that fails costs no other connection
                    self._failed(exc, request, reply)
                finally:
                    if request.held:
                        endpoint.bodies.give_back(request)
                # A client that reads no answers gets no further one made: what waits for it is one answer.
                if self.out.full:
                    await self.out.drained()
                if not request.complete:
                    await self._pass_over(request)
                inbound.queue.popleft()
                # What came of its body is gone with it. A connection that stays, and is idle, must not hold the room.
                if inbound.counted:
                    inbound.count()
                if not self._goes_on(request):
                    break
                if inbound.queue:
                    await Turns().give()  # those that were sent ahead: other clients get their turns
        finally:
            self.out.close()

    def _goes_on(self, request: Request) -> bool:
        """Whether the connection may serve another request after this one."""
        inbound = self._inbound
        if not request.keep_alive or self._ending:
            self._ending = True  # a request that was sent ahead is not served: its client sends it elsewhere
        elif not inbound.queue and inbound.refused:
            self.refuse(inbound.refused)
        elif not inbound.queue:
            inbound.await_next()
        return not self._ending

    def _failed(self, exc: Exception, request: Request, reply: Reply) -> None:
        """Answer a request that could not be served."""
        match exc:
            case Gone():
                pass
            case TooLarge():
                reply.plain(413, b'{"error":"the body is too large"}')
            case NoRoom():
                reply.plain(exc.status, dumps({"error": exc.text}), JSON_HEADER + b"retry-after: 1\r\n")
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
        state = " ending" if self._ending else ""
        return f"<HttpConnection of {self.admission.peer.name}{state} {self._inbound!r} {self.out!r}>"


# New connections.

AT_ONCE: Final = 64
"""Connections that are taken in one step of the event loop."""

PAUSE_SECONDS: Final = 0.1
"""The pause where no connection can be taken: no descriptor is left, and no connection waits."""

_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts the connections of one listening socket, TCP or Unix, and owns it and ``uids``.

    ``make`` makes the protocol of a connection that has a place. ``on_refused`` is told of a client certificate that
    does not verify, with the reason.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[Admission], asyncio.Protocol],
        *,
        limits: ConnectionLimits,
        uids: PeerUids | None = None,
        tls: ssl.SSLContext | None = None,
        on_refused: Callable[[ClientPeer, str], None] = lambda _peer, _reason: None,
    ) -> None:
        self._listener = listener
        self._make = make
        self._limits = limits
        self._uids = uids
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._handshakes = Handshakes(self._loop, tls) if tls is not None else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stops = self.is_closed = False
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._ready)

    @property
    def opening(self) -> int:
        """How many connections were accepted and are not open yet."""
        return len(self._tasks)

    def stop(self) -> None:
        """Close the listening socket. Connections that were accepted are opened: their clients believe in them."""
        if not self.is_closed:
            self.is_closed = True
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            if self._uids is not None:
                self._uids.close()

    def close(self) -> None:
        """Close the listening socket; handshakes that run are given up."""
        self.stop()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake runs."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=HANDSHAKE_SECONDS)

    def stop_when_empty(self) -> None:
        """Take every connection that waits, then stop: for a socket whose connections come to this process alone.

        Where no descriptor is left, that takes until one is free: no other process has what waits here.
        """
        self._stops = True
        while not self.is_closed and self._take_next():
            pass

    @property
    def is_stopping(self) -> bool:
        """Whether it stops when no connection waits, and some do."""
        return self._stops and not self.is_closed

    def _ready(self) -> None:
        for _ in range(AT_ONCE):
            if not self._take_next():
                return

    def _take_next(self) -> bool:
        """Take one connection; False if none waits, or none can be taken."""
        try:
            connection, name = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            if self._stops:
                self.stop()
            return False
        except OSError as exc:
            self._cannot_accept(exc)
            return False
        self._take(connection, name)
        return True

    def _cannot_accept(self, exc: OSError) -> None:
        if exc.errno in _NO_DESCRIPTOR:
            log.warning("no descriptor is left for a new connection")
            if self._limits.close_one():
                return  # the loop comes back at once
        else:
            log.warning("a connection could not be accepted: %s", exc.strerror)
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        if not self.is_closed:
            self._loop.add_reader(self._listener.fileno(), self._ready)

    def _take(self, connection: socket.socket, name: object) -> None:
        uid, left = self._user_of(connection)
        if connection.family == socket.AF_UNIX and uid != os.geteuid():
            connection.close()  # our Unix sockets are private to the user
            return
        admission = self._limits.enter(peer_at(name, uid, left=left))
        if admission is None:
            connection.close()
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._open(connection, admission))
        admission.close = task.cancel
        self._tasks.add(task)
        task.add_done_callback(partial(self._opened, connection, admission))

    def _user_of(self, connection: socket.socket) -> tuple[int | None, bool]:
        """The user at the other end, if the kernel names one; and whether it named none because the peer has left."""
        if connection.family == socket.AF_UNIX:
            return unix_peer_uid(connection), False
        if self._uids is None:
            return None, False
        uid = self._uids.of(connection)
        return uid, uid is None and has_left(connection)

    def _opened(self, connection: socket.socket, admission: Admission, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        exc = asyncio.CancelledError() if task.cancelled() else task.exception()
        if exc is None:
            return
        # Here, not in the task: one that is pushed out before its first step never runs, and the collector of garbage
        # would close its socket too late.
        admission.end()
        connection.close()
        if isinstance(exc, ssl.SSLCertVerificationError):
            self._on_refused(admission.peer, exc.verify_message)
        elif isinstance(exc, ssl.SSLError):
            log.debug("a TLS handshake failed: %s, from %s", exc.reason or "no reason", admission.peer.name)
        elif not isinstance(exc, OSError | asyncio.CancelledError):  # else the peer left: no fault of the hub
            log.error("a connection failed in the hub itself: %s", fault_line(exc))

    async def _open(self, connection: socket.socket, admission: Admission) -> None:
        make = partial(self._make, admission)
        if self._handshakes is None:
            transport, _ = await self._loop.connect_accepted_socket(make, connection)
        else:
            transport = await self._handshakes.secured(connection, make, admission.key)
        admission.close = transport.abort
