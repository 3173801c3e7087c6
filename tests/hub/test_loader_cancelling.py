"""A load that is cancelled at any point: the caller gets its cancellation, and nothing is left."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import holdfast.hub.loader as loader_room
import holdfast.wire.http.transport as http_room
from holdfast.hub.limits import DialLimit
from holdfast.testing import FakeClock
from tests.hub.loaders import Naps, StallingPeer, http, loader
from tests.peers.http_fault import Behaviour, Exchange, FaultServer, never_answer, respond
from tests.peers.leaks import no_leaks
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LOAD-12")]


async def cancelled_when(work: Awaitable[Any], point: Awaitable[Any]) -> None:
    """Run ``work`` in a task of its own, cancel it at ``point``, and see that it ends as a cancelled one does."""
    task = asyncio.ensure_future(work)
    with anyio.fail_after(20):
        await point
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    ("era", "nth"), [*(("legacy", nth) for nth in range(1, 6)), *(("modern", nth) for nth in range(1, 3))]
)
async def test_nothing_is_left_of_a_load_cancelled_while_a_request_is_unanswered(
    era: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_room, "GOODBYE_SECONDS", 0.1)
    async with no_leaks(), StallingPeer(nth, era=era) as peer:
        await cancelled_when(loader({"a": http(peer.url)}).load(), peer.slow_started.wait())
        await peer.all_closed()
        assert len(peer.requests) >= nth


async def test_nothing_is_left_of_a_load_cancelled_in_the_middle_of_a_body() -> None:
    begun = anyio.Event()

    async def begin(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.chunk(b'{"jsonrpc": "2.0", ')
        begun.set()
        await exchange.gone()

    async with no_leaks(), FaultServer(Behaviour("begin", begin)) as peer:
        await cancelled_when(loader({"a": http(peer.origin)}).load(), begun.wait())
        await peer.all_closed()


async def test_nothing_is_left_of_a_load_cancelled_in_the_middle_of_an_event_stream() -> None:
    begun = anyio.Event()

    async def begin(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        await exchange.chunk(b'data: {"jsonrpc": "2.0", "method": "notifications/message"}\n\ndata: {')
        begun.set()
        await exchange.gone()

    async with no_leaks(), FaultServer(Behaviour("begin", begin)) as peer:
        await cancelled_when(loader({"a": http(peer.origin)}).load(), begun.wait())
        await peer.all_closed()


class LongNap(Naps):
    """A pause that does not end by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = anyio.Event()

    async def __call__(self, seconds: float) -> None:
        self.begun.set()
        await anyio.sleep_forever()


async def test_nothing_is_left_of_a_load_cancelled_between_two_attempts() -> None:
    nap = LongNap()
    async with no_leaks(), FaultServer(respond(503)) as peer:
        await cancelled_when(loader({"a": http(peer.origin)}, naps=nap).load(), nap.begun.wait())
        await peer.all_closed()
    assert len(peer.requests) == 1


async def test_nothing_is_left_of_a_load_cancelled_while_servers_wait_for_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader_room, "DialLimit", functools.partial(DialLimit, clock=FakeClock()))
    async with no_leaks(), StallingPeer(1) as peer:
        connections = {f"s{n}": http(f"{peer.url}?{n}") for n in range(5)}
        await cancelled_when(loader(connections, concurrency=1).load(), peer.slow_started.wait())
        await peer.all_closed()
    assert len(peer.requests) == 1


async def checkpoints(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


POINTS = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 377, 1597]


@pytest.mark.parametrize("steps", POINTS)
async def test_nothing_is_left_of_a_load_over_http_cancelled_at_any_step(steps: int) -> None:
    async with McpPeer() as legacy, McpPeer(era="modern") as modern, no_leaks():
        work = loader({"legacy": http(legacy.url), "modern": http(modern.url)}).load()
        task = asyncio.ensure_future(work)
        await checkpoints(steps)
        task.cancel()
        with anyio.fail_after(20):
            (ended,) = await asyncio.gather(task, return_exceptions=True)
        # Once it is done, there is nothing to cancel any more.
        assert isinstance(ended, asyncio.CancelledError | tuple)
        await legacy.all_closed()
        await modern.all_closed()


@pytest.mark.parametrize("steps", [*POINTS[::2], 10_000])
async def test_nothing_is_left_of_a_load_over_pipes_cancelled_at_any_step(
    steps: int, stdio_peer: Callable[..., StdioPeer]
) -> None:
    peer = stdio_peer("--never-answer", "--grandchild")
    connection = {"transport": "stdio", "command": peer.command, "args": list(peer.args)}
    async with no_leaks():
        await cancelled_when(loader({"a": connection}).load(), checkpoints(steps))
    assert peer.living == []


async def test_nothing_is_left_of_a_call_that_is_cancelled_and_the_server_is_told() -> None:
    async with no_leaks(), McpPeer() as peer:
        await cancelled_when(loader({"a": http(peer.url)}).call("a", "slow", {}), peer.slow_started.wait())
        with anyio.fail_after(5):
            await peer.given_up.wait()
        await peer.all_closed()


async def test_a_deadline_around_a_load_ends_it_as_a_timeout() -> None:
    async with no_leaks(), FaultServer(never_answer) as peer:
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.05):
                await loader({"a": http(peer.origin)}).load()
        await peer.all_closed()
