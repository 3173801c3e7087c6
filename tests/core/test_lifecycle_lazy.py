from __future__ import annotations

import pytest

from holdfast.core.breaker import Outcome
from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.events import Cause, Close, StartRequested
from holdfast.core.lifecycle.table import State
from tests.core.slot_harness import SlotHarness, started

LAZY = LifecyclePolicy(lazy=True, refresh=None)


@pytest.mark.requirement("LIFE-2", "LIFE-21")
def test_a_lazy_server_whose_tools_are_known_is_not_dialed_before_its_first_use() -> None:
    slot = started(LAZY, listed=True)
    assert slot.state() is State.IDLE
    assert slot.dials == []
    assert slot.wake_at is None


def test_a_lazy_server_whose_tools_are_not_known_is_asked_for_them_first() -> None:
    slot = started(LAZY)
    slot.connect("read")
    slot.advance(300.0)
    assert slot.state() is State.IDLE
    assert slot.tools == {"read"}


def test_the_first_call_dials_and_waits_for_it() -> None:
    slot = started(LAZY, listed=True)
    permit = slot.permit()
    assert permit.connection is None
    assert [dial.cause for dial in slot.dials] == [Cause.FIRST_USE]
    slot.permit()
    assert len(slot.dials) == 1


@pytest.mark.requirement("LIFE-4")
def test_an_unused_lazy_server_is_stopped_and_its_tools_stay_listed() -> None:
    slot = started(LAZY)
    slot.connect("read", "write")
    slot.advance(200.0)
    slot.complete_call()

    assert Close(1) not in slot.advance(299.9)
    assert Close(1) in slot.advance(0.1)
    assert slot.state() is State.IDLE
    assert slot.tools == {"read", "write"}


def test_a_lazy_server_is_not_stopped_under_a_call() -> None:
    slot = started(LAZY)
    slot.connect("read")
    permit = slot.permit()
    slot.advance(1000.0)
    assert slot.state() is State.CONNECTED

    slot.settle(permit, Outcome.COMPLETED)
    slot.advance(300.0)
    assert slot.state() is State.IDLE


def test_a_server_that_is_not_lazy_is_never_stopped() -> None:
    slot = SlotHarness(lifecycle=LifecyclePolicy(refresh=None))
    slot.send(StartRequested())
    slot.connect("read")
    slot.advance(1e6)
    assert slot.state() is State.CONNECTED


def test_rounding_cannot_keep_the_idle_timer_ringing() -> None:
    slot = SlotHarness(lifecycle=LifecyclePolicy(lazy=True, refresh=None, idle_after=0.3))
    slot.now = 0.6
    slot.send(StartRequested())
    slot.connect("read")
    assert 0.6 + 0.3 - 0.6 < 0.3
    slot.advance(0.3)
    assert slot.state() is State.IDLE
