"""The requests in the bytes of one connection. They depend on the bytes alone, not on how those were cut on their way.

httptools reads heads, and nothing else: each head by a parser of its own. Where a body ends is decided here: after the
length that the head states, or after the last chunk.
"""

from __future__ import annotations

from typing import Final, Protocol
from urllib.parse import unquote

import httptools

from holdfast.wire import BadChunk, ChunkReader, HeadFrame

__all__ = ["BadRequest", "RequestBody", "RequestHead", "RequestParser", "RequestSink"]

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


class RequestBody(Protocol):
    """A request whose head is complete."""

    def feed(self, data: bytes) -> None:
        """A piece of the body."""

    def end(self) -> None:
        """The body is complete."""


class RequestSink(Protocol):
    """What takes the requests of a connection."""

    def begun(self, head: RequestHead, body: bytes | None = None) -> RequestBody:
        """A head is complete: the request can be served. Its body goes to what this returns, or is all here."""


class RequestParser:
    """Reads one request after the other."""

    def __init__(self, sink: RequestSink) -> None:
        self._sink = sink
        self._frame = HeadFrame(HEAD_BYTES)
        self._reader: _RequestHeadReader | None = None
        """What reads the head that has begun."""
        self._request: RequestBody | None = None
        """The request whose body is being read."""
        self._left = 0
        """How much is left of that body, where its head states a length."""
        self._chunks: ChunkReader | None = None
        """What reads that body, where it comes in chunks."""

    @property
    def in_head(self) -> bool:
        """Whether a head has begun and is not complete."""
        return self._frame.begun

    def feed(self, data: bytes, at: int = 0) -> int:
        """Read from ``at`` on, at most to the end of one request; returns where to go on. Raises ``BadRequest``."""
        if self._request is None:
            at = self._read_head(data, at)
        if self._chunks is not None:
            return self._read_chunks(data, at)
        return self._read_body(data, at) if self._left else at

    def close(self) -> None:
        """No more bytes come, or the head is complete."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _read_head(self, data: bytes, at: int) -> int:
        frame, size = self._frame, len(data)
        start, stop, ends = frame.find(data, at)
        head = None
        if start < stop:
            reader = self._reader
            if reader is None:
                reader = self._reader = _RequestHeadReader()
            head = reader.feed(data if not start and stop == size else data[start:stop])
        if frame.over:
            raise BadRequest(431)
        if ends != (head is not None):
            raise BadRequest(400)
        if head is None:
            return stop
        self.close()
        frame.restart()
        return self._begin(head, data, stop)

    def _begin(self, head: RequestHead, data: bytes, at: int) -> int:
        """A head is complete. A body that is all here goes with it."""
        if "transfer-encoding" in head.headers:
            self._chunks = ChunkReader(most_trailers=MOST_HEADERS, most_bytes=HEAD_BYTES)
            self._request = self._sink.begun(head)
            return at
        length = int(head.headers.get("content-length", "0"))
        if len(data) - at >= length:
            self._sink.begun(head, data[at : at + length])
            return at + length
        self._left = length
        self._request = self._sink.begun(head)
        return at

    def _read_body(self, data: bytes, at: int) -> int:
        assert self._request is not None  # noqa: S101 - a body is being read
        stop = min(len(data), at + self._left)
        self._left -= stop - at
        self._request.feed(data if not at and stop == len(data) else data[at:stop])
        if not self._left:
            self._end()
        return stop

    def _read_chunks(self, data: bytes, at: int) -> int:
        assert self._request is not None  # noqa: S101 - as above
        assert self._chunks is not None  # noqa: S101 - as above
        try:
            at = self._chunks.feed(data, at, self._request.feed)
        except BadChunk as exc:
            raise BadRequest(431 if exc.too_large else 400) from None
        if self._chunks.done:
            self._chunks = None
            self._end()
        return at

    def _end(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.end()


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
        known = head.headers.get(key)
        if known is None:
            head.headers[key] = text
        else:
            head.headers[key] = f"{known}, {text}"
            head.repeated = (*head.repeated, key)

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
