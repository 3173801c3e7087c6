"""How many bytes of large answers are received at the same time (SEC-11).

A call of a few bytes may be answered by a message of the largest size, and a thousand calls may run. So a large answer
is received when there is room for it; until then the server's connection is not read. One server has half of the room
at most: one that sends slowly does not hold up the answers of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakKeyDictionary

__all__ = ["ReceiveRoom", "receive_room", "share_receive_room"]

RECEIVED_BYTES: Final = 64 * 1024 * 1024
"""In all workers together: four messages of the largest size."""


class ReceiveRoom:
    """The room for large answers in one event loop; who waits for it is served in order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Hashable, int] = {}
        self._waiting: dict[asyncio.Future[None], tuple[Hashable, int]] = {}
        self.held = 0

    @asynccontextmanager
    async def of(self, server: Hashable, size: int) -> AsyncIterator[None]:
        """Room for an answer of a server, in the block. A single one always has room."""
        if not self._fits(server, size) or any(self._has_share(*one) for one in self._waiting.values()):
            turn = asyncio.get_running_loop().create_future()
            self._waiting[turn] = server, size
            try:
                await turn
            except asyncio.CancelledError:
                self._waiting.pop(turn, None)
                if not turn.cancelled():
                    self._give_back(server, size)  # its turn had come
                raise
        else:
            self._take(server, size)
        try:
            yield
        finally:
            self._give_back(server, size)

    def _fits(self, server: Hashable, size: int) -> bool:
        return (not self.held or self.held + size <= self._most) and self._has_share(server, size)

    def _has_share(self, server: Hashable, size: int) -> bool:
        """Whether a server has not used up its half: one that has waits for itself alone."""
        own = self._held.get(server, 0)
        return not own or own + size <= self._most // 2

    def _take(self, server: Hashable, size: int) -> None:
        self._held[server] = self._held.get(server, 0) + size
        self.held += size

    def _give_back(self, server: Hashable, size: int) -> None:
        self.held -= size
        left = self._held[server] - size
        if left:
            self._held[server] = left
        else:
            del self._held[server]
        for turn, (whose, wanted) in [*self._waiting.items()]:
            if turn.done():
                continue  # it was given up
            if self._fits(whose, wanted):
                del self._waiting[turn]
                self._take(whose, wanted)
                turn.set_result(None)
            elif self._has_share(whose, wanted):
                break  # it is next: those behind it do not overtake it


_share = 1
_rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, ReceiveRoom] = WeakKeyDictionary()


def share_receive_room(workers: int) -> None:
    """So many processes share the room."""
    global _share  # noqa: PLW0603 - one for the process
    _share = max(workers, 1)
    _rooms.clear()


def receive_room() -> ReceiveRoom:
    """The room of the running event loop."""
    loop = asyncio.get_running_loop()
    room = _rooms.get(loop)
    if room is None:
        room = _rooms[loop] = ReceiveRoom(RECEIVED_BYTES // _share)
    return room
