"""What replicas write and read of each other, whole: evidence, stamps, keys, rights, presence and their bounds."""

from __future__ import annotations

import json

import pytest

from holdfast.core import FleetMember, FleetRecord, SharedStore, record_key, record_value, stamp
from holdfast.core.lifecycle.events import PeerRecovered, PeerTripped
from holdfast.core.replicas.agreement import SKEW_SECONDS, ConfigAgreement, FleetClock, question_number, tag_of_question
from holdfast.core.replicas.member import ExchangePace, Peer
from holdfast.core.replicas.probe_rights import (
    GRACE_SECONDS,
    LEAD_SECONDS,
    PROBE_SECONDS,
    SOONEST_SECONDS,
    Granted,
    ProbeClaims,
    Unused,
)
from holdfast.core.replicas.store import (
    BATCH,
    LONGEST_REASON,
    LONGEST_WAIT,
    PRESENT_SECONDS,
    Claim,
    ClaimAnswer,
    ClaimRelease,
    FleetExchange,
    RecordBook,
    evidence_event,
    evidence_value,
    first_stamp,
    is_stamp,
    keyed_tool,
)

pytestmark = pytest.mark.requirement("FLEET-2", "FLEET-4")

TRIPPED = PeerTripped(
    status="denied",
    reason="HTTP 403",
    attempts=3,
    retry_in=4.5,
    parked=True,
    unreachable=True,
    answers=True,
    by_calls=True,
)


def evidence(value: object) -> FleetRecord:
    return FleetRecord("evidence/s", stamp(1, "a"), json.dumps(value))


def test_evidence_crosses_whole_to_replicas_with_the_same_definition_and_to_no_others() -> None:
    told = evidence_value(TRIPPED, "d")
    assert evidence_event(evidence(told), "d") == TRIPPED
    assert evidence_event(evidence(told), "other") is None
    assert evidence_event(evidence(evidence_value(PeerRecovered(), "d")), "d") == PeerRecovered()
    for field in ("parked", "unreachable", "answers", "by_calls"):
        seen = evidence_event(evidence({**told, field: 1}), "d")
        assert isinstance(seen, PeerTripped)
        assert getattr(seen, field) is False
        assert evidence_event(evidence({name: one for name, one in told.items() if name != field}), "d") is None
    assert evidence_event(evidence({**told, "up": 1}), "d") == TRIPPED


def test_each_part_of_foreign_evidence_is_bounded() -> None:
    odd = {"status": "odd", "reason": "x" * (LONGEST_REASON + 1), "attempts": -1, "retry_in": LONGEST_WAIT + 1}
    seen = evidence_event(evidence({**evidence_value(TRIPPED, "d"), **odd}), "d")
    assert isinstance(seen, PeerTripped)
    assert (seen.status, seen.reason) == ("transient", "x" * LONGEST_REASON)
    assert (seen.attempts, seen.retry_in) == (0, LONGEST_WAIT)
    seen = evidence_event(evidence({**evidence_value(TRIPPED, "d"), "retry_in": -1}), "d")
    assert isinstance(seen, PeerTripped)
    assert seen.retry_in == 0.0
    unusable: tuple[object, ...] = ("x", None, [], float("inf"))
    for wrong in unusable:
        assert evidence_event(evidence({**evidence_value(TRIPPED, "d"), "attempts": wrong}), "d") is None
    assert evidence_event(FleetRecord("evidence/s", stamp(1, "a"), "[]"), "d") is None
    assert evidence_value(PeerTripped(reason="x" * (LONGEST_REASON + 1)), "d")["reason"] == "x" * LONGEST_REASON


def test_the_latest_decision_and_the_earliest_first_sight_win_and_a_decision_wins_over_a_first_sight() -> None:
    assert first_stamp(2, "b") < first_stamp(1, "a") < stamp(1, "a") < stamp(2, "a") < stamp(2, "b")
    assert all(is_stamp(one) for one in (stamp(1, "a"), first_stamp(1, "a")))
    for text in ("", "2" + stamp(1, "a")[1:], stamp(1, ""), f"{stamp(1, 'a')} ", stamp(1, "a")[1:]):
        assert not is_stamp(text), text
    assert FleetRecord("k", stamp(1, "a.b"), "").writer == "a.b"


def test_a_key_names_its_server_and_tool_with_any_characters() -> None:
    assert record_key("pin", "a/b", "c d\ud800") == "pin/a%2Fb/c%20d%ED%A0%80"
    assert keyed_tool("pin/a%2Fb/c%20d%ED%A0%80") == ("a/b", "c d\ud800")
    assert keyed_tool("switch/a%2Fb") == ("a/b", "")
    assert record_value(FleetRecord("k", "", "no json")) == {}


# Rights to probe.


def claims(*replicas: str, using: bool = False, hurried: list[bool] | None = None) -> ProbeClaims:
    return ProbeClaims(
        "a",
        RecordBook(),
        lambda _: using,
        replicas=lambda: replicas,
        hurry=lambda: hurried.append(True) if hurried is not None else None,
    )


def granted(probes: ProbeClaims, at: float = 10.0) -> None:
    probes.want("s", at, 1, 0.0, definition="d")
    assert probes.answered(ClaimAnswer("probe/d/s", True), at, at) == [Granted("s", at + PROBE_SECONDS)]


def test_a_right_is_asked_for_a_lead_before_its_time_and_lasts_from_that_time_on() -> None:
    probes = claims()
    probes.want("s", 10.0, 1, 0.0, definition="d")
    assert probes.first_ask() == 10.0 - LEAD_SECONDS
    assert probes.claims(10.0 - LEAD_SECONDS - 0.01) == []
    assert probes.claims(10.0 - LEAD_SECONDS) == [Claim("probe/d/s", LEAD_SECONDS + PROBE_SECONDS)]
    assert probes.claims(12.0) == [Claim("probe/d/s", PROBE_SECONDS)]
    assert repr(probes) == "<ProbeClaims of 'a' wants=1 held=0>"
    early = probes.answered(ClaimAnswer("probe/d/s", True), 9.0, 9.5)
    assert early == [Granted("s", 10.0 + PROBE_SECONDS)]
    assert probes.claims(12.0) == []
    probes.want("other", 5.0, 1, 0.0)
    probes.want("other", None, 1, 0.0)
    assert probes.claims(50.0) == []


def test_a_right_that_another_has_is_asked_for_again_after_its_wait_and_a_grace_for_its_holder() -> None:
    probes = claims()
    probes.want("s", 10.0, 1, 0.0, definition="d")
    assert probes.answered(ClaimAnswer("probe/d/s", False, 3.0, "b"), 10.0, 11.0) == []
    assert probes.first_ask() == 11.0 + 3.0 + GRACE_SECONDS
    assert probes.answered(ClaimAnswer("probe/d/s", False, 0.0), 20.0, 21.0) == []
    assert probes.first_ask() == 21.0 + SOONEST_SECONDS


def test_a_right_in_use_is_extended_in_its_second_half_and_one_that_is_not_used_ends() -> None:
    used, unused = claims(using=True), claims()
    for probes in (used, unused):
        granted(probes)
    half = 10.0 + PROBE_SECONDS / 2
    assert used.claims(half) == []
    assert used.claims(half + 0.1) == [Claim("probe/d/s", PROBE_SECONDS, extends=True)]
    assert unused.claims(half + 0.1) == []
    assert used.answered(ClaimAnswer("probe/d/s", True), 16.0, 17.0) == []
    assert used.next_tick(alone=False) == 16.0 + PROBE_SECONDS
    end = 10.0 + PROBE_SECONDS
    assert unused.tick(end - 0.1, alone=False) == []
    assert unused.tick(end, alone=False) == [Unused("s")]
    assert unused.to_release == [ClaimRelease("probe/d/s", 0.0)]
    assert used.tick(26.0, alone=False) == []
    assert used.next_tick(alone=False) == 26.0 + PROBE_SECONDS


def test_a_right_of_the_store_is_given_back_a_lead_early_and_one_of_its_own_is_the_replica_s_affair() -> None:
    hurried: list[bool] = []
    probes = claims(hurried=hurried)
    granted(probes)
    probes.release("s", 5.0)
    assert (probes.to_release, hurried) == ([ClaimRelease("probe/d/s", 5.0 - LEAD_SECONDS)], [True])
    probes.release("s", 5.0)
    assert len(probes.to_release) == 1
    probes.want("t", 10.0, 1, 0.0)
    assert probes.next_tick(alone=False) is None
    assert probes.next_tick(alone=True) == 10.0
    assert probes.tick(9.9, alone=True) == []
    assert probes.tick(10.0, alone=True) == [Granted("t", 10.0 + PROBE_SECONDS)]
    assert (probes.claims(19.0), probes.told()) == ([], ["t"])
    probes.release("t", 5.0)
    assert (len(probes.to_release), len(hurried)) == (1, 1), "the store does not know it"


# The store.


def test_a_store_counts_its_records_and_keeps_a_presence_until_its_time() -> None:
    store = SharedStore()
    one = FleetRecord("switch/x", stamp(1, "a"), "1")
    first = store.exchange(FleetExchange(replica="a", presence="here", nonce="n", records=(one,), roster=True), 10.0)
    assert (first.epoch, first.sequence, first.cursor, first.records) == ("n", 1, 1, (one,))
    assert first.replicas == {"a": "here"}

    def present(at: float) -> set[str]:
        asked = FleetExchange(replica="b", nonce="other", epoch="n", cursor=1, roster=True)
        reply = store.exchange(asked, at)
        assert (reply.epoch, reply.records, reply.cursor) == ("n", (), 1)
        return set(reply.replicas or ())

    assert present(10.0 + PRESENT_SECONDS - 0.1) == {"a", "b"}
    assert present(10.0 + PRESENT_SECONDS) == {"b"}
    left = store.exchange(FleetExchange(replica="b", epoch="n", leaving=True, drops=("switch/x", "no")), 14.0)
    assert (left.replicas, store.replicas, store.records) == (None, {}, {})


def test_a_store_answers_with_so_many_records_and_says_where_it_stopped() -> None:
    store = SharedStore()
    records = [FleetRecord(f"switch/{number}", stamp(1, "a"), "") for number in range(BATCH + 1)]
    for part in (records[:BATCH], records[BATCH:]):
        store.exchange(FleetExchange(replica="a", nonce="n", records=tuple(part)), 0.0)
    reply = store.exchange(FleetExchange(replica="b", epoch="n"), 0.0)
    assert (reply.records, reply.cursor, reply.sequence) == (tuple(records[:BATCH]), BATCH, BATCH + 1)
    reply = store.exchange(FleetExchange(replica="b", epoch="n", cursor=BATCH), 0.0)
    assert (reply.records, reply.cursor) == ((records[BATCH],), BATCH + 1)


def test_a_right_is_free_at_the_moment_in_which_it_ends() -> None:
    store = SharedStore()

    def asks(replica: str, at: float) -> ClaimAnswer:
        return store.exchange(FleetExchange(replica=replica, claims=(Claim("x", 10.0),)), at).claims[0]

    assert asks("a", 0.0) == ClaimAnswer("x", True, holder="a")
    assert asks("b", 9.5) == ClaimAnswer("x", False, 0.5, "a")
    assert asks("b", 10.0) == ClaimAnswer("x", True, holder="b")


# Members.


def test_what_a_replica_says_of_itself_is_read_and_anything_else_names_it_alone() -> None:
    store, member = SharedStore(), FleetMember("a", about={"port": 1})
    for name, text in (("b", '{"epoch": "e", "seen": 4, "port": 2}'), ("c", "[]"), ("d", '{"seen": "x"}'), ("e", "")):
        store.exchange(FleetExchange(replica=name, presence=text, nonce="n"), 0.0)
    asked = member.request(0.0, chance=0.5, nonce="n")
    assert json.loads(asked.presence) == {"epoch": "", "seen": 0, "port": 1}
    member.receive(asked, store.exchange(asked, 0.0), 0.0)
    assert member.peers == {
        "a": Peer("a", ("", 0), {"port": 1}),
        "b": Peer("b", ("e", 4), {"port": 2}),
        "c": Peer("c"),
        "d": Peer("d"),
        "e": Peer("e"),
    }


def test_a_write_that_says_nothing_new_is_none_unless_it_is_said_to_be() -> None:
    member = FleetMember("a")
    first = member.write("switch/x", {"b": 1, "a": 2}, 1.0)
    assert first == FleetRecord("switch/x", stamp(1000, "a"), '{"a":2,"b":1}')
    assert member.write("switch/x", {"a": 2, "b": 1}, 2.0) is None
    again = member.write("switch/x", {"a": 2, "b": 1}, 2.0, again=True)
    assert again == FleetRecord("switch/x", stamp(2000, "a"), '{"a":2,"b":1}')
    assert member.write("switch/x", {"a": 3}, 3.0, first=True) is None
    assert member.write("pin/x/t", 1, 3.0, first=True) == FleetRecord("pin/x/t", first_stamp(3000, "a"), "1")
    assert member.outbox.decisions() == ["switch/x", "pin/x/t"]


@pytest.mark.requirement("FLEET-8", "PERF-8")
def test_exchanges_are_spread_and_an_urgent_one_still_keeps_a_distance() -> None:
    pace = ExchangePace()
    for chance, after in ((0.0, 0.1875), (0.5, 0.25), (1.0, 0.3125)):
        pace.begun(10.0, chance)
        assert pace.due(99.0) == 10.0 + after
    assert pace.due(10.1) == 10.1
    assert pace.due(5.0) == 10.0 + SOONEST_SECONDS
    pace.hurry()
    assert pace.due(99.0) == 10.0 + SOONEST_SECONDS
    pace.failed(11.0)
    assert pace.due(99.0) == 11.5
    pace.watch_writes(5.0)
    pace.watch_writes(3.0)
    assert pace.watched_until == 5.0


# Clocks, configurations and questions.


@pytest.mark.requirement("FLEET-3")
def test_a_clock_is_wrong_beyond_its_bound_and_three_of_them_are_named() -> None:
    clock = FleetClock()
    told = {"a": SKEW_SECONDS, "b": SKEW_SECONDS + 1, "c": -SKEW_SECONDS - 1, "d": SKEW_SECONDS + 2}
    clock.note(100.0, {**told, **dict.fromkeys("uvwxyz", 0)}, 0.0)
    assert clock.wrong == {"b": 31.0, "c": -31.0, "d": 32.0}
    assert clock.notice == (
        "the clock of b is 31 s ahead of the fleet's, that of c is 31 s behind the fleet's, that of d is 32 s ahead of"
        " the fleet's: correct it. Sessions, switches and approvals go by the time of the fleet; tokens and"
        " certificates are judged by the clock of each machine"
    )


def test_replicas_that_agree_through_a_third_are_one_group() -> None:
    agreement = ConfigAgreement()
    told = {"a": ["1"], "b": ["2"], "c": ["1", "2"], "d": ["3"], "e": ["4"], "f": []}
    assert not agreement.note(told, 0.0)
    assert agreement.note(told, 180.0)
    assert agreement.groups == (("a", "b", "c"), ("d",), ("e",))


@pytest.mark.requirement("FLEET-5")
def test_the_tag_of_a_question_has_five_digits_and_other_numbers_have_none() -> None:
    assert question_number("0000f", 2**32 + 7) == 0xF_0000_0007
    assert tag_of_question(0xF_0000_0007) == "0000f"
    assert tag_of_question(7) == "00000"
    assert tag_of_question((2**20 - 1) << 32) == "fffff"
    assert tag_of_question(2**20 << 32) == tag_of_question(-1) == ""
