"""``holdfast doctor`` on fifty servers, ten of them silent: how long it takes beyond the deadline (DOC-1)."""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import anyio

from benchmarks.report import Check, Report, Row, median
from benchmarks.servers import fleet
from holdfast.config.read import read_file
from holdfast.doctor.examine import Doctor
from tests.peers.http_fault import FaultServer, never_answer
from tests.peers.stdio import StdioPeer

__all__ = ["REQUIREMENTS", "measure"]

REQUIREMENTS = ("DOC-1",)

ROUNDS = 1
SERVERS, SILENT = 50, 10
DEADLINE = 15.0
BEYOND = 1.0

LABEL = f"holdfast doctor --timeout {DEADLINE:g}"


def measure(*, rounds: int = ROUNDS) -> Report:
    """Check them in each round. Healthy servers use HTTP; half of the silent ones use HTTP, half are processes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(mock.patch.dict(os.environ, {"XDG_STATE_HOME": str(folder)}))
        urls = stack.enter_context(fleet(SERVERS - SILENT)).urls
        samples = [anyio.run(_examined, folder, urls) for _ in range(rounds)]
    slowest = max(samples)
    return Report(
        name="doctor",
        title=f"Checking {SERVERS} servers, {SILENT} of them silent, {rounds} rounds",
        requirements=REQUIREMENTS,
        rows=(Row(label=LABEL, time=median(samples), note=f"{SERVERS - SILENT} healthy, {SILENT} reported as silent"),),
        checks=(
            Check(
                demand=f"DOC-1 takes at most the slowest deadline plus {BEYOND:g} s",
                found=f"{slowest - DEADLINE:.2f} s beyond it at most",
                met=slowest <= DEADLINE + BEYOND,
            ),
        ),
    )


async def _examined(folder: Path, urls: list[str]) -> float:
    async with FaultServer(never_answer) as silent:
        servers: dict[str, object] = {f"healthy{number}": {"url": url} for number, url in enumerate(urls)}
        for number in range(0, SILENT, 2):
            peer = StdioPeer("--never-answer", folder=folder)
            servers[f"silent{number}"] = {"url": f"{silent.origin}/mcp"}
            servers[f"silent{number + 1}"] = {"command": peer.command, "args": list(peer.args)}
        file = folder / "mcp.json"
        file.write_text(json.dumps({"mcpServers": servers}))
        began = time.perf_counter()
        report = await Doctor(read_file(file, environ=os.environ), timeout=DEADLINE).examine()
        took = time.perf_counter() - began
    told = [server.findings[0].code for server in report.servers if server.health == "failed"]
    if report.count("healthy") != SERVERS - SILENT or told != ["HF-SILENT"] * SILENT:
        raise RuntimeError(f"{report.count('healthy')} were healthy, and the others {told}")
    return took
