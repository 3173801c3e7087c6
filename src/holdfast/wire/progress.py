"""The progress of one call, from the server to the caller: all of it before the result, in its order.

A notice extends the call's time limit first, and then reaches the receiver. A receiver that never waits (``AtOnce``)
is called while the message is read. A callback of a program may wait, and the task that waits for the answer cannot
call it: over HTTP that task reads the stream. So a task of its own gives such a callback one notice after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from math import isfinite
from typing import TypeAlias

from holdfast.types import ProgressFn

__all__ = ["AtOnce", "CallProgress", "OnProgress", "finite"]

log = logging.getLogger("holdfast.wire")

OnProgress: TypeAlias = Callable[[float, float | None, str | None], None]
"""Gets how far a call is, of how much, and a text. It never waits."""


class AtOnce:
    """A receiver of progress that never waits, where a callback that may wait is expected."""

    __slots__ = ("tell",)

    def __init__(self, tell: OnProgress) -> None:
        self.tell = tell

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """One notice, for a caller that awaits."""
        self.tell(progress, total, message)


class CallProgress:
    """Passes the notices of one call to its receiver. ``extend`` is called first with each one."""

    __slots__ = ("_callback", "_extend", "_task", "_waiting")

    def __init__(self, callback: ProgressFn | None, extend: Callable[[], None]) -> None:
        self._callback = callback
        self._extend = extend
        self._waiting: deque[tuple[float, float | None, str | None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """One notice."""
        self._extend()
        if isinstance(self._callback, AtOnce):
            try:
                self._callback.tell(progress, total, message)
            except Exception as exc:  # noqa: BLE001 - a broken callback must not cost its caller the result
                log.warning("a progress callback raised %s", type(exc).__name__)
        elif self._callback is not None:
            self._waiting.append((progress, total, message))
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._deliver(self._callback))

    async def _deliver(self, callback: ProgressFn) -> None:
        while self._waiting:
            try:
                await callback(*self._waiting.popleft())
            except Exception as exc:  # noqa: BLE001 - as above
                log.warning("a progress callback raised %s", type(exc).__name__)

    async def delivered(self) -> None:
        """Wait until the callback has all notices."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def close(self) -> None:
        """Deliver nothing more."""
        if self._task is not None:
            self._task.cancel()

    def __repr__(self) -> str:
        return f"<CallProgress waiting={len(self._waiting)}>"


def finite(value: object) -> float | None:
    """A finite number as it came; None for anything else, also for an integer that no float can hold."""
    try:
        return value if isinstance(value, int | float) and isfinite(value) else None
    except OverflowError:
        return None
