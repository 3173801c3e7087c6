"""The homes of clients: replicas and the store in any order, with replicas that die or cannot reach each other."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from holdfast.core import (
    ClientHomes,
    FleetExchange,
    SharedStore,
    question_number,
    replica_tag,
    replicas_with_tag,
    tag_of_question,
)
from holdfast.core.replicas.homes import HOME_SECONDS
from holdfast.core.replicas.store import REMEMBER_SECONDS

pytestmark = pytest.mark.requirement("FLEET-5")


class Replica:
    """One replica with its homes; what it believes is what it would serve."""

    def __init__(self, name: str, store: SharedStore) -> None:
        self.name = name
        self.homes = ClientHomes(name)
        self._store = store
        self.lost: list[str] = []

    def exchange(self, now: float, *, leaving: bool = False) -> None:
        claims = () if leaving else tuple(self.homes.claims(now))
        asked = FleetExchange(
            replica=self.name,
            epoch=self._store.epoch,
            claims=claims,
            releases=self.homes.releases(leaving=leaving),
            roster=True,
        )
        reply = self._store.exchange(asked, now)
        self.homes.released(asked.releases)
        for answer in reply.claims:
            if (lost := self.homes.answered(answer, now)) is not None:
                self.lost.append(lost)

    def serves(self, key: str) -> bool:
        return self.homes.holder(key) == self.name


@pytest.mark.parametrize("seed", range(40))
def test_of_several_replicas_one_is_the_home_and_an_earlier_one_learns_of_it(seed: int) -> None:
    chance = random.Random(seed)
    store = SharedStore(epoch="n", settled=True)
    replicas = [Replica(name, store) for name in "abcd"]
    now, stolen_at = 0.0, float("-inf")
    for _ in range(300):
        now += chance.random()
        one = chance.choice(replicas)
        holder = one.homes.holder("k")
        if chance.random() < 0.3:
            dead = holder if holder and holder != one.name and chance.random() < 0.3 else ""
            one.homes.ask("k", instead_of=dead)
            stolen_at = now if dead else stolen_at
        one.exchange(now)
        for each in replicas:  # every replica exchanges at least twice a second
            if chance.random() < 0.5:
                each.exchange(now)
        serving = [each.name for each in replicas if each.serves("k")]
        held = store.claims.get("client/k")
        if held is not None and held.holder and held.until > now:
            assert held.holder in serving
        if now - stolen_at > HOME_SECONDS:
            assert len(serving) <= 1


def test_of_two_that_find_a_home_dead_one_wins_and_the_other_learns_which() -> None:
    store = SharedStore(epoch="n", settled=True)
    a, b, c = (Replica(name, store) for name in "abc")
    for each in (a, b, c):
        each.homes.ask("k")
        each.exchange(0.0)
    assert [each.homes.holder("k") for each in (a, b, c)] == ["a", "a", "a"]
    assert a.homes.is_first("k")
    for each in (b, c):
        each.homes.ask("k", instead_of="a")
    b.exchange(1.0)
    c.exchange(1.0)
    assert [each.homes.holder("k") for each in (b, c)] == ["b", "b"]
    assert not b.homes.is_first("k")  # a connection of this client was lost
    a.exchange(HOME_SECONDS / 2 + 0.1)
    assert (a.homes.holder("k"), a.lost) == ("b", ["k"])


def test_a_home_tells_an_emptied_store_at_once() -> None:
    store = SharedStore(epoch="n", settled=True)
    a, b = Replica("a", store), Replica("b", store)
    a.homes.ask("k")
    a.exchange(0.0)
    store.claims.clear()
    a.homes.extend_all()
    a.exchange(0.1)
    b.homes.ask("k")
    b.exchange(0.2)
    assert (a.homes.holder("k"), b.homes.holder("k")) == ("a", "a")


def test_a_home_without_connections_is_given_back_and_remembered_for_a_day() -> None:
    store = SharedStore(epoch="n", settled=True)
    a, b = Replica("a", store), Replica("b", store)
    a.homes.ask("k")
    a.exchange(0.0)
    a.homes.using = lambda _: False
    a.exchange(HOME_SECONDS)
    assert a.homes.holder("k") == ""
    b.homes.ask("k")
    b.exchange(HOME_SECONDS + 0.1)
    assert b.serves("k")
    assert not b.homes.is_first("k")
    b.exchange(HOME_SECONDS + 0.2, leaving=True)
    a.exchange(3 * HOME_SECONDS + REMEMBER_SECONDS)
    assert store.claims == {}


@given(st.text(min_size=1, max_size=80), st.integers(min_value=0, max_value=2**31 + 1000))
def test_a_question_names_its_replica_in_a_number_that_every_client_reads(name: str, number: int) -> None:
    made = question_number(replica_tag(name), number)
    assert made < 2**53
    assert tag_of_question(made) == replica_tag(name)
    assert name in replicas_with_tag(tag_of_question(made), [name, "another"])


@given(st.integers())
def test_any_other_number_names_a_replica_or_none(number: int) -> None:
    assert replicas_with_tag(tag_of_question(number), []) == []
