from __future__ import annotations

from itertools import pairwise

import pytest

from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.events import (
    AddressChecked,
    Cause,
    CheckAddress,
    DisableRequested,
    ReconnectRequested,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from tests.core.slot_harness import SlotHarness, connected, started

WATCHABLE = LifecyclePolicy(watchable=True)


def refused_at_start(policy: LifecyclePolicy = WATCHABLE) -> SlotHarness:
    slot = started(policy)
    slot.fail("permanent", "connection refused", unreachable=True)
    return slot


def stay_dead(slot: SlotHarness, seconds: float) -> None:
    """Nothing listens and every dial is refused, for so long."""
    until = slot.now + seconds
    while slot.wake_at is not None and slot.wake_at <= until:
        slot.sleep()
        if slot.look is not None:
            slot.send(AddressChecked(slot.look, listening=False))
        if slot.dial is not None:
            slot.fail(unreachable=True)
    slot.now = until


@pytest.mark.requirement("LIFE-22")
def test_a_server_refused_at_cold_start_is_parked_and_looked_at() -> None:
    slot = refused_at_start()
    assert slot.state() is State.PERMANENTLY_FAILED
    assert slot.advance(1.0)[0] == CheckAddress(1)
    assert len(slot.dials) == 1


@pytest.mark.requirement("LIFE-22")
def test_a_server_that_listens_again_is_dialed_at_once_and_charges_nothing() -> None:
    slot = refused_at_start()
    slot.advance(1.0)
    slot.send(AddressChecked(1, listening=True))
    assert slot.dials[-1].cause is Cause.WATCH
    slot.connect("read")
    assert slot.state() is State.CONNECTED
    assert slot.wake_at is not None
    slot.send(TransportLost(slot.lease))
    assert slot.machine.health(slot.now).attempts == 0


@pytest.mark.requirement("LIFE-22")
def test_looks_are_a_second_apart_for_a_minute_and_then_a_tenth_of_the_outage_up_to_thirty() -> None:
    slot = refused_at_start(LifecyclePolicy(watchable=True, self_probe=None))  # no dial comes between
    stay_dead(slot, 600.0)
    later = [at for at in slot.looks if at > 60.0]
    gaps = [after - before for before, after in pairwise(slot.looks)]
    assert gaps[:59] == [1.0] * 59
    assert [round(gap, 3) for gap in gaps[59:61]] == [6.0, 6.6]
    assert all(gap <= min(30.0, before / 10) + 1e-6 for before, gap in zip(slot.looks[59:], gaps[59:], strict=False))
    assert gaps[-1] == 30.0
    assert len(later) == 26


@pytest.mark.requirement("LIFE-22")
def test_a_dead_server_sees_few_connections_in_five_minutes() -> None:
    cold = refused_at_start()
    stay_dead(cold, 300.0)
    assert (len(cold.looks), len(cold.dials)) == (76, 2)

    died = connected(WATCHABLE)
    died.send(TransportLost(died.lease))
    died.fail(unreachable=True)
    stay_dead(died, 300.0)
    assert len(died.looks) + len(died.dials) == 158


@pytest.mark.requirement("LIFE-22")
def test_a_server_that_was_up_before_is_looked_at_sooner_while_it_may_be_restarting() -> None:
    slot = connected(LifecyclePolicy(watchable=True, backoff=(1000.0,) * 5))  # no reconnect comes between
    slot.send(TransportLost(slot.lease))
    slot.fail(unreachable=True)
    stay_dead(slot, 400.0)
    gaps = [later - earlier for earlier, later in zip([0.0, *slot.looks], slot.looks, strict=False)]
    assert gaps[:39] == [0.25] * 39
    assert gaps[40:140] == [0.5] * 100
    assert gaps == sorted(gaps)
    assert gaps[-1] == 30.0


@pytest.mark.requirement("LIFE-22")
def test_a_server_that_was_connected_is_looked_at_between_reconnects() -> None:
    slot = connected(WATCHABLE)
    slot.send(TransportLost(slot.lease))
    slot.fail(unreachable=True)
    assert slot.state() is State.RECONNECTING
    slot.advance(0.25)
    assert slot.look is not None
    slot.send(AddressChecked(slot.look, listening=True))
    assert slot.dials[-1].cause is Cause.WATCH


@pytest.mark.requirement("LIFE-5", "LIFE-22")
def test_a_dial_that_a_look_caused_neither_charges_nor_puts_off_the_next_reconnect() -> None:
    slot = connected(WATCHABLE)
    slot.send(TransportLost(slot.lease))
    slot.fail(unreachable=True)
    due = slot.now + 2.0
    slot.advance(0.25)
    assert slot.look is not None
    slot.send(AddressChecked(slot.look, listening=True))
    slot.fail(unreachable=True)

    assert slot.machine.health(slot.now).attempts == 1
    stay_dead(slot, 1.5)
    assert [dial.cause for dial in slot.dials].count(Cause.RECONNECT) == 1
    slot.advance(0.25)
    assert slot.now == due
    assert [dial.cause for dial in slot.dials].count(Cause.RECONNECT) == 2


@pytest.mark.requirement("LIFE-22")
def test_an_outage_that_goes_on_keeps_its_pace_when_a_person_dials() -> None:
    slot = refused_at_start()
    stay_dead(slot, 200.0)
    looks = len(slot.looks)
    slot.send(ReconnectRequested())
    slot.fail(unreachable=True)
    stay_dead(slot, 29.0)
    assert len(slot.looks) == looks


@pytest.mark.requirement("LIFE-22")
def test_a_new_outage_is_checked_often_again() -> None:
    slot = refused_at_start()
    stay_dead(slot, 200.0)
    slot.send(ReconnectRequested())
    slot.connect("read")
    slot.send(TransportLost(slot.lease))
    slot.fail(unreachable=True)
    looks = len(slot.looks)
    stay_dead(slot, 10.0)
    assert len(slot.looks) - looks >= 8


@pytest.mark.requirement("LIFE-22")
def test_a_server_that_answers_with_an_error_is_not_looked_at() -> None:
    slot = refused_at_start()
    slot.advance(1.0)
    slot.send(AddressChecked(1, listening=True))
    slot.fail("permanent", "404")
    slot.advance(299.0)
    assert len(slot.looks) == 1


def listens_again(slot: SlotHarness) -> None:
    """The next address check finds a listener, which is dialed and is not ready yet."""
    while slot.look is None:
        slot.sleep()
    slot.send(AddressChecked(slot.look, listening=True))
    slot.fail(reason="503", answers=True)


def not_well(slot: SlotHarness, seconds: float) -> list[float]:
    """The server listens and every dial fails, for so long; when it was dialed."""
    at: list[float] = []
    until = slot.now + seconds
    while slot.wake_at is not None and slot.wake_at <= until:
        slot.sleep()
        if slot.dial is not None:
            at.append(slot.now)
            slot.fail(reason="503", answers=True)
    slot.now = until
    return at


@pytest.mark.requirement("LIFE-19", "LIFE-22")
def test_a_parked_server_that_listens_again_and_is_not_ready_yet_is_asked_every_two_seconds() -> None:
    slot = connected(WATCHABLE)
    slot.send(TransportLost(slot.lease))
    slot.fail_until_parked(unreachable=True)
    stay_dead(slot, 200.0)
    listens_again(slot)
    assert slot.state() is State.PERMANENTLY_FAILED
    for _ in range(29):
        assert slot.sleep()
        assert slot.dials[-1].cause is Cause.WATCH
        slot.fail(reason="503", answers=True)
    assert slot.wake_at is not None
    assert slot.wake_at - slot.now == 2.0
    slot.sleep()
    slot.connect("read")
    assert slot.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-5", "LIFE-25")
def test_a_server_that_starts_is_asked_every_two_seconds_beside_its_budget_and_then_less_often() -> None:
    slot = connected(WATCHABLE)
    slot.send(TransportLost(slot.lease))
    slot.fail(unreachable=True)
    listens_again(slot)
    began = slot.now
    tries = not_well(slot, 290.0)
    gaps = [later - earlier for earlier, later in zip([began, *tries], tries, strict=False)]
    assert max(gaps[:25]) <= 2.0
    assert max(gaps) <= 30.0
    causes = [dial.cause for dial in slot.dials]
    assert causes.count(Cause.RECONNECT) == 5
    assert slot.state() is State.PERMANENTLY_FAILED


@pytest.mark.requirement("LIFE-22")
def test_a_server_that_starts_and_dies_again_is_looked_at_at_the_pace_of_the_whole_outage() -> None:
    slot = connected(WATCHABLE)
    slot.send(TransportLost(slot.lease))
    slot.fail_until_parked(unreachable=True)
    stay_dead(slot, 200.0)
    listens_again(slot)
    slot.sleep()
    slot.fail(unreachable=True)
    looks = len(slot.looks)
    stay_dead(slot, 19.0)
    assert len(slot.looks) == looks


@pytest.mark.requirement("LIFE-22", "LOAD-9")
def test_a_server_that_starts_and_asks_to_be_left_alone_for_a_while_is() -> None:
    slot = refused_at_start()
    slot.advance(1.0)
    slot.send(AddressChecked(1, listening=True))
    slot.fail(reason="503", retry_after=3.0)
    slot.advance(2.9)
    assert slot.dial is None
    slot.advance(0.1)
    assert slot.dial is not None


@pytest.mark.requirement("LIFE-22")
def test_a_server_without_a_port_is_not_looked_at() -> None:
    slot = started()
    slot.fail("permanent", unreachable=True)
    slot.advance(299.0)
    assert slot.looks == []


@pytest.mark.requirement("LIFE-22")
def test_a_look_that_is_under_way_does_not_count_after_a_dial_and_after_disabling() -> None:
    slot = refused_at_start()
    slot.advance(1.0)
    slot.send(ReconnectRequested())
    assert slot.send(AddressChecked(1, listening=True)) == ()
    slot.fail("permanent", unreachable=True)
    slot.advance(1.0)
    slot.send(DisableRequested())
    assert slot.send(AddressChecked(2, listening=True)) == ()
    assert slot.dial is None


@pytest.mark.requirement("LIFE-22")
def test_a_slow_look_does_not_make_the_next_one_come_sooner() -> None:
    slot = refused_at_start()
    slot.advance(1.0)
    slot.advance(0.9)
    slot.send(AddressChecked(1, listening=False))
    slot.advance(0.1)
    assert slot.looks == [1.0, 2.0]
