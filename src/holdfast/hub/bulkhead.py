"""Limits the calls in flight to one server, and the calls that wait (HUB-12)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from holdfast.hub.places import Semaphore

__all__ = ["Bulkhead", "BulkheadFull"]


class BulkheadFull(Exception):
    """The limits of calls in flight and of waiting calls are both reached."""


class Bulkhead:
    """The places of one server."""

    def __init__(self, places: int, queue: int, *, patience: float) -> None:
        self._places = Semaphore(places)
        self._queue = queue
        self._patience = patience
        self.waiting = 0

    def resize(self, places: int, queue: int, *, patience: float) -> None:
        """Use other numbers from now on; calls in flight or waiting keep the old ones."""
        self._places.resize(places)
        self._queue = queue
        self._patience = patience

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place during the block; raises ``BulkheadFull`` if the queue is full or the wait takes too long."""
        try:
            self._places.acquire_nowait()
        except anyio.WouldBlock:
            await self._wait()
        try:
            yield
        finally:
            self._places.release()

    async def _wait(self) -> None:
        if self.waiting >= self._queue:
            raise BulkheadFull
        self.waiting += 1
        try:
            with anyio.fail_after(self._patience):
                await self._places.acquire()
        except TimeoutError:
            raise BulkheadFull from None
        finally:
            self.waiting -= 1
