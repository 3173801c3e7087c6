from __future__ import annotations

import pytest

from holdfast.core.breaker import BreakerState, ClosedAgain, Outcome, Permit, RefusalReason, Tripped
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
    ShutdownRequested,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from tests.core.world import World, connected, started

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


def parked_after(world: World) -> World:
    world.fail_until_parked()
    return world


def ready(world: World, permit: Permit) -> Permit:
    """The connection that an admitted call waited for is there."""
    permit.connection = world.lease
    return permit


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
    before = world.machine.health(world.now)

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


# Admission.


@pytest.mark.requirement("BRK-5")
def test_an_open_breaker_refuses_before_anything_is_dialed() -> None:
    world = tripped_and_down()
    dials = len(world.dials)
    refusal = world.refusal()
    assert (refusal.reason, refusal.retry_in) == (RefusalReason.OPEN, 60.0)
    assert len(world.dials) == dials


@pytest.mark.requirement("BRK-6")
def test_an_admitted_call_waits_for_the_reconnect_that_is_planned_and_dials_nothing_itself() -> None:
    world = connected()
    for _ in range(3):
        world.send(RefreshFailed(world.lease))
    permit = world.permit()
    assert permit.connection is None
    assert world.dial is None


@pytest.mark.requirement("BRK-6")
def test_a_probe_joins_the_dial_that_is_under_way() -> None:
    world = tripped_and_down()
    world.sleep()
    world.advance(60.0)
    assert world.dial is not None

    probe = world.permit()

    assert probe.probe
    assert len(world.dials) == 2
    world.connect("read")
    assert world.machine.breaker.state is BreakerState.CLOSED
    world.settle(ready(world, probe), Outcome.COMPLETED)
    assert world.state() is State.CONNECTED


@pytest.mark.requirement("BRK-6", "LIFE-5")
def test_a_probe_does_not_wait_for_the_backoff_and_charges_no_budget() -> None:
    world = connected()
    failing_calls(world, 3)
    for _ in range(2):
        world.sleep()
        world.advance(27.0)
        world.fail()
    world.now = 60.0
    probe = world.permit()
    assert probe.probe
    assert world.dials[-1].cause is Cause.PROBE
    world.fail()
    assert world.machine.health(60.0).attempts == 2
    assert world.machine.breaker.retry_in(60.0) == 60.0


@pytest.mark.requirement("BRK-6")
def test_a_probe_that_gives_up_waiting_leaves_its_place_to_the_next_on_the_same_dial() -> None:
    world = tripped_and_down()
    world.sleep()
    world.advance(60.0)
    first = world.permit()
    assert world.refusal().reason is RefusalReason.PROBING

    world.settle(first, Outcome.NEUTRAL)

    assert world.permit().probe
    assert len(world.dials) == 2


@pytest.mark.requirement("BRK-2", "BRK-6")
def test_a_dial_that_fails_under_a_probe_is_one_failure_and_one_trip() -> None:
    world = tripped_and_down()
    world.sleep()
    world.advance(60.0)
    probe = world.permit()
    world.fail()
    assert world.settle(probe, FAILED) == ()
    assert changes(world) == [Tripped, Tripped]


@pytest.mark.requirement("BRK-4")
@pytest.mark.parametrize(("status", "neutral"), [("denied", False), ("permanent", True)])
def test_denials_and_bad_definitions_are_nothing_to_the_breaker(status: str, neutral: bool) -> None:
    world = started()
    if status == "denied":
        world.fail("denied")
    else:
        world.fail("permanent", neutral=neutral)
    assert world.machine.breaker.failures == 0


@pytest.mark.requirement("LIFE-8", "LIFE-19")
def test_a_parked_server_answers_calls_with_its_reason_until_the_cooldown_is_over() -> None:
    world = started()
    world.fail("permanent", "the command `foo` does not exist", neutral=True)

    refusal = world.refusal()
    assert refusal.reason is RefusalReason.PERMANENTLY_FAILED
    assert refusal.detail == "the command `foo` does not exist"
    assert refusal.retry_in == 60.0

    world.advance(60.0)
    waiting = [world.permit() for _ in range(3)]
    assert [dial.cause for dial in world.dials] == [Cause.START, Cause.PROBE]
    world.fail("permanent", "still not", neutral=True)
    assert [world.settle(permit, Outcome.NEUTRAL) for permit in waiting] == [(), (), ()]
    assert world.refusal().retry_in == 60.0


@pytest.mark.requirement("LIFE-8", "LIFE-19")
def test_a_call_brings_a_parked_server_back_once_the_breaker_allows_a_probe() -> None:
    world = parked_after(tripped_and_down())
    refusal = world.refusal()
    assert refusal.reason is RefusalReason.PERMANENTLY_FAILED
    assert refusal.retry_in is not None
    world.advance(refusal.retry_in)

    probe = world.permit()
    assert probe.probe
    assert world.refusal().reason is RefusalReason.PERMANENTLY_FAILED
    world.connect("read")
    world.settle(ready(world, probe), Outcome.COMPLETED)

    assert world.state() is State.CONNECTED
    assert world.machine.health(world.now).attempts == 0


@pytest.mark.requirement("LIFE-8")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("denied", RefusalReason.DENIED),
        ("disabling", RefusalReason.DISABLED),
        ("disabled", RefusalReason.DISABLED),
        ("closed", RefusalReason.STOPPED),
        ("not started", RefusalReason.STOPPED),
    ],
)
def test_a_server_that_cannot_be_used_says_so_itself(path: str, reason: RefusalReason) -> None:
    world = World() if path == "not started" else started()
    match path:
        case "denied":
            world.fail("denied", "401")
        case "disabling":
            world.send(DisableRequested())
        case "disabled":
            world.send(DisableRequested())
            world.send(Closed(1))
        case "closed":
            world.send(ShutdownRequested())
    refusal = world.refusal()
    assert (refusal.reason, refusal.retry_in) == (reason, None)


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
