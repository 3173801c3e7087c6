"""Time for the hub: one small thing, so that tests can have a time of their own."""

from __future__ import annotations

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
    """The event loop's own time."""

    def now(self) -> float:
        """Seconds, from wherever the event loop counts."""
        return anyio.current_time()

    async def wait(self, event: anyio.Event, until: float | None) -> bool:
        """Wait for the event, or for the time, whichever is first; whether it was the event."""
        with anyio.CancelScope(deadline=until if until is not None else float("inf")):
            await event.wait()
            return True
        return False
