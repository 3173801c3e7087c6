"""One connection without a socket: what of it is counted, which time runs when, and what ends it, to the byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import pytest

from holdfast.access.connections import ConnectionLimits, peer_at
from holdfast.access.quotas import Quotas
from holdfast.front import listener
from holdfast.front.listener import HEAD_SECONDS, IDLE_SECONDS, HttpConnection, HttpConnections
from holdfast.front.requests import (
    BUFFERED_BYTES,
    UNCOUNTED,
    BodyBudget,
    Gone,
    NoRoom,
    Reply,
    Request,
    TooLarge,
    last_answer,
)
from tests.harness.waiting import all_blocked

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-11")]

HEAD: Final = b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
GET: Final = b"GET /mcp HTTP/1.1\r\nhost: x\r\n\r\n"


class Wire(asyncio.Transport):
    """The client's end: what it got, and whether more of it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.got = b""
        self.closed = self.aborted = self.paused = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.got += bytes(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return 0


class Timer:
    """Says for how long it was armed."""

    def __init__(self) -> None:
        self.armed: list[float] = []
        self.then: Callable[[], None] | None = None

    def arm(self, seconds: float, then: Callable[[], None]) -> None:
        self.armed.append(seconds)
        self.then = then

    def disarm(self) -> None:
        self.then = None

    def end(self) -> None:
        self.then = None


class Scene:
    """A connection whose requests are answered when the test says so."""

    retiring = False

    def __init__(self) -> None:
        self.bodies = BodyBudget(Quotas())
        self.go = asyncio.Event()
        self.served: list[Request] = []
        self.fails: Exception | None = None
        self.wire, self.timer = Wire(), Timer()
        self.limits = ConnectionLimits(lambda: 16)
        admission = self.limits.enter(peer_at(("127.0.0.1", 1)))
        assert admission is not None
        self.server = HttpConnections(self)
        self.connection = HttpConnection(self.server, admission)
        self.connection.timer = cast("Any", self.timer)
        self.connection.connection_made(self.wire)
        self.inbound = self.connection._inbound

    async def admit(self, request: Request, reply: Reply) -> Scene:
        return self

    async def serve(self, request: Request, reply: Reply) -> None:
        self.served.append(request)
        await self.go.wait()
        if self.fails is not None:
            raise self.fails
        reply.plain(200, b"{}")

    async def send(self, data: bytes) -> None:
        self.connection.data_received(data)
        await all_blocked()

    async def answer(self) -> None:
        self.go.set()
        await all_blocked()

    async def leave(self) -> None:
        self.connection.connection_lost(None)
        self.go.set()
        await all_blocked()
        assert (self.server.connections, self.limits.open) == (set(), 0)


@pytest.fixture
async def scene() -> Any:
    made = Scene()
    yield made
    await made.leave()


async def test_of_a_body_without_a_reader_is_counted_what_is_over_four_kib_until_its_request_has_room_or_ends(
    scene: Scene,
) -> None:
    await scene.send(HEAD % 100_000 + b"x" * UNCOUNTED)
    assert (scene.inbound.counted, scene.bodies.waiting) == (0, 0)
    await scene.send(b"x")
    assert (scene.inbound.counted, scene.bodies.waiting) == (UNCOUNTED + 1, UNCOUNTED + 1)
    scene.served[0].held = 100_000
    assert scene.inbound.count()
    assert (scene.inbound.counted, scene.bodies.waiting) == (0, 0), "its room is counted elsewhere"
    scene.served[0].held = 0
    assert scene.inbound.count()
    assert scene.bodies.waiting == UNCOUNTED + 1
    scene.connection.connection_lost(None)
    assert (scene.inbound.counted, scene.bodies.waiting, scene.inbound.lost) == (0, 0, True)
    scene.inbound.pause()
    assert not scene.wire.paused, "its transport is not asked any more"


async def test_a_request_that_is_served_is_not_overdue_though_the_next_one_has_begun(scene: Scene) -> None:
    await scene.send(GET + GET[:10])
    scene.inbound.overdue()
    assert (scene.wire.got, scene.wire.closed) == (b"", False)


async def test_a_head_that_is_overdue_is_refused_and_an_idle_connection_closed_without_a_word() -> None:
    for sent, said in ((GET[:10], last_answer(408)), (b"", b"")):
        scene = Scene()
        await scene.send(sent)
        scene.inbound.overdue()
        assert (scene.wire.got, scene.wire.closed) == (said, True)
        await scene.leave()
    assert last_answer(408) == b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


async def test_a_head_has_ten_seconds_from_its_first_byte_and_an_idle_connection_75(scene: Scene) -> None:
    assert (scene.timer.armed, HEAD_SECONDS, IDLE_SECONDS) == ([10.0], 10.0, 75.0), "the first one"
    await scene.send(GET[:5])
    await scene.send(GET[5:9])
    assert scene.timer.armed == [10.0, 10.0], "a further byte does not give it more"
    await scene.send(GET[9:])
    await scene.answer()
    assert scene.timer.armed == [10.0, 10.0, 75.0]
    await scene.send(GET + GET[:5])
    assert scene.timer.armed[3:] == [10.0], "the next one has begun when its turn comes"
    await scene.send(GET[5:9])
    assert scene.timer.armed[4:] == []
    await scene.send(GET[9:])
    assert scene.timer.armed[4:] == [75.0]
    assert (scene.wire.got.count(b"HTTP/1.1 200 OK\r\n"), scene.server.total_requests) == (3, 3)


async def test_two_requests_are_pulled_and_the_rest_waits_unread(scene: Scene) -> None:
    await scene.send(GET)
    assert (len(scene.inbound.queue), scene.wire.paused) == (1, False)
    await scene.send(GET)
    assert (len(scene.inbound.queue), scene.wire.paused) == (2, True)
    await scene.send(GET * 3)
    assert (len(scene.inbound.queue), scene.server.total_requests) == (2, 2)
    await scene.answer()
    assert (len(scene.inbound.queue), scene.server.total_requests, scene.wire.paused) == (0, 5, False)
    assert (len(scene.served), scene.wire.got.count(b"HTTP/1.1 200 OK\r\n"), scene.wire.closed) == (5, 5, False)


async def test_of_a_body_64_kib_are_taken_ahead_and_one_byte_more_pauses_its_sender(scene: Scene) -> None:
    await scene.send(HEAD % 100_000 + b"x" * BUFFERED_BYTES)
    paused = [scene.wire.paused]
    await scene.send(b"x")
    paused.append(scene.wire.paused)
    scene.inbound.want_body()
    paused.append(scene.wire.paused)
    await scene.send(b"x")
    paused.append(scene.wire.paused)
    assert paused == [False, True, False, True], "a reader that asks is sent more, and no more than that"


@pytest.mark.parametrize(("passed", "goes_on"), [(10, True), (11, False)])
async def test_a_body_that_is_not_wanted_is_passed_over_up_to_its_bound(
    passed: int, goes_on: bool, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PASSED_OVER_BYTES", 10)
    scene.go.set()
    await scene.send(HEAD % 12)
    assert b"HTTP/1.1 200 OK\r\n" in scene.wire.got
    assert scene.timer.armed[-1] == 10.0
    await scene.send(b"x" * passed)
    assert scene.wire.closed is not goes_on
    if goes_on:
        await scene.send(b"xx" + GET)
        assert (scene.wire.got.count(b"HTTP/1.1 200 OK\r\n"), scene.wire.closed) == (2, False)


async def test_a_body_that_is_passed_over_and_does_not_come_ends_its_connection_without_a_second_answer(
    scene: Scene,
) -> None:
    scene.go.set()
    await scene.send(HEAD % 12)
    answered = scene.wire.got
    assert scene.timer.then is not None
    scene.timer.then()
    assert (scene.wire.got, scene.wire.closed) == (answered, True)


async def test_a_connection_that_is_told_to_end_is_closed_at_once_only_if_nothing_is_under_way() -> None:
    for sent, closed in ((b"", True), (GET[:5], True), (GET, False)):
        scene = Scene()
        await scene.send(sent)
        scene.connection.shutdown()
        assert (scene.wire.closed, scene.connection.is_last) == (closed, True)
        if not closed:
            await scene.send(GET)
            await scene.answer()
            assert (len(scene.served), scene.wire.closed) == (1, True), "what comes after that is not served"
            assert scene.wire.got.endswith(b"connection: close\r\n\r\n{}")
        await scene.leave()


async def test_the_last_answer_while_a_hub_retires_says_that_it_is_the_last(scene: Scene) -> None:
    was_last = scene.connection.is_last
    scene.retiring = True
    assert (was_last, scene.connection.is_last) == (False, True)
    await scene.send(GET)
    await scene.answer()
    assert scene.wire.got.endswith(b"connection: close\r\n\r\n{}")
    assert scene.wire.closed


FAILURES: Final[list[tuple[Exception, list[bytes], bytes, bool]]] = [
    (
        TooLarge(),
        [b"HTTP/1.1 413 Request Entity Too Large", b"content-type: application/json"],
        b'{"error":"the body is too large"}',
        False,
    ),
    (
        NoRoom(429, "try later"),
        [
            b"HTTP/1.1 429 Too Many Requests",
            b"content-type: application/json",
            b"retry-after: 1",
        ],
        b'{"error":"try later"}',
        False,
    ),
    (
        RuntimeError("broken"),
        [
            b"HTTP/1.1 500 Internal Server Error",
            b"content-type: application/json",
        ],
        b'{"error":"the hub failed to serve this request"}',
        True,
    ),
    (Gone(), [b""], b"", False),
]


@pytest.mark.parametrize("case", FAILURES, ids=lambda case: type(case[0]).__name__)
async def test_a_request_that_fails_has_its_whole_answer_and_only_a_fault_of_the_hub_ends_the_connection(
    case: tuple[Exception, list[bytes], bytes, bool], scene: Scene
) -> None:
    scene.fails, lines, body, ends = case
    await scene.send(GET)
    await scene.answer()
    head, _, said = scene.wire.got.partition(b"\r\n\r\n")
    shown = [line for line in head.split(b"\r\n") if not line.startswith((b"date: ", b"content-length: "))]
    assert shown == lines
    assert (said, scene.wire.closed) == (body, ends)
    assert not body or b"\r\ncontent-length: %d" % len(body) in head


async def test_bytes_that_are_no_request_are_refused_after_the_answers_before_them_and_end_the_connection(
    scene: Scene,
) -> None:
    await scene.send(GET + b"nonsense\r\n\r\n")
    assert (scene.wire.got, scene.inbound.refused) == (b"", 400)
    await scene.send(GET)
    await scene.answer()
    first, _, rest = scene.wire.got.partition(b"{}")
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (rest, scene.wire.closed, len(scene.served)) == (last_answer(400), True, 1)


async def test_a_client_that_leaves_has_no_further_request_served_and_what_waits_for_it_is_told(scene: Scene) -> None:
    told: list[str] = []
    await scene.send(GET)
    scene.served[0].end_with_client(lambda: told.append("left"))
    await scene.send(GET)
    scene.connection.connection_lost(None)
    await scene.answer()
    assert (told, len(scene.served), scene.wire.got) == (["left"], 1, b"")
    assert repr(scene.connection.out).startswith("<OutputBuffer lost")


@pytest.mark.parametrize(
    ("before", "sent", "status"), [(b"", b"nonsense\r\n\r\n", 400), (HEAD % 20_000, b"x" * 10_000, 503)]
)
async def test_what_is_refused_has_a_last_answer_at_once_where_no_other_is_due(
    before: bytes, sent: bytes, status: int, scene: Scene
) -> None:
    scene.bodies = BodyBudget(Quotas(), unknown=9_999)
    await scene.send(before + sent)
    assert (scene.wire.got, scene.wire.closed, scene.inbound.refused) == (last_answer(status), True, status)
    await scene.send(GET)
    assert (scene.wire.got, len(scene.served)) == (last_answer(status), 1 if before else 0)


async def test_a_body_that_turns_out_to_be_none_refuses_its_own_request_alone(scene: Scene) -> None:
    chunked = b"POST /mcp HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    await scene.send(GET + chunked + b"no size\r\n")
    first, second = scene.inbound.queue
    assert (first._refused, second._refused) == (0, 400)
    await scene.send(b"0\r\n\r\n")
    assert len(scene.inbound.queue) == 2, "what comes after that is not read"


async def test_a_body_that_is_passed_over_has_its_time_also_where_it_comes_all_the_while(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PASSED_OVER_SECONDS", -1.0)  # it is over
    scene.go.set()
    await scene.send(HEAD % 12 + b"x")
    assert scene.wire.got.endswith(b"\r\n\r\n{}")
    assert (scene.wire.closed, len(scene.served)) == (True, 1)


async def test_a_connection_that_is_told_to_end_while_its_answer_is_out_serves_no_further_request(scene: Scene) -> None:
    scene.go.set()
    await scene.send(HEAD % 12)
    scene.connection.shutdown()
    assert (scene.wire.closed, scene.wire.got.count(b"connection: close")) == (False, 0)
    await scene.send(b"x" * 12 + GET)
    assert (scene.wire.closed, len(scene.served)) == (True, 1)
