"""What must always hold of a machine, each as a watcher of its own.

A watcher knows only what was sent and what came back (``SlotHarness``), and raises AssertionError with
its own name. Each has a mutant in ``mutants.py`` that it alone catches.
"""

from __future__ import annotations

import copy
from typing import Any

from holdfast.core.breaker import Breaker, BreakerState, Outcome, Permit, Tripped
from holdfast.core.lifecycle.backoff import AddressWatch, Timers
from holdfast.core.lifecycle.events import (
    AddressChecked,
    BreakerChanged,
    Cause,
    CheckAddress,
    Close,
    Closed,
    ConfigChanged,
    Dial,
    DialFailed,
    DialSucceeded,
    DisableRequested,
    Effect,
    Emit,
    EnableRequested,
    LivenessConfirmed,
    LivenessFailed,
    LoginSucceeded,
    Publish,
    ReconnectRequested,
    RefreshFailed,
    RefreshSucceeded,
    Reinstate,
    RemoveRequested,
    SessionExpired,
    ShutdownRequested,
    Tick,
    TransportLost,
)
from holdfast.core.lifecycle.lifecycle import Lifecycle
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Machine
from tests.core.slot_harness import Asked, Happening, Property, Settled, SlotHarness, listing

EPSILON = 1e-6
"""Simulated times are sums of floats."""

MINUTE = 60.0
"""For so long, a server that listens again and does not answer well yet is taken for one that starts."""


class Watcher:
    """A property that looks at nothing beforehand."""

    def before(self, slot: SlotHarness, happening: Happening) -> None:
        """Nothing to remember."""

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        """Nothing to check."""

    def holds(self, condition: object) -> None:
        assert condition, type(self).__name__


class OneDialAtATime(Watcher):
    def before(self, slot: SlotHarness, happening: Happening) -> None:
        self.dialing = slot.dial

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        under_way = {self.dialing.generation} if self.dialing is not None else set()
        if isinstance(happening, DialSucceeded | DialFailed):
            under_way.discard(happening.generation)
        for effect in effects:
            if isinstance(effect, Close):
                under_way.discard(effect.generation)
            elif isinstance(effect, Dial):
                self.holds(not under_way)
                under_way.add(effect.generation)


class NoConnectionIsLeaked(Watcher):
    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        self.holds(slot.open <= {slot.machine.connection})
        self.holds(slot.connection == slot.machine.connection)


class CatalogNeverShrinks(Watcher):
    """Except by disabling, removal, or a newer complete listing."""

    def before(self, slot: SlotHarness, happening: Happening) -> None:
        self.tools = slot.tools

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        if self.tools <= slot.tools or isinstance(happening, DisableRequested | RemoveRequested):
            return
        published = [effect for effect in effects if isinstance(effect, Publish)]
        self.holds([effect.listing.generation for effect in published] == [slot.machine.connection])


class StaleChangesNothing(Watcher):
    """A result of an older dial, connection or look leaves no trace but a connection that is closed."""

    def before(self, slot: SlotHarness, happening: Happening) -> None:
        self.snapshot = None if slot.is_current(happening) else fingerprint(slot)

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        if self.snapshot is None or self._was_never_sent(happening):
            return
        self.holds(fingerprint(slot) == self.snapshot)
        self.holds(set(effects) <= {Close(getattr(happening, "generation", 0))})

    def _was_never_sent(self, happening: Happening) -> bool:
        return isinstance(happening, Settled) and happening.permit.connection is None


class LateResultsChangeNoBreaker(Watcher):
    """A result from before a trip, or of a call that was never sent."""

    def before(self, slot: SlotHarness, happening: Happening) -> None:
        self.snapshot = self._of_breaker(slot) if self._is_late(slot, happening) else None

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        self.holds(self.snapshot is None or self._of_breaker(slot) == self.snapshot)

    def _is_late(self, slot: SlotHarness, happening: Happening) -> bool:
        if not isinstance(happening, Settled) or happening.outcome is Outcome.CONNECTION_LOST:
            return False
        before_a_trip = happening.permit.generation != slot.machine.breaker.generation
        return before_a_trip or happening.permit.connection is None

    def _of_breaker(self, slot: SlotHarness) -> Any:
        breaker = slot.machine.breaker
        return breaker.state, breaker.generation, breaker.trips, breaker.failures, breaker.retry_in(0.0)


class BudgetIsFive(Watcher):
    """Parked after exactly five failed reconnects since the last fresh start, or without hope at all."""

    def __init__(self) -> None:
        self.charges = 0
        self.cause: Cause | None = None
        self.again = False
        self.ever_connected = False
        self.proven = False
        self.connected_at = 0.0

    def before(self, slot: SlotHarness, happening: Happening) -> None:
        self.current = slot.is_current(happening)
        self.dialing = slot.dial is not None
        self.standing = slot.connection
        self.state = slot.machine.state

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        match happening:
            case DialFailed() if self.current and not self.again:
                self._dial_failed(slot, happening)
            case RefreshFailed(status="denied"):
                pass
            case TransportLost() | RefreshFailed() | LivenessFailed() | SessionExpired() | Settled():
                self._maybe_died(slot, effects)
        self._learn(slot, happening, effects)
        self.holds(slot.machine.health(slot.now).attempts == self.charges)

    def _dial_failed(self, slot: SlotHarness, event: DialFailed) -> None:
        if event.status == "denied":
            self.holds(slot.machine.state is State.DENIED)
            return
        self._charge()
        hopeless = event.status == "permanent" and not self.ever_connected
        self._expect(slot, parked=hopeless or self.charges == 5)

    def _maybe_died(self, slot: SlotHarness, effects: tuple[Effect, ...]) -> None:
        died = self.standing is not None and Close(self.standing) in effects
        renewed = any(isinstance(effect, Dial) and effect.cause is Cause.SESSION for effect in effects)
        if died and not renewed:
            if not self.proven:
                self._charge()
            self._expect(slot, parked=self.charges == 5)

    def _charge(self) -> None:
        self.charges = min(5, self.charges + (self.cause is Cause.RECONNECT))

    def _expect(self, slot: SlotHarness, *, parked: bool) -> None:
        self.holds(slot.machine.state is (State.PERMANENTLY_FAILED if parked else State.RECONNECTING))

    def _learn(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        if isinstance(happening, LoginSucceeded) and self.dialing:
            self.again = True
        if isinstance(happening, ReconnectRequested) and self.dialing:
            self.cause = Cause.MANUAL
        if isinstance(happening, DialSucceeded) and self.current:
            self.ever_connected, self.proven, self.connected_at = True, False, slot.now
        if isinstance(happening, Settled) and happening.outcome is Outcome.COMPLETED and self.current:
            self._proved()
        stood = self.standing is not None and slot.now - self.connected_at >= 30.0 - EPSILON
        if isinstance(happening, Tick) and stood and not self.proven:
            self._proved()
        if isinstance(happening, ConfigChanged) and not slot.machine.life.stopped:
            self.ever_connected = False
            if self.state not in {State.DISCONNECTED, State.DISABLING, State.DISABLED}:
                self.charges = 0
        if Reinstate() in effects:
            self.charges = 0
        for effect in effects:
            if isinstance(effect, Dial):
                self.cause, self.again = effect.cause, False

    def _proved(self) -> None:
        self.proven, self.charges = True, 0


class AddressChecksKeepTheirRate(Watcher):
    """A second apart at least, a quarter of one if the server was up before; a tenth of the outage once it is old."""

    def __init__(self) -> None:
        self.outage: float | None = None
        self.answered: float | None = None
        self.known = False
        self.last: float | None = None

    def before(self, slot: SlotHarness, happening: Happening) -> None:
        self.current = slot.is_current(happening)

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, CheckAddress):
                self._looked(slot.now)
        if isinstance(happening, DialFailed) and self.current:
            self._failed(happening, slot.now)
        elif isinstance(happening, DialSucceeded) and self.current:
            self.outage = self.answered = None
            self.known = True
        if isinstance(happening, DisableRequested | ConfigChanged):
            self.outage = self.answered = None
            self.known = self.known and not isinstance(happening, ConfigChanged)

    def _failed(self, dial: DialFailed, now: float) -> None:
        if dial.unreachable and dial.status != "denied":
            self.outage = self.outage or now
            return
        if self.outage is not None and dial.status == "transient":
            self.answered = self.answered or now
        if self.answered is None or dial.status != "transient" or now - self.answered >= MINUTE - EPSILON:
            self.outage = self.answered = None

    def _looked(self, now: float) -> None:
        self.holds(self.outage is not None)
        if self.last is not None and self.outage is not None:
            since = self.last - self.outage
            slower = min(since / 10, 30.0) if since >= MINUTE else 0.0
            self.holds(now - self.last >= max(slower, 0.25 if self.known else 1.0) - EPSILON)
        self.last = now


class ReconnectsAtOnceOnceInThirtySeconds(Watcher):
    def __init__(self) -> None:
        self.last: float | None = None

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        if not isinstance(happening, TransportLost | Settled | SessionExpired):
            return
        if any(isinstance(effect, Dial) and effect.cause is Cause.RECONNECT for effect in effects):
            self.holds(self.last is None or slot.now - self.last >= 30.0 - EPSILON)
            self.last = slot.now


class NeverStuck(Watcher):
    """A state that says the hub is working on it is true, and "connected" is said with a connection alone."""

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        state = slot.machine.state
        self.holds((state is State.CONNECTED) == (slot.machine.connection is not None))
        if state is State.CONNECTING:
            self.holds(slot.dial is not None)
        elif state is State.RECONNECTING:
            self.holds(slot.dial is not None or slot.wake_at is not None)
        elif state is State.DISABLING:
            self.holds(slot.wake_at is not None)


class EveryStateCanBeLeft(Watcher):
    """A person can always bring the server back, unless it was stopped."""

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        if slot.machine.life.stopped or isinstance(happening, Tick | AddressChecked):
            return
        machine = copy.deepcopy(slot.machine)
        machine.handle(EnableRequested(), slot.now)
        for generation in sorted(machine.life.closing):
            machine.handle(Closed(generation, "never mind"), slot.now)
        machine.handle(ReconnectRequested(), slot.now)
        self.holds(machine.dialing is not None)
        machine.handle(DialSucceeded(machine.dialing or 0, listing(machine.dialing or 0)), slot.now)
        self.holds(machine.state is State.CONNECTED)


class StoppedStaysStopped(Watcher):
    def __init__(self) -> None:
        self.stopped = False

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        if self.stopped:
            self.holds(all(isinstance(effect, Close | Emit) for effect in effects))
            self.holds(slot.machine.state is State.DISCONNECTED)
            self.holds(slot.wake_at is None)
        self.stopped = self.stopped or isinstance(happening, ShutdownRequested | RemoveRequested)


class OpenAdmitsNoCall(Watcher):
    def __init__(self) -> None:
        self.until: float | None = None

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        if isinstance(happening, Asked) and self.until is not None and slot.now < self.until - EPSILON:
            self.holds(not isinstance(slot.decision, Permit))
        for effect in effects:
            if isinstance(effect, Emit) and isinstance(effect.record, BreakerChanged):
                change = effect.record.change
                self.until = change.at + change.retry_in if isinstance(change, Tripped) else None


class OneEventIsOneFailure(Watcher):
    """A call that fails, the loss of its connection and the first dial after it are counted once."""

    def __init__(self) -> None:
        self.in_doubt = False
        """Something failed on the connection, was counted, and nothing was answered since."""
        self.ended = False
        """Such a connection has ended, or one was lost, and no dial after it has."""

    def before(self, slot: SlotHarness, happening: Happening) -> None:
        self.current, self.standing = slot.is_current(happening), slot.connection
        self.failures, self.was_closed = slot.machine.breaker.failures, self._closed(slot)

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        counted = slot.machine.breaker.failures > self.failures or self.was_closed != self._closed(slot)
        lost = isinstance(happening, TransportLost) or (
            isinstance(happening, Settled) and happening.outcome is Outcome.CONNECTION_LOST
        )
        if self.current and self.was_closed:
            self.holds(not (counted and self.in_doubt and lost))
            self.holds(not (counted and self.ended and isinstance(happening, DialFailed)))
        if isinstance(happening, Settled | LivenessFailed) and self.current and counted:
            self.in_doubt = True
        if self.standing is not None and Close(self.standing) in effects:
            self.ended, self.in_doubt = self.current and (lost or self.in_doubt), False
        elif isinstance(happening, DialFailed) and self.current:
            self.ended = False
        if self.current and self._ends(happening):
            self.ended = self.in_doubt = False

    def _ends(self, happening: Happening) -> bool:
        """Whether it answers, or a person has made it start afresh."""
        if isinstance(happening, Settled):
            return happening.outcome is Outcome.COMPLETED
        commands = ReconnectRequested | LoginSucceeded | ConfigChanged | DisableRequested
        return isinstance(happening, LivenessConfirmed | RefreshSucceeded | DialSucceeded | commands)

    def _closed(self, slot: SlotHarness) -> bool:
        return slot.machine.breaker.state is BreakerState.CLOSED


class OneProbeAtATime(Watcher):
    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        probes = [permit for permit in slot.permits if permit.probe]
        # A probe that takes longer than a cooldown has lost its place.
        current = [p for p in probes if p.generation == slot.machine.breaker.generation and slot.now < p.at + MINUTE]
        self.holds(len(current) <= 1)


class TransientIsRetriedSoon(Watcher):
    """A server that is parked on transient evidence is tried, or looked at, within thirty seconds."""

    def __init__(self) -> None:
        self.status = "transient"

    def before(self, slot: SlotHarness, happening: Happening) -> None:
        self.current = slot.is_current(happening)

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        if isinstance(happening, DialFailed) and self.current:
            self.status = happening.status
        elif any(isinstance(effect, Close) for effect in effects):
            self.status = "transient"
        waits = slot.dial is None and slot.look is None
        if slot.machine.state is State.PERMANENTLY_FAILED and self.status == "transient" and waits:
            self.holds(slot.wake_at is not None and slot.wake_at - slot.now <= 30.0 + EPSILON)


class DenialsAreNotHammered(Watcher):
    """Three questions in the first minute of a denial, then at most one in a cooldown; a person may ask more.

    A failure of another kind ends a denial: the next one is a new denial, with a first minute of its own.
    """

    def __init__(self) -> None:
        self.began: float | None = None
        self.asked: list[float] = []

    def before(self, slot: SlotHarness, happening: Happening) -> None:
        self.denied = slot.machine.state is State.DENIED

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None:
        other = isinstance(happening, DialFailed) and happening.status != "denied"
        if other or isinstance(happening, DialSucceeded | ConfigChanged | EnableRequested | LoginSucceeded):
            self.began = None
        if slot.machine.state is State.DENIED and self.began is None:
            self.began, self.asked = slot.now, []
        own = {Cause.SELF_PROBE, Cause.PROBE}
        if self.denied and any(isinstance(effect, Dial) and effect.cause in own for effect in effects):
            self.asked.append(slot.now)
            recent = [at for at in self.asked if slot.now - at < MINUTE * 0.8 - EPSILON]
            early = self.began is not None and slot.now - self.began < MINUTE
            self.holds(
                len(recent) <= (3 if early else 1) + (self.began is not None and recent[0] - self.began < MINUTE)
            )


PROPERTIES: tuple[type[Watcher], ...] = (
    OneDialAtATime,
    NoConnectionIsLeaked,
    CatalogNeverShrinks,
    StaleChangesNothing,
    LateResultsChangeNoBreaker,
    BudgetIsFive,
    AddressChecksKeepTheirRate,
    ReconnectsAtOnceOnceInThirtySeconds,
    NeverStuck,
    EveryStateCanBeLeft,
    StoppedStaysStopped,
    OpenAdmitsNoCall,
    OneEventIsOneFailure,
    OneProbeAtATime,
    TransientIsRetriedSoon,
    DenialsAreNotHammered,
)


def all_properties() -> list[Property]:
    """One fresh watcher of each kind."""
    return [kind() for kind in PROPERTIES]


def fingerprint(slot: SlotHarness) -> Any:
    """All that a machine remembers, but for counts that only the log sees and when it was last used."""
    return _dump(slot.machine)


_COUNTS = {"_refused", "calls", "last_used", "_armed", "closing", "probe"}


def _dump(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {str(key): _dump(value) for key, value in thing.items()}
    if isinstance(thing, Machine | Lifecycle | Breaker | Timers | AddressWatch):
        return {key: _dump(value) for key, value in vars(thing).items() if key not in _COUNTS}
    return repr(thing)
