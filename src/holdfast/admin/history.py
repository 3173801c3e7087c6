"""What became of each server in this run, as its records told: when it changed, what went wrong, how much it did.

A sink of the hub's journal: it looks at each record once, keeps little, and asks nobody.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from holdfast.admin.tally import Tally
from holdfast.control.models import Change, LastError
from holdfast.core.lifecycle.effects import Transition
from holdfast.core.lifecycle.table import State
from holdfast.hub.records import CallEnded, CallOutcome, HubRecord

__all__ = ["History", "Past", "change_of"]

KEPT = 100
"""Transitions remembered for each server."""

_WENT_WRONG: frozenset[CallOutcome] = frozenset({"failed", "timed_out", "refused"})
"""What counts as an error of a call; an answer does not, whatever it says, nor does a denial or a caller that left."""

_TELLS_OF_SERVER: frozenset[CallOutcome] = frozenset({"failed", "timed_out", "denied"})
"""After these, what the caller was told is the last that is known to have gone wrong with the server."""

_ANSWERED: frozenset[CallOutcome] = frozenset({"completed", "tool_error", "rpc_error"})

_FELL = frozenset({State.RECONNECTING, State.DENIED, State.PERMANENTLY_FAILED})


class Past:
    """One server's."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.timeline: deque[Change] = deque(maxlen=KEPT)
        self.last_error: LastError | None = None
        self.calls = self.errors = self.reconnects = 0
        self.tally = Tally()
        self._stood = self._fell = False

    def moved(self, record: Transition, at: float) -> None:
        """It went from one state to another."""
        self.since = at
        self.timeline.append(change_of(record, at))
        if record.new in _FELL:
            self._fell = self._stood
            if record.reason:
                self.last_error = LastError(at=at, text=record.reason)
        elif record.new is State.CONNECTED:
            self.reconnects += self._fell
            self._stood, self._fell = True, False

    def called(self, record: CallEnded, at: float) -> None:
        """A call to it ended."""
        error = record.outcome in _WENT_WRONG
        self.calls += 1
        self.errors += error
        self.tally.count(at, seconds=record.seconds if record.outcome in _ANSWERED else None, error=error)
        if record.reason and record.outcome in _TELLS_OF_SERVER:
            self.last_error = LastError(at=at, text=record.reason)


class History:
    """Every server's past, by its id."""

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._began = wall()
        self._pasts: dict[str, Past] = {}

    def __call__(self, record: HubRecord) -> None:
        """Take a record."""
        if isinstance(record, CallEnded):
            self.of(record.server).called(record, self._wall())
        elif isinstance(record, Transition):
            self.of(record.server).moved(record, self._wall())

    def of(self, server: str) -> Past:
        """A server's past; an empty one if nothing was told of it."""
        past = self._pasts.get(server)
        if past is None:
            past = self._pasts[server] = Past(self._began)
        return past

    def forget(self, server: str) -> None:
        """It is no longer configured."""
        self._pasts.pop(server, None)


def change_of(record: Transition, at: float) -> Change:
    """A transition, as it is shown."""
    return Change(
        at=at,
        old=record.old.value,
        new=record.new.value,
        cause=record.cause,
        reason=record.reason,
        generation=record.generation,
    )
