"""A cap on how many dials begin at once, that no slow server can hold up.

A place is given back when its attempt ends, or after a moment, whichever is sooner: so a retry never
repeats the burst that may have caused the failure, and a server that never answers delays nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from holdfast.hub.places import Places

__all__ = ["HOLD_SECONDS", "Turnstile"]

HOLD_SECONDS = 1.0
"""A healthy server has answered by then; one that has not is slow by itself, not for want of a place."""


class Turnstile:
    """At most ``places`` young attempts at a time; ``tasks`` owns the timers that give places back."""

    def __init__(self, places: int, tasks: anyio.abc.TaskGroup, *, hold: float = HOLD_SECONDS) -> None:
        self._places = Places(places)
        self._tasks = tasks
        self._hold = hold

    def resize(self, places: int) -> None:
        """So many from now on."""
        self._places.resize(places)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place; it is given back at the end of the block, or sooner."""
        await self._places.take()
        held = anyio.CancelScope()
        self._tasks.start_soon(self._give_back, held)
        try:
            yield
        finally:
            held.cancel()

    async def _give_back(self, held: anyio.CancelScope) -> None:
        try:
            with held:
                await anyio.sleep(self._hold)
        finally:
            self._places.give_back()
