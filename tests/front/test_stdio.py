"""The hub over stdio: one client, spawned by it, with everything that HTTP has."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import anyio
import pytest
from mcp import StdioServerParameters

from tests.harness.served_hub import Era, Person, over_stdio, text_of
from tests.peers.peer_server import running

pytestmark = pytest.mark.anyio


def hub(servers: dict[str, Any]) -> StdioServerParameters:
    """How a client spawns the hub."""
    config = json.dumps({"mcpServers": servers})
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "tests.harness.stdio_hub", config],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


@pytest.mark.requirement("HUB-1", "HUB-2", "HUB-7")
async def test_a_client_over_stdio_lists_calls_is_asked_and_cancels(
    client_era: Era, server_era: Era, ada: Person
) -> None:
    async with running(server_era) as origin, ada.client(hub({"o": {"url": origin.url}}), client_era) as client:
        with anyio.fail_after(30):
            names = [tool.name for tool in (await client.list_tools()).tools]
            echoed = await client.call_tool("o__echo", {"text": "hi"})
            asked = [
                text_of(await client.call_tool("o__ask", {"kind": kind})) for kind in ("elicit", "sample", "roots")
            ]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "o__hang", {})
                await origin.hanging.wait()
                tasks.cancel_scope.cancel()
            await origin.cancelled.wait()
    assert {"o__echo", "holdfast_status"} <= set(names)
    assert text_of(echoed) == "hi"
    assert [answer.partition(" (")[0] for answer in asked] == ["ada's blue", "ada says so", "file:///ada"]


@pytest.mark.requirement("HUB-10")
async def test_a_spawned_hub_keeps_the_clients_own_connection_between_its_requests(
    client_era: Era, ada: Person
) -> None:
    servers = {"o": over_stdio("legacy", sharing="per-client", env={"PYTHONPATH": os.pathsep.join(sys.path)})}
    async with ada.client(hub(servers), client_era) as client:
        with anyio.fail_after(40):
            pids = {text_of(await client.call_tool("o__pid", {})) for _ in range(3)}
    assert len(pids) == 1
