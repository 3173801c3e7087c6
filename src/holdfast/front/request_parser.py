"""The requests in the bytes of one client's connection: HTTP/1.1 without a socket. Bytes in, events out.

A request is one ``RequestHead``, then pieces of its body (``bytes``). It is complete when ``in_body`` is false after
one of these. The shell pulls events: what it does not pull stays here, so a client that sends many requests ahead fills
no queue.

Where a body ends is decided here, by the first rule that fits: after the last chunk; after the length that the head
states; at once.

What must never happen (request smuggling): a proxy before us and this reader disagree where a request ends.

- A head is read when all of it is here, by two patterns that allow what RFC 9112 allows and nothing else. Nothing in
  one request changes how the next one is read.
- The events depend on the bytes alone, not on how they were cut on their way.
- What two readers may read apart is refused, not repaired: a line that does not end with CR LF, a header on two lines,
  ``content-length`` beside ``transfer-encoding``, a length that is no plain number, a coding other than ``chunked``, a
  chunk whose size line is odd, two ``Host`` headers.

Each head has bounds on its size and on the number of its headers, and so have the trailers of a body (SEC-11).
tests/front/test_request_oracle.py compares it with h11, and names each rule in which it is stricter on purpose.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeAlias
from urllib.parse import unquote

import msgspec

from holdfast.wire import BadChunk, ChunkReader, header_fields, joined

__all__ = ["BadRequest", "RequestEvent", "RequestHead", "RequestParser"]

HEAD_BYTES: Final = 64 * 1024
MOST_HEADERS: Final = 500
"""A head over either bound is refused, and so are the trailers of a body. Each header costs a step of Python, and a
repeated one a copy of its values."""

LENGTH_DIGITS: Final = 20
"""How many digits the length of a body may have: Python refuses to read thousands of them, and h11 draws this line."""

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
"""Others are refused here. After a CONNECT the bytes would be no requests, and the rest are of other protocols."""

_BEGIN: Final = re.compile(rb"[A-Z]{1,16}(?: |\Z)")
"""How a head begins, also where its first word is not all here: a client of another protocol is refused at once."""
_BARE_NEWLINE: Final = re.compile(rb"(?<!\r)\n")
_LINE: Final = re.compile(rb"([A-Z]{1,16}) ([\x21-\x7e]+) HTTP/(\d\.\d)\r\n")
_ADDRESS: Final = re.compile(
    rb"(?i:https?)://(?P<host>(?:[^/?@:\[\]]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?)(?P<path>[/?].*)?"
)
_HEAD_END: Final = b"\r\n\r\n"


class BadRequest(Exception):
    """The bytes are no request that is served; ``status`` is the answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class RequestHead(msgspec.Struct, eq=False):
    """The request line and the headers."""

    method: str
    raw_path: bytes
    query: bytes
    path: str
    http_version: str
    written: Sequence[tuple[str, str]]
    """Each header as it was written, in their order: its name in lower case, and its value."""
    headers: dict[str, str]
    """By lower-case name. Values of a repeated header are joined by a comma."""
    repeated: tuple[str, ...] = ()
    """The names that occur more than once."""
    keep_alive: bool = True

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """The same as bytes."""
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.written]

    def __repr__(self) -> str:
        return f"<RequestHead {self.method} {self.path!r} HTTP/{self.http_version}>"


RequestEvent: TypeAlias = RequestHead | bytes


class RequestParser:
    """Reads one request after the other: ``receive`` takes bytes, ``next_event`` gives what they mean."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        """Where the bytes begin that were not read."""
        self.unread = 0
        """How many bytes came and were not pulled. What is here of a head that is not complete counts as pulled."""
        self.begun = 0
        """How many of them are the beginning of a head whose end is not here; not 0 while a head comes."""
        self._blank = 0
        """Bytes of the empty lines before a head (RFC 9112, 2.2)."""
        self.in_body = False
        """Whether more of the present request is to come."""
        self._left = 0
        """How much is left of the body, where its head states a length."""
        self._chunks: ChunkReader | None = None
        """What reads the body, where it comes in chunks."""

    def receive(self, data: bytes) -> None:
        """Bytes came."""
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0
        self.unread += len(data)

    def next_event(self) -> RequestEvent | None:
        """The next event in the bytes that came; None if it needs more of them. Raises ``BadRequest``.

        The last piece of a body in chunks is empty: it says that the body is complete.
        """
        if not self.in_body:
            return self._read_head() if self._at < len(self._data) else None
        if self._chunks is not None:
            piece = self._read_chunks(self._chunks)
            done = self._chunks.done
        else:
            end = min(len(self._data), self._at + self._left)
            piece, self._at = self._data[self._at : end], end
            self._left -= len(piece)
            done = not self._left
        self.unread = len(self._data) - self._at
        if done:
            self.in_body, self._chunks = False, None
        return piece if piece or done else None

    def close(self) -> None:
        """No more bytes come, or none is wanted."""
        self._data, self._at, self.begun, self.unread = b"", 0, 0, 0

    def _read_head(self) -> RequestHead | None:
        """The head that begins or goes on here; None if its end is not here.

        A head that comes byte by byte is copied with each byte: it is small, and has its time.
        """
        data = self._data
        if not self.begun and data[self._at] in b"\r\n":
            at = len(data) - len(data[self._at :].lstrip(b"\r\n"))
            self._blank += at - self._at
            self._at = at
        start, room = self._at, HEAD_BYTES - self._blank
        if _BEGIN.match(data, start) is None and start < len(data):
            raise BadRequest(400)
        end = data.find(_HEAD_END, max(start + self.begun - 3, start))
        size = (end + len(_HEAD_END) if end >= 0 else len(data)) - start
        if end < 0 or size > room:
            if _BARE_NEWLINE.search(data, start, start + max(room, 0)):
                raise BadRequest(400)
            if size > room:
                raise BadRequest(431)
            self.begun, self.unread = size, 0
            return None
        head = _read(data, start, end)
        self._at, self.begun, self._blank = start + size, 0, 0
        self.unread = len(data) - self._at
        if "transfer-encoding" in head.headers:
            self._chunks = ChunkReader(most_trailers=MOST_HEADERS, most_bytes=HEAD_BYTES)
        else:
            self._left = int(head.headers.get("content-length", "0"))
        self.in_body = self._chunks is not None or self._left > 0
        return head

    def _read_chunks(self, chunks: ChunkReader) -> bytes:
        try:
            piece, self._at = chunks.take(self._data, self._at)
        except BadChunk as exc:
            raise BadRequest(431 if exc.too_large else 400) from None
        return piece

    def __repr__(self) -> str:
        state = "in a body" if self.in_body else "in a head" if self.begun else "between requests"
        return f"<RequestParser {state} unread={self.unread}>"


def _read(data: bytes, start: int, end: int) -> RequestHead:
    """The head from ``start`` to the empty line at ``end``; raises ``BadRequest``."""
    line = _LINE.match(data, start, end + 2)
    written = header_fields(data, line.end(), end + 2) if line is not None else None
    if line is None or written is None:
        raise BadRequest(400)
    method, target, version = line[1].decode("ascii"), line[2], line[3].decode("ascii")
    if version not in ("1.0", "1.1"):
        raise BadRequest(505)
    if method not in METHODS:
        raise BadRequest(501)
    host = ""
    if not target.startswith(b"/"):
        address = _ADDRESS.fullmatch(target)
        if address is None:
            raise BadRequest(400)
        host, target = address["host"].decode("ascii"), address["path"] or b"/"
        target = target if target.startswith(b"/") else b"/" + target
    if len(written) > MOST_HEADERS:
        raise BadRequest(431)
    raw_path, _, query = target.partition(b"#")[0].partition(b"?")
    path, headers = raw_path.decode("ascii"), dict(written)
    head = RequestHead(method, raw_path, query, _unquoted(path) if "%" in path else path, version, written, headers)
    if len(headers) < len(written):
        counts = Counter(name for name, _ in written)
        head.repeated = tuple(name for name, count in counts.items() if count > 1)
        headers = head.headers = joined(written)
    _check(head)
    if host:  # the host of an absolute target counts, not the header's: for each reader of them (RFC 9112, 3.2.2)
        headers["host"] = host
        head.written = [("host", host), *[one for one in written if one[0] != "host"]]
    return head


def _check(head: RequestHead) -> None:
    """Refuse a head without one Host, or whose body another reader may end elsewhere; settle what follows it."""
    headers = head.headers
    if ("host" not in headers and head.http_version == "1.1") or "host" in head.repeated:
        raise BadRequest(400)
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit() and len(length) <= LENGTH_DIGITS):
        raise BadRequest(400)
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower().strip(", \t") != "chunked":
            raise BadRequest(501)
        if head.http_version == "1.0" or "content-length" in headers or "upgrade" in headers:
            raise BadRequest(400)
    head.keep_alive = head.http_version == "1.1"
    if "connection" in headers:
        options = {*map(str.strip, headers["connection"].lower().split(","))}
        head.keep_alive = "close" not in options and (head.keep_alive or "keep-alive" in options)


def _unquoted(path: str) -> str:
    """A path without its codes. A coded slash separates nothing: a gateway that decides by path does not see one."""
    return "/".join(unquote(part).replace("/", "%2F") for part in path.split("/"))
