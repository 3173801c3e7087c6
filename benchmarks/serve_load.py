"""``holdfast serve`` under many clients: no answer is lost or given to another client, and no resource grows.

The hub, the servers and the clients are three processes. A client of either era sends one call after the other over
one connection. Every call carries a unique text, and its answer must carry the same text.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2

from benchmarks.report import Check, Report, Row, median
from benchmarks.servers import fleet

__all__ = ["REQUIREMENTS", "measure"]

REQUIREMENTS = ("HUB-10",)

CLIENTS = 200
SERVERS = 20
SECONDS = 20.0
WARM_UP = 5.0
"""Memory and descriptors are counted after this, when every client has called."""

GROWTH = 1.2
"""How much more memory the hub may have at the end than after the warm-up."""

_MODERN = "2026-07-28"
_ROOT = Path(__file__).parents[1]
_ENDPOINT = re.compile(r"MCP endpoint: (\S+)")


@dataclass
class Tally:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    crossed: int = 0


@dataclass(frozen=True)
class Size:
    """The resources of the hub at one moment."""

    memory: int
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> Size:
        """Read them."""
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{pid}/fd").iterdir())))


def measure(
    *,
    rounds: int = 1,
    clients: int = CLIENTS,
    servers: int = SERVERS,
    seconds: float = SECONDS,
    warm_up: float = WARM_UP,
) -> Report:
    """Call without pause for this many seconds in each round."""
    tally = Tally()
    with fleet(servers) as running, _served(running.urls) as (pid, url):
        anyio.run(_calling, url, tally, clients, servers, warm_up)
        before, tally.seconds[:] = Size.of(pid), []
        started = time.monotonic()
        for _ in range(rounds):
            anyio.run(_calling, url, tally, clients, servers, seconds)
        lasted, after = time.monotonic() - started, Size.of(pid)
    rate = len(tally.seconds) / lasted
    return Report(
        name="serve_load",
        title=f"{clients} clients on {servers} servers for {lasted:.0f} s",
        requirements=REQUIREMENTS,
        rows=(_row(tally, rate),),
        checks=_checks(tally, before, after, clients),
    )


def _row(tally: Tally, rate: float) -> Row:
    # The confidence interval uses a part of the samples; it is narrow enough.
    some = tally.seconds[:: max(1, len(tally.seconds) // 2000)]
    last = sorted(tally.seconds)[int(len(tally.seconds) * 0.99)]
    note = f"{rate:.0f} calls/s, 99 % within {last * 1000:.0f} ms"
    return Row(label="one call", time=median(some), requests=len(tally.seconds), note=note)


def _checks(tally: Tally, before: Size, after: Size, clients: int) -> tuple[Check, ...]:
    memory = after.memory / before.memory
    opened = after.descriptors - before.descriptors
    return (
        Check(demand="no answer is lost", found=f"{tally.lost} of {len(tally.seconds)}", met=tally.lost == 0),
        Check(demand="no answer goes to another", found=str(tally.crossed), met=tally.crossed == 0),
        Check(demand=f"memory grows at most {GROWTH} times", found=f"{memory:.2f}", met=memory <= GROWTH),
        Check(demand="no descriptor stays for each client", found=f"{opened} more", met=opened < clients),
    )


@contextmanager
def _served(urls: list[str]) -> Iterator[tuple[int, str]]:
    """The hub's process id and its endpoint, once every server has an outcome."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "mcp.json"
        definitions = {f"s{number}": {"type": "http", "url": url} for number, url in enumerate(urls)}
        config.write_text(json.dumps({"mcpServers": definitions}))
        command = [sys.executable, "-m", "holdfast", "serve", "--no-watch", "--port", "0", "--config", str(config)]
        env = {**os.environ, "PYTHONPATH": str(_ROOT / "src"), "XDG_STATE_HOME": folder}
        with (
            (Path(folder) / "log").open("wb") as log,
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                said = _ENDPOINT.match(process.stdout.readline())
                assert said is not None, (Path(folder) / "log").read_text()
                _wait_ready(said[1].removesuffix("/mcp"))
                yield process.pid, said[1]
            finally:
                process.terminate()


def _wait_ready(base: str) -> None:
    deadline = time.monotonic() + 60
    while httpx2.get(f"{base}/readyz").status_code != 200:
        assert time.monotonic() < deadline, "the servers did not start"
        time.sleep(0.1)


async def _calling(url: str, tally: Tally, clients: int, servers: int, seconds: float) -> None:
    limits = httpx2.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx2.AsyncClient(limits=limits, timeout=60) as http, anyio.create_task_group() as tasks:
        until = time.monotonic() + seconds
        for number in range(clients):
            client = _Client(http, url, number, modern=number % 2 == 0)
            tasks.start_soon(client.work, tally, servers, until)


class _Client:
    """One caller. It does as little as possible, so that the hub is measured."""

    def __init__(self, http: httpx2.AsyncClient, url: str, number: int, *, modern: bool) -> None:
        self._http = http
        self._url = url
        self._number = number
        self._modern = modern
        self._ids = itertools.count(1)
        self._headers = {"Accept": "application/json, text/event-stream"}

    async def work(self, tally: Tally, servers: int, until: float) -> None:
        """Call until the deadline, then disconnect."""
        if not self._modern:
            await self._greet()
        while time.monotonic() < until:
            call = next(self._ids)
            words = f"client {self._number} call {call}."
            await self._count(tally, f"s{(self._number + call) % servers}__echo", words)
        if not self._modern:
            await self._http.delete(self._url, headers=self._headers)

    async def _count(self, tally: Tally, tool: str, words: str) -> None:
        began = time.monotonic()
        answer = await self._call(tool, words)
        tally.seconds.append(time.monotonic() - began)
        if words in answer:
            return
        # An answer that belongs to another caller is worse than none.
        if "client " in answer:
            tally.crossed += 1
        else:
            tally.lost += 1

    async def _greet(self) -> None:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "load", "version": "1"}}
        response = await self._post({"id": 0, "method": "initialize", "params": params})
        self._headers |= {"Mcp-Session-Id": response.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        await self._post({"method": "notifications/initialized"})

    async def _call(self, tool: str, words: str) -> str:
        params: dict[str, Any] = {"name": tool, "arguments": {"text": words}}
        more: dict[str, str] = {}
        if self._modern:
            params["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": _MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            more = {"MCP-Protocol-Version": _MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool}
        try:
            return (await self._post({"id": next(self._ids), "method": "tools/call", "params": params}, more)).text
        except httpx2.HTTPError as exc:
            return f"no answer: {exc!r}"

    async def _post(self, message: dict[str, Any], more: dict[str, str] | None = None) -> httpx2.Response:
        headers = {**self._headers, **(more or {})}
        return await self._http.post(self._url, json={"jsonrpc": "2.0", **message}, headers=headers)
