from __future__ import annotations

import pytest

from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.events import (
    CallTransportFailed,
    Cause,
    Close,
    Closed,
    CloseFailed,
    ConfigChanged,
    Dial,
    DialSucceeded,
    Emit,
    ReconnectRequested,
    RefreshFailed,
    RefreshSucceeded,
    RetryPlanned,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from tests.core.slot_harness import SlotHarness, connected, listing, started


def planned(slot: SlotHarness) -> list[tuple[int, float]]:
    return [(record.attempt, record.delay) for record in slot.records if isinstance(record, RetryPlanned)]


def test_an_attempt_is_announced_once_although_a_server_that_answers_is_asked_in_between() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease))
    while slot.state() is not State.PERMANENTLY_FAILED:
        if slot.dial is not None:
            slot.fail(reason="HTTP 503", answers=True)
        slot.sleep()
    assert len(slot.dials) > 10
    assert [attempt for attempt, _ in planned(slot)] == [2, 3, 4, 5], "the first is at once"


@pytest.mark.requirement("LIFE-5")
def test_three_failures_in_a_row_of_a_connection_that_stands_start_a_reconnect() -> None:
    slot = connected()
    slot.send(RefreshFailed(slot.lease))
    slot.send(CallTransportFailed(slot.lease))
    assert slot.state() is State.CONNECTED

    effects = slot.send(RefreshFailed(slot.lease, reason="no answer"))

    assert slot.state() is State.RECONNECTING
    assert Close(1) in effects
    assert slot.dial is None
    assert planned(slot) == [(1, 1.0)]


@pytest.mark.requirement("LIFE-5")
def test_failures_far_apart_still_count_in_a_row() -> None:
    slot = connected(LifecyclePolicy(refresh=None))
    for _ in range(3):
        slot.advance(3600.0)
        slot.send(CallTransportFailed(slot.lease))
    assert slot.state() is State.RECONNECTING


@pytest.mark.requirement("LIFE-5")
def test_a_listing_that_succeeds_ends_the_row_of_failures() -> None:
    slot = connected()
    for _ in range(5):
        slot.send(RefreshFailed(slot.lease))
        slot.send(CallTransportFailed(slot.lease))
        slot.send(RefreshSucceeded(slot.lease))
    assert slot.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-5")
def test_the_fifth_reconnect_that_fails_parks_the_server() -> None:
    slot = connected()
    for _ in range(3):
        slot.send(RefreshFailed(slot.lease))

    assert slot.fail_until_parked() == 5
    assert planned(slot) == [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 16.0)]
    assert slot.now == 31.0
    assert slot.machine.health(slot.now).attempts == 5


@pytest.mark.requirement("LIFE-5")
def test_chance_only_ever_shortens_a_wait() -> None:
    slot = connected()
    slot.send(RefreshFailed(slot.lease))
    slot.send(RefreshFailed(slot.lease))
    slot.send(RefreshFailed(slot.lease), chance=0.5)
    assert planned(slot) == [(1, 0.9)]


@pytest.mark.requirement("LIFE-5")
def test_the_wait_that_a_server_asks_for_is_honoured_within_reason() -> None:
    slot = started()
    slot.fail(retry_after=3.0)
    slot.sleep()
    slot.fail(retry_after=900.0)
    assert planned(slot) == [(1, 3.0), (2, 5.0)]


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_the_budget_goes_on_across_reconnects_until_a_connection_has_stood() -> None:
    slot = connected()
    deaths = 0
    while slot.state() is not State.PERMANENTLY_FAILED:
        slot.send(TransportLost(slot.lease))
        deaths += 1
        if slot.state() is State.RECONNECTING:
            slot.sleep()
            slot.connect("read")
    assert deaths == 6
    assert planned(slot) == [(2, 2.0), (3, 4.0), (4, 8.0), (5, 16.0)]


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_thirty_seconds_of_standing_make_the_budget_whole() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease))
    slot.fail()
    slot.sleep()
    slot.connect("read")

    slot.advance(29.9)
    assert slot.machine.health(slot.now).attempts == 1
    slot.advance(0.1)
    assert slot.machine.health(slot.now).attempts == 0


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_a_completed_call_makes_the_budget_whole_at_once() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease))
    slot.fail()
    slot.sleep()
    slot.connect("read")
    slot.complete_call()
    assert slot.machine.health(slot.now).attempts == 0


@pytest.mark.requirement("LIFE-5")
def test_a_cold_start_that_fails_transiently_is_retried_within_the_budget() -> None:
    slot = started()
    slot.fail()
    assert slot.state() is State.RECONNECTING
    assert slot.fail_until_parked() == 5


@pytest.mark.requirement("LIFE-5")
def test_a_close_that_fails_charges_no_budget_and_is_reported() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease))
    effects = slot.send(Closed(1, "the process would not die"))

    assert Emit(CloseFailed(server="files", generation=1, error="the process would not die", at=0.0)) in effects
    assert slot.machine.health(slot.now).attempts == 0
    assert slot.state() is State.RECONNECTING


@pytest.mark.requirement("LIFE-6", "LIFE-7")
def test_a_dead_transport_is_detached_closed_and_dialed_again_in_one_step() -> None:
    slot = connected()
    effects = slot.send(TransportLost(slot.lease, "exit code 1"))

    assert [effect for effect in effects if isinstance(effect, Close | Dial)] == [
        Close(1),
        Dial(2, Cause.RECONNECT),
    ]
    assert slot.machine.connection is None
    assert slot.state() is State.RECONNECTING


@pytest.mark.requirement("LIFE-6", "BRK-10")
def test_a_second_death_within_thirty_seconds_waits_for_a_part_of_the_first_backoff() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease))
    slot.connect("read")
    slot.complete_call()
    slot.advance(29.0)
    slot.send(TransportLost(slot.lease))
    assert slot.dial is None
    assert planned(slot) == [(1, 0.3)]

    slot.sleep()
    slot.connect("read")
    slot.advance(1.0)
    slot.send(TransportLost(slot.lease))
    assert slot.dial is not None


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_a_connection_that_dies_before_it_is_proven_waits_for_the_whole_backoff() -> None:
    slot = connected()
    for _ in range(3):
        slot.send(TransportLost(slot.lease))
        if slot.dial is None:
            slot.sleep()
        slot.connect("read")
    assert planned(slot) == [(2, 2.0), (3, 4.0)]


@pytest.mark.requirement("LIFE-3")
def test_a_late_death_of_an_old_connection_does_not_touch_the_new_one() -> None:
    slot = connected()
    slot.send(ReconnectRequested())
    slot.connect("read")
    assert slot.send(TransportLost(1)) == ()
    assert slot.machine.connection == 2


@pytest.mark.requirement("LIFE-3", "LIFE-4")
def test_a_late_listing_of_an_old_connection_is_not_published() -> None:
    slot = connected()
    slot.send(ReconnectRequested())
    slot.connect("read", "write", "new")
    slot.send(RefreshSucceeded(1, listing(1, "old")))
    assert slot.tools == {"read", "write", "new"}


@pytest.mark.requirement("LIFE-3", "LIFE-13")
def test_a_dial_that_succeeds_too_late_is_closed_and_not_used() -> None:
    slot = started()
    slot.send(ConfigChanged())
    assert slot.send(DialSucceeded(1, listing(1, "old"))) == (Close(1),)
    assert slot.machine.dialing == 2
    assert slot.tools == set()
