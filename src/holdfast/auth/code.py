"""The authorization code flow without I/O: the address for the browser, and the checks of its answer."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from mcp.client.auth import PKCEParameters

from holdfast.auth.discovery import AuthorizationServer
from holdfast.auth.grant import OAuthClient
from holdfast.core.redact import plain
from holdfast.errors import LoginFailed

__all__ = ["AuthorizationRequest", "answer_in", "authorization_request", "code_in"]


@dataclass(frozen=True, kw_only=True)
class AuthorizationRequest:
    """One authorization request: the address for the browser, and what the answer must contain."""

    url: str = field(repr=False)
    redirect_uri: str
    issuer: str
    names_itself: bool
    state: str = field(repr=False)
    verifier: str = field(repr=False)


def authorization_request(
    server: AuthorizationServer, client: OAuthClient, *, resource: str, scope: Sequence[str], redirect_uri: str
) -> AuthorizationRequest:
    """A new authorization request, with a state and a verifier of its own."""
    if not server.authorization_endpoint:
        raise LoginFailed(
            f"the authorization server {server.issuer} has no page to log in at",
            hint="use `--device`" if server.device_authorization_endpoint else "",
        )
    pkce, state = PKCEParameters.generate(), secrets.token_urlsafe(32)
    fields = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": pkce.code_challenge,
        "code_challenge_method": "S256",
        "resource": resource,
    }
    if scope:
        fields["scope"] = " ".join(scope)
    if "offline_access" in scope:
        fields["prompt"] = "consent"  # OpenID Connect gives no refresh token without it
    return AuthorizationRequest(
        url=_with_query(server.authorization_endpoint, fields),
        redirect_uri=redirect_uri,
        issuer=server.issuer,
        names_itself=server.names_itself,
        state=state,
        verifier=pkce.code_verifier,
    )


def answer_in(address: str) -> dict[str, str]:
    """The parameters in the address that a browser ended up at; none, if it is no address."""
    try:
        return dict(parse_qsl(urlsplit(address.strip()).query))
    except ValueError:
        return {}


def code_in(answer: Mapping[str, str], asked: AuthorizationRequest) -> str:
    """The code, if the answer belongs to our request and its issuer. Raises ``LoginFailed``."""
    if not answer:
        raise LoginFailed(
            "that address contains no answer",
            hint="paste the whole address that the browser ended up at after the login, with all that follows the `?`",
        )
    if not secrets.compare_digest(answer.get("state", "").encode(), asked.state.encode()):
        raise LoginFailed(
            "the browser returned an answer to another request (its `state` is not ours): Holdfast ignored it",
            hint="log in again, and use only the page that it opens. If it happens again, do not trust the server",
        )
    _check_issuer(answer.get("iss"), asked)
    if "error" in answer:
        raise LoginFailed(*_refusal(answer))
    code = answer.get("code", "")
    if not code:
        raise LoginFailed("the browser returned an answer without a code", hint="log in again")
    return code


def _check_issuer(issuer: str | None, asked: AuthorizationRequest) -> None:
    """RFC 9207: an answer by another authorization server than the one asked is an attack."""
    if issuer is None and not asked.names_itself:
        return
    if issuer != asked.issuer:
        by = f"by `{plain(issuer)[:200]}`" if issuer is not None else "without an issuer"
        raise LoginFailed(
            f"the answer came {by}, but `{asked.issuer}` was asked (its `iss` is wrong): Holdfast ignored it",
            hint="this can be an attack. Do not try again before the server's operator has checked it",
        )


def _refusal(answer: Mapping[str, str]) -> tuple[str]:
    said = plain(answer.get("error_description", ""))[:200]
    if answer["error"] == "access_denied":
        return (f"access was denied{f': {said}' if said else ', at the page that asked for it'}",)
    return (f"the authorization server answered `{plain(answer['error'])[:80]}`{f': {said}' if said else ''}",)


def _with_query(url: str, fields: Mapping[str, str]) -> str:
    parts = urlsplit(url)
    query = "&".join(part for part in (parts.query, urlencode(fields)) if part)
    return urlunsplit(parts._replace(query=query, fragment=""))
