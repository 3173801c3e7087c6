"""Server-sent events out of bytes, as they come: linear in what came, and never more than a bound of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["EventReader", "EventTooLarge", "ServerEvent"]


LINE_COST = 64
"""How many bytes a line of an event counts beyond its own."""


LONGEST_NAME = 1_024
"""Bytes of the name of an event, and of its id."""


class EventTooLarge(Exception):
    """One event is larger than it may be."""


class ServerEvent(NamedTuple):
    """One event; its data is the bytes that came."""

    name: str
    data: bytes
    id: str
    retry: int | None


class EventReader:
    """Takes pieces of a stream and gives the events that are complete."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._line: list[bytes] = []
        self._size = 0
        self._held = 0
        self._after_return = False
        self._name = ""
        self._data: list[bytes] = []
        self._id = ""
        self._retry: int | None = None
        self._seen = False
        self._first = True
        self.lines = 0
        """How many lines came. A reader gives other tasks a turn after some of them."""

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """The events that end in this piece."""
        if self._first and chunk:
            self._first = False
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_return = chunk.endswith(b"\r")
        for piece in chunk.splitlines(keepends=True):
            self.lines += 1
            if not piece.endswith((b"\n", b"\r")):
                self._line.append(piece)
                self._count(len(piece))
                continue
            line = piece.rstrip(b"\r\n")
            if self._line:
                line = b"".join((*self._line, line))
                self._line = []
            if not line:
                if (event := self._complete()) is not None:
                    yield event
            else:
                self._take(line)

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._most:
            raise EventTooLarge

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if not field:
            return
        value = value.removeprefix(b" ")
        self._seen = True
        if field == b"data":
            self._data.append(value)
            # A line costs more than its bytes: an event of empty lines is bounded too.
            self._held += len(value) + (LINE_COST if len(self._data) > 1 else 0)
            self._size = self._held
            if self._size > self._most:
                raise EventTooLarge
        elif field == b"event":
            self._name = value[:LONGEST_NAME].decode("utf-8", "replace")
        elif field == b"id" and len(value) <= LONGEST_NAME and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit():
            self._retry = int(value[:9])

    def _complete(self) -> ServerEvent | None:
        seen, name, data, retry = self._seen, self._name, self._data, self._retry
        self._name, self._data, self._retry, self._seen = "", [], None, False
        self._size = self._held = 0
        if not seen:
            return None
        return ServerEvent(name or "message", data[0] if len(data) == 1 else b"\n".join(data), self._id, retry)
