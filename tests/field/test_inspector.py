"""MCP Inspector's command line: one process for each request, over HTTP and over stdio."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.field import results
from tests.field.environments import NodeEnvironment
from tests.field.matrix import _env
from tests.field.test_client_matrix import TOOL, Way, fleet
from tests.peers.everything import node

pytestmark = [pytest.mark.anyio, pytest.mark.field, pytest.mark.timeout(900)]

INSPECTOR = NodeEnvironment("inspector", ("@modelcontextprotocol/inspector",))
_LAUNCHER = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"


async def inspect(hub: dict[str, Any], *options: str, folder: Path) -> dict[str, Any]:
    given = [part for name, value in hub.get("env", {}).items() for part in ("-e", f"{name}={value}")]
    where = [hub["url"], "--transport", "http"] if "url" in hub else [*given, hub["command"], *hub["args"]]
    command = [str(node()), str(INSPECTOR.modules / _LAUNCHER), "--cli", *where, *options]
    env = _env(folder)
    ran = await anyio.run_process(command, env=env, check=False, stderr=subprocess.PIPE)
    assert ran.stdout, ran.stderr.decode()
    return dict(json.loads(ran.stdout))


@pytest.mark.requirement("HUB-15")
@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_it_lists_calls_and_shows_an_outage(way: Way, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(INSPECTOR.ready)
    calling = ("--method", "tools/call", "--tool-name", TOOL, "--tool-arg", "text=hello")
    async with fleet(way, tmp_path) as all_of_it:
        listed = await inspect(all_of_it.hub, "--method", "tools/list", folder=tmp_path)
        assert TOOL in [tool["name"] for tool in listed["tools"]]
        assert (await inspect(all_of_it.hub, *calling, folder=tmp_path))["content"][0]["text"] == "hello"
        await all_of_it.server.stop()
        told = await inspect(all_of_it.hub, *calling, folder=tmp_path)
        assert told["isError"]
        assert "refused" in told["content"][0]["text"]
        await all_of_it.server.start()
        with anyio.fail_after(60):
            while (again := await inspect(all_of_it.hub, *calling, folder=tmp_path)).get("isError"):
                pass
        assert again["content"][0]["text"] == "hello"
    versions = INSPECTOR.versions("@modelcontextprotocol/inspector")
    seen = {
        "list": f"{len(listed['tools'])} tools",
        "call": "hello",
        "outage": told["content"][0]["text"],
        "server restart": "back",
    }
    for column, words in seen.items():
        results.note("Inspector CLI", versions, way, column, words)
