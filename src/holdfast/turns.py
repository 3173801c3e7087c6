"""Long work on the event loop, in short steps (SEC-7).

Work that grows with what a peer sent must let other tasks run in between. How much of it fits into one step depends
on the work and on the machine, so no place counts items or bytes: each asks the clock.

    turns = Turns()
    for item in many:
        work_on(item)
        await turns.offer()

``offer`` costs a tenth of a microsecond until the step is over. One piece of work between two offers must be short by
itself; what is long in one piece is cut, refused over a bound, or done in a thread.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

__all__ = ["STEP_SECONDS", "Turns"]

STEP_SECONDS: Final = 0.005
"""How long one step may take: a tenth of the bound, since a piece of work may end just after its offer."""


class Turns:
    """The steps of one long piece of work."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = time.perf_counter() + STEP_SECONDS

    async def offer(self) -> None:
        """Let other tasks run, if this step has taken its time."""
        if time.perf_counter() >= self._until:
            await self.give()

    async def give(self) -> None:
        """Let other tasks run now: one piece of work was as long as a step, or is going to be."""
        await asyncio.sleep(0)
        self._until = time.perf_counter() + STEP_SECONDS

    def __repr__(self) -> str:
        return f"<Turns {1000 * (self._until - time.perf_counter()):.1f} ms left>"
