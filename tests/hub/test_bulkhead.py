"""Calls in flight and waiting are limited per server, and over the limit the refusal is a clear one."""

from __future__ import annotations

import anyio
import pytest

from holdfast.config import CallPolicy
from holdfast.errors import ServerBusy
from holdfast.hub.hub import Hub
from holdfast.hub.limits import Bulkhead
from holdfast.testing import FakeClock
from tests.harness.open_hubs import running, settled
from tests.peers.mcp_http import McpPeer

pytestmark = pytest.mark.anyio


async def calling(hub: Hub, tool: str, into: list[str]) -> None:
    """Call a tool; keep its text, or that it was refused."""
    try:
        into.append((await hub.call_tool(tool, {"text": "done"})).text)
    except ServerBusy:
        into.append("busy")


@pytest.mark.requirement("HUB-12")
async def test_a_call_over_the_limits_is_refused_clearly_and_never_reaches_the_server() -> None:
    limits = {"concurrency": 2, "queue": 3}
    async with (
        McpPeer() as peer,
        McpPeer() as other,
        running({"a": peer, "b": other}, clock=FakeClock(), call=limits) as hub,
    ):
        await settled(hub, peer, other)
        outcomes: list[str] = []
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(calling, hub, "a__slow", outcomes)
                await peer.until(lambda: peer.methods.count("tools/call") == 2)
                await anyio.wait_all_tasks_blocked()
                with pytest.raises(ServerBusy, match="limit of calls in flight") as refusal:
                    await hub.call_tool("a__slow")
                assert refusal.value.server_id == "a"
                assert (await hub.call_tool("b__echo", {"text": "free"})).text == "free"
                assert peer.methods.count("tools/call") == 2
                peer.release.set()
        assert outcomes == ["done"] * 5
        assert peer.methods.count("tools/call") == 5
        assert hub.registry.slots["a"].machine.breaker.failures == 0


@pytest.mark.requirement("HUB-12")
async def test_a_caller_that_is_cancelled_while_it_waits_leaves_its_place_to_the_next() -> None:
    limits = {"concurrency": 1, "queue": 1}
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock(), call=limits) as hub:
        await settled(hub, peer)
        outcomes: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(calling, hub, "a__slow", outcomes)
            with anyio.fail_after(5):
                await peer.slow_started.wait()
            with anyio.move_on_after(0.01):
                await hub.call_tool("a__echo")
            tasks.start_soon(calling, hub, "a__echo", outcomes)
            await anyio.wait_all_tasks_blocked()
            peer.release.set()
        assert outcomes == ["done", "done"]


@pytest.mark.requirement("HUB-12")
async def test_no_call_waits_for_its_turn_without_end() -> None:
    bulkhead = Bulkhead(CallPolicy(concurrency=1, queue=5, timeout=0.01))
    assert bulkhead.try_acquire()
    assert not await bulkhead.wait()
    assert bulkhead.waiting == 0
    bulkhead.release()
    assert await bulkhead.wait()
    assert bulkhead.waiting == 0
    assert not bulkhead.try_acquire()
