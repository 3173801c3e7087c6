"""Verify a caller's JWT: its signature, issuer, audience and time. An unsigned token is never accepted.

The keys are the issuer's: one public key in a file, or the set that it publishes (JWKS). The set is fetched when a
token names an unknown key, and kept for a while. Any sender can name an unknown key: so only one fetch runs at a
time, requests with known keys do not wait for it, and a failed fetch is followed by a pause.
"""

from __future__ import annotations

import json
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeAlias
from urllib.error import HTTPError
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import jwt

from holdfast.core import is_loopback
from holdfast.errors import UsageError
from holdfast.front.access.principals import Principal, Verify

__all__ = ["jwt_verifier"]

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Only asymmetric signatures: with a shared secret, a verifier could also sign."""

REQUIRED = ("exp", "iss", "aud", "sub")
LEEWAY_SECONDS = 30.0
FETCH_SECONDS = 5.0
KEPT_SECONDS = 300.0
KNOWN_SECONDS = 30.0
"""For this long after a fetch, a key that was not in the set counts as unknown without another fetch."""

PAUSE_SECONDS = 5.0
"""The pause after a failed fetch: tokens of strangers must not cause one fetch after another."""

LARGEST_SET = 256 << 10
"""How many bytes of a key set are read: a key takes about 500, and an issuer has a handful."""

_Key: TypeAlias = jwt.PyJWK | str


def jwt_verifier(
    *, issuer: str, audience: str, keys: str, groups_claim: str = "groups", scopes_claim: str = "scope"
) -> Verify:
    """Return a verifier for ``TokenPolicy``; ``keys`` is the URL of a JWKS, or the path of a PEM public key."""
    if not issuer or not audience:
        raise UsageError("JWT verification needs an issuer and an audience")
    find = _published(keys) if keys.startswith(("https://", "http://")) else _from_file(Path(keys))
    fetching = anyio.CapacityLimiter(1)

    def check(token: str, key: _Key) -> Principal | None:
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
        if not isinstance(subject, str) or not subject:
            return None
        return Principal(
            name=f"{issuer}#{subject}",
            groups=_texts(claims.get(groups_claim)),
            scopes=_texts(claims.get(scopes_claim)),
            source="jwt",
        )

    async def verify(token: str) -> Principal | None:
        try:
            key = find.kept(token)
            if key is None:
                key = await anyio.to_thread.run_sync(find.fetched, token, limiter=fetching)
            return await anyio.to_thread.run_sync(check, token, key)
        except (jwt.PyJWTError, ValueError, OSError, RecursionError):
            return None

    return verify


def _texts(claim: object) -> frozenset[str]:
    """Return the texts of a claim: a list, or one text with spaces, as OAuth writes scopes."""
    if isinstance(claim, str):
        return frozenset(claim.split())
    return frozenset(one for one in claim if isinstance(one, str)) if isinstance(claim, list) else frozenset()


def _published(url: str) -> _PublishedKeys:
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise UsageError(
            f"the issuer's keys would travel unencrypted from {parts.hostname}: an attacker could replace them",
            hint="give an https:// address, or a file with the issuer's public key",
        )
    return _PublishedKeys(url)


class _PublishedKeys:
    """The keys that the issuer publishes."""

    def __init__(self, url: str) -> None:
        self._keys = _PausingKeyClient(url, lifespan=KEPT_SECONDS)

    def kept(self, token: str) -> _Key | None:
        """Return the token's key, if it was fetched before."""
        wanted = jwt.get_unverified_header(token).get("kid")
        known = self._keys.jwk_set_cache.get() if self._keys.jwk_set_cache is not None else None
        usable = [key for key in known.keys if key.public_key_use in ("sig", None)] if known is not None else []
        return next((key for key in usable if key.key_id and key.key_id == wanted), None)

    def fetched(self, token: str) -> _Key:
        """Return the token's key; this may fetch the set, so it runs in a thread."""
        return self._keys.get_signing_key_from_jwt(token)


class _PausingKeyClient(jwt.PyJWKClient):
    """Reads a set of bounded size, follows no redirect, and pauses after each fetch."""

    _not_before = 0.0

    def fetch_data(self) -> Any:
        if time.monotonic() < self._not_before:
            raise jwt.PyJWKClientError("the issuer's keys were fetched a moment ago; the next fetch waits")
        self._not_before = time.monotonic() + PAUSE_SECONDS
        document = _fetch_json(self.uri)
        if self.jwk_set_cache is not None:
            self.jwk_set_cache.put(document)
        self._not_before = time.monotonic() + KNOWN_SECONDS
        return document


def _fetch_json(url: str) -> dict[str, Any]:
    """A JSON object from the issuer, within a time and a size: a parser in a thread holds up the event loop too."""
    opener = urllib.request.build_opener(_NoRedirects())
    ends = time.monotonic() + FETCH_SECONDS
    data = b""
    try:
        with opener.open(url, timeout=FETCH_SECONDS) as response:
            while piece := response.read1(1 << 16):
                data += piece
                if len(data) > LARGEST_SET or time.monotonic() > ends:
                    raise jwt.PyJWKClientError("the issuer's key set is too large or comes too slowly")
    except HTTPError as exc:
        exc.close()
        raise jwt.PyJWKClientError(f"the issuer's keys could not be fetched: HTTP {exc.code}") from exc
    except HTTPException as exc:
        raise jwt.PyJWKClientError("the issuer's keys could not be fetched: the answer is no HTTP") from exc
    document = json.loads(data)
    if not isinstance(document, dict):
        raise jwt.PyJWKClientError("the issuer's key set is no JSON object")
    return document


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The keys come from the address that the operator gave."""

    def redirect_request(self, *args: Any, **more: Any) -> None:
        return None


class _KeyFromFile:
    """One key from a file."""

    def __init__(self, pem: str) -> None:
        self._pem = pem

    def kept(self, token: str) -> _Key:
        return self._pem

    fetched = kept


def _from_file(file: Path) -> _KeyFromFile:
    try:
        pem = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"the public key {file} cannot be read", hint="give a PEM file, or a JWKS URL") from exc
    if "PRIVATE KEY" in pem or "PUBLIC KEY" not in pem:
        raise UsageError(f"{file} contains no public key", hint="give the issuer's public key, in PEM form")
    return _KeyFromFile(pem)
