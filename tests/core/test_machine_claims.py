"""The right to probe among replicas: a server that failed is tried by the replica that has it, and by no other."""

from __future__ import annotations

import math

import pytest

from holdfast.core.breaker import BreakerPolicy, Outcome, Refusal, RefusalReason
from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.events import (
    ClaimExpired,
    ClaimGranted,
    ClaimProbe,
    DisableRequested,
    Effect,
    PeerPublished,
    PeerRecovered,
    PeerTripped,
    ReconnectRequested,
    RefreshNow,
    ReleaseProbe,
    ShareEvidence,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from tests.core.slot_harness import SlotHarness, connected, started

pytestmark = pytest.mark.requirement("FLEET-4")

SHARING = LifecyclePolicy(claims=True, jitter=0.0)


def asked_for(effects: tuple[Effect, ...]) -> list[float | None]:
    """The times for which the right to probe was asked."""
    return [effect.at for effect in effects if isinstance(effect, ClaimProbe)]


def told(effects: tuple[Effect, ...]) -> list[object]:
    """What the other replicas are told."""
    return [effect.evidence for effect in effects if isinstance(effect, ShareEvidence)]


def denied() -> SlotHarness:
    """A slot whose server denied access, at a time when a call may ask again."""
    slot = started(SHARING)
    slot.fail("denied")
    slot.now += SHARING.parked
    return slot


def test_a_server_that_failed_is_tried_again_with_the_right_to_probe_alone() -> None:
    slot = started(SHARING)
    effects = slot.fail("transient", "no luck")
    assert asked_for(effects) == [SHARING.backoff[0]]
    slot.advance(30.0)
    assert len(slot.dials) == 1, "its time has come, and the right has not"
    slot.send(ClaimGranted(until=slot.now + 10.0))
    assert len(slot.dials) == 2


def test_a_right_that_has_ended_allows_no_dial() -> None:
    slot = started(SHARING)
    slot.fail()
    slot.advance(30.0)
    slot.send(ClaimGranted(until=slot.now))
    assert len(slot.dials) == 1
    slot.send(ClaimExpired())
    slot.send(ClaimGranted(until=slot.now + 10.0))
    assert len(slot.dials) == 2


def test_a_right_that_ends_before_the_time_of_the_try_allows_none() -> None:
    slot = started(SHARING)
    slot.fail()
    slot.send(ClaimGranted(until=SHARING.backoff[0] / 2))
    slot.advance(30.0)
    assert len(slot.dials) == 1


def test_the_right_is_given_back_with_the_time_of_the_next_try() -> None:
    slot = started(SHARING)
    slot.fail()
    slot.send(ClaimGranted(until=math.inf))
    slot.advance(SHARING.backoff[0])
    effects = slot.fail()
    assert [one.delay for one in effects if isinstance(one, ReleaseProbe)] == [SHARING.backoff[1]]
    assert asked_for(effects) == [slot.now + SHARING.backoff[1]]


def test_a_try_tells_the_others_how_it_ended() -> None:
    slot = started(SHARING)
    (failed,) = told(slot.fail("transient", "no luck"))
    assert isinstance(failed, PeerTripped)
    assert (failed.reason, failed.retry_in, failed.parked) == ("no luck", SHARING.backoff[0], False)
    slot.advance(30.0)
    slot.send(ClaimGranted(until=slot.now + 10.0))
    assert told(slot.connect("read")) == [PeerRecovered()]


def test_a_call_without_the_right_is_refused_and_with_it_tries() -> None:
    slot = denied()
    refused = slot.refusal()
    assert refused.reason is RefusalReason.DENIED
    assert len(slot.dials) == 1
    slot.send(ClaimGranted(until=slot.now + 10.0))
    slot.permit()
    assert len(slot.dials) == 2


def test_a_call_joins_a_try_that_is_under_way_also_when_the_right_has_ended() -> None:
    slot = denied()
    slot.send(ClaimGranted(until=slot.now + 10.0))
    slot.permit()
    slot.send(ClaimExpired())
    slot.permit()
    assert len(slot.dials) == 2


def test_a_server_that_is_well_needs_no_right() -> None:
    slot = connected(SHARING)
    assert asked_for(slot.settle(slot.permit(), Outcome.COMPLETED)) == []
    slot.send(TransportLost(slot.lease, "gone"))
    slot.fail()
    assert asked_for(slot.send(DisableRequested())) == [None], "a disabled server is not tried"


def test_a_failed_try_of_a_peer_takes_the_place_of_the_next_try_here() -> None:
    slot = started(SHARING)
    slot.fail()
    assert asked_for(slot.send(PeerTripped(retry_in=20.0, attempts=3))) == [slot.now + 20.0]
    health = slot.machine.health(slot.now)
    assert (health.attempts, health.retry_in) == (3, 20.0)
    slot.send(PeerTripped(retry_in=5.0, attempts=1))
    assert slot.machine.health(slot.now).attempts == 3, "a peer gives no tries back"
    slot.send(PeerTripped(retry_in=5.0, attempts=99))
    assert slot.machine.health(slot.now).attempts == len(SHARING.backoff) - 1, "the last try is made here"


def test_a_peer_that_spent_the_budget_spent_it_for_all() -> None:
    slot = started(SHARING)
    slot.fail()
    slot.send(PeerTripped(reason="gone", retry_in=20.0, parked=True))
    assert slot.state() is State.PERMANENTLY_FAILED
    health = slot.machine.health(slot.now)
    assert (health.attempts, health.reason) == (len(SHARING.backoff), "gone")
    effects = slot.send(PeerTripped(retry_in=12.0))
    assert asked_for(effects) == [slot.now + 12.0], "a parked server is tried when the peer says"


def test_a_dial_that_is_under_way_tells_more_than_a_peer() -> None:
    slot = started(SHARING)
    for told_by_a_peer in (PeerTripped(parked=True, retry_in=20.0), PeerTripped(attempts=3), PeerRecovered()):
        slot.send(told_by_a_peer)
        assert (slot.state(), len(slot.dials)) == (State.CONNECTING, 1)
    slot.fail()
    assert slot.machine.health(slot.now).attempts == 0


def test_a_peer_that_reached_the_server_is_followed_at_once_and_not_again_soon() -> None:
    slot = started(SHARING)
    slot.fail()
    slot.send(PeerRecovered())
    assert len(slot.dials) == 2
    slot.fail()
    slot.now += SHARING.peer_spacing - 0.1
    slot.send(PeerRecovered())
    assert len(slot.dials) == 2, "this replica cannot reach what its peer loses and finds"
    slot.now += 0.1
    slot.send(PeerRecovered())
    assert len(slot.dials) == 3


def test_calls_that_fail_at_a_peer_leave_one_failure_here_and_calls_that_work_there_end_the_wait() -> None:
    slot = connected(SHARING)
    slot.send(PeerTripped(by_calls=True, retry_in=20.0))
    assert slot.state() is State.CONNECTED
    (shared,) = told(slot.settle(slot.permit(), Outcome.TRANSPORT_FAILURE, "it fails"))
    assert shared == PeerTripped(reason="it fails", retry_in=60.0, by_calls=True)
    assert slot.refusal().reason is RefusalReason.OPEN
    slot.send(PeerRecovered())
    assert slot.refusal().reason is RefusalReason.PROBING, "the right to probe is missing"
    slot.send(ClaimGranted(until=slot.now + 10.0))
    assert slot.permit().probe


def test_a_new_listing_of_a_peer_is_listed_here_too() -> None:
    slot = connected(LifecyclePolicy(claims=True, jitter=0.0, refresh=None))
    slot.advance(SHARING.refresh_spacing)
    slot.send(PeerPublished())
    assert [one for one in slot.advance(0.0) if isinstance(one, RefreshNow)] == [RefreshNow(slot.lease)]
    slot.send(PeerPublished())
    assert not [one for one in slot.advance(1.0) if isinstance(one, RefreshNow)], "one is under way"


def test_a_refused_call_asks_for_the_right_once() -> None:
    slot = denied()
    slot.now -= 1.0
    _, effects = slot.machine.admit(slot.now)
    assert asked_for(effects) == [slot.now + 1.0]
    assert slot.machine.admit(slot.now)[1] == ()
    slot.send(ClaimGranted(until=slot.now + 10.0))
    slot.now += 10.0
    slot.send(ClaimExpired())
    assert asked_for(slot.machine.admit(slot.now)[1]) == [slot.now], "no call came in time, and now one does"


def test_a_server_that_waits_for_the_right_is_said_to_be_tried_soon() -> None:
    slot = started(SHARING)
    slot.fail()
    slot.advance(SHARING.backoff[0])
    assert len(slot.dials) == 1
    assert slot.machine.health(slot.now).retry_in == slot.machine.breaker.policy.probe_wait


def test_a_refused_call_of_a_server_that_is_switched_off_asks_for_no_right() -> None:
    slot = connected(SHARING)
    slot.send(DisableRequested())
    decision, effects = slot.machine.admit(slot.now)
    assert isinstance(decision, Refusal)
    assert effects == ()
    assert slot.machine.life.interest_at is None


def test_a_probe_uses_the_right_up() -> None:
    slot = denied()
    slot.send(ClaimGranted(until=slot.now + 10.0))
    slot.permit()
    assert [type(one) for one in slot.fail("denied") if isinstance(one, ReleaseProbe)] == [ReleaseProbe]


def test_a_server_that_is_disabled_while_it_waits_for_the_right_is_not_tried_with_it() -> None:
    slot = started(SHARING)
    slot.fail()
    slot.advance(30.0)
    slot.send(DisableRequested())
    slot.send(ClaimGranted(until=slot.now + 10.0))
    assert len(slot.dials) == 1


def test_what_a_peer_tells_moves_no_try_of_a_server_that_is_up_or_fails_by_calls_alone() -> None:
    slot = connected(SHARING)
    assert asked_for(slot.send(PeerTripped(retry_in=5.0))) == []
    assert slot.state() is State.CONNECTED
    slot = started(SHARING)
    slot.fail()
    assert asked_for(slot.send(PeerTripped(retry_in=99.0, by_calls=True))) == []
    slot.advance(SHARING.backoff[0])
    slot.send(ClaimGranted(until=slot.now + 10.0))
    assert len(slot.dials) == 2
    slot.send(ClaimGranted(until=slot.now + 20.0))
    assert len(slot.dials) == 2, "a try is under way"


def test_a_hub_alone_asks_for_no_right_and_tells_no_other() -> None:
    slot = started(LifecyclePolicy(jitter=0.0, failures=9))
    effects: list[Effect] = [*slot.fail(), *slot.advance(1.0), *slot.connect("read")]
    for _ in range(2):  # the failed dial was the first failure
        effects += slot.settle(slot.permit(), Outcome.TRANSPORT_FAILURE)
    decision, more = slot.machine.admit(slot.now)
    assert isinstance(decision, Refusal)
    effects += [*more, *slot.advance(BreakerPolicy().cooldown), *slot.complete_call()]
    effects += [*slot.send(ReconnectRequested()), *slot.fail("denied"), *slot.machine.admit(slot.now)[1]]
    assert not [one for one in effects if isinstance(one, ClaimProbe | ReleaseProbe | ShareEvidence)]


@pytest.mark.parametrize("outcome", [Outcome.NEUTRAL, Outcome.TRANSPORT_FAILURE])
def test_a_probe_on_a_connection_that_stands_uses_the_right_up_however_it_ends(outcome: Outcome) -> None:
    slot = connected(LifecyclePolicy(claims=True, jitter=0.0, failures=9))
    for _ in range(slot.machine.breaker.policy.threshold):
        slot.settle(slot.permit(), Outcome.TRANSPORT_FAILURE, "reset")
    slot.refusal()
    slot.now += slot.machine.breaker.policy.cooldown
    slot.send(ClaimGranted(until=slot.now + 100.0))
    probe = slot.permit()
    assert probe.probe
    assert any(isinstance(effect, ReleaseProbe) for effect in slot.settle(probe, outcome, "reset"))


def test_the_right_is_free_when_a_watched_address_is_next_looked_at() -> None:
    slot = started(LifecyclePolicy(claims=True, jitter=0.0, watchable=True))
    slot.fail(unreachable=True)
    slot.send(ClaimGranted(until=math.inf))
    slot.advance(SHARING.backoff[0])
    effects = slot.fail(unreachable=True)
    assert [one.delay for one in effects if isinstance(one, ReleaseProbe)] == [SHARING.check_every]
    assert asked_for(effects) == [slot.now + SHARING.backoff[1]], "a check needs no right"
    (failed,) = told(effects)
    assert isinstance(failed, PeerTripped)
    assert failed.retry_in == SHARING.backoff[1], "the others make their own checks, and none of their own tries"


def test_a_replica_that_waits_for_the_right_waits_no_more_when_a_peer_spent_the_budget() -> None:
    slot = started(SHARING)
    slot.fail()
    slot.advance(SHARING.backoff[0])
    slot.send(PeerTripped(reason="gone", retry_in=20.0, parked=True))
    slot.send(ClaimGranted(until=math.inf))
    assert len(slot.dials) == 1, "its next try is the one of a parked server"
    retry_in = slot.machine.health(slot.now).retry_in
    assert retry_in == SHARING.transient_probe
