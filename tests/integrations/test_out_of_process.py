"""Frameworks that need mcp 1.x cannot share an environment with Holdfast: they use a running hub, or one over stdio."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import pytest

from holdfast.testing import HttpServer
from tests.cli.serve_process import COMMAND, config, environment, served
from tests.integrations.environments import python_with

pytestmark = pytest.mark.anyio

PROGRAMS = Path(__file__).with_name("programs")
RUN_SECONDS = 100
FRAMEWORKS = {
    "adapters": ["langchain-mcp-adapters"],
    "mcp_use": ["mcp-use"],
    "crewai": ["crewai", "crewai-tools[mcp]"],
}


@pytest.mark.field
@pytest.mark.requirement("INT-3")
@pytest.mark.parametrize("over", ["http", "stdio"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.timeout(600)
async def test_a_framework_on_mcp_1_calls_a_tool_of_the_hub(framework: str, over: str, tmp_path: Path) -> None:
    python = await anyio.to_thread.run_sync(lambda: python_with(framework, FRAMEWORKS[framework], holdfast=False))
    async with HttpServer({"forecast": "sunny"}) as weather:
        file = config(tmp_path / "mcp.json", weather=weather.definition)
        if over == "http":
            async with served(tmp_path / "home", "--config", str(file)) as hub:
                seen = await _play(python, framework, [hub.url], tmp_path)
        else:
            seen = await _play(
                python, framework, [*COMMAND, "serve", "--stdio", "--own", "--config", str(file)], tmp_path
            )
    assert any(name.endswith("forecast") for name in seen["tools"])
    assert "sunny" in seen["read"]


async def _play(python: Path, framework: str, way: list[str], home: Path) -> dict[str, str]:
    env = {**environment(home), "PATH": os.environ["PATH"], "HOME": str(home)}
    command = [str(python), str(PROGRAMS / f"{framework}_program.py"), *way]
    with anyio.fail_after(RUN_SECONDS):
        done = await anyio.run_process(command, env=env, check=False, cwd=home)
    assert done.returncode == 0, done.stderr.decode()
    seen: dict[str, str] = json.loads(done.stdout.decode().splitlines()[-1])
    return seen
