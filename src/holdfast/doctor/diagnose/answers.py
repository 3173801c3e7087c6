"""Findings for a wrong answer: a status, a redirect, an answer that is not MCP, or an endpoint at another URL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast
from urllib.parse import urlsplit

import anyio

from holdfast.config import ServerSpec, Transport
from holdfast.core import (
    HttpStatus,
    NetworkFailure,
    NotMcp,
    NotMcpFault,
    OverBound,
    Redirected,
    RpcError,
    command_line,
    quoted,
    quoted_name,
)
from holdfast.doctor.case import SAME_ENVIRONMENT, Case
from holdfast.doctor.diagnose import access, network
from holdfast.doctor.diagnose.network import speaks_tls
from holdfast.doctor.probe import Probe, probe
from holdfast.doctor.report import Finding, finding, on_server, shell
from holdfast.wire import NOT_HTTP

__all__ = [
    "Endpoint",
    "bound",
    "broken",
    "find_endpoint",
    "no_endpoint",
    "not_mcp",
    "plain_credentials",
    "redirected",
    "rpc_error",
    "status",
    "wrong_endpoint",
]

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
