"""Policies that change under way: in force at once, and no connection is touched by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.core.breaker import Breaker, BreakerPolicy, BreakerState, Refusal
from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.events import Cause, Effect, RefreshNow, RefreshSucceeded, ShutdownRequested, TransportLost
from holdfast.core.lifecycle.table import State
from tests.core.slot_harness import SlotHarness, connected, started

pytestmark = pytest.mark.requirement("LIFE-20")


def adopt(slot: SlotHarness, lifecycle: LifecyclePolicy, breaker: BreakerPolicy | None = None) -> tuple[Effect, ...]:
    """The slot's machine goes by other policies from now on."""
    effects = slot.machine.adopt(breaker or slot.machine.breaker.policy, lifecycle, slot.now)
    for effect in effects:
        slot.perform(effect)
    return effects


def refreshes(slot: SlotHarness, seconds: float) -> int:
    """How often it is listed in so long, each time with success."""
    count = 0
    until = slot.now + seconds
    while slot.wake_at is not None and slot.wake_at <= until:
        if any(isinstance(effect, RefreshNow) for effect in slot.sleep()):
            count += 1
            slot.send(RefreshSucceeded(slot.lease))
    slot.now = until
    return count


def test_the_connection_stands_and_nothing_is_dialed() -> None:
    slot = connected()
    adopt(slot, LifecyclePolicy(refresh=5.0, standing=5.0, idle_after=1.0, backoff=(1.0,), failures=1, self_probe=2.0))
    slot.advance(4.0)
    assert (slot.state(), slot.machine.connection, len(slot.dials)) == (State.CONNECTED, 1, 1)


@pytest.mark.parametrize(("before", "after", "listings"), [(60.0, 10.0, 6), (10.0, 60.0, 1), (None, 20.0, 3)])
def test_the_next_refresh_goes_by_the_new_period(before: float | None, after: float, listings: int) -> None:
    slot = connected(LifecyclePolicy(refresh=before))
    slot.advance(1.0)
    adopt(slot, LifecyclePolicy(refresh=after))
    assert refreshes(slot, 60.0) == listings


def test_refreshing_can_be_switched_off_while_a_listing_is_under_way() -> None:
    slot = connected()
    assert RefreshNow(slot.lease) in slot.advance(60.0)
    adopt(slot, LifecyclePolicy(refresh=None))
    slot.send(RefreshSucceeded(slot.lease))
    assert refreshes(slot, 600.0) == 0


def test_a_connection_that_has_stood_long_enough_by_the_new_time_is_proven() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease))
    slot.connect("read")
    adopt(slot, LifecyclePolicy(standing=5.0))
    slot.advance(5.0)
    assert slot.machine.life.lease is not None
    assert slot.machine.life.lease.proven


def test_a_lazy_server_is_stopped_by_the_new_time() -> None:
    lazy = LifecyclePolicy(lazy=True)
    slot = connected(lazy)
    slot.advance(50.0)
    adopt(slot, replace(lazy, idle_after=40.0))
    slot.sleep()
    assert slot.state() is State.IDLE
    assert slot.now == 50.0


@pytest.mark.parametrize(("before", "after"), [(300.0, 10.0), (None, 10.0)])
def test_a_parked_server_is_tried_by_itself_at_the_new_time(before: float | None, after: float) -> None:
    slot = started(LifecyclePolicy(self_probe=before))
    slot.fail("permanent")
    adopt(slot, LifecyclePolicy(self_probe=after))
    slot.advance(after)
    assert slot.dials[-1].cause is Cause.SELF_PROBE


def test_the_self_probe_of_a_parked_server_can_be_switched_off() -> None:
    slot = started()
    slot.fail("permanent")
    adopt(slot, LifecyclePolicy(self_probe=None))
    assert slot.wake_at is None


def test_a_parked_server_answers_with_its_reason_for_as_long_as_the_new_cooldown_says() -> None:
    slot = started()
    slot.fail("permanent", neutral=True)
    adopt(slot, LifecyclePolicy(parked=10.0))
    assert slot.refusal().retry_in == 10.0
    slot.advance(10.0)
    slot.permit()


def test_a_smaller_budget_is_spent_at_the_next_failure_and_a_larger_one_goes_on() -> None:
    smaller = connected()
    smaller.send(TransportLost(smaller.lease))
    for _ in range(3):
        smaller.fail()
        smaller.sleep()
    adopt(smaller, LifecyclePolicy(backoff=(1.0, 2.0)))
    smaller.fail()
    assert smaller.state() is State.PERMANENTLY_FAILED

    larger = connected(LifecyclePolicy(backoff=(1.0, 2.0)))
    larger.send(TransportLost(larger.lease))
    larger.fail_until_parked()
    adopt(larger, LifecyclePolicy())
    larger.sleep()
    larger.fail()
    assert larger.state() is State.RECONNECTING


def test_a_machine_that_is_stopped_adopts_nothing() -> None:
    slot = connected()
    slot.send(ShutdownRequested())
    assert adopt(slot, LifecyclePolicy(refresh=1.0)) == ()


@pytest.mark.parametrize(("threshold", "more"), [(5, 3), (2, 1), (1, 1)])
def test_a_breaker_counts_on_to_its_new_threshold(threshold: int, more: int) -> None:
    breaker = Breaker()
    breaker.connect_failed(0.0)
    breaker.connect_failed(1.0)
    breaker.adopt(BreakerPolicy(threshold=threshold))
    for number in range(more):
        assert breaker.state is BreakerState.CLOSED
        breaker.connect_failed(2.0 + number)
    assert breaker.state is BreakerState.OPEN


@pytest.mark.parametrize("cooldown", [10.0, 300.0])
def test_a_cooldown_that_has_begun_is_as_long_as_the_new_one(cooldown: float) -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker.connect_failed(0.0)
    breaker.adopt(BreakerPolicy(cooldown=cooldown))
    assert breaker.retry_in(5.0) == cooldown - 5.0
    assert isinstance(breaker.admit(cooldown - 0.1), Refusal)
    assert not isinstance(breaker.admit(cooldown), Refusal)


def test_another_change_than_that_of_the_period_moves_no_refresh_that_is_planned() -> None:
    slot = connected(LifecyclePolicy(jitter=0.0))
    slot.advance(30.0)
    planned = slot.wake_at
    adopt(slot, LifecyclePolicy(jitter=0.0, failures=9))
    assert slot.wake_at == planned
    assert RefreshNow(slot.lease) in slot.advance(30.0)
    adopt(slot, LifecyclePolicy(jitter=0.0, refresh=5.0))
    assert not [one for one in slot.advance(20.0) if isinstance(one, RefreshNow)], "one is under way"


@pytest.mark.parametrize("more", [10.0, -10.0])
def test_a_denied_server_is_asked_by_a_call_at_the_time_of_the_new_policy(more: float) -> None:
    policy = LifecyclePolicy(jitter=0.0)
    slot = started(policy)
    slot.fail("denied")
    adopt(slot, replace(policy, parked=policy.parked + more))
    slot.now += policy.parked + more - 1.0
    assert isinstance(slot.call(), Refusal)
    slot.now += 1.0
    slot.permit()
