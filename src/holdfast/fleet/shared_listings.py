"""What servers list, as replicas share it: the hash of each listing, and its content if that is not too large.

A replica that has no listing of a server yet shows the content to its clients, unverified. One that has another listing
asks the server again. The hash and the content are made in a thread: a listing may have megabytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Any

import anyio.to_thread

from holdfast.core import Listing, events as on, listing_key
from holdfast.fleet.replica_state import ReplicaState
from holdfast.hub import listing_from, listing_pieces

__all__ = ["SharedListings", "packed", "unpacked"]

LARGEST_LISTING = 48 * 1024
"""Bytes of a compressed listing that replicas share; of a larger one they share the hash alone."""
LARGEST_UNPACKED = 512 * 1024
"""Bytes of its text: those who learn it read it on the event loop. Text that says little compresses a thousandfold."""


class SharedListings:
    """The listings of this replica and of the others."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self._new: dict[str, Listing] = {}
        """Published here, and not shared yet."""
        self._hashes: dict[str, str] = {}

    def published(self, listing: Listing) -> None:
        """This hub published a listing; peers learn it soon."""
        self._new[listing.server] = listing
        self._state.wake.set()

    @property
    def has_news(self) -> bool:
        """Whether something is to be shared."""
        return bool(self._new)

    async def share(self) -> None:
        """Share the listings that changed."""
        listings, self._new = self._new, {}
        for server, listing in listings.items():
            definition = self._state.host.definition_of(server)
            if definition is None:
                continue
            digest, content = await anyio.to_thread.run_sync(packed, listing)
            self._hashes[server] = digest
            if (self._state.kept(listing_key(server)) or {}).get("hash") != digest:
                value = {"definition": definition, "hash": digest, "content": content}
                self._state.write(listing_key(server), value)

    def learn(self, server: str, definition: str, value: Mapping[str, Any]) -> None:
        """Another replica published a listing."""
        host = self._state.host
        if value.get("definition") != definition:
            return
        if not host.needs_listing(server):
            if value.get("hash") != self._hashes.get(server):
                host.handle(server, on.PeerPublished())
        elif (listing := unpacked(server, value.get("content"))) is not None:
            host.follow_listing(listing)


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
