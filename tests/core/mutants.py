"""Machines with one guard less than the real thing, each beside the property that catches it."""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.core.breaker import Breaker, BreakerEvent, BreakerState, Outcome, Permit
from holdfast.core.lifecycle.backoff import AddressWatch, LifecyclePolicy
from holdfast.core.lifecycle.events import (
    CallWaiting,
    Cause,
    Close,
    Closed,
    DialSucceeded,
    Effect,
    Event,
    ReconnectRequested,
    RefreshFailed,
    RetryDue,
    SelfProbeDue,
    TransportLost,
    Withdraw,
)
from holdfast.core.lifecycle.lifecycle import Lifecycle, Step
from holdfast.core.machine import Machine
from tests.core import properties
from tests.core.properties import Watcher


class _Life(Machine):
    """A machine with another lifecycle."""

    life_type: ClassVar[type[Lifecycle]] = Lifecycle

    def __init__(self, server: str, **options: Any) -> None:
        super().__init__(server, **options)
        self.life = self.life_type(server, options["lifecycle"], listed=options["listed"])


class _Breaker(Machine):
    """A machine with another breaker."""

    breaker_type: ClassVar[type[Breaker]] = Breaker

    def __init__(self, server: str, **options: Any) -> None:
        super().__init__(server, **options)
        self.breaker = self.breaker_type(options["breaker"])


def with_life(kind: type[Lifecycle]) -> type[Machine]:
    return type(kind.__name__, (_Life,), {"life_type": kind})


def with_breaker(kind: type[Breaker]) -> type[Machine]:
    return type(kind.__name__, (_Breaker,), {"breaker_type": kind})


class DialsForEveryProbe(Lifecycle):
    def apply(self, event: Event, now: float, *, chance: float = 0.0) -> list[Effect]:
        effects = super().apply(event, now, chance=chance)
        if isinstance(event, CallWaiting) and event.probe and self.dial is not None and not effects:
            step = Step(now, chance)
            self.begin_dial(Cause.PROBE, step)
            effects += step.effects
        return effects


class ForgetsLateConnections(Lifecycle):
    def discard(self, event: Event) -> list[Effect]:
        return [effect for effect in super().discard(event) if not isinstance(effect, Close)]


class WithdrawsWhatIsDown(Lifecycle):
    def apply(self, event: Event, now: float, *, chance: float = 0.0) -> list[Effect]:
        stale = self.is_stale(event)
        effects = super().apply(event, now, chance=chance)
        return [*effects, Withdraw()] if isinstance(event, TransportLost) and not stale else effects


class TrustsOldConnections(Lifecycle):
    def is_stale(self, event: Event) -> bool:
        if isinstance(event, TransportLost | RefreshFailed) and self.lease is not None and not self.stopped:
            return False
        return super().is_stale(event)


class TrustsLateResults(Breaker):
    def settle(self, permit: Permit, outcome: Outcome, now: float) -> BreakerEvent | None:
        permit.generation = self.generation
        if permit.connection is not None:
            permit.connection = max(permit.connection, self._oldest_connection)
        return super().settle(permit, outcome, now)


class HasABudgetOfSix(Lifecycle):
    def budget_spent(self) -> bool:
        return self.attempts + self.charge_due() > len(self.policy.backoff)

    def plan_retry(self, step: Step, **options: Any) -> None:
        attempts, self.attempts = self.attempts, min(self.attempts, 4)
        super().plan_retry(step, **options)
        self.attempts = attempts


class ChargesManualReconnects(Lifecycle):
    def charge_due(self) -> int:
        manual = self.dial is not None and self.dial.cause is Cause.MANUAL
        return int(manual or super().charge_due())


class ForgivesEveryHandshake(Lifecycle):
    def apply(self, event: Event, now: float, *, chance: float = 0.0) -> list[Effect]:
        stale = self.is_stale(event)
        effects = super().apply(event, now, chance=chance)
        if isinstance(event, DialSucceeded) and not stale:
            self.attempts = 0
        return effects


class _TooSoon(AddressWatch):
    def not_listening(self, now: float, policy: LifecyclePolicy) -> float:
        super().not_listening(now, policy)
        return now + 0.2


class ChecksAddressesTooSoon(Lifecycle):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.address_watch = _TooSoon()


class _NeverSlower(AddressWatch):
    def _wait(self, now: float, policy: LifecyclePolicy) -> float:
        return policy.check_every


class NeverChecksMoreSlowly(Lifecycle):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.address_watch = _NeverSlower()


class AlwaysReconnectsAtOnce(Lifecycle):
    def apply(self, event: Event, now: float, *, chance: float = 0.0) -> list[Effect]:
        self.immediate_at = None
        return super().apply(event, now, chance=chance)


class ForgetsToRetry(Lifecycle):
    def plan_retry(self, step: Step, **options: Any) -> None:
        super().plan_retry(step, **options)
        self.timers.drop(RetryDue)


class DropsTheEnableThatCameTooSoon(Lifecycle):
    def apply(self, event: Event, now: float, *, chance: float = 0.0) -> list[Effect]:
        if isinstance(event, Closed):
            self.enable_next = False
        return super().apply(event, now, chance=chance)


class RevivesAfterTheEnd(Lifecycle):
    def is_stale(self, event: Event) -> bool:
        return not isinstance(event, ReconnectRequested) and super().is_stale(event)


class ParksTransientSlowly(Lifecycle):
    def plan_self_probe(self, step: Step) -> None:
        evidence, self.evidence = self.evidence, "permanent"
        super().plan_self_probe(step)
        self.evidence = evidence


class AsksTheDeniedEverySecond(Lifecycle):
    def plan_denied(self, step: Step, *, unconfirmed: bool) -> None:
        super().plan_denied(step, unconfirmed=unconfirmed)
        self.timers[SelfProbeDue] = step.now + 1.0


class HasNoCooldown(Breaker):
    def admit(self, now: float, connection: int | None = None) -> Any:
        if self.state is BreakerState.OPEN:
            self._until = now
        return super().admit(now, connection)


class CountsTheCallAndItsConnection(Breaker):
    def lost(self, connection: int, now: float) -> BreakerEvent | None:
        self._doubt.connection = None
        return super().lost(connection, now)


class CountsTheDialAfterALoss(Breaker):
    def connect_failed(self, now: float, *, neutral: bool = False) -> BreakerEvent | None:
        self._doubt.dial_excused = False
        return super().connect_failed(now, neutral=neutral)


class LetsEveryCallerProbe(Breaker):
    def admit(self, now: float, connection: int | None = None) -> Any:
        self.probe = None
        return super().admit(now, connection)


MUTANTS: list[tuple[type[Watcher], type[Machine]]] = [
    (properties.OneDialAtATime, with_life(DialsForEveryProbe)),
    (properties.NoConnectionIsLeaked, with_life(ForgetsLateConnections)),
    (properties.CatalogNeverShrinks, with_life(WithdrawsWhatIsDown)),
    (properties.StaleChangesNothing, with_life(TrustsOldConnections)),
    (properties.LateResultsChangeNoBreaker, with_breaker(TrustsLateResults)),
    (properties.BudgetIsFive, with_life(HasABudgetOfSix)),
    (properties.BudgetIsFive, with_life(ChargesManualReconnects)),
    (properties.BudgetIsFive, with_life(ForgivesEveryHandshake)),
    (properties.AddressChecksKeepTheirRate, with_life(ChecksAddressesTooSoon)),
    (properties.AddressChecksKeepTheirRate, with_life(NeverChecksMoreSlowly)),
    (properties.ReconnectsAtOnceOnceInThirtySeconds, with_life(AlwaysReconnectsAtOnce)),
    (properties.NeverStuck, with_life(ForgetsToRetry)),
    (properties.EveryStateCanBeLeft, with_life(DropsTheEnableThatCameTooSoon)),
    (properties.StoppedStaysStopped, with_life(RevivesAfterTheEnd)),
    (properties.OpenAdmitsNoCall, with_breaker(HasNoCooldown)),
    (properties.OneEventIsOneFailure, with_breaker(CountsTheCallAndItsConnection)),
    (properties.OneEventIsOneFailure, with_breaker(CountsTheDialAfterALoss)),
    (properties.OneProbeAtATime, with_breaker(LetsEveryCallerProbe)),
    (properties.TransientIsRetriedSoon, with_life(ParksTransientSlowly)),
    (properties.DenialsAreNotHammered, with_life(AsksTheDeniedEverySecond)),
]
