"""A program that holds the hub is the principal ``local``: access rules without subjects bind it (SEC-14)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from holdfast.access import LOCAL, LONGEST_URI
from holdfast.core import Item, Kind, Listing, NameKey
from holdfast.errors import CallForbidden, UnknownTool
from holdfast.hub import access_item, is_or_may_be, suggested
from holdfast.hub.hub import Hub
from holdfast.hub.registry import MOST_SUGGESTED
from holdfast.testing import HttpServer
from tests.harness.open_hubs import config, running, settled
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-14")]

RULES = {
    "default": "allow",
    "rules": [
        {"effect": "deny", "tools": ["fail"]},
        {"effect": "deny", "tools": ["echo"], "when": "arguments.text == 'no'"},
        {"effect": "deny", "resources": ["vault://secret*", "vault://*/keys"]},
        {"effect": "deny", "prompts": ["dismiss"]},
    ],
}
LAZY = {"url": "http://127.0.0.1:9/mcp", "lazy": True}


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with McpPeer(offers=True) as peer, running({"a": peer}, access=RULES) as hub:
        await settled(hub)
        yield hub


def show(hub: Hub, **kinds: list[str]) -> None:
    """Let the server list this, beside what it has."""
    items: Any = {kind: tuple(Item(name, {}) for name in names) for kind, names in kinds.items()}
    hub.registry.publisher.publish(Listing(server="a", generation=9, **items))


async def test_what_the_rules_hide_is_unknown_and_what_they_refuse_is_refused(hub: Hub) -> None:
    assert {"a__echo", "a__fail"} & {tool.name for tool in hub.tools()} == {"a__echo"}
    with pytest.raises(UnknownTool) as hidden:
        await hub.call_tool("a__fail")
    assert "fail" not in hidden.value.hint
    assert (await hub.call_tool("a__echo", {"text": "yes"})).text == "yes"
    with pytest.raises(CallForbidden, match="was denied `echo` of MCP server 'a'") as refused:
        await hub.call_tool("a__echo", {"text": "no"})
    assert (refused.value.rule, "rules[1]" in refused.value.hint) == ("rules[1]", True)


async def test_prompts_and_resources_are_judged_too(hub: Hub) -> None:
    show(hub, prompts=["dismiss", "greet"], resources=["vault://open", "vault://secret"])
    assert await hub.get_prompt("a__greet", {"who": "Ada"})
    with pytest.raises(UnknownTool):
        await hub.get_prompt("a__dismiss")
    assert await hub.read_resource("vault://open")
    for named in (None, "a"):
        with pytest.raises(UnknownTool, match="no server has a resource named `vault://secret`"):
            await hub.read_resource("vault://secret", server=named)


async def test_a_completion_that_names_no_hidden_resource_comes_as_the_server_gave_it(hub: Hub) -> None:
    show(hub, templates=["vault://{name}"], prompts=["greet"])
    ref = {"type": "ref/resource", "uri": "vault://{name}"}
    values = [(await hub.complete(ref, {"name": "name", "value": one}))["completion"] for one in ("n", "secret")]
    assert values == [{"values": ["nice"]}, {"values": []}]
    prompt = {"type": "ref/prompt", "name": "a__greet"}
    answer = await hub.complete(prompt, {"name": "who", "value": "secret"})
    assert answer["completion"]["values"] == ["secretice"], "a value for a prompt names no resource"


@pytest.mark.parametrize("given", [None, "x", {"values": "nice"}, {}])
async def test_a_completion_without_values_suggests_nothing(hub: Hub, given: object) -> None:
    show(hub, templates=["vault://{name}"])

    async def request(*_: object, **__: object) -> Mapping[str, Any]:
        return {"completion": given, "kept": True}

    hub.registry.request = request  # type: ignore[method-assign]
    ref = {"type": "ref/resource", "uri": "vault://{name}"}
    answer = await hub.complete(ref, {"name": "name", "value": ""})
    assert answer == {"completion": {"values": []}, "kept": True}


@pytest.mark.parametrize(
    ("template", "asked", "values", "expected"),
    [
        ("vault://{x}", {}, ["open", "secret", "secrets"], ["open"]),
        ("vault://{x}", {}, [1, "open", None, "shut"], ["open", "shut"]),
        ("vault://{x}", {"context": {"arguments": None}}, ["open"], ["open"]),
        ("vault://{x}", {"context": None}, ["open"], ["open"]),
        ("vault://{x}/{y}", {"context": {"arguments": {"y": "keys"}}}, ["a", "b"], []),
        ("vault://{x}/{y}", {"context": {"arguments": {"y": "doors"}}}, ["a", "b"], ["a", "b"]),
        ("vault://{x}/{y}", {"context": {"arguments": {"x": "ignored: it is asked for"}}}, ["a"], ["a"]),
        ("vault://{y}", {}, ["open"], []),
        ("vault://{x", {}, ["open"], []),
        ("vault://{x}", {}, ["a" * LONGEST_URI, "a" * (LONGEST_URI + 1), "\ud83d", "b"], ["b"]),
        ("vault://{x}", {}, [f"{n}" for n in range(2 * MOST_SUGGESTED)], [f"{n}" for n in range(MOST_SUGGESTED)]),
    ],
)
async def test_a_value_is_suggested_if_its_resource_may_be_listed(
    hub: Hub, template: str, asked: dict[str, Any], values: list[object], expected: list[str]
) -> None:
    key = NameKey(Kind.TEMPLATE, "a", template)
    found = await suggested(hub.registry, LOCAL, key, {"argument": {"name": "x", "value": ""}, **asked}, values)
    assert found == expected


async def test_an_item_may_be_there_while_its_server_cannot_be_asked() -> None:
    servers = {"a": {**LAZY, "tools": {"include": ["get_*"]}}, "b": LAZY}
    async with HttpServer({"hello": "hi"}) as up, Hub(config({**servers, "up": up.definition})) as hub:
        assert await hub.ready(30)
        registry = hub.registry

        def may(kind: Kind, server: str, name: str) -> bool:
            return is_or_may_be(registry, NameKey(kind, server, name), LOCAL.name)

        assert may(Kind.TOOL, "up", "hello")
        assert not may(Kind.TOOL, "up", "other"), "a connected server has listed all that it has"
        assert may(Kind.TOOL, "a", "get_page")
        assert not may(Kind.TOOL, "a", "drop_page"), "the filter would hide it"
        assert may(Kind.PROMPT, "a", "drop_page"), "the filter is for tools"
        assert not may(Kind.TEMPLATE, "a", "x://{y}")
        assert not may(Kind.TOOL, "gone", "get_page")


async def test_a_call_is_judged_under_the_name_that_the_server_lists() -> None:
    """While its server is not up, a shortened name is a guess: what the rules allow under it may be another tool."""
    long = "get_" + "page" * 30
    rules = {"default": "allow", "rules": [{"effect": "deny", "tools": [long], "when": "arguments.n == 1"}]}
    async with HttpServer({long: "hi", "other": "o"}) as server:
        async with running({"a": server.definition}) as before:
            await settled(before)
            (shown,) = (tool.name for tool in before.tools() if tool.name != "a__other")
        async with running({"a": server.definition}, access=rules, call={"readyTimeout": "10s"}) as hub:
            with pytest.raises(CallForbidden, match="was not connected yet") as refused:
                await hub.call_tool(shown, {"n": 1})
            assert (refused.value.rule, server.asked.count("tools/call")) == ("", 0)
            with pytest.raises(CallForbidden, match="was denied"):
                await hub.call_tool(shown, {"n": 1})
        async with running({"a": server.definition}, access=rules, call={"readyTimeout": "10s"}) as hub:
            assert (await hub.call_tool("a__other")).text == "o", "its name is no guess"


async def test_rules_name_a_server_as_the_configuration_does(hub: Hub) -> None:
    assert access_item(hub.registry, NameKey(Kind.TEMPLATE, "a", "x://{y}")).server == "a"
    assert access_item(hub.registry, NameKey(Kind.TOOL, "gone", "x")).server == "gone"


async def test_arguments_that_are_no_mapping_are_the_programs_mistake(hub: Hub) -> None:
    wrong: Any = ["text"]
    with pytest.raises(TypeError, match="the arguments of `a__echo` must be a mapping, not list"):
        await hub.call_tool("a__echo", wrong)
