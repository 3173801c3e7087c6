"""When replicas that run different configurations are reported."""

from __future__ import annotations

import pytest

from holdfast.core import ConfigAgreement
from holdfast.core.replicas.agreement import LONGEST_ROLL_SECONDS, SETTLED_SECONDS

pytestmark = pytest.mark.requirement("FLEET-2")

DIFFERENT = {"a": ["new"], "b": ["old"], "c": ["new"]}


def test_a_difference_counts_once_when_it_stays_and_goes_when_they_agree() -> None:
    agreement = ConfigAgreement()
    assert not agreement.note(DIFFERENT, 0.0)
    assert not agreement.note(DIFFERENT, SETTLED_SECONDS - 1)
    assert not agreement.groups
    assert agreement.note(DIFFERENT, SETTLED_SECONDS)
    assert [*agreement.groups] == [("a", "c"), ("b",)]
    assert not agreement.note(DIFFERENT, SETTLED_SECONDS + 1)
    assert not agreement.note(DIFFERENT | {"d": ["old"]}, SETTLED_SECONDS + 2), "it is still the same difference"
    assert [*agreement.groups] == [("a", "c"), ("b", "d")]
    assert not agreement.note({name: ["new"] for name in "abcd"}, SETTLED_SECONDS + 3)
    assert not agreement.groups


def test_a_roll_of_many_replicas_is_no_difference() -> None:
    agreement, running = ConfigAgreement(), {f"old-{number}": ["old"] for number in range(12)}
    for number in range(12):
        assert not agreement.note(running, number * 60.0)
        running = {name: one for name, one in running.items() if name != f"old-{number}"} | {f"new-{number}": ["new"]}
    assert not agreement.note(running, 12 * 60.0)
    assert not agreement.groups


def test_a_replica_that_starts_again_and_again_does_not_hide_a_difference() -> None:
    agreement = ConfigAgreement()
    told = [agreement.note(DIFFERENT | {f"d-{number}": ["old"]}, number * 30.0) for number in range(40)]
    assert told.index(True) == LONGEST_ROLL_SECONDS / 30
    assert told.count(True) == 1


def test_replicas_with_a_key_in_common_agree_while_it_is_replaced_and_those_that_tell_nothing_do_not_count() -> None:
    agreement = ConfigAgreement()
    told = {"before": ["old-key"], "between": ["new-key", "old-key"], "after": ["new-key"], "earlier-release": []}
    for at in (0.0, SETTLED_SECONDS, LONGEST_ROLL_SECONDS):
        assert not agreement.note(told, at)
    assert not agreement.groups
