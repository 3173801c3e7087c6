from __future__ import annotations

import pytest

from holdfast.core.breaker import BreakerState, Outcome, Permit, RefusalReason, Tripped
from holdfast.core.lifecycle.effects import (
    BreakerChanged,
    Cause,
)
from holdfast.core.lifecycle.events import (
    Closed,
    DisableRequested,
    Looked,
    RefreshFailed,
    ShutdownRequested,
)
from holdfast.core.lifecycle.policy import LifecyclePolicy
from holdfast.core.lifecycle.table import State
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


@pytest.mark.requirement("BRK-5")
def test_an_open_breaker_refuses_before_anything_is_dialed() -> None:
    world = tripped_and_down()
    dials = len(world.dials)
    assert world.refusal().reason is RefusalReason.OPEN
    assert len(world.dials) == dials


@pytest.mark.requirement("BRK-5", "MSG-5")
def test_a_refused_caller_is_told_of_the_next_try_be_it_the_hubs_or_its_own() -> None:
    world = tripped_and_down()
    assert world.refusal().retry_in == 1.0  # the reconnect that is planned
    world.sleep()
    assert world.refusal().retry_in == 1.0  # it is under way, and takes its moment
    world.fail()
    assert world.refusal().retry_in == 2.0
    world.advance(1.5)
    assert world.refusal().retry_in == 1.0

    world.fail_until_parked()
    left = 60.0 - world.now
    assert world.machine.breaker.retry_in(world.now) == left
    assert world.refusal().retry_in == 60.0  # parked: a call may try before the hub does, in five minutes


@pytest.mark.requirement("BRK-5", "LIFE-22")
def test_a_caller_of_a_parked_server_is_told_of_the_next_look() -> None:
    world = started(LifecyclePolicy(watchable=True))
    world.fail("permanent", "connection refused", refused=True)
    assert world.refusal().retry_in == 1.0
    world.sleep()
    assert world.look is not None
    assert world.refusal().retry_in == 59.0  # a look is under way, and promises nothing
    world.send(Looked(world.look, listening=False))
    assert world.refusal().retry_in == 1.0


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
