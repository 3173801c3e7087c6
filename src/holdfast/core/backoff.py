"""How long to wait before the next attempt. Chance is an argument."""

from __future__ import annotations

__all__ = ["JITTER", "RETRY_AFTER_CAP", "delay", "to_milliseconds"]

JITTER = 0.5
"""At most this share of the delay is added, so that servers that failed together do not retry together."""

MAX_DOUBLINGS = 30
"""More doublings exceed every deadline, and would overflow a float."""

RETRY_AFTER_CAP = 5.0
"""A server's ``Retry-After`` is honoured up to this many seconds."""


def delay(attempt: int, *, base: float, chance: float, retry_after: float | None = None) -> float:
    """Seconds to wait after failed attempt number ``attempt`` (from 1); ``chance`` is in [0, 1)."""
    ours: float = base * 2.0 ** min(attempt - 1, MAX_DOUBLINGS) * (1 + JITTER * chance)
    asked = min(retry_after or 0.0, RETRY_AFTER_CAP)
    return max(ours, asked)


def to_milliseconds(seconds: float) -> float:
    """A number of seconds as it leaves the hub: the difference of two times has digits that mean nothing."""
    return round(seconds, 3)
