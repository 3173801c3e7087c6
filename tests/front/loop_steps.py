"""Measures the event loop: the CPU time of each step, and what ran in the longest ones.

The time is that of the loop's own thread. Another thread or process that computes at the same time does not count, and
neither does a machine that is busy with something else.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

from holdfast.serve.run import THRESHOLDS

__all__ = ["LONGEST_STEP", "TRIES", "LoopSteps", "measured_loop", "too_long"]

LONGEST_STEP = 0.050
"""Seconds of CPU that one step of the event loop may take (SEC-7)."""

TRIES = 3
"""How often an input is tried that seems to take too long: the machine may have been the cause."""

LOOK_AFTER = 0.030
"""Seconds after which a look is taken at what a step does."""


@dataclass
class LoopSteps:
    """The steps since the last ``start``."""

    longest: float = 0.0
    what: str = ""
    count: int = 0
    began: float | None = None
    thread: int = 0
    seen: str = field(default="", repr=False)

    def start(self) -> None:
        """Forget what was measured."""
        self.longest, self.what, self.count = 0.0, "", 0

    def took(self, seconds: float, handle: asyncio.Handle) -> None:
        """One step ended."""
        self.count += 1
        if seconds > self.longest:
            self.longest, self.what = seconds, self.seen or repr(handle)[:400]
        self.seen = ""

    async def longest_in(self, act: Callable[[], Awaitable[object]], tries: int = TRIES) -> float:
        """The CPU of the longest step while something happens: the least of a few tries."""
        least = float("inf")
        for _ in range(tries):
            await anyio.lowlevel.checkpoint()  # the step that began before does not count
            self.start()
            with anyio.fail_after(60):
                await act()
                await anyio.lowlevel.checkpoint()  # the step that ends here counts too
            least = min(least, self.longest)
            if least <= LONGEST_STEP:
                break
        return least


def too_long(took: dict[str, float]) -> dict[str, float]:
    """What took longer than a step may."""
    return {what: seconds for what, seconds in took.items() if seconds > LONGEST_STEP}


@contextmanager
def measured_loop() -> Iterator[LoopSteps]:
    """Measure every step of the event loops of this thread in the block."""
    steps = LoopSteps(thread=threading.get_ident())
    original = asyncio.Handle._run
    thresholds = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)  # as a served hub does: collections are a part of the steps
    done = threading.Event()

    def run(handle: asyncio.Handle) -> None:
        if threading.get_ident() != steps.thread:
            original(handle)
            return
        steps.began = time.monotonic()
        began = time.thread_time()
        try:
            original(handle)
        finally:
            steps.took(time.thread_time() - began, handle)
            steps.began = None

    looker = threading.Thread(target=_look, args=(steps, done), daemon=True)
    looker.start()
    asyncio.Handle._run = run  # type: ignore[method-assign, assignment]  # each step of every loop passes here
    try:
        yield steps
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]  # as above
        gc.set_threshold(*thresholds)
        done.set()
        looker.join()


def _look(steps: LoopSteps, done: threading.Event) -> None:
    """Note where a long step is, for the message of a test that fails."""
    while not done.wait(LOOK_AFTER / 2):
        began = steps.began
        if began is not None and time.monotonic() - began > LOOK_AFTER and not steps.seen:
            frame = sys._current_frames().get(steps.thread)
            if frame is not None:
                steps.seen = "".join(traceback.format_stack(frame)[-6:])
