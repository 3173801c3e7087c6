"""One fixture server, and a hub in front of it over either transport, for all the clients of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp_types import ListRootsResult

from tests.conformance.fixture_hub import ServedHub, fixture_over_http, fixture_over_stdio, hub_over_http


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def fixture_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The server itself."""
    async with fixture_over_http(folder=tmp_path_factory.mktemp("fixture")) as url:
        yield url


@pytest.fixture(scope="module")
async def hub(fixture_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedHub]:
    """A hub, with the server over HTTP as ``web`` and one that it spawns as ``child``."""
    servers = {"web": {"type": "http", "url": fixture_url}, "child": fixture_over_stdio()}
    async with hub_over_http(servers, folder=tmp_path_factory.mktemp("hub")) as hub:
        for server in servers:  # the hub keeps a connection for each era: its process is no test's leak
            async with Client(hub.one(server), mode="legacy", cache=None, list_roots_callback=_no_roots) as client:
                await client.call_tool("test_simple_text", {})
        yield hub


async def _no_roots(context: ClientRequestContext) -> ListRootsResult:
    """A client that can be asked something gets a process of its era."""
    return ListRootsResult(roots=[])
