"""What an endpoint shows, and whose a name is there: by its address, its rules and its folder (FIND-9, SEC-13)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from holdfast.access import Principal
from holdfast.config.read import config_from_mapping
from holdfast.core import Item, Kind, Listing, NameKey, Unknown
from holdfast.endpoint import EndpointAddress, view as views
from holdfast.endpoint.view import View, has_all, lists_tools_of
from holdfast.hub import Hub

pytestmark = pytest.mark.anyio

HOME = "/home/ann/project"
RULES = {
    "rules": [
        {"effect": "allow", "principals": ["ann"], "servers": ["a"], "tools": ["read*"]},
        {"effect": "allow", "principals": ["bob"], "servers": ["b"]},
    ]
}
ANN, BOB, EVE = (Principal(name=name) for name in ("ann", "bob", "eve"))


@asynccontextmanager
async def opened(
    *servers: str, scoped: Mapping[str, str] | None = None, sharing: str = "shared", **settings: Any
) -> AsyncIterator[Hub]:
    """A hub of servers that list two tools, a prompt and a resource; ``scoped`` run for a folder. None is dialled."""
    folders = scoped or {}
    config = config_from_mapping(
        {
            "mcpServers": {
                name: {"url": "http://127.0.0.1:9/mcp", "lazy": True, "sharing": sharing}
                for name in {*servers, *folders}
            },
            "holdfast": settings,
        }
    )
    specs = {name: config.servers[name] for name in servers}
    for name, folder in folders.items():
        copy = config.servers[name].in_folder(folder)
        specs[copy.id] = copy
    async with Hub(replace(config, servers=specs, scoped=bool(folders))) as hub:
        for server in specs:
            publish(hub, server)
        yield hub


def publish(hub: Hub, server: str, tools: Sequence[Item] = (Item("read"), Item("write")), **more: Any) -> None:
    kinds = {"prompts": (Item("greet"),), "resources": (Item(f"mem://{server}"),), **more}
    hub.registry.publisher.publish(Listing(server=server, generation=1, tools=tuple(tools), **kinds))


def names(view: View, kind: Kind = Kind.TOOL) -> list[str]:
    return sorted(view.name_of(entry) for entry in view.entries(kind))


@pytest.mark.requirement("FIND-9")
async def test_a_profile_has_what_its_patterns_name_and_the_resources_of_its_servers() -> None:
    async with opened("a", "b", profiles={"work": ["a/re*"]}) as hub:
        view = View(hub, EndpointAddress(profile="work"))
        assert view.servers == ["a"]
        assert names(view) == ["a__read"]
        assert names(view, Kind.PROMPT) == []
        assert names(view, Kind.RESOURCE) == ["mem://a"]
        assert (view.has("a"), view.has("b"), view.has("gone")) == (True, False, False)
        assert view.find(Kind.TOOL, "a__read") == NameKey(Kind.TOOL, "a", "read")
        assert view.find(Kind.TOOL, "a__write") == Unknown("a__write", ("a__read",))
        assert View(hub, EndpointAddress(profile="gone")).servers == []
        assert view.find(Kind.TOOL, "c__raed") == Unknown("c__raed", ("a__read",)), "nothing else is suggested"
        assert not View(hub).has("gone")
        assert View(hub).find(Kind.TOOL, "c__write") == Unknown("c__write", ("b__write", "a__write"))


@pytest.mark.requirement("FIND-9")
async def test_a_slash_in_a_pattern_may_be_of_the_server_or_of_the_tool() -> None:
    async with opened("a", "io/b", profiles={"work": ["a/x/*", "io/b/read"]}) as hub:
        publish(hub, "a", [Item("x/y"), Item("z")])
        view = View(hub, EndpointAddress(profile="work"))
        assert view.servers == ["a", "io/b"]
        assert [(entry.server, entry.original) for entry in view.entries(Kind.TOOL)] == [("a", "x/y"), ("io/b", "read")]


async def test_in_find_mode_the_pinned_tools_are_listed_and_all_prompts() -> None:
    async with opened("a", "b", pin=["a/write"]) as hub:
        view = View(hub, EndpointAddress(tools="find"))
        assert names(view) == ["a__write"]
        assert names(view, Kind.PROMPT) == ["a__greet", "b__greet"]
        assert len(view.all_entries(Kind.TOOL)) == 4
        assert (lists_tools_of(view, "a"), lists_tools_of(view, "b")) == (True, False)
        assert lists_tools_of(View(view.hub), "b")


async def test_only_an_endpoint_that_hides_something_makes_a_list_of_its_own() -> None:
    everything: dict[str, Any] = {"profiles": {"work": ["*/*"]}, "access": RULES}
    async with opened("a", "b", **everything) as hub, opened("a", scoped={"c": HOME}) as scoped:
        assert View(hub).all_entries(Kind.TOOL) is hub.catalog.of(Kind.TOOL), "a large fleet has one list"
        for limited in (View(hub, EndpointAddress("a")), View(hub, EndpointAddress(profile="work")), View(scoped)):
            assert limited.all_entries(Kind.TOOL) is not limited.hub.catalog.of(Kind.TOOL)
        assert names(View(hub).seen_by(ANN)) == ["a__read"]


async def test_an_endpoint_of_one_server_has_its_own_names_and_its_filter() -> None:
    async with opened("a", "b") as hub:
        view = View(hub, EndpointAddress("a"))
        assert view.servers == ["a"]
        assert names(view) == ["read", "write"]
        assert view.find(Kind.TOOL, "never_listed") == NameKey(Kind.TOOL, "a", "never_listed")
        assert (view.covers("a"), view.covers("b")) == (True, False)
        spec = hub.config.servers["a"]
        hub.registry.config = replace(
            hub.config, servers={"a": replace(spec, tools=replace(spec.tools, exclude=("w*",)))}
        )
        assert view.find(Kind.TOOL, "write") == Unknown("write", ())


@pytest.mark.requirement("SEC-13")
async def test_rules_limit_a_view_to_what_its_principal_may_list() -> None:
    async with opened("a", "b", access=RULES) as hub:
        whole = View(hub)
        ann, bob, eve = (whole.seen_by(who) for who in (ANN, BOB, EVE))
        assert (names(ann), names(bob), names(eve)) == (["a__read"], ["b__read", "b__write"], [])
        assert (ann.servers, bob.servers, eve.servers) == (["a"], ["b"], [])
        assert whole.seen_by(Principal(name="ann")) is ann, "one view for all who may see the same"
        assert ann.find(Kind.TOOL, "a__write") == Unknown("a__write", ("a__read",))
        assert ann.find(Kind.TOOL, "b__read") == Unknown("b__read", ("a__read",))
        one = View(hub, EndpointAddress("a"))
        assert one.seen_by(ANN).find(Kind.TOOL, "write") == Unknown("write", ())
        assert (has_all(whole, "a"), has_all(ann, "a"), has_all(one.seen_by(ANN), "a")) == (True, False, False)
        assert has_all(View(hub, EndpointAddress("b")).seen_by(BOB), "b")


@pytest.mark.requirement("SEC-13", "SEC-7")
async def test_a_view_that_was_settled_shows_the_same_until_a_listing_changes() -> None:
    async with opened("a", "b", access=RULES) as hub:
        view = View(hub).seen_by(ANN)
        await view.settle()
        assert names(view) == ["a__read"]
        kept = view.all_entries(Kind.TOOL)
        await view.settle()
        assert view.all_entries(Kind.TOOL) is kept
        publish(hub, "a", [Item("read"), Item("read_all")])
        await view.settle()
        assert names(view) == ["a__read", "a__read_all"]


async def test_no_more_views_are_kept_than_the_bound_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MOST_VIEWS", 2)
    async with opened("a", "b", access=RULES) as hub:
        whole = View(hub)
        ann, bob = whole.seen_by(ANN), whole.seen_by(BOB)
        eve = whole.seen_by(EVE)
        assert whole.seen_by(BOB) is bob
        assert whole.seen_by(EVE) is eve
        assert whole.seen_by(ANN) is not ann


@pytest.mark.parametrize(
    "address",
    [
        EndpointAddress(),
        EndpointAddress("a"),
        EndpointAddress("a", "find"),
        EndpointAddress(profile="work"),
        EndpointAddress(folder=HOME),
        EndpointAddress('["endpoint", "a"]'),
    ],
)
def test_an_address_is_known_by_its_label(address: EndpointAddress) -> None:
    assert EndpointAddress.of_label(address.label) == address


def test_the_label_of_one_server_is_its_name() -> None:
    assert (EndpointAddress("a").label, EndpointAddress().label) == ("a", None)


async def test_clients_see_the_servers_of_their_folder_under_the_names_of_its_configuration() -> None:
    async with opened("shared", "files", scoped={"files": HOME, "notes": HOME, "other": "/elsewhere"}) as hub:
        here, nowhere = View(hub, EndpointAddress(folder=HOME)), View(hub)
        files, notes, other = (one for one in hub.config.servers if "@" in one)
        assert sorted(here.servers) == sorted(["shared", files, notes]), "it takes the place of the shared one"
        assert sorted(nowhere.servers) == ["files", "shared"]
        assert not here.covers("gone")
        assert names(here, Kind.PROMPT) == ["files__greet", "notes__greet", "shared__greet"]
        assert here.find(Kind.TOOL, "notes__read") == NameKey(Kind.TOOL, notes, "read")
        assert here.find(Kind.TOOL, "files__read") == NameKey(Kind.TOOL, files, "read")
        assert nowhere.find(Kind.TOOL, "files__read") == NameKey(Kind.TOOL, "files", "read")
        assert isinstance(nowhere.find(Kind.TOOL, "notes__read"), Unknown)
        assert other not in here.servers
        assert View(hub, EndpointAddress(other)).covers(other), "it is asked for by its id"
        publish(hub, notes, [Item("search")])
        assert here.find(Kind.TOOL, "notes__search") == NameKey(Kind.TOOL, notes, "search")


async def test_the_route_of_a_tool_is_looked_up_once_while_nothing_changes() -> None:
    async with opened("a") as hub:
        schema = {"type": "object", "properties": {"x": {"type": "string", "x-mcp-header": "X"}}}
        publish(
            hub, "a", [Item("read", {"annotations": {"readOnlyHint": True}}), Item("head", {"inputSchema": schema})]
        )
        view, one = View(hub), View(hub, EndpointAddress("a"))
        route = view.tool("a__read")
        assert route == (NameKey(Kind.TOOL, "a", "read"), b'"read"', True, False)
        assert view.tool("a__read") is route
        assert view.tool("a__head") == (NameKey(Kind.TOOL, "a", "head"), b'"head"', False, True)
        assert one.tool("read") == (NameKey(Kind.TOOL, "a", "read"), None, True, False)
        assert one.tool("unlisted") is not one.tool("unlisted"), "any name may be asked for, and none of them is kept"
        publish(hub, "a", [Item("read")])
        assert view.tool("a__read") == (NameKey(Kind.TOOL, "a", "read"), b'"read"', False, False)


async def test_a_uri_is_of_the_server_that_lists_it_or_has_a_template_or_a_prefix_for_it() -> None:
    async with opened("a", "b") as hub:
        publish(hub, "a", templates=(Item("file:///{name}"),), resources=(Item("mem://same"), Item("mem://a")))
        publish(hub, "b", resources=(Item("mem://same"),))
        view = View(hub)

        def owner(uri: str) -> tuple[str, str] | None:
            found = view.find(Kind.RESOURCE, uri)
            return (found.server, found.original) if isinstance(found, NameKey) else None

        assert owner("mem://a") == ("a", "mem://a")
        assert owner("file:///x") == ("a", "file:///x")
        assert owner("from-b+mem://unlisted") == ("b", "mem://unlisted")
        assert owner("mem://unlisted") is None
        assert owner("holdfast://status") is None
        assert owner("from-b+holdfast://status") is None
        assert view.uris.shown("a", "mem://a") == "mem://a"
        assert [view.uris.shown(one, "mem://same") for one in "ab"] == ["mem://same", "from-b+mem://same"]
        assert view.uris.shown("a", "file:///y") == "file:///y"
        assert view.uris.shown("b", "mem://late") == "from-b+mem://late"
        assert view.uris.shown("", "holdfast://status") == "holdfast://status"
        assert view.uris.shown("removed", "mem://late") == "mem://late"
        assert View(hub, EndpointAddress("b")).uris.shown("b", "mem://same") == "mem://same"


@pytest.mark.requirement("SEC-7")
async def test_a_template_with_many_variables_and_a_long_uri_are_not_compared() -> None:
    async with opened("a", "b") as hub:
        few, many = "few://{a,b}/{c}/{d}/{e}/{f}/{g}/{h}", "many://{a,b}/{c}/{d}/{e}/{f}/{g}/{h}/{i}"
        uris = ("few://1,2/3/4/5/6/7/8", "many://1,2/3/4/5/6/7/8/9", f"few://1,2/3/4/5/6/7/{'8' * 1024}")
        publish(hub, "a", templates=(Item(few), Item(many)))
        found = [View(hub).find(Kind.RESOURCE, uri) for uri in uris]
        assert [isinstance(one, NameKey) for one in found] == [True, False, False]


async def test_an_unlisted_uri_is_of_the_only_server_with_resources() -> None:
    async with opened("a", "b") as hub:
        publish(hub, "b", resources=())
        assert View(hub).find(Kind.RESOURCE, "mem://unlisted") == NameKey(Kind.RESOURCE, "a", "mem://unlisted")


async def test_servers_whose_prefixes_would_be_equal_get_a_number() -> None:
    async with opened("a_b", "a-b") as hub:
        view = View(hub)
        assert {view.uris.shown(one, "mem://late") for one in ("a_b", "a-b")} == {
            "from-a-b+mem://late",
            "from-a-b.1+mem://late",
        }


@pytest.mark.requirement("HUB-3")
@pytest.mark.parametrize("order", [("a_b", "a-b"), ("a-b", "a_b")])
async def test_a_uri_leads_to_its_server_whichever_of_two_with_equal_prefixes_was_listed_first(
    order: tuple[str, str],
) -> None:
    async with opened("first", "a_b", "a-b") as hub:
        for server in ("first", *order):
            publish(hub, server, templates=(Item("note://of/{name}"),), resources=(Item("note://one"),))
        view = View(hub)
        for server in ("first", "a_b", "a-b"):
            for uri in ("note://one", "note://of/ann", "hidden://x"):
                shown = view.uris.shown(server, uri)
                assert view.find(Kind.RESOURCE, shown) == NameKey(Kind.RESOURCE, server, uri)
