"""What replicas tell each other about a server: it arrives as it was told, and a stranger's record does no harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast.core import events as on
from holdfast.core.replicas.store import FleetRecord, evidence_event, evidence_value

TOLD = st.builds(
    on.PeerTripped,
    status=st.sampled_from(["transient", "permanent", "denied"]),
    reason=st.text(max_size=50),
    attempts=st.integers(0, 9),
    retry_in=st.integers(0, 300).map(float),
    parked=st.booleans(),
    unreachable=st.booleans(),
    answers=st.booleans(),
    by_calls=st.booleans(),
)


def record(value: object) -> FleetRecord:
    return FleetRecord("evidence/a", "1.r", json.dumps(value))


@pytest.mark.requirement("FLEET-2")
@given(TOLD | st.just(on.PeerRecovered()))
def test_evidence_arrives_as_it_was_told(event: on.Event) -> None:
    assert evidence_event(record(evidence_value(event, "d1")), "d1") == event


@pytest.mark.requirement("FLEET-2")
@given(TOLD)
def test_evidence_about_another_definition_says_nothing(event: on.Event) -> None:
    assert evidence_event(record(evidence_value(event, "d1")), "d2") is None


@pytest.mark.requirement("FLEET-3")
@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("status", "heavenly", "transient"),
        ("attempts", -3, 0),
        ("retry_in", -1, 0.0),
        ("retry_in", 1e9, None),
        ("parked", "yes", False),
        ("by_calls", 1, False),
    ],
)
def test_a_value_that_no_replica_writes_is_read_as_the_nearest_that_one_does(
    key: str, value: object, read: Any
) -> None:
    told = {**evidence_value(on.PeerTripped(), "d"), key: value}
    event = evidence_event(record(told), "d")
    assert isinstance(event, on.PeerTripped)
    seen = getattr(event, key)
    assert seen == read if read is not None else 0 < seen < 1e6


@pytest.mark.parametrize(
    "value", [{"definition": "d"}, [], "text", {"definition": "d", "up": False, "status": "denied"}]
)
def test_a_record_that_is_not_whole_says_nothing(value: object) -> None:
    assert evidence_event(record(value), "d") is None


@pytest.mark.requirement("FLEET-3")
@pytest.mark.parametrize(("key", "value"), [("attempts", float("inf")), ("retry_in", 10**400)], ids=["endless", "huge"])
def test_a_number_that_is_beyond_all_bounds_says_nothing(key: str, value: object) -> None:
    assert evidence_event(record({**evidence_value(on.PeerTripped(), "d"), key: value}), "d") is None
