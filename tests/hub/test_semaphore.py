"""Semaphore: never more given out than there are, however often their number changes."""

from __future__ import annotations

import anyio
import pytest

from holdfast.hub.limits import Semaphore

pytestmark = pytest.mark.anyio


def full(places: Semaphore) -> bool:
    if not places.try_acquire():
        return True
    places.release()
    return False


@pytest.mark.requirement("HUB-12")
async def test_fewer_places_are_given_out_again_only_when_enough_came_back() -> None:
    places = Semaphore(3)
    for _ in range(3):
        assert places.try_acquire()
    places.resize(1)
    places.release()
    places.release()
    assert full(places)
    places.release()
    assert not full(places)
    assert places.free == 1


@pytest.mark.requirement("HUB-12")
async def test_places_that_are_free_go_at_once() -> None:
    places = Semaphore(3)
    assert places.try_acquire()
    places.resize(1)
    assert full(places)


@pytest.mark.requirement("HUB-12")
async def test_more_places_let_those_in_who_wait() -> None:
    places = Semaphore(1)
    assert places.try_acquire()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(places.acquire)
            await anyio.wait_all_tasks_blocked()
            places.resize(2)
    assert full(places)


@pytest.mark.requirement("HUB-12")
async def test_a_change_that_is_taken_back_before_anybody_left_changes_nothing() -> None:
    places = Semaphore(3)
    for _ in range(3):
        assert places.try_acquire()
    places.resize(1)
    places.resize(3)
    assert full(places)
    for _ in range(3):
        places.release()
    assert places.free == 3
