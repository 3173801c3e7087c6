"""The tools of find mode as handles, for programs and frameworks that use the hub in their own process."""

from __future__ import annotations

import pytest

from holdfast import Hub
from holdfast.core import Item, State
from holdfast.endpoint import EndpointAddress, View, finding_tools
from holdfast.endpoint.find_tools import FindTools, InnerCall
from holdfast.errors import ServerUnavailable
from holdfast.testing import Fault, HttpServer, StdioServer
from holdfast.types import CallResult
from tests.endpoint.test_view import opened, publish
from tests.harness.open_hubs import reaches, running, settled
from tests.peers.peer_server import running as origin_server

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FIND-5", "FIND-7")]


async def call(hub: Hub, wanted: str, of: str | None = None, **arguments: object) -> CallResult:
    (tool,) = (tool for tool in finding_tools(hub, of) if tool.name == wanted)
    return await tool.call(arguments)


async def test_a_program_finds_describes_and_calls_a_tool() -> None:
    with StdioServer({"create_issue": "done"}) as server:
        async with running({"github": server.definition}) as hub:
            await settled(hub)
            names = [tool.name for tool in finding_tools(hub)]
            hits = await call(hub, "find_tools", query="create an issue")
            about = await call(hub, "describe_tools", names=["github__create_issue"])
            result = await call(hub, "call_tool", name="github__create_issue", arguments={})
            refused = await call(hub, "call_readonly_tool", name="github__create_issue")
            unknown = await call(hub, "call_tool", name="github__create_isue")
    assert names == ["find_tools", "describe_tools", "call_readonly_tool", "call_tool"]
    assert hits.text.startswith("github__create_issue(")
    assert "inputSchema" in about.text
    assert result.text == "done"
    assert (refused.is_error, unknown.is_error) == (True, True)
    assert "Did you mean github__create_issue?" in unknown.text


async def test_the_tools_of_one_server_have_its_own_names() -> None:
    with StdioServer({"a": "1"}) as one, StdioServer({"a": "2"}) as two:
        async with running({"one": one.definition, "two": two.definition}) as hub:
            await settled(hub)
            hits = await call(hub, "find_tools", "two", query="a scripted tool")
            result = await call(hub, "call_tool", "two", name="a")
    assert hits.text.startswith("a()")
    assert result.text == "2"


async def test_an_outage_is_told_in_the_hit_and_raised_by_the_call() -> None:
    async with HttpServer({"forecast": "sunny"}) as server, running({"weather": server.definition}) as hub:
        await settled(hub)
        await server.fail(Fault.REFUSE)
        await reaches(hub, "weather", State.RECONNECTING)
        hits = await call(hub, "find_tools", query="forecast")
        with pytest.raises(ServerUnavailable):
            await call(hub, "call_tool", name="weather__forecast")
    assert "[not available (reconnecting): " in hits.text


async def test_arguments_that_the_server_refuses_are_answered_with_the_schema() -> None:
    async with origin_server() as origin:
        origin.extra_tools = ["strict"]
        async with running({"o": {"url": origin.url}}) as hub:
            await settled(hub)
            origin.extra_tools = []
            refused = await call(hub, "call_tool", name="o__strict")
    assert refused.is_error
    assert refused.text.startswith('o__strict refused its arguments: "no tool strict".\nIts input schema: {')


async def test_arguments_that_cannot_be_used_are_refused_with_words() -> None:
    async with opened("a") as hub:
        publish(hub, "a", [Item("write", {"annotations": {"readOnlyHint": False}})])
        finder = FindTools(View(hub, EndpointAddress(tools="find")))
        for names in (7, [7], ["a__write", None]):
            told = await finder.own_answer("describe_tools", {"names": names})
            assert "needs `names`" in told["content"][0]["text"]
        assert "takes 1 to" in (await finder.own_answer("describe_tools", {"names": []}))["content"][0]["text"]
        refused = finder.inner_call(b'{"name": "a__write"}', readonly=True)
        assert isinstance(refused, dict)
        assert "does not declare that it only reads" in refused["content"][0]["text"]
        assert isinstance(finder.inner_call(b'{"name": "a__write"}', readonly=False), InnerCall)
