"""Times in words."""

from __future__ import annotations

import time

__all__ = ["until"]

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def until(moment: float | None, now: float | None = None) -> str:
    """``in 42 min``, ``2 h ago``; ``moment`` is in seconds since 1970."""
    if moment is None:
        return "at an unknown time"
    left = moment - (time.time() if now is None else now)
    size, unit = next((one for one in _UNITS if abs(left) >= one[0]), _UNITS[-1])
    count = f"{abs(left) / size:.0f} {unit}"
    return f"in {count}" if left >= 0 else f"{count} ago"
