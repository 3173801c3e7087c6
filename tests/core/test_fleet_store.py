"""The store of replicas: one has a right at a time, and the end of its process ends what it had."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from holdfast.core import Claim, ClaimAnswer, ClaimRelease, FleetExchange, FleetRecord, SharedStore, stamp

pytestmark = pytest.mark.requirement("FLEET-2", "FLEET-4", "FLEET-8")


def asks(store: SharedStore, replica: str, now: float, *claims: Claim, roster: bool = False) -> tuple[ClaimAnswer, ...]:
    asked = FleetExchange(replica=replica, nonce="n", epoch=store.epoch, claims=claims, roster=roster)
    return store.exchange(asked, now).claims


def store_with(*replicas: str) -> SharedStore:
    store = SharedStore()
    for replica in replicas:
        asks(store, replica, 0.0)
    return store


def test_one_replica_has_a_right_until_it_ends_and_may_extend_it() -> None:
    store = store_with("a", "b")
    (held,) = asks(store, "a", 0.0, Claim("probe/d/x", 10.0))
    assert held.granted
    (refused,) = asks(store, "b", 1.0, Claim("probe/d/x", 10.0))
    assert (refused.granted, refused.wait, refused.holder) == (False, 9.0, "a")
    assert not asks(store, "b", 1.0, Claim("probe/d/x", 10.0, extends=True))[0].granted, "it is not the holder"
    assert not asks(store, "a", 1.0, Claim("probe/d/x", 10.0))[0].granted, "one right is one try"
    (extended,) = asks(store, "a", 6.0, Claim("probe/d/x", 10.0, extends=True))
    assert extended.granted
    assert not asks(store, "b", 15.9, Claim("probe/d/x", 10.0))[0].granted
    assert asks(store, "b", 16.1, Claim("probe/d/x", 10.0))[0].granted


def test_of_two_versions_of_a_record_the_later_one_stays_whichever_comes_first() -> None:
    old, new = FleetRecord("switch/x", stamp(1, "a"), "1"), FleetRecord("switch/x", stamp(2, "b"), "2")
    for order in ((old, new), (new, old), (new, new)):
        store = store_with("a")
        for record in order:
            store.exchange(FleetExchange(replica="a", epoch=store.epoch, records=(record,)), 0.0)
        reply = store.exchange(FleetExchange(replica="b", epoch=store.epoch), 0.0)
        assert reply.records == (new,)
        assert reply.sequence == (2 if order == (old, new) else 1), "what is known is no news to read"


def test_a_replica_reads_on_from_its_cursor_and_all_of_a_store_that_its_cursor_is_not_of() -> None:
    store = store_with("a")
    records = tuple(FleetRecord(f"switch/{number}", stamp(number, "a"), "") for number in (1, 2, 3))
    store.exchange(FleetExchange(replica="a", epoch=store.epoch, records=records), 0.0)

    def read(cursor: int, epoch: str = store.epoch) -> tuple[FleetRecord, ...]:
        return store.exchange(FleetExchange(replica="b", epoch=epoch, cursor=cursor), 0.0).records

    assert (read(2), read(3)) == (records[2:], ())
    assert read(4) == records, "this one is an older copy"
    assert read(2, "another") == records, "that one was emptied"


def test_a_right_that_was_used_is_given_to_no_one_before_its_delay_has_passed() -> None:
    store = store_with("a", "b")
    asks(store, "a", 0.0, Claim("probe/d/x", 10.0))
    given_back = (ClaimRelease("probe/d/x", delay=5.0),)
    store.exchange(FleetExchange(replica="b", epoch=store.epoch, releases=given_back), 1.0)
    assert asks(store, "b", 1.5, Claim("probe/d/x"))[0].holder == "a", "only its holder gives it back"
    store.exchange(FleetExchange(replica="a", epoch=store.epoch, releases=given_back), 2.0)
    for replica in ("a", "b"):
        (refused,) = asks(store, replica, 3.0, Claim("probe/d/x"))
        assert (refused.granted, refused.wait, refused.holder) == (False, 4.0, "")
    assert asks(store, "b", 7.1, Claim("probe/d/x"))[0].granted


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y"]), st.floats(0, 20))), st.sampled_from("abc")
)
def test_the_end_of_a_process_ends_its_rights_and_its_presence_and_none_of_another(
    claims: list[tuple[str, str, float]], dead: str
) -> None:
    store = store_with("a", "b", "c")
    for replica, key, seconds in claims:
        asks(store, replica, 1.0, Claim(key, seconds))
    before = dict(store.claims)
    store.died(dead)
    assert store.claims == {key: claim for key, claim in before.items() if claim[0] != dead}
    reply = store.exchange(FleetExchange(replica="d", epoch=store.epoch, roster=True), 1.1)
    assert reply.replicas is not None
    assert set(reply.replicas) == {"a", "b", "c", "d"} - {dead}


def test_claims_and_replicas_that_are_over_are_forgotten() -> None:
    store = store_with("a")
    asks(store, "a", 0.0, Claim("probe/d/x", 10.0))
    asks(store, "b", 11.0, roster=True)
    assert store.claims == {}
    assert set(store.replicas) == {"b"}
