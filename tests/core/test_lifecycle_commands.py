from __future__ import annotations

import pytest

from holdfast.core.lifecycle.effects import (
    Cause,
    Close,
    Dial,
    Emit,
    Reject,
    RejectReason,
    RetryPlanned,
    Transition,
    WakeAt,
)
from holdfast.core.lifecycle.events import (
    Closed,
    ConfigChanged,
    DialSucceeded,
    DisableRequested,
    EnableRequested,
    LoginSucceeded,
    ReconnectRequested,
    RefreshFailed,
    RemoveRequested,
    ShutdownRequested,
    StartRequested,
    Tick,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from tests.core.world import World, connected, listing, started


def states(world: World) -> list[str]:
    return [record.new.value for record in world.records if isinstance(record, Transition)]


def planned(world: World) -> list[tuple[int, float]]:
    return [(record.attempt, record.delay) for record in world.records if isinstance(record, RetryPlanned)]


def parked() -> World:
    world = connected()
    world.send(TransportLost(world.lease, "it died"))
    world.fail_until_parked()
    return world


@pytest.mark.requirement("LIFE-8")
@pytest.mark.parametrize("fails", [1, 3])
def test_a_manual_reconnect_that_fails_charges_no_budget(fails: int) -> None:
    world = connected()
    for _ in range(fails):
        world.send(ReconnectRequested())
        assert world.dials[-1].cause is Cause.MANUAL
        world.fail()
    assert world.machine.health(world.now).attempts == 0
    assert world.fail_until_parked() == 5


@pytest.mark.requirement("LIFE-8")
def test_a_manual_reconnect_joins_the_dial_that_is_under_way_and_it_is_not_charged() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    dialing = world.machine.dialing
    assert world.send(ReconnectRequested()) == ()
    assert world.machine.dialing == dialing
    world.fail()
    assert world.machine.health(world.now).attempts == 0


@pytest.mark.requirement("LIFE-8")
def test_a_manual_reconnect_does_not_put_off_the_reconnect_that_was_planned() -> None:
    world = connected()
    for _ in range(3):
        world.send(RefreshFailed(world.lease))
    world.advance(0.4)
    world.send(ReconnectRequested())
    world.fail()
    assert planned(world)[-1] == (1, 0.6)


@pytest.mark.requirement("LIFE-7", "LIFE-8")
def test_a_manual_reconnect_of_a_connected_server_detaches_before_it_closes_and_dials() -> None:
    world = connected()
    effects = world.send(ReconnectRequested())
    assert [type(effect) for effect in effects] == [Emit, Close, Dial, WakeAt]
    assert world.tools == {"read", "write"}


@pytest.mark.requirement("LIFE-8")
def test_a_disabled_server_refuses_a_reconnect() -> None:
    world = connected()
    world.send(DisableRequested())
    assert world.send(ReconnectRequested()) == (Reject(ReconnectRequested(), RejectReason.DISABLED),)
    world.send(Closed(1))
    assert world.send(ReconnectRequested()) == (Reject(ReconnectRequested(), RejectReason.DISABLED),)


@pytest.mark.requirement("LIFE-8")
def test_toggling_twice_is_toggling_once() -> None:
    world = connected()
    assert world.send(EnableRequested()) == ()
    world.send(DisableRequested())
    assert world.send(DisableRequested()) == ()
    world.send(Closed(1))
    assert world.send(DisableRequested()) == ()
    assert states(world)[-2:] == ["disabling", "disabled"]


@pytest.mark.requirement("LIFE-8")
def test_enabling_resets_health_and_shows_the_last_tools_at_once() -> None:
    world = parked()
    world.send(Closed(1))
    world.send(DisableRequested())
    assert world.tools == set()

    world.send(EnableRequested())

    assert world.state() is State.CONNECTING
    assert world.machine.health(world.now).attempts == 0
    assert world.machine.health(world.now).reason == ""
    assert world.tools == {"read", "write"}


@pytest.mark.requirement("LIFE-7")
@pytest.mark.parametrize("error", ["", "it would not go"])
def test_disabling_ends_disabled_whether_the_close_succeeds_or_fails(error: str) -> None:
    world = connected()
    world.send(DisableRequested())
    assert world.machine.connection is None
    assert world.state() is State.DISABLING
    world.send(Closed(1, error))
    assert world.state() is State.DISABLED


@pytest.mark.requirement("LIFE-7")
def test_disabling_ends_disabled_when_the_close_hangs() -> None:
    world = connected()
    world.send(DisableRequested())
    world.advance(10.0)
    assert world.state() is State.DISABLED
    world.send(Closed(1))
    assert world.state() is State.DISABLED


@pytest.mark.requirement("LIFE-7")
def test_disabling_waits_for_every_connection_that_is_still_being_closed() -> None:
    world = connected()
    world.send(ReconnectRequested())
    world.connect("read")
    world.send(DisableRequested())
    world.send(Closed(2))
    assert world.state() is State.DISABLING
    world.send(Closed(1))
    assert world.state() is State.DISABLED


@pytest.mark.requirement("LIFE-7")
def test_a_server_with_nothing_to_close_is_disabled_at_once() -> None:
    world = World()
    world.send(DisableRequested())
    assert states(world) == ["disabling", "disabled"]


@pytest.mark.requirement("LIFE-7", "LIFE-8")
def test_enabling_while_disabling_ends_disabled_first_and_then_connects() -> None:
    world = connected()
    world.send(DisableRequested())
    world.send(EnableRequested())
    world.send(Closed(1))
    assert states(world)[-3:] == ["disabling", "disabled", "connecting"]


@pytest.mark.requirement("LIFE-8")
def test_the_last_of_several_toggles_wins() -> None:
    world = connected()
    for event in (DisableRequested(), EnableRequested(), DisableRequested()):
        world.send(event)
    world.send(Closed(1))
    assert world.state() is State.DISABLED


@pytest.mark.requirement("LIFE-13")
def test_disabling_during_a_dial_gives_the_dial_up() -> None:
    world = started()
    assert Close(1) in world.send(DisableRequested())
    world.send(Closed(1))
    assert world.send(DialSucceeded(1, listing(1))) == (Close(1),)
    assert world.state() is State.DISABLED


@pytest.mark.requirement("LIFE-13")
def test_nothing_revives_a_server_after_the_hub_has_closed() -> None:
    world = connected()
    assert {Close(1), WakeAt(None)} <= set(world.send(ShutdownRequested()))

    assert world.send(ShutdownRequested()) == ()
    assert world.send(DialSucceeded(2, listing(2))) == (Close(2),)
    assert world.send(Tick()) == ()
    for command in (ReconnectRequested(), EnableRequested(), StartRequested(), LoginSucceeded()):
        assert world.send(command) == (Reject(command, RejectReason.STOPPED),)
    assert world.state() is State.DISCONNECTED


@pytest.mark.requirement("LIFE-13")
def test_an_error_of_a_close_is_still_reported_after_the_hub_has_closed() -> None:
    world = connected()
    world.send(ShutdownRequested())
    (effect,) = world.send(Closed(1, "no"))
    assert isinstance(effect, Emit)


@pytest.mark.requirement("LIFE-4", "LIFE-20")
def test_a_removed_server_is_closed_and_its_tools_go() -> None:
    world = connected()
    assert Close(1) in world.send(RemoveRequested())
    assert world.tools == set()
    assert not world.catalog.servers


@pytest.mark.requirement("LIFE-20")
def test_a_changed_definition_is_dialed_anew_and_keeps_the_tools_until_it_has_listed() -> None:
    world = parked()
    effects = world.send(ConfigChanged(watchable=True))
    assert Dial(world.dials[-1].generation, Cause.CONFIG) in effects
    assert world.machine.health(world.now).attempts == 0
    assert world.tools == {"read", "write"}
    world.fail("permanent", refused=True)
    assert world.state() is State.PERMANENTLY_FAILED


@pytest.mark.requirement("LIFE-20")
def test_a_changed_definition_does_not_enable_a_disabled_server() -> None:
    world = World()
    world.send(DisableRequested())
    assert world.send(ConfigChanged()) == ()
    assert world.state() is State.DISABLED
