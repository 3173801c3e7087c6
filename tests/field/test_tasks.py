"""Real servers and clients of tasks through a served hub: the SDKs that have them, and the reference server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.cli.serve_process import config, served
from tests.endpoint.test_tasks import TaskServer
from tests.field.environments import NodeEnvironment, PythonEnvironment
from tests.field.matrix import HERE, _env
from tests.harness.served_hub import Person, text_of
from tests.peers.everything import everything_args, node

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.field,
    pytest.mark.requirement("HUB-16"),
    pytest.mark.timeout(900),
]

TYPESCRIPT = NodeEnvironment("typescript-v1", ("@modelcontextprotocol/sdk@1",))
PYTHON = PythonEnvironment("python-sdk-1", ("mcp<2",))
SDK = Path(__file__).parents[1] / "peers" / "sdk"


@pytest.fixture
def ada() -> Person:
    return Person("ada")


async def _stream(url: str, tool: str, folder: Path) -> list[str]:
    """What the TypeScript client's own stream of a task shows."""
    command = [str(node()), str(HERE / "typescript_v1_tasks.cjs"), url, tool]
    env = {**_env(folder), "NODE_PATH": str(TYPESCRIPT.modules)}
    ran = await anyio.run_process(command, env=env, check=False, stderr=subprocess.PIPE)
    assert ran.stdout, ran.stderr.decode()
    return list(json.loads(ran.stdout))


async def test_the_typescript_client_follows_a_task_through_the_hub(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(TYPESCRIPT.ready)
    file = config(tmp_path / "mcp.json", t=TaskServer(tmp_path).definition)
    async with served(tmp_path / "home", "--config", str(file)) as hub:
        await hub.said("connected")
        for name in ("required", "optional"):
            came = await _stream(hub.url, f"t__{name}", tmp_path)
            assert came[0] == "taskCreated", came
            assert came[-2:] == ["result", f"{name} did it"]
        assert await _stream(hub.url, "t__plain", tmp_path) == ["result", "plain did it"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_tools_of_each_kind_on_the_python_sdk_1_are_called_by_clients_of_both_eras(
    era: Any, tmp_path: Path, ada: Person
) -> None:
    await anyio.to_thread.run_sync(PYTHON.ready)
    definition = {"command": str(PYTHON.python), "args": [str(SDK / "python_v1_tasks.py")]}
    file = config(tmp_path / "mcp.json", t=definition)
    async with served(tmp_path / "home", "--config", str(file)) as hub:
        await hub.said("connected")
        async with ada.client(hub.url, era) as client:
            for name in ("plain", "optional", "required"):
                assert text_of(await client.call_tool(f"t__{name}", {})) == f"{name} did it"
    # The TypeScript client cannot follow this server's tasks, directly or through the hub: it wants a `ttl`.


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_reference_servers_research_is_called_plainly_and_its_question_reaches_the_caller(
    era: Any, tmp_path: Path, ada: Person
) -> None:
    """It takes four seconds, and asks which of two meanings is meant."""
    file = config(tmp_path / "mcp.json", e={"command": str(node()), "args": list(everything_args())})
    async with served(tmp_path / "home", "--config", str(file)) as hub:
        await hub.said("connected")
        async with ada.client(hub.url, era) as client:
            result = await client.call_tool("e__simulate-research-query", {"topic": "python", "ambiguous": True})
    assert not result.is_error
    assert "Research Report: python" in text_of(result)
    assert "elicit" in ada.asked
