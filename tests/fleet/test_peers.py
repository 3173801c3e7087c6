"""The link between replicas on real sockets: who may ask, what an answer is, and what a broken or foreign one is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings, strategies as st

from holdfast.errors import HoldfastError, UsageError
from holdfast.fleet import PeerAddress, PeerFailed, PeerRefused, PeerReply, PeerRequest, Peers, PeerUnreachable
from holdfast.fleet.peer_frames import BODY, LAST, PeerFrames
from holdfast.fleet.peer_seal import BadSeal, PeerSeal, accept_dialer, answer_challenge, challenge
from tests.harness.open_hubs import PATIENCE
from tests.harness.waiting import came_true

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-5")]

KEY, OTHER = b"k" * 32, b"o" * 32
LOCAL = PeerAddress.parse("tcp://127.0.0.1:0")


async def echo(request: PeerRequest, reply: PeerReply) -> None:
    reply.begin({"said": request.about.get("say"), "sender": request.sender})
    reply.write(request.body)


@asynccontextmanager
async def replicas(
    *names: str, keys: dict[str, list[bytes]] | None = None, at: PeerAddress = LOCAL
) -> AsyncIterator[list[Peers]]:
    addresses: dict[str, str] = {}
    made = []
    for name in names:
        own = (keys or {}).get(name, [KEY])
        peers = Peers(lambda own=own: own, "test", advertise=at)  # type: ignore[misc]
        addresses[name] = peers.address
        peers.join(name, lambda: addresses)
        peers.handle("echo", echo)
        made.append(peers)
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        for peers in made:
            tasks.start_soon(peers.run)
        with anyio.fail_after(PATIENCE):
            yield made


async def test_a_replica_answers_another_and_the_connection_is_kept() -> None:
    async with replicas("a", "b") as (a, b):
        large = bytes(range(256)) * 2_000
        for _ in range(3):
            about, body = await a.ask("b", "echo", {"say": "hello"}, large, within=PATIENCE)
            assert (about, body) == ({"said": "hello", "sender": "a"}, large)
        assert len(b._open) == 1
        assert a.others == ("b",)


async def test_both_sides_find_out_that_the_machine_of_the_other_is_gone() -> None:
    """It says nothing: without this, a request of it would be under way here for ever."""
    async with replicas("a", "b") as (a, b):
        await a.ask("b", "echo", within=PATIENCE)
        for frames in (*a._kept["b"], *b._open):
            connection = frames._transport.get_extra_info("socket")
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            tries = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
            assert tries * connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) <= 30


async def test_a_small_request_is_one_frame_and_so_is_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[int] = []
    real = PeerFrames.put

    def counted(self: PeerFrames, kind: int, content: bytes = b"") -> None:
        frames.append(kind)
        real(self, kind, content)

    async def answers(request: PeerRequest, reply: PeerReply) -> None:
        reply.answer({"known": True}, request.body)

    monkeypatch.setattr(PeerFrames, "put", counted)
    async with replicas("a", "b") as (a, b):
        b.handle("answers", answers)
        assert await a.ask("b", "answers", body=b"x", within=PATIENCE) == ({"known": True}, b"x")
        assert len(frames) == 2
        with pytest.raises(PeerRefused):
            await a.ask("b", "unknown", within=PATIENCE)
        assert len(frames) == 4
        assert len(b._open) == 1, "a refusal ends no connection"


async def test_text_that_is_no_unicode_passes() -> None:
    async with replicas("a", "b") as (a, _):
        about, _ = await a.ask("b", "echo", {"say": "\ud800"}, within=PATIENCE)
        assert about["said"] == "\ud800"


async def test_an_asker_that_reads_slowly_holds_the_handler_up() -> None:
    full = anyio.Event()
    pieces = 200

    async def floods(_: PeerRequest, reply: PeerReply) -> None:
        reply.begin()
        for _number in range(pieces):
            reply.write(bytes(64 * 1024))
            if reply.unread:
                full.set()
            await reply.drained()

    async with replicas("a", "b") as (a, b):
        b.handle("floods", floods)
        async with a.request("b", "floods") as answer:
            await full.wait()
            assert sum(len(content) for _, content in answer._frames._frames) < 1024 * 1024
            assert len(await answer.body()) == pieces * 64 * 1024
        assert len(a._kept["b"]) == 1


async def test_the_listener_closes_a_connection_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.fleet.peers.IDLE_SECONDS", 0.05)
    async with replicas("a", "b") as (a, b):
        await a.ask("b", "echo", within=PATIENCE)
        await came_true(lambda: not b._open)
        assert (await a.ask("b", "echo", {"say": 1}, within=PATIENCE))[0]["said"] == 1


async def test_a_frame_out_of_place_ends_the_connection() -> None:
    async with replicas("a", "b") as (a, b):
        for kind, content in ((BODY | LAST, b""), (1 | LAST, b"\0\0\0\x09{}"), (1 | LAST, b"\0\0\0\x02[]")):
            frames = await a._dialed("b")
            frames.put(kind, content)
            with pytest.raises(EOFError):
                await frames.next()
        assert b.refused == 3


async def test_replicas_on_one_machine_use_a_private_socket(tmp_path: Path) -> None:
    at = PeerAddress.parse(f"unix:{tmp_path}/peer.sock")
    async with replicas("b", at=at) as (b,):
        assert (tmp_path / "peer.sock").stat().st_mode & 0o777 == 0o600
        assert b.address == f"unix:{tmp_path}/peer.sock"
        about, _ = await b.ask("b", "echo", {"say": 1}, within=PATIENCE)
        assert about["said"] == 1
    async with replicas("b", at=at) as (b,):  # the socket of one that was killed is in nobody's way
        assert (await b.ask("b", "echo", within=PATIENCE))[1] == b""


async def test_a_stream_reaches_the_asker_piece_by_piece_and_ends_with_it() -> None:
    gone = anyio.Event()
    more = anyio.Event()

    async def stream(_: PeerRequest, reply: PeerReply) -> None:
        reply.on_gone = gone.set
        reply.begin()
        reply.write(b"first")
        await more.wait()
        reply.write(b"second")
        await gone.wait()

    async with replicas("a", "b") as (a, b):
        b.handle("stream", stream)
        async with a.request("b", "stream") as answer:
            assert await answer.next_piece() == b"first"
            more.set()
            assert await answer.next_piece() == b"second"
        await gone.wait()


async def test_a_handler_that_does_not_ask_otherwise_is_cancelled_with_its_asker() -> None:
    begun, ended = anyio.Event(), anyio.Event()

    async def slow(_: PeerRequest, reply: PeerReply) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with replicas("a", "b") as (a, b):
        b.handle("slow", slow)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: a.ask("b", "slow", within=PATIENCE))
            await begun.wait()
            tasks.cancel_scope.cancel()
        await ended.wait()


async def test_a_replica_with_another_key_is_not_heard() -> None:
    async with replicas("a", "b", keys={"a": [OTHER]}) as (a, _):
        with pytest.raises(PeerUnreachable, match="another session key"):
            await a.ask("b", "echo", within=PATIENCE)


async def test_replicas_understand_each_other_while_a_key_is_replaced() -> None:
    async with replicas("a", "b", "c", keys={"a": [OTHER, KEY], "b": [KEY], "c": [OTHER, KEY]}) as (a, b, _):
        assert (await a.ask("b", "echo", within=PATIENCE))[1] == b""
        assert (await b.ask("a", "echo", within=PATIENCE))[1] == b""
        assert (await a.ask("c", "echo", within=PATIENCE))[1] == b""


async def test_a_replica_that_joined_a_moment_ago_is_looked_for_before_it_counts_as_gone() -> None:
    async with replicas("a", "b") as (a, b):
        known: dict[str, str] = {}
        looks: list[None] = []

        async def look() -> None:
            looks.append(None)
            known["b"] = b.address

        a.join("a", lambda: known)
        a.look_again = look
        for _ in range(2):
            assert (await a.ask("b", "echo", within=PATIENCE))[1] == b""
        assert len(looks) == 1
        with pytest.raises(PeerUnreachable, match="not present"):
            await a.ask("c", "echo", within=PATIENCE)


async def test_an_address_that_another_replica_took_over_refuses() -> None:
    async with replicas("a", "b") as (a, b):
        a.join("a", lambda: {"gone": b.address})
        with pytest.raises(PeerRefused, match="not the replica gone"):
            await a.ask("gone", "echo", within=PATIENCE)


async def test_what_cannot_be_done_is_refused_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: PeerRequest, __: PeerReply) -> None:
        raise RuntimeError("a fault")

    async with replicas("a", "b") as (a, b):
        b.handle("broken", broken)
        b._largest = lambda: 100
        with pytest.raises(PeerRefused, match="no operation"):
            await a.ask("b", "unknown", within=PATIENCE)
        with pytest.raises(PeerRefused, match="too large"):
            await a.ask("b", "echo", body=b"x" * 200_000, within=PATIENCE)
        with pytest.raises(PeerRefused, match="failed"):
            await a.ask("b", "broken", within=PATIENCE)
        assert "a fault" in caplog.text
        with pytest.raises(PeerUnreachable, match="not present"):
            await a.ask("nobody", "echo", within=PATIENCE)
        a.join("a", lambda: {"b": ""})
        with pytest.raises(PeerUnreachable, match="--advertise"):
            await a._dialed("b")


async def test_a_replica_that_is_gone_got_nothing_and_one_that_breaks_off_may_have_acted() -> None:
    async def breaks(_: PeerRequest, reply: PeerReply) -> None:
        reply.abort()

    async with replicas("a", "b") as (a, b):
        b.handle("breaks", breaks)
        with pytest.raises(PeerFailed):
            await a.ask("b", "breaks", within=PATIENCE)
        b.close()
        with pytest.raises(PeerUnreachable, match="cannot be reached"):
            await a.ask("b", "echo", within=PATIENCE)


async def test_recorded_bytes_open_nothing_on_another_connection() -> None:
    acted: list[bytes] = []

    async def act(request: PeerRequest, reply: PeerReply) -> None:
        acted.append(request.body)

    async with replicas("a", "b") as (a, b):
        b.handle("act", act)
        recorded: list[bytes] = []

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", PeerAddress.parse(b.address).port)

            async def answers() -> None:
                while data := await there.read(65536):
                    writer.write(data)

            copying = asyncio.ensure_future(answers())
            while data := await reader.read(65536):
                recorded.append(data)
                back.write(data)
            copying.cancel()
            back.close()
            writer.close()

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        a.join("a", lambda: {"b": f"tcp://127.0.0.1:{port}"})
        await a.ask("b", "act", body=b"once", within=PATIENCE)
        a.close()
        server.close()
        assert acted == [b"once"]

        replayed, out = await asyncio.open_connection("127.0.0.1", PeerAddress.parse(b.address).port)
        out.write(b"".join(recorded))
        while await replayed.read(65536):
            pass
        out.close()
        assert acted == [b"once"]
        assert b.refused == 1


async def test_strangers_cannot_occupy_the_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.fleet.peers.MOST_UNKNOWN", 3)
    async with replicas("a", "b") as (a, b):
        port = PeerAddress.parse(b.address).port
        waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, _ in waiting:
            await reader.readexactly(16)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        for _, each in waiting:
            each.close()
        await came_true(lambda: not b._unknown)
        assert (await a.ask("b", "echo", within=PATIENCE))[1] == b""


@pytest.mark.parametrize("begun", [False, True])
async def test_a_replica_that_is_gone_without_a_word_is_given_up_and_a_slow_one_is_not(
    monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    monkeypatch.setattr("holdfast.fleet.peer_watch.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("holdfast.fleet.peers.CONNECT_SECONDS", 0.3)
    greeted, asked, stopped = 0, anyio.Event(), anyio.Event()
    greet = Peers._greet

    async def counted(self: Peers, frames: PeerFrames) -> None:
        nonlocal greeted
        if stopped.is_set():
            await anyio.sleep_forever()  # as a process that was stopped: the system accepts for it
        await greet(self, frames)
        greeted += 1

    async def slow(_: PeerRequest, reply: PeerReply) -> None:
        if begun:
            reply.begin()
        asked.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(Peers, "_greet", counted)
    async with replicas("a", "b") as (a, b):
        b.handle("slow", slow)

        async def stop() -> None:
            await asked.wait()
            await came_true(lambda: greeted >= 6)
            stopped.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            with pytest.raises(PeerFailed, match="it does not answer any more"):
                async with a.request("b", "slow") as answer:
                    await answer.body()
        assert stopped.is_set(), "a slow one is waited for"


# The seal itself.


def sides(fleet: str = "f", other: str = "f") -> tuple[PeerSeal, PeerSeal]:
    sent = challenge([KEY], fleet)
    said, dialer = answer_challenge(sent, [KEY], other)
    return dialer, accept_dialer(said, sent, [KEY], fleet)


@given(st.binary(max_size=200), st.integers(min_value=0), st.integers(min_value=1, max_value=255))
@settings(max_examples=60)
def test_no_changed_frame_opens(content: bytes, at: int, change: int) -> None:
    dialer, listener = sides()
    frame = bytearray(dialer.frame(1, content)[4:])
    frame[at % len(frame)] ^= change
    with pytest.raises(BadSeal):
        listener.open(bytes(frame))


def test_a_frame_opens_once_at_its_place_and_in_its_direction() -> None:
    dialer, listener = sides()
    first, second = dialer.frame(1, b"first")[4:], dialer.frame(1, b"second")[4:]
    with pytest.raises(BadSeal):
        dialer.open(first)  # reflected
    assert listener.open(first) == (1, b"first")
    with pytest.raises(BadSeal):
        listener.open(first)  # replayed
    dialer, listener = sides()
    first, second = dialer.frame(1, b"first")[4:], dialer.frame(1, b"second")[4:]
    with pytest.raises(BadSeal):
        listener.open(second)  # out of order


def test_another_fleet_with_the_same_key_is_a_stranger() -> None:
    with pytest.raises(BadSeal):
        sides("production", "staging")


@pytest.mark.parametrize("text", ["", "10.0.0.1:80", "http://a:1", "tcp://a", "tcp://:1", "tcp://a:x", "unix:relative"])
def test_a_bad_address_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        PeerAddress.parse(text)
    assert "tcp://HOST:PORT" in (refused.value.hint or "")


def test_an_address_of_ipv6_needs_no_brackets() -> None:
    assert str(PeerAddress.parse("tcp://fd00::12:8766")) == "tcp://[fd00::12]:8766"
    assert PeerAddress.parse("tcp://[::1]:0") == PeerAddress(host="::1", port=0)


def test_an_address_in_use_is_named() -> None:
    first = Peers(lambda: [KEY], "test", advertise=LOCAL)
    with pytest.raises(HoldfastError, match="cannot listen for other replicas on tcp"):
        Peers(lambda: [KEY], "test", advertise=PeerAddress.parse(first.address))
    first.close()


async def test_what_is_written_after_the_end_of_an_answer_is_not_read_as_the_next_answer() -> None:
    late: list[PeerReply] = []

    async def ends(request: PeerRequest, reply: PeerReply) -> None:
        reply.answer({"first": True})
        late.append(reply)

    async def waits(request: PeerRequest, reply: PeerReply) -> None:
        late[0].write(b"late")
        late[0].finish(b"again")
        reply.answer({"second": True}, b"own")

    async with replicas("a", "b") as (a, b):
        b.handle("ends", ends)
        b.handle("waits", waits)
        assert await a.ask("b", "ends", within=PATIENCE) == ({"first": True}, b"")
        assert await a.ask("b", "waits", within=PATIENCE) == ({"second": True}, b"own")
        assert len(b._open) == 1, "both used the same connection"


async def test_a_request_that_cannot_be_read_ends_its_own_connection_alone() -> None:
    async with replicas("a", "b") as (a, _):
        for head in (b'{"about":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"to":"\\ud800"}'):
            frames = await a._dialed("b")
            frames.put(1 | LAST, len(head).to_bytes(4, "big") + head)
            with suppress(EOFError):
                await frames.next()
            frames.close()
        assert (await a.ask("b", "echo", {"say": 1}, within=PATIENCE))[0]["said"] == 1


async def test_connections_that_a_replica_closed_are_not_kept() -> None:
    async with replicas("a", "b") as (a, b):
        await a.ask("b", "echo", within=PATIENCE)
        for frames in list(b._open):
            frames.close()
        while a._kept:
            await anyio.lowlevel.checkpoint()
        assert (await a.ask("b", "echo", {"say": 1}, within=PATIENCE))[0]["said"] == 1


@settings(max_examples=30, deadline=None)
@given(contents=st.lists(st.binary(max_size=40), max_size=5), cuts=st.sets(st.integers(1, 400), max_size=20))
def test_frames_are_the_same_in_any_pieces(contents: list[bytes], cuts: set[int]) -> None:
    async def opened() -> list[tuple[int, bytes]]:
        frames = PeerFrames()
        frames.use(PeerSeal(KEY, "test", b"c" * 32, b"n" * 32, dialer=False))
        places = [0, *sorted(one for one in cuts if one < len(sent)), len(sent)]
        for start, end in pairwise(places):
            frames.data_received(sent[start:end])
        return list(frames._frames)

    seal = PeerSeal(KEY, "test", b"c" * 32, b"n" * 32, dialer=True)
    sent = b"".join(seal.frame(BODY, content) for content in contents)
    assert asyncio.run(opened()) == [(BODY, content) for content in contents]
