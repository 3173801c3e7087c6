"""The events of sessions for other replicas: written in the background, read when a client comes back to another one.

No request waits for a write. What is written is bounded by construction: in one message, in one batch, in one log and
in all logs of this replica. What does not fit, or meets a store that does not answer, is left out and counted. Its
client is then told that it is lost, as without a store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

import anyio
import msgspec

from holdfast.core import replica_tag
from holdfast.fleet.stores import EventStore, LogWrite, StoreUnavailable
from holdfast.keys import KeyRing

__all__ = ["SESSION_PURPOSE", "SharedEvent", "SharedEvents"]

log = logging.getLogger("holdfast.fleet")

SESSION_PURPOSE: Final = "session state"
"""What is sealed for it has the session as its salt: a key of its own makes random nonces safe for any number."""

FLUSH_SECONDS: Final = 0.1
"""Events of this long go out together."""
RETRY_SECONDS: Final = 1.0
LARGEST_EVENT: Final = 256 * 1024
"""Bytes of a message that is shared."""
BATCH_BYTES: Final = 512 * 1024
"""Bytes in one write."""
QUEUE_BYTES: Final = 4 * 1024 * 1024
"""Bytes that may wait for the store."""
LOG_BYTES, LOG_BLOBS = 1024 * 1024, 64
"""What one log may hold in the store."""
REPLICA_BYTES: Final = 32 * 1024 * 1024
"""What this replica may write within the time that a log is kept."""
WINDOW_SECONDS: Final = 300.0
FOLLOW_SECONDS: Final = 0.25
"""How often the log of a replica that is alive is read again, while a client waits for its rest."""
LONGEST_FOLLOW: Final = 600.0
"""Seconds. By then every call has ended: its answer is not kept any more."""


class SharedEvent(msgspec.Struct, frozen=True, array_like=True):
    """One event of a log."""

    number: int
    suffix: str
    """Names its stream: empty for notices, else the request."""
    final: bool
    """Whether it is the last one of its stream."""
    message: bytes


class SharedEvents:
    """The events of all sessions of this replica."""

    def __init__(
        self,
        store: EventStore,
        keys: Callable[[], KeyRing],
        *,
        replica: str,
        replicas: Callable[[], Iterable[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._keys = keys
        self._replicas = replicas
        self.tag = replica_tag(replica)
        """Begins the mark of every log of this replica, so that another one knows whose log it is."""
        self._clock = clock
        self._sizes: dict[str, tuple[float, deque[int]]] = {}
        """Of each log, when it was written last, and the sizes of its blobs in the store; the oldest first."""
        self._queue: deque[tuple[bytes, str, SharedEvent]] = deque()
        self._queued = 0
        self._written: deque[tuple[float, int]] = deque()
        self._spent = 0
        self._wake = asyncio.Event()
        self.dropped = 0
        """Events that were left out so far."""
        self.problem = ""
        """Why the last write failed; empty if it did not."""

    def add(self, session: bytes, mark: str, event: SharedEvent) -> None:
        """Share an event, soon. An empty message marks where a stream begins, and is not shared."""
        size = len(event.message)
        if not size:
            return
        if size > LARGEST_EVENT or self._queued + size > QUEUE_BYTES:
            self.dropped += 1
            return
        self._queue.append((session, mark, event))
        self._queued += size
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await anyio.sleep(FLUSH_SECONDS)  # what comes meanwhile goes out with it
                if writes := self._batch():
                    await self._write(writes)

    async def _write(self, writes: list[LogWrite]) -> None:
        try:
            await self._store.append(writes)
            self.problem = ""
        except StoreUnavailable as exc:
            if not self.problem:
                log.info("events of sessions are not shared: %s", exc)
            self.problem = str(exc)
            self.dropped += len(writes)
            await anyio.sleep(RETRY_SECONDS)

    async def close(self) -> None:
        """Close the connections to the store."""
        await self._store.close()

    async def follow(
        self, session: bytes, mark: str, suffix: str, *, after: int, wanted: Callable[[], bool]
    ) -> AsyncIterator[SharedEvent]:
        """What followed an event in its stream; of a request whose replica is present, until its last event."""
        until = self._clock() + LONGEST_FOLLOW
        while wanted() and self._clock() < until:
            alive = self._is_alive(mark)
            try:
                events = await self._read(session, mark)
            except StoreUnavailable as exc:
                log.info("the events of a session cannot be read: %s", exc)
                return
            for event in sorted(events, key=lambda one: one.number):
                if event.suffix == suffix and event.number > after:
                    after = event.number
                    yield event
                    if event.final:
                        return
            if not suffix or not alive:
                return
            await anyio.sleep(FOLLOW_SECONDS)

    def _is_alive(self, mark: str) -> bool:
        """Whether another replica that is present has this log."""
        return any(mark.startswith(tag) for one in self._replicas() if (tag := replica_tag(one)) != self.tag)

    async def _read(self, session: bytes, mark: str) -> list[SharedEvent]:
        found: list[SharedEvent] = []
        for sealed in await self._store.read(_name(session, mark)):
            content = self._keys().open(sealed, purpose=SESSION_PURPOSE, about=f"events {mark}".encode(), salt=session)
            if content is not None:
                found += _decoded(content)
        return found

    def _batch(self) -> list[LogWrite]:
        """What goes out now: one blob for each log."""
        logs: dict[tuple[bytes, str], list[SharedEvent]] = {}
        size = 0
        while self._queue and size < BATCH_BYTES:
            session, mark, event = self._queue.popleft()
            self._queued -= len(event.message)
            size += len(event.message)
            logs.setdefault((session, mark), []).append(event)
        writes = []
        for (session, mark), events in logs.items():
            content = msgspec.msgpack.encode(events)
            if not self._may_write(len(content)):
                self.dropped += len(events)
                continue
            blob = self._keys().seal(content, purpose=SESSION_PURPOSE, about=f"events {mark}".encode(), salt=session)
            writes.append(LogWrite(_name(session, mark), blob, self._kept(_name(session, mark), len(blob))))
        return writes

    def _may_write(self, size: int) -> bool:
        now = self._clock()
        while self._written and self._written[0][0] < now - WINDOW_SECONDS:
            self._spent -= self._written.popleft()[1]
        if self._spent + size > REPLICA_BYTES:
            return False
        self._spent += size
        self._written.append((now, size))
        return True

    def _kept(self, name: str, size: int) -> int:
        """How many of the latest blobs of a log stay within its bounds."""
        now = self._clock()
        _, sizes = self._sizes.pop(name, (now, deque()))
        sizes.append(size)
        held = sum(sizes)
        while len(sizes) > 1 and (held > LOG_BYTES or len(sizes) > LOG_BLOBS):
            held -= sizes.popleft()
        self._sizes[name] = (now, sizes)
        while self._sizes[oldest := next(iter(self._sizes))][0] < now - WINDOW_SECONDS:
            del self._sizes[oldest]
        return len(sizes)


def _decoded(content: bytes) -> list[SharedEvent]:
    try:
        return msgspec.msgpack.decode(content, type=list[SharedEvent])
    except msgspec.MsgspecError:
        return []  # of another version


def _name(session: bytes, mark: str) -> str:
    return f"{session.hex()}.{mark}"
