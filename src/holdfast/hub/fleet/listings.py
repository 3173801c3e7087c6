"""The listing of a server as replicas share it: its hash, and its content if that is not too large."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib

from holdfast.core import Item, Kind, Listing

__all__ = ["packed", "unpacked"]

LARGEST_LISTING = 48 * 1024
"""Bytes of a compressed listing that replicas share; of a larger one they share the hash alone."""
LARGEST_UNPACKED = 16 * 1024 * 1024


def packed(listing: Listing) -> tuple[str, str | None]:
    """The hash of a listing, and its content, if that is not too large."""
    kinds = {kind.value: [[item.name, item.raw] for item in listing.of(kind)] for kind in Kind}
    text = json.dumps(kinds, sort_keys=True).encode()
    digest = hashlib.blake2s(text, digest_size=16).hexdigest()
    small = zlib.compress(text)
    return digest, base64.b64encode(small).decode() if len(small) <= LARGEST_LISTING else None


def unpacked(server: str, content: object) -> Listing | None:
    """The listing in a shared content; None if it cannot be read."""
    if not isinstance(content, str):
        return None
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b64decode(content), LARGEST_UNPACKED)
        read = json.loads(text)

        def items(kind: Kind) -> tuple[Item, ...]:
            return tuple(Item(str(name), dict(raw)) for name, raw in read[kind.value])

        return Listing(
            server=server,
            generation=0,
            tools=items(Kind.TOOL),
            prompts=items(Kind.PROMPT),
            resources=items(Kind.RESOURCE),
            templates=items(Kind.TEMPLATE),
        )
    except (ValueError, KeyError, TypeError, zlib.error):
        return None
