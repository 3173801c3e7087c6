"""An answer depends on the bytes that a client sent, and not on how they were cut on their way."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.access import guard, peer_at
from holdfast.access.connections import ConnectionLimits
from holdfast.access.principals import TokenPolicy
from holdfast.front.app import create_app
from holdfast.front.listener import HttpConnection, HttpConnections
from holdfast.hub.hub import Hub

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-11", "SEC-7")]

STREAMS = 1_500
MANY_STREAMS = 40_000

_MEANT = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
_USUAL = b"host: localhost\r\ncontent-type: application/json\r\naccept: application/json\r\nauthorization: Bearer t\r\n"


def _post(message: object, *headers: bytes, version: bytes = b"1.1") -> bytes:
    body = json.dumps(message).encode()
    more = b"".join(one + b"\r\n" for one in headers)
    return b"POST /mcp HTTP/%b\r\n%b%bcontent-length: %d\r\n\r\n%b" % (version, _USUAL, more, len(body), body)


def _chunked(message: object, *headers: bytes, size: int = 7, version: bytes = b"1.1") -> bytes:
    body = json.dumps(message).encode()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    more = b"".join(one + b"\r\n" for one in headers)
    head = b"POST /mcp HTTP/%b\r\n%b%btransfer-encoding: chunked\r\n\r\n" % (version, _USUAL, more)
    return head + chunks + b"0\r\nx-trailer: 1\r\n\r\n"


REQUESTS = (
    _post(_INITIALIZE),
    _post(_MEANT),
    _post(_MEANT, b"mcp-session-id: none"),
    _post(_MEANT, b"expect: 100-continue"),
    _post(_MEANT, b"connection: upgrade", b"upgrade: h2c"),
    _post(_MEANT, b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-key: x"),
    _post(_MEANT, version=b"1.0"),
    _post(_MEANT, b"connection: keep-alive", version=b"1.0"),
    _post(_MEANT, b"authorization: Bearer wrong").replace(b"authorization: Bearer t\r\n", b""),
    _chunked(_INITIALIZE),
    _chunked(_MEANT, size=1),
    _chunked(_MEANT, b"expect: 100-continue"),
    _chunked(_MEANT, b"connection: keep-alive", version=b"1.0"),
    _chunked(_MEANT).replace(b"/mcp", b"/nowhere"),
    _chunked(_MEANT).replace(b"Bearer t", b"Bearer w"),
    b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET http://localhost/healthz HTTP/1.1\r\nhost: evil.example\r\n\r\n",
    b"GET http://evil.example/healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /mcp HTTP/1.0\r\n\r\n",
    b"DELETE /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nabc",
    b"CONNECT / HTTP/1.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\n" + _USUAL + b"content-length: \r\n\r\n",
)
"""Requests as clients and attackers write them."""

ODD = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b" ", b"\t", b":", b";", b",", b"0\r\n\r\n", b"\x80", b"\r\n x: y",
    b"content-length: 5\r\n", b"content-length: 0\r\n", b"transfer-encoding: chunked\r\n", b"connection: close\r\n",
    b"host: evil.example\r\n", b"expect: 100-continue\r\n", b"upgrade: h2c\r\nconnection: upgrade\r\n",
    b"x: " + b"y" * 40_000, b"z" * 30_000, b"a: b\r\n" * 499, b";" + b"e" * 17_000, b"CONNECT / HTTP/1.0\r\n\r\n",
)  # fmt: skip
"""What is put into a stream, or takes the place of some of its bytes."""


def _streams(chance: random.Random) -> Iterator[bytes]:
    while True:
        stream = b"".join(chance.choice(REQUESTS) for _ in range(chance.randint(1, 4)))
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            at = chance.randrange(len(stream) + 1)
            cut = chance.choice((0, 0, 1, 2, 10))
            put = chance.choice((b"", chance.choice(ODD), bytes([chance.randrange(256)]), stream[at : at + 40]))
            stream = stream[:at] + put + stream[at + cut :]
        yield stream


def _pieces(stream: bytes, chance: random.Random) -> list[bytes]:
    if len(stream) < 2_000 and chance.random() < 0.2:
        return [stream[at : at + 1] for at in range(len(stream))]
    cuts = sorted(chance.randrange(len(stream) + 1) for _ in range(chance.randint(1, 8)))
    return [piece for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True) if (piece := stream[start:end])]


class Wire(asyncio.Transport):
    """The transport of one connection: gives it the pieces when it reads, and keeps what it writes."""

    def __init__(self, make: Any, pieces: list[bytes]) -> None:
        super().__init__()
        self.written = b""
        self._pieces = pieces[::-1]
        self._reading, self._closing = True, False
        self.protocol: Any = make()
        self.protocol.connection_made(self)

    async def run(self) -> bytes:
        """All that was written when no more happens, apart from what differs from time to time."""
        idle, seen = 0, 0
        while idle < 40 and not self.protocol.out.lost:
            await asyncio.sleep(0)
            if self._pieces and self._reading and not self._closing:
                self.protocol.data_received(self._pieces.pop())
                idle = 0
            idle = idle + 1 if len(self.written) == seen else 0
            seen = len(self.written)
        closed = b"closed" if self._closing else b"open"
        self.abort()
        await asyncio.sleep(0)
        return re.sub(rb"(?m)^(date|mcp-session-id): .*\r\n", b"", self.written) + closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def writelines(self, data: Any) -> None:
        self.written += b"".join(data)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close


@asynccontextmanager
async def connections() -> AsyncIterator[Any]:
    """Makes connections of a hub that asks for a token."""
    hub = Hub.from_config({"mcpServers": {}})
    app = create_app(hub, tokens=TokenPolicy(tokens={"ada": "t"}))
    server = HttpConnections(app.state.endpoint)

    def made() -> HttpConnection:
        admission = ConnectionLimits().enter(peer_at(("127.0.0.1", 1), None))
        assert admission is not None
        return server.connection(admission)

    async with hub, app.router.lifespan_context(app):
        yield made


@pytest.fixture(autouse=True)
def wrong_credentials_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many of them in a minute are answered late: which of two streams is the first one would depend on the time."""
    for delay in ("DELAY_SECONDS", "LONG_DELAY_SECONDS"):
        monkeypatch.setattr(guard, delay, 0.0)


async def _differ(streams: int, seed: int) -> list[tuple[bytes, list[bytes], bytes, bytes]]:
    chance = random.Random(seed)
    found = []
    async with connections() as make:
        for _, stream in zip(range(streams), _streams(chance), strict=False):
            pieces = _pieces(stream, chance)
            whole, cut = await Wire(make, [stream]).run(), await Wire(make, pieces).run()
            if whole != cut:
                found.append((stream, pieces, whole, cut))
    return found


async def test_the_answers_to_a_stream_are_the_same_however_it_is_cut() -> None:
    assert await _differ(STREAMS, seed=1) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 5))
async def test_the_answers_to_many_more_streams_are_the_same_however_they_are_cut(seed: int) -> None:
    assert await _differ(MANY_STREAMS, seed) == []


async def _answers(*pieces: bytes) -> tuple[list[bytes], bool]:
    """The status of each answer, and whether the connection was closed."""
    async with connections() as make:
        written = await Wire(make, [*pieces]).run()
    return re.findall(rb"HTTP/1\.1 (\d+) ", written), written.endswith(b"closed")


async def test_an_empty_line_repeats_no_request() -> None:
    assert await _answers(REQUESTS[0], b"\r\n\r\n", b"\r\n\r\n") == ([b"200"], False)


async def test_an_empty_length_is_no_length_though_the_head_is_known() -> None:
    empty = re.sub(rb"content-length: \d+", b"content-length: ", REQUESTS[0])
    assert await _answers(REQUESTS[0], empty) == ([b"200", b"400"], True)


async def test_what_follows_a_connect_is_no_request() -> None:
    assert await _answers(b"CONNECT / HTTP/1.0\r\n\r\n" * 495) == ([b"501"], True)
    assert await _answers(REQUESTS[0] + b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n" + REQUESTS[0]) == (
        [b"200", b"501"],
        True,
    )


async def test_offers_of_another_protocol_in_a_row_are_answered_one_by_one() -> None:
    assert await _answers(REQUESTS[5] * 400) == ([b"400"] * 400, False)  # a ping without a session


async def test_chunks_on_http_1_0_close_the_connection() -> None:
    assert await _answers(_chunked(_INITIALIZE, b"connection: keep-alive", version=b"1.0") + REQUESTS[0]) == (
        [b"400"],
        True,
    )


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(
    "path", [b"/mcp", b"/servers/a/mcp", b"/healthz", b"/readyz", b"/metrics", b"/api/servers", b"/"]
)
@pytest.mark.parametrize("target", [b"http://evil.example", b"HTTPS://evil.example:1", b"http://evil.example."])
async def test_the_host_of_an_absolute_target_is_refused_on_every_path(path: bytes, target: bytes) -> None:
    """Its header names a host that is served."""
    sent = b"GET %b%b HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer t\r\n\r\n" % (target, path)
    assert await _answers(sent) == ([b"421"], False)
