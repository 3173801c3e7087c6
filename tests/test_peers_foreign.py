"""The foreign peers are what they claim to be: a real Envoy, and the MCP project's own reference server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client

from tests.peers.authz import AuthzService, GrpcAuthzService
from tests.peers.envoy import envoy_gateway
from tests.peers.everything import everything_args, everything_over_http, node
from tests.peers.http_fault import closed_port
from tests.peers.leaks import no_leaks
from tests.peers.mcp_http import McpPeer
from tests.peers.rpc import BUILT_IN

pytestmark = pytest.mark.anyio

SERVICES = {"http": AuthzService, "grpc": GrpcAuthzService}


@asynccontextmanager
async def gateway(folder: Path, protocol: Any, **options: Any) -> AsyncIterator[tuple[str, McpPeer, AuthzService]]:
    """An MCP server behind Envoy: the address of its route, the server, and who is asked for permission."""
    async with McpPeer(era="modern") as upstream, SERVICES[protocol]() as authz:
        proxy = envoy_gateway(
            {"/mcp/files": upstream.port}, authz_port=authz.port, folder=folder, protocol=protocol, **options
        )
        async with proxy as envoy:
            yield envoy.url("/mcp/files"), upstream, authz


async def post(url: str) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(url, content=b"{}")


@pytest.mark.parametrize("protocol", SERVICES)
async def test_who_is_allowed_reaches_the_server_behind_envoy(protocol: str, tmp_path: Path) -> None:
    async with no_leaks(), gateway(tmp_path, protocol) as (url, upstream, authz):
        async with Client(url, cache=None) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == list(BUILT_IN)
        assert upstream.methods == ["server/discover", "tools/list"]
        assert len(authz.requests) == 2


@pytest.mark.parametrize("protocol", SERVICES)
async def test_an_authorization_timeout_is_an_empty_403_and_the_server_sees_nothing(
    protocol: str, tmp_path: Path
) -> None:
    async with no_leaks(), gateway(tmp_path, protocol) as (url, upstream, authz):
        authz.hold()
        answer = await post(url)
        assert (answer.status_code, answer.content) == (403, b"")
        assert (len(authz.requests), upstream.requests) == (1, [])


@pytest.mark.parametrize("protocol", SERVICES)
async def test_an_authorization_timeout_can_have_a_status_of_its_own(protocol: str, tmp_path: Path) -> None:
    async with gateway(tmp_path, protocol, status_on_error=503) as (url, upstream, authz):
        authz.hold()
        answer = await post(url)
        assert (answer.status_code, answer.content) == (503, b"")
        assert (len(authz.requests), upstream.requests) == (1, [])


@pytest.mark.parametrize("protocol", SERVICES)
async def test_a_denial_carries_the_authorization_servers_words(protocol: str, tmp_path: Path) -> None:
    async with gateway(tmp_path, protocol, status_on_error=503) as (url, upstream, authz):
        authz.deny("not for you")
        answer = await post(url)
        assert (answer.status_code, answer.text) == (403, "not for you")
        assert (len(authz.requests), upstream.requests) == (1, [])
        authz.allow()
        assert (await post(url)).status_code == 406, "the server itself answers now"


@pytest.mark.parametrize("protocol", SERVICES)
async def test_a_longer_timeout_waits_for_a_late_permission(protocol: str, tmp_path: Path) -> None:
    statuses: list[int] = []
    answered = anyio.Event()

    async def ask(url: str) -> None:
        statuses.append((await post(url)).status_code)
        answered.set()

    async with gateway(tmp_path, protocol, timeout_ms=10_000) as (url, upstream, authz):
        release = authz.hold()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, url)
            with anyio.move_on_after(0.4) as well_past_the_default:
                await answered.wait()
            assert well_past_the_default.cancelled_caught
            release.set()
        assert (statuses, len(upstream.requests)) == ([406], 1)


async def test_an_authorization_server_that_refuses_connections_is_an_outage_too(tmp_path: Path) -> None:
    with closed_port() as port:
        async with McpPeer() as upstream:
            proxy = envoy_gateway({"/": upstream.port}, authz_port=port, folder=tmp_path, status_on_error=503)
            async with proxy as envoy:
                answer = await post(envoy.url("/"))
        assert (answer.status_code, upstream.requests) == (503, [])


@pytest.mark.parametrize("transport", ["streamableHttp", "sse"])
async def test_the_reference_server_is_loaded_over_http(transport: Any, tmp_path: Path) -> None:
    async with no_leaks(), everything_over_http(transport, folder=tmp_path) as url:
        assert url.startswith("http://127.0.0.1:")
        server: Any = sse_client(url) if transport == "sse" else url
        async with Client(server, cache=None) as client:
            await assert_is_the_reference_server(client)


async def test_the_reference_server_is_loaded_over_stdio() -> None:
    parameters = StdioServerParameters(command=str(node()), args=list(everything_args()))
    async with no_leaks(), Client(stdio_client(parameters), cache=None) as client:
        await assert_is_the_reference_server(client)


async def assert_is_the_reference_server(client: Client) -> None:
    assert client.server_info is not None
    assert client.server_info.name == "mcp-servers/everything"
    names = {tool.name for tool in (await client.list_tools()).tools}
    assert {"echo", "get-sum"} <= names
    assert not (await client.call_tool("echo", {"message": "hello"})).is_error
