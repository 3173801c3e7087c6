"""The token endpoint: where credentials may go, requests, client authentication, and the meaning of the answers.

URLs come first: their canonical form, which servers a token covers, and which addresses are safe for credentials.

Client authentication is how Holdfast proves at an authorization server which client it is.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic_core import from_json

from holdfast.config import ServerSpec, is_key_text
from holdfast.core import Redactor, classify_evidence, is_loopback, quoted, quoted_name, scopes_in
from holdfast.errors import LoginFailed, ServerFailure
from holdfast.keys import as_text
from holdfast.wire import HttpAnswer, exchange

__all__ = [
    "ANSWER_SECONDS",
    "METHODS",
    "UNKNOWN_CLIENT",
    "UNUSABLE_ID_TOKEN",
    "WITH_SECRET",
    "IssuedTokens",
    "NoTokenAnswer",
    "OAuthClient",
    "TokenRefused",
    "as_client",
    "canonical",
    "configured_key",
    "covers",
    "document",
    "is_safe",
    "issued",
    "may_lead_to",
    "new_key",
    "origin",
    "post_as_accepted",
    "post_form",
    "public_key",
    "revoke",
    "seconds_in",
    "signing_algorithm",
    "variants",
]

_DEFAULT_PORTS = {"http": 80, "https": 443}


def canonical(url: str) -> str:
    """A server's address as a resource identifier: no user info, no fragment, host in lower case, no default port."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme.lower(), _netloc(url), parts.path, parts.query, ""))


def origin(url: str) -> str:
    """The scheme, host and port of an address."""
    return f"{urlsplit(url).scheme.lower()}://{_netloc(url)}"


def covers(resource: str, server: str) -> bool:
    """Whether a resource is the server or a parent of it: the same origin, and a prefix of its path."""
    try:
        if origin(resource) != origin(server):
            return False
    except ValueError:  # the server's metadata contains no valid address
        return False
    parent, child = (f"{urlsplit(url).path.rstrip('/')}/" for url in (resource, server))
    return child.startswith(parent)


def is_safe(url: str, *, allow_plain_http: bool = False) -> bool:
    """Whether credentials may be sent there: over TLS, or within this machine."""
    if "\\" in url:
        return False  # a browser takes it for a slash, and so another host than this program
    try:
        parts, _ = urlsplit(url), origin(url)
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(parts.hostname)
    return parts.scheme == "http" and bool(parts.hostname) and (allow_plain_http or is_loopback(parts.hostname or ""))


def may_lead_to(url: str, spec: ServerSpec) -> bool:
    """Whether a login to a server may use an address that the server or its metadata names.

    A remote server may not point it at a service of this machine over plain http. Only a server on this machine may,
    or the definition, by the same address or by ``allowPlainHttp``.
    """
    if not is_safe(url, allow_plain_http=spec.allow_plain_http):
        return False
    if urlsplit(url).scheme == "https" or spec.allow_plain_http or is_loopback(urlsplit(spec.url).hostname or ""):
        return True
    oauth = spec.oauth
    named = (oauth.issuer, oauth.authorization_url, oauth.token_url, oauth.device_authorization_url)
    return origin(url) in [origin(one) for one in named if one]


def _netloc(url: str) -> str:
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    return host if port in (None, _DEFAULT_PORTS.get(parts.scheme.lower())) else f"{host}:{port}"


@dataclass(frozen=True, kw_only=True)
class OAuthClient:
    """Holdfast's client registration at an authorization server."""

    id: str
    secret: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    """Its private key, as PEM or as a JWK."""
    method: str = "none"
    """How it authenticates at the token endpoint: one of ``METHODS``."""
    reads_plain: bool = False
    """Whether the server reads the id and the secret in HTTP Basic as they are, without decoding them."""
    audience: str = ""
    """Whom a signed assertion is for: the issuer, or the token endpoint where the server demands that."""
    algorithm: str = ""
    """How an assertion is signed."""
    origin: Literal["configured", "document", "registered"] = "registered"
    redirect_uri: str = ""
    """Its registered redirect URI."""
    scope: str | None = None
    """The scope that it was registered for; empty for a registration that names none, None where that is not known.
    Some servers grant it no other."""
    expires_at: float | None = None
    """When its registration ends, in seconds since 1970."""


ANSWER_SECONDS = 10.0
"""How long an authorization server may take to answer."""

_PASSING = frozenset({"temporarily_unavailable", "server_error"})
"""The errors for "I cannot answer now"."""

UNKNOWN_CLIENT = frozenset(
    {"invalid_client", "unauthorized_client", "incorrect_client_credentials", "bad_client_secret", "invalid_client_id"}
)
"""The errors for a client that is not known, or did not prove who it is. The last three are GitHub's and Slack's."""

UNUSABLE_ID_TOKEN = "unusable_id_token"  # noqa: S105 - no token
"""Holdfast's own word for a renewal that gave no ID token of the same person."""

_FINAL = UNKNOWN_CLIENT | {
    UNUSABLE_ID_TOKEN,
    "bad_refresh_token",
    "invalid_grant",
    "invalid_refresh_token",
    "invalid_request",
    "invalid_scope",
    "unsupported_grant_type",
}
"""The errors for a refusal (RFC 6749, 5.2), and GitHub's and Slack's words for a refresh token that is not valid."""

_PROVEN = frozenset({"dpop", "mac", "pop", "n_a"})
"""The kinds of tokens that are worth nothing without a proof. Every other kind is sent as a Bearer token: Slack calls
its own `user`."""

_SECRET_FIELDS = (
    "assertion",
    "client_assertion",
    "client_secret",
    "code",
    "code_verifier",
    "device_code",
    "refresh_token",
    "subject_token",
)
"""What an answer must not repeat to a person. The other fields are words, which an error may be made of."""


class NoTokenAnswer(Exception):
    """The authorization server did not answer, or gave no decision: a retry can help."""

    def __init__(self, reason: str, *, retry_after: float | None = None, status: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.status = status

    @property
    def unproven(self) -> bool:
        """Whether the client's proof of who it is can be the reason."""
        return self.status == 401


class TokenRefused(Exception):
    """The authorization server refused."""

    def __init__(self, code: str, description: str = "", *, status: int = 200) -> None:
        super().__init__(
            f"{quoted_name(code, ticks=True)}: {quoted(description)}" if description else quoted_name(code, ticks=True)
        )
        self.code = code
        self.status = status

    @property
    def final(self) -> bool:
        """Whether a retry cannot help. GitHub and Slack refuse with 200; a proxy in the server's place does not."""
        return self.status in (200, 400, 401) and self.code in _FINAL

    @property
    def unproven(self) -> bool:
        """Whether the client's proof of who it is can be the reason."""
        return self.code in UNKNOWN_CLIENT or self.code == "invalid_request"


@dataclass(frozen=True, kw_only=True)
class IssuedTokens:
    """Tokens as the endpoint issued them."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    scope: str = ""
    expires_in: float | None = None

    def expires_at(self, now: float) -> float | None:
        """When the access token ends."""
        return now + self.expires_in if self.expires_in is not None else None


def issued(fields: Mapping[str, Any]) -> IssuedTokens:
    """The tokens in an answer. Raises ``TokenRefused`` or ``NoTokenAnswer``."""
    token, kind = fields.get("access_token"), str(fields.get("token_type") or "bearer")
    # It goes into a header: a line end in it would be a second header.
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise NoTokenAnswer("its answer contains no access token")
    # Such a token is bound to a key of ours, which we do not have: every request with it would be refused.
    if kind.lower() in _PROVEN:
        raise TokenRefused("unsupported_token_type", f"it issues {kind} tokens, which are not Bearer tokens")
    refresh = fields.get("refresh_token")
    return IssuedTokens(
        access_token=token,
        refresh_token=refresh if isinstance(refresh, str) and refresh else None,
        scope=_scope(fields.get("scope")),
        expires_in=seconds_in(fields.get("expires_in")),
    )


async def post_as_accepted(
    endpoint: str,
    form: Mapping[str, str],
    *,
    client: OAuthClient,
    methods: Sequence[str],
    token_endpoint: str = "",
    allow_plain_http: bool = False,
    on_sending: Callable[[], None] | None = None,
) -> tuple[OAuthClient, dict[str, Any]]:
    """``post_form`` as this client, by each method that its credential allows, until the server accepts one.

    ``methods`` are those that the server names. ``token_endpoint`` is whom a signed assertion may be for, where the
    form goes elsewhere. Returns the client with the method that was accepted; raises the refusal of the first method if
    none was.
    """
    first: TokenRefused | NoTokenAnswer | None = None
    for one in variants(client, methods, token_endpoint or endpoint):
        try:
            return one, await post_form(
                endpoint, form, client=one, allow_plain_http=allow_plain_http, on_sending=on_sending
            )
        except (TokenRefused, NoTokenAnswer) as exc:
            # The server knows who asked, and refuses: another method of proof would change nothing.
            if not exc.unproven:
                raise
            first = first or exc
    raise first or AssertionError("a client has one method at least")


async def post_form(
    endpoint: str,
    form: Mapping[str, str],
    *,
    client: OAuthClient,
    allow_plain_http: bool = False,
    on_sending: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """POST a form to an authorization server as ``client``; returns the JSON object of its answer."""
    if not is_safe(endpoint, allow_plain_http=allow_plain_http):
        raise NoTokenAnswer("the authorization server has an unencrypted address, so Holdfast sends it nothing")
    fields, headers = as_client(client, {name: value for name, value in form.items() if value})
    answer = await _post(endpoint, fields, headers, on_sending)
    return _meaning(answer, Redactor([fields.get(name, "") for name in _SECRET_FIELDS] + [*headers.values()]))


async def revoke(endpoint: str, token: str, *, client: OAuthClient, allow_plain_http: bool = False) -> bool:
    """Revoke a token (RFC 7009); returns whether the authorization server confirmed it."""
    if not is_safe(endpoint, allow_plain_http=allow_plain_http):
        return False
    fields, headers = as_client(client, {"token": token})
    # The Python SDK's server demands a field `client_secret` here, from every client and with every method.
    for form in (fields, {**fields, "client_secret": client.secret or ""}):
        try:
            if (await _post(endpoint, form, headers)).status == 200:
                return True
        except NoTokenAnswer:
            return False
    return False


def document(body: bytes) -> dict[str, Any] | None:
    """A JSON object; None for anything else."""
    try:
        parsed = from_json(body)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


async def _post(
    endpoint: str,
    fields: Mapping[str, str],
    headers: Mapping[str, str],
    on_sending: Callable[[], None] | None = None,
) -> HttpAnswer:
    kinds = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
    try:
        return await exchange(
            "POST",
            endpoint,
            headers={**headers, **kinds},
            content=urlencode(fields).encode(),
            doing="the authorization server's answer",
            within=ANSWER_SECONDS,
            on_sending=on_sending,
        )
    except ServerFailure as failure:
        raise NoTokenAnswer(f"the authorization server: {classify_evidence(failure.evidence).reason}") from failure


def _meaning(answer: HttpAnswer, redactor: Redactor) -> dict[str, Any]:
    fields = document(answer.body) or _form(answer) or {}
    error, description = fields.get("error"), fields.get("error_description")
    if isinstance(error, dict):  # the errors of some web frameworks
        description = description or error.get("message")
        error = error.get("code") or error.get("type")
    if answer.status in (200, 201) and fields and not error:
        return fields
    # An outage must not look like a decision: a refusal ends the login of a person.
    decided = isinstance(error, str) and error and error not in _PASSING
    if not decided or answer.status >= 500 or answer.status == 429:
        raise NoTokenAnswer(
            f"the authorization server answered HTTP {answer.status}",
            retry_after=_retry_after(answer),
            status=answer.status,
        )
    said = redactor.mask(" ".join(str(description or "")[:2_000].split()))[:200]
    raise TokenRefused(redactor.mask(str(error)[:200])[:80], said, status=answer.status)


def _form(answer: HttpAnswer) -> dict[str, Any] | None:
    """The fields of a form: GitHub answers with one where it does not read ``Accept``."""
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/x-www-form-urlencoded", "text/plain"):
        return None
    try:
        return dict(parse_qsl(answer.body.decode(), max_num_fields=100))
    except ValueError:
        return None


def _scope(value: object) -> str:
    """The granted scope; some servers answer with a list."""
    text = " ".join(str(one) for one in value) if isinstance(value, list) else str(value or "")
    return " ".join(scopes_in(text))


def _retry_after(answer: HttpAnswer) -> float | None:
    value = answer.headers.get("retry-after", "").strip()
    return float(value[:9]) if value.isascii() and value.isdigit() else None


def seconds_in(value: object) -> float | None:
    """A number of seconds, also as a text; None for an invalid one, and for 0, which some servers send for no end."""
    try:
        seconds = float(value)  # type: ignore[arg-type]  # the value can be of any type
    except (TypeError, ValueError, OverflowError):  # JSON has integers that no float holds
        return None
    return seconds if 0 < seconds < 10**10 else None


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
        # Only where the two readings differ: each try is a failed login in the log of the server.
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
    # The algorithm comes from the metadata of the server, which may name any.
    algorithm = algorithm if algorithm in _HASHES else "HS256"
    parts = [as_text(json.dumps(part).encode()) for part in ({"alg": algorithm, "typ": "JWT"}, dict(claims))]
    signature = hmac.new(secret.encode(), ".".join(parts).encode(), _HASHES[algorithm]).digest()
    return ".".join([*parts, as_text(signature)])


def _loaded(key: str) -> tuple[Any, str]:
    """A private key, and its name if it has one."""
    try:
        if key.lstrip().startswith("{"):
            fields = json.loads(key)
            return jwt.PyJWK(fields).key, str(fields.get("kid") or "")
        return load_pem_private_key(key.encode(), password=None), ""
    except (ValueError, TypeError, jwt.PyJWTError):
        return None, ""
