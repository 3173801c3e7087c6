"""A limit on dials that begin at the same time. A slow server cannot hold a place for long.

A place is given back when its attempt ends, or after a fixed time, the earlier of both. So a retry never repeats
the burst that may have caused the failure, and a server that never answers delays no other server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from holdfast.hub.places import Semaphore

__all__ = ["HOLD_SECONDS", "Turnstile"]

HOLD_SECONDS = 1.0
"""A healthy server has answered by then; a server that has not is slow by itself, not because of the limit."""


class Turnstile:
    """At most ``places`` new attempts at a time; ``tasks`` owns the timers that give places back."""

    def __init__(self, places: int, tasks: anyio.abc.TaskGroup, *, hold: float = HOLD_SECONDS) -> None:
        self._places = Semaphore(places)
        self._tasks = tasks
        self._hold = hold

    def resize(self, places: int) -> None:
        """Change the number of places."""
        self._places.resize(places)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place; it is given back at the end of the block, or earlier."""
        await self._places.acquire()
        held = anyio.CancelScope()
        self._tasks.start_soon(self._release_later, held)
        try:
            yield
        finally:
            held.cancel()

    async def _release_later(self, held: anyio.CancelScope) -> None:
        try:
            with held:
                await anyio.sleep(self._hold)
        finally:
            self._places.release()
