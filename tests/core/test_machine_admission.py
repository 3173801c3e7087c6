from __future__ import annotations

import pytest

from holdfast.core.breaker import BreakerState, Outcome, Permit, RefusalReason, Tripped
from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.events import (
    AddressChecked,
    BreakerChanged,
    Cause,
    Closed,
    DisableRequested,
    RefreshFailed,
    ShutdownRequested,
)
from holdfast.core.lifecycle.table import State
from tests.core.slot_harness import SlotHarness, connected, started

FAILED = Outcome.TRANSPORT_FAILURE


def changes(slot: SlotHarness) -> list[type]:
    return [type(record.change) for record in slot.records if isinstance(record, BreakerChanged)]


def failing_calls(slot: SlotHarness, count: int) -> None:
    for permit in [slot.permit() for _ in range(count)]:
        slot.settle(permit, FAILED)


def tripped_and_down() -> SlotHarness:
    """The connection failed and was given up, a reconnect is due in a second; the breaker is open until 60."""
    slot = connected()
    for _ in range(3):
        slot.machine.breaker.connect_failed(0.0)
        slot.send(RefreshFailed(slot.lease))
    return slot


def parked_after(slot: SlotHarness) -> SlotHarness:
    slot.fail_until_parked()
    return slot


def ready(slot: SlotHarness, permit: Permit) -> Permit:
    """The connection that an admitted call waited for is there."""
    permit.connection = slot.lease
    return permit


@pytest.mark.requirement("BRK-5")
def test_an_open_breaker_refuses_before_anything_is_dialed() -> None:
    slot = tripped_and_down()
    dials = len(slot.dials)
    assert slot.refusal().reason is RefusalReason.OPEN
    assert len(slot.dials) == dials


@pytest.mark.requirement("BRK-5", "MSG-5")
def test_a_refused_caller_is_told_of_the_next_try_by_the_hub_or_by_itself() -> None:
    slot = tripped_and_down()
    assert slot.refusal().retry_in == 1.0  # the reconnect that is planned
    slot.sleep()
    assert slot.refusal().retry_in == 1.0  # it is under way, and takes its moment
    slot.fail()
    assert slot.refusal().retry_in == 2.0
    slot.advance(1.5)
    assert slot.refusal().retry_in == 1.0

    slot.fail_until_parked()
    left = 60.0 - slot.now
    assert slot.machine.breaker.retry_in(slot.now) == left
    assert slot.refusal().retry_in == 30.0  # parked on transient evidence: the hub tries it before a call may


@pytest.mark.requirement("BRK-5", "LIFE-22")
def test_a_caller_of_a_parked_server_is_told_of_the_next_look() -> None:
    slot = started(LifecyclePolicy(watchable=True))
    slot.fail("permanent", "connection refused", unreachable=True)
    assert slot.refusal().retry_in == 1.0
    slot.sleep()
    assert slot.look is not None
    assert slot.refusal().retry_in == 59.0  # a look is under way, and promises nothing
    slot.send(AddressChecked(slot.look, listening=False))
    assert slot.refusal().retry_in == 1.0


@pytest.mark.requirement("BRK-6")
def test_an_admitted_call_waits_for_the_reconnect_that_is_planned_and_dials_nothing_itself() -> None:
    slot = connected()
    for _ in range(3):
        slot.send(RefreshFailed(slot.lease))
    permit = slot.permit()
    assert permit.connection is None
    assert slot.dial is None


@pytest.mark.requirement("BRK-6")
def test_a_probe_joins_the_dial_that_is_under_way() -> None:
    slot = tripped_and_down()
    slot.sleep()
    slot.advance(60.0)
    assert slot.dial is not None

    probe = slot.permit()

    assert probe.probe
    assert len(slot.dials) == 2
    slot.connect("read")
    assert slot.machine.breaker.state is BreakerState.CLOSED
    slot.settle(ready(slot, probe), Outcome.COMPLETED)
    assert slot.state() is State.CONNECTED


@pytest.mark.requirement("BRK-6", "LIFE-5")
def test_a_probe_does_not_wait_for_the_backoff_and_charges_no_budget() -> None:
    slot = connected()
    failing_calls(slot, 3)
    for _ in range(2):
        slot.sleep()
        slot.advance(27.0)
        slot.fail()
    slot.now = 60.0
    probe = slot.permit()
    assert probe.probe
    assert slot.dials[-1].cause is Cause.PROBE
    slot.fail()
    assert slot.machine.health(60.0).attempts == 2
    assert slot.machine.breaker.retry_in(60.0) == 60.0


@pytest.mark.requirement("BRK-6")
def test_a_probe_that_gives_up_waiting_leaves_its_place_to_the_next_on_the_same_dial() -> None:
    slot = tripped_and_down()
    slot.sleep()
    slot.advance(60.0)
    first = slot.permit()
    assert slot.refusal().reason is RefusalReason.PROBING

    slot.settle(first, Outcome.NEUTRAL)

    assert slot.permit().probe
    assert len(slot.dials) == 2


@pytest.mark.requirement("BRK-2", "BRK-6")
def test_a_dial_that_fails_under_a_probe_is_one_failure_and_one_trip() -> None:
    slot = tripped_and_down()
    slot.sleep()
    slot.advance(60.0)
    probe = slot.permit()
    slot.fail()
    assert slot.settle(probe, FAILED) == ()
    assert changes(slot) == [Tripped]  # the first was not announced: the helper told the breaker alone


@pytest.mark.requirement("BRK-4")
@pytest.mark.parametrize(("status", "neutral"), [("denied", False), ("permanent", True)])
def test_denials_and_bad_definitions_are_nothing_to_the_breaker(status: str, neutral: bool) -> None:
    slot = started()
    if status == "denied":
        slot.fail("denied")
    else:
        slot.fail("permanent", neutral=neutral)
    assert slot.machine.breaker.failures == 0


@pytest.mark.requirement("LIFE-8", "LIFE-19")
def test_a_parked_server_answers_calls_with_its_reason_until_the_cooldown_is_over() -> None:
    slot = started()
    slot.fail("permanent", "the command `foo` does not exist", neutral=True)

    refusal = slot.refusal()
    assert refusal.reason is RefusalReason.PERMANENTLY_FAILED
    assert slot.machine.health(slot.now).reason == "the command `foo` does not exist"
    assert refusal.retry_in == 60.0

    slot.advance(60.0)
    waiting = [slot.permit() for _ in range(3)]
    assert [dial.cause for dial in slot.dials] == [Cause.START, Cause.PROBE]
    slot.fail("permanent", "still not", neutral=True)
    assert [slot.settle(permit, Outcome.NEUTRAL) for permit in waiting] == [(), (), ()]
    assert slot.refusal().retry_in == 60.0


@pytest.mark.requirement("LIFE-8", "LIFE-19")
def test_a_call_brings_a_parked_server_back_once_the_breaker_allows_a_probe() -> None:
    slot = parked_after(tripped_and_down())
    refusal = slot.refusal()
    assert refusal.reason is RefusalReason.PERMANENTLY_FAILED
    assert refusal.retry_in == 30.0
    slot.now += 60.0  # the hub's own try is late

    probe = slot.permit()
    assert probe.probe
    assert slot.refusal().reason is RefusalReason.PERMANENTLY_FAILED
    slot.connect("read")
    slot.settle(ready(slot, probe), Outcome.COMPLETED)

    assert slot.state() is State.CONNECTED
    assert slot.machine.health(slot.now).attempts == 0


@pytest.mark.requirement("LIFE-8")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("disabling", RefusalReason.DISABLED),
        ("disabled", RefusalReason.DISABLED),
        ("closed", RefusalReason.STOPPED),
        ("not started", RefusalReason.STOPPED),
    ],
)
def test_a_server_that_cannot_be_used_says_so_itself(path: str, reason: RefusalReason) -> None:
    slot = SlotHarness() if path == "not started" else started()
    match path:
        case "disabling":
            slot.send(DisableRequested())
        case "disabled":
            slot.send(DisableRequested())
            slot.send(Closed(1))
        case "closed":
            slot.send(ShutdownRequested())
    refusal = slot.refusal()
    assert (refusal.reason, refusal.retry_in) == (reason, None)
