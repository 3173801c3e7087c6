"""Garbage collections stay short, and nothing that waits to be collected is kept for ever."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from holdfast.hub import Hub, Published
from holdfast.serve import run as collector
from holdfast.serve.run import keep_collections_short
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
        monkeypatch.setattr(collector, "FEW_OBJECTS", 1_000)
        before = gc.get_freeze_count()
        hub.registry.journal.write(Published(server="a", version=9, kinds=("tools",), at=0))
        assert gc.get_freeze_count() > before + 1_000
        assert garbage() is None, "a collection came first"


async def test_while_many_servers_are_dialed_only_younger_objects_are_looked_at_and_nothing_long_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            looked.append(info["generation"])

    monkeypatch.setattr(collector, "FEW_OBJECTS", 1_000)
    hub = Hub(config({f"s{number}": DEAD for number in range(3 * collector.OUTCOMES_A_LOOK)}))
    keep_collections_short(hub)
    gc.set_threshold(*collector.THRESHOLDS)
    frozen = gc.get_freeze_count()
    gc.callbacks.append(note)
    try:
        async with hub:
            with anyio.fail_after(30):
                await hub.ready()
            assert gc.get_freeze_count() > frozen + 1_000
    finally:
        gc.callbacks.remove(note)
    assert 1 in looked, "a collection came before the freeze"
    assert 2 not in looked


def test_new_objects_are_counted_through_all_generations() -> None:
    gc.set_threshold(1_000, 1, 1_000)
    gc.freeze()
    assert collector._new_objects() < 1_000
    kept = [[number] for number in range(20_000)]
    assert 19_000 < collector._new_objects() < 22_000
    gc.freeze()
    assert collector._new_objects() < 1_000
    assert len(kept) == 20_000
