"""The requests in the bytes of one connection.

httptools parses. A client sends the same head again and again, apart from the length of the body. So a head that was
parsed once is found by its bytes, and a request that came whole with such a head needs no parser. A head is found
only if every other byte of it is equal: it means what the parser said that it means.
"""

from __future__ import annotations

from typing import Final, Protocol
from urllib.parse import unquote

import httptools

__all__ = ["BadRequest", "RequestBody", "RequestHead", "RequestParser", "RequestSink"]

HEAD_BYTES: Final = 64 * 1024
MOST_HEADERS: Final = 500
"""A head over either bound is refused. Each header costs a step of Python, and a repeated one a copy of its values."""

KNOWN_HEADS: Final = 4
KNOWN_HEAD_BYTES: Final = 4096
"""How many heads a connection remembers, and how large one may be. Most clients have one for all their calls."""

_LENGTHS: Final = (b"\r\ncontent-length: ", b"\r\nContent-Length: ")


class BadRequest(Exception):
    """The bytes are no request that is served; ``status`` is the answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class RequestHead:
    """The request line and the headers. Requests with the same head share it, so nothing changes it."""

    __slots__ = (
        "headers", "http_version", "keep_alive", "length", "method", "path", "query", "raw_headers", "raw_path",
        "reading", "repeated",
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
        self.length: bytes | None = None
        """The digits of its length, if the head is one that is remembered."""
        self.reading: object = None
        """What the reader of its headers made of them: the next request with this head need not be read again."""

    def with_length(self, digits: bytes) -> RequestHead:
        """The same head of a body of another length."""
        same = RequestHead()
        for name in ("http_version", "keep_alive", "method", "path", "query", "raw_path", "reading", "repeated"):
            setattr(same, name, getattr(self, name))
        same.length = digits
        same.headers = {**self.headers, "content-length": digits.decode()}
        same.raw_headers = [(name, digits if name == b"content-length" else value) for name, value in self.raw_headers]
        return same


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
        self._parser = httptools.HttpRequestParser(self)
        self._head: RequestHead | None = None
        """The head that is being read."""
        self.in_head = False
        """Whether a head has begun and is not complete."""
        self._heads = 0
        """How many heads begin in the data that is being read."""
        self._head_size = 0
        self._headers_size = 0
        self._request: RequestBody | None = None
        """The request whose body is being read."""
        self._body_left = 0
        """How much is left of a body that the parser does not know of."""
        self._known: dict[bytes, RequestHead] = {}
        self._first: tuple[bytes, bytes | None] | None = None
        """The head that is being read without its length, and the length, if it came in one piece."""
        self._upgrading: dict[str, str] | None = None
        """The headers of a request that offers another protocol."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes; raises ``BadRequest``."""
        if self._body_left:
            data = self._take_body(data)
            if not data:
                return
        if self._head is None and self._request is None and self._take_known(data):
            return
        self._heads, in_body = 0, self._request is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as exc:
            refused = exc.__context__  # what a callback raised
            raise BadRequest(refused.status if isinstance(refused, BadRequest) else 400) from exc
        if self._head is not None and self._heads + in_body < 2:  # else most of the data may lie before this head
            self._head_size += len(data)
            if self._head_size > HEAD_BYTES:
                raise BadRequest(431)

    def _take_known(self, data: bytes) -> bool:
        """Take a request that is complete, with a head that was parsed before; False leaves it to the parser."""
        self._first = None
        end = data.find(b"\r\n\r\n", 0, KNOWN_HEAD_BYTES)
        if end < 0:
            return False
        key, digits = _split(data, end)
        head = self._known.get(key)
        if head is None:
            self._first = key, digits
            return False
        body = data[end + 4 :]
        if len(body) != (int(digits) if digits is not None else 0):
            return False
        if digits is not None and digits != head.length:
            head = self._known[key] = head.with_length(digits)
        self._sink.begun(head, body)
        return True

    def _remember(self, head: RequestHead) -> None:
        """Remember a head that says nothing about its body but the length, and that came in one piece."""
        first, self._first = self._first, None
        if first is None or not head.keep_alive or not _UNUSUAL.isdisjoint(head.headers):
            return
        key, digits = first
        if head.headers.get("content-length") != (digits.decode() if digits is not None else None):
            return
        head.length = digits
        if len(self._known) >= KNOWN_HEADS:
            self._known.clear()
        self._known[key] = head

    def _decline_upgrade(self, rest: bytes) -> None:
        """Another protocol is offered, not demanded: the request is answered in this one, with its body."""
        self._parser = httptools.HttpRequestParser(self)
        headers, self._upgrading = self._upgrading, None
        length = headers.get("content-length", "0") if headers is not None else ""
        if headers is None or "transfer-encoding" in headers or not length.isdigit():
            raise BadRequest(400)
        self._body_left = int(length)
        if not self._body_left:
            self._end()
        if rest:
            self.feed(rest)

    def _take_body(self, data: bytes) -> bytes:
        """The part of the body that the parser does not know of; what follows it is returned."""
        body, rest = data[: self._body_left], data[self._body_left :]
        self._body_left -= len(body)
        self.on_body(body)
        if not self._body_left:
            self._end()
        return rest

    def _end(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.end()

    # What httptools calls.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head = RequestHead()
        self._heads += 1
        self._head_size = self._headers_size = 0
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        """The request's target, whole or in pieces."""
        assert self._head is not None  # noqa: S101 - the parser said that it begins
        self._head.raw_path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer after a body: those are not used, since a header may not come so late."""
        head = self._head
        self._headers_size += len(name) + len(value)
        if self._headers_size > HEAD_BYTES or (head is not None and len(head.raw_headers) >= MOST_HEADERS):
            raise BadRequest(431)  # at once: one piece of a connection may have thousands more
        if head is None:
            return
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
        assert head is not None  # noqa: S101 - as above
        head.method = parser.get_method().decode("ascii")
        head.http_version = parser.get_http_version()
        head.keep_alive = parser.should_keep_alive()
        _check_fields(head)
        if parser.should_upgrade():
            head.keep_alive = "close" not in head.headers.get("connection", "").lower()
            self._upgrading = head.headers
        target = httptools.parse_url(head.raw_path)
        if target.host:  # absolute form: its host counts, not the header's (RFC 9112, 3.2.2)
            if target.userinfo:
                raise BadRequest(400)
            name = target.host.decode("ascii", "replace")
            name = f"[{name}]" if ":" in name else name
            head.headers["host"] = f"{name}:{target.port}" if target.port else name
        head.raw_path = target.path or b"/"
        path = head.raw_path.decode("ascii", "replace")
        head.path = _unquoted(path) if "%" in path else path
        head.query = target.query or b""
        self._head = None
        self.in_head = False
        self._remember(head)
        self._request = self._sink.begun(head)

    def on_body(self, data: bytes) -> None:
        """A piece of a body."""
        if self._request is not None:
            self._request.feed(data)

    def on_message_complete(self) -> None:
        """A request is complete, or its head is and another protocol is offered."""
        if self._upgrading is None:
            self._end()


def _check_fields(head: RequestHead) -> None:
    """Refuse a head without one Host, and a body that is coded for its way in a form other than chunks (RFC 9112)."""
    if head.http_version not in ("1.0", "1.1"):
        raise BadRequest(505)
    if ("host" not in head.headers and head.http_version == "1.1") or "host" in head.repeated:
        raise BadRequest(400)
    if head.headers.get("transfer-encoding", "chunked").lower().strip(", \t") != "chunked":
        raise BadRequest(501)


def _unquoted(path: str) -> str:
    """A path without its codes. A coded slash separates nothing: a gateway that decides by path does not see one."""
    return "/".join(unquote(part).replace("/", "%2F") for part in path.split("/"))


_UNUSUAL: Final = frozenset({"transfer-encoding", "expect", "upgrade"})
"""Headers that change how a body is read."""


def _split(data: bytes, end: int) -> tuple[bytes, bytes | None]:
    """A head without the digits of its length, and the digits; None where it states no length in the usual form."""
    for name in _LENGTHS:
        start = data.find(name, 0, end) + len(name)
        if start >= len(name):
            stop = data.find(b"\r\n", start, end + 2)
            digits = data[start:stop]
            if digits.isdigit() and len(digits) < 10:
                return data[:start] + data[stop:end], digits
    return data[:end], None
