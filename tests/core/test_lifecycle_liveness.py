from __future__ import annotations

import pytest

from holdfast.core.lifecycle.effects import (
    Cause,
    Close,
    Dial,
)
from holdfast.core.lifecycle.events import (
    CallTimedOut,
    LivenessConfirmed,
    LivenessFailed,
    SessionExpired,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from tests.core.world import connected


@pytest.mark.requirement("LIFE-17")
def test_an_expired_session_is_renewed_at_once_and_is_no_failure() -> None:
    world = connected()
    effects = world.send(SessionExpired(world.lease))
    assert [effect for effect in effects if isinstance(effect, Close | Dial)] == [
        Close(1),
        Dial(2, Cause.SESSION),
    ]
    assert world.send(SessionExpired(1)) == ()
    world.connect("read")
    assert world.machine.breaker.failures == 0
    assert world.machine.health(0.0).attempts == 0


@pytest.mark.requirement("LIFE-17")
def test_a_session_that_expires_as_soon_as_it_was_renewed_is_a_failure() -> None:
    world = connected()
    world.send(SessionExpired(world.lease))
    world.connect("read")
    world.send(SessionExpired(world.lease))
    assert world.dials[-1].cause is Cause.RECONNECT
    assert world.machine.breaker.failures == 1


@pytest.mark.requirement("LIFE-17")
def test_a_session_that_served_a_call_may_expire_again() -> None:
    world = connected()
    for _ in range(10):
        world.send(SessionExpired(world.lease))
        world.connect("read")
        world.complete_call()
    assert {dial.cause for dial in world.dials[1:]} == {Cause.SESSION}


@pytest.mark.requirement("LIFE-10")
def test_many_slow_calls_are_one_liveness_check_and_no_failure_if_it_is_answered() -> None:
    world = connected()
    effects = [effect for _ in range(5) for effect in world.send(CallTimedOut(world.lease))]
    assert len(effects) == 1
    world.send(LivenessConfirmed(world.lease))
    assert world.machine.health(0.0).failures == 0
    assert world.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-10")
def test_liveness_checks_that_fail_count_like_any_failure() -> None:
    world = connected()
    for _ in range(3):
        world.send(CallTimedOut(world.lease))
        world.send(LivenessFailed(world.lease, "no answer"))
    assert world.state() is State.RECONNECTING


def test_its_repr_says_how_it_stands() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.fail()
    assert repr(world.machine.life) == "<Lifecycle 'files' reconnecting attempt=1 gen=2>"
