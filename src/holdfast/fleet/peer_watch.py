"""Ends what waits for a replica that is gone without a word: stopped, cut off, or on a machine that lost its power.

An answer may take as long as a call does, so no deadline tells a slow replica from one that is gone. A replica that is
well greets every new connection at once. One that does not, twice in a row, is given up. No store is needed for that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from holdfast.fleet.peer_frames import PeerFrames

__all__ = ["PeerWatch"]

LOOK_SECONDS: Final = 5.0
"""How often the replicas that are waited for are tried. A pause that is shorter than two looks costs nothing."""
MOST_MISSED: Final = 2


class PeerWatch:
    """The connections on which an answer is waited for, by the address of their replica."""

    def __init__(self, greets: Callable[[str], Awaitable[bool]]) -> None:
        self._greets = greets
        """Whether the replica at an address greets a new connection."""
        self._waiting: dict[PeerFrames, str] = {}
        self._missed: dict[str, int] = {}
        self._begun = anyio.Event()

    def begin(self, frames: PeerFrames, address: str) -> None:
        """An answer is waited for."""
        self._waiting[frames] = address
        self._begun.set()

    def end(self, frames: PeerFrames) -> None:
        """It came."""
        self._waiting.pop(frames, None)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._begun.wait()
            await anyio.sleep(LOOK_SECONDS)
            await self._look()
            if not self._waiting:
                self._begun = anyio.Event()

    async def _look(self) -> None:
        self._waiting = {frames: address for frames, address in self._waiting.items() if not frames.lost}
        addresses = set(self._waiting.values())
        self._missed = {address: missed for address, missed in self._missed.items() if address in addresses}
        async with anyio.create_task_group() as tasks:
            for address in addresses:
                tasks.start_soon(self._try, address)

    async def _try(self, address: str) -> None:
        before = [frames for frames, at in self._waiting.items() if at == address]
        if await self._greets(address):
            self._missed.pop(address, None)
            return
        missed = self._missed[address] = self._missed.get(address, 0) + 1
        if missed >= MOST_MISSED:
            for frames in before:
                frames.give_up("it does not answer any more")
