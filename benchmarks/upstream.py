"""A fast MCP server and a bare relay, for measuring what stands between a client and a server.

``python -m benchmarks.upstream serve`` answers both eras by hand over one ``asyncio.Protocol``.
``python -m benchmarks.upstream relay URL`` passes bytes on, with uvicorn, uvloop, httptools and aiohttp.
Both print their port.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from typing import Any

VERSION = "2025-11-25"
MODERN = "2026-07-28"


def _result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    can: dict[str, Any] = {"tools": {}}
    if method == "initialize":
        return {"protocolVersion": VERSION, "capabilities": can, "serverInfo": {"name": "upstream", "version": "1"}}
    if method == "server/discover":
        return {
            "supportedVersions": [MODERN],
            "capabilities": can,
            "ttlMs": 0,
            "cacheScope": "private",
            "resultType": "complete",
        }
    if method == "tools/list":
        number = int(sys.argv[3]) if len(sys.argv) > 3 else 1
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        tools = [{"name": "echo", "description": "Says it again.", "inputSchema": schema}]
        tools += [{"name": f"tool{n}", "description": "One of many.", "inputSchema": schema} for n in range(1, number)]
        return {"tools": tools, "ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
    if method == "tools/call":
        arguments = params.get("arguments") or {}
        text = "x" * arguments["size"] if "size" in arguments else arguments.get("text", "")
        return {"content": [{"type": "text", "text": text}], "resultType": "complete"}
    if method == "ping":
        return {}
    return None


class Upstream(asyncio.Protocol):
    """One connection; it reads where a request ends and answers it at once."""

    eras = "both"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport: Any = transport
        self._came = bytearray()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self._came += data
        while (end := self._came.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._came[:end]).lower()
            length = (
                int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0) if b"content-length" in head else 0
            )
            if len(self._came) < end + 4 + length:
                return
            body = bytes(self._came[end + 4 : end + 4 + length])
            del self._came[: end + 4 + length]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"post"):
            self._transport.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
            return
        message = json.loads(body)
        if "id" not in message:
            self._transport.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            return
        method = message["method"]
        unknown = self.eras == "legacy" and method == "server/discover"
        result = None if unknown else _result(method, message.get("params") or {})
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        answer |= (
            {"result": result} if result is not None else {"error": {"code": -32601, "message": "Method not found"}}
        )
        data = json.dumps(answer).encode()
        kind = b"application/json"
        if "--sse" in sys.argv:
            data, kind = b"event: message\ndata: " + data + b"\n\n", b"text/event-stream"
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(data), data)
        )


async def _serve(eras: str) -> None:
    Upstream.eras = eras
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _relay(url: str) -> None:
    aiohttp, uvicorn = importlib.import_module("aiohttp"), importlib.import_module("uvicorn")
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None), auto_decompress=False)
    dropped = {b"host", b"content-length", b"connection", b"transfer-encoding"}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"] if name not in dropped]
        async with session.request(scope["method"], url, data=body, headers=headers) as answer:
            kept = [(n.lower(), v) for n, v in answer.raw_headers if n.lower() not in dropped - {b"content-length"}]
            await send({"type": "http.response.start", "status": answer.status, "headers": kept})
            async for chunk in answer.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, port=0, log_level="critical", http="httptools", loop="uvloop", lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await task


if __name__ == "__main__":
    run = importlib.import_module("uvloop").run
    run(_serve(sys.argv[2] if len(sys.argv) > 2 else "both") if sys.argv[1] == "serve" else _relay(sys.argv[2]))
