from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from holdfast.core.breaker import BreakerState, ClosedAgain, Outcome, Permit, Tripped
from holdfast.core.lifecycle.events import (
    BreakerChanged,
    Cause,
    CheckLiveness,
    Close,
    Closed,
    ConfigChanged,
    Dial,
    DisableRequested,
    EnableRequested,
    LivenessConfirmed,
    LivenessFailed,
    LoginSucceeded,
    ReconnectRequested,
    RefreshFailed,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from tests.core.slot_harness import SlotHarness, connected

FAILED = Outcome.TRANSPORT_FAILURE


def changes(slot: SlotHarness) -> list[type]:
    return [type(record.change) for record in slot.records if isinstance(record, BreakerChanged)]


def failing_calls(slot: SlotHarness, count: int) -> None:
    for permit in [slot.permit() for _ in range(count)]:
        slot.settle(permit, FAILED)


def tripped_and_down() -> SlotHarness:
    """Three calls failed, and so did the reconnect that followed; the breaker is open until 60."""
    slot = connected()
    failing_calls(slot, 3)
    slot.sleep()
    slot.fail()
    return slot


# Calls feed both.


@pytest.mark.requirement("LIFE-10", "BRK-2")
def test_failing_calls_trip_the_breaker_and_start_the_reconnect() -> None:
    slot = connected()
    failing_calls(slot, 3)
    assert slot.machine.breaker.state is BreakerState.OPEN
    assert slot.state() is State.RECONNECTING
    assert changes(slot) == [Tripped]


@pytest.mark.requirement("BRK-2", "LIFE-6")
def test_a_call_that_lost_its_connection_is_the_death_of_it_told_once() -> None:
    slot = connected()
    calls = [slot.permit() for _ in range(20)]
    effects = slot.settle(calls[0], Outcome.CONNECTION_LOST)
    assert Dial(2, Cause.RECONNECT) in effects

    for call in calls[1:]:
        assert slot.settle(call, Outcome.CONNECTION_LOST) == ()
    assert slot.send(TransportLost(1)) == ()
    assert slot.machine.breaker.failures == 1
    assert len(slot.dials) == 2


@pytest.mark.requirement("LIFE-5")
def test_refreshes_that_fail_start_the_reconnect_and_are_nothing_to_the_breaker() -> None:
    slot = connected()
    for _ in range(3):
        slot.send(RefreshFailed(slot.lease))
    assert slot.state() is State.RECONNECTING
    assert slot.machine.breaker.failures == 0


@pytest.mark.requirement("LIFE-10")
def test_three_slow_calls_on_a_healthy_server_do_no_harm() -> None:
    slot = connected()
    calls = [slot.permit() for _ in range(3)]
    effects = [effect for call in calls for effect in slot.settle(call, Outcome.TIMED_OUT)]
    assert effects == [CheckLiveness(1)]

    slot.send(LivenessConfirmed(1))

    assert slot.machine.health(0.0).failures == 0
    assert slot.machine.breaker.failures == 0
    assert slot.machine.connection == 1


@pytest.mark.requirement("LIFE-10")
def test_a_slow_call_counts_once_its_connection_fails_the_liveness_check() -> None:
    slot = connected()
    slot.settle(slot.permit(), Outcome.TIMED_OUT)
    assert slot.machine.breaker.failures == 0
    slot.send(LivenessFailed(1))
    assert slot.machine.breaker.failures == 1
    assert slot.machine.health(0.0).failures == 1


@pytest.mark.requirement("LIFE-23", "BRK-4")
def test_a_denied_call_is_that_calls_denial_and_no_more() -> None:
    slot = connected()
    for _ in range(10):
        slot.settle(slot.permit(), Outcome.DENIED)
    assert slot.state() is State.CONNECTED
    assert slot.machine.breaker.failures == 0
    assert slot.machine.health(0.0).failures == 0


@pytest.mark.requirement("LIFE-3", "BRK-7")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, FAILED, Outcome.CONNECTION_LOST, Outcome.TIMED_OUT])
def test_a_result_from_an_older_connection_touches_neither(outcome: Outcome) -> None:
    slot = connected()
    old = slot.permit()
    slot.send(ReconnectRequested())
    slot.connect("read")
    before = replace(slot.machine.health(slot.now), calls=0)  # the old one is counted until it is settled

    assert slot.settle(old, outcome) == ()
    assert slot.machine.health(slot.now) == before
    assert slot.machine.breaker.failures == 0


@pytest.mark.requirement("BRK-7")
def test_calls_cut_off_by_a_manual_reconnect_are_no_failures() -> None:
    slot = connected()
    calls = [slot.permit() for _ in range(5)]
    slot.send(ReconnectRequested())
    for call in calls:
        slot.settle(call, FAILED)
    assert slot.machine.breaker.failures == 0


def test_a_permit_settled_twice_counts_once() -> None:
    slot = connected()
    permit = slot.permit()
    slot.settle(permit, FAILED)
    slot.settle(permit, FAILED)
    assert slot.machine.breaker.failures == 1
    assert slot.machine.life.calls == 0


# What closes the breaker.


@pytest.mark.requirement("BRK-9", "BRK-10")
def test_a_reconnect_of_the_hub_closes_the_breaker_and_remembers() -> None:
    slot = tripped_and_down()
    slot.sleep()
    slot.connect("read")
    assert changes(slot) == [Tripped, ClosedAgain]
    slot.send(TransportLost(slot.lease))
    assert changes(slot) == [Tripped, ClosedAgain, Tripped]


@pytest.mark.requirement("BRK-9")
@pytest.mark.parametrize("command", [ReconnectRequested(), LoginSucceeded(), ConfigChanged()])
def test_a_person_closes_the_breaker(command: ReconnectRequested | LoginSucceeded | ConfigChanged) -> None:
    slot = tripped_and_down()
    slot.send(command)
    assert slot.machine.breaker.state is BreakerState.CLOSED
    assert not slot.permit().probe


@pytest.mark.requirement("BRK-9", "LIFE-8")
def test_a_reconnect_that_is_refused_closes_nothing_and_enabling_resets_everything() -> None:
    slot = tripped_and_down()
    slot.send(DisableRequested())
    assert slot.send(ReconnectRequested()) == ()
    slot.send(Closed(1))
    slot.send(EnableRequested())
    assert slot.machine.breaker.state is BreakerState.CLOSED
    assert slot.machine.breaker.trips == 0


@pytest.mark.requirement("BRK-10")
def test_a_server_that_connects_lists_and_dies_in_a_loop_trips_and_is_parked() -> None:
    slot = connected()
    while slot.state() is not State.PERMANENTLY_FAILED:
        slot.send(TransportLost(slot.lease))
        if slot.state() is State.RECONNECTING:
            slot.sleep()
            slot.connect("read")
    assert Tripped in changes(slot)
    assert len(slot.dials) == 6


@pytest.mark.requirement("BRK-2", "BRK-11")
def test_of_three_hundred_calls_to_a_server_that_lists_and_fails_every_call_three_reach_it() -> None:
    """Ten calls a second for 30 s; each failure is followed by a ping that succeeds."""
    slot = connected()
    reached = 0
    for _ in range(300):
        decision = slot.call()
        if isinstance(decision, Permit):
            reached += 1
            lease = slot.connection
            slot.settle(decision, FAILED, "HTTP 500")
            if lease == slot.connection:
                slot.send(LivenessConfirmed(slot.lease))
        slot.advance(0.1)
        if slot.dial is not None:
            slot.connect("read")
    assert reached == 3
    health = slot.machine.health(slot.now)
    assert (health.state, health.status, health.reason) == (State.CONNECTED, "transient", "HTTP 500")
    assert changes(slot) == [Tripped]


@pytest.mark.requirement("BRK-11")
def test_one_call_in_a_cooldown_reaches_a_server_that_fails_every_call() -> None:
    slot = connected()
    reached = []
    for second in range(600):
        decision = slot.call()
        if isinstance(decision, Permit):
            reached.append(second)
            slot.settle(decision, FAILED, "HTTP 500")
        slot.advance(1.0)
        if slot.dial is not None:
            slot.connect("read")
    assert len(reached) <= 3 + 600 // 60
    assert all(later - earlier >= 60 for earlier, later in pairwise(reached[2:]))


# What is told.


@pytest.mark.requirement("LIFE-8")
def test_health_says_how_a_server_is_and_when_it_is_tried_next() -> None:
    slot = connected()
    assert slot.machine.health(0.0) == Health(
        server="files",
        state=State.CONNECTED,
        reason="",
        generation=1,
        failures=0,
        attempts=0,
        breaker=BreakerState.CLOSED,
        retry_in=None,
    )
    slot.send(TransportLost(1, "exit code 3"))
    assert slot.machine.health(0.0).retry_in == 0.0
    slot.fail(reason="exit code 4")
    health = slot.machine.health(0.5)
    assert (health.reason, health.generation, health.attempts, health.retry_in) == ("exit code 4", None, 1, 1.5)


@pytest.mark.requirement("LIFE-5", "MSG-3")
def test_a_spent_budget_is_told_until_the_server_is_connected_also_while_a_person_has_it_dialed() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease, "exit code 3"))
    slot.fail()
    assert not slot.machine.health(slot.now).spent
    slot.fail_until_parked()
    assert slot.machine.health(slot.now).spent
    slot.send(ReconnectRequested())
    assert slot.machine.health(slot.now).spent
    slot.connect("read")
    assert not slot.machine.health(slot.now).spent


@pytest.mark.requirement("BRK-8")
def test_a_burst_of_failing_calls_is_one_record() -> None:
    slot = connected()
    failing_calls(slot, 128)
    for _ in range(50):
        slot.refusal()
    assert changes(slot) == [Tripped]


def test_most_calls_end_without_any_effect() -> None:
    slot = connected()
    slot.complete_call()
    assert slot.complete_call() == ()


def test_closing_comes_before_dialing() -> None:
    slot = connected()
    effects = [type(effect) for effect in slot.send(TransportLost(1))]
    assert effects.index(Close) < effects.index(Dial)


def test_its_repr_shows_both_halves() -> None:
    assert repr(connected().machine) == (
        "<Machine <Lifecycle 'files' connected gen=1> <Breaker closed failures=0 gen=0>>"
    )
