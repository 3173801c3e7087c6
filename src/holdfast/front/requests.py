"""One HTTP request of a client, the room for its body, and the answer to it: plain, or an event stream.

What serves a request sees these two, and no transport: they know a connection by the three protocols below.

How many bytes bodies may hold is bounded, in all and for each principal (SEC-11). A body counts from its first byte
until its request has its answer: it is in memory for so long, and a second time on its way to a server. Room is taken
before a body is read. One principal gets its quota at most, and half of what the others leave. So several of them
cannot use up the room, and small bodies have room left beside large ones. What came of a body before its sender is
known has a bound of its own, for all connections together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.access import LOCAL
from holdfast.front.request_parser import BadRequest, RequestHead
from holdfast.wire import Bytes, append_piece

if TYPE_CHECKING:
    from holdfast.access import Admission

__all__ = [
    "ALL_BODY_BYTES",
    "BODY_BYTES",
    "AnswerSink",
    "BodyBudget",
    "BodyLease",
    "Gone",
    "NoRoom",
    "Reply",
    "Request",
    "RequestSource",
    "Timer",
    "TooLarge",
]

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

_STREAM_HEADERS: Final = (
    b"content-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\n"
)


class TooLarge(Exception):
    """A body is larger than it may be."""


class Gone(Exception):
    """The client closed the connection before its request was complete."""


class RequestSource(Protocol):
    """Where the bodies of requests come from: the connection of a client."""

    @property
    def lost(self) -> bool:
        """Whether the client closed it."""

    async def wait(self, within: float | None = None) -> None:
        """Wait until bytes came or the client is gone."""

    def continue_body(self, request: Request) -> None:
        """Tell a client that asks first that its body is wanted."""

    def want_body(self) -> None:
        """A reader waits: take more of the body."""

    def pause(self) -> None:
        """Read no more for now."""


class AnswerSink(Protocol):
    """Where an answer goes: the connection of a client."""

    @property
    def lost(self) -> bool:
        """Whether the client closed it."""

    @property
    def unread(self) -> int:
        """How many bytes wait for the client to read them."""

    async def drained(self) -> None:
        """Wait until most of what was written is read."""

    def write_plain(self, request: Request, status: int, body: bytes | list[Bytes], headers: bytes) -> None:
        """An answer that is complete."""

    def write_head(self, request: Request, headers: bytes, status: int = 200) -> None:
        """The head of an answer that comes in pieces."""

    def write_chunk(self, request: Request, data: bytes) -> None:
        """A piece of the answer."""

    def write_end(self, request: Request) -> None:
        """The answer is complete."""

    def abort(self) -> None:
        """Close now, without sending what is left."""


class Timer(Protocol):
    """The one timer of a connection."""

    def arm(self, seconds: float, then: Callable[[], None]) -> None:
        """Do something later, instead of what was to be done later before."""

    def disarm(self) -> None:
        """Do nothing later."""


class Request:
    """One request; its head is complete, its body may still be coming."""

    __slots__ = (
        "_parts",
        "_refused",
        "_source",
        "_when_gone",
        "admission",
        "client_names",
        "client_verified",
        "complete",
        "forwarded",
        "head",
        "headers",
        "http_version",
        "keep_alive",
        "lease",
        "method",
        "path",
        "principal",
        "waiting",
        "whole",
    )  # fmt: skip

    def __init__(
        self,
        source: RequestSource,
        head: RequestHead,
        body: bytes | None = None,
        *,
        admission: Admission | None = None,
        verified: bool = False,
        names: frozenset[str] = frozenset(),
    ) -> None:
        self._source = source
        self.admission = admission
        """The place of its connection; None where no ``Acceptor`` made the connection."""
        self.principal = LOCAL
        """Who sends it, by its own credential, once that is known. Its session may have begun with another one."""
        self.client_verified = verified
        """Whether TLS verified a certificate of the client."""
        self.client_names = names
        """The names in that certificate."""
        self._parts = [body] if body else []
        self.waiting = len(body) if body else 0
        """How many bytes of the body wait for their reader."""
        self._refused = 0
        self.complete = body is not None
        """Whether all of its body has come."""
        self.head = head
        self.method = head.method
        self.path = head.path
        self.http_version = head.http_version
        self.keep_alive = head.keep_alive
        self.lease: BodyLease | None = None
        """The room for its body."""
        self.forwarded = False
        """Whether another replica sent it here: then it goes no further."""
        self.whole = b""
        """The body, where it may have to go to another replica."""
        self.headers: Mapping[str, str] = head.headers
        """By lower-case name. Values of a repeated header are joined by a comma. Other requests may share them."""
        self._when_gone: Callable[[], object] | None = None

    async def body(
        self, most: int, *, within: float = WHOLE_BODY_SECONDS, hold: Callable[[int], None] | None = None
    ) -> bytes:
        """The whole body; raises ``TooLarge``, ``BadRequest``, or ``Gone`` if the client does not send it in time.

        ``hold`` takes the room for so many bytes, before they are read.
        """
        declared = self.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > most:
            raise TooLarge
        if hold is not None and (declared.isdigit() or self.complete):
            hold(int(declared or self.waiting))
        until = 0.0
        if "expect" in self.headers and (declared not in ("", "0") or "transfer-encoding" in self.headers):
            self._source.continue_body(self)
        if not self.complete:
            until = time.monotonic() + within
        while not self.complete:
            if self.waiting > most:
                raise TooLarge
            if self._refused:
                raise BadRequest(self._refused)
            if hold is not None and not declared:
                hold(self.waiting + BUFFERED_BYTES)  # what may come before the next look
            self._source.want_body()
            await self._source.wait(max(min(BODY_SECONDS, until - time.monotonic()), 0))
            if self._source.lost and not self.complete:
                raise Gone
        if self.waiting > most:
            raise TooLarge
        parts, self._parts, self.waiting = self._parts, [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def feed(self, data: bytes) -> None:
        """A piece of the body."""
        append_piece(self._parts, data)
        self.waiting += len(data)
        if self.waiting > BUFFERED_BYTES:
            self._source.pause()

    @contextmanager
    def ending_with_client(self, end: Callable[[], object]) -> Iterator[None]:
        """In the block, ``end`` is called when the client closes the connection before it has its answer."""
        before, self._when_gone = self._when_gone, end
        try:
            yield
        finally:
            self._when_gone = before

    def client_left(self) -> None:
        """The client closed the connection."""
        if self._when_gone is not None:
            self._when_gone()

    @property
    def wants_more(self) -> bool:
        """Whether its reader has taken most of what came of its body."""
        return self.waiting <= BUFFERED_BYTES

    def refuse(self, status: int) -> None:
        """What came of its body is none, and no more comes: who reads it refuses the request."""
        self._refused = status

    def take(self) -> bytes:
        """Received data that was not taken yet."""
        parts, self._parts, self.waiting = self._parts, [], 0
        return b"".join(parts)


class Reply:
    """The answer to one request: plain, or an event stream that begins when something precedes the result."""

    __slots__ = ("_ended", "_extra", "_first", "_request", "_timer", "connection", "done", "started", "streams")

    def __init__(self, connection: AnswerSink, timer: Timer, request: Request) -> None:
        self.connection = connection
        """It carries one reply after the other."""
        self._timer = timer
        self._request = request
        self._extra = b""
        self.streams = False
        """Whether the client takes an event stream. Then one begins by itself when the answer takes long."""
        self._first: Callable[[], bytes] | None = None
        """Makes the first event of an event stream."""
        self._ended: asyncio.Event | None = None
        self.started = False
        self.done = False

    def wait_for_result(self, extra: bytes = b"", first: Callable[[], bytes] | None = None) -> None:
        """The result is being made; ``extra`` are the headers that go out with it, ``first`` begins an event stream."""
        self._extra = extra
        self._first = first
        if self.streams:
            self._timer.arm(STREAM_AFTER_SECONDS, self._tick)

    def plain(
        self, status: int, body: bytes | list[Bytes], headers: bytes = b"content-type: application/json\r\n"
    ) -> None:
        """An answer that is complete."""
        self.done = True
        self._first = None  # it leads back to what holds this reply: a cycle for each call would be the collector's
        self._timer.disarm()
        self.connection.write_plain(self._request, status, body, headers + self._extra)

    def result(self, message: bytes, *, status: int = 200, event_id: bytes = b"") -> None:
        """The last message: plain if nothing went before, else the end of the stream."""
        if self.done:
            return
        if not self.started:
            self.plain(status, message)
            return
        self.event(message, event_id=event_id)
        self.end()

    def event(self, message: bytes, *, event_id: bytes = b"") -> None:
        """A message on the stream, which begins now if it has not begun."""
        if self.done:
            return
        if not self.started:
            self.begin()
        self.connection.write_chunk(self._request, event(message, event_id))
        self._timer.arm(COMMENT_SECONDS, self._tick)

    def begin(self) -> None:
        """Begin the event stream."""
        self.started = True
        self.connection.write_head(self._request, _STREAM_HEADERS + self._extra)
        if self._first is not None and (first := self._first()):
            self.connection.write_chunk(self._request, first)
        self._timer.arm(COMMENT_SECONDS, self._tick)

    def end(self) -> None:
        """The stream is complete."""
        if not self.done:
            self.done = True
            self._first = None
            self._timer.disarm()
            self.connection.write_end(self._request)
            if self._ended is not None:
                self._ended.set()

    async def ended(self) -> None:
        """Wait until the stream is complete, or the client has closed the connection."""
        self._ended = asyncio.Event()
        with self._request.ending_with_client(self._ended.set):
            if not self.done and not self.lost:
                await self._ended.wait()

    def hand_over(self) -> RelayedAnswer:
        """Another replica is to answer: no stream begins here meanwhile."""
        relayed = RelayedAnswer(self, self._timer, self._request, self._extra, self._first)
        self._first, self._extra = None, b""
        self._timer.disarm()
        return relayed

    def abort(self) -> None:
        """Close the connection now: its client does not read, or the stream cannot be completed."""
        self.done = True
        self.connection.abort()

    @property
    def unread(self) -> int:
        """How many bytes wait for the client to read, of this reply or the next one on its connection."""
        return self.connection.unread

    async def drained(self) -> None:
        """Wait until the client has read most of what it was sent."""
        await self.connection.drained()

    @property
    def lost(self) -> bool:
        """Whether the client closed the connection."""
        return self.connection.lost

    def _tick(self) -> None:
        if self.done:
            return
        if not self.started:
            self.begin()
        else:
            self.connection.write_chunk(self._request, b": still here\n\n")
            self._timer.arm(COMMENT_SECONDS, self._tick)


class RelayedAnswer:
    """The answer to one request that another replica makes. ``take_back`` lets this one answer again."""

    __slots__ = ("_extra", "_first", "_reply", "_request", "_timer")

    def __init__(
        self, reply: Reply, timer: Timer, request: Request, extra: bytes, first: Callable[[], bytes] | None
    ) -> None:
        self._reply = reply
        self._timer = timer
        self._request = request
        self._extra = extra
        self._first = first

    def take_back(self) -> None:
        """The other replica gave no answer."""
        self._reply.wait_for_result(self._extra, self._first)

    def plain(self, status: int, body: bytes, headers: bytes) -> None:
        """The whole answer; the end of the stream, if one began here before."""
        reply = self._reply
        if reply.started:
            reply.result(body)
            return
        reply.done = True
        self._timer.disarm()
        reply.connection.write_plain(self._request, status, body, headers)

    def head(self, status: int, headers: bytes) -> None:
        """The head of an event stream."""
        if not self._reply.started:
            self._reply.started = True
            self._reply.connection.write_head(self._request, headers, status)

    def piece(self, data: bytes) -> None:
        """A piece of that stream, as it is."""
        self._reply.connection.write_chunk(self._request, data)

    def end(self) -> None:
        """That stream is complete."""
        self._reply.done = True
        self._reply.connection.write_end(self._request)

    def __repr__(self) -> str:
        return f"<RelayedAnswer {'done' if self._reply.done else 'coming'}>"


def event(message: bytes, event_id: bytes = b"") -> bytes:
    """A message as an event. JSON that spans lines is sent as one line per piece, as the format has it."""
    data = message if b"\n" not in message and b"\r" not in message else _in_lines(message)
    return (b"id: " + event_id + b"\n" if event_id else b"") + b"event: message\ndata: " + data + b"\n\n"


def _in_lines(message: bytes) -> bytes:
    return b"\ndata: ".join(message.splitlines())


ALL_BODY_BYTES: Final = 96 * 1024 * 1024
"""In all. With a copy for each server and what is read from them, a hub at this bound stays below 1 GiB."""

BODY_BYTES: Final = 32 * 1024 * 1024
"""For one principal, by default: two messages of the largest size."""

UNKNOWN_BYTES: Final = 32 * 1024 * 1024
"""What came of the bodies of requests whose reader has not asked for them: their sender may not be known yet."""

SMALL_BODY: Final = 64 * 1024
"""A body of this size may use all the room that is left."""

UNCOUNTED: Final = 4 * 1024
"""A body of this size is not counted: its head takes as much, and calls are limited too."""


class NoRoom(Exception):
    """There is no room for a body. ``of_principal`` says that its principal has used up its own."""

    def __init__(self, *, of_principal: bool) -> None:
        super().__init__("no room for the body")
        self.of_principal = of_principal


class BodyLease:
    """The room of one request."""

    __slots__ = ("_budget", "_principal", "size")

    def __init__(self, budget: BodyBudget, principal: str) -> None:
        self._budget = budget
        self._principal = principal
        self.size = 0

    def hold(self, size: int) -> None:
        """Have room for so many bytes in all; raises ``NoRoom``."""
        if size > self.size:
            self._budget.take(self._principal, size - self.size, size)
            self.size = size

    def end(self) -> None:
        """The request has its answer."""
        if self.size:
            self._budget.give_back(self._principal, self.size)
            self.size = 0


class BodyBudget:
    """The room of all requests of one process."""

    def __init__(
        self,
        *,
        most: int = ALL_BODY_BYTES,
        of_principal: Callable[[], int] = lambda: BODY_BYTES,
        unknown: int = UNKNOWN_BYTES,
        on_refused: Callable[[str, bool], None] = lambda _principal, _own: None,
    ) -> None:
        self._most = most
        self._of_principal = of_principal
        self._unknown = unknown
        self._on_refused = on_refused
        self._held: dict[str, int] = {}
        self.held = 0
        """Bytes of bodies that have room."""
        self.waiting = 0
        """Bytes that came of bodies whose reader has not asked for them."""

    def hold(self, request: Request, principal: str, size: int) -> None:
        """Have room for the body of a request, so many bytes in all, until ``lease.end``; raises ``NoRoom``."""
        if size > UNCOUNTED:
            if request.lease is None:
                request.lease = BodyLease(self, principal)
            request.lease.hold(size)

    def take(self, principal: str, more: int, size: int) -> None:
        """Take room for a body of some size; see ``BodyLease.hold``. One body always has room, however large."""
        own = self._held.get(principal, 0)
        if own + more > max(self._of_principal(), size if own + more == size else 0):
            self._refuse(principal, own=True)
        left = self._most - self.held
        fits = more <= left if size <= SMALL_BODY else own + more <= (left + own) // 2
        if not fits and self.held > size - more:  # other bodies hold some
            self._refuse(principal, own=False)
        self._held[principal] = own + more
        self.held += more

    def give_back(self, principal: str, size: int) -> None:
        """Give room back."""
        self.held -= size
        left = self._held.get(principal, 0) - size
        if left > 0:
            self._held[principal] = left
        else:
            self._held.pop(principal, None)

    def wait(self, before: int, now: int) -> bool:
        """A connection holds so many bytes that no reader asked for, after so many before; False if that is too much.

        It may give some back, and then is always right.
        """
        self.waiting += now - before
        return now <= max(before, UNCOUNTED) or self.waiting <= self._unknown

    def _refuse(self, principal: str, *, own: bool) -> None:
        self._on_refused(principal, own)
        raise NoRoom(of_principal=own)
