"""Time limits of the requests in flight: one timer for all of them, and none that is set for each request.

A request may be silent for so long, and take so long in all. Progress starts the silence again; while the server
waits for our own answer neither runs. A request whose time is over is cancelled, and learns that it was for that.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from holdfast.errors import ServerFailure

__all__ = ["Deadline", "Deadlines"]

_T = TypeVar("_T")


class Deadline:
    """The time limits of one request, made by the task that waits for it."""

    __slots__ = ("_all", "_latest", "_since", "_task", "_waiting", "cut", "due", "expired", "idle")

    def __init__(self, all_of_them: Deadlines, *, idle: float, within: float, now: float) -> None:
        self._all = all_of_them
        self._task = asyncio.current_task(all_of_them._loop)  # noqa: SLF001 - the same module
        self.idle = idle
        self._latest = now + within
        self._waiting = 0
        self._since = 0.0
        self.due = min(now + idle, self._latest)
        self.expired = False
        self.cut = False
        """Whether it ended because its connection was closed, and not for its time."""

    @property
    def hard(self) -> bool:
        """Whether the limit of the whole request is the one that counts now."""
        return self.due >= self._latest

    def extend(self) -> None:
        """The server sent something: the silence starts again."""
        if not self._waiting:
            self.due = min(self._all.now() + self.idle, self._latest)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock while the server waits for us."""
        if not self._waiting:
            self._since, self.due = self._all.now(), math.inf
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._latest += self._all.now() - self._since
                self.extend()
                self._all.look_at(self.due)

    def cancel(self) -> None:
        """End the wait of the task; it asks ``absorb`` why."""
        if not self.expired and self._task is not None:
            self.expired = True
            self._task.cancel()

    def absorb(self) -> bool:
        """Whether a cancellation came from here, and from nowhere else; then the task is no longer cancelled."""
        return self.expired and self._task is not None and self._task.uncancel() == 0


class Deadlines:
    """The time limits of all requests of one connection."""

    __slots__ = ("_emptied", "_looks_at", "_loop", "_timer", "in_flight")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf
        """When the timer comes."""
        self._emptied: asyncio.Future[None] | None = None
        self.in_flight: set[Deadline] = set()

    def now(self) -> float:
        """The event loop's time."""
        return self._loop.time()

    def start(self, *, idle: float, within: float) -> Deadline:
        """A request begins; end it with ``end``."""
        deadline = Deadline(self, idle=idle, within=within, now=self._loop.time())
        self.in_flight.add(deadline)
        if deadline.due < self._looks_at:
            self.look_at(deadline.due)
        return deadline

    def end(self, deadline: Deadline) -> None:
        """The request is over."""
        self.in_flight.discard(deadline)
        if self._emptied is not None and not self.in_flight and not self._emptied.done():
            self._emptied.set_result(None)

    async def until_closed(self, work: Awaitable[_T], *, failure: Callable[[], ServerFailure]) -> _T:
        """Wait for the answer to one request; ``failure`` says why the connection was closed.

        There is no time limit: the caller has one for the whole of its work.
        """
        deadline = self.start(idle=math.inf, within=math.inf)
        try:
            return await work
        except asyncio.CancelledError:
            if not deadline.absorb():
                raise
            raise failure() from None
        finally:
            self.end(deadline)

    def cut_all(self) -> None:
        """The connection is closed: no request waits any longer."""
        for deadline in list(self.in_flight):
            deadline.cut = True
            deadline.cancel()

    async def empty(self) -> None:
        """Wait until no request is in flight."""
        while self.in_flight:
            self._emptied = self._loop.create_future()
            await self._emptied

    def look_at(self, due: float) -> None:
        """See that the timer does not come later than this."""
        if due < self._looks_at:
            if self._timer is not None:
                self._timer.cancel()
            self._looks_at = due
            self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer, self._looks_at = None, math.inf
        now = self._loop.time()
        for deadline in list(self.in_flight):
            if deadline.due <= now:
                deadline.cancel()
        left = [deadline.due for deadline in self.in_flight if not deadline.expired]
        if left:
            self.look_at(min(left))
