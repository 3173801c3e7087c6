from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.core.breaker import BreakerState, ClosedAgain, Outcome, Tripped
from holdfast.core.lifecycle.effects import (
    BreakerChanged,
    Cause,
    CheckLiveness,
    Close,
    Dial,
    Reject,
    RejectReason,
)
from holdfast.core.lifecycle.events import (
    Closed,
    ConfigChanged,
    DisableRequested,
    EnableRequested,
    ListChanged,
    LivenessConfirmed,
    LivenessFailed,
    LoginSucceeded,
    ReconnectRequested,
    RefreshFailed,
    RefreshSucceeded,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from tests.core.world import World, connected

FAILED = Outcome.TRANSPORT_FAILURE


def changes(world: World) -> list[type]:
    return [type(record.change) for record in world.records if isinstance(record, BreakerChanged)]


def failing_calls(world: World, count: int) -> None:
    for permit in [world.permit() for _ in range(count)]:
        world.settle(permit, FAILED)


def tripped_and_down() -> World:
    """Three calls failed, and so did the reconnect that followed; the breaker is open until 60."""
    world = connected()
    failing_calls(world, 3)
    return world


# Calls feed both.


@pytest.mark.requirement("LIFE-10", "BRK-2")
def test_failing_calls_trip_the_breaker_and_start_the_reconnect() -> None:
    world = connected()
    failing_calls(world, 3)
    assert world.machine.breaker.state is BreakerState.OPEN
    assert world.state() is State.RECONNECTING
    assert changes(world) == [Tripped]


@pytest.mark.requirement("BRK-2", "LIFE-6")
def test_a_call_that_lost_its_connection_is_the_death_of_it_told_once() -> None:
    world = connected()
    calls = [world.permit() for _ in range(20)]
    effects = world.settle(calls[0], Outcome.CONNECTION_LOST)
    assert Dial(2, Cause.RECONNECT) in effects

    for call in calls[1:]:
        assert world.settle(call, Outcome.CONNECTION_LOST) == ()
    assert world.send(TransportLost(1)) == ()
    assert world.machine.breaker.failures == 1
    assert len(world.dials) == 2


@pytest.mark.requirement("LIFE-5")
def test_refreshes_that_fail_start_the_reconnect_and_are_nothing_to_the_breaker() -> None:
    world = connected()
    for _ in range(3):
        world.send(RefreshFailed(world.lease))
    assert world.state() is State.RECONNECTING
    assert world.machine.breaker.failures == 0


@pytest.mark.requirement("LIFE-10")
def test_three_slow_calls_on_a_healthy_server_harm_nobody() -> None:
    world = connected()
    calls = [world.permit() for _ in range(3)]
    effects = [effect for call in calls for effect in world.settle(call, Outcome.TIMED_OUT)]
    assert effects == [CheckLiveness(1)]

    world.send(LivenessConfirmed(1))

    assert world.machine.health(0.0).failures == 0
    assert world.machine.breaker.failures == 0
    assert world.machine.connection == 1


@pytest.mark.requirement("LIFE-10")
def test_a_slow_call_counts_once_its_connection_fails_the_liveness_check() -> None:
    world = connected()
    world.settle(world.permit(), Outcome.TIMED_OUT)
    assert world.machine.breaker.failures == 0
    world.send(LivenessFailed(1))
    assert world.machine.breaker.failures == 1
    assert world.machine.health(0.0).failures == 1


@pytest.mark.requirement("LIFE-23", "BRK-4")
def test_a_denied_call_is_that_calls_denial_and_no_more() -> None:
    world = connected()
    for _ in range(10):
        assert world.settle(world.permit(), Outcome.NEUTRAL) == ()
    assert world.state() is State.CONNECTED
    assert world.machine.breaker.failures == 0


@pytest.mark.requirement("LIFE-3", "BRK-7")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, FAILED, Outcome.CONNECTION_LOST, Outcome.TIMED_OUT])
def test_a_result_from_an_older_connection_touches_neither(outcome: Outcome) -> None:
    world = connected()
    old = world.permit()
    world.send(ReconnectRequested())
    world.connect("read")
    before = replace(world.machine.health(world.now), calls=0)  # the old one is counted until it is settled

    assert world.settle(old, outcome) == ()
    assert world.machine.health(world.now) == before
    assert world.machine.breaker.failures == 0


@pytest.mark.requirement("BRK-7")
def test_calls_cut_off_by_a_manual_reconnect_are_no_failures() -> None:
    world = connected()
    calls = [world.permit() for _ in range(5)]
    world.send(ReconnectRequested())
    for call in calls:
        world.settle(call, FAILED)
    assert world.machine.breaker.failures == 0


def test_a_permit_settled_twice_counts_once() -> None:
    world = connected()
    permit = world.permit()
    world.settle(permit, FAILED)
    world.settle(permit, FAILED)
    assert world.machine.breaker.failures == 1
    assert world.machine.life.calls == 0


# What closes the breaker.


@pytest.mark.requirement("BRK-9", "BRK-10")
def test_a_reconnect_of_the_hub_closes_the_breaker_and_remembers() -> None:
    world = tripped_and_down()
    world.sleep()
    world.connect("read")
    assert changes(world) == [Tripped, ClosedAgain]
    world.send(TransportLost(world.lease))
    assert changes(world) == [Tripped, ClosedAgain, Tripped]


@pytest.mark.requirement("BRK-9")
@pytest.mark.parametrize("command", [ReconnectRequested(), LoginSucceeded(), ConfigChanged()])
def test_a_person_closes_the_breaker(command: ReconnectRequested | LoginSucceeded | ConfigChanged) -> None:
    world = tripped_and_down()
    world.send(command)
    assert world.machine.breaker.state is BreakerState.CLOSED
    assert not world.permit().probe


@pytest.mark.requirement("BRK-9", "LIFE-8")
def test_a_reconnect_that_is_refused_closes_nothing_and_enabling_resets_everything() -> None:
    world = tripped_and_down()
    world.send(DisableRequested())
    assert world.send(ReconnectRequested()) == (Reject(ReconnectRequested(), RejectReason.DISABLED),)
    world.send(Closed(1))
    world.send(EnableRequested())
    assert world.machine.breaker.state is BreakerState.CLOSED
    assert world.machine.breaker.trips == 0


@pytest.mark.requirement("BRK-10")
def test_a_server_that_connects_lists_and_dies_in_a_loop_trips_and_is_parked() -> None:
    world = connected()
    while world.state() is not State.PERMANENTLY_FAILED:
        world.send(TransportLost(world.lease))
        if world.state() is State.RECONNECTING:
            world.sleep()
            world.connect("read")
    assert Tripped in changes(world)
    assert len(world.dials) == 6


@pytest.mark.requirement("BRK-7")
def test_a_listing_begun_before_a_trip_does_not_close_the_breaker() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.connect("read")
    world.send(TransportLost(world.lease))
    world.sleep()
    world.connect("read")
    world.send(ListChanged(world.lease))
    world.advance(1.0)
    failing_calls(world, 1)
    assert world.machine.breaker.state is BreakerState.OPEN
    assert world.state() is State.CONNECTED

    world.send(RefreshSucceeded(world.lease))
    assert world.machine.breaker.state is BreakerState.OPEN

    world.advance(60.0)
    world.send(RefreshSucceeded(world.lease))
    assert world.machine.health(world.now).breaker is BreakerState.CLOSED


# What is told.


@pytest.mark.requirement("LIFE-8")
def test_health_says_how_a_server_is_and_when_it_is_tried_next() -> None:
    world = connected()
    assert world.machine.health(0.0) == Health(
        server="files",
        state=State.CONNECTED,
        reason="",
        generation=1,
        failures=0,
        attempts=0,
        breaker=BreakerState.CLOSED,
        retry_in=None,
    )
    world.send(TransportLost(1, "exit code 3"))
    assert world.machine.health(0.0).retry_in == 0.0
    world.fail(reason="exit code 4")
    health = world.machine.health(0.5)
    assert (health.reason, health.generation, health.attempts, health.retry_in) == ("exit code 4", None, 1, 1.5)


@pytest.mark.requirement("BRK-8")
def test_a_burst_of_failing_calls_is_one_record() -> None:
    world = connected()
    failing_calls(world, 128)
    for _ in range(50):
        world.refusal()
    assert changes(world) == [Tripped]


def test_most_calls_end_without_any_effect() -> None:
    world = connected()
    world.complete_call()
    assert world.complete_call() == ()


def test_closing_comes_before_dialing() -> None:
    world = connected()
    effects = [type(effect) for effect in world.send(TransportLost(1))]
    assert effects.index(Close) < effects.index(Dial)


def test_its_repr_shows_both_halves() -> None:
    assert repr(connected().machine) == (
        "<Machine <Lifecycle 'files' connected gen=1> <Breaker closed failures=0 gen=0>>"
    )
