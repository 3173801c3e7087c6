"""Recent calls of one server in steps of time: how many, how many failed, how long they took."""

from __future__ import annotations

from collections import deque
from statistics import median

from holdfast.control.models import Activity

__all__ = ["Tally"]

STEP_SECONDS = 5.0
STEPS = 60
"""Five minutes in all."""

SAMPLES = 64
"""Durations kept for each step; more would not visibly change its median."""


class _Step:
    """One step of time."""

    __slots__ = ("_middle", "_taken_at", "calls", "errors", "number", "times")

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = self.errors = 0
        self.times: deque[float] = deque(maxlen=SAMPLES)
        self._middle: float | None = None
        self._taken_at = 0

    def milliseconds(self) -> float | None:
        """Return the median; it is computed again only after a new call."""
        if self._taken_at != self.calls:
            self._taken_at = self.calls
            self._middle = round(median(self.times) * 1000, 2) if self.times else None
        return self._middle


class Tally:
    """The last steps with calls."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=STEPS)

    def count(self, at: float, *, seconds: float | None, error: bool) -> None:
        """Count a call that ended at this time; ``seconds`` is its duration, if it completed."""
        number = int(at // STEP_SECONDS)
        if not self._steps or self._steps[-1].number < number:
            self._steps.append(_Step(number))
        step = self._steps[-1]
        step.calls += 1
        step.errors += error
        if seconds is not None:
            step.times.append(seconds)

    def activity(self, now: float) -> Activity | None:
        """Return the recent activity; None if there were no calls."""
        last = int(now // STEP_SECONDS)
        steps = {step.number: step for step in self._steps if step.number > last - STEPS}
        if not steps:
            return None
        wanted = [steps.get(number) for number in range(last - STEPS + 1, last + 1)]
        return Activity(
            step=STEP_SECONDS,
            until=(last + 1) * STEP_SECONDS,
            calls=tuple(step.calls if step else 0 for step in wanted),
            errors=tuple(step.errors if step else 0 for step in wanted),
            milliseconds=tuple(step.milliseconds() if step else None for step in wanted),
        )
