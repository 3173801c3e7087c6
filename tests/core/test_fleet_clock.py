"""The time of day of a fleet: most clocks decide, and one that is wrong is named."""

from __future__ import annotations

import pytest

from holdfast.core import FleetClock

pytestmark = pytest.mark.requirement("FLEET-2", "FLEET-3")

NOON = 1_800_000_000.0
DAY = 86_400.0


def test_without_a_store_the_clock_of_the_machine_counts() -> None:
    assert FleetClock().time(NOON, 5.0) == NOON


@pytest.mark.parametrize("wrong", [600.0, -600.0, 25 * 3_600.0, -25 * 3_600.0])
def test_one_clock_that_is_wrong_is_outvoted_and_named(wrong: float) -> None:
    clock = FleetClock()
    clock.note(NOON, {"a": 0, "b": wrong, "c": 1}, 10.0)
    assert clock.time(NOON + wrong, 13.0) == pytest.approx(NOON + 3, abs=1.0)
    assert list(clock.wrong) == ["b"]
    side = "ahead of" if wrong > 0 else "behind"
    assert f"the clock of b is {abs(wrong):.0f} s {side} the fleet's" in clock.notice


@pytest.mark.parametrize("wrong", [DAY, -DAY])
def test_the_clock_of_the_store_is_outvoted_too(wrong: float) -> None:
    clock = FleetClock()
    clock.note(NOON + wrong, {"a": -wrong, "b": -wrong, "c": -wrong}, 10.0)
    assert clock.time(NOON, 10.0) == NOON
    assert clock.notice == ""


def test_of_two_halves_that_disagree_the_earlier_time_counts() -> None:
    clock = FleetClock()
    clock.note(NOON, {"a": DAY}, 0.0)
    assert clock.time(NOON + DAY, 0.0) == NOON
    clock.note(NOON, {"a": -DAY}, 0.0)
    assert clock.time(NOON - DAY, 0.0) == NOON - DAY


def test_a_clock_that_jumps_changes_nothing_between_two_answers_of_the_store() -> None:
    clock = FleetClock()
    clock.note(NOON, {"a": 0, "b": 0}, 10.0)
    assert clock.time(NOON + DAY, 12.0) == clock.time(NOON - DAY, 12.0) == NOON + 2


def test_what_is_no_number_does_not_count() -> None:
    clock = FleetClock()
    clock.note(NOON, {"a": None, "b": "late", "c": float("nan"), "d": float("inf"), "e": 0, "f": 10**400}, 0.0)
    assert clock.time(0.0, 0.0) == NOON
    assert dict(clock.ahead) == {"e": 0.0}


def test_a_notice_names_a_few_of_many() -> None:
    clock = FleetClock()
    clock.note(NOON, dict.fromkeys("abcde", DAY) | dict.fromkeys("fghijk", 0), 0.0)
    assert "e is" not in clock.notice
    assert ", and 2 more: correct it" in clock.notice
