"""Mutated HTTP/1.1 messages in random pieces, for the parsers of both sides and for h11 as their oracle."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

__all__ = ["cut_messages", "explained"]

HEADERS = (
    b"content-length: 5", b"Content-Length: 5", b"content-length: 5, 5", b"content-length: 5,6", b"content-length: +5",
    b"content-length: 05", b"content-length: 0x5", b"content-length:", b"content-length: 5 ", b"content-length: -5",
    b"transfer-encoding: chunked", b"Transfer-Encoding: Chunked", b"transfer-encoding: gzip, chunked",
    b"transfer-encoding: identity", b"transfer-encoding: chunked, chunked", b"transfer-encoding:\tchunked", b"x: y",
    b"x : y", b" folded", b"connection: close", b"connection: upgrade", b"upgrade: h2c", b"\x00bad: 1", b"bad",
    b": none", b"x: \x01", b"x:\xff", b"x: a\x7f", b"x: a\rb", b"x(y): 1", b"host: b", b"expect: 100-continue",
)  # fmt: skip
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
BODIES = (
    b"", b"hell", b"hello", b"hello world", CHUNKS, CHUNKS.replace(b"5", b"5;a=b", 1), CHUNKS.replace(b"5", b"5 ", 1),
    CHUNKS.replace(b"5", b"05", 1), CHUNKS.replace(b"5", b"g", 1), CHUNKS.replace(b"5", b"5;\x00", 1), b" " + CHUNKS,
    b"\r\n" + CHUNKS, CHUNKS.replace(b"\r\n", b"\n"), CHUNKS.replace(b"0\r\n", b"0\r\nx: y\r\n"),
    CHUNKS.replace(b"0\r\n", b"0\r\nbad\r\n"), CHUNKS.replace(b"hello", b"hellox"), CHUNKS[:6], CHUNKS[:10],
    b"ffffffffffffffffff\r\nhello",
)  # fmt: skip


@st.composite
def cut_messages(draw: st.DrawFn, lines: Sequence[bytes], *, needed: Sequence[bytes] = ()) -> list[bytes]:
    """One message, most often a good one with one or two odd parts, in up to four pieces."""
    end = draw(st.sampled_from([b"\r\n"] * 9 + [b"\n"]))
    first = draw(st.just(lines[0]) | st.sampled_from(lines))
    headers = [*needed, *draw(st.lists(st.sampled_from(HEADERS), max_size=2))]
    before = draw(st.sampled_from([b""] * 8 + [b"\r\n"]))
    data = before + end.join([first, *headers, b"", b""]) + draw(st.sampled_from(BODIES))
    if draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, len(data) - 1))
        data = data[:place] + draw(st.sampled_from([b"", b" ", b"\r", b"\n", b"\0", b":"])) + data[place + 1 :]
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=3)))
    pieces = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return [piece for piece in pieces if piece]


def explained(rules: Mapping[str, bytes], data: bytes) -> bool:
    """Whether a rule names the reason for a difference."""
    return any(re.search(rule, data, re.IGNORECASE | re.DOTALL) for rule in rules.values())
