"""What a server's bytes are read as depends on the bytes alone, not on how they were cut on their way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.wire.http.answer_parser import EXTENSION_BYTES, BadChunk, ChunkReader, Disconnected, NotHttp
from holdfast.wire.http.connection import PooledConnection
from holdfast.wire.http.pool import HttpOrigin, Pool

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-4", "SEC-7")]

STREAMS = 2_000
MANY_STREAMS = 50_000

ANSWERS = (
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n{"a": 1}',
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nx-sum: 1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall that comes",
    b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 3 + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\ncontent-length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\ncontent-length: \r\n\r\nok",
    b"\x15\x03\x01\x00\x02\x02\x46",
)
ODD = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b" ", b":", b";", b"\x80", b"\r\n x: y", b"content-length: 5\r\n",
    b"transfer-encoding: chunked\r\n", b"connection: close\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
    b"x: " + b"y" * 60_000, b"a: b\r\n" * 999, b";" + b"e" * 17_000, b" " * 50_000,
)  # fmt: skip


def _streams(chance: random.Random) -> Iterator[bytes]:
    while True:
        stream = b"".join(chance.choice(ANSWERS) for _ in range(chance.choice((1, 1, 1, 2))))
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            at = chance.randrange(len(stream) + 1)
            put = chance.choice((b"", chance.choice(ODD), bytes([chance.randrange(256)]), stream[at : at + 20]))
            stream = stream[:at] + put + stream[at + chance.choice((0, 0, 1, 2, 10)) :]
        yield stream


def _pieces(stream: bytes, chance: random.Random) -> list[bytes]:
    if len(stream) < 1_000 and chance.random() < 0.3:
        return [stream[at : at + 1] for at in range(len(stream))]
    cuts = sorted(chance.randrange(len(stream) + 1) for _ in range(chance.randint(1, 8)))
    return [piece for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True) if (piece := stream[start:end])]


class Wire(asyncio.Transport):
    """A transport that takes what is written, and says whether it was closed."""

    closed = False

    def write(self, data: Any) -> None:
        """It goes nowhere."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """All pieces are given anyway."""

    resume_reading = pause_reading

    def abort(self) -> None:
        self.closed = True

    close = abort


class Owner(Pool):
    """The pool of a connection: it notes that the connection is free."""

    def __init__(self) -> None:
        super().__init__(HttpOrigin("127.0.0.1", 1, tls=False))
        self.released = False

    def release(self, connection: PooledConnection) -> None:
        self.released = True


async def _read(pieces: list[bytes]) -> object:
    """What one request is answered with, and whether its connection may be used again."""
    owner, wire = Owner(), Wire()
    connection = PooledConnection(owner)
    connection.connection_made(wire)
    answer = connection.begin(b"GET / HTTP/1.1\r\n\r\n", b"")
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
    connection.connection_lost(None)
    try:
        response = await answer
        return response.status, dict(response.headers), await response.read(1 << 20), owner.released, wire.closed
    except (NotHttp, OSError) as exc:
        return type(exc).__name__, str(exc)


async def _differ(streams: int, seed: int) -> list[object]:
    chance = random.Random(seed)
    found: list[object] = []
    for _, stream in zip(range(streams), _streams(chance), strict=False):
        pieces = _pieces(stream, chance)
        whole, cut = await _read([stream]), await _read(pieces)
        if whole != cut:
            found.append((stream, [len(piece) for piece in pieces], whole, cut))
    return found


async def test_an_answer_is_read_the_same_however_it_is_cut() -> None:
    assert await _differ(STREAMS, seed=1) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 5))
async def test_many_more_answers_are_read_the_same_however_they_are_cut(seed: int) -> None:
    assert await _differ(MANY_STREAMS, seed) == []


AMBIGUOUS = (
    b"content-length: 1\r\ncontent-length: 2",
    b"content-length: 1\r\ntransfer-encoding: chunked",
    b"transfer-encoding: chunked\r\ncontent-length: 1",
    b"transfer-encoding: xchunked",
    b"transfer-encoding: chunked, identity",
    b"content-length: +1",
    b"content-length: 0x1",
    b"content-length:",
    b"content-length : 1",
    b"x: a\r\n b",
    b"x: a\ncontent-length: 1",
    b"x: \0",
    b"x\0: a",
    b"x y: a",
)


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["bytes", "whole"])
@pytest.mark.parametrize("head", AMBIGUOUS)
async def test_an_answer_that_another_reader_may_split_otherwise_is_refused(head: bytes, size: int) -> None:
    data = b"HTTP/1.1 200 OK\r\n%b\r\n\r\n1" % head
    found = await _read([data[at : at + size] for at in range(0, len(data), size)])
    assert isinstance(found, tuple)
    assert found[0] == "BrokenHttp", found


@pytest.mark.parametrize("banner", [b"SSH-2.0-OpenSSH_9.9\r\n", b"\r\n\r\n220 mail", b"HTTQ", b"http/1.1 200 OK"])
async def test_a_peer_that_does_not_begin_as_http_does_is_refused_at_its_first_bytes(banner: bytes) -> None:
    assert await _read([banner]) == ("NotHttp", "its answer does not begin as HTTP does")


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\n", b"HTTP/1.1 200 OK\r\nx: y\n\n"])
async def test_a_head_whose_end_would_never_come_is_refused_at_once(begin: bytes) -> None:
    found = await _read([begin])
    assert isinstance(found, tuple)
    assert found[0] == "BrokenHttp", found


async def test_what_follows_an_answer_belongs_to_no_other_request() -> None:
    sent = ANSWERS[0] + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother"
    found = await _read([sent])
    assert found == await _read([sent[:20], sent[20:]])
    assert found == (200, {"content-type": "application/json", "content-length": "8"}, b'{"a": 1}', True, True)


HEAD = b"HTTP/1.1 %d So\r\ncontent-length: 2\r\n\r\n"


@pytest.mark.parametrize(("status", "told"), [(200, False), (202, True), (403, True), (500, True)])
async def test_the_head_of_a_success_waits_for_its_body_where_that_is_wanted(status: int, told: bool) -> None:
    connection = PooledConnection(Owner())
    connection.connection_made(Wire())
    answer = connection.begin(b"POST / HTTP/1.1\r\n\r\n", b"", with_body=True)
    connection.data_received(HEAD % status)
    assert answer.done() is told
    connection.data_received(b"o")
    assert (await answer).status == status
    connection.data_received(b"k")
    assert await answer.result().read(10) == b"ok"


async def test_a_success_whose_body_never_comes_is_given_with_the_reason() -> None:
    connection = PooledConnection(Owner())
    connection.connection_made(Wire())
    answer = connection.begin(b"POST / HTTP/1.1\r\n\r\n", b"", with_body=True)
    connection.data_received(HEAD % 200)
    connection.connection_lost(None)
    with pytest.raises(Disconnected):
        await (await answer).read(10)


def _is_complete(chunks: bytes, cut: int) -> bool:
    """Whether a body is complete that comes in two parts."""
    reader = ChunkReader(most_trailers=3, most_bytes=30)
    for part in (chunks[:cut], chunks[cut:]):
        at = 0
        while at < len(part) and not reader.done:
            _, at = reader.take(part, at)
    return reader.done


@pytest.mark.parametrize("cut", [0, 1, -1, -2, -3])
@pytest.mark.parametrize(
    ("most", "more"),
    [
        (
            b"1;%b\r\nx\r\n0\r\n\r\n" % (b"e" * (EXTENSION_BYTES - 1)),
            b"1;%b\r\nx\r\n0\r\n\r\n" % (b"e" * EXTENSION_BYTES),
        ),
        (b"0\r\na: 1\r\nb: 2\r\nc: 3\r\n\r\n", b"0\r\na: 1\r\nb: 2\r\nc: 3\r\nd: 4\r\n\r\n"),
        (b"0\r\na: %b\r\n\r\n" % (b"1" * 25), b"0\r\na: %b\r\n\r\n" % (b"1" * 26)),
    ],
    ids=["extensions", "trailers", "bytes of trailers"],
)
def test_what_chunks_say_beside_the_body_is_read_up_to_a_bound(most: bytes, more: bytes, cut: int) -> None:
    assert _is_complete(most, cut)
    with pytest.raises(BadChunk):
        _is_complete(more, cut)
