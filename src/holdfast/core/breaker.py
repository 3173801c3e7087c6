"""The circuit breaker of one server: may this call try?

``admit`` gives a permit or a refusal; ``settle`` takes the permit back with the outcome of the
call. The breaker starts no work, has no clock and writes no log: time is an argument, and each
change comes back as data for the log (``Tripped``, ``ClosedAgain``), with the counts since the
change before.

Four rules:

* A permit carries the generation in which it was given and the connection on which it was used.
  A result from before a trip, or from a connection that has been replaced, changes nothing.
* One event is one failure. Over HTTP a server that stops is seen several times: a call fails, the check of its
  connection fails, and so does the dial after it. A failed call puts its connection in doubt. An answer ends the
  doubt: then the connection stands, and each call that failed on it counts for itself. If the connection ends in
  doubt, all its failures, its loss and the first dial after it are one.
* A reconnect closes a breaker that failed connects or a lost connection opened, but keeps the failures
  it remembers. Only a completed user call, or a connection that has stood for a while, clears them. So
  a server that connects, lists and dies in a loop does trip.
* A breaker that failing calls opened closes by a completed call or by a person. A ping, a listing or a
  reconnect shows that the connection stands, not that calls work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import msgspec

__all__ = [
    "Breaker",
    "BreakerEvent",
    "BreakerPolicy",
    "BreakerState",
    "ClosedAgain",
    "Outcome",
    "Permit",
    "Refusal",
    "RefusalReason",
    "Tripped",
]


@dataclass(frozen=True, kw_only=True)
class BreakerPolicy:
    """When a breaker trips and for how long. Times in seconds."""

    threshold: int = 3
    window: float = 30.0
    cooldown: float = 60.0
    growth: float = 1.0
    """Each trip in a row multiplies the cooldown by this; 1 keeps it as it is."""
    max_cooldown: float = 600.0
    probe_wait: float = 1.0
    """The wait that a refusal names while a try is under way: another caller's probe, or the hub's own dial."""


class BreakerState(Enum):
    """Whether calls pass, are refused, or one of them is being tried."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Outcome(Enum):
    """The outcome of an admitted call."""

    __hash__ = object.__hash__  # see ``State``

    COMPLETED = "completed"
    """An answer came: a result, a result that says ``isError``, or a JSON-RPC error."""
    TRANSPORT_FAILURE = "transport_failure"
    """This call failed at the transport; the connection may still stand."""
    CONNECTION_LOST = "connection_lost"
    """The connection died during this call, and with it every other call on it."""
    TIMED_OUT = "timed_out"
    """No answer in time: proves nothing before a liveness check."""
    NEUTRAL = "neutral"
    """Cancelled, or never sent: proves nothing about the server."""
    DENIED = "denied"
    """This call was denied: proves nothing about the server, and asks for a look at it."""


class RefusalReason(Enum):
    """Why a call may not try."""

    OPEN = "open"
    PROBING = "probing"
    PERMANENTLY_FAILED = "permanently_failed"
    DENIED = "denied"
    DISABLED = "disabled"
    STOPPED = "stopped"


class Permit(msgspec.Struct, eq=False):
    """The right to make one call, given back by ``settle``. Two permits are never equal.

    It is a struct because every call makes one: that takes a tenth of the time of a dataclass.
    """

    generation: int
    connection: int | None = None
    """The connection that the call was sent on; None until it was sent."""
    probe: bool = False
    settled: bool = False
    at: float = 0.0
    """When it was given."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """No network was touched; ``retry_in`` is None where waiting alone will not help."""

    reason: RefusalReason
    retry_in: float | None


@dataclass(frozen=True, kw_only=True)
class Tripped:
    """The breaker opened. ``refused`` counts the calls since the event before, which have no line of their own."""

    at: float
    failures: int
    retry_in: float
    refused: int


@dataclass(frozen=True, kw_only=True)
class ClosedAgain:
    """The breaker closed: after a success, or because a new try was asked for."""

    at: float
    refused: int
    """The calls that were refused since the event before."""


BreakerEvent: TypeAlias = Tripped | ClosedAgain


class Gate:
    """Closed, open or half open: who may try, and for how long others may not. ``Breaker`` says when it opens."""

    def __init__(self, policy: BreakerPolicy | None = None) -> None:
        self.policy = policy or BreakerPolicy()
        self.state = BreakerState.CLOSED
        self.generation = 0
        """Counts trips and manual closes: a permit of an older generation is late."""
        self.trips = 0
        self.by_calls = False
        """Whether failing calls opened it, on a connection that stands."""
        self._failures: deque[float] = deque(maxlen=self.policy.threshold)
        self._oldest_connection = 0
        """Outcomes of calls on older connections are late."""
        self._opened_at = self._until = 0.0
        self.probe: Permit | None = None
        """The one call that may try, while it is under way."""
        self._refused = 0

    def __repr__(self) -> str:
        until = f" until={self._until:.1f}" if self.state is BreakerState.OPEN else ""
        return f"<Breaker {self.state.value}{until} failures={len(self._failures)} gen={self.generation}>"

    @property
    def failures(self) -> int:
        """The number of remembered failures, at most the threshold."""
        return len(self._failures)

    def retry_in(self, now: float) -> float:
        """Seconds until the next call may try; 0 when it may try now."""
        return max(0.0, self._until - now) if self.state is BreakerState.OPEN else 0.0

    def would_probe(self, now: float) -> bool:
        """Whether the next call that is admitted would be a probe."""
        if self.state is BreakerState.CLOSED:
            return False
        return self.retry_in(now) == 0.0 and (self.probe is None or now >= self.probe.at + self._cooldown())

    def adopt(self, policy: BreakerPolicy) -> None:
        """Use another policy from now on; it also sets the length of a cooldown that has begun."""
        self.policy = policy
        self._failures = deque(self._failures, maxlen=policy.threshold)
        # In every state: it is read only while the breaker is open, and each trip sets it again.
        self._until = self._opened_at + self._cooldown()

    def admit(self, now: float, connection: int | None = None) -> Permit | Refusal:
        """A permit when closed, for one probe at a time after the cooldown, else a refusal."""
        if self.state is BreakerState.CLOSED:
            return Permit(self.generation, connection, at=now)
        if self.state is BreakerState.OPEN and now < self._until:
            self._refused += 1
            return Refusal(RefusalReason.OPEN, self._until - now)
        # A probe that takes longer than a cooldown loses its place (BRK-11): one call that hangs would else keep the
        # server shut for as long as its own limit allows.
        if self.probe is not None and now < self.probe.at + self._cooldown():
            self._refused += 1
            return Refusal(RefusalReason.PROBING, self.policy.probe_wait)
        self.state = BreakerState.HALF_OPEN
        self.probe = Permit(self.generation, connection, probe=True, at=now)
        return self.probe

    def hasten(self, now: float) -> None:
        """Calls work at a peer: the next call here may try."""
        if self.state is BreakerState.OPEN and self.by_calls:
            # Not closed: that the calls of a peer pass says nothing of the way from here. The next call here is the
            # probe.
            self._until = min(self._until, now)

    def _trip(self, now: float) -> Tripped:
        self.state = BreakerState.OPEN
        self.generation += 1  # what was sent before the trip ends too late to say anything about the time after it
        self.trips += 1
        self.probe = None
        cooldown = self._cooldown()
        self._opened_at, self._until = now, now + cooldown
        return Tripped(at=now, failures=len(self._failures), retry_in=cooldown, refused=self._take_refused())

    def _cooldown(self) -> float:
        policy = self.policy
        if policy.growth == 1.0:
            return policy.cooldown
        # Growth over a long outage would overflow a float; the exponent needs no more than this.
        grown: float = policy.cooldown * policy.growth ** min(self.trips - 1, 64)
        return min(grown, policy.max_cooldown)

    def _close(self, now: float) -> ClosedAgain | None:
        if self.state is BreakerState.CLOSED:
            return None
        self.state = BreakerState.CLOSED
        self.by_calls = False
        return ClosedAgain(at=now, refused=self._take_refused())

    def _take_refused(self) -> int:
        refused, self._refused = self._refused, 0
        return refused


@dataclass(slots=True)
class _Doubt:
    """The connection on which something failed, and which has not answered since."""

    connection: int | None = None
    failures: int = 0
    """How many failures were counted on it since then."""
    dial_excused: bool = False
    """Whether the next failed dial belongs to a failure that is counted already."""


class Breaker(Gate):
    """One server's breaker; every method that may change its state returns what to log, or None."""

    def __init__(self, policy: BreakerPolicy | None = None) -> None:
        super().__init__(policy)
        self._doubt = _Doubt()
        self._connected_at = 0.0
        self._earlier_trips = 0

    def settle(self, permit: Permit, outcome: Outcome, now: float) -> BreakerEvent | None:
        """Take a permit back; a second time, or too late, it changes nothing."""
        if permit.settled:
            return None
        permit.settled = True
        # Read first: once the place is given back, every probe looks like one that another has replaced.
        replaced = permit.probe and permit is not self.probe
        if permit is self.probe:
            self.probe = None
        if outcome in _SAYS_NOTHING or permit.generation != self.generation:
            return None
        if permit.connection is not None and permit.connection < self._oldest_connection:
            return None
        # A success counts also from a probe that was replaced: whichever call passes, calls pass again.
        if outcome is Outcome.COMPLETED:
            # Nearly every call finds nothing to forget: it enters no further function for that (PERF-7).
            if self._failures or self.trips:
                self._forget()
            return self._close(now) if self.state is not BreakerState.CLOSED else None
        if replaced:
            return None  # it took longer than a cooldown: another has its place, and its failure says no more
        if outcome is Outcome.CONNECTION_LOST and permit.connection is not None:
            return self.lost(permit.connection, now)
        return self._failed_on(permit.connection, now, call=True)

    def connected(self, connection: int, now: float) -> BreakerEvent | None:
        """A dial succeeded: closes, unless calls failed on a connection that stood, and keeps earlier failures."""
        self._oldest_connection = max(self._oldest_connection, connection)
        self._doubt = _Doubt()
        self._connected_at = now
        # A handshake forgives nothing yet (BRK-10). What was before it is marked, for `stood` to forget.
        self._earlier_trips = self.trips
        return None if self.by_calls else self._close(now)

    def connect_failed(self, now: float, *, neutral: bool = False) -> BreakerEvent | None:
        """A dial failed; ``neutral`` if that was a denial, or no fault of the server."""
        excused, self._doubt.dial_excused = self._doubt.dial_excused, False
        if neutral:
            return None
        if excused and self.state is not BreakerState.HALF_OPEN:  # a probe that waits for this dial has failed with it
            self.by_calls = False
            return None
        return self._failed(now)

    def lost(self, connection: int, now: float) -> BreakerEvent | None:
        """A connection died: one failure, together with those that were counted on it since its last answer."""
        if connection < self._oldest_connection:
            return None
        event: BreakerEvent | None = None
        if connection == self._doubt.connection:
            self.by_calls = False
            # They were counted one by one, because the connection could still have answered. Now they are one event.
            # An open breaker has counted enough already.
            if self.state is BreakerState.CLOSED:
                for _ in range(min(self._doubt.failures, len(self._failures)) - 1):
                    self._failures.pop()
        else:
            event = self._failed_on(connection, now)
        self.detached(connection)
        return event

    def detached(self, connection: int) -> None:
        """A connection was given up: late outcomes of its calls are not counted."""
        if connection >= self._oldest_connection:
            self._oldest_connection = connection + 1
            # A dial that follows a failed connection meets the same outage; one after a clean end meets a new one.
            self._doubt = _Doubt(dial_excused=connection == self._doubt.connection)

    def answered(self, connection: int) -> None:
        """A connection answered: what failed on it before counts, and a later loss is another failure."""
        if connection == self._doubt.connection:
            self._doubt.connection, self._doubt.failures = None, 0

    def unanswered(self, connection: int, now: float) -> BreakerEvent | None:
        """A connection did not answer a liveness check: one failure, like that of a call."""
        return None if connection < self._oldest_connection else self._failed_on(connection, now)

    def warned(self, now: float) -> None:
        """Calls fail at a peer: one failing call here is enough now. A peer alone opens nothing."""
        if self.state is BreakerState.CLOSED:
            # One less than the threshold: the last failure must be seen here. A peer with a broken network would else
            # shut a server that this replica reaches well.
            missing = self.policy.threshold - 1 - len(self._failures)
            self._failures.extend([now] * missing)

    def stood(self) -> None:
        """The connection has stood long enough: earlier failures are forgotten."""
        self.trips -= self._earlier_trips  # a trip since it was made belongs to this connection, and stays
        self._earlier_trips = 0
        while self._failures and self._failures[0] <= self._connected_at:
            self._failures.popleft()

    def close(self, now: float) -> BreakerEvent | None:
        """A new try was asked for: closed, and outcomes of calls in flight are late."""
        self.generation += 1  # a call from before the person acted must not open it again
        self._failures.clear()
        self._doubt = _Doubt()
        return self._close(now)

    def reset(self, now: float) -> BreakerEvent | None:
        """The conditions changed (a login, a config change, enabled again): all history is cleared."""
        event = self.close(now)
        self._forget()
        return event

    def _failed_on(self, connection: int | None, now: float, *, call: bool = False) -> BreakerEvent | None:
        """Count a failure on a connection, which is in doubt from now on.

        No other is in doubt: the doubt of one ends before the next is made.
        """
        self._doubt.connection = connection
        self._doubt.failures += 1
        return self._failed(now, call=call)

    def _failed(self, now: float, *, call: bool = False) -> BreakerEvent | None:
        if not call:
            # The connection itself failed: a new one shows more than a call on the old one did.
            self.by_calls = False
        if self.state is BreakerState.OPEN:
            return None  # calls that were admitted together fail together: the log has one line for all (BRK-8)
        self._failures.append(now)
        # Only the last ones are kept: so the first of them tells whether all are within the window.
        is_full = len(self._failures) == self.policy.threshold
        if self.state is BreakerState.HALF_OPEN or (is_full and now - self._failures[0] <= self.policy.window):
            self.by_calls = call
            return self._trip(now)
        return None

    def _forget(self) -> None:
        self._failures.clear()
        self._doubt = _Doubt()
        self.trips = self._earlier_trips = 0


_SAYS_NOTHING = frozenset({Outcome.NEUTRAL, Outcome.DENIED, Outcome.TIMED_OUT})
