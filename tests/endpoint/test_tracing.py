"""A client's trace context reaches the server in every pair of eras, also without a tracer (OBS-2)."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client

from tests.harness.served_hub import Era, Person, front, over_stdio
from tests.peers.http_fault import Request
from tests.peers.mcp_http import McpPeer
from tests.peers.mcp_sse import SsePeer

pytestmark = pytest.mark.anyio

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-00"
TRACE: Any = {"traceparent": PARENT, "tracestate": "vendor=opaque", "baggage": "user=ada"}


def call_in(requests: list[Request]) -> tuple[dict[str, str], dict[str, Any]]:
    """The headers and the ``_meta`` of the one call that came."""
    [call] = [request for request in requests if b'"tools/call"' in request.body]
    kept = {name: value for name, value in call.headers.items() if name in TRACE}
    meta = json.loads(call.body)["params"].get("_meta", {})
    return kept, {name: value for name, value in meta.items() if name in TRACE}


@pytest.mark.requirement("OBS-2", "HUB-2")
async def test_the_context_in_meta_is_passed_on_in_meta_and_headers(
    client_era: Era, server_era: Era, ada: Person
) -> None:
    async with (
        McpPeer(era=server_era) as peer,
        front({"o": {"type": "http", "url": peer.url}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        await client.call_tool("o__echo", {"text": "hi"}, meta=TRACE)
    assert call_in(peer.requests) == (TRACE, TRACE)


@pytest.mark.requirement("OBS-2")
async def test_the_context_in_headers_is_passed_on_in_meta_and_headers(
    client_era: Era, server_era: Era, ada: Person
) -> None:
    async with (
        McpPeer(era=server_era) as peer,
        front({"o": {"type": "http", "url": peer.url}}) as served,
        httpx2.AsyncClient(headers=TRACE, trust_env=False) as http,
        ada.client(streamable_http_client(served.all, http_client=http), client_era) as client,
    ):
        await client.call_tool("o__echo", {"text": "hi"})
    assert call_in(peer.requests) == (TRACE, TRACE)


@pytest.mark.requirement("OBS-2")
async def test_what_a_request_says_itself_counts_more_than_what_its_way_says(ada: Person) -> None:
    async with (
        McpPeer() as peer,
        front({"o": {"type": "http", "url": peer.url}}) as served,
        httpx2.AsyncClient(headers={"traceparent": OTHER}, trust_env=False) as http,
        ada.client(streamable_http_client(served.all, http_client=http), "modern") as client,
    ):
        await client.call_tool("o__echo", {"text": "hi"}, meta={"traceparent": PARENT})  # type: ignore[arg-type]  # any
    assert call_in(peer.requests) == ({"traceparent": PARENT}, {"traceparent": PARENT})


@pytest.mark.requirement("OBS-2")
async def test_over_a_pipe_the_context_of_the_headers_is_in_meta(server_era: Era, ada: Person) -> None:
    async with (
        front({"o": over_stdio(server_era)}) as served,
        httpx2.AsyncClient(headers=TRACE, trust_env=False) as http,
        ada.client(streamable_http_client(served.all, http_client=http), "modern") as client,
    ):
        result = await client.call_tool("o__echo", {"text": "hi"})
    assert (result.meta or {})["traceparent"] == PARENT
    assert (result.meta or {})["tracestate"] == TRACE["tracestate"]


@pytest.mark.requirement("OBS-2")
async def test_over_an_event_stream_the_context_is_in_the_headers_of_the_request(ada: Person) -> None:
    async with (
        SsePeer() as peer,
        front({"o": {"type": "sse", "url": peer.url}}) as served,
        ada.client(served.all, "legacy") as client,
    ):
        await client.call_tool("o__echo", {"text": "hi"}, meta=TRACE)
    assert call_in(peer.requests) == (TRACE, TRACE)


@pytest.mark.requirement("OBS-2", "SEC-3")
async def test_what_is_no_trace_context_is_passed_on_in_meta_and_becomes_no_header(ada: Person) -> None:
    meta: Any = {"traceparent": "x\r\nauthorization: Bearer stolen", "tracestate": "vendor=opaque"}
    async with (
        McpPeer() as peer,
        front({"o": {"type": "http", "url": peer.url}}) as served,
        ada.client(served.all, "legacy") as client,
    ):
        await client.call_tool("o__echo", {"text": "hi"}, meta=meta)
    assert call_in(peer.requests) == ({}, meta)
