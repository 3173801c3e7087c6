"""The limit of dials that begin together: it spreads a burst, and silent servers delay no other."""

from __future__ import annotations

import anyio
import pytest

from holdfast.config import Settings
from holdfast.hub.limits import DialLimit
from holdfast.testing import FakeClock

pytestmark = pytest.mark.anyio

LONG = 60.0


@pytest.mark.requirement("LOAD-11")
async def test_no_more_are_inside_than_there_are_places() -> None:
    inside, most = 0, 0

    async def pass_through(dial_limit: DialLimit) -> None:
        nonlocal inside, most
        async with dial_limit.place():
            inside += 1
            most = max(most, inside)
            await anyio.lowlevel.checkpoint()
            inside -= 1

    with anyio.fail_after(5):
        async with anyio.create_task_group() as timers:
            dial_limit = DialLimit(3, timers, hold=LONG, clock=FakeClock())
            async with anyio.create_task_group() as callers:
                for _ in range(20):
                    callers.start_soon(pass_through, dial_limit)
    assert most == 3


@pytest.mark.requirement("LOAD-11")
async def test_one_that_stays_inside_loses_its_place_and_delays_nobody() -> None:
    leave = anyio.Event()
    passed = anyio.Event()

    async def stay(dial_limit: DialLimit) -> None:
        async with dial_limit.place():
            await leave.wait()

    async def pass_through(dial_limit: DialLimit) -> None:
        async with dial_limit.place():
            passed.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            dial_limit = DialLimit(1, tasks, hold=0.001)
            tasks.start_soon(stay, dial_limit)
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(pass_through, dial_limit)
            await passed.wait()
            leave.set()


async def test_a_place_is_given_back_once_whether_its_time_ran_out_or_not() -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            dial_limit = DialLimit(2, tasks, hold=0.0)
            for _ in range(10):
                async with dial_limit.place():
                    await anyio.lowlevel.checkpoint()
                    await anyio.lowlevel.checkpoint()
        assert dial_limit.free == 2


async def test_an_attempt_that_fails_or_is_cancelled_gives_its_place_back() -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            dial_limit = DialLimit(1, tasks, hold=LONG)
            with pytest.raises(ValueError, match="broken"):
                async with dial_limit.place():
                    raise ValueError("broken")
            with anyio.CancelScope() as scope:
                async with dial_limit.place():
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
            async with dial_limit.place():
                pass


async def test_a_waiting_caller_that_is_cancelled_takes_no_place() -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            dial_limit = DialLimit(1, tasks, hold=LONG, clock=FakeClock())
            async with dial_limit.place():
                with anyio.move_on_after(0) as scope:
                    async with dial_limit.place():
                        raise AssertionError("there is no place")
                assert scope.cancelled_caught
            async with dial_limit.place():
                pass


@pytest.mark.requirement("LOAD-15")
async def test_160_silent_attempts_delay_the_next_by_less_than_half_a_second_with_the_shipped_settings() -> None:
    clock, begun = FakeClock(), []

    async def attempt(dial_limit: DialLimit, name: str) -> None:
        async with dial_limit.place():
            begun.append(name)
            await anyio.sleep_forever()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            dial_limit = DialLimit(Settings().load.concurrency, tasks, clock=clock)
            for number in range(160):
                tasks.start_soon(attempt, dial_limit, f"silent {number}")
            tasks.start_soon(attempt, dial_limit, "healthy")
            await clock.advance(0.0)
            assert len(begun) == Settings().load.concurrency, "a burst is limited at first"
            await clock.advance(0.3)
            assert Settings().load.concurrency < len(begun) < 161, "the others do not begin at the same moment"
            await clock.advance(0.19)
            assert "healthy" in begun
            tasks.cancel_scope.cancel()


@pytest.mark.requirement("LOAD-11")
async def test_a_place_is_given_back_after_its_time_and_more_places_begin_those_that_wait() -> None:
    clock = FakeClock()
    begun: list[int] = []

    async def attempt(dial_limit: DialLimit, number: int) -> None:
        async with dial_limit.place():
            begun.append(number)
            await anyio.sleep_forever()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            dial_limit = DialLimit(1, tasks, clock=clock)
            for number in range(3):
                tasks.start_soon(attempt, dial_limit, number)
            await clock.advance(0.0)
            dial_limit.resize(2)
            await clock.advance(0.0)
            assert (begun, dial_limit.free) == ([0, 1], 0)
            await clock.advance(1.5)
            assert (begun, dial_limit.free) == ([0, 1, 2], 2)
            tasks.cancel_scope.cancel()
