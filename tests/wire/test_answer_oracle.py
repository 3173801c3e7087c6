"""What the client reads in the bytes of an answer, compared with h11 over mutated answers in random pieces.

Both are given the same bytes. Where both read an answer, it is the same one. Where one refuses and the other does not,
a rule below names the reason. Each rule is a decision, and a difference without one is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass

import h11
import pytest
from hypothesis import given, settings

from holdfast.wire.http.answer_parser import AnswerHead, AnswerParser, Disconnected, NotHttp
from tests.harness.http_mutants import cut_messages, explained

pytestmark = [pytest.mark.requirement("SEC-4")]

LINES = (
    b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 Not Modified", b"HTTP/1.1 404",
    b"HTTP/1.1 404 ", b"HTTP/2.0 200 OK", b"HTTP/1.9 200 OK", b"HTTP/1.1 20 OK", b"HTTP/1.1  200 OK",
    b"http/1.1 200 OK", b"HTTP/1.1 200 \xff", b"HTTP/1.1 500 a\tb", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK",
)  # fmt: skip

STRICTER = {
    "a line ends with CR and LF, and neither stands alone": rb"(?<!\r)\n|\r(?!\n)",
    "no control character stands in a value or in an extension of a chunk": rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]",
    "a length is stated once, and not beside chunks": rb"content-length:.*(,|content-length:|transfer-encoding:)",
    "chunks are not beside a length": rb"transfer-encoding:.*content-length:",
    "the version is 1.0, 1.1 or 2.0": rb"HTTP/(?!(1\.[01]|2\.0) )",
    "a header stands on one line": rb"\r\n[ \t]",
    "nothing but an extension follows the size of a chunk": rb"\r\n[0-9a-f]+[ \t]+\r\n",
    "a size of a chunk has at most 15 digits": rb"[0-9a-f]{16}",
    "no other protocol is spoken": rb"upgrade",
}
"""What the client refuses and h11 does not."""

LOOSER = {
    "empty lines before an answer are passed over": rb"\A\s",
    "`identity` is no coding": rb"transfer-encoding:\s*identity",
    "204 and 304 have no body, for any header": rb"HTTP/1\.\d (204|304)",
    "a reason may have any byte": rb"HTTP/1\.\d \d\d\d[^\r\n]*[\x00-\x08\x0b-\x1f\x7f-\xff]",
    "servers write 2.0 and mean 1.1": rb"HTTP/2\.0 ",
}
"""What h11 refuses and the client does not: real servers send it, and it cannot be read in two ways."""


@dataclass(frozen=True)
class Read:
    """What a reader made of the bytes, up to the end of the first answer."""

    status: int
    body: bytes
    complete: bool


REFUSED = None
"""What a reader made of bytes that it refuses."""


def ours(pieces: list[bytes]) -> Read | None:
    parser, status, body = AnswerParser(), 0, b""
    parser.expect()
    try:
        for piece in pieces:
            for event in parser.receive(piece):
                if isinstance(event, AnswerHead):
                    status = event.status
                elif isinstance(event, bytes):
                    body += event
                elif isinstance(event, NotHttp):
                    return REFUSED
                else:
                    return Read(status, body, complete=True)
        complete = parser.close()
    except Disconnected:
        complete = False
    return Read(status, body, complete=complete)


def oracle(pieces: list[bytes]) -> Read | None:
    connection, status, body = h11.Connection(h11.CLIENT, max_incomplete_event_size=100 * 1024), 0, b""
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "a"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    try:
        for piece in [*pieces, b""]:
            connection.receive_data(piece)
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    return Read(status, body, complete=True)
                elif isinstance(event, h11.ConnectionClosed):
                    break
    except h11.RemoteProtocolError as exc:
        if "peer closed connection" in str(exc) or "peer unexpectedly closed" in str(exc):
            return Read(status, body, complete=False)
        return REFUSED
    return Read(status, body, complete=False)


@settings(max_examples=400, deadline=None)
@given(cut_messages(LINES))
def test_an_answer_is_what_h11_reads_or_a_rule_says_why_not(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    mine, theirs = ours(pieces), oracle(pieces)
    assert mine == ours([data]), "how the bytes are cut changes nothing"
    if mine == theirs:
        return
    if mine is REFUSED:
        undecided = theirs is not None and not theirs.status  # h11 looks at a head when all of it is here
        assert undecided or explained(STRICTER, data)
    else:
        assert theirs is REFUSED, "two readers find two answers"
        assert explained(LOOSER, data)
