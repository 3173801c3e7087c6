"""Holdfast's client registration: configured, by a metadata document, or dynamic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from holdfast._version import __version__
from holdfast.auth.discovery import AuthorizationServer
from holdfast.auth.grant import Grant, OAuthClient
from holdfast.auth.token_endpoint import (
    ANSWER_SECONDS,
    METHODS,
    UNKNOWN_CLIENT,
    WITH_SECRET,
    configured_key,
    document,
    new_key,
    public_key,
    signing_algorithm,
)
from holdfast.config import OAuthSettings
from holdfast.core import classify_evidence, is_loopback, quoted, quoted_name
from holdfast.errors import LoginFailed, ServerFailure
from holdfast.wire import HttpAnswer, exchange

__all__ = ["DEVICE_GRANT", "identify", "known_client"]

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
    ends = fields.get("client_secret_expires_at")
    return OAuthClient(
        id=client_id,
        secret=secret,
        key=key if chosen == "private_key_jwt" else None,
        method=chosen,
        audience=server.issuer,
        algorithm=_algorithm(server, chosen, key),
        redirect_uri=redirect_uri,
        scope=scope,
        expires_at=float(ends) if isinstance(ends, int | float) and ends > 0 else None,
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
