"""One HTTP/1.1 connection to a server, and the answer that it carries: one request at a time, written once.

``AnswerParser`` says what the bytes mean; here are the socket, the waiting reader and the flow between them. A reader
that is slow stops the socket. One that closes its answer early ends the connection: the rest would be in the way, and
a server may take the end for a cancellation. One that has all that it wanted leaves: the rest is passed over, and the
connection serves the next request. An event stream has its end in a piece of its own, after its last event.
Exceptions of the network pass as they are (``OSError``, ``ssl.SSLError``), and those of the parser.

What must never happen: reading holds up the event loop (SEC-7), so a stream of events is read in pieces, with turns for
other tasks; or many large answers together fill our memory (SEC-11). All that are large wait for their place in one
``ReceiveRoom``, also an event that comes part by part.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections import deque
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import anyio
import msgspec

from holdfast.config import Limits
from holdfast.core import NetworkFailure, NetworkFault, OverBound, fault_line
from holdfast.errors import ServerFailure
from holdfast.turns import Turns
from holdfast.wire.http.answer_parser import (
    END,
    AnswerHead,
    AnswerParser,
    BrokenHttp,
    Disconnected,
    EventReader,
    Inflater,
    ServerEvent,
    append_piece,
)

if TYPE_CHECKING:
    from holdfast.wire.http.pool import Pool

__all__ = [
    "EVENT_STREAM",
    "PooledConnection",
    "ReceiveRoom",
    "Response",
    "ServerEvents",
    "over_message_bound",
    "receive_room",
    "share_receive_room",
]

EVENT_STREAM: Final = "text/event-stream"
"""The content type of a stream of server-sent events."""

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


class Response(msgspec.Struct, eq=False):
    """An answer whose head is here; its body is read once, whole or in pieces."""

    _connection: PooledConnection | None
    head: AnswerHead
    status: int
    headers: Mapping[str, str]
    """By lower-case name; values of a repeated header are joined by a comma."""
    server: Hashable
    """Equal for answers of the same server."""
    _inflater: Inflater | None = None
    _parts: deque[bytes | bytearray] = msgspec.field(default_factory=deque)
    _size: int = 0
    _waiter: asyncio.Future[None] | None = None
    complete: bool = False
    error: Exception | None = None
    _read_ahead: int = 0
    """How much may come before the reader is woken."""
    _left: bool = False
    """Whether its reader wants no more of it."""
    held: int = 0
    """The room that it has in the ``ReceiveRoom``."""

    def inflate(self, encoding: str) -> None:
        """Undo the compression of the body, which is to come, if it has one."""
        named = [name for part in encoding.lower().split(",") if (name := part.strip()) not in ("", "identity")]
        self._inflater = Inflater(",".join(named)) if named else None

    async def read(self, most: int) -> bytes | bytearray | None:
        """The whole body; None if it is larger than ``most`` bytes. The rest is not read then."""
        connection, parts = self._connection, self._parts
        if self.complete and self._inflater is None and len(parts) == 1 and self._size <= most:
            return parts.popleft()  # it came with its head, as almost every answer does
        try:
            # What is compressed has no known size: it is collected piece by piece, each within the bound.
            if connection is not None and self._inflater is None:
                if connection.parser.left >= LARGE_BYTES:
                    # Its head says that it is too large: nothing of it takes room that other answers wait for.
                    if connection.parser.left > most - self._size:
                        self.close()
                        return None
                    await self.hold(connection.parser.left)
                    if connection.parser.left:  # else it came to its end meanwhile, or has failed
                        return await self._received(connection)
                self._read_ahead = LARGE_BYTES  # all of it is wanted: no piece wakes the reader
            return await self._collected(most)
        finally:
            self.let_go()

    async def _collected(self, most: int) -> bytes | bytearray | None:
        """The whole body, in pieces as they come; once it is large, with room for the largest one."""
        size, parts = 0, []
        while (chunk := await self.next_chunk()) is not None:
            size += len(chunk)
            if size > most:
                self.close()
                return None
            parts.append(chunk)
            if size > LARGE_BYTES and not self.held and self._connection is not None:
                await self.hold(most)
                if self._inflater is None:
                    self._read_ahead = most  # nor does one hold up its sender
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _received(self, connection: PooledConnection) -> bytearray:
        """The whole body, whose length is known and not too large."""
        came = self._size
        body = bytearray(came + connection.parser.left)
        at = 0
        for part in self._parts:
            body[at : at + len(part)] = part
            at += len(part)
        self._parts.clear()
        self._size = 0
        connection.receive_into(memoryview(body)[came:])
        while not self.complete:
            await self._arrival()
        return body

    async def hold(self, size: int) -> None:
        """Wait for room for a large answer, or for a large part of it."""
        await receive_room().take(self.server, size)
        self.held = size

    def let_go(self) -> None:
        """Give the room back."""
        if self.held:
            receive_room().give_back(self.server, self.held)
            self.held = 0

    @property
    def is_whole(self) -> bool:
        """Whether the body came to its end, compressed or not, and was read to it."""
        inflated = self._inflater is None or self._inflater.ended
        return self.complete and inflated and not self._parts

    async def next_chunk(self) -> bytes | None:
        """The next piece of the body, with all that waits: the events of a stream often come many at a time.

        None at its end. What is inflated may grow, so it comes part by part.
        """
        inflater = self._inflater
        if inflater is not None and (piece := inflater.take()):
            await Turns().give()  # other tasks have their turn between the pieces of one that inflates without end
            return piece
        while True:
            while parts := self._parts:
                if len(parts) == 1 or inflater is not None:
                    part = bytes(parts.popleft())  # small ones were joined as a bytearray
                else:
                    part = b"".join(parts)
                    parts.clear()
                self._size -= len(part)
                if self._connection is not None and self._connection.flow.paused and self._size < BUFFERED_BYTES:
                    self._connection.flow.resume()
                if inflater is not None:
                    inflater.feed(part)
                    part = inflater.take()
                if part:
                    return part
            if self.complete:
                return None
            await self._arrival()

    def _arrival(self) -> asyncio.Future[None]:
        """Done when more of the body came, or its end; raises why it will not come."""
        if self.error is not None:
            raise self.error
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def close(self, *, satisfied: bool = False) -> None:
        """Read no more of it. A connection whose answer was not read to its end is of no further use.

        With ``satisfied`` all that was wanted has come: what is left is passed over, if it is short and comes soon.
        """
        if self.held:
            self.let_go()
        connection = self._connection
        if connection is None:
            return  # the answer has ended, and the connection may be with its next user
        if not satisfied:
            connection.abort()
            return
        self._left = True
        self._parts.clear()
        self._size = 0
        if connection.flow.paused:
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
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    def end(self, error: Exception | None = None) -> None:
        """The body is complete, or will never be."""
        self.complete = error is None
        self.error = error
        self._connection = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __repr__(self) -> str:
        state = "failed" if self.error is not None else "complete" if self.complete else "coming"
        return f"<Response {self.status} {state} waiting={self._size}>"


class ReadFlow:
    """Whether the socket of a connection is read, and which protocol gets the bytes."""

    __slots__ = ("_transport", "paused")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.paused = False

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


class PooledConnection(asyncio.Protocol):
    """A connection, for one request after the other."""

    def __init__(self, owner: Pool) -> None:
        self._loop = asyncio.get_running_loop()
        self.owner = owner
        self.parser = AnswerParser()
        self.flow = ReadFlow(None)  # until it stands
        self.transport: Any = None
        self._head: asyncio.Future[Response] | None = None
        """Where the present request waits for its answer."""
        self._waits_for_body = False
        self._response: Response | None = None
        """The answer whose body is being read."""
        self.closed = False
        self._lost = False
        self.idle_since = 0.0
        self.is_kept = False
        """Whether it has served a request before."""

    def begin(
        self, request: bytes, body: bytes, *, tunnels: bool = False, with_body: bool = False
    ) -> asyncio.Future[Response]:
        """Write a request; the head of its answer is to come. A caller that stops waiting for it calls ``abort``.

        With ``tunnels`` it is a CONNECT: after its answer another protocol has the connection. ``with_body`` is for a
        caller who can do nothing with the head of a success alone: it is given with the first piece of the body.
        """
        # The answer may be complete, and the connection with its next user, before the awaiting task runs again.
        head = self._head = self._loop.create_future()
        self._waits_for_body = with_body
        self.parser.expect(tunnels=tunnels)
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
        self.parser.received()
        self._complete()

    def usable(self, now: float) -> bool:
        """Whether nothing says that the peer has closed it."""
        if self.closed or self.transport.is_closing():
            return False
        idle = now - self.idle_since
        return idle < IDLE_SECONDS and (idle < SUSPECT_SECONDS or not _readable(self.transport))

    def abort(self) -> None:
        """Close it now."""
        self.closed = True
        if self.transport is not None and not self._lost:  # asyncio ends a lost one that is aborted a second time
            self.transport.abort()

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        self.transport = transport
        self.flow = ReadFlow(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        try:
            for event in self.parser.receive(data):
                if isinstance(event, bytes):
                    if self._response is not None:  # else its reader left
                        self._response.feed(event)
                        if self._head is not None:
                            self._tell(self._head, self._response)
                elif event is END:
                    self._complete()
                elif isinstance(event, AnswerHead):
                    # Its place is taken until its end, also where its reader left before it came.
                    self._response = Response(self, event, event.status, event.headers, self.owner)
                    if "content-encoding" in event.headers:
                        self._response.inflate(event.headers["content-encoding"])
                    # Most servers send a head and the body after it in two pieces. To wake the task of a call for the
                    # head costs as much again as to wake it for the body. A refusal is told at once: its body may
                    # never come, and its status says enough.
                    if self._head is not None and (event.status != 200 or not self._waits_for_body):
                        self._tell(self._head, self._response)
                else:
                    self._fail(event)
                if self.closed:
                    return  # a reader that left, or a bound, ended it: what follows in these bytes has no meaning
        except Exception as exc:  # noqa: BLE001 - a fault here is one line in the log, and ends this connection alone
            log.error("a connection to a server failed in the hub itself: %s", fault_line(exc))  # noqa: TRY400 - as said
            self._fail(BrokenHttp("it could not be read"))

    def _tell(self, waiting: asyncio.Future[Response], response: Response) -> None:
        """Give the head of the answer to the caller that waits for it."""
        self._head = None
        if not waiting.done():
            waiting.set_result(response)

    def eof_received(self) -> bool:
        """The peer sends no more."""
        try:
            if self.parser.close():
                self._complete()
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

    def _complete(self) -> None:
        """The answer is complete. The connection is free if both sides keep it, and all of the request was sent."""
        response, self._response = self._response, None
        if response is None:
            return
        if self._head is not None:
            self._tell(self._head, response)
        response.end()
        if self.closed:
            return
        if self.flow.paused:
            self.flow.resume()
        if self.transport.get_write_buffer_size():
            # What is left of the request is not sent: its answer came first, and its peer may not read on.
            self.abort()
        elif response.head.keep_alive:
            self.owner.release(self)
        else:
            self.closed = True
            self.transport.close()

    def _fail(self, error: Exception) -> None:
        head, response = self._head, self._response
        self._head = self._response = None
        if response is not None:
            response.end(error)
            if head is not None:
                self._tell(head, response)  # its reader meets the error
        elif head is not None and not head.done():
            head.set_exception(error)
        self.abort()

    def __repr__(self) -> str:
        state = "lost" if self._lost else "closed" if self.closed else "open"
        return f"<PooledConnection {state} {self.parser!r}>"


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


FED_BYTES: Final = 16 * 1024
"""How much of a stream is read in one piece: it may hold thousands of empty lines."""


class ServerEvents:
    """The events of an answer until it ends; one that is over the bound on a message raises ``ServerFailure``.

    With ``skips`` it is given as a cut event, and the stream goes on.

    With ``silence``, a stream that sends nothing for so many seconds, not even a comment, counts as lost.
    """

    def __init__(
        self, response: Response, limits: Limits, *, silence: float | None = None, skips: bool = False
    ) -> None:
        self._response = response
        self._limits = limits
        self._silence = silence
        self._reader = EventReader(limits.message_bytes, skips)
        self._came: deque[ServerEvent] = deque()
        self._chunk, self._at = b"", 0
        self._turns: Turns | None = None
        """The steps in which a large piece is read."""

    async def next(self) -> ServerEvent | None:
        """The next event; None at the end of the stream."""
        # Not an asynchronous generator: one that its reader leaves early is ended by the event loop, some time later.
        while not self._came:
            if self._reader.too_large:
                raise ServerFailure(over_message_bound(self._limits))
            if self._at >= len(self._chunk):
                # Room is taken when an event has become large, and given back when it is complete: never for the
                # whole life of a stream, which may last for days.
                if (self._reader.size > LARGE_BYTES) != (self._response.held > 0):
                    if self._response.held:
                        self._response.let_go()
                    else:
                        await self._response.hold(self._limits.message_bytes)
                chunk = await (self._response.next_chunk() if self._silence is None else self._within(self._silence))
                if chunk is None:
                    return None
                self._chunk, self._at = chunk, 0
                self._turns = Turns() if len(chunk) > FED_BYTES else None
            elif self._turns is not None:
                await self._turns.offer()
            begin, self._at = self._at, self._at + FED_BYTES
            self._came.extend(self._reader.feed(self._chunk[begin : self._at]))
        return self._came.popleft()

    async def _within(self, silence: float) -> bytes | None:
        with anyio.move_on_after(silence):
            return await self._response.next_chunk()
        raise ServerFailure(NetworkFailure(fault=NetworkFault.CLOSED, stood=True))

    def __repr__(self) -> str:
        return f"<ServerEvents {self._reader!r} waiting={len(self._came)} of {self._response!r}>"


def over_message_bound(limits: Limits) -> OverBound:
    """The evidence of an answer that is too large."""
    return OverBound(bound="the size of a message", limit=limits.message_bytes, setting="holdfast.limits.messageBytes")


RECEIVED_BYTES: Final = 64 * 1024 * 1024
"""In all workers together: four messages of the largest size."""


class ReceiveRoom:
    """How many bytes of large answers are received at the same time, in one event loop (SEC-11).

    A call of a few bytes may be answered by a message of the largest size, and a thousand calls may run. So a large
    answer is received when there is room for it; until then the server's connection is not read. One server has half
    of the room at most: one that sends slowly does not hold up the answers of others. Those that wait are served in
    order.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Hashable, int] = {}
        self._waiting: dict[asyncio.Future[None], tuple[Hashable, int]] = {}
        self.held = 0

    async def take(self, server: Hashable, size: int) -> None:
        """Wait for room for an answer of a server; ``give_back`` must follow. A single one always has room."""
        if self._fits(server, size) and not any(self._has_share(*one) for one in self._waiting.values()):
            self._take(server, size)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = server, size
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            if not turn.cancelled():
                self.give_back(server, size)  # its turn had come
            raise

    def _fits(self, server: Hashable, size: int) -> bool:
        return (not self.held or self.held + size <= self._most) and self._has_share(server, size)

    def _has_share(self, server: Hashable, size: int) -> bool:
        """Whether a server has not used up its half: one that has waits for itself alone."""
        own = self._held.get(server, 0)
        return not own or own + size <= self._most // 2

    def _take(self, server: Hashable, size: int) -> None:
        self._held[server] = self._held.get(server, 0) + size
        self.held += size

    def give_back(self, server: Hashable, size: int) -> None:
        """An answer was received, or is given up."""
        self.held -= size
        left = self._held[server] - size
        if left:
            self._held[server] = left
        else:
            del self._held[server]
        for turn, (whose, wanted) in [*self._waiting.items()]:
            if turn.done():
                continue  # it was given up
            if self._fits(whose, wanted):
                del self._waiting[turn]
                self._take(whose, wanted)
                turn.set_result(None)
            elif self._has_share(whose, wanted):
                break  # it is next: those behind it do not overtake it


_share = 1
_rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, ReceiveRoom] = WeakKeyDictionary()


def share_receive_room(workers: int) -> None:
    """So many processes share the room."""
    global _share  # noqa: PLW0603 - one for the process
    _share = max(workers, 1)
    _rooms.clear()


def receive_room() -> ReceiveRoom:
    """The room of the running event loop."""
    loop = asyncio.get_running_loop()
    room = _rooms.get(loop)
    if room is None:
        room = _rooms[loop] = ReceiveRoom(RECEIVED_BYTES // _share)
    return room
