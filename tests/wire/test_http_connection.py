from __future__ import annotations

import asyncio
import errno
import gzip
import socket
import ssl
import struct
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from holdfast.config import CallPolicy, Limits, ServerSpec
from holdfast.core import HttpStatus, NetworkFailure, NetworkFault, Redactor
from holdfast.wire import Bytes
from holdfast.wire.http import connection as http1, pool as dialing
from holdfast.wire.http.answer_parser import (
    HEAD_BYTES,
    INFLATED_BYTES,
    BadEncoding,
    BrokenHttp,
    Disconnected,
    NotHttp,
    append_piece,
)
from holdfast.wire.http.client import HttpPeer
from holdfast.wire.http.connection import Response, ServerEvents
from holdfast.wire.http.pool import ConnectFailed, HttpOrigin, Pool, Proxy, ProxyFailed, evidence_of
from tests.harness.waiting import came_true
from tests.peers.tls import Certificates

pytestmark = pytest.mark.anyio

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ZIPPED = gzip.compress(b"ok", mtime=0)
"""Without the time: each worker must give the test the same name."""
DEFLATED = zlib.compress(b"ok")
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def encoded(encoding: str, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        encoding.encode(),
        len(body),
        body,
    )


class Server:
    """Notes each connection and each request; a script says what is answered."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                body = await reader.readexactly(int(length)) if length else b""
                self.requests.append(head + body)
                answer = self.answers.pop(0)
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
                if b"connection: close" in answer:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def serving(handler: Handler, **more: Any) -> AsyncIterator[int]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0, **more)
    try:
        async with asyncio.timeout(20):
            yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def pool_to(handler: Handler, **more: Any) -> AsyncIterator[Pool]:
    async with serving(handler) as port:
        pool = Pool(HttpOrigin("127.0.0.1", port, tls=False), **more)
        try:
            yield pool
        finally:
            await pool.aclose()


async def post(pool: Pool, body: bytes = b"{}") -> bytes | bytearray | None:
    return await (await pool.request("POST", "/mcp", {"x-key": "v"}, body)).read(1 << 20)


async def test_requests_share_a_connection() -> None:
    server = Server(PLAIN, PLAIN, PLAIN)
    async with pool_to(server) as pool:
        assert [await post(pool) for _ in range(3)] == [b"ok"] * 3
    assert server.connections == 1
    assert server.requests[0].startswith(b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:")
    assert server.requests[0].endswith(b"\r\n\r\n{}")


async def test_as_many_connections_are_kept_as_calls_may_run_at_the_same_time() -> None:
    calls = CallPolicy().concurrency
    server = Server(*[PLAIN] * calls * 3)
    async with pool_to(server) as pool:
        for _ in range(2):
            await asyncio.gather(*(post(pool) for _ in range(calls)))
    assert server.connections == calls


@pytest.mark.parametrize("suspect", [0.0, 60.0], ids=["a look shows it", "the event loop has told it"])
async def test_a_connection_that_was_closed_while_idle_is_not_used(
    suspect: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "SUSPECT_SECONDS", suspect)
    server_closes = Server(PLAIN + b"", PLAIN)

    async def closes_after_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_closes.answers, rest = server_closes.answers[:1], server_closes.answers[1:]
        await server_closes(reader, writer)
        server_closes.answers = rest

    async with pool_to(closes_after_each) as pool:
        assert await post(pool) == b"ok"
        idle = pool._idle[0]
        while not idle.closed and (suspect or not http1._readable(idle.transport)):  # noqa: ASYNC110 - the kernel's matter
            await asyncio.sleep(0)
        assert await post(pool) == b"ok"
    assert server_closes.connections == 2
    assert len(server_closes.requests) == 2


@pytest.mark.requirement("LIFE-16")
async def test_no_connection_is_kept_to_a_peer_that_closed_a_kept_one_under_a_request() -> None:
    server = Server(PLAIN, None, PLAIN, PLAIN)
    async with pool_to(server) as pool:
        assert await post(pool) == b"ok"
        with pytest.raises(Disconnected):
            await post(pool)
        assert [await post(pool) for _ in range(2)] == [b"ok"] * 2
    assert server.connections == 3


async def test_a_connection_that_was_dialed_while_its_pool_closed_is_not_kept() -> None:
    server = Server(PLAIN, PLAIN)
    async with pool_to(server) as pool:
        await pool.aclose()
        assert [await post(pool) for _ in range(2)] == [b"ok"] * 2
    assert server.connections == 2


async def test_a_request_that_left_is_never_sent_again_when_its_connection_is_closed() -> None:
    server = Server(PLAIN, None, PLAIN)
    async with pool_to(server) as pool:
        assert await post(pool) == b"ok"
        with pytest.raises(Disconnected):
            await post(pool)
    assert len(server.requests) == 2


@pytest.mark.requirement("LIFE-16")
async def test_what_may_be_sent_twice_is_repeated_on_a_new_connection_and_once() -> None:
    server = Server(PLAIN, PLAIN, None, PLAIN)
    async with peer_to(server) as send:
        assert [*await asyncio.gather(send(), send())] == [b"ok", b"ok"]
        assert await send() == b"ok"
    assert (server.connections, len(server.requests)) == (3, 4), "the other one that was kept may be closed too"
    server = Server(PLAIN, None, None, PLAIN)
    async with peer_to(server) as send:
        assert await send() == b"ok"
        with pytest.raises(Disconnected):
            await send()
    assert len(server.requests) == 3


@asynccontextmanager
async def peer_to(handler: Handler) -> AsyncIterator[Callable[[], Awaitable[bytes | bytearray | None]]]:
    async with serving(handler) as port:
        spec = ServerSpec(id="a", transport="http", url=f"http://127.0.0.1:{port}/mcp")
        peer = HttpPeer(spec, Redactor())

        async def send() -> bytes | bytearray | None:
            return await (await peer.send("POST", peer.url, {}, b"{}", again=True)).read(100)

        try:
            yield send
        finally:
            await peer.aclose()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\nconnection: close\r\n\r\nok", Disconnected),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n5\r\nok", Disconnected),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\nconnection: close", NotHttp),
        (b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000 + b"\r\nconnection: close\r\n\r\n", NotHttp),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nconnection: close", NotHttp),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nno", BadEncoding),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nno", BadEncoding),
    ],
)
async def test_a_broken_answer_is_told_as_what_it_is(answer: bytes, error: type[Exception]) -> None:
    async with pool_to(Server(answer)) as pool:
        with pytest.raises(error):
            await post(pool)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 102 Wait\r\n\r\n" + PLAIN,
        encoded("gzip", ZIPPED),
        encoded("X-GZip", ZIPPED),
        encoded("identity, gzip", ZIPPED),
        encoded("gzip", b"".join(gzip.compress(part, mtime=0) for part in (b"o", b"", b"k"))),
        encoded("gzip", ZIPPED + bytes(20)),
        encoded("deflate", DEFLATED),
        encoded("deflate", DEFLATED[2:-4]),
    ],
)
async def test_an_answer_is_read_however_it_is_framed(answer: bytes) -> None:
    async def in_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for at in range(len(answer)):
            writer.write(answer[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    for server in (Server(answer), in_pieces):
        async with pool_to(server) as pool:
            assert await post(pool) == b"ok"


async def test_trailers_are_no_headers() -> None:
    trailers = b"content-type: text/html\r\nmcp-session-id: forged\r\ncontent-encoding: gzip\r\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    async with pool_to(Server(head + b'2;a="b"\r\nok\r\n0\r\n' + trailers + b"\r\n", PLAIN)) as pool:
        response = await pool.request("POST", "/", {}, b"")
        assert await response.read(100) == b"ok"
        assert response.headers == {"content-type": "application/json", "transfer-encoding": "chunked"}
        assert await post(pool) == b"ok"


@pytest.mark.requirement("SEC-4")
async def test_a_body_that_inflates_beyond_its_bound_is_never_inflated_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(bytes(50_000_000), 9, mtime=0)
    sizes: list[int] = []

    async def next_chunk(self: Response) -> bytes | None:
        chunk = await read(self)
        sizes.append(len(chunk or b""))
        return chunk

    read = Response.next_chunk
    monkeypatch.setattr(Response, "next_chunk", next_chunk)
    async with pool_to(Server(encoded("gzip", bomb), encoded("gzip", bomb))) as pool:
        assert await (await pool.request("POST", "/", {}, b"")).read(1_000_000) is None
        assert sum(sizes) < 2_000_000
        whole = await (await pool.request("POST", "/", {}, b"")).read(60_000_000)
    assert whole == bytes(50_000_000)
    assert max(sizes) <= INFLATED_BYTES


@pytest.mark.requirement("SEC-4")
async def test_a_body_over_its_bound_is_not_read_to_its_end() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            return

    async with pool_to(endless) as pool:
        response = await pool.request("GET", "/", {})
        assert await response.read(100_000) is None


async def test_a_slow_reader_holds_the_sender_up_and_not_our_memory() -> None:
    sent = 0

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 << 20))
        try:
            while sent < 64 << 20:
                writer.write(b"x" * 65536)
                sent += 65536
                await writer.drain()
        except ConnectionError:
            return

    async with pool_to(floods) as pool:
        response = await pool.request("GET", "/", {})
        connection = response._connection
        assert connection is not None
        await came_true(lambda: connection.flow.paused)
        assert response._size < 2 << 20
        assert sent < 32 << 20
        response.close()


async def test_a_cancelled_request_closes_its_connection_and_no_other() -> None:
    server = Server(PLAIN, PLAIN, PLAIN)
    begun = asyncio.Event()

    async def hangs_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not begun.is_set():
            begun.set()
            assert await reader.read() != b""
            writer.close()
            return
        await server(reader, writer)

    async with pool_to(hangs_once) as pool:
        hung = asyncio.create_task(post(pool))
        await begun.wait()
        assert await post(pool) == b"ok"
        hung.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hung
        assert await post(pool) == b"ok"
    assert server.connections == 1


async def test_many_callers_at_once_each_get_their_own_answer() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(length)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with pool_to(echo) as pool:

        async def caller(name: int) -> None:
            for turn in range(50):
                words = b"%d of %d" % (turn, name)
                assert await post(pool, words) == words

        await asyncio.gather(*(caller(name) for name in range(16)))
        assert len(pool._all) <= 16


async def test_a_port_that_nobody_listens_on_is_refused_with_its_errno() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        pool = Pool(HttpOrigin("127.0.0.1", free.getsockname()[1], tls=False))
        with pytest.raises(ConnectFailed) as caught:
            await post(pool)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


async def test_the_second_address_of_a_name_is_tried_when_the_first_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def addresses(host: str, port: int) -> list[str]:
        return ["203.0.113.1", "127.0.0.1"]

    loop: Any = asyncio.get_running_loop()
    real, given_up = loop.create_connection, asyncio.Event()

    async def connect(make: Any, address: str, *args: Any, **more: Any) -> Any:
        if address != "203.0.113.1":
            return await real(make, address, *args, **more)
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    monkeypatch.setattr(dialing, "_addresses", addresses)
    monkeypatch.setattr(dialing, "STAGGER_SECONDS", 0.01)
    monkeypatch.setattr(loop, "create_connection", connect)
    async with serving(Server(PLAIN)) as port:
        assert await post(Pool(HttpOrigin("name.example", port, tls=False))) == b"ok"
        await given_up.wait()


async def test_the_families_of_a_names_addresses_are_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.1", "192.0.2.1"]
    infos = [(socket.AF_INET6 if ":" in one else socket.AF_INET, 1, 6, "", (one, 80)) for one in found]

    async def resolve(*_: object, **__: object) -> list[Any]:
        return infos

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    tried = await dialing._addresses("name.example", 80)
    assert tried == ["2001:db8::1", "192.0.2.1", "2001:db8::2", "2001:db8::3"]


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
async def test_an_ipv6_address_is_reached_and_named_in_brackets() -> None:
    server = Server(PLAIN)
    listener = await asyncio.start_server(server, "::1", 0)
    async with listener, asyncio.timeout(20):
        port = listener.sockets[0].getsockname()[1]
        assert await post(Pool(HttpOrigin("::1", port, tls=False))) == b"ok"
    assert f"host: [::1]:{port}\r\n".encode() in server.requests[0]


async def test_every_address_failing_is_a_failure() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectFailed):
            await post(Pool(HttpOrigin("localhost", free.getsockname()[1], tls=False)))


async def test_a_plain_request_goes_to_a_proxy_whole() -> None:
    server = Server(PLAIN)
    async with serving(server) as port:
        proxy = Proxy("127.0.0.1", port, authorization="Basic dXNAZXI6cGFzcw==")
        assert await post(Pool(HttpOrigin("mcp.example", 80, tls=False), proxy=proxy)) == b"ok"
    assert server.requests[0].startswith(b"POST http://mcp.example/mcp HTTP/1.1\r\nhost: mcp.example\r\n")
    assert b"proxy-authorization: Basic dXNAZXI6cGFzcw==\r\n" in server.requests[0]


async def test_a_proxy_that_does_not_connect_us_says_so() -> None:
    server = Server(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    async with serving(server) as port:
        proxy = Proxy("127.0.0.1", port)
        with pytest.raises(ProxyFailed) as caught:
            await post(Pool(HttpOrigin("mcp.example", 443, tls=True), proxy=proxy))
    assert caught.value.evidence == HttpStatus(status=407)
    assert server.requests[0].startswith(b"CONNECT mcp.example:443 HTTP/1.1\r\n")


async def test_a_connection_that_a_proxy_refused_to_tunnel_is_free_for_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free: list[object] = []

    def release(self: Pool, connection: http1.PooledConnection) -> None:
        real(self, connection)
        free.append(self.free())

    real = Pool.release
    monkeypatch.setattr(Pool, "release", release)
    async with serving(Server(b"HTTP/1.1 407 No\r\ncontent-length: 0\r\n\r\n")) as port:
        with pytest.raises(ProxyFailed):
            await post(Pool(HttpOrigin("mcp.example", 443, tls=True), proxy=Proxy("127.0.0.1", port)))
    assert free == [None], "what is sent over it would reach the proxy in plain text"


async def test_a_proxy_that_resets_the_connection_is_at_fault_and_not_the_server() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with serving(reset) as port:
        with pytest.raises(ConnectFailed) as caught:
            await post(Pool(HttpOrigin("mcp.example", 443, tls=True), proxy=Proxy("127.0.0.1", port)))
    seen = evidence_of(caught.value, doing="")
    assert isinstance(seen, NetworkFailure)
    assert seen.fault is NetworkFault.PROXY_FAILED


async def test_answers_are_read_whole_in_pieces_and_with_more_behind_them() -> None:
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabcdef"
    pieces = [[whole], [whole], [whole[:45], whole[45:]], [whole[:20], whole[20:43], whole[43:]], [whole]]

    async def in_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in pieces:
            await reader.readuntil(b"{}")
            for piece in answer:
                writer.write(piece)
                await asyncio.sleep(0)
        await reader.readuntil(b"{}")
        writer.write(whole[:40] + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno")  # and what was not asked for
        writer.close()

    async with pool_to(in_pieces) as pool:
        assert [await post(pool) for _ in pieces] == [b"abcdef"] * len(pieces)
        assert await post(pool) == b"ab" + b"HTTP"
        assert not pool._idle or pool._idle[0].closed


LARGE = bytes(range(32, 127)) * 30_000


class LargeAnswers:
    """Answers with a large body in pieces, then with a small one on the same connection."""

    def __init__(self, *, cut: int | None = None) -> None:
        self.cut = cut
        self.connections = 0
        self.begun = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await reader.readuntil(b"{}")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(LARGE))
            for start in range(0, len(LARGE) if self.cut is None else self.cut, 300_007):
                writer.write(LARGE[start : start + 300_007])
                await writer.drain()
            self.begun.set()
            if self.cut is None:
                await reader.readuntil(b"{}")
                writer.write(PLAIN)
            if not self.cut:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


async def _large_then_small(tls: ssl.SSLContext | None = None, trusted: ssl.SSLContext | None = None) -> int:
    """How many connections a large answer and a small one took."""
    server = LargeAnswers()
    async with serving(server, ssl=tls) as port:
        pool = Pool(HttpOrigin("127.0.0.1", port, tls=tls is not None), tls=trusted)
        try:
            response = await pool.request("POST", "/mcp", {}, b"{}")
            assert await response.read(len(LARGE)) == LARGE
            assert await post(pool) == b"ok"
        finally:
            await pool.aclose()
    return server.connections


async def test_a_large_body_is_received_whole_and_its_connection_is_used_again() -> None:
    assert await _large_then_small() == 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_large_body_is_received_on_each_event_loop_and_over_tls(run: Callable[..., int]) -> None:
    certificates = Certificates()
    assert run(_large_then_small()) == 1
    assert run(_large_then_small(certificates.server_context(), certificates.client_context())) == 1


async def test_a_large_body_over_its_bound_is_not_received() -> None:
    async with pool_to(LargeAnswers()) as pool:
        response = await pool.request("POST", "/mcp", {}, b"{}")
        assert await response.read(len(LARGE) - 1) is None


@pytest.mark.requirement("SEC-4")
async def test_an_answer_that_says_it_is_over_the_bound_is_not_waited_for() -> None:
    left = asyncio.Event()

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 200001\r\n\r\nand the rest never comes")
        with suppress(ConnectionError):
            await reader.read()
        left.set()
        writer.close()

    async with pool_to(begin) as pool:
        response = await pool.request("POST", "/", {}, b"")
        assert await response.read(200_000) is None
        await left.wait()


async def test_the_bound_on_a_head_is_the_same_for_each_answer_of_a_connection() -> None:
    def answer(size: int) -> bytes:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: \r\n\r\n"
        return head.replace(b"x: ", b"x: " + b"y" * (size - len(head))) + b"ok"

    server = Server(answer(HEAD_BYTES), answer(HEAD_BYTES), answer(HEAD_BYTES + 1))
    async with pool_to(server) as pool:
        assert [await post(pool), await post(pool)] == [b"ok", b"ok"]
        with pytest.raises(BrokenHttp, match="too large"):
            await post(pool)
    assert server.connections == 1


async def test_a_large_body_that_is_cut_is_told_as_what_it_is() -> None:
    async with pool_to(LargeAnswers(cut=1_000_000)) as pool:
        response = await pool.request("POST", "/mcp", {}, b"{}")
        with pytest.raises(Disconnected):
            await response.read(len(LARGE))
        assert not pool._idle


async def test_a_caller_that_leaves_in_the_middle_of_a_large_body_closes_its_connection() -> None:
    server = LargeAnswers(cut=0)
    async with pool_to(server) as pool:
        response = await pool.request("POST", "/mcp", {}, b"{}")
        reading = asyncio.create_task(response.read(len(LARGE)))
        await server.begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        response.close()
        assert not pool._idle
        assert all(one.closed for one in pool._all)


@pytest.mark.requirement("SEC-4")
async def test_the_head_of_a_request_has_its_own_headers_and_length_also_where_a_mapping_was_changed() -> None:
    headers = {"x-token": "first"}
    pool = Pool(HttpOrigin("127.0.0.1", 80, tls=False))
    lines = b"host: 127.0.0.1\r\nx-token: first\r\n"
    assert pool.head("POST", "/a", headers, b"12") == b"POST /a HTTP/1.1\r\n" + lines + b"content-length: 2\r\n\r\n"
    assert pool.head("POST", "/a", headers, None) == b"POST /a HTTP/1.1\r\n" + lines + b"content-length: 0\r\n\r\n"
    assert pool.head("GET", "/a", headers, None) == b"GET /a HTTP/1.1\r\n" + lines + b"\r\n"
    headers["x-token"] = "second"
    assert b"x-token: second\r\n" in pool.head("GET", "/a", headers, None)


async def test_an_answer_in_tiny_chunks_is_kept_in_few_pieces() -> None:
    body = bytes(range(256)) * 400
    chunks = b"".join(b"2\r\n%b\r\n" % body[at : at + 2] for at in range(0, len(body), 2))
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    async with pool_to(Server(answer, answer)) as pool:
        response = await pool.request("POST", "/", {}, b"")
        response._read_ahead = 1 << 20  # as for a reader of the whole
        while not response.complete:  # noqa: ASYNC110 - the peer tells no one
            await asyncio.sleep(0)
        assert len(response._parts) < 100
        assert await response.read(1 << 20) == body
        again = await pool.request("POST", "/", {}, b"")
        pieces = []
        while (piece := await again.next_chunk()) is not None:
            pieces.append(piece)
    assert b"".join(pieces) == body
    assert {type(piece) for piece in pieces} == {bytes}


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("close", [b"", b"connection: close\r\n"])
@pytest.mark.parametrize("shuts", [False, True])
async def test_a_request_that_is_refused_before_it_is_sent_is_not_sent_to_its_end(close: bytes, shuts: bool) -> None:
    size, answered, taken = 32 << 20, asyncio.Event(), asyncio.Queue[int]()
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\n%bcontent-length: 0\r\n\r\n" % close)
        if shuts:
            writer.write_eof()
        await answered.wait()
        came = 0
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                came += len(piece)
        taken.put_nowait(came)
        writer.close()

    async with pool_to(refuses) as pool:
        response = await pool.request("POST", "/mcp", {}, bytes(size))
        assert response.status == 413
        assert await response.read(100) == b""
        answered.set()
        assert await taken.get() < size
    assert faults == []


@pytest.mark.requirement("SEC-11")
async def test_room_that_came_to_a_reader_who_has_left_is_given_back() -> None:
    room = http1.ReceiveRoom(100)
    await room.take("a", 100)
    waiting = asyncio.create_task(room.take("b", 100))
    await asyncio.sleep(0)
    room.give_back("a", 100)
    waiting.cancel()  # its turn has come, and it has not run yet
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert room.held == 0


@pytest.mark.requirement("SEC-11")
async def test_an_event_that_has_become_large_takes_room_until_it_is_complete() -> None:
    rest = asyncio.Event()

    async def streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: " + b"x" * 2 * http1.LARGE_BYTES)
        await writer.drain()
        await rest.wait()
        writer.write(b"\n\n")
        writer.close()

    async with pool_to(streams) as pool:
        events = ServerEvents(await pool.request("GET", "/", {}), Limits())
        reading = asyncio.create_task(events.next())
        await came_true(lambda: http1.receive_room().held > 0)
        rest.set()
        assert (event := await reading) is not None
        assert len(event.data) == 2 * http1.LARGE_BYTES
        assert await events.next() is None
        assert http1.receive_room().held == 0


async def test_what_came_of_a_large_body_before_its_reader_keeps_its_place() -> None:
    go = asyncio.Event()

    async def in_parts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(LARGE) + LARGE[:100])
        await writer.drain()
        await go.wait()
        writer.write(LARGE[100:5_300])
        await writer.drain()
        go.clear()
        await go.wait()
        writer.write(LARGE[5_300:])
        await writer.drain()
        writer.close()

    async with pool_to(in_parts) as pool:
        response = await pool.request("POST", "/mcp", {}, b"{}")
        go.set()
        await came_true(lambda: len(response._parts) == 2)
        go.set()
        assert await response.read(len(LARGE)) == LARGE


@pytest.mark.requirement("SEC-4")
def test_of_many_pieces_the_small_ones_are_joined_up_to_a_bound() -> None:
    pieces = deque[Bytes]()
    for _ in range(200_000):
        append_piece(pieces, b"x")
    append_piece(pieces, b"y" * 4_096)
    append_piece(pieces, b"z")
    assert b"".join(pieces) == b"x" * 200_000 + b"y" * 4_096 + b"z"
    assert max(map(len, pieces)) == 64 * 1024
    assert len(pieces) < 100


@pytest.mark.requirement("LOAD-2")
@pytest.mark.parametrize("connecting", [False, True])
@pytest.mark.parametrize(
    ("failure", "fault", "stood"),
    [
        (ConnectionResetError(), NetworkFault.CLOSED, True),
        (ConnectionResetError(errno.ECONNRESET, "reset"), NetworkFault.RESET, None),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), NetworkFault.CLOSED, True),
        (ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed"), NetworkFault.CLOSED, True),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), NetworkFault.REFUSED, False),
    ],
    ids=["left in the handshake", "reset", "cut in TLS", "closed in TLS", "refused"],
)
def test_how_a_peer_left_is_told_apart(
    failure: Exception, fault: NetworkFault, stood: bool | None, connecting: bool
) -> None:
    expected = not connecting if stood is None else stood
    assert evidence_of(failure, doing="", connecting=connecting) == NetworkFailure(fault=fault, stood=expected)


@pytest.mark.parametrize("connecting", [False, True])
def test_a_fault_without_a_name_is_a_closed_connection_only_if_it_stood(connecting: bool) -> None:
    seen = evidence_of(OSError(), doing="", connecting=connecting)
    fault = NetworkFault.OTHER if connecting else NetworkFault.CLOSED
    assert seen == NetworkFailure(fault=fault, stood=not connecting)
