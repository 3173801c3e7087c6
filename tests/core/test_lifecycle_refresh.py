from __future__ import annotations

import pytest

from holdfast.core.lifecycle.backoff import REFRESH_STEPS, LifecyclePolicy, aligned
from holdfast.core.lifecycle.events import (
    ListChanged,
    Publish,
    RefreshFailed,
    RefreshNow,
    RefreshSucceeded,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from tests.core.slot_harness import SlotHarness, connected, listing, started

NO_PERIOD = LifecyclePolicy(refresh=None)


def refreshes(effects: list[object] | tuple[object, ...]) -> int:
    return sum(isinstance(effect, RefreshNow) for effect in effects)


@pytest.mark.requirement("LIFE-5")
def test_a_connected_server_is_listed_again_every_minute() -> None:
    slot = connected()
    for _ in range(3):
        assert refreshes([*slot.advance(60.0)]) == 1
        slot.send(RefreshSucceeded(slot.lease))


@pytest.mark.requirement("LIFE-5")
def test_a_listing_that_is_under_way_is_not_begun_twice() -> None:
    slot = connected()
    assert refreshes([*slot.advance(600.0)]) == 1


@pytest.mark.requirement("LIFE-4")
def test_a_newer_listing_replaces_the_tools_and_a_failed_one_keeps_them() -> None:
    slot = connected()
    slot.send(RefreshFailed(slot.lease))
    assert slot.tools == {"read", "write"}
    slot.send(RefreshSucceeded(slot.lease, listing(1, "read")))
    assert slot.tools == {"read"}


@pytest.mark.requirement("LIFE-4")
def test_a_listing_that_did_not_change_publishes_nothing() -> None:
    slot = connected()
    effects = slot.send(RefreshSucceeded(slot.lease))
    assert not any(isinstance(effect, Publish) for effect in effects)


@pytest.mark.requirement("LIFE-18")
def test_a_burst_of_notices_is_one_listing_and_one_more_for_what_came_during_it() -> None:
    slot = connected(NO_PERIOD)
    slot.advance(10.0)
    for _ in range(128):
        slot.send(ListChanged(slot.lease))
    assert refreshes([*slot.sleep()]) == 1
    for _ in range(128):
        slot.send(ListChanged(slot.lease))
    slot.send(RefreshSucceeded(slot.lease))

    assert refreshes([*slot.advance(5.0)]) == 1
    slot.send(RefreshSucceeded(slot.lease))
    assert refreshes([*slot.advance(3600.0)]) == 0


@pytest.mark.requirement("LIFE-18")
def test_a_server_that_never_stops_noticing_is_listed_once_a_second_at_most() -> None:
    slot = connected(NO_PERIOD)
    begun = 0
    for _ in range(100):
        slot.send(ListChanged(slot.lease))
        begun += refreshes([*slot.advance(0.1)])
        if begun:
            slot.send(RefreshSucceeded(slot.lease))
    assert 9 <= begun <= 10


@pytest.mark.requirement("LIFE-18")
def test_a_notice_that_comes_before_the_dial_has_ended_is_not_lost() -> None:
    slot = started(NO_PERIOD)
    slot.send(ListChanged(1))
    slot.connect("read")
    assert refreshes([*slot.advance(1.0)]) == 1


@pytest.mark.requirement("LIFE-18")
def test_a_notice_whose_listing_failed_is_not_lost() -> None:
    slot = connected(NO_PERIOD)
    slot.send(ListChanged(slot.lease))
    slot.advance(1.0)
    slot.send(RefreshFailed(slot.lease))
    assert refreshes([*slot.advance(2.0)]) == 1


@pytest.mark.requirement("LIFE-3", "LIFE-18")
def test_a_notice_of_an_old_connection_is_ignored() -> None:
    slot = connected(NO_PERIOD)
    slot.send(TransportLost(slot.lease))
    slot.connect("read")
    assert slot.send(ListChanged(1)) == ()


def test_listings_stop_with_the_connection() -> None:
    slot: SlotHarness = connected()
    slot.advance(59.0)
    slot.send(TransportLost(slot.lease))
    assert slot.state() is State.RECONNECTING
    assert refreshes([*slot.advance(3600.0)]) == 0


@pytest.mark.requirement("PERF-4")
def test_refreshes_that_are_due_at_about_the_same_time_are_due_at_the_same_time() -> None:
    """One wake-up of the event loop serves them all. None is later than the period says."""
    period = 60.0
    spread = [aligned(1_000.0 + period - 0.012 * number, period) for number in range(1_000)]
    assert len(set(spread)) == 12 / (period / REFRESH_STEPS) + 1
    assert all(0 <= 1_000.0 + period - 0.012 * n - at < period / REFRESH_STEPS for n, at in enumerate(spread))
