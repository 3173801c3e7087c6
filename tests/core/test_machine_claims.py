"""The right to probe among replicas: a server that failed is tried by the replica that has it, and by no other."""

from __future__ import annotations

import math

import pytest

from holdfast.core.breaker import Outcome, RefusalReason
from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.effects import ClaimProbe, Effect, ReleaseProbe, ShareEvidence
from holdfast.core.lifecycle.events import (
    ClaimExpired,
    ClaimGranted,
    DisableRequested,
    PeerRecovered,
    PeerTripped,
    TransportLost,
)
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
