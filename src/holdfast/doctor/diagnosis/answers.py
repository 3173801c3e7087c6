"""The server answered, and not as it should: a status, a redirect, something that is not MCP."""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.core.evidence import (
    HttpStatus,
    NetworkFailure,
    NotMcp,
    NotMcpFault,
    OverBound,
    Redirected,
    RpcError,
)
from holdfast.doctor.case import Case
from holdfast.doctor.diagnosis import access, network
from holdfast.doctor.diagnosis.elsewhere import find_elsewhere, nowhere, wrong_place
from holdfast.doctor.diagnosis.tls import speaks_tls
from holdfast.doctor.findings import Finding, finding, shell
from holdfast.wire.network import NOT_HTTP

__all__ = ["bound", "broken", "not_mcp", "plain_credentials", "redirected", "rpc_error", "status"]

SHOWN = 120
"""How much of what a server prints is passed on."""

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
        case 404 | 405 | 406 | 410 | 415:
            return await _no_endpoint(case, f"it answered HTTP {seen.status} at {_path(case)}")
        case 407 if case.learned.way is not None:
            return network.proxied(case, case.learned.way, "it asks for credentials (407)", code="HF-PROXY-LOGIN")
        case 429:
            return _rate(case, seen)
        case code if code >= 500:
            return _not_ready(case, seen)
    if _HTTP_TO_TLS_PORT in seen.body:
        return https_meant(case, "the port speaks TLS, and `url` says http")
    if (place := await find_elsewhere(case)) is not None:
        return wrong_place(case, place, f"it answered HTTP {seen.status} at {_path(case)}")
    words = f"it rejected the request (HTTP {seen.status}{_said(seen)})"
    text = "compare `url` and `headers` with the server's documentation; this shows what is in force"
    return finding("HF-STATUS", words, text, "holdfast config show")


def redirected(case: Case, seen: Redirected) -> Finding:
    """The finding for a redirect that is not followed."""
    here, there = urlsplit(case.spec.url), urlsplit(seen.location)
    if here.scheme == "http" and there.scheme == "https" and here.hostname == there.hostname:
        words = f"it sends every request to https (HTTP {seen.status})"
        return finding("HF-HTTPS-MEANT", words, "write https", edits=case.url_edit(seen.location))
    words = f"it sends us to {seen.location} (HTTP {seen.status}), and credentials do not follow a redirect"
    return finding("HF-REDIRECT", words, "if that is the server you mean, write it", edits=case.url_edit(seen.location))


async def broken(case: Case, seen: NetworkFailure) -> Finding:
    """The finding for a connection that stood and broke: a TLS port that was spoken to in plain text does that."""
    return await _tls_port(case) or network.cut(case, seen)


async def not_mcp(case: Case, seen: NotMcp) -> Finding:
    """The finding for a peer that speaks something else."""
    if seen.fault is NotMcpFault.VERSION:
        spoken = f" (it speaks {seen.detail})" if seen.detail else ""
        text = "update the server, or Holdfast; this shows what Holdfast you have"
        return finding("HF-VERSION", f"no common protocol version{spoken}", text, "holdfast --version")
    if seen.fault in (NotMcpFault.BAD_RESULT, NotMcpFault.CURSOR_REPEATS):
        why = seen.detail or "its list of tools never ends: a page cursor came back"
        text = "a fault of the server's own: update it, or show its authors this"
        return finding("HF-PROTOCOL", f"its answer does not fit the protocol: {why}", text, _again(case))
    if case.spec.transport == "stdio":
        return _prints(case, seen)
    why = f"what answers at {_path(case)} is not MCP" + (f" ({seen.detail})" if seen.detail else "")
    if seen.detail == NOT_HTTP and (found := await _tls_port(case)) is not None:
        return found
    if (place := await find_elsewhere(case)) is not None:
        return wrong_place(case, place, why)
    text = "correct `url`: look up the address in the server's documentation; this shows what answers now"
    return finding("HF-NOT-MCP", why, text, shell("curl", "-i", case.target))


def rpc_error(case: Case, seen: RpcError) -> Finding:
    """The finding for an error of the server's own."""
    said = " ".join(seen.message.split())[:200]
    words = f"it answered {seen.method} with an error ({seen.code}: {said})"
    return finding("HF-RPC-ERROR", words, "its own log says more; then try again", _again(case))


def bound(case: Case, seen: OverBound) -> Finding:
    """The finding for too much."""
    words = f"it exceeded the bound on {seen.bound} ({seen.limit})"
    key = seen.setting.removeprefix("holdfast.")
    text = f"if you trust this server, raise `{seen.setting}`"
    return finding("HF-BOUND", words, text, edits=(case.setting(key, 4 * seen.limit),))


def plain_credentials(case: Case) -> Finding:
    """The finding for credentials that were not sent."""
    there = urlsplit(case.spec.url)._replace(scheme="https").geturl()
    words = f"its headers would travel unencrypted to {case.host}, so nothing was sent"
    text = "use https; or, if the network is trusted, set `allowPlainHttp` to true instead"
    return finding("HF-PLAIN-CREDENTIALS", words, text, edits=case.url_edit(there))


def https_meant(case: Case, words: str) -> Finding:
    """The finding for http where https is meant."""
    there = urlsplit(case.spec.url)._replace(scheme="https").geturl()
    return finding("HF-HTTPS-MEANT", words, "write https", edits=case.url_edit(there))


async def _tls_port(case: Case) -> Finding | None:
    way = case.learned.way
    if way is None or way.tls or way.proxy or not await speaks_tls(way):
        return None
    return https_meant(case, f"{way} speaks TLS, and `url` says http")


async def _no_endpoint(case: Case, why: str) -> Finding:
    place = await find_elsewhere(case)
    return wrong_place(case, place, why) if place is not None else nowhere(case, why)


def _rate(case: Case, seen: HttpStatus) -> Finding:
    wait = f"sleep {seen.retry_after:.0f} && " if seen.retry_after else ""
    words = "it limits requests (HTTP 429)" + (f" and asks for {seen.retry_after:.0f} s" if seen.retry_after else "")
    return finding("HF-RATE", words, "wait, then try again", wait + _again(case))


def _not_ready(case: Case, seen: HttpStatus) -> Finding:
    way = case.learned.way
    if way is not None and way.proxy and seen.status in (502, 503, 504):
        why = f"it, or the server beyond it, answered HTTP {seen.status}{_said(seen)}"
        return network.proxied(case, way, why, code="HF-PROXY-REFUSED")
    words = f"it is not ready (HTTP {seen.status}{_said(seen)})"
    text = "try again in a moment; if it stays, look at the log of the server, or of what stands before it"
    return finding("HF-NOT-READY", words, text, _again(case))


def _prints(case: Case, seen: NotMcp) -> Finding:
    said = seen.detail if len(seen.detail) <= SHOWN else f"{seen.detail[:SHOWN]}…"
    words = f"what it sends on stdout is not MCP: {said}"
    text = (
        "it is no MCP server, or needs an argument to become one: compare `command` and `args` with its documentation"
    )
    return finding("HF-STDOUT-ONLY", words, text, f"{shell(case.spec.command, *case.spec.args)} --help")


def _said(seen: HttpStatus) -> str:
    body = " ".join(seen.body.split())[:120]
    return f": {body}" if body and "<" not in body else ""


def _path(case: Case) -> str:
    return urlsplit(case.spec.url).path or "/"


def _again(case: Case) -> str:
    return shell("holdfast", "doctor", case.id)
