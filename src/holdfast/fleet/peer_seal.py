"""The seal of the link between two replicas: a handshake, then frames that only this fleet can write and read.

Every connection has keys of its own, one for each direction. They follow from the session key and from two random
numbers, one of each side. So a frame opens only once, at its place, in its direction, on its connection: a replayed,
reflected, reordered or changed frame opens nowhere. No clock is needed.

    listener:  mark | challenge (32 bytes) | number of keys | fingerprint of each key (8 bytes)
    dialer:    mark | nonce (32 bytes) | fingerprint of the key that both have
    then:      length (4 bytes) | AES-256-GCM( kind (1 byte) | content )

A fingerprint is an HMAC of the challenge. It tells two replicas which key they share while a key is replaced. The
module has no I/O.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

__all__ = ["DIALED_BYTES", "LARGEST_FRAME", "BadSeal", "PeerSeal", "accept_dialer", "answer_challenge", "challenge"]

MARK: Final = b"holdfast-peer-2\n"
LARGEST_FRAME: Final = 256 * 1024
"""Bytes of content. More of it takes several frames, so that no frame holds the event loop up."""

_RANDOM: Final = 32
_FINGERPRINT: Final = 8
_MOST_KEYS: Final = 16
_TAG: Final = 16

DIALED_BYTES: Final = len(MARK) + _RANDOM + _FINGERPRINT
"""What the dialer sends before its first frame."""


class BadSeal(Exception):
    """What came is not of this fleet, or was changed on its way."""


class _Direction:
    """Seals or opens the frames of one direction, one after the other."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._number = 0

    def next_nonce(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(12, "big")

    def seal(self, content: bytes) -> bytes:
        return self._cipher.encrypt(self.next_nonce(), content, None)

    def open(self, sealed: bytes) -> bytes:
        try:
            return self._cipher.decrypt(self.next_nonce(), sealed, None)
        except InvalidTag as exc:
            raise BadSeal("a frame is not sealed with the key of this fleet, or was changed") from exc


class PeerSeal:
    """The keys of one connection, as one of its two sides uses them."""

    def __init__(self, key: bytes, fleet: str, challenge_bytes: bytes, nonce: bytes, *, dialer: bool) -> None:
        def derived(direction: bytes) -> bytes:
            info = b"holdfast peer link\0" + direction + b"\0" + fleet.encode()
            return HKDF(algorithm=SHA256(), length=32, salt=challenge_bytes + nonce, info=info).derive(key)

        to_listener, to_dialer = _Direction(derived(b"to listener")), _Direction(derived(b"to dialer"))
        self._out, self._in = (to_listener, to_dialer) if dialer else (to_dialer, to_listener)

    def frame(self, kind: int, content: bytes = b"") -> bytes:
        """The next frame to send."""
        if len(content) > LARGEST_FRAME:
            raise ValueError("the content is too large for a frame")
        sealed = self._out.seal(bytes((kind,)) + content)
        return len(sealed).to_bytes(4, "big") + sealed

    @staticmethod
    def length(prefix: bytes) -> int:
        """How many bytes of a frame follow its first four; raises ``BadSeal``."""
        size = int.from_bytes(prefix, "big")
        if not 1 + _TAG <= size <= 1 + LARGEST_FRAME + _TAG:
            raise BadSeal("a frame has an impossible length")
        return size

    def open(self, sealed: bytes) -> tuple[int, bytes]:
        """The kind and the content of the next frame that came; raises ``BadSeal``."""
        content = self._in.open(sealed)
        if not content:
            raise BadSeal("a frame is empty")
        return content[0], content[1:]


def challenge(keys: Sequence[bytes], fleet: str) -> bytes:
    """What a listener sends first."""
    random = os.urandom(_RANDOM)
    known = [_fingerprint(key, fleet, random) for key in keys[:_MOST_KEYS]]
    return MARK + random + bytes((len(known),)) + b"".join(known)


CHALLENGE_BYTES: Final = len(MARK) + _RANDOM + 1
"""What the dialer reads before it knows how many fingerprints follow."""


def fingerprint_bytes(head: bytes) -> int:
    """How many bytes follow the first part of a challenge; raises ``BadSeal``."""
    if len(head) != CHALLENGE_BYTES or not head.startswith(MARK) or not 1 <= head[-1] <= _MOST_KEYS:
        raise BadSeal("it is not a replica of this version")
    return head[-1] * _FINGERPRINT


def answer_challenge(said: bytes, keys: Sequence[bytes], fleet: str) -> tuple[bytes, PeerSeal]:
    """What the dialer sends, and its seal; raises ``BadSeal`` if the listener has none of these keys."""
    known = said[CHALLENGE_BYTES:]
    if len(known) != fingerprint_bytes(said[:CHALLENGE_BYTES]):
        raise BadSeal("its challenge is not complete")
    random = said[len(MARK) : len(MARK) + _RANDOM]
    theirs = [known[at : at + _FINGERPRINT] for at in range(0, len(known), _FINGERPRINT)]
    for key in keys:
        own = _fingerprint(key, fleet, random)
        if any(hmac.compare_digest(own, one) for one in theirs):
            nonce = os.urandom(_RANDOM)
            return MARK + nonce + own, PeerSeal(key, fleet, random, nonce, dialer=True)
    raise BadSeal("it has another session key, or is of another fleet")


def accept_dialer(said: bytes, sent: bytes, keys: Sequence[bytes], fleet: str) -> PeerSeal:
    """The seal of the listener that sent this challenge; raises ``BadSeal``."""
    if len(said) != DIALED_BYTES or not said.startswith(MARK):
        raise BadSeal("it is not a replica of this version")
    random = sent[len(MARK) : len(MARK) + _RANDOM]
    nonce, wanted = said[len(MARK) : -_FINGERPRINT], said[-_FINGERPRINT:]
    for key in keys:
        if hmac.compare_digest(_fingerprint(key, fleet, random), wanted):
            return PeerSeal(key, fleet, random, nonce, dialer=False)
    raise BadSeal("it has another session key, or is of another fleet")


def _fingerprint(key: bytes, fleet: str, random: bytes) -> bytes:
    about = b"holdfast peer key\0" + fleet.encode() + b"\0" + random
    return hmac.digest(key, about, hashlib.sha256)[:_FINGERPRINT]
