"""Where the sealed events of sessions are kept for a client that comes back to another replica.

A log is a list of blobs that no store can read. Its replica says how many of the latest stay, and bounds what it sends;
the store forgets a log after a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["KEPT_SECONDS", "EventStore", "LogWrite", "MemoryEvents"]

KEPT_SECONDS = 300.0
"""How long a log is kept after its last event; a session idles as long before it is dropped from memory."""
MOST_BYTES = 64 * 1024 * 1024
"""Bytes in the broker of one machine; the oldest logs give way."""


@dataclass(frozen=True, slots=True)
class LogWrite:
    """One more blob of a log, and how many of its latest stay."""

    log: str
    blob: bytes
    keep: int


class EventStore(Protocol):
    """Keeps logs of events."""

    async def append(self, writes: Sequence[LogWrite]) -> None:
        """Add blobs to logs; ``StoreUnavailable`` if it failed."""

    async def read(self, log: str) -> list[bytes]:
        """The blobs of a log, oldest first; ``StoreUnavailable`` if it failed."""

    async def close(self) -> None:
        """End the connection."""


class MemoryEvents:
    """An event store in this process: the broker of workers has one."""

    def __init__(self, *, most: int = MOST_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._logs: dict[str, tuple[float, list[bytes]]] = {}
        self.held = 0

    async def append(self, writes: Sequence[LogWrite]) -> None:
        """See ``EventStore``."""
        self.put(writes)

    async def read(self, log: str) -> list[bytes]:
        """See ``EventStore``."""
        return self.blobs(log)

    async def close(self) -> None:
        """See ``EventStore``."""

    def put(self, writes: Sequence[LogWrite]) -> None:
        """Add blobs to logs."""
        now = self._clock()
        for write in writes:
            _, blobs = self._logs.pop(write.log, (0.0, []))
            blobs.append(write.blob)
            self.held += len(write.blob)
            while len(blobs) > max(write.keep, 1):
                self.held -= len(blobs.pop(0))
            self._logs[write.log] = (now + KEPT_SECONDS, blobs)
        while self._logs:
            oldest = next(iter(self._logs))
            until, blobs = self._logs[oldest]
            if until > now and (self.held <= self._most or len(self._logs) == 1):
                break
            self.held -= sum(map(len, blobs))
            del self._logs[oldest]

    def blobs(self, log: str) -> list[bytes]:
        """The blobs of a log."""
        until, blobs = self._logs.get(log, (0.0, []))
        return list(blobs) if until > self._clock() else []
