"""What a machine tells of its health: each time where it applies, and what another hub told about the server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.breaker import BreakerState, Outcome
from holdfast.core.hub_record import (
    HUB_VERSION,
    LONGEST_REASON,
    LONGEST_SECONDS,
    LOOP_HINT,
    LOOP_REASON,
    MOST_HUBS,
    ServerRecord,
    read_records,
    told_number,
)
from holdfast.core.lifecycle.events import Closed, DisableRequested, EnableRequested, ReconnectRequested, TransportLost
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from tests.core.slot_harness import SlotHarness, connected, started

LOST = ServerRecord(
    health=Health(
        server="db",
        state=State.RECONNECTING,
        reason="it exited",
        generation=None,
        failures=2,
        attempts=3,
        breaker=BreakerState.OPEN,
        retry_in=4.0,
        evidence="transient",
        lost=True,
        spent=True,
        down_for=50.0,
        unconfirmed=True,
        call_asks_in=6.0,
        breaker_retry_in=8.0,
    ),
    kind="process_exit",
    hint="start it by hand",
    hubs=("inner",),
)


def failing(slot: SlotHarness, count: int) -> None:
    for permit in [slot.permit() for _ in range(count)]:
        slot.settle(permit, Outcome.TRANSPORT_FAILURE, "reset")


def told(slot: SlotHarness) -> ServerRecord | None:
    return slot.machine.told


@pytest.mark.requirement("LIFE-10", "BRK-5")
def test_a_time_for_calls_is_told_while_the_breaker_is_open_and_at_no_other_time() -> None:
    slot = connected()
    assert slot.machine.health(slot.now).breaker_retry_in is None
    failing(slot, 3)
    assert slot.machine.health(slot.now).breaker_retry_in == 60.0
    assert slot.machine.health(slot.now + 70.0).breaker_retry_in == 0.0, "the next call may try"


@pytest.mark.requirement("FLEET-6")
def test_what_is_told_of_a_server_is_kept_whole_and_grows_older() -> None:
    slot = connected()
    machine, connection = slot.machine, slot.machine.connection
    assert connection is not None
    assert told(slot) is None
    assert machine.mirror(LOST, connection + 1, 10.0) == (), "it is of another connection"
    assert told(slot) is None
    machine.mirror(LOST, connection, 10.0)
    assert told(slot) is LOST
    own = replace(machine.health(10.0), calls=7)
    assert LOST.seen_from(own, age=3.0) == replace(
        LOST.health,
        server=own.server,
        generation=connection,
        calls=7,
        retry_in=1.0,
        call_asks_in=3.0,
        breaker_retry_in=5.0,
        down_for=53.0,
    )
    assert machine.health(13.0) == LOST.seen_from(replace(own, calls=0), age=3.0)
    assert machine.health(99.0).retry_in == 0.0
    machine.mirror(None, connection, 20.0)
    assert told(slot) is None
    assert machine.health(20.0).status == "available"


@pytest.mark.requirement("FLEET-6")
def test_a_record_crosses_between_two_hubs_with_all_that_it_says() -> None:
    written = json.loads(json.dumps({"version": HUB_VERSION, "servers": {"db": LOST.written(), "bad": 1}}))
    assert read_records(written, proven=True) == {"db": LOST}
    stranger = read_records(written, proven=False)["db"]
    assert stranger == replace(LOST, hint="", health=replace(LOST.health, reason='it says: "it exited"'))
    for field in ("lost", "spent", "unconfirmed"):
        odd = {"version": HUB_VERSION, "servers": {"db": {**LOST.written(), field: 1}}}
        without: dict[str, Any] = {field: False}
        assert read_records(odd, proven=True)["db"].health == replace(LOST.health, **without)


@pytest.mark.requirement("FLEET-6")
def test_each_part_of_a_record_is_bounded() -> None:
    odd = {
        **LOST.written(),
        "reason": "x" * (LONGEST_REASON + 1),
        "hint": 5,
        "class": "other",
        "evidence": "two words",
        "hubs": ["h" * 81] * (MOST_HUBS + 1),
        "failures": -1,
        "attempts": "3",
    }
    record = read_records({"version": HUB_VERSION, "servers": {"db": odd}}, proven=True)["db"]
    assert record.health.reason == "x" * LONGEST_REASON
    assert (record.hint, record.kind, record.health.evidence) == ("", "", None)
    assert record.hubs == ("h" * 80,) * MOST_HUBS
    assert (record.health.failures, record.health.attempts) == (0, 0)
    long = {**LOST.written(), "reason": None, "evidence": "e" * 81, "hubs": "inner"}
    record = read_records({"version": HUB_VERSION, "servers": {"db": long}}, proven=False)["db"]
    assert (record.health.reason, record.kind, record.hubs) == ("", "e" * 80, ())
    for version in (None, HUB_VERSION - 1, True, "1"):
        assert read_records({"version": version, "servers": {"db": LOST.written()}}, proven=True) == {}


@pytest.mark.parametrize(
    ("told", "number"),
    [(0, 0.0), (2, 2.0), (LONGEST_SECONDS, LONGEST_SECONDS), (LONGEST_SECONDS + 1, None), (-0.1, None), (True, None)],
)
def test_a_number_is_one_from_zero_to_ten_years(told: object, number: float | None) -> None:
    assert told_number(told) == number


@pytest.mark.requirement("FLEET-6")
def test_a_loop_is_a_permanent_failure_with_its_own_words_and_no_plan() -> None:
    looped = LOST.seen_by("inner")
    assert looped == ServerRecord(
        health=replace(
            LOST.health, state=State.PERMANENTLY_FAILED, reason=LOOP_REASON, evidence="permanent", retry_in=None
        ),
        kind="bad_config",
        hint=LOOP_HINT,
    )
    assert LOST.seen_by("other") is LOST


@pytest.mark.requirement("MSG-8")
def test_a_server_is_lost_if_it_was_up_and_was_not_ended_to_be_started_again() -> None:
    def is_lost() -> bool:
        return slot.machine.health(slot.now).lost

    slot = started()
    assert not is_lost()
    slot.fail()
    assert not is_lost(), "it was never up"
    slot = connected()
    assert not is_lost()
    slot.send(TransportLost(1, "gone"))
    assert is_lost()
    slot.fail_until_parked()
    slot.send(ReconnectRequested())
    assert (slot.state(), is_lost()) == (State.CONNECTING, True)
    slot = connected()
    slot.send(DisableRequested())
    slot.send(Closed(1))
    assert (slot.state(), is_lost()) == (State.DISABLED, True)
    slot.send(EnableRequested())
    assert (slot.state(), is_lost()) == (State.CONNECTING, False)


@pytest.mark.requirement("MSG-3", "LOAD-4")
def test_a_denial_without_a_decision_is_in_doubt_until_the_server_is_asked_again() -> None:
    for unconfirmed in (True, False):
        slot = started()
        slot.fail("denied", "no", unconfirmed=unconfirmed)
        assert slot.machine.health(slot.now).unconfirmed is unconfirmed
        slot.send(ReconnectRequested())
        assert not slot.machine.health(slot.now).unconfirmed
