"""The listing of a server as replicas share it: its hash, and its content if that is not too large."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib

from holdfast.core import Listing
from holdfast.hub import listing_from, listing_pieces

__all__ = ["packed", "unpacked"]

LARGEST_LISTING = 48 * 1024
"""Bytes of a compressed listing that replicas share; of a larger one they share the hash alone."""
LARGEST_UNPACKED = 512 * 1024
"""Bytes of its text: those who learn it read it on the event loop. Text that says little compresses a thousandfold."""


def packed(listing: Listing) -> tuple[str, str | None]:
    """The hash of a listing, and its content, if that is not too large. It takes a while: for a thread."""
    digest, packer = hashlib.blake2s(digest_size=16), zlib.compressobj()
    small, size = bytearray(), 0
    for piece in listing_pieces(listing, sort_keys=True):
        data = piece.encode()
        digest.update(data)
        size += len(data)
        if size <= LARGEST_UNPACKED:
            small += packer.compress(data)
    small += packer.flush()
    fits = size <= LARGEST_UNPACKED and len(small) <= LARGEST_LISTING
    return digest.hexdigest(), base64.b64encode(small).decode() if fits else None


def unpacked(server: str, content: object) -> Listing | None:
    """The listing in a shared content; None if it cannot be read, or is too large."""
    if not isinstance(content, str):
        return None
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b64decode(content), LARGEST_UNPACKED)
        return listing_from(server, json.loads(text)) if not unpacker.unconsumed_tail else None
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error):
        return None
