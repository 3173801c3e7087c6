"""What comes before a login: where to log in, and as which client.

``discover`` finds out where. The server names its authorization server, which publishes its endpoints:
RFC 9728 (protected resource), RFC 8414 and OpenID Connect (authorization server), and for servers from
before those, the addresses that the protocol's revision of 2025-03-26 fixed. Each answer is checked against the
server that named it. Otherwise one server could send people, and their tokens, to another.

``known_client`` and ``identify`` say as which client: one of the definition, one with a metadata document, one that an
earlier login registered, or a new one by dynamic registration (RFC 7591). A secret of the definition never goes to an
authorization server that only the server named: a server could else collect it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls as metadata_urls,
    build_protected_resource_metadata_discovery_urls as resource_urls,
)

from holdfast._version import __version__
from holdfast.auth.token_endpoint import (
    ANSWER_SECONDS,
    METHODS,
    UNKNOWN_CLIENT,
    WITH_SECRET,
    OAuthClient,
    canonical,
    configured_key,
    covers,
    document,
    may_lead_to,
    new_key,
    origin,
    public_key,
    seconds_in,
    signing_algorithm,
)
from holdfast.auth.token_store import Grant
from holdfast.config import OAuthSettings, ServerSpec
from holdfast.core import Challenge, classify_evidence, is_loopback, quoted, quoted_name, scopes_in
from holdfast.errors import LoginFailed, ServerFailure
from holdfast.wire import HttpAnswer, exchange

__all__ = [
    "DEVICE_GRANT",
    "AuthorizationServer",
    "Discovered",
    "discover",
    "document_at",
    "identify",
    "known_client",
    "server_in",
]

_UNENCRYPTED = (
    "it must use https. If it is on this machine and you trust it, write its address into `oauth.issuer`; on a network"
    ' that you trust: `"allowPlainHttp": true` for this server'
)


@dataclass(frozen=True, kw_only=True)
class AuthorizationServer:
    """An authorization server and its endpoints."""

    issuer: str
    authorization_endpoint: str = ""
    token_endpoint: str
    registration_endpoint: str = ""
    device_authorization_endpoint: str = ""
    revocation_endpoint: str = ""
    scopes: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    """The client authentication methods of the token endpoint; empty where it names none."""
    signing_algorithms: tuple[str, ...] = ()
    """The algorithms of a client's assertion; empty where it names none."""
    grant_types: tuple[str, ...] = ()
    """The grants that it has; empty where it names none."""
    takes_documents: bool = False
    """Whether it accepts the URL of a client id metadata document as a client id."""
    names_itself: bool = False
    """Whether its answers always name the issuer (RFC 9207)."""
    guessed: bool = False
    """Whether it publishes no metadata: its endpoints are the default ones of 2025-03-26."""


@dataclass(frozen=True, kw_only=True)
class Discovered:
    """What discovery found about the login to a server."""

    resource: str
    scopes: tuple[str, ...] = ()
    """The scopes that the resource names."""
    server: AuthorizationServer


async def discover(spec: ServerSpec, challenge: Challenge | None) -> Discovered:
    """Where and how to log in to a server that sent this challenge (None: it sent none).

    Raises ``LoginFailed``.
    """
    finder = _Finder(spec)
    if spec.oauth.authorization_url and spec.oauth.token_url:
        scopes = challenge.scope if challenge is not None else ()
        return Discovered(resource=canonical(spec.url), scopes=scopes, server=finder.configured())
    return await finder.find(challenge or Challenge(), asked=challenge is not None)


class _Finder:
    """One server's discovery."""

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._server = canonical(spec.url)

    def configured(self) -> AuthorizationServer:
        oauth = self._spec.oauth
        return self._checked(
            AuthorizationServer(
                issuer=oauth.issuer or origin(oauth.token_url or ""),
                authorization_endpoint=oauth.authorization_url or "",
                token_endpoint=oauth.token_url or "",
                device_authorization_endpoint=oauth.device_authorization_url or "",
            )
        )

    async def find(self, challenge: Challenge, *, asked: bool) -> Discovered:
        described = await self._first(resource_urls(self._named(challenge) or None, self._server))
        if described is None and not asked:
            raise LoginFailed(f"the server `{self._spec.id}` asks for no login: it answers without one")
        # A server without metadata is its own authorization server, as in 2025-03-26.
        resource = self._resource(described) if described is not None else self._server
        issuer = self._issuer(described or {})
        server = await self._authorization_server(issuer) if issuer else await self._own(guesses=described is None)
        supported = server.scopes if described is None else _texts(described.get("scopes_supported"))
        return Discovered(resource=resource, scopes=challenge.scope or scopes_in(" ".join(supported)), server=server)

    def _named(self, challenge: Challenge) -> str:
        """The address of its metadata that the server names; over https if the server is reached over https.

        A server behind a proxy that ends TLS does not know that.
        """
        named, own = challenge.resource_metadata, self._server
        upgraded = named.replace("http://", "https://", 1)
        return upgraded if named.startswith("http://") and covers(origin(own), upgraded) else named

    def _resource(self, described: Mapping[str, Any]) -> str:
        resource = described.get("resource")
        if not isinstance(resource, str) or not covers(resource, self._server):
            raise LoginFailed(
                f"the server `{self._spec.id}` says that it is a different server: {_shown(resource)}",
                hint="a token for that address is not valid here. If you mean that address, write it into `url`",
            )
        return resource

    def _issuer(self, described: Mapping[str, Any]) -> str:
        """The authorization server to use: the configured one if the resource names it, else the first it names.

        Empty if there is none.
        """
        named, wanted = _texts(described.get("authorization_servers")), self._spec.oauth.issuer
        if wanted is None and named:
            return named[0]
        found = next((one for one in named if wanted is not None and _same_issuer(one, wanted)), None)
        if found is None and named:
            raise LoginFailed(
                f"the server `{self._spec.id}` does not know the authorization server {_shown(wanted)}",
                hint=f"it names {_shown(', '.join(named))}: correct `oauth.issuer`, or remove it",
            )
        return found or wanted or ""

    async def _authorization_server(self, issuer: str) -> AuthorizationServer:
        if not may_lead_to(issuer, self._spec):
            raise LoginFailed(
                f"the authorization server of `{self._spec.id}` is at an unencrypted address: {_shown(issuer)}",
                hint=_UNENCRYPTED,
            )
        # The last address is none of the standards', but servers under a path use it.
        appended = f"{issuer.rstrip('/')}/.well-known/oauth-authorization-server"
        described = await self._first(dict.fromkeys([*metadata_urls(issuer, self._server), appended]))
        if described is None:
            raise LoginFailed(
                f"the authorization server {_shown(issuer)} publishes no metadata",
                hint="write its endpoints into the server's definition:"
                ' "oauth": {"authorizationUrl": "…", "tokenUrl": "…", "clientId": "…"}',
            )
        return self._described(described, issuer)

    async def _own(self, *, guesses: bool) -> AuthorizationServer:
        """A server that names no authorization server may be its own. ``guesses``: also where it publishes nothing."""
        issuer = origin(self._server)
        described = await self._first(metadata_urls(issuer, self._server))
        if described is not None:
            return self._described(described, issuer)
        if not guesses:
            raise LoginFailed(
                f"the server `{self._spec.id}` names no authorization server",
                hint="write its address, if you know it, into `oauth.issuer` of the server's definition",
            )
        return self._checked(
            AuthorizationServer(
                issuer=issuer,
                authorization_endpoint=f"{issuer}/authorize",
                token_endpoint=f"{issuer}/token",
                registration_endpoint=f"{issuer}/register",
                guessed=True,
            )
        )

    def _described(self, fields: Mapping[str, Any], issuer: str) -> AuthorizationServer:
        own = fields.get("issuer")
        if not isinstance(own, str) or not _same_issuer(own, issuer):
            raise LoginFailed(
                f"the authorization server {_shown(issuer)} says that it is a different server: {_shown(own)}",
                hint="this is how tokens are stolen: do not log in before the server's operator has explained it. Then"
                ' write its endpoints into the definition: "oauth": {"authorizationUrl": "…", "tokenUrl": "…"}',
            )
        methods = fields.get("code_challenge_methods_supported")
        if _text(fields, "authorization_endpoint") and "S256" not in _texts(methods):
            raise LoginFailed(
                f"the authorization server {_shown(issuer)} does not say that it supports PKCE (S256)",
                hint="the protocol demands it. If you know that it does, write its endpoints into the definition:"
                ' "oauth": {"authorizationUrl": "…", "tokenUrl": "…"}',
            )
        return self._checked(server_in(fields))

    def _checked(self, server: AuthorizationServer) -> AuthorizationServer:
        """Check the endpoints: codes and tokens are sent there, so each must use https."""
        device = self._spec.oauth.device_authorization_url or server.device_authorization_endpoint
        server = replace(server, device_authorization_endpoint=device)
        endpoints = (server.authorization_endpoint, server.token_endpoint, server.registration_endpoint, device)
        for endpoint in endpoints:
            if endpoint and not may_lead_to(endpoint, self._spec):
                raise LoginFailed(
                    f"the authorization server has an endpoint with an unencrypted address: {_shown(endpoint)}",
                    hint=_UNENCRYPTED,
                )
        if not server.token_endpoint:
            raise LoginFailed(f"the authorization server {_shown(server.issuer)} has no token endpoint")
        if not may_lead_to(server.revocation_endpoint, self._spec):
            return replace(server, revocation_endpoint="")  # a login works without it
        return server

    async def _first(self, urls: Iterable[str]) -> dict[str, Any] | None:
        """The first of these addresses that has a document; None if none has.

        An address that cannot be asked ends the login, unless a later one has the document: some servers answer with
        an error of theirs where others answer "not found".
        """
        outage: LoginFailed | None = None
        for url in urls:
            if not may_lead_to(url, self._spec):
                raise LoginFailed(
                    f"the metadata of `{self._spec.id}` is at an unencrypted address: {_shown(url)}",
                    hint=_UNENCRYPTED,
                )
            found = await document_at(url)
            if isinstance(found, dict):
                return found
            outage = outage or found
        if outage is not None:
            raise outage
        return None


def server_in(fields: Mapping[str, Any]) -> AuthorizationServer:
    """What a metadata document says of its authorization server, unchecked."""
    return AuthorizationServer(
        issuer=_text(fields, "issuer"),
        authorization_endpoint=_text(fields, "authorization_endpoint"),
        token_endpoint=_text(fields, "token_endpoint"),
        registration_endpoint=_text(fields, "registration_endpoint"),
        device_authorization_endpoint=_text(fields, "device_authorization_endpoint"),
        revocation_endpoint=_text(fields, "revocation_endpoint"),
        scopes=scopes_in(" ".join(_texts(fields.get("scopes_supported")))),
        methods=_texts(fields.get("token_endpoint_auth_methods_supported")),
        signing_algorithms=_texts(fields.get("token_endpoint_auth_signing_alg_values_supported")),
        grant_types=_texts(fields.get("grant_types_supported")),
        takes_documents=fields.get("client_id_metadata_document_supported") is True,
        names_itself=fields.get("authorization_response_iss_parameter_supported") is True,
    )


async def document_at(url: str) -> dict[str, Any] | LoginFailed | None:
    """The document at an address; None if it has none, and the reason if it could not be asked."""
    headers = {"accept": "application/json", "mcp-protocol-version": "2025-11-25"}
    try:
        answer = await exchange("GET", url, headers=headers, doing="the metadata", within=ANSWER_SECONDS)
    except ServerFailure as failure:
        verdict = classify_evidence(failure.evidence)
        raise LoginFailed(f"{_shown(origin(url))} could not be asked: {verdict.reason}", hint=verdict.hint) from None
    if answer.status >= 500 or answer.status == 429:
        return LoginFailed(
            f"{_shown(origin(url))} could not be asked: it answered HTTP {answer.status}", hint="try again in a while"
        )
    return document(answer.body) if answer.status == 200 else None


def _same_issuer(one: str, other: str) -> bool:
    """Whether two texts name one issuer.

    The slash at the end does not count: RFC 8414 leaves it out of the metadata's address, and libraries add it or take
    it away.
    """
    return one.rstrip("/") == other.rstrip("/")


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _shown(text: object) -> str:
    """Text of a server, made safe to show."""
    return quoted_name(str(text), 200, ticks=True)


# The client.

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"

_PREFERRED = ("none", "client_secret_post", "client_secret_basic", "client_secret_jwt", "private_key_jwt")
"""The methods to register with. The form comes before HTTP Basic, as in OAuth 2.1: servers differ in whether they
decode what Basic encodes."""


def known_client(
    oauth: OAuthSettings, server: AuthorizationServer, grants: Iterable[Grant], now: float, scope: Sequence[str] = ()
) -> OAuthClient | None:
    """The client that is known without a request: from the definition, a document, or an earlier registration.

    Raises ``LoginFailed`` if a credential of the definition would go to a server that the definition does not name, or
    if the server takes no such credential.
    """
    if oauth.client_id is not None:
        return _configured(oauth, server, oauth.client_id)
    if oauth.client_metadata_url is not None and server.takes_documents:
        return _configured(oauth, server, oauth.client_metadata_url, by_document=True)
    return next((grant.client for grant in grants if _usable(grant, oauth, server, now, scope)), None)


def _usable(grant: Grant, oauth: OAuthSettings, server: AuthorizationServer, now: float, scope: Sequence[str]) -> bool:
    """Whether the registration of an earlier login serves for this one."""
    client = grant.client
    if client.origin != "registered" or grant.issuer != server.issuer or grant.refused in UNKNOWN_CLIENT:
        return False
    ended = client.expires_at is not None and now >= client.expires_at
    moved = oauth.redirect_uri not in (None, client.redirect_uri)
    # A registration names its scope. The Python SDK's server, among others, grants the client no other.
    known = grant.scope if client.scope is None else client.scope
    narrow = bool(known) and not {*scope} <= {*known.split()}
    return not (ended or moved or narrow)


async def identify(server: AuthorizationServer, *, redirect_uri: str, scope: str) -> OAuthClient:
    """Register with an authorization server (RFC 7591). Raises ``LoginFailed``."""
    if not server.registration_endpoint:
        raise LoginFailed(
            f"the authorization server {server.issuer} does not know Holdfast, and has no dynamic registration",
            hint="register Holdfast there by hand, as a native app, and write the id that it gives into the server's"
            ' definition: "oauth": {"clientId": "…", "redirectUri": "http://localhost:8765/callback"}',
        )
    method = next((one for one in _PREFERRED if one in server.methods), "") if server.methods else "none"
    if not method:
        raise _no_method(server, "")
    key, algorithm = new_key(server.signing_algorithms) if method == "private_key_jwt" else (None, "")
    wanted: dict[str, object] = {
        "client_name": "Holdfast",
        "software_id": "holdfast",
        "software_version": __version__,
        "application_type": "native" if is_loopback(urlsplit(redirect_uri).hostname or "") else "web",
        "redirect_uris": [redirect_uri],
        "grant_types": _grant_types(server),
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        **({"token_endpoint_auth_signing_alg": algorithm, "jwks": {"keys": [public_key(key)]}} if key else {}),
    }
    if scope:
        wanted["scope"] = scope
    answer = await _sent(server, wanted)
    if _error(answer) == "invalid_redirect_uri" and "//127.0.0.1:" in redirect_uri:
        # RFC 8252 prefers the number; some servers know only the name.
        redirect_uri = redirect_uri.replace("//127.0.0.1:", "//localhost:")
        answer = await _sent(server, wanted | {"redirect_uris": [redirect_uri]})
    elif answer.status == 400 and scope:
        # Some servers know the scopes of a resource, but refuse them in a registration (`oidc-provider`).
        del wanted["scope"]
        answer, scope = await _sent(server, wanted), ""
    return _registered(server, answer, method=method, key=key, redirect_uri=redirect_uri, scope=scope)


def _error(answer: HttpAnswer) -> object:
    return (document(answer.body) or {}).get("error") if answer.status == 400 else None


def _grant_types(server: AuthorizationServer) -> list[str]:
    """What Holdfast uses of what the server has; a server may refuse a client that asks for more."""
    wanted = ["refresh_token"] + ([DEVICE_GRANT] if server.device_authorization_endpoint else [])
    return ["authorization_code", *(one for one in wanted if not server.grant_types or one in server.grant_types)]


async def _sent(server: AuthorizationServer, wanted: dict[str, object]) -> HttpAnswer:
    try:
        return await exchange(
            "POST",
            server.registration_endpoint,
            headers={"content-type": "application/json", "accept": "application/json"},
            content=json.dumps(wanted).encode(),
            doing="the registration",
            within=ANSWER_SECONDS,
        )
    except ServerFailure as failure:
        verdict = classify_evidence(failure.evidence)
        raise LoginFailed(f"registering Holdfast failed: {verdict.reason}", hint=verdict.hint) from None


def _registered(
    server: AuthorizationServer, answer: HttpAnswer, *, method: str, key: str | None, redirect_uri: str, scope: str
) -> OAuthClient:
    """The client that the server registered; it may choose another method than the one asked for."""
    fields = document(answer.body) or {}
    client_id, secret = fields.get("client_id"), fields.get("client_secret")
    if answer.status not in (200, 201) or not isinstance(client_id, str) or not client_id:
        raise _not_registered(server, answer.status, fields)
    secret = secret if isinstance(secret, str) and secret else None
    chosen = str(fields.get("token_endpoint_auth_method") or "") or method
    if chosen == "none" and secret is not None and method != "none":
        chosen = method  # it gave the secret that was asked for
    if chosen not in METHODS or (chosen in WITH_SECRET and secret is None) or (chosen == "private_key_jwt" and not key):
        why = "without the credential for it" if chosen in METHODS else "which Holdfast does not have"
        raise LoginFailed(
            f"the authorization server {server.issuer} registered Holdfast for the client authentication"
            f" {quoted_name(chosen, ticks=True)}, {why}",
            hint="register Holdfast there by hand, and write the id into `oauth.clientId`",
        )
    return OAuthClient(
        id=client_id,
        secret=secret,
        key=key if chosen == "private_key_jwt" else None,
        method=chosen,
        audience=server.issuer,
        algorithm=_algorithm(server, chosen, key),
        redirect_uri=redirect_uri,
        scope=scope,
        expires_at=seconds_in(fields.get("client_secret_expires_at")),
    )


def _not_registered(server: AuthorizationServer, status: int, fields: dict[str, object]) -> LoginFailed:
    if server.guessed and status in (404, 405):
        return LoginFailed(
            f"{server.issuer} does not say how to log in, and is no authorization server itself",
            hint='if the server takes a key instead, add it to its definition: "headers": {"Authorization": "Bearer'
            ' ${env:TOKEN}"}; if you know where to log in, write `oauth.authorizationUrl`, `oauth.tokenUrl` and'
            " `oauth.clientId`",
        )
    said = quoted(str(fields.get("error_description") or fields.get("error") or "")[:2_000])
    return LoginFailed(
        f"the authorization server {server.issuer} did not register Holdfast"
        f" (HTTP {status}{f': {said}' if said else ''})",
        hint="try again in a while"
        if status >= 500 or status == 429
        else "register Holdfast there by hand, and write the id that it gives into `oauth.clientId`",
    )


def _configured(
    oauth: OAuthSettings, server: AuthorizationServer, client_id: str, *, by_document: bool = False
) -> OAuthClient:
    # A document is public, and so is its client: only a key belongs to it.
    secret = None if by_document else oauth.client_secret
    key = configured_key(oauth.private_key) if oauth.private_key is not None else None
    named = oauth.issuer or (oauth.authorization_url and oauth.token_url)
    if secret is not None and not named:
        issuer = quoted_name(server.issuer, 200)
        raise LoginFailed(
            f"`oauth.clientSecret` would be sent to {issuer}, which the server chose and its definition does not name",
            hint=f'if that is who gave you the secret, add it to the definition: "oauth": {{"issuer": "{issuer}"}}',
        )
    method = _method(server, secret=secret is not None, key=key is not None)
    return OAuthClient(
        id=client_id,
        secret=secret,
        key=key,
        method=method,
        audience=server.issuer,
        algorithm=_algorithm(server, method, key),
        origin="document" if by_document else "configured",
        redirect_uri=oauth.redirect_uri or "",
    )


def _method(server: AuthorizationServer, *, secret: bool, key: bool) -> str:
    """The first method that the credential of the definition allows and the server names."""
    if not secret and not key:
        return "none"  # many servers accept it and do not name it
    allowed = ("private_key_jwt",) if key else WITH_SECRET
    found = next((one for one in allowed if one in (server.methods or allowed)), None)
    if found is None:
        raise _no_method(server, f"`oauth.{'privateKey' if key else 'clientSecret'}` is of no use there")
    return found


def _no_method(server: AuthorizationServer, then: str) -> LoginFailed:
    named = quoted_name(", ".join(server.methods), 200)
    missing = not {*server.methods} & {*METHODS}
    return LoginFailed(
        f"the authorization server {server.issuer} accepts only this client authentication: {named}",
        hint=f"Holdfast has these: {', '.join(METHODS)}. Ask the server's operator for one of these"
        if missing
        else f"{then}: write what it asks for into the definition, as `oauth.clientSecret` or `oauth.privateKey`",
    )


def _algorithm(server: AuthorizationServer, method: str, key: str | None) -> str:
    """How an assertion is signed; empty for a method without one."""
    if method == "private_key_jwt":
        return signing_algorithm(key or "", server.signing_algorithms)
    if method == "none":
        return ""
    offered = [one for one in ("HS256", "HS384", "HS512") if one in server.signing_algorithms]
    return offered[0] if offered else "HS256"
