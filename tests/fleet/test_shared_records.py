"""What replicas tell each other, without a store: questions, decisions, evidence and listings (FLEET-2, SEC-19)."""

from __future__ import annotations

import base64
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from holdfast.core import FleetRecord, Item, Listing, events as on, record_key, replica_tag
from holdfast.fleet import shared_records
from holdfast.fleet.shared_records import (
    EVERYWHERE_SECONDS,
    ConfigComparison,
    SharedDecisions,
    SharedEvidence,
    SharedListings,
    SharedQuestions,
    packed,
    unpacked,
)
from holdfast.hub import listing_pieces
from holdfast.keys import KeyRing

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-2")]

WAITS = {"tool": "delete", "expires": 9.0}


class Host:
    """A hub that notes what it hears of."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []
        self.lists = False

    def __getattr__(self, name: str) -> Any:
        return lambda *about: self.heard.append((name, *about))

    def definition_of(self, server: str) -> str | None:
        return "defined" if server == "a" else None

    def needs_listing(self, server: str) -> bool:
        return not self.lists

    def disabled_servers(self) -> list[str]:
        return ["a", "b"]


class State:
    """The state of one replica; what it writes is what the others read."""

    def __init__(self) -> None:
        self.is_open = self.is_shared = self.is_settled = True
        self.host = Host()
        self.wake = anyio.Event()
        self.wrote: dict[str, Any] = {}
        self.options: dict[str, Any] = {}
        self.member = SimpleNamespace(replica="here", outbox=SimpleNamespace(decisions=lambda: ["switch/a"]))

    def write(self, key: str, value: Any, **options: Any) -> None:
        self.wrote[key], self.options[key] = value, options

    def kept(self, key: str) -> Any:
        return self.wrote.get(key)


@pytest.fixture
def state() -> State:
    return State()


def questions(state: State, key: bytes = b"k" * 32) -> SharedQuestions:
    return SharedQuestions(cast("Any", state), lambda: KeyRing([key]))


@pytest.mark.requirement("SEC-19")
def test_a_question_is_sealed_and_read_by_the_replicas_with_the_key(state: State) -> None:
    questions(state).note_question("q1", WAITS, 9.0)
    value = state.wrote["question/q1"]
    assert value["until"] == 9.0
    assert "delete" not in str(value)
    questions(state).learn("question", "q1", value)
    questions(state, b"x" * 32).learn("question", "q1", value)
    questions(state).learn("question", "q2", value)
    assert state.host.heard == [
        ("follow_question", "q1", WAITS),
        ("follow_question", "q1", None),
        ("follow_question", "q2", None),
    ], "it is bound to its id, and to the key"
    questions(state).note_question("q1", None, 9.0)
    assert state.wrote["question/q1"] == {"until": 9.0}
    assert questions(state).home == replica_tag("here")


@pytest.mark.requirement("SEC-19")
def test_a_verdict_that_cannot_be_opened_decides_nothing(state: State) -> None:
    verdict = {"approved": True, "by": "ann"}
    questions(state).note_verdict("q1", verdict, 9.0)
    value = state.wrote["verdict/q1"]
    for wrong in ({}, {"sealed": "no base64!"}, {"sealed": "AAAA"}):
        questions(state).learn("verdict", "q1", wrong)
    questions(state).learn("verdict", "q2", value)
    assert state.host.heard == []
    questions(state).learn("verdict", "q1", value)
    assert state.host.heard == [("follow_verdict", "q1", verdict)]


def test_a_replica_that_is_not_open_tells_no_question(state: State) -> None:
    state.is_open = False
    questions(state).note_question("q1", WAITS, 9.0)
    assert state.wrote == {}


def test_decisions_are_told_and_followed(state: State) -> None:
    decisions = SharedDecisions(cast("Any", state))
    decisions.note_switch("a", False)
    decisions.settled()
    switches = {key: value for key, value in state.wrote.items() if key.startswith("switch")}
    assert switches == {"switch/a": {"off": False}, "switch/b": {"off": True}}, "what the fleet decided is newer"
    decisions.note_pin("a", "echo", {"description": "x"}, False)
    decisions.note_pin("a", "other", {"description": "x"}, True)
    assert [one.get("first") for key, one in state.options.items() if key.startswith("pin")] == [True, False]
    decisions.learn("switch", "a", "", {"off": True})
    decisions.learn("switch", "a", "", {"off": 1})
    decisions.learn("pin", "a", "echo", {"text": {"description": "x"}})
    decisions.learn("pin", "a", "echo", {"text": 7})
    assert state.host.heard == [
        ("follow_switch", "a", True),
        ("follow_switch", "a", False),
        ("follow_pin", "a", "echo", {"description": "x"}),
    ]
    assert list(decisions.not_shared) == []
    state.is_shared = False
    assert list(decisions.not_shared) == ["a"]


def test_that_a_server_is_back_is_news_only_if_it_was_down(state: State) -> None:
    evidence = SharedEvidence(cast("Any", state), cast("Any", None))
    evidence.share("a", on.PeerRecovered())
    evidence.share("unknown", on.PeerTripped(reason="down"))
    assert state.wrote == {}
    evidence.share("a", on.PeerTripped(reason="down"))
    (down,) = state.wrote.values()
    assert down["up"] is False
    evidence.share("a", on.PeerRecovered())
    (up,) = state.wrote.values()
    assert up["up"] is True


def test_the_replica_that_probes_a_server_is_the_one_that_says_so_or_the_next_one(state: State) -> None:
    probes = SimpleNamespace(told=lambda: ["b"], turns=lambda server: [f"next for {server}", "here"])
    state.member.probes, state.member.is_alone = probes, False
    others = {"there": {"probes": ["c"]}, "odd": {"probes": "a"}}
    evidence = SharedEvidence(cast("Any", state), cast("Any", SimpleNamespace(others=others)))
    assert evidence.probers == {"b": "here", "c": "there"}
    assert [evidence.prober_of(server) for server in "abc"] == ["", "here", "there"]
    evidence.share("a", on.PeerTripped(reason="down"))
    assert evidence.prober_of("a") == "next for a"
    state.member.is_alone = True
    assert evidence.prober_of("a") == "here"


async def test_a_decision_that_cannot_be_everywhere_is_told_so_at_once(state: State) -> None:
    """An approval of many tools would wait for each of them."""
    known: Any = state
    known.member.book, known.member.strangers, known.not_shared_since = {}, 1, None
    assert await SharedDecisions(known).scope("a") == "this replica only"
    known.member.strangers, known.not_shared_since = 0, 7.0
    assert await SharedDecisions(known).scope("a") == "this replica only"
    assert not state.wake.is_set()


async def test_a_decision_is_told_to_be_everywhere_once_every_exchange_says_so_and_not_after_the_time_for_it(
    state: State,
) -> None:
    known: Any = state
    switch, pin = record_key("switch", "a"), record_key("pin", "a", "echo")
    others = (record_key("switch", "ab"), record_key("pin", "ab", "echo"), record_key("evidence", "a"))
    known.member.book = {key: FleetRecord(key, f"stamp of {key}", "{}") for key in (switch, pin, *others)}
    known.member.strangers, known.not_shared_since = 0, None
    known.member.peers = dict.fromkeys(["here", "there"])
    arrived: set[str] = set()
    asked: set[FleetRecord] = set()
    watched: list[float] = []

    def is_everywhere(written: FleetRecord, now: float) -> bool:
        asked.add(written)
        return written.key in arrived

    async def wait(changed: anyio.Event, until: float) -> bool:
        assert (changed, until) == (known.changed, 5.0 + EVERYWHERE_SECONDS)
        if not coming:
            return False
        arrived.add(coming.pop())
        return True

    known.member.is_everywhere, known.member.pace = is_everywhere, SimpleNamespace(watch_writes=watched.append)
    known.now, known.changed, known.waiting = lambda: 5.0, anyio.Event(), SimpleNamespace(wait=wait)
    decisions = SharedDecisions(known)
    coming = [switch]
    assert await decisions.scope("a") == "this replica only", "the approval did not arrive"
    assert state.wake.is_set()
    assert watched == [5.0 + EVERYWHERE_SECONDS]
    coming = [pin]
    assert await decisions.scope("a") == "all 2 replicas"
    del known.member.peers["there"]
    assert await decisions.scope("a") == "the fleet"
    assert asked == {FleetRecord(key, f"stamp of {key}", "{}") for key in (switch, pin)}


def test_a_slot_asks_for_the_right_to_probe_under_its_definition_and_gives_it_back(state: State) -> None:
    told: list[tuple[object, ...]] = []
    state.member.probes = SimpleNamespace(
        want=lambda *about, definition: told.append((*about, definition)), release=lambda *about: told.append(about)
    )
    known: Any = state
    known.now = lambda: 5.0
    evidence = SharedEvidence(known, cast("Any", None))
    for act in (
        partial(evidence.claim, "a", 7.0, 2),
        partial(evidence.claim, "unknown", None, 0),
        partial(evidence.release, "a", 3.0),
    ):
        state.wake = anyio.Event()
        act()
        assert state.wake.is_set()
    assert told == [("a", 7.0, 2, 5.0, "defined"), ("unknown", None, 0, 5.0, ""), ("a", 3.0)]


async def test_evidence_of_another_replica_reaches_the_slot_that_has_the_same_definition(state: State) -> None:
    evidence = SharedEvidence(cast("Any", state), cast("Any", None))
    value = '{"definition": "defined", "up": true}'
    for definition in ("defined", "another"):
        evidence.learn("a", definition, FleetRecord(record_key("evidence", "a"), "stamp", value))
    assert state.host.heard == [("handle", "a", on.PeerRecovered())]


async def test_configurations_are_compared_only_while_the_store_answers(state: State) -> None:
    known: Any = state
    known.now, known.member.about = lambda: 1e9, {}
    staying = {"here": {"config": ["x"]}, "there": {"config": ["y"]}, "old": {"config": "no list"}}
    configs = ConfigComparison(known, cast("Any", SimpleNamespace(staying=staying)), lambda: KeyRing([b"k" * 32]))
    configs.compare("the store")
    known.now = lambda: 2e9
    configs.compare("the store")
    assert [*configs.groups] == [("here",), ("there",)]
    state.is_shared = False
    assert [*configs.groups] == []
    assert configs.notice == ""


def listing(*tools: str) -> Listing:
    return Listing(server="a", generation=1, tools=tuple(map(Item, tools)))


async def test_a_listing_is_shared_once_and_shown_where_there_is_none(state: State) -> None:
    listings = SharedListings(cast("Any", state))
    await listings.share()
    assert state.wrote == {}
    listings.published(listing("echo"))
    await listings.share()
    ((key, value),) = state.wrote.items()
    other = State()
    there = SharedListings(cast("Any", other))
    there.learn("a", "another definition", value)
    assert other.host.heard == []
    there.learn("a", "defined", value)
    ((what, shown),) = other.host.heard
    assert (what, [item.name for item in cast("Any", shown).tools]) == ("follow_listing", ["echo"])
    other.host.lists = True
    there.learn("a", "defined", value)
    assert other.host.heard[-1] == ("handle", "a", on.PeerPublished()), "it may be another one"
    state.host.lists = True
    listings.learn("a", "defined", value)
    assert state.host.heard == [], "it is the one of here"
    state.wrote[key] = {**value, "marked": True}
    listings.published(listing("echo"))
    await listings.share()
    assert "marked" in state.wrote[key], "the same listing is not written again"
    listings.published(Listing(server="unknown", generation=1))
    await listings.share()
    assert list(state.wrote) == [key]


async def test_of_a_large_listing_the_others_learn_that_it_changed_alone(state: State) -> None:
    listings = SharedListings(cast("Any", state))
    listings.published(Listing(server="a", generation=1, tools=(Item("big", {"description": "x" * 600_000}),)))
    await listings.share()
    (value,) = state.wrote.values()
    assert value["content"] is None
    other = State()
    for content in (None, "no base64!", "AAAA", 7):
        SharedListings(cast("Any", other)).learn("a", "defined", {**value, "content": content})
    assert other.host.heard == []


@pytest.mark.parametrize("bound", ["LARGEST_UNPACKED", "LARGEST_LISTING"])
def test_a_listing_is_shared_up_to_each_bound_and_its_hash_beyond_it(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = listing("a", "b")
    digest, content = packed(whole)
    assert content is not None
    text = "".join(listing_pieces(whole, sort_keys=True)).encode()
    size = len(text) if bound == "LARGEST_UNPACKED" else len(base64.b64decode(content))
    monkeypatch.setattr(shared_records, bound, size)
    assert packed(whole) == (digest, content)
    assert unpacked("a", content) is not None
    monkeypatch.setattr(shared_records, bound, size - 1)
    assert packed(whole) == (digest, None)
