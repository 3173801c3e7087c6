"""A large catalog is made in a thread: what changes meanwhile is not lost, and neither is the publication."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest

from holdfast import Hub
from tests.harness.open_hubs import running
from tests.harness.waiting import PATIENCE, came_true
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LIFE-18", "SEC-7")]

MANY = 3_200
"""Tools: more than a hub publishes in one step of its event loop."""


@asynccontextmanager
async def no_thread_free() -> AsyncIterator[Callable[[], int]]:
    """No thread works until the block ends; gives how many pieces of work wait for one."""
    limiter, end = anyio.to_thread.current_default_thread_limiter(), threading.Event()
    usual, limiter.total_tokens = limiter.total_tokens, 1
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, lambda: end.wait(None))
        try:
            with anyio.fail_after(PATIENCE):
                await came_true(lambda: limiter.borrowed_tokens)
                yield lambda: limiter.statistics().tasks_waiting
        finally:
            end.set()
            limiter.total_tokens = usual


def names(hub: Hub) -> set[str]:
    return {entry.name for entry in hub.catalog.tools}


async def test_a_server_that_is_disabled_while_a_large_catalog_is_made_stays_out_of_it() -> None:
    async with McpPeer(tools=MANY) as large, McpPeer() as small, running({"large": large, "small": small}) as hub:
        assert await hub.ready(PATIENCE)
        await came_true(lambda: len(names(hub)) == MANY + 5)
        large.mind.names.append("late")
        async with anyio.create_task_group() as tasks, no_thread_free() as waiting:
            tasks.start_soon(hub.reconnect, "large")
            await came_true(waiting)
            await hub.toggle("small", False)
            assert not [name for name in names(hub) if name.startswith("small__")]
        await came_true(lambda: "large__late" in names(hub))
        assert not [name for name in names(hub) if name.startswith("small__")]


async def test_a_newer_listing_that_comes_while_a_large_catalog_is_made_is_the_one_that_is_published() -> None:
    async with McpPeer(tools=MANY) as large, running({"large": large}) as hub:
        assert await hub.ready(PATIENCE)
        await came_true(lambda: len(names(hub)) == MANY)
        async with anyio.create_task_group() as tasks, no_thread_free() as waiting:
            large.mind.names.append("late")
            tasks.start_soon(hub.reconnect, "large")
            await came_true(waiting)
            large.mind.names.remove("late")
            large.mind.names.append("later")
            with anyio.fail_after(PATIENCE):
                await hub.reconnect("large")
        await came_true(lambda: "large__later" in names(hub))
        assert "large__late" not in names(hub)
