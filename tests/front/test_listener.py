"""HTTP as the hub serves it: what a connection may hold, how an answer is framed, and who is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as AsgiRequest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from holdfast.access.connections import ConnectionLimits
from holdfast.access.principals import LOCAL
from holdfast.access.quotas import Quotas
from holdfast.config import QuotaSettings
from holdfast.front import app, listener, requests
from holdfast.front.app import AppRequests
from holdfast.front.listener import Acceptor, HttpConnections
from holdfast.front.request_parser import RequestParser
from holdfast.front.requests import BodyBudget, Reply, Request
from holdfast.front.streams import Backlog
from holdfast.serve.listening import bind
from tests.front.loop_steps import LONGEST_STEP, measured_loop
from tests.harness.waiting import all_blocked, came_true
from tests.harness.web import serving

pytestmark = pytest.mark.anyio


class Endpoint:
    """Serves ``/mcp`` by a function of the test."""

    retiring = False

    def __init__(self, serve: Any) -> None:
        self.serve = serve
        self.bodies = BodyBudget(Quotas())

        self.rest: Any = None

    async def admit(self, request: Request, reply: Reply) -> Any:
        return self if request.head.path == "/mcp" else self.rest


async def echo(request: Request, reply: Reply) -> None:
    reply.plain(200, await request.body(1 << 20))


@asynccontextmanager
async def connected(serve: Any = echo) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async def hello(request: AsgiRequest) -> PlainTextResponse:
        return PlainTextResponse((await request.body()).decode() or "hello")

    async def pieces(_: AsgiRequest) -> StreamingResponse:
        async def made() -> AsyncIterator[bytes]:
            yield b"one "
            yield b"two"

        return StreamingResponse(made(), media_type="text/plain")

    app = Starlette(routes=[Route("/hello", hello, methods=["GET", "POST", "HEAD"]), Route("/pieces", pieces)])
    app.state.endpoint = serve if isinstance(serve, Endpoint) else Endpoint(serve)
    app.state.endpoint.rest = AppRequests(app)
    async with serving(app) as base, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(base.rpartition(":")[2]))
        try:
            yield reader, writer
        finally:
            writer.close()


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        body = b""
        while (size := int(await reader.readuntil(b"\r\n"), 16)) > 0:
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        return head, body
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    return head, await reader.readexactly(length)


def post(body: bytes, path: str = "/mcp", *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


async def test_requests_of_both_kinds_share_a_connection_in_their_order() -> None:
    async with connected() as (reader, writer):
        writer.write(post(b"1") + post(b"2", "/hello") + post(b"3") + b"GET /pieces HTTP/1.1\r\nhost: x\r\n\r\n")
        assert [(await read_answer(reader))[1] for _ in range(4)] == [b"1", b"2", b"3", b"one two"]


async def test_a_head_that_comes_byte_by_byte_is_read_and_one_without_a_body_is_answered_without_one() -> None:
    async with connected() as (reader, writer):
        for byte in post(b"slow", "/hello"):
            writer.write(bytes([byte]))
            await writer.drain()
        assert (await read_answer(reader))[1] == b"slow"
        writer.write(b"HEAD /hello HTTP/1.1\r\nhost: x\r\n\r\n" + post(b"next"))
        assert b"content-length: 5" in await reader.readuntil(b"\r\n\r\n")
        head, body = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 200"), "nothing stands between the two heads"
        assert body == b"next"


async def test_an_offer_of_another_protocol_is_passed_over() -> None:
    async with connected() as (reader, writer):
        writer.write(post(b"body", "/mcp", "connection: Upgrade, HTTP2-Settings", "upgrade: h2c"))
        assert (await read_answer(reader))[1] == b"body"


async def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async with connected() as (reader, writer):
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert (await read_answer(reader))[1] == b"ok"


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /mcp HTTP/1.1\r\nx: " + b"y" * 70_000, b"431"),
        (post(b"x" * (2 << 20)), b"413"),
        (b"POST /mcp HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n", b"400"),
        (b"POST /mcp HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", b"501"),
        (b"POST /mcp HTTP/1.1\r\ncontent-length: 0\r\n\r\n", b"400"),
        (b"POST /mcp HTTP/1.1\r\nhost: x\r\nhost: x\r\ncontent-length: 0\r\n\r\n", b"400"),
    ],
)
async def test_what_is_no_request_or_too_large_is_refused(sent: bytes, status: bytes) -> None:
    async with connected() as (reader, writer):
        writer.write(sent)
        assert (await reader.readline()).split()[1] == status


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("at_first", [200, 30_000, 60_000])
async def test_a_body_that_no_reader_asked_for_counts_no_longer_than_its_request(at_first: int) -> None:
    """Else clients that are refused for their credential, and stay, would use up the room for the bodies of others."""

    async def refuse(_: Request, reply: Reply) -> None:
        reply.plain(401, b"{}")

    endpoint, sent = Endpoint(refuse), post(b"x" * 50_000)
    async with connected(endpoint) as (reader, writer):
        for _ in range(2):
            writer.write(sent[:at_first])
            assert (await reader.readline()).split()[1] == b"401"
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(2) == b"{}"
            writer.write(sent[at_first:])
            await came_true(lambda: endpoint.bodies.waiting == 0)
        writer.write(sent)
        assert (await read_answer(reader))[1] == b"{}", "the connection goes on"


@pytest.mark.parametrize("after", [b"nonsense\r\n\r\n", post(b"more")])
async def test_a_request_is_answered_though_bytes_follow_that_are_not_served(after: bytes) -> None:
    served: list[bytes] = []

    async def late(request: Request, reply: Reply) -> None:
        served.append(await request.body(1 << 20))
        await asyncio.sleep(0)
        assert not reply.out.lost
        reply.plain(200, served[-1])

    async with connected(late) as (reader, writer):
        last = b"more" in after
        writer.write(post(b"first", "/mcp", *(["connection: close"] if last else [])) + after)
        head, body = await read_answer(reader)
        assert (body, b"connection: close" in head) == (b"first", last)
        assert (await reader.read()).partition(b"\r\n")[0] == (b"" if last else b"HTTP/1.1 400 Bad Request")
    assert served == [b"first"]


@pytest.mark.parametrize("pieces", [1, 1000])
async def test_trailers_of_a_body_are_passed_over(pieces: int) -> None:
    body = b"3;size=3\r\nabc\r\n2\r\nde\r\n0\r\nx-sum: 1\r\nhost: evil\r\n\r\n"
    sent = b"POST /mcp HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + body + post(b"next")
    async with connected() as (reader, writer):
        for start in range(0, len(sent), len(sent) // pieces or 1):
            writer.write(sent[start : start + (len(sent) // pieces or 1)])
            await writer.drain()
        assert [(await read_answer(reader))[1] for _ in range(2)] == [b"abcde", b"next"]


@pytest.mark.requirement("SEC-4")
async def test_a_body_in_tiny_chunks_is_kept_in_few_pieces() -> None:
    kept: list[int] = []

    async def counted(request: Request, reply: Reply) -> None:
        while not request.complete:
            request._source.want_body()
            await request._source.wait(10)
        kept.append(len(request._parts))
        reply.plain(200, await request.body(1 << 20))

    body = bytes(range(256)) * 400
    sent = b"".join(b"2\r\n%b\r\n" % body[at : at + 2] for at in range(0, len(body), 2))
    async with connected(counted) as (reader, writer):
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + sent + b"0\r\n\r\n")
        assert (await read_answer(reader))[1] == body
    assert kept[0] < 100


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("sent", [b"", b"POST /mcp HTTP/1.1\r\nhost:", post(b"whole")[:-2]])
async def test_a_client_that_sends_no_complete_request_is_cut_off(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, limit in ((listener, "HEAD_SECONDS"), (requests, "BODY_SECONDS"), (listener, "IDLE_SECONDS")):
        monkeypatch.setattr(module, limit, 0.05)
    async with connected() as (reader, writer):
        writer.write(sent)
        await reader.read()
        assert reader.at_eof()


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("path", [b"/hello", b"/mcp"])
async def test_a_body_that_comes_byte_by_byte_is_cut_off_although_it_makes_progress(
    path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", 0.2)

    async def slow(request: Request, reply: Reply) -> None:
        reply.plain(200, await request.body(1 << 20, within=0.2))

    async with connected(slow) as (reader, writer):
        writer.write(b"POST " + path + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n")
        closed = asyncio.ensure_future(reader.read())
        while not closed.done():
            writer.write(b"x")
            await asyncio.wait([closed], timeout=0.01)
        cut = isinstance(closed.exception(), ConnectionResetError)  # what was sent last met a closed connection
        assert cut or b" 200 " not in closed.result()


@pytest.mark.requirement("FLEET-7")
async def test_a_body_that_is_still_coming_when_the_server_ends_is_read_and_answered() -> None:
    begun = asyncio.Event()

    async def serve(request: Request, reply: Reply) -> None:
        begun.set()
        await echo(request, reply)

    connections, listening = HttpConnections(Endpoint(serve)), bind("127.0.0.1", 0)
    acceptor = Acceptor(listening, connections.connection, limits=ConnectionLimits())
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(post(b"first, last")[:-4])
        await begun.wait()
        tasks.create_task(connections.close(10))
        await asyncio.sleep(0)  # it has begun to end
        writer.write(b"last" + post(b"too late"))
        head, body = await read_answer(reader)
        assert (b"connection: close" in head, body) == (True, b"first, last")
        assert await reader.read() == b"", "what was sent ahead is not served"
        acceptor.close()
        writer.close()


@pytest.mark.requirement("SEC-11")
async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "IDLE_SECONDS", 0.05)
    async with connected() as (reader, writer):
        writer.write(post(b"once"))
        assert (await read_answer(reader))[1] == b"once"
        assert await reader.read() == b""


async def test_an_answer_that_takes_long_becomes_a_stream_that_says_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "STREAM_AFTER_SECONDS", 0.02)
    monkeypatch.setattr(requests, "COMMENT_SECONDS", 0.02)
    go = asyncio.Event()

    async def slow(request: Request, reply: Reply) -> None:
        await request.body(100)
        reply.streams = True
        reply.wait_for_result()
        await go.wait()
        reply.result(b'{"a":1}')

    async with connected(slow) as (reader, writer):
        writer.write(post(b"{}"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-type: text/event-stream" in head
        await reader.readuntil(b": still here\n\n")
        await reader.readuntil(b": still here\n\n")
        go.set()
        rest = await reader.readuntil(b"0\r\n\r\n")
    assert b'event: message\ndata: {"a":1}\n\n' in rest


async def test_an_answer_is_plain_unless_something_precedes_it() -> None:
    async def serve(request: Request, reply: Reply) -> None:
        asked = json.loads(await request.body(100))
        reply.streams = True
        reply.wait_for_result()
        for number in range(asked):
            reply.event(b"%d" % number)
        reply.result(b'"done"')

    async with connected(serve) as (reader, writer):
        writer.write(post(b"0") + post(b"2"))
        head, plain = await read_answer(reader)
        assert (b"application/json" in head, plain) == (True, b'"done"')
        head, streamed = await read_answer(reader)
    assert b"text/event-stream" in head
    assert streamed == b'event: message\ndata: 0\n\nevent: message\ndata: 1\n\nevent: message\ndata: "done"\n\n'


async def test_a_client_that_leaves_is_noticed_without_a_task() -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def serve(request: Request, reply: Reply) -> None:
        with request.ending_with_client(left.set):
            begun.set()
            await left.wait()

    async with connected(serve) as (_, writer):
        writer.write(post(b""))
        await begun.wait()
        writer.close()
        await left.wait()


class Unread:
    """A reply of which so much is unread."""

    def __init__(self, unread: int, out: Unread | None = None, *, held: int = 0) -> None:
        self.unread, self.held = unread, max(unread, held)
        self.out = out or self
        self.lost = self.aborted = False

    def abort(self) -> None:
        self.aborted = self.out.lost = True


@pytest.mark.requirement("HUB-17")
def test_a_client_that_does_not_read_is_cut_off_at_its_own_bound() -> None:
    backlog, session, other = Backlog(per_session=100, most=1000), object(), object()
    first, second, third = Unread(150), Unread(20), Unread(90)
    for reply, owner in ((first, session), (third, other)):
        backlog.wrote(reply, owner)  # type: ignore[arg-type]  # as much of a reply as it needs
    assert not first.aborted, "one message is always sent"
    backlog.wrote(second, session)  # type: ignore[arg-type]
    assert (first.aborted, second.aborted, third.aborted) == (False, True, False)


@pytest.mark.requirement("HUB-17")
def test_large_results_on_one_connection_are_counted_once() -> None:
    backlog, session, connection = Backlog(per_session=100, most=100), object(), Unread(90)
    replies = [Unread(90, connection) for _ in range(3)]
    for reply in replies:
        backlog.wrote(reply, session)  # type: ignore[arg-type]
    assert [reply.aborted for reply in replies] == [False, False, False]


@pytest.mark.requirement("HUB-17", "SEC-11")
def test_a_client_that_has_read_most_of_a_large_answer_is_not_the_one_that_is_cut_off() -> None:
    backlog = Backlog(per_session=1000, most=200)
    replies = [Unread(10, held=90), Unread(80, held=90), Unread(20, held=90)]
    for reply in replies:
        backlog.wrote(reply, reply)  # type: ignore[arg-type]
    assert [reply.aborted for reply in replies] == [False, True, False]


@pytest.mark.requirement("HUB-17")
def test_all_clients_together_are_bounded_and_the_one_that_reads_least_is_cut_off() -> None:
    backlog = Backlog(per_session=1000, most=200)
    replies = [Unread(90), Unread(100), Unread(20)]
    for reply in replies:
        backlog.wrote(reply, object())  # type: ignore[arg-type]
    assert [reply.aborted for reply in replies] == [False, True, False]


@pytest.mark.requirement("HUB-2")
async def test_messages_that_are_sent_in_a_row_go_out_in_one_write_and_in_their_order() -> None:
    written: list[bytes] = []

    async def serve(request: Request, reply: Reply) -> None:
        out: Any = reply.out
        write = out.transport.write

        def noted(data: bytes) -> None:
            written.append(data)
            write(data)

        out.transport = Watched(out.transport, write=noted)
        await request.body(1 << 20)
        reply.streams = True
        for number in range(20):
            reply.event(b"%d" % number)
        assert written == [], "what follows in the same turn goes with it"
        await asyncio.sleep(0)
        reply.event(b"20")
        reply.result(b"21")

    async with connected(serve) as (reader, writer):
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
        _, body = await read_answer(reader)
    assert body == b"".join(requests.event(b"%d" % number) for number in range(22))
    assert [piece.count(b"data: ") for piece in written] == [20, 2]


@pytest.mark.requirement("HUB-2")
async def test_what_waits_to_be_written_together_is_bounded_and_goes_out_before_the_connection_closes() -> None:
    waiting: list[int] = []

    async def serve(request: Request, reply: Reply) -> None:
        out: Any = reply.out
        request.keep_alive = False
        for _ in range(20):
            reply.event(b"x" * 10_000)
            waiting.append(out._pieces_size)
        reply.result(b"last")
        out.close()

    async with connected(serve) as (reader, writer):
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
        _, body = await read_answer(reader)
        assert await reader.read() == b""
    assert body.count(b"x" * 10_000) == 20
    assert body.endswith(b"data: last\n\n")
    assert max(waiting) < requests.TOGETHER_BYTES


class Watched:
    """A transport whose methods can be replaced."""

    def __init__(self, transport: Any, **methods: Any) -> None:
        self.__dict__.update(methods)
        self._real = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.requirement("LIFE-16", "FLEET-7")
async def test_a_request_that_was_sent_ahead_is_not_served_after_the_last_answer_of_its_connection() -> None:
    """Its client sends it again on another connection: served here too, it would run twice."""
    served: list[bytes] = []

    async def last(request: Request, reply: Reply) -> None:
        served.append(await request.body(100))
        request.keep_alive = False  # as while the hub retires
        reply.plain(200, b"")

    async with connected(last) as (reader, writer):
        writer.write(b"".join(b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n%d" % n for n in range(3)))
        answered = await reader.read()
    assert (served, answered.count(b"HTTP/1.1 200")) == ([b"0"], 1)


SENT_AHEAD = {
    "requests": (b"GET /mcp HTTP/1.1\r\nHost:\r\n\r\n", 10_000),
    "headers": (b"GET /mcp HTTP/1.1\r\nHost:\r\n" + b"a:\r\n" * 490 + b"\r\n", 500),
    "bodies": (
        b"POST /mcp HTTP/1.1\r\nHost:\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n",
        8,
    ),
}


@pytest.mark.requirement("SEC-7", "SEC-11")
@pytest.mark.parametrize("kind", SENT_AHEAD)
async def test_requests_that_are_sent_ahead_are_read_and_served_in_turns(kind: str) -> None:
    """Nothing is known of their sender yet: a piece of a connection may have ten thousand of them."""
    one, count = SENT_AHEAD[kind]
    most = 0

    async def look(request: Request, reply: Reply) -> None:
        nonlocal most
        most = max(most, len(request._source.queue))  # what it holds
        reply.plain(200, b"%d" % len(await request.body(1 << 20)))

    with measured_loop() as steps:
        async with connected(look) as (reader, writer):

            async def exchange() -> None:
                writer.write(one * count)
                for _ in range(count):
                    await reader.readuntil(b"\r\n\r\n")
                    if kind == "bodies":
                        assert await reader.readexactly(5) == b"20000"
                    else:
                        await reader.readexactly(1)

            longest = await steps.longest_in(exchange)
    assert longest <= LONGEST_STEP, steps.what
    assert most < 1_000


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize(("size", "asked"), [(10_000, [10_000]), (0, [0])])
async def test_a_body_in_chunks_that_came_whole_has_room_for_its_size(size: int, asked: list[int]) -> None:
    held: list[int] = []
    room = cast("BodyBudget", SimpleNamespace(hold=lambda _, size: held.append(size)))

    async def whole(request: Request, reply: Reply) -> None:
        while not request.complete:
            await request._source.wait(10)
        reply.plain(200, await request.body(1 << 20, room=room))

    body = b"%x\r\n%b\r\n" % (size, b"x" * size) if size else b""
    async with connected(whole) as (reader, writer):
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n")
        assert (await read_answer(reader))[1] == b"x" * size
    assert held == asked


@pytest.mark.parametrize("first", ["task", "connection"])
async def test_a_hub_waits_for_its_connections_and_for_their_tasks_in_any_order(first: str) -> None:
    server, connection, done = listener.HttpConnections(Endpoint(echo)), cast("Any", object()), asyncio.Event()

    async def serve() -> None:
        await done.wait()

    server.opened(connection, asyncio.create_task(serve()))
    waits = asyncio.create_task(server.disconnected())
    await all_blocked()
    for what in ("task", "connection") if first == "task" else ("connection", "task"):
        assert not waits.done()
        done.set() if what == "task" else server.lost(connection)
        await all_blocked()
    async with asyncio.timeout(10):
        await waits


# What ends early, is too large, or fails.


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("came_whole", [True, False])
async def test_a_body_in_chunks_is_refused_over_its_limit_and_its_connection_goes_on(came_whole: bool) -> None:
    async def short(request: Request, reply: Reply) -> None:
        while came_whole and not request.complete:
            await request._source.wait(10)
        reply.plain(200, await request.body(5))

    async with connected(short) as (reader, writer):
        for size, status in ((6, b"413"), (5, b"200")):
            writer.write(b"POST /mcp HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            writer.write(b"%d\r\n%b\r\n" % (size, b"123456"[:size]))
            if came_whole or status == b"200":
                writer.write(b"0\r\n\r\n")
            head, _ = await read_answer(reader)
            assert head.split()[1] == status
            if not came_whole and status == b"413":
                writer.write(b"0\r\n\r\n")


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize(
    ("own", "in_all", "status", "said"), [(10_000, 1 << 20, b"429", b"bodyBytes"), (1 << 20, 10_000, b"503", b"memory")]
)
async def test_a_body_that_has_no_room_is_refused_with_the_time_to_wait(
    own: int, in_all: int, status: bytes, said: bytes
) -> None:
    room = BodyBudget(Quotas(lambda: QuotaSettings(body_bytes=own)), most=in_all)
    room.hold(cast("Any", SimpleNamespace(principal=LOCAL, held=0)), 5_000)

    async def serve(request: Request, reply: Reply) -> None:
        await request.body(20_000, room=room)

    async with connected(serve) as (reader, writer):
        writer.write(post(b"x" * 15_000))
        head, body = await read_answer(reader)
    assert (head.split()[1], b"\r\nretry-after: 1\r\n" in head, said in body) == (status, True, True)
    assert b"application/json" in head


@pytest.mark.requirement("SEC-11")
async def test_a_body_that_waits_is_refused_where_all_of_them_hold_too_much() -> None:
    left = asyncio.Event()

    async def never_reads(request: Request, _: Reply) -> None:
        with request.ending_with_client(left.set):
            await left.wait()

    endpoint = Endpoint(never_reads)
    endpoint.bodies = BodyBudget(Quotas(), unknown=10_000)
    async with connected(endpoint) as (reader, writer):
        writer.write(post(b"x" * 20_000))
        assert (await reader.read()).split()[1] == b"503"


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize(("size", "goes_on"), [(200_000, True), (600_000, False)])
async def test_so_much_of_a_body_that_is_not_wanted_is_passed_over(
    size: int, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PASSED_OVER_BYTES", 200_000)

    async def refuse(_: Request, reply: Reply) -> None:
        if not reply.done:
            reply.plain(401, b"{}")

    async with connected(refuse) as (reader, writer):
        writer.write(post(b"x" * size))
        head, _ = await read_answer(reader)
        assert (head.split()[1], b"connection: close" in head) == (b"401", False), "the answer was before"
        writer.write(post(b""))
        try:
            rest = await reader.read(20)
        except ConnectionResetError:  # what was not read any more met a closed connection
            rest = b""
        assert bool(rest) is goes_on


async def test_a_client_that_reads_no_answer_gets_no_further_one_made() -> None:
    large, served = b"x" * (16 << 20), 0

    async def serve(request: Request, reply: Reply) -> None:
        nonlocal served
        served += 1
        await request.body(10)
        reply.plain(200, large)

    async with connected(serve) as (reader, writer):
        writer.write(post(b"1") + post(b"2"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.endswith(b"content-length: %d\r\n\r\n" % len(large))
        await all_blocked()
        assert served == 1
        assert await reader.readexactly(len(large)) == large
        assert (await read_answer(reader))[1] == large
    assert served == 2


@pytest.mark.parametrize("begun", [False, True])
async def test_a_request_that_fails_in_the_hub_ends_its_connection_and_is_told_in_the_log(
    begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(request: Request, reply: Reply) -> None:
        await request.body(10)
        if begun:
            reply.event(b"1")
        raise RuntimeError("broken")

    async with connected(fail) as (reader, writer):
        writer.write(post(b"1") + post(b"2"))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.split()[1] == (b"200" if begun else b"500")
    assert body.count(b"HTTP/1.1") == 0, "no further request is served"
    assert not body.endswith(b"0\r\n\r\n"), "a stream that broke off is not complete"
    assert "a request failed in the hub itself" in caplog.text


async def test_a_fault_while_bytes_are_read_ends_their_connection_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: RequestParser, _data: bytes) -> None:
        raise RuntimeError("cannot read")

    async with connected() as (reader, writer):
        with monkeypatch.context() as patch:
            patch.setattr(RequestParser, "receive", fail)
            writer.write(post(b"1"))
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
    assert "a connection failed in the hub itself: RuntimeError: cannot read" in caplog.text


# HTTP/1.0, and the date.


async def test_a_client_of_http_1_0_reads_pieces_until_the_end_of_its_connection() -> None:
    async def serve(request: Request, reply: Reply) -> None:
        await request.body(100)
        reply.streams = True
        reply.event(b"1")
        reply.result(b"2")

    async with connected(serve) as (reader, writer):
        writer.write(b"POST /mcp HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert (b"transfer-encoding" in head, b"connection: close" in head) == (False, True)
    assert body == requests.event(b"1") + requests.event(b"2")


async def test_a_client_of_http_1_0_keeps_its_connection_only_where_it_asks() -> None:
    async with connected() as (reader, writer):
        for asks, said in ((b"connection: keep-alive\r\n", b"keep-alive"), (b"", b"close")):
            writer.write(b"POST /mcp HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 1\r\n%b\r\n1" % asks)
            head, body = await read_answer(reader)
            assert (head.split()[1], body) == (b"200", b"1"), "it knows no 100"
            assert head.count(b"\r\nconnection: ") == 1
            assert b"\r\nconnection: %b\r\n" % said in head
        assert await reader.read() == b""


async def test_each_answer_has_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(time=lambda: 784_111_777.9, monotonic=time.monotonic)
    monkeypatch.setattr(requests, "time", clock)
    async with connected() as (reader, writer):
        for _ in range(2):
            writer.write(post(b"1"))
            assert b"\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n" in (await read_answer(reader))[0]
        clock.time = lambda: 784_111_778.0
        writer.write(post(b"1"))
        assert b" 08:49:38 GMT\r\n" in (await read_answer(reader))[0]


# The application behind.


async def test_an_application_sees_the_request_and_that_its_client_left() -> None:
    seen: list[Any] = []

    async def waiting(scope: Any, receive: Any, _: Any) -> None:
        seen.append(scope)
        seen.append(await receive())
        seen.append(await receive())

    async with connected(AppRequests(waiting).serve) as (_, writer):
        writer.write(post(b"body").replace(b"/mcp ", b"/m%63p?a=1%20b ").replace(b"host: x", b"host: x\r\nA: 1"))
        await came_true(lambda: len(seen) == 2)
        writer.close()
        await came_true(lambda: len(seen) == 3)
        name = writer.get_extra_info("sockname")
    scope, *told = seen
    assert told == [
        {"type": "http.request", "body": b"body", "more_body": False},
        {"type": "http.disconnect"},
    ]
    said = {key: scope[key] for key in ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string")}
    assert said == {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/m%63p",
        "query_string": b"a=1%20b",
    }
    assert (scope["client"], scope["server"][0]) == (name, "127.0.0.1")
    assert scope["headers"] == [(b"host", b"x"), (b"a", b"1"), (b"content-length", b"4")]


@pytest.mark.parametrize("begun", [False, True])
async def test_an_application_that_fails_is_answered_for_and_an_answer_that_broke_off_ends_the_connection(
    begun: bool,
) -> None:
    async def failing(_scope: Any, _receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError

    async with connected(AppRequests(failing).serve) as (reader, writer):
        writer.write(post(b"1") + post(b"2"))
        if begun:
            answered = await reader.read()
            assert (answered.count(b"HTTP/1.1 "), answered.endswith(b"\r\n\r\n4\r\nhalf\r\n")) == (1, True)
        else:
            for _ in range(2):
                head, body = await read_answer(reader)
                assert (head.split()[1], body) == (b"500", b"Internal Server Error")


async def test_an_application_that_says_nothing_ends_its_connection() -> None:
    async def silent(_scope: Any, _receive: Any, _send: Any) -> None:
        return

    async with connected(AppRequests(silent).serve) as (reader, writer):
        writer.write(post(b"1"))
        assert await reader.read() == b""


# The one timer of a connection.


class LoopClock:
    """An event loop whose time the test sets; it counts the timers that are set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[LoopTimer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, then: Any) -> LoopTimer:
        made = LoopTimer(when, then)
        self.timers.append(made)
        return made

    def pass_time(self, until: float) -> None:
        while due := [one for one in self.timers if one.when() <= until]:
            first = min(due, key=LoopTimer.when)
            self.timers.remove(first)
            self.now = max(self.now, first.when())
            if not first.cancelled:
                first.then()
        self.now = until


class LoopTimer:
    def __init__(self, when: float, then: Any) -> None:
        self.at, self.then, self.cancelled = when, then, False

    def when(self) -> float:
        return self.at

    def cancel(self) -> None:
        self.cancelled = True


def test_a_timer_rings_once_when_it_was_armed_for_last() -> None:
    clock, rang = LoopClock(), list[tuple[str, float]]()
    timer = listener.ConnectionTimer(clock)  # type: ignore[arg-type]  # all that it uses

    def rings(what: str) -> Any:
        return lambda: rang.append((what, clock.now))

    timer.arm(10, rings("early"))
    clock.pass_time(4)
    timer.arm(10, rings("later"))
    assert len(clock.timers) == 1, "the timer of the loop stays where it rings too early"
    clock.pass_time(13)
    assert rang == []
    timer.arm(0.5, rings("sooner"))
    clock.pass_time(13.4)
    assert rang == []
    clock.pass_time(100)
    assert rang == [("sooner", 13.5)]
    timer.arm(5, rings("again"))
    timer.disarm()
    clock.pass_time(200)
    timer.arm(5, rings("after that"))
    clock.pass_time(205)
    assert rang[1:] == [("after that", 205)]
    assert not clock.timers, "nothing is set that has nothing to do"


def test_a_timer_of_a_connection_that_is_gone_does_nothing() -> None:
    clock, rang = LoopClock(), list[str]()
    timer = listener.ConnectionTimer(clock)  # type: ignore[arg-type]  # all that it uses
    timer.arm(5, lambda: rang.append("before"))
    timer.end()
    timer.arm(5, lambda: rang.append("after"))
    timer.end()
    clock.pass_time(100)
    assert (rang, repr(timer)) == ([], "<ConnectionTimer idle>")
