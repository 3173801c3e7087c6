"""How a hub uses memory: short garbage collections, and freed memory that stays for the next large message.

A long collection would hold up the event loop (SEC-7).

A collection takes as long as what it looks at: about 0.5 ms for 1,000 objects, three times that on a busy machine.
Young objects are few by the thresholds. What lives long is frozen: the collector does not look at it again, and
references alone free it. Garbage in cycles that is frozen stays for ever. That is why the younger objects are collected
before a freeze, and why nothing is frozen while few objects are new.

The servers and their catalogs are what lives long and is large, so their records in the journal are the moments to
look. Sessions and calls come and go; they are frozen only if they live at such a moment.

How many objects are new is known from the collector's own counts. A list of them (``gc.get_objects``) would take
longer than a short collection. It would also hold tuples that another thread is building, which fails in that thread.

The C library gives large pieces of freed memory back to the system, and gets them again page by page. A message of 10
MB took some 300 pages, and up to a fifth more CPU time for them on a virtual machine (PERF-6). So they are kept.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

from holdfast.core import State, Transition
from holdfast.hub import Hub, HubRecord, Published

__all__ = ["THRESHOLDS", "begin_collections", "keep_collections_short", "keep_freed_memory"]

THRESHOLDS: Final = (3_000, 1, 100)
"""So many more objects may live before the youngest are looked at. The middle ones follow after more than one such
look, all after more than 100 of those. Python's own are 700, 10 and 10. The younger ones stay below some 9,000: a few
times that where as many old ones die as new ones are made, because the collector counts the difference."""

FEW: Final = 20_000
"""Up to so many new objects nothing is frozen."""

LARGE_CATALOG: Final = 1_000
"""A catalog with more names is looked at when it changes."""

STEP: Final = 25
"""After so many outcomes of dials the objects are looked at."""


def begin_collections() -> None:
    """What was imported stays. Calls leave no cycles behind, so the collector may come less often."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def keep_collections_short(hub: Hub) -> None:
    """Freeze what lives long, from now on: the program itself, now; catalogs and servers when there are many."""
    gc.collect()
    gc.freeze()
    outcomes = 0

    def look(record: HubRecord) -> None:
        nonlocal outcomes
        if isinstance(record, Transition) and record.new is not State.CONNECTING:
            outcomes += 1
            if outcomes % STEP == 0:
                _freeze_if_many()
        elif isinstance(record, Published) and len(hub.registry.catalog.names) > LARGE_CATALOG:
            _freeze_if_many()

    hub.registry.journal.add_sink(look, calls=None)


def _new_objects() -> int:
    """About how many more objects live than at the last freeze or full collection.

    A generation is looked at when its count exceeds its threshold, so one look of the middle stands for two more
    than its threshold of the youngest.
    """
    young, middle, old = gc.get_count()
    every, looks, _ = gc.get_threshold()
    return young + every * (middle + (looks + 2) * old)


def _freeze_if_many() -> None:
    """Freeze what is alive, if a collection of it would take long."""
    if _new_objects() > FEW:
        gc.collect(1)  # not the oldest: while 500 servers were dialed, a collection of all took 58 ms
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
