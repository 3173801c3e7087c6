from __future__ import annotations

import pytest

from holdfast.core.lifecycle.events import (
    CallTimedOut,
    Cause,
    Close,
    Dial,
    LivenessConfirmed,
    LivenessFailed,
    SessionExpired,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from tests.core.slot_harness import connected


@pytest.mark.requirement("LIFE-17")
def test_an_expired_session_is_renewed_at_once_and_is_no_failure() -> None:
    slot = connected()
    effects = slot.send(SessionExpired(slot.lease))
    assert [effect for effect in effects if isinstance(effect, Close | Dial)] == [
        Close(1),
        Dial(2, Cause.SESSION),
    ]
    assert slot.send(SessionExpired(1)) == ()
    slot.connect("read")
    assert slot.machine.breaker.failures == 0
    assert slot.machine.health(0.0).attempts == 0


@pytest.mark.requirement("LIFE-17")
def test_a_session_that_expires_as_soon_as_it_was_renewed_is_a_failure() -> None:
    slot = connected()
    slot.send(SessionExpired(slot.lease))
    slot.connect("read")
    slot.send(SessionExpired(slot.lease))
    assert slot.dials[-1].cause is Cause.RECONNECT
    assert slot.machine.breaker.failures == 1


@pytest.mark.requirement("LIFE-17")
def test_a_session_that_served_a_call_may_expire_again() -> None:
    slot = connected()
    for _ in range(10):
        slot.send(SessionExpired(slot.lease))
        slot.connect("read")
        slot.complete_call()
    assert {dial.cause for dial in slot.dials[1:]} == {Cause.SESSION}


@pytest.mark.requirement("LIFE-10")
def test_many_slow_calls_are_one_liveness_check_and_no_failure_if_it_is_answered() -> None:
    slot = connected()
    effects = [effect for _ in range(5) for effect in slot.send(CallTimedOut(slot.lease))]
    assert len(effects) == 1
    slot.send(LivenessConfirmed(slot.lease))
    assert slot.machine.health(0.0).failures == 0
    assert slot.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-10")
def test_liveness_checks_that_fail_count_like_any_failure() -> None:
    slot = connected()
    for _ in range(3):
        slot.send(CallTimedOut(slot.lease))
        slot.send(LivenessFailed(slot.lease, "no answer"))
    assert slot.state() is State.RECONNECTING


@pytest.mark.requirement("LIFE-10")
def test_a_completed_call_ends_the_row_of_failures_of_its_connection() -> None:
    slot = connected()
    for _ in range(2):
        for _ in range(2):
            slot.send(CallTimedOut(slot.lease))
            slot.send(LivenessFailed(slot.lease, "no answer"))
        assert slot.state() is State.CONNECTED
        slot.complete_call()
        assert slot.machine.health(0.0).failures == 0


def test_its_repr_says_how_it_stands() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease))
    slot.fail()
    assert repr(slot.machine.life) == "<Lifecycle 'files' reconnecting attempt=1 gen=2>"
