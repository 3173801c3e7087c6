"""What goes out on a client's connection: answers as HTTP/1.1 bytes, and the buffers before the socket.

``AnswerWriter`` knows how an answer is written: plain, or a head and pieces. ``OutputBuffer`` decides when bytes reach
the transport:

- Pieces of a stream that are written in one turn of the event loop go out together. A write for each costs more than
  all else.
- With TLS, a large answer is given to the transport in slices. It encrypts all that it gets at once, and does not say
  how much of that waits for the client.
- A close waits until everything is out; an abort drops it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final

from holdfast.front.requests import Request
from holdfast.wire import Bytes

__all__ = ["AnswerWriter", "OutputBuffer"]

TOGETHER_BYTES: Final = 64 * 1024
"""Pieces of a stream that are written in one turn of the event loop go out together, up to this size."""

SLICE_BYTES: Final = 128 * 1024
"""With TLS, so much of an answer is given to the transport at a time."""

_STATUS_LINES: Final = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}


class OutputBuffer:
    """The bytes on their way to one client. ``sliced`` is for a transport with TLS."""

    def __init__(self, transport: Any, *, sliced: bool) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        """Pieces of a stream that go out at the end of this turn of the event loop, or before anything else does."""
        self._pieces_size = 0
        self._slices: deque[memoryview] | None = deque() if sliced else None
        """What waits for the client to read, where it is given to the transport in slices."""
        self._sliced = 0
        self._closes = False
        """Whether the connection closes when that is out."""
        self._paused = False
        self._drain: asyncio.Future[None] | None = None
        self.lost = False
        """Whether the client is gone."""

    @property
    def unread(self) -> int:
        """How many bytes wait for the client to read them."""
        size: int = self._transport.get_write_buffer_size()
        return size + self._sliced

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
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces, self._pieces_size = [], 0
            if not self.lost:
                self._write(data)

    def write(self, *parts: Bytes) -> None:
        """Write bytes after those before them; large ones are not copied."""
        if self._pieces:
            self.flush()
        if len(parts) == 1:
            self._write(parts[0])
        elif self._slices is None:
            self._transport.writelines(parts)
        else:
            for part in parts:
                self._write(part)

    def _write(self, data: Any) -> None:
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
        while slices and not self._paused and not self.lost:
            one = slices.popleft()
            self._sliced -= len(one)
            self._transport.write(one)
        if self._closes and not slices:
            self._transport.close()

    def pause(self) -> None:
        """The transport's buffer is full."""
        self._paused = True

    def resume(self) -> None:
        """The client has caught up."""
        self._paused = False
        if self._slices:
            self._write_slices()
        if self._drain is not None and not self._drain.done() and not self._slices:
            self._drain.set_result(None)

    async def drained(self) -> None:
        """Wait until most of what was written is read, or the client is gone."""
        while (self._paused or self._slices) and not self.lost:
            if self._drain is None or self._drain.done():
                self._drain = self._loop.create_future()
            await asyncio.shield(self._drain)

    def close(self) -> None:
        """Close when what was written is out."""
        if not self.lost:
            self.flush()
            if self._slices:
                self._closes = True
            else:
                self._transport.close()

    def abort(self) -> None:
        """Close now, without sending what is left."""
        if not self.lost:
            self._forget()
            self._transport.abort()

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
        state = "lost" if self.lost else "full" if self._paused else "open"
        return f"<OutputBuffer {state} pieces={self._pieces_size} slices={self._sliced}>"


class AnswerWriter:
    """Writes the answers of one connection. ``is_last`` says whether the next one ends the connection."""

    def __init__(self, out: OutputBuffer, is_last: Callable[[], bool]) -> None:
        self._out = out
        self._is_last = is_last

    @property
    def lost(self) -> bool:
        """Whether the client is gone."""
        return self._out.lost

    @property
    def unread(self) -> int:
        """How many bytes wait for the client to read them."""
        return self._out.unread

    async def drained(self) -> None:
        """Wait until most of what was written is read."""
        await self._out.drained()

    def abort(self) -> None:
        """Close the connection now, without sending what is left."""
        self._out.abort()

    def write_plain(self, request: Request, status: int, body: bytes | list[Bytes], headers: bytes) -> None:
        """An answer that is complete; the pieces of a large one are not copied."""
        if self._out.lost:
            return
        parts: list[Bytes] = body if isinstance(body, list) else [body]
        size = sum(map(len, parts))
        bare = status in (204, 304)
        length = b"" if bare else b"content-length: %d\r\n" % size
        head = b"%b%b%b%b%b\r\n" % (_STATUS_LINES[status], _date(), headers, length, self._kept(request))
        if request.method == "HEAD" or bare or not size:
            self._out.write(head)
        elif size <= 1 << 16:
            self._out.write(b"".join((head, *parts)))
        else:
            self._out.write(head, *parts)

    def write_head(self, request: Request, headers: bytes, status: int = 200) -> None:
        """The head of an answer that comes in pieces."""
        if self._out.lost:
            return
        if request.http_version == "1.0":
            request.keep_alive = False
            framing = b""
        else:
            framing = b"transfer-encoding: chunked\r\n"
        self._out.put(b"%b%b%b%b%b\r\n" % (_STATUS_LINES[status], _date(), headers, framing, self._kept(request)))

    def write_chunk(self, request: Request, data: bytes) -> None:
        """A piece of the answer."""
        if not self._out.lost and data:
            self._out.put(data if request.http_version == "1.0" else b"%x\r\n%b\r\n" % (len(data), data))

    def write_end(self, request: Request) -> None:
        """The answer is complete."""
        if not self._out.lost and request.http_version != "1.0":
            self._out.put(b"0\r\n\r\n")

    def continue_body(self, request: Request) -> None:
        """Tell a client that asks first that its body is wanted, also if it did not wait for that."""
        asks = request.headers.get("expect", "").lower() == "100-continue"
        if asks and request.http_version != "1.0" and not self._out.lost:
            self._out.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def refuse(self, status: int) -> None:
        """The last answer of the connection, to bytes that are no request."""
        if not self._out.lost:
            self._out.write(_STATUS_LINES[status] + b"content-length: 0\r\nconnection: close\r\n\r\n")

    def _kept(self, request: Request) -> bytes:
        if not request.keep_alive or self._is_last():
            request.keep_alive = False
            return b"connection: close\r\n"
        return b"" if request.http_version != "1.0" else b"connection: keep-alive\r\n"


_dated = 0
_date_line = b""


def _date() -> bytes:
    """The Date header, made once a second."""
    global _dated, _date_line
    now = int(time.time())
    if now != _dated:
        _dated, _date_line = now, f"date: {formatdate(now, usegmt=True)}\r\n".encode()
    return _date_line
