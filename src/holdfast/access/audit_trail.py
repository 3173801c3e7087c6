"""The audit of a process: who did what, written by a thread, so that no call waits for a disk (SEC-15).

Theory of operation. The event loop makes a record and appends it to a queue: that is all that a call pays. A thread
takes what is in the queue ten times a second, hashes the arguments, and appends the lines to a file (``audit_files``).
It makes the file safe from a power cut once a second. It is woken once for many records: a wake for each one would cost
more than the record.

What can happen, and what holds then:

- The process is killed: what was recorded in the last second may be lost, nothing else. A line that was half written is
  the last one of its file.
- The disk is full, or the folder cannot be written: that is an alarm (``failing``), in the log and in the metrics. The
  thread tries again every second. Records wait in the queue, which has a bound.
- The queue is full: records are lost, and counted. The first record that can be written after that says how many.
- With ``required`` no call is made meanwhile: ``refusal`` says why.

What must never happen: the event loop waits for the thread; arguments are written that were not asked for; a secret is
written. Arguments have no bound of their own, so they are hashed and masked in the thread.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from opentelemetry import trace

from holdfast._version import __version__
from holdfast.access.audit_files import AuditFiles, AuditKey, AuditRecord, Checkpoint
from holdfast.core import Redactor, fault_line, masked_data
from holdfast.wire import BadJson, dumps, loads

__all__ = ["ArgumentsMode", "AuditTrail", "send_checkpoints"]

log = logging.getLogger("holdfast.audit")

ArgumentsMode: TypeAlias = Literal["hash", "masked"]
"""What a record has of the arguments: a keyed hash, or the arguments without secrets too."""

GATHER_SECONDS: Final = 0.1
"""How long records wait for others that are written with them."""

SYNC_SECONDS: Final = 1.0
"""How often what was written is made safe from a crash of the machine, and how often a failed write is tried again."""

CHECKPOINT_SECONDS: Final = 60.0

CLOSE_SECONDS: Final = 5.0
"""How long the end of a hub waits for the last records. A disk that hangs must not delay it for longer."""

MOST_RECORDS: Final = 20_000
MOST_BYTES: Final = 32 * 1024 * 1024
"""How much waits for a slow disk: records, and the bytes of their arguments. A single record always has room."""

LARGEST_SHOWN: Final = 64 * 1024
"""Bytes. Larger arguments are hashed, and not written in full; nor are those with too much text to be masked."""

LONGEST_TEXT: Final = 500
"""Characters of a name or a reason that a client or a server chose."""


_Entry: TypeAlias = "tuple[AuditRecord, bytes | msgspec.Raw | None]"
"""A record, and the arguments that belong to it. A plain tuple: one is made for each call."""


class AuditTrail:
    """Takes the records of one process and has them written."""

    def __init__(
        self,
        files: AuditFiles,
        key: AuditKey,
        *,
        arguments: ArgumentsMode = "hash",
        required: bool = False,
        redactor: Callable[[], Redactor] = Redactor,
        most_records: int = MOST_RECORDS,
    ) -> None:
        """``redactor`` returns what knows the secrets of the configuration in force."""
        self._files = files
        self._key = key
        self._arguments = arguments
        self._redactor = redactor
        self._most = most_records
        self.required = required
        self._queue: deque[_Entry] = deque()
        self._put = self._taken = 0
        """The bytes of arguments that were ever put into the queue, and ever taken out. Each has one writer."""
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self.failing = ""
        """Why records cannot be written now; empty if all is well."""
        self.written = self.lost = 0
        """How many records were written, and how many were lost, since the start."""
        self._lost_told = 0

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self._files.folder

    def __repr__(self) -> str:
        state = f"failing: {self.failing}" if self.failing else "well"
        return f"<AuditTrail {state} waiting={len(self._queue)} written={self.written} lost={self.lost}>"

    # For the event loop.

    def start(self) -> None:
        """Begin to write. Raises ``OSError`` if nothing can be written, and the audit is required."""
        try:
            self._files.write([])
        except OSError as exc:
            if self.required:
                raise
            self._failed(exc.strerror or str(exc))
        self._thread.start()

    def refusal(self) -> str:
        """Why no call may be made now; empty if calls may be made."""
        if not self.required:
            return ""
        if self.failing or not self._thread.is_alive():
            return f"the audit cannot be written ({self.failing or 'its writer ended'})"
        return "the audit is behind: too many records wait for the disk" if self._is_full(0) else ""

    def add(self, record: AuditRecord, arguments: bytes | msgspec.Raw | None = None) -> None:
        """Take a record, and the arguments that belong to it, whose size it says. Never waits."""
        size = record.argument_bytes
        if len(self._queue) >= self._most or (size and self._is_full(size)):
            self.lost += 1
            return
        self._put += size
        self._queue.append((record, arguments))
        if not self._wake.is_set():
            self._wake.set()

    def event(self, kind: str, **values: str) -> None:
        """Record what is no call: a login, an approval, a switch, a reload, a sign-in, a refusal at the door."""
        shown = {name: value[:LONGEST_TEXT] for name, value in values.items()}
        self.add(AuditRecord(time=datetime.now(UTC), event=kind, **shown))  # type: ignore[arg-type]  # texts all

    def _is_full(self, size: int) -> bool:
        waiting = self._put - self._taken
        return len(self._queue) >= self._most or (waiting > 0 and waiting + size > MOST_BYTES)

    def close(self) -> None:
        """Write what waits, and end the file well; gives up after a while. It blocks."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive() or self.failing:
            log.error("the audit was not closed: %s", self.failing or "its disk does not answer")

    # In the thread.

    def _run(self) -> None:
        sync_at = mark_at = time.monotonic()
        dirty = False
        while True:
            closing = self._closing.is_set()
            if not closing:
                self._wake.wait(SYNC_SECONDS if dirty or self.failing else None)
                closing = self._closing.wait(GATHER_SECONDS)
            self._wake.clear()
            try:
                dirty = self._write() or dirty
                now = time.monotonic()
                if dirty and (closing or now - sync_at >= SYNC_SECONDS):
                    self._files.sync()
                    sync_at, dirty = now, False
                if now - mark_at >= CHECKPOINT_SECONDS:
                    self._files.mark()
                    mark_at = now
                if closing:
                    self._files.close()
                self._recovered()
            except OSError as exc:
                self._failed(exc.strerror or str(exc))
                if not closing:
                    self._closing.wait(SYNC_SECONDS)
            if closing:
                return

    def _write(self) -> bool:
        """Write what waits; whether there was something."""
        self._files.flush()  # what an error held back comes first
        batch: list[AuditRecord] = []
        while self._queue:
            record, arguments = self._queue.popleft()
            try:
                batch.append(self._completed(record, arguments) if arguments is not None else record)
            except Exception as exc:  # noqa: BLE001 - one record that cannot be made must not end the audit
                self.lost += 1
                words = "a record of the audit could not be made: %s"
                log.error(words, fault_line(exc))  # noqa: TRY400 - one line for each fault (SEC-7)
        if (lost := self.lost) > self._lost_told:
            batch.append(AuditRecord(time=datetime.now(UTC), event="lost", count=lost - self._lost_told))
            log.error("%d records of the audit were lost", lost - self._lost_told)
            self._lost_told = lost
        if batch:
            self.written += len(batch)
            self._files.write(batch)
        return bool(batch)

    def _completed(self, record: AuditRecord, arguments: bytes | msgspec.Raw) -> AuditRecord:
        """A record with what takes a while to make."""
        content = memoryview(arguments)
        self._taken += len(content)
        record.argument_hash = self._key.arguments.digest(content).hex()[:32]
        if self._arguments == "masked" and len(content) <= LARGEST_SHOWN:
            with suppress(BadJson):
                shown = masked_data(loads(arguments), self._redactor())
                if isinstance(shown, dict):  # else it has too much text to be masked
                    record.arguments = msgspec.Raw(dumps(shown))
        return record

    def _failed(self, why: str) -> None:
        if not self.failing:
            log.error("the audit cannot be written to %s: %s; it is tried again every second", self.folder, why)
        self.failing = why

    def _recovered(self) -> None:
        if self.failing:
            log.warning("the audit is written again")
        self.failing = ""


# Checkpoints.

_tracer = trace.get_tracer("holdfast", __version__)


def send_checkpoints(syslog: str) -> Callable[[Checkpoint], None]:
    """Send checkpoints to the log of the machine, or of another one (``HOST:PORT``), and as spans by OTLP.

    An empty address sends nothing to syslog. A checkpoint that cannot be sent is told in the log: it is not needed to
    write the next record.
    """

    def send(point: Checkpoint) -> None:
        if syslog:
            try:
                _send_to_syslog(syslog, str(point))
            except OSError as exc:
                log.warning("a checkpoint of the audit did not reach syslog at %s: %s", syslog, exc.strerror or exc)
        span = _tracer.start_span("holdfast.audit.checkpoint")
        span.set_attribute("holdfast.audit.file", point.file)
        span.set_attribute("holdfast.audit.record", point.n)
        span.set_attribute("holdfast.audit.link", point.link)
        span.end()

    return send


_INFO_OF_AUTH: Final = 4 * 8 + 6
"""The facility ``auth`` and the level ``info``, as syslog writes them."""


def _send_to_syslog(address: str, text: str) -> None:
    """One datagram. The socket is opened each time: a log daemon may have been started again since the last one."""
    host, _, port = address.rpartition(":")
    target: tuple[str, int] | str = address
    family = socket.AF_UNIX
    if host and port.isdigit():
        family, _, _, _, found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        target = (str(found[0]), int(found[1]))
    with socket.socket(family, socket.SOCK_DGRAM) as stream:
        stream.settimeout(SYNC_SECONDS)
        stream.sendto(f"<{_INFO_OF_AUTH}>holdfast: {text}".encode(), target)
