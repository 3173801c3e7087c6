"""A failed call asks at once whether the connection still answers; an answer does not show that calls work."""

from __future__ import annotations

import pytest

from holdfast.core.breaker import BreakerState, Outcome, Permit
from holdfast.core.catalog import Listing
from holdfast.core.lifecycle.events import (
    CheckLiveness,
    DialFailed,
    DialSucceeded,
    Effect,
    LivenessConfirmed,
    LivenessFailed,
    ReconnectRequested,
    RefreshSucceeded,
    StartRequested,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Machine
from tests.core.slot_harness import connected


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


@pytest.mark.requirement("BRK-2", "BRK-11")
def test_an_answered_ping_does_not_close_a_breaker_that_a_failing_call_opened(back_after_an_outage: Machine) -> None:
    machine = back_after_an_outage
    generation = machine.connection
    assert generation is not None
    effects = fail_a_call(machine, 3.2)
    assert state(machine) is BreakerState.OPEN
    assert CheckLiveness(generation) in effects
    machine.handle(LivenessConfirmed(generation), 3.3)
    machine.handle(RefreshSucceeded(generation), 3.4)
    assert state(machine) is BreakerState.OPEN
    assert machine.health(3.4).status == "transient"


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


@pytest.mark.requirement("LIFE-10")
def test_a_failed_call_asks_for_one_liveness_check_at_once() -> None:
    machine = standing()
    effects = [effect for moment in (1.0, 1.1) for effect in fail_a_call(machine, moment)]
    assert [effect for effect in effects if isinstance(effect, CheckLiveness)] == [CheckLiveness(1)]


@pytest.mark.requirement("LIFE-10", "BRK-2")
def test_a_connection_that_fails_a_call_and_a_ping_is_replaced_and_that_is_one_failure() -> None:
    machine = standing()
    fail_a_call(machine, 1.0)
    machine.handle(LivenessFailed(1, "it is not ready (HTTP 503)"), 1.1)
    assert machine.state is State.RECONNECTING
    assert machine.breaker.failures == 1
    assert machine.health(1.1).lost


@pytest.mark.requirement("LIFE-5", "BRK-11")
def test_pings_do_not_hide_that_three_calls_failed() -> None:
    machine = standing()
    for moment in (1.0, 2.0, 3.0):
        fail_a_call(machine, moment)
        machine.handle(LivenessConfirmed(1), moment + 0.1)
    assert state(machine) is BreakerState.OPEN
    assert machine.state is State.RECONNECTING


def standing() -> Machine:
    machine = Machine("files")
    machine.handle(StartRequested(), 0.0)
    machine.handle(DialSucceeded(1, Listing(server="files", generation=1)), 0.0)
    return machine


@pytest.mark.requirement("LIFE-10")
def test_a_call_that_fails_after_one_that_completed_is_looked_at_too() -> None:
    slot = connected()
    slot.complete_call()
    assert slot.complete_call() == ()
    effects = slot.settle(slot.permit(), Outcome.TRANSPORT_FAILURE, "reset")
    assert CheckLiveness(slot.lease) in effects
