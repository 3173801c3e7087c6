"""Time for the hub: a small protocol, so that tests can supply a clock of their own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

import anyio

__all__ = ["Clock", "RealClock"]


class Clock(Protocol):
    """Tells the time, and waits for it."""

    def now(self) -> float:
        """Seconds since a start that this clock chooses."""

    async def wait(self, event: anyio.Event, until: float | None) -> bool:
        """Wait for the event or for the time, the first of them; True if it was the event."""


class RealClock:
    """The time of the event loop in which it is first used."""

    def __init__(self) -> None:
        self._time: Callable[[], float] | None = None

    def now(self) -> float:
        """Seconds, as the event loop counts them."""
        if self._time is None:
            self._time = _loop_time()
            setattr(self, "now", self._time)  # noqa: B010 - every call needs the time: from now on it is one step
        return self._time()

    async def wait(self, event: anyio.Event, until: float | None) -> bool:
        """Wait for the event or for the time, the first of them; True if it was the event."""
        with anyio.CancelScope(deadline=_whole_step(until) if until is not None else math.inf):
            await event.wait()
            return True
        return False


def _whole_step(until: float) -> float:
    """The next time that a timer can meet: uvloop's count milliseconds.

    A timer for a time in between comes too early. The scope then sets it again, turn after turn, until that time.
    """
    return math.ceil(until * 1000) / 1000


def _loop_time() -> Callable[[], float]:
    """The loop's own function: every call needs the time, and finding the running loop costs ten times as much."""
    try:
        return asyncio.get_running_loop().time
    except RuntimeError:  # another kind of loop, or none yet
        return anyio.current_time
