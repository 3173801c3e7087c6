"""Settings that change while the hub runs: in force at once, and no connection is touched (LIFE-20)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from holdfast.core.breaker import BreakerState
from holdfast.core.lifecycle.table import State
from holdfast.errors import CallFailed, ServerBusy
from holdfast.hub.hub import Hub
from holdfast.testing import FakeClock
from tests.harness.open_hubs import config, defined, reaches, running, settled, until
from tests.peers.http_fault import respond
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LIFE-20")]
MakePeer = Callable[..., StdioPeer]


@asynccontextmanager
async def one(clock: FakeClock) -> AsyncIterator[tuple[McpPeer, Hub]]:
    """A hub of one server, as shipped; its first connection must stand for the whole block."""
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        yield peer, hub
        assert hub.server_health("a").generation == 1
        assert peer.methods.count("initialize") == 1


async def change(hub: Hub, peer: object, **settings: Any) -> None:
    await hub.apply(config({"a": peer}, **settings))


async def test_the_period_of_refreshes_is_in_force_at_once() -> None:
    clock = FakeClock()
    async with one(clock) as (peer, hub):
        listed = peer.methods.count("tools/list")
        await change(hub, peer, refresh="10s")
        await clock.advance(10)
        with anyio.fail_after(10):
            await peer.until(lambda: peer.methods.count("tools/list") == listed + 1)
        await change(hub, peer, refresh="off")
        await clock.advance(3600)
        assert peer.methods.count("tools/list") == listed + 1


async def test_the_threshold_and_the_cooldown_of_the_breaker_are_in_force_at_once() -> None:
    clock = FakeClock()
    async with one(clock) as (peer, hub):
        await change(hub, peer, breaker={"threshold": 1})
        peer.script = respond(500, "broken")
        with pytest.raises(CallFailed):
            await hub.call_tool("a__echo")
        assert hub.server_health("a").breaker is BreakerState.OPEN
        peer.script = peer.healthy
        await change(hub, peer, breaker={"threshold": 1, "cooldown": "2s"})
        await clock.advance(2)
        assert (await hub.call_tool("a__echo", {"text": "probed"})).text == "probed"


async def test_the_numbers_of_calls_are_in_force_at_once() -> None:
    async with one(FakeClock()) as (peer, hub):
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hub.call_tool, "a__slow")
                await peer.slow_started.wait()
                await change(hub, peer, call={"concurrency": 1, "queue": 0})
                with pytest.raises(ServerBusy):
                    await hub.call_tool("a__echo")
                await change(hub, peer, call={"concurrency": 2, "queue": 0})
                assert (await hub.call_tool("a__echo", {"text": "second"})).text == "second"
                peer.release.set()


async def test_the_number_of_failures_that_a_connection_may_have_is_in_force_at_once() -> None:
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        await change(hub, peer, reconnect={"failures": 1, "backoff": ["7s"]})
        peer.script = respond(500, "broken")
        with pytest.raises(CallFailed):
            await hub.call_tool("a__echo")
        assert hub.server_health("a").state is State.RECONNECTING
        assert hub.server_health("a").retry_in == 7


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_bounds_are_in_force_on_the_connection_that_stands(transport: str, stdio_peer: MakePeer) -> None:
    async with McpPeer() as http:
        peer = {"http": http, "stdio": stdio_peer()}[transport]
        async with running({"a": peer}, clock=FakeClock(), limits={"messageBytes": 5000}) as hub:
            await hub.ready()
            await change(hub, peer, limits={"messageBytes": 100_000})
            large = "x" * 10_000
            assert (await hub.call_tool("a__echo", {"text": large})).text == large
            assert hub.server_health("a").generation == 1
            await change(hub, peer, limits={"messageBytes": 5000})
            with anyio.fail_after(10), pytest.raises(CallFailed, match="the size of a message"):
                await hub.call_tool("a__echo", {"text": large})


async def test_a_lazy_server_is_stopped_after_the_new_time(stdio_peer: MakePeer) -> None:
    clock = FakeClock()
    lazy = defined(stdio_peer(), lazy=True)
    async with running({"a": lazy}, clock=clock, refresh="off") as hub:
        await hub.ready()
        await change(hub, lazy, refresh="off", idle="5s")
        await clock.advance(5)
        await reaches(hub, "a", State.IDLE)


async def test_a_server_that_comes_later_goes_by_the_new_settings_too() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, McpPeer() as late, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        await hub.apply(config({"a": peer, "b": late}, breaker={"threshold": 1}))
        await until(hub, "b", lambda: hub.server_health("b").generation == 1)
        assert hub.registry.slot("b").machine.breaker.policy.threshold == 1
