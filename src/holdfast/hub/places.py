"""A semaphore whose size may change while places of it are taken."""

from __future__ import annotations

from contextlib import suppress

import anyio

__all__ = ["Semaphore"]


class Semaphore:
    """At most ``number`` places are taken at a time. A smaller number takes effect as places are released."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._free = anyio.Semaphore(number)
        self._surplus = 0

    @property
    def free(self) -> int:
        """How many places are free."""
        return self._free.value

    def resize(self, number: int) -> None:
        """Change the number of places. No holder loses its place."""
        for _ in range(number - self._number):
            self.release()
        self._surplus += max(0, self._number - number)
        self._number = number
        with suppress(anyio.WouldBlock):
            while self._surplus:
                self._free.acquire_nowait()
                self._surplus -= 1

    def acquire_nowait(self) -> None:
        """Take a place; raises ``anyio.WouldBlock`` if none is free."""
        self._free.acquire_nowait()

    async def acquire(self) -> None:
        """Take a place as soon as one is free."""
        await self._free.acquire()

    def release(self) -> None:
        """Give a place back."""
        if self._surplus:
            self._surplus -= 1
        else:
            self._free.release()
