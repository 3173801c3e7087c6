"""A server whose answer to a call is written as the call says, byte for byte, over each transport."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

__all__ = ["LARGE", "TRANSPORTS", "Transport", "raw_server"]

Transport = Literal["stdio", "json", "events", "sse"]
TRANSPORTS: tuple[Transport, ...] = ("stdio", "json", "events", "sse")

STDIO = r"""
import json, sys
from tests.wire.raw_answers import answer
for line in sys.stdin:
    said = answer(json.loads(line))
    if said is not None:
        sys.stdout.buffer.write(said + b"\n"); sys.stdout.buffer.flush()
"""
DEEP = "[" * 50_000 + "]" * 50_000
LARGE = '"' + "y" * 300_000 + '"'
"""What ``$DEEP`` and ``$LARGE`` stand for: a client's own request would be too large with them."""

_TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("raw", "fine")]


def answer(message: dict[str, Any]) -> bytes | None:
    """The answer to one message; None for a notification."""
    method, number = message.get("method"), message.get("id")
    if number is None:
        return None
    if method == "tools/call" and message["params"]["name"] == "raw":
        line: str = message["params"]["arguments"]["line"]
        for mark, text in (("$ID", json.dumps(number)), ("$DEEP", DEEP), ("$LARGE", LARGE)):
            line = line.replace(mark, text)
        return line.encode("latin-1")
    results: dict[str, dict[str, Any]] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "raw", "version": "1"},
        },
        "tools/list": {"tools": _TOOLS},
        "tools/call": {"content": [{"type": "text", "text": "fine"}]},
        "ping": {},
    }
    refusal = {"error": {"code": -32601, "message": "no"}}
    said = {"result": results[str(method)]} if method in results else refusal
    return json.dumps({"jsonrpc": "2.0", "id": number, **said}).encode()


class _Http:
    """One connection after the other, request by request."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._stream: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await self._request(reader, writer)
        writer.close()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if head[0].startswith("GET") and self._transport == "sse":
            self._stream = writer
            writer.write(_head(200, "text/event-stream") + b"event: endpoint\ndata: /messages\n\n")
        elif not body:
            writer.write(_head(405, "text/plain", 0))
        else:
            self._post(answer(json.loads(body)), writer)
        await writer.drain()

    def _post(self, said: bytes | None, writer: asyncio.StreamWriter) -> None:
        if said is None or self._transport == "sse":
            writer.write(_head(202, "text/plain", 0))
            if said is not None and self._stream is not None:
                self._stream.write(_event(said))
        elif self._transport == "json":
            writer.write(_head(200, "application/json", len(said)) + said)
        else:
            event = _event(said)
            writer.write(_head(200, "text/event-stream", len(event)) + event)


def _event(said: bytes) -> bytes:
    return b": a comment\nid: 7\nevent: message\ndata: " + said + b"\n\n"


def _head(status: int, kind: str, length: int | None = None) -> bytes:
    sized = "" if length is None else f"Content-Length: {length}\r\n"
    return f"HTTP/1.1 {status} So\r\nContent-Type: {kind}\r\n{sized}\r\n".encode()


@asynccontextmanager
async def raw_server(transport: Transport) -> AsyncIterator[dict[str, Any]]:
    """Run it; gives its definition for an ``mcp.json``."""
    if transport == "stdio":
        path = {"PYTHONPATH": ":".join(sys.path)}
        yield {"command": sys.executable, "args": ["-c", STDIO], "env": path}
        return
    http = _Http(transport)
    listener = await asyncio.start_server(http.accepted, "127.0.0.1", 0, limit=1 << 24)
    port = listener.sockets[0].getsockname()[1]
    try:
        kind, path_ = ("sse", "sse") if transport == "sse" else ("http", "mcp")
        yield {"type": kind, "url": f"http://127.0.0.1:{port}/{path_}"}
    finally:
        listener.close()
        await http.end()
