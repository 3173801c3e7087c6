"""401 and 403: who was refused what, and what would change it."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from holdfast.core.classify import is_outage_body
from holdfast.core.evidence import HttpStatus
from holdfast.doctor.case import Case
from holdfast.doctor.findings import Finding, finding, shell
from holdfast.doctor.tokens import claims_of, configured_token, is_for

__all__ = ["authorization_outage", "forbidden", "is_outage", "unauthorized"]

_PARAMETER = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')

ENVOY_KNOB = "the ext_authz filter's `grpc_service.timeout` or `http_service.server_uri.timeout`: 10s"
AGENTGATEWAY_KNOB = (
    "`extAuthz.timeout: 10s` up to version 0.12, `extAuthz.policies.http.requestTimeout: 10s` from 1.0 on"
)


def unauthorized(case: Case, seen: HttpStatus) -> Finding:
    """The finding for a 401."""
    challenge = _challenge(seen)
    if challenge.get("error") == "insufficient_scope":
        return _scope(case, challenge.get("scope", ""))
    if not seen.credentials_sent:
        return _needed(case)
    claims = claims_of(configured_token(case.spec))
    if claims is not None and claims.expires is not None and claims.expires < datetime.now(UTC):
        return _replace(case, "HF-AUTH-EXPIRED", f"its token expired at {claims.expires:%Y-%m-%d %H:%M} UTC")
    if claims is not None and not is_for(claims, case.spec.url):
        audience = ", ".join(claims.audience[:3])
        return _replace(case, "HF-AUTH-AUDIENCE", f"its token is for {audience}, not for this server")
    said = challenge.get("error_description", "")
    if "expired" in said.lower():
        return _replace(case, "HF-AUTH-EXPIRED", f"the server says that its token expired ({said[:120]})")
    if "audience" in said.lower():
        return _replace(case, "HF-AUTH-AUDIENCE", f"the server says that its token is for another ({said[:120]})")
    words = "the server does not accept the credentials in its `headers` (HTTP 401)"
    return _replace(case, "HF-AUTH-REJECTED", words + (f": {said[:120]}" if said else ""))


def forbidden(case: Case, seen: HttpStatus) -> Finding:
    """The finding for a 403 that is no outage."""
    challenge = _challenge(seen)
    if challenge.get("error") == "insufficient_scope":
        return _scope(case, challenge.get("scope", ""))
    body = " ".join(seen.body.split())[:160]
    if not body or body == "external authorization failed":
        return _unclear(case, body)
    who = "your credentials are" if seen.credentials_sent else "a request without credentials is"
    text = "ask whoever runs the server, or the gateway before it, for access; then this is well"
    words = f"access was denied: {who} not allowed to use it (HTTP 403: {body})"
    return finding("HF-DENIED", words, text, shell("holdfast", "doctor", case.id))


def is_outage(seen: HttpStatus) -> bool:
    """Whether a gateway says that its authorization service was out: also where it gives that a status of its own."""
    return seen.status in (403, 500, 502, 503, 504) and is_outage_body(seen.body)


def authorization_outage(seen: HttpStatus) -> Finding:
    """The finding for a gateway that could not ask."""
    knob = ENVOY_KNOB if _is_envoy(seen) else AGENTGATEWAY_KNOB
    body = " ".join(seen.body.split())
    words = f"the gateway could not complete its authorization check (HTTP {seen.status}: {body}): no denial"
    text = f"raise the gateway's authorization timeout: {knob}; `holdfast gateway render` writes it for you"
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
        f"ask for access; if everyone is refused, {gateway} may hide an authorization outage behind this 403: "
        f"set {switch}, and raise its timeout ({AGENTGATEWAY_KNOB if body else ENVOY_KNOB})"
    )
    return finding("HF-DENIED-UNCLEAR", words, text, shell("holdfast", "doctor", case.id))


def _needed(case: Case) -> Finding:
    name = _variable_for(case.id)
    return finding(
        "HF-AUTH-NEEDED",
        "the server asks for credentials and none are configured (HTTP 401)",
        "put a token into a variable and name it in the definition",
        f"export {name}='its token'",
        edits=(case.edit("headers.Authorization", f"Bearer ${{env:{name}}}"),),
    )


def _replace(case: Case, code: str, words: str, *, kind: str = "a new token") -> Finding:
    variables = case.definition.expansion.sources((*case.definition.path, "headers"))
    if variables:
        command = f"export {variables[0]}='{kind}'"
        return finding(code, words, f"get {kind} and put it into {variables[0]}", command)
    name = _variable_for(case.id)
    text = f"get {kind}, put it into a variable, and name that in the definition"
    edits = (case.edit("headers.Authorization", f"Bearer ${{env:{name}}}"),)
    return finding(code, words, text, f"export {name}='{kind}'", edits=edits)


def _scope(case: Case, scope: str) -> Finding:
    words = f"its token lacks {f'the scope `{scope}`' if scope else 'a scope'}, which the server wants"
    return _replace(case, "HF-AUTH-SCOPE", words, kind=f"a token with {scope or 'that scope'}")


def _challenge(seen: HttpStatus) -> dict[str, str]:
    """The parameters of ``WWW-Authenticate``."""
    header = seen.headers.get("www-authenticate", "")
    return {name.lower(): quoted or bare for name, quoted, bare in _PARAMETER.findall(header)}


def _is_envoy(seen: HttpStatus) -> bool:
    return seen.headers.get("server", "").lower() == "envoy"


def _variable_for(server: str) -> str:
    name = re.sub(r"[^A-Z0-9]+", "_", server.upper()).strip("_") or "SERVER"
    return f"{'_' if name[0].isdigit() else ''}{name}_TOKEN"
