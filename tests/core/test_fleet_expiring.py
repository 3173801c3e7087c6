"""Records of sessions end by themselves, everywhere, and their number is bounded."""

from __future__ import annotations

import random

import pytest

from holdfast.core import FleetMember, FleetRecord, RecordLearned, SharedStore
from holdfast.core.replicas.store import BATCH_BYTES, ExpiringKeys, expires_at, stamp

pytestmark = pytest.mark.requirement("FLEET-2")


def record(key: str, until: object, number: int = 1) -> FleetRecord:
    return FleetRecord(key, stamp(number, "a"), f'{{"until":{until}}}')


def test_only_records_of_sessions_end_and_one_that_says_nothing_is_over_at_once() -> None:
    assert expires_at(record("switch/x", 5)) is None
    assert expires_at(record("session/x", 5)) == 5.0
    assert expires_at(FleetRecord("ended/x", stamp(1, "a"), "nonsense")) == 0.0
    assert expires_at(record("session/x", "1" + "0" * 400)) == 0.0


def test_keys_are_over_in_the_order_of_their_ends_and_a_later_version_lives_longer() -> None:
    keys = ExpiringKeys()
    for number in range(100):
        keys.note(record(f"session/{number}", number))
    keys.note(record("session/3", 500))
    assert keys.take_over(10) == [f"session/{number}" for number in range(11) if number != 3]
    assert len(keys) == 90
    for until in range(1_000, 2_000):  # one session that is used again and again costs no memory
        keys.note(record("session/3", until))
    assert len(keys._order) < 400
    assert keys.take_over(20) == [f"session/{number}" for number in range(11, 21)], "the order is kept"
    assert not keys.crowded


def test_a_session_that_is_used_often_hides_no_other_one_that_is_over() -> None:
    keys = ExpiringKeys()
    for until in range(1_000, 1_102):
        keys.note(record("session/used", until))
    for number in range(20):
        keys.note(record(f"session/{number}", number))
    assert keys.take_over(500) == [f"session/{number}" for number in range(20)]


def test_those_that_end_first_give_way_where_there_are_too_many() -> None:
    keys = ExpiringKeys(most=10)
    numbers = list(range(30))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        keys.note(record(f"ended/{number}", 1_000 + number))
    assert sorted(keys.take_over(0)) == sorted(f"ended/{number}" for number in range(20))
    assert keys.crowded
    assert len(keys.take_over(5_000)) == 10
    assert keys.crowded, "those that end in time do not undo it"


def exchange(member: FleetMember, store: SharedStore, now: float) -> list[str]:
    asked = member.request(now, chance=0.0, nonce="n")
    happened = member.receive(asked, store.exchange(asked, now), now)
    return [one.record.key for one in happened if isinstance(one, RecordLearned)]


def settle(members: list[FleetMember], store: SharedStore, now: float) -> None:
    for _ in range(6):
        for member in members:
            exchange(member, store, now)


def test_a_record_that_is_over_leaves_the_store_and_every_copy_and_does_not_come_back() -> None:
    store, one, other = SharedStore(), FleetMember("one"), FleetMember("other")
    settle([one, other], store, 0.0)
    one.write("ended/x", {"until": 100.0}, wall=1.0)
    one.write("switch/s", {"off": True}, wall=1.0)
    settle([one, other], store, 1.0)
    assert {found.key for found in other.book.values()} == {"ended/x", "switch/s"}
    one.purge(101.0)
    settle([one, other], store, 2.0)
    assert set(store.records) == {"switch/s"}
    other.purge(101.0)
    store.epoch = "another"  # it was emptied: every replica sends its copy again
    store.records.clear()
    settle([one, other], store, 3.0)
    assert set(store.records) == {"switch/s"}
    one.write("ended/x", {"until": 300.0}, wall=102.0)
    settle([one, other], store, 4.0)
    assert {found.key for found in other.book.values()} == {"ended/x", "switch/s"}


def test_a_lone_replica_forgets_no_end_of_a_session() -> None:
    member = FleetMember("one")
    member.write("ended/x", {"until": 100.0}, wall=1.0)
    member.failed(0.0)
    member.request(0.0, chance=0.0, nonce="n")
    member.failed(10.0)
    assert member.is_alone
    member.purge(1_000.0)
    assert member.book.get("ended/x") is not None


def test_large_records_go_in_several_exchanges() -> None:
    store, one, other = SharedStore(), FleetMember("one"), FleetMember("other")
    settle([one, other], store, 0.0)
    for number in range(40):
        one.write(f"listing/{number}", {"content": "x" * 60_000}, wall=1.0)
    asked = one.request(1.0, chance=0.0, nonce="n")
    assert sum(len(found.value) for found in asked.records) < BATCH_BYTES + 61_000
    one.receive(asked, store.exchange(asked, 1.0), 1.0)
    for _ in range(6):
        exchange(one, store, 1.0)
    read = 0
    for _ in range(8):
        learned = exchange(other, store, 1.0)
        assert len(learned) <= 10
        read += len(learned)
    assert read == 40
