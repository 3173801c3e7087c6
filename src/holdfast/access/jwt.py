"""JWTs of two kinds: a caller's, which the hub verifies, and the hub's own about its callers, which it signs.

``ProtectedResource`` is what a client learns before it has a token (RFC 9728). A client that is refused with 401 gets a
challenge. It names a document, and the document names the issuer that gives tokens for this endpoint. Each endpoint
path has a document of its own, because a client asks the issuer for a token of exactly the address that it uses (RFC
8707), and refuses a document about another address. The same path that no server has gets the same document: who has no
token learns nothing about the servers.

Rules may ask for scopes (``access.rules``). The challenge names those of all rules, so that a client asks for them at
its first login. A token with which no rule allows anything, although one would with another scope, is refused with 403
and these scopes, and the client can ask for them then (step-up). Which single tools a scope would open is not told:
what a rule does not allow is not there.

A token is accepted where its audience is the endpoint that it is used at, or the hub as a whole. It is compared without
a query: the Python SDK keeps ``?tools=find`` in the name of a resource, and the query chooses a view of one endpoint.

``JwtVerifier`` checks the signature, issuer, audience and time of a caller's token. An unsigned token is never
accepted. The keys are the issuer's: one public key in a file, or the set that it publishes (JWKS). A token with a key
at hand is always verified by it. The set is fetched when it is old, or when a token names a key that is not in it. Any
sender can name an unknown key: so all of them share one fetch, a pause follows it, and requests with known keys do not
wait for it. A set that cannot be fetched again stays in force for a while: an issuer that is down locks no one out.

``IdentityAssertions`` makes short-lived JWTs (SEC-20). A server that trusts the hub learns from one who calls it, and
can prove it: the issuer is the address of the hub, the subject the principal, the audience the address of the server.
An assertion is not the caller's token, and gives access to nothing else: another server must refuse it, because it is
not the audience. The keys are derived from the hub's secrets, so all workers and replicas with the same secrets sign
with the same key and publish the same set. A new secret signs at once; the keys of the others stay in the set until
their secrets are removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlsplit

import anyio
import anyio.to_thread
import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.access.policy import Policy
from holdfast.access.principals import Principal
from holdfast.core import classify_evidence, is_loopback
from holdfast.errors import ServerFailure, UsageError
from holdfast.keys import KeyRing, as_text
from holdfast.wire import exchange

__all__ = [
    "KEY_SET_PATH",
    "METADATA_PATH",
    "IdentityAssertions",
    "JwtVerifier",
    "ProtectedResource",
    "is_endpoint",
]

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Only asymmetric signatures: with a shared secret, a verifier could also sign."""

REQUIRED = ("exp", "iss", "aud", "sub")
LEEWAY_SECONDS = 30.0
FETCH_SECONDS = 5.0
KEPT_SECONDS = 300.0
"""How old the set may be before it is fetched again."""

STALE_SECONDS = 3600.0
"""How old it may be while it cannot be fetched. A key that the issuer withdrew is accepted for so long at most."""

PAUSE_SECONDS = 5.0
KNOWN_SECONDS = 10.0
"""The pause after a fetch that failed, and after one that did not: tokens of strangers must not cause one fetch after
another. For so long a new key of the issuer may stay unknown."""

CHECKS_AT_ONCE = 2
"""Signatures that are checked at a time: each takes a part of the interpreter from the event loop."""

_Key: TypeAlias = jwt.PyJWK | str

log = logging.getLogger("holdfast.front")


class JwtVerifier:
    """Verifies the JWTs of one issuer; a ``Verify`` for ``TokenPolicy``.

    ``keys`` is the URL of a JWKS, or the path of a PEM public key. ``user_claim`` names the user. Some issuers give one
    person another ``sub`` in each application. ``resource`` says what a token for an endpoint may be for, beside
    ``audience``: clients ask the issuer for a token of the address that they use (RFC 8707).
    """

    def __init__(
        self,
        *,
        issuer: str,
        keys: str,
        audience: str = "",
        resource: ProtectedResource | None = None,
        user_claim: str = "sub",
        groups_claim: str = "groups",
        scopes_claim: str = "scope",
    ) -> None:
        if not issuer or not (audience or resource):
            raise UsageError("JWT verification needs an issuer and an audience")
        self.issuer = issuer
        self._audience = audience
        self._resource = resource
        self._claims = (user_claim, groups_claim, scopes_claim)
        is_address = keys.startswith(("https://", "http://"))
        self._published = _PublishedKeys(keys) if is_address else None
        self._own_key = "" if is_address else _key_in(Path(keys))
        """The key for every token, where it is in a file."""
        self._checking = anyio.CapacityLimiter(CHECKS_AT_ONCE)

    def __repr__(self) -> str:
        return f"<JwtVerifier of {self.issuer}>"

    async def __call__(self, token: str, path: str = "") -> Principal | None:
        """The principal of an access token for the endpoint at a path; None if the token does not verify."""
        claims = await self._verified(token)
        if claims is None or not any(self._is_for(one, path) for one in _listed(claims["aud"])):
            return None
        return self.principal(claims)

    async def claims(self, token: str, audience: str) -> dict[str, Any] | None:
        """The claims of a token of the issuer that is for this audience alone, such as an ID token; None if it is not.

        More audiences are allowed if the token names this one as the party that it was issued to.
        """
        claims = await self._verified(token)
        if claims is None:
            return None
        audiences, party = _listed(claims["aud"]), claims.get("azp", audience if claims["aud"] == audience else None)
        alone = audiences == [audience] and party in (None, audience)
        return claims if alone or (audience in audiences and party == audience) else None

    def principal(self, claims: Mapping[str, Any]) -> Principal | None:
        """Whom verified claims name; None if they name no one."""
        user, groups, scopes = self._claims
        subject = claims.get(user)
        if not isinstance(subject, str) or not subject or not subject.isprintable():
            return None  # logs and terminals show it as it is
        return Principal(
            name=f"{self.issuer}#{subject}",
            groups=_texts(claims.get(groups)),
            scopes=_texts(claims.get(scopes)),
            source="jwt",
        )

    def _is_for(self, audience: str, path: str) -> bool:
        if self._audience and audience == self._audience:
            return True
        return self._resource is not None and self._resource.is_named(audience, path)

    async def _verified(self, token: str) -> dict[str, Any] | None:
        """The claims of a token, whose signature, issuer and time are right."""
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                return None
            key = self._own_key if self._published is None else await self._published(header.get("kid"))
            if key is None:
                return None
            return await anyio.to_thread.run_sync(self._decoded, token, key, limiter=self._checking)
        except (jwt.PyJWTError, ValueError, OSError, RecursionError):
            return None

    def _decoded(self, token: str, key: _Key) -> dict[str, Any]:
        return jwt.decode(
            token,
            key,
            algorithms=list(ALGORITHMS),
            issuer=self.issuer,
            leeway=LEEWAY_SECONDS,
            # The callers check the audience, which PyJWT compares as one text.
            options={"require": list(REQUIRED), "verify_aud": False},
        )


def _listed(claim: object) -> list[str]:
    """The texts of a claim that is one text or a list of them."""
    return [one for one in (claim if isinstance(claim, list) else [claim]) if isinstance(one, str)]


def _texts(claim: object) -> frozenset[str]:
    """Return the texts of a claim: a list, or one text with spaces, as OAuth writes scopes."""
    if isinstance(claim, str):
        return frozenset(claim.split())
    return frozenset(one for one in claim if isinstance(one, str)) if isinstance(claim, list) else frozenset()


class _PublishedKeys:
    """The keys that the issuer publishes, by their ids."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise UsageError(
                f"the issuer's keys would travel unencrypted from {parts.hostname}: an attacker could replace them",
                hint="give an https:// address, or a file with the issuer's public key",
            )
        self._url = url
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at = -math.inf
        self._not_before = -math.inf
        self._fetching: asyncio.Task[None] | None = None

    async def __call__(self, kid: object) -> _Key | None:
        """Return a key; None if it is not known.

        Who has a known key never waits, also where the set is old: an issuer that hangs would delay each of its users.
        """
        key, now = self._known(kid), time.monotonic()
        if key is not None and now - self._fetched_at < KEPT_SECONDS:
            return key
        if self._fetching is None and now >= self._not_before:
            self._fetching = asyncio.create_task(self._fetch())
        if key is None and self._fetching is not None:
            await asyncio.shield(self._fetching)  # one who gives up ends the fetch for no other
            key = self._known(kid)
        return key

    def _known(self, kid: object) -> _Key | None:
        fresh = time.monotonic() - self._fetched_at < STALE_SECONDS
        return self._keys.get(kid) if fresh and isinstance(kid, str) else None

    async def _fetch(self) -> None:
        """Fetch the set, for all who wait; what goes wrong shows in a key that stays unknown."""
        pause = PAUSE_SECONDS
        try:
            self._keys = await _keys_at(self._url)
            self._fetched_at, pause = time.monotonic(), KNOWN_SECONDS
        except ServerFailure as failure:
            log.warning("the issuer's keys could not be fetched: %s", classify_evidence(failure.evidence).reason)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as exc:
            # The address may have any port, and a member of a key any type.
            log.warning("the issuer's keys could not be fetched: %s", type(exc).__name__)
        finally:
            self._not_before = time.monotonic() + pause
            self._fetching = None


async def _keys_at(url: str) -> dict[str, jwt.PyJWK]:
    """The keys in the set at an address. A redirect to another origin is not followed."""
    answer = await exchange("GET", url, doing="the issuer's keys", within=FETCH_SECONDS)
    if answer.status != 200:
        raise jwt.PyJWKClientError(f"the issuer's keys could not be fetched: HTTP {answer.status}")
    # In a thread: a set may have hundreds of keys, and each of them is checked.
    return await anyio.to_thread.run_sync(_keys_in, answer.body)


def _keys_in(body: bytes) -> dict[str, jwt.PyJWK]:
    document = json.loads(body)
    if not isinstance(document, dict):
        raise jwt.PyJWKClientError("the issuer's key set is no JSON object")
    found = jwt.PyJWKSet.from_dict(document)
    return {one.key_id: one for one in found.keys if one.key_id and one.public_key_use in ("sig", None)}


def _key_in(file: Path) -> str:
    """The public key in a file."""
    try:
        pem = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"the public key {file} cannot be read", hint="give a PEM file, or a JWKS URL") from exc
    if "PRIVATE KEY" in pem or "PUBLIC KEY" not in pem:
        raise UsageError(f"{file} contains no public key", hint="give the issuer's public key, in PEM form")
    return pem


METADATA_PATH: Final = "/.well-known/oauth-protected-resource"

LONGEST_PATH: Final = 1_024
"""Characters of a path that is named to a stranger."""

_PORTS: Final = {"http": 80, "https": 443}


@lru_cache(maxsize=64)
def is_endpoint(path: str) -> bool:
    """Whether a path is an MCP endpoint, of all servers or of one."""
    return path == "/mcp" or (path.startswith("/servers/") and path.endswith("/mcp") and path.count("/") == 3)


class ProtectedResource:
    """The endpoints below one address that clients use, and the issuer of their tokens.

    ``policy`` returns the rules in force: they say which scopes a token needs.
    """

    def __init__(self, base: str, issuer: str, *, policy: Callable[[], Policy] = Policy) -> None:
        self.base = base.rstrip("/")
        self._issuer = issuer
        self._policy = policy

    def __repr__(self) -> str:
        return f"<ProtectedResource {self.base} of {self._issuer}>"

    def metadata(self, path: str) -> dict[str, Any]:
        """The document about the endpoint at a path; empty for the hub as a whole."""
        scopes = sorted(self._policy().scopes)
        return {
            "resource": self._name(path),
            "authorization_servers": [self._issuer],
            **({"scopes_supported": scopes} if scopes else {}),
            "bearer_methods_supported": ["header"],
            "resource_name": "Holdfast",
        }

    def challenge(self, path: str, *, error: str = "", scopes: Collection[str] | None = None) -> str:
        """The value of ``WWW-Authenticate`` for a request to a path. ``scopes`` are those that it needs."""
        known = is_endpoint(path) and len(path) <= LONGEST_PATH
        fields = {
            "error": error,
            "scope": " ".join(sorted(self._policy().scopes if scopes is None else scopes)),
            "resource_metadata": f"{self.base}{METADATA_PATH}{_quoted(path) if known else ''}",
        }
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in fields.items() if value)

    def step_up(self, principal: Principal, path: str) -> str:
        """The challenge for a principal whose token has not one scope that the rules ask for; empty if it may go on."""
        policy = self._policy()
        missing = policy.missing_scopes(principal) if principal.source == "jwt" else frozenset()
        # A client replaces its token: the new one must have what the old one had.
        wanted = missing | (principal.scopes & policy.scopes)
        return self.challenge(path, error="insufficient_scope", scopes=wanted) if missing else ""

    def is_named(self, audience: str, path: str) -> bool:
        """Whether an audience is the endpoint at a path, or the hub as a whole."""
        found = _without_query(audience)
        return bool(found) and found in (_without_query(self.base), _without_query(self._name(path or "/mcp")))

    def _name(self, path: str) -> str:
        return f"{self.base}{_quoted(path)}"


def _quoted(path: str) -> str:
    """A path as it stands in an address, and inside the quotes of a header."""
    return quote(path, safe="/%:@!$&'()*+,;=~-._")


def _without_query(address: str) -> str:
    """The parts of an address that name a resource; empty for what is no address."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    number = port if port is not None else _PORTS[parts.scheme]
    return f"{parts.scheme}://{host}:{number}{parts.path.rstrip('/')}"


KEY_SET_PATH: Final = "/.well-known/jwks.json"
PURPOSE: Final = "identity assertion"
ALGORITHM: Final = "ES256"
"""The signature that the libraries of the field have in common, besides RSA, whose keys cannot be derived."""

ASSERTION_SECONDS: Final = 60
"""How long an assertion is valid: a request takes less to arrive, also with a clock that is a little off."""

MOST_KEYS: Final = 8
"""Keys that are remembered: to derive one takes longer than to sign. More secrets are not in force at a time."""

_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the curve P-256."""


class IdentityAssertions:
    """Signs for one hub, whose address is ``issuer``. ``ring`` returns the secrets in force."""

    def __init__(self, issuer: str, ring: Callable[[], KeyRing], *, wall: Callable[[], float] = time.time) -> None:
        self._issuer = issuer
        self._ring = ring
        self._wall = wall

    def __repr__(self) -> str:
        return f"<IdentityAssertions of {self._issuer}>"

    def __call__(self, principal: str, audience: str) -> str:
        """An assertion about a principal for a server."""
        key, public = _key_pair(self._ring().derived(PURPOSE)[0])
        now = int(self._wall())
        claims = {"iss": self._issuer, "sub": principal, "aud": audience, "iat": now, "exp": now + ASSERTION_SECONDS}
        return jwt.encode(claims, key, algorithm=ALGORITHM, headers={"kid": public["kid"]})

    def key_set(self) -> dict[str, Any]:
        """The public keys, as a JWKS."""
        return {"keys": [_key_pair(secret)[1] for secret in self._ring().derived(PURPOSE)]}


@lru_cache(maxsize=MOST_KEYS)
def _key_pair(secret: bytes) -> tuple[ec.EllipticCurvePrivateKey, dict[str, Any]]:
    """The private key that follows from a secret, and its public half."""
    key = ec.derive_private_key(int.from_bytes(secret, "big") % (_ORDER - 1) + 1, ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return key, {**public, "kid": _thumbprint(public), "use": "sig", "alg": ALGORITHM}


def _thumbprint(key: dict[str, Any]) -> str:
    """The name of a key (RFC 7638): the same at every replica."""
    content = json.dumps({name: key[name] for name in ("crv", "kty", "x", "y")}, separators=(",", ":"), sort_keys=True)
    return as_text(hashlib.sha256(content.encode()).digest())
