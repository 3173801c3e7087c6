"""How long to wait before the next attempt. Chance comes in as an argument."""

from __future__ import annotations

__all__ = ["JITTER", "RETRY_AFTER_CAP", "delay"]

JITTER = 0.5
"""At most this share of the delay is added, so that servers that failed together do not return together."""

MAX_DOUBLINGS = 30
"""No deadline is so long that more could matter, and a power without end is no number any more."""

RETRY_AFTER_CAP = 5.0
"""A server may ask for more time than we would have given it, but not for more than this many seconds."""


def delay(attempt: int, *, base: float, chance: float, retry_after: float | None = None) -> float:
    """Seconds to wait after failed attempt number ``attempt`` (from 1); ``chance`` is in [0, 1)."""
    ours: float = base * 2.0 ** min(attempt - 1, MAX_DOUBLINGS) * (1 + JITTER * chance)
    asked = min(retry_after or 0.0, RETRY_AFTER_CAP)
    return max(ours, asked)
