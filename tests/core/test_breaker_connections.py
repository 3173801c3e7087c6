"""What a breaker keeps and forgets as connections come, fail and go: each fact of one of them counts once."""

from __future__ import annotations

import pytest

from holdfast.core.breaker import (
    Breaker,
    BreakerPolicy,
    BreakerState,
    ClosedAgain,
    Outcome,
    Permit,
    Tripped,
)

FAILED = Outcome.TRANSPORT_FAILURE
pytestmark = pytest.mark.requirement("BRK-2", "BRK-10")


def permit(breaker: Breaker, now: float, connection: int | None = None) -> Permit:
    decision = breaker.admit(now, connection)
    assert isinstance(decision, Permit), decision
    return decision


def fail(breaker: Breaker, now: float, connection: int | None = None) -> Tripped | ClosedAgain | None:
    return breaker.settle(permit(breaker, now, connection), FAILED, now)


def connected(connection: int = 1, at: float = 0.0, policy: BreakerPolicy | None = None) -> Breaker:
    breaker = Breaker(policy)
    breaker.connected(connection, at)
    return breaker


def test_a_call_of_a_connection_that_was_given_up_is_late_whichever_way_it_fails() -> None:
    breaker = connected()
    calls = [permit(breaker, 1.0, 1) for _ in range(2)]
    breaker.detached(1)
    assert breaker.settle(calls[0], FAILED, 2.0) is None
    assert breaker.settle(calls[1], Outcome.CONNECTION_LOST, 2.0) is None
    assert breaker.unanswered(1, 2.0) is None
    assert breaker.lost(1, 2.0) is None
    assert breaker.failures == 0


def test_the_end_of_an_older_connection_changes_nothing_of_the_present_one() -> None:
    breaker = connected(3)
    fail(breaker, 1.0, 3)
    breaker.detached(1)
    calls = permit(breaker, 1.0, 2)
    breaker.settle(calls, FAILED, 1.0)
    assert breaker.failures == 1, "the one of connection 2 is late"
    breaker.lost(3, 2.0)
    assert breaker.failures == 1, "the failed call and the loss of its connection are one failure"


def test_an_older_connection_that_is_told_late_does_not_make_its_calls_count_again() -> None:
    breaker = connected(3)
    breaker.connected(2, 1.0)
    assert fail(breaker, 1.0, 2) is None
    assert breaker.failures == 0


def test_what_failed_until_a_connection_was_made_is_forgotten_once_it_stood() -> None:
    breaker = Breaker()
    breaker.connect_failed(4.0)
    breaker.connect_failed(5.0)
    breaker.connected(1, 5.0)
    assert breaker.failures == 2, "a handshake alone forgives nothing"
    fail(breaker, 6.0, 1)
    breaker.stood()
    assert breaker.failures == 1


def test_a_failure_before_an_answer_and_the_loss_after_it_are_two() -> None:
    breaker = connected()
    fail(breaker, 1.0, 1)
    breaker.answered(1)
    breaker.lost(1, 2.0)
    assert breaker.failures == 2


def test_after_an_answer_the_failures_before_it_are_not_taken_back_with_later_ones() -> None:
    breaker = connected(policy=BreakerPolicy(threshold=9))
    for now in (1.0, 2.0):
        fail(breaker, now, 1)
    breaker.answered(1)
    for now in (3.0, 4.0):
        fail(breaker, now, 1)
    breaker.lost(1, 5.0)
    assert breaker.failures == 3, "two before the answer; the two after it and the loss are one"


@pytest.mark.parametrize("how", ["close", "reset", "completed"])
def test_a_failure_that_was_forgiven_excuses_no_later_loss_of_its_connection(how: str) -> None:
    breaker = connected()
    fail(breaker, 1.0, 1)
    if how == "close":
        assert breaker.close(2.0) is None
    elif how == "reset":
        assert breaker.reset(2.0) is None
    else:
        assert breaker.settle(permit(breaker, 2.0, 1), Outcome.COMPLETED, 2.0) is None
    assert breaker.failures == 0
    breaker.lost(1, 3.0)
    assert breaker.failures == 1


def test_the_dial_that_follows_a_failed_connection_is_excused_once_and_one_after_a_clean_end_is_not() -> None:
    breaker = connected()
    breaker.lost(1, 1.0)
    assert breaker.connect_failed(2.0) is None
    assert breaker.failures == 1
    assert breaker.connect_failed(3.0) is None
    assert breaker.failures == 2

    breaker = connected()
    breaker.detached(1)
    breaker.connect_failed(2.0)
    assert breaker.failures == 1


def test_a_denied_dial_uses_the_excuse_up_and_counts_nothing() -> None:
    breaker = connected()
    breaker.lost(1, 1.0)
    assert breaker.connect_failed(2.0, neutral=True) is None
    assert breaker.failures == 1
    breaker.connect_failed(3.0)
    assert breaker.failures == 2


@pytest.mark.requirement("BRK-11")
def test_a_probe_that_waits_for_an_excused_dial_fails_with_it() -> None:
    breaker = connected(policy=BreakerPolicy(threshold=1, cooldown=10.0, window=30.0))
    assert isinstance(breaker.lost(1, 0.0), Tripped)
    assert permit(breaker, 10.0).probe
    event = breaker.connect_failed(11.0)
    assert isinstance(event, Tripped)
    assert event.at == 11.0
    assert breaker.state is BreakerState.OPEN


def test_an_open_breaker_keeps_its_failures_when_the_connection_of_them_dies() -> None:
    breaker = connected()
    for _ in range(3):
        fail(breaker, 1.0, 1)
    assert breaker.state is BreakerState.OPEN
    breaker.lost(1, 2.0)
    assert breaker.failures == 3
    assert not breaker.by_calls, "a new connection may close it"
    assert breaker.connected(2, 3.0) == ClosedAgain(at=3.0, refused=0)


def test_more_failures_of_a_connection_than_are_remembered_are_still_one() -> None:
    breaker = connected(policy=BreakerPolicy(threshold=3, window=1.0))
    for now in (0.0, 10.0, 20.0, 30.0):
        assert fail(breaker, now, 1) is None
    breaker.lost(1, 40.0)
    assert breaker.failures == 1


def test_a_breaker_that_calls_opened_is_closed_by_a_call_and_one_that_the_connection_opened_by_a_new_one() -> None:
    breaker = connected()
    for _ in range(3):
        fail(breaker, 1.0, 1)
    assert breaker.by_calls
    assert breaker.connected(2, 2.0) is None
    assert breaker.state is BreakerState.OPEN
    assert breaker.settle(permit(breaker, 61.0, 2), Outcome.COMPLETED, 62.0) == ClosedAgain(at=62.0, refused=0)
    assert not breaker.by_calls


@pytest.mark.requirement("FLEET-4")
def test_a_peer_whose_calls_pass_shortens_the_wait_of_an_open_breaker_and_never_lengthens_it() -> None:
    breaker = connected()
    for _ in range(3):
        fail(breaker, 0.0, 1)
    breaker.hasten(20.0)
    assert breaker.retry_in(20.0) == 0.0
    breaker.hasten(30.0)
    assert breaker.would_probe(20.0), "it may try since the first time"


@pytest.mark.requirement("FLEET-4")
def test_a_peer_is_no_help_to_a_breaker_that_the_connection_opened() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker.connect_failed(0.0)
    breaker.hasten(20.0)
    assert breaker.retry_in(20.0) == 40.0


@pytest.mark.requirement("FLEET-4")
def test_a_warning_leaves_one_failure_to_the_threshold_and_an_open_breaker_as_it_is() -> None:
    breaker = Breaker()
    breaker.connect_failed(0.0)
    breaker.warned(1.0)
    assert breaker.failures == 2
    breaker.warned(1.0)
    assert breaker.failures == 2
    assert isinstance(breaker.connect_failed(2.0), Tripped)
    breaker.warned(3.0)
    assert breaker.failures == 3


def test_trips_before_a_connection_are_forgotten_once_it_stood_and_a_trip_on_it_stays() -> None:
    breaker = Breaker(BreakerPolicy(threshold=1, cooldown=10.0, growth=2.0, max_cooldown=1_000.0))
    assert isinstance(breaker.connect_failed(0.0), Tripped)
    breaker.connected(1, 1.0)
    assert isinstance(fail(breaker, 2.0, 1), Tripped)
    assert breaker.trips == 2
    breaker.stood()
    assert breaker.trips == 1
    breaker.stood()
    assert breaker.trips == 1, "nothing is taken away twice"


def test_a_cooldown_grows_with_each_trip_to_its_longest_and_never_overflows() -> None:
    breaker = Breaker(BreakerPolicy(threshold=1, cooldown=10.0, growth=2.0, max_cooldown=50.0))
    waits, now = [], 0.0
    for _ in range(5):
        event = fail(breaker, now)
        assert isinstance(event, Tripped)
        waits.append(event.retry_in)
        now += event.retry_in
    assert waits == [10.0, 20.0, 40.0, 50.0, 50.0]
    breaker.trips = 100_000
    assert breaker.would_probe(now)


def test_a_connection_that_does_not_answer_is_a_failure_and_its_loss_is_the_same_one() -> None:
    breaker = connected()
    assert breaker.unanswered(1, 1.0) is None
    assert breaker.failures == 1
    breaker.lost(1, 2.0)
    assert breaker.failures == 1


def test_a_dial_that_fails_lets_the_next_connection_close_what_calls_opened() -> None:
    breaker = connected()
    for _ in range(3):
        fail(breaker, 1.0, 1)
    breaker.detached(1)
    assert breaker.by_calls
    assert breaker.connect_failed(2.0) is None
    assert breaker.connected(2, 3.0) == ClosedAgain(at=3.0, refused=0)
