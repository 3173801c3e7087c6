"""Each server's history in this run, from the hub's records: its transitions, its last error, its calls.

It is a sink of the hub's journal: it reads each record once and keeps a bounded amount.
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

__all__ = ["History", "ServerHistory", "change_of"]

KEPT = 100
"""Transitions kept for each server."""

_ERRORS: frozenset[CallOutcome] = frozenset({"failed", "timed_out", "refused"})
"""The outcomes that count as errors; an answer, a denial and a cancelled call do not."""

_SETS_LAST_ERROR: frozenset[CallOutcome] = frozenset({"failed", "timed_out", "denied"})
"""The outcomes whose reason becomes the server's last error."""

_ANSWERED: frozenset[CallOutcome] = frozenset({"completed", "tool_error", "rpc_error"})

_LOST = frozenset({State.RECONNECTING, State.DENIED, State.PERMANENTLY_FAILED})


class ServerHistory:
    """The history of one server."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.timeline: deque[Change] = deque(maxlen=KEPT)
        self.last_error: LastError | None = None
        self.calls = self.errors = self.reconnects = 0
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
        error = record.outcome in _ERRORS
        self.calls += 1
        self.errors += error
        self.tally.count(at, seconds=record.seconds if record.outcome in _ANSWERED else None, error=error)
        if record.reason and record.outcome in _SETS_LAST_ERROR:
            self.last_error = LastError(at=at, text=record.reason)


class History:
    """The history of every server."""

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._began = wall()
        self._servers: dict[str, ServerHistory] = {}

    def __call__(self, record: HubRecord) -> None:
        """Take a record."""
        if isinstance(record, CallEnded):
            self.of(record.server).called(record, self._wall())
        elif isinstance(record, Transition):
            self.of(record.server).moved(record, self._wall())

    def of(self, server: str) -> ServerHistory:
        """Return a server's history; an empty one if there is no record of it."""
        history = self._servers.get(server)
        if history is None:
            history = self._servers[server] = ServerHistory(self._began)
        return history

    def forget(self, server: str) -> None:
        """Drop a server that is no longer configured."""
        self._servers.pop(server, None)


def change_of(record: Transition, at: float) -> Change:
    """Return a transition as the API shows it."""
    return Change(
        at=at,
        old=record.old.value,
        new=record.new.value,
        cause=record.cause,
        reason=record.reason,
        generation=record.generation,
    )
