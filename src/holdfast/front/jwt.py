"""Verify a caller's JWT: its signature, its issuer, its audience and its time. Nothing unsigned is ever believed.

The keys are the issuer's: one public key in a file, or the set that it publishes (JWKS), which is fetched
when an unknown key is met and then kept for a while. Whoever sends a token can name an unknown key: so fetches
wait for each other and for nobody else, and after one that failed there is a pause.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import jwt

from holdfast.core.hosts import is_loopback
from holdfast.errors import UsageError
from holdfast.front.guard import Verify

__all__ = ["jwt_verifier"]

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a private key alone: with a shared secret, whoever can verify could also sign."""

REQUIRED = ("exp", "iss", "aud", "sub")
LEEWAY_SECONDS = 30.0
FETCH_SECONDS = 5.0
KEPT_SECONDS = 300.0
KNOWN_SECONDS = 30.0
"""So long after a fetch, a key that was not among those is taken not to be there."""

PAUSE_SECONDS = 5.0
"""After a fetch that failed: strangers' tokens must not make one fetch after another."""

_Key: TypeAlias = jwt.PyJWK | str


def jwt_verifier(*, issuer: str, audience: str, keys: str) -> Verify:
    """A check for ``TokenPolicy``; ``keys`` is the URL of a JWKS, or the path of a public key in PEM form."""
    if not issuer or not audience:
        raise UsageError("a JWT is believed only from a named issuer, for a named audience")
    find = _published(keys) if keys.startswith(("https://", "http://")) else _from_file(Path(keys))
    fetching = anyio.CapacityLimiter(1)

    def check(token: str, key: _Key) -> str | None:
        claims = jwt.decode(
            token,
            key,
            algorithms=list(ALGORITHMS),
            audience=audience,
            issuer=issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": list(REQUIRED)},
        )
        subject = claims["sub"]
        return f"{issuer}#{subject}" if isinstance(subject, str) and subject else None

    async def verify(token: str) -> str | None:
        try:
            key = find.kept(token)
            if key is None:
                key = await anyio.to_thread.run_sync(find.fetched, token, limiter=fetching)
            return await anyio.to_thread.run_sync(check, token, key)
        except (jwt.PyJWTError, ValueError, OSError, RecursionError):
            return None

    return verify


def _published(url: str) -> _Published:
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise UsageError(
            f"the issuer's keys would travel unencrypted from {parts.hostname}: somebody could put in their own",
            hint="give an https:// address, or a file with the issuer's public key",
        )
    return _Published(url)


class _Published:
    """Keys that the issuer publishes."""

    def __init__(self, url: str) -> None:
        self._keys = _Client(url, lifespan=KEPT_SECONDS, timeout=FETCH_SECONDS, cooldown_duration=KNOWN_SECONDS)

    def kept(self, token: str) -> _Key | None:
        """The token's key, if it was fetched before."""
        wanted = jwt.get_unverified_header(token).get("kid")
        known = self._keys.jwk_set_cache.get() if self._keys.jwk_set_cache is not None else None
        usable = [key for key in known.keys if key.public_key_use in ("sig", None)] if known is not None else []
        return next((key for key in usable if key.key_id and key.key_id == wanted), None)

    def fetched(self, token: str) -> _Key:
        """The token's key; it may have to be asked for, which takes a while."""
        return self._keys.get_signing_key_from_jwt(token)


class _Client(jwt.PyJWKClient):
    """Does not ask again soon after it asked in vain."""

    _not_before = 0.0

    def fetch_data(self) -> Any:
        if time.monotonic() < self._not_before:
            raise jwt.PyJWKClientError("the issuer's keys could not be fetched just now")
        try:
            return super().fetch_data()
        except BaseException:
            self._not_before = time.monotonic() + PAUSE_SECONDS
            raise


class _Given:
    """One key that the operator gave."""

    def __init__(self, pem: str) -> None:
        self._pem = pem

    def kept(self, token: str) -> _Key:
        return self._pem

    fetched = kept


def _from_file(file: Path) -> _Given:
    try:
        pem = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"the public key {file} cannot be read", hint="give a PEM file, or a JWKS URL") from exc
    if "PRIVATE KEY" in pem or "PUBLIC KEY" not in pem:
        raise UsageError(f"{file} holds no public key", hint="give the issuer's public key, in PEM form")
    return _Given(pem)
