"""The fake clock: a test moves the time, and each task wakes at its own time."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from holdfast.hub.hub_clock import Clock, RealClock
from holdfast.testing import FakeClock

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("clock", [FakeClock(), RealClock()], ids=["fake", "real"])
async def test_a_clock_tells_which_came_first_the_event_or_the_time(clock: Clock) -> None:
    event = anyio.Event()
    assert await clock.wait(event, clock.now()) is False
    event.set()
    with anyio.fail_after(5):
        assert await clock.wait(event, clock.now() + 1000) is True
        assert await clock.wait(event, None) is True


async def test_whoever_waits_for_a_time_wakes_at_that_time_and_in_order() -> None:
    clock, woken = FakeClock(start=100.0), []

    async def sleeper(until: float) -> None:
        assert await clock.wait(anyio.Event(), until) is False
        woken.append((until, clock.now()))

    async with anyio.create_task_group() as tasks:
        for until in (130.0, 110.0, 120.0, 151.0):
            tasks.start_soon(sleeper, until)
        await anyio.lowlevel.checkpoint()
        assert clock.next_due == 110.0
        await clock.advance(50)
        assert woken == [(110.0, 110.0), (120.0, 120.0), (130.0, 130.0)]
        assert clock.now() == 150.0
        assert await clock.advance_to_next() == 151.0
    assert clock.next_due is None


async def test_a_timer_that_is_set_on_the_way_fires_on_the_way() -> None:
    clock, ticks = FakeClock(), []

    async def ticker() -> None:
        for second in range(1, 6):
            await clock.wait(anyio.Event(), float(second))
            ticks.append(clock.now())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ticker)
        await anyio.lowlevel.checkpoint()
        await clock.advance(10)
    assert ticks == [1.0, 2.0, 3.0, 4.0, 5.0]


async def test_a_cancelled_waiter_is_forgotten() -> None:
    clock = FakeClock()
    with anyio.move_on_after(0):
        await clock.wait(anyio.Event(), 10.0)
    assert clock.next_due is None
    with pytest.raises(LookupError):
        await clock.advance_to_next()
