"""TLS handshakes of clients that are not known yet leave the event loop to the others."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.front import tls
from holdfast.front.tls import HandshakeTurns

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-11", "SEC-7")]


class Turns:
    """Handshakes that stay under way until they are ended, in the order in which they began."""

    def __init__(self) -> None:
        self.turns = HandshakeTurns(asyncio.get_running_loop())
        self.began: list[str] = []
        self.ended: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def wanted(self, peer: str, count: int) -> None:
        async def begin() -> None:
            task = asyncio.current_task()
            assert task is not None
            turn = await self.turns.begin(peer, task.cancel)
            self.began.append(peer)
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.append(peer)
                self.turns.end(peer, turn)

        self.tasks += [asyncio.create_task(begin()) for _ in range(count)]

    async def settled(self) -> None:
        """Let the loop turn until no more begin."""
        for _ in range(2 * len(self.tasks) + 5):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_a_few_handshakes_begin_in_each_turn_of_the_loop() -> None:
    here = Turns()
    here.wanted("a", 20)
    most = 0
    for _ in range(30):
        before = len(here.began)
        await asyncio.sleep(0)
        most = max(most, len(here.began) - before)
    assert (len(here.began), most) == (20, tls.IN_A_TURN)
    await here.close()


async def test_a_flood_of_one_peer_delays_no_other_and_is_bounded() -> None:
    here = Turns()
    here.wanted("flood", 500)
    here.wanted("other", 3)
    await here.settled()
    assert here.began[: 2 * 3 + 1].count("other") >= 2, "the peers take turns"
    assert here.began.count("other") == 3
    assert here.began.count("flood") - here.ended.count("flood") == tls.OF_A_PEER
    assert "other" not in here.ended
    await here.close()


async def test_handshakes_that_do_not_go_on_delay_no_new_one_of_their_peer() -> None:
    here = Turns()
    here.wanted("a", 300)
    await here.settled()
    stalled = [task for task in here.tasks if not task.done()]
    here.wanted("a", 1)
    await here.settled()
    assert len(here.began) == 301
    assert not here.tasks[-1].done(), "the new one is under way"
    assert [task.done() for task in stalled] == [True] + [False] * (len(stalled) - 1), "the oldest gave way"
    await here.close()


async def test_a_client_that_leaves_holds_no_turn() -> None:
    here = Turns()
    here.wanted("a", 10)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in here.tasks[:-1]:  # some of them have their turns already, and do not know it yet
        task.cancel()
    await here.settled()
    assert not here.tasks[-1].done()
    await here.close()
    assert not here.turns._under_way
    assert not here.turns._waiting
