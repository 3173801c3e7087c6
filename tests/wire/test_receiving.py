"""Large answers are received when there is room for them, and a server that sends slowly holds up no other."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.wire.http.connection import ReceiveRoom

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-11", "HUB-17")]


class Answers:
    """Answers that are being received until they are let go, in the order in which they began."""

    def __init__(self, most: int = 8) -> None:
        self.room = ReceiveRoom(most)
        self.began: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.done: list[asyncio.Event] = []

    async def begin(self, server: str, size: int) -> None:
        over = asyncio.Event()

        async def receive() -> None:
            await self.room.take(server, size)
            self.began.append(server)
            try:
                await over.wait()
            finally:
                self.room.give_back(server, size)

        self.tasks.append(asyncio.create_task(receive()))
        self.done.append(over)
        await self.settled()

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert self.room.held == 0
        assert not self.room._held
        assert not self.room._waiting


async def test_an_answer_waits_for_room_and_is_received_in_its_turn() -> None:
    here = Answers()
    for server in ("a", "b", "c", "d"):
        await here.begin(server, 4)
    assert here.began == ["a", "b"]
    here.done[1].set()
    await here.settled()
    assert here.began == ["a", "b", "c"]
    await here.close()


async def test_one_server_has_half_of_the_room() -> None:
    here = Answers()
    for _ in range(5):
        await here.begin("slow", 2)
    await here.begin("other", 2)
    assert here.began == ["slow", "slow", "other"], "it does not wait for those that wait for their own server"
    here.done[0].set()
    await here.settled()
    assert here.began == ["slow", "slow", "other", "slow"]
    await here.close()


async def test_a_large_answer_is_not_overtaken_for_ever_by_small_ones() -> None:
    here = Answers()
    await here.begin("a", 4)
    await here.begin("b", 2)
    await here.begin("c", 4)
    await here.begin("d", 2)
    assert here.began == ["a", "b"]
    here.done[0].set()
    await here.settled()
    assert here.began == ["a", "b", "c", "d"]
    await here.close()


async def test_an_answer_that_is_larger_than_the_room_is_received_alone() -> None:
    here = Answers(most=4)
    await here.begin("a", 100)
    await here.begin("b", 100)
    assert here.began == ["a"]
    here.done[0].set()
    await here.settled()
    assert here.began == ["a", "b"]
    await here.close()


async def test_one_that_is_given_up_while_it_waits_takes_no_room() -> None:
    here = Answers(most=4)
    await here.begin("a", 4)
    await here.begin("b", 4)
    await here.begin("c", 4)
    here.tasks[1].cancel()
    here.done[0].set()
    await here.settled()
    assert here.began == ["a", "c"]
    await here.close()
