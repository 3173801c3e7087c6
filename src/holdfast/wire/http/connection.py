"""One HTTP/1.1 connection to a server, and the answer that it carries: one request at a time, written once.

Exceptions of the network pass as they are (``OSError``, ``ssl.SSLError``); the module adds those below.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import httptools

from holdfast.core import fault_line
from holdfast.wire.http.framing import BadChunk, ChunkReader, HeadFrame
from holdfast.wire.http.inflate import Inflater
from holdfast.wire.http.pieces import MANY_PIECES, append_piece
from holdfast.wire.http.receiving import receive_room

__all__ = [
    "BrokenHttp",
    "Disconnected",
    "NotHttp",
    "PooledConnection",
    "Response",
]

HEAD_BYTES: Final = 100 * 1024
MOST_HEADERS: Final = 1_000
"""How large the status line and the headers of an answer may be, and how many: a repeated header is joined."""

_LARGE_HEAD: Final = "its headers are too large"

LARGE_BYTES: Final = 128 * 1024
"""From this size on, the rest of a body is received into the memory that it stays in: no piece of it is copied."""

BUFFERED_BYTES: Final = 256 * 1024
"""How much of a body waits for its reader before the socket is no longer read."""

IDLE_SECONDS: Final = 4.0
"""How long an unused connection is kept. Common servers close theirs after 5 s, and a request must not meet that."""

SUSPECT_SECONDS: Final = 0.02
"""After this long without use a connection is looked at before it is used again: it may have been closed.

The event loop tells of a close in its next turn. Only a close within the present turn is not known, and a loop that
turns faster than this has told of all others."""

_SAID: Final = b"HTTP/"

log = logging.getLogger("holdfast.wire")


class Disconnected(ConnectionError):
    """The peer closed the connection before its answer was complete."""


class NotHttp(Exception):
    """The peer answered with something that is not HTTP."""


class BrokenHttp(NotHttp):
    """The peer speaks HTTP, and its answer cannot be used; the text says why."""


class Response:
    """An answer whose head is here; its body is read once, whole or in pieces."""

    __slots__ = (
        "_connection", "_inflater", "_parts", "_read_ahead", "_size", "_waiter", "complete", "error",
        "headers", "status",
    )  # fmt: skip

    def __init__(
        self, connection: PooledConnection | None, status: int, headers: Mapping[str, str], body: bytes | None = None
    ) -> None:
        self._connection = connection
        self.status = status
        self.headers = headers
        """By lower-case name; values of a repeated header are joined by a comma."""
        self._parts: deque[bytes] = deque((body,) if body else ())
        self._size = len(body) if body is not None else 0
        self._waiter: asyncio.Future[None] | None = None
        encoding = headers.get("content-encoding")
        self._inflater = _inflater(encoding) if encoding is not None else None
        self.complete = body is not None
        self.error: Exception | None = None
        self._read_ahead = 0
        """How much may come before the reader is woken."""

    @property
    def ends_with_connection(self) -> bool:
        """Whether only the end of the connection says that the body is complete."""
        return "content-length" not in self.headers and not _is_chunked(self.headers)

    @property
    def server(self) -> Hashable:
        """Equal for answers of the same server, while they are read."""
        return self._connection.owner if self._connection is not None else None

    async def read(self, most: int) -> bytes | bytearray | None:
        """The whole body; None if it is larger than ``most`` bytes. The rest is not read then."""
        connection = self._connection
        if connection is None:
            return await self._collected(most)
        server, left = connection.owner, connection.left
        if self._inflater is None:
            if LARGE_BYTES <= left <= most - self._size:
                async with receive_room().of(server, left):
                    # It may have come to its end meanwhile, or have failed.
                    return await (self._received(connection) if connection.left else self._collected(most))
            self._read_ahead = LARGE_BYTES  # all of it is wanted: no piece wakes the reader
            connection.resume()
        return await self._collected(most, server)

    async def _collected(self, most: int, server: Hashable = None) -> bytes | None:
        """The whole body, in pieces as they come; once it is large, with room for the largest one."""
        size, parts = 0, []
        async with AsyncExitStack() as room:
            while (chunk := await self.next_chunk()) is not None:
                size += len(chunk)
                if size > most:
                    self.close()
                    return None
                parts.append(chunk)
                if size > LARGE_BYTES and server is not None:
                    await room.enter_async_context(receive_room().of(server, most))
                    server = None
                    if self._inflater is None and self._connection is not None:
                        self._read_ahead = most  # nor does one hold up its sender
                        self._connection.resume()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _received(self, connection: PooledConnection) -> bytearray:
        """The whole body, whose length is known and not too large."""
        came = self._size
        body = bytearray(came + connection.left)
        at = 0
        for part in self._parts:
            body[at : at + len(part)] = part
            at += len(part)
        self._parts.clear()
        self._size = 0
        connection.receive_into(memoryview(body)[came:])
        while not self.complete:
            if self.error is not None:
                raise self.error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return body

    @property
    def is_whole(self) -> bool:
        """Whether the body came to its end, compressed or not, and was read to it."""
        inflated = self._inflater is None or self._inflater.ended
        return self.complete and inflated and not self._parts

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        while (chunk := await self.next_chunk()) is not None:
            yield chunk

    async def next_chunk(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        if self._inflater is not None and (piece := self._inflater.take()):
            await asyncio.sleep(0)  # other tasks have their turn between the pieces of one that inflates without end
            return piece
        while True:
            while self._parts:
                part = bytes(self._parts.popleft())  # small ones were joined as a bytearray
                self._size -= len(part)
                if self._connection is not None and self._size < BUFFERED_BYTES:
                    self._connection.resume()
                if self._inflater is not None:
                    self._inflater.feed(part)
                    part = self._inflater.take()
                if part:
                    return part
            if self.error is not None:
                raise self.error
            if self.complete:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def close(self) -> None:
        """Read no more of it. A connection whose answer was not read to its end is of no further use."""
        if self._connection is not None:
            self._connection.abandon(self)

    # What the connection tells.

    def feed(self, data: bytes) -> None:
        """A piece of the body."""
        if len(self._parts) < MANY_PIECES:
            self._parts.append(data)
        else:
            append_piece(self._parts, data)
        self._size += len(data)
        if self._size <= self._read_ahead:
            return
        if self._size > BUFFERED_BYTES and self._connection is not None:
            self._connection.pause()
        self._wake()

    def end(self, error: Exception | None = None) -> None:
        """The body is complete, or will never be."""
        self.complete = error is None
        self.error = error
        self._connection = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class PooledConnection(asyncio.Protocol):
    """One connection; it carries one request at a time."""

    def __init__(self, released: Callable[[PooledConnection], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._released = released
        self.transport: Any = None
        self._frame = HeadFrame(HEAD_BYTES)
        self._reader: _AnswerHeadReader | None = None
        """What reads the head that has begun."""
        self._head: asyncio.Future[Response] | None = None
        self._response: Response | None = None
        """The answer whose body is being read."""
        self.left = 0
        """How much of the body is still to come, where the head says its length."""
        self._chunks: ChunkReader | None = None
        """What reads the body, where it comes in chunks."""
        self._keep = False
        """Whether both sides keep the connection after this answer."""
        self._paused = False
        self.closed = False
        self._lost = False
        self.idle_since = 0.0
        self.keep_for = IDLE_SECONDS

    # The user's side.

    @property
    def owner(self) -> Hashable:
        """Equal for connections of the same pool."""
        return self._released

    def begin(self, request: bytes, body: bytes) -> asyncio.Future[Response]:
        """Write a request; the head of its answer is to come. Who stops waiting for it says so by ``give_up``."""
        # The answer may be complete, and the connection with its next user, before the awaiting task runs again.
        head: asyncio.Future[Response] = self._loop.create_future()
        self._head = head
        self._frame.restart()
        if len(body) > 1 << 16:
            self.transport.writelines((request, body))
        else:
            self.transport.write(request + body)
        return head

    def give_up(self, head: asyncio.Future[Response]) -> None:
        """The answer is not wanted any more, or did not come: the connection is of no further use."""
        if head.done() and not head.cancelled() and head.exception() is None:
            head.result().close()
        else:
            self.abort()

    def receive_into(self, rest: memoryview) -> None:
        """Receive what is left of the body into this memory, and nothing else before that is done."""
        self._take_over(_BodyReceiver(self, rest))

    def received(self) -> None:
        """All of it was received."""
        self.left = 0
        self._take_over(self)
        self._complete()

    def _take_over(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol have the bytes that come. uvloop asks which one it is when it begins to read."""
        if not self.closed:
            self.pause()
            self.transport.set_protocol(protocol)
            self.resume()

    def usable(self, now: float) -> bool:
        """Whether nothing says that the peer has closed it."""
        if self.closed or self.transport.is_closing():
            return False
        idle = now - self.idle_since
        return idle < self.keep_for and (idle < SUSPECT_SECONDS or not _readable(self.transport))

    def abandon(self, response: Response) -> None:
        """The reader of this answer went away."""
        if self._response is response:
            self.abort()

    def abort(self) -> None:
        """Close it now."""
        self.closed = True
        if self.transport is not None and not self._lost:  # asyncio ends a lost one that is aborted a second time
            self.transport.abort()

    def _hang_up(self) -> None:
        """Close it. What is left of a request is not sent: its answer came first, and its peer may not read on."""
        if self.transport.get_write_buffer_size():
            self.abort()
        else:
            self.closed = True
            self.transport.close()

    def pause(self) -> None:
        """Read no more until the reader has caught up."""
        if not self._paused and not self.closed:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused and not self.closed:
            self._paused = False
            self.transport.resume_reading()

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        try:
            at = 0
            while at < len(data) and not self.closed:
                if self._response is not None:
                    at = self._read_body(self._response, data, at)
                elif self._head is not None:
                    at = self._read_head(data, at)
                else:
                    self.abort()  # a server that speaks unasked is not to be trusted with the next request
        except NotHttp as exc:
            self._fail(exc)
        except Exception as exc:  # noqa: BLE001 - a fault here is one line in the log, and ends this connection alone
            log.error("a connection to a server failed in the hub itself: %s", fault_line(exc))  # noqa: TRY400 - as said
            self._fail(BrokenHttp("it could not be read"))

    def _read_head(self, data: bytes, at: int) -> int:
        frame = self._frame
        start, stop, ends = frame.find(data, at)
        reader = self._reader
        if start < stop:
            if reader is None:
                reader = self._reader = _AnswerHeadReader()
            reader.feed(data[start:stop])
        if frame.over:
            raise BrokenHttp(_LARGE_HEAD)
        if ends != (reader is not None and reader.complete):
            raise BrokenHttp("it breaks the rules of HTTP (its head has no clear end)")
        if reader is None or not ends:
            return stop
        self._forget_head()
        if 100 <= reader.status < 200:
            return stop  # a word in between; the answer follows
        return self._begin(reader, data, stop)

    def _begin(self, read: _AnswerHeadReader, data: bytes, at: int) -> int:
        """The head of an answer is complete. A body that is all here goes with it."""
        status, headers = read.status, read.headers
        length = 0 if status in (204, 304) else _length_in(headers)
        chunked = status not in (204, 304) and _is_chunked(headers)
        self._keep = read.keep_alive and (chunked or length is not None)
        head, self._head = self._head, None
        if not chunked and length is not None and len(data) - at >= length:
            response = Response(None, status, headers, data[at : at + length])
            self._over_with(response)
            at += length
        else:
            response = self._response = Response(self, status, headers)
            self.left = length or 0
            if chunked:
                self._chunks = ChunkReader(most_trailers=MOST_HEADERS, most_bytes=HEAD_BYTES)
        if head is not None and not head.done():
            head.set_result(response)
        return at

    def _read_body(self, response: Response, data: bytes, at: int) -> int:
        if self._chunks is not None:
            try:
                at = self._chunks.feed(data, at, response.feed)
            except BadChunk:
                raise BrokenHttp("it breaks the rules of HTTP (its body is not in chunks)") from None
            if self._chunks.done:
                self._complete()
            return at
        if not self.left:  # the body ends with the connection
            response.feed(data[at:])
            return len(data)
        stop = min(len(data), at + self.left)
        self.left -= stop - at
        response.feed(data if not at and stop == len(data) else data[at:stop])
        if not self.left:
            self._complete()
        return stop

    def _complete(self) -> None:
        """The answer is complete."""
        response, self._response = self._response, None
        if response is not None:
            self.resume()
            self.left, self._chunks = 0, None
            response.end()
            self._over_with(response)

    def _over_with(self, response: Response) -> None:
        """The connection is free if both sides keep it."""
        if self._keep:
            self._free(_kept_for(response.headers.get("keep-alive", "")))
        else:
            self._hang_up()

    def _forget_head(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _free(self, keep_for: float) -> None:
        """The answer is complete: another request may use the connection, if all of this one was sent."""
        if self.transport.get_write_buffer_size() == 0 and not self.closed:
            self.keep_for = keep_for
            self._released(self)
        else:
            self._hang_up()

    def eof_received(self) -> bool:
        """The peer sends no more."""
        self._over()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self.closed = self._lost = True
        self._over(exc)

    def _over(self, exc: Exception | None = None) -> None:
        if self._response is not None and self._response.ends_with_connection and exc is None:
            self._complete()
        else:
            self._fail(exc if isinstance(exc, OSError) else Disconnected("the peer closed the connection"))

    def _fail(self, error: Exception) -> None:
        head, response = self._head, self._response
        self._forget_head()
        self._response, self._chunks, self.left = None, None, 0
        if response is not None:
            response.end(error)
        elif head is not None and not head.done():
            head.set_exception(error)
        self.abort()


class _AnswerHeadReader:
    """Reads one head: httptools tells it what it finds."""

    __slots__ = ("_begins", "_count", "_parser", "complete", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._begins = b""
        self._count = 0
        self.headers: dict[str, str] = {}
        self.status = 0
        self.keep_alive = False
        self.complete = False

    def feed(self, data: bytes) -> None:
        """The next bytes of the head; raises ``NotHttp``."""
        if len(self._begins) < len(_SAID):
            self._begins = (self._begins + data[: len(_SAID)])[: len(_SAID)]
        assert self._parser is not None  # noqa: S101 - the head is not complete
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise BrokenHttp("it switched protocols") from None
        except httptools.HttpParserError as exc:
            cause = exc.__context__  # what a callback raised
            raise cause if isinstance(cause, NotHttp) else _broken(exc, self._begins == _SAID) from None

    def close(self) -> None:
        """Let the parser go, which leads back here: a cycle for each answer would be the collector's."""
        self._parser = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._count += 1
        if self._count > MOST_HEADERS:
            raise BrokenHttp(_LARGE_HEAD)  # at once: one piece of a connection may have thousands more
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self.headers.get(key)
        self.headers[key] = text if known is None else f"{known}\n{text}" if key == "set-cookie" else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        """The head is complete."""
        assert self._parser is not None  # noqa: S101 - it calls
        self.status = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive()
        self.complete = True


def _is_chunked(headers: Mapping[str, str]) -> bool:
    """Whether a body comes in chunks. In another coding it could not be read."""
    coding = headers.get("transfer-encoding", "identity").lower().strip(", \t")
    if coding not in ("chunked", "identity"):
        raise BrokenHttp("its body comes in a transfer coding that was not asked for")
    return coding == "chunked"


def _length_in(headers: Mapping[str, str]) -> int | None:
    """The length of a body; None where its head states none. The parser refuses one that two readers read apart."""
    stated = headers.get("content-length")
    if stated is None:
        return None
    if not (stated.strip().isascii() and stated.strip().isdigit()):
        raise BrokenHttp("it breaks the rules of HTTP (its length is no number)")
    return int(stated)


class _BodyReceiver(asyncio.BufferedProtocol):
    """Has the bytes of a connection written to where they stay, until a body is complete."""

    def __init__(self, connection: PooledConnection, rest: memoryview) -> None:
        self._connection = connection
        self._rest = rest

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: never more than are left of the body."""
        return self._rest

    def buffer_updated(self, nbytes: int) -> None:
        """Some came."""
        self._rest = self._rest[nbytes:]
        if not self._rest:
            self._rest = memoryview(b"")  # uvloop keeps the last protocol of this kind, and with it the whole body
            self._connection.received()

    def eof_received(self) -> bool:
        """The peer sends no more."""
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._connection.connection_lost(exc)


def _readable(transport: Any) -> bool:
    """Whether something waits to be read on a connection that has nothing to say: it is being closed."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return False
    poll = select.poll()
    try:
        poll.register(sock.fileno(), select.POLLIN)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


def _broken(exc: httptools.HttpParserError, is_http: bool) -> NotHttp:
    """What the parser found; its text is its own, and has nothing of the peer in it."""
    return BrokenHttp(f"it breaks the rules of HTTP ({exc})") if is_http else NotHttp(str(exc))


def _kept_for(header: str) -> float:
    """How long an idle connection can be relied on: what the server says, with a second to spare."""
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "timeout" and value.isascii() and value.isdigit():
            return min(max(float(value[:6]) - 1.0, 0.0), 60.0)
    return IDLE_SECONDS


def _inflater(encoding: str) -> Inflater | None:
    """What undoes the compression of a body, if it has one."""
    named = [name for part in encoding.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    return Inflater(",".join(named)) if named else None
