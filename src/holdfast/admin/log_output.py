"""The log output: for people or for programs, masked, with repeated lines counted.

One handler takes everything that Holdfast and its libraries log in the process, so every line is masked.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

from holdfast.admin.log_folding import RepeatedLine, RepeatedLines
from holdfast.core.redact import Redactor
from holdfast.hub.records import as_fields

__all__ = ["ConsoleLines", "JsonLines", "LogHandler"]

ANSWERS = frozenset({"holdfast.reload"})
"""Loggers that answer an action of a user: an equal mistake made twice is reported twice."""


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes each line once; repeated warnings and errors are counted, and the count is written later."""

    def __init__(
        self, stream: TextIO, lines: ConsoleLines | JsonLines, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(stream)
        self.setFormatter(lines)
        self._lines = lines
        self._now = now
        self._repeated: RepeatedLines[logging.LogRecord] = RepeatedLines()

    def know(self, secrets: Iterable[str]) -> None:
        """Mask these secrets from now on, and what has the shape of a secret."""
        self._lines.redactor = Redactor(secrets)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it. The caller holds the handler's lock."""
        now = self._now()
        self._write_counts(self._repeated.due(now), now)
        once = record.levelno < logging.WARNING or record.name in ANSWERS
        if once or self._repeated.is_new(_same(record), record, now):
            super().emit(record)

    def tick(self) -> None:
        """Write the due counts, also when nothing else is logged."""
        self._locked(self._repeated.due)

    def close(self) -> None:
        """Write the remaining counts."""
        self._locked(lambda _: self._repeated.rest())
        super().close()

    def _locked(self, counted: Callable[[float], Iterable[RepeatedLine[logging.LogRecord]]]) -> None:
        self.acquire()
        try:
            now = self._now()
            self._write_counts(counted(now), now)
        finally:
            self.release()

    def _write_counts(self, counted: Iterable[RepeatedLine[logging.LogRecord]], now: float) -> None:
        for one in counted:
            again = logging.makeLogRecord(one.line.__dict__)
            again.created = time.time()
            again.repeated = (one.times, one.seconds(now))
            super().emit(again)


class _MaskingFormatter(logging.Formatter):
    """The part that both formatters share."""

    def __init__(self) -> None:
        super().__init__()
        self.redactor = Redactor()

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
        return self.redactor.mask(self.formatException(record.exc_info))


class ConsoleLines(_MaskingFormatter):
    """For people: the time, the level from warning on, and the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one entry; further lines are indented, so that a server's text cannot look like a line of the hub."""
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        whose = "" if record.name.partition(".")[0] == "holdfast" else f"{record.name}: "
        trace = self.trace(record)
        text = self.message(record) + (f"\n{trace}" if trace else "")
        return f"{at} {level}{whose}" + text.replace("\n", "\n    ")


class JsonLines(_MaskingFormatter):
    """For programs: one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return ``time``, ``level``, ``logger``, ``message``, the trace ids and the fields of the hub's record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
        }
        if not hasattr(record, "repeated") and (traced := get_current_span().get_span_context()).is_valid:
            line["trace_id"], line["span_id"] = format_trace_id(traced.trace_id), format_span_id(traced.span_id)
        about = getattr(record, "record", None)
        if about is not None:
            line |= self._masked(as_fields(about))
        if hasattr(record, "repeated"):
            line["repeated"], line["within_seconds"] = record.repeated[0], round(record.repeated[1], 1)
        if trace := self.trace(record):
            line["exception"] = trace
        return json.dumps(line, ensure_ascii=False, default=str)

    def _masked(self, value: Any) -> Any:
        match value:
            case str():
                return self.redactor.mask(value)
            case Mapping():
                return {key: self._masked(one) for key, one in value.items()}
            case list() | tuple():
                return [self._masked(one) for one in value]
            case _:
                return value


def _same(record: logging.LogRecord) -> Hashable:
    """Return the key of equal lines: numbers may differ, texts may not."""
    args = record.args if isinstance(record.args, tuple) else (record.args,)
    values = tuple(type(arg) if isinstance(arg, int | float) else str(arg) for arg in args)
    return record.name, record.levelno, str(record.msg), values
