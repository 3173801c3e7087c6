"""At most so many calls to one server at a time, and at most so many that wait for their turn (HUB-12)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

__all__ = ["Bulkhead", "Full"]


class Full(Exception):
    """As many calls as are allowed are under way, and as many as are allowed wait."""


class Bulkhead:
    """The places of one server."""

    def __init__(self, places: int, queue: int, *, patience: float) -> None:
        self._free = anyio.Semaphore(places, max_value=places)
        self._queue = queue
        self._patience = patience
        self.waiting = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for the length of the block; raises ``Full`` if even the queue is, or its turn never comes."""
        try:
            self._free.acquire_nowait()
        except anyio.WouldBlock:
            await self._wait()
        try:
            yield
        finally:
            self._free.release()

    async def _wait(self) -> None:
        if self.waiting >= self._queue:
            raise Full
        self.waiting += 1
        try:
            with anyio.fail_after(self._patience):
                await self._free.acquire()
        except TimeoutError:
            raise Full from None
        finally:
            self.waiting -= 1
