"""TLS handshakes of clients that are not known yet leave the event loop to the others."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.front.access import handshakes
from holdfast.front.access.handshakes import HandshakeTurns

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-11", "SEC-7")]


class Turns:
    """Handshakes that stay under way until they are ended, in the order in which they began."""

    def __init__(self) -> None:
        self.turns = HandshakeTurns(asyncio.get_running_loop())
        self.began: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def wanted(self, peer: str, count: int) -> None:
        async def begin() -> None:
            await self.turns.begin(peer)
            self.began.append(peer)

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
    assert (len(here.began), most) == (20, handshakes.IN_A_TURN)
    await here.close()


async def test_a_flood_of_one_peer_delays_no_other_and_is_bounded() -> None:
    here = Turns()
    here.wanted("flood", 500)
    here.wanted("other", 3)
    await here.settled()
    assert here.began.count("flood") == handshakes.OF_A_PEER
    assert here.began[: 2 * 3 + 1].count("other") >= 2, "the peers take turns"
    assert here.began.count("other") == 3
    here.turns.end("flood")
    await here.settled()
    assert here.began.count("flood") == handshakes.OF_A_PEER + 1
    await here.close()


async def test_a_client_that_leaves_holds_no_turn() -> None:
    here = Turns()
    here.wanted("a", handshakes.OF_A_PEER)
    await here.settled()
    here.wanted("a", 5)
    await asyncio.sleep(0)
    waiting = here.tasks[-5:-1]
    here.turns.end("a")
    await asyncio.sleep(0)
    for task in waiting:  # one of them has its turn already, and does not know it yet
        task.cancel()
    await here.settled()
    assert here.tasks[-1].done()
    assert not here.tasks[-1].cancelled()
    await here.close()
    for _ in range(handshakes.OF_A_PEER):
        here.turns.end("a")
    assert not here.turns._under_way
    assert not here.turns._waiting
