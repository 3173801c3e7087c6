"""Garbage collections stay short, and nothing that waits to be collected is kept for ever."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from holdfast.hub import Hub, Published
from holdfast.serve import memory as collector
from holdfast.serve.memory import keep_collections_short
from tests.harness.open_hubs import config, running, settled
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-7")]

CHANGES = 300
DEAD = {"url": "http://127.0.0.1:9/mcp"}


@pytest.fixture(autouse=True)
def usual() -> Iterator[tuple[int, int, int]]:
    """The thresholds of this process come back after the test."""
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


class Cycle:
    """Garbage that a collection alone can free."""

    def __init__(self) -> None:
        self.itself = self


async def test_garbage_that_waits_while_a_large_catalog_changes_is_still_collected() -> None:
    async with McpPeer(tools=collector.LARGE_CATALOG + 1) as peer, running({"a": peer}) as hub:
        keep_collections_short(hub)
        await settled(hub, peer)
        frozen = gc.get_freeze_count()
        waiting = []
        for version in range(CHANGES):
            waiting.append(weakref.ref(Cycle()))
            hub.registry.journal.write(Published(server="a", version=version, kinds=("tools",), at=0))
        gc.collect()
        assert [one for one in waiting if one() is not None] == []
        assert gc.get_freeze_count() <= frozen


async def test_a_catalog_of_many_new_objects_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    async with McpPeer(tools=collector.LARGE_CATALOG + 1) as peer, running({"a": peer}) as hub:
        keep_collections_short(hub)
        await settled(hub, peer)
        garbage = weakref.ref(Cycle())
        monkeypatch.setattr(collector, "FEW", 1_000)
        before = gc.get_freeze_count()
        hub.registry.journal.write(Published(server="a", version=9, kinds=("tools",), at=0))
        assert gc.get_freeze_count() > before + 1_000
        assert garbage() is None, "a collection came first"


async def _outcomes(hub: Hub) -> list[int]:
    """The generations that were looked at until each server has an outcome."""
    looked: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            looked.append(info["generation"])

    gc.callbacks.append(note)
    try:
        async with hub:
            with anyio.fail_after(30):
                await hub.ready()
    finally:
        gc.callbacks.remove(note)
    return looked


async def test_while_many_servers_are_dialed_only_the_youngest_objects_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, usual: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(collector, "COLLECT_IN_BURST", 1_000)
    many = {f"s{number}": DEAD for number in range(3 * collector.BURST)}
    hub = Hub(config(many))
    keep_collections_short(hub)
    gc.set_threshold(1_000, 1, 1)
    looked = await _outcomes(hub)
    # Before the burst begins and after it ends, the usual thresholds hold.
    burst = [generation for generation in looked if generation == 0]
    assert len(burst) >= len(looked) * 0.8
    assert gc.get_threshold() == (1_000, 1, 1)
    assert len(hub.registry.slots) == len(many)


async def test_a_burst_ends_though_servers_were_removed_while_they_were_dialed(
    monkeypatch: pytest.MonkeyPatch, usual: tuple[int, int, int]
) -> None:
    ended = asyncio.Event()
    monkeypatch.setattr(collector, "BURST_SECONDS", 0.0)
    monkeypatch.setattr(collector, "_freeze_if_many", ended.set)
    async with McpPeer() as peer, running({"a": peer}) as hub:
        keeper = collector._Keeper(hub)
        for number in range(collector.BURST + 1):
            keeper._moved(f"s{number}", is_dialed=True)
        assert gc.get_threshold() == (collector.COLLECT_IN_BURST, collector.NEVER, collector.NEVER)
        with anyio.fail_after(5):
            await ended.wait()
        assert gc.get_threshold() == usual
