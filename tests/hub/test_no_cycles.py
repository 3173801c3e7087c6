"""What a connection was made of is freed with its last reference: the collector of cycles finds nothing of it.

A collection of the remains of five hundred dials took longer than a step of the event loop may take (SEC-7).
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from benchmarks.processes import stdio_server
from tests.harness.open_hubs import running, settled
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-7")]

SERVERS = 5


@contextmanager
def left_to_the_collector() -> Iterator[Counter[str]]:
    """In the block no collection runs; then the types of ours that only a collection could free are counted."""
    left: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield left
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left += Counter(
            type(one).__name__ for one in gc.garbage if type(one).__module__.startswith(("holdfast", "mcp"))
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_a_dial_that_is_refused_leaves_no_cycles() -> None:
    dead = {f"s{number}": {"url": "http://127.0.0.1:9/mcp"} for number in range(SERVERS)}
    with left_to_the_collector() as left:
        async with running(dead) as hub:
            with anyio.fail_after(10):
                await hub.ready()
    assert left == {}


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_connection_that_is_replaced_leaves_no_cycles(era: Any) -> None:
    async with McpPeer(era=era, get_stream=True) as peer:
        with left_to_the_collector() as left:
            async with running({"a": peer}) as hub:
                await settled(hub, peer)
                for _ in range(3):
                    with anyio.fail_after(10):
                        await hub.reconnect("a")
    # In the modern era the SDK's session refers to itself. What it holds is left too; none of these is.
    gone = {"Attempt", "Connection", "Item", "Lease", "Offers"}
    assert left.keys() & (gone if era == "modern" else left.keys()) == set()


async def test_a_process_that_exits_leaves_no_cycles() -> None:
    with left_to_the_collector() as left:
        async with running({"a": {"command": "false"}}) as hub:
            with anyio.fail_after(20):
                await hub.ready()
    assert left == {}


async def test_a_process_that_is_replaced_leaves_no_cycles() -> None:
    command, *args = stdio_server("--eras", "legacy")
    with left_to_the_collector() as left:
        async with running({"a": {"command": command, "args": args}}) as hub:
            with anyio.fail_after(20):
                await hub.ready()
                await hub.reconnect("a")
    assert left == {}
