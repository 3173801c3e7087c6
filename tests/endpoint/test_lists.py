"""The lists of an endpoint, page by page, and what a session was given of them (HUB-2, HUB-8)."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import MCPError

from holdfast.core import Item, Kind
from holdfast.endpoint import LIST_METHODS, Broker, Client, EndpointAddress, McpServer, View, own_answers
from holdfast.endpoint.own_answers import Lists, next_digest
from tests.endpoint.test_announcer import Told
from tests.endpoint.test_clients import Line, call
from tests.endpoint.test_view import ANN, BOB, RULES, opened, publish

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2")]

TOOLS = "tools/list"


def tools(number: int) -> list[Item]:
    return [Item(f"t{at}") for at in range(number)]


async def read(lists: Lists, view: View, method: str = TOOLS) -> tuple[list[list[str]], str]:
    """The names on each page, and what a legacy client has of them after the last."""
    pages: list[list[str]] = []
    given, start = "", 0
    while True:
        page, digest = await lists.page(view, method, start, modern=False)
        given = next_digest(given, start, digest)
        value = page.value()
        pages.append([item.get("name") or item["uri"] for item in value[LIST_METHODS[method][1]]])
        if "nextCursor" not in value:
            return pages, given
        start = int(value["nextCursor"])


@pytest.mark.parametrize(
    ("number", "sizes"), [(0, [1]), (1, [2]), (2, [2, 1]), (3, [2, 2]), (4, [2, 2, 1]), (5, [2, 2, 2])]
)
async def test_each_item_is_on_one_page_and_those_of_the_hub_are_on_the_last(
    number: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_answers, "PAGE", 2)
    async with opened("a", largeResults={"over": 0}) as hub:
        publish(hub, "a", tools(number))
        pages, _ = await read(Lists(), View(hub))
        assert [len(page) for page in pages] == sizes
        assert [name for page in pages for name in page] == [*(f"a__t{at}" for at in range(number)), "holdfast_status"]
        units = number + 1
        for start in (units, units + 1):
            with pytest.raises(MCPError, match="Invalid cursor"):
                await Lists().page(View(hub), TOOLS, start, modern=False)


async def test_an_endpoint_without_items_has_one_empty_page() -> None:
    async with opened("a", largeResults={"over": 0}) as hub:
        publish(hub, "a", [], prompts=())
        for method in (TOOLS, "prompts/list"):
            assert (await read(Lists(), View(hub, EndpointAddress("a")), method))[0] == [[]]
        assert (await read(Lists(), View(hub), "resources/list"))[0] == [["mem://a", "holdfast-status"]]
        assert (await read(Lists(), View(hub, EndpointAddress("a")), "resources/list"))[0] == [["mem://a"]]


async def test_a_page_ends_where_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_answers, "PAGE_BYTES", 10)
    async with opened("a") as hub:
        publish(hub, "a", tools(2))
        assert (await read(Lists(), View(hub, EndpointAddress("a"))))[0][:2] == [["t0"], ["t1"]]


async def test_a_page_is_made_once_for_each_era_until_a_listing_changes() -> None:
    async with opened("a", "b", access=RULES) as hub:
        lists, whole = Lists(), View(hub)

        async def page(view: View, *, modern: bool = False) -> object:
            return (await lists.page(view, TOOLS, 0, modern=modern))[0]

        first = await page(whole)
        assert await page(whole) is first
        assert await page(whole, modern=True) is not first
        assert await page(whole.seen_by(ANN)) is not first, "she sees less"
        publish(hub, "a", tools(1))
        assert await page(whole) is not first


async def test_the_pages_of_callers_with_rules_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_answers, "MOST_PAGES", 1)
    async with opened("a", "b", access=RULES) as hub:
        lists, whole = Lists(), View(hub)
        views = [whole, whole.seen_by(ANN), whole.seen_by(BOB)]
        made = [(await lists.page(view, TOOLS, 0, modern=False))[0] for view in views]
        kept = [(await lists.page(view, TOOLS, 0, modern=False))[0] for view in (whole, views[2])]
        assert (kept[0] is made[0], kept[1] is made[2]) == (True, True)
        assert (await lists.page(views[1], TOOLS, 0, modern=False))[0] is not made[1], "the oldest gave way"


@pytest.mark.requirement("HUB-8")
@pytest.mark.requirement("SEC-11")
async def test_a_page_to_which_no_cursor_of_the_hub_leads_is_given_but_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_answers, "PAGE", 2)
    async with opened("a") as hub:
        publish(hub, "a", tools(5))
        lists, view = Lists(), View(hub)
        await read(lists, view)
        for start in range(6):
            first, again = [(await lists.page(view, TOOLS, start, modern=False))[0] for _ in range(2)]
            assert first.value() == again.value()
            assert (first is again) is (start in (0, 2, 4))


async def test_what_a_session_was_given_shows_whether_its_lists_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_answers, "PAGE", 2)
    async with opened("a", largeResults={"over": 0}) as hub:
        publish(hub, "a", tools(4))
        lists, view = Lists(), View(hub)
        _, given = await read(lists, view)
        assert given.split(":")[:-1] == ["0", "2", "4"]
        assert not await lists.differs(view, TOOLS, given)
        publish(hub, "a", [*tools(3), Item("t3", {"description": "another"})])
        assert await lists.differs(view, TOOLS, given)
        publish(hub, "a", tools(1))
        assert await lists.differs(view, TOOLS, given), "it has fewer pages"
        publish(hub, "a", tools(4))
        assert not await lists.differs(view, TOOLS, given)


def test_a_page_that_does_not_follow_the_one_before_begins_again() -> None:
    one = next_digest("", 0, b"one")
    two = next_digest(one, 2, b"two")
    assert two.startswith("0:2:")
    assert next_digest(two, 2, b"two").startswith("2:")
    assert next_digest(two, 0, b"one") == one
    assert next_digest(one, 2, b"other") != two


@pytest.mark.requirement("HUB-8")
async def test_a_session_that_comes_back_is_told_which_of_its_lists_changed() -> None:
    async with opened("a") as hub:
        broker = Broker(hub)
        server, told = McpServer(broker, View(hub)), Told(broker)
        for method in (TOOLS, "prompts/list"):
            await server.answer(await call(told.client, Line(), method=method))
        given = dict(told.client.listed or {})
        assert given.keys() == {TOOLS, "prompts/list"}
        await server.own.tell_missed(told.client, given)
        assert told.taken() == set()
        publish(hub, "a", tools(1))
        await server.own.tell_missed(told.client, given)
        assert told.taken() == {"tools/list_changed"}
        await server.own.tell_missed(told.client, None)
        assert told.taken() == {f"{kind.value}/list_changed" for kind in (Kind.TOOL, Kind.PROMPT, Kind.RESOURCE)}


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "²", "1" * 10, "7"])
async def test_a_cursor_that_the_hub_did_not_give_is_refused(cursor: str) -> None:
    async with opened("a") as hub:
        server = McpServer(Broker(hub), View(hub))
        one = Client(View(hub), Line(), {}, modern=False, owner="o")
        with pytest.raises(MCPError, match="Invalid cursor"):
            await server.answer(await call(one, Line(), method=TOOLS, cursor=cursor))
        first: Any = (await server.answer(await call(one, Line(), method=TOOLS, cursor="0"))).value()
        assert {tool["name"] for tool in first["tools"]} >= {"a__read", "a__write"}
        assert one.listed is not None
        modern = Client(View(hub), Line(), {}, modern=True, owner="o", listed=None)
        await server.answer(await call(modern, Line(), method=TOOLS))
        assert modern.listed is None, "a modern client is one request"
