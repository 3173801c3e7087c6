"""Cuts bytes into lines, and reads the id and the method of a JSON-RPC line and nothing else, however large it is.

A long line is not parsed: a member that is found stands before the first nested value, or at the end, so it is of the
message itself. It imports next to nothing, and no pattern is compiled before a line asks for it: each joined client
uses it (PERF-10).
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

__all__ = ["LineHead", "Lines", "heads_of"]

SMALL = 64 * 1024
"""Bytes; a line up to this size is parsed whole."""

SHORT = 8 * 1024
"""Bytes; to parse a line up to this size takes less time than to compile the first pattern for it."""

RequestId: TypeAlias = "str | int"

_ID = rb'"id"\s*:\s*(?P<id>"(?:[^"\\]|\\.){0,256}"|-?\d{1,18})\s*'
_FIRST = rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]{0,256}"\s*,\s*)*' + _ID + rb"[,}]"
_LAST = rb"[{,]\s*" + _ID + rb'(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z'
_METHOD = (
    rb'\s*\{\s*(?:"(?:jsonrpc|id)"\s*:\s*(?:"(?:[^"\\]|\\.){0,256}"|-?\d{1,18})\s*,\s*)*'
    rb'"method"\s*:\s*"(?P<m>[^"\\]{0,256})"'
)

_OURS = rb'\{"jsonrpc":"2\.0","id":(?P<id>"(?:[^"\\]|\\.){0,256}"|-?\d{1,18}),"(?P<kind>result|error)":'
"""How the hub writes an answer: its id is known without a look at the rest."""


class LineHead:
    """What a message is: a request has both, a notification a method alone, an answer an id alone."""

    __slots__ = ("failed", "id", "method")

    def __init__(self, id: RequestId | None, method: str | None, failed: bool = False) -> None:  # noqa: A002 - its name
        self.id = id
        self.method = method
        self.failed = failed
        """Whether it is an answer that is an error."""

    def __repr__(self) -> str:
        return f"<LineHead id={self.id!r} method={self.method!r}{' failed' if self.failed else ''}>"


def heads_of(line: bytes) -> list[LineHead]:
    """The messages of a line: one, or those of a batch. A long batch is not read."""
    if len(line) > SHORT and (found := re.match(_OURS, line)):
        return [LineHead(json.loads(found["id"]), None, found["kind"] == b"error")]
    if len(line) > SMALL:
        method = re.match(_METHOD, line[:SMALL])
        return [LineHead(id_in(line[:SMALL], line[-SMALL:]), method["m"].decode("latin-1") if method else None)]
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return [_head(one) for one in (message if isinstance(message, list) else [message]) if isinstance(one, dict)]


def _head(message: dict[str, object]) -> LineHead:
    known, method = message.get("id"), message.get("method")
    is_id = isinstance(known, str | int) and not isinstance(known, bool)
    return LineHead(
        known if is_id and isinstance(known, str | int) else None,
        method if isinstance(method, str) else None,
        "error" in message,
    )


def id_in(head: bytes, tail: bytes) -> RequestId | None:
    """The id of a message that begins and ends with these bytes; None if it was not found."""
    found = re.match(_FIRST, head) or re.search(_LAST, tail)
    try:
        known = json.loads(found["id"]) if found is not None else None
    except ValueError:
        return None
    return known if isinstance(known, str | int) else None


class Lines:
    """Cuts what comes into lines. Blanks before a line are left out, and so are blank lines.

    A line may come in many pieces: they are joined once. Of a line over the bound only its beginning and its end are
    held: its id stands in one of them, and goes to ``refused``. A client that sends nothing but blanks, or many short
    lines, costs one look at each byte: what is left of the bytes that came is never copied.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.refused: list[RequestId | None] = []
        self._pieces: list[bytes] = []
        self._size = 0
        self._head = b""
        """The beginning of a line that is too long."""

    def add(self, data: bytes) -> Iterator[bytes]:
        """The lines that are complete now, with their ends."""
        at = 0
        while at < len(data):
            if not self._pieces and data[at : at + 1].isspace():
                blanks = re.compile(rb"\s*").match(data, at)
                at = blanks.end() if blanks is not None else at
                continue
            end = data.find(b"\n", at) + 1 or len(data)
            self._take(data[at:end])
            at = end
            if data[end - 1 : end] == b"\n" and (line := self.rest()):
                yield line

    def rest(self) -> bytes:
        """The line that is over now, perhaps without an end; empty if there is none, or it is refused."""
        line, head = b"".join(self._pieces), self._head
        self._pieces, self._size, self._head = [], 0, b""
        if head:
            self.refused.append(id_in(head, line))
            return b""
        return line

    def _take(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece.removesuffix(b"\n"))
        if self._size > self.longest:
            # The id may stand at either end of the message: both are kept, and the middle is dropped.
            held = b"".join(self._pieces)
            self._head, self._pieces = self._head or held[:SMALL], [held[-SMALL:]]
