"""Each server's history in this run, from the hub's records: its transitions, its last error, its recent calls.

It is a sink of the hub's journal: it reads each record once and keeps a bounded amount.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

from holdfast.control.models import Activity, Change, LastError
from holdfast.core import State, Transition
from holdfast.hub import CallEnded, CallOutcome, HubRecord

__all__ = ["History", "ServerHistory", "Tally", "change_of", "counts_as"]

STEP_SECONDS = 5.0
STEPS = 60
"""Five minutes in all."""

SAMPLES = 64
"""Durations kept for each step; more would not visibly change its median."""


class ActivityStep:
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
        self._steps: deque[ActivityStep] = deque(maxlen=STEPS)

    def step(self, at: float) -> ActivityStep:
        """Return the step of this time, or the latest one if that is later."""
        number = int(at // STEP_SECONDS)
        if not self._steps or self._steps[-1].number < number:
            self._steps.append(ActivityStep(number))
        return self._steps[-1]

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


KEPT = 100
"""Transitions kept for each server."""

_ERRORS: frozenset[CallOutcome] = frozenset({"failed", "timed_out", "refused"})
"""The outcomes that count as errors; an answer, a denial and a cancelled call do not."""

_SETS_LAST_ERROR: frozenset[CallOutcome] = frozenset({"failed", "timed_out", "denied"})
"""The outcomes whose reason becomes the server's last error."""

_ANSWERED: frozenset[CallOutcome] = frozenset({"completed", "tool_error", "rpc_error"})

_LOST = frozenset({State.RECONNECTING, State.DENIED, State.PERMANENTLY_FAILED})


def counts_as(record: CallEnded) -> tuple[bool, float | None, str]:
    """Whether a call counts as an error, its duration if it was answered, and the reason if it is the last error."""
    return (
        record.outcome in _ERRORS,
        record.seconds if record.outcome in _ANSWERED else None,
        record.reason if record.outcome in _SETS_LAST_ERROR else "",
    )


class ServerHistory:
    """The history of one server."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.timeline: deque[Change] = deque(maxlen=KEPT)
        self.last_error: LastError | None = None
        self.calls = self.errors = self.reconnects = 0
        self.own_calls = self.own_errors = 0
        """How many of these were calls here, and not in another worker."""
        self.own_error = ""
        """The reason of the last error of a call here."""
        self.tally = Tally()
        self._was_connected = self._was_lost = False

    def moved(self, record: Transition, at: float) -> None:
        """Take a transition."""
        self.since = at
        self.timeline.append(change_of(record, at))
        if record.new in _LOST:
            self._was_lost = self._was_connected
            if record.reason:
                self.last_error = LastError(at=at, text=record.reason)
        elif record.new is State.CONNECTED:
            self.reconnects += self._was_lost
            self._was_connected, self._was_lost = True, False

    def called(self, record: CallEnded, at: float) -> None:
        """Take the end of a call."""
        step = self.tally.step(at)
        step.calls += 1
        self.calls += 1
        self.own_calls += 1
        if record.outcome in _ANSWERED:
            step.times.append(record.seconds)
            return
        error, _, reason = counts_as(record)
        step.errors += error
        self.errors += error
        self.own_errors += error
        if reason:
            self.own_error = reason
            self.last_error = LastError(at=at, text=reason)

    def called_elsewhere(self, at: float, calls: int, errors: int, *, error: str) -> None:
        """Take calls of another worker."""
        step = self.tally.step(at)
        step.calls += calls
        step.errors += errors
        self.calls += calls
        self.errors += errors
        if error and errors and (self.last_error is None or self.last_error.text != error):
            self.last_error = LastError(at=at, text=error)


class History:
    """The history of every server."""

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._began = wall()
        self._servers: dict[str, ServerHistory] = {}
        self.in_flight_elsewhere: Mapping[str, int] = {}
        """How many calls of each server are under way in other workers."""

    def __call__(self, record: HubRecord) -> None:
        """Take a record."""
        if isinstance(record, CallEnded):
            self.called(record)
        elif isinstance(record, Transition):
            self.of(record.server).moved(record, self._wall())

    def called(self, record: CallEnded) -> None:
        """Take the end of a call."""
        (self._servers.get(record.server) or self.of(record.server)).called(record, self._wall())

    def called_elsewhere(self, server: str, calls: int, errors: int, *, error: str) -> None:
        """Take calls of another worker."""
        self.of(server).called_elsewhere(self._wall(), calls, errors, error=error)

    def of(self, server: str) -> ServerHistory:
        """Return a server's history; an empty one if there is no record of it."""
        history = self._servers.get(server)
        if history is None:
            history = self._servers[server] = ServerHistory(self._began)
        return history

    @property
    def servers(self) -> Mapping[str, ServerHistory]:
        """The histories that there are."""
        return self._servers

    def forget(self, server: str) -> None:
        """Drop a server that is no longer configured."""
        self._servers.pop(server, None)


def change_of(record: Transition, at: float) -> Change:
    """Return a transition as the API shows it."""
    return Change(
        at=at,
        old=record.old.shown,
        new=record.new.shown,
        cause=record.cause,
        reason=record.reason,
        generation=record.generation,
    )
