"""Time for the hub: a small protocol, so that tests can supply a clock of their own, and the polls of files.

A hub polls the state file, the approvals, the configuration, the sessions and the logins. If each poll had a time of
its own, a hub that has nothing to do would wake many times a second (PERF-4). So all polls of one period are due at the
same times (``next_poll``). Each looks in a thread of its own (``stamps``): a disk that hangs must not stop the polls of
other disks, and a thread for all of them was measured to save nothing.

The files are polled and not watched by the system: a change behind a link, on a network or in a container is seen too.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Protocol, TypeAlias

import anyio
import anyio.to_thread

from holdfast.files import FileStamp, file_stamp

__all__ = ["Clock", "RealClock", "Stamps", "next_poll", "sleep_until_poll", "stamps"]


class Clock(Protocol):
    """Tells the time, and waits for it."""

    def now(self) -> float:
        """Seconds since a start that this clock chooses."""

    async def wait(self, event: anyio.Event, until: float | None) -> bool:
        """Wait for the event or for the time, the first of them; True if it was the event."""


class RealClock:
    """The time of the event loop in which it is first used."""

    def now(self) -> float:
        """Seconds, as the event loop counts them."""
        loop_time = asyncio.get_running_loop().time
        setattr(self, "now", loop_time)  # noqa: B010 - every call needs the time: from now on it is one step (PERF-7)
        return loop_time()

    async def wait(self, event: anyio.Event, until: float | None) -> bool:
        """Wait for the event or for the time, the first of them; True if it was the event."""
        # uvloop's timers count milliseconds. One for a time in between comes too early, and the scope would set it
        # again, turn after turn, until that time.
        with anyio.CancelScope(deadline=math.ceil(until * 1000) / 1000 if until is not None else math.inf):
            await event.wait()
            return True
        return False


EARLY = 0.01
"""A timer may come a moment too early: what is so near is not waited for a second time."""

Stamps: TypeAlias = tuple[FileStamp, ...]
"""Identifies one state of some files; None stands for a file that does not exist."""


def next_poll(now: float, period: float) -> float:
    """The next time that all polls of this period share."""
    return ((now + EARLY) // period + 1) * period


async def sleep_until_poll(period: float) -> None:
    """Wait for that time."""
    now = anyio.current_time()
    await anyio.sleep(next_poll(now, period) - now)


async def stamps(*files: Path | None) -> Stamps:
    """The states of some files; None has none. Links are followed: a swap behind a link gives another state.

    A thread looks, because a disk may hang. A caller that is cancelled leaves it behind: a hub can close all the same.
    """

    def look() -> Stamps:
        return tuple(file_stamp(file) if file is not None else None for file in files)

    return await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
