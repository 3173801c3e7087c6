"""Large results (FIND-6): the beginning goes out, the rest is read on, at every endpoint and in both eras."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client

from holdfast.config.read import config_from_mapping
from tests.clients.raw import initialize
from tests.fleet.test_homes import TOKENS, LegacyClient, hurry, modern_call, replicas
from tests.harness.served_hub import Era, Person, front, text_of
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FIND-6")]

BOUND: dict[str, Any] = {"over": 1_000}
LONG = "".join(f"line {number:04}: ünï 😀\n" for number in range(400)) + "the needle is here"


def handle_in(result: Any) -> str:
    (link,) = [block for block in result.content if block.type == "resource_link"]
    return str(link.uri).removeprefix("holdfast://results/")


async def read_whole(client: Client, handle: str, offset: int) -> str:
    """What ``read_result`` gives from an offset to the end, as its own answers say to go on."""
    pieces = []
    while True:
        read = await client.call_tool("read_result", {"handle": handle, "offset": offset})
        text, told = (block.text for block in read.content if block.type == "text")
        pieces.append(text)
        if "this is the end" in told:
            return "".join(pieces)
        offset = int(told.rstrip(".").rsplit(" ", 1)[1])


@pytest.mark.parametrize(
    ("at", "name"),
    [("/mcp", "o__echo"), ("/servers/o/mcp", "echo"), ("/mcp?tools=find", "call_tool")],
)
async def test_a_large_result_is_begun_and_read_on_and_nothing_is_lost(
    at: str, name: str, client_era: Era, server_era: Era, ada: Person
) -> None:
    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}, largeResults=BOUND) as served,
        ada.client(served.base + at, client_era) as client,
    ):
        inner = {"text": LONG}
        listed = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool(name, {"name": "o__echo", "arguments": inner} if name == "call_tool" else inner)
        begun, told = (block.text for block in result.content if block.type == "text")
        handle = handle_in(result)
        rest = await read_whole(client, handle, len(begun))
        found = await client.call_tool("read_result", {"handle": handle, "query": "THE needle"})
        contents = (await client.read_resource(f"holdfast://results/{handle}")).contents
    structured = json.dumps({"text": LONG}, ensure_ascii=False)
    assert listed[-1] == "read_result"
    assert result.structured_content is None
    assert begun == LONG[:500]
    assert begun + rest == f"{contents[0].text}\n{contents[1].text}"  # type: ignore[union-attr]
    assert contents[0].text == LONG  # type: ignore[union-attr]
    assert json.loads(contents[1].text) == json.loads(structured)  # type: ignore[union-attr]
    assert f"{len(begun) + len(rest):,} characters" in told
    assert "10 min" in told
    assert len(handle) == 32
    assert "the needle is here" in text_of(found)


async def test_without_the_setting_results_are_whole_and_the_tool_is_unknown(client_era: Era, ada: Person) -> None:
    async with (
        running() as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        result = await client.call_tool("o__echo", {"text": LONG})
        with pytest.raises(MCPError, match="Unknown tool: read_result"):
            await client.call_tool("read_result", {"handle": "0" * 32})
    assert text_of(result) == LONG


async def test_the_result_of_a_tool_with_an_output_schema_stays_whole(client_era: Era, ada: Person) -> None:
    async with running() as origin:
        origin.described["echo"] = {"outputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}
        async with (
            front({"o": {"url": origin.url}}, largeResults=BOUND) as served,
            ada.client(served.all, client_era) as client,
        ):
            result = await client.call_tool("o__echo", {"text": LONG})
    assert (text_of(result), result.structured_content) == (LONG, {"text": LONG})


async def test_a_handle_belongs_to_its_principal_alone() -> None:
    async with (
        running() as origin,
        replicas({"o": {"url": origin.url}}, 1, tokens=TOKENS, largeResults=BOUND) as (hub,),
        httpx2.AsyncClient(trust_env=False, timeout=20) as http,
    ):
        ada, bob = (LegacyClient(http, TOKENS.tokens[name]) for name in ("ada", "bob"))
        await ada.begin(hub)
        await bob.begin(hub)
        handle = await kept(ada, hub)
        assert (await ada.call(hub, "read_result", handle=handle)).startswith("line 0000")
        assert (await bob.call(hub, "read_result", handle=handle)).startswith("Unknown handle")
        refused = await bob.ask(hub, "resources/read", uri=f"holdfast://results/{handle}")
    assert "Unknown resource" in refused["error"]["message"]


async def kept(client: LegacyClient, at: Any) -> str:
    """The handle of a large result."""
    said = await client.ask(at, "tools/call", name="o__echo", arguments={"text": LONG})
    (link,) = [block for block in said["result"]["content"] if block["type"] == "resource_link"]
    return str(link["uri"]).removeprefix("holdfast://results/")


@pytest.mark.requirement("FLEET-5")
async def test_a_handle_of_another_replica_is_read_there(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    async with (
        running() as origin,
        replicas({"o": {"url": origin.url}}, 2, largeResults=BOUND) as (a, b),
        httpx2.AsyncClient(trust_env=False, timeout=20) as http,
    ):
        client = LegacyClient(http)
        await client.begin(a)
        handle = await kept(client, a)
        assert (await client.call(b, "read_result", handle=handle)).startswith("line 0000")
        resource = await client.ask(b, "resources/read", uri=f"holdfast://results/{handle}")
        assert resource["result"]["contents"][0]["text"] == LONG
        modern = await modern_call(http, b, "read_result", arguments={"handle": handle, "offset": 12})
        assert modern["result"]["content"][0]["text"].startswith(LONG[12:100])
        await a.vanish(b)
        gone = await client.call(b, "read_result", handle=handle)
    assert gone.startswith("Unknown handle")
    assert "Call the tool again." in gone


async def test_a_client_of_an_old_protocol_gets_no_link() -> None:
    async with (
        running() as origin,
        replicas({"o": {"url": origin.url}}, 1, largeResults=BOUND) as (hub,),
        httpx2.AsyncClient(trust_env=False, timeout=20) as http,
    ):
        client = LegacyClient(http)
        client.headers["mcp-protocol-version"] = "2025-03-26"
        request = initialize()
        request["params"]["protocolVersion"] = "2025-03-26"
        answer = await http.post(hub.url, json=request, headers=client.headers)
        client.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        said = await client.ask(hub, "tools/call", name="o__echo", arguments={"text": LONG})
    assert [block["type"] for block in said["result"]["content"]] == ["text", "text"]


async def test_the_tool_comes_and_goes_with_the_setting(ada: Person) -> None:
    async with (
        running() as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, "legacy") as client,
    ):
        assert "read_result" not in [tool.name for tool in (await client.list_tools()).tools]
        on = {"mcpServers": {"o": {"url": origin.url}}, "holdfast": {"largeResults": BOUND}}
        await served.hub.apply(config_from_mapping(on))
        await ada.until(lambda: "notifications/tools/list_changed" in ada.notices)
        assert "read_result" in [tool.name for tool in (await client.list_tools()).tools]


async def test_a_server_with_a_tool_of_that_name_keeps_it_and_its_results_whole(ada: Person) -> None:
    async with running() as origin:
        origin.extra_tools.append("read_result")
        async with (
            front({"o": {"url": origin.url}}, largeResults=BOUND) as served,
            ada.client(served.one("o"), "modern") as client,
        ):
            names = [tool.name for tool in (await client.list_tools()).tools]
            result = await client.call_tool("echo", {"text": LONG})
            own = await client.call_tool("read_result", {})
    assert names.count("read_result") == 1
    assert (text_of(result), text_of(own)) == (LONG, "done")


async def test_a_hub_in_front_gets_results_whole_and_shortens_them_itself(ada: Person) -> None:
    async with (
        running() as origin,
        front({"o": {"url": origin.url}}, largeResults=BOUND) as inner,
        front({"o": {"url": inner.one("o")}}, largeResults={"over": 2_000}) as outer,
        ada.client(outer.all, "modern") as client,
    ):
        result = await client.call_tool("o__echo", {"text": LONG})
        begun = result.content[0].text  # type: ignore[union-attr]
        rest = await read_whole(client, handle_in(result), len(begun))
    assert len(begun) == 1_000
    assert (begun + rest).startswith(LONG)


async def test_a_pipe_reads_on_too(client_era: Era, tmp_path: Path) -> None:
    async with running() as origin:
        file = tmp_path / "mcp.json"
        settings = {"largeResults": BOUND}
        file.write_text(json.dumps({"mcpServers": {"o": {"url": origin.url}}, "holdfast": settings}))
        program = StdioServerParameters(
            command=sys.executable, args=["-m", "holdfast", "serve", "--stdio", "--own", "--config", str(file)]
        )
        mode: Any = "legacy" if client_era == "legacy" else "auto"
        with anyio.fail_after(40):
            async with Client(stdio_client(program), mode=mode, cache=None) as client:
                result = await client.call_tool("o__echo", {"text": LONG})
                rest = await read_whole(client, handle_in(result), 500)
    assert (result.content[0].text + rest).startswith(LONG)  # type: ignore[union-attr]
