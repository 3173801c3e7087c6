"""A fast MCP server and a bare relay, for measuring what stands between a client and a server.

``serve`` answers both eras by hand over one ``asyncio.Protocol``; ``stdio`` gives the same answers on stdin and stdout.
``relay URL`` passes bytes on with uvicorn, uvloop, httptools and aiohttp, and does nothing else.
``serve`` and ``relay`` print their ports. The file runs without Holdfast, as the child of another gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

VERSION = "2025-11-25"
MODERN = "2026-07-28"


class Answers:
    """The answer to each message, as bytes. What is asked often is made once."""

    def __init__(self, *, eras: str = "both", tools: int = 1) -> None:
        self._eras = eras
        self._tools = tools

    def to(self, message: dict[str, Any]) -> Iterator[bytes]:
        """The messages that answer a request: its progress notices, then its result. None for a notification."""
        if "id" not in message:
            return
        params = message.get("params") or {}
        arguments = params.get("arguments") or {}
        token = (params.get("_meta") or {}).get("progressToken")
        if token is not None:
            yield from _notices(arguments.get("progress", 0), token)
        result = self._result(message["method"], arguments, modern=_STATED_VERSION in (params.get("_meta") or {}))
        kind = b"result" if result is not None else b"error"
        result = result or b'{"code":-32601,"message":"Method not found"}'
        yield b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (json.dumps(message["id"]).encode(), kind, result)

    def _result(self, method: str, arguments: dict[str, Any], *, modern: bool) -> bytes | None:
        if method == "tools/call":
            if "size" in arguments:
                return _sized(arguments["size"], modern)
            return _text(arguments.get("text", ""), modern)
        if method == "tools/list":
            return _listing(self._tools)
        unknown = (method == "server/discover" and self._eras == "legacy") or (
            method == "initialize" and self._eras == "modern"
        )
        return None if unknown else _FIXED.get(method)


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


_STATED_VERSION = "io.modelcontextprotocol/protocolVersion"
"""What a request of the modern era says in its ``_meta``; only such a one gets a result with a type."""

_FIXED = {
    "ping": b"{}",
    "initialize": _dumped(
        {
            "protocolVersion": VERSION,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "upstream", "version": "1"},
        }
    ),
    "server/discover": _dumped(
        {
            "supportedVersions": [MODERN],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "upstream", "version": "1"},
            "ttlMs": 0,
            "cacheScope": "private",
            "resultType": "complete",
        }
    ),
}


def _notices(count: int, token: str | int) -> Iterator[bytes]:
    for done in range(1, count + 1):
        params = {"progressToken": token, "progress": done, "total": count, "message": f"step {done}"}
        yield _dumped({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


def _text(text: str, modern: bool) -> bytes:
    kind = b',"resultType":"complete"' if modern else b""
    return b'{"content":[{"type":"text","text":%b}]%b}' % (json.dumps(text).encode(), kind)


@functools.lru_cache(maxsize=4)
def _sized(size: int, modern: bool) -> bytes:
    return _text("x" * size, modern)


@functools.lru_cache(maxsize=1)
def _listing(tools: int) -> bytes:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    listed = [{"name": "echo", "description": "Says it again.", "inputSchema": schema}]
    listed += [{"name": f"tool{n}", "description": "One of many.", "inputSchema": schema} for n in range(1, tools)]
    return _dumped({"tools": listed, "ttlMs": 0, "cacheScope": "private", "resultType": "complete"})


class Upstream(asyncio.Protocol):
    """One connection. It finds where a request ends, and answers at once."""

    def __init__(self, answers: Answers, *, stream: bool) -> None:
        self._answers = answers
        self._stream = stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport: Any = transport
        self._came = bytearray()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self._came += data
        while (end := self._came.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._came[:end]).lower()
            length = int(head.partition(b"\ncontent-length:")[2].partition(b"\r")[0] or 0)
            if len(self._came) < end + 4 + length:
                return
            body = bytes(self._came[end + 4 : end + 4 + length])
            del self._came[: end + 4 + length]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"post"):
            self._transport.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
            return
        messages = list(self._answers.to(json.loads(body)))
        if not messages:
            self._transport.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        elif len(messages) > 1:
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            self._send_events(iter(messages))
        else:
            kind, data = (
                (b"text/event-stream", _event(messages[0])) if self._stream else (b"application/json", messages[0])
            )
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(data))
            )
            self._transport.write(data)

    def _send_events(self, messages: Iterator[bytes]) -> None:
        """One event in each turn of the loop, so that each is a write of its own, as with a real tool."""
        if (message := next(messages, None)) is None:
            self._transport.write(b"0\r\n\r\n")
            return
        event = _event(message)
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        asyncio.get_running_loop().call_soon(self._send_events, messages)


def _event(message: bytes) -> bytes:
    return b"event: message\ndata: %b\n\n" % message


async def _serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    answers = Answers(eras=options.eras, tools=options.tools)
    servers = [
        await loop.create_server(lambda: Upstream(answers, stream=options.sse), "127.0.0.1", options.port)
        for _ in range(options.ports)
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.Event().wait()


def _stdio(options: argparse.Namespace) -> None:
    answers = Answers(eras=options.eras, tools=options.tools)
    for line in sys.stdin.buffer:
        for message in answers.to(json.loads(line)):
            data = memoryview(message + b"\n")
            while data:
                data = data[os.write(1, data) :]


async def _relay(options: argparse.Namespace) -> None:
    aiohttp, uvicorn = importlib.import_module("aiohttp"), importlib.import_module("uvicorn")
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(None), auto_decompress=False
    )
    dropped = {b"host", b"content-length", b"connection", b"transfer-encoding"}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"] if name not in dropped]
        async with session.request(scope["method"], options.url, data=body, headers=headers) as answer:
            kept = [(n.lower(), v) for n, v in answer.raw_headers if n.lower() not in dropped - {b"content-length"}]
            await send({"type": "http.response.start", "status": answer.status, "headers": kept})
            async for chunk in answer.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(
        app,
        port=0,
        log_level="critical",
        access_log=False,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        timeout_keep_alive=600,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    print(json.dumps([server.servers[0].sockets[0].getsockname()[1]]), flush=True)
    await task


def main(argv: Sequence[str]) -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser(prog="upstream")
    commands = parser.add_subparsers(dest="command", required=True)
    serve, stdio, relay = (commands.add_parser(name) for name in ("serve", "stdio", "relay"))
    for each in (serve, stdio):
        each.add_argument("--eras", choices=("both", "legacy", "modern"), default="both")
        each.add_argument("--tools", type=int, default=1)
    serve.add_argument("--sse", action="store_true", help="answer with an event stream")
    serve.add_argument("--ports", type=int, default=1, help="how many servers")
    serve.add_argument("--port", type=int, default=0)
    relay.add_argument("url")
    options = parser.parse_args(argv)
    if options.command == "stdio":
        _stdio(options)
    else:
        importlib.import_module("uvloop").run(_serve(options) if options.command == "serve" else _relay(options))


if __name__ == "__main__":
    main(sys.argv[1:])
