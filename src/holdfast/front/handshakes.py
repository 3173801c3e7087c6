"""TLS handshakes of new connections take turns: each costs milliseconds of CPU, and its client is not known yet.

A few begin in each turn of the event loop, so requests of known clients are served between them. One peer has a bound
on those that are under way: else it could hold many back, and let all of them go on in the same moment. A new one of
that peer ends the oldest: a handshake takes a moment, and one that does not go on delays no other. Peers take turns, so
a flood from one does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["HandshakeTurns"]

IN_A_TURN: Final = 2
"""How many begin in one turn of the event loop: a signature with an RSA key of 4096 bits takes 5 ms."""

OF_A_PEER: Final = 256
"""How many of one peer may be under way. A proxy has all its clients at one address, and some are slow."""


class HandshakeTurns:
    """Whose turn it is to begin a handshake."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By peer; the peer whose turn is next comes first."""
        self._under_way: dict[str, dict[asyncio.Future[None], Callable[[], object]]] = {}
        """By peer what ends each one, the oldest first."""
        self._give_up: dict[asyncio.Future[None], Callable[[], object]] = {}
        self._scheduled = False

    async def begin(self, peer: str, give_up: Callable[[], object]) -> asyncio.Future[None]:
        """Wait for a turn; ``end`` must follow with the result. ``give_up`` ends the handshake, if others need it."""
        turn = self._loop.create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        self._give_up[turn] = give_up
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._next_turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._give_up.pop(turn, None)
            self.end(peer, turn)
            raise
        return turn

    def end(self, peer: str, turn: asyncio.Future[None]) -> None:
        """A handshake is over. Idempotent."""
        under_way = self._under_way.get(peer)
        if under_way is not None and under_way.pop(turn, None) is not None and not under_way:
            del self._under_way[peer]

    def _next_turn(self) -> None:
        left = IN_A_TURN
        while left and self._waiting:
            peer = next(iter(self._waiting))
            waiting = self._waiting.pop(peer)
            turn = waiting.popleft()
            if waiting:
                self._waiting[peer] = waiting  # the others come first the next time
            give_up = self._give_up.pop(turn, None)
            if give_up is None or turn.done():
                continue  # it was given up
            under_way = self._under_way.setdefault(peer, {})
            if len(under_way) >= OF_A_PEER:
                under_way.pop(next(iter(under_way)))()
            under_way[turn] = give_up
            turn.set_result(None)
            left -= 1
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            self._loop.call_soon(self._next_turn)
