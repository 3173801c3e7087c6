"""The fixture server and the hub as processes of their own, for as long as a block lasts."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.conformance.eras import Era
from tests.peers.process import foreign_process

__all__ = ["PYTHON_ENV", "fixture_over_http", "fixture_over_stdio", "hub_over_http"]

_ROOT = Path(__file__).parents[2]
PYTHON_ENV = {"PYTHONPATH": f"{_ROOT}:{_ROOT / 'src'}"}
"""What a child needs to import the tests and the package that stand beside each other here."""

_FIXTURE = ("-m", "tests.conformance.fixture_server")


@asynccontextmanager
async def fixture_over_http(*, folder: Path, era: Era = "both") -> AsyncIterator[str]:
    """Run the fixture server; gives its URL."""
    announced = folder / f"fixture-{era}.url"
    command = (sys.executable, *_FIXTURE, "http", "--era", era, "--announce", announced)
    async with foreign_process(command, log=folder / f"fixture-{era}.log", env=PYTHON_ENV) as process:
        yield (await process.appears(announced, containing="\n")).strip()


def fixture_over_stdio(*, era: Era = "both") -> dict[str, Any]:
    """The definition, for an ``mcp.json``, of a fixture server that the hub spawns."""
    return {"command": sys.executable, "args": [*_FIXTURE, "stdio", "--era", era], "env": PYTHON_ENV}


@asynccontextmanager
async def hub_over_http(servers: Mapping[str, Mapping[str, Any]], *, folder: Path) -> AsyncIterator[str]:
    """Run the hub in front of the servers; gives the address under which ``/mcp`` and ``/servers`` stand."""
    config, announced = folder / "mcp.json", folder / "hub.url"
    config.write_text(json.dumps({"mcpServers": servers}))
    command = (sys.executable, "-m", "tests.conformance.hub_process", "--config", config, "--announce", announced)
    env = PYTHON_ENV | {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    async with foreign_process(command, log=folder / "hub.log", env=env) as process:
        yield (await process.appears(announced, containing="\n")).strip()
