"""The time of day that the replicas of a fleet agree on.

Each replica tells how far its clock is ahead of that of the store. The median, with the store as one of them, is right
as long as most of these clocks are. Between two answers of the store a replica counts the seconds itself, so that a
clock which jumps changes nothing. A clock that is wrong is named, and used for nothing that replicas share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_low

__all__ = ["SKEW_SECONDS", "FleetClock"]

SKEW_SECONDS = 30.0
"""A clock that differs by more is wrong."""
MOST_NAMED = 3
"""Replicas that a sentence names."""


class FleetClock:
    """The time of the fleet, as one replica knows it."""

    def __init__(self) -> None:
        self.ahead: Mapping[str, float] = {}
        """How many seconds the clock of each replica is ahead of the fleet's."""
        self._shown: tuple[float, float] | None = None
        """The time of the fleet, and what counted the seconds then."""

    def note(self, store: float, told: Mapping[str, object], count: float) -> None:
        """The store shows this time now; ``told`` is how far each replica's clock is ahead of it.

        Of two halves that disagree the earlier time counts: a session that lives too long is better than one that ends.
        """
        known = {name: float(one) for name, one in told.items() if isinstance(one, int | float) and math.isfinite(one)}
        agreed = median_low([0.0, *known.values()])
        self._shown = store + agreed, count
        self.ahead = {name: one - agreed for name, one in known.items()}

    def time(self, wall: float, count: float) -> float:
        """The time of the fleet; that of this machine as long as no store told another one."""
        return wall if self._shown is None else self._shown[0] + count - self._shown[1]

    @property
    def wrong(self) -> dict[str, float]:
        """The replicas whose clock is wrong, and how many seconds it is ahead."""
        return {name: one for name, one in sorted(self.ahead.items()) if abs(one) > SKEW_SECONDS}

    @property
    def notice(self) -> str:
        """What the operator should know about clocks that are wrong; empty if none is."""
        wrong = [f"{name} is {_apart(seconds)} the fleet's" for name, seconds in self.wrong.items()]
        more = f", and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        if not wrong:
            return ""
        return (
            f"the clock of {', that of '.join(wrong[:MOST_NAMED])}{more}: correct it. Sessions, switches and approvals "
            "go by the time of the fleet; tokens and certificates are judged by the clock of each machine"
        )


def _apart(seconds: float) -> str:
    return f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'}"
