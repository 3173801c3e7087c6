from __future__ import annotations

import pytest

from holdfast.core.lifecycle.events import (
    Cause,
    Close,
    Closed,
    ConfigChanged,
    Dial,
    DialSucceeded,
    DisableRequested,
    Emit,
    EnableRequested,
    LoginSucceeded,
    ReconnectRequested,
    RefreshFailed,
    RemoveRequested,
    RetryPlanned,
    ShutdownRequested,
    StartRequested,
    Tick,
    Transition,
    TransportLost,
    WakeAt,
)
from holdfast.core.lifecycle.table import State
from holdfast.core.messages import for_user
from tests.core.slot_harness import SlotHarness, connected, listing, started


def states(slot: SlotHarness) -> list[str]:
    return [record.new.value for record in slot.records if isinstance(record, Transition)]


def planned(slot: SlotHarness) -> list[tuple[int, float]]:
    return [(record.attempt, record.delay) for record in slot.records if isinstance(record, RetryPlanned)]


def parked() -> SlotHarness:
    slot = connected()
    slot.send(TransportLost(slot.lease, "it died"))
    slot.fail_until_parked()
    return slot


@pytest.mark.requirement("LIFE-8")
@pytest.mark.parametrize("fails", [1, 3])
def test_a_manual_reconnect_that_fails_charges_no_budget(fails: int) -> None:
    slot = connected()
    for _ in range(fails):
        slot.send(ReconnectRequested())
        assert slot.dials[-1].cause is Cause.MANUAL
        slot.fail()
    assert slot.machine.health(slot.now).attempts == 0
    assert slot.fail_until_parked() == 5


@pytest.mark.requirement("LIFE-8")
def test_a_manual_reconnect_joins_the_dial_that_is_under_way_and_it_is_not_charged() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease))
    dialing = slot.machine.dialing
    assert slot.send(ReconnectRequested()) == ()
    assert slot.machine.dialing == dialing
    slot.fail()
    assert slot.machine.health(slot.now).attempts == 0


@pytest.mark.requirement("LIFE-8")
def test_a_manual_reconnect_does_not_put_off_the_reconnect_that_was_planned() -> None:
    slot = connected()
    for _ in range(3):
        slot.send(RefreshFailed(slot.lease))
    slot.advance(0.4)
    slot.send(ReconnectRequested())
    slot.fail()
    assert slot.machine.health(slot.now).retry_in == 0.6
    assert planned(slot) == [(1, 1.0)], "it was announced when it was planned"


@pytest.mark.requirement("LIFE-7", "LIFE-8")
def test_a_manual_reconnect_of_a_connected_server_detaches_before_it_closes_and_dials() -> None:
    slot = connected()
    effects = slot.send(ReconnectRequested())
    assert [type(effect) for effect in effects] == [Emit, Close, Dial, WakeAt]
    assert slot.tools == {"read", "write"}


@pytest.mark.requirement("LIFE-8")
def test_a_reconnect_does_not_enable_a_disabled_server() -> None:
    slot = connected()
    slot.send(DisableRequested())
    assert slot.send(ReconnectRequested()) == ()
    slot.send(Closed(1))
    assert slot.send(ReconnectRequested()) == ()


@pytest.mark.requirement("LIFE-8")
def test_toggling_twice_is_toggling_once() -> None:
    slot = connected()
    assert slot.send(EnableRequested()) == ()
    slot.send(DisableRequested())
    assert slot.send(DisableRequested()) == ()
    slot.send(Closed(1))
    assert slot.send(DisableRequested()) == ()
    assert states(slot)[-2:] == ["disabling", "disabled"]


@pytest.mark.requirement("LIFE-8")
def test_enabling_resets_health_and_shows_the_last_tools_at_once() -> None:
    slot = parked()
    slot.send(Closed(1))
    slot.send(DisableRequested())
    assert slot.tools == set()

    slot.send(EnableRequested())

    assert slot.state() is State.CONNECTING
    assert slot.machine.health(slot.now).attempts == 0
    assert slot.machine.health(slot.now).reason == ""
    assert slot.tools == {"read", "write"}


@pytest.mark.requirement("MSG-8", "LIFE-8")
def test_a_server_that_is_enabled_again_starts_up_and_was_not_lost() -> None:
    slot = connected()
    for event in (DisableRequested(), Closed(1), EnableRequested()):
        slot.send(event)
    assert slot.state() is State.CONNECTING
    assert not slot.machine.health(slot.now).lost
    slot.fail()
    assert slot.machine.health(slot.now).lost, "it was up in this run"


@pytest.mark.requirement("LIFE-7")
@pytest.mark.parametrize("error", ["", "it would not go"])
def test_disabling_ends_disabled_whether_the_close_succeeds_or_fails(error: str) -> None:
    slot = connected()
    slot.send(DisableRequested())
    assert slot.machine.connection is None
    assert slot.state() is State.DISABLING
    slot.send(Closed(1, error))
    assert slot.state() is State.DISABLED


@pytest.mark.requirement("LIFE-7")
def test_disabling_ends_disabled_when_the_close_hangs() -> None:
    slot = connected()
    slot.send(DisableRequested())
    slot.advance(10.0)
    assert slot.state() is State.DISABLED
    slot.send(Closed(1))
    assert slot.state() is State.DISABLED


@pytest.mark.requirement("LIFE-7")
def test_disabling_waits_for_every_connection_that_is_still_being_closed() -> None:
    slot = connected()
    slot.send(ReconnectRequested())
    slot.connect("read")
    slot.send(DisableRequested())
    slot.send(Closed(2))
    assert slot.state() is State.DISABLING
    slot.send(Closed(1))
    assert slot.state() is State.DISABLED


@pytest.mark.requirement("LIFE-7")
def test_a_server_with_nothing_to_close_is_disabled_at_once() -> None:
    slot = SlotHarness()
    slot.send(DisableRequested())
    assert states(slot) == ["disabling", "disabled"]


@pytest.mark.requirement("LIFE-7", "LIFE-8")
def test_enabling_while_disabling_ends_disabled_first_and_then_connects() -> None:
    slot = connected()
    slot.send(DisableRequested())
    slot.send(EnableRequested())
    slot.send(Closed(1))
    assert states(slot)[-3:] == ["disabling", "disabled", "connecting"]


@pytest.mark.requirement("LIFE-8")
def test_the_last_of_several_toggles_wins() -> None:
    slot = connected()
    for event in (DisableRequested(), EnableRequested(), DisableRequested()):
        slot.send(event)
    slot.send(Closed(1))
    assert slot.state() is State.DISABLED


@pytest.mark.requirement("LIFE-13")
def test_disabling_during_a_dial_gives_the_dial_up() -> None:
    slot = started()
    assert Close(1) in slot.send(DisableRequested())
    slot.send(Closed(1))
    assert slot.send(DialSucceeded(1, listing(1))) == (Close(1),)
    assert slot.state() is State.DISABLED


@pytest.mark.requirement("LIFE-13")
def test_nothing_revives_a_server_after_the_hub_has_closed() -> None:
    slot = connected()
    assert {Close(1), WakeAt(None)} <= set(slot.send(ShutdownRequested()))

    assert slot.send(ShutdownRequested()) == ()
    assert slot.send(DialSucceeded(2, listing(2))) == (Close(2),)
    assert slot.send(Tick()) == ()
    for command in (ReconnectRequested(), EnableRequested(), StartRequested(), LoginSucceeded()):
        assert slot.send(command) == ()
    assert slot.state() is State.DISCONNECTED


@pytest.mark.requirement("LIFE-13")
def test_an_error_of_a_close_is_still_reported_after_the_hub_has_closed() -> None:
    slot = connected()
    slot.send(ShutdownRequested())
    (effect,) = slot.send(Closed(1, "no"))
    assert isinstance(effect, Emit)


@pytest.mark.requirement("LIFE-4", "LIFE-20")
def test_a_removed_server_is_closed_and_its_tools_go() -> None:
    slot = connected()
    assert Close(1) in slot.send(RemoveRequested())
    assert slot.tools == set()
    assert not slot.catalog.servers


@pytest.mark.requirement("LIFE-20")
def test_a_changed_definition_is_dialed_again_and_keeps_the_tools_until_it_has_listed() -> None:
    slot = parked()
    effects = slot.send(ConfigChanged(watchable=True))
    assert Dial(slot.dials[-1].generation, Cause.CONFIG) in effects
    assert slot.machine.health(slot.now).attempts == 0
    assert slot.tools == {"read", "write"}
    slot.fail("permanent", unreachable=True)
    assert slot.state() is State.PERMANENTLY_FAILED


@pytest.mark.requirement("LIFE-20")
def test_a_changed_definition_does_not_enable_a_disabled_server() -> None:
    slot = SlotHarness()
    slot.send(DisableRequested())
    assert slot.send(ConfigChanged()) == ()
    assert slot.state() is State.DISABLED


@pytest.mark.requirement("MSG-8")
def test_a_lost_server_whose_definition_is_edited_is_starting_up_again() -> None:
    slot = connected()
    slot.send(TransportLost(1, "its process ended"))
    lost = slot.machine.health(slot.now).failure
    assert lost is not None
    assert "was lost (its process ended)" in for_user(lost)
    slot.fail("transient")
    slot.send(ConfigChanged())
    edited = slot.machine.health(slot.now).failure
    assert edited is not None
    assert "is starting up" in for_user(edited)
