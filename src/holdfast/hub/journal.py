"""Everything worth telling is one record, told once to everyone who listens: the log first of all."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import anyio

from holdfast.core.breaker import Tripped
from holdfast.core.lifecycle.effects import BreakerChanged, CloseFailed, Record, RetryPlanned, Transition
from holdfast.core.redact import Redactor
from holdfast.wire.process import OnStderr

__all__ = ["CallEnded", "CallOutcome", "HubRecord", "Journal", "Missed", "OfOneClient", "Published", "Sink"]

log = logging.getLogger("holdfast.hub")

BACKLOG = 1024
"""How many records wait for a slow listener; then the oldest give way, and it is told how many."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """The catalog is another one now."""

    server: str
    version: int
    kinds: tuple[str, ...]
    """What changed: tools, prompts, resources, templates."""
    at: float


@dataclass(frozen=True, kw_only=True)
class Missed:
    """A listener was too slow: so many records were not told to it."""

    count: int


CallOutcome: TypeAlias = Literal[
    "completed", "tool_error", "rpc_error", "failed", "timed_out", "denied", "cancelled", "refused"
]
"""What became of a call: three kinds of answer, three kinds of failure, given up by its caller, or never sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded:
    """A call came to its end, one record for each, whether a server ever saw it or not."""

    server: str
    method: str
    outcome: CallOutcome
    waited: float
    """Seconds until it was sent: its admission, its place, and the connection that it needed."""
    seconds: float
    """Seconds in all, the wait among them."""
    at: float
    error: str = ""
    """The kind of error that its caller got, by its name in ``holdfast.errors``; empty if there was an answer."""
    reason: str = ""
    """What its caller was told, masked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfOneClient:
    """A record of a connection that one client has for itself; it says nothing of the server's state for others."""

    server: str
    record: Record


HubRecord: TypeAlias = Record | Published | Missed | CallEnded | OfOneClient
Sink: TypeAlias = Callable[[HubRecord], None]
"""Told every record at once; it must not wait."""


class Journal:
    """Takes records from the slots and hands them on; nobody who listens can hold it up."""

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()
        self._sinks: list[Sink] = [write_to_log]
        self._readers: list[OnStderr] = []
        self._closed = False

    def add_sink(self, sink: Sink) -> None:
        """Have every record told to a function, at once; it must not wait."""
        self._sinks.append(sink)

    def add_reader(self, reader: OnStderr) -> None:
        """Have what servers' processes write to stderr told to a function, line by line; it must not wait."""
        self._readers.append(reader)

    def heard(self, server: str, line: bytes, redactor: Redactor) -> None:
        """A server's process wrote a line to its stderr: no record, since there may be any number of them."""
        for reader in self._readers:
            reader(server, line, redactor)

    def remove_sink(self, sink: Sink) -> None:
        """No longer."""
        self._sinks.remove(sink)

    def tell(self, record: HubRecord) -> None:
        """Tell everyone; of calls the sinks alone: they are so many that they would push all else out of a backlog."""
        for sink in tuple(self._sinks):
            try:
                sink(record)
            except Exception as exc:  # noqa: BLE001 - a sink of the user's must not stop the hub
                log.warning("a listener raised %s", type(exc).__name__)
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
                    yield record
                if not self._closed:
                    await listener.came.wait()
        finally:
            self._listeners.discard(listener)

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


def write_to_log(record: HubRecord) -> None:
    """One line for each record that a person may want to see."""
    match record:
        case CallEnded():
            _write_call(record)
        case OfOneClient():
            log.debug("%s, one client's own connection: %s", record.server, record.record)
        case Transition():
            because = f": {record.reason}" if record.reason else ""
            log.info("%s: %s -> %s (%s)%s", record.server, record.old.value, record.new.value, record.cause, because)
        case RetryPlanned():
            log.info("%s: attempt %d in %.1f s", record.server, record.attempt, record.delay)
        case BreakerChanged(change=Tripped() as trip):
            log.warning(
                "%s: breaker open for %.0f s after %d failures (%d calls refused since)",
                record.server,
                trip.retry_in,
                trip.failures,
                trip.refused,
            )
        case BreakerChanged():
            log.info("%s: breaker closed (%d calls refused meanwhile)", record.server, record.change.refused)
        case CloseFailed():
            log.warning("%s: an old connection did not close cleanly: %s", record.server, record.error)
        case Published():
            log.debug(
                "catalog %d: %s of %s changed", record.version, ", ".join(record.kinds) or "nothing", record.server
            )


def _write_call(ended: CallEnded) -> None:
    """A denial and a timeout leave no other trace; failures do, by what they do to the server's state."""
    level = logging.WARNING if ended.outcome in ("denied", "timed_out") else logging.DEBUG
    if log.isEnabledFor(level):
        because = f": {ended.reason}" if ended.reason else ""
        log.log(level, "%s: %s %s after %.3f s%s", ended.server, ended.method, ended.outcome, ended.seconds, because)
