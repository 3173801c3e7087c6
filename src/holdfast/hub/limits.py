"""Limits: how many dials begin at once, and how many calls one server has in flight and waiting (HUB-12).

A place of the dial limit is held until the server's first answer, the end of the attempt or one second, the earliest
of them. So a retry does not repeat the burst that may have caused the failure, and silent servers delay no other.

What must never happen: a place is lost. ``release`` hands a place to the first that waits in the same step, so that no
newcomer takes it in between. One that is cancelled after it got its turn, and before it runs, gives the place on.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import anyio.lowlevel

from holdfast.config import CallPolicy
from holdfast.hub.hub_clock import Clock, RealClock

__all__ = ["HOLD_SECONDS", "Bulkhead", "DialLimit", "Semaphore"]


class Semaphore:
    """At most ``number`` places are taken at a time. A smaller number takes effect as places are released."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._taken = 0
        self._waiting: deque[anyio.Event] = deque()

    @property
    def free(self) -> int:
        """How many places are free."""
        return max(self._number - self._taken, 0)

    def resize(self, number: int) -> None:
        """Change the number of places. No holder loses its place."""
        self._number = number
        self._hand_on()

    def try_acquire(self) -> bool:
        """Take a place if one is free."""
        if self._taken >= self._number:
            return False
        self._taken += 1
        return True

    async def acquire(self, clock: Clock | None = None, *, until: float | None = None) -> bool:
        """Take a place as soon as one is free; False if the time on the clock is reached first."""
        if self.try_acquire():
            return True
        turn = anyio.Event()
        self._waiting.append(turn)
        try:
            await (clock or RealClock()).wait(turn, until)
        except BaseException:
            # It got its turn in the step in which it was cancelled. No other task knows of this place.
            if turn.is_set():
                self.release()
            raise
        finally:
            if not turn.is_set():
                self._waiting.remove(turn)
        return turn.is_set()

    def release(self) -> None:
        """Give a place back."""
        self._taken -= 1
        if self._waiting:
            self._hand_on()

    def _hand_on(self) -> None:
        while self._waiting and self._taken < self._number:
            # Taken for the waiting one, before it runs: a newcomer in between finds no free place.
            self._taken += 1
            self._waiting.popleft().set()


HOLD_SECONDS = 1.0
"""A healthy server has answered by then; a server that has not is slow by itself, not because of the limit."""

WAIT_SECONDS = 0.4
"""The longest wait for a place. The limit spreads a burst; it must not delay a healthy server behind silent ones."""

SPREAD = 16
"""Attempts that have waited long enough begin one after the other in this many steps, not all at once."""


class DialLimit(Semaphore):
    """At most ``places`` new attempts at a time; ``tasks`` owns the timers that give places back.

    An attempt that finds no place in ``wait`` seconds begins without one: a hundred silent servers hold their places
    for a second each, and would delay the healthy server behind them by many seconds (LOAD-15).
    """

    def __init__(
        self,
        places: int,
        tasks: anyio.abc.TaskGroup,
        *,
        hold: float = HOLD_SECONDS,
        wait: float = WAIT_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(places)
        self._tasks = tasks
        self._hold = hold
        self._wait = wait
        self._clock = clock or RealClock()
        self._turns = itertools.cycle(range(SPREAD))

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place; it is given back at the end of the block, or earlier."""
        wait = 0.0 if self.free else self._wait * (1 + next(self._turns) / SPREAD) / 2
        # The wait is short on purpose. Without a place the attempt begins all the same.
        if not await self.acquire(self._clock, until=self._clock.now() + wait):
            yield
            return
        # Set at the end of the block. The timer gives the place back after `hold` or at that moment, and only it does.
        held = anyio.Event()
        self._tasks.start_soon(self._release_later, held)
        try:
            await anyio.lowlevel.checkpoint()  # the others of a burst ask for their places before the first dial
            yield
        finally:
            held.set()

    async def _release_later(self, held: anyio.Event) -> None:
        try:
            await self._clock.wait(held, self._clock.now() + self._hold)
        finally:
            self.release()


class Bulkhead(Semaphore):
    """The places of one server, and the queue before them."""

    def __init__(self, policy: CallPolicy) -> None:
        super().__init__(policy.concurrency)
        self.policy = policy

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        return len(self._waiting)

    def adopt(self, policy: CallPolicy) -> None:
        """Use another policy from now on; calls in flight or waiting keep the old one."""
        self.resize(policy.concurrency)
        self.policy = policy

    async def wait(self) -> bool:
        """Wait for a place, and take it until ``release``; False if the queue is full or the wait takes too long."""
        if self.waiting >= self.policy.queue:
            return False
        return await self.acquire(until=anyio.current_time() + self.policy.timeout)
