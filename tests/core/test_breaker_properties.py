"""The breaker alone, under everything that can happen in any order, beside a plain model of it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.core.breaker import Breaker, BreakerEvent, BreakerPolicy, BreakerState, Outcome, Permit, Refusal, Tripped
from tests.core.pinned import BREAKER, play

SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=100,
    stateful_step_count=40,
    report_multiple_bugs=False,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


class AnythingToABreaker(RuleBasedStateMachine):
    """The model is a list of failures, a time until which it is open, and who is probing."""

    breaker_type: ClassVar[type[Breaker]] = Breaker

    @initialize()
    def begin(self) -> None:
        self.breaker = self.breaker_type()
        self.now = 0.0
        self.failures: list[float] = []
        self.open_until: float | None = None
        self.epoch = 0
        self.connection = 0
        self.connected_at = 0.0
        self.permits: list[tuple[Permit, int]] = []
        self.by_calls = False
        """Whether calls opened it, and nothing failed at the connection since."""
        self.doubts = 0
        """The failures of the connection since its last answer."""
        self.excused = False
        """Whether the next dial that fails belongs to the end of a connection."""

    # The model.

    def tell(self, event: BreakerEvent | None, *, trips: bool, closes: bool = False) -> None:
        assert isinstance(event, Tripped) == trips, "trips exactly at its threshold"
        if trips:
            self.epoch += 1
            self.open_until = self.now + 60.0
        elif closes:
            self.open_until = None

    def failure_trips(self, *, call: bool = False) -> bool:
        if not call:
            self.by_calls = False
        if self.breaker.state is BreakerState.OPEN:
            return False
        self.failures = [*self.failures, self.now][-3:]
        recent = [at for at in self.failures if self.now - at <= 30.0]
        trips = self.breaker.state is BreakerState.HALF_OPEN or len(recent) >= 3
        self.by_calls = call if trips else self.by_calls
        return trips

    def connection_ends(self) -> bool:
        """Whether that trips it: the failures since its last answer, its end and the next dial are one."""
        if self.doubts:
            self.by_calls = False
            if self.breaker.state is BreakerState.CLOSED:
                others = max(0, len(self.failures) - self.doubts)
                self.failures = self.failures[: others + bool(self.failures)]
            trips = False
        else:
            trips = self.failure_trips()
        self.doubts, self.excused = 0, True
        return trips

    def is_late(self, permit: Permit, epoch: int) -> bool:
        return epoch != self.epoch or (permit.connection or 0) < self.connection

    # What happens.

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.0, 15.0, 16.0, 31.0, 59.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def a_call_asks(self) -> None:
        cooling = self.open_until is not None and self.now < self.open_until
        decision = self.breaker.admit(self.now, self.connection)
        if isinstance(decision, Refusal):
            assert self.open_until is not None, "a closed breaker admits"
            return
        assert not cooling, "no admission while open"
        self.permits.append((decision, self.epoch))

    @rule(which=st.integers(0, 4), outcome=st.sampled_from(Outcome))
    def a_call_ends(self, which: int, outcome: Outcome) -> None:
        for permit, epoch in self.permits[which : which + 1]:
            self.permits.remove((permit, epoch))
            before = self.snapshot()
            late = self.is_late(permit, epoch)
            if outcome in {Outcome.NEUTRAL, Outcome.DENIED, Outcome.TIMED_OUT}:
                self.breaker.settle(permit, outcome, self.now)
                assert self.snapshot() == before, "a neutral outcome changes nothing"
                self.its_place_is_free(permit)
            elif late or (outcome is not Outcome.COMPLETED and permit.probe and permit is not self.breaker.probe):
                self.breaker.settle(permit, outcome, self.now)
                assert self.snapshot() == before, "a late result changes nothing"
            else:
                self.settle_current(permit, outcome)

    def settle_current(self, permit: Permit, outcome: Outcome) -> None:
        if outcome is Outcome.COMPLETED:
            event = self.breaker.settle(permit, outcome, self.now)
            self.failures.clear()
            self.by_calls = False
            self.doubts, self.excused = 0, False
            self.tell(event, trips=False, closes=True)
            return
        if outcome is Outcome.CONNECTION_LOST:
            trips = self.connection_ends()
            self.connection += 1
        else:
            trips = self.failure_trips(call=True)
            self.doubts += 1
        self.tell(self.breaker.settle(permit, outcome, self.now), trips=trips)

    def its_place_is_free(self, permit: Permit) -> None:
        if permit.probe and self.breaker.state is BreakerState.HALF_OPEN and not self.probes():
            decision = self.breaker.admit(self.now, self.connection)
            assert isinstance(decision, Permit), "an abandoned probe's place is given back"
            self.permits.append((decision, self.epoch))

    @rule()
    def the_connection_dies_under_all_its_calls(self) -> None:
        before = self.breaker.failures
        victims = [p for p, epoch in self.permits if not self.is_late(p, epoch)]
        trips = self.connection_ends()
        self.tell(self.breaker.lost(self.connection, self.now), trips=trips)
        for permit in victims:
            self.breaker.settle(permit, Outcome.CONNECTION_LOST, self.now)
        self.permits = [(p, epoch) for p, epoch in self.permits if p not in victims]
        self.connection += 1
        assert self.breaker.failures <= min(3, before + 1), "a connection that dies is one failure"

    @rule()
    def the_connection_does_not_answer(self) -> None:
        trips = self.failure_trips()
        self.doubts += 1
        self.tell(self.breaker.unanswered(self.connection, self.now), trips=trips)

    @rule()
    def the_connection_answers(self) -> None:
        self.doubts = 0
        self.breaker.answered(self.connection)

    @rule()
    def a_dial_succeeds(self) -> None:
        self.connection += 1
        self.doubts, self.excused = 0, False
        self.connected_at = self.now
        event = self.breaker.connected(self.connection, self.now)
        self.tell(event, trips=False, closes=not self.by_calls)

    @rule()
    def a_dial_fails(self) -> None:
        if self.excused and self.breaker.state is not BreakerState.HALF_OPEN:
            self.by_calls = trips = False
        else:
            trips = self.failure_trips()
        self.excused = False
        self.tell(self.breaker.connect_failed(self.now), trips=trips)

    @rule()
    def a_dial_is_denied(self) -> None:
        self.excused = False
        self.tell(self.breaker.connect_failed(self.now, neutral=True), trips=False)

    @rule(outcome=st.sampled_from(Outcome))
    def it_trips_cools_down_and_is_probed(self, outcome: Outcome) -> None:
        while self.open_until is None:
            self.a_dial_fails()
        self.now = max(self.now, self.open_until)
        self.a_call_asks()
        self.a_call_asks()
        self.a_call_ends(len(self.permits) - 1, outcome)

    @precondition(lambda self: not self.excused)
    @rule()
    def the_connection_has_stood(self) -> None:
        self.breaker.stood()
        self.failures = [at for at in self.failures if at > self.connected_at]

    @precondition(lambda self: self.open_until is not None)
    @rule()
    def a_person_asks_for_a_new_try(self) -> None:
        event = self.breaker.close(self.now)
        self.by_calls = False
        self.doubts, self.excused = 0, False
        self.failures.clear()
        self.epoch += 1
        self.tell(event, trips=False, closes=True)

    # What must hold.

    def probes(self) -> list[Permit]:
        """Those of now; one that takes longer than a cooldown has lost its place."""
        return [
            permit
            for permit, epoch in self.permits
            if permit.probe and epoch == self.epoch and self.now < permit.at + 60.0
        ]

    def snapshot(self) -> Any:
        breaker = self.breaker
        return breaker.state, breaker.generation, breaker.trips, breaker.failures, breaker.retry_in(self.now)

    @invariant()
    def at_most_one_probe(self) -> None:
        if self.breaker.state is BreakerState.HALF_OPEN:
            assert len(self.probes()) <= 1, "at most one probe"

    @invariant()
    def it_counts_events(self) -> None:
        assert self.breaker.failures == len(self.failures), "one event is one failure"

    @invariant()
    def it_is_open_when_the_model_says_so(self) -> None:
        closed = self.breaker.state is BreakerState.CLOSED
        assert closed == (self.open_until is None), "open when the model says so"


@pytest.mark.requirement("BRK-1", "BRK-2", "BRK-4", "BRK-5", "BRK-6", "BRK-7", "BRK-10", "BRK-11")
def test_the_breaker_does_what_its_model_does() -> None:
    run_state_machine_as_test(AnythingToABreaker, settings=SETTINGS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_breaker_does_what_its_model_does_in_a_longer_search() -> None:
    run_state_machine_as_test(AnythingToABreaker, settings=settings(SETTINGS, max_examples=2_000))


class LetsEveryCallerProbe(Breaker):
    def admit(self, now: float, connection: int | None = None) -> Permit | Refusal:
        self.probe = None
        return super().admit(now, connection)


class HasNoCooldown(Breaker):
    def admit(self, now: float, connection: int | None = None) -> Permit | Refusal:
        self._until = now
        return super().admit(now, connection)


class TrustsLateResults(Breaker):
    def settle(self, permit: Permit, outcome: Outcome, now: float) -> BreakerEvent | None:
        permit.generation = self.generation
        if permit.connection is not None:
            permit.connection = max(permit.connection, self._oldest_connection)
        return super().settle(permit, outcome, now)


class CountsEveryVictim(Breaker):
    def settle(self, permit: Permit, outcome: Outcome, now: float) -> BreakerEvent | None:
        if permit.connection is not None:
            permit.connection = max(permit.connection, self._oldest_connection)
        return super().settle(permit, outcome, now)

    def lost(self, connection: int, now: float) -> BreakerEvent | None:
        self.detached(connection)
        return self._failed(now)


class CountsTheCallAndItsConnection(Breaker):
    def lost(self, connection: int, now: float) -> BreakerEvent | None:
        self._doubt.connection = None
        return super().lost(connection, now)


class CountsTheDialAfterALoss(Breaker):
    def connect_failed(self, now: float, *, neutral: bool = False) -> BreakerEvent | None:
        self._doubt.dial_excused = False
        return super().connect_failed(now, neutral=neutral)


class ExcusesEveryDial(Breaker):
    def connect_failed(self, now: float, *, neutral: bool = False) -> BreakerEvent | None:
        excused = self._doubt.dial_excused
        event = super().connect_failed(now, neutral=neutral)
        self._doubt.dial_excused = excused
        return event


class DoubtsForEver(Breaker):
    def answered(self, connection: int) -> None:
        pass


class CountsCancellations(Breaker):
    def settle(self, permit: Permit, outcome: Outcome, now: float) -> BreakerEvent | None:
        failed = Outcome.TRANSPORT_FAILURE
        return super().settle(permit, failed if outcome is Outcome.NEUTRAL else outcome, now)


class KeepsTheProbesPlace(Breaker):
    def settle(self, permit: Permit, outcome: Outcome, now: float) -> BreakerEvent | None:
        probe = self.probe
        event = super().settle(permit, outcome, now)
        if outcome is Outcome.NEUTRAL:
            self.probe = probe
        return event


class ForgetsAtEveryHandshake(Breaker):
    def connected(self, connection: int, now: float) -> BreakerEvent | None:
        self._failures.clear()
        return super().connected(connection, now)


class NeedsFourFailures(Breaker):
    def __init__(self) -> None:
        super().__init__(BreakerPolicy(threshold=4))


class NeverForgets(Breaker):
    def stood(self) -> None:
        pass


class ClosesAtEveryHandshake(Breaker):
    def connected(self, connection: int, now: float) -> BreakerEvent | None:
        self.by_calls = False
        return super().connected(connection, now)


with_mutants = pytest.mark.parametrize(
    ("mutant", "broken"),
    [
        (LetsEveryCallerProbe, "at most one probe"),
        (HasNoCooldown, "no admission while open"),
        (TrustsLateResults, "a late result changes nothing|trips exactly at its threshold"),
        (
            CountsEveryVictim,
            "one event is one failure|a connection that dies is one failure|trips exactly at its threshold",
        ),
        (CountsTheCallAndItsConnection, "one event is one failure|trips exactly at its threshold"),
        (CountsTheDialAfterALoss, "one event is one failure|trips exactly at its threshold"),
        (ExcusesEveryDial, "one event is one failure|trips exactly at its threshold"),
        (DoubtsForEver, "one event is one failure|trips exactly at its threshold"),
        (CountsCancellations, "a neutral outcome changes nothing"),
        (KeepsTheProbesPlace, "an abandoned probe's place is given back"),
        (ForgetsAtEveryHandshake, "one event is one failure|trips exactly at its threshold"),
        (NeedsFourFailures, "trips exactly at its threshold"),
        (NeverForgets, "one event is one failure|trips exactly at its threshold"),
        (ClosesAtEveryHandshake, "open when the model says so"),
    ],
)


@with_mutants
def test_a_mutant_is_caught(mutant: type[Breaker], broken: str) -> None:
    steps = BREAKER[mutant.__name__]
    play(AnythingToABreaker, steps)
    with pytest.raises(AssertionError, match=broken):
        play(type("Mutated", (AnythingToABreaker,), {"breaker_type": mutant}), steps)


@pytest.mark.long
@with_mutants
def test_a_search_finds_the_mutant(mutant: type[Breaker], broken: str) -> None:
    mutated = type("Mutated", (AnythingToABreaker,), {"breaker_type": mutant})
    with pytest.raises(AssertionError, match=broken):
        run_state_machine_as_test(mutated, settings=settings(SETTINGS, max_examples=2_000))
