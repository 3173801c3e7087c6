from __future__ import annotations

import pytest

from holdfast.core.breaker import Outcome
from holdfast.core.lifecycle.effects import Cause, Close
from holdfast.core.lifecycle.events import StartRequested
from holdfast.core.lifecycle.policy import LifecyclePolicy
from holdfast.core.lifecycle.table import State
from tests.core.world import World, started

LAZY = LifecyclePolicy(lazy=True, refresh=None)


@pytest.mark.requirement("LIFE-2", "LIFE-21")
def test_a_lazy_server_whose_tools_are_known_is_not_dialed_before_its_first_use() -> None:
    world = started(LAZY, listed=True)
    assert world.state() is State.IDLE
    assert world.dials == []
    assert world.wake_at is None


def test_a_lazy_server_whose_tools_are_not_known_is_asked_for_them_first() -> None:
    world = started(LAZY)
    world.connect("read")
    world.advance(300.0)
    assert world.state() is State.IDLE
    assert world.tools == {"read"}


def test_the_first_call_dials_and_waits_for_it() -> None:
    world = started(LAZY, listed=True)
    permit = world.permit()
    assert permit.connection is None
    assert [dial.cause for dial in world.dials] == [Cause.FIRST_USE]
    world.permit()
    assert len(world.dials) == 1


@pytest.mark.requirement("LIFE-4")
def test_an_unused_lazy_server_is_stopped_and_its_tools_stay_listed() -> None:
    world = started(LAZY)
    world.connect("read", "write")
    world.advance(200.0)
    world.complete_call()

    assert Close(1) not in world.advance(299.9)
    assert Close(1) in world.advance(0.1)
    assert world.state() is State.IDLE
    assert world.tools == {"read", "write"}


def test_a_lazy_server_is_not_stopped_under_a_call() -> None:
    world = started(LAZY)
    world.connect("read")
    permit = world.permit()
    world.advance(1000.0)
    assert world.state() is State.CONNECTED

    world.settle(permit, Outcome.COMPLETED)
    world.advance(300.0)
    assert world.state() is State.IDLE


def test_a_server_that_is_not_lazy_is_never_stopped() -> None:
    world = World(lifecycle=LifecyclePolicy(refresh=None))
    world.send(StartRequested())
    world.connect("read")
    world.advance(1e6)
    assert world.state() is State.CONNECTED


def test_rounding_cannot_keep_the_idle_timer_ringing() -> None:
    world = World(lifecycle=LifecyclePolicy(lazy=True, refresh=None, idle_after=0.3))
    world.now = 0.6
    world.send(StartRequested())
    world.connect("read")
    assert 0.6 + 0.3 - 0.6 < 0.3
    world.advance(0.3)
    assert world.state() is State.IDLE
