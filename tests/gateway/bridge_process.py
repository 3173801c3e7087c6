"""Real processes for the bridge's tests: the bridge itself, and a gateway that reads its config strictly."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import yaml

from holdfast.gateway.model import CHECK_ROUTE
from holdfast.gateway.render import SCHEMAS_VARIABLE
from tests.peers.process import ForeignProcess, foreign_process

__all__ = [
    "RunningBridge",
    "RunningGateway",
    "becomes",
    "bridge",
    "content",
    "gateway",
    "mcp_json",
    "replace",
    "routes_in",
    "seeded",
    "together",
]

ROOT = Path(__file__).parents[2]
WAIT = 30.0
"""Seconds for an action of another process on a busy machine."""
_PAUSE = 0.02


def mcp_json(*names: str) -> str:
    """A document that names these servers."""
    return json.dumps({"mcpServers": {name: {"url": f"http://{name}.internal/mcp"} for name in names}})


def routes_in(file: Path) -> list[str]:
    """The names of the routes in a config, in order, but for that which every config has."""
    document = yaml.safe_load(file.read_text())
    names = [route["name"] for route in document["binds"][0]["listeners"][0]["routes"]]
    return [name for name in names if name != CHECK_ROUTE]


def content(file: Path) -> bytes:
    """What stands in a file."""
    return file.read_bytes()


def replace(file: Path, text: str) -> None:
    """Change a file as a careful editor does it: a reader sees the old text or the new one."""
    fresh = file.with_name(f"{file.name}.fresh")
    fresh.write_text(text)
    fresh.replace(file)


async def becomes(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds that other processes bring about."""
    with anyio.fail_after(WAIT):
        while not await holds():  # noqa: ASYNC110 - another process sets no event
            await anyio.sleep(_PAUSE)


@dataclass(frozen=True)
class RunningBridge:
    """A bridge in a process of its own."""

    process: ForeignProcess
    url: str

    @property
    def log(self) -> str:
        """Everything that it said."""
        return self.process.log.read_text()

    async def health(self) -> tuple[int, dict[str, Any]]:
        """What ``/healthz`` answers."""
        async with httpx2.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"{self.url}/healthz")
        return answer.status_code, answer.json()

    async def metrics(self) -> dict[str, float]:
        """What ``/metrics`` answers."""
        async with httpx2.AsyncClient(trust_env=False) as client:
            text = (await client.get(f"{self.url}/metrics")).text
        lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
        return {name.removeprefix("holdfast_gateway_bridge_"): float(value) for name, value in lines}

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> tuple[int, dict[str, Any]]:
        """Wait until its health is as it should be."""
        seen: tuple[int, dict[str, Any]] = (0, {})
        with anyio.move_on_after(WAIT):
            while not holds((seen := await self.health())[1]):  # noqa: ASYNC110 - another process sets no event
                await anyio.sleep(_PAUSE)
            return seen
        raise AssertionError(f"it never came to that; last seen:\n{json.dumps(seen, indent=1)}\n{self.log}")

    def kill(self) -> None:
        """End it as the system does when memory is short."""
        os.kill(self.process.pid, signal.SIGKILL)


@asynccontextmanager
async def bridge(
    folder: Path,
    *options: str | Path,
    version: str = "1.4.1",
    name: str = "bridge",
    env: Mapping[str, str] | None = None,
    before: tuple[str, ...] = (),
) -> AsyncIterator[RunningBridge]:
    """Run ``holdfast gateway bridge`` on ``folder/config.yaml``; ``before`` is put before the command."""
    command = [*before, *_command(folder, version), "--listen", "127.0.0.1:0", "--poll", "50ms", *options]
    environment = {"PYTHONPATH": str(ROOT / "src"), "HOME": str(folder), **(env or {})}
    log = folder / f"{name}.log"
    async with foreign_process(command, log=log, env=environment) as process:
        said = await process.appears(log, containing="/metrics")
        yield RunningBridge(process, said.partition("health at ")[2].partition("/healthz")[0])


@dataclass(frozen=True)
class RunningGateway:
    """A gateway in a process of its own."""

    process: ForeignProcess
    admin: str

    async def says(self, text: str) -> None:
        """Wait until it has said this."""
        await self.process.appears(self.process.log, containing=text)


@asynccontextmanager
async def gateway(
    folder: Path, *, version: str = "1.4.1", port: int = 0, name: str = "gateway"
) -> AsyncIterator[RunningGateway]:
    """Run a gateway on ``folder/config.yaml``; it validates with the product's own schema where that is at hand."""
    address = folder / f"{name}.address"
    address.unlink(missing_ok=True)
    program = Path(__file__).with_name("gateway_process.py")
    options: list[str | Path] = ["--config", folder / "config.yaml", "--version", version, "--port", str(port)]
    command = [sys.executable, program, *options, *_schemas(), "--address", address]
    async with foreign_process(command, log=folder / f"{name}.log") as process:
        yield RunningGateway(process, await process.appears(address, containing=":"))


async def seeded(folder: Path, *options: str | Path, version: str = "1.4.1") -> None:
    """Put a config without targets in place, as is done before the gateway starts."""
    command = [*_command(folder, version), *options, "--seed"]
    await anyio.run_process(list(map(str, command)), env={**os.environ, "PYTHONPATH": str(ROOT / "src")})


@asynccontextmanager
async def together(
    folder: Path, *options: str | Path, version: str = "1.4.1"
) -> AsyncIterator[tuple[RunningBridge, RunningGateway]]:
    """A bridge and the gateway that it writes for, once both are content."""
    await seeded(folder, version=version)
    async with gateway(folder, version=version) as proxy:
        watched = ("--admin-address", proxy.admin, "--accept-within", "1s")
        async with bridge(folder, *watched, *options, version=version) as running:
            await running.until(lambda health: bool(health["status"] == "ok"))
            yield running, proxy


def _schemas() -> list[str | Path]:
    place = Path(os.environ.get(SCHEMAS_VARIABLE) or ROOT.parent / "shared" / "data" / "agentgateway")
    return ["--schemas", place] if place.is_dir() else []


def _command(folder: Path, version: str) -> list[str | Path]:
    program = [sys.executable, "-m", "holdfast", "gateway", "bridge", "--gateway-version", version]
    return [*program, "--output", folder / "config.yaml", "--ext-auth-host", "authz.internal:9100"]
