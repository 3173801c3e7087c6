"""Servers that bend the rules: what can be understood works; what cannot is told at once, and truly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from holdfast.errors import HoldfastError
from holdfast.hub.hub import Hub

pytestmark = pytest.mark.anyio

STDIO = r"""
import json, sys, time
mode, out = sys.argv[1], sys.stdout.buffer
def say(data):
    out.write(data); out.flush()
if mode == "banner":
    say(b"*** Welcome ***\n" * 20)
for line in sys.stdin:
    asked = json.loads(line)
    number, method = asked.get("id"), asked["method"]
    if number is None:
        continue
    results = {
        "initialize": {
            "protocolVersion": "2025-03-26", "capabilities": {"tools": {}}, "serverInfo": {"name": "o", "version": "1"}
        },
        "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "ok"}]},
        "ping": {},
    }
    answer = {"result": results[method]} if method in results else {"error": {"code": -32601, "message": "no"}}
    message = {"jsonrpc": "2.0", "id": number, **answer}
    if method == "tools/call" and mode == "no id":
        del message["id"]
    if method == "tools/call" and mode == "error without id":
        message = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "could not read that"}}
    if method == "tools/call" and mode == "error as text":
        message = {"jsonrpc": "2.0", "id": number, "error": "it went wrong"}
    if mode == "float id":
        message["id"] = float(number)
    data = json.dumps(message).encode()
    if mode == "bom":
        data = b"\xef\xbb\xbf" + data
    if mode == "batch":
        data = b"[" + data + b"]"
    if mode == "pieces":
        for at in range(0, len(data), 9):
            say(data[at : at + 9])
        data = b""
    say(data + {"crlf": b"\r\n", "no end": b"", "twice": b"\n" + data + b"\n"}.get(mode, b"\n"))
"""


@asynccontextmanager
async def hub_of(definition: dict[str, Any]) -> AsyncIterator[Hub]:
    async with Hub.from_config({"mcpServers": {"odd": definition}}) as hub:
        assert await hub.ready(30)
        yield hub


async def called(hub: Hub) -> str:
    with anyio.fail_after(20):  # a call that waits out its timeout takes a minute
        try:
            return (await hub.call_tool("odd__t", {})).text
        except HoldfastError as error:
            return str(error)


def over_stdio(mode: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", "-c", STDIO, mode], **more}


@pytest.mark.requirement("HUB-1", "LIFE-28")
@pytest.mark.parametrize("mode", ["banner", "crlf", "bom", "batch", "pieces", "twice", "float id"])
async def test_a_process_that_can_be_understood_works(mode: str) -> None:
    async with hub_of(over_stdio(mode)) as hub:
        assert hub.server_health("odd").reason == ""
        assert await called(hub) == "ok"


@pytest.mark.requirement("LIFE-28")
@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("no id", "an answer without an id"),
        ("error without id", "could not read that"),
        ("error as text", "it went wrong"),
    ],
)
async def test_an_answer_that_names_no_request_ends_the_only_one_that_waits(mode: str, said: str) -> None:
    async with hub_of(over_stdio(mode)) as hub:
        assert said in await called(hub)
        assert hub.server_health("odd").generation == 1


@pytest.mark.requirement("LOAD-13")
async def test_a_process_that_ends_no_line_is_told_so() -> None:
    async with hub_of(over_stdio("no end", startTimeout="2s")) as hub:
        assert "it printed a line without an end" in hub.server_health("odd").reason


class OddHttp:
    """A server by hand; ``write`` answers one message."""

    def __init__(self, write: Callable[[asyncio.StreamWriter, bytes], bool]) -> None:
        self._write = write
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.calls = 0

    async def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._request(reader, writer):
                await writer.drain()
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = json.loads(body) if body else {}
        if asked.get("id") is None:
            writer.write(b"HTTP/1.1 %d So\r\nContent-Length: 0\r\n\r\n" % (202 if body else 405))
            return True
        self.calls += asked["method"] == "tools/call"
        return self._write(writer, _answer(asked))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _answer(asked: dict[str, Any]) -> bytes:
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-03-26",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "odd", "version": "1"},
        },
        "tools/list": {
            "tools": [{"name": "t", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}]
        },
        "tools/call": {"content": [{"type": "text", "text": "ok"}]},
    }
    method = asked["method"]
    said = {"result": results[method]} if method in results else {"error": {"code": -32601, "message": "no"}}
    return json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}).encode()


def _head(data: bytes, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 200 So\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode()


def _closes_without_a_word(writer: asyncio.StreamWriter, data: bytes) -> bool:
    """As a server whose keep-alive time is over just when the next request comes."""
    writer.write(_head(data) + data)
    return False


def _written(change: Callable[[bytes], bytes], kind: str = "application/json") -> Callable[..., bool]:
    def write(writer: asyncio.StreamWriter, data: bytes) -> bool:
        changed = change(data)
        writer.write(_head(changed, kind) + changed)
        return True

    return write


def _float_id(data: bytes) -> bytes:
    message = json.loads(data)
    return json.dumps({**message, "id": float(message["id"])}).encode()


@asynccontextmanager
async def odd_http(write: Callable[..., bool]) -> AsyncIterator[tuple[OddHttp, Hub]]:
    server = OddHttp(write)
    listener = await asyncio.start_server(server.accepted, "127.0.0.1", 0)
    try:
        port = listener.sockets[0].getsockname()[1]
        async with hub_of({"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}) as hub:
            yield server, hub
    finally:
        listener.close()
        await server.end()


@pytest.mark.requirement("HUB-1")
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(_written(lambda data: b"\xef\xbb\xbf" + data), id="bom"),
        pytest.param(_written(lambda data: b"[" + data + b"]"), id="batch"),
        pytest.param(_written(_float_id), id="float id"),
        pytest.param(_written(lambda data: data, "Application/JSON;Charset=UTF-8"), id="charset"),
        pytest.param(_written(lambda data: b"data:" + data + b"\r\r", "text/event-stream; x=y"), id="events with CR"),
        pytest.param(
            _written(
                lambda data: b": hi\n\nretry: 1\nid: 4\n\nevent: ping\ndata: {}\n\ndata: " + data + b"\n\n",
                "text/event-stream",
            ),
            id="events with comments",
        ),
    ],
)
async def test_an_http_server_that_can_be_understood_works(write: Callable[..., bool]) -> None:
    async with odd_http(write) as (server, hub):
        assert hub.server_health("odd").reason == ""
        assert [await called(hub) for _ in range(3)] == ["ok"] * 3
        assert server.calls == 3


@pytest.mark.requirement("LIFE-16", "LOAD-8")
async def test_a_server_that_closes_each_connection_without_a_word_is_up_and_its_read_only_tool_works() -> None:
    async with odd_http(_closes_without_a_word) as (server, hub):
        assert hub.server_health("odd").status == "available"
        assert [await called(hub) for _ in range(10)] == ["ok"] * 10
        assert server.calls <= 11
