"""The breaker on real servers: what it refuses, what it lets through, and what the server really received."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from holdfast.core.breaker import BreakerState
from holdfast.core.lifecycle.table import State
from holdfast.errors import BreakerOpen, CallFailed, LoadFailed, ServerPermanentlyFailed
from holdfast.hub.hub import Hub
from holdfast.testing import FakeClock
from tests.harness.open_hubs import reaches, records, running, settled, trips, until
from tests.peers.http_fault import never_answer, reset_before_answer, respond
from tests.peers.mcp_http import McpPeer, calls_meet

pytestmark = pytest.mark.anyio

ALONE: dict[str, Any] = {"refresh": "off", "reconnect": {"failures": 99}}
"""Without the lifecycle's own reaction to failures, so that the breaker is seen by itself."""


@asynccontextmanager
async def one(clock: FakeClock, **settings: Any) -> AsyncIterator[tuple[McpPeer, Hub]]:
    """One connected HTTP server and its hub."""
    async with McpPeer() as peer, running({"a": peer}, clock=clock, **{**ALONE, **settings}) as hub:
        await settled(hub, peer)
        yield peer, hub


async def trip(peer: McpPeer, hub: Hub) -> None:
    peer.script = calls_meet(respond(503, "mending"), peer)
    for _ in range(3):
        with pytest.raises(CallFailed):
            await hub.call_tool("a__echo")
    assert hub.server_health("a").breaker is BreakerState.OPEN
    lease = hub.registry.slots["a"].machine.life.lease
    assert lease is not None
    await until(hub, "a", lambda: not lease.checking)  # a failed call asks for a ping


@pytest.mark.requirement("BRK-1", "BRK-5")
async def test_three_failed_calls_trip_it_and_it_refuses_without_touching_the_network() -> None:
    clock = FakeClock()
    async with one(clock) as (peer, hub):
        await trip(peer, hub)
        seen = peer.connections, len(peer.requests)
        await clock.advance(20)
        for _ in range(50):
            with pytest.raises(BreakerOpen):
                await hub.call_tool("a__echo")
        with pytest.raises(BreakerOpen) as refusal:
            await hub.call_tool("a__echo")
        assert refusal.value.retry_in == 40
        assert "the first call in 40 s tries it" in str(refusal.value)
        assert (peer.connections, len(peer.requests)) == seen


@pytest.mark.requirement("BRK-1")
async def test_failures_that_lie_too_far_apart_do_not_trip_it() -> None:
    clock = FakeClock()
    async with one(clock) as (peer, hub):
        peer.script = calls_meet(respond(503), peer)
        for _ in range(5):
            with pytest.raises(CallFailed):
                await hub.call_tool("a__echo")
            await clock.advance(16)
        assert hub.server_health("a").breaker is BreakerState.CLOSED
        assert peer.methods.count("tools/call") == 5


@pytest.mark.requirement("BRK-3", "BRK-2")
async def test_tool_errors_and_json_rpc_errors_never_count_and_reset_the_count() -> None:
    async with one(FakeClock()) as (peer, hub):
        for _ in range(10):
            assert (await hub.call_tool("a__fail")).is_error
        peer.mind.names.remove("add")
        for _ in range(10):
            with pytest.raises(CallFailed, match="Unknown tool"):
                await hub.call_tool("a__add")
        assert hub.registry.slots["a"].machine.breaker.failures == 0
        for _ in range(4):
            peer.script = calls_meet(reset_before_answer, peer)
            for _ in range(2):
                with pytest.raises(CallFailed):
                    await hub.call_tool("a__echo")
            peer.script = peer.healthy
            await hub.call_tool("a__fail")
        assert hub.server_health("a").breaker is BreakerState.CLOSED


@pytest.mark.requirement("BRK-6")
async def test_after_the_cooldown_exactly_one_of_many_callers_is_the_probe_and_its_success_closes() -> None:
    clock = FakeClock()
    async with one(clock) as (peer, hub):
        await trip(peer, hub)
        seen = peer.methods.count("tools/call")
        peer.script = peer.healthy
        await clock.advance(60)
        outcomes: list[str] = []

        async def call() -> None:
            try:
                outcomes.append((await hub.call_tool("a__slow", {"text": "probed"})).text)
            except BreakerOpen as exc:
                outcomes.append("refused" if "probed by another call" in str(exc) else str(exc))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(call)
                await peer.slow_started.wait()
                await anyio.wait_all_tasks_blocked()
                assert hub.server_health("a").breaker is BreakerState.HALF_OPEN
                peer.release.set()
        assert sorted(outcomes) == ["probed", *["refused"] * 19]
        assert peer.methods.count("tools/call") == seen + 1
        assert hub.server_health("a").breaker is BreakerState.CLOSED


@pytest.mark.requirement("BRK-6", "BRK-9")
@pytest.mark.parametrize(("growth", "then"), [(1, 60), (3, 180)])
async def test_a_failed_probe_opens_it_for_another_cooldown(growth: float, then: float) -> None:
    clock = FakeClock()
    async with one(clock, breaker={"growth": growth}) as (peer, hub):
        await clock.advance(30)  # the connection has stood for long enough to forget what was before
        await trip(peer, hub)
        seen = peer.methods.count("tools/call")
        await clock.advance(60)
        with pytest.raises(CallFailed):
            await hub.call_tool("a__echo")
        with pytest.raises(BreakerOpen) as refusal:
            await hub.call_tool("a__echo")
        assert refusal.value.retry_in == then
        assert peer.methods.count("tools/call") == seen + 1


@pytest.mark.requirement("BRK-4", "BRK-6")
async def test_a_probe_whose_caller_is_cancelled_gives_its_place_back() -> None:
    clock = FakeClock()
    async with one(clock) as (peer, hub):
        await trip(peer, hub)
        peer.script = peer.healthy
        await clock.advance(60)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hub.call_tool, "a__slow")
                await peer.slow_started.wait()
                tasks.cancel_scope.cancel()
        assert hub.server_health("a").breaker is BreakerState.HALF_OPEN
        assert (await hub.call_tool("a__echo", {"text": "mine"})).text == "mine"
        assert hub.server_health("a").breaker is BreakerState.CLOSED


@pytest.mark.requirement("BRK-4")
async def test_a_denied_probe_neither_opens_nor_closes_it_and_gives_its_place_back() -> None:
    clock = FakeClock()
    async with one(clock) as (peer, hub):
        await trip(peer, hub)
        await clock.advance(60)
        peer.script = calls_meet(respond(403, "not you"), peer)
        for _ in range(3):
            with pytest.raises(CallFailed, match="not you"):
                await hub.call_tool("a__echo")
            assert hub.server_health("a").breaker is BreakerState.HALF_OPEN


@pytest.mark.requirement("BRK-8")
async def test_a_burst_of_failing_calls_writes_one_line_for_the_trip(caplog: pytest.LogCaptureFixture) -> None:
    async with one(FakeClock()) as (peer, hub):
        told = records(hub)
        peer.script = calls_meet(respond(503, "mending"), peer)
        with caplog.at_level(logging.INFO, "holdfast"):
            async with anyio.create_task_group() as tasks:
                for _ in range(40):
                    tasks.start_soon(_fails, hub)
            for _ in range(40):
                await _fails(hub)
        lines = [record.getMessage() for record in caplog.records if record.name.startswith("holdfast")]
        assert len(lines) == 1
        assert "breaker open for 60 s after 3 failures" in lines[0]
        assert trips(told) == 1
        with caplog.at_level(logging.INFO, "holdfast"):
            await hub.reconnect("a")
        assert "40 calls refused while it was open" in caplog.text


async def _fails(hub: Hub) -> None:
    with pytest.raises((CallFailed, BreakerOpen)):
        await hub.call_tool("a__echo")


@pytest.mark.requirement("BRK-9")
async def test_a_manual_reconnect_and_a_login_close_it() -> None:
    async with one(FakeClock()) as (peer, hub):
        await trip(peer, hub)
        peer.script = peer.healthy
        await hub.reconnect("a")
        assert hub.server_health("a").breaker is BreakerState.CLOSED
        await hub.call_tool("a__echo")
        await trip(peer, hub)
        peer.script = peer.healthy
        hub.logged_in("a")
        assert hub.server_health("a").breaker is BreakerState.CLOSED
        await hub.call_tool("a__echo")


@pytest.mark.requirement("BRK-2", "BRK-6")
async def test_failed_connects_and_failed_calls_share_one_count() -> None:
    clock = FakeClock()
    async with one(clock, reconnect={"failures": 1}) as (peer, hub):
        told = records(hub)
        peer.script = respond(503, "mending")
        with pytest.raises(CallFailed):
            await hub.call_tool("a__echo")  # one, with the first dial; and the lifecycle gives the connection up
        machine = hub.registry.slots["a"].machine
        for dials, failures in ((2, 1), (3, 2), (4, 3)):
            await clock.advance(hub.server_health("a").retry_in or 0)
            await until(hub, "a", lambda n=dials: machine.life.generation == n and machine.dialing is None)  # type: ignore[misc]
            assert machine.breaker.failures == failures
        assert trips(told) == 1
        assert hub.server_health("a").breaker is BreakerState.OPEN
        seen = len(peer.requests)
        with pytest.raises(BreakerOpen):
            await hub.call_tool("a__echo")
        assert len(peer.requests) == seen
        peer.script = peer.healthy
        await clock.advance(hub.server_health("a").retry_in or 0)
        await reaches(hub, "a")  # a successful reconnect closes it, long before its cooldown is over
        assert hub.server_health("a").breaker is BreakerState.CLOSED


@pytest.mark.requirement("BRK-6", "LIFE-19")
async def test_a_probe_of_a_parked_server_and_a_reconnect_share_one_dial() -> None:
    clock = FakeClock()
    async with one(clock, reconnect={"failures": 1, "backoff": ["1s"]}) as (peer, hub):
        peer.script = respond(410, "mending")
        with pytest.raises(CallFailed):
            await hub.call_tool("a__echo")
        await clock.advance(1)
        await reaches(hub, "a", State.PERMANENTLY_FAILED)
        with pytest.raises(ServerPermanentlyFailed, match="mending"):
            await hub.call_tool("a__echo")
        await clock.advance(60)
        peer.script = never_answer
        seen = peer.methods.count("initialize")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hub.call_tool, "a__echo")
            with anyio.fail_after(5):
                await peer.until(lambda: peer.methods.count("initialize") == seen + 1)
            tasks.start_soon(hub.reconnect, "a")
            await anyio.wait_all_tasks_blocked()
            assert peer.methods.count("initialize") == seen + 1
            tasks.cancel_scope.cancel()


@pytest.mark.requirement("BRK-4", "LIFE-23")
async def test_a_bad_definition_and_a_denial_say_nothing_to_the_breaker() -> None:
    async with McpPeer(auth="Bearer right") as peer, running({"a": {"url": 7}, "b": peer}, clock=FakeClock()) as hub:
        await hub.ready()
        for _ in range(5):
            for name in ("a", "b"):
                with pytest.raises(LoadFailed):
                    await hub.reconnect(name)
        for name in ("a", "b"):
            assert hub.registry.slots[name].machine.breaker.failures == 0
            assert hub.server_health(name).breaker is BreakerState.CLOSED
