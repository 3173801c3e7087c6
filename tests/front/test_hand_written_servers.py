"""Servers whose HTTP is written by hand: what the rules allow passes, and what breaks them is told as what it is."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from tests.endpoint.test_raw_answers import Client
from tests.harness.served_hub import front

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-1")]

JSON, EVENTS = "content-type: application/json", "content-type: text/event-stream"
LOG = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'


def written(body: bytes, *headers: str) -> bytes:
    lines = [*headers, f"content-length: {len(body)}"]
    return ("HTTP/1.1 200 OK\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode() + body


def chunked(body: bytes, *trailers: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\n{JSON}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return (
        head
        + b"%x;a=b\r\n%b\r\n0\r\n" % (len(body), body)
        + "".join(f"{line}\r\n" for line in trailers).encode()
        + b"\r\n"
    )


def events(*data: bytes) -> bytes:
    return written(b"".join(b"data: " + one + b"\n\n" for one in data), EVENTS)


PASSES: dict[str, Callable[[bytes], bytes]] = {
    "trailers": lambda said: chunked(said, "content-type: text/html", "mcp-session-id: forged"),
    "gzip": lambda said: written(gzip.compress(said[:9]) + gzip.compress(said[9:]), JSON, "content-encoding: gzip"),
    "zipped_events": lambda said: written(gzip.compress(b"data: " + said + b"\n\n"), EVENTS, "content-encoding: gzip"),
    "type_twice": lambda said: written(said, JSON, JSON),
    "batch": lambda said: written(b"[%b,%b]" % (LOG.encode(), said), JSON),
    "batch_event": lambda said: events(b"[%b,%b]" % (LOG.encode(), said)),
    "batches": lambda said: events(f"[{LOG},{LOG}]".encode(), b"[%b]" % said),
}
FAILS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "length_twice": (lambda said: written(said, JSON, f"content-length: {len(said)}"), "rules of HTTP"),
    "folded": (lambda said: written(said, JSON, "x: y\r\n z"), "rules of HTTP"),
    "brotli": (lambda said: written(said, JSON, "content-encoding: br"), "a form that was not asked for"),
    "other_batch": (lambda _: written(f"[{LOG},{LOG}]".encode(), JSON), "no JSON-RPC response"),
}


@asynccontextmanager
async def server() -> AsyncIterator[tuple[str, list[str]]]:
    """Its tools answer in the ways above; gives its URL and the tools that ran."""
    ran: list[str] = []
    forms = {**PASSES, **{name: form for name, (form, _) in FAILS.items()}}
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in forms]

    def answered(message: dict[str, Any]) -> bytes:
        method, said = message["method"], {"jsonrpc": "2.0", "id": message.get("id")}
        if "id" not in message:
            return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
        if method == "tools/call":
            ran.append(message["params"]["name"])
            result = {"content": [{"type": "text", "text": f"it was {ran[-1]}"}]}
            return forms[ran[-1]](json.dumps({**said, "result": result}).encode())
        about = {"protocolVersion": "2025-03-26", "serverInfo": {"name": "x", "version": "1"}}
        results = {
            "initialize": {**about, "capabilities": {"tools": {}, "logging": {}}},
            "tools/list": {"tools": tools},
        }
        body = {"result": results[method]} if method in results else {"error": {"code": -32601, "message": "no"}}
        return written(json.dumps({**said, **body}).encode(), JSON)

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
                message = json.loads(await reader.readexactly(int(length))) if length else None
                writer.write(answered(message) if message else b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(accepted, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp", ran


async def test_what_http_allows_passes_and_what_it_forbids_fails_its_own_call_with_the_reason() -> None:
    wrong: list[str] = []
    async with server() as (url, ran), front({"s": {"url": url}}) as hub, httpx2.AsyncClient(timeout=30) as http:
        client = Client(http, hub.one("s"), "modern")
        for name in PASSES:
            answer = await client.call(name)
            if f"it was {name}".encode() not in answer:
                wrong.append(f"{name}: {answer!r}")
        for name, (_, why) in FAILS.items():
            answer = await client.call(name)
            if why.encode() not in answer:
                wrong.append(f"{name}: {answer!r}")
            assert b"it was gzip" in await client.call("gzip"), "a failed call took the server with it"
        assert hub.hub.server_health("s").generation == 1
    assert not wrong, "\n".join(wrong)
    assert ran == [*PASSES, *(name for fails in FAILS for name in (fails, "gzip"))], "a call ran twice"
