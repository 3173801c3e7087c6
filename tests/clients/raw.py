"""HTTP by hand: the test chooses every header and byte of a request, and reads the whole answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.abc

__all__ = ["MODERN_META", "Answer", "discover", "initialize", "post", "send"]

# Longer than any answer to a request that asks for nothing slow.
_PATIENCE = 15.0
_MOST = 1 << 22

MODERN_META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""What every request of the modern era carries."""


@dataclass(frozen=True)
class Answer:
    """What came back; status 0 if the connection was closed without a word."""

    status: int
    head: str
    body: bytes


def initialize() -> dict[str, Any]:
    """The first request of a client of the handshake era."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


def discover() -> dict[str, Any]:
    """The first request of a client of the modern era."""
    return {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": MODERN_META}}


async def post(url: str, body: Any, **headers: str) -> Answer:
    """Post JSON, or bytes as they are, with the headers that a client sends unless others are given."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    usual = {
        "Host": urlsplit(url).netloc,
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Content-Length": str(len(content)),
    }
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return await send(url, "POST", usual | given, content)


async def send(
    url: str, method: str, headers: Mapping[str, str], body: bytes = b"", *, patience: float = _PATIENCE
) -> Answer:
    """Send one request, and read until the server closes or the patience is at an end."""
    address = urlsplit(url)
    target = f"{address.path}?{address.query}" if address.query else address.path
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1", "replace")
    assert address.hostname is not None
    assert address.port is not None
    received = bytearray()
    with anyio.move_on_after(patience):
        async with await anyio.connect_tcp(address.hostname, address.port) as stream:
            await _exchange(stream, head + body, received)
            return _parsed(received)
    assert received, f"no answer within {patience:g} s to {head!r}, {body[:500]!r}"
    return _parsed(received)


async def _exchange(stream: anyio.abc.SocketStream, request: bytes, received: bytearray) -> None:
    try:
        await stream.send(request)
        while len(received) < _MOST:
            received += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        # A server that refuses a request may close before all of it was sent.
        pass


def _parsed(received: bytes | bytearray) -> Answer:
    head, _, body = received.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    return Answer(status, head.decode("latin-1"), bytes(body))
