"""A client that meets a server that is down is told the truth, where it looks, and loses nothing meanwhile."""

from __future__ import annotations

import json
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import MCPError

from tests.harness.served_hub import Era, Person, front, text_of
from tests.peers.peer_server import running
from tests.peers.ports import free_port

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("HUB-4", "HUB-11", "SEC-6")
async def test_what_is_unavailable_stands_in_the_instructions_the_status_tool_and_the_status_resource(
    client_era: Era, ada: Person
) -> None:
    async with (
        running() as origin,
        front({"up": {"url": origin.url}, "down": {"command": "holdfast-no-such-program"}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        instructions = client.instructions or ""
        told = text_of(await client.call_tool("holdfast_status", {}))
        read: Any = (await client.read_resource("holdfast://status")).contents[0]
    words = "**MCP servers that failed to load (tools unavailable — needs attention):** down: "
    assert words in instructions
    assert words in told
    assert "one identity" in instructions
    assert json.loads(read.text)["servers"]["down"]["state"] == "parked"


@pytest.mark.requirement("HUB-4", "HUB-9")
async def test_a_listed_tool_whose_server_went_down_stays_listed_and_says_why_it_cannot_be_called(
    client_era: Era, ada: Person
) -> None:
    port = free_port()
    async with front(
        {"o": {"url": f"http://127.0.0.1:{port}/mcp"}}, wait=False, call={"readyTimeout": "100ms"}
    ) as served:
        async with running(port=port):
            await _until(served, "connected")
            async with ada.client(served.all, client_era) as client:
                assert text_of(await client.call_tool("o__echo", {"text": "hi"})) == "hi"
        async with ada.client(served.all, client_era) as client:
            failed = await client.call_tool("o__echo", {"text": "hi"})
            refused = await client.call_tool("o__echo", {"text": "hi"})
            names = [tool.name for tool in (await client.list_tools()).tools]
    assert "o__echo" in names
    assert failed.is_error
    assert refused.is_error
    assert text_of(refused).startswith("MCP server 'o' was lost (the connection was refused, though it was up before)")
    assert "starting up" not in text_of(refused)


@pytest.mark.requirement("HUB-9")
async def test_a_tool_of_a_disabled_server_answers_with_the_state(client_era: Era, ada: Person) -> None:
    async with (
        running() as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        await served.hub.toggle("o", enabled=False)
        result = await client.call_tool("o__echo", {"text": "hi"})
        with pytest.raises(MCPError, match="is disabled"):
            await client.read_resource("note://one")
    assert result.is_error
    assert text_of(result) == "MCP server 'o' is disabled."


@pytest.mark.requirement("HUB-9")
async def test_a_tool_of_a_server_that_never_came_up_is_not_unknown(client_era: Era, ada: Person) -> None:
    async with (
        front({"down": {"command": "holdfast-no-such-program"}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        result = await client.call_tool("down__search", {})
    assert result.is_error
    assert "unknown" not in text_of(result).lower()
    assert "MCP server 'down' is unavailable" in text_of(result)
    assert "was not found" in text_of(result)


async def test_a_tool_that_was_never_listed_is_unknown_and_the_nearest_are_named(client_era: Era, ada: Person) -> None:
    async with (
        running() as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        with pytest.raises(MCPError, match=r"Unknown tool: o__ekho; did you mean o__echo") as caught:
            await client.call_tool("o__ekho", {})
    assert caught.value.code == -32602


@pytest.mark.requirement("HUB-9")
async def test_a_client_comes_through_a_restart_of_its_server_without_noticing(
    client_era: Era, server_era: Era, ada: Person
) -> None:
    port = free_port()
    async with front({"o": {"url": f"http://127.0.0.1:{port}/mcp"}}, wait=False) as served:
        async with running(server_era, port=port) as origin:
            await _until(served, "connected")
            async with ada.client(served.all, client_era) as client:
                await client.call_tool("o__echo", {"text": "before"})
                del origin
        async with running(server_era, port=port), ada.client(served.all, client_era) as client:
            with anyio.fail_after(20):
                assert text_of(await client.call_tool("o__echo", {"text": "after"})) == "after"


@pytest.mark.requirement("HUB-2")
async def test_a_watched_resource_stays_watched_across_a_restart_of_its_server(server_era: Era, ada: Person) -> None:
    port = free_port()
    request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri="note://one"))
    async with (
        front({"o": {"url": f"http://127.0.0.1:{port}/mcp"}}, wait=False) as served,
        ada.client(served.all, "legacy") as client,
    ):
        async with running(server_era, port=port):
            await _until(served, "connected")
            await client.session.send_request(request, types.EmptyResult)
        async with running(server_era, port=port) as origin:
            await origin.until(lambda: "note://one" in origin.subscribed)
            await ada.until(lambda: bool(ada.updated))


async def _until(served: Any, state: str) -> None:
    with anyio.fail_after(20):
        while served.hub.server_health("o").state.value != state:
            await served.hub.registry.slot("o").changed()
