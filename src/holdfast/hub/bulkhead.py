"""At most so many calls to one server at a time, and at most so many that wait for their turn (HUB-12)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from holdfast.hub.places import Places

__all__ = ["Bulkhead", "Full"]


class Full(Exception):
    """As many calls as are allowed are under way, and as many as are allowed wait."""


class Bulkhead:
    """The places of one server."""

    def __init__(self, places: int, queue: int, *, patience: float) -> None:
        self._places = Places(places)
        self._queue = queue
        self._patience = patience
        self.waiting = 0

    def resize(self, places: int, queue: int, *, patience: float) -> None:
        """Other numbers from now on; whoever has a place, or waits for one, goes on by the old ones."""
        self._places.resize(places)
        self._queue = queue
        self._patience = patience

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for the length of the block; raises ``Full`` if even the queue is, or its turn never comes."""
        try:
            self._places.take_nowait()
        except anyio.WouldBlock:
            await self._wait()
        try:
            yield
        finally:
            self._places.give_back()

    async def _wait(self) -> None:
        if self.waiting >= self._queue:
            raise Full
        self.waiting += 1
        try:
            with anyio.fail_after(self._patience):
                await self._places.take()
        except TimeoutError:
            raise Full from None
        finally:
            self.waiting -= 1
