"""The store of a fleet: what the death of a replica's process changes, and what it must not change."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from holdfast.core import FleetExchange, SharedStore
from holdfast.core.replicas.store import REMEMBER_SECONDS, Claim, ClaimAnswer, ClaimRelease

pytestmark = pytest.mark.requirement("FLEET-6", "FLEET-8")


def asks(store: SharedStore, replica: str, now: float, *claims: Claim, roster: bool = False) -> tuple[ClaimAnswer, ...]:
    asked = FleetExchange(replica=replica, nonce="n", epoch=store.epoch, claims=claims, roster=roster)
    return store.exchange(asked, now).claims


def store_with(*replicas: str) -> SharedStore:
    store = SharedStore(settled=True)
    for replica in replicas:
        asks(store, replica, 0.0)
    return store


def test_what_a_dead_process_ran_is_given_away_when_it_has_ended_and_not_before() -> None:
    store = store_with("a", "b")
    (held,) = asks(store, "a", 0.0, Claim("server/x", ttl=8.0))
    store.died("a", 1.0, within=2.0)
    (early,) = asks(store, "b", 2.9, Claim("server/x", ttl=8.0))
    assert (early.granted, early.holder) == (False, "a")
    (late,) = asks(store, "b", 3.1, Claim("server/x", ttl=8.0))
    assert late.granted
    assert late.token > held.token


def test_a_dead_replica_is_not_present_any_more_and_the_others_are() -> None:
    store = store_with("a", "b")
    store.died("a", 0.1, within=2.0)
    reply = store.exchange(FleetExchange(replica="b", epoch=store.epoch, roster=True), 0.1)
    assert reply.replicas is not None
    assert set(reply.replicas) == {"b"}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y"]), st.floats(0, 20))),
    st.sampled_from("abc"),
    st.floats(0, 10),
)
def test_a_death_lengthens_no_claim_and_touches_none_of_another_replica(
    claims: list[tuple[str, str, float]], dead: str, within: float
) -> None:
    store = store_with("a", "b", "c")
    for replica, key, ttl in claims:
        asks(store, replica, 1.0, Claim(key, ttl=ttl))
    before = {key: (state.holder, state.until, state.token) for key, state in store.claims.items()}
    store.died(dead, 2.0, within=within)
    for key, state in store.claims.items():
        holder, until, token = before[key]
        assert (state.holder, state.token) == (holder, token)
        assert state.until == (min(until, 2.0 + within) if holder == dead else until)


@pytest.mark.requirement("FLEET-4")
def test_the_claim_of_a_probe_is_forgotten_a_day_after_it_ended_and_that_of_a_server_is_not() -> None:
    """Each definition of a server, and each replica that ever ran, has its own key for probes."""
    store = store_with("a")
    asks(store, "a", 0.0, Claim("probe/one@a/x", ttl=60.0), Claim("run/x", ttl=8.0))
    later = ClaimRelease("probe/one@a/x", 1, delay=90.0)
    store.exchange(FleetExchange(replica="a", epoch=store.epoch, releases=(later,)), 10.0)
    asks(store, "a", 99.0 + REMEMBER_SECONDS, roster=True)
    assert store.claims.keys() == {"probe/one@a/x", "run/x"}
    asks(store, "a", 101.0 + REMEMBER_SECONDS, roster=True)
    assert store.claims.keys() == {"run/x"}
