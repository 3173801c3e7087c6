from __future__ import annotations

import pytest

from holdfast.core.lifecycle.effects import Cause, StopWatch, Watch
from holdfast.core.lifecycle.events import (
    DisableRequested,
    Looked,
    ReconnectRequested,
    TransportLost,
)
from holdfast.core.lifecycle.policy import LifecyclePolicy
from holdfast.core.lifecycle.table import State
from tests.core.world import World, connected, started

WATCHABLE = LifecyclePolicy(watchable=True)


def refused_at_start() -> World:
    world = started(WATCHABLE)
    world.fail("permanent", "connection refused", refused=True)
    return world


def stay_dead(world: World, seconds: float) -> None:
    """Nothing listens and every dial is refused, for so long."""
    until = world.now + seconds
    while world.wake_at is not None and world.wake_at <= until:
        world.sleep()
        if world.look is not None:
            world.send(Looked(world.look, listening=False))
        if world.dial is not None:
            world.fail(refused=True)
    world.now = until


@pytest.mark.requirement("LIFE-22")
def test_a_server_refused_at_cold_start_is_parked_and_looked_at() -> None:
    world = refused_at_start()
    assert world.state() is State.PERMANENTLY_FAILED
    assert world.advance(1.0)[0] == Watch(1)
    assert len(world.dials) == 1


@pytest.mark.requirement("LIFE-22")
def test_a_server_that_listens_again_is_dialed_at_once_and_charges_nothing() -> None:
    world = refused_at_start()
    world.advance(1.0)
    world.send(Looked(1, listening=True))
    assert world.dials[-1].cause is Cause.WATCH
    world.connect("read")
    assert world.state() is State.CONNECTED
    assert world.wake_at is not None
    world.send(TransportLost(world.lease))
    assert world.machine.health(world.now).attempts == 0


@pytest.mark.requirement("LIFE-22")
def test_looks_are_a_second_apart_for_a_minute_and_then_back_off_to_thirty() -> None:
    world = refused_at_start()
    stay_dead(world, 290.0)
    gaps = [later - earlier for earlier, later in zip(world.looks, world.looks[1:], strict=False)]
    assert gaps[:61] == [1.0] * 61
    assert gaps[61:66] == [2.0, 4.0, 8.0, 16.0, 30.0]
    assert set(gaps[66:]) == {30.0}


@pytest.mark.requirement("LIFE-22")
def test_a_dead_server_sees_few_connections_in_five_minutes() -> None:
    cold = refused_at_start()
    stay_dead(cold, 300.0)
    assert (len(cold.looks), len(cold.dials)) == (72, 2)

    died = connected(WATCHABLE)
    died.send(TransportLost(died.lease))
    died.fail(refused=True)
    stay_dead(died, 300.0)
    assert len(died.looks) + len(died.dials) == 155


@pytest.mark.requirement("LIFE-22")
def test_a_server_that_was_up_before_is_looked_at_sooner_while_it_may_be_restarting() -> None:
    world = connected(LifecyclePolicy(watchable=True, backoff=(1000.0,) * 5))  # no reconnect comes between
    world.send(TransportLost(world.lease))
    world.fail(refused=True)
    stay_dead(world, 290.0)
    gaps = [later - earlier for earlier, later in zip([0.0, *world.looks], world.looks, strict=False)]
    assert gaps[:39] == [0.25] * 39
    assert gaps[40:140] == [0.5] * 100
    assert gaps == sorted(gaps)
    assert gaps[-1] == 30.0


@pytest.mark.requirement("LIFE-22")
def test_a_server_that_was_connected_is_looked_at_between_reconnects() -> None:
    world = connected(WATCHABLE)
    world.send(TransportLost(world.lease))
    world.fail(refused=True)
    assert world.state() is State.RECONNECTING
    world.advance(0.25)
    assert world.look is not None
    world.send(Looked(world.look, listening=True))
    assert world.dials[-1].cause is Cause.WATCH


@pytest.mark.requirement("LIFE-5", "LIFE-22")
def test_a_dial_that_a_look_caused_neither_charges_nor_puts_off_the_next_reconnect() -> None:
    world = connected(WATCHABLE)
    world.send(TransportLost(world.lease))
    world.fail(refused=True)
    due = world.now + 2.0
    world.advance(0.25)
    assert world.look is not None
    world.send(Looked(world.look, listening=True))
    world.fail(refused=True)

    assert world.machine.health(world.now).attempts == 1
    stay_dead(world, 1.5)
    assert [dial.cause for dial in world.dials].count(Cause.RECONNECT) == 1
    world.advance(0.25)
    assert world.now == due
    assert [dial.cause for dial in world.dials].count(Cause.RECONNECT) == 2


@pytest.mark.requirement("LIFE-22")
def test_an_outage_that_goes_on_keeps_its_pace_when_somebody_dials() -> None:
    world = refused_at_start()
    stay_dead(world, 200.0)
    looks = len(world.looks)
    world.send(ReconnectRequested())
    world.fail(refused=True)
    stay_dead(world, 29.0)
    assert len(world.looks) == looks


@pytest.mark.requirement("LIFE-22")
def test_a_new_outage_is_looked_at_briskly_again() -> None:
    world = refused_at_start()
    stay_dead(world, 200.0)
    world.send(ReconnectRequested())
    world.connect("read")
    world.send(TransportLost(world.lease))
    world.fail(refused=True)
    looks = len(world.looks)
    stay_dead(world, 10.0)
    assert len(world.looks) - looks >= 8


@pytest.mark.requirement("LIFE-22")
def test_a_server_that_answers_with_an_error_is_not_looked_at() -> None:
    world = refused_at_start()
    world.advance(1.0)
    world.send(Looked(1, listening=True))
    world.fail("permanent", "404")
    world.advance(299.0)
    assert len(world.looks) == 1


def listens_again(world: World) -> None:
    """The next look finds somebody, who is dialed and not well yet."""
    while world.look is None:
        world.sleep()
    world.send(Looked(world.look, listening=True))
    world.fail(reason="503")


def not_well(world: World, seconds: float) -> list[float]:
    """The server listens and every dial fails, for so long; when it was dialed."""
    at: list[float] = []
    until = world.now + seconds
    while world.wake_at is not None and world.wake_at <= until:
        world.sleep()
        if world.dial is not None:
            at.append(world.now)
            world.fail(reason="503")
    world.now = until
    return at


@pytest.mark.requirement("LIFE-19", "LIFE-22")
def test_a_parked_server_that_listens_again_and_is_not_well_yet_is_back_within_a_second_of_being_well() -> None:
    world = connected(WATCHABLE)
    world.send(TransportLost(world.lease))
    world.fail_until_parked(refused=True)
    stay_dead(world, 200.0)
    listens_again(world)
    assert world.state() is State.PERMANENTLY_FAILED
    for _ in range(30):
        assert world.sleep()
        assert world.dials[-1].cause is Cause.WATCH
        world.fail(reason="503")
    assert world.wake_at is not None
    assert world.wake_at - world.now <= 1.0
    world.sleep()
    world.connect("read")
    assert world.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-5", "LIFE-22")
def test_a_server_that_starts_is_tried_for_a_minute_beside_its_budget_and_then_left_to_it() -> None:
    world = connected(WATCHABLE)
    world.send(TransportLost(world.lease))
    world.fail(refused=True)
    listens_again(world)
    began = world.now
    tries = not_well(world, 290.0)
    assert max(later - earlier for earlier, later in zip([began, *tries], tries, strict=False)) <= 1.0
    assert tries[-1] - began <= 61.0
    causes = [dial.cause for dial in world.dials]
    assert (causes.count(Cause.WATCH), causes.count(Cause.RECONNECT)) == (69, 5)
    assert world.state() is State.PERMANENTLY_FAILED


@pytest.mark.requirement("LIFE-22")
def test_a_server_that_cuts_off_the_first_reconnect_as_it_goes_away_is_looked_at_too() -> None:
    world = connected(WATCHABLE)
    world.send(TransportLost(world.lease))
    world.fail(reason="reset", cut=True)
    world.advance(0.25)
    assert world.look is not None
    world.send(Looked(world.look, listening=True))
    assert world.dials[-1].cause is Cause.WATCH
    world.connect("read")
    assert world.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-5", "LIFE-22")
def test_a_server_that_cuts_off_every_dial_is_left_to_its_budget_after_a_minute() -> None:
    world = connected(WATCHABLE)
    world.send(TransportLost(world.lease))
    for _ in range(1000):
        if world.dial is not None:
            world.fail(reason="reset", cut=True)
        if world.look is not None:
            world.send(Looked(world.look, listening=True))
        else:
            world.sleep()
        if world.now > 299.0:
            break
    causes = [dial.cause for dial in world.dials]
    assert causes.count(Cause.RECONNECT) == 5
    assert causes.count(Cause.WATCH) <= 75
    assert world.state() is State.PERMANENTLY_FAILED


@pytest.mark.requirement("LIFE-22")
def test_a_server_that_never_was_up_and_cuts_off_whoever_dials_is_not_looked_at() -> None:
    world = started(WATCHABLE)
    world.fail(reason="reset", cut=True)
    world.advance(0.9)
    assert world.looks == []


@pytest.mark.requirement("LIFE-22")
def test_a_server_that_starts_and_dies_again_is_looked_at_at_the_pace_of_the_whole_outage() -> None:
    world = connected(WATCHABLE)
    world.send(TransportLost(world.lease))
    world.fail_until_parked(refused=True)
    stay_dead(world, 200.0)
    listens_again(world)
    world.sleep()
    world.fail(refused=True)
    looks = len(world.looks)
    stay_dead(world, 29.0)
    assert len(world.looks) == looks


@pytest.mark.requirement("LIFE-22", "LOAD-9")
def test_a_server_that_starts_and_asks_to_be_left_alone_for_a_while_is() -> None:
    world = refused_at_start()
    world.advance(1.0)
    world.send(Looked(1, listening=True))
    world.fail(reason="503", retry_after=3.0)
    world.advance(2.9)
    assert world.dial is None
    world.advance(0.1)
    assert world.dial is not None


@pytest.mark.requirement("LIFE-22")
def test_a_server_without_a_port_is_not_looked_at() -> None:
    world = started()
    world.fail("permanent", refused=True)
    world.advance(299.0)
    assert world.looks == []


@pytest.mark.requirement("LIFE-22")
def test_a_look_that_is_under_way_is_called_off_by_a_dial_and_by_disabling() -> None:
    world = refused_at_start()
    world.advance(1.0)
    assert StopWatch(1) in world.send(ReconnectRequested())
    assert world.send(Looked(1, listening=True)) == ()
    world.fail("permanent", refused=True)
    world.advance(1.0)
    assert StopWatch(2) in world.send(DisableRequested())


@pytest.mark.requirement("LIFE-22")
def test_a_slow_look_does_not_make_the_next_one_come_sooner() -> None:
    world = refused_at_start()
    world.advance(1.0)
    world.advance(0.9)
    world.send(Looked(1, listening=False))
    world.advance(0.1)
    assert world.looks == [1.0, 2.0]
