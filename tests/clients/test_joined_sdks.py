"""The clients of the SDKs start ``serve --stdio``, join one hub, and outlive it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import Client, StdioServerParameters

from tests.cli.serve_process import COMMAND
from tests.harness.joined import join_home
from tests.harness.waiting import PATIENCE
from tests.peers.everything import node

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
MODULES = HERE.parents[1] / ".tools/node/node_modules"


@pytest.mark.requirement("DX-8")
async def test_sdk_clients_of_both_eras_share_a_hub_and_outlive_it(tmp_path: Path) -> None:
    joins = [*COMMAND, "serve", "--stdio"]
    async with join_home(tmp_path) as home:
        start = StdioServerParameters(command=joins[0], args=joins[1:], env=home.environ, cwd=home.folder)
        script = [str(node()), str(HERE / "typescript_joined.cjs"), *joins]
        environ = {**home.environ, "NODE_PATH": str(MODULES)}
        with anyio.fail_after(2 * PATIENCE):
            async with (
                Client(start, mode="legacy", cache=None) as legacy,
                Client(start, mode="2026-07-28", cache=None) as modern,
                await anyio.open_process(script, cwd=home.folder, env=environ) as typescript,
            ):
                assert typescript.stdin is not None
                assert typescript.stdout is not None
                lines, asks = BufferedByteReceiveStream(typescript.stdout), typescript.stdin

                async def answers() -> list[tuple[str, int]]:
                    """The process of the server that each client reaches, and how many tools it is shown."""
                    await asks.send(b"\n")
                    of_typescript: list[Any] = json.loads(await lines.receive_until(b"\n", 1 << 16))
                    of_python = [(await _pid(one), len((await one.list_tools()).tools)) for one in (legacy, modern)]
                    return [*of_python, *((str(pid), int(count)) for pid, count in of_typescript)]

                before = await answers()
                await home.kill_hub()
                after = await answers()
                await asks.aclose()
                await typescript.wait()
        assert len(before) == len(after) == 4
        assert len({pid for pid, _ in before}) == len({pid for pid, _ in after}) == 1, "one process of the server"
        assert before[0][0] != after[0][0]
        assert {count for _, count in before} == {count for _, count in after}
        assert home.starts == 2


async def _pid(client: Client) -> str:
    result: Any = await client.call_tool("s__pid", {})
    return str(result.content[0].text)
