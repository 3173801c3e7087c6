"""The parser of a connection gives the same requests whether it has seen their heads before or not."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as some

from holdfast.front import parser
from holdfast.front.parser import BadRequest, RequestHead, RequestParser

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
    """Keeps the requests of a connection."""

    def __init__(self) -> None:
        self.requests: list[tuple[object, ...]] = []
        self._head = RequestHead()
        self._body = b""

    def begun(self, head: RequestHead, body: bytes | None = None) -> Taken:
        self._head, self._body = head, body or b""
        if body is not None:
            self.end()
        return self

    def feed(self, data: bytes) -> None:
        self._body += data

    def end(self) -> None:
        head = self._head
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
def test_a_head_that_was_seen_before_means_the_same(sent: list[tuple[int, bytes]], data: some.DataObject) -> None:
    fresh, known = Taken(), Taken()
    one = RequestParser(known)
    for kind, body in sent:
        written = _written(kind, body)
        RequestParser(fresh).feed(written)
        cut = data.draw(some.sampled_from((0, 1, len(written) // 2, len(written) - 1)))
        for piece in (written[:cut], written[cut:]):
            if piece:
                one.feed(piece)
    assert known.requests == fresh.requests
    assert len(fresh.requests) == len(sent)


def test_an_equal_head_is_parsed_once_for_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken()
    one = RequestParser(taken)
    one.feed(_written(0, b"12"))
    monkeypatch.setattr(one, "_parser", None)
    one.feed(_written(0, b"12"))
    one.feed(_written(0, b"123"))
    assert [request[-1] for request in taken.requests] == [b"12", b"12", b"123"]
    assert [request[6]["content-length"] for request in taken.requests] == ["2", "2", "3"]  # type: ignore[index]


def test_requests_that_are_sent_ahead_are_read_one_after_the_other() -> None:
    taken = Taken()
    one = RequestParser(taken)
    for _ in range(2):
        one.feed(_written(0, b"1") + _written(0, b"22") + _written(5, b""))
    assert [request[-1] for request in taken.requests] == [b"1", b"22", b""] * 2


@pytest.mark.requirement("SEC-11")
def test_no_more_heads_are_remembered_than_a_few() -> None:
    one = RequestParser(Taken())
    for number in range(50):
        one.feed(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % number)
    assert len(one._known) <= parser.KNOWN_HEADS


@pytest.mark.parametrize(
    "bad", [b"no http\r\n\r\n", b"POST /mcp HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"]
)
def test_bytes_that_are_no_request_are_refused_after_good_ones_too(bad: bytes) -> None:
    one = RequestParser(Taken())
    one.feed(_written(0, b"1"))
    with pytest.raises(BadRequest):
        one.feed(bad)


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
    RequestParser(taken).feed(b"GET " + target + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    assert taken._head.headers["host"] == host


@pytest.mark.parametrize("pieces", [1, 1000])
def test_white_space_around_a_value_is_no_part_of_it(pieces: int) -> None:
    taken = Taken()
    fields = (
        b"mcp-session-id: \t abc \t\r\nmcp-protocol-version: 2025-11-25 \r\ntransfer-encoding: , Chunked \r\nx: \r\n"
    )
    sent = b"POST /mcp HTTP/1.1\r\nHost: a \r\n" + fields + b"\r\n2\r\nok\r\n0\r\n\r\n"
    one = RequestParser(taken)
    size = len(sent) // pieces or 1
    for start in range(0, len(sent), size):
        one.feed(sent[start : start + size])
    found = dict(taken._head.headers)
    assert found.pop("transfer-encoding") == ", Chunked"
    assert found == {"host": "a", "mcp-session-id": "abc", "mcp-protocol-version": "2025-11-25", "x": ""}
    assert taken.requests[0][-1] == b"ok"


def test_a_head_that_begins_behind_a_large_body_is_not_too_large() -> None:
    taken = Taken()
    one = RequestParser(taken)
    following = _written(0, b"2")
    one.feed(_written(0, b"1" * 200_000) + following[:10])
    one.feed(following[10:])
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
    RequestParser(taken).feed(b"GET " + target + b" HTTP/1.1\r\nhost: a\r\n\r\n")
    assert taken._head.path == path


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
)
AMBIGUOUS = (
    *(b"POST /mcp HTTP/1.1\r\nhost: a\r\n%b\r\n\r\n1" % b"\r\n".join(head) for head in AMBIGUOUS_HEADS),
    *(b"POST /mcp HTTP/1.1\r\nhost: a\r\n%b\r\n\r\n%b" % (_CHUNKED, body) for body in AMBIGUOUS_CHUNKS),
    b"POST /mcp HTTP/1.1\nhost: a\n\n",
    b"GET /mcp\r\n\r\n",
    b"GET /mcp HTTP/2.0\r\nhost: a\r\n\r\n",
)


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("size", [1, 1 << 20], ids=["bytes", "whole"])
@pytest.mark.parametrize("written", AMBIGUOUS)
def test_bytes_that_another_reader_may_split_otherwise_are_no_request(written: bytes, size: int) -> None:
    """A proxy and a hub that find other requests in the same bytes let one request pass as a part of another."""
    taken = Taken()
    data = written + b"GET /inner HTTP/1.1\r\nhost: a\r\n\r\n"
    with pytest.raises(BadRequest):
        _feed(RequestParser(taken), data, size)
    assert not taken.requests


def _feed(one: RequestParser, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        one.feed(data[start : start + size])
