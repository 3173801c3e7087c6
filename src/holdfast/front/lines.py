"""A client's lines on stdin, each within a bound: a longer one is never held whole, and is refused under its id."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import BinaryIO, Self, TypeAlias

import anyio.to_thread

__all__ = ["Refuse", "StdinLines"]

Refuse: TypeAlias = Callable[[str | int | None], Awaitable[None]]
"""Called with the id of a message that was too long; None if the id was not found."""

CHUNK = 64 * 1024

_ID = rb'"id"\s*:\s*(?P<id>"(?:[^"\\]|\\.){0,256}"|-?\d{1,18})\s*'
_FIRST = re.compile(rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]{0,256}"\s*,\s*)*' + _ID + rb"[,}]")
_LAST = re.compile(rb"[{,]\s*" + _ID + rb'(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')
"""The id of the message itself, not of a nested object: it stands before the first nested value, or at the end."""


class StdinLines:
    """Reads line after line, in a worker thread."""

    def __init__(self, file: BinaryIO, longest: int, refuse: Refuse) -> None:
        self._file = file
        self._longest = longest
        self._refuse = refuse

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        """Return the next line within the bound; invalid UTF-8 is replaced."""
        while True:
            line = await anyio.to_thread.run_sync(self._file.readline, self._longest + 1)
            if not line:
                raise StopAsyncIteration
            if len(line) <= self._longest or line.endswith(b"\n"):
                return line.decode("utf-8", "replace")
            head, line = line[:CHUNK], line[-CHUNK:]
            tail = await anyio.to_thread.run_sync(self._skip, line)
            await self._refuse(_id_in(head, tail))

    def _skip(self, tail: bytes) -> bytes:
        """Read to the end of the line and keep only its last bytes."""
        while not tail.endswith(b"\n"):
            more = self._file.readline(CHUNK)
            if not more:
                break
            tail = tail[-CHUNK:] + more
        return tail


def _id_in(head: bytes, tail: bytes) -> str | int | None:
    found = _FIRST.match(head) or _LAST.search(tail)
    try:
        known = json.loads(found["id"]) if found is not None else None
    except ValueError:
        return None
    return known if isinstance(known, str | int) else None
