"""The one place for keys: derive, seal and open, sign and verify.

A hub has a few *secrets*: the session key that replicas share, the key of a supervisor, a key that ends with the
process. No secret is used as it is. Each use has a *purpose*, a short text, and works with a key that is derived from
the secret for this purpose alone (HKDF with SHA-256). So what was made for one purpose opens for no other, and a key
that leaks from one part of the hub does not open the rest.

A ring holds the secrets in force. The first one seals and signs; all of them open and verify. That is how a secret is
replaced without a loss: the new one goes in front, and the old one leaves when nothing that it made is in use.

What must never happen:
- A nonce is used twice with one key. Nonces are random (96 bits), which is safe for 2**32 messages of one key. Where
  more may be sealed, ``salt`` gives each session a key of its own.
- The time of a comparison tells how much of a guess was right. Signatures are compared in constant time, with every key
  of the ring.
- A secret is shown. ``repr`` says how many there are.
- What a client, a browser or a link gives back means the same in two spellings. What works once, or was ended, is known
  by its text: ``from_text`` reads only what ``as_text`` writes.

The purposes are part of what was written with them: ids that clients keep are opened by later versions.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

__all__ = ["NONCE_BYTES", "SHORTEST_SECRET", "TAG_BYTES", "KeyRing", "as_text", "derive", "from_text", "mac"]

SHORTEST_SECRET: Final = 32
"""Bytes. A secret of this length is taken for random, so that no slow function is needed to derive keys from it."""
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
"""What sealing adds to a content: the nonce in front, the tag behind."""
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 32
MOST_DERIVED: Final = 64
"""Derived keys that a ring remembers: a derivation costs more than a signature."""


def derive(secret: bytes, purpose: str, *, salt: bytes | None = None) -> bytes:
    """The key for one purpose."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=f"holdfast {purpose}".encode()).derive(secret)


def as_text(content: bytes) -> str:
    """Bytes as a text that URLs, headers and cookies take as it is: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")


def from_text(text: str) -> bytes | None:
    """The bytes that ``as_text`` writes so; None for every other text.

    A decoder of base64 alone would also take padding, and other unused bits at the end.
    """
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
    return content if as_text(content) == text else None


class KeyRing:
    """The secrets in force. A ring never changes: a hub that reads its secrets again makes another one."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not secrets or any(len(secret) < SHORTEST_SECRET for secret in secrets):
            raise ValueError(f"a key ring needs secrets of at least {SHORTEST_SECRET} bytes")
        self._secrets = tuple(secrets)
        self.derived = lru_cache(maxsize=MOST_DERIVED)(self._derived)
        """The key of each secret for one purpose, the one in force first."""

    def _derived(self, purpose: str, *, salt: bytes | None = None) -> tuple[bytes, ...]:
        return tuple(derive(secret, purpose, salt=salt) for secret in self._secrets)

    def seal(self, content: bytes, *, purpose: str, about: bytes = b"", salt: bytes | None = None) -> bytes:
        """Encrypt a content (AES-256-GCM). ``about`` is not kept in it, and must be the same when it is opened."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(self.derived(purpose, salt=salt)[0]).encrypt(nonce, content, about)

    def open(self, sealed: bytes, *, purpose: str, about: bytes = b"", salt: bytes | None = None) -> bytes | None:
        """The content; None if no secret of this ring sealed it for this purpose and about this."""
        if len(sealed) < NONCE_BYTES + TAG_BYTES:
            return None
        for key in self.derived(purpose, salt=salt):
            try:
                return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about)
            except InvalidTag:
                continue
        return None

    def seal_text(self, content: bytes, *, purpose: str, about: bytes = b"", salt: bytes | None = None) -> str:
        """A sealed content as a text."""
        return as_text(self.seal(content, purpose=purpose, about=about, salt=salt))

    def open_text(self, text: str, *, purpose: str, about: bytes = b"", salt: bytes | None = None) -> bytes | None:
        """The content of such a text; None if it is none, or no secret of this ring sealed it for this."""
        sealed = from_text(text)
        return self.open(sealed, purpose=purpose, about=about, salt=salt) if sealed is not None else None

    @property
    def newest(self) -> KeyRing:
        """The ring of the first secret alone: what it does not open was made with an older one."""
        return KeyRing(self._secrets[:1])

    def sign(self, content: bytes, *, purpose: str, size: int = SIGNATURE_BYTES) -> bytes:
        """The signature of a content (HMAC with SHA-256, its first ``size`` bytes)."""
        return mac(self.derived(purpose)[0], content)[:size]

    def signatures(self, content: bytes, *, purpose: str, size: int = SIGNATURE_BYTES) -> tuple[bytes, ...]:
        """What each secret says of a content: holders of one secret in common have one signature in common."""
        return tuple(mac(key, content)[:size] for key in self.derived(purpose))

    def verify(self, signature: bytes, content: bytes, *, purpose: str, size: int = SIGNATURE_BYTES) -> bool:
        """Whether a secret of this ring signed the content for this purpose."""
        known = self.signatures(content, purpose=purpose, size=size)
        return any([hmac.compare_digest(signature, one) for one in known])  # noqa: C419 - constant time

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyRing) and self._secrets == other._secrets

    def __hash__(self) -> int:
        return hash(self._secrets)

    def __len__(self) -> int:
        return len(self._secrets)

    def __repr__(self) -> str:
        return f"<KeyRing of {len(self._secrets)} secrets>"


def mac(key: bytes, content: bytes | memoryview) -> bytes:
    """HMAC with SHA-256, with a derived key."""
    return hmac.digest(key, content, hashlib.sha256)
