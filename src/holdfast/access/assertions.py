"""Assertions of the hub about its callers: short-lived JWTs, and the key set that verifies them (SEC-20).

A server that trusts the hub learns from one who calls it, and can prove it: the issuer is the address of the hub, the
subject the principal, the audience the address of the server. An assertion is not the caller's token, and gives access
to nothing else: another server must refuse it, because it is not the audience.

The keys are derived from the hub's secrets, so all workers and replicas with the same secrets sign with the same key
and publish the same set. A new secret signs at once; the keys of the others stay in the set until their secrets are
removed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.keys import KeyRing

__all__ = ["KEY_SET_PATH", "IdentityAssertions"]

KEY_SET_PATH: Final = "/.well-known/jwks.json"
PURPOSE: Final = "identity assertion"
ALGORITHM: Final = "ES256"
"""The signature that the libraries of the field have in common, besides RSA, whose keys cannot be derived."""

ASSERTION_SECONDS: Final = 60
"""How long an assertion is valid: a request takes less to arrive, also with a clock that is a little off."""

KEPT_SECONDS: Final = 20.0
"""How long one is used again: a signature takes about 50 µs."""

MOST_KEPT: Final = 1_024

_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the curve P-256."""


class IdentityAssertions:
    """Signs for one hub, whose address is ``issuer``. ``ring`` returns the secrets in force."""

    def __init__(self, issuer: str, ring: Callable[[], KeyRing], *, wall: Callable[[], float] = time.time) -> None:
        self._issuer = issuer
        self._ring = ring
        self._wall = wall
        self._keys: dict[bytes, tuple[ec.EllipticCurvePrivateKey, dict[str, Any]]] = {}
        self._kept: dict[tuple[str, str, bytes], tuple[float, str]] = {}

    def __repr__(self) -> str:
        return f"<IdentityAssertions of {self._issuer}, {len(self._kept)} in use>"

    def __call__(self, principal: str, audience: str) -> str:
        """An assertion about a principal for a server."""
        secret, now = self._ring().derived(PURPOSE)[0], self._wall()
        made, assertion = self._kept.get((principal, audience, secret), (0.0, ""))
        if not 0 <= now - made < KEPT_SECONDS:
            assertion = self._signed(principal, audience, secret, int(now))
            # The latest stand last, so the oldest give way.
            self._kept.pop((principal, audience, secret), None)
            self._kept[principal, audience, secret] = now, assertion
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return assertion

    def key_set(self) -> dict[str, Any]:
        """The public keys, as a JWKS."""
        return {"keys": [self._key(secret)[1] for secret in self._ring().derived(PURPOSE)]}

    def _signed(self, principal: str, audience: str, secret: bytes, now: int) -> str:
        key, public = self._key(secret)
        claims = {
            "iss": self._issuer,
            "sub": principal,
            "aud": audience,
            "iat": now,
            "exp": now + ASSERTION_SECONDS,
        }
        return jwt.encode(claims, key, algorithm=ALGORITHM, headers={"kid": public["kid"]})

    def _key(self, secret: bytes) -> tuple[ec.EllipticCurvePrivateKey, dict[str, Any]]:
        """The private key of a secret, and its public half."""
        found = self._keys.get(secret)
        if found is None:
            key = ec.derive_private_key(int.from_bytes(secret, "big") % (_ORDER - 1) + 1, ec.SECP256R1())
            public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
            named = {"kid": _thumbprint(public), "use": "sig", "alg": ALGORITHM}
            in_force = self._ring().derived(PURPOSE)
            self._keys = {one: kept for one, kept in self._keys.items() if one in in_force}
            found = self._keys[secret] = key, {**public, **named}
        return found


def _thumbprint(key: dict[str, Any]) -> str:
    """The name of a key (RFC 7638): the same at every replica."""
    content = json.dumps({name: key[name] for name in ("crv", "kty", "x", "y")}, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode().rstrip("=")
