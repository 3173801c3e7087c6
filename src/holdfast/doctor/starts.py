"""How many processes doctor starts at a time, and how long it loaded the machine by that.

A server that is slow because doctor starts sixty others beside it is not a slow server. So starts are limited, and a
server that ran out of time while the machine was loaded is not judged.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.abc

if TYPE_CHECKING:
    from holdfast.hub import DialLimit

__all__ = ["HOLD_SECONDS", "Starts", "places_here"]

HOLD_SECONDS = 15.0
"""How long a process that does not answer keeps others from starting."""


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def places_here() -> int:
    """How many processes start at a time here. Half of a start is a wait, for a disk or a registry."""
    return max(2 * cores(), 4)


class Starts:
    """The processes that start now; a ``Limit`` of attempts."""

    def __init__(self, limit: DialLimit, *, at_ease: int | None = None) -> None:
        self._limit = limit
        self._at_ease = cores() if at_ease is None else at_ease
        """How many processes may start without slowing each other down."""
        self._starting = 0
        self._crowded = 0.0
        self._since = 0.0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, and hold it while a process starts."""
        async with self._limit.place():
            self._change(+1)
            try:
                yield
            finally:
                self._change(-1)

    @property
    def crowded_seconds(self) -> float:
        """For how long, in all, so many processes started that each was slower for it."""
        self._change(0)
        return self._crowded

    def _change(self, by: int) -> None:
        now = anyio.current_time()
        if self._starting > self._at_ease:
            self._crowded += now - self._since
        self._since = now
        self._starting += by
