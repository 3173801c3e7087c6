"""Turns the evidence of a dial into a finding: why a server cannot be used, and what to do about it.

Theory of operation. The type of evidence decides (``diagnose``), as it does in ``core.classify``: mypy shows the
missing case of a new type. Failures of the network are in ``network_faults``, those of a command and its process in
``process_exits``. Here are those of an answer: a status, a redirect, an answer that is not MCP, an endpoint at another
URL; then 401 and 403: what was denied, and what would change it.

Where two causes look alike, a second connection tells them apart: does the port speak TLS, does another path answer,
what does the authorization server offer? It keeps the server's deadline, has a shorter one of its own, and sends
credentials only where the definition sends them. What it does not learn in time is left out: the first finding still
stands.

An edit is ``certain`` if pasting it can be nothing but right (https where the server redirects to https); ``--fix``
writes only those without a question. Where the edit is one of two answers (http instead of https, another host), a
person decides.

What must never happen: a text of a server decides what is done, or is shown unquoted (MSG-11); a token's claims are
believed, because nothing verifies them here: they only explain a refusal that already happened; a 403 is called a
denial where the gateway says that it could not ask (``is_outage``).
"""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import cast
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from holdfast.auth import AuthorizationServer, audience_of, discover, known_client, unverified_claims
from holdfast.config import OAuthSettings, ServerSpec, Transport
from holdfast.core import (
    BadConfig,
    Challenge,
    CommandUnusable,
    CredentialRefused,
    CredentialsUnavailable,
    Evidence,
    HttpStatus,
    Login,
    LoginState,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    OutOfDescriptors,
    OverBound,
    PlainHttpRefused,
    ProcessExit,
    Redirected,
    RpcError,
    Statement,
    TimedOut,
    TlsFailure,
    TokenNotRenewed,
    ToldByHub,
    Unexpected,
    classify_evidence,
    command_line,
    quoted,
    quoted_name,
    read_challenge,
    statement_of,
    wants_password,
)
from holdfast.doctor import network_faults as network, process_exits
from holdfast.doctor.case import SAME_ENVIRONMENT, Case, Route, open_definition, probe
from holdfast.doctor.network_faults import speaks_tls
from holdfast.doctor.report import Edit, Finding, as_told, ask_for, finding, shell
from holdfast.errors import LoginFailed
from holdfast.wire import NOT_HTTP

__all__ = [
    "configured_token",
    "diagnose",
    "expires_at",
    "input_edits",
    "lacking_inputs",
    "named_inputs",
    "route_failed",
]


async def diagnose(case: Case, seen: Evidence) -> Finding:  # noqa: PLR0912 - one case for each type of evidence
    """The finding for the evidence of a dial."""
    match seen:
        case HttpStatus():
            return await status(case, seen)
        case NetworkFailure() if case.transport == "hub" and not seen.stood:
            return finding(
                "HF-BEHIND-HUB",
                f"the hub that runs it cannot be reached: {classify_evidence(seen).reason}",
                "start that hub, or correct its address in `hub`",
                case.again,
            )
        case NetworkFailure():
            return await _network(case, seen)
        case TlsFailure() if case.learned.route is not None:
            return await network.unverified(case, case.learned.route, seen)
        case TimedOut():
            return network.silent(case, seen)
        case Redirected():
            return redirected(case, seen)
        case PlainHttpRefused():
            return finding(
                "HF-PLAIN-CREDENTIALS",
                f"its headers would be sent unencrypted to {case.host}, so no request was sent",
                "use https; or, if the network is trusted, set `allowPlainHttp` to true instead",
                edits=case.url_edit(case.url_with(scheme="https"), certain=False),
            )
        case NotMcp():
            return await not_mcp(case, seen)
        case OverBound():
            return bound(case, seen)
        case RpcError():
            return as_told("HF-RPC-ERROR", seen, "look at the server's log, then try again", case.again)
        case CommandUnusable():
            return process_exits.unusable(case, seen)
        case ProcessExit():
            return await process_exits.ended(case, seen)
        case BadConfig():
            return as_told("HF-DEFINITION", seen, seen.hint or "correct the definition", *open_definition(case))
        case TokenNotRenewed():
            text = "the login is still valid: try again when the authorization server answers"
            return as_told("HF-LOGIN-UNREACHABLE", seen, text, case.again)
        case CredentialRefused():
            return as_told("HF-AUTH-REJECTED", seen, seen.hint, case.again)
        case OutOfDescriptors():
            words = f"this machine allows {seen.limit} open files per process, and all are in use; it was not asked"
            text = "raise the limit in this shell, and check again"
            return finding("HF-DESCRIPTORS", words, text, "ulimit -n 65536", case.again)
        case ToldByHub():
            text = seen.hint or "ask the hub that runs it: run doctor there"
            return finding("HF-BEHIND-HUB", f"the hub that runs it says: {seen.reason}", text, case.again)
        case CredentialsUnavailable() | TlsFailure() | Unexpected():
            return _unexpected(case, seen)


def route_failed(case: Case, route: Route, seen: Evidence) -> Finding:
    """The finding for a connection that could not be made."""
    match seen:
        case NetworkFailure(fault=NetworkFault.REFUSED):
            return network.not_reached(case, route, "refused")
        case NetworkFailure(fault=NetworkFault.NAME_RESOLUTION):
            return network.not_reached(case, route, "no name")
        case TimedOut():
            return network.not_reached(case, route, "no answer", after=seen.after)
        case _:
            return network.not_reached(case, route, "no route")


async def _network(case: Case, seen: NetworkFailure) -> Finding:
    if case.spec.transport == "stdio":
        return network.cut(case, seen)
    route = case.learned.route
    if route is not None and route.proxy and not seen.stood:
        return network.proxied(case, route, seen.detail or "it refused to connect", code="HF-PROXY-REFUSED")
    if seen.stood or route is None:
        # A TLS port breaks a connection that sends plain text.
        return await _tls_port(case) or network.cut(case, seen)
    return route_failed(case, route, seen)


def _unexpected(case: Case, seen: Evidence) -> Finding:
    text = "please report this as a bug in Holdfast, with the output of this command"
    command = f"HOLDFAST_DEBUG=1 {case.again}"
    error = case.learned.probe.error if case.learned.probe is not None else None
    # Where it failed is for a developer of Holdfast.
    trace = "".join(traceback.format_exception(error)) if error and os.environ.get("HOLDFAST_DEBUG") else ""
    return as_told("HF-UNEXPECTED", seen, text, command, detail=trace)


_HTTP_TO_TLS_PORT = "plain HTTP request was sent to HTTPS port"


async def status(case: Case, seen: HttpStatus) -> Finding:
    """The finding for an error status."""
    if is_outage(seen):
        return authorization_outage(case, seen)
    match seen.status:
        case 401:
            return await unauthorized(case, seen)
        case 403:
            return forbidden(case, seen)
        case 421 if is_wrong_host(seen):
            return wrong_host(case, seen)
        case 404 | 405 | 406 | 410 | 415:
            why = f"it answered HTTP {seen.status} at {_path(case)}"
            endpoint = await find_endpoint(case)
            return wrong_endpoint(case, endpoint, why) if endpoint is not None else no_endpoint(case, why)
        case 407 if case.learned.route is not None:
            return network.proxied(case, case.learned.route, "it asks for credentials (407)", code="HF-PROXY-LOGIN")
        case 429:
            wait = f"sleep {seen.retry_after:.0f} && " if seen.retry_after else ""
            return as_told("HF-RATE", seen, "wait, then try again", wait + case.again)
        case code if code >= 500:
            return _not_ready(case, seen)
    if _HTTP_TO_TLS_PORT in seen.body:
        return https_meant(case, "the port speaks TLS, and `url` says http")
    if (endpoint := await find_endpoint(case)) is not None:
        return wrong_endpoint(case, endpoint, f"it answered HTTP {seen.status} at {_path(case)}")
    return as_told(
        "HF-STATUS",
        seen,
        "compare `url` and `headers` with the server's documentation; this command opens its definition",
        *open_definition(case),
    )


def redirected(case: Case, seen: Redirected) -> Finding:
    """The finding for a redirect that is not followed."""
    here, there = urlsplit(case.spec.url), urlsplit(seen.location)
    if here.scheme == "http" and there.scheme == "https" and here.hostname == there.hostname:
        return finding(
            "HF-HTTPS-MEANT",
            f"it redirects every request to https (HTTP {seen.status})",
            "write https",
            edits=case.url_edit(seen.location),
        )
    where = f"{quoted_name(seen.location, 200)} (HTTP {seen.status})"
    if here.scheme == "https" and there.scheme == "http" and here.hostname == there.hostname:
        words = f"it redirects to plain http, {where}: it does not know that a proxy before it ends TLS"
        meant = there._replace(scheme="https", netloc=here.netloc).geturl()
        if meant == case.spec.url:
            return finding("HF-REDIRECT", words, "have that proxy send `X-Forwarded-Proto: https`", case.again)
        return finding("HF-REDIRECT", words, "write that path with https", edits=case.url_edit(meant))
    return finding(
        "HF-REDIRECT",
        f"it redirects to {where}, and credentials do not follow a redirect",
        "if that is the right server, write its address",
        edits=case.url_edit(seen.location, certain=False),
    )


async def not_mcp(case: Case, seen: NotMcp) -> Finding:
    """The finding for a peer that speaks something else."""
    if seen.fault is NotMcpFault.VERSION:
        return as_told(
            "HF-VERSION",
            seen,
            "update the server or Holdfast; this command shows the version of Holdfast",
            command_line("--version"),
        )
    if seen.fault in (NotMcpFault.BAD_RESULT, NotMcpFault.BROKEN_HTTP, NotMcpFault.CURSOR_REPEATS):
        return as_told(
            "HF-PROTOCOL",
            seen,
            "this is a bug in the server: update it, or report the bug to its authors",
            case.again,
        )
    if case.spec.transport == "stdio":
        return as_told(
            "HF-STDOUT-ONLY",
            seen,
            "it is not an MCP server, or it needs an argument: compare `command` and `args` with its documentation; "
            f"this command shows its help, {SAME_ENVIRONMENT}",
            *case.by_hand("--help"),
        )
    why = f"the answer at {_path(case)} is not MCP" + (f" ({seen.detail})" if seen.detail else "")
    if seen.detail == NOT_HTTP and (found := await _tls_port(case)) is not None:
        return found
    if (endpoint := await find_endpoint(case)) is not None:
        return wrong_endpoint(case, endpoint, why)
    return finding(
        "HF-NOT-MCP",
        why,
        "correct `url`: look up the address in the server's documentation; this command shows the answer",
        shell("curl", "-i", case.target),
    )


def bound(case: Case, seen: OverBound) -> Finding:
    """The finding for an exceeded limit."""
    if not seen.setting:
        return as_told("HF-BOUND", seen, seen.hint, case.again)
    key = seen.setting.removeprefix("holdfast.")
    return as_told("HF-BOUND", seen, seen.hint, edits=(case.setting(key, 4 * seen.limit),))


def https_meant(case: Case, words: str) -> Finding:
    """The finding for http at a port that speaks https."""
    return finding("HF-HTTPS-MEANT", words, "write https", edits=case.url_edit(case.url_with(scheme="https")))


async def _tls_port(case: Case) -> Finding | None:
    route = case.learned.route
    if route is None or route.tls or route.proxy or not await speaks_tls(route):
        return None
    return https_meant(case, f"{route} speaks TLS, and `url` says http")


def _not_ready(case: Case, seen: HttpStatus) -> Finding:
    route = case.learned.route
    if route is not None and route.proxy and seen.status in (502, 503, 504):
        why = f"{classify_evidence(seen).reason} (the proxy, or the server behind it)"
        return network.proxied(case, route, why, code="HF-PROXY-REFUSED")
    return as_told(
        "HF-NOT-READY",
        seen,
        "try again in a moment; if the error stays, look at the log of the server, or of the proxy in front of it",
        case.again,
    )


def _path(case: Case) -> str:
    return urlsplit(case.spec.url).path or "/"


SEARCH_SECONDS = 4.0
"""The longest time in seconds for all endpoints together; the server's own deadline may end earlier."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A URL and a transport at which an endpoint may answer."""

    url: str
    transport: Transport
    asks_for_credentials: bool = False


async def find_endpoint(case: Case) -> Endpoint | None:
    """The most likely endpoint that answers; all are dialed at the same time."""
    endpoints = list(_usual_endpoints(case.spec))
    found: dict[int, Endpoint] = {}
    deadline = anyio.current_time() + min(SEARCH_SECONDS, case.left)

    async def ask(number: int, endpoint: Endpoint) -> None:
        spec = replace(case.spec, url=endpoint.url, transport=endpoint.transport)
        seen = await probe(spec, case.redactor, deadline).run(case.tools.dialer, case.tools.dials)
        asks = isinstance(seen.evidence, HttpStatus) and seen.evidence.status == 401
        if seen.version or asks:
            found[number] = replace(endpoint, asks_for_credentials=not seen.version)

    async with anyio.create_task_group() as tasks:
        for number, endpoint in enumerate(endpoints):
            tasks.start_soon(ask, number, endpoint)
    ranked = sorted(found.items(), key=lambda item: (item[1].asks_for_credentials, item[0]))
    return ranked[0][1] if ranked else None


def wrong_endpoint(case: Case, endpoint: Endpoint, why: str) -> Finding:
    """The finding for an endpoint at another URL."""
    edits = case.url_edit(endpoint.url, transport=endpoint.transport)
    path = urlsplit(endpoint.url).path or "/"
    then = " (it asks for credentials there)" if endpoint.asks_for_credentials else ""
    if endpoint.transport == case.spec.transport:
        return finding("HF-PATH", f"{why}; an MCP endpoint answers at {path}{then}", "write this address", edits=edits)
    is_sse = endpoint.transport == "sse"
    words = f"{why}; it is {'an SSE' if is_sse else 'a streamable HTTP'} server, at {path}{then}"
    return finding("HF-TYPE-SSE" if is_sse else "HF-TYPE-HTTP", words, "write this type and address", edits=edits)


def no_endpoint(case: Case, why: str) -> Finding:
    """The finding for a server at which no usual path answers."""
    paths = dict.fromkeys(urlsplit(endpoint.url).path or "/" for endpoint in _usual_endpoints(case.spec))
    return finding(
        "HF-PATH",
        f"{why}; no MCP endpoint answers at {', '.join(paths)}",
        "look up the path in the server's documentation and write it into `url`; this command shows the answer",
        shell("curl", "-i", case.target),
    )


def _usual_endpoints(spec: ServerSpec) -> Iterator[Endpoint]:
    """The same path with the other transport or slash, then the usual paths, the most likely first."""
    parts = urlsplit(spec.url)
    path = parts.path or "/"
    bare = path.rstrip("/")
    other = "http" if spec.transport == "sse" else "sse"
    wanted = [
        (bare or "/", spec.transport),
        (f"{bare}/", spec.transport),
        (f"{bare}/mcp", "http"),
        ("/mcp", "http"),
        ("/mcp/", "http"),
        (path, other),
        (f"{bare}/sse", "sse"),
        ("/sse", "sse"),
    ]
    for there, transport in dict.fromkeys(wanted):
        if (there, transport) != (path, spec.transport):
            yield Endpoint(url=parts._replace(path=there).geturl(), transport=cast("Transport", transport))


_DESCRIPTION = re.compile(r'error_description="([^"]*)"')

ENVOY_SETTING = "the ext_authz filter's `grpc_service.timeout` or `http_service.server_uri.timeout`: 10s"
AGENTGATEWAY_SETTING = (
    "`extAuthz.timeout: 10s` up to version 0.12, `extAuthz.policies.http.requestTimeout: 10s` from 1.0 on"
)


async def unauthorized(case: Case, seen: HttpStatus) -> Finding:
    """The finding for a 401."""
    if wants_password(seen):
        return _password(case, seen)
    challenge = read_challenge(_challenge(seen))
    if seen.login is not None and (challenge.made or not seen.credentials_sent):
        return await _login(case, seen, challenge, seen.login)
    if challenge.wants_scope:
        return _scope(case, challenge)
    if not seen.credentials_sent:
        return _needed(case)
    claims = unverified_claims(configured_token(case.spec)) or {}
    expires, audience = expires_at(claims), audience_of(claims)
    if expires is not None and expires < datetime.now(UTC):
        return _replace(case, "HF-AUTH-EXPIRED", f"its token expired at {expires:%Y-%m-%d %H:%M} UTC")
    if audience and not any(_may_be(one, case.spec.url) for one in audience):
        named = ", ".join(quoted_name(one) for one in audience[:3])
        return _replace(case, "HF-AUTH-AUDIENCE", f"its token is for {named}, not for this server")
    said = _description(seen)
    if "expired" in said.lower():
        return _replace(case, "HF-AUTH-EXPIRED", f"the server says that its token has expired ({said})")
    if "audience" in said.lower():
        return _replace(case, "HF-AUTH-AUDIENCE", f"the server says that its token is for another server ({said})")
    words = "the server does not accept the credentials in its `headers` (HTTP 401)"
    return _replace(case, "HF-AUTH-REJECTED", words + (f": {said}" if said else ""))


async def _login(case: Case, seen: HttpStatus, challenge: Challenge, login: Login) -> Finding:
    if challenge.wants_scope:
        return login_scope(seen, login)
    # Many servers that accept only a key also send a `Bearer` challenge. Without metadata a login has no address to
    # ask, so the advice is a key, and names the login as the other way.
    if login.state is LoginState.NONE and not challenge.resource_metadata and case.spec.oauth == OAuthSettings():
        return _needed(case, login)
    return await login_wanted(case, challenge, login)


def forbidden(case: Case, seen: HttpStatus) -> Finding:
    """The finding for a 403 that is not an outage."""
    challenge = read_challenge(_challenge(seen))
    if challenge.wants_scope:
        return login_scope(seen, seen.login) if seen.login is not None else _scope(case, challenge)
    if statement_of(seen) is Statement.NO_DECISION:
        # It may hide an outage: the hub's own hint names the switch, and here is the timeout to raise.
        setting = AGENTGATEWAY_SETTING if seen.body.strip() else ENVOY_SETTING
        text = f"{classify_evidence(seen).hint}, and raise its timeout ({setting})"
        return as_told("HF-DENIED-UNCLEAR", seen, text, case.again)
    if is_wrong_host(seen):
        return wrong_host(case, seen)
    return as_told(
        "HF-DENIED",
        seen,
        "ask the operator of the server, or of the gateway in front of it, for access; then this succeeds",
        case.again,
    )


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
        return finding(
            "HF-DENIED-HOST",
            words,
            "write `localhost`, as such servers expect",
            edits=case.url_edit(other.geturl(), certain=False),
        )
    text = (
        "write the host name that the server accepts into the URL, or allow this one at the server; then this succeeds"
    )
    return finding("HF-DENIED-HOST", words, text, case.again)


_WRONG_HOST = re.compile(r"(?i)\baccess is only allowed at\b|\binvalid host\b|\bhost (?:header )?(?:is )?not allowed\b")


def is_outage(seen: HttpStatus) -> bool:
    """Whether a gateway reports an outage of its authorization service, also with a status other than 403."""
    return seen.status in (403, 500, 502, 503, 504) and statement_of(seen) is Statement.OUTAGE


def authorization_outage(case: Case, seen: HttpStatus) -> Finding:
    """The finding for a gateway that could not reach its authorization service."""
    setting, command = AGENTGATEWAY_SETTING, command_line("gateway", "render", "--ext-auth-timeout", "10s")
    then = "this command writes such a configuration"
    if seen.headers.get("server", "").lower() == "envoy":
        setting, command, then = ENVOY_SETTING, case.again, "then this succeeds"
    said = f"HTTP {seen.status}: {quoted(seen.body)}"
    return finding(
        "HF-AUTH-OUTAGE",
        f"the gateway could not complete its authorization check ({said}); this is not a denial",
        f"raise the gateway's authorization timeout: {setting}; {then}",
        command,
    )


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


def _password(case: Case, seen: HttpStatus) -> Finding:
    name = _variable_for(case.id, "CREDENTIALS")
    return as_told(
        "HF-AUTH-NEEDED",
        seen,
        "put `user:password` in base64 into a variable (this command waits for you to paste it) and use it in the"
        " definition; a login does not help here",
        ask_for(name),
        edits=(case.edit("headers.Authorization", f"Basic ${{env:{name}}}"),),
    )


def _replace(case: Case, code: str, words: str, *, kind: str = "a new token") -> Finding:
    scheme, what = "Bearer", "TOKEN"
    if _configured(case.spec)[0] == "basic":
        scheme, what, kind = "Basic", "CREDENTIALS", "the right `user:password` in base64"
    variables = case.definition.expansion.sources((*case.definition.path, "headers"))
    if variables:
        return finding(
            code,
            words,
            f"get {kind} and put it into {variables[0]} (this command waits for you to paste it)",
            ask_for(variables[0]),
        )
    name = _variable_for(case.id, what)
    text = f"get {kind}, put it into a variable (this command waits for you to paste it), and use it in the definition"
    edits = (case.edit("headers.Authorization", f"{scheme} ${{env:{name}}}"),)
    return finding(code, words, text, ask_for(name), edits=edits)


def _scope(case: Case, challenge: Challenge) -> Finding:
    scope = " ".join(challenge.scope)
    named = f"the scope {quoted_name(scope, 200, ticks=True)}" if scope else "a scope"
    return _replace(
        case, "HF-AUTH-SCOPE", f"its token lacks {named}, which the server requires", kind=f"a token with {named}"
    )


def _challenge(seen: HttpStatus) -> str:
    return seen.headers.get("www-authenticate", "")


def _description(seen: HttpStatus) -> str:
    found = _DESCRIPTION.search(_challenge(seen))
    return quoted(found[1], most=120) if found else ""


def _variable_for(server: str, kind: str = "TOKEN") -> str:
    name = re.sub(r"[^A-Z0-9]+", "_", server.upper()).strip("_") or "SERVER"
    return f"{'_' if name[0].isdigit() else ''}{name}_{kind}"


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
            return finding(
                "HF-AUTH-REJECTED", "the server does not accept the login (HTTP 401)", "log in again", login.command
            )
        case LoginState.EXCHANGED:
            return finding(
                "HF-AUTH-REJECTED",
                "the server does not accept the token that the hub got for this user (HTTP 401)",
                "compare `credentials` of its definition with what the server accepts",
                *open_definition(case),
            )
        case LoginState.EXPIRED | LoginState.REFUSED:
            return finding(
                "HF-LOGIN-ENDED",
                f"its login has ended (HTTP 401): {case.learned.login_ended or 'it cannot be renewed'}",
                "log in again",
                login.command,
            )


def login_scope(seen: HttpStatus, login: Login) -> Finding:
    """The finding for a valid login that lacks a scope."""
    text = "log in again with that scope; scopes granted before are kept"
    return as_told("HF-AUTH-SCOPE", seen, text, classify_evidence(seen).login or login.command)


async def _first_login(case: Case, challenge: Challenge, login: Login) -> Finding:
    words = "the server asks for a login, and there is none (HTTP 401)"
    server: AuthorizationServer | None = None
    with anyio.move_on_after(min(ASKING_SECONDS, case.left)):
        try:
            server = (await discover(case.spec, challenge)).server
        except LoginFailed as exc:
            text = exc.hint or "ask the server's operator how to log in, then log in"
            return finding("HF-AUTH-NEEDED", f"{words}; {exc.message}", text, login.command)
    missing = await _missing_inputs(case, server) if server is not None else {}
    if not missing:
        return finding("HF-AUTH-NEEDED", words, "log in", login.command)
    words = f"the server asks for a login, and its definition lacks {named_inputs(missing)}"
    it = "it" if len(missing) == 1 else "them"
    return finding(
        "HF-LOGIN-INPUT",
        words,
        f"ask the operator of the authorization server for {it}, write {it} into the definition, then log in",
        login.command,
        edits=input_edits(case, missing),
    )


CLIENT_ID = "the id that Holdfast was registered with"
DEVICE = "deviceAuthorizationUrl"


def lacking_inputs(oauth: OAuthSettings) -> dict[str, str]:
    """The keys of ``oauth`` that a definition lacks for every authorization server, each with an example.

    A client that was registered by hand has a registered redirect URI. Endpoints that a definition names are all that
    is used: where it names some, discovery is not asked for the others.
    """
    if not oauth.enabled:
        return {}
    named = oauth.authorization_url or oauth.token_url
    by_device_only = oauth.device_authorization_url and not oauth.authorization_url
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(named or ""))
    lacking = {
        "clientId": (named and not oauth.client_id and not oauth.client_metadata_url, CLIENT_ID),
        "redirectUri": ((named or oauth.client_id) and oauth.redirect_uri is None and not by_device_only, REDIRECT),
        "authorizationUrl": (
            named and not oauth.authorization_url and not oauth.device_authorization_url,
            f"{origin}/authorize",
        ),
        "tokenUrl": (named and not oauth.token_url, f"{origin}/token"),
        DEVICE: (named and not oauth.device_authorization_url, f"{origin}/device"),
    }
    return {key: example for key, (lacks, example) in lacking.items() if lacks}


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


async def _missing_inputs(case: Case, server: AuthorizationServer) -> dict[str, str]:
    """The missing keys of ``oauth`` that discovery cannot find, each with an example."""
    oauth, missing, lacking = case.spec.oauth, dict[str, str](), lacking_inputs(case.spec.oauth)
    grants = await anyio.to_thread.run_sync(case.tools.logins.store.grants, abandon_on_cancel=True)
    known = known_client(oauth, server, grants, time.time()) is not None
    registers = known or bool(server.registration_endpoint)
    if not registers:
        missing["clientId"] = CLIENT_ID
    unnamed = "redirectUri" in lacking or (not registers and oauth.redirect_uri is None)
    if unnamed and server.authorization_endpoint:
        missing["redirectUri"] = REDIRECT
    if not server.authorization_endpoint and not server.device_authorization_endpoint:
        missing["authorizationUrl"] = f"{server.issuer}/authorize"
        missing["tokenUrl"] = server.token_endpoint  # one endpoint of the definition counts only with the other
        missing[DEVICE] = f"{server.issuer}/device"
    elif DEVICE in lacking and not server.device_authorization_endpoint:
        missing[DEVICE] = lacking[DEVICE]
    return missing


def configured_token(spec: ServerSpec) -> str:
    """The bearer token in the configured headers; empty if there is none."""
    scheme, token = _configured(spec)
    return token if scheme == "bearer" else ""


def _configured(spec: ServerSpec) -> tuple[str, str]:
    """The scheme and the value of the configured ``Authorization``."""
    headers = spec.headers if isinstance(spec.headers, Mapping) else {}
    value = next((value for name, value in headers.items() if name.lower() == "authorization"), "")
    scheme, _, rest = value.strip().partition(" ")
    return scheme.lower(), rest.strip()


def expires_at(claims: Mapping[str, object]) -> datetime | None:
    """When a token ends, by its claims; None if they do not say."""
    expires = claims.get("exp")
    if not isinstance(expires, int | float):
        return None
    try:
        return datetime.fromtimestamp(float(expires), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _may_be(audience: str, url: str) -> bool:
    """Whether a token for this audience can be for the server at ``url``; one that is no address can be any server."""
    try:
        named = urlsplit(audience)
    except ValueError:
        return True
    return named.scheme not in ("http", "https") or named.netloc == urlsplit(url).netloc
