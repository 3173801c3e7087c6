"""TLS handshakes of new connections take turns: each costs milliseconds of CPU, and its client is not known yet.

A few begin in each turn of the event loop, so requests of known clients are served between them. One peer has a bound
on those that are under way: else it could hold many back, and let all of them go on in the same moment. Peers take
turns, so a flood from one does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Final

__all__ = ["HandshakeTurns"]

IN_A_TURN: Final = 2
"""How many begin in one turn of the event loop: a signature with an RSA key of 4096 bits takes 5 ms."""

OF_A_PEER: Final = 32
"""How many of one peer may be under way."""


class HandshakeTurns:
    """Whose turn it is to begin a handshake."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By peer; the peer whose turn is next comes first."""
        self._under_way: Counter[str] = Counter()
        self._scheduled = False

    async def begin(self, peer: str) -> None:
        """Wait for a turn; ``end`` must follow."""
        turn = self._loop.create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        self._schedule()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end(peer)
            raise

    def end(self, peer: str) -> None:
        """A handshake is over."""
        self._under_way[peer] -= 1
        if not self._under_way[peer]:
            del self._under_way[peer]
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and any(self._may_begin(peer) for peer in self._waiting):
            self._scheduled = True
            self._loop.call_soon(self._next_turn)

    def _may_begin(self, peer: str) -> bool:
        return self._under_way[peer] < OF_A_PEER

    def _next_turn(self) -> None:
        self._scheduled = False
        left = IN_A_TURN
        while left and (peer := next(filter(self._may_begin, self._waiting), None)) is not None:
            waiting = self._waiting.pop(peer)
            turn = waiting.popleft()
            if waiting:
                self._waiting[peer] = waiting  # the others come first the next time
            if not turn.done():  # else it was given up
                turn.set_result(None)
                self._under_way[peer] += 1
                left -= 1
        self._schedule()
