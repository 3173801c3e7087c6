"""Time for the hub: one small thing, so that tests can have a time of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import anyio

__all__ = ["Clock", "RealClock"]


class Clock(Protocol):
    """Tells the time, and waits for it."""

    def now(self) -> float:
        """Seconds, from wherever this clock counts."""

    async def wait(self, event: anyio.Event, until: float | None) -> bool:
        """Wait for the event, or for the time, whichever is first; whether it was the event."""


class RealClock:
    """The event loop's own time, of the one that it is first asked in."""

    def __init__(self) -> None:
        self._time: Callable[[], float] | None = None

    def now(self) -> float:
        """Seconds, from wherever the event loop counts."""
        if self._time is None:
            self._time = _loop_time()
        return self._time()

    async def wait(self, event: anyio.Event, until: float | None) -> bool:
        """Wait for the event, or for the time, whichever is first; whether it was the event."""
        with anyio.CancelScope(deadline=until if until is not None else float("inf")):
            await event.wait()
            return True
        return False


def _loop_time() -> Callable[[], float]:
    """Every call asks for the time again and again: finding out anew which loop runs costs ten times the answer."""
    try:
        return asyncio.get_running_loop().time
    except RuntimeError:  # another kind of loop, or none yet
        return anyio.current_time
