"""One event in the world is one failure for the breaker: real servers stop, and what is counted is looked at."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core.breaker import BreakerState
from holdfast.core.lifecycle.events import Tick
from holdfast.core.lifecycle.table import State
from holdfast.errors import BreakerOpen, CallFailed, HoldfastError, ServerUnavailable
from holdfast.hub.hub import Hub
from holdfast.hub.slot import Slot
from holdfast.testing import FakeClock
from tests.harness.open_hubs import reaches, records, running, settled, trips, until
from tests.peers.http_fault import Behaviour, Exchange, close_mid_answer, reset_before_answer, respond
from tests.peers.mcp_http import McpPeer
from tests.peers.mcp_sse import SsePeer
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio


def failures(hub: Hub) -> int:
    return hub.registry.slots["a"].machine.breaker.failures


async def first_dial_failed(hub: Hub) -> None:
    """Wait until the connection is gone, and the dial after it has failed."""
    slot = hub.registry.slots["a"]
    await until(hub, "a", lambda: slot.state is State.RECONNECTING and slot.machine.dialing is None)


@asynccontextmanager
async def in_flight(hub: Hub, peer: McpPeer | SsePeer, calls: int, into: list[str]) -> AsyncIterator[None]:
    """So many calls are with the server; when the block ends, each has ended too."""

    async def call() -> None:
        try:
            await hub.call_tool("a__slow")
        except HoldfastError as exc:
            into.append(type(exc).__name__)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(calls):
                tasks.start_soon(call)
            await peer.until(lambda: peer.methods.count("tools/call") == calls)
            yield


@pytest.mark.requirement("BRK-2")
@pytest.mark.parametrize("calls", [1, 5])
@pytest.mark.parametrize("kind", ["legacy", "stream", "modern", "sse"])
async def test_a_server_that_stops_during_calls_is_one_failure(kind: str, calls: int) -> None:
    peers: dict[str, McpPeer | SsePeer] = {
        "legacy": McpPeer(),
        "stream": McpPeer(get_stream=True),
        "modern": McpPeer(era="modern"),
        "sse": SsePeer(),
    }
    clock, ended = FakeClock(), list[str]()
    async with peers[kind] as peer, running({"a": peer}, clock=clock, call={"readyTimeout": "1ms"}) as hub:
        await settled(hub)
        told = records(hub)
        async with in_flight(hub, peer, calls, ended):
            await peer.stop()
        await first_dial_failed(hub)
        assert failures(hub) == 1
        assert (hub.server_health("a").breaker, trips(told)) == (BreakerState.CLOSED, 0)
        assert ended == ["ConnectionClosed"] * calls
        # What fails after that is another failure: nothing has listened for longer than one event takes.
        for expected in (2, 3):
            await clock.advance((hub.registry.slots["a"].machine.life.attempts or 0) + 2)
            await until(hub, "a", lambda n=expected: failures(hub) >= n)  # type: ignore[misc]


@pytest.mark.requirement("BRK-2")
async def test_a_process_that_is_killed_during_a_call_and_does_not_start_again_is_one_failure(tmp_path: Path) -> None:
    peer, gone = StdioPeer(folder=tmp_path), tmp_path / "gone"
    program = f"import os, sys; os.path.exists({str(gone)!r}) and sys.exit(75); os.execv(sys.executable, sys.argv[1:])"
    command = {"command": sys.executable, "args": ["-I", "-S", "-c", program, sys.executable, *peer.args]}
    ended: list[str] = []
    async with running({"a": command}, clock=FakeClock(), call={"readyTimeout": "1ms"}) as hub:
        await settled(hub)

        async def call() -> None:
            try:
                await hub.call_tool("a__slow")
            except HoldfastError as exc:
                ended.append(type(exc).__name__)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await peer.until(lambda: "tools/call" in peer.methods)
                gone.touch()
                os.kill(peer.pids[0], signal.SIGKILL)
            await first_dial_failed(hub)
        assert ended == ["ConnectionClosed"]
        assert failures(hub) == 1
        assert hub.server_health("a").breaker is BreakerState.CLOSED


@pytest.mark.requirement("BRK-2")
@pytest.mark.parametrize("fault", [close_mid_answer, reset_before_answer, respond(502), respond(503)], ids=str)
async def test_a_server_behind_a_gateway_that_fails_everything_is_one_failure_until_it_is_dialed_twice(
    fault: Behaviour,
) -> None:
    """The gateway still listens: the call fails, the check that follows fails, and so does the dial after them."""
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        peer.script = fault
        with pytest.raises(CallFailed):
            await hub.call_tool("a__echo")
        await reaches(hub, "a", State.RECONNECTING)
        await clock.advance(1)
        await until(hub, "a", lambda: hub.server_health("a").attempts == 1)
        assert failures(hub) == 1
        await clock.advance(2)
        await until(hub, "a", lambda: hub.server_health("a").attempts == 2)
        assert failures(hub) == 2
        assert hub.server_health("a").breaker is BreakerState.CLOSED


@pytest.mark.requirement("BRK-2", "BRK-11")
async def test_calls_that_fail_on_a_connection_that_stands_count_each_for_itself() -> None:
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        peer.script = lambda request: reset_before_answer if b'"tools/call"' in request.body else peer.healthy
        lease = hub.registry.slots["a"].machine.life.lease
        assert lease is not None
        for expected in (1, 2):
            with pytest.raises(CallFailed):
                await hub.call_tool("a__echo")
            await until(hub, "a", lambda: not lease.checking)
            assert failures(hub) == expected
        with pytest.raises(CallFailed):
            await hub.call_tool("a__echo")
        assert hub.server_health("a").breaker is BreakerState.OPEN
        assert peer.methods.count("tools/call") == 3


@pytest.mark.requirement("BRK-5")
async def test_calls_that_wait_for_their_turn_when_the_breaker_opens_are_refused_and_never_sent() -> None:
    """Their failures would end the connection that has come to stand meanwhile."""
    limits: dict[str, Any] = {"concurrency": 1, "queue": 50}
    first, go_on = anyio.Event(), anyio.Event()

    async def held(exchange: Exchange) -> None:
        first.set()
        await go_on.wait()
        exchange.reset()

    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock(), call=limits) as hub:
        await settled(hub, peer)
        peer.script = lambda request: Behaviour("held", held) if b'"tools/call"' in request.body else peer.healthy
        outcomes: list[str] = []

        async def call() -> None:
            try:
                await hub.call_tool("a__echo")
            except (CallFailed, ServerUnavailable) as exc:
                outcomes.append(type(exc).__name__)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(call)
                await first.wait()
                await anyio.wait_all_tasks_blocked()
                go_on.set()
        assert hub.server_health("a").breaker is BreakerState.OPEN
        assert peer.methods.count("tools/call") == 3
        assert sorted(outcomes) == ["BreakerOpen"] * 17 + ["ConnectionClosed"] * 3
        await reaches(hub, "a", State.RECONNECTING)
        assert hub.registry.slots["a"].bulkhead.free == 1


@pytest.mark.requirement("BRK-5", "LIFE-7")
async def test_a_call_that_waits_for_its_turn_when_its_server_is_disabled_is_told_so() -> None:
    limits: dict[str, Any] = {"concurrency": 1, "queue": 50}
    async with McpPeer() as peer, running({"a": peer}, call=limits) as hub:
        await settled(hub, peer)
        outcomes: list[str] = []

        async def call() -> None:
            try:
                await hub.call_tool("a__slow")
            except (CallFailed, ServerUnavailable) as exc:
                outcomes.append(type(exc).__name__)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(call)
                await peer.slow_started.wait()
                await anyio.wait_all_tasks_blocked()
                await hub.toggle("a", enabled=False)
        assert sorted(outcomes) == ["ConnectionClosed", "ServerDisabled", "ServerDisabled"]


@pytest.mark.requirement("BRK-5", "BRK-11")
async def test_a_call_that_waits_for_a_connection_is_judged_again_when_one_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls opened the breaker meanwhile: only one of them may try, after the cooldown."""
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock(), reconnect={"failures": 99}) as hub:
        await settled(hub, peer)
        slot = hub.registry.slots["a"]
        outcomes, go_on = list[str](), anyio.Event()

        async def held(exchange: Exchange) -> None:
            await go_on.wait()
            await exchange.respond(503)

        async def call() -> None:
            try:
                await hub.call_tool("a__echo")
            except (BreakerOpen, CallFailed) as exc:
                outcomes.append(type(exc).__name__)

        peer.script = lambda request: Behaviour("held", held) if b'"tools/call"' in request.body else peer.healthy
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(call)
                await peer.until(lambda: peer.methods.count("tools/call") == 3)
                with monkeypatch.context() as patched:  # new calls wait for a connection, those in flight go on
                    patched.setattr(Slot, "lease", None)
                    tasks.start_soon(call)
                    await anyio.wait_all_tasks_blocked()
                    go_on.set()
                    await until(hub, "a", lambda: hub.server_health("a").breaker is BreakerState.OPEN)
                slot.handle(Tick())
        assert sorted(outcomes) == ["BreakerOpen", *["CallFailed"] * 3]
        assert peer.methods.count("tools/call") == 3
