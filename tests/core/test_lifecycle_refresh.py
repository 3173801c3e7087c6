from __future__ import annotations

import pytest

from holdfast.core.lifecycle.effects import Publish, RefreshNow
from holdfast.core.lifecycle.events import ListChanged, RefreshFailed, RefreshSucceeded, TransportLost
from holdfast.core.lifecycle.policy import LifecyclePolicy
from holdfast.core.lifecycle.table import State
from tests.core.world import World, connected, listing, started

NO_PERIOD = LifecyclePolicy(refresh=None)


def refreshes(effects: list[object] | tuple[object, ...]) -> int:
    return sum(isinstance(effect, RefreshNow) for effect in effects)


@pytest.mark.requirement("LIFE-5")
def test_a_connected_server_is_listed_again_every_minute() -> None:
    world = connected()
    for _ in range(3):
        assert refreshes([*world.advance(60.0)]) == 1
        world.send(RefreshSucceeded(world.lease))


@pytest.mark.requirement("LIFE-5")
def test_a_listing_that_is_under_way_is_not_begun_twice() -> None:
    world = connected()
    assert refreshes([*world.advance(600.0)]) == 1


@pytest.mark.requirement("LIFE-4")
def test_a_newer_listing_replaces_the_tools_and_a_failed_one_keeps_them() -> None:
    world = connected()
    world.send(RefreshFailed(world.lease))
    assert world.tools == {"read", "write"}
    world.send(RefreshSucceeded(world.lease, listing(1, "read")))
    assert world.tools == {"read"}


@pytest.mark.requirement("LIFE-4")
def test_a_listing_that_did_not_change_publishes_nothing() -> None:
    world = connected()
    effects = world.send(RefreshSucceeded(world.lease))
    assert not any(isinstance(effect, Publish) for effect in effects)


@pytest.mark.requirement("LIFE-18")
def test_a_burst_of_notices_is_one_listing_and_one_more_for_what_came_during_it() -> None:
    world = connected(NO_PERIOD)
    world.advance(10.0)
    for _ in range(128):
        world.send(ListChanged(world.lease))
    assert refreshes([*world.sleep()]) == 1
    for _ in range(128):
        world.send(ListChanged(world.lease))
    world.send(RefreshSucceeded(world.lease))

    assert refreshes([*world.advance(5.0)]) == 1
    world.send(RefreshSucceeded(world.lease))
    assert refreshes([*world.advance(3600.0)]) == 0


@pytest.mark.requirement("LIFE-18")
def test_a_server_that_never_stops_noticing_is_listed_once_a_second_at_most() -> None:
    world = connected(NO_PERIOD)
    begun = 0
    for _ in range(100):
        world.send(ListChanged(world.lease))
        begun += refreshes([*world.advance(0.1)])
        if begun:
            world.send(RefreshSucceeded(world.lease))
    assert 9 <= begun <= 10


@pytest.mark.requirement("LIFE-18")
def test_a_notice_that_comes_before_the_dial_has_ended_is_not_lost() -> None:
    world = started(NO_PERIOD)
    world.send(ListChanged(1))
    world.connect("read")
    assert refreshes([*world.advance(1.0)]) == 1


@pytest.mark.requirement("LIFE-18")
def test_a_notice_whose_listing_failed_is_not_lost() -> None:
    world = connected(NO_PERIOD)
    world.send(ListChanged(world.lease))
    world.advance(1.0)
    world.send(RefreshFailed(world.lease))
    assert refreshes([*world.advance(2.0)]) == 1


@pytest.mark.requirement("LIFE-3", "LIFE-18")
def test_a_notice_of_an_old_connection_is_ignored() -> None:
    world = connected(NO_PERIOD)
    world.send(TransportLost(world.lease))
    world.connect("read")
    assert world.send(ListChanged(1)) == ()


def test_listings_stop_with_the_connection() -> None:
    world: World = connected()
    world.advance(59.0)
    world.send(TransportLost(world.lease))
    assert world.state() is State.RECONNECTING
    assert refreshes([*world.advance(3600.0)]) == 0
