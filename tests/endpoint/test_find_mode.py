"""Find mode: five tools in place of all, at an address of its own, for clients of both eras."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from holdfast.config.read import config_from_mapping
from holdfast.core import State
from holdfast.endpoint.find_tools import NAMES_SHOWN, find_definitions
from holdfast.endpoint.view import EndpointAddress
from holdfast.testing import Fault, HttpServer
from tests.clients.raw import initialize
from tests.harness.open_hubs import reaches
from tests.harness.served_hub import Era, Person, Served, front, text_of
from tests.peers.peer_server import Origin, running

pytestmark = pytest.mark.anyio

OWN = ["find_tools", "describe_tools", "call_readonly_tool", "call_tool", "holdfast_status"]
STRICT = {
    "description": "Says a text again. Politely.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"readOnlyHint": True},
}


def described(origin: Origin) -> dict[str, Any]:
    """The server, whose tool ``echo`` only reads and needs a text."""
    origin.described["echo"] = STRICT
    return {"o": {"url": origin.url}}


def finding(served: Served) -> str:
    return f"{served.all}?tools=find"


@pytest.mark.requirement("FIND-1")
async def test_the_address_decides_which_tools_are_listed(client_era: Era, server_era: Era, ada: Person) -> None:
    async with running(server_era) as origin, front(described(origin)) as served:
        async with ada.client(finding(served), client_era) as client:
            tools = (await client.list_tools()).tools
            prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        async with ada.client(f"{served.one('o')}?tools=find", client_era) as client:
            alone = [tool.name for tool in (await client.list_tools()).tools]
        async with ada.client(f"{served.all}?tools=all", client_era) as client:
            whole = [tool.name for tool in (await client.list_tools()).tools]
    assert [tool.name for tool in tools] == alone == OWN
    assert all((tool.meta or {}).get("anthropic/alwaysLoad") is True for tool in tools)
    assert prompts == ["o__greet"]
    assert "o__echo" in whole
    assert not {*OWN[:-1]} & {*whole}


@pytest.mark.requirement("FIND-1", "FIND-2", "FIND-7")
async def test_a_model_finds_a_tool_reads_about_it_and_calls_it(client_era: Era, server_era: Era, ada: Person) -> None:
    async with (
        running(server_era) as origin,
        front(described(origin)) as served,
        ada.client(finding(served), client_era) as client,
    ):
        hits = await client.call_tool("find_tools", {"query": "say it again, please: echo", "limit": 1})
        about = await client.call_tool("describe_tools", {"names": ["o__echo"]})
        read = await client.call_tool("call_readonly_tool", {"name": "o__echo", "arguments": {"text": "hi"}})
        called = await client.call_tool("call_tool", {"name": "o__pid"})
    assert text_of(hits) == "o__echo(text: string)\n  Says a text again.\n  [available]"
    assert (hits.structured_content or {})["tools"][0] == {
        "name": "o__echo",
        "server": "o",
        "signature": "o__echo(text: string)",
        "summary": "Says a text again.",
        "available": True,
    }
    assert "Politely." in text_of(about)
    assert (about.structured_content or {})["tools"][0]["inputSchema"] == STRICT["inputSchema"]
    assert (text_of(read), read.structured_content) == ("hi", {"text": "hi"})
    assert not called.is_error


@pytest.mark.requirement("FIND-7")
async def test_questions_and_progress_of_the_inner_call_reach_the_client(
    client_era: Era, server_era: Era, ada: Person
) -> None:
    steps: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async with (
        running(server_era) as origin,
        front(described(origin)) as served,
        ada.client(finding(served), client_era) as client,
    ):
        asked = await client.call_tool("call_tool", {"name": "o__ask", "arguments": {"kind": "elicit"}})
        inner = {"name": "o__count", "arguments": {"n": 3}}
        await client.call_tool("call_tool", inner, progress_callback=progressed)
        with anyio.fail_after(5):
            while len(steps) < 3:  # the SDK's client runs callbacks in tasks of their own
                await anyio.lowlevel.checkpoint()
    assert text_of(asked).startswith("ada's blue")
    assert sorted(steps) == [1, 2, 3]


@pytest.mark.requirement("FIND-7")
async def test_a_client_that_gives_up_cancels_the_inner_call(client_era: Era, server_era: Era, ada: Person) -> None:
    async with (
        running(server_era) as origin,
        front(described(origin)) as served,
        ada.client(finding(served), client_era) as client,
    ):
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "call_tool", {"name": "o__hang"})
                await origin.hanging.wait()
                tasks.cancel_scope.cancel()
            await origin.cancelled.wait()


@pytest.mark.requirement("FIND-7")
async def test_a_tool_that_does_not_only_read_needs_the_other_tool(client_era: Era, ada: Person) -> None:
    async with (
        running() as origin,
        front(described(origin)) as served,
        ada.client(finding(served), client_era) as client,
    ):
        refused = await client.call_tool("call_readonly_tool", {"name": "o__touch", "arguments": {"uri": "note://one"}})
    assert refused.is_error
    assert text_of(refused) == "o__touch does not declare that it only reads. Call it with call_tool."


@pytest.mark.requirement("FIND-7")
async def test_wrong_arguments_are_answered_with_the_schema(client_era: Era, server_era: Era, ada: Person) -> None:
    async with running(server_era) as origin:
        origin.extra_tools = ["strict"]
        async with (
            front(described(origin)) as served,
            ada.client(finding(served), client_era) as client,
        ):
            missing = await client.call_tool("call_tool", {"name": "o__echo", "arguments": {"txt": "hi"}})
            origin.extra_tools = []
            refused = await client.call_tool("call_tool", {"name": "o__strict"})
    said, _, schema = text_of(missing).partition("\nIts input schema: ")
    assert missing.is_error
    assert (said, json.loads(schema)) == ("o__echo was not called: `text` is missing.", STRICT["inputSchema"])
    assert refused.is_error
    assert text_of(refused).startswith('o__strict refused its arguments: "no tool strict".\nIts input schema: {')


@pytest.mark.requirement("FIND-7")
async def test_an_unknown_name_is_answered_with_the_nearest(client_era: Era, ada: Person) -> None:
    async with (
        running() as origin,
        front(described(origin)) as served,
        ada.client(finding(served), client_era) as client,
    ):
        called = await client.call_tool("call_tool", {"name": "o__ecko"})
        about = await client.call_tool("describe_tools", {"names": ["o__ecko", "o__echo"]})
        again = await client.call_tool("call_tool", {"name": "call_tool"})
    words = "Unknown tool: o__ecko. Did you mean o__echo"
    assert called.is_error
    assert text_of(called).startswith(words)
    assert text_of(about).startswith(words)
    assert [tool["name"] for tool in (about.structured_content or {})["tools"]] == ["o__echo"]
    assert again.is_error


@pytest.mark.requirement("FIND-7")
async def test_an_unknown_name_that_is_like_no_other_is_answered_without_a_suggestion(ada: Person) -> None:
    async with (
        running() as origin,
        front(described(origin)) as served,
        ada.client(finding(served), "modern") as client,
    ):
        called = await client.call_tool("call_tool", {"name": "qqqqqqqqqqqq"})
    assert called.is_error
    assert text_of(called) == "Unknown tool: qqqqqqqqqqqq. find_tools searches all tools."


@pytest.mark.requirement("FIND-2")
async def test_a_held_tool_is_neither_found_nor_described_nor_suggested(ada: Person) -> None:
    async with (
        running() as origin,
        front({"o": {"url": origin.url, "approvals": "hold"}}) as served,
        ada.client(finding(served), "modern") as client,
    ):
        origin.described["echo"] = STRICT
        await served.hub.reconnect("o")
        hits = await client.call_tool("find_tools", {"query": "echo", "limit": 20})
        about = await client.call_tool("describe_tools", {"names": ["o__echo"]})
        called = await client.call_tool("call_tool", {"name": "o__echo", "arguments": {"text": "hi"}})
    assert "o__echo" not in [hit["name"] for hit in (hits.structured_content or {})["tools"]]
    assert text_of(about).startswith("Unknown tool: o__echo.")
    assert "Did you mean o__echo?" not in text_of(about)
    assert called.is_error
    assert "approve" in text_of(called)


@pytest.mark.requirement("FIND-2")
async def test_an_outage_is_told_in_the_hit_and_its_end_too(client_era: Era, ada: Person) -> None:
    async with (
        HttpServer({"forecast": "sunny"}) as server,
        front({"weather": server.definition}) as served,
        ada.client(finding(served), client_era) as client,
    ):
        await server.fail(Fault.REFUSE)
        await reaches(served.hub, "weather", State.RECONNECTING)
        down = await client.call_tool("find_tools", {"query": "forecast"})
        await server.heal()
        await served.hub.reconnect("weather")
        up = await client.call_tool("find_tools", {"query": "forecast"})
        result = await client.call_tool("call_tool", {"name": "weather__forecast"})
    (hit,) = (down.structured_content or {})["tools"]
    assert (hit["available"], hit["state"]) == (False, "reconnecting")
    assert hit["reason"].startswith("MCP server 'weather' was lost (")
    assert "[not available (reconnecting): MCP server 'weather' was lost (" in text_of(down)
    assert text_of(up).endswith("[available]")
    assert text_of(result) == "sunny"


@pytest.mark.requirement("FIND-2")
async def test_a_search_without_a_hit_names_the_servers_and_the_full_list(ada: Person) -> None:
    async with (
        running() as origin,
        front(described(origin)) as served,
        ada.client(finding(served), "modern") as client,
    ):
        nothing = await client.call_tool("find_tools", {"query": "?!"})
        elsewhere = await client.call_tool("find_tools", {"query": "echo", "server": "p"})
    assert text_of(nothing).startswith("No tool matches. Servers: o. tools/list at this hub's address with")
    assert elsewhere.is_error
    assert text_of(elsewhere) == "There is no server p here. Servers: o"


@pytest.mark.requirement("FIND-1")
async def test_pinned_tools_are_listed_under_their_ordinary_names(client_era: Era, ada: Person) -> None:
    async with (
        running() as origin,
        front(described(origin), pin=["o/ech*"]) as served,
        ada.client(finding(served), client_era) as client,
    ):
        tools = (await client.list_tools()).tools
        result = await client.call_tool("o__echo", {"text": "hi"})
    assert [tool.name for tool in tools] == ["o__echo", *OWN]
    assert (tools[0].meta or {}).get("anthropic/alwaysLoad") is True
    assert text_of(result) == "hi"


@pytest.mark.requirement("FIND-1")
async def test_the_config_can_make_find_mode_the_default(client_era: Era, ada: Person) -> None:
    async with (
        running() as origin,
        front(described(origin), tools="find") as served,
        ada.client(served.all, client_era) as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == OWN


@pytest.mark.requirement("FIND-1")
async def test_the_list_stays_the_same_when_tools_change_that_are_not_in_it(ada: Person, bob: Person) -> None:
    async with (
        running("legacy") as origin,
        front(described(origin)) as served,
        ada.client(finding(served), "legacy") as client,
        bob.client(served.all, "legacy") as other,
    ):
        await client.list_tools()
        await other.call_tool("o__grow", {})
        changed = "notifications/tools/list_changed"
        await bob.until(lambda: changed in bob.notices)
        assert changed not in ada.notices
        more = config_from_mapping({"mcpServers": {"o": {"url": origin.url}, "p": {"url": origin.url}}})
        await served.hub.apply(more)
        await ada.until(lambda: changed in ada.notices)
        (found, *_) = (await client.list_tools()).tools
        assert "Servers: o, p." in (found.description or "")


@pytest.mark.requirement("FIND-1")
@pytest.mark.parametrize("name", ["o", "io.example/o"])
async def test_a_change_of_pinned_tools_is_announced(name: str, ada: Person) -> None:
    async with (
        running("legacy") as origin,
        front({name: {"url": origin.url}}, pin=[f"{name}/*"]) as served,
        ada.client(finding(served), "legacy") as client,
    ):
        (grow,) = [tool.name for tool in (await client.list_tools()).tools if "grow" in tool.name]
        await client.call_tool(grow, {})
        await ada.until(lambda: "notifications/tools/list_changed" in ada.notices)


@pytest.mark.requirement("FIND-1")
async def test_an_unknown_mode_is_refused_and_a_session_belongs_to_its_address() -> None:
    accept = {"accept": "application/json, text/event-stream"}
    async with running() as origin, front(described(origin)) as served, httpx2.AsyncClient(headers=accept) as http:
        wrong = await http.post(f"{served.all}?tools=some", json=initialize())
        assert (wrong.status_code, "write tools=all or tools=find" in wrong.text) == (404, True)
        begun = await http.post(finding(served), json=initialize())
        headers = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await http.post(finding(served), json=ping, headers=headers)).status_code == 200
        assert (await http.post(served.all, json=ping, headers=headers)).status_code == 404


@pytest.mark.requirement("FIND-1")
async def test_a_pipe_can_be_in_find_mode(client_era: Era) -> None:
    config = json.dumps({"mcpServers": {}, "holdfast": {"tools": "find"}})
    program = StdioServerParameters(
        command=sys.executable, args=["-m", "tests.harness.stdio_hub", config], cwd=Path(__file__).parents[2]
    )
    async with Client(stdio_client(program), mode="legacy" if client_era == "legacy" else "auto") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == OWN


def test_an_address_can_be_read_from_its_label() -> None:
    for address in (
        EndpointAddress(),
        EndpointAddress("a"),
        EndpointAddress(None, "find"),
        EndpointAddress('a "b"', "find"),
        EndpointAddress(None, "all", "coding"),
    ):
        assert EndpointAddress.of_label(address.label) == address


@pytest.mark.requirement("PERF-9")
@pytest.mark.parametrize("servers", [0, 11, 1_000])
def test_the_list_of_find_mode_has_a_bounded_size_for_any_number_of_servers(servers: int) -> None:
    written = json.dumps(find_definitions([f"a-server-with-a-name-{number}" for number in range(servers)]))
    assert len(written) < 1_900 + NAMES_SHOWN
    if servers == 1_000:
        assert "a-server-with-a-name-0, " in written
        assert " more." in written


@pytest.mark.requirement("PERF-9")
@pytest.mark.parametrize(
    ("longer", "told"), [(0, "{first}, {second}."), (1, "{first} and 1 more."), (NAMES_SHOWN, "{first} and 1 more.")]
)
def test_names_of_servers_are_told_as_long_as_there_is_room_for_whole_ones(longer: int, told: str) -> None:
    first = "a" * 100
    second = "b" * (NAMES_SHOWN - len(first) - 2 * len(", ") + longer)
    written = json.dumps(find_definitions([first, second]))
    assert told.format(first=first, second=second) in written
