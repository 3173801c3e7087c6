"""Which HTTP client speaks to servers: CPU time per request and rate, one caller and sixteen (docs/adr/0015).

Run ``python -m benchmarks.http_clients``; a client that is not installed is left out.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from subprocess import PIPE, Popen
from typing import Any

ROUNDS = 5
REQUESTS = 2_000
BODY = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x" * 100}}}
).encode()
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
ANSWER = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "x" * 100}]}}).encode()

Ask = Callable[[], Awaitable[None]]


class _Upstream(asyncio.Protocol):
    """Answers every request at once; all that it reads is where one ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport: Any = transport
        self._came = b""

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self._came += data
        while b"\r\n\r\n" in self._came:
            head, _, rest = self._came.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            if len(rest) < length:
                return
            self._came = rest[length:]
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                % (len(ANSWER), ANSWER)
            )


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Upstream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _ours(port: int) -> Ask:
    http1 = importlib.import_module("holdfast.wire.http.pool")
    pool = http1.Pool(http1.HttpOrigin("127.0.0.1", port, tls=False))

    async def ask() -> None:
        response = await pool.request("POST", "/mcp", HEADERS.items(), BODY)
        assert await response.read(1 << 20) == ANSWER

    return ask


async def _httpx2(port: int) -> Ask:
    httpx2 = importlib.import_module("httpx2")
    client = httpx2.AsyncClient()

    async def ask() -> None:
        response = await client.post(f"http://127.0.0.1:{port}/mcp", content=BODY, headers=HEADERS)
        assert response.content == ANSWER

    return ask


async def _aiohttp(port: int) -> Ask:
    aiohttp = importlib.import_module("aiohttp")
    session = aiohttp.ClientSession()

    async def ask() -> None:
        async with session.post(f"http://127.0.0.1:{port}/mcp", data=BODY, headers=HEADERS) as response:
            assert await response.read() == ANSWER

    return ask


async def _pyreqwest(port: int) -> Ask:
    builder = importlib.import_module("pyreqwest.client").ClientBuilder
    client = builder().build()

    async def ask() -> None:
        response = await client.post(f"http://127.0.0.1:{port}/mcp").headers(HEADERS).body_bytes(BODY).build().send()
        assert bytes(await response.bytes()) == ANSWER

    return ask


async def _rnet(port: int) -> Ask:
    client = importlib.import_module("rnet").Client()

    async def ask() -> None:
        response = await client.post(f"http://127.0.0.1:{port}/mcp", headers=HEADERS, body=BODY)
        assert await response.bytes() == ANSWER

    return ask


async def _primp(port: int) -> Ask:
    client = importlib.import_module("primp").AsyncClient()

    async def ask() -> None:
        response = await client.post(f"http://127.0.0.1:{port}/mcp", headers=HEADERS, content=BODY)
        assert response.content == ANSWER

    return ask


CLIENTS = {
    "own connection": ("httptools", _ours),
    "httpx2": ("httpx2", _httpx2),
    "aiohttp": ("aiohttp", _aiohttp),
    "pyreqwest": ("pyreqwest", _pyreqwest),
    "rnet": ("rnet", _rnet),
    "primp": ("primp", _primp),
}


async def _round(ask: Ask, callers: int) -> tuple[float, float]:
    async def caller() -> None:
        for _ in range(REQUESTS // callers):
            await ask()

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    done = REQUESTS // callers * callers
    return (time.process_time() - cpu) / done * 1e6, done / (time.perf_counter() - wall)


async def _measure(port: int) -> None:
    asks = {
        name: await make(port)
        for name, (module, make) in CLIENTS.items()
        if importlib.util.find_spec(module) is not None
    }
    seen: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for ask in asks.values():
        await _round(ask, 16)
    for _ in range(ROUNDS):
        for name, ask in asks.items():
            for callers in (1, 16):
                seen.setdefault((name, callers), []).append(await _round(ask, callers))
    print("| client | CPU per request, one caller | sixteen | requests per second, one | sixteen |")
    print("|---|---|---|---|---|")
    for name in asks:
        one, many = seen[name, 1], seen[name, 16]
        cpu = [statistics.median(cpu for cpu, _ in rounds) for rounds in (one, many)]
        rate = [statistics.median(rate for _, rate in rounds) for rounds in (one, many)]
        print(f"| {name} | {cpu[0]:.0f} µs | {cpu[1]:.0f} µs | {rate[0]:,.0f} | {rate[1]:,.0f} |")


def main() -> None:
    """Measure all clients against one server, in turns."""
    uvloop = importlib.import_module("uvloop")
    if sys.argv[1:] == ["serve"]:
        uvloop.run(_serve())
    with Popen([sys.executable, "-m", "benchmarks.http_clients", "serve"], stdout=PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            uvloop.run(_measure(port))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
