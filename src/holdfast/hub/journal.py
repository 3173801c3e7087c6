"""Everything worth telling is one record, told once to everyone who listens: the log first of all."""

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
"""How many records wait for a slow listener; then the oldest give way, and it is told how many."""


class Journal:
    """Takes records from the slots and hands them on; nobody who listens can hold it up."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._listeners: set[_Listener] = set()
        self._sinks: list[Sink] = [write_to_log]
        self._readers: list[OnStderr] = []
        self._closed = False

    def add_sink(self, sink: Sink) -> Callable[[], None]:
        """Have every record told to a function, at once; it must not wait. What is returned ends it."""
        self._sinks.append(sink)
        return lambda: self._sinks.remove(sink)

    def add_reader(self, reader: OnStderr) -> None:
        """Have what servers' processes write to stderr told to a function, line by line; it must not wait."""
        self._readers.append(reader)

    def heard(self, server: str, line: bytes, redactor: Redactor) -> None:
        """A server's process wrote a line to its stderr: no record, since there may be any number of them."""
        for reader in self._readers:
            reader(server, line, redactor)

    def tell(self, record: HubRecord) -> None:
        """Tell everyone; of calls the sinks alone: they are so many that they would push all else out of a backlog."""
        self._tell_sinks(record)
        if not isinstance(record, CallEnded):
            for listener in self._listeners:
                listener.put(record)

    def records(self) -> AsyncIterator[HubRecord]:
        """Every record but those of calls, from now on (not: from the first time that one is asked for).

        They end when the hub is closed.
        """
        listener = _Listener()
        self._listeners.add(listener)
        return self._records(listener)

    async def _records(self, listener: _Listener) -> AsyncIterator[HubRecord]:
        try:
            while not self._closed or listener.waiting:
                for record in listener.take():
                    if isinstance(record, Missed):
                        self._tell_sinks(record)
                    yield record
                if not self._closed:
                    await listener.came.wait()
        finally:
            self._listeners.discard(listener)

    def _tell_sinks(self, record: HubRecord) -> None:
        for sink in tuple(self._sinks):
            try:
                sink(record)
            except Exception as exc:  # noqa: BLE001 - a sink of the user's must not stop the hub
                log.warning("a listener raised %s", type(exc).__name__)

    def close(self) -> None:
        """No more records will come."""
        self._closed = True
        for listener in self._listeners:
            listener.came.set()


class _Listener:
    """What waits for one listener."""

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
