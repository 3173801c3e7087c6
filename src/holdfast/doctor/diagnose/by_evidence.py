"""Maps evidence to a finding: one case for each type of evidence.

Findings for wrong answers follow it: a status, a redirect, an answer that is not MCP, or an endpoint at another URL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast
from urllib.parse import urlsplit

import anyio

from holdfast.config import ServerSpec, Transport
from holdfast.core import (
    BadConfig,
    CommandUnusable,
    CredentialsUnavailable,
    Evidence,
    HttpStatus,
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
    TimedOut,
    TlsFailure,
    TokenNotRenewed,
    ToldByHub,
    Unexpected,
    classify_evidence,
    command_line,
    quoted,
    quoted_name,
)
from holdfast.doctor.case import SAME_ENVIRONMENT, Case, Probe, Route, probe, trace_of
from holdfast.doctor.diagnose import access, network, process_exits
from holdfast.doctor.diagnose.network import speaks_tls
from holdfast.doctor.report import Finding, finding, on_server, shell
from holdfast.wire import NOT_HTTP

__all__ = [
    "Endpoint",
    "bound",
    "broken",
    "diagnose",
    "find_endpoint",
    "no_endpoint",
    "not_mcp",
    "plain_credentials",
    "redirected",
    "route_failed",
    "rpc_error",
    "status",
    "wrong_endpoint",
]


async def diagnose(case: Case, seen: Evidence) -> Finding:  # noqa: PLR0912 - one case for each type of evidence
    """The finding for the evidence of a dial."""
    match seen:
        case HttpStatus():
            return await status(case, seen)
        case NetworkFailure() if case.transport == "hub" and not seen.stood:
            words = f"the hub that runs it cannot be reached: {classify_evidence(seen).reason}"
            text = "start that hub, or correct its address in `hub`"
            return finding("HF-BEHIND-HUB", words, text, on_server("doctor", case.id))
        case NetworkFailure():
            return await _network(case, seen)
        case TlsFailure() if case.learned.route is not None:
            return await network.unverified(case, case.learned.route, seen)
        case TimedOut():
            return network.silent(case, seen)
        case Redirected():
            return redirected(case, seen)
        case PlainHttpRefused():
            return plain_credentials(case)
        case NotMcp():
            return await not_mcp(case, seen)
        case OverBound():
            return bound(case, seen)
        case RpcError():
            return rpc_error(case, seen)
        case CommandUnusable():
            return process_exits.unusable(case, seen)
        case ProcessExit():
            return await process_exits.ended(case, seen)
        case BadConfig():
            text = seen.hint or "correct the definition"
            return finding("HF-DEFINITION", "; ".join(seen.problems), text, command_line("config", "show"))
        case TokenNotRenewed():
            words = f"its token expired and could not be renewed at the moment: {seen.reason}; the login is still valid"
            text = "try again when the authorization server answers; a new login is not needed"
            return finding("HF-LOGIN-UNREACHABLE", words, text, on_server("doctor", case.id))
        case OutOfDescriptors():
            words = f"this machine allows {seen.limit} open files per process, and all are in use; it was not asked"
            text = "raise the limit in this shell, and check again"
            commands = ("ulimit -n 65536", on_server("doctor", case.id))
            return finding("HF-DESCRIPTORS", words, text, *commands)
        case ToldByHub():
            text = seen.hint or "ask the hub that runs it: run doctor there"
            words = f"the hub that runs it says: {seen.reason}"
            return finding("HF-BEHIND-HUB", words, text, on_server("doctor", case.id))
        case CredentialsUnavailable() | TlsFailure() | Unexpected():
            return _unexpected(case, seen)


def route_failed(case: Case, route: Route, seen: Evidence, *, after: float) -> Finding:
    """The finding for a connection that could not be made."""
    match seen:
        case NetworkFailure(fault=NetworkFault.REFUSED):
            return network.refused(case, route)
        case NetworkFailure(fault=NetworkFault.NAME_RESOLUTION):
            return network.no_address(case, route, exists=False)
        case TimedOut():
            return network.filtered(case, route, after)
        case _:
            return network.unreachable(case, route)


async def _network(case: Case, seen: NetworkFailure) -> Finding:
    if case.spec.transport == "stdio":
        return network.cut(case, seen)
    route = case.learned.route
    if route is not None and route.proxy and not seen.stood:
        return network.proxied(case, route, seen.detail or "it refused to connect", code="HF-PROXY-REFUSED")
    if seen.stood or route is None:
        return await broken(case, seen)
    return route_failed(case, route, seen, after=0.0)


def _unexpected(case: Case, seen: Evidence) -> Finding:
    text = "please report this as a bug in Holdfast, with the output of this command"
    command = f"HOLDFAST_DEBUG=1 {on_server('doctor', case.id)}"
    trace = trace_of(case.learned.probe) if case.learned.probe is not None else ""
    return finding("HF-UNEXPECTED", classify_evidence(seen).reason, text, command, detail=trace)


SHOWN = 120
"""How many characters of a server's output a message shows."""

_HTTP_TO_TLS_PORT = "plain HTTP request was sent to HTTPS port"


async def status(case: Case, seen: HttpStatus) -> Finding:
    """The finding for an error status."""
    if access.is_outage(seen):
        return access.authorization_outage(case, seen)
    match seen.status:
        case 401:
            return await access.unauthorized(case, seen)
        case 403:
            return access.forbidden(case, seen)
        case 421 if access.is_wrong_host(seen):
            return access.wrong_host(case, seen)
        case 404 | 405 | 406 | 410 | 415:
            return await _no_endpoint(case, f"it answered HTTP {seen.status} at {_path(case)}")
        case 407 if case.learned.route is not None:
            return network.proxied(case, case.learned.route, "it asks for credentials (407)", code="HF-PROXY-LOGIN")
        case 429:
            return _rate(case, seen)
        case code if code >= 500:
            return _not_ready(case, seen)
    if _HTTP_TO_TLS_PORT in seen.body:
        return https_meant(case, "the port speaks TLS, and `url` says http")
    if (endpoint := await find_endpoint(case)) is not None:
        return wrong_endpoint(case, endpoint, f"it answered HTTP {seen.status} at {_path(case)}")
    words = f"it rejected the request (HTTP {seen.status}{_said(seen)})"
    text = "compare `url` and `headers` with the server's documentation; this command shows them"
    return finding("HF-STATUS", words, text, command_line("config", "show"))


def redirected(case: Case, seen: Redirected) -> Finding:
    """The finding for a redirect that is not followed."""
    here, there = urlsplit(case.spec.url), urlsplit(seen.location)
    if here.scheme == "http" and there.scheme == "https" and here.hostname == there.hostname:
        words = f"it redirects every request to https (HTTP {seen.status})"
        return finding("HF-HTTPS-MEANT", words, "write https", edits=case.url_edit(seen.location))
    where = f"{quoted_name(seen.location, 200)} (HTTP {seen.status})"
    if here.scheme == "https" and there.scheme == "http" and here.hostname == there.hostname:
        words = f"it redirects to plain http, {where}: it does not know that a proxy before it ends TLS"
        meant = there._replace(scheme="https", netloc=here.netloc).geturl()
        if meant == case.spec.url:
            return finding("HF-REDIRECT", words, "have that proxy send `X-Forwarded-Proto: https`", _again(case))
        return finding("HF-REDIRECT", words, "write that path with https", edits=case.url_edit(meant))
    words = f"it redirects to {where}, and credentials do not follow a redirect"
    return finding(
        "HF-REDIRECT",
        words,
        "if that is the right server, write its address",
        edits=case.url_edit(seen.location, certain=False),
    )


async def broken(case: Case, seen: NetworkFailure) -> Finding:
    """The finding for a connection that broke. A TLS port does that when it gets plain text."""
    return await _tls_port(case) or network.cut(case, seen)


async def not_mcp(case: Case, seen: NotMcp) -> Finding:
    """The finding for a peer that speaks something else."""
    if seen.fault is NotMcpFault.VERSION:
        spoken = f" (it speaks {seen.detail})" if seen.detail else ""
        text = "update the server or Holdfast; this command shows the version of Holdfast"
        return finding("HF-VERSION", f"no common protocol version{spoken}", text, command_line("--version"))
    if seen.fault in (NotMcpFault.BAD_RESULT, NotMcpFault.BROKEN_HTTP, NotMcpFault.CURSOR_REPEATS):
        why = seen.detail or "its list of tools does not end: a page cursor repeats"
        text = "this is a bug in the server: update it, or report the bug to its authors"
        return finding("HF-PROTOCOL", f"its answer does not fit the protocol: {why}", text, _again(case))
    if case.spec.transport == "stdio":
        return _prints(case, seen)
    why = f"the answer at {_path(case)} is not MCP" + (f" ({seen.detail})" if seen.detail else "")
    if seen.detail == NOT_HTTP and (found := await _tls_port(case)) is not None:
        return found
    if (endpoint := await find_endpoint(case)) is not None:
        return wrong_endpoint(case, endpoint, why)
    text = "correct `url`: look up the address in the server's documentation; this command shows the answer"
    return finding("HF-NOT-MCP", why, text, shell("curl", "-i", case.target))


def rpc_error(case: Case, seen: RpcError) -> Finding:
    """The finding for a JSON-RPC error."""
    said = quoted(seen.message)
    words = f"it answered {seen.method} with an error ({seen.code}{f': {said}' if said else ''})"
    return finding("HF-RPC-ERROR", words, "look at the server's log, then try again", _again(case))


def bound(case: Case, seen: OverBound) -> Finding:
    """The finding for an exceeded limit."""
    words = f"it exceeded the limit on {seen.bound} ({seen.limit})"
    key = seen.setting.removeprefix("holdfast.")
    text = f"if you trust this server, raise `{seen.setting}`"
    return finding("HF-BOUND", words, text, edits=(case.setting(key, 4 * seen.limit),))


def plain_credentials(case: Case) -> Finding:
    """The finding for credentials that would be sent unencrypted."""
    there = urlsplit(case.spec.url)._replace(scheme="https").geturl()
    words = f"its headers would be sent unencrypted to {case.host}, so no request was sent"
    text = "use https; or, if the network is trusted, set `allowPlainHttp` to true instead"
    return finding("HF-PLAIN-CREDENTIALS", words, text, edits=case.url_edit(there, certain=False))


def https_meant(case: Case, words: str) -> Finding:
    """The finding for http at a port that speaks https."""
    there = urlsplit(case.spec.url)._replace(scheme="https").geturl()
    return finding("HF-HTTPS-MEANT", words, "write https", edits=case.url_edit(there))


async def _tls_port(case: Case) -> Finding | None:
    route = case.learned.route
    if route is None or route.tls or route.proxy or not await speaks_tls(route):
        return None
    return https_meant(case, f"{route} speaks TLS, and `url` says http")


async def _no_endpoint(case: Case, why: str) -> Finding:
    endpoint = await find_endpoint(case)
    return wrong_endpoint(case, endpoint, why) if endpoint is not None else no_endpoint(case, why)


def _rate(case: Case, seen: HttpStatus) -> Finding:
    wait = f"sleep {seen.retry_after:.0f} && " if seen.retry_after else ""
    words = "it limits requests (HTTP 429)" + (f" and asks for {seen.retry_after:.0f} s" if seen.retry_after else "")
    return finding("HF-RATE", words, "wait, then try again", wait + _again(case))


def _not_ready(case: Case, seen: HttpStatus) -> Finding:
    route = case.learned.route
    if route is not None and route.proxy and seen.status in (502, 503, 504):
        why = f"the proxy, or the server behind it, answered HTTP {seen.status}{_said(seen)}"
        return network.proxied(case, route, why, code="HF-PROXY-REFUSED")
    words = f"it is not ready (HTTP {seen.status}{_said(seen)})"
    text = "try again in a moment; if the error stays, look at the log of the server, or of the proxy in front of it"
    return finding("HF-NOT-READY", words, text, _again(case))


def _prints(case: Case, seen: NotMcp) -> Finding:
    said = seen.detail if len(seen.detail) <= SHOWN else f"{seen.detail[:SHOWN]}…"
    words = f"its output on stdout is not MCP: {said}"
    text = (
        "it is not an MCP server, or it needs an argument: compare `command` and `args` with its documentation; "
        f"this command shows its help, {SAME_ENVIRONMENT}"
    )
    return finding("HF-STDOUT-ONLY", words, text, *case.by_hand("--help"))


def _said(seen: HttpStatus) -> str:
    body = quoted(seen.body, most=SHOWN)
    return f": {body}" if body and "<" not in body else ""


def _path(case: Case) -> str:
    return urlsplit(case.spec.url).path or "/"


def _again(case: Case) -> str:
    return on_server("doctor", case.id)


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
        seen = await probe(
            spec,
            dialer=case.tools.dialer,
            limit=case.tools.turnstile,
            redactor=case.redactor,
            deadline=deadline,
        )
        if seen.version or _asks_for_credentials(seen):
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
        words = f"{why}; an MCP endpoint answers at {path}{then}"
        return finding("HF-PATH", words, "write this address", edits=edits)
    if endpoint.transport == "sse":
        words = f"{why}; it is an SSE server, at {path}{then}"
        return finding("HF-TYPE-SSE", words, "write this type and address", edits=edits)
    words = f"{why}; it is a streamable HTTP server, at {path}{then}"
    return finding("HF-TYPE-HTTP", words, "write this type and address", edits=edits)


def no_endpoint(case: Case, why: str) -> Finding:
    """The finding for an endpoint that answers no_endpoint."""
    paths = dict.fromkeys(urlsplit(endpoint.url).path or "/" for endpoint in _usual_endpoints(case.spec))
    words = f"{why}; no MCP endpoint answers at {', '.join(paths)}"
    text = "look up the path in the server's documentation and write it into `url`; this command shows the answer"
    return finding("HF-PATH", words, text, shell("curl", "-i", case.target))


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


def _asks_for_credentials(seen: Probe) -> bool:
    return isinstance(seen.evidence, HttpStatus) and seen.evidence.status == 401
