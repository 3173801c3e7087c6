"""Server-sent events: ``EventReader`` finds them in bytes, ``ServerEvents`` in the body of an answer.

A stream is cut anywhere on its way: inside a line, between CR and LF, inside the byte order mark. The events depend on
the bytes alone, not on the cuts. Lines end with LF, CR or CRLF; an empty line ends an event; a line that begins with a
colon is a comment and only shows that the peer lives.

What must never happen:

- One event fills our memory. An event has the bound of a message. On a stream that one request has for itself, a larger
  event fails that request. On a stream that all requests share it is skipped: its beginning is kept, which says whose
  answer it is, and the others go on (LIFE-28). A skip has a bound too, else one event without an end would hold the
  stream for ever.
- Reading holds up the event loop (SEC-7). It is linear in what came, and is done in pieces with turns for other tasks.
- An answer that comes part by part escapes the room that all large answers share: from ``LARGE_BYTES`` on, an event
  that is not complete waits for its place there as a plain body does (SEC-11).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import anyio

from holdfast.config import Limits
from holdfast.core import NetworkFailure, NetworkFault, OverBound
from holdfast.errors import ServerFailure
from holdfast.turns import Turns
from holdfast.wire.http.connection import LARGE_BYTES, Response

__all__ = ["EVENT_STREAM", "EventReader", "EventTooLarge", "ServerEvent", "ServerEvents", "over_message_bound"]

EVENT_STREAM = "text/event-stream"
"""The content type of a stream of server-sent events."""

FED_BYTES = 16 * 1024
"""How much of a stream is read in one piece: it may hold thousands of empty lines."""

LINE_COST = 64
"""How many bytes a line of an event counts beyond its own: an empty ``data`` line is a Python object too."""

LONGEST_NAME = 1_024
"""Bytes of the name of an event, and of its id."""


class EventTooLarge(Exception):
    """One event is larger than it may be."""


class ServerEvent(NamedTuple):
    """One event; its data is the bytes that came."""

    name: str
    data: bytes
    id: str
    retry: int | None
    cut: bool = False
    """Whether it was over the bound: then the data is its beginning."""


HEAD_BYTES = 1024
"""How much is kept of an event or a line over the bound: enough to find out which request it answers."""

LONGEST_SKIP = 8
"""An event or a line over the bound is skipped up to this multiple of the bound; then the stream is given up."""


_BOM = b"\xef\xbb\xbf"
# A whole event as almost every server writes it. A call with 100 progress notices is 100 of them, and PERF-6 bounds
# what they take: one match here, where three lines would be split and looked at one by one.
_USUAL = re.compile(
    rb"(?:id: (?P<id>[^\x00\r\n]{1,%d})\r?\n)?(?:event: message\r?\n)?data: (?P<data>[^\r\n]*)\r?\n\r?\n" % LONGEST_NAME
)


class EventReader:
    """Takes pieces of a stream and gives the events that are complete.

    With ``skips``, an event over the bound is cut and the stream goes on; else it raises ``EventTooLarge``.
    """

    def __init__(self, most: int, *, skips: bool = False) -> None:
        self._most = most
        self._skips = skips
        self._head: bytes | None = None
        self._at_line_start = True
        self._line: list[bytes] = []
        self._size = 0
        self._held = 0
        self._after_return = False
        self._name = ""
        self._data: list[bytes] = []
        self._id = ""
        self._retry: int | None = None
        self._seen = False
        self._first, self._lead = True, b""

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """The events that end in this piece."""
        if self._first:
            chunk = self._lead + chunk
            if _BOM.startswith(chunk):
                self._lead = chunk
                return
            self._first, self._lead = False, b""
            chunk = chunk.removeprefix(_BOM)
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the second half of a CRLF that was cut: it ends no line of its own
        self._after_return = chunk.endswith(b"\r")
        # Only between two events: what was begun line by line must end so, or its fields would be lost.
        if not self._seen and not self._line and self._head is None:
            usual, at = self._usual(chunk)
            yield from usual
            chunk = chunk[at:]
        for piece in chunk.splitlines(keepends=True):
            if self._head is not None:
                if (event := self._skip(piece)) is not None:
                    yield event
                continue
            if not piece.endswith((b"\n", b"\r")):
                self._line.append(piece)
                self._count(len(piece))
                continue
            line = piece.rstrip(b"\r\n")
            if self._line:
                line = b"".join((*self._line, line))
                self._line = []
            if not line:
                if (event := self._complete()) is not None:
                    yield event
            else:
                self._take(line)

    @property
    def pending(self) -> int:
        """Bytes of the event that is not complete."""
        return self._size if self._head is None else 0

    def _usual(self, chunk: bytes) -> tuple[list[ServerEvent], int]:
        """The whole events at the beginning that are as most servers write them, and where the rest begins."""
        events, at = [], 0
        while (found := _USUAL.match(chunk, at)) is not None and len(found["data"]) <= self._most:
            at = found.end()
            if found["id"] is not None:
                self._id = found["id"].decode("utf-8", "replace")
            events.append(ServerEvent("message", found["data"], self._id, None))
        return events, at

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._most:
            self._cut()

    def _cut(self) -> None:
        """The event is over the bound: keep its beginning, and drop the rest as it comes."""
        if not self._skips:
            raise EventTooLarge
        in_line = bool(self._line)
        line = b"".join(self._line).removeprefix(b"data:").removeprefix(b" ") if not self._data else b""
        self._head = (b"\n".join(self._data) or line)[:HEAD_BYTES]
        self._line, self._data, self._seen, self._at_line_start = [], [], True, not in_line

    def _skip(self, piece: bytes) -> ServerEvent | None:
        """Drop a piece of an event that is over the bound; the event, once it has ended."""
        self._size += len(piece)
        if self._size > LONGEST_SKIP * self._most:
            raise EventTooLarge
        ends = piece.endswith((b"\n", b"\r"))
        over = ends and self._at_line_start and not piece.rstrip(b"\r\n")
        self._at_line_start = ends
        if not over:
            return None
        head, self._head = self._head, None
        event = self._complete()
        return event._replace(data=head or b"", cut=True) if event is not None else None

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if not field:
            return
        value = value.removeprefix(b" ")
        self._seen = True
        if field == b"data":
            self._data.append(value)
            # A line costs more than its bytes: an event of empty lines is bounded too.
            self._held += len(value) + (LINE_COST if len(self._data) > 1 else 0)
            self._size = self._held
            if self._size > self._most:
                self._cut()
        elif field == b"event":
            self._name = value[:LONGEST_NAME].decode("utf-8", "replace")
        elif field == b"id" and len(value) <= LONGEST_NAME and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit():
            self._retry = int(value[:9])

    def _complete(self) -> ServerEvent | None:
        seen, name, data, retry = self._seen, self._name, self._data, self._retry
        self._name, self._data, self._retry, self._seen = "", [], None, False
        self._size = self._held = 0
        if not seen:
            return None
        return ServerEvent(name or "message", data[0] if len(data) == 1 else b"\n".join(data), self._id, retry)


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
        self._reader = EventReader(limits.message_bytes, skips=skips)
        self._came: Iterator[ServerEvent] = iter(())
        self._chunk, self._at = b"", 0
        self._turns: Turns | None = None
        """The steps in which a large piece is read."""

    def __aiter__(self) -> ServerEvents:
        return self

    async def __anext__(self) -> ServerEvent:
        while True:
            try:
                for event in self._came:
                    return event
            except EventTooLarge as exc:
                raise ServerFailure(over_message_bound(self._limits)) from exc
            if self._at >= len(self._chunk):
                # Room is taken when an event has become large, and given back when it is complete: never for the
                # whole life of a stream, which may last for days.
                if (self._reader.pending > LARGE_BYTES) != (self._response.held > 0):
                    if self._response.held:
                        self._response.let_go()
                    else:
                        await self._response.hold(self._limits.message_bytes)
                chunk = await (self._response.next_chunk() if self._silence is None else self._within(self._silence))
                if chunk is None:
                    raise StopAsyncIteration
                self._chunk, self._at = chunk, 0
                self._turns = Turns() if len(chunk) > FED_BYTES else None
            elif self._turns is not None:
                await self._turns.offer()
            begin, self._at = self._at, self._at + FED_BYTES
            self._came = self._reader.feed(self._chunk[begin : self._at])

    async def _within(self, silence: float) -> bytes | None:
        with anyio.move_on_after(silence):
            return await self._response.next_chunk()
        raise ServerFailure(NetworkFailure(fault=NetworkFault.CLOSED, stood=True))


def over_message_bound(limits: Limits) -> OverBound:
    """The evidence of an answer that is too large."""
    return OverBound(bound="the size of a message", limit=limits.message_bytes, setting="holdfast.limits.messageBytes")
