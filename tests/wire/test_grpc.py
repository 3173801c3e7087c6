"""One gRPC method call over HTTP/2, against a peer that does what a test says: h2 writes its frames (SEC-14)."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import trustme
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame

from holdfast.wire import GrpcChannel, GrpcFailed, GrpcTarget, grpc
from holdfast.wire.grpc import LARGEST_ANSWER

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-14")]

METHOD = "/a.Service/Ask"
LONG = 30.0
"""Seconds that no test waits for."""


def framed(message: bytes, *, flag: bytes = b"\0") -> bytes:
    return flag + len(message).to_bytes(4, "big") + message


class Connection(asyncio.Protocol):
    """One connection at the peer; it notes the requests that came whole."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.requests: dict[int, tuple[dict[str, str], bytearray]] = {}
        self.sizes: list[int] = []
        """Of the frames of all requests."""
        self.resets: list[ErrorCodes | int | None] = []
        self._left: dict[int, tuple[bytes, list[tuple[str, str]]]] = {}
        self.lost = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._peer.connections.append(self)
        self.h2.local_settings.update(self._peer.settings)
        self.h2.local_settings.acknowledge()  # in force here from the beginning
        self.h2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self._peer.deaf:
            return
        for event in self.h2.receive_data(data):
            match event:
                case events.RequestReceived(stream_id=int(number)):
                    self.requests[number] = dict(event.headers), bytearray()  # type: ignore[arg-type]  # text, as asked for
                case events.DataReceived(stream_id=int(number)):
                    self.requests[number][1].extend(event.data)
                    self.sizes.append(len(event.data))
                    self.h2.acknowledge_received_data(event.flow_controlled_length, number)
                case events.StreamEnded(stream_id=int(number)):
                    self._peer.calls.append((self, number))
                    self._peer.came.set()
                    self._peer.asked(self, number)
                case events.WindowUpdated():
                    for number in [*self._left]:
                        self._go_on(number)
                case events.StreamReset():
                    self.resets.append(event.error_code)
                    self._peer.came.set()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def flush(self) -> None:
        self.transport.write(self.h2.data_to_send())

    def answer(self, number: int, body: bytes = framed(b"yes"), *, status: str = "200", grpc: str | None = "0") -> None:
        """An answer; what the client's windows do not allow now follows when they do."""
        self.h2.send_headers(number, [(":status", status)])
        self._left[number] = body, [("grpc-status", grpc)] if grpc is not None else [("x-none", "1")]
        self._go_on(number)
        self.flush()

    def _go_on(self, number: int) -> None:
        body, trailers = self._left.pop(number)
        while body and (size := self.h2.local_flow_control_window(number)):
            piece = body[: min(size, self.h2.max_outbound_frame_size)]
            self.h2.send_data(number, piece)
            body = body[len(piece) :]
        if body:
            self._left[number] = body, trailers
        else:
            self.h2.send_headers(number, trailers, end_stream=True)

    def leave(self, last: int) -> None:
        """Say that no request after this one is answered. h2 would send nothing after it."""
        self.transport.write(GoAwayFrame(last_stream_id=last).serialize())


class Peer:
    """A server of HTTP/2. ``asked`` is what it does with a whole request; at first it answers."""

    def __init__(self) -> None:
        self.settings: dict[SettingCodes | int, int] = {}
        self.asked: Callable[[Connection, int], None] = lambda connection, number: connection.answer(number)
        self.deaf = False
        self.connections: list[Connection] = []
        self.calls: list[tuple[Connection, int]] = []
        self.came = asyncio.Event()

    async def has(self, so_many: int) -> None:
        """Wait for so many whole requests."""
        await self.until(lambda: len(self.calls) >= so_many)

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(LONG):
            while not condition():
                self.came.clear()
                await self.came.wait()


@asynccontextmanager
async def peer_with(**settings: int) -> AsyncIterator[tuple[Peer, GrpcChannel]]:
    """A peer at a port of its own, and a channel to it."""
    async with listening(Peer()) as (peer, port):
        peer.settings |= {SettingCodes[name.upper()]: value for name, value in settings.items()}
        async with channel_to(GrpcTarget(host="127.0.0.1", port=port)) as channel:
            yield peer, channel


@asynccontextmanager
async def listening(peer: Peer, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Peer, int]]:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(peer), "127.0.0.1", 0, ssl=tls)
    try:
        yield peer, server.sockets[0].getsockname()[1]
    finally:
        for connection in peer.connections:
            connection.transport.abort()
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def channel_to(target: GrpcTarget) -> AsyncIterator[GrpcChannel]:
    channel = GrpcChannel(target)
    try:
        yield channel
    finally:
        channel.close()
        await anyio.lowlevel.checkpoint()


async def failure(channel: GrpcChannel, within: float = LONG) -> str:
    with pytest.raises(GrpcFailed) as caught:
        await channel.unary(METHOD, b"may she?", within=within)
    assert str(caught.value) == caught.value.reason
    return caught.value.reason


# One call.


async def test_a_request_has_the_headers_of_grpc_and_one_message() -> None:
    async with peer_with() as (peer, channel):
        assert await channel.unary(METHOD, b"may she?", within=LONG) == b"yes"
        assert await channel.unary(METHOD, b"", within=200_000_000) == b"yes"
    (first, body), (second, empty) = peer.connections[0].requests.values()
    milliseconds = int(first.pop("grpc-timeout").removesuffix("m"))
    assert LONG * 900 < milliseconds <= LONG * 1_000
    assert second["grpc-timeout"] == "99999999m", "gRPC allows eight digits"
    assert first.pop(":authority") == second[":authority"]
    assert first == {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "holdfast",
    }
    assert [bytes(body), bytes(empty)] == [framed(b"may she?"), framed(b"")]


@pytest.mark.parametrize(
    ("target", "authority"),
    [
        (GrpcTarget(host="authz.example", port=9001), "authz.example:9001"),
        (GrpcTarget(host="::1", port=9001), "[::1]:9001"),
        (GrpcTarget(path="/run/authz.sock"), "localhost"),
    ],
)
def test_the_authority_is_the_host_and_the_port(target: GrpcTarget, authority: str) -> None:
    assert target.authority == authority


async def test_a_peer_at_a_unix_socket_answers(tmp_path: Path) -> None:
    peer, path = Peer(), str(tmp_path / "s")
    server = await asyncio.get_running_loop().create_unix_server(lambda: Connection(peer), path)
    async with channel_to(GrpcTarget(path=path)) as channel:
        assert await channel.unary(METHOD, b"may she?", within=LONG) == b"yes"
        assert peer.connections[0].requests[1][0][":authority"] == "localhost"
    await peer.connections[0].lost.wait()
    server.close()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "its answer cannot be read"),
        (b"\0\0\0\0", "its answer cannot be read"),
        (framed(b"yes", flag=b"\1"), "its answer cannot be read"),
        (framed(b"yes")[:-1], "its answer cannot be read"),
        (framed(b"yes") * 2, "its answer cannot be read"),
        (b"\0\1\0\0\3yes", "its answer cannot be read"),
        (framed(b"x" * (LARGEST_ANSWER - 4)), "its answer is too large"),
        (framed(b"x" * LARGEST_ANSWER * 4), "its answer is too large"),
    ],
    ids=["nothing", "half a head", "compressed", "cut", "two", "a longer one", "too large", "much too large"],
)
async def test_an_answer_that_is_not_one_whole_message_is_none(body: bytes, reason: str) -> None:
    async with peer_with() as (peer, channel):
        peer.asked = lambda connection, number: connection.answer(number, body)
        assert await failure(channel) == reason
        peer.asked = lambda connection, number: connection.answer(number)
        assert await channel.unary(METHOD, b"", within=LONG) == b"yes"
        assert len(peer.connections) == 1, "the connection stays"


@pytest.mark.parametrize("message", [b"", b"x" * (LARGEST_ANSWER - 5)], ids=["empty", "the largest"])
async def test_an_answer_has_from_no_to_so_many_bytes(message: bytes) -> None:
    async with peer_with() as (peer, channel):
        peer.asked = lambda connection, number: connection.answer(number, framed(message))
        for _ in range(4):  # more than the first window of a connection: what was read gives its room back
            assert await channel.unary(METHOD, b"", within=LONG) == message


@pytest.mark.parametrize(
    ("status", "grpc", "reason"),
    [
        ("500", "0", "it answered HTTP 500"),
        ("200", "16", "gRPC status UNAUTHENTICATED"),
        ("200", "4", "timeout"),
        ("200", "17", "it does not speak gRPC"),
        ("200", "100", "it does not speak gRPC"),
        ("200", "9" * 5_000, "it does not speak gRPC"),
        ("200", "-1", "it does not speak gRPC"),
        ("200", None, "it does not speak gRPC"),
    ],
)
async def test_a_status_that_is_no_success_is_told_in_its_words(status: str, grpc: str | None, reason: str) -> None:
    async with peer_with() as (peer, channel):
        peer.asked = lambda connection, number: connection.answer(number, status=status, grpc=grpc)
        assert await failure(channel) == reason


# Several calls.


async def test_each_of_two_calls_gets_its_own_answer_in_any_order() -> None:
    async with peer_with() as (peer, channel):
        await channel.unary(METHOD, b"", within=LONG)
        peer.asked = lambda connection, number: None
        answers: dict[str, bytes] = {}

        async def ask(name: str) -> None:
            answers[name] = await channel.unary(METHOD, name.encode(), within=LONG)

        async with anyio.create_task_group() as tasks:
            for name in ("a", "b"):
                tasks.start_soon(ask, name)
            await peer.has(3)
            for connection, number in reversed(peer.calls[1:]):
                connection.answer(number, framed(b"to " + connection.requests[number][1][5:]))
    assert answers == {"a": b"to a", "b": b"to b"}


async def test_many_first_calls_share_one_connection() -> None:
    async with peer_with() as (peer, channel):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(lambda: channel.unary(METHOD, b"", within=LONG))
        assert len(peer.connections) == 1


async def test_a_call_waits_where_the_peer_allows_no_more_streams_and_one_that_is_given_up_harms_no_other() -> None:
    async with peer_with(max_concurrent_streams=1) as (peer, channel):
        await channel.unary(METHOD, b"", within=LONG)
        peer.asked = lambda connection, number: None
        async with anyio.create_task_group() as tasks:
            answers: list[bytes] = []

            async def ask() -> None:
                answers.append(await channel.unary(METHOD, b"", within=LONG))

            tasks.start_soon(ask)
            await peer.has(2)
            assert await failure(channel, within=0.05) == "timeout"
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert len(peer.calls) == 2, "the third one waits"
            peer.calls[1][0].answer(peer.calls[1][1])
            await peer.has(3)
            peer.calls[2][0].answer(peer.calls[2][1])
        assert (answers, len(peer.connections), peer.connections[0].resets) == ([b"yes", b"yes"], 1, [])


async def test_a_long_request_goes_out_in_the_pieces_that_the_peer_allows() -> None:
    async with peer_with(initial_window_size=1_000) as (peer, channel):
        await channel.unary(METHOD, b"", within=LONG)
        assert await channel.unary(METHOD, b"x" * 10_000, within=LONG) == b"yes"
        assert bytes(peer.connections[0].requests[3][1]) == framed(b"x" * 10_000)
        assert max(peer.connections[0].sizes) == 1_000


async def test_an_answer_may_come_before_all_of_the_request_went_out() -> None:
    async with peer_with(initial_window_size=10) as (peer, channel):
        await channel.unary(METHOD, b"", within=LONG)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: channel.unary(METHOD, b"x" * 100_000, within=LONG))
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(LONG):
                while 3 not in peer.connections[0].requests:
                    await anyio.wait_all_tasks_blocked()
            peer.connections[0].answer(3)


# A peer that fails.


async def test_a_call_without_an_answer_on_a_silent_connection_closes_it_and_the_next_one_dials() -> None:
    async with peer_with() as (peer, channel):
        await channel.unary(METHOD, b"", within=LONG)
        peer.deaf = True
        assert await failure(channel, within=0.05) == "timeout"
        with anyio.fail_after(LONG):
            await peer.connections[0].lost.wait()
        peer.deaf = False
        assert await channel.unary(METHOD, b"", within=LONG) == b"yes"
        assert len(peer.connections) == 2


async def test_a_call_without_an_answer_on_a_connection_that_lives_is_cancelled_at_the_peer_alone() -> None:
    async with peer_with() as (peer, channel):
        await channel.unary(METHOD, b"", within=LONG)

        def acknowledge(connection: Connection, number: int) -> None:
            connection.h2.ping(b"8 bytes!")

        peer.asked = acknowledge
        assert await failure(channel, within=0.3) == "timeout"
        await peer.until(lambda: peer.connections[0].resets)
        assert peer.connections[0].resets == [ErrorCodes.CANCEL]
        peer.asked = lambda connection, number: connection.answer(number)
        assert await channel.unary(METHOD, b"", within=LONG) == b"yes"
        assert len(peer.connections) == 1


@pytest.mark.parametrize(
    "junk", [b"\0\0\1\0\0\0\0\0\0x", b"\0\0\1\4\0\0\0\0\0x"], ids=["data of no stream", "settings that are cut"]
)
async def test_a_peer_that_breaks_the_rules_of_http2_is_left(junk: bytes) -> None:
    async with peer_with() as (peer, channel):
        await channel.unary(METHOD, b"", within=LONG)
        peer.asked = lambda connection, number: connection.transport.write(junk)
        assert await failure(channel) == "it does not speak gRPC"
        with anyio.fail_after(LONG):
            await peer.connections[1].lost.wait()
        peer.asked = lambda connection, number: connection.answer(number)
        assert await channel.unary(METHOD, b"", within=LONG) == b"yes"


@pytest.mark.parametrize("answers", [False, True])
async def test_a_call_at_a_peer_that_says_that_it_leaves_is_put_once_more(answers: bool) -> None:
    async with peer_with() as (peer, channel):
        await channel.unary(METHOD, b"", within=LONG)

        def leave(connection: Connection, number: int) -> None:
            peer.asked = lambda connection, number: connection.answer(number)
            connection.leave(number if answers else number - 2)
            if answers:
                connection.answer(number)

        peer.asked = leave
        assert await channel.unary(METHOD, b"", within=LONG) == b"yes"
        with anyio.fail_after(LONG):
            await peer.connections[0].lost.wait()
        assert await channel.unary(METHOD, b"", within=LONG) == b"yes"


async def test_a_request_that_was_reset_is_put_once_more_and_then_refused() -> None:
    async with peer_with() as (peer, channel):
        await channel.unary(METHOD, b"", within=LONG)

        def reset(connection: Connection, number: int) -> None:
            connection.h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)

        peer.asked = reset
        assert await failure(channel) == "it reset the request"
        assert len(peer.calls) == 3


async def test_a_channel_that_is_closed_ends_its_connection() -> None:
    async with peer_with() as (peer, channel):
        channel.close()  # there is none
        await channel.unary(METHOD, b"", within=LONG)
        channel.close()
        with anyio.fail_after(LONG):
            await peer.connections[0].lost.wait()


@pytest.mark.parametrize("protocols", [["h2"], []], ids=["h2", "none"])
async def test_a_peer_with_tls_speaks_http2_or_decides_nothing(protocols: list[str]) -> None:
    ca = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    ca.issue_cert("127.0.0.1").configure_cert(server)
    ca.configure_trust(client)
    if protocols:
        server.set_alpn_protocols(protocols)
    async with (
        listening(Peer(), server) as (peer, port),
        channel_to(GrpcTarget(host="127.0.0.1", port=port, tls=lambda: client)) as channel,
    ):
        if protocols:
            assert await channel.unary(METHOD, b"", within=LONG) == b"yes"
            assert peer.connections[0].requests[1][0][":scheme"] == "https"
        else:
            assert await failure(channel) == "it does not speak gRPC"
            assert peer.calls == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (OSError("no reason"), "no connection could be made"),
        (TimeoutError("the system gave it up"), "timeout"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "connection refused"),
        (OSError(errno.EHOSTUNREACH, "no way"), "its host cannot be reached"),
        (UnicodeError("no name"), "no connection could be made"),
        (ImportError("h2"), "the extra `authz` is not installed"),
    ],
    ids=["unknown", "late", "refused", "unreachable", "no name", "not installed"],
)
async def test_why_there_is_no_connection_is_told_in_a_few_words(
    fault: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dial(*_: object) -> None:
        raise fault

    monkeypatch.setattr(grpc, "dial", dial)
    async with channel_to(GrpcTarget(host="authz.example", port=9001)) as channel:
        assert await failure(channel) == reason


@pytest.mark.parametrize(
    ("left", "told"),
    [(0.25, b"250m"), (0.002, b"2m"), (0.0, b"1m"), (-5.0, b"1m"), (99_999.999, b"99999999m"), (1e9, b"99999999m")],
)
async def test_a_peer_is_told_how_long_its_answer_is_waited_for_in_milliseconds(left: float, told: bytes) -> None:
    made: Any = grpc._H2Connection(GrpcTarget(host="a.example", port=9001))
    made._loop = SimpleNamespace(time=lambda: 0.0)
    assert made._request_headers(METHOD, left) == (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":authority", b"a.example:9001"),
        (b":path", METHOD.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"holdfast"),
        (b"grpc-timeout", told),
    )


async def test_the_answer_to_one_who_has_left_is_passed_over() -> None:
    answer = asyncio.get_running_loop().create_future()
    call = grpc._GrpcCall(answer, 0.0)
    answer.cancel()
    call.fail(GrpcFailed("late"))
    call.end()
    assert answer.cancelled()
    kept = grpc._GrpcCall(asyncio.get_running_loop().create_future(), 0.0)
    kept.fail(GrpcFailed("first"))
    kept.fail(GrpcFailed("second"))
    kept.end()
    with pytest.raises(GrpcFailed) as failed:
        await kept.answer
    assert failed.value.reason == "first"
