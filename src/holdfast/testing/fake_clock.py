"""A clock that stands still until a test moves it. It does not import the hub, and never reads the real time."""

from __future__ import annotations

import anyio
import anyio.lowlevel

__all__ = ["FakeClock"]

TURNS = 25
"""How often the other tasks run after a wake: more than the longest chain of tasks that wake each other."""


class FakeClock:
    """Pass it to ``Hub(config, clock=…)``: every timer of the hub then waits for :meth:`advance`.

    It drives what the hub plans: retries, cooldowns, refreshes, TCP checks, self-probes. The deadline of one exchange
    with a server (a dial or a call) stays in real time, as the exchange itself does.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._waiting: dict[anyio.CancelScope, float] = {}

    def now(self) -> float:
        """Seconds, from ``start``."""
        return self._now

    @property
    def next_due(self) -> float | None:
        """The earliest time that a task waits for; None if no task waits for a time."""
        return min(self._waiting.values(), default=None)

    async def wait(self, event: anyio.Event, until: float | None) -> bool:
        """Wait for the event or for the time, the first of them; True if it was the event."""
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
        """Move the time forward. Tasks that wait for a time in between wake at that time, in order."""
        target = self._now + seconds
        while (due := self.next_due) is not None and due <= target:
            await self._move_to(due)
        await self._move_to(target)

    async def advance_to_next(self) -> float:
        """Move to the earliest time that a task waits for, and return it; raises LookupError if no task waits."""
        due = self.next_due
        if due is None:
            raise LookupError("no task waits for a time")
        await self._move_to(due)
        return due

    async def _move_to(self, moment: float) -> None:
        self._now = max(self._now, moment)
        for scope in [scope for scope, until in self._waiting.items() if until <= self._now]:
            scope.cancel()
        for _ in range(TURNS):
            await anyio.lowlevel.checkpoint()
