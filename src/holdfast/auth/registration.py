"""Holdfast's client registration: configured, by a metadata document, or dynamic."""

from __future__ import annotations

import json
from collections.abc import Iterable

from holdfast._version import __version__
from holdfast.auth.discovery import AuthorizationServer
from holdfast.auth.grant import Grant, OAuthClient
from holdfast.auth.token_endpoint import ANSWER_SECONDS, document
from holdfast.config import OAuthSettings
from holdfast.core import classify_evidence, quoted, quoted_name
from holdfast.errors import LoginFailed, ServerFailure
from holdfast.wire import exchange

__all__ = ["DEVICE_GRANT", "FORGOTTEN", "identify", "known_client"]

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
FORGOTTEN = frozenset({"invalid_client", "unauthorized_client"})
"""The errors of an authorization server that does not know a client."""

_WITH_SECRET = ("client_secret_basic", "client_secret_post")


def known_client(
    oauth: OAuthSettings, server: AuthorizationServer, grants: Iterable[Grant], now: float
) -> OAuthClient | None:
    """The client that is known without a request: from the definition, a document, or an earlier registration.

    Raises ``LoginFailed`` if a secret of the definition would go to a server that the definition does not name.
    """
    if oauth.client_id is not None:
        return _configured(oauth, server)
    if oauth.client_metadata_url is not None and server.takes_documents:
        return OAuthClient(id=oauth.client_metadata_url, origin="document", redirect_uri=oauth.redirect_uri or "")
    for grant in grants:
        client = grant.client
        ended = client.expires_at is not None and now >= client.expires_at
        moved = oauth.redirect_uri not in (None, client.redirect_uri)
        good = client.origin == "registered" and not ended and not moved and not _unknown(grant)
        if good and grant.issuer == server.issuer:
            return client
    return None


async def identify(server: AuthorizationServer, *, redirect_uri: str, scope: str) -> OAuthClient:
    """Register with an authorization server (RFC 7591). Raises ``LoginFailed``."""
    if not server.registration_endpoint:
        raise LoginFailed(
            f"the authorization server {server.issuer} does not know Holdfast, and has no dynamic registration",
            hint="register Holdfast there by hand, as a native app, and write the id that it gives into the server's"
            ' definition: "oauth": {"clientId": "…", "redirectUri": "http://localhost:8765/callback"}',
        )
    wanted: dict[str, object] = {
        "client_name": "Holdfast",
        "software_id": "holdfast",
        "software_version": __version__,
        "application_type": "native",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"]
        + ([DEVICE_GRANT] if server.device_authorization_endpoint else []),
        "response_types": ["code"],
        "token_endpoint_auth_method": _method(server, secret=False),
        **({"scope": scope} if scope else {}),
    }
    return await _registered(server, wanted, redirect_uri)


async def _registered(server: AuthorizationServer, wanted: dict[str, object], redirect_uri: str) -> OAuthClient:
    try:
        answer = await exchange(
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
    fields = document(answer.body) or {}
    client_id, secret = fields.get("client_id"), fields.get("client_secret")
    if answer.status not in (200, 201) or not isinstance(client_id, str) or not client_id:
        raise _not_registered(server, answer.status, fields)
    method = str(fields.get("token_endpoint_auth_method") or "")
    ends = fields.get("client_secret_expires_at")
    client = OAuthClient(
        id=client_id,
        secret=secret if isinstance(secret, str) and secret else None,
        method=method or _method(server, secret=bool(secret)),
        redirect_uri=redirect_uri,
        expires_at=float(ends) if isinstance(ends, int | float) and ends > 0 else None,
    )
    if client.method not in ("none", *_WITH_SECRET) or (client.method in _WITH_SECRET and not client.secret):
        raise LoginFailed(
            f"the authorization server {server.issuer} chose an authentication method that Holdfast does not have",
            hint="register Holdfast there by hand, and write the id into `oauth.clientId`",
        )
    return client


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
        if status >= 500
        else "register Holdfast there by hand, and write the id that it gives into `oauth.clientId`",
    )


def _configured(oauth: OAuthSettings, server: AuthorizationServer) -> OAuthClient:
    named = oauth.issuer or (oauth.authorization_url and oauth.token_url)
    if oauth.client_secret is not None and not named:
        issuer = quoted_name(server.issuer, 200)
        raise LoginFailed(
            f"`oauth.clientSecret` would be sent to {issuer}, which the server chose and its definition does not name",
            hint=f'if that is who gave you the secret, add it to the definition: "oauth": {{"issuer": "{issuer}"}}',
        )
    return OAuthClient(
        id=oauth.client_id or "",
        secret=oauth.client_secret,
        method=_method(server, secret=oauth.client_secret is not None),
        origin="configured",
        redirect_uri=oauth.redirect_uri or "",
    )


def _method(server: AuthorizationServer, *, secret: bool) -> str:
    """The first authentication method that the server accepts; without a secret, a native program uses none."""
    if not secret and (not server.methods or "none" in server.methods):
        return "none"
    return next((method for method in _WITH_SECRET if method in server.methods), _WITH_SECRET[0])


def _unknown(grant: Grant) -> bool:
    """Whether the authorization server no longer knows the client."""
    return grant.refused in FORGOTTEN
