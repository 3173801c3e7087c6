"""One HTTP/1.1 connection to a server, and the answer that it carries: one request at a time, written once.

``AnswerParser`` says what the bytes mean; here are the socket, the waiting reader and the flow between them. A reader
that is slow stops the socket. One that closes its answer early ends the connection: the rest would be in the way, and
a server may take the end for a cancellation. One that has all that it wanted leaves: the rest is passed over, and the
connection serves the next request. An event stream has its end in a piece of its own, after its last event.
Exceptions of the network pass as they are (``OSError``, ``ssl.SSLError``), and those of the parser.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections import deque
from collections.abc import AsyncIterator, Hashable, Mapping
from typing import Any, Final, Protocol

from holdfast.core import fault_line
from holdfast.turns import Turns
from holdfast.wire.http.answer_parser import (
    AnswerEnd,
    AnswerEvent,
    AnswerHead,
    AnswerParser,
    BrokenHttp,
    Disconnected,
    NotHttp,
)
from holdfast.wire.http.framing import append_piece
from holdfast.wire.http.inflate import Inflater
from holdfast.wire.http.receive_room import receive_room

__all__ = ["PooledConnection", "Response"]

LARGE_BYTES: Final = 128 * 1024
"""From this size on, the rest of a body is received into the memory that it stays in: no piece of it is copied."""

BUFFERED_BYTES: Final = 256 * 1024
"""How much of a body waits for its reader before the socket is no longer read."""

IDLE_SECONDS: Final = 4.0
"""How long an unused connection is kept. Common servers close theirs after 5 s, and a request must not meet that."""

LEFT_BYTES: Final = 64 * 1024
"""How much is passed over after a reader has left its answer: most often the end alone."""

SUSPECT_SECONDS: Final = 0.02
"""After this long without use a connection is looked at before it is used again: it may have been closed.

The event loop tells of a close in its next turn. Only a close within the present turn is not known, and a loop that
turns faster than this has told of all others."""

log = logging.getLogger("holdfast.wire")


class Response:
    """An answer whose head is here; its body is read once, whole or in pieces."""

    __slots__ = (
        "_connection", "_inflater", "_left", "_parts", "_read_ahead", "_size", "_waiter", "complete", "error", "head",
        "headers", "server", "status",
    )  # fmt: skip

    def __init__(self, connection: PooledConnection | None, head: AnswerHead) -> None:
        self._connection = connection
        self.head = head
        self.status = head.status
        self.headers: Mapping[str, str] = head.headers
        """By lower-case name; values of a repeated header are joined by a comma."""
        self.server: Hashable = connection.owner if connection is not None else None
        """Equal for answers of the same server."""
        self._parts: deque[bytes | bytearray] = deque()
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        coding = head.headers.get("content-encoding")
        self._inflater = _inflater(coding) if coding is not None else None
        self.complete = False
        self.error: Exception | None = None
        self._read_ahead = 0
        """How much may come before the reader is woken."""
        self._left = False
        """Whether its reader wants no more of it."""

    async def read(self, most: int) -> bytes | bytearray | None:
        """The whole body; None if it is larger than ``most`` bytes. The rest is not read then."""
        connection = self._connection
        if connection is not None and self._inflater is None:
            left = connection.left
            if LARGE_BYTES <= left <= most - self._size:
                async with receive_room().of(self.server, left):
                    # It may have come to its end meanwhile, or have failed.
                    return await (self._received(connection) if connection.left else self._collected(most, []))
            self._read_ahead = LARGE_BYTES  # all of it is wanted: no piece wakes the reader
            connection.flow.resume()
        return await self._collected(most, [])

    async def _collected(self, most: int, parts: list[bytes], *, has_room: bool = False) -> bytes | bytearray | None:
        """The whole body after these parts, in pieces as they come; once it is large, with room for the largest one."""
        size = sum(map(len, parts))
        while (chunk := await self.next_chunk()) is not None:
            size += len(chunk)
            if size > most:
                self.close()
                return None
            parts.append(chunk)
            if size > LARGE_BYTES and not has_room and self._connection is not None:
                async with receive_room().of(self.server, most):
                    if self._inflater is None and self._connection is not None:
                        self._read_ahead = most  # nor does one hold up its sender
                        self._connection.flow.resume()
                    return await self._collected(most, parts, has_room=True)
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
            await self._more()
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
            await Turns().give()  # other tasks have their turn between the pieces of one that inflates without end
            return piece
        while True:
            while self._parts:
                part = self._next_part()
                if self._connection is not None and self._connection.flow.paused and self._size < BUFFERED_BYTES:
                    self._connection.flow.resume()
                if self._inflater is not None:
                    self._inflater.feed(part)
                    part = self._inflater.take()
                if part:
                    return part
            if self.complete:
                return None
            await self._more()

    def _next_part(self) -> bytes:
        """All that waits, as one piece: the events of a stream often come many at a time. What is inflated may grow."""
        parts = self._parts
        if len(parts) == 1 or self._inflater is not None:
            part = bytes(parts.popleft())  # small ones were joined as a bytearray
        else:
            part = b"".join(parts)
            parts.clear()
        self._size -= len(part)
        return part

    async def _more(self) -> None:
        """Wait until more of the body came, or its end; raises why it will not come."""
        if self.error is not None:
            raise self.error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """Read no more of it. A connection whose answer was not read to its end is of no further use."""
        if self._connection is not None and not self._left:
            self._connection.abort()

    def leave(self) -> None:
        """All that was wanted has come. What is left is passed over, if it is short and comes soon."""
        connection = self._connection
        if connection is not None:
            self._left = True
            self._parts.clear()
            self._size = 0
            connection.flow.resume()
            connection.owner.await_end(connection)

    # What the connection tells.

    def feed(self, data: bytes) -> None:
        """A piece of the body."""
        self._size += len(data)
        if self._left:
            if self._size > LEFT_BYTES and self._connection is not None:
                self._connection.abort()
            return
        append_piece(self._parts, data)
        if self._size > self._read_ahead:
            if self._size > BUFFERED_BYTES and self._connection is not None:
                self._connection.flow.pause()
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

    def __repr__(self) -> str:
        state = "failed" if self.error is not None else "complete" if self.complete else "coming"
        return f"<Response {self.status} {state} waiting={self._size}>"


class ReadFlow:
    """Whether the socket of a connection is read, and which protocol gets the bytes."""

    __slots__ = ("_transport", "paused")

    def __init__(self) -> None:
        self._transport: Any = None
        self.paused = False

    def begin(self, transport: Any) -> None:
        """The connection stands."""
        self._transport, self.paused = transport, False

    def pause(self) -> None:
        """Read no more until the reader has caught up."""
        if not self.paused and not self._transport.is_closing():
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.paused and not self._transport.is_closing():
            self.paused = False
            self._transport.resume_reading()

    def hand_over(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol have the bytes that come. uvloop asks which one it is when it begins to read."""
        if not self._transport.is_closing():
            self.pause()
            self._transport.set_protocol(protocol)
            self.resume()

    def __repr__(self) -> str:
        return f"<ReadFlow {'paused' if self.paused else 'reads'}>"


class ConnectionOwner(Hashable, Protocol):
    """The pool of a connection."""

    def release(self, connection: PooledConnection) -> None:
        """It is free for the next request."""

    def await_end(self, connection: PooledConnection) -> None:
        """The reader of its answer has left. It is released at the end of the answer, or ended if that takes long."""


class PooledConnection(asyncio.Protocol):
    """A connection, for one request after the other."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._loop = asyncio.get_running_loop()
        self.owner = owner
        self._parser = AnswerParser()
        self.flow = ReadFlow()
        self.transport: Any = None
        self._head: asyncio.Future[Response] | None = None
        self._response: Response | None = None
        """The answer whose body is being read."""
        self.closed = False
        self._lost = False
        self.idle_since = 0.0
        self.keep_for = IDLE_SECONDS

    @property
    def left(self) -> int:
        """How much of the present body is still to come, where its head says its length."""
        return self._parser.left

    def begin(self, request: bytes, body: bytes) -> asyncio.Future[Response]:
        """Write a request; the head of its answer is to come. A caller that stops waiting for it calls ``abort``."""
        # The answer may be complete, and the connection with its next user, before the awaiting task runs again.
        head = self._head = self._loop.create_future()
        self._parser.expect()
        if len(body) > 1 << 16:
            self.transport.writelines((request, body))
        else:
            self.transport.write(request + body)
        return head

    def receive_into(self, rest: memoryview) -> None:
        """Receive what is left of the body into this memory, and nothing else before that is done."""
        self.flow.hand_over(_BodyReceiver(self, rest))

    def received(self) -> None:
        """All of it was received."""
        self.flow.hand_over(self)
        self._take(self._parser.received())

    def usable(self, now: float) -> bool:
        """Whether nothing says that the peer has closed it."""
        if self.closed or self.transport.is_closing():
            return False
        idle = now - self.idle_since
        return idle < self.keep_for and (idle < SUSPECT_SECONDS or not _readable(self.transport))

    def abort(self) -> None:
        """Close it now."""
        self.closed = True
        if self.transport is not None and not self._lost:  # asyncio ends a lost one that is aborted a second time
            self.transport.abort()

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        self.transport = transport
        self.flow.begin(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        try:
            self._parser.receive(data)
            while not self.closed and (event := self._parser.next_event()) is not None:
                self._take(event)
        except NotHttp as exc:
            self._fail(exc)
        except Exception as exc:  # noqa: BLE001 - a fault here is one line in the log, and ends this connection alone
            log.error("a connection to a server failed in the hub itself: %s", fault_line(exc))  # noqa: TRY400 - as said
            self._fail(BrokenHttp("it could not be read"))

    def eof_received(self) -> bool:
        """The peer sends no more."""
        try:
            if (end := self._parser.close()) is not None:
                self._take(end)
        except Disconnected as exc:
            self._fail(exc)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self.closed = self._lost = True
        if isinstance(exc, OSError):
            self._fail(exc)
        else:
            self.eof_received()

    def _take(self, event: AnswerEvent) -> None:
        if isinstance(event, AnswerHead):
            self._response = Response(self, event)
            head, self._head = self._head, None
            if head is not None and not head.done():
                head.set_result(self._response)
        elif self._response is None:
            return  # its reader left
        elif isinstance(event, AnswerEnd):
            self._complete(self._response)
        else:
            self._response.feed(event)

    def _complete(self, response: Response) -> None:
        """The answer is complete. The connection is free if both sides keep it, and all of the request was sent."""
        self._response = None
        response.end()
        if self.closed:
            return
        if self.flow.paused:
            self.flow.resume()
        if self.transport.get_write_buffer_size():
            # What is left of the request is not sent: its answer came first, and its peer may not read on.
            self.abort()
        elif response.head.keep_alive:
            told = response.headers.get("keep-alive")
            self.keep_for = _kept_for(told) if told is not None else IDLE_SECONDS
            self.owner.release(self)
        else:
            self.closed = True
            self.transport.close()

    def _fail(self, error: Exception) -> None:
        head, response = self._head, self._response
        self._head = self._response = None
        if response is not None:
            response.end(error)
        elif head is not None and not head.done():
            head.set_exception(error)
        self.abort()

    def __repr__(self) -> str:
        state = "lost" if self._lost else "closed" if self.closed else "open"
        return f"<PooledConnection {state} {self._parser!r}>"


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
