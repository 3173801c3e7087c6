"""Staying with a connection: streams of notices are held, opened again, and told apart from a server that is gone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.config.read import spec_from_connection
from holdfast.config.settings import Limits
from holdfast.config.spec import ServerSpec
from holdfast.core.evidence import Evidence, HttpStatus, NetworkFailure, NetworkFault, ProcessExit
from holdfast.core.redact import Redactor
from holdfast.wire import session
from holdfast.wire.dial import Dialer
from holdfast.wire.dispatcher import DialHooks
from holdfast.wire.session import LIST_CHANGED, Connection, DesiredState, apply_desired_state, watch_connection
from holdfast.wire.warden import Warden
from tests.peers.http_fault import Behaviour, Exchange, Request, respond
from tests.peers.mcp_http import McpPeer
from tests.peers.mcp_sse import SsePeer
from tests.peers.rpc import encode, failure
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio
MakePeer = Callable[..., StdioPeer]
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


class Staying:
    """A watched connection: how often its lists may have changed, and how it ended."""

    def __init__(self) -> None:
        self.changes = 0
        self.notices: list[str] = []
        self.end: Evidence | None = None
        self._stir = anyio.Event()

    def changed(self) -> None:
        self.changes += 1
        self._stir.set()

    def noticed(self, method: str) -> None:
        self.notices.append(method)
        self._stir.set()

    async def run(self, connection: Connection) -> None:
        self.end = await watch_connection(connection, self.changed)
        self._stir.set()

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(10):
            while not condition():
                self._stir = anyio.Event()
                await self._stir.wait()


@asynccontextmanager
async def staying(peer: McpPeer | SsePeer | StdioPeer) -> AsyncIterator[Staying]:
    """Dial a peer and stay with it."""
    seen = Staying()
    async with Warden() as warden, anyio.create_task_group() as tasks:
        dialer = Dialer(warden=warden, limits=Limits())
        dialed = dialer.connect(_spec(peer), within=10, redactor=Redactor(), hooks=DialHooks(on_notice=seen.noticed))
        async with dialed as connection:
            tasks.start_soon(seen.run, connection)
            yield seen
            tasks.cancel_scope.cancel()


def _spec(peer: McpPeer | SsePeer | StdioPeer) -> ServerSpec:
    if isinstance(peer, StdioPeer):
        definition: dict[str, object] = {"transport": "stdio", "command": peer.command, "args": list(peer.args)}
    else:
        definition = {"transport": "sse" if isinstance(peer, SsePeer) else "streamable_http", "url": peer.url}
    spec = spec_from_connection("a", definition)
    assert not spec.problems
    return spec


@pytest.mark.requirement("LIFE-18")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_notices_come_while_a_stream_is_open_and_its_opening_is_told_as_a_change(era: Any) -> None:
    async with McpPeer(get_stream=True, era=era) as peer, staying(peer) as seen:
        with anyio.fail_after(5):
            await peer.streaming()
        await seen.until(lambda: seen.changes == 1)  # a change after the listing and before the stream was missed
        await peer.push(CHANGED)
        await seen.until(lambda: seen.notices == ["notifications/tools/list_changed"])
        assert set(seen.notices) <= LIST_CHANGED


@pytest.mark.requirement("LIFE-18")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_stream_that_ends_is_opened_again_without_a_pause_the_first_time(era: Any) -> None:
    async with McpPeer(get_stream=True, era=era) as peer, staying(peer) as seen:
        with anyio.fail_after(5):
            await peer.streaming()
        peer.end_streams()
        with anyio.fail_after(5):
            await peer.streaming(2)
        await seen.until(lambda: seen.changes == 2)
        await anyio.wait_all_tasks_blocked()
        assert (seen.changes, seen.end) == (2, None)


@pytest.mark.requirement("LIFE-18")
async def test_streams_that_end_at_once_are_opened_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await anyio.lowlevel.checkpoint()

    async with McpPeer(get_stream=True) as peer:
        peer.script = _streams_meet(_EMPTY_STREAM, peer)
        monkeypatch.setattr("anyio.sleep", sleep)
        async with staying(peer):
            with anyio.fail_after(10):
                await peer.until(lambda: peer.methods.count("GET") >= 12)
        monkeypatch.undo()
    assert pauses[:3] == [0.5, 1, 2]
    assert max(pauses) == session.LONGEST_PAUSE_SECONDS
    assert pauses == sorted(pauses)


async def _end_at_once(exchange: Exchange) -> None:
    await exchange.start(content_type="text/event-stream")
    await exchange.end()


_EMPTY_STREAM = Behaviour("empty-stream", _end_at_once)


def _streams_meet(fault: Behaviour, peer: McpPeer) -> Callable[[Request], Behaviour]:
    return lambda request: fault if request.method == "GET" else peer.healthy


@pytest.mark.requirement("LIFE-6")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_that_refuses_a_new_stream_is_gone(era: Any) -> None:
    async with McpPeer(get_stream=True, era=era) as peer, staying(peer) as seen:
        with anyio.fail_after(5):
            await peer.streaming()
        await peer.stop()
        await seen.until(lambda: seen.end is not None)
        assert isinstance(seen.end, NetworkFailure)
        assert seen.end.fault is NetworkFault.REFUSED


@pytest.mark.requirement("LIFE-17", "LIFE-6")
async def test_a_forgotten_session_is_seen_when_the_stream_is_opened_again() -> None:
    async with McpPeer(get_stream=True) as peer, staying(peer) as seen:
        with anyio.fail_after(5):
            await peer.streaming()
        peer.sessions.clear()
        peer.end_streams()
        await seen.until(lambda: seen.end is not None)
        assert isinstance(seen.end, HttpStatus)
        assert seen.end.status == 404


@pytest.mark.requirement("LIFE-6")
@pytest.mark.parametrize("status", [404, 405, 400, 501])
async def test_a_server_that_has_no_stream_to_offer_is_asked_once_and_stays(status: int) -> None:
    async with McpPeer() as peer:
        peer.script = _streams_meet(respond(status), peer)
        async with staying(peer) as seen:
            with anyio.fail_after(5):
                await peer.until(lambda: "GET" in peer.methods)
            await anyio.wait_all_tasks_blocked()
            assert seen.end is None
            assert peer.methods.count("GET") == 1


@pytest.mark.requirement("LIFE-18")
@pytest.mark.parametrize(("code", "asked"), [(-32601, 1), (-32603, 3)])
async def test_a_subscription_is_asked_for_again_unless_the_server_knows_none(code: int, asked: int) -> None:
    async with McpPeer(era="modern", get_stream=True) as peer:
        peer.script = _subscriptions_meet(code, peer)
        async with staying(peer) as seen:
            with anyio.fail_after(10):
                await peer.until(lambda: peer.methods.count("subscriptions/listen") == asked)
            await anyio.wait_all_tasks_blocked()
            assert peer.methods.count("subscriptions/listen") == asked
            assert (seen.changes, seen.end) == (asked - 1, None)


def _subscriptions_meet(code: int, peer: McpPeer) -> Callable[[Request], Behaviour]:
    async def refuse(exchange: Exchange) -> None:
        await exchange.respond(200, encode(failure(json.loads(exchange.request.body), code, "no")))

    return lambda request: Behaviour("no", refuse) if b"subscriptions/listen" in request.body else peer.healthy


@pytest.mark.requirement("LIFE-18")
@pytest.mark.parametrize(("sound", "pauses"), [(0.0, []), (3600.0, [0.5, 1])])
async def test_only_after_short_subscriptions_to_a_resource_the_next_one_waits(
    sound: float, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    wanted = DesiredState()
    wanted.watch("a://b")

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        await anyio.lowlevel.checkpoint()

    async with McpPeer(era="modern", get_stream=True) as peer, Warden() as warden, anyio.create_task_group() as tasks:
        dialer = Dialer(warden=warden, limits=Limits())
        async with dialer.connect(_spec(peer), within=10, redactor=Redactor()) as connection:
            monkeypatch.setattr(session, "SOUND_SECONDS", sound)
            monkeypatch.setattr("anyio.sleep", sleep)
            tasks.start_soon(apply_desired_state, connection, wanted)
            for number in range(1, 4):
                with anyio.fail_after(5):
                    await peer.streaming(number)
                peer.end_streams()
            with anyio.fail_after(5):
                await peer.streaming(4)
            tasks.cancel_scope.cancel()
        monkeypatch.undo()
    assert waited == pauses


@pytest.mark.requirement("LIFE-6")
async def test_the_end_of_a_child_is_seen_with_its_exit_code(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--era", "modern")
    async with staying(peer) as seen:
        with anyio.fail_after(5):
            await peer.until(lambda: "subscriptions/listen" in peer.methods)
        await seen.until(lambda: seen.changes == 1)
        peer.kill()
        await seen.until(lambda: seen.end is not None)
        assert isinstance(seen.end, ProcessExit)
        assert seen.end.code == -9


@pytest.mark.requirement("LIFE-6")
async def test_a_child_that_reads_no_more_is_gone_though_a_subscription_is_open(stdio_peer: MakePeer) -> None:
    async with staying(stdio_peer("--close-stdin", "--era=modern")) as seen:
        await seen.until(lambda: seen.end)
        assert isinstance(seen.end, NetworkFailure)
        assert seen.end.detail == "it closed its stdin"


@pytest.mark.requirement("LIFE-6")
async def test_the_end_of_an_event_stream_is_the_end_of_an_sse_connection() -> None:
    async with SsePeer() as peer, staying(peer) as seen:
        await peer.stop()
        await seen.until(lambda: seen.end is not None)
        assert isinstance(seen.end, NetworkFailure)


@pytest.mark.requirement("LIFE-18")
async def test_clients_that_watch_a_resource_are_told_of_a_change_for_each_time_without_a_stream() -> None:
    all_told: list[tuple[str, str, object]] = []
    relay: Any = SimpleNamespace(capabilities={}, told=lambda *said: all_told.append(said))
    wanted = DesiredState()
    wanted.watch("a://b")
    change = ("a", "notifications/resources/updated", {"uri": "a://b"})
    async with McpPeer(era="modern", get_stream=True) as peer, Warden() as warden, anyio.create_task_group() as tasks:
        dialer = Dialer(warden=warden, limits=Limits())
        hooks = DialHooks(relay=relay)
        async with dialer.connect(_spec(peer), within=10, redactor=Redactor(), hooks=hooks) as connection:
            tasks.start_soon(apply_desired_state, connection, wanted)
            for number in range(1, 3):
                with anyio.fail_after(5):
                    await peer.streaming(number)
                assert [told for told in all_told if "updated" in told[1]] == [change] * number
                peer.end_streams()
            tasks.cancel_scope.cancel()
