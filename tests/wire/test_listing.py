"""What is read of a list: its pages up to each bound, its items in their own spelling, and why it failed (SEC-4)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from mcp import MCPError
from mcp_types import METHOD_NOT_FOUND, ServerCapabilities

from holdfast.config import Limits
from holdfast.core import (
    Evidence,
    HttpStatus,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    OverBound,
    ProcessExit,
    RpcError,
    TimedOut,
)
from holdfast.errors import ServerFailure
from holdfast.wire import listing
from holdfast.wire.listing import (
    ITEM_BYTES,
    Offers,
    list_other_offers,
    list_tool_offers,
    read_template,
    task_support,
    without_task_support,
)
from holdfast.wire.raw_json import BadJson, RawObject

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-4")]

SCHEMA = {"type": "object"}
ALL: dict[str, Any] = {"prompts": {}, "resources": {}, "tools": {}}
METHODS = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "templates": "resources/templates/list",
}


def tool(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": SCHEMA, **more}


def page(*tools: Any, then: object = None, **more: Any) -> dict[str, Any]:
    return {"tools": list(tools), **({"nextCursor": then} if then is not None else {}), **more}


PROMPTS: dict[str, Any] = {"prompts": [{"name": "p"}]}
RESOURCES: dict[str, Any] = {"resources": [{"uri": "a:b", "name": "r"}]}
TEMPLATES: dict[str, Any] = {"resourceTemplates": [{"uriTemplate": "a:{b}", "name": "t"}]}
OTHERS: dict[str, Any] = {
    "prompts/list": [PROMPTS], "resources/list": [RESOURCES], "resources/templates/list": [TEMPLATES]
}  # fmt: skip


class Server:
    """Gives page by page what a test says, and notes what it was asked."""

    def __init__(
        self,
        answers: dict[str, list[Any]],
        *,
        can: dict[str, Any] = ALL,
        modern: bool = False,
        runs_tasks: bool = False,
        **limits: int,
    ) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str | None]] = []
        self.offers = ServerCapabilities.model_validate(can)
        self.modern = modern
        self.runs_tasks = runs_tasks
        self.mirrors: Any = None
        self.wire = SimpleNamespace(rpc=SimpleNamespace(limits=Limits(**limits), received=1_000))

    async def list_page(self, method: str, cursor: str | None) -> RawObject:
        self.asked.append((method, cursor))
        answer = self.answers[method].pop(0)
        if answer == "silence":
            await anyio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.wire.rpc.received += len(text)
        return RawObject.read(text)

    def mirrored(self, maps: Any) -> None:
        self.mirrors = maps


def with_tools(*pages: Any, **more: Any) -> Any:
    return Server({"tools/list": list(pages)}, **more)


async def tools_of(*pages: Any, last: Offers | None = None, **more: Any) -> Offers:
    return await list_tool_offers(with_tools(*pages, **more), last)


async def failure_of(*pages: Any, **more: Any) -> Evidence:
    with pytest.raises(ServerFailure) as failed:
        await tools_of(*pages, **more)
    return failed.value.evidence


def names(offers: Offers) -> list[str]:
    return [name for name, _ in offers["tools"]]


# Pages.


async def test_a_list_is_read_page_by_page_to_the_one_without_a_cursor() -> None:
    server = with_tools(page(tool("a"), then="1"), page(then="2"), page(tool("b"), tool("c"), then=""))
    offers = await list_tool_offers(server)
    assert names(offers) == ["a", "b", "c"]
    assert server.asked == [("tools/list", None), ("tools/list", "1"), ("tools/list", "2")]
    assert [one.count for one in offers.pages["tools"]] == [1, 0, 2]
    assert server.mirrors == {}
    assert names(await tools_of(page(tool(), then=5))) == ["a"], "a cursor is a text"


async def test_a_server_that_does_not_know_the_method_has_none_unless_it_gave_a_page() -> None:
    unknown = MCPError(METHOD_NOT_FOUND, "Method not found")
    assert (await tools_of(unknown))["tools"] == ()
    seen = RpcError(method="tools/list", code=METHOD_NOT_FOUND, message="Method not found")
    assert await failure_of(page(tool(), then="1"), unknown) == seen
    assert await failure_of(MCPError(-1, "no")) == RpcError(method="tools/list", code=-1, message="no")
    unreadable = NotMcp(fault=NotMcpFault.BAD_RESULT, detail="odd")
    assert await failure_of(BadJson("odd")) == unreadable


async def test_a_cursor_that_comes_a_second_time_fails_the_list() -> None:
    seen = await failure_of(page(then="1"), page(then="2"), page(then="1"))
    assert seen == NotMcp(fault=NotMcpFault.CURSOR_REPEATS)


async def test_a_list_has_so_many_pages_and_items_and_bytes_and_not_one_more() -> None:
    two = [page(tool("a"), then="1"), page(tool("b"))]
    assert names(await tools_of(*two, pages=2, catalog_items=2)) == ["a", "b"]
    assert await failure_of(*two, pages=1) == OverBound(
        bound="the pages of a list", limit=1, setting="holdfast.limits.pages"
    )
    assert await failure_of(*two, catalog_items=1) == OverBound(
        bound="the number of tools", limit=1, setting="holdfast.limits.catalogItems"
    )
    size = sum(len(json.dumps(one)) for one in two)
    assert names(await tools_of(*two, catalog_bytes=size)) == ["a", "b"]
    assert await failure_of(*two, catalog_bytes=size - 1) == OverBound(
        bound="the size of a list", limit=size - 1, setting="holdfast.limits.catalogBytes"
    )


async def test_an_item_may_have_so_many_bytes_and_not_one_more() -> None:
    room = ITEM_BYTES - len(json.dumps(tool(description="")))
    fits, over = tool(description="x" * room), tool(description="x" * (room + 1))
    assert names(await tools_of(page(fits))) == ["a"]
    seen = OverBound(bound="the size of one of its tools", limit=ITEM_BYTES, setting="")
    assert await failure_of(page(over)) == seen


def nested(levels: int, *, wide: int = 0) -> bytes:
    """A tool of so many levels: its own, one of its schema, and lists."""
    inner = b"[" * (levels - 2) + b"]" * (levels - 2)
    return b'{"tools": [{"name": "a", "inputSchema": {"type": "object", "x": %b, "y": [%b]}}]}' % (
        inner,
        b",".join([b"{}"] * wide),
    )


async def test_an_item_may_have_so_many_levels_and_not_one_more() -> None:
    assert names(await tools_of(nested(listing.DEEPEST_ITEM))) == ["a"]
    assert names(await tools_of(nested(3, wide=200))) == ["a"], "many values beside each other are no depth"
    seen = NotMcp(fault=NotMcpFault.BAD_RESULT, detail="tools.0: it is nested too deep")
    assert await failure_of(nested(listing.DEEPEST_ITEM + 1)) == seen


async def test_one_item_that_cannot_be_read_fails_its_list_and_is_named() -> None:
    for wrong, detail in (
        (page(tool(), {"inputSchema": SCHEMA}), "tools.1.name: Field required"),
        (page({"name": "a", "input_schema": SCHEMA}), "tools.0.inputSchema: Field required"),
        ({"tools": {}}, "tools: "),
        ({}, "tools: Field required"),
    ):
        seen = await failure_of(wrong)
        assert isinstance(seen, NotMcp)
        assert (seen.fault, seen.detail[: len(detail)]) == (NotMcpFault.BAD_RESULT, detail)


# Items.


@pytest.mark.requirement("SEC-21")
async def test_an_item_is_shown_as_it_came_without_the_hubs_keys_and_other_spellings() -> None:
    sent = tool(title="A", description="x", InputSchema={"type": "odd"}, _meta={"holdfast/x": 1, "y": 2}, own=[1])
    offers = await tools_of(page(sent))
    assert dict(offers["tools"][0][1]) == tool(title="A", description="x", _meta={"y": 2}, own=[1])


async def test_a_tools_headers_are_read_in_the_modern_era_and_one_with_invalid_headers_is_left_out() -> None:
    def mirroring(name: str, header: str) -> dict[str, Any]:
        schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": header}}}
        return {"name": name, "inputSchema": schema}

    pages = page(tool("plain"), mirroring("good", "Region"), mirroring("bad", "no token"))
    server = with_tools(pages, modern=True)
    offers = await list_tool_offers(server)
    assert names(offers) == ["plain", "good"]
    assert server.mirrors == offers.header_maps == {"good": {("region",): "Region"}}
    assert offers.pages["tools"][0].count == 3
    offers = await tools_of(pages)
    assert names(offers) == ["plain", "good", "bad"], "the legacy era has no such headers"
    assert offers.header_maps == {}


async def test_a_tools_support_of_tasks_is_shown_only_where_the_server_runs_tasks() -> None:
    one = tool(execution={"taskSupport": "required"})
    assert dict((await tools_of(page(one), runs_tasks=True))["tools"][0][1]) == one
    assert dict((await tools_of(page(one)))["tools"][0][1]) == tool()


def test_a_tool_runs_as_a_task_only_if_it_says_so_in_the_words_of_the_protocol() -> None:
    for execution, support in (
        ({"taskSupport": "required"}, "required"),
        ({"taskSupport": "optional"}, "optional"),
        ({"taskSupport": "forbidden"}, "forbidden"),
        ({"taskSupport": "odd"}, "forbidden"),
        ({}, "forbidden"),
        ("odd", "forbidden"),
    ):
        assert task_support({"execution": execution}) == support
    assert task_support({}) == "forbidden"
    kept = tool(execution={"taskSupport": "forbidden"})
    assert without_task_support(kept) is kept
    several = tool(execution={"taskSupport": "optional", "own": 1})
    assert without_task_support(several) == tool(execution={"own": 1})
    assert without_task_support(tool(execution={"taskSupport": "required"})) == tool()


def test_a_text_that_is_no_template_is_none() -> None:
    template = read_template("note://{id}")
    assert template is not None
    assert template.match("note://7") == {"id": "7"}
    assert read_template("note://{id") is None


# A list that was read before.


@pytest.mark.requirement("PERF-4")
async def test_a_page_with_the_same_bytes_is_not_read_again() -> None:
    last = await tools_of(page(tool("a"), then="1"), page(tool("b")))
    same = await tools_of(page(tool("a"), then="1", beside=1), page(tool("b")), last=last)
    assert same["tools"] is last["tools"]
    assert same.header_maps is last.header_maps
    assert same.equal(last)
    changed = await tools_of(page(tool("a"), then="1"), page(tool("c")), last=last)
    assert names(changed) == ["a", "c"]
    assert changed.pages["tools"][0] is last.pages["tools"][0]
    assert changed["tools"][0][1] is last["tools"][0][1]
    assert not changed.equal(last)
    for fewer in (page(tool("a")), page(tool("b"))):
        less = await tools_of(fewer, last=last)
        assert names(less) == [fewer["tools"][0]["name"]]
        assert not less.equal(last)
        assert not last.equal(less)
    over = await failure_of(page(tool("a"), then="1"), page(tool("b")), last=last, catalog_items=1)
    assert isinstance(over, OverBound), "known items count too"


async def test_a_large_list_has_another_digest_for_a_change_in_any_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "HASHED_BYTES", 10)
    whole = b"x" * 35
    digests = {
        await listing._digest(one)
        for one in (whole, b"y" + whole[1:], whole[:-1] + b"y", whole[:15] + b"y" + whole[16:])
    }
    assert len(digests) == 4
    assert {len(one) for one in digests} == {16}
    assert await listing._digest(None) == await listing._digest(b"")


async def test_two_listings_are_equal_only_if_each_list_was_read_and_is_the_same() -> None:
    first = await tools_of(page(tool()))
    second = await tools_of(page(tool()), last=first)
    assert second.equal(first)
    second.failures["prompts"] = NotMcp(fault=NotMcpFault.BAD_RESULT)
    assert not second.equal(first), "a list that failed says nothing"
    second.failures.clear()
    first.pages["prompts"] = []
    assert not second.equal(first)
    assert not first.equal_in("prompts", second)
    second.pages["prompts"] = []
    assert second.equal(first)


# Lists other than that of the tools.


async def others_of(server: Any, *, last: Offers | None = None, seconds: float = 30.0) -> Offers:
    offers = Offers()
    await list_other_offers(server, offers, last, until=anyio.current_time() + seconds)
    return offers


@pytest.mark.requirement("LIFE-26")
async def test_each_kind_that_the_capabilities_name_is_listed() -> None:
    server = Server({method: [*pages] for method, pages in OTHERS.items()})
    offers = await others_of(server)
    assert offers == {
        "prompts": (("p", PROMPTS["prompts"][0]),),
        "resources": (("a:b", RESOURCES["resources"][0]),),
        "templates": (("a:{b}", TEMPLATES["resourceTemplates"][0]),),
    }
    assert offers.failures == {}
    assert server.asked == [(METHODS[kind], None) for kind in ("prompts", "resources", "templates")]
    assert [*offers.pages] == ["prompts", "resources", "templates"]
    again = await others_of(Server({method: [*pages] for method, pages in OTHERS.items()}), last=offers)
    assert again.equal(offers)
    fewer = Server({"prompts/list": [PROMPTS]}, can={"prompts": {}})
    assert [*await others_of(fewer)] == ["prompts"]


@pytest.mark.requirement("LIFE-26")
async def test_a_list_that_fails_is_named_with_its_reason_and_takes_no_other_with_it() -> None:
    answers = {method: [*pages] for method, pages in OTHERS.items()}
    offers = await others_of(Server({**answers, "prompts/list": [{"prompts": [{"name": 1}]}]}))
    assert [*offers] == ["resources", "templates"]
    (seen,) = offers.failures.values()
    assert isinstance(seen, NotMcp)
    assert seen.detail.startswith("prompts.0.name: ")
    assert "prompts" not in offers.pages


@pytest.mark.requirement("LIFE-26")
@pytest.mark.parametrize(
    ("seen", "lost"),
    [
        (NetworkFailure(fault=NetworkFault.CLOSED), True),
        (ProcessExit(code=1), True),
        (HttpStatus(status=404), True),
        (HttpStatus(status=500), False),
        (TimedOut(doing="x", after=1.0), False),
    ],
)
async def test_a_lost_connection_ends_all_lists_and_another_failure_its_own(seen: Evidence, lost: bool) -> None:
    answers = {method: [*pages] for method, pages in OTHERS.items()}
    server = Server({**answers, "prompts/list": [ServerFailure(seen)]})
    if lost:
        with pytest.raises(ServerFailure) as failed:
            await others_of(server)
        assert failed.value.evidence == seen
        assert server.asked == [("prompts/list", None)]
    else:
        offers = await others_of(server)
        assert offers.failures == {"prompts": seen}
        assert [*offers] == ["resources", "templates"]


@pytest.mark.requirement("LIFE-26")
@pytest.mark.parametrize(("most", "seconds", "told"), [(0.14, 30.0, 0.1), (30.0, 0.14, 0.1), (30.0, -5.0, 0.0)])
async def test_a_list_without_an_answer_fails_after_its_time_or_after_what_is_left(
    monkeypatch: pytest.MonkeyPatch, most: float, seconds: float, told: float
) -> None:
    monkeypatch.setattr(listing, "OTHER_LIST_SECONDS", most)
    server = Server({"prompts/list": ["silence"]}, can={"prompts": {}})
    with anyio.fail_after(20):
        offers = await others_of(server, seconds=seconds)
    assert offers.failures == {"prompts": TimedOut(doing="the answer to prompts/list", after=told)}
    assert offers == {}


async def test_the_number_of_templates_is_named_in_words() -> None:
    templates = {"resourceTemplates": TEMPLATES["resourceTemplates"] * 2}
    server = Server({"resources/list": [RESOURCES], "resources/templates/list": [templates]},
                    can={"resources": {}}, catalog_items=1)  # fmt: skip
    offers = await others_of(server)
    assert offers.failures == {
        "templates": OverBound(
            bound="the number of resources templates", limit=1, setting="holdfast.limits.catalogItems"
        )
    }
