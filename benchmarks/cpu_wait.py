"""Points in time, and how long a thread waited for a CPU between two of them.

On a busy machine a runnable thread waits for a CPU. That wait is not caused by the measured program. Linux reports
it; elsewhere it is zero.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self

import anyio

__all__ = ["Moment"]

_ACCOUNT = Path("/proc/thread-self/schedstat")
"""In nanoseconds: the time on a CPU, the time that the thread waited for one; then the number of time slices."""


class Moment(NamedTuple):
    """A time of the event loop's clock, and how long its thread has waited for a CPU until then; in seconds."""

    at: float
    waited: float

    @classmethod
    def now(cls) -> Self:
        """The current moment."""
        return cls(anyio.current_time(), _waited())

    def since(self, earlier: Moment) -> float:
        """The wall-clock time since an earlier moment."""
        return self.at - earlier.at

    def waited_since(self, earlier: Moment) -> float:
        """How long the thread waited for a CPU in that time."""
        return self.waited - earlier.waited


def _waited() -> float:
    try:
        return int(_ACCOUNT.read_text().split()[1]) / 1e9
    except OSError:
        return 0.0
