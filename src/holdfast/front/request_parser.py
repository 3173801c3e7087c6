"""The requests in the bytes of one client's connection: HTTP/1.1 without a socket. Bytes in, events out.

A request is one ``RequestHead``, then pieces of its body (``bytes``), then one ``RequestEnd``. The shell pulls events:
what it does not pull stays here, so a client that sends many requests ahead fills no queue.

Where a body ends is decided here, by the first rule that fits: after the last chunk; after the length that the head
states; at once.

What must never happen (request smuggling): a proxy before us and this reader disagree where a request ends.

- httptools reads heads and nothing else, each head by a parser of its own that gets exactly the bytes of that head
  (``framing.HeadFrame``). Nothing in one request changes how the next one is read. The same bytes mean the same head,
  and are not read again (``KnownHeads``).
- The events depend on the bytes alone, not on how they were cut on their way.
- What two readers may read apart is refused, not repaired: ``content-length`` beside ``transfer-encoding``, a length
  that is no plain number, a coding other than ``chunked``, a chunk whose size line is odd, two ``Host`` headers.

Each head has bounds on its size and on the number of its headers, and so have the trailers of a body (SEC-11).
tests/front/test_request_oracle.py compares it with h11, and names each rule in which it is stricter on purpose.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias
from urllib.parse import unquote

import httptools

from holdfast.wire import BadChunk, ChunkReader, HeadFrame, KnownHeads

__all__ = ["BadRequest", "RequestEnd", "RequestEvent", "RequestHead", "RequestParser"]

HEAD_BYTES: Final = 64 * 1024
MOST_HEADERS: Final = 500
"""A head over either bound is refused, and so are the trailers of a body. Each header costs a step of Python, and a
repeated one a copy of its values."""

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
"""Others are refused here. After a CONNECT the bytes would be no requests, and the rest are of other protocols."""


class BadRequest(Exception):
    """The bytes are no request that is served; ``status`` is the answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class RequestHead:
    """The request line and the headers."""

    __slots__ = (
        "headers", "http_version", "keep_alive", "method", "path", "query", "raw_headers", "raw_path", "repeated",
    )  # fmt: skip

    def __init__(self) -> None:
        self.method = ""
        self.raw_path = b""
        self.path = ""
        self.query = b""
        self.http_version = "1.1"
        self.keep_alive = True
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.headers: dict[str, str] = {}
        """By lower-case name. Values of a repeated header are joined by a comma."""
        self.repeated: tuple[str, ...] = ()
        """The names that occur more than once."""

    def __repr__(self) -> str:
        return f"<RequestHead {self.method} {self.path!r} HTTP/{self.http_version}>"


class RequestEnd(Enum):
    """A request is complete."""

    END = "end"


RequestEvent: TypeAlias = RequestHead | bytes | RequestEnd


class RequestParser:
    """Reads one request after the other: ``receive`` takes bytes, ``next_event`` gives what they mean."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        """Where the bytes begin that were not read."""
        self._frame = HeadFrame(HEAD_BYTES)
        self._reader: _RequestHeadReader | None = None
        """What reads the head that has begun."""
        self._in_body = False
        self._left = 0
        """How much is left of the body, where its head states a length."""
        self._chunks: ChunkReader | None = None
        """What reads the body, where it comes in chunks."""

    @property
    def in_head(self) -> bool:
        """Whether a head has begun and is not complete."""
        return self._frame.begun

    @property
    def unread(self) -> int:
        """How many bytes came and were not pulled."""
        return len(self._data) - self._at

    def receive(self, data: bytes) -> None:
        """Bytes came."""
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    def next_event(self) -> RequestEvent | None:
        """The next event in the bytes that came; None if it needs more of them. Raises ``BadRequest``."""
        if not self._in_body:
            return self._read_head() if self._at < len(self._data) else None
        if self._chunks is not None:
            piece, done = self._read_chunks(self._chunks)
        else:
            end = min(len(self._data), self._at + self._left)
            piece, self._at = self._data[self._at : end], end
            self._left -= len(piece)
            done = not self._left
        if piece:
            return piece
        if done:
            self._in_body, self._chunks = False, None
            return RequestEnd.END
        return None

    def close(self) -> None:
        """No more bytes come, or none is wanted."""
        self._data, self._at = b"", 0
        self._forget_reader()

    def _read_head(self) -> RequestHead | None:
        frame = self._frame
        start, stop, ends = frame.find(self._data, self._at)
        raw, self._at = self._data[start:stop], stop
        whole = ends and self._reader is None
        head = _known.get(raw) if whole else None
        if head is None and raw:
            if self._reader is None:
                self._reader = _RequestHeadReader()
            head = self._reader.feed(raw)
            if whole and head is not None:
                _known.keep(raw, head, head.headers)
        if frame.size > HEAD_BYTES:
            raise BadRequest(431)
        if ends != (head is not None):
            raise BadRequest(400)
        if head is None:
            return None
        self._forget_reader()
        frame.restart()
        self._in_body = True
        if "transfer-encoding" in head.headers:
            self._chunks = ChunkReader(most_trailers=MOST_HEADERS, most_bytes=HEAD_BYTES)
        else:
            self._left = int(head.headers.get("content-length", "0"))
        return head

    def _read_chunks(self, chunks: ChunkReader) -> tuple[bytes, bool]:
        try:
            piece, self._at = chunks.take(self._data, self._at)
        except BadChunk as exc:
            raise BadRequest(431 if exc.too_large else 400) from None
        return piece, chunks.done

    def _forget_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __repr__(self) -> str:
        state = "in a body" if self._in_body else "in a head" if self.in_head else "between requests"
        return f"<RequestParser {state} unread={self.unread}>"


_known: Final = KnownHeads[RequestHead]()


class _RequestHeadReader:
    """Reads one head: httptools tells it what it finds."""

    __slots__ = ("_complete", "_head", "_parser")

    def __init__(self) -> None:
        self._head = RequestHead()
        self._complete = False
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> RequestHead | None:
        """The next bytes; the head if it is complete with them."""
        parser = self._parser
        assert parser is not None  # noqa: S101 - the head is not complete
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # another protocol is offered, not demanded: the request is answered in this one
        except httptools.HttpParserError as exc:
            refused = exc.__context__  # what a callback raised
            raise BadRequest(refused.status if isinstance(refused, BadRequest) else 400) from None
        return self._head if self._complete else None

    def close(self) -> None:
        """Let the parser go, which leads back here: a cycle for each request would be the collector's."""
        self._parser = None

    def on_message_begin(self) -> None:
        """A request begins; a second one cannot, in the bytes of one head."""
        if self._complete:
            raise BadRequest(400)

    def on_body(self, data: bytes) -> None:
        """No byte of a body comes here."""
        raise BadRequest(400)

    def on_url(self, url: bytes) -> None:
        """The request's target, whole or in pieces."""
        self._head.raw_path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        head = self._head
        if len(head.raw_headers) >= MOST_HEADERS:
            raise BadRequest(431)  # at once: a piece of a connection may have thousands more
        name, value = name.lower(), value.rstrip(b" \t")  # what surrounds a value is no part of it (RFC 9110, 5.5)
        head.raw_headers.append((name, value))
        key, text = name.decode("latin-1"), value.decode("latin-1")
        if key in head.headers:
            text = f"{head.headers[key]}, {text}"
            head.repeated = (*head.repeated, key)
        head.headers[key] = text

    def on_headers_complete(self) -> None:
        """The head is complete."""
        head, parser = self._head, self._parser
        assert parser is not None  # noqa: S101 - it calls
        head.method = parser.get_method().decode("ascii")
        head.http_version = parser.get_http_version()
        head.keep_alive = parser.should_keep_alive()
        _check(head)
        if parser.should_upgrade():
            if "transfer-encoding" in head.headers:
                raise BadRequest(400)
            head.keep_alive = "close" not in head.headers.get("connection", "").lower()
        target = httptools.parse_url(head.raw_path)
        if target.schema or target.host:
            _take_host(head, target)
        head.raw_path = target.path or b"/"
        path = head.raw_path.decode("ascii", "replace")
        head.path = _unquoted(path) if "%" in path else path
        head.query = target.query or b""
        self._complete = True


def _check(head: RequestHead) -> None:
    """Refuse a head without one Host, of another protocol, or whose body another reader may end elsewhere."""
    headers = head.headers
    if head.http_version not in ("1.0", "1.1"):
        raise BadRequest(505)
    if head.method not in METHODS:
        raise BadRequest(501)
    if ("host" not in headers and head.http_version == "1.1") or "host" in head.repeated:
        raise BadRequest(400)
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise BadRequest(400)
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower().strip(", \t") != "chunked":
            raise BadRequest(501)
        if head.http_version == "1.0" or "content-length" in headers:
            raise BadRequest(400)


def _take_host(head: RequestHead, target: httptools.parser.url_parser.URL) -> None:
    """The host of an absolute target counts, not the header's: for each reader of the headers (RFC 9112, 3.2.2)."""
    if target.schema.lower() not in (b"http", b"https") or not target.host or target.userinfo:
        raise BadRequest(400)
    name = target.host.decode("ascii", "replace")
    name = f"[{name}]" if ":" in name else name
    host = f"{name}:{target.port}" if target.port else name
    head.headers["host"] = host
    others = [(name, value) for name, value in head.raw_headers if name != b"host"]
    head.raw_headers = [(b"host", host.encode("latin-1", "replace")), *others]


def _unquoted(path: str) -> str:
    """A path without its codes. A coded slash separates nothing: a gateway that decides by path does not see one."""
    return "/".join(unquote(part).replace("/", "%2F") for part in path.split("/"))
