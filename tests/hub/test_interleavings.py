"""Thousands of random operations on a hub with real servers: no reader and no caller ever sees what must not be."""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.hub.hub import Hub
from tests.hub.interleaving import Interleaving, fleet
from tests.peers.leaks import no_leaks

pytestmark = pytest.mark.anyio

OPERATIONS = 400
LONG_OPERATIONS = 1000
ROUNDS = int(os.environ.get("HOLDFAST_ROUNDS", "4"))
"""The number of seeds in the long run."""

UNTIL_CLOSED = 100
"""Few, so that most servers are still on their way up or down."""

GROWTH = 5000
"""How many blocks of memory may come and go between two moments of calm; the calls in between made millions."""


def seeds() -> list[Any]:
    """The same in every run, so that a failure can be repeated. The ordinary run takes the first."""
    given = os.environ.get("HOLDFAST_SEED")
    first, *others = [int(given)] if given else [1_000_003 * (number + 1) for number in range(ROUNDS)]
    return [first, *(pytest.param(seed, marks=pytest.mark.long) for seed in others)]


@pytest.mark.requirement("LIFE-1", "LIFE-2", "LIFE-4", "LIFE-11", "LIFE-12", "LIFE-13", "LIFE-14", "LIFE-20")
@pytest.mark.parametrize("seed", seeds())
async def test_random_operations_leave_readers_callers_and_the_system_whole(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    caplog.set_level(logging.ERROR)
    operations = LONG_OPERATIONS if request.node.get_closest_marker("long") else OPERATIONS
    async with no_leaks(settle=10):
        story, growth = await _play(seed, tmp_path, operations)
    assert not story, f"HOLDFAST_SEED={seed}\n{story}"
    assert growth < GROWTH, f"HOLDFAST_SEED={seed}: {growth} blocks more after as many operations again"
    assert not caplog.records, f"HOLDFAST_SEED={seed}\n{caplog.text}"


@pytest.mark.requirement("LIFE-12", "LIFE-13")
@pytest.mark.parametrize("seed", seeds())
async def test_a_hub_that_is_closed_in_the_middle_of_it_all_leaves_nothing_and_revives_nothing(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, brisk: None
) -> None:
    caplog.set_level(logging.ERROR)
    async with no_leaks(settle=10), fleet(tmp_path) as servers, Hub(servers.config()) as hub:
        playing = Interleaving(hub, servers, seed)
        await playing.run_and_close(UNTIL_CLOSED)
    assert not playing.wrong, f"HOLDFAST_SEED={seed}\n{playing.story()}"
    assert not caplog.records, f"HOLDFAST_SEED={seed}\n{caplog.text}"


async def _play(seed: int, folder: Path, operations: int) -> tuple[str, int]:
    """What went wrong, and by how much memory grew from the first moment of calm to the second."""
    async with fleet(folder) as servers, Hub(servers.config(), state_file=folder / "state.sqlite") as hub:
        await hub.ready(10)
        playing = Interleaving(hub, servers, seed)
        halves = [await _half(playing, operations) for _ in range(2)]
    return playing.story() if playing.wrong else "", halves[1] - halves[0]


async def _half(playing: Interleaving, operations: int) -> int:
    await playing.run(operations // 2)
    playing.servers.forget()
    gc.collect()
    return sys.getallocatedblocks()
