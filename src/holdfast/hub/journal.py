"""The journal passes every record to all its listeners: the log, the sinks, and the readers of a stream."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable

import anyio

from holdfast.core.redact import Redactor
from holdfast.hub.clock import Clock
from holdfast.hub.loglines import write_to_log
from holdfast.hub.records import CallEnded, HubRecord, Missed, OfOneClient, Published, Sink
from holdfast.wire.process import OnStderr

__all__ = ["CallEnded", "HubRecord", "Journal", "Missed", "OfOneClient", "Published", "Sink"]

log = logging.getLogger("holdfast.hub")

BACKLOG = 1024
"""How many records wait for a slow listener; then the oldest are dropped, and a ``Missed`` says how many."""


class Journal:
    """Passes records on. No listener can delay it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._listeners: set[_Listener] = set()
        self._sinks: list[Sink] = [write_to_log]
        self._stderr_readers: list[OnStderr] = []
        self._closed = False

    def add_sink(self, sink: Sink) -> Callable[[], None]:
        """Call a function with every record at once; it must not wait. The result ends it."""
        self._sinks.append(sink)
        return lambda: self._sinks.remove(sink)

    def add_stderr_reader(self, reader: OnStderr) -> None:
        """Call a function with every line that a server's process writes to stderr; it must not wait."""
        self._stderr_readers.append(reader)

    def stderr_line(self, server: str, line: bytes, redactor: Redactor) -> None:
        """Pass on a line of a process's stderr. It is not a record, because there may be any number of them."""
        for reader in self._stderr_readers:
            reader(server, line, redactor)

    def write(self, record: HubRecord) -> None:
        """Pass a record to all listeners. Calls go to the sinks alone: they would push the rest out of a backlog."""
        self._call_sinks(record)
        if not isinstance(record, CallEnded):
            for listener in self._listeners:
                listener.put(record)

    def records(self) -> AsyncIterator[HubRecord]:
        """Every record except those of calls, from now on (not from the first read), until the hub is closed."""
        listener = _Listener()
        self._listeners.add(listener)
        return self._records(listener)

    async def _records(self, listener: _Listener) -> AsyncIterator[HubRecord]:
        try:
            while not self._closed or listener.waiting:
                for record in listener.take():
                    if isinstance(record, Missed):
                        self._call_sinks(record)
                    yield record
                if not self._closed:
                    await listener.came.wait()
        finally:
            self._listeners.discard(listener)

    def _call_sinks(self, record: HubRecord) -> None:
        for sink in tuple(self._sinks):
            try:
                sink(record)
            except Exception as exc:  # noqa: BLE001 - a fault in a user's sink must not stop the hub
                log.warning("a listener of the hub's records failed: %s", type(exc).__name__)

    def close(self) -> None:
        """No more records will come."""
        self._closed = True
        for listener in self._listeners:
            listener.came.set()


class _Listener:
    """The records that wait for one listener."""

    def __init__(self) -> None:
        self.waiting: deque[HubRecord] = deque(maxlen=BACKLOG)
        self.came = anyio.Event()
        self._missed = 0

    def put(self, record: HubRecord) -> None:
        self._missed += len(self.waiting) == BACKLOG
        self.waiting.append(record)
        self.came.set()

    def take(self) -> list[HubRecord]:
        taken: list[HubRecord] = [Missed(count=self._missed)] if self._missed else []
        taken += self.waiting
        self.waiting.clear()
        self._missed = 0
        self.came = anyio.Event()
        return taken
