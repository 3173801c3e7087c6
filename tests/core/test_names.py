"""The names of tools and prompts: within what clients accept after their own prefix, and callable for ever."""

from __future__ import annotations

import random
import re
from hashlib import blake2s
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from holdfast.core import names
from holdfast.core.catalog import Catalog, Item, Listing, NameKey, Unknown
from holdfast.core.names import (
    CLIENT_NAMINGS,
    HUB_NAME,
    LONGEST_NAME,
    NAME_LENGTH,
    SHORTEST_NAME,
    Kind,
    cutting_clients,
    is_own_name,
    is_own_uri,
    named_server,
    uri_leads,
)

WORDS = st.text("abcXYZ019_-./ é日", max_size=70)
SERVERS = st.text("abcXYZ019_-./ é日", min_size=1, max_size=70)
FLEETS = st.dictionaries(
    SERVERS,
    st.tuples(st.none() | st.sampled_from(["", "fs", "a__b"]), st.lists(WORDS, max_size=6, unique=True)),
    max_size=5,
)
QUICK = settings(deadline=None, max_examples=150, derandomize=True, database=None)


def catalog_of(
    fleet: dict[str, tuple[str | None, list[str]]], *, longest: int = NAME_LENGTH, order: list[str] | None = None
) -> Catalog:
    made = Catalog().arrange({server: prefix for server, (prefix, _) in fleet.items()}, longest=longest)
    for server in order or list(fleet):
        items = tuple(map(Item, fleet[server][1]))
        made = made.publish(Listing(server=server, generation=1, tools=items, prompts=items))
    return made


def old_name(server: str, original: str) -> str:
    """The name that versions before this rule gave, as they made it."""
    joined = f"{server}__{original}"
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", joined):
        return joined
    identity = blake2s(f"{server}\0{original}".encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', joined)[:55]}_{identity}"


@pytest.mark.requirement("HUB-3")
def test_the_default_length_leaves_room_for_the_prefix_of_every_known_client() -> None:
    assert NAME_LENGTH == 48
    for client in CLIENT_NAMINGS:
        assert client.length(HUB_NAME, "x" * NAME_LENGTH) <= client.longest, client
    assert max(client.length(HUB_NAME, "") for client in CLIENT_NAMINGS) == len("mcp__holdfast__")


def test_the_documentation_has_the_prefix_and_the_limit_of_each_client() -> None:
    text = (Path(__file__).parents[2] / "docs" / "concepts" / "serve.md").read_text(encoding="utf-8")
    for one in CLIENT_NAMINGS:
        prefix = one.prefix.format(server=HUB_NAME)
        assert f"| {one.client} | `{prefix}` | {one.longest} | {one.source} |" in text


@pytest.mark.requirement("HUB-3")
@QUICK
@given(FLEETS, st.integers(SHORTEST_NAME, LONGEST_NAME), st.randoms(use_true_random=False))
@example({"github": (None, ["x" * 70, "x" * 71])}, NAME_LENGTH, random.Random(0))
def test_names_are_unique_within_the_bound_and_the_same_in_any_order(
    fleet: dict[str, tuple[str | None, list[str]]], longest: int, chance: random.Random
) -> None:
    made = catalog_of(fleet, longest=longest)
    allowed = re.compile(rf"[A-Za-z0-9_-]{{1,{longest}}}")
    for entries in (made.tools, made.prompts):
        given_out = [entry.name for entry in entries]
        assert len(given_out) == len(set(given_out))
        assert all(map(allowed.fullmatch, given_out))
        assert all(made.resolve(entry.name, entry.key.kind) == entry.key for entry in entries)
    order = list(fleet)
    chance.shuffle(order)
    assert catalog_of(fleet, longest=longest, order=order).names == made.names, "the order of answers decides nothing"


@pytest.mark.requirement("HUB-3")
@QUICK
@given(FLEETS, st.integers(SHORTEST_NAME, LONGEST_NAME), st.integers(SHORTEST_NAME, LONGEST_NAME))
def test_a_name_that_was_given_out_at_any_length_stays_callable(
    fleet: dict[str, tuple[str | None, list[str]]], before: int, after: int
) -> None:
    old, new = catalog_of(fleet, longest=before), catalog_of(fleet, longest=after)
    for entry in (*old.tools, *old.prompts):
        owner = new.owners.get((entry.key.kind, entry.name), entry.key)
        assert new.resolve(entry.name, entry.key.kind) == owner == entry.key
    restored = Catalog().arrange({server: prefix for server, (prefix, _) in fleet.items()}, longest=after)
    restored = restored.restore_names(old.names)
    for entry in (*old.tools, *old.prompts):
        assert restored.resolve(entry.name, entry.key.kind) == entry.key, "also while its server is not listed yet"


@pytest.mark.requirement("HUB-3", "HUB-9")
@QUICK
@given(SERVERS, WORDS)
@example("s" * 70, "read")
@example("github", "x" * 90)
@example("my server", "read/file")
@example("awslabs-cost-explorer", "get_cost_and_usage_comparisons_by_service")
def test_a_name_of_an_earlier_version_is_callable(server: str, original: str) -> None:
    made = catalog_of({server: (None, [original, "other"]), "b": (None, [original])})
    for kind in (Kind.TOOL, Kind.PROMPT):
        assert made.resolve(old_name(server, original), kind) == NameKey(kind, server, original)


@pytest.mark.requirement("HUB-3", "HUB-9")
def test_an_old_name_of_a_server_that_was_never_listed_finds_its_server_and_later_its_tool() -> None:
    server, tool = "a-server-with-quite-a-long-name-of-its-own", "and_a_tool_that_is_long_too"
    before = Catalog().arrange({server: None, "b": None})
    (guess,) = before.possible_owners(old_name(server, tool))
    assert guess.server == server
    listed = before.publish(Listing(server=server, generation=1, tools=(Item(tool),)))
    assert listed.listed_name(guess) == tool
    assert listed.arrange({"b": None}).listed_name(guess) == guess.original, "a server that was removed has no names"
    assert listed.tools[0].name.startswith("a-server-with-quite-a-lo__and_a_tool_th")


@pytest.mark.requirement("HUB-3")
@pytest.mark.parametrize(
    ("server", "tool", "given"),
    [
        ("github", "search", "github__search"),
        ("github", "x" * 40, "github__" + "x" * 40),
        ("github", "create_a_pull_request_review_comment_reply", "github__create_a_pull_request_review_co_5c1f08f5"),
        (
            "com.example.a-very-long-organization.server",
            "list_things",
            "com_example_a-very-long-__list_things_2c5c7c6b",
        ),
    ],
)
def test_a_shortened_name_tells_the_server_and_the_tool(server: str, tool: str, given: str) -> None:
    (entry,) = catalog_of({server: (None, [tool])}).tools
    assert (entry.name[:-8], len(entry.name) <= NAME_LENGTH) == (given[:-8], True)


def test_a_name_with_another_hash_or_another_beginning_is_unknown() -> None:
    made = catalog_of({"github": (None, ["x" * 90])})
    name = made.tools[0].name
    assert isinstance(made.resolve(f"{name[:-8]}00000000"), Unknown)
    assert isinstance(made.resolve(f"other__{'x' * 20}_{name[-8:]}"), Unknown)
    assert isinstance(made.resolve(f"github__y{'x' * 20}_{name[-8:]}"), Unknown)


def test_a_catalog_without_the_earlier_names_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "hash_in", lambda _: None)
    monkeypatch.setattr("holdfast.core.catalog.hash_in", lambda _: None)
    with pytest.raises(AssertionError):
        test_a_name_of_an_earlier_version_is_callable.hypothesis.inner_test("github", "x" * 90)


@pytest.mark.requirement("SEC-21")
def test_the_hubs_own_names_are_those_of_its_tools_and_all_with_its_lead_in_any_case() -> None:
    own = ["holdfast_status", "Holdfast_x", "holdfast_", "find_tools", "Call_Tool"]
    other = ["holdfast", "my_holdfast_x", "find_tool", "x__find_tools"]
    assert [is_own_name(name) for name in own + other] == [True] * len(own) + [False] * len(other)
    assert [is_own_uri(uri) for uri in ("holdfast:x", " HoldFast://a", "holdfast", "x+holdfast://")] == [
        True, True, False, False
    ]  # fmt: skip


def test_the_clients_that_would_cut_a_name_are_told() -> None:
    assert cutting_clients("s", "x") == ()
    one = CLIENT_NAMINGS[0]
    room = one.longest - one.length("s", "")
    assert one.client not in cutting_clients("s", "x" * room)
    assert one.client in cutting_clients("s", "x" * (room + 1))
    assert len(cutting_clients("s", "x" * 500)) == len(CLIENT_NAMINGS)


def test_a_uri_names_another_server_also_where_two_servers_have_the_same_lead() -> None:
    leads = uri_leads(["a b", "a-b", "c"])
    assert named_server("from-a-b+x:y", leads, but="a b") == "a-b"
    assert named_server("from-a-b.1+x:y", leads, but="a-b") == "a b"
    assert named_server("from-c+x:y", leads, but="c") == ""
    assert named_server("x:y", leads, but="c") == ""
