"""How Holdfast proves at an authorization server which client it is.

The methods are those of OpenID Connect and RFC 7523 that need no certificate. Authorization servers read them
differently, so a login tries what a credential allows, and keeps what the server accepted:

- A client has one method. The metadata lists the methods of all clients, so a configured secret may be for another one.
- RFC 6749 encodes the id and the secret in HTTP Basic. Some servers do not decode them.
- An assertion is for the issuer (RFC 7523bis); older servers know only their token endpoint.

The form has the ``client_id`` with every method: servers on the Python SDK look it up there before anything else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from holdfast.auth.grant import OAuthClient
from holdfast.config import is_key_text
from holdfast.errors import LoginFailed

__all__ = [
    "METHODS",
    "WITH_SECRET",
    "as_client",
    "configured_key",
    "new_key",
    "public_key",
    "signing_algorithm",
    "variants",
]

WITH_SECRET = ("client_secret_basic", "client_secret_post", "client_secret_jwt")
METHODS = ("none", *WITH_SECRET, "private_key_jwt")
"""The methods that Holdfast has."""

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ASSERTION_SECONDS = 60.0
"""How long an assertion is valid: it is made for one request."""

_HASHES = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


def as_client(client: OAuthClient, form: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The form and the headers of a request by this client."""
    fields = {**form, "client_id": client.id}
    match client.method:
        case "client_secret_basic" if client.secret is not None:
            pair = [client.id, client.secret]
            whole = ":".join(pair if client.reads_plain else [quote(part, safe="") for part in pair])
            return fields, {"authorization": f"Basic {base64.b64encode(whole.encode()).decode()}"}
        case "client_secret_post" if client.secret is not None:
            fields["client_secret"] = client.secret
        case "client_secret_jwt" | "private_key_jwt":
            fields |= {"client_assertion_type": ASSERTION_TYPE, "client_assertion": _assertion(client)}
    return fields, {}


def variants(client: OAuthClient, methods: Sequence[str], endpoint: str) -> tuple[OAuthClient, ...]:
    """The client with each method that its credential allows and the server names; its own method first.

    A server that names no method knows the first two, which RFC 6749 has.
    """
    allowed = ("private_key_jwt",) if client.key else WITH_SECRET if client.secret is not None else ()
    offered = [one for one in allowed if one in methods] if methods else allowed[:2]
    found: list[OAuthClient] = []
    for method in (client.method, *offered):
        one = replace(client, method=method)
        found.append(one)
        pair = f"{client.id}{client.secret}"
        if method == "client_secret_basic" and quote(pair, safe="") != pair:
            found.append(replace(one, reads_plain=not one.reads_plain))
        if method in ("client_secret_jwt", "private_key_jwt"):
            found.append(replace(one, audience=endpoint))
    return tuple(dict.fromkeys(found))


def configured_key(value: str) -> str:
    """The key of a definition, which has it or names its file. Raises ``LoginFailed``."""
    if is_key_text(value):
        return value.replace("\\n", "\n")  # as PEM is written into an environment variable
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        why = getattr(exc, "strerror", None) or "it is not a text"
        raise LoginFailed(f"the file of `oauth.privateKey` cannot be read: {why}", hint=f"its path is {value}") from exc


def new_key(algorithms: Sequence[str]) -> tuple[str, str]:
    """A private key of our own as a JWK, and its algorithm: one that the server names, if it names any."""
    if algorithms and "ES256" not in algorithms and {"RS256", "PS256"} & {*algorithms}:
        key: Any = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        kind: Any = jwt.algorithms.RSAAlgorithm
    else:
        key, kind = ec.generate_private_key(ec.SECP256R1()), jwt.algorithms.ECAlgorithm
    whole = kind.to_jwk(key, as_dict=True) | {"kid": secrets.token_hex(8), "use": "sig"}
    return json.dumps(whole), signing_algorithm(json.dumps(whole), algorithms)


def public_key(key: str) -> dict[str, Any]:
    """What the authorization server may know of a key that ``new_key`` made."""
    return {name: value for name, value in json.loads(key).items() if name in ("kty", "crv", "x", "y", "n", "e", "kid")}


def signing_algorithm(key: str, algorithms: Sequence[str]) -> str:
    """The algorithm of a private key. Raises ``LoginFailed`` if it is no private key that Holdfast can sign with."""
    private, _ = _loaded(key)
    if isinstance(private, ec.EllipticCurvePrivateKey) and private.curve.name in _CURVES:
        return _CURVES[private.curve.name]
    if isinstance(private, ed25519.Ed25519PrivateKey):
        return "EdDSA"
    if isinstance(private, rsa.RSAPrivateKey):
        return next((one for one in ("RS256", "PS256", "RS384", "RS512") if one in algorithms), "RS256")
    raise LoginFailed(
        "`oauth.privateKey` is not a private key that Holdfast can sign with",
        hint="write an RSA, elliptic curve or Ed25519 key into it, as PEM without a password or as a JWK",
    )


def _assertion(client: OAuthClient) -> str:
    """A JWT in which the client says who it is (RFC 7523, 3)."""
    now = int(time.time())
    claims = {
        "iss": client.id,
        "sub": client.id,
        "aud": client.audience,
        "jti": secrets.token_urlsafe(24),
        "iat": now,
        "exp": now + int(ASSERTION_SECONDS),
    }
    if client.method == "client_secret_jwt":
        return _signed_by_secret(claims, client.secret or "", client.algorithm)
    key, kid = _loaded(client.key or "")
    return jwt.encode(claims, key, algorithm=client.algorithm, headers={"kid": kid} if kid else None)


def _signed_by_secret(claims: Mapping[str, Any], secret: str, algorithm: str) -> str:
    """PyJWT warns about a short secret on every use; the authorization server chose it."""
    algorithm = algorithm if algorithm in _HASHES else "HS256"
    parts = [_encoded(json.dumps(part).encode()) for part in ({"alg": algorithm, "typ": "JWT"}, dict(claims))]
    signature = hmac.new(secret.encode(), ".".join(parts).encode(), _HASHES[algorithm]).digest()
    return ".".join([*parts, _encoded(signature)])


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


def _loaded(key: str) -> tuple[Any, str]:
    """A private key, and its name if it has one."""
    try:
        if key.lstrip().startswith("{"):
            fields = json.loads(key)
            return jwt.PyJWK(fields).key, str(fields.get("kid") or "")
        return load_pem_private_key(key.encode(), password=None), ""
    except (ValueError, TypeError, jwt.PyJWTError):
        return None, ""
