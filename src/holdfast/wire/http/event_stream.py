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
from collections import deque
from typing import NamedTuple

import anyio
import msgspec

from holdfast.config import Limits
from holdfast.core import NetworkFailure, NetworkFault, OverBound
from holdfast.errors import ServerFailure
from holdfast.turns import Turns
from holdfast.wire.http.connection import LARGE_BYTES, Response

__all__ = ["EVENT_STREAM", "EventReader", "ServerEvent", "ServerEvents", "over_message_bound"]

EVENT_STREAM = "text/event-stream"
"""The content type of a stream of server-sent events."""

FED_BYTES = 16 * 1024
"""How much of a stream is read in one piece: it may hold thousands of empty lines."""

LINE_COST = 64
"""How many bytes a line of an event counts beyond its own: an empty ``data`` line is a Python object too."""

LONGEST_NAME = 1_024
"""Bytes of the name of an event, and of its id."""


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


class EventReader(msgspec.Struct, eq=False):
    """Takes pieces of a stream and gives the events that are complete.

    With ``skips``, an event over the bound is cut and the stream goes on; else it is ``too_large``, and nothing more is
    read.
    """

    most: int
    skips: bool = False
    too_large: bool = False
    """Whether the stream has to be given up for the size of its latest event."""
    size: int = 0
    """Bytes of the event that is not complete, unless it is being skipped."""
    _head: bytes | None = None
    """The beginning of the event that is being skipped."""
    _skipped: int = 0
    _at_line_start: bool = True
    _line: list[bytes] = []
    """The parts of a line whose end is not here."""
    _held: int = 0
    """What the lines of the event count that are here."""
    _after_return: bool = False
    _name: str = ""
    _data: list[bytes] = []
    _id: str = ""
    _retry: int | None = None
    _seen: bool = False
    """Whether the event has a field."""
    _first: bool = True
    _lead: bytes = b""
    """The beginning of what may be a byte order mark."""

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that end in this piece. Look at ``too_large`` when they are taken."""
        events: list[ServerEvent] = []
        if self._first:
            chunk = self._lead + chunk
            if _BOM.startswith(chunk):
                self._lead = chunk
                return events
            self._first, self._lead = False, b""
            chunk = chunk.removeprefix(_BOM)
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the second half of a CRLF that was cut: it ends no line of its own
        self._after_return = chunk.endswith(b"\r")
        # Only between two events: what was begun line by line must end so, or its fields would be lost.
        if not self._seen and not self._line and self._head is None:
            at = 0
            while (found := _USUAL.match(chunk, at)) is not None and len(found["data"]) <= self.most:
                at = found.end()
                if found["id"] is not None:
                    self._id = found["id"].decode("utf-8", "replace")
                events.append(ServerEvent("message", found["data"], self._id, None))
            chunk = chunk[at:]
        for piece in chunk.splitlines(keepends=True):
            if self.too_large:
                break
            if self._head is not None:
                self._skip(piece, events)
            elif not piece.endswith((b"\n", b"\r")):
                self._line.append(piece)
                self._bound(self.size + len(piece))
            elif line := b"".join((*self._line, piece.rstrip(b"\r\n"))):
                self._take(line)
            else:
                self._complete(events)
        return events

    def _bound(self, size: int) -> None:
        """The event has this size. Of one over the bound the beginning is kept; the rest is dropped as it comes."""
        self.size = size
        if size <= self.most:
            return
        if not self.skips:
            self.too_large = True
        in_line = bool(self._line)
        line = b"".join(self._line).removeprefix(b"data:").removeprefix(b" ") if not self._data else b""
        self._head = (b"\n".join(self._data) or line)[:HEAD_BYTES]
        self._skipped, self.size = size, 0
        self._line, self._data, self._seen, self._at_line_start = [], [], True, not in_line

    def _skip(self, piece: bytes, events: list[ServerEvent]) -> None:
        """Drop a piece of an event that is over the bound; give its beginning, once it has ended."""
        self._skipped += len(piece)
        self.too_large = self._skipped > LONGEST_SKIP * self.most
        ends = piece.endswith((b"\n", b"\r"))
        over = ends and self._at_line_start and not piece.rstrip(b"\r\n")
        self._at_line_start = ends
        if over:
            self._complete(events)

    def _take(self, line: bytes) -> None:
        self._line.clear()
        self.size = self._held  # its parts count no longer: a stream may have comments alone for days
        field, _, value = line.partition(b":")
        if not field:
            return
        value = value.removeprefix(b" ")
        self._seen = True
        if field == b"data":
            self._data.append(value)
            # A line costs more than its bytes: an event of empty lines is bounded too.
            self._held += len(value) + (LINE_COST if len(self._data) > 1 else 0)
            self._bound(self._held)
        elif field == b"event":
            self._name = value[:LONGEST_NAME].decode("utf-8", "replace")
        elif field == b"id" and len(value) <= LONGEST_NAME and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit():
            self._retry = int(value[:9])

    def _complete(self, events: list[ServerEvent]) -> None:
        """An empty line ended the event. One without a field is none: a comment stood there."""
        if self._seen:
            cut = self._head is not None
            data = self._head or (self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
            events.append(ServerEvent(self._name or "message", data, self._id, self._retry, cut))
        self._head, self._name, self._data, self._retry, self._seen = None, "", [], None, False
        self.size = self._held = 0

    def __repr__(self) -> str:
        state = "gave up" if self.too_large else "skips" if self._head is not None else "reads"
        return f"<EventReader {state} size={self.size}>"


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
