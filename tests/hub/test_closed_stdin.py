"""A process that closes its stdin and lives on: calls that it has not read fail at once, others may be answered."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.config import load_config
from holdfast.errors import ConnectionClosed
from holdfast.hub.hub import Hub

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LIFE-16")]

# It reads byte by byte, so that the rest of its input stays in the pipe. The tool "deaf" waits for the next request,
# closes stdin without reading it and never answers. The tool "last" closes stdin and answers.
SERVER = r"""
import json, os, select, sys
def line():
    read = b""
    while not read.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit()
        read += byte
    return json.loads(read)
def answer(message, answer):
    os.write(1, json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode() + b"\n")
while True:
    message = line()
    method, tool = message.get("method"), message.get("params", {}).get("name")
    if "id" not in message:
        continue
    if method == "initialize":
        answer(message, {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                                    "serverInfo": {"name": "deaf", "version": "1"}}})
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("deaf", "last", "echo")]
        answer(message, {"result": {"tools": tools}})
    elif method == "tools/call":
        if tool == "deaf":
            select.select([0], [], [])
        if tool != "echo":
            os.close(0)
        if tool != "deaf":
            answer(message, {"result": {"content": [{"type": "text", "text": "heard"}]}})
        if tool != "echo":
            select.select([], [], [])
    else:
        answer(message, {"error": {"code": -32601, "message": "unknown"}})
"""


@asynccontextmanager
async def _hub(folder: Path) -> AsyncIterator[Hub]:
    program, file = folder / "server.py", folder / "mcp.json"
    program.write_text(SERVER)
    definition: dict[str, Any] = {"command": sys.executable, "args": [str(program)], "era": "legacy"}
    file.write_text(json.dumps({"mcpServers": {"a": definition}}))
    with anyio.fail_after(50):  # a call's own timeout is longer
        async with Hub(load_config(file)) as hub:
            assert await hub.ready(20)
            yield hub


async def test_a_call_that_was_not_read_fails_at_once_and_has_not_acted(tmp_path: Path) -> None:
    read: list[ConnectionClosed] = []

    async def read_before(hub: Hub) -> None:
        with pytest.raises(ConnectionClosed) as failed:
            await hub.call_tool("a__deaf")
        read.append(failed.value)

    async def unread(hub: Hub) -> None:
        while True:  # one that comes first is read and answered
            await hub.call_tool("a__echo")

    async with _hub(tmp_path) as hub, anyio.create_task_group() as tasks:
        tasks.start_soon(read_before, hub)
        with pytest.raises(ConnectionClosed) as failed:
            await unread(hub)
        assert "it closed its stdin" in failed.value.message
        assert not failed.value.uncertain
    assert read[0].uncertain


async def test_a_call_that_was_read_is_answered_and_the_process_is_replaced(tmp_path: Path) -> None:
    async with _hub(tmp_path) as hub:
        slot = hub.registry.slot("a")
        before = slot.health().generation
        assert (await hub.call_tool("a__last")).text == "heard"
        while slot.health().generation in (before, None):
            await slot.changed()
        assert (await hub.call_tool("a__echo")).text == "heard"
