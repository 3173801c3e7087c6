"""What a lifecycle remembers of its server, and the steps that several events share.

``lifecycle`` decides what an event amounts to, and what follows from it. It works on this state.

What must never happen: two dials at a time (``begin_dial`` drops every other plan), a connection that is closed while
it still counts as the current one (``detach`` takes it out first), or a budget that a failed close charges.

The numbers and times come first: the policy, the timers, and when to check an address. All times are in seconds. There
is no clock here: the caller gives the time, and the chance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from holdfast.core.lifecycle.effects import (
    AccessChanged,
    Cause,
    CheckLiveness,
    Close,
    Dial,
    Effect,
    Emit,
    RetryPlanned,
    StopAddressCheck,
)
from holdfast.core.lifecycle.events import (
    AddressCheckDue,
    DialFailed,
    Event,
    Parked,
    RefreshDue,
    RefreshFailed,
    RetryDue,
    SelfProbeDue,
)
from holdfast.core.lifecycle.table import State

if TYPE_CHECKING:
    from collections.abc import Container

    from holdfast.core.lifecycle.events import Event
    from holdfast.core.messages import FailureStatus

__all__ = [
    "DOWN",
    "JITTER",
    "RETRY_AFTER_CAP",
    "AddressWatch",
    "Dialing",
    "LeaseState",
    "LifecycleMemory",
    "LifecyclePolicy",
    "LifecycleState",
    "Step",
    "Timers",
    "aligned",
    "delay",
    "shortened",
    "to_milliseconds",
]


@dataclass(frozen=True, kw_only=True)
class LifecyclePolicy:
    """One server's policy; the defaults are the documented ones."""

    failures: int = 3
    """Consecutive failures of a connection that still stands, before it is given up."""
    backoff: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """The wait before each reconnect; as many reconnects may fail as there are waits."""
    jitter: float = 0.2
    """The share of a wait that chance may remove; no wait is longer than configured."""
    after_loss: float = 0.3
    """The share of the first wait that applies after a lost connection, where an immediate reconnect is not allowed.
    A server that is reachable at once is then back within a second, on a busy machine too."""
    standing: float = 30.0
    """How long a connection stands before earlier failures are forgotten; also the minimum time between
    two immediate reconnects."""
    self_probe: float | None = 300.0
    """How often the hub itself tries a server that is parked on permanent evidence, or denied; None for never."""
    transient_probe: float = 30.0
    """How often the hub itself tries a server that is parked on transient evidence."""
    ask_denied_after: tuple[float, ...] = (2.0, 10.0, 30.0)
    """When a denial that states no decision is asked again, in seconds after the first; then it is a decision."""
    denied_refreshes: int = 3
    """Consecutive denied listings of a connection that still stands, before the server is denied."""
    denied_again: tuple[float, ...] = (2.0, 3.0)
    """When a denied listing is repeated while calls are denied too: the waits after the first and the second. Calls are
    refused meanwhile."""
    denied_spacing: float = 5.0
    """The minimum time between two listings that denied calls ask for."""
    parked: float = 60.0
    """How long a parked server answers calls with its reason before a call may try again."""
    refresh: float | None = 60.0
    """How often a connected server is listed again; None: only after a ``list_changed`` notice."""
    refresh_spacing: float = 1.0
    """The minimum time between two listings, for any number of ``list_changed`` notices."""
    lazy: bool = False
    """Whether the server is dialed at first use and stopped when idle."""
    idle_after: float = 300.0
    """How long a lazy server may be unused before it is stopped."""
    watchable: bool = False
    """Whether a bare TCP connect can show that the server listens: it has a host and a port."""
    check_every: float = 1.0
    """The minimum time between two address checks of a server that refused and was never up in this run."""
    recheck_every: float = 0.25
    """The same for a server that was up and is probably restarting; twice that after ``restart``."""
    restart: float = 10.0
    """The longest time that counts as a quick restart."""
    check_often_for: float = 60.0
    """How long checks stay that frequent."""
    check_share: float = 0.1
    """After that, the share of an outage's length that passes between two checks. So a server that comes back waits for
    at most that share of the time for which it was away."""
    check_at_least_every: float = 30.0
    """The longest wait between two address checks, or two dials of a server that answers that it is not ready."""
    not_ready_every: float = 2.0
    """How often a server that listens and answers that it is not ready is dialed, as long as checks are frequent."""
    claims: bool = False
    """Whether several replicas use the server: then each try after a failed one needs the right to probe."""
    peer_spacing: float = 10.0
    """The minimum time between two dials that the recovery of a peer starts."""
    close_patience: float = 10.0
    """How long disabling waits for a close; after that the server counts as disabled."""


def shortened(delay: float, policy: LifecyclePolicy, chance: float) -> float:
    """A delay with its jitter: ``chance`` is in [0, 1), and 0 leaves the delay as it is."""
    return delay * (1.0 - policy.jitter * chance)


REFRESH_STEPS = 120
"""In so many steps of its period a refresh can be due."""


def aligned(at: float, period: float) -> float:
    """The same time or a little earlier: at most a step of the period.

    Refreshes of many servers that are due at about the same time are then due at the same time. The event loop wakes
    once for all of them, and their answers come together.
    """
    return at - at % (period / REFRESH_STEPS)


class Timers:
    """When each kind of timer event is due. At most one time for each kind; the caller gives the time."""

    def __init__(self) -> None:
        self._due: dict[type[Event], float] = {}

    def __contains__(self, kind: type[Event]) -> bool:
        return kind in self._due

    def set(self, kind: type[Event], at: float) -> None:
        """Due at this time, in place of any time before."""
        self._due[kind] = at

    def hasten(self, kind: type[Event], at: float) -> None:
        """Due at this time at the latest."""
        self._due[kind] = min(at, self._due.get(kind, at))

    def drop(self, *kinds: type[Event]) -> None:
        """Not due any more."""
        for kind in kinds:
            self._due.pop(kind, None)

    def keep(self, allowed: Container[type[Event]]) -> None:
        """Drop the timers that a new state does not allow."""
        self.drop(*[kind for kind in self._due if kind not in allowed])

    def at(self, kind: type[Event]) -> float | None:
        """When this kind is due, if it is."""
        return self._due.get(kind)

    def earliest(self) -> float | None:
        """When the next of them is due."""
        return min(self._due.values(), default=None)

    def pop(self, now: float) -> Event | None:
        """Take out the event that has been due longest; None when nothing is due."""
        if not self._due:
            return None
        kind = min(self._due, key=lambda kind: self._due[kind])
        if self._due[kind] > now:
            return None
        del self._due[kind]
        return kind()


class AddressWatch:
    """When to check the address of a server that is unreachable: often at first, then ever more rarely.

    A check is one bare TCP connect, name lookup included. It is not a dial and spends no budget. So
    it can be frequent enough to see a server within a second of its return, and it costs the server
    almost nothing. A server that listens and answers that it is not ready cannot be judged from
    outside: it is dialed instead, less often.

    One watch covers one outage, from the first failure of this kind until something else happens.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        self.answers = False
        """Whether it listens but is not ready: it is dialed instead of checked."""
        self._number = 0
        self._begun: float | None = None
        self._first_answer: float | None = None
        self._known = False
        self._checked_at = 0.0

    @property
    def watching(self) -> bool:
        """Whether there is an outage to watch."""
        return self._begun is not None or self._first_answer is not None

    def unreachable(self, now: float, policy: LifecyclePolicy, *, known: bool) -> float:
        """The time of the next check after a dial that did not reach it; ``known`` if it was up before in this run.

        An outage that goes on keeps its rate.
        """
        self._known, self.answers = known, False
        if self._begun is None:
            self._begun = now
        return now + self._wait(now, policy)

    def not_ready(self, now: float, policy: LifecyclePolicy) -> float:
        """The time of the next dial to a server that listens and is not ready."""
        self.answers = True
        if self._first_answer is None:
            self._first_answer = now
        return now + _backing_off(now - self._first_answer, policy, often=policy.not_ready_every)

    def begin_check(self, now: float) -> int:
        """The number of the check that starts now."""
        self._number += 1
        self.pending = self._number
        self._checked_at = now
        return self._number

    def not_listening(self, now: float, policy: LifecyclePolicy) -> float:
        """The time of the next check, after one that found no listener."""
        self.pending = None
        return max(now, self._checked_at + self._wait(now, policy))

    def interrupt(self) -> int | None:
        """Give up the check that is under way, if there is one; the outage goes on."""
        pending, self.pending = self.pending, None
        return pending

    def end(self) -> int | None:
        """The outage is over, or something else is wrong now."""
        self._begun = self._first_answer = None
        self.answers = False
        return self.interrupt()

    def _wait(self, now: float, policy: LifecyclePolicy) -> float:
        down = now - (now if self._begun is None else self._begun)
        restarting = policy.recheck_every * (1 if down < policy.restart else 2)
        return _backing_off(down, policy, often=restarting if self._known else policy.check_every)


def _backing_off(since: float, policy: LifecyclePolicy, *, often: float) -> float:
    """The wait ``since`` an outage began: ``often`` at first, then a share of the time so far, up to a limit."""
    if since < policy.check_often_for:
        return often
    return min(max(since * policy.check_share, often), policy.check_at_least_every)


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


DOWN = frozenset({State.RECONNECTING, State.PERMANENTLY_FAILED, State.DENIED})
"""The states in which the server should be connected, failed, and is tried again."""


@dataclass(slots=True)
class Dialing:
    """The dial that is under way."""

    generation: int
    cause: Cause
    again: bool = False
    """New credentials arrived during the dial: if it fails, dial once more."""
    retry_at: float | None = None
    """The time of the reconnect that was planned before this dial began."""
    notices: int = 0
    """The number of ``list_changed`` notices so far."""


@dataclass(slots=True)
class LeaseState:
    """The connection that stands: what the lifecycle remembers of it."""

    generation: int
    cause: Cause
    listed_at: float
    proven: bool = False
    """It has stood for a while, or completed a user's call: earlier failures are forgotten."""
    failures: int = 0
    denials: int = 0
    """Denied listings in a row."""
    denial: RefreshFailed | None = None
    """The latest of them."""
    call_denied: bool = False
    """Whether a call was denied and none completed since."""
    asked_at: float = -inf
    """When a denied call last asked for a listing."""
    refreshing: bool = False
    checking: bool = False
    suspect: bool = False
    """A call on it failed, or the breaker refuses calls because of earlier failures: one failed liveness check
    ends it."""
    notices: int = 0
    covered: int = 0
    """How many of those notices are older than the last good listing."""
    covering: int = 0
    """How many are older than the listing that is under way."""

    @property
    def shut(self) -> bool:
        """Whether calls and the listing are denied: then no call is sent before the next listing."""
        return self.call_denied and self.denials > 0


@dataclass(slots=True)
class Step:
    """The handling of one event: the time, the chance, and the effects so far."""

    now: float
    chance: float
    effects: list[Effect] = field(default_factory=list)

    def do(self, *effects: Effect) -> None:
        """Add effects."""
        self.effects += effects


class LifecycleState:
    """What is remembered of one server, and what follows from it alone: the budget, and the right to try."""

    def __init__(self, server: str, policy: LifecyclePolicy | None = None, *, listed: bool = False) -> None:
        self.server = server
        self.policy = policy or LifecyclePolicy()
        self.state = State.DISCONNECTED
        self.reason = ""
        self.evidence: FailureStatus | None = None
        """The class of the latest failure; None while nothing failed."""
        self.down_since: float | None = None
        """Since when it should be connected and is not."""
        self.denied_since: float | None = None
        self.denials = 0
        """Denied loads in a row."""
        self.denied_until = 0.0
        """Until then a denied server refuses calls; then one call may ask again."""
        self.unconfirmed = False
        """Whether the denial states no decision, and is asked again soon."""
        self.generation = 0
        self.attempts = 0
        self.listed = listed
        self.ever_connected = False
        """Whether a dial succeeded where the server runs now: only then does a permanent failure leave hope."""
        self.was_up = False
        """Whether the server was connected in this run, here or on another replica: then it is lost, not starting."""
        self.stopped = False
        self.enable_next = False
        self.immediate_at: float | None = None
        self.parked_until = 0.0
        self.dial: Dialing | None = None
        self.lease: LeaseState | None = None
        self.closing: set[int] = set()
        self.calls = 0
        self.last_used = 0.0
        self.timers = Timers()
        self.address_watch = AddressWatch()
        self.claim_until: float | None = None
        """This replica has the right to probe until then."""
        self.claim_used = False
        self.waiting: tuple[Cause, float] | None = None
        """The dial that is due and waits for the right to probe, and since when."""
        self.interest_at: float | None = None
        """When a call that was refused may try: the right to probe is claimed before."""
        self.peer_dial_at: float | None = None
        self._armed: float | None = None
        self._asked: float | None = None

    def may_probe(self, now: float) -> bool:
        """Whether a try is allowed now: this replica is alone, or has the right to probe."""
        return not self.policy.claims or (self.claim_until is not None and now < self.claim_until)

    def live(self) -> list[int]:
        """The generations of the connection and of the dial, where there are any."""
        return [part.generation for part in (self.lease, self.dial) if part is not None]

    def charge_due(self) -> int:
        """What the budget is charged if the current dial fails, or the current connection dies, now.

        Only a reconnect is charged. A reconnect fails too if its connection dies before it is proven.
        """
        if self.dial is not None:
            return int(self.dial.cause is Cause.RECONNECT and not self.dial.again)
        if self.lease is not None:
            return int(self.lease.cause is Cause.RECONNECT and not self.lease.proven)
        return 0

    def charge(self) -> None:
        """Charge the budget."""
        self.attempts = min(self.attempts + self.charge_due(), len(self.policy.backoff))

    def budget_spent(self) -> bool:
        """Whether the next charge uses up the budget."""
        return self.attempts + self.charge_due() >= len(self.policy.backoff)

    def mark_proven(self, lease: LeaseState) -> None:
        """The connection is proven: the budget is full again."""
        self.attempts = 0
        lease.proven = True


class LifecycleMemory(LifecycleState, ABC):
    """The steps that several events share: dials begin and end, tries and listings are planned."""

    @abstractmethod
    def apply(self, event: Event, now: float, *, chance: float = 0.0) -> list[Effect]:
        """Take any event but a tick, and plan no wake-up."""

    def try_again(self, cause: Cause, step: Step) -> None:
        """Dial a server that failed before: now with the right to probe, else once it is granted."""
        if self.may_probe(step.now):
            self.begin_dial(cause, step)
        else:
            self.waiting = (cause, step.now)

    def begin_dial(self, cause: Cause, step: Step) -> None:
        """Dial now; all other planned dials wait for its end."""
        retry_at = self.timers.at(RetryDue)
        self.timers.drop(RetryDue, SelfProbeDue, AddressCheckDue)
        self.stop_address_check(self.address_watch.interrupt(), step)
        self.waiting = self.interest_at = None
        self.claim_used = self.claim_until is not None
        self.generation += 1
        self.dial = Dialing(self.generation, cause, retry_at=retry_at)
        step.do(Dial(self.generation, cause))

    def detach(self, step: Step) -> None:
        """Detach the connection and the dial, if there are any, then close them."""
        live = self.live()
        self.lease = self.dial = None
        self.closing.update(live)
        step.do(*[Close(generation) for generation in live])

    def plan_retry(
        self,
        step: Step,
        *,
        share: float = 1.0,
        planned: float | None = None,
        retry_after: float | None = None,
        answers: bool = False,
    ) -> None:
        """Plan a reconnect: after the backoff (or a share of it), or at the time planned before if that is ahead."""
        delay = shortened(share * self.policy.backoff[self.attempts], self.policy, step.chance)
        if planned is not None and planned > step.now:
            delay = planned - step.now
        delay = max(delay, min(retry_after or 0.0, RETRY_AFTER_CAP), self.policy.not_ready_every if answers else 0.0)
        self.timers.set(RetryDue, step.now + delay)
        step.do(Emit(RetryPlanned(server=self.server, attempt=self.attempts + 1, delay=delay, at=step.now)))

    def plan_self_probe(self, step: Step) -> None:
        """Plan the hub's own try of a parked or denied server: soon on transient evidence, else slowly.

        An address that is watched needs no early try: the watch sees its return sooner.
        """
        delay = self.policy.self_probe
        if self.evidence == "transient" and AddressCheckDue not in self.timers:
            delay = self.policy.transient_probe
        elif self.evidence == "denied" and delay is not None:
            delay = max(delay, self.policy.parked)
        if delay is not None:
            self.timers.set(SelfProbeDue, step.now + shortened(delay, self.policy, step.chance))

    def plan_denied(self, step: Step, *, unconfirmed: bool) -> None:
        """Plan when a denied server is asked again. A denial without a decision is asked a few times soon.

        What was decided stays so until the server is up again: a later denial without a decision is not asked soon.
        """
        if self.denied_since is None:
            self.denied_since, self.denials = step.now, 0
        self.denied_until = step.now + self.policy.parked
        times = self.policy.ask_denied_after
        self.unconfirmed = unconfirmed and self.denials < len(times)
        if self.unconfirmed:
            delay = max(self.denied_since + times[self.denials] - step.now, times[0])
            self.timers.set(SelfProbeDue, step.now + shortened(delay, self.policy, step.chance))
            self.denials += 1
        else:
            self.plan_self_probe(step)
            self.denials = len(times)

    def plan_address_check(self, step: Step, event: DialFailed | Parked) -> None:
        """Plan address checks of an unreachable server, and dials of one that listens and is not ready.

        No other fault can be seen from outside.
        """
        at: float | None = None
        retry_after = event.retry_after
        if event.unreachable and self.policy.watchable:
            at = self.address_watch.unreachable(step.now, self.policy, known=self.ever_connected)
        elif event.answers or (event.status == "transient" and self.address_watch.watching):
            at = self.address_watch.not_ready(step.now, self.policy)
        if at is None:
            self.end_watch(step)
        else:
            self.timers.set(AddressCheckDue, max(at, step.now + min(retry_after or 0.0, RETRY_AFTER_CAP)))

    def end_watch(self, step: Step) -> None:
        """Stop watching the address."""
        self.timers.drop(AddressCheckDue)
        self.stop_address_check(self.address_watch.end(), step)

    def stop_address_check(self, number: int | None, step: Step) -> None:
        """Cancel the address check that is under way, if there is one."""
        if number is not None:
            step.do(StopAddressCheck(number))

    def plan_refresh(self, lease: LeaseState, step: Step) -> None:
        """Plan the next listing: soon after a ``list_changed`` notice, else after the period."""
        if lease.notices > lease.covered:
            # A failed listing is repeated more slowly: the third failure gives the connection up.
            spacing = self.policy.refresh_spacing * 2**lease.failures
            self.timers.hasten(RefreshDue, max(step.now, lease.listed_at + spacing))
        elif self.policy.refresh is not None:
            due = step.now + shortened(self.policy.refresh, self.policy, step.chance)
            self.timers.set(RefreshDue, aligned(due, self.policy.refresh))

    def open_access(self, lease: LeaseState, step: Step) -> None:
        """A call completed, or a listing was not denied: calls may pass again."""
        was_shut = lease.shut
        lease.denials, lease.denial, lease.call_denied = 0, None, False
        if was_shut:
            step.do(Emit(AccessChanged(server=self.server, denied=False, reason="", at=step.now)))

    def check_suspect(self, *, failures: int) -> list[Effect]:
        """Check the liveness of a connection that the breaker holds responsible for earlier failures.

        The breaker has tripped, though fewer than ``failures`` calls failed on this connection.
        """
        lease = self.lease
        if lease is None or lease.failures + 1 >= failures:
            return []
        checking, lease.checking, lease.suspect = lease.checking, True, True
        return [] if checking else [CheckLiveness(lease.generation)]
