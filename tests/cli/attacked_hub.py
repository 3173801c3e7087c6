"""A hub under attack, as a process: what it costs is counted, and calls are served beside.

``AttackedHub`` is ``holdfast serve`` with a token: plain, behind TLS or with two workers. Behind it is ``Upstream``, a
server that answers with a large result, or not at all.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from tests.cli.serve_process import Served, config, served
from tests.cli.test_serve_access import Authority
from tests.cli.test_serve_workers import descendants
from tests.clients.raw import MODERN_META

__all__ = ["TOKEN", "AttackedHub", "HubKind", "Upstream", "attacked", "call"]

TOKEN = "token-of-the-callers-0123456789"
LARGE = 15 << 20

HubKind: TypeAlias = Literal["plain", "tls", "workers"]

_TICKS = os.sysconf("SC_CLK_TCK")
_TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("hold", "large", "echo")]
_RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "up", "version": "1"},
    },
    "tools/list": {"tools": _TOOLS},
}
_LARGE_RESULT = b'{"content":[{"type":"text","text":"' + b"x" * LARGE + b'"}]}'


class Upstream:
    """A server over HTTP, in a thread: ``echo`` answers, ``large`` answers with 15 MiB, ``hold`` does not answer."""

    def __init__(self) -> None:
        self.url = ""
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                writer.write(await self._answer(head, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes, body: bytes) -> bytes:
        if not head.startswith(b"POST"):
            return b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n"
        if len(body) > 1 << 16:
            await self._over.wait()
        asked = json.loads(body)
        if "id" not in asked:
            return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
        tool = asked["params"]["name"] if asked["method"] == "tools/call" else ""
        if tool == "hold":
            await self._over.wait()
        if tool == "large":
            result = _LARGE_RESULT
        elif tool:
            result = b'{"content":[{"type":"text","text":"here"}]}'
        else:
            result = json.dumps(_RESULTS.get(asked["method"], {})).encode()
        data = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (asked["id"], result)
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data


def call(tool: str, text: str = "", *, token: str = TOKEN) -> bytes:
    """The request that calls a tool, of the modern era."""
    params = {"_meta": MODERN_META, "name": f"up__{tool}", "arguments": {"text": text}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    lines = (
        "POST /mcp HTTP/1.1",
        "host: 127.0.0.1",
        f"authorization: Bearer {token}",
        "content-type: application/json",
        "accept: application/json",
        "mcp-protocol-version: 2026-07-28",
        "mcp-method: tools/call",
        f"mcp-name: up__{tool}",
        f"content-length: {len(body)}",
    )
    return "\r\n".join([*lines, "", ""]).encode() + body


class AttackedHub:
    """A hub that runs, its attackers' connections, and what all of it costs."""

    def __init__(self, hub: Served, tls: ssl.SSLContext | None) -> None:
        self.hub = hub
        self.tls = tls
        self.port = int(hub.url.rpartition(":")[2].partition("/")[0])
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection, which is closed at the end."""
        name = "127.0.0.1" if self.tls is not None else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.tls, server_hostname=name, limit=1 << 16
        )
        self._writers.append(writer)
        return reader, writer

    async def send(self, data: bytes) -> bytes:
        """Send bytes on a connection of their own; the status line of the first answer, empty if there is none."""
        try:
            reader, writer = await self.connect()
            writer.write(data)
            await writer.drain()
            line = await reader.readline()
            writer.close()
        except OSError:
            return b""
        return line

    async def calls(self, count: int) -> int:
        """How many of so many calls, one after the other on one connection, are answered with their result."""
        reader, writer = await self.connect()
        served = 0
        for _ in range(count):
            writer.write(call("echo"))
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None, head
            served += b'"here"' in await reader.readexactly(int(length[1]))
        writer.close()
        return served

    def close_connections(self) -> None:
        """End what the attackers hold."""
        for writer in self._writers:
            with suppress(AttributeError):  # one that is closed already has no event loop any more
                writer.transport.abort()
        self._writers.clear()

    @property
    def processes(self) -> set[int]:
        """The hub, and its workers."""
        return {self.hub.process.pid, *descendants(self.hub.process.pid)}

    def cpu(self) -> float:
        """Seconds of CPU that it used so far."""
        ticks = 0
        for pid in self.processes:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / _TICKS

    def peak_bytes(self) -> int:
        """The most memory that its processes had, in sum, since the last ``forget_peak``."""
        return sum(_status(pid, "VmHWM") for pid in self.processes)

    def forget_peak(self) -> None:
        """Measure the peak from now on."""
        for pid in self.processes:
            with suppress(PermissionError):  # only root may do so; the peak since the start is as good
                Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status(pid: int, field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) << 10 if found is not None else 0


@asynccontextmanager
async def attacked(kind: HubKind, folder: Path) -> AsyncIterator[AttackedHub]:
    """Serve a hub of this kind; it has called its server when the block begins."""
    authority = Authority(folder)
    options = [*authority.options] if kind == "tls" else ["--workers", "2"] if kind == "workers" else []
    with Upstream() as upstream:
        file = config(folder / "mcp.json", up={"type": "http", "url": upstream.url})
        async with served(folder / "home", "--config", str(file), "--token", TOKEN, *options) as hub:
            one = AttackedHub(hub, authority.context() if kind == "tls" else None)
            try:
                async with asyncio.timeout(60):
                    assert await one.calls(1) == 1
                yield one
            finally:
                one.close_connections()
