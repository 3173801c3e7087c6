"""Real servers from npm and PyPI that start slowly: from empty package caches, and after a delay of up to a minute."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from holdfast.hub import load
from holdfast.types import MCPServerLoadOutcome
from tests.field.environments import PythonEnvironment
from tests.wire.test_slow_starts import SDK, SERVERS, eras

pytestmark = [pytest.mark.anyio, pytest.mark.field, pytest.mark.timeout(900)]

OLD_SDK = PythonEnvironment("python-sdk-1-server", ("mcp<2",))


@pytest.mark.requirement("LOAD-14")
@pytest.mark.parametrize("delay", [0, 5, 15, 55])
async def test_every_sdk_comes_up_in_its_own_era_after_any_delay(delay: int) -> None:
    await anyio.to_thread.run_sync(OLD_SDK.ready)
    servers = {**SERVERS, "python-v1": ((str(OLD_SDK.python), str(SDK / "python_v1.py")), "legacy")}
    found = await eras({name: (*command, str(delay)) for name, (command, _) in servers.items()})
    assert found == {name: (era, "hello") for name, (_, era) in servers.items()}


NPM: Mapping[str, tuple[str, ...]] = {
    "everything": ("@modelcontextprotocol/server-everything",),
    "filesystem": ("@modelcontextprotocol/server-filesystem", "/tmp"),
    "memory": ("@modelcontextprotocol/server-memory",),
    "thinking": ("@modelcontextprotocol/server-sequential-thinking",),
    "playwright": ("@playwright/mcp",),
}
PYPI: Mapping[str, tuple[str, ...]] = {
    "time": ("mcp-server-time",),
    "git": ("mcp-server-git",),
    "fetch": ("mcp-server-fetch",),
    "calculator": ("mcp-server-calculator",),
    "duckduckgo": ("duckduckgo-mcp-server",),
}
PASSED = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")


def cold(folder: Path) -> dict[str, object]:
    """The servers as a configuration, each with an empty package cache of its own."""
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    npx, uvx = shutil.which("npx") or "npx", str(Path(sys.executable).with_name("uvx"))
    servers: dict[str, object] = {
        name: {"command": npx, "args": ["-y", *args], "env": {**passed, "npm_config_cache": str(folder / name)}}
        for name, args in NPM.items()
    }
    servers |= {
        name: {"command": uvx, "args": [*args], "env": {**passed, "UV_CACHE_DIR": str(folder / name)}}
        for name, args in PYPI.items()
    }
    return {"mcpServers": servers}


@pytest.mark.requirement("LOAD-13")
async def test_ten_servers_come_up_from_empty_caches_with_one_start_each_and_leave_the_caches_whole(
    tmp_path: Path,
) -> None:
    config = cold(tmp_path)
    first = await load(config)
    _show("cold", first.outcomes)
    assert sorted(first.available) == sorted([*NPM, *PYPI]), first[2]
    assert {outcome.attempts for outcome in first.outcomes} == {1}
    again = await load(config)
    _show("warm", again.outcomes)
    assert sorted(again.available) == sorted(first.available), "a broken cache would fail now"


def _show(when: str, outcomes: Sequence[MCPServerLoadOutcome]) -> None:
    for outcome in sorted(outcomes, key=lambda one: one.elapsed_s):
        sys.stderr.write(f"{when} {outcome.server_id:<12} {outcome.elapsed_s:5.1f} s {len(outcome.tools)} tools\n")
