from __future__ import annotations

import pytest

from holdfast.core.breaker import (
    Breaker,
    BreakerPolicy,
    BreakerState,
    ClosedAgain,
    Outcome,
    Permit,
    Refusal,
    RefusalReason,
    Tripped,
)

FAILED = Outcome.TRANSPORT_FAILURE


def admitted(breaker: Breaker, now: float, connection: int | None = None) -> Permit:
    decision = breaker.admit(now, connection)
    assert isinstance(decision, Permit), decision
    return decision


def refused(breaker: Breaker, now: float) -> Refusal:
    decision = breaker.admit(now)
    assert isinstance(decision, Refusal)
    return decision


def fail(breaker: Breaker, now: float) -> Tripped | ClosedAgain | None:
    return breaker.settle(admitted(breaker, now), FAILED, now)


def tripped(policy: BreakerPolicy | None = None, at: float = 0.0) -> Breaker:
    breaker = Breaker(policy)
    for _ in range(breaker.policy.threshold):
        fail(breaker, at)
    assert breaker.state is BreakerState.OPEN
    return breaker


@pytest.mark.requirement("BRK-1")
def test_the_third_failure_in_a_row_within_the_window_trips() -> None:
    breaker = Breaker()

    assert fail(breaker, 0.0) is None
    assert fail(breaker, 15.0) is None
    event = fail(breaker, 30.0)

    assert event == Tripped(at=30.0, failures=3, retry_in=60.0, refused=0)


@pytest.mark.requirement("BRK-1")
def test_three_failures_that_do_not_fit_in_the_window_do_not_trip() -> None:
    breaker = Breaker()
    for now in (0.0, 15.5, 31.0, 46.6):
        assert fail(breaker, now) is None
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.requirement("BRK-1", "BRK-5")
def test_an_open_breaker_refuses_for_the_cooldown_and_says_how_long() -> None:
    breaker = tripped(at=100.0)

    assert refused(breaker, 100.0) == Refusal(RefusalReason.OPEN, 60.0)
    assert refused(breaker, 159.5) == Refusal(RefusalReason.OPEN, 0.5)
    assert admitted(breaker, 160.0).probe


@pytest.mark.requirement("BRK-5")
def test_refusals_do_not_prolong_the_cooldown() -> None:
    breaker = tripped()
    for second in range(60):
        refused(breaker, float(second))
    assert admitted(breaker, 60.0).probe


@pytest.mark.requirement("BRK-2")
def test_failed_connects_and_failed_calls_share_one_counter() -> None:
    breaker = Breaker()
    breaker.connect_failed(0.0)
    fail(breaker, 1.0)
    assert isinstance(breaker.connect_failed(2.0), Tripped)


@pytest.mark.requirement("BRK-2")
def test_a_connection_that_dies_is_one_failure_however_many_calls_were_in_flight() -> None:
    breaker = Breaker()
    breaker.connected(1, 0.0)
    calls = [admitted(breaker, 0.0, connection=1) for _ in range(128)]

    for call in calls[:64]:
        breaker.settle(call, Outcome.CONNECTION_LOST, 1.0)
    breaker.lost(1, 1.0)
    for call in calls[64:]:
        breaker.settle(call, Outcome.CONNECTION_LOST, 1.0)

    assert breaker.failures == 1
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.requirement("BRK-2", "BRK-3")
def test_a_completed_call_resets_the_counter() -> None:
    breaker = Breaker()
    fail(breaker, 0.0)
    fail(breaker, 1.0)
    breaker.settle(admitted(breaker, 2.0), Outcome.COMPLETED, 2.0)
    fail(breaker, 3.0)
    fail(breaker, 4.0)
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.requirement("BRK-4")
@pytest.mark.parametrize("outcome", [Outcome.NEUTRAL, Outcome.TIMED_OUT])
def test_neutral_outcomes_neither_trip_nor_reset(outcome: Outcome) -> None:
    breaker = Breaker()
    fail(breaker, 0.0)
    fail(breaker, 1.0)
    for _ in range(10):
        breaker.settle(admitted(breaker, 2.0), outcome, 2.0)
    assert breaker.state is BreakerState.CLOSED
    assert isinstance(fail(breaker, 3.0), Tripped)


@pytest.mark.requirement("BRK-6")
def test_after_the_cooldown_exactly_one_caller_is_the_probe() -> None:
    breaker = tripped()
    probe = admitted(breaker, 60.0)

    assert {refused(breaker, 60.0).reason for _ in range(20)} == {RefusalReason.PROBING}
    assert isinstance(breaker.settle(probe, Outcome.COMPLETED, 61.0), ClosedAgain)
    assert not admitted(breaker, 61.0).probe


@pytest.mark.requirement("BRK-6")
def test_a_probe_that_fails_opens_for_another_whole_cooldown() -> None:
    breaker = tripped()
    event = breaker.settle(admitted(breaker, 60.0), FAILED, 65.0)

    assert isinstance(event, Tripped)
    assert refused(breaker, 65.0).retry_in == 60.0


@pytest.mark.requirement("BRK-4", "BRK-6")
def test_an_abandoned_probe_gives_its_place_back_at_once() -> None:
    breaker = tripped()
    abandoned = admitted(breaker, 60.0)
    breaker.settle(abandoned, Outcome.NEUTRAL, 60.1)

    assert admitted(breaker, 60.1).probe


@pytest.mark.requirement("BRK-6")
def test_a_probe_settled_twice_takes_no_other_place() -> None:
    breaker = tripped()
    abandoned = admitted(breaker, 60.0)
    breaker.settle(abandoned, Outcome.NEUTRAL, 60.1)
    admitted(breaker, 60.2)

    breaker.settle(abandoned, Outcome.COMPLETED, 60.3)

    assert refused(breaker, 60.3).reason is RefusalReason.PROBING


@pytest.mark.requirement("BRK-6")
def test_a_probe_fails_with_the_dial_that_it_joined_and_is_counted_once() -> None:
    breaker = tripped()
    probe = admitted(breaker, 60.0)

    assert isinstance(breaker.connect_failed(61.0), Tripped)
    assert breaker.settle(probe, FAILED, 61.0) is None
    assert breaker.trips == 2


@pytest.mark.requirement("BRK-7")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, FAILED, Outcome.CONNECTION_LOST])
def test_a_result_from_before_a_trip_changes_nothing(outcome: Outcome) -> None:
    breaker = Breaker()
    early = admitted(breaker, 0.0, connection=1)
    for _ in range(3):
        fail(breaker, 0.0)

    assert breaker.settle(early, outcome, 1.0) is None
    assert refused(breaker, 1.0).retry_in == 59.0
    probe = admitted(breaker, 60.0)
    another_early = Permit(early.generation, 1)
    assert breaker.settle(another_early, outcome, 60.0) is None
    assert breaker.state is BreakerState.HALF_OPEN
    assert isinstance(breaker.settle(probe, Outcome.COMPLETED, 60.0), ClosedAgain)


@pytest.mark.requirement("BRK-7")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, FAILED, Outcome.CONNECTION_LOST])
def test_a_result_from_an_older_connection_changes_nothing(outcome: Outcome) -> None:
    breaker = Breaker()
    breaker.connected(1, 0.0)
    old = admitted(breaker, 0.0, connection=1)
    breaker.connected(2, 1.0)
    fail(breaker, 2.0)

    assert breaker.settle(old, outcome, 3.0) is None
    assert breaker.failures == 1


@pytest.mark.requirement("BRK-8")
def test_a_burst_of_failing_calls_is_one_event_for_the_trip_and_a_count_later() -> None:
    breaker = Breaker()
    calls = [admitted(breaker, 0.0) for _ in range(128)]

    events = [breaker.settle(call, FAILED, 1.0) for call in calls]
    for _ in range(40):
        refused(breaker, 2.0)

    assert [event for event in events if event is not None] == [Tripped(at=1.0, failures=3, retry_in=60.0, refused=0)]
    closed = breaker.settle(admitted(breaker, 61.0), Outcome.COMPLETED, 61.0)
    assert closed == ClosedAgain(at=61.0, refused=40)


@pytest.mark.requirement("BRK-9")
def test_the_cooldown_grows_with_trips_in_a_row_only_where_asked_for() -> None:
    growing = BreakerPolicy(growth=2.0, max_cooldown=150.0)
    assert cooldowns(tripped(growing), 4) == [60.0, 120.0, 150.0, 150.0]
    assert cooldowns(tripped(), 4) == [60.0, 60.0, 60.0, 60.0]
    assert cooldowns(tripped(BreakerPolicy(cooldown=90.0, max_cooldown=80.0)), 2) == [90.0, 90.0]


def cooldowns(breaker: Breaker, trips: int) -> list[float]:
    seen = [breaker.retry_in(0.0)]
    now = 0.0
    for _ in range(trips - 1):
        now += breaker.retry_in(now)
        fail(breaker, now)
        seen.append(breaker.retry_in(now))
    return seen


@pytest.mark.requirement("BRK-9")
def test_a_completed_call_ends_the_row_of_trips() -> None:
    breaker = tripped(BreakerPolicy(growth=2.0))
    fail(breaker, 60.0)
    breaker.settle(admitted(breaker, 180.0), Outcome.COMPLETED, 180.0)
    for _ in range(3):
        fail(breaker, 200.0)
    assert breaker.retry_in(200.0) == 60.0


def test_a_cooldown_that_grew_for_ever_stays_finite() -> None:
    breaker = tripped(BreakerPolicy(growth=10.0))
    now = 0.0
    for _ in range(500):
        now += breaker.retry_in(now)
        fail(breaker, now)
    assert breaker.retry_in(now) == 600.0


@pytest.mark.requirement("BRK-9")
def test_a_manual_reconnect_closes_and_what_is_in_flight_is_late() -> None:
    breaker = tripped()
    probe = admitted(breaker, 60.0)

    assert isinstance(breaker.close(60.0), ClosedAgain)
    breaker.settle(probe, FAILED, 61.0)

    assert breaker.failures == 0
    assert not admitted(breaker, 61.0).probe


def tripped_by_connects(policy: BreakerPolicy | None = None) -> Breaker:
    breaker = Breaker(policy)
    for _ in range(3):
        breaker.connect_failed(0.0)
    assert breaker.state is BreakerState.OPEN
    return breaker


def tripped_by_calls() -> Breaker:
    """Three calls failed on connection 1; open until 62."""
    breaker = Breaker()
    breaker.connected(1, 0.0)
    for moment in (0.0, 1.0, 2.0):
        breaker.settle(admitted(breaker, moment, 1), FAILED, moment)
    assert breaker.by_calls
    return breaker


@pytest.mark.requirement("BRK-10")
def test_a_server_that_connects_lists_and_dies_in_a_loop_does_trip() -> None:
    breaker = Breaker()
    events = []
    for connection in range(1, 4):
        breaker.connected(connection, float(connection))
        events.append(breaker.lost(connection, connection + 0.5))
    assert [type(event) for event in events] == [type(None), type(None), Tripped]


@pytest.mark.requirement("BRK-10")
def test_a_handshake_closes_the_breaker_but_the_next_death_trips_it_again() -> None:
    breaker = tripped_by_connects()
    assert isinstance(breaker.connected(1, 5.0), ClosedAgain)
    assert isinstance(breaker.lost(1, 6.0), Tripped)
    assert breaker.trips == 2


@pytest.mark.requirement("BRK-10")
def test_a_connection_that_stood_wipes_what_came_before_it_and_no_more() -> None:
    breaker = Breaker()
    fail(breaker, 0.0)
    fail(breaker, 0.5)
    breaker.connected(1, 1.0)
    breaker.settle(admitted(breaker, 30.0, 1), FAILED, 30.0)

    breaker.stood()

    assert breaker.failures == 1


@pytest.mark.requirement("BRK-9", "BRK-10")
def test_a_trip_on_the_connection_that_stood_still_counts_for_the_growth_of_the_next_cooldown() -> None:
    breaker = tripped_by_connects(BreakerPolicy(growth=2.0))
    breaker.connected(1, 5.0)
    trip = breaker.settle(admitted(breaker, 6.0, 1), FAILED, 6.0)
    assert isinstance(trip, Tripped)
    assert trip.retry_in == 120.0

    breaker.stood()  # the first trip is forgotten, that on this connection is not
    probe = admitted(breaker, 130.0, 1)
    trip = breaker.settle(probe, FAILED, 130.0)
    assert isinstance(trip, Tripped)
    assert (breaker.trips, trip.retry_in) == (2, 120.0)


@pytest.mark.requirement("BRK-10")
def test_trips_that_were_forgotten_once_are_not_forgotten_twice() -> None:
    breaker = tripped_by_connects(BreakerPolicy(growth=2.0))
    breaker.connected(1, 5.0)
    breaker.stood()
    assert breaker.trips == 0
    breaker.stood()
    breaker.settle(admitted(breaker, 40.0, 1), Outcome.COMPLETED, 40.0)
    breaker.stood()
    assert breaker.trips == 0


@pytest.mark.requirement("BRK-11")
def test_a_reconnect_closes_a_breaker_that_failed_connects_opened() -> None:
    breaker = Breaker()
    for moment in (0.0, 1.0, 2.0):
        breaker.connect_failed(moment)
    assert isinstance(breaker.connected(1, 3.0), ClosedAgain)


@pytest.mark.requirement("BRK-11")
def test_a_reconnect_leaves_a_breaker_open_that_failing_calls_opened() -> None:
    breaker = tripped_by_calls()
    assert breaker.connected(2, 3.0) is None
    assert breaker.state is BreakerState.OPEN
    assert isinstance(breaker.admit(59.0, 2), Refusal)
    probe = admitted(breaker, 62.0, 2)
    assert probe.probe
    assert isinstance(breaker.settle(probe, Outcome.COMPLETED, 63.0), ClosedAgain)


@pytest.mark.requirement("BRK-11")
@pytest.mark.parametrize("how", ["connect", "lost"])
def test_calls_that_failed_because_the_server_was_down_do_not_outlast_its_reconnect(how: str) -> None:
    """The connection itself failed after them: a new one shows more than they did."""
    breaker = tripped_by_calls()
    if how == "connect":
        breaker.connect_failed(3.0)
    else:
        breaker.lost(1, 3.0)
    assert isinstance(breaker.connected(2, 4.0), ClosedAgain)


@pytest.mark.requirement("BRK-11")
def test_a_probe_that_takes_longer_than_a_cooldown_loses_its_place_and_its_late_success_still_closes() -> None:
    breaker = tripped_by_calls()
    slow = admitted(breaker, 62.0, 1)
    assert isinstance(breaker.admit(121.0, 1), Refusal)
    second = admitted(breaker, 122.0, 1)
    assert second.probe
    assert isinstance(breaker.admit(122.0, 1), Refusal)
    assert isinstance(breaker.settle(slow, Outcome.COMPLETED, 123.0), ClosedAgain)


@pytest.mark.requirement("BRK-11")
def test_a_late_failure_of_a_replaced_probe_is_counted_and_no_more() -> None:
    breaker = tripped_by_calls()
    slow = admitted(breaker, 62.0, 1)
    second = admitted(breaker, 122.0, 1)
    assert breaker.settle(slow, FAILED, 123.0) is None
    assert isinstance(breaker.settle(second, Outcome.COMPLETED, 124.0), ClosedAgain)


@pytest.mark.requirement("BRK-6")
def test_the_next_call_is_a_probe_only_after_the_cooldown_and_with_none_under_way() -> None:
    assert not Breaker().would_probe(0.0)
    breaker = tripped(at=0.0)
    assert not breaker.would_probe(59.9)
    assert breaker.would_probe(60.0)
    admitted(breaker, 60.0, 1)
    assert not breaker.would_probe(60.0)
    assert breaker.would_probe(120.0), "a probe that takes longer than a cooldown loses its place"


def test_its_repr_says_how_it_stands() -> None:
    assert repr(Breaker()) == "<Breaker closed failures=0 gen=0>"
    assert repr(tripped(at=3.0)) == "<Breaker open until=63.0 failures=3 gen=1>"


@pytest.mark.requirement("FLEET-4")
def test_a_warning_of_a_peer_leaves_one_failure_to_the_trip_and_opens_nothing_itself() -> None:
    breaker = Breaker()
    fail(breaker, 0.0)
    for _ in range(5):
        breaker.warned(1.0)
        assert breaker.state is BreakerState.CLOSED
    event = fail(breaker, 2.0)
    assert isinstance(event, Tripped)
    assert event.failures == 3
    breaker.warned(3.0)
    assert refused(breaker, 3.0).retry_in == 59.0


@pytest.mark.requirement("FLEET-4")
def test_calls_that_work_at_a_peer_let_the_next_call_try_where_calls_opened_the_breaker() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker.settle(admitted(breaker, 0.0, connection=1), FAILED, 0.0)
    breaker.hasten(5.0)
    assert admitted(breaker, 5.0).probe
    unreachable = Breaker()
    for _ in range(3):
        unreachable.connect_failed(0.0)
    unreachable.hasten(5.0)
    assert refused(unreachable, 5.0).reason is RefusalReason.OPEN


@pytest.mark.requirement("BRK-7")
def test_a_connection_that_was_given_up_and_does_not_answer_is_no_failure() -> None:
    breaker = Breaker()
    breaker.detached(1)
    for _ in range(3):
        assert breaker.unanswered(1, 0.0) is None
        assert breaker.lost(1, 0.0) is None
    assert breaker.state is BreakerState.CLOSED
