"""What a replica still has to tell its store, the numbers of its decisions, and the rights that it wants and has."""

from __future__ import annotations

import math

import pytest

from holdfast.core import ClaimAnswer, ClaimRelease, FleetRecord, FleetReply, VersionClock, stamp
from holdfast.core.replicas.member import Outbox
from holdfast.core.replicas.probe_rights import (
    GRACE_SECONDS,
    LEAD_SECONDS,
    PROBE_SECONDS,
    SOONEST_SECONDS,
    Granted,
    ProbeClaims,
    Unused,
)
from holdfast.core.replicas.store import BATCH_BYTES, RecordBook, first_stamp

pytestmark = pytest.mark.requirement("FLEET-2", "FLEET-4")

REPLY = FleetReply(epoch="e", sequence=7, cursor=7)


def record(number: int, key: str = "switch/x", value: str = "{}") -> FleetRecord:
    return FleetRecord(key=key, value=value, stamp=stamp(number, "a"))


class Claims(ProbeClaims):
    """The rights of replica a, alone, with a try of a server under way or not."""

    def __init__(self) -> None:
        self.trying = False
        self.hurried = 0
        super().__init__("a", RecordBook(), lambda _: self.trying, replicas=list, hurry=self.hurries)

    def hurries(self) -> None:
        self.hurried += 1

    def granted(self, at: float = 10.0, now: float = 0.0) -> str:
        """A right that the store gave; its key."""
        self.want("s", at, 1, now)
        (asked,) = self.claims(at - LEAD_SECONDS)
        self.answered(ClaimAnswer(key=asked.key, granted=True), at - LEAD_SECONDS, at - LEAD_SECONDS)
        return asked.key


def test_numbers_grow_by_the_clock_or_by_one_and_pass_those_of_others() -> None:
    clock = VersionClock()
    assert [clock.next(1.0), clock.next(1.0), clock.next(0.5), clock.next(2.0)] == [1000, 1001, 1002, 2000]
    clock.saw(stamp(5000, "b"))
    assert clock.next(2.0) == 5001
    clock.saw(first_stamp(9000, "b"))
    clock.saw(stamp(1, "b"))
    assert clock.next(2.0) == 9001


def test_a_record_stays_unsent_until_the_store_has_this_version_or_a_later_one() -> None:
    outbox = Outbox(["switch/x", "listing/y"])
    assert outbox.decisions() == ["switch/x"]
    outbox.taken(record(1), record(2), REPLY)
    assert "switch/x" in outbox.unsent
    assert outbox.arrived == {}
    outbox.taken(record(2), record(2), REPLY)
    assert "switch/x" not in outbox.unsent
    assert outbox.arrived == {"switch/x": ("e", 7, record(2).stamp)}
    outbox.begin_again(["switch/x"])
    outbox.taken(record(1), record(2), REPLY)
    assert "switch/x" in outbox.unsent, "it has lost it"


def test_what_the_store_has_is_sent_only_if_this_replica_has_a_later_version() -> None:
    outbox = Outbox([])
    outbox.found(record(1), record(2), REPLY)
    assert list(outbox.unsent) == ["switch/x"]
    outbox.forget("switch/x")
    assert (list(outbox.unsent), list(outbox.drops), outbox.arrived) == ([], ["switch/x"], {})
    outbox.found(record(3), record(2), REPLY)
    assert (list(outbox.unsent), list(outbox.drops)) == ([], [])
    outbox.forget("switch/x")
    outbox.wrote("switch/x")
    assert (list(outbox.unsent), list(outbox.drops)) == (["switch/x"], [])
    outbox.found(record(2), record(2), REPLY)
    assert list(outbox.unsent) == []


def test_an_exchange_carries_records_up_to_a_size() -> None:
    book = RecordBook()
    for name in "abc":
        assert book.merge(record(1, f"switch/{name}", "x" * (BATCH_BYTES // 2)))
    outbox = Outbox(["switch/gone", *book])
    assert [one.key for one in outbox.batch(book)] == ["switch/a", "switch/b"]
    assert len(book) == 3
    assert not book.merge(record(1, "switch/a")), "it is known"


def test_a_right_is_asked_for_once_it_is_due_and_again_until_an_answer_comes() -> None:
    claims = Claims()
    assert claims.first_ask() == math.inf
    claims.want("s", 10.0, 1, 0.0)
    assert claims.first_ask() == 10.0 - LEAD_SECONDS
    assert claims.claims(8.9) == []
    for now in (9.0, 9.5):
        (asked,) = claims.claims(now)
        assert asked.seconds == 10.0 - now + PROBE_SECONDS
    claims.want("s", None, 1, 9.5)
    assert (claims.first_ask(), claims.claims(99.0)) == (math.inf, [])


def test_a_right_that_is_refused_is_asked_for_when_it_ends_and_a_moment_later_where_another_has_it() -> None:
    for holder, later in (("b", GRACE_SECONDS), ("", 0.0)):
        claims = Claims()
        claims.want("s", 10.0, 1, 0.0)
        (asked,) = claims.claims(9.0)
        assert claims.answered(ClaimAnswer(key=asked.key, granted=False, wait=4.0, holder=holder), 9.0, 9.0) == []
        assert claims.first_ask() == 13.0 + later
        claims.answered(ClaimAnswer(key=asked.key, granted=False, wait=0.0, holder=holder), 13.0, 13.0)
        assert claims.first_ask() == 13.0 + SOONEST_SECONDS + later


def test_a_right_is_held_from_its_time_on_and_extended_while_it_is_used() -> None:
    claims = Claims()
    key = claims.granted()
    assert claims.told() == ["s"]
    assert claims.next_tick(alone=False) == 10.0 + PROBE_SECONDS
    almost = 10.0 + PROBE_SECONDS / 2 + 0.1
    assert claims.claims(almost) == [], "it is not used"
    claims.trying = True
    assert claims.claims(almost - 0.2) == [], "it lasts long enough"
    (kept,) = claims.claims(almost)
    assert (kept.key, kept.seconds, kept.extends) == (key, PROBE_SECONDS, True)
    claims.answered(ClaimAnswer(key=key, granted=False, holder="b"), 15.5, 15.6)
    assert claims.next_tick(alone=False) == 10.0 + PROBE_SECONDS, "another has it by now"
    claims.answered(ClaimAnswer(key=key, granted=True), 16.0, 16.1)
    assert claims.next_tick(alone=False) == 16.0 + PROBE_SECONDS
    assert claims.tick(26.0, alone=False) == []
    assert claims.next_tick(alone=False) == 26.0 + PROBE_SECONDS, "it is used, and the store did not extend it"
    claims.trying = False
    assert claims.tick(26.0 + PROBE_SECONDS, alone=False) == [Unused("s")]
    assert claims.to_release == [ClaimRelease(key, 0.0)]
    assert claims.told() == []


def test_the_store_is_told_when_a_right_that_it_gave_is_free_again() -> None:
    claims = Claims()
    key = claims.granted()
    claims.release("s", 5.0)
    claims.release("s", 5.0)
    assert (claims.to_release, claims.hurried) == ([ClaimRelease(key, 5.0 - LEAD_SECONDS)], 1)
    claims.want("s", 30.0, 2, 20.0)
    assert (claims.next_tick(alone=True), claims.next_tick(alone=False)) == (30.0, None)
    assert claims.tick(30.0, alone=True) == [Granted("s", 30.0 + PROBE_SECONDS)]
    claims.release("s", 5.0)
    assert len(claims.to_release) == 1, "the store knows nothing of a right that a lone replica gave itself"


def test_a_right_that_came_too_late_is_given_back() -> None:
    for late in ("not wanted", "another definition"):
        claims = Claims()
        claims.want("s", 10.0, 1, 0.0)
        (asked,) = claims.claims(9.0)
        claims.want("s", *((None, 1, 9.0) if late == "not wanted" else (10.0, 1, 9.0)), definition="new")
        assert claims.answered(ClaimAnswer(key=asked.key, granted=True), 9.0, 9.0) == []
        assert claims.to_release == [ClaimRelease(asked.key)]
    claims = Claims()
    key = claims.granted()
    claims.leave()
    assert claims.to_release == [ClaimRelease(key)]
