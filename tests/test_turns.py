"""Long work on the event loop lets other tasks run, by the clock and not by a count."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.turns import STEP_SECONDS, Turns

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-7")]


class Clock:
    """A clock that each piece of work moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("holdfast.turns.time.perf_counter", lambda: self.now)


async def _other_runs(turns: Turns, clock: Clock, pieces: int, seconds: float) -> int:
    """How often another task ran while some pieces of work were done."""
    ran, over = 0, False

    async def other() -> None:
        nonlocal ran
        while not over:
            ran += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(pieces):
        clock.now += seconds
        await turns.offer()
    seen, over = ran, True
    await task
    return seen


async def test_work_that_is_short_lets_no_other_task_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert await _other_runs(Turns(), clock, 10, STEP_SECONDS / 20) == 0


async def test_work_that_is_long_lets_the_others_run_once_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert await _other_runs(Turns(), clock, 100, STEP_SECONDS / 10) == pytest.approx(10, abs=2)


async def test_a_piece_of_work_that_is_a_step_by_itself_is_followed_by_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    turns = Turns()
    assert await _other_runs(turns, clock, 5, STEP_SECONDS) == 5
    assert repr(turns) == f"<Turns {1000 * STEP_SECONDS:.1f} ms left>"
