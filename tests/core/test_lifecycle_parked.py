from __future__ import annotations

from itertools import pairwise

import pytest

from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.events import (
    Cause,
    ConfigChanged,
    LoginSucceeded,
    ReconnectRequested,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from holdfast.core.messages import FailureStatus
from tests.core.slot_harness import SlotHarness, connected, started


def parked(status: FailureStatus = "permanent") -> SlotHarness:
    slot = connected()
    slot.send(TransportLost(slot.lease, "it died"))
    slot.fail_until_parked(status)
    return slot


@pytest.mark.requirement("LIFE-19", "LIFE-22")
def test_a_permanent_failure_of_a_server_that_never_connected_parks_it_at_once() -> None:
    slot = started()
    slot.fail("permanent", "there is no such command")
    assert slot.state() is State.PERMANENTLY_FAILED
    assert slot.machine.health(0.0).reason == "there is no such command"
    assert slot.machine.health(0.0).attempts == 0


@pytest.mark.requirement("LIFE-5")
def test_a_permanent_failure_of_a_server_that_had_connected_uses_the_budget() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease))
    slot.fail("permanent", "404")
    assert slot.state() is State.RECONNECTING


@pytest.mark.requirement("LIFE-19")
def test_a_parked_server_is_tried_by_itself_every_five_minutes() -> None:
    slot = parked()
    since = slot.now
    for _ in range(3):
        slot.sleep()
        assert slot.dials[-1].cause is Cause.SELF_PROBE
        slot.fail("permanent")
        assert slot.state() is State.PERMANENTLY_FAILED
    assert slot.now - since == 900.0


@pytest.mark.requirement("LIFE-25", "MSG-9")
def test_a_server_parked_on_transient_evidence_is_tried_every_thirty_seconds_and_stays_transient() -> None:
    slot = parked("transient")
    since = slot.now
    for _ in range(20):
        slot.sleep()
        slot.fail(reason="no answer within 15 s")
        health = slot.machine.health(slot.now)
        assert (health.state, health.status, health.shown_state) == (State.PERMANENTLY_FAILED, "transient", "parked")
        assert health.retry_in is not None
        assert health.retry_in <= 30.0
    assert slot.now - since == 600.0


@pytest.mark.requirement("LIFE-25")
def test_the_try_of_a_server_parked_on_transient_evidence_cannot_be_off() -> None:
    slot = connected(LifecyclePolicy(self_probe=None))
    slot.send(TransportLost(slot.lease, "it died"))
    slot.fail_until_parked()
    assert slot.machine.health(slot.now).retry_in == 30.0


@pytest.mark.requirement("LIFE-25")
def test_a_connection_that_dies_with_the_budget_spent_is_transient_evidence() -> None:
    slot = parked("transient")
    slot.sleep()
    slot.connect("read")
    slot.send(TransportLost(slot.lease, "its process exited with code 3"))
    health = slot.machine.health(slot.now)
    assert (health.state, health.status, health.retry_in) == (State.PERMANENTLY_FAILED, "transient", 30.0)
    assert health.lost


@pytest.mark.requirement("LIFE-25")
@pytest.mark.parametrize("known", [True, False], ids=["up before", "never up"])
def test_a_server_that_answers_that_it_is_not_ready_is_asked_once_in_two_seconds_and_later_in_thirty(
    known: bool,
) -> None:
    slot = connected() if known else started()
    if known:
        slot.send(TransportLost(slot.lease))
    slot.fail(reason="HTTP 503", answers=True)
    asked = [slot.now]
    while slot.now < 400.0:
        slot.sleep()
        if slot.dial is not None:
            asked.append(slot.now)
            slot.fail(reason="HTTP 503", answers=True)
        health = slot.machine.health(slot.now)
        assert health.status == "transient"
        assert health.retry_in is not None
        assert health.retry_in <= 30.0
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    minute = [gap for gap, at in zip(gaps, asked, strict=False) if at < 58.0]
    assert set(minute) == {2.0}
    assert [round(gap, 6) for gap in gaps] == sorted(round(gap, 6) for gap in gaps)
    assert gaps[-1] == 30.0
    assert slot.machine.health(slot.now).state is State.PERMANENTLY_FAILED


@pytest.mark.requirement("LIFE-25")
def test_a_server_that_answered_503_for_forty_seconds_is_back_at_the_next_try() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease))
    while slot.now < 40.0:
        if slot.dial is not None:
            slot.fail(reason="HTTP 503", answers=True)
        slot.sleep()
    assert slot.now <= 42.0
    slot.connect("read")
    assert slot.state() is State.CONNECTED
    assert len(slot.dials) <= 23


@pytest.mark.requirement("LIFE-19")
def test_the_self_probe_brings_a_parked_server_back() -> None:
    slot = parked()
    slot.sleep()
    slot.connect("read")
    assert slot.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-19")
def test_the_self_probe_can_be_off() -> None:
    slot = started(LifecyclePolicy(self_probe=None))
    slot.fail("permanent")
    assert slot.wake_at is None


@pytest.mark.requirement("LIFE-19")
@pytest.mark.parametrize("event", [ReconnectRequested(), LoginSucceeded(), ConfigChanged()])
def test_a_parked_server_is_brought_back_by_a_person(
    event: ReconnectRequested | LoginSucceeded | ConfigChanged,
) -> None:
    slot = parked()
    slot.send(event)
    assert slot.state() is State.CONNECTING
    slot.connect("read")
    assert slot.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_a_parked_server_that_comes_back_and_dies_at_once_is_parked_again() -> None:
    slot = parked()
    slot.send(ReconnectRequested())
    slot.connect("read")
    slot.send(TransportLost(slot.lease))
    assert slot.state() is State.PERMANENTLY_FAILED
