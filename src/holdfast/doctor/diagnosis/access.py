"""Findings for 401 and 403: what was denied, and what would change it."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from holdfast.config.spec import OAuthSettings
from holdfast.core.challenge import Challenge, read_challenge
from holdfast.core.classify import is_outage_body
from holdfast.core.evidence import HttpStatus, Login, LoginState
from holdfast.doctor.case import Case
from holdfast.doctor.diagnosis.logins import login_scope, login_wanted
from holdfast.doctor.findings import Finding, ask_for, finding, shell
from holdfast.doctor.tokens import claims_of, configured_token, is_for

__all__ = ["authorization_outage", "forbidden", "is_outage", "unauthorized"]

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
        audience = ", ".join(claims.audience[:3])
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
    body = " ".join(seen.body.split())[:160]
    if not body or body == "external authorization failed":
        return _unclear(case, body)
    who = "your credentials are" if seen.credentials_sent else "a request without credentials is"
    text = "ask the operator of the server, or of the gateway in front of it, for access; then this succeeds"
    words = f"access was denied: {who} not allowed to use it (HTTP 403: {body})"
    return finding("HF-DENIED", words, text, shell("holdfast", "doctor", case.id))


def is_outage(seen: HttpStatus) -> bool:
    """Whether a gateway reports an outage of its authorization service, also with a status other than 403."""
    return seen.status in (403, 500, 502, 503, 504) and is_outage_body(seen.body)


def authorization_outage(case: Case, seen: HttpStatus) -> Finding:
    """The finding for a gateway that could not reach its authorization service."""
    body = " ".join(seen.body.split())
    words = f"the gateway could not complete its authorization check (HTTP {seen.status}: {body}); this is not a denial"
    if _is_envoy(seen):
        text = f"raise the gateway's authorization timeout: {ENVOY_SETTING}; then this succeeds"
        return finding("HF-AUTH-OUTAGE", words, text, shell("holdfast", "doctor", case.id))
    text = (
        f"raise the gateway's authorization timeout: {AGENTGATEWAY_SETTING}; this command writes such a configuration"
    )
    return finding("HF-AUTH-OUTAGE", words, text, "holdfast gateway render --ext-auth-timeout 10s")


def _unclear(case: Case, body: str) -> Finding:
    gateway = "an Envoy gateway" if not body else "AgentGateway"
    switch = (
        "`status_on_error: {code: ServiceUnavailable}` in its ext_authz filter"
        if not body
        else "`failureMode: {denyWithStatus: 503}` in its extAuthz policy"
    )
    words = f"access was denied (HTTP 403{f': {body}' if body else ', no reason given'})"
    text = (
        f"ask for access; if every user is denied, {gateway} may report an authorization outage as this 403: "
        f"set {switch}, and raise its timeout ({AGENTGATEWAY_SETTING if body else ENVOY_SETTING})"
    )
    return finding("HF-DENIED-UNCLEAR", words, text, shell("holdfast", "doctor", case.id))


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
    words = f"its token lacks {f'the scope `{scope}`' if scope else 'a scope'}, which the server requires"
    return _replace(case, "HF-AUTH-SCOPE", words, kind=f"a token with {scope or 'that scope'}")


def _challenge(seen: HttpStatus) -> str:
    return seen.headers.get("www-authenticate", "")


def _description(seen: HttpStatus) -> str:
    found = _DESCRIPTION.search(_challenge(seen))
    return " ".join(found[1].split())[:120] if found else ""


def _is_envoy(seen: HttpStatus) -> bool:
    return seen.headers.get("server", "").lower() == "envoy"


def _variable_for(server: str) -> str:
    name = re.sub(r"[^A-Z0-9]+", "_", server.upper()).strip("_") or "SERVER"
    return f"{'_' if name[0].isdigit() else ''}{name}_TOKEN"
