"""The end of ``holdfast serve`` under calls: each has its time, and what is in front of the hub is told."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.testing import Fault, HttpServer, StdioServer
from tests.cli.load import Load
from tests.cli.serve_process import Served, config, served
from tests.cli.test_serve import ready
from tests.cli.test_serve_workers import MODERN, at_each_worker
from tests.clients.raw import MODERN_META
from tests.harness.waiting import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requirement("FLEET-7", "FLEET-8"),
    pytest.mark.skipif(sys.platform != "linux", reason="the connections of a process are found by /proc"),
]

WAITS = """
import json, os, signal, sys, threading
go, note = threading.Event(), open(sys.argv[1], "w")
signal.signal(signal.SIGUSR1, lambda *_: go.set())

def say(message, result):
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)

def call(message):
    print(os.getpid(), file=note, flush=True)
    go.wait(60)
    say(message, {"content": [{"type": "text", "text": "waited"}]})

for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "waits", "version": "1"}}
        say(message, {"protocolVersion": message["params"]["protocolVersion"], **about})
    elif message.get("method") == "tools/list":
        say(message, {"tools": [{"name": "wait", "inputSchema": {"type": "object"}}]})
    elif message.get("method") == "tools/call":
        threading.Thread(target=call, args=[message]).start()
    elif "id" in message:
        say(message, {})
"""
"""A server whose calls end when it gets a signal."""


async def test_calls_at_every_worker_have_the_time_of_the_drain(tmp_path: Path) -> None:
    note = tmp_path / "calls"
    waits = {"command": sys.executable, "args": ["-I", "-S", "-c", WAITS, str(note)]}
    file = config(tmp_path / "mcp.json", waits=waits)
    async with served(tmp_path / "home", "--config", str(file), "--workers", "2", "--drain", "60") as hub:
        await ready(hub)
        async with at_each_worker(hub) as clients:
            answers: list[str] = []
            async with anyio.create_task_group() as tasks:
                for client in clients:
                    tasks.start_soon(called, client, answers)
                await until(lambda: len(started(note)) == len(clients), beside=tmp_path)
                hub.send(signal.SIGTERM)
                await hub.said("shutting down: new calls are refused", times=2)
                os.kill(started(note)[0], signal.SIGUSR1)
        assert answers == ["waited"] * len(clients)
        assert await hub.ended() == 0


def started(note: Path) -> list[int]:
    return [int(line) for line in note.read_text().splitlines()] if note.exists() else []


async def called(client: httpx2.AsyncClient, answers: list[str]) -> None:
    params = {"name": "waits__wait", "arguments": {}, "_meta": MODERN_META}
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {**MODERN, "mcp-method": "tools/call", "mcp-name": "waits__wait"}
    answer = await client.post("/mcp", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    said = answer.text.rpartition("data: ")[2] if "event-stream" in answer.headers["content-type"] else answer.text
    answers.append(json.loads(said)["result"]["content"][0]["text"])


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one process", "workers"])
async def test_a_balancer_is_told_503_until_the_last_call_has_its_answer(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    """HAProxy takes a port that refuses for a hub that is gone, and cuts the calls that wait for it."""
    async with HttpServer({"a": "one"}) as server, httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        file = config(tmp_path / "mcp.json", it=server.definition)
        arguments = ("--config", str(file), "--lame-duck", "0.2", "--drain", "60", *workers)
        async with served(tmp_path / "home", *arguments) as hub:
            await ready(hub)
            load = Load(hub.url, "it__a")
            await load.open_sessions(1)
            already = server.asked.count("tools/call")
            await server.fail(Fault.HANG)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(load.run, 10)
                await server.arrived("tools/call", already + 1)
                load.stop()
                hub.send(signal.SIGTERM)
                await hub.said("shutting down: new calls are refused", times=max(len(workers), 1))
                readyz = hub.url.replace("/mcp", "/readyz")
                assert [(await http.get(readyz)).status_code for _ in range(4)] == [503] * 4
                await server.heal()
                await load.until_all_answered()
            assert load.failed == []
            assert await hub.ended() == 0


@pytest.mark.long
async def test_calls_to_a_stdio_server_succeed_while_workers_take_over_from_workers(tmp_path: Path) -> None:
    with StdioServer({"b": "two"}) as child:
        file = config(tmp_path / "mcp.json", child=child.definition)
        arguments = ("--config", str(file), "--workers", "2", "--drain", "5")
        async with served(tmp_path / "home", *arguments) as old:
            await ready(old)
            load, kept = Load(old.url, "child__b"), Load(old.url, "child__b", keep_alive=True)
            async with anyio.create_task_group() as tasks:
                for one in (load, kept):
                    await one.open_sessions(4)
                    tasks.start_soon(one.run, 20)
                    await one.until_answered(10)
                async with served(tmp_path / "home", *arguments, "--takeover") as new:
                    assert await old.ended() == 0
                    await ended(new, load, kept)
    assert load.failed == kept.failed == []


async def ended(hub: Served, *loads: Load) -> None:
    for one in loads:
        await one.until_answered(20)
        one.stop()
        await one.until_all_answered()
    hub.send(signal.SIGTERM)
    assert await hub.ended() == 0
