"""Breaker and lifecycle of one server, together: the one object that a slot asks.

The breaker decides whether a call may try; the lifecycle decides whether the hub itself tries.
Both learn from the same events. Pure: time and chance are arguments, and the slot performs the effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.breaker import (
    Breaker,
    BreakerEvent,
    BreakerPolicy,
    BreakerState,
    Outcome,
    Permit,
    Refusal,
    RefusalReason,
    Tripped,
)
from holdfast.core.lifecycle.effects import BreakerChanged, CheckLiveness, Effect, Emit, RefreshNow
from holdfast.core.lifecycle.events import (
    AddressCheckDue,
    CallCompleted,
    CallTimedOut,
    CallTransportFailed,
    CallWaiting,
    ConfigChanged,
    DialFailed,
    DialSucceeded,
    DisableRequested,
    Event,
    LivenessConfirmed,
    LivenessFailed,
    LoginSucceeded,
    ReconnectRequested,
    RefreshSucceeded,
    RetryDue,
    SelfProbeDue,
    SessionExpired,
    StandingDue,
    Tick,
    TransportLost,
)
from holdfast.core.lifecycle.machine import Lifecycle, Step, adopt_policy, lost_session, renewed_without_use
from holdfast.core.lifecycle.table import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.core.lifecycle.timing import LifecyclePolicy

__all__ = ["Health", "Machine"]


@dataclass(frozen=True, kw_only=True)
class Health:
    """The health of a server at one moment."""

    server: str
    state: State
    reason: str
    generation: int | None
    """The connection that stands, if one does."""
    failures: int
    attempts: int
    breaker: BreakerState
    retry_in: float | None
    """Seconds until the hub itself tries or checks the address again; 0 during a dial, None without a plan."""
    breaker_retry_in: float | None = None
    """Seconds until a call may try again; None unless the breaker is open."""
    calls: int = 0
    """The calls that were admitted and have not ended."""


class Machine:
    """One server's breaker and lifecycle. The slot's owner is its only caller."""

    def __init__(
        self,
        server: str,
        *,
        breaker: BreakerPolicy | None = None,
        lifecycle: LifecyclePolicy | None = None,
        listed: bool = False,
    ) -> None:
        self.breaker = Breaker(breaker)
        self.life = Lifecycle(server, lifecycle, listed=listed)
        self._refresh_begun_in = 0
        self._check_begun_in = 0

    def __repr__(self) -> str:
        return f"<Machine {self.life!r} {self.breaker!r}>"

    @property
    def state(self) -> State:
        """The state of the server."""
        return self.life.state

    @property
    def connection(self) -> int | None:
        """The generation of the connection that stands, if one does."""
        return self.life.lease.generation if self.life.lease is not None else None

    @property
    def dialing(self) -> int | None:
        """The generation of the dial that is under way, if one is."""
        return self.life.dial.generation if self.life.dial is not None else None

    def handle(self, event: Event, now: float, *, chance: float = 0.0) -> tuple[Effect, ...]:
        """Take an event. ``IllegalTransition``: the table forbids it, and nothing changed."""
        events = self.life.due(now) if isinstance(event, Tick) else (event,)
        effects = [effect for each in events for effect in self._take(each, now, chance)]
        return (*effects, *self.life.wake())

    def adopt(
        self, breaker: BreakerPolicy, lifecycle: LifecyclePolicy, now: float, *, chance: float = 0.0
    ) -> tuple[Effect, ...]:
        """Use other policies from now on; the connection and a dial under way stay as they are."""
        if self.life.stopped:
            return ()
        self.breaker.adopt(breaker)
        step = Step(now, chance)
        adopt_policy(self.life, lifecycle, step)
        return (*step.effects, *self.life.wake())

    def admit(self, now: float) -> tuple[Permit | Refusal, tuple[Effect, ...]]:
        """May a call try? A call that is admitted without a connection waits for one, and may start a dial."""
        refusal = self._shut(now)
        if refusal is not None:
            return refusal, ()
        decision = self.breaker.admit(now, self.connection)
        if isinstance(decision, Refusal):
            return self._explained(decision, now), ()
        self.life.calls += 1
        self.life.last_used = now
        if decision.connection is not None:
            return decision, ()
        return decision, self.handle(CallWaiting(decision.probe), now)

    def settle(
        self, permit: Permit, outcome: Outcome, now: float, *, chance: float = 0.0, reason: str = ""
    ) -> tuple[Effect, ...]:
        """Take a permit back; a call that was never sent proves nothing."""
        if permit.settled:
            return ()
        self.life.calls -= 1
        self.life.last_used = now
        connection = permit.connection
        if connection is None:
            self.breaker.settle(permit, Outcome.NEUTRAL, now)
            return ()
        effects = self._told(self.breaker.settle(permit, outcome, now))
        self._remember_what_began(effects)
        if outcome is not Outcome.NEUTRAL and not self._is_routine(outcome):
            event = _EVENTS[outcome](connection, reason)
            effects += self._take(event, now, chance)
        return (*effects, *self.life.wake())

    def health(self, now: float) -> Health:
        """The server's health."""
        life = self.life
        return Health(
            server=life.server,
            state=life.state,
            reason=life.reason,
            generation=self.connection,
            failures=life.lease.failures if life.lease is not None else 0,
            attempts=life.attempts,
            breaker=self.breaker.state,
            retry_in=self._retry_in(now),
            breaker_retry_in=self.breaker.retry_in(now) if self.breaker.state is BreakerState.OPEN else None,
            calls=life.calls,
        )

    def _take(self, event: Event, now: float, chance: float) -> list[Effect]:
        if self.life.is_stale(event):
            return self.life.apply(event, now, chance=chance)
        if isinstance(event, SessionExpired) and renewed_without_use(self.life):
            event = lost_session(event)
        before = self.connection
        effects = self.life.apply(event, now, chance=chance)
        effects += self._told(self._learn(event, now))
        if before is not None and before != self.connection:
            self.breaker.detached(before)
        self._remember_what_began(effects)
        return effects

    def _learn(self, event: Event, now: float) -> BreakerEvent | None:
        """Tell the breaker about an event that the lifecycle has taken."""
        breaker = self.breaker
        match event:
            case DialSucceeded():
                return breaker.connected(event.generation, now)
            case DialFailed():
                counts = event.status != "denied" and not event.neutral
                return breaker.connect_failed(now) if counts else None
            case TransportLost():
                return breaker.lost(event.generation, now)
            case LivenessFailed():
                return breaker.unanswered(event.generation, now)
            case RefreshSucceeded():
                return breaker.answered(self._refresh_begun_in, now)
            case LivenessConfirmed():
                return breaker.answered(self._check_begun_in, now)
            case StandingDue():
                breaker.stood()
            case ReconnectRequested() | LoginSucceeded():
                return breaker.close(now)
            case DisableRequested() | ConfigChanged():
                return breaker.reset(now)
        return None

    def _remember_what_began(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, RefreshNow):
                self._refresh_begun_in = self.breaker.generation
            elif isinstance(effect, CheckLiveness):
                self._check_begun_in = self.breaker.generation

    def _told(self, change: BreakerEvent | None) -> list[Effect]:
        if change is None:
            return []
        emitted: list[Effect] = [Emit(BreakerChanged(server=self.life.server, change=change))]
        if isinstance(change, Tripped):
            emitted += self.life.check_suspect(failures=self.breaker.policy.threshold)
        return emitted

    def _shut(self, now: float) -> Refusal | None:
        """The refusal by a state that admits no calls, before the breaker is asked."""
        life = self.life
        reason = _SHUT.get(life.state)
        if reason is not None:
            return Refusal(reason, None, life.reason)
        if life.state is State.PERMANENTLY_FAILED and now < life.parked_until:
            wait = max(life.parked_until - now, self.breaker.retry_in(now))
            return Refusal(RefusalReason.PERMANENTLY_FAILED, self._or_sooner(wait, now), life.reason)
        return None

    def _explained(self, refusal: Refusal, now: float) -> Refusal:
        parked = self.life.state is State.PERMANENTLY_FAILED
        reason = RefusalReason.PERMANENTLY_FAILED if parked else refusal.reason
        return Refusal(reason, self._or_sooner(refusal.retry_in, now), self.life.reason)

    def _or_sooner(self, wait: float | None, now: float) -> float | None:
        """Seconds until a call may try, or until the hub itself tries: after its success calls pass at once.

        The hub's own try takes some time, so the answer is never shorter than ``probe_wait``.
        """
        plan = self._retry_in(now)
        if wait is None or plan is None:
            return wait
        return min(wait, max(plan, self.breaker.policy.probe_wait))

    def _is_routine(self, outcome: Outcome) -> bool:
        """A completed call on a proven connection without failures changes nothing: most calls end here."""
        lease = self.life.lease
        return outcome is Outcome.COMPLETED and lease is not None and lease.proven and not lease.failures

    def _retry_in(self, now: float) -> float | None:
        if self.life.dial is not None:
            return 0.0
        plans = [self.life.timers.at(kind) for kind in (RetryDue, SelfProbeDue, AddressCheckDue)]
        return min((max(0.0, at - now) for at in plans if at is not None), default=None)


_SHUT: Mapping[State, RefusalReason] = {
    State.DISCONNECTED: RefusalReason.STOPPED,
    State.DENIED: RefusalReason.DENIED,
    State.DISABLING: RefusalReason.DISABLED,
    State.DISABLED: RefusalReason.DISABLED,
}
_EVENTS: Mapping[Outcome, Callable[[int, str], Event]] = {
    Outcome.COMPLETED: lambda connection, _: CallCompleted(connection),
    Outcome.TRANSPORT_FAILURE: CallTransportFailed,
    Outcome.CONNECTION_LOST: TransportLost,
    Outcome.TIMED_OUT: lambda connection, _: CallTimedOut(connection),
}
