"""What the listener reads in the bytes of a request, compared with h11 over mutated requests in random pieces.

Both are given the same bytes. Where both read a request, it is the same one. Where one refuses and the other does not,
a rule below names the reason. Each rule is a decision, and a difference without one is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass

import h11
import pytest
from hypothesis import given, settings

from holdfast.front.request_parser import BadRequest, RequestHead, RequestParser
from tests.harness.http_mutants import cut_messages, explained

pytestmark = [pytest.mark.requirement("SEC-11")]

LINES = (
    b"POST /mcp HTTP/1.1", b"GET /mcp?a=1 HTTP/1.1", b"POST /mcp HTTP/1.0", b"BREW /mcp HTTP/1.1",
    b"POST  /mcp HTTP/1.1", b"POST /mcp", b"POST /mcp HTTP/2.0", b"POST /m\xffcp HTTP/1.1", b"post /mcp HTTP/1.1",
    b"POST /a b HTTP/1.1", b"POST http://a/mcp HTTP/1.1", b"POST * HTTP/1.1", b"CONNECT a:1 HTTP/1.1",
    b"POST mcp HTTP/1.1", b"POST /m\x01 HTTP/1.1",
)  # fmt: skip

STRICTER = {
    "a line ends with CR and LF, and neither stands alone": rb"(?<!\r)\n|\r(?!\n)",
    "no control character stands in a value or in an extension of a chunk": rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]",
    "a length is stated once, and not beside chunks": rb"content-length:.*(,|content-length:|transfer-encoding:)",
    "chunks are not beside a length, and not in 1.0": rb"(transfer-encoding:.*content-length:|1\.0.*transfer-encoding)",
    "the version is 1.0 or 1.1": rb"HTTP/(?!1\.[01]\r)",
    "a header stands on one line": rb"\r\n[ \t]",
    "nothing but an extension follows the size of a chunk": rb"\r\n[0-9a-f]+[ \t]+\r\n",
    "a size of a chunk has at most 15 digits": rb"[0-9a-f]{16}",
    "the method is one that is served": rb"\A\s*(?-i:(?!(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|TRACE) ))",
    "the target is a path or an address of HTTP, in ASCII": rb"\A\s*\w+ +((?!/|https?://)|[^\r\n]*[\x80-\xff])",
    "an offer of another protocol has no chunks": rb"upgrade",
    "there is one Host": rb"host:.*\r\nhost:",
}
"""What the listener refuses and h11 does not."""

LOOSER = {
    "empty lines before a request are passed over (RFC 9112, 2.2)": rb"\A\s",
}
"""What h11 refuses and the listener does not: it cannot be read in two ways."""


@dataclass(frozen=True)
class Read:
    """What a reader made of the bytes, up to the end of the first request."""

    method: str
    body: bytes
    complete: bool


REFUSED = None
"""What a reader made of bytes that it refuses."""


def ours(pieces: list[bytes]) -> Read | None:
    parser, method, body = RequestParser(), "", b""
    try:
        for piece in pieces:
            parser.receive(piece)
            while (event := parser.next_event()) is not None:
                if isinstance(event, RequestHead):
                    method = event.method
                else:
                    body += event
                if not parser.in_body:
                    return Read(method, body, complete=True)
    except BadRequest:
        return REFUSED
    return Read(method, body, complete=False)


def oracle(pieces: list[bytes]) -> Read | None:
    connection, method, body = h11.Connection(h11.SERVER, max_incomplete_event_size=64 * 1024), "", b""
    try:
        for piece in pieces:
            connection.receive_data(piece)
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Request):
                    method = event.method.decode()
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    return Read(method, body, complete=True)
    except h11.RemoteProtocolError:
        return REFUSED
    return Read(method, body, complete=False)


@settings(max_examples=400, deadline=None)
@given(cut_messages(LINES, needed=[b"host: a"]))
def test_a_request_is_what_h11_reads_or_a_rule_says_why_not(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    mine, theirs = ours(pieces), oracle(pieces)
    assert mine == ours([data]), "how the bytes are cut changes nothing"
    if mine == theirs:
        return
    if mine is REFUSED:
        undecided = theirs is not None and not theirs.method  # h11 looks at a head when all of it is here
        assert undecided or explained(STRICTER, data)
    else:
        assert theirs is REFUSED, "two readers find two requests"
        assert explained(LOOSER, data)
