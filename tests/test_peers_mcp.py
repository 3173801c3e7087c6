"""The MCP peers over HTTP and SSE are servers that the SDK's own client loads, and fail as they are told to."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.sse import sse_client
from mcp_types import TextContent

from tests.peers.http_fault import Behaviour, close_mid_answer, respond
from tests.peers.leaks import no_leaks
from tests.peers.mcp_http import HTML_PAGE, McpPeer, Refusal
from tests.peers.mcp_sse import SsePeer
from tests.peers.rpc import BUILT_IN, MODERN_VERSION

pytestmark = pytest.mark.anyio

LEGACY_LOAD = ["server/discover", "initialize", "notifications/initialized", "tools/list"]
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def post(peer: McpPeer, method: str, params: dict[str, Any] | None = None, **headers: str) -> httpx2.Response:
    """One bare JSON-RPC request; header names are written with underscores."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    sent = {"accept": "application/json, text/event-stream"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(peer.url, json=message, headers=sent)


async def post_modern(peer: McpPeer, method: str, params: dict[str, Any] | None = None) -> httpx2.Response:
    headers = {"mcp_protocol_version": MODERN_VERSION, "mcp_method": method}
    return await post(peer, method, {"_meta": ENVELOPE, **(params or {})}, **headers)


async def text_of(client: Client, tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


@pytest.mark.parametrize("respond_with", ["json", "sse"])
@pytest.mark.parametrize("sessions", [True, False])
async def test_the_sdk_loads_a_legacy_peer(respond_with: Any, *, sessions: bool) -> None:
    async with no_leaks(), McpPeer(respond_with=respond_with, sessions=sessions, instructions="Be kind.") as peer:
        async with Client(peer.url, cache=None) as client:
            assert client.protocol_version == "2025-11-25"
            assert client.instructions == "Be kind."
            assert [tool.name for tool in (await client.list_tools()).tools] == list(BUILT_IN)
            assert await text_of(client, "add", a=2, b=3) == "5"
        asked = [method for method in peer.methods if method != "GET"]
        assert asked[:4] == LEGACY_LOAD
        assert asked[-1] == ("DELETE" if sessions else "tools/call")
        assert peer.sessions == set()
        await peer.all_closed()


@pytest.mark.parametrize("respond_with", ["json", "sse"])
@pytest.mark.parametrize("era", ["modern", "both"])
async def test_the_sdk_loads_a_modern_peer_in_two_requests(era: Any, respond_with: Any) -> None:
    async with no_leaks(), McpPeer(era=era, respond_with=respond_with, instructions="Be kind.") as peer:
        async with Client(peer.url, cache=None) as client:
            assert client.protocol_version == MODERN_VERSION
            assert client.instructions == "Be kind."
            assert [tool.name for tool in (await client.list_tools()).tools] == list(BUILT_IN)
            assert peer.methods == ["server/discover", "tools/list"]
            assert await text_of(client, "echo", text="hello") == "hello"
        await peer.all_closed()


async def test_a_peer_of_both_eras_also_takes_the_handshake() -> None:
    async with McpPeer(era="both") as peer, Client(peer.url, mode="legacy", cache=None) as client:
        assert client.protocol_version == "2025-11-25"
        assert len((await client.list_tools()).tools) == len(BUILT_IN)


@pytest.mark.parametrize(
    "refusal", [Refusal(200), Refusal(400), Refusal(404), Refusal(400, None), Refusal(400, -32000)]
)
async def test_the_sdk_falls_back_to_the_handshake_however_the_probe_is_refused(refusal: Refusal) -> None:
    async with McpPeer(refuse_discover=refusal) as peer, Client(peer.url, cache=None) as client:
        assert client.protocol_version == "2025-11-25"
        assert (await post(peer, "server/discover")).status_code == refusal.status


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_tools_fail_and_report_progress_alike_in_both_eras(era: Any) -> None:
    seen: list[float] = []
    done = anyio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)
        if len(seen) == 4:
            done.set()

    async with McpPeer(era=era) as peer, Client(peer.url, cache=None) as client:
        assert (await client.call_tool("fail", {})).is_error
        await client.call_tool("progress", {"count": 4}, progress_callback=note)
        with anyio.fail_after(5):
            await done.wait()
        assert sorted(seen) == [1, 2, 3, 4]


async def test_a_slow_call_waits_for_its_release() -> None:
    async with McpPeer() as peer, Client(peer.url, cache=None) as client, anyio.create_task_group() as tasks:
        results: list[str] = []

        async def call() -> None:
            results.append(await text_of(client, "slow", text="at last"))

        tasks.start_soon(call)
        with anyio.fail_after(5):
            await peer.slow_started.wait()
            assert results == []
            peer.release.set()
    assert results == ["at last"]


async def test_a_slow_call_that_its_client_gives_up_is_counted() -> None:
    async with no_leaks(), McpPeer(era="modern") as peer, Client(peer.url, cache=None) as client:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "slow", {})
                await peer.slow_started.wait()
                tasks.cancel_scope.cancel()
            await peer.given_up.wait()
        assert (await client.call_tool("echo", {})).is_error is False
        assert peer.abandoned == 1


async def test_a_catalog_comes_in_pages_and_every_page_is_asked_for() -> None:
    async with McpPeer(tools=12, page_size=5) as peer, Client(peer.url, cache=None) as client:
        names: list[str] = []
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            names += [tool.name for tool in page.tools]
            if (cursor := page.next_cursor) is None:
                break
        assert len(set(names)) == 12
        assert peer.methods.count("tools/list") == 3


async def test_a_session_is_asked_for_and_an_unknown_one_is_gone() -> None:
    async with McpPeer() as peer:
        assert (await post(peer, "tools/list")).status_code == 400
        assert (await post(peer, "tools/list", mcp_session_id="made-up")).status_code == 404
        opened = await post(peer, "initialize", {"protocolVersion": "2025-06-18"})
        assert opened.json()["result"]["protocolVersion"] == "2025-06-18"
        [session] = peer.sessions
        assert opened.headers["mcp-session-id"] == session
        assert (await post(peer, "ping", mcp_session_id=session)).json()["result"] == {}
        stamped = await post(peer, "ping", mcp_session_id=session, mcp_protocol_version=MODERN_VERSION)
        assert stamped.status_code == 400


async def test_a_modern_peer_refuses_what_does_not_belong_to_its_era() -> None:
    async with McpPeer(era="modern") as peer:
        handshake = await post(peer, "initialize", {"protocolVersion": "2025-11-25"})
        assert (handshake.status_code, handshake.json()["error"]["code"]) == (400, -32022)
        assert handshake.json()["error"]["data"] == {"supported": [MODERN_VERSION], "requested": "2025-11-25"}
        unmarked = await post(peer, "tools/list", {"_meta": ENVELOPE})
        assert (unmarked.status_code, unmarked.json()["error"]["code"]) == (400, -32020)
        unknown = await post_modern(peer, "ping")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, -32601)
    async with McpPeer(era="modern", initialize_code=-32601) as peer:
        handshake = await post(peer, "initialize", {"protocolVersion": "2025-11-25"})
        assert (handshake.status_code, handshake.json()["error"]["code"]) == (404, -32601)


async def test_listings_can_be_wrong_in_every_way_that_matters() -> None:
    async with McpPeer(era="modern", list_fault="error") as peer:
        assert (await post_modern(peer, "tools/list")).json()["error"]["code"] == -32603
    async with McpPeer(era="modern", list_fault="misfit") as peer:
        assert (await post_modern(peer, "tools/list")).json()["result"]["tools"] == "a great many"
    async with McpPeer(era="modern", tools=1, oversized=100_000) as peer:
        assert len((await post_modern(peer, "tools/list")).content) > 100_000


@pytest.mark.parametrize(("fault", "repeats"), [("repeating_cursor", True), ("endless_cursors", False)])
async def test_cursors_repeat_or_never_end(fault: Any, *, repeats: bool) -> None:
    async with McpPeer(era="modern", list_fault=fault, page_size=2) as peer:
        cursors: list[str] = []
        for _ in range(5):
            params = {"cursor": cursors[-1]} if cursors else {}
            cursors.append((await post_modern(peer, "tools/list", params)).json()["result"]["nextCursor"])
        assert len(set(cursors)) == (1 if repeats else 5)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_handshakes_can_be_wrong(era: Any) -> None:
    method = "initialize" if era == "legacy" else "server/discover"
    params = {"protocolVersion": "2025-11-25"} if era == "legacy" else {}
    ask = post if era == "legacy" else post_modern
    async with McpPeer(era=era, handshake_fault="error") as peer:
        assert (await ask(peer, method, params)).json()["error"]["code"] == -32603
    async with McpPeer(era=era, handshake_fault="misfit") as peer:
        assert "capabilities" not in (await ask(peer, method, params)).json()["result"]
    async with McpPeer(era=era, handshake_fault="version") as peer:
        answer = json.dumps((await ask(peer, method, params)).json())
        assert ("1999-01-01" if era == "legacy" else "2099-01-01") in answer


async def test_the_first_requests_meet_the_faults_and_later_ones_the_server() -> None:
    faults: list[Behaviour] = [respond(503), HTML_PAGE, close_mid_answer]
    async with McpPeer(era="modern", faults=faults) as peer:
        assert (await post_modern(peer, "tools/list")).status_code == 503
        assert "text/html" in (await post_modern(peer, "tools/list")).headers["content-type"]
        with pytest.raises(httpx2.RemoteProtocolError):
            await post_modern(peer, "tools/list")
        assert "result" in (await post_modern(peer, "tools/list")).json()


async def test_only_the_right_credentials_get_in() -> None:
    async with McpPeer(era="modern", auth="Bearer right") as peer:
        refused = await post(peer, "server/discover", authorization="Bearer wrong")
        assert (refused.status_code, "Bearer" in refused.headers["www-authenticate"]) == (401, True)
        client = httpx2.AsyncClient(headers={"authorization": "Bearer right"}, trust_env=False)
        async with client:
            answer = await client.get(peer.url)
        assert answer.status_code == 405


async def test_a_get_stream_brings_what_the_server_pushes() -> None:
    async with McpPeer(get_stream=True, sessions=False) as peer, httpx2.AsyncClient(trust_env=False) as client:
        async with client.stream("GET", peer.url) as stream:
            await peer.push({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            lines = stream.aiter_lines()
            assert await anext(lines) == "event: message"
            assert "list_changed" in await anext(lines)
        await client.aclose()
        await peer.all_closed()


async def test_the_sdk_loads_and_calls_an_sse_peer() -> None:
    async with no_leaks(), SsePeer(instructions="Be kind.") as peer:
        async with Client(sse_client(peer.url), mode="legacy", cache=None) as client:
            assert client.instructions == "Be kind."
            assert [tool.name for tool in (await client.list_tools()).tools] == list(BUILT_IN)
            assert await text_of(client, "add", a=2, b=3) == "5"
            assert (await client.call_tool("progress", {"count": 2})).is_error is False
        assert peer.methods[:4] == ["GET", *LEGACY_LOAD[1:]]
        await peer.all_closed()


async def test_a_slow_call_over_sse_leaves_its_connection_free_for_others() -> None:
    async with (
        no_leaks(),
        SsePeer() as peer,
        Client(sse_client(peer.url), mode="legacy", cache=None) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(client.call_tool, "slow", {})
        with anyio.fail_after(5):
            await peer.slow_started.wait()
            assert await text_of(client, "echo", text="meanwhile") == "meanwhile"
            peer.release.set()


async def sse_events(peer: SsePeer) -> list[str]:
    """What the stream says until it ends or falls silent."""
    lines: list[str] = []
    async with httpx2.AsyncClient(trust_env=False) as client:
        with anyio.move_on_after(0.1):
            async with client.stream("GET", peer.url) as stream:
                lines.extend([line async for line in stream.aiter_lines()])
                lines.append("end")
    return lines


async def test_an_sse_stream_can_end_where_it_should_not() -> None:
    async with SsePeer(stream_ends="at_once") as peer:
        assert await sse_events(peer) == ["end"]
    async with SsePeer(stream_ends="after_endpoint") as peer:
        event, place, blank, end = await sse_events(peer)
        assert (event, place[:15], blank, end) == ("event: endpoint", "data: /messages", "", "end")


async def test_an_sse_endpoint_can_be_missing_or_elsewhere() -> None:
    async with no_leaks(), SsePeer(endpoint=None) as peer:
        assert await sse_events(peer) == []
    async with SsePeer(endpoint="http://elsewhere.example/messages", stream_ends="after_endpoint") as peer:
        assert "data: http://elsewhere.example/messages" in (await sse_events(peer))[1]


async def test_an_sse_message_can_be_refused() -> None:
    async with no_leaks(), SsePeer(post=respond(403, "no")) as peer:
        async with httpx2.AsyncClient(trust_env=False) as client:
            answer = await client.post(f"{peer.origin}/messages?session_id=x", json={})
        assert (answer.status_code, answer.text) == (403, "no")
