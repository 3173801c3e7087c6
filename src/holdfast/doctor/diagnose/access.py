"""Findings for 401 and 403: what was denied, and what would change it; a token's claims are read, not verified."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from holdfast.auth import AuthorizationServer, audience_of, discover, known_client, unverified_claims
from holdfast.config import OAuthSettings, ServerSpec
from holdfast.core import (
    Challenge,
    HttpStatus,
    Login,
    LoginState,
    Statement,
    command_line,
    quoted,
    quoted_name,
    read_challenge,
    statement_of,
)
from holdfast.doctor.case import Case
from holdfast.doctor.report import Edit, Finding, ask_for, finding, on_server, shell
from holdfast.errors import LoginFailed

__all__ = [
    "TokenClaims",
    "authorization_outage",
    "claims_of",
    "configured_token",
    "forbidden",
    "input_edits",
    "is_for",
    "is_outage",
    "is_wrong_host",
    "lacking_inputs",
    "login_scope",
    "login_wanted",
    "named_inputs",
    "unauthorized",
    "wrong_host",
]

_DESCRIPTION = re.compile(r'error_description="([^"]*)"')

ENVOY_SETTING = "the ext_authz filter's `grpc_service.timeout` or `http_service.server_uri.timeout`: 10s"
AGENTGATEWAY_SETTING = (
    "`extAuthz.timeout: 10s` up to version 0.12, `extAuthz.policies.http.requestTimeout: 10s` from 1.0 on"
)


async def unauthorized(case: Case, seen: HttpStatus) -> Finding:
    """The finding for a 401."""
    challenge = read_challenge(_challenge(seen))
    if seen.login is not None and (challenge.made or not seen.credentials_sent):
        return await _login(case, challenge, seen.login)
    if challenge.wants_scope:
        return _scope(case, challenge)
    if not seen.credentials_sent:
        return _needed(case)
    claims = claims_of(configured_token(case.spec))
    if claims is not None and claims.expires is not None and claims.expires < datetime.now(UTC):
        return _replace(case, "HF-AUTH-EXPIRED", f"its token expired at {claims.expires:%Y-%m-%d %H:%M} UTC")
    if claims is not None and not is_for(claims, case.spec.url):
        audience = ", ".join(quoted_name(one) for one in claims.audience[:3])
        return _replace(case, "HF-AUTH-AUDIENCE", f"its token is for {audience}, not for this server")
    said = _description(seen)
    if "expired" in said.lower():
        return _replace(case, "HF-AUTH-EXPIRED", f"the server says that its token has expired ({said})")
    if "audience" in said.lower():
        return _replace(case, "HF-AUTH-AUDIENCE", f"the server says that its token is for another server ({said})")
    words = "the server does not accept the credentials in its `headers` (HTTP 401)"
    return _replace(case, "HF-AUTH-REJECTED", words + (f": {said}" if said else ""))


async def _login(case: Case, challenge: Challenge, login: Login) -> Finding:
    if challenge.wants_scope:
        return login_scope(challenge, login)
    # Many servers that accept only a key also send a `Bearer` challenge.
    if login.state is LoginState.NONE and not challenge.resource_metadata and case.spec.oauth == OAuthSettings():
        return _needed(case, login)
    return await login_wanted(case, challenge, login)


def forbidden(case: Case, seen: HttpStatus) -> Finding:
    """The finding for a 403 that is not an outage."""
    challenge = read_challenge(_challenge(seen))
    if challenge.wants_scope:
        return login_scope(challenge, seen.login) if seen.login is not None else _scope(case, challenge)
    body = quoted(seen.body, most=160)
    if statement_of(seen) is Statement.NO_DECISION:
        return _unclear(case, seen.body.strip())
    if is_wrong_host(seen):
        return wrong_host(case, seen)
    who = "your credentials are" if seen.credentials_sent else "a request without credentials is"
    text = "ask the operator of the server, or of the gateway in front of it, for access; then this succeeds"
    words = f"access was denied: {who} not allowed to use it (HTTP 403{f': {body}' if body else ''})"
    return finding("HF-DENIED", words, text, on_server("doctor", case.id))


def is_wrong_host(seen: HttpStatus) -> bool:
    """Whether a server refuses the host in the URL, as a protection against web pages under a foreign name."""
    return seen.status in (403, 421) and _WRONG_HOST.search(seen.body) is not None


def wrong_host(case: Case, seen: HttpStatus) -> Finding:
    """The finding for a server that accepts requests for another host name only."""
    host = urlsplit(case.spec.url).hostname or ""
    said = quoted(seen.body, most=160)
    words = f"the server refuses requests for the host {quoted_name(host)} (HTTP {seen.status}: {said})"
    if host in ("127.0.0.1", "::1"):
        url = urlsplit(case.spec.url)
        other = url._replace(netloc="localhost" + (f":{url.port}" if url.port else ""))
        text = "write `localhost`, as such servers expect"
        return finding("HF-DENIED-HOST", words, text, edits=case.url_edit(other.geturl(), certain=False))
    text = (
        "write the host name that the server accepts into the URL, or allow this one at the server; then this succeeds"
    )
    return finding("HF-DENIED-HOST", words, text, on_server("doctor", case.id))


_WRONG_HOST = re.compile(r"(?i)\baccess is only allowed at\b|\binvalid host\b|\bhost (?:header )?(?:is )?not allowed\b")


def is_outage(seen: HttpStatus) -> bool:
    """Whether a gateway reports an outage of its authorization service, also with a status other than 403."""
    return seen.status in (403, 500, 502, 503, 504) and statement_of(seen) is Statement.OUTAGE


def authorization_outage(case: Case, seen: HttpStatus) -> Finding:
    """The finding for a gateway that could not reach its authorization service."""
    body = quoted(seen.body)
    words = f"the gateway could not complete its authorization check (HTTP {seen.status}: {body}); this is not a denial"
    if _is_envoy(seen):
        text = f"raise the gateway's authorization timeout: {ENVOY_SETTING}; then this succeeds"
        return finding("HF-AUTH-OUTAGE", words, text, on_server("doctor", case.id))
    text = (
        f"raise the gateway's authorization timeout: {AGENTGATEWAY_SETTING}; this command writes such a configuration"
    )
    return finding("HF-AUTH-OUTAGE", words, text, command_line("gateway", "render", "--ext-auth-timeout", "10s"))


def _unclear(case: Case, body: str) -> Finding:
    gateway = "an Envoy gateway" if not body else "AgentGateway"
    switch = (
        "`status_on_error: {code: ServiceUnavailable}` in its ext_authz filter"
        if not body
        else "`failureMode: {denyWithStatus: 503}` in its extAuthz policy"
    )
    words = f"access was denied (HTTP 403{f': {quoted(body)}' if body else ', no reason given'})"
    text = (
        f"ask for access; if every user is denied, {gateway} may report an authorization outage as this 403: "
        f"set {switch}, and raise its timeout ({AGENTGATEWAY_SETTING if body else ENVOY_SETTING})"
    )
    return finding("HF-DENIED-UNCLEAR", words, text, on_server("doctor", case.id))


def _needed(case: Case, login: Login | None = None) -> Finding:
    name = _variable_for(case.id)
    instead = f"; if it takes a login instead, run `{login.command}`" if login is not None else ""
    return finding(
        "HF-AUTH-NEEDED",
        "the server asks for credentials and none are configured (HTTP 401)",
        f"put its token into a variable (this command waits for you to paste it) and use it in the definition{instead}",
        ask_for(name),
        edits=(case.edit("headers.Authorization", f"Bearer ${{env:{name}}}"),),
    )


def _replace(case: Case, code: str, words: str, *, kind: str = "a new token") -> Finding:
    variables = case.definition.expansion.sources((*case.definition.path, "headers"))
    if variables:
        text = f"get {kind} and put it into {variables[0]} (this command waits for you to paste it)"
        return finding(code, words, text, ask_for(variables[0]))
    name = _variable_for(case.id)
    text = f"get {kind}, put it into a variable (this command waits for you to paste it), and use it in the definition"
    edits = (case.edit("headers.Authorization", f"Bearer ${{env:{name}}}"),)
    return finding(code, words, text, ask_for(name), edits=edits)


def _scope(case: Case, challenge: Challenge) -> Finding:
    scope = " ".join(challenge.scope)
    named = f"the scope {quoted_name(scope, 200, ticks=True)}" if scope else "a scope"
    words = f"its token lacks {named}, which the server requires"
    return _replace(case, "HF-AUTH-SCOPE", words, kind=f"a token with {named}")


def _challenge(seen: HttpStatus) -> str:
    return seen.headers.get("www-authenticate", "")


def _description(seen: HttpStatus) -> str:
    found = _DESCRIPTION.search(_challenge(seen))
    return quoted(found[1], most=120) if found else ""


def _is_envoy(seen: HttpStatus) -> bool:
    return seen.headers.get("server", "").lower() == "envoy"


def _variable_for(server: str) -> str:
    name = re.sub(r"[^A-Z0-9]+", "_", server.upper()).strip("_") or "SERVER"
    return f"{'_' if name[0].isdigit() else ''}{name}_TOKEN"


ASKING_SECONDS = 5.0
"""The longest time for login discovery in seconds; the server's own deadline may end earlier."""

REDIRECT = "http://localhost:8765/callback"
"""A redirect URI that a native app can register."""


async def login_wanted(case: Case, challenge: Challenge, login: Login) -> Finding:
    """The finding for a server that needs a login, or does not accept the present one."""
    match login.state:
        case LoginState.NONE:
            return await _first_login(case, challenge, login)
        case LoginState.GOOD:
            words = "the server does not accept the login (HTTP 401)"
            return finding("HF-AUTH-REJECTED", words, "log in again", login.command)
        case LoginState.EXPIRED | LoginState.REFUSED:
            words = f"its login has ended (HTTP 401): {case.learned.login_ended or 'it cannot be renewed'}"
            return finding("HF-LOGIN-ENDED", words, "log in again", login.command)


def login_scope(challenge: Challenge, login: Login) -> Finding:
    """The finding for a valid login that lacks a scope."""
    wanted = " ".join(challenge.scope)
    named = f"the scope {quoted_name(wanted, 200, ticks=True)}" if wanted else "a scope"
    words = f"its login lacks {named}, which the server requires"
    paste = challenge.scope_to_paste
    command = f"{login.command} {shell('--scope', paste)}" if paste else login.command
    return finding("HF-AUTH-SCOPE", words, "log in again with that scope; scopes granted before are kept", command)


async def _first_login(case: Case, challenge: Challenge, login: Login) -> Finding:
    words = "the server asks for a login, and there is none (HTTP 401)"
    server: AuthorizationServer | None = None
    with anyio.move_on_after(min(ASKING_SECONDS, case.left)):
        try:
            server = (await discover(case.spec, challenge)).server
        except LoginFailed as exc:
            text = exc.hint or "ask the server's operator how to log in, then log in"
            return finding("HF-AUTH-NEEDED", f"{words}; {exc.message}", text, login.command)
    missing = dict(await _missing_inputs(case, server)) if server is not None else {}
    if not missing:
        return finding("HF-AUTH-NEEDED", words, "log in", login.command)
    words = f"the server asks for a login, and its definition lacks {named_inputs(missing)}"
    it = "it" if len(missing) == 1 else "them"
    text = f"ask the operator of the authorization server for {it}, write {it} into the definition, then log in"
    return finding("HF-LOGIN-INPUT", words, text, login.command, edits=input_edits(case, missing))


CLIENT_ID = "the id that Holdfast was registered with"
DEVICE = "deviceAuthorizationUrl"


def lacking_inputs(oauth: OAuthSettings) -> dict[str, str]:
    """The keys of ``oauth`` that a definition lacks for every authorization server, each with an example.

    A client that was registered by hand has a registered redirect URI. Endpoints that a definition names are all that
    is used: where it names some, discovery is not asked for the others.
    """
    return dict(_lacking(oauth)) if oauth.enabled else {}


def _lacking(oauth: OAuthSettings) -> Iterator[tuple[str, str]]:
    named = oauth.authorization_url or oauth.token_url
    if named and not oauth.client_id and not oauth.client_metadata_url:
        yield "clientId", CLIENT_ID
    by_device_only = oauth.device_authorization_url and not oauth.authorization_url
    if (named or oauth.client_id) and oauth.redirect_uri is None and not by_device_only:
        yield "redirectUri", REDIRECT
    if named is None:
        return
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(named))
    if not oauth.authorization_url and not oauth.device_authorization_url:
        yield "authorizationUrl", f"{origin}/authorize"
    if not oauth.token_url:
        yield "tokenUrl", f"{origin}/token"
    if not oauth.device_authorization_url:
        yield DEVICE, f"{origin}/device"


def named_inputs(missing: Mapping[str, str]) -> str:
    """The missing keys as text."""
    needed = [f"`oauth.{key}`" for key in missing if key != DEVICE or "authorizationUrl" in missing]
    device = f"`oauth.{DEVICE}`, which a login with --device needs"
    if DEVICE in missing and "authorizationUrl" not in missing:
        return f"{', '.join(needed)}, and {device}" if needed else device
    return ", ".join(needed)


def input_edits(case: Case, missing: Mapping[str, str]) -> tuple[Edit, ...]:
    """The edits that write an example for each missing key. Only a person knows the values."""
    return tuple(case.edit(f"oauth.{key}", example, certain=False) for key, example in missing.items())


async def _missing_inputs(case: Case, server: AuthorizationServer) -> list[tuple[str, str]]:
    """The missing keys of ``oauth`` that discovery cannot find, each with an example."""
    grants = await anyio.to_thread.run_sync(case.tools.logins.store.grants, abandon_on_cancel=True)
    known = known_client(case.spec.oauth, server, grants, time.time()) is not None
    return list(_inputs(case, server, registers=known or bool(server.registration_endpoint)))


def _inputs(case: Case, server: AuthorizationServer, *, registers: bool) -> Iterator[tuple[str, str]]:
    lacking = lacking_inputs(case.spec.oauth)
    if not registers:
        yield "clientId", CLIENT_ID
    unnamed = "redirectUri" in lacking or (not registers and case.spec.oauth.redirect_uri is None)
    if unnamed and server.authorization_endpoint:
        yield "redirectUri", REDIRECT
    if not server.authorization_endpoint and not server.device_authorization_endpoint:
        yield "authorizationUrl", f"{server.issuer}/authorize"
        yield "tokenUrl", server.token_endpoint  # one endpoint of the definition counts only with the other
        yield DEVICE, f"{server.issuer}/device"
    elif DEVICE in lacking and not server.device_authorization_endpoint:
        yield DEVICE, lacking[DEVICE]


@dataclass(frozen=True, kw_only=True)
class TokenClaims:
    """The claims of a JSON web token."""

    expires: datetime | None = None
    audience: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


def configured_token(spec: ServerSpec) -> str:
    """The bearer token in the configured headers; empty if there is none."""
    headers = spec.headers if isinstance(spec.headers, Mapping) else {}
    value = next((value for name, value in headers.items() if name.lower() == "authorization"), "")
    kind, _, token = value.strip().partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def claims_of(token: str) -> TokenClaims | None:
    """The claims of a token; None if it is not a readable JSON web token."""
    claims = unverified_claims(token)
    if claims is None:
        return None
    expires = claims.get("exp")
    try:
        return TokenClaims(
            expires=datetime.fromtimestamp(float(expires), UTC) if isinstance(expires, int | float) else None,
            audience=audience_of(claims),
            scopes=tuple(str(claims.get("scope") or " ".join(_texts(claims.get("scp")))).split()),
        )
    except (ValueError, OverflowError, OSError):
        return None


def is_for(claims: TokenClaims, url: str) -> bool:
    """Whether a token's audience can be the server at ``url``; an audience that is not a URL can be any server."""
    if not claims.audience:
        return True
    here = urlsplit(url)
    return any(not _is_address(audience) or urlsplit(audience).netloc == here.netloc for audience in claims.audience)


def _is_address(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
