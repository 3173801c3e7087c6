"""One connection of the link between replicas: sealed frames, read where their bytes arrive.

A frame is a message or a part of one; the last part says so. A message has a head, which its first frame carries with
the beginning of the body. So a small request is one frame, and so is a small answer: one write, one read and one turn
of the event loop on each side.

    frame of a message:  kind | length of the head (4 bytes) | head | body, or its beginning
    the frames after it: BODY | more of the body
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from holdfast.fleet.peer_seal import LARGEST_FRAME, BadSeal, PeerSeal

__all__ = ["BODY", "LARGEST_HEAD", "LAST", "PIECE", "PeerFrames", "head_and_piece"]

BODY: Final = 2
"""The kind of a frame with more of a body."""
LAST: Final = 0x80
"""Added to the kind of the last frame of a message."""
PIECE: Final = 64 * 1024
"""The most of a body in one frame."""
LARGEST_HEAD: Final = LARGEST_FRAME - PIECE - 4
MOST_UNREAD: Final = 256 * 1024
"""Bytes of frames that wait for their reader; then no more are taken from the connection."""
KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds and tries. A replica on a machine without power says nothing: its requests here end after half a minute.

macOS calls the first one ``TCP_KEEPALIVE``."""


class PeerFrames(asyncio.Protocol):
    """Reads and writes frames; before the handshake is complete, bytes."""

    def __init__(self, made: Callable[[PeerFrames], object] = lambda _: None) -> None:
        self._made = made
        self._loop = asyncio.get_running_loop()
        self._seal: PeerSeal | None = None
        self._bytes = bytearray()
        self._wanted = 0
        """How many bytes there must be before the next frame can be opened."""
        self._frames: deque[tuple[int, bytes]] = deque()
        self._unread = 0
        self._paused = False
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []
        self.is_full = False
        """Whether the other side reads slower than this one writes."""
        self._broken: Exception | None = None
        self._poll: select.poll | None = None
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0
        self.address = ""
        """Where the other side was reached; empty if it reached this one."""
        self.on_lost: Callable[[], object] | None = None
        """Called when the connection is lost, in the step in which that is known."""

    # For its owner.

    @property
    def lost(self) -> bool:
        """Whether the connection is lost, or closed."""
        return self._broken is not None or self._transport.is_closing()

    @property
    def usable(self) -> bool:
        """Whether nothing says that the other side closed it: the event loop may not have told yet."""
        if self.lost or self._frames or self._bytes:
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not self._poll.poll(0)

    @property
    def unsent(self) -> int:
        """Bytes that wait for the other side to read."""
        return self._transport.get_write_buffer_size()

    async def take(self, size: int) -> bytes:
        """So many bytes of the handshake."""
        while len(self._bytes) < size:
            await self._more()
        taken = bytes(self._bytes[:size])
        del self._bytes[:size]
        return taken

    def write(self, data: bytes) -> None:
        """Bytes of the handshake."""
        self._transport.write(data)

    def use(self, seal: PeerSeal) -> None:
        """The handshake is complete."""
        self._seal = seal
        already, self._bytes = bytes(self._bytes), bytearray()
        if already:
            self.data_received(already)

    async def next(self) -> tuple[int, bytes]:
        """The kind and the content of the next frame. Raises ``EOFError``, ``OSError`` or ``BadSeal``."""
        while not self._frames:
            await self._more()
        kind, content = self._frames.popleft()
        self._unread -= len(content)
        if self._paused and self._unread < MOST_UNREAD // 2:
            self._paused = False
            self._transport.resume_reading()
        return kind, content

    def put(self, kind: int, content: bytes = b"") -> None:
        """Send a frame."""
        assert self._seal is not None  # noqa: S101 - the handshake is complete
        self._transport.write(self._seal.frame(kind, content))

    async def drained(self) -> None:
        """Wait until the other side has read most of what was written. Raises ``OSError`` if it is gone."""
        if self._broken is not None:
            raise ConnectionResetError("the connection is lost")
        if self.is_full:
            waits: asyncio.Future[None] = self._loop.create_future()
            self._writers.append(waits)
            await waits

    def expect(self, within: float | None) -> None:
        """Close the connection unless something comes in so many seconds; None for any time."""
        self._due = None if within is None else self._loop.time() + within
        if self._due is not None and (self._timer is None or self._timer.when() > self._due):
            self._arm(self._due)

    def close(self) -> None:
        """Close it now."""
        self._transport.abort()

    def give_up(self, reason: str) -> None:
        """Close it now; what waits for the other side is told the reason."""
        self._broken = self._broken or ConnectionAbortedError(reason)
        self._wake()
        self.close()

    # For the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast("asyncio.Transport", transport)  # that of another event loop is no subclass
        _keep_alive(transport.get_extra_info("socket"))
        self._made(self)

    def data_received(self, data: bytes) -> None:
        """Open the frames that are complete."""
        if self._bytes or self._seal is None:
            self._bytes += data
            if self._seal is None:
                self._wake()
                return
            if len(self._bytes) < self._wanted:
                return  # a frame that comes in many pieces is put together once
            data = bytes(self._bytes)
            self._bytes.clear()
        at, seal, self._wanted = 0, self._seal, 4
        try:
            while len(data) - at >= 4:
                end = at + 4 + seal.length(data[at : at + 4])
                if end > len(data):
                    self._wanted = end - at
                    break
                frame = seal.open(data[at + 4 : end])
                self._frames.append(frame)
                self._unread += len(frame[1])
                at = end
        except BadSeal as exc:
            self._broken = exc
            self._transport.abort()
        else:
            self._bytes += data[at:]
        if self._unread > MOST_UNREAD and not self._paused and self._broken is None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._broken = self._broken or exc or EOFError("it closed the connection")
        if self._timer is not None:
            self._timer.cancel()
        self._wake()
        for waits in self._writers:
            if not waits.done():
                waits.set_exception(ConnectionResetError("the connection is lost"))
        self._writers.clear()
        told, self.on_lost = self.on_lost, None
        if told is not None:
            told()

    def pause_writing(self) -> None:
        """The other side reads slowly."""
        self.is_full = True

    def resume_writing(self) -> None:
        """The other side has read most of it."""
        self.is_full = False
        for waits in self._writers:
            if not waits.done():
                waits.set_result(None)
        self._writers.clear()

    async def _more(self) -> None:
        if self._broken is not None:
            raise self._broken
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        """The time may be over. It is moved on by each message, and the timer is not: it looks again then."""
        self._timer = None
        if self._due is None:
            return
        if self._loop.time() >= self._due:
            self.close()
        else:
            self._arm(self._due)


def head_and_piece(content: bytes) -> tuple[bytes, bytes]:
    """The head and the beginning of the body in the first frame of a message; raises ``BadSeal``."""
    end = 4 + int.from_bytes(content[:4], "big")
    if end > len(content):
        raise BadSeal("a frame holds no head")
    return content[4:end], content[end:]


def _keep_alive(connection: socket.socket | None) -> None:
    """Let the system find out that the other machine is gone."""
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
