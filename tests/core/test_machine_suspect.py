"""A trip that a new connection inherits from before it must not outlast the proof that it works."""

from __future__ import annotations

import pytest

from holdfast.core.breaker import BreakerState, Outcome, Permit
from holdfast.core.catalog import Listing
from holdfast.core.lifecycle.effects import CheckLiveness, Effect
from holdfast.core.lifecycle.events import (
    DialFailed,
    DialSucceeded,
    LivenessConfirmed,
    LivenessFailed,
    ReconnectRequested,
    StartRequested,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Machine


def fail_a_call(machine: Machine, now: float) -> tuple[Effect, ...]:
    permit, _ = machine.admit(now)
    assert isinstance(permit, Permit)
    return machine.settle(permit, Outcome.TRANSPORT_FAILURE, now, reason="reset")


def state(machine: Machine) -> BreakerState:
    return machine.breaker.state


@pytest.fixture
def back_after_an_outage() -> Machine:
    """Connected again just now, with two failures from before that are not forgotten yet."""
    machine = Machine("files")
    machine.handle(StartRequested(), 0.0)
    machine.handle(DialSucceeded(1, Listing(server="files", generation=1)), 0.0)
    machine.handle(TransportLost(1, "it went away"), 2.0)
    machine.handle(DialFailed(2, "transient", reason="reset"), 2.1)
    machine.handle(TransportLost(2, "late"), 2.2)
    machine.breaker.connect_failed(2.3)
    machine.handle(ReconnectRequested(), 3.0)
    machine.breaker.connect_failed(3.05)
    machine.breaker.connect_failed(3.06)
    assert machine.dialing is not None
    machine.handle(DialSucceeded(machine.dialing, Listing(server="files", generation=machine.dialing)), 3.1)
    return machine


@pytest.mark.requirement("BRK-2", "LIFE-22")
def test_a_trip_inherited_by_an_unproven_connection_is_looked_into_and_ends_when_it_answers(
    back_after_an_outage: Machine,
) -> None:
    machine = back_after_an_outage
    generation = machine.connection
    assert generation is not None
    effects = fail_a_call(machine, 3.2)
    assert state(machine) is BreakerState.OPEN
    assert CheckLiveness(generation) in effects
    machine.handle(LivenessConfirmed(generation), 3.3)
    assert state(machine) is BreakerState.CLOSED


@pytest.mark.requirement("BRK-2", "LIFE-22")
def test_a_connection_that_inherits_a_trip_and_does_not_answer_is_given_up_since_no_call_could_show_it(
    back_after_an_outage: Machine,
) -> None:
    machine = back_after_an_outage
    generation = machine.connection
    assert generation is not None
    fail_a_call(machine, 3.2)
    machine.handle(LivenessFailed(generation, "no answer"), 3.3)
    assert machine.state is State.RECONNECTING


@pytest.mark.requirement("LIFE-10")
def test_a_connection_that_answered_is_no_longer_suspect(back_after_an_outage: Machine) -> None:
    machine = back_after_an_outage
    generation = machine.connection
    assert generation is not None
    fail_a_call(machine, 3.2)
    machine.handle(LivenessConfirmed(generation), 3.3)
    machine.handle(LivenessFailed(generation, "slow this time"), 3.4)
    assert machine.state is State.CONNECTED


@pytest.mark.requirement("BRK-1", "BRK-5")
def test_a_trip_of_a_connections_own_making_is_not_looked_into() -> None:
    machine = Machine("files")
    machine.handle(StartRequested(), 0.0)
    machine.handle(DialSucceeded(1, Listing(server="files", generation=1)), 0.0)
    effects = [effect for moment in (1.0, 1.1, 1.2) for effect in fail_a_call(machine, moment)]
    assert state(machine) is BreakerState.OPEN
    assert not any(isinstance(effect, CheckLiveness) for effect in effects)
