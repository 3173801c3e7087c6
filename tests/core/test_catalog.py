from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from holdfast.core import catalog as catalog_module
from holdfast.core.catalog import (
    REMEMBERED,
    Catalog,
    Item,
    Listing,
    NameKey,
    ResourceIndex,
    Unknown,
    is_repeatable,
)
from holdfast.core.names import Kind, base_name, is_own_name
from tests.harness.catalogs import configured

ALLOWED = re.compile(r"[A-Za-z0-9_-]{1,48}")


def tools(server: str, *names: str, generation: int = 1, **raw: object) -> Listing:
    return Listing(server=server, generation=generation, tools=tuple(Item(name, raw) for name in names))


def resources(server: str, *uris: str) -> Listing:
    return Listing(server=server, generation=1, resources=tuple(map(Item, uris)))


def catalog(*listings: Listing, **prefixes: str) -> Catalog:
    made = Catalog()
    for listing in listings:
        made = configured(made, listing.server, prefix=prefixes.get(listing.server)).publish(listing)
    return made


def shown(made: Catalog, kind: Kind = Kind.TOOL) -> list[str]:
    return [entry.name for entry in made.of(kind)]


def changed(after: Catalog, before: Catalog) -> dict[str, frozenset[Kind]]:
    return {server: kinds.shown for server, kinds in after.changes(before).items()}


# Names.


def test_a_tool_is_named_after_its_server() -> None:
    assert shown(catalog(tools("github", "search"))) == ["github__search"]


def test_a_prefix_takes_the_place_of_the_servers_id_and_an_empty_one_leaves_the_name_alone() -> None:
    made = catalog(tools("files", "read"), tools("git", "log"), files="fs", git="")
    assert shown(made) == ["fs__read", "log"]


@pytest.mark.requirement("SEC-21")
def test_a_name_of_the_hub_is_given_to_no_server_and_said_to_be_the_hubs() -> None:
    made = catalog(tools("bare", "holdfast_status", "find_tools"), tools("holdfast", "call"), bare="")
    assert not [name for name in shown(made) if is_own_name(name)]
    taken = [(one.wanted, one.of_hub) for one in made.collisions]
    assert taken == [(name, True) for name in ("holdfast_status", "find_tools", "holdfast__call")]
    for name in ("holdfast_status", "find_tools", "holdfast__call"):
        assert isinstance(made.resolve(name), Unknown)
        assert list(made.possible_owners(name)) == [], "no server is asked for it"


@pytest.mark.parametrize(
    ("server", "tool"),
    [
        ("github", "x" * 100),
        ("s" * 70, "read"),
        ("my server", "read/file"),
        ("日本", "検索"),
        ("a.b", "c.d"),
        ("x", ""),
        ("x", "\ud800"),
    ],
)
def test_a_long_or_odd_name_is_shortened_within_what_clients_accept(server: str, tool: str) -> None:
    (name,) = shown(catalog(tools(server, tool)))
    assert ALLOWED.fullmatch(name)
    assert catalog(tools(server, tool)).resolve(name) == NameKey(Kind.TOOL, server, tool)


def test_a_shortened_name_is_the_same_in_every_run() -> None:
    assert base_name("git hub", "search", None) == "git_hub__search_d7556186"


def test_names_that_differ_only_in_what_was_cut_off_stay_apart() -> None:
    made = catalog(tools("s", "a" * 80 + "1", "a" * 80 + "2", "a.b", "a b"))
    assert len(set(shown(made))) == 4
    assert made.collisions == ()


def test_a_collision_concerns_one_tool_and_is_reported() -> None:
    made = catalog(tools("a", "b__c", "other"), tools("a__b", "c", "fine"))

    suffixed, other, plain, fine = shown(made)
    assert (plain, other, fine) == ("a__b__c", "a__other", "a__b__fine"), "the longest prefix owns the name"
    assert suffixed != plain
    assert ALLOWED.fullmatch(suffixed)
    (collision,) = made.collisions
    assert collision.key == NameKey(Kind.TOOL, "a", "b__c")
    assert (collision.wanted, collision.given, collision.of_hub) == (plain, suffixed, False)


def test_a_name_never_comes_to_mean_another_servers_tool() -> None:
    both = catalog(tools("one", "search"), tools("two", "search"), one="", two="")
    first, second = shown(both)

    without = both.withdraw("one").publish(tools("two", "search", "more", generation=2))
    again = without.publish(tools("one", "search", generation=2))

    assert (first, second) == ("search", "two__search")
    assert shown(without) == [second, "two__more"]
    assert shown(again) == [first, second, "two__more"]


WRITTEN = {"one": "", "two": "", "a": None, "a__b": None, "3 rd": "fs", "fs": None}
LISTED = {
    "one": ("search", "a__x", "fs__read"),
    "two": ("search",),
    "a": ("b__c", "x"),
    "a__b": ("c",),
    "3 rd": ("read",),
    "fs": ("read",),
}


@pytest.mark.requirement("HUB-3")
@pytest.mark.parametrize("seed", range(20))
def test_names_follow_from_the_configuration_and_not_from_the_order_of_answers(seed: int) -> None:
    """Two replicas whose servers answer in another order give every name the same meaning at every moment."""
    order = random.Random(seed).sample(list(LISTED), len(LISTED))
    full = Catalog().arrange(WRITTEN)
    for server, names in LISTED.items():
        full = full.publish(_with_a_resource(tools(server, *names)))
    growing = Catalog().arrange(WRITTEN)
    for server in order:
        growing = growing.publish(_with_a_resource(tools(server, *LISTED[server])))
        for entry in growing.tools:
            assert full.resolve(entry.name) == entry.key, "a name means the same with half of the servers up"
    assert growing.names == full.names
    assert growing.owners == full.owners
    assert {(c.key, c.given) for c in growing.collisions} == {(c.key, c.given) for c in full.collisions}
    assert len(set(shown(full))) == sum(map(len, LISTED.values()))


def _with_a_resource(listing: Listing) -> Listing:
    return replace(listing, resources=(Item("file:///readme"), Item(f"file:///{listing.server}")))


def test_names_of_unlisted_tools_survive_a_restart_if_the_configuration_gives_them() -> None:
    before = catalog(tools("one", "a" * 80), tools("two", "search"))
    kept = {**before.names, NameKey(Kind.TOOL, "two", "stale"): "one__stale"}
    after = Catalog().arrange({"one": None, "two": None}).restore_names(kept)
    assert after.names == before.names


def test_a_tool_listed_twice_is_shown_once() -> None:
    assert shown(catalog(tools("a", "x", "x"))) == ["a__x"]


def test_prompts_are_named_like_tools_and_do_not_collide_with_them() -> None:
    made = catalog(Listing(server="a", generation=1, tools=(Item("x"),), prompts=(Item("x"),)))
    assert [entry.name for entry in made.prompts] == ["a__x"]
    assert made.collisions == ()


def test_resources_and_templates_keep_their_uri_unless_two_servers_share_it() -> None:
    one = Listing(server="one", generation=1, resources=(Item("file:///a"),), templates=(Item("db://{x}"),))
    two = Listing(server="2 nd", generation=1, resources=(Item("file:///a"),))
    made = catalog(one, two)

    assert [entry.name for entry in made.resources] == ["file:///a", "from-2-nd+file:///a"]
    assert [entry.name for entry in made.templates] == ["db://{x}"]
    assert made.resolve("from-2-nd+file:///a", Kind.RESOURCE) == NameKey(Kind.RESOURCE, "2 nd", "file:///a")


def test_the_templates_that_may_lead_to_a_uri_are_found_in_their_order_and_a_bounded_number_of_each_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog_module, "MOST_TEMPLATES", 4)
    monkeypatch.setattr(catalog_module, "MOST_LIKE", 2)
    monkeypatch.setattr(catalog_module, "LONGEST_TEMPLATE", 20)
    monkeypatch.setattr(catalog_module, "MOST_VARIABLES", 2)
    one = ("db://{a}", "db://x/{b}", "db://{c}", "db://{d}", "db://x/{fifth}")
    two = ("other://{x}", "db://{a}/{b}/{c}", f"db://{{{'a' * 20}}}", "db://x/y{e}", "db://x/{e}/{f}")
    made = catalog(
        Listing(server="one", generation=1, templates=tuple(map(Item, one))),
        Listing(server="two", generation=1, templates=tuple(map(Item, two[:4]))),
        Listing(server="three", generation=1, templates=(Item(two[4]),), resources=(Item("db://x/z"),)),
        tools("four", "x"),
    )
    index = ResourceIndex(made)
    assert index.servers == {"one", "two", "three"}
    assert [(entry.server, entry.original) for entry in index.templates_like("db://x/y")] == [
        ("one", "db://{a}"),
        ("one", "db://x/{b}"),
        ("two", "db://x/y{e}"),
        ("three", "db://x/{e}/{f}"),
    ]
    assert list(index.templates_like("none://x")) == []


def test_a_new_prefix_renames_a_servers_tools_and_keeps_it_withdrawn() -> None:
    made = catalog(tools("a", "x"))
    assert configured(made, "a") is made
    assert shown(configured(made, "a", prefix="b")) == ["b__x"]
    hidden = configured(made.withdraw("a"), "a", prefix="b")
    assert shown(hidden) == []
    assert shown(hidden.reinstate("a")) == ["b__x"]


# Last good.


@pytest.mark.requirement("LIFE-4")
def test_a_snapshot_that_a_reader_holds_never_changes() -> None:
    held = catalog(tools("a", "x"))
    held.publish(tools("a", "y", generation=2)).remove("a")
    assert shown(held) == ["a__x"]


@pytest.mark.requirement("LIFE-4")
def test_every_change_has_a_higher_version_and_no_change_is_the_same_snapshot() -> None:
    first = catalog(tools("a", "x"))
    second = first.publish(tools("a", "x", "y"))
    assert second.version > first.version
    assert second.publish(tools("a", "x", "y")) is second
    assert second.withdraw("unknown") is second
    assert second.remove("unknown") is second
    assert second.reinstate("a") is second
    hidden = second.withdraw("a")
    assert hidden.version > second.version
    assert hidden.withdraw("a") is hidden


@pytest.mark.requirement("LIFE-3", "LIFE-4")
def test_a_listing_of_an_older_connection_changes_nothing() -> None:
    made = catalog(tools("a", "new", generation=5))
    assert made.publish(tools("a", "old", generation=4)) is made


@pytest.mark.requirement("LIFE-4")
def test_a_newer_complete_listing_may_be_shorter() -> None:
    assert shown(catalog(tools("a", "x", "y")).publish(tools("a", "y", generation=2))) == ["a__y"]


@pytest.mark.requirement("LIFE-4")
def test_a_withdrawn_servers_tools_are_not_listed_and_a_newer_listing_brings_them_back() -> None:
    made = catalog(tools("a", "x"), tools("b", "y")).withdraw("a")
    assert shown(made) == ["b__y"]
    assert made.entry("a__x") is None
    assert shown(made.reinstate("a")) == ["a__x", "b__y"]
    assert shown(made.publish(tools("a", "x"))) == ["a__x", "b__y"]


@pytest.mark.requirement("LIFE-21")
def test_a_listing_from_before_this_run_is_shown_and_not_verified() -> None:
    restored = catalog(tools("a", "x", generation=0))
    assert [entry.verified for entry in restored.tools] == [False]

    verified = restored.publish(tools("a", "x", generation=1))
    assert [entry.verified for entry in verified.tools] == [True]
    assert changed(verified, restored) == {}, "a mark in _meta is no change of the list"


@pytest.mark.requirement("LIFE-18")
def test_a_mark_of_the_hub_is_no_change_and_a_servers_own_meta_is() -> None:
    before = catalog(tools("a", "x", _meta={"own": 1}))
    marked = before.publish(tools("a", "x", generation=2, _meta={"own": 1, "holdfast/held": True}))
    other = before.publish(tools("a", "x", generation=2, _meta={"own": 2}))
    assert changed(marked, before) == {}
    assert changed(other, before) == {"a": {Kind.TOOL}}


@pytest.mark.requirement("LIFE-18")
def test_a_server_that_lists_in_another_order_changes_nothing() -> None:
    before = catalog(tools("a", "x", "y", "z"))
    after = before.publish(tools("a", "z", "x", "y", generation=2))
    assert shown(after) == shown(before), "the list stays the same bytes"
    assert changed(after, before) == {}
    assert shown(after.publish(tools("a", "z", "x", generation=3))) == ["a__z", "a__x"]


@pytest.mark.requirement("HUB-8")
def test_a_new_prefix_changes_the_lists_of_all_servers_and_not_that_of_the_one() -> None:
    before = catalog(tools("a", "x"))
    (change,) = configured(before, "a", prefix="b").changes(before).values()
    assert change.shown == {Kind.TOOL}
    assert not change.own
    (change,) = before.publish(tools("a", "y", generation=2)).changes(before).values()
    assert change.shown == change.own == {Kind.TOOL}


@pytest.mark.requirement("LIFE-15")
def test_a_server_that_has_listed_nothing_is_still_there() -> None:
    assert set(configured(Catalog(), "quiet").servers) == {"quiet"}


# Resolving.


def test_a_tool_that_was_ever_listed_is_never_unknown_while_its_server_is_configured() -> None:
    made = catalog(tools("a", "x", "y"))
    shorter = made.publish(tools("a", "y", generation=2))
    for each in (made, shorter, made.withdraw("a")):
        assert each.resolve("a__x") == NameKey(Kind.TOOL, "a", "x")
    assert isinstance(made.remove("a").resolve("a__x"), Unknown)


def test_a_server_that_lists_other_names_each_time_cannot_fill_the_memory() -> None:
    made = Catalog()
    for generation in range(1, 30):
        names = [f"t{generation}-{n}" for n in range(100)]
        made = made.publish(tools("a", *names, generation=generation))
    assert len(made.names) == REMEMBERED + 100
    assert isinstance(made.resolve("a__t29-0"), NameKey)
    assert isinstance(made.resolve("a__t1-0"), Unknown)


def test_an_unknown_name_is_answered_with_the_nearest_ones() -> None:
    made = catalog(tools("files", "read_file", "write_file"))
    answer = made.resolve("files__raed_file")
    assert isinstance(answer, Unknown)
    assert answer.nearest[0] == "files__read_file"


def test_an_entry_says_whose_it_is_and_what_was_said_of_it() -> None:
    entry = catalog(tools("a", "x", description="does x")).entry("a__x")
    assert entry is not None
    assert (entry.server, entry.original, entry.item.raw) == ("a", "x", {"description": "does x"})


# Differences.


@pytest.mark.parametrize(
    ("listing", "kinds"),
    [
        (Listing(server="a", generation=2, tools=(Item("x"),)), {Kind.TOOL}),
        (Listing(server="a", generation=2, tools=(Item("x"), Item("y"), Item("w"))), {Kind.TOOL}),
        (Listing(server="a", generation=2, tools=(Item("x", {"new": True}), Item("y"))), {Kind.TOOL}),
        (Listing(server="a", generation=2, prompts=(Item("p"),)), {Kind.TOOL, Kind.PROMPT}),
    ],
    ids=["gone", "came", "changed", "two kinds"],
)
def test_the_changes_name_the_server_and_the_kinds(listing: Listing, kinds: set[Kind]) -> None:
    before = catalog(tools("a", "x", "y"), tools("b", "z"))
    assert changed(before.publish(listing), before) == {"a": kinds}


def test_a_server_that_loses_a_uri_to_another_one_is_among_the_changes() -> None:
    before = configured(configured(Catalog(), "a"), "b").publish(resources("b", "file:///x"))
    after = before.publish(resources("a", "file:///x"))
    assert changed(after, before) == {"a": {Kind.RESOURCE}, "b": {Kind.RESOURCE}}


def test_a_server_that_is_withdrawn_or_removed_is_among_the_changes() -> None:
    before = catalog(tools("a", "x"), tools("b", "y"))
    assert changed(before.withdraw("a"), before) == changed(before.remove("a"), before) == {"a": {Kind.TOOL}}


def test_the_same_tools_from_a_newer_connection_are_no_change() -> None:
    before = catalog(tools("a", "x", generation=1))
    after = before.publish(tools("a", "x", generation=2))
    assert after.changes(before) == {}


def test_a_name_of_the_hub_itself_is_no_former_name_of_a_servers_tool() -> None:
    """A server without a prefix may list any name. One that the hub keeps for itself leads to no server (SEC-21)."""
    made = configured(Catalog(), "a", prefix="").publish(tools("a", "find_tools"))
    given = shown(made)
    assert given != ["find_tools"]
    assert isinstance(made.resolve("find_tools"), Unknown)
    assert made.resolve(given[0]) == NameKey(Kind.TOOL, "a", "find_tools")


@pytest.mark.requirement("SEC-21")
def test_a_resource_with_an_address_of_the_hub_itself_is_not_listed_and_is_reported() -> None:
    made = catalog(resources("a", "holdfast://status", " HOLDFAST://x", "file:///x"), tools("b", "holdfast://status"))
    assert shown(made, Kind.RESOURCE) == ["file:///x"]
    assert [(one.wanted, one.given) for one in made.collisions] == [("holdfast://status", ""), (" HOLDFAST://x", "")]
    assert len(made.tools) == 1, "a tool has no address"


def test_another_length_of_names_is_a_change_and_the_same_one_is_none() -> None:
    made = catalog(tools("a", "x" * 60))
    assert made.arrange({"a": None}) is made
    longer = made.arrange({"a": None}, longest=64)
    assert [len(name) for name in (*shown(made), *shown(longer))] == [48, 63]
    assert longer.arrange({"a": None}) is longer, "it stays as it is"


@pytest.mark.requirement("LIFE-26")
def test_a_kind_that_could_not_be_listed_keeps_its_last_good_items() -> None:
    last = replace(tools("a", "x"), prompts=(Item("p"),))
    now = Listing(server="a", generation=2, prompts=(Item("q"),), failed={Kind.TOOL: "it timed out"})
    kept = now.after(last)
    assert (kept.tools, kept.prompts) == (last.tools, now.prompts)


@pytest.mark.requirement("LIFE-16")
@pytest.mark.parametrize(
    ("annotations", "repeatable"),
    [
        ({"readOnlyHint": True}, True),
        ({"idempotentHint": True}, True),
        ({"readOnlyHint": "yes", "idempotentHint": 1}, False),
        ({}, False),
        ("odd", False),
    ],
)
def test_a_tool_may_be_called_twice_only_if_it_says_so(annotations: object, repeatable: bool) -> None:
    made = catalog(tools("a", "x", annotations=annotations))
    assert is_repeatable(made, "a__x") is repeatable
    assert is_repeatable(made, "a__y") is False


@pytest.mark.requirement("LIFE-18")
def test_a_tool_that_has_only_marks_of_the_hub_is_the_same_as_without_them() -> None:
    before = catalog(tools("a", "x"))
    assert changed(before.publish(tools("a", "x", generation=2, _meta={"holdfast/held": True})), before) == {}
    assert changed(before.publish(tools("a", "x", generation=2, _meta={})), before) == {"a": {Kind.TOOL}}


def test_a_collision_is_reported_until_its_server_lists_without_it() -> None:
    made = catalog(resources("a", "holdfast://x"), resources("b", "holdfast://y"))
    assert [one.key.server for one in made.collisions] == ["a", "b"]
    listed = Listing(server="a", generation=2, resources=(Item("file:///x"),))
    assert [one.key.server for one in made.publish(listed).collisions] == ["b"]


def test_a_guessed_name_becomes_the_true_one_only_if_the_guessed_server_lists_it() -> None:
    long = "read_" + "x" * 60
    made = catalog(tools("files", "read", long), tools("git", "git_log"), git="")
    (short,) = (name for name in shown(made) if name.startswith("files__read_"))
    (guess,) = (one for one in made.possible_owners(short) if one.server == "files")
    assert guess.original != long
    assert made.listed_name(guess) == long
    for server, original in (("files", "read"), ("files", "write"), ("git", short), ("gone", "read")):
        assert made.listed_name(NameKey(Kind.TOOL, server, original)) == original


@pytest.mark.requirement("LIFE-26")
@pytest.mark.parametrize(
    ("last", "now", "kept"),
    [
        (["x", "y"], ["y", "x"], True),
        (["x", "y"], ["x"], False),
        (["x"], ["x", "y"], False),
        (["x", "y"], ["x", "x"], False),
        (["x", "x"], ["x"], False),
        (["x", "x"], ["x", "y"], False),
        ([], ["x"], False),
    ],
)
def test_a_list_stays_as_it_was_only_if_it_has_the_same_items_each_once(
    last: list[str], now: list[str], kept: bool
) -> None:
    before, after = tools("a", *last), tools("a", *now, generation=2)
    expected = before if kept else after
    assert after.after(before).of(Kind.TOOL) == expected.of(Kind.TOOL)
