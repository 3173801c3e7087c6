"""How many connections each worker of one listening socket holds, in memory that the workers share.

The system wakes all of them for a new connection, and the first one to run takes it; at a burst it takes many. So a
worker that holds more than another one lets that one go first, for a moment. A number is written by its worker alone,
in one step. A wrong number costs a moment's wait, and nothing else.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

__all__ = ["ConnectionShares"]

_NUMBER: Final = struct.Struct("=q")
_NONE: Final = -1
"""A worker that does not accept."""


class ConnectionShares:
    """The numbers of all workers, as one of them sees them."""

    def __init__(self, file: Path, place: int) -> None:
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), 0)
        self._place = place

    @classmethod
    def create(cls, file: Path, places: int) -> ConnectionShares:
        """Make the file, for so many workers; none accepts yet."""
        file.write_bytes(_NUMBER.pack(_NONE) * places)
        return cls(file, 0)

    def hold(self, number: int) -> None:
        """This worker accepts, and holds so many connections."""
        _NUMBER.pack_into(self._memory, self._place * _NUMBER.size, number)

    def clear(self, place: int | None = None) -> None:
        """This worker, or the one at a place, does not accept any more."""
        _NUMBER.pack_into(self._memory, (self._place if place is None else place) * _NUMBER.size, _NONE)

    def others_first(self) -> bool:
        """Whether another worker that accepts holds fewer connections."""
        held = [number for (number,) in _NUMBER.iter_unpack(self._memory)]
        own = held[self._place]
        return any(_NONE < number < own for at, number in enumerate(held) if at != self._place)

    def close(self) -> None:
        """Let the memory go."""
        self._memory.close()
