"""The cost of watching 500 idle servers: the hub's CPU with and without open streams, and the page in a browser.

The hub, the servers, the watchers and the browser are separate processes. The hub is idle, and the stream is read as
the status page reads it. The browser is Chromium; where there is none, its rows are left out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from benchmarks.report import Check, Report, Row, median
from benchmarks.servers import fleet
from holdfast.control.control_client import ControlClient
from holdfast.control.hub_finder import RunningHub
from tests.control.server.browser import Browser, browser

__all__ = ["REQUIREMENTS", "measure"]

REQUIREMENTS = ("HUB-5", "DX-5")

SERVERS = 500
SECONDS = 5.0
AT_MOST = 0.02
"""The share of a core that all streams together may add to an idle hub."""

STREAMS = 3
"""A page, a terminal, and a forgotten tab."""

TOKEN = "the-token-of-this-benchmark"
READY_SECONDS = 180.0

_ROOT = Path(__file__).parents[1]
_ENDPOINT = re.compile(r"MCP endpoint: (\S+)/mcp")


def measure(*, rounds: int = 3, servers: int = SERVERS, seconds: float = SECONDS) -> Report:
    """Measure in turns: with and without streams, for this many seconds each."""
    idle: list[float] = []
    watched: list[float] = []
    with fleet(servers) as running, _served(running.urls) as (pid, base):
        anyio.run(_ready, base)
        for number in range(2 * rounds):
            streams = STREAMS if number % 2 else 0
            (watched if streams else idle).append(anyio.run(_spent, base, pid, streams, seconds))
        painted = anyio.run(_painted, base, rounds, seconds) if shutil.which("chromedriver") else ()
    added = max(0.0, median(watched).median - median(idle).median)
    return Report(
        name="status_page",
        title=f"CPU of a hub with {servers} idle servers, of each second",
        requirements=REQUIREMENTS,
        rows=(
            Row(label="no event stream", time=median(idle)),
            Row(label=f"{STREAMS} event streams are open", time=median(watched)),
            *painted,
        ),
        checks=(
            Check(demand=f"watching adds under {AT_MOST:.0%} of a core", found=f"{added:.2%}", met=added < AT_MOST),
        ),
    )


async def _ready(base: str) -> None:
    """Wait until every server has an outcome, and the start-up load is over."""
    async with ControlClient(RunningHub(url=base, token=TOKEN)) as hub:
        with anyio.fail_after(READY_SECONDS):
            while not (await hub.hub()).ready:  # noqa: ASYNC110 - as a readiness probe does
                await anyio.sleep(0.5)
        await anyio.sleep(2)
        states = {server.state for server in (await hub.servers()).servers}
        assert states == {"connected"}, states


async def _painted(base: str, rounds: int, seconds: float) -> tuple[Row, ...]:
    """The page in a browser: its first paint, all servers on it, and its CPU while nothing happens."""
    first: list[float] = []
    loaded: list[float] = []
    idle: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with browser(Path(folder)) as window:
            await window.cdp("Performance.enable", timeDomain="threadTicks")
            await window.go(base)
            await window.run(f"localStorage.setItem('holdfast.token', {json.dumps(TOKEN)})")
            for _ in range(rounds):
                await window.go("about:blank")
                await window.go(base)
                loaded.append(await window.until(_LOADED) / 1000)
                first.append(await window.until(_FIRST_PAINT) / 1000)
                before, begun = await _busy(window), time.monotonic()
                await anyio.sleep(seconds)
                idle.append((await _busy(window) - before) / (time.monotonic() - begun))
    return (
        Row(label="the page: first contentful paint", time=median(first)),
        Row(label="the page: every server is shown or counted", time=median(loaded)),
        Row(label="the page: CPU of its main thread, of each second", time=median(idle)),
    )


_LOADED = "document.querySelector('.server') && performance.now()"
_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


async def _busy(window: Browser) -> float:
    """The seconds that the page's main thread has worked."""
    metrics = (await window.cdp("Performance.getMetrics"))["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


async def _spent(base: str, pid: int, streams: int, seconds: float) -> float:
    """The CPU seconds of the hub per second, while this many streams are open."""
    async with anyio.create_task_group() as tasks:
        for _ in range(streams):
            await tasks.start(_watch, base)
        before, begun = _cpu(pid), time.monotonic()
        await anyio.sleep(seconds)
        spent = (_cpu(pid) - before) / (time.monotonic() - begun)
        tasks.cancel_scope.cancel()
    return spent


async def _watch(base: str, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    async with ControlClient(RunningHub(url=base, token=TOKEN)) as hub:
        async for event in hub.events():
            if event.name == "hello":
                await hub.servers()
                task_status.started()


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _served(urls: list[str]) -> Iterator[tuple[int, str]]:
    """The hub's process id and its address."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "mcp.json"
        definitions = {f"s{number}": {"type": "http", "url": url} for number, url in enumerate(urls)}
        # No refresh: 500 listings in one of the two windows would count as the cost of the streams.
        config.write_text(json.dumps({"mcpServers": definitions, "holdfast": {"refresh": "off"}}))
        command = [sys.executable, "-m", "holdfast", "serve", "--no-watch", "--port", "0", "--config", str(config)]
        path = os.pathsep.join([str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path, "XDG_STATE_HOME": folder, "HOLDFAST_CONTROL_TOKEN": TOKEN}
        with (
            (Path(folder) / "log").open("wb") as log,
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                said = _ENDPOINT.match(process.stdout.readline())
                assert said is not None, (Path(folder) / "log").read_text()
                yield process.pid, said[1]
            finally:
                process.terminate()
