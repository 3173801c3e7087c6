"""When the machine ran nothing of this process: a thread that means to wake every few milliseconds, and could not.

On a busy machine that is no small part of a measured time, and nobody's doing here. Work of the event loop is
not taken for it: the interpreter hands over to the thread many times faster than what counts as a stall.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

__all__ = ["Stalls"]

BEAT = 0.01
LEAST = 0.05
"""A wake that is later than this, in seconds, is a stall: ten times what the interpreter lets one thread run."""


class Stalls:
    """``with Stalls() as stalls``: what was lost until now. Times are those of the event loop, in seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stalls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def within(self, begun: float, ended: float) -> float:
        """How much of a span of time was lost."""
        return sum(max(0.0, min(ended, until) - max(begun, since)) for since, until in self._seen)

    def _watch(self) -> None:
        due = time.monotonic() + BEAT
        while not self._over.wait(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            if now - due > LEAST:
                self._seen.append((due, now))
            due = now + BEAT
