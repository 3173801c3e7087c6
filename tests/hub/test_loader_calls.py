"""Calls through a loader: a dial for each, and every failure a clear one."""

from __future__ import annotations

import json

import anyio
import pytest

from holdfast import CallFailed, Hub, call_tool, get_tools_with_resilience
from holdfast.config.settings import CallPolicy, LoadPolicy, Settings
from holdfast.config.spec import Config, ServerSpec
from holdfast.errors import ServerDisabled, UnknownTool
from holdfast.hub.lease import ServerCache
from holdfast.hub.loader import Loader
from holdfast.testing import StdioServer
from tests.harness.open_hubs import running, settled
from tests.hub.loaders import http, loader
from tests.peers.http_fault import Exchange, closed_port
from tests.peers.leaks import no_leaks
from tests.peers.mcp_http import McpPeer

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("LOAD-7")
async def test_a_tool_of_a_load_can_be_called_afterwards_with_progress_before_its_result() -> None:
    steps: list[tuple[float, float | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total))

    async with McpPeer() as peer:
        tools = {tool.name: tool for tool in (await get_tools_with_resilience({"peer": http(peer.url)})).tools}
        assert (await tools["echo"].call({"text": "hello"})).text == "hello"
        assert (await tools["fail"].call()).is_error
        assert (await tools["progress"].call({"count": 3}, on_progress=on_progress)).text == ""
        await peer.all_closed()
    assert steps == [(1.0, 3.0), (2.0, 3.0), (3.0, 3.0)]


async def test_a_call_that_fails_says_why_and_what_to_do() -> None:
    with closed_port() as port:
        mapping = {"mcpServers": {"a": {"url": f"http://127.0.0.1:{port}/"}, "bad": {"url": 5}}}
        with pytest.raises(CallFailed, match="the call to `a` failed: nothing listens at its address") as failed:
            await call_tool(mapping, "a", "echo", {})
        assert "start the server" in failed.value.hint
        with pytest.raises(CallFailed, match="the call to `bad` failed"):
            await call_tool(mapping, "bad", "echo", {})


async def test_an_unknown_tool_is_told_with_the_nearest_names() -> None:
    async with McpPeer() as peer:
        with pytest.raises(UnknownTool) as unknown:
            await loader({"a": http(peer.url)}).call("a", "ekho", lambda schema: {})
    assert unknown.value.hint == "did you mean `echo`?"


class Particular(McpPeer):
    """Refuses its first call before doing anything: it wants arguments in headers, as its listing says."""

    async def _answer(self, exchange: Exchange) -> None:
        if self.methods.count("tools/call") == 1 and self.methods[-1] == "tools/call":
            refusal = {"jsonrpc": "2.0", "id": 2, "error": {"code": -32020, "message": "mcp-param-text is missing"}}
            await exchange.respond(400, json.dumps(refusal).encode())
        else:
            await super()._answer(exchange)


async def test_a_call_refused_for_its_headers_is_repeated_once_they_are_known() -> None:
    async with Particular(era="modern") as peer:
        result = await loader({"a": http(peer.url)}).call("a", "echo", {"text": "hi"})
    assert result.text == "hi"
    assert peer.methods == ["server/discover", "tools/call", "tools/list", "tools/call"]


async def test_a_call_that_takes_too_long_ends_and_names_the_setting_that_gives_it_longer() -> None:
    async with McpPeer() as peer, no_leaks():
        spec = ServerSpec(id="a", transport="http", url=peer.url)
        settings = Settings(load=LoadPolicy(), call=CallPolicy(timeout=0.5))
        with anyio.fail_after(10), pytest.raises(CallFailed) as failed:
            await Loader(Config(servers={"a": spec}, settings=settings), memory=ServerCache()).call("a", "slow", {})
        await peer.all_closed()
    assert "raise `timeout` in its definition" in failed.value.hint
    assert peer.abandoned == 1


@pytest.mark.requirement("DX-13")
async def test_a_tool_of_a_load_takes_a_timeout_for_one_call() -> None:
    async with McpPeer() as peer, no_leaks():
        tools = {tool.name: tool for tool in (await get_tools_with_resilience({"a": http(peer.url)})).tools}
        slow, echo = tools["slow"], tools["echo"]
        with (
            anyio.fail_after(10),
            pytest.raises(CallFailed, match=r"own timeout of 0\.5 s.*uncertain.*longer `timeout`"),
        ):
            await slow.call(timeout=0.5)
        assert (await echo.call({"text": "fine"}, timeout=10)).text == "fine"
        with pytest.raises(ValueError, match="seconds above 0"):
            await echo.call(timeout=0)
        await peer.all_closed()


@pytest.mark.requirement("LOAD-7")
async def test_the_tools_of_a_load_with_a_hub_use_its_live_connection() -> None:
    with StdioServer({"forecast": "sunny"}) as server:
        connection = {"transport": "stdio", **server.definition}
        async with Hub.from_config({"mcpServers": {"weather": server.definition}}) as hub:
            await hub.ready(20)
            (tool,), failed, _ = await get_tools_with_resilience({"weather": connection}, hub=hub)
            started = len(server.pids)
            assert [(await tool.call()).text for _ in range(3)] == ["sunny"] * 3
            assert failed == []
            assert len(server.pids) == started, "no call starts a process of its own"
            await hub.toggle("weather", enabled=False)
            with pytest.raises(ServerDisabled):
                await tool.call()


@pytest.mark.requirement("DX-13")
async def test_a_tool_of_a_hub_takes_a_timeout_for_one_call() -> None:
    async with McpPeer() as peer, running({"a": peer}) as hub:
        await settled(hub, peer)
        loaded = await get_tools_with_resilience({"a": http(peer.url)}, hub=hub)
        for tool in [next(one for one in tools if one.name.endswith("slow")) for tools in (hub.tools(), loaded.tools)]:
            with anyio.fail_after(10), pytest.raises(CallFailed, match=r"own timeout of 0\.5 s"):
                await tool.call(timeout=0.5)
