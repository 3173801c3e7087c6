"""Undoes the compression of an answer, a bounded piece at a time: a few bytes may stand for gigabytes.

We ask for none (``accept-encoding: identity``), and some servers compress all the same.
"""

from __future__ import annotations

import zlib
from typing import Final

__all__ = ["INFLATED_BYTES", "BadEncoding", "Inflater"]

INFLATED_BYTES: Final = 256 * 1024
"""How much is inflated in one step of the event loop."""

_GZIP: Final = frozenset({"gzip", "x-gzip"})
_RAW_DEFLATE: Final = -15
_ZLIB: Final = 15
_ZLIB_OR_GZIP: Final = 47


class BadEncoding(Exception):
    """The body is not compressed as its header says, or in a form that is not known."""


class Inflater:
    """Takes compressed pieces and gives what they stand for."""

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
