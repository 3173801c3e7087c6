"""A clock that stands still until a test moves it. It knows nothing of the hub, and never looks at the real time."""

from __future__ import annotations

import anyio
import anyio.lowlevel

__all__ = ["FakeClock"]

TURNS = 25
"""How often everybody else gets a turn after a wake: more than the longest chain of tasks that wake each other."""


class FakeClock:
    """Give it to ``Hub(config, clock=…)``: every timer of the hub's then waits for :meth:`advance`.

    It governs what the hub plans: retries, cooldowns, refreshes, looks, self-probes. What bounds a single
    exchange with a server (the deadline of a dial or a call) stays in real time, as the exchange does.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._waiting: dict[anyio.CancelScope, float] = {}

    def now(self) -> float:
        """Seconds, from ``start``."""
        return self._now

    @property
    def next_due(self) -> float | None:
        """The earliest time that somebody waits for; None if nobody waits for a time."""
        return min(self._waiting.values(), default=None)

    async def wait(self, event: anyio.Event, until: float | None) -> bool:
        """Wait for the event, or for the time, whichever is first; whether it was the event."""
        if until is None:
            await event.wait()
            return True
        if until <= self._now:
            await anyio.lowlevel.checkpoint()
            return event.is_set()
        with anyio.CancelScope() as scope:
            self._waiting[scope] = until
            try:
                await event.wait()
            finally:
                del self._waiting[scope]
        return event.is_set()

    async def advance(self, seconds: float) -> None:
        """Let so much time go by. Whoever waits for a time on the way wakes at that time, in order."""
        target = self._now + seconds
        while (due := self.next_due) is not None and due <= target:
            await self._move_to(due)
        await self._move_to(target)

    async def advance_to_next(self) -> float:
        """Move to the earliest time that somebody waits for, and return it; raises LookupError if nobody does."""
        due = self.next_due
        if due is None:
            raise LookupError("nobody waits for a time")
        await self._move_to(due)
        return due

    async def _move_to(self, moment: float) -> None:
        self._now = max(self._now, moment)
        for scope in [scope for scope, until in self._waiting.items() if until <= self._now]:
            scope.cancel()
        for _ in range(TURNS):
            await anyio.lowlevel.checkpoint()
