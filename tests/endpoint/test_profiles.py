"""Profiles: a named part of the servers and tools, chosen by the address. It narrows, and grants nothing."""

from __future__ import annotations

import json

import httpx2
import pytest
from mcp import MCPError

from holdfast.config.read import config_from_mapping
from holdfast.testing import HttpServer
from tests.clients.raw import initialize
from tests.harness.served_hub import Era, Person, front, text_of
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FIND-9")]

BOTH = {"coding": ["o/e*", "own/*"]}
PROFILES = {"coding": ["o/e*", "o/greet"], "weather": ["weather/*"]}


async def test_a_profile_shows_its_part_and_the_rest_is_unknown_there(client_era: Era, ada: Person) -> None:
    async with (
        running() as origin,
        HttpServer({"forecast": "sunny"}) as other,
        front({"o": {"url": origin.url}, "weather": other.definition}, profiles=PROFILES) as served,
        ada.client(f"{served.all}?profile=coding", client_era) as client,
    ):
        tools = [tool.name for tool in (await client.list_tools()).tools]
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        resources = [str(one.uri) for one in (await client.list_resources()).resources]
        result = await client.call_tool("o__echo", {"text": "hi"})
        for name in ("o__fail", "weather__forecast"):
            with pytest.raises(MCPError, match=f"Unknown tool: {name}") as refused:
                await client.call_tool(name, {})
            assert "did you mean weather" not in str(refused.value)
        instructions = client.instructions or ""
    assert tools == ["o__echo", "holdfast_status"]
    assert prompts == ["o__greet"]
    assert resources == ["note://one", "holdfast://status"]
    assert text_of(result) == "hi"
    assert "weather" not in instructions


async def test_a_search_in_a_profile_finds_nothing_outside_it(client_era: Era, ada: Person) -> None:
    async with (
        running() as origin,
        HttpServer({"forecast": "sunny"}) as other,
        front({"o": {"url": origin.url}, "weather": other.definition}, profiles=PROFILES) as served,
        ada.client(f"{served.all}?profile=coding&tools=find", client_era) as client,
    ):
        hits = await client.call_tool("find_tools", {"query": "forecast echo fail weather", "limit": 20})
        outside = await client.call_tool("call_tool", {"name": "weather__forecast"})
        (found, *_) = (await client.list_tools()).tools
    assert [hit["name"] for hit in (hits.structured_content or {})["tools"]] == ["o__echo"]
    assert outside.is_error
    assert text_of(outside).startswith("Unknown tool: weather__forecast.")
    assert "Servers: o." in (found.description or "")


@pytest.mark.parametrize("mode", ["", "&tools=find"])
async def test_the_status_at_a_profile_is_that_of_its_servers_alone(mode: str, client_era: Era, ada: Person) -> None:
    """What is down elsewhere is no news here: neither in the tool, nor in the resource, nor in the instructions."""
    broken = {"command": "holdfast-no-such-program"}
    async with (
        running() as origin,
        front({"o": {"url": origin.url}, "weather": broken, "own": broken}, profiles=BOTH) as served,
        ada.client(f"{served.all}?profile=coding{mode}", client_era) as client,
    ):
        told = await client.call_tool("holdfast_status", {})
        other = await client.call_tool("holdfast_status", {"server": "weather"})
        resource = (await client.read_resource("holdfast://status")).contents[0]
        instructions = client.instructions or ""
    assert [*(told.structured_content or {})["servers"]] == [*json.loads(resource.text)["servers"]] == ["o", "own"]  # type: ignore[union-attr]
    assert (told.structured_content or {})["servers"]["o"]["tools"] == 1, "the tools of the profile"
    for text in (text_of(told), instructions):
        assert "own" in text
        assert "weather" not in text
    assert other.is_error
    assert text_of(other) == 'No server named "weather" is configured. Configured: o, own.'


async def test_a_profile_of_one_server_keeps_its_own_names(ada: Person) -> None:
    async with (
        running() as origin,
        front({"o": {"url": origin.url}}, profiles=PROFILES) as served,
        ada.client(f"{served.one('o')}?profile=coding", "modern") as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]
        assert text_of(await client.call_tool("echo", {"text": "hi"})) == "hi"


async def test_a_profile_follows_the_configuration(ada: Person) -> None:
    async with (
        running() as origin,
        front({"o": {"url": origin.url}}, profiles=PROFILES) as served,
        ada.client(f"{served.all}?profile=coding", "modern") as client,
    ):
        more = {"mcpServers": {"o": {"url": origin.url}}, "holdfast": {"profiles": {"coding": ["o/pid"]}}}
        await served.hub.apply(config_from_mapping(more))
        assert [tool.name for tool in (await client.list_tools()).tools] == ["o__pid", "holdfast_status"]


async def test_an_unknown_profile_is_an_error_that_names_the_known_ones() -> None:
    async with front({}, profiles=PROFILES) as served, httpx2.AsyncClient() as http:
        answer = await http.post(f"{served.all}?profile=codin", json=initialize())
    assert answer.status_code == 404
    assert answer.json() == {"error": "there is no profile 'codin'; known: coding, weather"}
