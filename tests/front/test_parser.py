"""The parser of a connection: one request after the other, and nothing that two readers could take differently."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as some

from holdfast.front.request_parser import BadRequest, RequestHead, RequestParser

HEADS = (
    b"POST /mcp HTTP/1.1\r\nHost: a\r\ncontent-length: %d\r\naccept: x\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\naccept: x\r\naccept: y\r\n",
    b"POST /servers/a%%20b/mcp?q=1 HTTP/1.1\r\nhost: a\r\nCONTENT-length: %d\r\n",
    b"POST /mcp HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: %d\r\n",
    b"POST /mcp HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade\r\ncontent-length: %d\r\n",
)
NO_BODY = (
    b"GET /mcp HTTP/1.1\r\nhost: a\r\n",
    b"GET /mcp HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n",
    b"DELETE /mcp HTTP/1.1\r\nhost: a\r\n",
)
CHUNKED = b"POST /mcp HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"


class Taken:
    """Keeps the requests that a parser finds."""

    def __init__(self) -> None:
        self.requests: list[tuple[object, ...]] = []
        self.head = RequestHead("", b"", b"", "", "", (), {})
        self._body = b""

    def pull(self, parser: RequestParser) -> None:
        while (event := parser.next_event()) is not None:
            if isinstance(event, RequestHead):
                self.head, self._body = event, b""
            else:
                self._body += event
            if not parser.in_body:
                self._end()

    def _end(self) -> None:
        head = self.head
        self.requests.append(
            (
                head.method, head.path, head.raw_path, head.query, head.http_version, head.keep_alive, head.headers,
                head.raw_headers, head.repeated, self._body,
            )
        )  # fmt: skip


def _written(kind: int, body: bytes) -> bytes:
    if kind < len(HEADS):
        return HEADS[kind] % len(body) + b"\r\n" + body
    if kind < len(HEADS) + len(NO_BODY):
        return NO_BODY[kind - len(HEADS)] + b"\r\n"
    return CHUNKED % (len(body), body) if body else _written(0, body)


requests = some.lists(some.tuples(some.integers(0, len(HEADS) + len(NO_BODY)), some.binary(max_size=40)), max_size=12)


@given(requests, some.data())
def test_requests_mean_the_same_however_their_bytes_are_cut(
    sent: list[tuple[int, bytes]], data: some.DataObject
) -> None:
    alone, cut = Taken(), Taken()
    one = RequestParser()
    for kind, body in sent:
        written = _written(kind, body)
        _feed(RequestParser(), alone, written, len(written))
        at = data.draw(some.sampled_from((0, 1, len(written) // 2, len(written) - 1)))
        for piece in (written[:at], written[at:]):
            _feed(one, cut, piece, len(piece) or 1)
    assert cut.requests == alone.requests
    assert len(alone.requests) == len(sent)


def test_requests_that_are_sent_ahead_are_read_one_after_the_other() -> None:
    taken = Taken()
    one = RequestParser()
    for _ in range(2):
        _feed(one, taken, _written(0, b"1") + _written(0, b"22") + _written(5, b""), 1 << 20)
    assert [request[-1] for request in taken.requests] == [b"1", b"22", b""] * 2


@pytest.mark.parametrize(
    "bad", [b"no http\r\n\r\n", b"POST /mcp HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"]
)
def test_bytes_that_are_no_request_are_refused_after_good_ones_too(bad: bytes) -> None:
    one, taken = RequestParser(), Taken()
    _feed(one, taken, _written(0, b"1"), 1 << 20)
    with pytest.raises(BadRequest):
        _feed(one, taken, bad, 1 << 20)


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(
    ("target", "host"),
    [
        (b"http://evil.example/mcp", "evil.example"),
        (b"http://evil.example:80/mcp", "evil.example:80"),
        (b"http://[::2]:81/mcp", "[::2]:81"),
        (b"/mcp", "127.0.0.1"),
    ],
)
def test_the_host_of_an_absolute_target_counts_and_not_the_header(target: bytes, host: str) -> None:
    taken = Taken()
    _feed(RequestParser(), taken, b"GET " + target + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 1 << 20)
    assert taken.head.headers["host"] == host
    assert dict(taken.head.raw_headers)[b"host"] == host.encode(), "what reads the raw ones sees the same"


@pytest.mark.parametrize("pieces", [1, 1000])
def test_white_space_around_a_value_is_no_part_of_it(pieces: int) -> None:
    taken = Taken()
    fields = (
        b"mcp-session-id: \t abc \t\r\nmcp-protocol-version: 2025-11-25 \r\ntransfer-encoding: , Chunked \r\nx: \r\n"
    )
    sent = b"POST /mcp HTTP/1.1\r\nHost: a \r\n" + fields + b"\r\n2\r\nok\r\n0\r\n\r\n"
    _feed(RequestParser(), taken, sent, len(sent) // pieces or 1)
    found = dict(taken.head.headers)
    assert found.pop("transfer-encoding") == ", Chunked"
    assert found == {"host": "a", "mcp-session-id": "abc", "mcp-protocol-version": "2025-11-25", "x": ""}
    assert taken.requests[0][-1] == b"ok"


def test_a_head_that_begins_behind_a_large_body_is_not_too_large() -> None:
    taken = Taken()
    one = RequestParser()
    following = _written(0, b"2")
    _feed(one, taken, _written(0, b"1" * 200_000) + following[:10], 1 << 20)
    _feed(one, taken, following[10:], 1 << 20)
    assert [request[-1] for request in taken.requests] == [b"1" * 200_000, b"2"]


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/servers/a%20b/mcp", "/servers/a b/mcp"),
        (b"/servers%2Fa%2fmcp", "/servers%2Fa%2Fmcp"),
        (b"/servers/a%2F..%2Fmcp", "/servers/a%2F..%2Fmcp"),
        (b"/%6dcp", "/mcp"),
    ],
)
def test_a_coded_slash_separates_nothing(target: bytes, path: str) -> None:
    """A gateway that allows some paths reads another path in it than a hub would that decodes it first."""
    taken = Taken()
    _feed(RequestParser(), taken, b"GET " + target + b" HTTP/1.1\r\nhost: a\r\n\r\n", 1 << 20)
    assert taken.head.path == path


_CHUNKED, _LENGTH = b"Transfer-Encoding: chunked", b"Content-Length: 1"
AMBIGUOUS_HEADS = (
    (_LENGTH, _CHUNKED),
    (_CHUNKED, _LENGTH),
    (_LENGTH, _LENGTH),
    (_LENGTH, b"content-length: 2"),
    (b"Content-Length: 1, 1",),
    (b"Content-Length: +1",),
    (b"Content-Length : 1",),
    (b"Content-Length: 0x1",),
    (b"Content-Length:",),
    (b"Content-Length: \x0b1",),
    (b"Transfer-Encoding: xchunked",),
    (b"Transfer-Encoding: chunked, identity",),
    (b"Transfer-Encoding: identity",),
    (_CHUNKED, _CHUNKED),
    (b"Transfer-Encoding: identity", _CHUNKED),
    (b"Transfer-Encoding: chunked\x0b",),
    (b"Transfer-Encoding:\r\n chunked",),
    (b"X: a\r\n b",),
    (b"X: a\n" + _LENGTH,),
    (b"X: a\r" + _LENGTH,),
    (b"X: \0",),
    (b"X\0: a",),
    (b"X y: a",),
    (b"X",),
    (b"Host: b",),
    (b"Connection: upgrade", b"Upgrade: h2c", _CHUNKED),
)
AMBIGUOUS_CHUNKS = (
    b"1\n1\r\n0\r\n\r\n",
    b"0x1\r\n1\r\n0\r\n\r\n",
    b"+1\r\n1\r\n0\r\n\r\n",
    b"1;a\n1\r\n0\r\n\r\n",
    b"1\r\n1220\r\n\r\n",
    b"1 \r\n1\r\n0\r\n\r\n",
    b"1\r\n1\n0\r\n\r\n",
    b"1;\0\r\n1\r\n0\r\n\r\n",
    b"1;" + b"x" * 17_000 + b"\r\n1\r\n0\r\n\r\n",
    b"1;xxxx\r\n1\r\n" * 5_000 + b"0\r\n\r\n",
    b"f" * 16 + b"\r\n",
    b"\r\n0\r\n\r\n",
    b"0\r\nno trailer\r\n\r\n",
    b"0\r\nx : 1\r\n\r\n",
    b"0\r\nx: \0\r\n\r\n",
    b"0\r\nx: 1\n\r\n",
    b"0\r\n" + b"x: 1\r\n" * 501 + b"\r\n",
    b"0\r\nx: " + b"1" * 70_000 + b"\r\n\r\n",
)
AMBIGUOUS = (
    *(b"POST /mcp HTTP/1.1\r\nhost: a\r\n%b\r\n\r\n1" % b"\r\n".join(head) for head in AMBIGUOUS_HEADS),
    *(b"POST /mcp HTTP/1.1\r\nhost: a\r\n%b\r\n\r\n%b" % (_CHUNKED, body) for body in AMBIGUOUS_CHUNKS),
    b"POST /mcp HTTP/1.1\nhost: a\n\n",
    b"GET /mcp\r\n\r\n",
    b"GET /mcp HTTP/2.0\r\nhost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST /mcp HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"CONNECT /mcp HTTP/1.1\r\nhost: a\r\n\r\n",
    b"CONNECT a:1 HTTP/1.0\r\n\r\n",
    b"SOURCE /mcp ICE/1.0\r\nhost: a\r\n\r\n",
    b"DESCRIBE /mcp RTSP/1.0\r\nhost: a\r\n\r\n",
    b"GET http:///mcp HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET ftp://a/mcp HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET http://a@b/mcp HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /mcp HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
    b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /mcp HTTP/1.1\r\nhost: a\r\nx:" + b" " * 70_000 + b"y\r\n\r\n",
    b"GET /mcp HTTP/1.1\r\nhost: a\r\n" + b"a: b\r\n" * 501 + b"\r\n",
    b"\r\n" * 40_000,
)


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("size", [1, 1 << 20], ids=["bytes", "whole"])
@pytest.mark.parametrize("written", AMBIGUOUS, ids=lambda one: str(one[:80]))
def test_bytes_that_another_reader_may_split_otherwise_are_no_request(written: bytes, size: int) -> None:
    """A proxy and a hub that find other requests in the same bytes let one request pass as a part of another."""
    taken = Taken()
    data = written + b"GET /inner HTTP/1.1\r\nhost: a\r\n\r\n"
    size = max(size, len(data) // 4_000)  # those over a bound are long
    with pytest.raises(BadRequest):
        _feed(RequestParser(), taken, data, size)
    assert not taken.requests


def _feed(one: RequestParser, taken: Taken, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        one.receive(data[start : start + size])
        taken.pull(one)


@pytest.mark.requirement("SEC-21")
@pytest.mark.parametrize("header", ["authorization: Bearer s", "cookie: a=s", "x-plain: s"])
def test_nothing_of_a_head_is_kept_for_the_next_request(header: str) -> None:
    raw = f"GET /kept-{header[:6]} HTTP/1.1\r\nhost: h\r\n{header}\r\n\r\n".encode()

    def read() -> RequestHead:
        parser = RequestParser()
        parser.receive(raw)
        head = parser.next_event()
        assert isinstance(head, RequestHead)
        return head

    assert read() is not read()


@pytest.mark.parametrize("length", [b"9" * 21, b"9" * 5_000, b"+1", b"1_0", b"0x1", "\u0661".encode(), b"1 1", b""])
def test_a_length_that_is_no_plain_number_is_refused(length: bytes) -> None:
    parser = RequestParser()
    parser.receive(b"POST /mcp HTTP/1.1\r\nhost: a\r\ncontent-length: " + length + b"\r\n\r\n")
    with pytest.raises(BadRequest) as refused:
        parser.next_event()
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"get / HTTP/1.1", 400),
        (b"GET / HTTP/1.1\nhost: a", 400),
        (b"POSTPOSTPOSTPOSTX", 400),
        (b"GET /" + b"a" * (1 << 16), 431),
    ],
)
def test_what_can_be_no_request_is_refused_before_its_end_comes(sent: bytes, status: int) -> None:
    parser = RequestParser()
    parser.receive(sent)
    with pytest.raises(BadRequest) as refused:
        parser.next_event()
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"connection: close\r\n", False),
        (b"1.1", b"connection: Keep-Alive, CLOSE\r\n", False),
        (b"1.1", b"connection: x-close\r\n", True),
        (b"1.0", b"", False),
        (b"1.0", b"connection: keep-alive\r\n", True),
        (b"1.0", b"connection: keep-alive, close\r\n", False),
    ],
)
def test_a_client_says_whether_its_connection_goes_on(version: bytes, connection: bytes, kept: bool) -> None:
    taken = Taken()
    _feed(RequestParser(), taken, b"GET / HTTP/" + version + b"\r\nhost: a\r\n" + connection + b"\r\n", 1 << 20)
    assert taken.head.keep_alive is kept


def test_an_offer_of_another_protocol_beside_chunks_is_refused() -> None:
    offer = b"connection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: chunked\r\n"
    with pytest.raises(BadRequest):
        _feed(RequestParser(), Taken(), b"POST / HTTP/1.1\r\nhost: a\r\n" + offer + b"\r\n0\r\n\r\n", 1 << 20)
