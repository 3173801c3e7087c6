"""Logs: the output of the process, and the last lines of each server.

Theory of operation. There are two ways out, and each masks at its end.

* One handler (``LogHandler``) takes everything that Holdfast and its libraries log, so every line is masked. A server
  that fails writes the same warning again and again: a repeated line is written once, then counted, and the count is
  written after ``WINDOW_SECONDS``. Numbers in a line may differ, texts may not (``_same``).
* The buffer (``LogBuffer``) keeps the stderr of each server and the hub's own lines about it, as they came.
  They are masked when they are read: a secret that became known later is masked too, and a line that is not read costs
  no masking. The buffer is bounded and holds what a follower has not read yet, so a slow reader loses its oldest lines
  and delays no server.

What must never happen: a secret is shown, also half of one in a line that was cut; a line of a server looks like a line
of the hub; memory grows with what a server writes; many long lines hold up the event loop (``IN_A_ROW``).
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import anyio
import anyio.lowlevel
from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

from holdfast.control.models import LogLine
from holdfast.core import Redactor, State, fault_line, masked_data
from holdfast.hub import (
    CallEnded,
    CallOutcome,
    HubRecord,
    Transition,
    as_fields,
    server_text,
)
from holdfast.wire import LONGEST_LINE, LONGEST_SECRET

__all__ = [
    "WINDOW_SECONDS",
    "ConsoleFormatter",
    "JsonFormatter",
    "LogBuffer",
    "LogHandler",
    "RepeatedLine",
    "log_text",
]

TRACED_FRAMES, TRACED_CAUSES, LONGEST_TRACE = 12, 3, 8_000
"""What is written of a fault in the hub itself: frames, exceptions before it, and characters."""

WINDOW_SECONDS = 30.0
"""How long repetitions of a line are counted instead of written."""

_LOGGED: frozenset[CallOutcome] = frozenset({"denied", "timed_out"})
"""The outcomes of calls that have a line of their own."""

MOST_COUNTED = 500
"""How many different lines are counted at a time; over it, the oldest count is written early."""


@dataclass
class RepeatedLine:
    """A line that was written, and the count of its repetitions."""

    line: logging.LogRecord
    since: float
    times: int = 0


ANSWERS = frozenset({"holdfast.reload"})
"""Loggers that answer an action of a user: an equal mistake made twice is reported twice."""


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes each line once; repeated warnings and errors are counted, and the count is written later."""

    def __init__(
        self, stream: TextIO, lines: ConsoleFormatter | JsonFormatter, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(stream)
        self.setFormatter(lines)
        self._lines = lines
        self._now = now
        self._counted: dict[Hashable, RepeatedLine] = {}
        """The lines whose repetitions are counted now, the oldest first."""

    def know(self, secrets: Iterable[str]) -> Redactor:
        """Mask these secrets from now on, and what has the shape of a secret; returns what masks them."""
        self._lines.redactor = Redactor(secrets)
        return self._lines.redactor

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it. The caller holds the handler's lock."""
        # What is due is written before the line itself: a count belongs to the lines above it.
        now = self._now()
        self._write_counts(now)
        if record.levelno >= logging.WARNING and record.name not in ANSWERS:
            key = _same(record)
            if (counted := self._counted.get(key)) is not None:
                counted.times += 1
                return
            self._counted[key] = RepeatedLine(record, now)
        super().emit(record)

    def tick(self, *, every: bool = False) -> None:
        """Write the due counts, also when nothing else is logged; at the end ``every`` one."""
        self.acquire()
        try:
            self._write_counts(self._now(), every=every)
        finally:
            self.release()

    def close(self) -> None:
        """Write the remaining counts."""
        self.tick(every=True)
        super().close()

    def _write_counts(self, now: float, *, every: bool = False) -> None:
        """Write the counts that are due; a line without repetition has none."""
        for key, one in [*self._counted.items()]:
            if not every and now - one.since < WINDOW_SECONDS and len(self._counted) <= MOST_COUNTED:
                return
            del self._counted[key]
            if one.times:
                # A copy: the record of the first line may still be in the hands of another handler.
                again = logging.makeLogRecord(one.line.__dict__)
                again.created = time.time()
                again.repeated = (one.times, min(now - one.since, WINDOW_SECONDS))
                super().emit(again)


class _MaskingFormatter(logging.Formatter):
    """The part that both formatters share."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self.redactor = Redactor()
        self._worker = worker
        """The number of this process, if several serve together."""

    def message(self, record: logging.LogRecord) -> str:
        """Return the masked message; for a count, with the number of repetitions."""
        text = self.redactor.mask(record.getMessage())
        repeated = getattr(record, "repeated", None)
        if repeated is None:
            return text
        times, seconds = repeated
        return f"{text} … repeated {times} time{'s' if times != 1 else ''} in {seconds:.0f} s"

    def trace(self, record: logging.LogRecord) -> str:
        """Return the masked traceback, if there is one; a count does not repeat it."""
        if record.exc_info is None or record.exc_info[0] is None or hasattr(record, "repeated"):
            return ""
        return self.redactor.mask(_trace_of(record.exc_info[1]))


def _trace_of(exc: BaseException) -> str:
    """The last frames of an exception, and a line for each of its causes: a fault in a loop of calls has thousands."""
    lines = [*traceback.format_exception(exc, limit=-TRACED_FRAMES, chain=False)]
    for _ in range(TRACED_CAUSES):
        before = exc.__cause__ or exc.__context__
        if before is None:
            break
        lines.append(f"after {fault_line(before)}\n")
        exc = before
    return "".join(lines)[:LONGEST_TRACE].rstrip()


class ConsoleFormatter(_MaskingFormatter):
    """For people: the time, the level from warning on, and the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one entry; further lines are indented, so that a server's text cannot look like a line of the hub."""
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        whose = "" if record.name.partition(".")[0] == "holdfast" else f"{record.name}: "
        trace = self.trace(record)
        text = self.message(record) + (f"\n{trace}" if trace else "")
        worker = f"[{self._worker}] " if self._worker is not None else ""
        return f"{at} {worker}{level}{whose}" + text.replace("\n", "\n    ")


class JsonFormatter(_MaskingFormatter):
    """For programs: one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return ``time``, ``level``, ``logger``, ``message``, the trace ids and the fields of the hub's record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
        }
        if self._worker is not None:
            line["worker"] = self._worker
        if not hasattr(record, "repeated") and (traced := get_current_span().get_span_context()).is_valid:
            line["trace_id"], line["span_id"] = format_trace_id(traced.trace_id), format_span_id(traced.span_id)
        about = getattr(record, "record", None)
        if about is not None:
            line |= {name: masked_data(value, self.redactor) for name, value in as_fields(about).items()}
        if hasattr(record, "repeated"):
            line["repeated"], line["within_seconds"] = record.repeated[0], round(record.repeated[1], 1)
        if trace := self.trace(record):
            line["exception"] = trace
        return json.dumps(line, ensure_ascii=False, default=str)


def _same(record: logging.LogRecord) -> Hashable:
    """Return the key of equal lines: numbers may differ, texts may not."""
    args = record.args if isinstance(record.args, tuple) else (record.args,)
    values = tuple(type(arg) if isinstance(arg, int | float) else str(arg) for arg in args)
    return record.name, record.levelno, str(record.msg), values


MOST_LINES = 1_000
MOST_BYTES = 128 * 1024
"""Limits for each server; over either, the oldest lines are dropped."""


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
    """One server's last lines.

    A follower is nothing but a number: how many of the server's lines it has seen. One that is slower than the server
    finds the oldest of the others gone.
    """

    def __init__(self) -> None:
        self.lines: deque[_Line] = deque()
        self.count = 0
        """How many lines there ever were."""
        self.changed = anyio.Event()
        """Set by the next line, or by the end."""
        self.ended = False
        self._bytes = 0

    def add(self, line: _Line) -> None:
        self.lines.append(line)
        self.count += 1
        self._bytes += len(line.raw)
        while self._bytes > MOST_BYTES or len(self.lines) > MOST_LINES:
            self._bytes -= len(self.lines.popleft().raw)
        self._wake()

    def since(self, count: int) -> list[_Line]:
        """The lines after the first ``count``, as far as they are kept."""
        return list(self.lines)[-(self.count - count) :] if self.count > count else []

    def end(self) -> None:
        """End the streams of all followers."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


IN_A_ROW = 16 * 1024
"""Bytes of lines that are masked before other tasks get a turn: one line may have 8 KiB, and a thousand may wait."""


async def _in_turns(lines: list[_Line]) -> AsyncGenerator[list[LogLine], None]:
    """The lines as they are shown, some at a time."""
    some: list[LogLine] = []
    size = 0
    for line in lines:
        # A short line costs something too.
        size += len(line.raw) + 256
        some.append(line.shown())
        if size > IN_A_ROW:
            yield some
            some, size = [], 0
            await anyio.lowlevel.checkpoint()
    if some:
        yield some


class LogBuffer:
    """The log lines of every server."""

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._logs: dict[str, _ServerLog] = defaultdict(_ServerLog)
        self._unmasked = Redactor()

    def add_stderr(self, server: str, line: bytes, redactor: Redactor) -> None:
        """Add a line that a server's process wrote to stderr."""
        self._logs[server].add(_Line(self._wall(), "stderr", "", line, redactor))

    def handle(self, record: HubRecord) -> None:
        """Add the hub's line about a record, if it has one."""
        if (line := log_text(record)) is not None:
            server, level, text = line
            self._logs[server].add(_Line(self._wall(), "hub", level, text.encode(), self._unmasked))

    async def last(self, server: str, most: int) -> tuple[LogLine, ...]:
        """Return the last lines, oldest first."""
        book = self._logs.get(server)
        if book is None:
            return ()
        return tuple([line async for some in _in_turns(list(book.lines)[-most:]) for line in some])

    async def follow(self, server: str, *, silence: float, last: int = 0) -> AsyncGenerator[list[LogLine], None]:
        """Yield the last lines, then new ones as they come; an empty list after ``silence`` seconds without any."""
        book = self._logs[server]
        seen = book.count - last
        while True:
            # All at one moment: while these lines are sent, more may come before the end, and they are sent too.
            changed, ended, waiting, seen = book.changed, book.ended, book.since(seen), book.count
            async for some in _in_turns(waiting):
                yield some
            if not waiting:
                yield []
            if ended:
                return
            with anyio.move_on_after(silence):
                await changed.wait()

    def forget(self, server: str) -> None:
        """Drop a server that is no longer configured."""
        if (book := self._logs.pop(server, None)) is not None:
            book.end()

    def close(self) -> None:
        """End every stream."""
        for book in self._logs.values():
            book.end()


def log_text(record: HubRecord) -> tuple[str, str, str] | None:
    """Return the server, level and text of the hub's line about a record; the texts in records are masked already."""
    if isinstance(record, CallEnded):
        if record.outcome not in _LOGGED:
            return None
        return record.server, "warning", f"{record.method} {record.outcome}: {record.reason}"
    if (told := server_text(record)) is None:
        return None
    server, level, text = told
    gives_up = isinstance(record, Transition) and record.new in (State.DENIED, State.PERMANENTLY_FAILED)
    return server, "warning" if gives_up else logging.getLevelName(level).lower(), text
