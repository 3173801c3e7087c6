"""The last log lines of each server: the stderr of its process, and the hub's own lines about it.

Lines are kept as they came and masked when they are read: a server that floods its stderr costs little, and a
secret that became known later is masked too.
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
from holdfast.core.lifecycle.table import State
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

__all__ = ["LogBuffer", "log_text", "transition_text"]

MOST_LINES = 1_000
MOST_BYTES = 128 * 1024
"""Limits for each server; over either, the oldest lines are dropped."""

BACKLOG = 1_000
"""Lines that wait for a slow reader; then the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One line, not yet masked."""

    at: float
    source: Literal["stderr", "hub"]
    level: str
    raw: bytes
    redactor: Redactor = field(repr=False)

    def shown(self) -> LogLine:
        text = self.redactor.mask(self.raw.decode("utf-8", "replace")).rstrip()
        if len(self.raw) >= LONGEST_LINE:
            # It was cut, perhaps inside a secret, and half a secret is not recognised.
            text = f"{text[:-LONGEST_SECRET]}…"
        return LogLine(at=self.at, source=self.source, level=self.level, text=text)


class _ServerLog:
    """One server's lines and their followers."""

    def __init__(self) -> None:
        self.lines: deque[_Line] = deque()
        self.readers: set[_LogFollower] = set()
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
        """End the streams of all followers."""
        self.ended = True
        for reader in self.readers:
            reader.came.set()


class _LogFollower:
    """The lines that wait for one follower."""

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


class LogBuffer:
    """The log lines of every server."""

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._logs: dict[str, _ServerLog] = {}
        self._unmasked = Redactor()

    def add_stderr(self, server: str, line: bytes, redactor: Redactor) -> None:
        """Add a line that a server's process wrote to stderr."""
        self._log_of(server).add(_Line(self._wall(), "stderr", "", line, redactor))

    def handle(self, record: HubRecord) -> None:
        """Add the hub's line about a record, if it has one."""
        if (line := log_text(record)) is not None:
            server, level, text = line
            self._log_of(server).add(_Line(self._wall(), "hub", level, text.encode(), self._unmasked))

    def last(self, server: str, most: int) -> tuple[LogLine, ...]:
        """Return the last lines, oldest first."""
        book = self._logs.get(server)
        return tuple(line.shown() for line in list(book.lines)[-most:]) if book is not None else ()

    async def follow(self, server: str, *, silence: float, last: int = 0) -> AsyncGenerator[list[LogLine], None]:
        """Yield the last lines, then new ones as they come; an empty list after ``silence`` seconds without any."""
        book, reader = self._log_of(server), _LogFollower()
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
        """Drop a server that is no longer configured."""
        if (book := self._logs.pop(server, None)) is not None:
            book.end()

    def close(self) -> None:
        """End every stream."""
        for book in self._logs.values():
            book.end()

    def _log_of(self, server: str) -> _ServerLog:
        book = self._logs.get(server)
        if book is None:
            book = self._logs[server] = _ServerLog()
        return book


def log_text(record: HubRecord) -> tuple[str, str, str] | None:
    """Return the server, level and text of the hub's line about a record; the texts in records are masked already."""
    match record:
        case Transition():
            level = "warning" if record.new in (State.DENIED, State.PERMANENTLY_FAILED) else "info"
            return record.server, level, transition_text(record)
        case RetryPlanned():
            return record.server, "info", f"reconnect attempt {record.attempt} in {record.delay:.1f} s"
        case BreakerChanged(change=Tripped() as trip):
            text = f"breaker open for {trip.retry_in:.0f} s after {trip.failures} failures"
            return record.server, "warning", text
        case BreakerChanged():
            text = f"breaker closed; {record.change.refused} calls were refused while it was open"
            return record.server, "info", text
        case CloseFailed():
            return record.server, "warning", f"an old connection did not close cleanly: {record.error}"
        case ToolChanged():
            held = "; it is held until the change is approved" if record.held else ""
            return record.server, "warning", f"the tool {record.tool} changed since it was first seen{held}"
        case ToolApproved():
            return record.server, "info", f"the change of the tool {record.tool} was approved"
        case CallEnded(outcome="denied" | "timed_out"):
            return record.server, "warning", f"{record.method} {record.outcome}: {record.reason}"
    return None


def transition_text(record: Transition) -> str:
    """Return what happened in words: ``lost: its process exited with code 3; reconnecting``."""
    because = f": {record.reason}" if record.reason else ""
    match record.new:
        case State.CONNECTED:
            return "connected"
        case State.CONNECTING:
            return f"{_START.get(record.cause, 'connecting')}{because}"
        case State.RECONNECTING:
            return f"{_LOSS.get(record.cause, 'connect failed')}{because}; reconnecting"
        case State.PERMANENTLY_FAILED:
            return f"parked{because}"
        case State.IDLE:
            return "idle: it starts at its next use"
        case State.DISCONNECTED:
            return _END.get(record.cause, "disconnected")
    return f"{record.new.value}{because}"


_START = {
    "ConfigChanged": "its configuration changed; connecting",
    "EnableRequested": "enabled; connecting",
    "LoginSucceeded": "logged in; connecting",
    "ReconnectRequested": "reconnect requested; connecting",
}
_LOSS = {
    "Faltered": "lost after repeated failures",
    "ReconnectRequested": "reconnect requested",
    "SessionExpired": "its session expired",
    "TransportLost": "lost",
}
_END = {"RemoveRequested": "removed from the configuration", "ShutdownRequested": "the hub stops"}
