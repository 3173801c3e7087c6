"""The pieces of a body that wait for their reader: many small ones are joined as they come.

A body may come in chunks of one or two bytes. Each would take thirty times its size in memory, and joining millions of
them at the end holds up the event loop.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any, Final

__all__ = ["MANY_PIECES", "append_piece"]

MANY_PIECES: Final = 64
"""So many pieces are kept as they came; few bodies have more."""

_SMALL_BYTES: Final = 4096
_JOINED_BYTES: Final = 64 * 1024


def append_piece(pieces: MutableSequence[Any], data: bytes) -> None:
    """Append a piece to many others; a small one goes into a ``bytearray`` of small ones."""
    last = pieces[-1]
    if len(data) >= _SMALL_BYTES:
        pieces.append(data)
    elif isinstance(last, bytearray) and len(last) < _JOINED_BYTES:
        last += data
    else:
        pieces.append(bytearray(data))
