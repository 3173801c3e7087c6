"""What a hub that waits costs, in counts: a timer comes once, and timers of many servers come together."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
import uvloop
from anyio._backends import _asyncio as backend

from holdfast.hub.hub_clock import RealClock
from holdfast.wire.http.connection import IDLE_SECONDS
from holdfast.wire.http.pool import HttpOrigin, Pool
from tests.peers.mcp_http import McpPeer

pytestmark = pytest.mark.requirement("PERF-4")


def test_a_wait_that_ends_by_its_time_sets_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timers of uvloop count milliseconds: a time between two of them is not asked for again and again."""
    looked: list[float] = []
    real = backend.CancelScope._timeout

    def counted(scope: Any) -> None:
        looked.append(asyncio.get_running_loop().time())
        real(scope)

    async def wait() -> None:
        clock = RealClock()
        for part in range(10):
            until = clock.now() + 0.002 + part / 10_000
            assert not await clock.wait(anyio.Event(), until)
            assert clock.now() >= until

    monkeypatch.setattr(backend.CancelScope, "_timeout", counted)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(wait())
    # Each scope looks when it is entered, and when its time has come; on a busy machine that can be the same moment.
    assert 10 <= len(looked) <= 20


@pytest.mark.anyio
async def test_all_pools_close_what_is_idle_at_the_same_times(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[tuple[float, float]] = []
    real = loop.call_at

    def counted(when: float, *args: Any, **options: Any) -> Any:
        if getattr(args[0], "__name__", "") == "_sweep":
            timers.append((when, when - loop.time()))
        return real(when, *args, **options)

    async with McpPeer() as peer:
        origin = HttpOrigin("127.0.0.1", peer.port, tls=False)
        monkeypatch.setattr(loop, "call_at", counted)
        pools = [Pool(origin) for _ in range(3)]
        for pool in pools:
            response = await pool.request("GET", "/elsewhere", {})
            response.close()
            await asyncio.sleep(0)
        for pool in pools:
            await pool.aclose()
    assert len(timers) == 3
    for when, wait in timers:
        assert when % IDLE_SECONDS == pytest.approx(0, abs=1e-3)
        assert IDLE_SECONDS <= wait <= 2 * IDLE_SECONDS
