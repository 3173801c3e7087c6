"""The record that crosses between two hubs: the same health comes out, and nothing foreign passes as our own words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as some

from holdfast.core import hub_record
from holdfast.core.breaker import BreakerState, ClosedAgain, Outcome, Permit, Tripped
from holdfast.core.catalog import Listing
from holdfast.core.hub_record import HUB_VERSION, ServerRecord, hub_warns, read_records, speaks_hub
from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.events import (
    AccessChanged,
    BreakerChanged,
    DialSucceeded,
    Emit,
    StartRequested,
    Transition,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health, Machine
from holdfast.core.messages import for_user
from holdfast.core.redact import INVISIBLE

pytestmark = pytest.mark.requirement("FLEET-6")

seconds = some.none() | some.floats(0, 1e6)
healths = some.builds(
    Health,
    server=some.just("db"),
    state=some.sampled_from(State),
    reason=some.text(min_size=1, max_size=80),
    generation=some.none(),
    failures=some.integers(0, 9),
    attempts=some.integers(0, 9),
    breaker=some.sampled_from(BreakerState),
    retry_in=seconds,
    evidence=some.sampled_from([None, "transient", "permanent", "denied"]),
    lost=some.booleans(),
    spent=some.booleans(),
    down_for=seconds,
    unconfirmed=some.booleans(),
    call_asks_in=seconds,
    breaker_retry_in=seconds,
)
json_values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=9),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)

OUTER = Health(
    server="ours",
    state=State.CONNECTED,
    reason="",
    generation=7,
    failures=0,
    attempts=0,
    breaker=BreakerState.CLOSED,
    retry_in=None,
    calls=3,
)


def crossed(health: Health, *, proven: bool = True, **more: Any) -> ServerRecord:
    """The record after its way over the network."""
    written = {"version": HUB_VERSION, "servers": {"db": {**ServerRecord(health=health).written(), **more}}}
    return read_records(json.loads(json.dumps(written)), proven=proven)["db"]


@given(healths)
def test_the_health_outside_has_the_state_the_class_and_the_words_of_the_health_inside(health: Health) -> None:
    plain = replace(health, reason="it is away")
    outside = crossed(plain).seen_from(OUTER, age=0.0)
    assert replace(outside, server="db", generation=None, calls=0) == plain
    assert (outside.server, outside.generation, outside.calls) == ("ours", 7, 3)
    assert (outside.status, outside.next_try) == (plain.status, plain.next_try)
    if plain.failure is not None and outside.failure is not None:
        assert for_user(outside.failure) == for_user(plain.failure._replace(server_id="ours"))


@given(healths, some.floats(0, 1e5))
def test_times_go_on_after_the_record_came(health: Health, age: float) -> None:
    later = crossed(health).seen_from(OUTER, age=age)
    if health.retry_in is not None:
        assert later.retry_in == max(0.0, health.retry_in - age)
    if health.down_for is not None:
        assert later.down_for == health.down_for + age


@given(some.text(max_size=400))
@pytest.mark.requirement("MSG-11")
def test_a_text_of_a_peer_that_is_not_proven_is_quoted_and_its_hint_is_dropped(text: str) -> None:
    record = crossed(replace(OUTER, state=State.DENIED, reason=text), proven=False, hint=text)
    said = record.health.reason
    assert record.hint == ""
    assert said == "" or (said.startswith('it says: "') and said.endswith('"') and said.count('"') == 2)
    assert not INVISIBLE.search(said)
    assert "\n" not in said


@given(json_values, some.booleans())
def test_no_answer_of_a_foreign_shape_raises_and_none_becomes_a_record(value: Any, proven: bool) -> None:
    assert read_records(value, proven=proven) == {}
    assert read_records({"version": HUB_VERSION, "servers": {"db": value}}, proven=proven) == {}
    assert speaks_hub({"experimental": value}) is False
    assert speaks_hub({"experimental": {"holdfast": value}}) is False


@pytest.mark.parametrize("field", ["nextDialIn", "downFor", "callAsksIn", "breakerRetryIn"])
@pytest.mark.parametrize("value", [-1, "5", True, 1e300, 10**400, [], float("inf")])
def test_a_time_that_cannot_be_one_is_no_time(field: str, value: object) -> None:
    written = {"version": 1, "servers": {"db": {**ServerRecord(health=OUTER).written(), field: value}}}
    health = read_records(written, proven=True)["db"].health
    assert (health.retry_in, health.down_for, health.call_asks_in, health.breaker_retry_in) == (None,) * 4


# The machine shows what it is told, and decides nothing by it.


def connected(lifecycle: LifecyclePolicy | None = None) -> Machine:
    machine = Machine("ours", lifecycle=lifecycle)
    machine.handle(StartRequested(), 0.0)
    machine.handle(DialSucceeded(machine.dialing or 0, Listing(server="ours", generation=machine.dialing or 0)), 1.0)
    return machine


def down(**more: Any) -> ServerRecord:
    return crossed(replace(OUTER, state=State.RECONNECTING, reason="it exited", lost=True, retry_in=4.0, **more))


def test_a_told_outage_is_one_transition_and_ends_with_another() -> None:
    machine = connected()
    (lost,) = machine.mirror(down(), machine.connection or 0, 2.0)
    assert isinstance(lost, Emit)
    assert isinstance(lost.record, Transition)
    assert (lost.record.old, lost.record.new, lost.record.reason) == (State.CONNECTED, State.RECONNECTING, "it exited")
    assert machine.mirror(down(), machine.connection or 0, 3.0) == ()
    assert machine.health(4.0).retry_in == 3.0
    (back,) = machine.mirror(crossed(OUTER), machine.connection or 0, 5.0)
    assert isinstance(back, Emit)
    assert isinstance(back.record, Transition)
    assert (machine.health(5.0).status, back.record.new) == ("available", State.CONNECTED)
    assert machine.told is None, "there is nothing to tell of a server that is well"


def test_a_told_trip_is_a_change_of_the_breaker_and_ours_stays_closed() -> None:
    machine = connected()
    tripped = crossed(replace(OUTER, breaker=BreakerState.OPEN, reason="reset", breaker_retry_in=60.0, failures=3))
    (opened,) = machine.mirror(tripped, machine.connection or 0, 2.0)
    assert isinstance(opened, Emit)
    assert isinstance(opened.record, BreakerChanged)
    assert machine.health(2.0).breaker is BreakerState.OPEN
    assert machine.breaker.state is BreakerState.CLOSED


def test_what_was_told_over_a_connection_that_is_lost_counts_no_more() -> None:
    machine = connected()
    before = machine.connection or 0
    machine.mirror(down(), before, 2.0)
    machine.handle(TransportLost(before, "the hub is gone"), 3.0)
    assert machine.health(3.0).reason == "the hub is gone"
    assert machine.told is None
    assert machine.mirror(down(), before, 3.5) == ()
    assert machine.health(3.5).reason == "the hub is gone"
    machine.handle(DialSucceeded(machine.dialing or 0, Listing(server="ours", generation=2)), 4.0)
    assert machine.mirror(down(), before, 4.5) == ()
    assert machine.health(4.5).status == "available"


def test_a_record_that_came_through_this_hub_is_a_loop_and_not_its_news() -> None:
    record = crossed(replace(OUTER, state=State.CONNECTING), hubs=["other", "ours"])
    assert record.seen_by("third") is record
    looped = record.seen_by("ours").health
    assert (looped.state, looped.status) == (State.PERMANENTLY_FAILED, "permanent")


def test_an_answer_with_more_servers_than_a_hub_can_have_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_record, "MOST_RECORDS", 2)
    written = down().written()
    names = ("a", "b", "c")
    assert set(read_records({"version": HUB_VERSION, "servers": dict.fromkeys(names[:2], written)}, proven=True)) == {
        "a",
        "b",
    }
    assert read_records({"version": HUB_VERSION, "servers": dict.fromkeys(names, written)}, proven=True) == {}


def test_a_hub_says_whether_its_instructions_are_a_warning() -> None:
    announced: dict[str, Any] = {"experimental": {"holdfast": {"version": HUB_VERSION, "warns": True}}}
    assert speaks_hub(announced)
    assert hub_warns(announced)
    announced["experimental"]["holdfast"]["warns"] = 1
    assert not hub_warns(announced)
    assert not speaks_hub({"experimental": {"holdfast": {"version": HUB_VERSION - 1}}})


def test_a_told_trip_without_a_time_has_no_wait_and_a_told_denial_is_a_change_of_access() -> None:
    machine = connected()
    tripped = crossed(replace(OUTER, breaker=BreakerState.OPEN, reason="reset", failures=3))
    (opened,) = machine.mirror(tripped, machine.connection or 0, 2.0)
    assert isinstance(opened, Emit)
    assert isinstance(opened.record, BreakerChanged)
    assert isinstance(opened.record.change, Tripped)
    assert (opened.record.change.retry_in, opened.record.change.failures) == (0.0, 3)
    (closed,) = machine.mirror(crossed(OUTER), machine.connection or 0, 3.0)
    assert isinstance(closed, Emit)
    assert isinstance(closed.record, BreakerChanged)
    assert isinstance(closed.record.change, ClosedAgain)
    denied = crossed(replace(OUTER, call_asks_in=5.0, reason="HTTP 403"))
    for record, said in ((denied, True), (crossed(OUTER), False)):
        (access,) = machine.mirror(record, machine.connection or 0, 4.0)
        assert isinstance(access, Emit)
        assert isinstance(access.record, AccessChanged)
        assert (access.record.denied, access.record.at) == (said, 4.0)


def test_a_failure_of_the_connection_to_the_hub_is_told_before_what_the_hub_told() -> None:
    machine = connected(LifecyclePolicy(failures=9))
    machine.mirror(down(), machine.connection or 0, 2.0)
    for _ in range(machine.breaker.policy.threshold):
        permit, _ = machine.admit(3.0)
        assert isinstance(permit, Permit)
        machine.settle(permit, Outcome.TRANSPORT_FAILURE, 3.0, reason="the hub broke off")
    health = machine.health(3.0)
    assert (health.state, health.reason) == (State.CONNECTED, "the hub broke off")
