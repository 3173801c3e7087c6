"""Places that are taken and given back, and whose number may change while some are taken."""

from __future__ import annotations

from contextlib import suppress

import anyio

__all__ = ["Places"]


class Places:
    """At most so many are taken at a time; fewer from now on means that some are not given out again."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._free = anyio.Semaphore(number)
        self._surplus = 0

    @property
    def free(self) -> int:
        """How many nobody has."""
        return self._free.value

    def resize(self, number: int) -> None:
        """So many from now on. Nobody who has a place loses it."""
        for _ in range(number - self._number):
            self.give_back()
        self._surplus += max(0, self._number - number)
        self._number = number
        with suppress(anyio.WouldBlock):
            while self._surplus:
                self._free.acquire_nowait()
                self._surplus -= 1

    def take_nowait(self) -> None:
        """Take one; raises ``anyio.WouldBlock`` if none is free."""
        self._free.acquire_nowait()

    async def take(self) -> None:
        """Take one, as soon as one is free."""
        await self._free.acquire()

    def give_back(self) -> None:
        """Let somebody else have it."""
        if self._surplus:
            self._surplus -= 1
        else:
            self._free.release()
