"""What a lifecycle remembers of its server, and the steps that several events share.

``lifecycle`` decides what an event amounts to, and what follows from it. It works on this state.

What must never happen: two dials at a time (``begin_dial`` drops every other plan), a connection that is closed while
it still counts as the current one (``detach`` takes it out first), or a budget that a failed close charges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from holdfast.core.lifecycle.backoff import RETRY_AFTER_CAP, AddressWatch, LifecyclePolicy, Timers, shortened
from holdfast.core.lifecycle.effects import (
    Cause,
    Close,
    Dial,
    Effect,
    Emit,
    RetryPlanned,
)
from holdfast.core.lifecycle.events import (
    AddressCheckDue,
    DialFailed,
    Event,
    Parked,
    RefreshFailed,
    RetryDue,
    SelfProbeDue,
)
from holdfast.core.lifecycle.table import State

if TYPE_CHECKING:
    from holdfast.core.lifecycle.events import Event
    from holdfast.core.messages import FailureStatus

__all__ = [
    "DOWN",
    "Dialing",
    "LeaseState",
    "LifecycleState",
    "Step",
]


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
    def shut(self) -> RefreshFailed | None:
        """The denied listing, if calls are denied too: then no call is sent before the next listing."""
        return self.denial if self.call_denied else None


@dataclass(slots=True)
class Step:
    """The handling of one event: the time, the chance, and the effects so far."""

    now: float
    chance: float
    effects: list[Effect] = field(default_factory=list)
    then: Event | None = None
    """What is handled next, in the same step: a disable that finds nothing to close has ended already."""

    def do(self, *effects: Effect) -> None:
        """Add effects."""
        self.effects += effects


class LifecycleState:
    """What is remembered of one server, and the steps that several events share."""

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
        self.refuses_until = 0.0
        """Until then a denied or parked server answers calls with its reason; then one call may try."""
        self.unconfirmed = False
        """Whether the denial states no decision, and is asked again soon."""
        self.generation = 0
        self.attempts = 0
        self.listed = listed
        self.ever_connected = False
        """Whether a dial succeeded under this definition: only then is the server lost, not starting, and only then
        does a permanent failure leave hope."""
        self.stopped = False
        self.enable_next = False
        self.immediate_at: float | None = None
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

    # The steps that several events share: dials begin and end, tries and listings are planned.

    def try_again(self, cause: Cause, step: Step) -> None:
        """Dial a server that failed before: now with the right to probe, else once it is granted."""
        if self.may_probe(step.now):
            self.begin_dial(cause, step)
        else:
            self.waiting = (cause, step.now)

    def begin_dial(self, cause: Cause, step: Step) -> None:
        """Dial now; all other planned dials wait for its end."""
        # Should this dial fail, the reconnect comes at its planned time: a probe must not postpone it again and again.
        retry_at = self.timers.get(RetryDue)
        self.timers.drop(RetryDue, SelfProbeDue, AddressCheckDue)
        self.address_watch.pending = None
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
        left = 0.0 if planned is None else max(0.0, planned - step.now)
        delay = left or shortened(share * self.policy.backoff[self.attempts], self.policy, step.chance)
        delay = max(delay, min(retry_after or 0.0, RETRY_AFTER_CAP), self.policy.not_ready_every if answers else 0.0)
        self.timers[RetryDue] = step.now + delay
        if not left:  # else it is announced already: a server that answers 503 is asked every 2 s in between
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
            self.timers[SelfProbeDue] = step.now + shortened(delay, self.policy, step.chance)

    def plan_denied(self, step: Step, *, unconfirmed: bool) -> None:
        """Plan when a denied server is asked again. A denial without a decision is asked a few times soon.

        What was decided stays so until the server is up again: a later denial without a decision is not asked soon.
        """
        if self.denied_since is None:
            self.denied_since, self.denials = step.now, 0
        self.refuses_until = step.now + self.policy.parked
        times = self.policy.ask_denied_after
        self.unconfirmed = unconfirmed and self.denials < len(times)
        if self.unconfirmed:
            delay = max(self.denied_since + times[self.denials] - step.now, times[0])
            self.timers[SelfProbeDue] = step.now + shortened(delay, self.policy, step.chance)
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
            self.end_watch()
        else:
            self.timers[AddressCheckDue] = max(at, step.now + min(retry_after or 0.0, RETRY_AFTER_CAP))

    def end_watch(self) -> None:
        """Stop watching the address."""
        self.timers.drop(AddressCheckDue)
        self.address_watch.end()
