"""One server's lifecycle: takes events, changes its state by the table, answers with effects.

``judge`` says what an event amounts to; the table says which state that leads to; ``act`` does what follows from it,
once the state is the new one. Pure: no I/O, no clock, no tasks. Time and chance are arguments.

What can happen: dials, closes, listings and checks run in tasks of the slot, so their ends come late, in any order, and
after the server has another connection. Each carries the generation of its dial. ``is_stale`` drops the event of any
other generation before it is judged.

What must never happen, and what excludes it:

* Two dials run at a time. ``begin_dial`` drops every other plan.
* A connection is closed while it still counts as the current one. ``detach`` takes it out first.
* A close that fails charges the budget. Only the end of a dial or of a connection does (``charge_due``).
* An event that the table forbids changes something. ``judge`` only reads, and the table is asked before ``act``.
* A connection is leaked. A dial that succeeds too late is closed by ``discard``; ``detach`` asks for a close of each
  connection and dial that it takes out.
* Anything revives a server after the hub closed. ``stopped`` makes every event stale but the report of a close.
* A timer of an older state fires. A change of state keeps those timers alone that the new state's row allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core.lifecycle.backoff import (
    RETRY_AFTER_CAP,
    AddressWatch,
    LifecyclePolicy,
    Timers,
    shortened,
)
from holdfast.core.lifecycle.events import (
    AddressCheckDue,
    AddressChecked,
    AllClosed,
    CallTransportFailed,
    CallWaiting,
    Cause,
    CheckAddress,
    ClaimExpired,
    ClaimGranted,
    ClaimProbe,
    Close,
    Closed,
    CloseFailed,
    CloseOverdue,
    ConfigChanged,
    Denied,
    Dial,
    DialFailed,
    DialSucceeded,
    DisableRequested,
    Effect,
    Emit,
    EnableRequested,
    Event,
    FailedRepeatedly,
    IdleDue,
    ListChanged,
    LivenessFailed,
    LoginSucceeded,
    OfDial,
    OfLease,
    Parked,
    PeerPublished,
    PeerRecovered,
    PeerTripped,
    Publish,
    ReconnectRequested,
    RefreshFailed,
    Reinstate,
    RemoveRequested,
    RetryDue,
    RetryPlanned,
    SelfProbeDue,
    SessionExpired,
    ShutdownRequested,
    StandingDue,
    StartRequested,
    Transition,
    TransportLost,
    WakeAt,
    WentIdle,
    Withdraw,
)
from holdfast.core.lifecycle.lease_state import (
    ON_LEASE,
    LeaseState,
    act_on_lease,
    adopt_on_lease,
    list_again,
    plan_refresh,
)
from holdfast.core.lifecycle.table import TRANSITIONS, State, next_state
from holdfast.core.messages import FailureStatus

__all__ = ["Lifecycle", "Step", "act", "adopt_policy", "judge"]


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
    list_changed: bool = False
    """Whether the server said so during the dial: the listing of the dial may be older than that."""


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
        """Since when every load is denied: another failure ends that."""
        self.denials = 0
        """The questions of a denial without a decision, since the server was up; all of them once it was decided."""
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
        # This dial is the try that a call or a timer waited for, and it uses the right to probe if there is one.
        self.waiting = self.interest_at = None
        self.claim_used = self.claim_until is not None
        self.generation += 1
        self.dial = Dialing(self.generation, cause, retry_at=retry_at)
        step.do(Dial(self.generation, cause))

    def detach(self, step: Step) -> None:
        """Detach the connection and the dial, if there are any, then close them."""
        # Out of the state first, closed after: what a close brings about finds no connection to hold on to
        # (LIFE-7).
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
        Loads that take long can pass the last of these times: what is denied then is decided, and not asked in a row.
        """
        if self.denied_since is None:
            self.denied_since = step.now
        self.refuses_until = step.now + self.policy.parked
        times, since = self.policy.ask_denied_after, step.now - self.denied_since
        self.unconfirmed = unconfirmed and self.denials < len(times) and since < times[-1]
        if self.unconfirmed:
            delay = max(times[self.denials] - since, times[0])
            self.timers[SelfProbeDue] = step.now + shortened(delay, self.policy, step.chance)
            self.denials += 1
        else:
            self.plan_self_probe(step)
            self.denials = len(times)

    def plan_address_check(self, step: Step, event: Event) -> None:
        """Plan address checks of an unreachable server, and dials of one that listens and is not ready.

        No other fault can be seen from outside.
        """
        watch, wait = self.address_watch, 0.0
        match event:
            case DialFailed(unreachable=True) | PeerTripped(unreachable=True) if self.policy.watchable:
                at = watch.unreachable(step.now, self.policy, known=self.ever_connected)
            case DialFailed(answers=True) | PeerTripped(answers=True):
                at = watch.not_ready(step.now, self.policy)
            case _ if self.evidence == "transient" and watch.watching:
                at = watch.not_ready(step.now, self.policy)
            case _:
                return self.end_watch()
        if isinstance(event, DialFailed):
            wait = min(event.retry_after or 0.0, RETRY_AFTER_CAP)
        self.timers[AddressCheckDue] = max(at, step.now + wait)
        return None

    def end_watch(self) -> None:
        """Stop watching the address."""
        self.timers.drop(AddressCheckDue)
        self.address_watch.end()


class Lifecycle(LifecycleState):
    """The state of one server's slot and the decisions about it. No I/O, no clock, no tasks."""

    def __repr__(self) -> str:
        attempt = f" attempt={self.attempts}" if self.attempts else ""
        return f"<Lifecycle {self.server!r} {self.state.value}{attempt} gen={self.generation}>"

    def apply(self, event: Event, now: float, *, chance: float = 0.0) -> list[Effect]:
        """Take any current event but a tick, and plan no wake-up. ``IllegalTransition``: the table forbids it.

        The table is asked before anything changes, so an event that it forbids leaves no trace.
        """
        step = Step(now, chance, then=event)
        # Few rounds: an event that completes another one (the last close of a disable, an enable that waited for it) is
        # handled in the same step, so that no reader sees the state in between.
        while step.then is not None:
            current, step.then = step.then, None
            kind = judge(self, current, now)
            self._change_state(next_state(self.state, kind), kind, current, step)
            act(self, kind, current, step)
        return step.effects

    def due(self, now: float) -> Iterator[Event]:
        """The timer events that are due, each after the one before has been handled."""
        # The tick has come, so no wake-up is armed any more: the next one is to be told even if it is at the same time.
        self._armed = None
        while (event := self.timers.take_due(now)) is not None:
            yield event

    def wake(self) -> tuple[WakeAt, ...]:
        """The next wake-up, if its time changed."""
        earliest = self.timers.earliest()
        if earliest == self._armed:
            return ()
        self._armed = earliest
        return (WakeAt(earliest),)

    def ask(self) -> tuple[ClaimProbe, ...]:
        """The time for which the right to probe is needed, if it changed."""
        wanted = self._claim_at()
        if wanted == self._asked:
            return ()
        self._asked = wanted
        return (ClaimProbe(wanted, self.attempts),)

    def _claim_at(self) -> float | None:
        if not self.policy.claims or self.stopped or self.dial is not None or self.claim_until is not None:
            return None
        waiting = self.waiting[1] if self.waiting is not None else None
        wanted = [at for at in (waiting, self.interest_at) if at is not None]
        return min([*self.planned_tries(), *wanted], default=None)

    def planned_tries(self) -> list[float]:
        """When the hub itself tries a server that failed; no other state has one of these timers."""
        kinds = (RetryDue, SelfProbeDue, *((AddressCheckDue,) if self.address_watch.answers else ()))
        return [at for kind in kinds if (at := self.timers.get(kind)) is not None]

    def is_stale(self, event: Event) -> bool:
        """Whether the event belongs to a dial, a connection or an address check that is not the current one."""
        if self.stopped:
            return not isinstance(event, Closed)
        match event:
            case OfDial(generation=generation):
                return self.dial is None or self.dial.generation != generation
            case AddressChecked(number=number):
                return self.address_watch.pending != number
            # Not only of the connection that stands: a server may say so between the listing of its dial and the end of
            # it.
            case ListChanged(generation=generation):
                return generation not in self.live()
            case OfLease(generation=generation):
                return self.lease is None or self.lease.generation != generation
        return False

    def _change_state(self, new: State, kind: type[Event], event: Event, step: Step) -> None:
        old, self.state = self.state, new
        reason: str = getattr(event, "reason", "")
        if new is not State.CONNECTED:
            self.reason = reason or self.reason
            self.evidence = _evidence_of(kind, event) or self.evidence
        # The questions of a denial are timed from its first one. Another failure in between makes it another denial.
        if self.evidence != "denied":
            self.denied_since = None
        if new is old:
            return
        if new in _UP_OR_OFF:
            # The time down is that of one outage: reconnecting, parked and denied go on with it.
            self.down_since = self.evidence = None
        elif self.down_since is None:
            self.down_since = step.now
        if new not in DOWN:
            self.waiting = None
        if new in _WELL:
            self.reason = ""
        # A timer is an event, so the row of the new state says which may go on. One that fired in a state without a row
        # for it would be an illegal transition.
        self.timers.drop(*[kind for kind in self.timers if kind not in TRANSITIONS[new]])
        step.do(
            Emit(
                Transition(
                    server=self.server,
                    old=old,
                    new=new,
                    cause=kind.__name__,
                    at=step.now,
                    generation=self.generation,
                    reason=reason,
                )
            )
        )

    def discard(self, event: Event) -> list[Effect]:
        """Take a stale event: it changes nothing."""
        if isinstance(event, DialSucceeded):
            # Only this event knows the connection: without a close it would never end.
            self.closing.add(event.generation)
            return [Close(event.generation)]
        return []


_WELL = frozenset({State.CONNECTED, State.IDLE, State.DISABLING})
_UP_OR_OFF = _WELL | {State.DISABLED, State.DISCONNECTED}
_FAILURES = frozenset({DialFailed, Parked, FailedRepeatedly, Denied, TransportLost})


def _evidence_of(kind: type[Event], event: Event) -> FailureStatus | None:
    """The class of the failure that an event reports, if that was judged to be one of the server."""
    if kind not in _FAILURES:
        return None
    return event.status if isinstance(event, DialFailed | RefreshFailed | PeerTripped) else "transient"


def judge(life: LifecycleState, event: Event, now: float) -> type[Event]:
    """What an event amounts to: its own kind, or a judgement that the table has a row for.

    Reads the lifecycle and changes nothing: an event that the table then forbids leaves no trace.
    """
    match event:
        case StartRequested() if life.policy.lazy and life.listed and life.state is State.DISCONNECTED:
            return WentIdle  # a lazy server whose tools are known needs no connection before its first use
        case DialFailed() if life.dial is not None and life.dial.again:
            return DialFailed
        case DialFailed(status="denied"):
            return Denied
        case DialFailed(status=status):
            no_hope = status == "permanent" and not life.ever_connected
            return Parked if no_hope or life.budget_spent() else DialFailed
        case TransportLost() if life.budget_spent():
            return Parked
        case RefreshFailed(status="denied") if life.lease is not None:
            # One denied listing proves nothing about the server; several in a row do.
            return RefreshFailed if life.lease.denials + 1 < life.policy.denied_refreshes else Denied
        case RefreshFailed() | CallTransportFailed() | LivenessFailed() if life.lease is not None:
            unanswered = isinstance(event, LivenessFailed) and life.lease.suspect
            if life.lease.failures + 1 < life.policy.failures and not unanswered:
                return type(event)
            return Parked if life.budget_spent() else FailedRepeatedly
        # The same sum as the timer's: a rounding difference would make the timer fire for ever.
        case IdleDue() if life.calls == 0 and life.last_used + life.policy.idle_after <= now:
            return WentIdle
        case PeerTripped(parked=True) if life.state is State.RECONNECTING and life.dial is None:
            return Parked
    return type(event)


def act(life: LifecycleState, kind: type[Event], event: Event, step: Step) -> None:
    """Perform what follows from an event of a kind. The state is the new one already; the event is allowed."""
    if kind in _ON_DIAL and life.dial is not None:
        _ON_DIAL[kind](life, life.dial, event, step)
    elif kind in ON_LEASE and life.lease is not None:
        act_on_lease(life, life.lease, event, step)
    else:
        _ACTIONS[kind](life, event, step)


# Commands.


def _reconnect(life: LifecycleState, _: ReconnectRequested, step: Step) -> None:
    if life.state in _OFF:
        return  # the user disabled it: only an enable ends that
    if life.dial is not None:
        life.dial.cause = Cause.MANUAL  # a dial that a person asked for charges no budget (LIFE-8)
    else:
        life.detach(step)
        life.begin_dial(Cause.MANUAL, step)


def _enable(life: LifecycleState, _: EnableRequested, step: Step) -> None:
    if life.state is State.DISABLING:
        life.enable_next = True  # the old connection is closing still: two would run at the same time
    elif life.state is State.CONNECTING and life.dial is None:
        _reset_budget(life)
        step.do(Reinstate())
        life.begin_dial(Cause.ENABLE, step)


def _disable(life: LifecycleState, _: DisableRequested, step: Step) -> None:
    life.enable_next = False
    if life.state is State.DISABLED or CloseOverdue in life.timers:
        return  # it is disabled, or being disabled, already
    step.do(Withdraw())
    life.end_watch()
    life.detach(step)
    if life.closing:
        # A close that hangs must not keep a server "disabling" for ever. The timer is also the sign that it is under
        # way.
        life.timers[CloseOverdue] = step.now + life.policy.close_patience
    else:
        step.then = AllClosed()


def _login(life: LifecycleState, _: LoginSucceeded, step: Step) -> None:
    if life.dial is not None:
        # The dial may use the old credentials, and a second dial beside it is not allowed.
        life.dial.again = True
    elif life.state in _TRYING:
        life.begin_dial(Cause.LOGIN, step)


def _reconfigure(life: LifecycleState, event: ConfigChanged, step: Step) -> None:
    life.policy = replace(life.policy, lazy=event.lazy, watchable=event.watchable)
    life.ever_connected = False
    if life.state is State.CONNECTING:
        _reset_budget(life)
        life.reason = ""
        life.end_watch()
        life.detach(step)
        life.begin_dial(Cause.CONFIG, step)


def _remove(life: LifecycleState, _: RemoveRequested, step: Step) -> None:
    step.do(Withdraw(removed=True))
    _stop(life, step)


def _stop(life: LifecycleState, step: Step) -> None:
    life.stopped = True
    life.end_watch()
    life.detach(step)


def _reset_budget(life: LifecycleState) -> None:
    life.attempts = life.denials = 0
    life.evidence = life.denied_since = None


# Dials.


def _dial_succeeded(life: LifecycleState, dial: Dialing, event: DialSucceeded, step: Step) -> None:
    life.dial = None
    life.lease = lease = LeaseState(dial.generation, dial.cause, listed_at=step.now, list_changed=dial.list_changed)
    life.ever_connected = life.listed = True
    life.denied_since, life.denials = None, 0
    life.last_used = max(life.last_used, step.now)  # an idle time begins with the connection at the earliest
    life.end_watch()
    life.timers[StandingDue] = step.now + life.policy.standing
    if life.policy.lazy:
        life.timers[IdleDue] = step.now + life.policy.idle_after
    plan_refresh(life, lease, step)
    step.do(Publish(event.listing))


def _dial_failed(life: LifecycleState, dial: Dialing, event: DialFailed, step: Step) -> None:
    life.charge()
    life.dial = None
    if dial.again:
        life.begin_dial(Cause.LOGIN, step)
        return
    life.plan_retry(step, planned=dial.retry_at, retry_after=event.retry_after, answers=event.answers)
    life.plan_address_check(step, event)


def _park(life: LifecycleState, event: Event, step: Step) -> None:
    life.charge()  # before the dial or the connection is gone: its cause decides whether the budget pays
    # Else a later failure here would start the reconnects again that the fleet has given up.
    if life.dial is None and life.lease is None:
        life.attempts = len(life.policy.backoff)  # a peer spent the budget, by the try that was due here
        life.waiting = None
    life.dial = None
    life.detach(step)
    life.refuses_until = step.now + life.policy.parked
    # In this order: a watched address makes the early try needless, and the plan of the try looks whether there is one.
    life.plan_address_check(step, event)
    life.plan_self_probe(step)


def _denied(life: LifecycleState, event: DialFailed | RefreshFailed, step: Step) -> None:
    life.dial = None
    life.detach(step)
    life.end_watch()
    life.plan_denied(step, unconfirmed=event.unconfirmed)


def _check_address(life: LifecycleState, _: AddressCheckDue, step: Step) -> None:
    if life.address_watch.answers:
        life.try_again(Cause.WATCH, step)
    else:
        step.do(CheckAddress(life.address_watch.begin_check(step.now)))


def _address_checked(life: LifecycleState, event: AddressChecked, step: Step) -> None:
    if event.listening:
        life.address_watch.pending = None
        life.try_again(Cause.WATCH, step)
    else:
        life.timers[AddressCheckDue] = life.address_watch.not_listening(step.now, life.policy)


# Other replicas.


def _granted(life: LifecycleState, event: ClaimGranted, step: Step) -> None:
    life.claim_until, life.claim_used = event.until, False
    if life.waiting is not None and life.dial is None and step.now < event.until:
        life.begin_dial(life.waiting[0], step)


def _expired(life: LifecycleState, _: ClaimExpired, __: Step) -> None:
    life.claim_until = life.interest_at = None


def _peer_tripped(life: LifecycleState, event: PeerTripped, step: Step) -> None:
    """A try of a peer replaces the next one of this replica; its own dial, if one is under way, tells more."""
    if life.state not in DOWN or life.dial is not None or event.by_calls:
        return
    life.waiting = None
    # The next try of the fleet is that far away, at one replica or another.
    at = step.now + event.retry_in
    if life.state is State.RECONNECTING:
        # The last try is made here: the peer's way to the server may be the one that is broken.
        life.attempts = max(life.attempts, min(event.attempts, len(life.policy.backoff) - 1))
        life.timers[RetryDue] = at
    else:
        life.timers[SelfProbeDue] = at
    if life.address_watch.answers:
        life.timers[AddressCheckDue] = at


def _peer_recovered(life: LifecycleState, _: PeerRecovered, step: Step) -> None:
    """Dial at once, but not each time that a peer loses and finds a server which this replica cannot reach."""
    if life.state not in DOWN or life.dial is not None:
        return
    if life.peer_dial_at is None or step.now - life.peer_dial_at >= life.policy.peer_spacing:
        life.peer_dial_at = step.now
        life.begin_dial(Cause.PEER, step)


def _peer_published(life: LifecycleState, _: PeerPublished, step: Step) -> None:
    if life.lease is not None:
        list_again(life, life.lease, step)


# The connection that stands.


def _lost(life: LifecycleState, _: TransportLost, step: Step) -> None:
    life.charge()
    life.detach(step)
    # A server that dies as soon as it is connected would else be dialed in a loop without a pause (BRK-10).
    if life.immediate_at is None or step.now - life.immediate_at >= life.policy.standing:
        life.immediate_at = step.now
        life.begin_dial(Cause.RECONNECT, step)
    else:
        life.plan_retry(step, share=1.0 if life.attempts else life.policy.after_loss)


def _failed_repeatedly(life: LifecycleState, _: Event, step: Step) -> None:
    life.charge()
    life.detach(step)
    life.plan_retry(step)


def _session_expired(life: LifecycleState, _: SessionExpired, step: Step) -> None:
    life.detach(step)
    life.begin_dial(Cause.SESSION, step)


def _list_changed(life: LifecycleState, _: ListChanged, step: Step) -> None:
    if life.dial is not None:
        life.dial.list_changed = True
    elif life.lease is not None:
        list_again(life, life.lease, step)


def _closed(life: LifecycleState, event: Closed, step: Step) -> None:
    life.closing.discard(event.generation)
    if event.error:
        step.do(Emit(CloseFailed(server=life.server, generation=event.generation, error=event.error, at=step.now)))
    if life.state is State.DISABLING and not life.closing:
        step.then = AllClosed()


def _disabled(life: LifecycleState, _: AllClosed | CloseOverdue, step: Step) -> None:
    if life.enable_next:
        life.enable_next = False
        step.then = EnableRequested()


# Calls.


def _call_waiting(life: LifecycleState, event: CallWaiting, step: Step) -> None:
    if life.dial is not None or life.lease is not None:
        return
    if life.state is State.CONNECTING:  # the table moved it there: it was idle
        life.begin_dial(Cause.FIRST_USE, step)
    elif event.probe or life.state in _ASKED_BY_CALLS:
        life.begin_dial(Cause.PROBE, step)


def _idle_later(life: LifecycleState, _: IdleDue, step: Step) -> None:
    # A call in flight is a use that goes on: the idle time begins when it ends, at the earliest now.
    since = step.now if life.calls else life.last_used
    life.timers[IdleDue] = since + life.policy.idle_after


_OFF = frozenset({State.DISABLING, State.DISABLED})
_TRYING = frozenset({State.CONNECTING, State.RECONNECTING})
_ASKED_BY_CALLS = frozenset({State.PERMANENTLY_FAILED, State.DENIED})

# The key decides the type of the event. No annotation of a mapping can express that.
_ACTIONS: Mapping[type[Event], Callable[[LifecycleState, Any, Step], None]] = {
    StartRequested: lambda life, _, step: life.begin_dial(Cause.START, step),
    ReconnectRequested: _reconnect,
    EnableRequested: _enable,
    DisableRequested: _disable,
    LoginSucceeded: _login,
    ConfigChanged: _reconfigure,
    RemoveRequested: _remove,
    ShutdownRequested: lambda life, _, step: _stop(life, step),
    Parked: _park,
    Denied: _denied,
    RetryDue: lambda life, _, step: life.try_again(Cause.RECONNECT, step),
    SelfProbeDue: lambda life, _, step: life.try_again(Cause.SELF_PROBE, step),
    AddressCheckDue: _check_address,
    AddressChecked: _address_checked,
    TransportLost: _lost,
    FailedRepeatedly: _failed_repeatedly,
    SessionExpired: _session_expired,
    ListChanged: _list_changed,
    Closed: _closed,
    AllClosed: _disabled,
    CloseOverdue: _disabled,
    CallWaiting: _call_waiting,
    IdleDue: _idle_later,
    WentIdle: lambda life, _, step: life.detach(step),
    ClaimGranted: _granted,
    ClaimExpired: _expired,
    PeerTripped: _peer_tripped,
    PeerRecovered: _peer_recovered,
    PeerPublished: _peer_published,
}
_ON_DIAL: Mapping[type[Event], Callable[[LifecycleState, Dialing, Any, Step], None]] = {
    DialSucceeded: _dial_succeeded,
    DialFailed: _dial_failed,
}


def adopt_policy(life: LifecycleState, policy: LifecyclePolicy, step: Step) -> None:
    """Use another policy from now on. The connection stays; times planned by the old policy are planned again.

    A reconnect that is planned already keeps its time.
    """
    old, life.policy = life.policy, policy
    life.attempts = min(life.attempts, len(policy.backoff))
    # Moved, not set: the time began with the failure, which the edit of a setting does not repeat.
    life.refuses_until += policy.parked - old.parked
    waits = life.state in _ASKED_BY_CALLS and life.dial is None and not life.unconfirmed
    if waits and (policy.self_probe, policy.transient_probe) != (old.self_probe, old.transient_probe):
        life.timers.drop(SelfProbeDue)
        life.plan_self_probe(step)
    if life.lease is not None:
        adopt_on_lease(life, life.lease, old, step)
