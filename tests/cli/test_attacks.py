"""No stranger stops the hub, and no caller: attacks on a real process, by what they cost it (SEC-11, SEC-7).

Counted are the CPU time of the hub's processes, the calls that are served beside, and the memory at its peak. Each
attack runs on a hub as it is, behind TLS and with two workers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.attacked_hub import LARGE, AttackedHub, HubKind, attacked, call

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the cost of a process is read from /proc"),
]

BESIDE = 50
"""Calls that are made while an attack is under way."""

MOST_CPU = 4.0
"""Seconds of CPU for an attack, with the handshakes behind TLS; what stopped a hub took more than thirty."""

MIB = 1 << 20
CHART_BYTES = 1024 * MIB
"""What the chart gives a hub."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=["plain", "tls", "workers"])
async def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AttackedHub]:
    """One of each kind for all attacks, one after the other."""
    kind: HubKind = request.param
    async with attacked(kind, tmp_path_factory.mktemp(kind)) as one:
        yield one


_HEAD = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer wrong\r\n"
STREAMS = {
    "connect": b"CONNECT / HTTP/1.0\r\n\r\n" * 495,
    "connect behind a request": b"GET /x HTTP/1.1\r\nhost: evil\r\n\r\nCONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n" * 100,
    "upgrades": b"GET /x HTTP/1.1\r\nhost: evil\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n" * 100,
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9 * 1000,
    "empty lines": b"\r\n" * 32_000,
    "many headers": b"GET /mcp HTTP/1.1\r\n" + b"a: b\r\n" * 10_000 + b"\r\n",
    "a large header": b"GET /mcp HTTP/1.1\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
    "a long target": b"GET /" + b"%41" * 30_000 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    "an odd host": b"GET /mcp HTTP/1.1\r\nhost: " + "\u00e9\u4e2d.example".encode() * 1000 + b"\r\n\r\n",
    "tiny chunks": _HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n",
    "chunk extensions": _HEAD + b"transfer-encoding: chunked\r\n\r\n1;" + b"x" * 100_000,
    "trailers": _HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 10_000 + b"\r\n",
    "a compressed body": _HEAD + b"content-encoding: gzip\r\ncontent-length: 100000\r\n\r\n" + b"\x1f\x8b" * 50_000,
    "requests sent ahead": b"GET /mcp HTTP/1.1\r\nhost: evil\r\n\r\n" * 200,
    "a long credential": b"GET /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer "
    + b"e.y" * 20_000
    + b"\r\n\r\n",
}


async def _beside(hub: AttackedHub, *attack: asyncio.Task[object]) -> int:
    """The calls that are served while an attack goes on; then it is waited for."""
    served = await hub.calls(BESIDE)
    await asyncio.gather(*attack)
    return served


@pytest.mark.requirement("SEC-11", "SEC-7", "SEC-16")
@pytest.mark.parametrize("kind", STREAMS)
async def test_bytes_of_strangers_cost_little_and_calls_are_served_beside(hub: AttackedHub, kind: str) -> None:
    writes = 34
    before = hub.cpu()
    async with asyncio.timeout(60):
        await hub.calls(BESIDE)
        usual = hub.cpu() - before
        sent = [asyncio.ensure_future(hub.send(STREAMS[kind])) for _ in range(writes)]
        assert await _beside(hub, *sent) == BESIDE
    spent = hub.cpu() - before - 2 * usual
    assert spent < MOST_CPU, f"{spent:.2f} s of CPU for {writes} writes of {len(STREAMS[kind])} bytes"
    hub.close_connections()
    assert "Traceback" not in hub.hub.err


@pytest.mark.requirement("SEC-11")
async def test_wrong_credentials_cost_little_and_a_valid_one_is_served_beside(hub: AttackedHub) -> None:
    before = hub.cpu()
    async with asyncio.timeout(60):
        sent = [asyncio.ensure_future(hub.send(call("echo", token=f"guess-{number}"))) for number in range(100)]
        assert await _beside(hub, *sent) == BESIDE
    assert {one.result().split()[1] for one in sent} == {b"401"}
    assert hub.cpu() - before < MOST_CPU
    hub.close_connections()


@pytest.mark.requirement("SEC-11")
async def test_slow_and_silent_strangers_hold_no_one_up(hub: AttackedHub) -> None:
    """Heads and bodies that do not go on, streams that were begun and left, connections that are reset."""
    hub.forget_peak()
    before = hub.cpu()
    begun = (b"", b"GET /mcp", _HEAD, _HEAD + b"content-length: 1000000\r\n\r\n" + b"x" * 100_000)
    async with asyncio.timeout(60):
        for number in range(200):
            _, writer = await hub.connect()
            writer.write(begun[number % 4])
            if number % 10 == 9:
                writer.transport.abort()
        assert await hub.calls(BESIDE) == BESIDE
    assert hub.cpu() - before < MOST_CPU
    assert hub.peak_bytes() < CHART_BYTES // 2
    hub.close_connections()


@pytest.mark.requirement("SEC-11")
async def test_the_bodies_of_one_caller_are_refused_before_they_fill_the_memory(hub: AttackedHub) -> None:
    """Each is within the limits; what they would hold together is not."""
    hub.forget_peak()
    large = call("hold", "x" * LARGE)
    async with asyncio.timeout(90):
        sent = [asyncio.ensure_future(hub.send(large)) for _ in range(24)]
        answered: set[asyncio.Future[bytes]] = set()
        while len(answered) < 20:  # the others hold what there is, until their server answers
            done, _ = await asyncio.wait(set(sent) - answered, return_when=asyncio.FIRST_COMPLETED)
            answered |= done
        assert {one.result().split()[1] for one in answered} <= {b"429", b"503"}
        assert await hub.calls(BESIDE) == BESIDE, "small requests have room"
    assert hub.peak_bytes() < CHART_BYTES // 2
    for one in sent:
        one.cancel()
    hub.close_connections()


@pytest.mark.requirement("SEC-11", "HUB-17")
@pytest.mark.parametrize("results", [40, pytest.param(120, marks=pytest.mark.long)])
async def test_large_results_that_are_not_read_do_not_fill_the_memory(hub: AttackedHub, results: int) -> None:
    hub.forget_peak()
    async with asyncio.timeout(90):
        readers = []
        for _ in range(results):
            reader, writer = await hub.connect()
            writer.write(call("large"))
            readers.append(reader)
        begun = [asyncio.ensure_future(reader.read(1)) for reader in readers]
        await asyncio.gather(*begun, return_exceptions=True)  # each has its first byte, or was cut off
        assert await hub.calls(BESIDE) == BESIDE
    assert hub.peak_bytes() < CHART_BYTES
    hub.close_connections()


@pytest.mark.requirement("SEC-11", "SEC-16")
@pytest.mark.parametrize("begins", ["nothing", "part of a greeting", "a whole greeting"])
async def test_stalled_handshakes_delay_no_new_client_of_their_address(tmp_path: Path, begins: str) -> None:
    async with attacked("tls", tmp_path) as one, asyncio.timeout(60):
        sent = {"nothing": b"", "part of a greeting": b"\x16\x03\x01\x02\x00\x01", "a whole greeting": _greeting()}[
            begins
        ]
        held = []
        try:
            for _ in range(300):
                held.append(socket.create_connection(("127.0.0.1", one.port), timeout=20))
                held[-1].sendall(sent)
            assert await one.calls(5) == 5
            # Had it waited for the deadline of a handshake, none would be left.
            assert sum(map(_is_open, held)) >= 16
        finally:
            for connection in held:
                connection.close()


def _is_open(connection: socket.socket) -> bool:
    """Whether the hub has not closed it; it may have sent something."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _greeting() -> bytes:
    """The first bytes of a TLS client."""
    import ssl  # noqa: PLC0415 - for this alone

    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("the handshake ended by itself")
