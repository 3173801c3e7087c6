"""How often a replica asks its store, and when a decision counts as known everywhere."""

from __future__ import annotations

import json

import pytest

from holdfast.core import (
    PRESENT_SECONDS,
    FleetExchange,
    FleetMember,
    FleetRecord,
    SharedStore,
    record_value,
    stamp,
)
from holdfast.core.replicas.member import (
    ALONE_SECONDS,
    EXCHANGE_SECONDS,
    RETRY_SECONDS,
    Alone,
    Connected,
    Happening,
)
from holdfast.core.replicas.probe_rights import LEAD_SECONDS, SOONEST_SECONDS

pytestmark = pytest.mark.requirement("FLEET-8", "PERF-8")

SETTLED = 10.0


class Asking:
    """One replica and its store, in virtual time."""

    def __init__(self, store: SharedStore, name: str = "a") -> None:
        self.store = store
        self.member = FleetMember(name)
        self.now = 0.0

    def turn(self) -> None:
        """The next exchange, when it is due."""
        self.now = max(self.now, self.member.due())
        asked = self.member.request(self.now, chance=0.5, nonce="n")
        self.member.receive(asked, self.store.exchange(asked, self.now), self.now)

    def until(self, end: float) -> int:
        """Exchange until that time; how often that was."""
        count = 0
        while self.member.due() <= end:
            self.turn()
            count += 1
        self.now = end
        return count


def test_a_replica_asks_so_often_that_a_decision_is_known_everywhere_within_a_second() -> None:
    store = SharedStore()
    reader, writer = Asking(store), Asking(store, "b")
    for one in (reader, writer):
        one.until(SETTLED)
    assert reader.until(SETTLED + 60) == pytest.approx(60 / EXCHANGE_SECONDS, abs=2)
    writer.until(SETTLED + 60)

    written = writer.member.write("switch/x", {"off": True}, 1.0)
    assert written is not None
    writer.member.pace.watch_writes(writer.now + 2)
    writer.turn()
    assert writer.now <= SETTLED + 60 + SOONEST_SECONDS, "a decision is sent at once"
    reader.turn()
    learned = reader.member.book.get("switch/x")
    assert learned is not None
    assert record_value(learned) == {"off": True}
    for one in (reader, writer):
        one.until(SETTLED + 61)
    assert writer.member.is_everywhere(written, writer.now)


def test_a_replica_asks_who_is_present_while_it_joins_and_then_once_a_second_or_when_it_is_needed() -> None:
    store, member = SharedStore(), FleetMember("a")
    asked_at: list[float] = []

    def asks(*times: float) -> list[float]:
        asked_at.clear()
        for now in times:
            asked = member.request(now, chance=0.5, nonce="n")
            member.receive(asked, store.exchange(asked, now), now)
            asked_at.extend([now] if asked.roster else [])
        return list(asked_at)

    assert asks(0.0, 0.5, 0.75) == [0.0, 0.5, 0.75], "as it joins, with every exchange"
    assert asks(1.0, 1.5, 1.75, 2.25, 2.5, 2.75) == [1.75, 2.75]
    assert not member.pace.has_roster(3.0)
    member.pace.want_roster()
    assert asks(3.0, 3.25) == [3.0]
    assert member.pace.has_roster(3.0)
    member.pace.watch_writes(4.0)
    assert asks(3.5, 3.75, 4.0, 4.5, 4.75) == [3.5, 3.75, 4.75]


@pytest.mark.requirement("FLEET-1", "FLEET-2")
def test_a_replica_reads_the_store_before_it_sends_its_copy() -> None:
    """A restart of a large fleet sends nothing that the store has, and is not told that the store was emptied."""
    known, own = (FleetRecord(f"switch/{name}", stamp(1, "a"), "{}") for name in ("known", "own"))
    store = SharedStore()
    store.exchange(FleetExchange(replica="b", nonce="n", records=(known,)), 0.0)
    member = FleetMember("a", records=(known, own))
    sent: list[list[str]] = []
    happened: list[Happening] = []
    for now in (0.0, 1.0, 2.0):
        asked = member.request(now, chance=0.5, nonce="n")
        sent.append([record.key for record in asked.records])
        happened += member.receive(asked, store.exchange(asked, now), now)
    assert sent == [[], ["switch/own"], []]
    assert happened == [Connected(emptied=False)]
    store.epoch = "another"
    asked = member.request(3.0, chance=0.5, nonce="n")
    assert member.receive(asked, store.exchange(asked, 3.0), 3.0) == (Connected(emptied=True),)


@pytest.mark.requirement("FLEET-2")
def test_a_new_connection_to_the_store_may_lead_to_another_one() -> None:
    only = Asking(SharedStore())
    only.until(SETTLED)
    assert only.member.is_settled(only.now)
    only.member.reconnected()
    assert not only.member.is_settled(only.now), "what the copy has not may be in this store"
    only.until(SETTLED + 1)
    assert not only.member.is_settled(only.now), "others may still send their copies to it"
    only.until(SETTLED + 5)
    assert only.member.is_settled(only.now)


@pytest.mark.requirement("FLEET-3")
def test_what_a_replica_knew_counts_no_more_once_its_store_is_silent() -> None:
    only = Asking(SharedStore())
    only.until(SETTLED)
    written = only.member.write("switch/x", {"off": True}, 1.0)
    assert written is not None
    only.turn()
    last, silent = only.now, only.now + ALONE_SECONDS
    assert only.member.is_everywhere(written, silent - 0.01)
    assert only.member.is_settled(silent - 0.01)
    assert not only.member.is_everywhere(written, silent)
    assert not only.member.is_settled(silent)

    only.member.write("switch/y", {"off": True}, 1.0)
    assert only.member.due() == last + SOONEST_SECONDS
    only.member.request(silent, chance=0.5, nonce="n")
    only.member.failed(silent)
    assert only.member.due() == silent + RETRY_SECONDS, "also with something that cannot wait"


@pytest.mark.requirement("FLEET-2")
def test_a_replica_asks_in_time_for_a_right_and_not_while_it_is_alone() -> None:
    only = Asking(SharedStore())
    only.until(SETTLED)
    next_exchange = only.member.due()
    only.member.probes.want("s", next_exchange + LEAD_SECONDS - 0.1, 1, only.now)
    assert only.member.due() == pytest.approx(next_exchange - 0.1)
    only.member.is_alone = True
    assert only.member.due() == next_exchange


def test_a_replica_says_of_itself_what_it_was_given_and_how_far_it_has_read() -> None:
    said = FleetMember("a", about={"address": "here"}).request(0.0, chance=0.5, nonce="n").presence
    assert json.loads(said) == {"address": "here", "epoch": "", "seen": 0}


@pytest.mark.requirement("FLEET-3")
def test_a_replica_whose_store_never_answered_goes_on_alone_after_a_moment() -> None:
    member = FleetMember("a")
    for now in (0.0, 0.7, 1.4):
        member.request(now, chance=0.5, nonce="n")
        assert member.failed(now + 0.1) == ()
    member.request(2.1, chance=0.5, nonce="n")
    assert member.failed(2.2) == (Alone(),)


@pytest.mark.requirement("FLEET-2")
def test_a_decision_is_not_everywhere_while_replicas_with_another_key_use_the_store() -> None:
    writer = Asking(SharedStore())
    writer.until(SETTLED)
    written = writer.member.write("switch/x", {"off": True}, 1.0)
    assert written is not None
    writer.turn()
    assert writer.member.is_everywhere(written, writer.now)

    writer.member.strangers = 1  # they write under the same keys

    assert not writer.member.is_everywhere(written, writer.now)


@pytest.mark.requirement("FLEET-2")
@pytest.mark.parametrize(("epoch", "seen", "everywhere"), [("n", 1, True), ("n", 0, False), ("older", 99, False)])
def test_a_decision_is_everywhere_once_all_have_read_past_it_in_the_store_of_now(
    epoch: str, seen: int, everywhere: bool
) -> None:
    store = SharedStore()
    writer = Asking(store)
    written = writer.member.write("switch/x", {"off": True}, 1.0)
    assert written is not None
    writer.until(SETTLED)
    assert (store.epoch, store.sequence) == ("n", 1)
    store.replicas["b"] = (SETTLED * 2, json.dumps({"epoch": epoch, "seen": seen}))
    writer.until(SETTLED + 2.0)
    assert set(writer.member.peers) == {"a", "b"}
    assert writer.member.is_everywhere(written, writer.now) == everywhere


def test_who_is_present_counts_from_the_beginning_of_the_exchange_that_asked() -> None:
    one = Asking(SharedStore())
    one.turn()
    assert [one.member.pace.has_roster(since) for since in (one.now, one.now + 0.1)] == [True, False]
    one.member.pace.want_roster()
    assert not one.member.pace.has_roster(one.now)
    assert one.member.due() == one.now + SOONEST_SECONDS


@pytest.mark.requirement("FLEET-2")
def test_a_decision_is_not_everywhere_while_a_store_that_was_emptied_has_not_heard_of_all() -> None:
    store = SharedStore()
    writer, other = Asking(store), Asking(store, "b")
    for one in (writer, other):
        one.until(SETTLED)
    writer.until(SETTLED + 1.5)
    assert set(writer.member.peers) == {"a", "b"}

    writer.store = SharedStore()
    written = writer.member.write("switch/x", {"off": True}, 1.0)
    assert written is not None
    emptied = writer.now
    while not (writer.member.outbox.arrived.get("switch/x") and set(writer.member.peers) == {"a"}):
        asked = writer.member.request(writer.now, chance=0.5, nonce="another")
        writer.member.receive(asked, writer.store.exchange(asked, writer.now), writer.now)
        writer.now = max(writer.now, writer.member.due())

    assert writer.now < emptied + PRESENT_SECONDS
    assert not writer.member.is_everywhere(written, writer.now), "b may be there still, and has not read it"
    writer.until(emptied + 2 * PRESENT_SECONDS)
    assert writer.member.is_everywhere(written, writer.now)
