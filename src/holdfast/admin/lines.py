"""The last lines about each server: what its process wrote to stderr, and what the hub noted of it.

Kept as they came and masked when they are read: a server that floods its stderr costs little, and a secret that
was learned since is masked too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Literal

import anyio

from holdfast.control.models import LogLine
from holdfast.core.breaker import Tripped
from holdfast.core.redact import Redactor
from holdfast.hub.records import (
    BreakerChanged,
    CallEnded,
    CloseFailed,
    HubRecord,
    RetryPlanned,
    ToolApproved,
    ToolChanged,
    Transition,
)
from holdfast.wire.process import LONGEST_LINE, LONGEST_SECRET

__all__ = ["Lines", "noted"]

MOST_LINES = 1_000
MOST_BYTES = 128 * 1024
"""For each server; over either, the oldest lines go."""

BACKLOG = 1_000
"""Lines that wait for a slow reader; then the oldest give way."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One line, as it came."""

    at: float
    source: Literal["stderr", "hub"]
    level: str
    raw: bytes
    redactor: Redactor = field(repr=False)

    def shown(self) -> LogLine:
        text = self.redactor.mask(self.raw.decode("utf-8", "replace")).rstrip()
        if len(self.raw) >= LONGEST_LINE:
            # It was cut, perhaps in the middle of a secret, which is not known by its half.
            text = f"{text[:-LONGEST_SECRET]}…"
        return LogLine(at=self.at, source=self.source, level=self.level, text=text)


class _Book:
    """One server's lines, and who follows them."""

    def __init__(self) -> None:
        self.lines: deque[_Line] = deque()
        self.readers: set[_Reader] = set()
        self.ended = False
        self._bytes = 0

    def add(self, line: _Line) -> None:
        self.lines.append(line)
        self._bytes += len(line.raw)
        while self._bytes > MOST_BYTES or len(self.lines) > MOST_LINES:
            self._bytes -= len(self.lines.popleft().raw)
        for reader in self.readers:
            reader.put(line)

    def end(self) -> None:
        """Nobody hears more of it."""
        self.ended = True
        for reader in self.readers:
            reader.came.set()


class _Reader:
    """What waits for one who follows."""

    def __init__(self) -> None:
        self._waiting: deque[_Line] = deque(maxlen=BACKLOG)
        self.came = anyio.Event()

    def put(self, line: _Line) -> None:
        self._waiting.append(line)
        self.came.set()

    def take(self) -> list[LogLine]:
        taken = [line.shown() for line in self._waiting]
        self._waiting.clear()
        self.came = anyio.Event()
        return taken


class Lines:
    """Every server's lines."""

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._books: dict[str, _Book] = {}
        self._unmasked = Redactor()

    def heard(self, server: str, line: bytes, redactor: Redactor) -> None:
        """A server's process wrote a line to its stderr."""
        self._book(server).add(_Line(self._wall(), "stderr", "", line, redactor))

    def happened(self, record: HubRecord) -> None:
        """Take a record; what is worth a line becomes one."""
        if (note := noted(record)) is not None:
            server, level, text = note
            self._book(server).add(_Line(self._wall(), "hub", level, text.encode(), self._unmasked))

    def last(self, server: str, most: int) -> tuple[LogLine, ...]:
        """The last lines, the oldest first."""
        book = self._books.get(server)
        return tuple(line.shown() for line in list(book.lines)[-most:]) if book is not None else ()

    async def follow(self, server: str, *, silence: float, last: int = 0) -> AsyncGenerator[list[LogLine], None]:
        """The last lines, and those from now on as they come; none where nothing came for so many seconds."""
        book, reader = self._book(server), _Reader()
        book.readers.add(reader)
        try:
            if last:
                yield list(self.last(server, last))
            while not book.ended:
                yield reader.take()
                with anyio.move_on_after(silence):
                    await reader.came.wait()
            yield reader.take()
        finally:
            book.readers.discard(reader)

    def forget(self, server: str) -> None:
        """It is no longer configured."""
        if (book := self._books.pop(server, None)) is not None:
            book.end()

    def close(self) -> None:
        """End every stream."""
        for book in self._books.values():
            book.end()

    def _book(self, server: str) -> _Book:
        book = self._books.get(server)
        if book is None:
            book = self._books[server] = _Book()
        return book


def noted(record: HubRecord) -> tuple[str, str, str] | None:
    """What the hub notes of a server: whose, how grave, and the words; every text in a record is masked already."""
    match record:
        case Transition():
            because = f": {record.reason}" if record.reason else ""
            grave = record.new.value in ("denied", "permanently_failed")
            text = f"{record.old.value} -> {record.new.value} ({record.cause}){because}"
            return record.server, "warning" if grave else "info", text
        case RetryPlanned():
            return record.server, "info", f"attempt {record.attempt} in {record.delay:.1f} s"
        case BreakerChanged(change=Tripped() as trip):
            text = f"breaker open for {trip.retry_in:.0f} s after {trip.failures} failures"
            return record.server, "warning", text
        case BreakerChanged():
            text = f"breaker closed; {record.change.refused} calls were refused meanwhile"
            return record.server, "info", text
        case CloseFailed():
            return record.server, "warning", f"an old connection did not close cleanly: {record.error}"
        case ToolChanged():
            held = ": it is held until the change is approved" if record.held else ""
            return record.server, "warning", f"the tool {record.tool} is not what it was when it was first seen{held}"
        case ToolApproved():
            return record.server, "info", f"the change of the tool {record.tool} is approved"
        case CallEnded(outcome="denied" | "timed_out"):
            return record.server, "warning", f"{record.method} {record.outcome}: {record.reason}"
    return None
