"""HTTP/1.1 as the hub serves it: one connection is one task that answers one request after the other.

The MCP endpoints are answered here, on the transport itself: no queue, no task and no copy lies between a request
and its answer. Every other path goes to the ASGI application behind. A connection that sends no complete head, or
nothing at all, is closed after a while; what a request may hold before its sender is known is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, Protocol

from holdfast.core import fault_line
from holdfast.front.acceptor import AdmittedProtocol
from holdfast.front.asgi import AsgiExchange
from holdfast.front.bodies import BodyBudget, NoRoom
from holdfast.front.parser import BadRequest, RequestHead, RequestParser
from holdfast.front.requests import Gone, Reply, Request, TooLarge
from holdfast.wire import Bytes, dumps

__all__ = ["HttpConnection", "MessageEndpoint"]

HEAD_SECONDS: Final = 10.0
"""How long a connection may take for the head of its first request, and of each later one once it has begun."""

IDLE_SECONDS: Final = 75.0
"""How long a connection may stay open between two requests."""

FED_BYTES: Final = 8 * 1024
MANY_LINES: Final = 1_000
"""Of data with more lines, so much is read in one turn of the event loop: each line may be a header or a chunk."""

PASSED_OVER_BYTES, PASSED_OVER_SECONDS = 64 * 1024 * 1024, 10.0
"""How much of a body that is not wanted is passed over, and for how long, so that its sender can read the answer."""

TOGETHER_BYTES: Final = 64 * 1024
"""Pieces of a stream that are written in one turn of the event loop go out together, up to this size."""

SLICE_BYTES: Final = 128 * 1024
"""With TLS, so much of an answer is given to the transport at a time. It encrypts all that it gets at once, and does
not say how much of that waits for the client."""

LAST_ANSWER_SECONDS: Final = 60.0
"""How long the request under way may take, and a stream stay open, once the client's certificate does not count."""

LONGEST_TIMER: Final = 24 * 3600.0
"""Seconds; a certificate may be valid for longer than an event loop can count, and clocks are set."""

_REASONS: Final = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}

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

    def serve(self, request: Request, reply: Reply) -> Coroutine[Any, Any, None] | None:
        """Answer one request; what is left to be done for it, if anything is."""


class HttpConnection(AdmittedProtocol):
    """One connection of a client. Made by the ``Acceptor``; uvicorn's server owns the end."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        self._loop = _loop or asyncio.get_event_loop()
        self._app = config.loaded_app
        self._endpoint: MessageEndpoint = config.app.state.endpoint
        self._server = server_state
        self._app_state = app_state
        self._transport: Any = None
        self._parser = RequestParser(self)
        self._in_head = False
        self._ahead = b""
        """What a client sent ahead, and what is not read before the requests before it have their answers."""
        self._requests: deque[Request] = deque()
        self._waiting = 0
        """Bytes of bodies that no reader asked for."""
        self._waiter: asyncio.Future[None] | None = None
        self._drain: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._pieces: list[bytes] = []
        """Pieces of a stream that go out at the end of this turn of the event loop, or before anything else does."""
        self._pieces_size = 0
        self._slices: deque[memoryview] | None = None
        """What waits for the client to read, where it is given to the transport in slices."""
        self._sliced = 0
        self._closes = False
        """Whether the connection closes when that is out."""
        self._paused_reading = False
        self._paused_writing = False
        self._passing_over = False
        """Whether the present request has its answer, and its body is still coming."""
        self._ending = False
        self._refused = 0
        """The status for bytes that are no request, once those before them have their answers."""
        self._due = 0.0
        self._on_due: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.lost = False
        self.client_verified = False
        """Whether TLS verified a certificate of the client."""
        self.client_names: frozenset[str] = frozenset()
        """The names in that certificate."""
        self._expiry: asyncio.TimerHandle | None = None
        """Of that certificate."""
        self._forget_trust: Callable[[], object] = _nothing

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = transport
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self._slices = deque()
        if tls is not None and tls.context.verify_mode != ssl.CERT_NONE:
            self._note_certificate(tls.getpeercert() or {}, getattr(tls.context, "client_trust", None))
        self._server.connections.add(self)
        task = self._task = self._loop.create_task(self._run())
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)
        self.arm(HEAD_SECONDS, self.close)

    def _note_certificate(self, certificate: Mapping[str, Any], trust: Any) -> None:
        """A client with a certificate is served while that is valid, and as long as its authority is trusted."""
        self.client_names = _names_in(certificate)
        self.client_verified = bool(certificate)
        if certificate:
            self._until_expiry(ssl.cert_time_to_seconds(certificate["notAfter"]))
            self._forget_trust = trust.add(self._distrust) if trust is not None else _nothing

    def _until_expiry(self, at: float) -> None:
        left = at - time.time()
        if left > 0:
            self._expiry = self._loop.call_later(min(left, LONGEST_TIMER), self._until_expiry, at)
        else:
            self._distrust()

    def _distrust(self) -> None:
        """The client's certificate does not count any more: no further request; the one under way is answered."""
        if not self.lost and not self._ending:
            self.client_verified = False
            self.shutdown()
            self._expiry = self._loop.call_later(LAST_ANSWER_SECONDS, self.abort)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of many that were sent ahead: then some of them at a time."""
        if self._ending or self._refused:
            return
        if self._ahead:
            self._ahead += data
            return
        try:
            self._read(data)
        except BadRequest as exc:
            self._refuse_bytes(exc.status)
            return
        except Exception as exc:  # noqa: BLE001 - a fault here is one line in the log, and ends this connection alone
            log.error("a connection failed in the hub itself: %s", fault_line(exc))  # noqa: TRY400 - as it says
            self.abort()
            return
        if self._parser.in_head != self._in_head:
            self._in_head = self._parser.in_head
            if self._in_head and not self._requests:
                self.arm(HEAD_SECONDS, self._too_slow)
        if not self._count_waiting():
            self.refuse(503)
        self._wake()

    def _count_waiting(self) -> bool:
        """Count what came of bodies that no reader asked for; False if all connections hold too much of it."""
        now = len(self._ahead)
        for request in self._requests:
            if request.lease is None:
                now += request.waiting
        before, self._waiting = self._waiting, now
        return now == before or self._endpoint.bodies.wait(before, now)

    def _read(self, data: bytes) -> None:
        """Read the requests in some data, two at most. The rest waits for the answer, or for its turn."""
        many = len(data) > FED_BYTES and data.count(b"\n") > MANY_LINES
        most = FED_BYTES if many else len(data)
        part, at = data[:most] if many else data, 0
        while at < most and len(self._requests) < 2:
            at = self._parser.feed(part, at)
        if at < len(data):
            self._ahead = data[at:]
            self.pause()
            if len(self._requests) < 2:
                self._loop.call_soon(self._take_ahead)

    def eof_received(self) -> bool:
        """The client sends no more. That is how one leaves that gives up its call, so it counts as gone."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self.lost = True
        if self.admission is not None:
            self.admission.end()
        self._server.connections.discard(self)
        self._parser.close()
        self._forget_slices()
        self._endpoint.bodies.wait(self._waiting, 0)
        self._waiting = 0
        self._forget_trust()
        if self._expiry is not None:
            self._expiry.cancel()
        self.disarm()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)
        for request in self._requests:
            if request.on_gone is not None:
                request.on_gone()
        self._wake()

    def pause_writing(self) -> None:
        """The client reads slower than it is written to."""
        self._paused_writing = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._paused_writing = False
        if self._slices:
            self._write_slices()
        if self._drain is not None and not self._drain.done() and not self._slices:
            self._drain.set_result(None)

    def shutdown(self) -> None:
        """The server ends: no further request; the one under way is answered."""
        self._ending = True
        if not self._requests:
            self.close()

    # The parser's side.

    def begun(self, head: RequestHead, body: bytes | None = None) -> Request:
        """The head of a request is complete: it can be served. Its body may be complete too."""
        request = Request(self, head, body)
        self._requests.append(request)
        self._server.total_requests += 1
        if body is not None and len(self._requests) > 1:
            self.completed()
        return request

    def completed(self) -> None:
        """A request is complete."""
        if len(self._requests) > 1:
            self.pause()  # a client that sends ahead waits for the answer before

    def _too_slow(self) -> None:
        self.refuse(408)

    def _refuse_bytes(self, status: int) -> None:
        """Refuse bytes that are no request, or no body of one.

        What came before them gets the answer that it would have got without them: no answer depends on what its sender
        happened to send in the same moment.
        """
        self._refused = status
        self._parser.close()
        if self._requests and not self._requests[-1].complete:
            self._requests[-1].refuse(status)
        if self._requests:
            self._wake()
        else:
            self.refuse(status)

    def refuse(self, status: int) -> None:
        """Refuse and close, unless the client has its answer and is still sending."""
        self._ending = True
        if not self.lost and not self._passing_over:
            self._flush()
            self._write(b"HTTP/1.1 " + _REASONS[status] + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.close()

    # What requests and replies use.

    @property
    def unread(self) -> int:
        """How many bytes wait for the client to read them."""
        size: int = self._transport.get_write_buffer_size()
        return size + self._sliced

    def want_body(self, request: Request) -> None:
        """Somebody reads: take more of it."""
        self._go_on()

    def continue_body(self, request: Request) -> None:
        """Tell a client that asks first that its body is wanted, also if it did not wait for that."""
        if (
            request.headers.get("expect", "").lower() == "100-continue"
            and request.http_version != "1.0"
            and not self.lost
        ):
            self._flush()
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def wait(self, within: float | None = None) -> None:
        """Wait until bytes came or the client is gone; for the connection's own task alone."""
        waiter = self._waiter = self._loop.create_future()
        if within is not None:
            self.arm(within, self._too_slow)
        try:
            await waiter
        finally:
            self._waiter = None
            if within is not None:
                self.disarm()

    async def drained(self) -> None:
        """Wait until most of what was written is read."""
        while (self._paused_writing or self._slices) and not self.lost:
            if self._drain is None or self._drain.done():
                self._drain = self._loop.create_future()
            await asyncio.shield(self._drain)

    def arm(self, seconds: float, then: Callable[[], None]) -> None:
        """Do something later, instead of what was to be done later before. One timer serves all of them."""
        if self.lost:
            return  # its client left while it was served: a timer would keep it for no one
        due = self._due = self._loop.time() + seconds
        self._on_due = then
        timer = self._timer
        if timer is None or timer.when() > due:
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(due, self._ring)

    def disarm(self) -> None:
        """Do nothing later."""
        self._on_due = None

    def _ring(self) -> None:
        self._timer = None
        then = self._on_due
        if then is None:
            return
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._ring)
            return
        self._on_due = None
        then()

    def write_plain(self, request: Request, status: int, body: bytes | list[Bytes], headers: bytes) -> None:
        """An answer that is complete; the pieces of a large one are not copied."""
        self._on_due = None  # with its answer the request is over
        if self.lost:
            return
        if self._pieces:
            self._flush()
        usual = request.keep_alive and not self._ending and request.http_version == "1.1"
        kept = b"" if usual and not self._endpoint.retiring else self._kept(request)
        pieces = [memoryview(one) for one in body] if isinstance(body, list) else None
        size = len(body) if pieces is None else sum(map(len, pieces))
        length = b"" if status in (204, 304) else b"content-length: %d\r\n" % size
        head = b"HTTP/1.1 " + _REASONS[status] + b"\r\n" + _date() + headers + length + kept + b"\r\n"
        if request.method == "HEAD" or status in (204, 304):
            self._write(head)
        elif isinstance(body, bytes) and size <= 1 << 16:
            self._write(head + body)
        elif self._slices is not None:
            for piece in (head, *(pieces or (body,))):
                self._write(piece)
        else:
            self._transport.writelines((head, *(pieces or (body,))))

    def write_head(self, request: Request, headers: bytes, status: int = 200) -> None:
        """The head of an answer that comes in pieces."""
        if self.lost:
            return
        if request.http_version == "1.0":
            request.keep_alive = False
            framing = b""
        else:
            framing = b"transfer-encoding: chunked\r\n"
        line = b"HTTP/1.1 " + _REASONS[status] + b"\r\n"
        self._put(line + _date() + headers + framing + self._kept(request) + b"\r\n")

    def write_chunk(self, request: Request, data: bytes) -> None:
        """A piece of the answer."""
        if not self.lost and data:
            self._put(data if request.http_version == "1.0" else b"%x\r\n%b\r\n" % (len(data), data))

    def write_end(self, request: Request) -> None:
        """The answer is complete."""
        if not self.lost and request.http_version != "1.0":
            self._put(b"0\r\n\r\n")

    def _put(self, data: bytes) -> None:
        """Write a piece together with those that follow at once: a write for each costs more than all else."""
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)
        self._pieces_size += len(data)
        if self._pieces_size >= TOGETHER_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write the pieces that wait."""
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces, self._pieces_size = [], 0
            if not self.lost:
                self._write(data)

    def _write(self, data: Any) -> None:
        """Write bytes after those before them."""
        slices = self._slices
        if slices is None or (not slices and len(data) <= SLICE_BYTES):
            self._transport.write(data)
            return
        view = memoryview(data).cast("B")
        slices.extend(view[at : at + SLICE_BYTES] for at in range(0, len(view), SLICE_BYTES))
        self._sliced += len(view)
        self._write_slices()

    def _write_slices(self) -> None:
        """Give the transport what it takes now."""
        slices = self._slices
        while slices and not self._paused_writing and not self.lost:
            one = slices.popleft()
            self._sliced -= len(one)
            self._transport.write(one)
        if self._closes and not slices:
            self._transport.close()

    def close(self) -> None:
        """Close when what was written is out."""
        if not self.lost:
            self._flush()
            if self._slices:
                self._closes = True
            else:
                self._transport.close()

    def abort(self) -> None:
        """Close now, without sending what is left."""
        self._pieces, self._pieces_size = [], 0
        self._forget_slices()
        if not self.lost:
            self._transport.abort()

    def _forget_slices(self) -> None:
        if self._slices:
            self._slices.clear()
            self._sliced = 0

    def _kept(self, request: Request) -> bytes:
        if self._ending or not request.keep_alive or self._endpoint.retiring:
            request.keep_alive = False
            return b"connection: close\r\n"
        return b"" if request.http_version != "1.0" else b"connection: keep-alive\r\n"

    def pause(self) -> None:
        """Read no more for now."""
        if not self._paused_reading and not self.lost:
            self._paused_reading = True
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Take what was sent ahead, a part of it, or read more."""
        if self._ahead:
            self._loop.call_soon(self._take_ahead)
        else:
            self._resume()

    def _take_ahead(self) -> None:
        if self._ahead and len(self._requests) < 2 and not self.lost:
            data, self._ahead = self._ahead, b""
            self.data_received(data)
            last = self._requests[-1] if self._requests else None
            if not self._ahead and (last is None or last.wants_more):
                self._resume()

    def _resume(self) -> None:
        if self._paused_reading and not self.lost:
            self._paused_reading = False
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The connection's task.

    async def _run(self) -> None:
        try:
            while not self.lost:
                if not self._requests:
                    if self._ending:
                        break
                    waiter = self._waiter = self._loop.create_future()
                    try:
                        await waiter
                    finally:
                        self._waiter = None
                    continue
                request = self._requests[0]
                self._on_due = None
                try:
                    await self._serve(request)
                finally:
                    self._give_back(request)
                if not request.complete:
                    await self._pass_over(request)
                self._requests.popleft()
                if not request.keep_alive or self._ending:
                    self._ending = True
                    break  # a request that was sent ahead is not served: its client sends it elsewhere
                if self._requests:
                    await asyncio.sleep(0)  # those that were sent ahead: other clients get their turns
                elif self._refused:
                    self.refuse(self._refused)
                    break
                else:
                    self._await_next()
        finally:
            self.close()

    def _give_back(self, request: Request) -> None:
        """A request has its answer: its body holds nothing any more."""
        if request.lease is not None:
            request.lease.end()
        if self._waiting:
            self._count_waiting()

    def _await_next(self) -> None:
        """All requests have their answers: the next one has its time to come."""
        if self._parser.in_head:
            self.arm(HEAD_SECONDS, self._too_slow)
        else:
            self.arm(IDLE_SECONDS, self.close)
        self._go_on()

    async def _serve(self, request: Request) -> None:
        if self._endpoint.claims(request.path):
            reply = Reply(self, request)
            try:
                if (served := self._endpoint.serve(request, reply)) is not None:
                    await served
            except TooLarge:
                reply.plain(413, b'{"error":"the body is too large"}')
            except NoRoom as exc:
                reply.plain(*_no_room(exc))
            except BadRequest as exc:
                self.refuse(exc.status)
            except Gone:
                return
            except Exception:
                log.exception("a request failed in the hub itself")
                if not reply.started and not reply.done:
                    reply.plain(500, b'{"error":"the hub failed to serve this request"}')
                request.keep_alive = False
            if self._paused_writing or self._slices:
                await self.drained()
        else:
            await AsgiExchange(self, request, self._app).run(self._transport, self._app_state)

    async def _pass_over(self, request: Request) -> None:
        """Pass over what is left of the body; a client that sends too much of it, or too slowly, does not go on."""
        passed, until = 0, self._loop.time() + PASSED_OVER_SECONDS
        self._passing_over = True
        while not request.complete and not self.lost and request.keep_alive and not self._refused:
            passed += len(request.take())
            if passed > PASSED_OVER_BYTES or self._loop.time() > until:
                request.keep_alive = False
                break
            self._go_on()
            await self.wait(PASSED_OVER_SECONDS)
        if not request.complete:
            request.keep_alive = False  # what follows is the rest of its body
        self._passing_over = False


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


_dated = 0
_date_line = b""


def _date() -> bytes:
    """The Date header, made once a second."""
    global _dated, _date_line
    now = int(time.time())
    if now != _dated:
        _dated, _date_line = now, f"date: {formatdate(now, usegmt=True)}\r\n".encode()
    return _date_line
