from __future__ import annotations

import pytest

from holdfast.core.lifecycle.effects import (
    Cause,
    Close,
    Dial,
)
from holdfast.core.lifecycle.events import (
    ConfigChanged,
    LoginSucceeded,
    ReconnectRequested,
    RefreshFailed,
    TransportLost,
)
from holdfast.core.lifecycle.policy import LifecyclePolicy
from holdfast.core.lifecycle.table import State
from tests.core.world import World, connected, started


def parked() -> World:
    world = connected()
    world.send(TransportLost(world.lease, "it died"))
    world.fail_until_parked()
    return world


@pytest.mark.requirement("LIFE-19", "LIFE-22")
def test_a_permanent_failure_of_a_server_that_never_connected_parks_it_at_once() -> None:
    world = started()
    world.fail("permanent", "there is no such command")
    assert world.state() is State.PERMANENTLY_FAILED
    assert world.machine.health(0.0).reason == "there is no such command"
    assert world.machine.health(0.0).attempts == 0


@pytest.mark.requirement("LIFE-5")
def test_a_permanent_failure_of_a_server_that_had_connected_uses_the_budget() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.fail("permanent", "404")
    assert world.state() is State.RECONNECTING


@pytest.mark.requirement("LIFE-19")
def test_a_parked_server_is_tried_by_itself_every_five_minutes() -> None:
    world = parked()
    since = world.now
    for _ in range(3):
        world.sleep()
        assert world.dials[-1].cause is Cause.SELF_PROBE
        world.fail()
        assert world.state() is State.PERMANENTLY_FAILED
    assert world.now - since == 900.0


@pytest.mark.requirement("LIFE-19")
def test_the_self_probe_brings_a_parked_server_back() -> None:
    world = parked()
    world.sleep()
    world.connect("read")
    assert world.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-19")
def test_the_self_probe_can_be_off() -> None:
    world = started(LifecyclePolicy(self_probe=None))
    world.fail("permanent")
    assert world.wake_at is None


@pytest.mark.requirement("LIFE-19")
@pytest.mark.parametrize("event", [ReconnectRequested(), LoginSucceeded(), ConfigChanged()])
def test_a_parked_server_is_brought_back_by_a_person(
    event: ReconnectRequested | LoginSucceeded | ConfigChanged,
) -> None:
    world = parked()
    world.send(event)
    assert world.state() is State.CONNECTING
    world.connect("read")
    assert world.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_a_parked_server_that_comes_back_and_dies_at_once_is_parked_again() -> None:
    world = parked()
    world.send(ReconnectRequested())
    world.connect("read")
    world.send(TransportLost(world.lease))
    assert world.state() is State.PERMANENTLY_FAILED


@pytest.mark.requirement("LIFE-2", "LIFE-23")
def test_a_denied_load_makes_the_server_denied_and_nothing_is_planned() -> None:
    world = started()
    world.fail("denied", "401")
    assert world.state() is State.DENIED
    assert world.wake_at is None


@pytest.mark.requirement("LIFE-5", "LIFE-23")
def test_a_reconnect_that_is_denied_uses_no_budget() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.fail("denied")
    assert world.state() is State.DENIED
    assert world.machine.health(0.0).attempts == 0


@pytest.mark.requirement("LIFE-23")
def test_a_refresh_that_is_denied_makes_the_server_denied_and_keeps_its_tools() -> None:
    world = connected()
    effects = world.send(RefreshFailed(world.lease, "denied", "403"))
    assert world.state() is State.DENIED
    assert Close(1) in effects
    assert world.tools == {"read", "write"}


@pytest.mark.requirement("LIFE-19")
def test_a_login_brings_a_denied_server_back() -> None:
    world = started()
    world.fail("denied")
    world.send(LoginSucceeded())
    world.connect("read")
    assert world.state() is State.CONNECTED


def test_a_login_during_a_dial_is_followed_by_a_second_dial_if_the_first_is_denied() -> None:
    world = started()
    world.send(LoginSucceeded())
    assert world.machine.dialing == 1
    world.fail("denied", "the old token")
    assert world.dials[-1] == Dial(2, Cause.LOGIN)
    world.fail("denied", "the new one is no better")
    assert world.state() is State.DENIED
