"""The answers in the bytes of one connection to a server: HTTP/1.1 without a socket. Bytes in, events out.

An answer is one ``AnswerHead``, then pieces of its body (``bytes``), then one ``AnswerEnd``:

    idle --expect()--> head --AnswerHead--> body --AnswerEnd--> idle

Where the body ends is decided here, by the first rule that fits: at once for 204 and 304; after the last chunk; after
the length that the head states; with the connection. An interim answer (1xx) is passed over.

What must never happen:

- Two readers disagree where an answer ends. httptools reads heads and nothing else, each head by a parser of its own,
  and gets exactly the bytes of that head (``framing.HeadFrame``). So no byte is read twice, and nothing in one answer
  changes how the next one is read. The same bytes mean the same head, and are not read again (``KnownHeads``). The
  events depend on the bytes alone, not on how they were cut on their way.
- A server speaks unasked, and that becomes the answer to the next request. Bytes while nothing is expected are refused.
- A head holds up the event loop: its size and the number of its headers have bounds.

It is stricter than RFC 9112 demands of a client on purpose. A transfer coding other than ``chunked``, a length that is
no plain number, and a switch of protocols are refused. tests/wire/test_answer_oracle.py compares it with h11, and
names each rule in which the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import httptools

from holdfast.wire.http.framing import BadChunk, ChunkReader, HeadFrame, KnownHeads

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
    """Reads one answer after the other: ``receive`` takes bytes, ``next_event`` gives what they mean."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        """Where the bytes begin that were not read."""
        self._expects = False
        """Whether a request was sent whose answer has not begun."""
        self._frame = HeadFrame(HEAD_BYTES)
        self._reader: _AnswerHeadReader | None = None
        """What reads the head that has begun."""
        self._head: AnswerHead | None = None
        """The head of the answer whose body is being read."""
        self._chunks: ChunkReader | None = None
        self.left = 0
        """How much of the body is still to come, where the head says its length."""

    def expect(self) -> None:
        """A request is sent: its answer may come."""
        self._expects = True
        self._frame.restart()

    def receive(self, data: bytes) -> None:
        """Bytes came."""
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    def next_event(self) -> AnswerEvent | None:
        """The next event in the bytes that came; None if it needs more of them. Raises ``NotHttp``."""
        while self._head is None:
            if self._at == len(self._data):
                return None
            if not self._expects:
                raise SpokeUnasked("it spoke unasked")
            if (head := self._read_head()) is not None and head.status >= 200:
                return self._begin(head)
        piece, done = self._read_chunks(self._chunks) if self._chunks is not None else self._read_plain(self._head)
        if piece:
            return piece
        if done:
            self._head = self._chunks = None
            return AnswerEnd.END
        return None

    def received(self) -> AnswerEnd:
        """The rest of a body with a length was received by another reader."""
        self._head, self.left = None, 0
        return AnswerEnd.END

    def close(self) -> AnswerEnd | None:
        """No more bytes come. That completes some answers; raises ``Disconnected`` if it cuts one."""
        head, self._head, expects, self._expects = self._head, None, self._expects, False
        self._forget_reader()
        if head is not None and head.ends_with_connection:
            return AnswerEnd.END
        if head is not None or expects:
            raise Disconnected("the peer closed the connection")
        return None

    def _read_head(self) -> AnswerHead | None:
        """A head that is complete, also that of an interim answer; None if more bytes are needed."""
        frame = self._frame
        start, stop, ends = frame.find(self._data, self._at)
        raw, self._at = self._data[start:stop], stop
        reader, whole = self._reader, ends and self._reader is None
        head = _known.get(raw) if whole else None
        if head is not None:
            return head
        if raw:
            if reader is None:
                reader = self._reader = _AnswerHeadReader()
            reader.feed(raw)
        if frame.size > HEAD_BYTES:
            raise BrokenHttp(_LARGE_HEAD)
        if ends != (reader is not None and reader.complete):
            raise BrokenHttp("it breaks the rules of HTTP (its head has no clear end)")
        if not ends or reader is None:
            return None
        self._forget_reader()
        head = _head_in(reader)
        if whole:
            _known.keep(raw, head, head.headers)
        return head

    def _begin(self, head: AnswerHead) -> AnswerHead:
        self._expects, self.left = False, head.length or 0
        self._chunks = ChunkReader(most_trailers=MOST_HEADERS, most_bytes=HEAD_BYTES) if head.chunked else None
        self._head = head
        return head

    def _read_plain(self, head: AnswerHead) -> tuple[bytes, bool]:
        """The next piece of a body, and whether the body is complete without one."""
        end = len(self._data) if head.length is None else min(len(self._data), self._at + self.left)
        piece, self._at = self._data[self._at : end], end
        if head.length is not None:
            self.left -= len(piece)
        return piece, head.length is not None and not self.left

    def _read_chunks(self, chunks: ChunkReader) -> tuple[bytes, bool]:
        try:
            piece, self._at = chunks.take(self._data, self._at)
        except BadChunk:
            raise BrokenHttp("it breaks the rules of HTTP (its body is not in chunks)") from None
        return piece, chunks.done

    def _forget_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __repr__(self) -> str:
        if self._head is not None:
            return f"<AnswerParser in the body of {self._head.status}, left={self.left}>"
        return f"<AnswerParser {'awaits a head' if self._expects else 'idle'}>"


class _AnswerHeadReader:
    """Reads one head: httptools tells it what it finds."""

    __slots__ = ("_begins", "_count", "_parser", "complete", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._begins = b""
        self._count = 0
        self.headers: dict[str, str] = {}
        self.status = 0
        self.keep_alive = False
        self.complete = False

    def feed(self, data: bytes) -> None:
        """The next bytes of the head; raises ``NotHttp``."""
        if len(self._begins) < len(_SAID):
            self._begins = (self._begins + data[: len(_SAID)])[: len(_SAID)]
        assert self._parser is not None  # noqa: S101 - the head is not complete
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise BrokenHttp("it switched protocols") from None
        except httptools.HttpParserError as exc:
            cause = exc.__context__  # what a callback raised
            raise cause if isinstance(cause, NotHttp) else _broken(exc, self._begins == _SAID) from None

    def close(self) -> None:
        """Let the parser go, which leads back here: a cycle for each answer would be the collector's."""
        self._parser = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._count += 1
        if self._count > MOST_HEADERS:
            raise BrokenHttp(_LARGE_HEAD)  # at once: one piece of a connection may have thousands more
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self.headers.get(key)
        self.headers[key] = text if known is None else f"{known}\n{text}" if key == "set-cookie" else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        """The head is complete."""
        assert self._parser is not None  # noqa: S101 - it calls
        self.status = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive()
        self.complete = True


_known: Final = KnownHeads[AnswerHead]()


def _head_in(read: _AnswerHeadReader) -> AnswerHead:
    """The head that was read; raises ``BrokenHttp`` if its body could not be read."""
    bare = read.status < 200 or read.status in (204, 304)
    chunked = not bare and _is_chunked(read.headers)
    length = 0 if bare else None if chunked else _length_in(read.headers)
    keep_alive = read.keep_alive and (chunked or length is not None)
    return AnswerHead(read.status, read.headers, keep_alive, length, chunked)


def _is_chunked(headers: Mapping[str, str]) -> bool:
    """Whether a body comes in chunks. In another coding it could not be read."""
    coding = headers.get("transfer-encoding", "identity").lower().strip(", \t")
    if coding not in ("chunked", "identity"):
        raise BrokenHttp("its body comes in a transfer coding that was not asked for")
    return coding == "chunked"


def _length_in(headers: Mapping[str, str]) -> int | None:
    """The length of a body; None where its head states none. httptools refuses one that two readers read apart."""
    stated = headers.get("content-length")
    if stated is None:
        return None
    if not (stated.strip().isascii() and stated.strip().isdigit()):
        raise BrokenHttp("it breaks the rules of HTTP (its length is no number)")
    return int(stated)


def _broken(exc: httptools.HttpParserError, is_http: bool) -> NotHttp:
    """What the parser found; its text is its own, and has nothing of the peer in it."""
    return BrokenHttp(f"it breaks the rules of HTTP ({exc})") if is_http else NotHttp(str(exc))
