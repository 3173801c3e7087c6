"""The answers in the bytes of one connection to a server: HTTP/1.1 without a socket. Bytes in, events out.

``AnswerParser`` finds the answers, ``ChunkReader`` and ``Inflater`` what is in a body, and ``EventReader`` the
server-sent events of one that is an event stream.

An answer is one ``AnswerHead``, then pieces of its body (``bytes``), then ``END``:

    idle --expect()--> head --AnswerHead--> body --END--> idle

Bytes that are no answer are an event too (``NotHttp``), and the last one: what came before them in the same bytes
stands, however they were cut on their way.

Where the body ends is decided here, by the first rule that fits: at once for 204 and 304; after the last chunk; after
the length that the head states; with the connection. An interim answer (1xx) is passed over.

What must never happen:

- Two readers disagree where an answer ends. There is one reader: it takes a whole head, line by line, and then the
  body by the rule above. Nothing in one answer changes how the next one is read. The events depend on the bytes alone,
  not on how they were cut on their way.
- A server speaks unasked, and that becomes the answer to the next request. Bytes while nothing is expected are refused.
- A head holds up the event loop: its size and the number of its headers have bounds.
- One event of a stream fills our memory. An event has the bound of a message. On a stream that one request has for
  itself, a larger event fails that request. On a stream that all requests share it is skipped: its beginning is kept,
  which says whose answer it is, and the others go on (LIFE-28). A skip has a bound too, else one event without an end
  would hold the stream for ever.

It is stricter than RFC 9112 demands of a client on purpose. A transfer coding other than ``chunked``, a length that is
no plain number or stands beside chunks, and a switch of protocols are refused. tests/wire/test_answer_oracle.py
compares it with h11, and names each rule in which the two differ.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, MutableSequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

__all__ = [
    "END",
    "AnswerEvent",
    "AnswerHead",
    "AnswerParser",
    "BadChunk",
    "BadEncoding",
    "BrokenHttp",
    "ChunkReader",
    "Disconnected",
    "EventReader",
    "Inflater",
    "NotHttp",
    "ServerEvent",
    "append_piece",
    "header_fields",
    "joined",
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


class AnswerHead(msgspec.Struct, frozen=True):
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


END: Final = None
"""The answer is complete."""

AnswerEvent: TypeAlias = AnswerHead | bytes | NotHttp | None


class AnswerParser:
    """Reads one answer after the other: ``receive`` takes bytes, and gives what they mean."""

    def __init__(self) -> None:
        self._expects = False
        """Whether a request was sent whose answer has not begun."""
        self._tunnels = False
        """Whether that request was a CONNECT."""
        self._begun = b""
        """The beginning of a head whose end is not here."""
        self._size = 0
        """The bytes of the interim answers, and of the empty lines before a head (RFC 9112, 2.2)."""
        self.head: AnswerHead | None = None
        """The head of the answer whose body is being read; None when that is complete."""
        self._chunks: ChunkReader | None = None
        self.left = 0
        """How much of the body is still to come, where the head says its length."""

    def expect(self, *, tunnels: bool = False) -> None:
        """A request is sent: its answer may come. After that to a CONNECT nothing is HTTP, if it succeeds."""
        self._expects, self._size = True, 0
        self._tunnels = tunnels

    def receive(self, data: bytes) -> list[AnswerEvent]:
        """The events in bytes that came. Give it no more bytes after ``NotHttp``."""
        events: list[AnswerEvent] = []
        at = 0
        if self._begun:
            data, self._begun = self._begun + data, b""
        try:
            while at < len(data):
                if self.head is None:
                    at = self._read_head(data, at, events)
                    continue
                if self._chunks is not None:
                    piece, at = self._chunks.take(data, at)
                    done = self._chunks.done
                else:
                    length = self.head.length
                    piece = data[at:] if length is None else data[at : at + self.left]
                    at += len(piece)
                    self.left = max(self.left - len(piece), 0)
                    done = length is not None and not self.left
                if piece:
                    events.append(piece)
                if done:
                    self.head = self._chunks = None
                    events.append(END)
        except NotHttp as exc:
            events.append(exc.with_traceback(None))  # its frames refer to these events
        except BadChunk:
            events.append(BrokenHttp("it breaks the rules of HTTP (its body is not in chunks)"))
        return events

    def received(self) -> None:
        """The rest of a body with a length was received by another reader."""
        self.head, self.left = None, 0

    def close(self) -> bool:
        """No more bytes come: whether that completes an answer. Raises ``Disconnected`` if it cuts one."""
        head, self.head, expects, self._expects = self.head, None, self._expects, False
        if head is not None and head.ends_with_connection:
            return True
        if head is not None or expects:
            raise Disconnected("the peer closed the connection")
        return False

    def _read_head(self, data: bytes, at: int, events: list[AnswerEvent]) -> int:
        """Where the bytes go on after a head, or after the beginning of one, which waits for its end."""
        if not self._expects:
            raise NotHttp("it spoke unasked")
        begin = at
        while data.startswith(b"\r\n", begin):
            begin += 2
        if not _SAID.startswith(data[begin : begin + len(_SAID)]) and data[begin:] != b"\r":
            raise NotHttp("its answer does not begin as HTTP does")
        end = data.find(b"\r\n\r\n", begin)
        stop = end + 4 if end >= 0 else len(data)
        room = HEAD_BYTES - self._size
        if end < 0 or stop - at > room:
            # A line that ends with LF alone is refused at once: the end of such a head would never come.
            last = min(stop, at + room)
            if data.count(b"\n", begin, last) != data.count(b"\r\n", begin, last):
                raise BrokenHttp(_BAD_LINE)
            if stop - at > room:
                raise BrokenHttp(_LARGE_HEAD)
            self._begun = data[at:]
            return stop
        self._size += stop - at
        head = _head_of(data[begin : end + 2])
        if head.status < 200:
            return stop
        if self._tunnels and head.status < 300:  # its length has no meaning (RFC 9110, 9.3.6)
            head = msgspec.structs.replace(head, length=None, chunked=False)
        self._expects, self.left = False, head.length or 0
        self._chunks = ChunkReader(most_trailers=MOST_HEADERS, most_bytes=HEAD_BYTES) if head.chunked else None
        events.append(head)
        if head.length == 0:
            events.append(END)
        else:
            self.head = head
        return stop

    def __repr__(self) -> str:
        if self.head is not None:
            return f"<AnswerParser in the body of {self.head.status}, left={self.left}>"
        return f"<AnswerParser {'awaits a head' if self._expects else 'idle'}>"


_STATUS_LINE: Final = re.compile(rb"HTTP/(1\.[01]|2\.0) ([0-9]{3})(?: [^\r\n]*)?\r\n")
"""Servers write 2.0 and mean 1.1."""

_LENGTH: Final = re.compile(r"[0-9]{1,15}")


def _head_of(raw: bytes) -> AnswerHead:
    """The head in these lines; raises ``BrokenHttp`` if it cannot be read, or if its body could not."""
    line = _STATUS_LINE.match(raw)
    written = header_fields(raw, line.end(), len(raw)) if line is not None else None
    if line is None or written is None:
        raise BrokenHttp(_BAD_LINE)
    if len(written) > MOST_HEADERS:
        raise BrokenHttp(_LARGE_HEAD)
    version, status = line[1], int(line[2])
    if status == 101:
        raise BrokenHttp("it switched protocols")
    headers = dict(written)
    if len(headers) < len(written):
        headers = joined(written, {"set-cookie": "\n"})
    coding = headers["transfer-encoding"].lower().strip(", \t") if "transfer-encoding" in headers else "identity"
    if coding not in ("chunked", "identity"):  # in another one its body could not be read
        raise BrokenHttp("its body comes in a transfer coding that was not asked for")
    chunked = coding == "chunked"
    stated = headers.get("content-length")
    if stated is not None and _LENGTH.fullmatch(stated) is None:
        raise BrokenHttp("it breaks the rules of HTTP (its length is no number)")
    if chunked and stated is not None:
        raise BrokenHttp("it breaks the rules of HTTP (it has a length and chunks)")
    connection = headers["connection"].lower() if "connection" in headers else ""
    kept = "keep-alive" in connection if version == b"1.0" else "close" not in connection
    if status < 200 or status in (204, 304):
        return AnswerHead(status, headers, kept, 0, chunked=False)
    length = int(stated) if stated is not None else None
    return AnswerHead(status, headers, kept and (chunked or length is not None), length, chunked)


# What both sides of HTTP/1.1 read alike: headers, where chunks end, and what is in a body.

_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_IN_A_LINE: Final = bytes(one for one in range(256) if one == 9 or (one >= 32 and one != 127))
"""The bytes that a line of a head may have: no control character but the tab."""


def header_fields(data: bytes, start: int, end: int) -> list[tuple[str, str]] | None:
    """The headers in these lines, each with its name in lower case; None if a line is none.

    What surrounds a value is no part of it (RFC 9110, 5.5).
    """
    block = data[start:end]
    lines = block.decode("latin-1").split("\r\n")
    # What is left without the bytes of lines are their ends, and none of them may stand elsewhere or alone. A pattern
    # that matches all lines says the same and takes three times as long: it looks at each byte by itself.
    if block.translate(None, _IN_A_LINE) != b"\r\n" * (len(lines) - 1) or lines.pop():
        return None
    found = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not name or not colon:
            return None
        found.append((name.lower(), value.strip(" \t")))
    names = "".join(dict(found)).encode("latin-1")
    return None if names.translate(None, _TOKEN) else found


def joined(fields: Iterable[tuple[str, str]], between: Mapping[str, str] | None = None) -> dict[str, str]:
    """Headers by name; the values of one that is repeated are joined by a comma, or by what is ``between`` them."""
    headers: dict[str, str] = {}
    for name, value in fields:
        known = headers.get(name)
        headers[name] = value if known is None else f"{known}{(between or {}).get(name, ', ')}{value}"
    return headers


EXTENSION_BYTES: Final = 16 * 1024
"""What chunks may say of themselves, in all chunks of a body: hardly any peer says anything."""


class BadChunk(Exception):
    """A body is not in chunks as it should be. ``too_large`` says that its trailers are over their bound."""

    def __init__(self, *, too_large: bool = False) -> None:
        super().__init__("trailers over their bound" if too_large else "bad chunk")
        self.too_large = too_large


_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})((?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?)")
_NEXT_CHUNK: Final = re.compile(rb"\r\n(?!0+\r)([0-9A-Fa-f]{1,15})\r\n")
_SIZE_BYTES: Final = 16
"""The digits of a size, and the first half of its line end."""

_TRAILER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*")


class ChunkReader:
    """Reads a body that comes in chunks. Trailers are not used: they are no headers (RFC 9110, 6.5)."""

    __slots__ = ("_ended", "_extra", "_left", "_line", "_most_bytes", "_most_trailers", "_size", "_trailers", "done")

    def __init__(self, *, most_trailers: int, most_bytes: int) -> None:
        self._most_trailers = most_trailers
        self._most_bytes = most_bytes
        self._line = b""
        """The beginning of a line whose end is not here."""
        self._left = -1
        """How much is left of the chunk that is being read; 0 for its line end, -1 between chunks."""
        self._extra = 0
        self._ended = False
        """Whether the last chunk came: trailers may follow."""
        self._trailers = self._size = 0
        self.done = False

    def take(self, data: bytes, at: int) -> tuple[bytes, int]:
        """The next piece of the body from ``at`` on, and where to go on; empty if there is none before the data ends.

        It is empty too when the body is complete: then ``done`` is true. Raises ``BadChunk``.
        """
        size = len(data)
        while at < size and not self.done:
            if self._left > 0:
                return self._take_chunks(data, at)
            end = data.find(b"\n", at)
            line = self._line + (data[at:] if end < 0 else data[at : end + 1])
            self._line = b""
            if end < 0:
                self._wait(line)
                return b"", size
            at = end + 1
            if not line.endswith(b"\r\n"):
                raise BadChunk
            if self._left == 0:  # after a chunk
                if len(line) > 2:
                    raise BadChunk
                self._left = -1
            elif not self._ended:
                found = _SIZE.fullmatch(line, 0, len(line) - 2)
                self._extra += len(found[2]) if found is not None else 0
                if found is None or self._extra > EXTENSION_BYTES:
                    raise BadChunk
                chunk = int(found[1], 16)
                self._ended = not chunk
                self._left = chunk or -1
            elif len(line) > 2:
                self._take_trailer(line[:-2])
            else:
                self.done = True
        return b"", at

    def _take_chunks(self, data: bytes, at: int) -> tuple[bytes, int]:
        """The rest of a chunk, with all of those that follow it at once and say nothing but their size."""
        size, left, pieces = len(data), self._left, []
        while True:
            stop = min(size, at + left)
            pieces.append(data[at:stop])
            left -= stop - at
            following = _NEXT_CHUNK.match(data, stop) if not left else None
            if following is None:
                break
            at, left = following.end(), int(following[1], 16)
        if not left and data.startswith(b"\r\n", stop):
            stop, left = stop + 2, -1
        self._left = left
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), stop

    def _wait(self, line: bytes) -> None:
        """Keep the beginning of a line: it is read when it is complete. One that is over its bound already is not."""
        if self._left == 0:
            if line != b"\r":
                raise BadChunk
        elif self._ended:
            # What it counts at least once its end is here: a cut before that must not change what is refused.
            least = 0 if line == b"\r" else len(line.removesuffix(b"\r")) + 2
            if least > self._most_bytes - self._size:
                raise BadChunk(too_large=True)
        elif len(line) > EXTENSION_BYTES - self._extra + _SIZE_BYTES:
            raise BadChunk
        self._line = line

    def _take_trailer(self, line: bytes) -> None:
        self._trailers += 1
        self._size += len(line) + 2
        if self._trailers > self._most_trailers or self._size > self._most_bytes:
            raise BadChunk(too_large=True)
        if _TRAILER.fullmatch(line) is None:
            raise BadChunk


MANY_PIECES: Final = 64
"""So many pieces of a body are kept as they came; few bodies have more."""

_SMALL_BYTES: Final = 4096
_JOINED_BYTES: Final = 64 * 1024


def append_piece(pieces: MutableSequence[Any], data: bytes) -> None:
    """Append a piece of a body to those that wait for their reader. Of many, small ones are joined as they come.

    A body may come in chunks of one or two bytes. Each would take thirty times its size in memory, and joining millions
    of them at the end holds up the event loop. So they go into a ``bytearray`` of small ones.
    """
    last = pieces[-1] if len(pieces) >= MANY_PIECES else None
    if last is None or len(data) >= _SMALL_BYTES:
        pieces.append(data)
    elif isinstance(last, bytearray) and len(last) < _JOINED_BYTES:
        last += data
    else:
        pieces.append(bytearray(data))


INFLATED_BYTES: Final = 256 * 1024
"""How much is inflated in one step of the event loop."""

_GZIP: Final = frozenset({"gzip", "x-gzip"})
_RAW_DEFLATE: Final = -15
_ZLIB: Final = 15
_ZLIB_OR_GZIP: Final = 47
"""The stream itself says which of the two it is."""


class BadEncoding(Exception):
    """The body is not compressed as its header says, or in a form that is not known."""


class Inflater:
    """Undoes the compression of an answer, a bounded piece at a time: a few bytes may stand for gigabytes.

    We ask for none (``accept-encoding: identity``), and some servers compress all the same.
    """

    def __init__(self, encoding: str) -> None:
        self._gzip = encoding in _GZIP
        self._known = self._gzip or encoding == "deflate"
        self._stream: zlib._Decompress | None = None
        self._rest = b""
        """Compressed bytes that were not read yet."""
        self._more = False
        """Whether the stream holds more than the latest step gave."""
        self._over = False

    @property
    def ended(self) -> bool:
        """Whether all that came was inflated, and no stream is left open."""
        return self._stream is None and not self._rest

    def feed(self, data: bytes) -> None:
        """A compressed piece."""
        if not self._over:
            self._rest += data

    def take(self) -> bytes:
        """The next piece; empty where more compressed bytes are needed."""
        while self._rest or self._more:
            stream = self._stream = self._stream or self._begun()
            if stream is None:
                break
            try:
                piece = stream.decompress(self._rest, INFLATED_BYTES)
            except zlib.error as exc:
                raise BadEncoding("its answer is badly compressed") from exc
            self._rest = stream.unconsumed_tail
            self._more = len(piece) == INFLATED_BYTES
            if stream.eof:
                self._end(stream.unused_data)
            if piece:
                return piece
        return b""

    def _begun(self) -> zlib._Decompress | None:
        """A stream as its first bytes say; None as long as they do not."""
        if not self._known:
            raise BadEncoding("its answer is compressed in a form that was not asked for")
        if self._gzip:
            return zlib.decompressobj(_ZLIB_OR_GZIP)
        if len(self._rest) < 2:
            return None
        # Some servers send the bare data, without the frame of zlib that the name stands for (RFC 9110, 8.4.1.2).
        framed = self._rest[0] & 0x0F == 8 and int.from_bytes(self._rest[:2], "big") % 31 == 0
        return zlib.decompressobj(_ZLIB if framed else _RAW_DEFLATE)

    def _end(self, rest: bytes) -> None:
        """A stream has ended: another member may follow in gzip (RFC 1952); anything else is padding."""
        self._stream, self._more = None, False
        self._over = not self._gzip or (bool(rest) and rest[:1] != b"\x1f")
        self._rest = b"" if self._over else rest


# Server-sent events. A stream is cut anywhere on its way: inside a line, between CR and LF, inside the byte order mark.
# The events depend on the bytes alone, not on the cuts. Lines end with LF, CR or CRLF; an empty line ends an event; a
# line that begins with a colon is a comment and only shows that the peer lives.

LINE_COST: Final = 64
"""How many bytes a line of an event counts beyond its own: an empty ``data`` line is a Python object too."""

LONGEST_NAME: Final = 1_024
"""Bytes of the name of an event, and of its id."""


class ServerEvent(NamedTuple):
    """One event; its data is the bytes that came."""

    name: str
    data: bytes
    id: str
    retry: int | None
    cut: bool = False
    """Whether it was over the bound: then the data is its beginning."""


BEGINNING_BYTES: Final = 1024
"""How much is kept of an event or a line over the bound: enough to find out which request it answers."""

LONGEST_SKIP: Final = 8
"""An event or a line over the bound is skipped up to this multiple of the bound; then the stream is given up."""

_BOM: Final = b"\xef\xbb\xbf"
# A whole event as almost every server writes it. A call with 100 progress notices is 100 of them, and PERF-6 bounds
# what they take: one match here, where three lines would be split and looked at one by one.
_USUAL: Final = re.compile(
    rb"(?:id: (?P<id>[^\x00\r\n]{1,%d})\r?\n)?(?:event: message\r?\n)?data: (?P<data>[^\r\n]*)\r?\n\r?\n" % LONGEST_NAME
)


class EventReader(msgspec.Struct, eq=False):
    """Takes pieces of a stream and gives the events that are complete.

    With ``skips``, an event over the bound is cut and the stream goes on; else it is ``too_large``, and nothing more is
    read.
    """

    most: int
    skips: bool = False
    too_large: bool = False
    """Whether the stream has to be given up for the size of its latest event."""
    size: int = 0
    """Bytes of the event that is not complete, unless it is being skipped."""
    _head: bytes | None = None
    """The beginning of the event that is being skipped."""
    _skipped: int = 0
    _at_line_start: bool = True
    _line: list[bytes] = []
    """The parts of a line whose end is not here."""
    _held: int = 0
    """What the lines of the event count that are here."""
    _after_return: bool = False
    _name: str = ""
    _data: list[bytes] = []
    _id: str = ""
    _retry: int | None = None
    _seen: bool = False
    """Whether the event has a field."""
    _first: bool = True
    _lead: bytes = b""
    """The beginning of what may be a byte order mark."""

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that end in this piece. Look at ``too_large`` when they are taken."""
        events: list[ServerEvent] = []
        if self._first:
            chunk = self._lead + chunk
            if _BOM.startswith(chunk):
                self._lead = chunk
                return events
            self._first, self._lead = False, b""
            chunk = chunk.removeprefix(_BOM)
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the second half of a CRLF that was cut: it ends no line of its own
        self._after_return = chunk.endswith(b"\r")
        # Only between two events: what was begun line by line must end so, or its fields would be lost.
        if not self._seen and not self._line and self._head is None:
            at = 0
            while (found := _USUAL.match(chunk, at)) is not None and len(found["data"]) <= self.most:
                at = found.end()
                if found["id"] is not None:
                    self._id = found["id"].decode("utf-8", "replace")
                events.append(ServerEvent("message", found["data"], self._id, None))
            chunk = chunk[at:]
        for piece in chunk.splitlines(keepends=True):
            if self.too_large:
                break
            if self._head is not None:
                self._skip(piece, events)
            elif not piece.endswith((b"\n", b"\r")):
                self._line.append(piece)
                self._bound(self.size + len(piece))
            elif line := b"".join((*self._line, piece.rstrip(b"\r\n"))):
                self._take(line)
            else:
                self._complete(events)
        return events

    def _bound(self, size: int) -> None:
        """The event has this size. Of one over the bound the beginning is kept; the rest is dropped as it comes."""
        self.size = size
        if size <= self.most:
            return
        if not self.skips:
            self.too_large = True
        in_line = bool(self._line)
        line = b"".join(self._line).removeprefix(b"data:").removeprefix(b" ") if not self._data else b""
        self._head = (b"\n".join(self._data) or line)[:BEGINNING_BYTES]
        self._skipped, self.size = size, 0
        self._line, self._data, self._seen, self._at_line_start = [], [], True, not in_line

    def _skip(self, piece: bytes, events: list[ServerEvent]) -> None:
        """Drop a piece of an event that is over the bound; give its beginning, once it has ended."""
        self._skipped += len(piece)
        self.too_large = self._skipped > LONGEST_SKIP * self.most
        ends = piece.endswith((b"\n", b"\r"))
        over = ends and self._at_line_start and not piece.rstrip(b"\r\n")
        self._at_line_start = ends
        if over:
            self._complete(events)

    def _take(self, line: bytes) -> None:
        self._line.clear()
        self.size = self._held  # its parts count no longer: a stream may have comments alone for days
        field, _, value = line.partition(b":")
        if not field:
            return
        value = value.removeprefix(b" ")
        self._seen = True
        if field == b"data":
            self._data.append(value)
            # A line costs more than its bytes: an event of empty lines is bounded too.
            self._held += len(value) + (LINE_COST if len(self._data) > 1 else 0)
            self._bound(self._held)
        elif field == b"event":
            self._name = value[:LONGEST_NAME].decode("utf-8", "replace")
        elif field == b"id" and len(value) <= LONGEST_NAME and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit():
            self._retry = int(value[:9])

    def _complete(self, events: list[ServerEvent]) -> None:
        """An empty line ended the event. One without a field is none: a comment stood there."""
        if self._seen:
            cut = self._head is not None
            data = self._head or (self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
            events.append(ServerEvent(self._name or "message", data, self._id, self._retry, cut))
        self._head, self._name, self._data, self._retry, self._seen = None, "", [], None, False
        self.size = self._held = 0

    def __repr__(self) -> str:
        state = "gave up" if self.too_large else "skips" if self._head is not None else "reads"
        return f"<EventReader {state} size={self.size}>"
