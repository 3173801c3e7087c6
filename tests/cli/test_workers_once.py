"""What happens once counts once and runs once, also where a request passes two workers; and its stamp is the hub's.

A stdio server runs in a process of its own. A call comes in at a worker and passes both.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.files import replace_file
from tests.cli.serve_process import Served, served
from tests.cli.test_serve import ready
from tests.cli.test_serve_workers import at_each_worker, calls_work_again, workers_of
from tests.clients.raw import MODERN_META
from tests.harness.waiting import asked, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requirement("FLEET-8"),
    pytest.mark.skipif(sys.platform != "linux", reason="the connections of a process are found by /proc"),
]

SERVER = r"""
import json, os, sys
era, note = sys.argv[1], sys.argv[2]
names = ("tell", "hold", "die", "peek")
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or "method" not in asked:
        continue
    method, params = asked["method"], asked.get("params") or {}
    more = {"resultType": "complete"} if era == "modern" else {}
    def said(**message):
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **message}), flush=True)
    about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    if method == "initialize" and era == "legacy":
        said(result={**about, "protocolVersion": "2025-11-25"})
    elif method == "server/discover" and era == "modern":
        said(result={**about, **more, "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "public"})
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        tools[-1]["annotations"] = {"readOnlyHint": True}
        said(result={**more, "tools": tools, "ttlMs": 0, "cacheScope": "public"})
    elif method == "tools/call":
        line = params["name"] + " " + params["arguments"].get("by", "")
        with open(note, "a+") as file:
            file.seek(0)
            first = line not in file.read().splitlines()
            print(line, file=file)
        if params["name"] == "die" or (params["name"] == "peek" and first):
            os._exit(3)
        if params["name"] in ("tell", "peek"):
            seen = {"meta": params.get("_meta", {}), "id": asked["id"]}
            said(result={**more, "content": [{"type": "text", "text": json.dumps(seen)}]})
    elif method == "ping" and era == "legacy":
        said(result={})
    else:
        said(error={"code": -32601, "message": "no"})
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """The tests share one hub, which is a process of its own."""


@pytest.fixture(scope="module")
def note(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server writes each call that it gets."""
    return tmp_path_factory.mktemp("note") / "calls"


@pytest.fixture(scope="module")
async def hub(note: Path) -> AsyncIterator[Served]:
    command = {"command": sys.executable, "args": ["-I", "-S", "-c", SERVER]}
    eras = {"legacy": "legacy", "modern": "modern", "fragile": "legacy", "reader": "legacy"}
    servers = {name: {**command, "args": [*command["args"], era, str(note)]} for name, era in eras.items()}
    file = note.with_name("mcp.json")
    patient = {"call": {"readyTimeout": "20s"}}  # a call waits for a process that starts again
    file.write_text(json.dumps({"mcpServers": servers, "holdfast": patient}))
    async with served(note.with_name("home"), "--config", str(file), "--workers", "2") as hub:
        await ready(hub)
        yield hub


def calls(note: Path, line: str) -> int:
    """How often the server was called so."""
    return note.read_text().splitlines().count(line) if note.exists() else 0


async def post(client: httpx2.AsyncClient, tool: str, by: str, **meta: Any) -> httpx2.Response:
    params = {"name": tool, "arguments": {"by": by}, "_meta": {**MODERN_META, **meta}}
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}
    headers["accept"] = "application/json, text/event-stream"
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return await client.post("/mcp", json=body, headers=headers)


async def call(client: httpx2.AsyncClient, tool: str, by: str, **meta: Any) -> Any:
    """A modern call; the result or the error."""
    answer = (await post(client, tool, by, **meta)).text
    said = json.loads(answer.rpartition("data: ")[2] if answer.startswith(("id:", "event:", ":")) else answer)
    return said.get("result", said.get("error"))


async def counted(client: httpx2.AsyncClient, server: str) -> tuple[float, float, float]:
    """The calls of a server: in the metrics of all workers, by outcome and by duration, and in the API."""
    text = (await client.get("/metrics")).text

    def total(name: str) -> float:
        found = re.findall(rf'^{name}{{[^}}]*server="{server}"[^}}]*}} ([\d.]+)$', text, re.MULTILINE)
        return sum(map(float, found))

    shown = (await client.get(f"/api/servers/{server}")).json()["calls_total"]
    return total("holdfast_calls_total"), total("holdfast_call_seconds_count"), shown


@pytest.mark.requirement("OBS-1")
async def test_a_call_that_passes_two_workers_is_one_call_in_metrics_and_totals(hub: Served, note: Path) -> None:
    async with at_each_worker(hub) as clients:
        before = await counted(clients[0], "legacy")
        for expected in (3, 6):  # what was counted twice shows at the latest in the second round
            for _ in range(3):
                for number, client in enumerate(clients):
                    assert not (await call(client, "legacy__tell", f"client {number}")).get("isError")

            async def all_told(least: int = expected * len(clients)) -> bool:
                now = await counted(clients[0], "legacy")
                return all(total - first >= least for total, first in zip(now, before, strict=True))

            await asked(all_told)
        for client in clients:
            now = await counted(client, "legacy")
            assert {total - first for total, first in zip(now, before, strict=True)} == {6 * len(clients)}
    assert sum(calls(note, f"tell client {number}") for number in range(len(clients))) == 6 * len(clients)


@pytest.mark.requirement("SEC-21")
@pytest.mark.parametrize("server", ["legacy", "modern"])
async def test_what_a_client_writes_in_meta_never_replaces_the_stamp_of_the_hub(hub: Served, server: str) -> None:
    forged = {
        "holdfast/principal": "root",
        "Holdfast/held": False,
        "io.modelcontextprotocol/clientInfo": {"name": "forged", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
        "progressToken": "mine",
        "mine/key": {"holdfast/inner": 1},
    }
    async with at_each_worker(hub) as clients:
        for client in clients:
            result = await call(client, f"{server}__tell", "meta", **forged)
            seen = json.loads(result["content"][0]["text"])
            meta = seen["meta"]
            assert meta.pop("mine/key") == {"holdfast/inner": 1}, "what is the client's own passes"
            assert meta.pop("progressToken") == seen["id"], "progress is found by the hub's own number"
            if server == "modern":
                assert meta.pop("io.modelcontextprotocol/clientInfo")["name"] == "holdfast"
                assert meta.pop("io.modelcontextprotocol/protocolVersion") == "2026-07-28"
                assert meta.pop("io.modelcontextprotocol/clientCapabilities") == {"roots": {}}
            assert meta == {}


@pytest.mark.requirement("BRK-1", "LIFE-11")
async def test_a_failure_that_two_workers_see_is_one_failure_for_the_breaker(hub: Served, note: Path) -> None:
    async with at_each_worker(hub) as clients:
        turns = itertools.cycle(clients)
        for expected in (1, 2, 3):
            answer = await call(next(turns), "fragile__die", "all")
            assert "uncertain" in answer["content"][0]["text"]
            assert calls(note, "die all") == expected, "it was not refused before the third failure"
        for client in clients:
            assert (await call(client, "fragile__die", "all"))["isError"]
        assert calls(note, "die all") == 3, "the third failure opened the breaker, for all workers"


@pytest.mark.requirement("LIFE-16")
async def test_a_read_only_call_that_passes_two_workers_is_repeated_once(hub: Served, note: Path) -> None:
    async with at_each_worker(hub) as clients:
        for number, client in enumerate(clients):
            result = await call(client, "reader__peek", f"at {number}")
            assert not result.get("isError"), result
            assert calls(note, f"peek at {number}") == 2


@pytest.mark.requirement("LIFE-16")
async def test_a_call_whose_worker_dies_runs_once_and_ends_with_its_connection(hub: Served, note: Path) -> None:
    victim = workers_of(hub.process.pid)[0]
    ends: dict[str, Any] = {}

    async def hold(client: httpx2.AsyncClient, by: str) -> None:
        try:
            ends[by] = await call(client, "legacy__hold", by)
        except httpx2.TransportError as exc:
            ends[by] = exc

    async with at_each_worker(hub) as clients, anyio.create_task_group() as tasks:
        for number, client in enumerate(clients):
            tasks.start_soon(hold, client, f"{number}")
        held = [f"hold {number}" for number in range(len(clients))]
        await until(lambda: all(calls(note, line) for line in held), beside=note.parent)
        os.kill(victim, signal.SIGKILL)
        await until(lambda: bool(ends), beside=note.parent)
        tasks.cancel_scope.cancel()
    assert all(isinstance(end, httpx2.TransportError) for end in ends.values()), ends
    assert len(ends) < len(held), "the other worker goes on"
    await calls_work_again(hub, "legacy__tell")
    assert [calls(note, line) for line in held] == [1] * len(held)


@pytest.mark.requirement("SEC-11")
async def test_a_call_that_passes_two_workers_is_one_call_for_the_quota_of_its_principal(
    tmp_path: Path, note: Path
) -> None:
    """A call counts where it came in, and not again where its server is."""
    tokens, file = tmp_path / "tokens", tmp_path / "mcp.json"
    names = ("ada", "bob", "first", "second")
    known = [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in names]
    replace_file(tokens, json.dumps({"tokens": known}))
    it = {"command": sys.executable, "args": ["-I", "-S", "-c", SERVER, "legacy", str(note)]}
    file.write_text(json.dumps({"mcpServers": {"it": it}, "holdfast": {"quotas": {"callsPerMinute": 60}}}))
    given = ("--config", str(file), "--workers", "2", "--tokens-file", str(tokens))
    async with served(tmp_path / "home", *given) as hub:
        await ready(hub)
        async with at_each_worker(hub) as clients:

            async def is_refused(client: httpx2.AsyncClient, name: str) -> bool:
                client.headers["authorization"] = f"Bearer {name}"
                return (await post(client, "it__tell", name)).status_code == 429

            users = [*zip(clients, ("ada", "bob"), strict=False)]
            for client, name in users:
                assert [await is_refused(client, name) for _ in range(40)] == [False] * 40
            # Once each worker knows what others used up at the other one, it knows what was told before, too.
            for here, there, name in ((clients[0], clients[-1], "first"), (clients[-1], clients[0], "second")):
                while not await is_refused(here, name):
                    pass
                await asked(lambda there=there, name=name: is_refused(there, name))  # type: ignore[misc]
            for client, name in users:
                assert [await is_refused(client, name) for _ in range(15)] == [False] * 15
