"""One server's lifecycle: takes events, changes its state by the table, answers with effects.

``judge`` says what an event amounts to; ``actions`` has what follows from it. Pure: no I/O, no clock, no tasks. Time
and chance are arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.lifecycle.effects import (
    Cause,
    ClaimProbe,
    Close,
    Effect,
    Emit,
    Reject,
    RejectReason,
    Transition,
    WakeAt,
)
from holdfast.core.lifecycle.events import (
    AddressCheckDue,
    AddressChecked,
    AllClosed,
    CallTransportFailed,
    Closed,
    Command,
    Denied,
    DialFailed,
    DialSucceeded,
    Event,
    FailedRepeatedly,
    IdleDue,
    ListChanged,
    LivenessFailed,
    OfDial,
    OfLease,
    Parked,
    PeerTripped,
    RefreshFailed,
    RetryDue,
    SelfProbeDue,
    SessionExpired,
    StartRequested,
    Tick,
    TransportLost,
    WentIdle,
)
from holdfast.core.lifecycle.table import TRANSITIONS, State, next_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.core.messages import FailureStatus

from holdfast.core.lifecycle.actions import act, adopt_policy
from holdfast.core.lifecycle.lifecycle_state import DOWN, LifecycleMemory, Step

__all__ = ["Lifecycle", "Step", "adopt_policy", "judge", "lost_session", "renewed_without_use"]


class Lifecycle(LifecycleMemory):
    """The state of one server's slot and the decisions about it. No I/O, no clock, no tasks."""

    def __repr__(self) -> str:
        attempt = f" attempt={self.attempts}" if self.attempts else ""
        return f"<Lifecycle {self.server!r} {self.state.value}{attempt} gen={self.generation}>"

    def handle(self, event: Event, now: float, *, chance: float = 0.0) -> tuple[Effect, ...]:
        """Take an event. ``IllegalTransition``: the table forbids it, and nothing changed."""
        events = self.due(now) if isinstance(event, Tick) else (event,)
        effects = [effect for each in events for effect in self.apply(each, now, chance=chance)]
        return (*effects, *self.wake())

    def apply(self, event: Event, now: float, *, chance: float = 0.0) -> list[Effect]:
        """Take any event but a tick, and plan no wake-up."""
        if self.is_stale(event):
            return self._discard(event)
        judged = judge(self, event, now)
        new = next_state(self.state, type(judged))
        step = Step(now, chance)
        self._change_state(new, judged, step)
        act(self, judged, step)
        return step.effects

    def due(self, now: float) -> Iterator[Event]:
        """The timer events that are due, each after the one before has been handled."""
        self._armed = None
        while (event := self.timers.pop(now)) is not None:
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
        if self.stopped or self.dial is not None or self.claim_until is not None:
            return None
        if self.lease is None and self.state in DOWN:
            kinds = (RetryDue, SelfProbeDue, *((AddressCheckDue,) if self.address_watch.answers else ()))
            planned = [at for kind in kinds if (at := self.timers.at(kind)) is not None]
            waiting = [self.waiting[1]] if self.waiting is not None else []
        else:
            planned, waiting = [], []
        interest = [self.interest_at] if self.interest_at is not None else []
        return min([*planned, *waiting, *interest], default=None)

    def is_stale(self, event: Event) -> bool:
        """Whether the event belongs to a dial, a connection or an address check that is not the current one."""
        if self.stopped:
            return not isinstance(event, Closed)
        match event:
            case OfDial(generation=generation):
                return self.dial is None or self.dial.generation != generation
            case AddressChecked(number=number):
                return self.address_watch.pending != number
            case ListChanged(generation=generation):
                return generation not in self.live()
            case OfLease(generation=generation):
                return self.lease is None or self.lease.generation != generation
        return False

    def _change_state(self, new: State, event: Event, step: Step) -> None:
        old, self.state = self.state, new
        reason: str = getattr(event, "reason", "")
        if new is not State.CONNECTED:
            self.reason = reason or self.reason
            self.evidence = _evidence_of(event) or self.evidence
        if new is old:
            return
        if new in _UP_OR_OFF:
            self.down_since = self.evidence = None
        elif self.down_since is None:
            self.down_since = step.now
        if new not in DOWN:
            self.waiting = None
        if new in _WELL:
            self.reason = ""
        self.timers.keep(TRANSITIONS[new])
        step.do(
            Emit(
                Transition(
                    server=self.server,
                    old=old,
                    new=new,
                    cause=event.cause,
                    at=step.now,
                    generation=self.generation,
                    reason=reason,
                )
            )
        )

    def _discard(self, event: Event) -> list[Effect]:
        if isinstance(event, DialSucceeded):
            # Only this event knows the connection: without a close it would never end.
            self.closing.add(event.generation)
            return [Close(event.generation)]
        if isinstance(event, Command):
            return [Reject(event, RejectReason.STOPPED)]
        return []


_WELL = frozenset({State.CONNECTED, State.IDLE, State.DISABLING})
_UP_OR_OFF = _WELL | {State.DISABLED, State.DISCONNECTED}


def _evidence_of(event: Event) -> FailureStatus | None:
    """The class of the failure that an event reports."""
    match event:
        case DialFailed() | Parked() | FailedRepeatedly():
            return event.status
        case Denied():
            return "denied"
        case TransportLost():
            return "transient"
    return None


def judge(life: LifecycleMemory, event: Event, now: float) -> Event:
    """What an event amounts to: the same event, or a judgement that the table has a row for.

    Reads the lifecycle and changes nothing: an event that the table then forbids leaves no trace.
    """
    match event:
        case StartRequested():
            return WentIdle() if _may_rest(life) else event
        case DialFailed():
            return _judge_failed_dial(life, event)
        case TransportLost():
            return _judge_loss(life, event)
        case SessionExpired():
            return _judge_loss(life, lost_session(event)) if renewed_without_use(life) else event
        case RefreshFailed(status="denied"):
            return _judge_denied_refresh(life, event)
        case RefreshFailed() | CallTransportFailed() | LivenessFailed():
            return _judge_failure(life, event)
        case IdleDue():
            return WentIdle() if _unused(life, now) else event
        case Closed():
            return _judge_close(life, event)
        case PeerTripped(parked=True) if life.state is State.RECONNECTING and life.dial is None:
            return Parked(event.reason, event.status, event.unreachable, event.answers)
    return event


def renewed_without_use(life: LifecycleMemory) -> bool:
    """Whether the connection was made to renew a session and has completed no call since."""
    lease = life.lease
    return lease is not None and lease.cause is Cause.SESSION and not lease.proven


def lost_session(event: SessionExpired) -> TransportLost:
    """One expiry is normal; a session that expires right after its renewal is a lost connection."""
    return TransportLost(event.generation, "its sessions expire as soon as they are made")


def _may_rest(life: LifecycleMemory) -> bool:
    """A lazy server may stay idle only if its tools are known."""
    return life.policy.lazy and life.listed and life.state is State.DISCONNECTED


def _judge_failed_dial(life: LifecycleMemory, event: DialFailed) -> Event:
    if life.dial is not None and life.dial.again:
        return event
    if event.status == "denied":
        return Denied(event.reason, event.unconfirmed)
    no_hope = event.status == "permanent" and not life.ever_connected
    if not (no_hope or life.budget_spent()):
        return event
    return Parked(event.reason, event.status, event.unreachable, event.answers, event.retry_after)


def _judge_denied_refresh(life: LifecycleMemory, event: RefreshFailed) -> Event:
    """One denied listing proves nothing about the server; several in a row do."""
    denials = 1 + (life.lease.denials if life.lease is not None else 0)
    return event if denials < life.policy.denied_refreshes else Denied(event.reason, event.unconfirmed)


def _judge_loss(life: LifecycleMemory, event: TransportLost) -> Event:
    return Parked(event.reason) if life.budget_spent() else event


def _judge_failure(life: LifecycleMemory, event: RefreshFailed | CallTransportFailed | LivenessFailed) -> Event:
    lease = life.lease
    failures = 1 + (lease.failures if lease is not None else 0)
    unanswered = isinstance(event, LivenessFailed) and lease is not None and lease.suspect
    if failures < life.policy.failures and not unanswered:
        return event
    status = event.status if isinstance(event, RefreshFailed) else "transient"
    return Parked(event.reason, status) if life.budget_spent() else FailedRepeatedly(event.reason, status)


def _unused(life: LifecycleMemory, now: float) -> bool:
    # The same sum as the timer's: a rounding difference would make the timer fire for ever.
    return life.calls == 0 and life.last_used + life.policy.idle_after <= now


def _judge_close(life: LifecycleMemory, event: Closed) -> Event:
    last = life.closing <= {event.generation}
    return AllClosed(event.generation, event.error) if last and life.state is State.DISABLING else event
