from __future__ import annotations

import pytest

from holdfast.core.lifecycle.effects import (
    Cause,
    Close,
    CloseFailed,
    Dial,
    Emit,
    Reject,
    RejectReason,
    RetryPlanned,
    Transition,
    WakeAt,
)
from holdfast.core.lifecycle.events import (
    CallFailed,
    CallTimedOut,
    Closed,
    ConfigChanged,
    DialSucceeded,
    DisableRequested,
    EnableRequested,
    LivenessConfirmed,
    LivenessFailed,
    LoginSucceeded,
    ReconnectRequested,
    RefreshFailed,
    RefreshSucceeded,
    RemoveRequested,
    SessionExpired,
    ShutdownRequested,
    StartRequested,
    Tick,
    TransportLost,
)
from holdfast.core.lifecycle.policy import LifecyclePolicy
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


# The budget.


@pytest.mark.requirement("LIFE-5")
def test_three_failures_in_a_row_of_a_connection_that_stands_start_a_reconnect() -> None:
    world = connected()
    world.send(RefreshFailed(world.lease))
    world.send(CallFailed(world.lease))
    assert world.state() is State.CONNECTED

    effects = world.send(RefreshFailed(world.lease, reason="no answer"))

    assert world.state() is State.RECONNECTING
    assert Close(1) in effects
    assert world.dial is None
    assert planned(world) == [(1, 1.0)]


@pytest.mark.requirement("LIFE-5")
def test_failures_far_apart_still_count_in_a_row() -> None:
    world = connected(LifecyclePolicy(refresh=None))
    for _ in range(3):
        world.advance(3600.0)
        world.send(CallFailed(world.lease))
    assert world.state() is State.RECONNECTING


@pytest.mark.requirement("LIFE-5")
def test_a_listing_that_succeeds_ends_the_row_of_failures() -> None:
    world = connected()
    for _ in range(5):
        world.send(RefreshFailed(world.lease))
        world.send(CallFailed(world.lease))
        world.send(RefreshSucceeded(world.lease))
    assert world.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-5")
def test_the_fifth_reconnect_that_fails_parks_the_server() -> None:
    world = connected()
    for _ in range(3):
        world.send(RefreshFailed(world.lease))

    assert world.fail_until_parked() == 5
    assert planned(world) == [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 16.0)]
    assert world.now == 31.0
    assert world.machine.health(world.now).attempts == 5


@pytest.mark.requirement("LIFE-5")
def test_chance_only_ever_shortens_a_wait() -> None:
    world = connected()
    world.send(RefreshFailed(world.lease))
    world.send(RefreshFailed(world.lease))
    world.send(RefreshFailed(world.lease), chance=0.5)
    assert planned(world) == [(1, 0.9)]


@pytest.mark.requirement("LIFE-5")
def test_the_wait_that_a_server_asks_for_is_honoured_within_reason() -> None:
    world = started()
    world.fail(retry_after=3.0)
    world.sleep()
    world.fail(retry_after=900.0)
    assert planned(world) == [(1, 3.0), (2, 5.0)]


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_the_budget_goes_on_across_reconnects_until_a_connection_has_stood() -> None:
    world = connected()
    deaths = 0
    while world.state() is not State.PERMANENTLY_FAILED:
        world.send(TransportLost(world.lease))
        deaths += 1
        if world.state() is State.RECONNECTING:
            world.sleep()
            world.connect("read")
    assert deaths == 6
    assert planned(world) == [(2, 2.0), (3, 4.0), (4, 8.0), (5, 16.0)]


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_thirty_seconds_of_standing_make_the_budget_whole() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.fail()
    world.sleep()
    world.connect("read")

    world.advance(29.9)
    assert world.machine.health(world.now).attempts == 1
    world.advance(0.1)
    assert world.machine.health(world.now).attempts == 0


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_a_completed_call_makes_the_budget_whole_at_once() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.fail()
    world.sleep()
    world.connect("read")
    world.complete_call()
    assert world.machine.health(world.now).attempts == 0


@pytest.mark.requirement("LIFE-5")
def test_a_cold_start_that_fails_transiently_is_retried_within_the_budget() -> None:
    world = started()
    world.fail()
    assert world.state() is State.RECONNECTING
    assert world.fail_until_parked() == 5


@pytest.mark.requirement("LIFE-5")
def test_a_close_that_fails_charges_no_budget_and_is_reported() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    effects = world.send(Closed(1, "the process would not die"))

    assert Emit(CloseFailed(server="files", generation=1, error="the process would not die", at=0.0)) in effects
    assert world.machine.health(world.now).attempts == 0
    assert world.state() is State.RECONNECTING


# A dead transport.


@pytest.mark.requirement("LIFE-6", "LIFE-7")
def test_a_dead_transport_is_detached_closed_and_dialed_again_in_one_turn() -> None:
    world = connected()
    effects = world.send(TransportLost(world.lease, "exit code 1"))

    assert [effect for effect in effects if isinstance(effect, Close | Dial)] == [
        Close(1),
        Dial(2, Cause.RECONNECT),
    ]
    assert world.machine.connection is None
    assert world.state() is State.RECONNECTING


@pytest.mark.requirement("LIFE-6", "BRK-10")
def test_a_second_death_within_thirty_seconds_waits_for_the_backoff() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.connect("read")
    world.complete_call()
    world.advance(29.0)
    world.send(TransportLost(world.lease))
    assert world.dial is None
    assert planned(world) == [(1, 1.0)]

    world.sleep()
    world.connect("read")
    world.advance(1.0)
    world.send(TransportLost(world.lease))
    assert world.dial is not None


@pytest.mark.requirement("LIFE-3")
def test_a_late_death_of_an_old_connection_does_not_touch_the_new_one() -> None:
    world = connected()
    world.send(ReconnectRequested())
    world.connect("read")
    assert world.send(TransportLost(1)) == ()
    assert world.machine.connection == 2


@pytest.mark.requirement("LIFE-3", "LIFE-4")
def test_a_late_listing_of_an_old_connection_is_not_published() -> None:
    world = connected()
    world.send(ReconnectRequested())
    world.connect("read", "write", "new")
    world.send(RefreshSucceeded(1, listing(1, "old")))
    assert world.tools == {"read", "write", "new"}


@pytest.mark.requirement("LIFE-3", "LIFE-13")
def test_a_dial_that_succeeds_too_late_is_closed_and_used_by_nobody() -> None:
    world = started()
    world.send(ConfigChanged())
    assert world.send(DialSucceeded(1, listing(1, "old"))) == (Close(1),)
    assert world.machine.dialing == 2
    assert world.tools == set()


# Permanent, parked, denied.


@pytest.mark.requirement("LIFE-19", "LIFE-22")
def test_a_permanent_failure_of_a_server_that_never_connected_parks_it_at_once() -> None:
    world = started()
    world.fail("permanent", "there is no such command")
    assert world.state() is State.PERMANENTLY_FAILED
    assert world.machine.health(0.0).reason == "there is no such command"
    assert world.machine.health(0.0).attempts == 0


@pytest.mark.requirement("LIFE-5")
def test_a_permanent_failure_of_a_server_that_had_connected_uses_the_budget() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.fail("permanent", "404")
    assert world.state() is State.RECONNECTING


@pytest.mark.requirement("LIFE-19")
def test_a_parked_server_is_tried_by_itself_every_five_minutes() -> None:
    world = parked()
    since = world.now
    for _ in range(3):
        world.sleep()
        assert world.dials[-1].cause is Cause.SELF_PROBE
        world.fail()
        assert world.state() is State.PERMANENTLY_FAILED
    assert world.now - since == 900.0


@pytest.mark.requirement("LIFE-19")
def test_the_self_probe_brings_a_parked_server_back() -> None:
    world = parked()
    world.sleep()
    world.connect("read")
    assert world.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-19")
def test_the_self_probe_can_be_off() -> None:
    world = started(LifecyclePolicy(self_probe=None))
    world.fail("permanent")
    assert world.wake_at is None


@pytest.mark.requirement("LIFE-19")
@pytest.mark.parametrize("event", [ReconnectRequested(), LoginSucceeded(), ConfigChanged()])
def test_a_parked_server_is_brought_back_by_a_person(
    event: ReconnectRequested | LoginSucceeded | ConfigChanged,
) -> None:
    world = parked()
    world.send(event)
    assert world.state() is State.CONNECTING
    world.connect("read")
    assert world.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-5", "BRK-10")
def test_a_parked_server_that_comes_back_and_dies_at_once_is_parked_again() -> None:
    world = parked()
    world.send(ReconnectRequested())
    world.connect("read")
    world.send(TransportLost(world.lease))
    assert world.state() is State.PERMANENTLY_FAILED


@pytest.mark.requirement("LIFE-2", "LIFE-23")
def test_a_denied_load_makes_the_server_denied_and_nothing_is_planned() -> None:
    world = started()
    world.fail("denied", "401")
    assert world.state() is State.DENIED
    assert world.wake_at is None


@pytest.mark.requirement("LIFE-5", "LIFE-23")
def test_a_reconnect_that_is_denied_uses_no_budget() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.fail("denied")
    assert world.state() is State.DENIED
    assert world.machine.health(0.0).attempts == 0


@pytest.mark.requirement("LIFE-23")
def test_a_refresh_that_is_denied_makes_the_server_denied_and_keeps_its_tools() -> None:
    world = connected()
    effects = world.send(RefreshFailed(world.lease, "denied", "403"))
    assert world.state() is State.DENIED
    assert Close(1) in effects
    assert world.tools == {"read", "write"}


@pytest.mark.requirement("LIFE-19")
def test_a_login_brings_a_denied_server_back() -> None:
    world = started()
    world.fail("denied")
    world.send(LoginSucceeded())
    world.connect("read")
    assert world.state() is State.CONNECTED


def test_a_login_during_a_dial_is_followed_by_a_second_dial_if_the_first_is_denied() -> None:
    world = started()
    world.send(LoginSucceeded())
    assert world.machine.dialing == 1
    world.fail("denied", "the old token")
    assert world.dials[-1] == Dial(2, Cause.LOGIN)
    world.fail("denied", "the new one is no better")
    assert world.state() is State.DENIED


# Commands.


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


# Sessions and liveness.


@pytest.mark.requirement("LIFE-17")
def test_an_expired_session_is_renewed_at_once_and_is_no_failure() -> None:
    world = connected()
    effects = world.send(SessionExpired(world.lease))
    assert [effect for effect in effects if isinstance(effect, Close | Dial)] == [
        Close(1),
        Dial(2, Cause.SESSION),
    ]
    assert world.send(SessionExpired(1)) == ()
    world.connect("read")
    assert world.machine.breaker.failures == 0
    assert world.machine.health(0.0).attempts == 0


@pytest.mark.requirement("LIFE-17")
def test_a_session_that_expires_as_soon_as_it_was_renewed_is_a_failure() -> None:
    world = connected()
    world.send(SessionExpired(world.lease))
    world.connect("read")
    world.send(SessionExpired(world.lease))
    assert world.dials[-1].cause is Cause.RECONNECT
    assert world.machine.breaker.failures == 1


@pytest.mark.requirement("LIFE-17")
def test_a_session_that_served_a_call_may_expire_again() -> None:
    world = connected()
    for _ in range(10):
        world.send(SessionExpired(world.lease))
        world.connect("read")
        world.complete_call()
    assert {dial.cause for dial in world.dials[1:]} == {Cause.SESSION}


@pytest.mark.requirement("LIFE-10")
def test_many_slow_calls_are_one_liveness_check_and_no_failure_if_it_is_answered() -> None:
    world = connected()
    effects = [effect for _ in range(5) for effect in world.send(CallTimedOut(world.lease))]
    assert len(effects) == 1
    world.send(LivenessConfirmed(world.lease))
    assert world.machine.health(0.0).failures == 0
    assert world.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-10")
def test_liveness_checks_that_fail_count_like_any_failure() -> None:
    world = connected()
    for _ in range(3):
        world.send(CallTimedOut(world.lease))
        world.send(LivenessFailed(world.lease, "no answer"))
    assert world.state() is State.RECONNECTING


def test_its_repr_says_how_it_stands() -> None:
    world = connected()
    world.send(TransportLost(world.lease))
    world.fail()
    assert repr(world.machine.life) == "<Lifecycle 'files' reconnecting attempt=1 gen=2>"
