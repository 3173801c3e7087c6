"""Which replica a request belongs to: the home of a client, and the tag in the number of a question."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from holdfast.core import home_of, question_number, replica_tag, replicas_with_tag, tag_of_question

pytestmark = pytest.mark.requirement("FLEET-5")

_REPLICAS = st.frozensets(st.text(min_size=1, max_size=8), min_size=1, max_size=6)


@given(_REPLICAS, st.text(max_size=8), st.data())
@settings(max_examples=100)
def test_a_session_stays_with_the_replica_that_it_names_while_that_one_is_present(
    replicas: frozenset[str], client: str, data: st.DataObject
) -> None:
    named = data.draw(st.sampled_from(sorted(replicas)))
    assert home_of(client, named, replicas) == named
    if others := replicas - {named}:
        assert home_of(client, named, others) in others


@given(_REPLICAS, st.text(max_size=8), st.text(min_size=1, max_size=8))
@settings(max_examples=200)
def test_a_replica_that_comes_or_leaves_moves_only_the_homes_that_it_has(
    replicas: frozenset[str], client: str, other: str
) -> None:
    """So two replicas that know the same others agree, and no home moves between two that stay."""
    before, after = home_of(client, "", replicas - {other} or {"x"}), home_of(client, "", replicas | {other})
    if replicas - {other}:
        assert after in (before, other)


def test_homes_spread_over_the_replicas() -> None:
    replicas = [f"r{number}" for number in range(4)]
    found = [home_of(f"client {number}", "", replicas) for number in range(400)]
    assert all(60 <= found.count(replica) <= 140 for replica in replicas)


@given(st.text(min_size=1, max_size=80), st.integers(min_value=0, max_value=2**31 + 1000))
def test_a_question_names_its_replica_in_a_number_that_every_client_reads(name: str, number: int) -> None:
    made = question_number(replica_tag(name), number)
    assert made < 2**53
    assert tag_of_question(made) == replica_tag(name)
    assert name in replicas_with_tag(tag_of_question(made), [name, "another"])


@given(st.integers())
def test_any_other_number_names_a_replica_or_none(number: int) -> None:
    assert replicas_with_tag(tag_of_question(number), []) == []
