from __future__ import annotations

import pytest

from holdfast.core.lifecycle.effects import (
    Cause,
    Close,
    Dial,
)
from holdfast.core.lifecycle.events import (
    ConfigChanged,
    LoginSucceeded,
    ReconnectRequested,
    RefreshFailed,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from holdfast.core.lifecycle.timing import LifecyclePolicy
from tests.core.slot_harness import SlotHarness, connected, started


def parked() -> SlotHarness:
    slot = connected()
    slot.send(TransportLost(slot.lease, "it died"))
    slot.fail_until_parked()
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
        slot.fail()
        assert slot.state() is State.PERMANENTLY_FAILED
    assert slot.now - since == 900.0


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


@pytest.mark.requirement("LIFE-2", "LIFE-23")
def test_a_denied_load_makes_the_server_denied_and_nothing_is_planned() -> None:
    slot = started()
    slot.fail("denied", "401")
    assert slot.state() is State.DENIED
    assert slot.wake_at is None


@pytest.mark.requirement("LIFE-5", "LIFE-23")
def test_a_reconnect_that_is_denied_uses_no_budget() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease))
    slot.fail("denied")
    assert slot.state() is State.DENIED
    assert slot.machine.health(0.0).attempts == 0


@pytest.mark.requirement("LIFE-23")
def test_a_refresh_that_is_denied_makes_the_server_denied_and_keeps_its_tools() -> None:
    slot = connected()
    effects = slot.send(RefreshFailed(slot.lease, "denied", "403"))
    assert slot.state() is State.DENIED
    assert Close(1) in effects
    assert slot.tools == {"read", "write"}


@pytest.mark.requirement("LIFE-19")
def test_a_login_brings_a_denied_server_back() -> None:
    slot = started()
    slot.fail("denied")
    slot.send(LoginSucceeded())
    slot.connect("read")
    assert slot.state() is State.CONNECTED


def test_a_login_during_a_dial_is_followed_by_a_second_dial_if_the_first_is_denied() -> None:
    slot = started()
    slot.send(LoginSucceeded())
    assert slot.machine.dialing == 1
    slot.fail("denied", "the old token")
    assert slot.dials[-1] == Dial(2, Cause.LOGIN)
    slot.fail("denied", "the new one is no better")
    assert slot.state() is State.DENIED
