"""Verify a caller's JWT: its signature, its issuer, its audience and its time. Nothing unsigned is ever believed.

The keys are the issuer's: one public key in a file, or the set that it publishes (JWKS), which is fetched
when an unknown key is met and then kept for a while.
"""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import jwt

from holdfast.errors import UsageError
from holdfast.front.guard import Verify

__all__ = ["jwt_verifier"]

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a private key alone: with a shared secret, whoever can verify could also sign."""

REQUIRED = ("exp", "iss", "aud", "sub")
LEEWAY_SECONDS = 30.0
FETCH_SECONDS = 5.0
KEPT_SECONDS = 300.0


def jwt_verifier(*, issuer: str, audience: str, keys: str) -> Verify:
    """A check for ``TokenPolicy``; ``keys`` is the URL of a JWKS, or the path of a public key in PEM form."""
    if not issuer or not audience:
        raise UsageError("a JWT is believed only from a named issuer, for a named audience")
    find = _Published(keys) if keys.startswith(("https://", "http://")) else _from_file(Path(keys))

    def check(token: str) -> str | None:
        try:
            claims = jwt.decode(
                token,
                find.key(token),
                algorithms=list(ALGORITHMS),
                audience=audience,
                issuer=issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": list(REQUIRED)},
            )
        except (jwt.PyJWTError, ValueError):
            return None
        subject = claims["sub"]
        return f"{issuer}#{subject}" if isinstance(subject, str) and subject else None

    async def verify(token: str) -> str | None:
        return await anyio.to_thread.run_sync(check, token)

    return verify


class _Published:
    """Keys that the issuer publishes."""

    def __init__(self, url: str) -> None:
        self._keys = jwt.PyJWKClient(url, lifespan=KEPT_SECONDS, timeout=FETCH_SECONDS)

    def key(self, token: str) -> jwt.PyJWK | str:
        return self._keys.get_signing_key_from_jwt(token)


class _Given:
    """One key that the operator gave."""

    def __init__(self, pem: str) -> None:
        self._pem = pem

    def key(self, token: str) -> jwt.PyJWK | str:
        return self._pem


def _from_file(file: Path) -> _Given:
    try:
        pem = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"the public key {file} cannot be read", hint="give a PEM file, or a JWKS URL") from exc
    if "PRIVATE KEY" in pem or "PUBLIC KEY" not in pem:
        raise UsageError(f"{file} holds no public key", hint="give the issuer's public key, in PEM form")
    return _Given(pem)
