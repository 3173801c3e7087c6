from __future__ import annotations

import pytest

from holdfast.core.lifecycle.effects import (
    Cause,
    Close,
    CloseFailed,
    Dial,
    Emit,
    RetryPlanned,
)
from holdfast.core.lifecycle.events import (
    CallFailed,
    Closed,
    ConfigChanged,
    DialSucceeded,
    ReconnectRequested,
    RefreshFailed,
    RefreshSucceeded,
    TransportLost,
)
from holdfast.core.lifecycle.policy import LifecyclePolicy
from holdfast.core.lifecycle.table import State
from tests.core.world import World, connected, listing, started


def planned(world: World) -> list[tuple[int, float]]:
    return [(record.attempt, record.delay) for record in world.records if isinstance(record, RetryPlanned)]


@pytest.mark.requirement("LIFE-5")
def test_three_failures_in_a_row_of_a_connection_that_stands_start_a_reconnect() -> None:
    world = connected()
    world.send(RefreshFailed(world.lease))
    world.send(CallFailed(world.lease))
    assert world.state() is State.CONNECTED

    effects = world.send(RefreshFailed(world.lease, reason="no answer"))

    assert world.state() is State.RECONNECTING
    assert Close(1) in effects
    assert world.dial is None
    assert planned(world) == [(1, 1.0)]


@pytest.mark.requirement("LIFE-5")
def test_failures_far_apart_still_count_in_a_row() -> None:
    world = connected(LifecyclePolicy(refresh=None))
    for _ in range(3):
        world.advance(3600.0)
        world.send(CallFailed(world.lease))
    assert world.state() is State.RECONNECTING


@pytest.mark.requirement("LIFE-5")
def test_a_listing_that_succeeds_ends_the_row_of_failures() -> None:
    world = connected()
    for _ in range(5):
        world.send(RefreshFailed(world.lease))
        world.send(CallFailed(world.lease))
        world.send(RefreshSucceeded(world.lease))
    assert world.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-5")
def test_the_fifth_reconnect_that_fails_parks_the_server() -> None:
    world = connected()
    for _ in range(3):
        world.send(RefreshFailed(world.lease))

    assert world.fail_until_parked() == 5
    assert planned(world) == [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 16.0)]
    assert world.now == 31.0
    assert world.machine.health(world.now).attempts == 5


@pytest.mark.requirement("LIFE-5")
def test_chance_only_ever_shortens_a_wait() -> None:
    world = connected()
    world.send(RefreshFailed(world.lease))
    world.send(RefreshFailed(world.lease))
    world.send(RefreshFailed(world.lease), chance=0.5)
    assert planned(world) == [(1, 0.9)]


@pytest.mark.requirement("LIFE-5")
def test_the_wait_that_a_server_asks_for_is_honoured_within_reason() -> None:
    world = started()
    world.fail(retry_after=3.0)
    world.sleep()
    world.fail(retry_after=900.0)
    assert planned(world) == [(1, 3.0), (2, 5.0)]


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_the_budget_goes_on_across_reconnects_until_a_connection_has_stood() -> None:
    world = connected()
    deaths = 0
    while world.state() is not State.PERMANENTLY_FAILED:
        world.send(TransportLost(world.lease))
        deaths += 1
        if world.state() is State.RECONNECTING:
            world.sleep()
            world.connect("read")
    assert deaths == 6
    assert planned(world) == [(2, 2.0), (3, 4.0), (4, 8.0), (5, 16.0)]


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_thirty_seconds_of_standing_make_the_budget_whole() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.fail()
    world.sleep()
    world.connect("read")

    world.advance(29.9)
    assert world.machine.health(world.now).attempts == 1
    world.advance(0.1)
    assert world.machine.health(world.now).attempts == 0


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_a_completed_call_makes_the_budget_whole_at_once() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.fail()
    world.sleep()
    world.connect("read")
    world.complete_call()
    assert world.machine.health(world.now).attempts == 0


@pytest.mark.requirement("LIFE-5")
def test_a_cold_start_that_fails_transiently_is_retried_within_the_budget() -> None:
    world = started()
    world.fail()
    assert world.state() is State.RECONNECTING
    assert world.fail_until_parked() == 5


@pytest.mark.requirement("LIFE-5")
def test_a_close_that_fails_charges_no_budget_and_is_reported() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    effects = world.send(Closed(1, "the process would not die"))

    assert Emit(CloseFailed(server="files", generation=1, error="the process would not die", at=0.0)) in effects
    assert world.machine.health(world.now).attempts == 0
    assert world.state() is State.RECONNECTING


@pytest.mark.requirement("LIFE-6", "LIFE-7")
def test_a_dead_transport_is_detached_closed_and_dialed_again_in_one_turn() -> None:
    world = connected()
    effects = world.send(TransportLost(world.lease, "exit code 1"))

    assert [effect for effect in effects if isinstance(effect, Close | Dial)] == [
        Close(1),
        Dial(2, Cause.RECONNECT),
    ]
    assert world.machine.connection is None
    assert world.state() is State.RECONNECTING


@pytest.mark.requirement("LIFE-6", "BRK-10")
def test_a_second_death_within_thirty_seconds_waits_for_a_part_of_the_first_backoff() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.connect("read")
    world.complete_call()
    world.advance(29.0)
    world.send(TransportLost(world.lease))
    assert world.dial is None
    assert planned(world) == [(1, 0.3)]

    world.sleep()
    world.connect("read")
    world.advance(1.0)
    world.send(TransportLost(world.lease))
    assert world.dial is not None


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_a_connection_that_dies_before_it_proved_itself_waits_for_the_whole_backoff() -> None:
    world = connected()
    for _ in range(3):
        world.send(TransportLost(world.lease))
        if world.dial is None:
            world.sleep()
        world.connect("read")
    assert planned(world) == [(2, 2.0), (3, 4.0)]


@pytest.mark.requirement("LIFE-3")
def test_a_late_death_of_an_old_connection_does_not_touch_the_new_one() -> None:
    world = connected()
    world.send(ReconnectRequested())
    world.connect("read")
    assert world.send(TransportLost(1)) == ()
    assert world.machine.connection == 2


@pytest.mark.requirement("LIFE-3", "LIFE-4")
def test_a_late_listing_of_an_old_connection_is_not_published() -> None:
    world = connected()
    world.send(ReconnectRequested())
    world.connect("read", "write", "new")
    world.send(RefreshSucceeded(1, listing(1, "old")))
    assert world.tools == {"read", "write", "new"}


@pytest.mark.requirement("LIFE-3", "LIFE-13")
def test_a_dial_that_succeeds_too_late_is_closed_and_used_by_nobody() -> None:
    world = started()
    world.send(ConfigChanged())
    assert world.send(DialSucceeded(1, listing(1, "old"))) == (Close(1),)
    assert world.machine.dialing == 2
    assert world.tools == set()
