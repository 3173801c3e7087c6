"""One HTTP request of a client, the room for its body, and the answer to it: plain, or an event stream.

What serves a request sees ``Request`` and ``Reply``, and no transport. ``OutputBuffer`` decides when bytes reach it:

- Pieces of a stream that are written in one turn of the event loop go out together. A write for each costs more than
  all else.
- With TLS, a large answer is given to the transport in slices. It encrypts all that it gets at once, and does not say
  how much of that waits for the client.
- A close waits until everything is out; an abort drops it.

How many bytes bodies may hold is bounded, in all and for each principal (SEC-11). A body counts from its first byte
until its request has its answer: it is in memory for so long, and a second time on its way to a server. Room is taken
before a body is read. One principal gets its quota at most, and half of what the others leave. So several of them
cannot use up the room, and small bodies have room left beside large ones. What came of a body before its sender is
known has a bound of its own, for all connections together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.access import LOCAL, Admission, Principal, Quotas
from holdfast.front.request_parser import BadRequest, RequestHead
from holdfast.wire import Bytes, append_piece

if TYPE_CHECKING:
    from holdfast.front.listener import ConnectionTimer, HttpConnection, InboundRequests
    from holdfast.front.tls import ClientCertificate

__all__ = [
    "ALL_BODY_BYTES",
    "JSON_HEADER",
    "BodyBudget",
    "Gone",
    "NoRoom",
    "OutputBuffer",
    "Reply",
    "Request",
    "TooLarge",
]

log = logging.getLogger("holdfast.front")

BODY_SECONDS: Final = 30.0
"""How long a body may make no progress."""

WHOLE_BODY_SECONDS: Final = 600.0
"""How long a whole body may take: one that comes byte by byte makes progress too."""

BUFFERED_BYTES: Final = 64 * 1024
"""How much of a body is taken before somebody reads it: its sender may not be known yet."""

STREAM_AFTER_SECONDS: Final = 5.0
"""An answer that takes longer becomes an event stream, where the client takes one: silence ends in a timeout."""

COMMENT_SECONDS: Final = 15.0
"""How often a silent event stream says that it is still there; common proxies give up after 60 s."""

TOGETHER_BYTES: Final = 64 * 1024
"""Pieces of a stream that are written in one turn of the event loop go out together, up to this size."""

SLICE_BYTES: Final = 128 * 1024
"""With TLS, so much of an answer is given to the transport at a time."""

JSON_HEADER: Final = b"content-type: application/json\r\n"
_STREAM_HEADERS: Final = (
    b"content-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\n"
)
_STATUS_LINES: Final = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}


class TooLarge(Exception):
    """A body is larger than it may be."""


class Gone(Exception):
    """The client closed the connection before its request was complete."""


class Request(msgspec.Struct, eq=False):
    """One request; its head is complete, its body may still be coming."""

    _source: InboundRequests
    head: RequestHead
    admission: Admission
    """The place of its connection."""
    certificate: ClientCertificate
    """What TLS verified of the client. It may cease to count while the request waits."""
    headers: Mapping[str, str]
    """By lower-case name. Values of a repeated header are joined by a comma."""
    keep_alive: bool
    principal: Principal = LOCAL
    """Who sends it, by its own credential, once that is known. Its session may have begun with another one."""
    _parts: list[bytes] = []
    waiting: int = 0
    """How many bytes of the body wait for their reader."""
    _refused: int = 0
    complete: bool = False
    """Whether all of its body has come."""
    held: int = 0
    """The room that its body has (``BodyBudget``)."""
    forwarded: bool = False
    """Whether another replica sent it here: then it goes no further."""
    whole: bytes = b""
    """The body, once it is read: it may have to go to another replica."""
    _when_gone: Callable[[], object] | None = None

    async def body(self, most: int, *, within: float = WHOLE_BODY_SECONDS, room: BodyBudget | None = None) -> bytes:
        """The whole body; raises ``TooLarge``, ``BadRequest``, or ``Gone`` if the client does not send it in time.

        ``room`` gives the room for it, before it is read, or raises ``NoRoom``.
        """
        declared = self.headers.get("content-length", "")
        if declared and int(declared) > most:
            raise TooLarge
        if room is not None and (declared or self.complete):
            room.hold(self, int(declared or self.waiting))
        if "expect" in self.headers and (declared not in ("", "0") or "transfer-encoding" in self.headers):
            self._source.continue_body(self)
        until = 0.0 if self.complete else time.monotonic() + within
        while not self.complete:
            if self.waiting > most:
                raise TooLarge
            if self._refused:
                raise BadRequest(self._refused)
            if room is not None and not declared:
                room.hold(self, self.waiting + BUFFERED_BYTES)  # what may come before the next look
            self._source.want_body()
            await self._source.wait(max(min(BODY_SECONDS, until - time.monotonic()), 0))
            if self._source.lost and not self.complete:
                raise Gone
        if self.waiting > most:
            raise TooLarge
        self.whole = self.take()
        return self.whole

    def feed(self, data: bytes) -> None:
        """A piece of the body."""
        append_piece(self._parts, data)
        self.waiting += len(data)
        if self.waiting > BUFFERED_BYTES:
            self._source.pause()

    def end_with_client(self, end: Callable[[], object] | None) -> Callable[[], object] | None:
        """Have ``end`` called when the client closes the connection before it has its answer, instead of another one.

        Returns the other one.
        """
        before, self._when_gone = self._when_gone, end
        return before

    @contextmanager
    def ending_with_client(self, end: Callable[[], object]) -> Iterator[None]:
        """``end_with_client`` for the time of a block."""
        before = self.end_with_client(end)
        try:
            yield
        finally:
            self.end_with_client(before)

    def client_left(self) -> None:
        """The client closed the connection."""
        if self._when_gone is not None:
            self._when_gone()

    def refuse(self, status: int) -> None:
        """What came of its body is none, and no more comes: who reads it refuses the request."""
        self._refused = status

    def take(self) -> bytes:
        """Received data that was not taken yet."""
        parts, self._parts, self.waiting = self._parts, [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Reply(msgspec.Struct, eq=False):
    """The answer to one request: plain, or an event stream that begins when something precedes the result."""

    _connection: HttpConnection
    """It carries one reply after the other."""
    _request: Request
    out: OutputBuffer
    _timer: ConnectionTimer
    _extra: bytes = b""
    streams: bool = False
    """Whether the client takes an event stream. Then one begins by itself when the answer takes long."""
    _first: Callable[[], bytes] | None = None
    """Makes the first event of an event stream."""
    _ended: asyncio.Event | None = None
    started: bool = False
    done: bool = False

    def wait_for_result(self, extra: bytes = b"", first: Callable[[], bytes] | None = None) -> None:
        """The result is being made; ``extra`` are the headers that go out with it, ``first`` begins an event stream."""
        self._extra = extra
        self._first = first
        if self.streams:
            self._timer.arm(STREAM_AFTER_SECONDS, self._tick)

    def hand_over(self) -> tuple[bytes, Callable[[], bytes] | None]:
        """Another replica is to answer: no stream begins here, until ``wait_for_result`` gets what this returns."""
        # Its answer has headers and a first event of its own: with ours before them the client would get both.
        waiting = self._extra, self._first
        self._first, self._extra = None, b""
        self._timer.disarm()
        return waiting

    # A whole answer.

    def plain(self, status: int, body: bytes | list[Bytes], headers: bytes = JSON_HEADER) -> None:
        """An answer that is complete; the pieces of a large one are not copied."""
        self.done = True
        self._first = None  # it leads back to what holds this reply: a cycle for each call would be the collector's
        if self.out.lost:
            return
        parts: list[Bytes] = body if isinstance(body, list) else [body]
        size = sum(map(len, parts))
        bare = status in (204, 304)
        head = self._head(status, headers + self._extra, b"" if bare else b"content-length: %d\r\n" % size)
        if bare or not size or self._request.head.method == "HEAD":
            self.out.write(head)
        elif size <= TOGETHER_BYTES:
            self.out.write(b"".join((head, *parts)))
        else:
            self.out.write(head, *parts)

    def result(self, message: bytes, *, status: int = 200, headers: bytes = JSON_HEADER, event_id: bytes = b"") -> None:
        """The last message: plain if nothing went before, else the end of the stream."""
        if self.done:
            return
        if not self.started:
            self.plain(status, message, headers)
            return
        self.event(message, event_id=event_id)
        self.end()

    # An answer in pieces.

    def start(self, status: int, headers: bytes) -> None:
        """The head of an answer that comes in pieces."""
        self.started = True
        if self._request.head.http_version == "1.0":
            self._request.keep_alive = False  # it knows no chunks: the end of the connection is the end of the answer
        if not self.out.lost:
            framing = b"" if self._request.head.http_version == "1.0" else b"transfer-encoding: chunked\r\n"
            self.out.put(self._head(status, headers, framing))

    def piece(self, data: bytes) -> None:
        """A piece of the answer."""
        if not self.out.lost and data:
            self.out.put(data if self._request.head.http_version == "1.0" else b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, message: bytes, *, event_id: bytes = b"") -> None:
        """A message on the event stream, which begins now if it has not begun."""
        if self.done:
            return
        self.begin()
        self.piece(event(message, event_id))
        self._timer.arm(COMMENT_SECONDS, self._tick)

    def begin(self) -> None:
        """Begin the event stream, unless it has begun."""
        if self.started:
            return
        self.start(200, _STREAM_HEADERS + self._extra)
        if self._first is not None:
            self.piece(self._first())
        self._timer.arm(COMMENT_SECONDS, self._tick)

    def end(self) -> None:
        """The stream is complete."""
        if not self.done:
            self.done = True
            self._first = None
            if not self.out.lost and self._request.head.http_version != "1.0":
                self.out.put(b"0\r\n\r\n")
            if self._ended is not None:
                self._ended.set()

    async def ended(self) -> None:
        """Wait until the stream is complete, or the client has closed the connection."""
        self._ended = asyncio.Event()
        with self._request.ending_with_client(self._ended.set):
            if not self.done and not self.out.lost:
                await self._ended.wait()

    def abort(self) -> None:
        """Close the connection now: its client does not read, or the stream cannot be completed."""
        self.done = True
        self.out.abort()

    def _head(self, status: int, headers: bytes, framing: bytes) -> bytes:
        request, kept = self._request, b""
        if not request.keep_alive or self._connection.is_last:
            request.keep_alive = False
            kept = b"connection: close\r\n"
        elif request.head.http_version == "1.0":
            kept = b"connection: keep-alive\r\n"
        date = _date_line(int(time.time()))
        return b"%b%b%b%b%b\r\n" % (_STATUS_LINES[status], date, headers, framing, kept)

    def _tick(self) -> None:
        if self.done:
            return  # the timer is not disarmed with the answer: it is armed again for what follows
        if not self.started:
            self.begin()
        else:
            self.piece(b": still here\n\n")
            self._timer.arm(COMMENT_SECONDS, self._tick)

    def __repr__(self) -> str:
        return f"<Reply {'done' if self.done else 'stream' if self.started else 'waiting'}>"


def event(message: bytes, event_id: bytes = b"") -> bytes:
    """A message as an event. JSON that spans lines is sent as one line per piece, as the format has it."""
    data = message if b"\n" not in message and b"\r" not in message else b"\ndata: ".join(message.splitlines())
    return (b"id: " + event_id + b"\n" if event_id else b"") + b"event: message\ndata: " + data + b"\n\n"


def last_answer(status: int) -> bytes:
    """The last answer of a connection, to bytes that are no request."""
    return _STATUS_LINES[status] + b"content-length: 0\r\nconnection: close\r\n\r\n"


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    """The Date header of a second: most answers of that second take the one that is made."""
    return f"date: {formatdate(second, usegmt=True)}\r\n".encode()


class OutputBuffer:
    """The bytes on their way to one client. ``sliced`` is for a transport with TLS."""

    def __init__(self, transport: Any, *, sliced: bool) -> None:
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        """Pieces of a stream that go out at the end of this turn of the event loop, or before anything else does."""
        self._pieces_size = 0
        self._slices: deque[memoryview] | None = deque() if sliced else None
        """What waits for the client to read, where it is given to the transport in slices."""
        self._sliced = 0
        self._written = self._largest = 0
        """How much was written since the client had read all, and the largest piece of it; where one was large."""
        self._closes = False
        """Whether the connection closes when that is out."""
        self.full = False
        """Whether the client reads slower than it is written to. Slices wait only then."""
        self._drain: asyncio.Future[None] | None = None
        self.lost = False
        """Whether the client is gone."""

    @property
    def unread(self) -> int:
        """How many bytes wait for the client to read them."""
        size: int = self.transport.get_write_buffer_size()
        return size + self._sliced

    @property
    def held(self) -> int:
        """How much memory that takes: a large piece stays whole until its last byte is out."""
        unread = self.unread
        return max(unread, min(self._written, unread + self._largest)) if unread else 0

    def put(self, data: bytes) -> None:
        """Write a piece, together with those that follow in this turn of the event loop."""
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(data)
        self._pieces_size += len(data)
        if self._pieces_size >= TOGETHER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the pieces that wait."""
        if self._pieces:  # else something else was written in this turn, and took them along
            data = b"".join(self._pieces)
            self._pieces, self._pieces_size = [], 0
            if not self.lost:
                self.write(data)

    def write(self, *parts: Bytes) -> None:
        """Write bytes after those before them; large ones are not copied."""
        if self._pieces:
            self.flush()
        size = sum(map(len, parts))
        if self._largest and not self.unread:
            self._written = self._largest = 0
        if size > SLICE_BYTES or self._largest:
            self._written += size
            self._largest = max(self._largest, size)
        if self._slices is not None:
            for part in parts:
                view = memoryview(part).cast("B")
                self._slices.extend(view[at : at + SLICE_BYTES] for at in range(0, len(view), SLICE_BYTES))
                self._sliced += len(view)
            self._write_slices()
        elif len(parts) == 1:
            self.transport.write(parts[0])
        else:
            self.transport.writelines(parts)

    def _write_slices(self) -> None:
        """Give the transport what it takes now; it says so by ``pause``, in the middle of a write."""
        slices = self._slices
        while slices and not self.full and not self.lost:
            one = slices.popleft()
            self._sliced -= len(one)
            self.transport.write(bytes(one))  # a view that TLS keeps would keep all of the answer
        if self._closes and not slices:
            self.transport.close()

    def pause(self) -> None:
        """The transport's buffer is full."""
        self.full = True

    def resume(self) -> None:
        """The client has caught up."""
        self.full = False
        if self._slices:
            self._write_slices()
        if self._drain is not None and not self._drain.done() and not self.full:
            self._drain.set_result(None)

    async def drained(self) -> None:
        """Wait until most of what was written is read, or the client is gone."""
        while self.full and not self.lost:
            if self._drain is None or self._drain.done():
                self._drain = self._loop.create_future()
            await asyncio.shield(self._drain)  # several may wait for it: one that is cancelled ends it for no other

    def close(self) -> None:
        """Close when what was written is out."""
        if not self.lost:
            self.flush()
            if self._slices:
                self._closes = True
            else:
                self.transport.close()

    def abort(self) -> None:
        """Close now, without sending what is left."""
        if not self.lost:
            self._forget()
            self.transport.abort()

    def drop(self) -> None:
        """The client is gone: nothing waits for it any more."""
        self.lost = True
        self._forget()
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)

    def _forget(self) -> None:
        self._pieces, self._pieces_size, self._sliced = [], 0, 0
        if self._slices:
            self._slices.clear()

    def __repr__(self) -> str:
        state = "lost" if self.lost else "full" if self.full else "open"
        return f"<OutputBuffer {state} pieces={self._pieces_size} slices={self._sliced}>"


# The room for bodies.


ALL_BODY_BYTES: Final = 96 * 1024 * 1024
"""In all. With a copy for each server and what is read from them, a hub at this bound stays below 1 GiB."""

UNKNOWN_BYTES: Final = 32 * 1024 * 1024
"""What came of the bodies of requests whose reader has not asked for them: their sender may not be known yet."""

SMALL_BODY: Final = 64 * 1024
"""A body of this size may use all the room that is left."""

UNCOUNTED: Final = 4 * 1024
"""A body of this size is not counted: its head takes as much, and calls are limited too."""


class NoRoom(Exception):
    """There is no room for a body; ``status`` and ``text`` are the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class BodyBudget:
    """The room of all requests of one process, one of ``workers``. The quotas say what one principal may have."""

    def __init__(
        self,
        quotas: Quotas,
        *,
        workers: int = 1,
        most: int = ALL_BODY_BYTES,
        unknown: int = UNKNOWN_BYTES,
    ) -> None:
        self._quotas = quotas
        self._workers = workers
        self._most = most // workers
        self._unknown = unknown // workers
        self._held: Counter[str] = Counter()
        """By principal."""
        self.waiting = 0
        """Bytes that came of bodies whose reader has not asked for them."""

    @property
    def held(self) -> int:
        """Bytes of bodies that have room."""
        return self._held.total()

    def hold(self, request: Request, size: int) -> None:
        """Have room for the body of a request, so many bytes in all, until ``give_back``; raises ``NoRoom``.

        One body always has room, however large.
        """
        more = size - request.held
        if size <= UNCOUNTED or more <= 0:
            return
        principal = request.principal.name
        own, held = self._held[principal], self.held
        # ``own + more == size``: it is the only body of its principal. A quota below the size of a message would refuse
        # each such message for ever.
        if own + more > max(self._quotas.limits.body_bytes // self._workers, size if own + more == size else 0):
            self._quotas.refuse_body(principal)
            own_use = "the requests of this caller that are under way use up `holdfast.quotas.bodyBytes`"
            raise NoRoom(429, f"{own_use}; try again in 1 s")
        left = self._most - held
        fits = more <= left if size <= SMALL_BODY else own + more <= (left + own) // 2
        if not fits and held > size - more:  # other bodies hold some
            log.warning("the bodies of requests use up the memory for them: one was refused")
            raise NoRoom(503, "the requests under way use up the memory for them; try again in 1 s")
        self._held[principal] += more
        request.held = size

    def give_back(self, request: Request) -> None:
        """The request has its answer: give its room back. Idempotent."""
        self._held[request.principal.name] -= request.held
        request.held = 0
        self._held = +self._held  # without those that hold nothing

    def wait(self, before: int, now: int) -> bool:
        """A connection holds so many bytes that no reader asked for, after so many before; False if that is too much.

        It may give some back, and then is always right.
        """
        self.waiting += now - before
        return now <= max(before, UNCOUNTED) or self.waiting <= self._unknown
