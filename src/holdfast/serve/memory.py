"""How a hub uses memory: short garbage collections, and freed memory that stays for the next large message.

A long collection would hold up the event loop (SEC-7).

A collection takes as long as what it looks at. So what lives long is frozen: the collector does not look at it again,
and references alone free it. Garbage in cycles that is frozen would stay for ever. That is why little is frozen, why a
collection comes first where it is short, and why nothing is frozen while few objects are new.

While many servers are dialed at once, all their dials wait with all their objects. Only the youngest objects are looked
at then; the rest follows when most of the servers have an outcome.

The C library gives large pieces of freed memory back to the system, and gets them again page by page. A message of 10
MB took some 300 pages, and up to a fifth more CPU time for them on a virtual machine (PERF-6). So they are kept.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from contextlib import suppress
from typing import Final

from holdfast.core import State, Transition
from holdfast.hub import Hub, HubRecord, Published

__all__ = ["begin_collections", "keep_collections_short", "keep_freed_memory"]

COLLECT_AFTER = 10_000
"""How many more objects may live before the youngest are looked at for cycles; Python's own number is 700."""

COLLECT_IN_BURST = 20_000
"""The same while many servers are dialed. What is in use at that moment gets older: less often is better."""

NEVER = 1 << 30

FEW = 40_000
"""Up to so many new objects nothing is frozen: a collection of all of them takes about 10 ms."""

SHORT = 60_000
"""Up to so many a collection comes before a freeze. It takes longest if it frees much: 76,000, a third of them garbage,
 took 58 ms after 500 dials that failed."""

LARGE_CATALOG = 1_000
"""A catalog with more names is looked at when it changes."""

BURST = 25
"""More servers than these without an outcome are a burst. Servers outside of one are looked at in such steps."""

BURST_SECONDS = 60.0
"""The longest burst: a server that hangs, or is removed, does not keep it up."""


def begin_collections() -> None:
    """What was imported stays. Calls leave no cycles behind, so the collector may come less often."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def keep_collections_short(hub: Hub) -> None:
    """Freeze what lives long, from now on: the program itself, now; catalogs and servers when there are many."""
    gc.collect()
    gc.freeze()
    hub.registry.journal.add_sink(_Keeper(hub).noted, calls=None)


class _Keeper:
    """Looks at the records of one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._dialed: set[str] = set()
        """The servers that are dialed, and have no outcome yet."""
        self._outcomes = 0
        self._usual: tuple[int, int, int] | None = None
        """The thresholds to come back to, in a burst."""
        self._bound: asyncio.TimerHandle | None = None

    def noted(self, record: HubRecord) -> None:
        """One more record."""
        if isinstance(record, Transition):
            self._moved(record.server, is_dialed=record.new is State.CONNECTING)
        elif isinstance(record, Published) and self._usual is None and self._has_large_catalog:
            _freeze_if_many()

    @property
    def _has_large_catalog(self) -> bool:
        return len(self._hub.registry.catalog.names) > LARGE_CATALOG

    def _moved(self, server: str, *, is_dialed: bool) -> None:
        if is_dialed:
            self._dialed.add(server)
            if self._usual is None and len(self._dialed) > BURST:
                self._begin_burst()
            return
        self._dialed.discard(server)
        self._outcomes += 1
        if self._usual is not None:
            if len(self._dialed) <= BURST:
                self._end_burst()
        elif self._outcomes % BURST == 0:
            _freeze_if_many()

    def _begin_burst(self) -> None:
        self._usual = gc.get_threshold()
        gc.set_threshold(COLLECT_IN_BURST, NEVER, NEVER)
        self._bound = asyncio.get_running_loop().call_later(BURST_SECONDS, self._end_burst)

    def _end_burst(self) -> None:
        if self._bound is not None:
            self._bound.cancel()
        self._dialed.clear()
        _freeze_if_many()
        # Last: with the usual thresholds the next object would begin a collection of all that the burst left.
        if self._usual is not None:
            gc.set_threshold(*self._usual)
            self._usual = None


def _freeze_if_many() -> None:
    """Freeze what is alive, if a collection of it would take long."""
    new = len(gc.get_objects())
    if new <= FEW:
        return
    if new <= SHORT:
        gc.collect()
    gc.freeze()


KEPT_BYTES: Final = 32 * 1024 * 1024
"""How much free memory stays with the process: two messages of the largest size."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """From now on. A C library other than glibc goes on as it does."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, KEPT_BYTES)
