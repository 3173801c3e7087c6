"""Moments, and how much time went by between two in which this thread ran, or had nothing to do.

On a busy machine a thread that is ready waits for its turn, which is no small part of a measured time and nobody's
doing here. Linux tells how long that was; elsewhere it is taken for none.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self

import anyio

__all__ = ["Moment"]

_ACCOUNT = Path("/proc/thread-self/schedstat")
"""In nanoseconds: running, and ready but not running; then the number of turns."""


class Moment(NamedTuple):
    """A time of the event loop's clock, and how long its thread has waited for the machine until then; in seconds."""

    at: float
    waited: float

    @classmethod
    def now(cls) -> Self:
        """This one."""
        return cls(anyio.current_time(), _waited())

    def since(self, earlier: Moment) -> float:
        """From an earlier one, as clocks tell it."""
        return self.at - earlier.at

    def waited_since(self, earlier: Moment) -> float:
        """How much of that the thread waited for the machine."""
        return self.waited - earlier.waited


def _waited() -> float:
    try:
        return int(_ACCOUNT.read_text().split()[1]) / 1e9
    except OSError:
        return 0.0
