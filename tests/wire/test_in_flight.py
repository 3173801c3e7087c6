from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.wire.in_flight import InFlight

pytestmark = pytest.mark.anyio


async def _waits(in_flight: InFlight, idle: float, within: float, made: list[Any] | None = None) -> str:
    request = in_flight.start(idle=idle, within=within)
    if made is not None:
        made.append(request)
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        if not request.absorb():
            raise
        return "hard" if request.hard else "idle"
    finally:
        in_flight.end(request)
    return "answered"


async def test_a_silent_request_ends_and_its_task_goes_on() -> None:
    in_flight = InFlight()
    async with asyncio.timeout(5):
        assert await _waits(in_flight, 0.01, 10) == "idle"
        assert await _waits(in_flight, 10, 0.01) == "hard"
    assert not in_flight.requests


async def test_each_request_ends_by_its_own_limit() -> None:
    in_flight = InFlight()
    long = asyncio.create_task(_waits(in_flight, 10, 10))
    async with asyncio.timeout(5):
        assert await asyncio.gather(*(_waits(in_flight, 0.01 * n, 10) for n in (3, 1, 2))) == ["idle"] * 3
    assert not long.done()
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long


async def test_a_cancelled_caller_is_cancelled_although_its_time_is_over_too() -> None:
    in_flight = InFlight()
    task = asyncio.create_task(_waits(in_flight, 10, 10))
    await asyncio.sleep(0)
    next(iter(in_flight.requests.values())).cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_callback_that_waits_gets_one_notice_after_the_other() -> None:
    in_flight, running, told = InFlight(), 0, list[float]()

    async def callback(progress: float, total: float | None, message: str | None) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        told.append(progress)
        running -= 1

    request = in_flight.start(None, callback, idle=10, within=10)
    for number in range(3):
        request.progress(number, None, None)
        await asyncio.sleep(0)
    await request.delivered()
    in_flight.end(request)
    assert told == [0, 1, 2]


@pytest.mark.requirement("BRK-3")
async def test_a_slow_callback_makes_no_timeout_of_a_request_that_is_answered() -> None:
    in_flight, told = InFlight(), list[float]()

    async def callback(progress: float, total: float | None, message: str | None) -> None:
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.05)
        told.append(progress)

    request = in_flight.start(None, callback, idle=0.01, within=10)
    request.progress(1, None, None)
    async with asyncio.timeout(5):
        await request.delivered()
    assert told == [1]
    in_flight.end(request)


async def test_a_callback_that_hangs_holds_up_the_answer_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.wire.in_flight.DELIVERY_SECONDS", 0.01)
    in_flight = InFlight()

    async def callback(progress: float, total: float | None, message: str | None) -> None:
        await asyncio.get_running_loop().create_future()

    request = in_flight.start(None, callback, idle=10, within=10)
    request.progress(1, None, None)
    async with asyncio.timeout(5):
        await request.delivered()
    assert request.delivery is not None
    in_flight.end(request)
    with pytest.raises(asyncio.CancelledError):
        await request.delivery


async def test_time_does_not_run_while_the_server_waits_for_us() -> None:
    in_flight = InFlight()
    made: list[Any] = []
    task = asyncio.create_task(_waits(in_flight, 0.02, 10, made))
    await asyncio.sleep(0)
    with made[0].paused():
        done, _ = await asyncio.wait([task], timeout=0.06)
        assert not done
    async with asyncio.timeout(5):
        assert await task == "idle"
