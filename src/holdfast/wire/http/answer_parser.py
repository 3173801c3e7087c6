"""The answers in the bytes of one connection to a server: HTTP/1.1 without a socket. Bytes in, events out.

An answer is one ``AnswerHead``, then pieces of its body (``bytes``), then one ``AnswerEnd``:

    idle --expect()--> head --AnswerHead--> body --AnswerEnd--> idle

Where the body ends is decided here, by the first rule that fits: at once for 204 and 304; after the last chunk; after
the length that the head states; with the connection. An interim answer (1xx) is passed over.

What must never happen:

- Two readers disagree where an answer ends. There is one reader: it takes a whole head, line by line, and then the
  body by the rule above. Nothing in one answer changes how the next one is read. The events depend on the bytes alone,
  not on how they were cut on their way.
- A server speaks unasked, and that becomes the answer to the next request. Bytes while nothing is expected are refused.
- A head holds up the event loop: its size and the number of its headers have bounds.

It is stricter than RFC 9112 demands of a client on purpose. A transfer coding other than ``chunked``, a length that is
no plain number or stands beside chunks, and a switch of protocols are refused. tests/wire/test_answer_oracle.py
compares it with h11, and names each rule in which the two differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from holdfast.wire.http.framing import BadChunk, ChunkReader

__all__ = [
    "AnswerEnd",
    "AnswerEvent",
    "AnswerHead",
    "AnswerParser",
    "BrokenHttp",
    "Disconnected",
    "NotHttp",
    "SpokeUnasked",
]

HEAD_BYTES: Final = 100 * 1024
MOST_HEADERS: Final = 1_000
"""How large the status line and the headers of an answer may be, and how many: a repeated header is joined."""

_LARGE_HEAD: Final = "its headers are too large"
_BAD_LINE: Final = "it breaks the rules of HTTP (a line of its head cannot be read)"
_SAID: Final = b"HTTP/"


class Disconnected(ConnectionError):
    """The peer closed the connection before its answer was complete."""


class NotHttp(Exception):
    """The peer answered with something that is not HTTP."""


class BrokenHttp(NotHttp):
    """The peer speaks HTTP, and its answer cannot be used; the text says why."""


class SpokeUnasked(NotHttp):
    """The peer sent bytes that no request asked for."""


class AnswerHead(NamedTuple):
    """The status and the headers of an answer, and how its body ends."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name; values of a repeated header are joined by a comma."""
    keep_alive: bool
    """Whether the connection can be used again after this answer."""
    length: int | None
    """How long the body is; None for one in chunks, or one that ends with the connection."""
    chunked: bool

    @property
    def ends_with_connection(self) -> bool:
        """Whether only the end of the connection says that the body is complete."""
        return self.length is None and not self.chunked


class AnswerEnd(Enum):
    """An answer is complete."""

    END = "end"


AnswerEvent: TypeAlias = AnswerHead | bytes | AnswerEnd


class AnswerParser:
    """Reads one answer after the other: ``receive`` takes bytes, and gives what they mean."""

    def __init__(self) -> None:
        self._expects = False
        """Whether a request was sent whose answer has not begun."""
        self._begun = b""
        """The beginning of a head whose end is not here."""
        self._size = 0
        """The bytes of the interim answers, and of the empty lines before a head (RFC 9112, 2.2)."""
        self._head: AnswerHead | None = None
        """The head of the answer whose body is being read."""
        self._chunks: ChunkReader | None = None
        self.left = 0
        """How much of the body is still to come, where the head says its length."""

    def expect(self) -> None:
        """A request is sent: its answer may come."""
        self._expects, self._size = True, 0

    def receive(self, data: bytes) -> Iterator[AnswerEvent]:
        """The events in bytes that came; raises ``NotHttp``. All are taken before more bytes are given."""
        at = 0
        if self._begun:
            data, self._begun = self._begun + data, b""
        while True:
            head = self._head
            if head is None:
                if at == len(data):
                    return
                at = self._read_head(data, at)
                if self._head is not None:
                    yield self._head
                continue
            if self._chunks is not None:
                try:
                    piece, at = self._chunks.take(data, at)
                except BadChunk:
                    raise BrokenHttp("it breaks the rules of HTTP (its body is not in chunks)") from None
                done = self._chunks.done
            else:
                piece = data[at:] if head.length is None else data[at : at + self.left]
                at += len(piece)
                self.left = max(self.left - len(piece), 0)
                done = head.length is not None and not self.left
            if piece:
                yield piece
            if done:
                self._head = self._chunks = None
                yield AnswerEnd.END
            elif at == len(data):
                return

    def received(self) -> None:
        """The rest of a body with a length was received by another reader."""
        self._head, self.left = None, 0

    def close(self) -> bool:
        """No more bytes come: whether that completes an answer. Raises ``Disconnected`` if it cuts one."""
        head, self._head, expects, self._expects = self._head, None, self._expects, False
        if head is not None and head.ends_with_connection:
            return True
        if head is not None or expects:
            raise Disconnected("the peer closed the connection")
        return False

    def _read_head(self, data: bytes, at: int) -> int:
        """Read a head, also that of an interim answer, or keep its beginning; where the bytes go on."""
        if not self._expects:
            raise SpokeUnasked("it spoke unasked")
        begin = at
        while data.startswith(b"\r\n", begin):
            begin += 2
        if not _SAID.startswith(data[begin : begin + len(_SAID)]) and data[begin:] != b"\r":
            raise NotHttp("its answer does not begin as HTTP does")
        end = data.find(b"\r\n\r\n", begin)
        stop = end + 4 if end >= 0 else len(data)
        room = HEAD_BYTES - self._size
        # A line that ends with LF alone is refused at once: the end of such a head would never come.
        if data.count(b"\n", begin, min(stop, at + room)) != data.count(b"\r\n", begin, min(stop, at + room)):
            raise BrokenHttp(_BAD_LINE)
        if stop - at > room:
            raise BrokenHttp(_LARGE_HEAD)
        if end < 0:
            self._begun = data[at:]
            return stop
        self._size += stop - at
        head = _head_of(data[begin:end])
        if head.status >= 200:  # else it is an interim answer
            self._expects, self.left = False, head.length or 0
            self._chunks = ChunkReader(most_trailers=MOST_HEADERS, most_bytes=HEAD_BYTES) if head.chunked else None
            self._head = head
        return stop

    def __repr__(self) -> str:
        if self._head is not None:
            return f"<AnswerParser in the body of {self._head.status}, left={self.left}>"
        return f"<AnswerParser {'awaits a head' if self._expects else 'idle'}>"


_STATUS_LINE: Final = re.compile(r"HTTP/(1\.[01]|2\.0) ([0-9]{3})(?: [^\r\n]*)?")
"""Servers write 2.0 and mean 1.1."""

_IN_NAMES: Final = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
_CONTROLS: Final = bytes({*range(0x20), 0x7F} - {*b"\t\r\n"})
_LENGTH: Final = re.compile(r"[0-9]{1,15}")


def _head_of(raw: bytes) -> AnswerHead:
    """The head in these bytes; raises ``BrokenHttp`` if it cannot be read, or if its body could not."""
    status_line, *lines = raw.decode("latin-1").split("\r\n")
    found = _STATUS_LINE.fullmatch(status_line)
    written = raw[len(status_line) :]
    if found is None or written.count(b"\r") != len(lines) or len(written.translate(None, _CONTROLS)) != len(written):
        raise BrokenHttp(_BAD_LINE)
    version, status = found[1], int(found[2])
    if status == 101:
        raise BrokenHttp("it switched protocols")
    headers = _headers_in(lines)
    bare = status < 200 or status in (204, 304)
    chunked = "transfer-encoding" in headers and _is_chunked(headers)
    length = _length_in(headers)
    if chunked and length is not None:
        raise BrokenHttp("it breaks the rules of HTTP (it has a length and chunks)")
    connection = headers.get("connection", "").lower()
    kept = "keep-alive" in connection if version == "1.0" else "close" not in connection
    if bare:
        return AnswerHead(status, headers, kept, 0, chunked=False)
    return AnswerHead(status, headers, kept and (chunked or length is not None), length, chunked)


def _headers_in(lines: Sequence[str]) -> Mapping[str, str]:
    """The headers by lower-case name; values of a repeated header are joined by a comma."""
    if len(lines) > MOST_HEADERS:
        raise BrokenHttp(_LARGE_HEAD)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if not colon or not name or name.strip(_IN_NAMES):  # a good name is stripped to nothing
            raise BrokenHttp(_BAD_LINE)
        if (known := headers.get(name)) is not None:
            value = f"{known}\n{value}" if name == "set-cookie" else f"{known}, {value}"
        headers[name] = value
    return headers


def _is_chunked(headers: Mapping[str, str]) -> bool:
    """Whether a body comes in chunks. In another coding it could not be read."""
    coding = headers["transfer-encoding"].lower().strip(", \t")
    if coding not in ("chunked", "identity"):
        raise BrokenHttp("its body comes in a transfer coding that was not asked for")
    return coding == "chunked"


def _length_in(headers: Mapping[str, str]) -> int | None:
    """The length of a body; None where its head states none."""
    stated = headers.get("content-length")
    if stated is None:
        return None
    if _LENGTH.fullmatch(stated) is None:
        raise BrokenHttp("it breaks the rules of HTTP (its length is no number)")
    return int(stated)
