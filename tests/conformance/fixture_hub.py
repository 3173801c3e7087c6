"""The fixture server and the hub as processes of their own, for as long as a block lasts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.eras import Era
from tests.harness.waiting import ready
from tests.peers.process import ForeignProcess, foreign_process

__all__ = ["PYTHON_ENV", "ServedHub", "fixture_over_http", "fixture_over_stdio", "hub_command", "hub_over_http"]

_ROOT = Path(__file__).parents[2]
PYTHON_ENV = {"PYTHONPATH": f"{_ROOT}:{_ROOT / 'src'}"}
"""What a child needs to import the tests and the package that stand beside each other here."""

_ENDPOINT = re.compile(r"MCP endpoint: (http://\S+)/mcp")
# A cold start of the hub and of every server behind it, on a loaded machine.
_STARTING = 30.0
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


@dataclass(frozen=True)
class ServedHub:
    """``holdfast serve``, running."""

    base: str
    process: ForeignProcess

    @property
    def all(self) -> str:
        """Where all servers are."""
        return f"{self.base}/mcp"

    def one(self, server: str) -> str:
        """Where one server is, alone."""
        return f"{self.base}/servers/{server}/mcp"


@asynccontextmanager
async def hub_over_http(
    servers: Mapping[str, Mapping[str, Any]], *options: str, folder: Path, **settings: Any
) -> AsyncIterator[ServedHub]:
    """Serve the servers, and wait until each has an outcome; ``settings`` are Holdfast's own."""
    command = (*hub_command(servers, folder=folder, **settings), "--port", "0", *options)
    async with foreign_process(command, log=folder / "hub.log", env=_hub_env(folder)) as process:
        said = await process.appears(process.log, containing="ready when:")
        base = _ENDPOINT.findall(said)[0]
        await ready(f"{base}/readyz", within=_STARTING)
        yield ServedHub(base, process)


def hub_command(servers: Mapping[str, Mapping[str, Any]], *, folder: Path, **settings: Any) -> tuple[str, ...]:
    """The command that serves the servers; it keeps its state in the folder."""
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers, "holdfast": settings}))
    return (sys.executable, "-m", "holdfast", "serve", "--no-watch", "--config", str(config))


def _hub_env(folder: Path) -> dict[str, str]:
    return PYTHON_ENV | {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
