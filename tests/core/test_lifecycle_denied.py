"""Denied is a state of its own: asked again at the right times, never hammered, and not for ever."""

from __future__ import annotations

import pytest

from holdfast.core.breaker import Outcome, Permit, Refusal, RefusalReason
from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.events import (
    AccessChanged,
    Cause,
    Close,
    ConfigChanged,
    Dial,
    Emit,
    LoginSucceeded,
    ReconnectRequested,
    RefreshFailed,
    RefreshNow,
    RefreshSucceeded,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from tests.core.slot_harness import SERVER, SlotHarness, connected, started


def denied(policy: LifecyclePolicy | None = None, *, unconfirmed: bool = False) -> SlotHarness:
    slot = started(policy)
    slot.fail("denied", "403", unconfirmed=unconfirmed)
    assert slot.state() is State.DENIED
    return slot


def asked(slot: SlotHarness, seconds: float, *, unconfirmed: bool = False, calls: bool = False) -> list[float]:
    """Every dial is denied, for so long; when the server was dialed. ``calls``: a call tries each second."""
    at: list[float] = []
    until = slot.now + seconds
    while slot.now < until:
        if calls and isinstance(permit := slot.call(), Permit):
            assert slot.dial is not None
        slot.advance(min(1.0, until - slot.now))
        if slot.dial is not None:
            at.append(slot.now)
            slot.fail("denied", "403", unconfirmed=unconfirmed)
            if calls:
                for permit in list(slot.permits):
                    slot.settle(permit, Outcome.NEUTRAL)
    return at


@pytest.mark.requirement("LIFE-24")
def test_a_denial_that_states_no_decision_is_asked_again_after_two_ten_and_thirty_seconds() -> None:
    slot = denied(unconfirmed=True)
    assert slot.machine.health(0.0).unconfirmed
    assert asked(slot, 61.0, unconfirmed=True) == [2.0, 10.0, 30.0]
    health = slot.machine.health(slot.now)
    assert not health.unconfirmed
    assert health.retry_in == 330.0 - 61.0


@pytest.mark.requirement("LIFE-24")
def test_a_short_outage_of_the_authorization_check_is_over_at_the_next_question() -> None:
    slot = denied(unconfirmed=True)
    asked(slot, 4.0, unconfirmed=True)
    slot.sleep()
    assert slot.now == 10.0
    slot.connect("read")
    assert slot.state() is State.CONNECTED
    slot.send(TransportLost(slot.lease))
    slot.fail("denied", unconfirmed=True)
    assert slot.machine.health(slot.now).retry_in == 2.0  # a new denial is asked again as soon as the first


@pytest.mark.requirement("LIFE-24", "LIFE-19")
def test_a_decided_denial_is_asked_again_by_the_slow_self_probe() -> None:
    slot = denied()
    assert asked(slot, 700.0) == [300.0, 600.0]
    assert slot.dials[-1].cause is Cause.SELF_PROBE


@pytest.mark.requirement("LIFE-24")
@pytest.mark.parametrize(("seconds", "questions"), [(9.0, [2.0, 13.0, 30.0]), (15.0, [2.0, 19.0]), (90.0, [2.0])])
def test_a_denial_after_the_last_of_these_times_is_a_decision(seconds: float, questions: list[float]) -> None:
    slot = denied(unconfirmed=True)
    for at in questions:
        slot.sleep()
        assert (slot.now, slot.machine.dialing is None) == (at, False)
        slot.advance(seconds)
        slot.fail("denied", "403", unconfirmed=True)
    assert not slot.machine.health(slot.now).unconfirmed
    assert slot.machine.health(slot.now).retry_in == 300.0


@pytest.mark.requirement("LIFE-24")
def test_another_failure_begins_the_times_of_a_denial_again_and_gives_no_further_question() -> None:
    slot = denied(unconfirmed=True)
    slot.sleep()
    slot.fail(reason="HTTP 503", answers=True)
    slot.advance(3_600.0)
    slot.send(ReconnectRequested())
    slot.fail("denied", "403", unconfirmed=True)
    began = slot.now
    assert [at - began for at in asked(slot, 61.0, unconfirmed=True)] == [10.0, 30.0]
    assert not slot.machine.health(slot.now).unconfirmed


@pytest.mark.requirement("LIFE-24")
def test_a_decided_denial_is_not_asked_soon_again_though_a_later_one_states_no_decision() -> None:
    slot = denied()
    assert asked(slot, 700.0, unconfirmed=True) == [300.0, 600.0]
    assert not slot.machine.health(slot.now).unconfirmed


def test_the_self_probe_of_a_denied_server_can_be_off_and_keeps_the_cooldown() -> None:
    assert denied(LifecyclePolicy(self_probe=None)).wake_at is None
    assert denied(LifecyclePolicy(self_probe=5.0)).wake_at == 60.0


@pytest.mark.requirement("LIFE-24")
def test_a_users_call_asks_a_denied_server_once_per_cooldown() -> None:
    slot = denied()
    refusal = slot.refusal()
    assert (refusal.reason, refusal.retry_in) == (RefusalReason.DENIED, 60.0)
    failure = slot.machine.health(20.0).failure
    assert failure is not None
    assert (failure.retry_in, failure.call_asks) == (40.0, False)
    failure = slot.machine.health(80.0).failure
    assert failure is not None
    assert failure.call_asks
    times = asked(slot, 290.0, calls=True)
    assert len(times) == 4
    assert all(later - earlier >= 60.0 for earlier, later in zip([0.0, *times], times, strict=False))


@pytest.mark.requirement("LIFE-24")
@pytest.mark.parametrize("unconfirmed", [True, False])
def test_a_real_denial_sees_few_requests_in_its_first_minute(unconfirmed: bool) -> None:
    slot = denied(unconfirmed=unconfirmed)
    asked(slot, 59.0, unconfirmed=unconfirmed, calls=True)
    assert len(slot.dials) <= 4


@pytest.mark.requirement("LIFE-24")
def test_a_call_that_finds_the_denial_gone_brings_the_server_back() -> None:
    slot = denied()
    slot.advance(60.0)
    permit = slot.permit()
    assert slot.dials[-1].cause is Cause.PROBE
    slot.connect("read")
    permit.connection = slot.lease
    slot.settle(permit, Outcome.COMPLETED)
    assert slot.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-24")
@pytest.mark.parametrize("event", [LoginSucceeded(), ReconnectRequested(), ConfigChanged()])
def test_a_login_a_reconnect_and_a_config_change_ask_a_denied_server_at_once(
    event: LoginSucceeded | ReconnectRequested | ConfigChanged,
) -> None:
    slot = denied()
    slot.send(event)
    slot.connect("read")
    assert slot.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-24")
def test_reconnects_do_not_restart_the_questions_of_a_denial_without_a_decision() -> None:
    slot = denied(unconfirmed=True)
    asked(slot, 40.0, unconfirmed=True)
    for _ in range(5):
        slot.send(ReconnectRequested())
        slot.fail("denied", unconfirmed=True)
    assert not slot.machine.health(slot.now).unconfirmed
    assert slot.machine.health(slot.now).retry_in == 300.0


@pytest.mark.requirement("LIFE-24", "LIFE-25")
def test_a_denied_server_that_fails_in_another_way_is_retried_like_any_other() -> None:
    slot = denied(unconfirmed=True)
    slot.sleep()
    slot.fail(reason="HTTP 503", answers=True)
    assert slot.state() is State.RECONNECTING
    assert slot.machine.health(slot.now).status == "transient"


@pytest.mark.requirement("LIFE-5", "LIFE-23")
def test_a_reconnect_that_is_denied_uses_no_budget() -> None:
    slot = connected()
    slot.send(TransportLost(slot.lease))
    slot.fail("denied")
    assert slot.state() is State.DENIED
    assert slot.machine.health(0.0).attempts == 0


@pytest.mark.requirement("LIFE-23")
def test_one_denied_listing_is_that_requests_denial_and_the_third_in_a_row_makes_the_server_denied() -> None:
    slot = connected()
    for _ in range(2):
        slot.send(RefreshFailed(slot.lease, "denied", "403"))
    health = slot.machine.health(0.0)
    assert (health.state, health.failures, health.status) == (State.CONNECTED, 0, "available")

    effects = slot.send(RefreshFailed(slot.lease, "denied", "403"))
    assert slot.state() is State.DENIED
    assert Close(1) in effects
    assert slot.tools == {"read", "write"}


@pytest.mark.requirement("LIFE-23")
def test_a_listing_that_succeeds_ends_the_row_of_denied_ones() -> None:
    slot = connected()
    for _ in range(5):
        for _ in range(2):
            slot.send(RefreshFailed(slot.lease, "denied", "403"))
        slot.send(RefreshSucceeded(slot.lease))
    assert slot.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-23")
def test_denied_calls_ask_for_a_listing_at_most_once_in_five_seconds() -> None:
    slot = connected()
    slot.advance(20.0)
    listed: list[float] = []
    for _ in range(120):
        slot.settle(slot.permit(), Outcome.DENIED)
        effects = slot.advance(0.1)
        if any(isinstance(effect, RefreshNow) for effect in effects):
            listed.append(round(slot.now, 1))
            slot.send(RefreshSucceeded(slot.lease))
    assert listed == [20.1, 25.0, 30.0]
    assert slot.state() is State.CONNECTED


@pytest.mark.requirement("LIFE-23")
def test_a_server_that_denies_every_call_and_every_listing_is_denied_soon() -> None:
    slot = connected()
    slot.advance(20.0)
    sent = listed = 0
    while slot.state() is State.CONNECTED:
        decision = slot.call()
        if isinstance(decision, Permit):
            sent += 1
            slot.settle(decision, Outcome.DENIED)
        if any(isinstance(effect, RefreshNow) for effect in slot.advance(0.1)):
            listed += 1
            slot.send(RefreshFailed(slot.lease, "denied", "403", unconfirmed=True))
    assert slot.state() is State.DENIED
    assert slot.now <= 25.5
    assert (sent, listed) == (1, 3)
    assert isinstance(slot.call(), Refusal)


@pytest.mark.requirement("LIFE-23", "MSG-9")
def test_calls_are_refused_and_the_status_is_denied_once_a_call_and_the_listing_after_it_were_denied() -> None:
    slot = connected()
    slot.advance(20.0)
    slot.settle(slot.permit(), Outcome.DENIED)
    assert slot.machine.health(slot.now).status == "available"
    slot.advance(0.0)
    told = slot.send(RefreshFailed(slot.lease, "denied", "HTTP 403", unconfirmed=True))
    health = slot.machine.health(slot.now)
    assert (health.state, health.status, health.reason) == (State.CONNECTED, "denied", "HTTP 403")
    assert health.unconfirmed
    assert health.next_try == 2.0
    refusal = slot.call()
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.retry_in) == (RefusalReason.DENIED, 2.0)
    shut = AccessChanged(server=SERVER, denied=True, reason="HTTP 403", at=slot.now)
    assert [effect.record for effect in told if isinstance(effect, Emit)] == [shut]

    assert RefreshNow(slot.lease) in slot.advance(2.0)
    told = slot.send(RefreshSucceeded(slot.lease))
    assert slot.machine.health(slot.now).status == "available"
    assert isinstance(slot.call(), Permit)
    opened = AccessChanged(server=SERVER, denied=False, reason="", at=slot.now)
    assert opened in [effect.record for effect in told if isinstance(effect, Emit)]


@pytest.mark.requirement("LIFE-23")
@pytest.mark.parametrize("proven", [True, False])
def test_a_denied_listing_shuts_out_no_call_while_calls_complete(proven: bool) -> None:
    slot = connected()
    slot.advance(20.0)
    if proven:
        slot.complete_call()
    slot.settle(slot.permit(), Outcome.DENIED)
    slot.settle(slot.permit(), Outcome.COMPLETED)
    slot.send(RefreshFailed(slot.lease, "denied", "403"))
    assert slot.machine.health(slot.now).status == "available"
    assert isinstance(slot.call(), Permit)


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
