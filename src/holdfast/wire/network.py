"""Exceptions of the network and of the HTTP client become evidence here, and nowhere else.

Evidence rests on exception types and errno. Where a library distinguishes two cases only by text, the text is the
library's own fixed beginning of the message, never the peer's.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator

import anyio
import httpx2

from holdfast.core.evidence import (
    BadConfig,
    Evidence,
    HttpStatus,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    TimedOut,
    TlsFailure,
    TlsFault,
)

__all__ = ["NOT_HTTP", "evidence_of"]

NOT_HTTP = "it does not speak HTTP"
"""The detail of the evidence for a peer that does not answer with HTTP."""

_ERRNO = {
    errno.ECONNREFUSED: NetworkFault.REFUSED,
    errno.ECONNRESET: NetworkFault.RESET,
    errno.EPIPE: NetworkFault.RESET,
    errno.ECONNABORTED: NetworkFault.RESET,
    errno.EHOSTUNREACH: NetworkFault.UNREACHABLE,
    errno.ENETUNREACH: NetworkFault.UNREACHABLE,
    errno.EHOSTDOWN: NetworkFault.UNREACHABLE,
    errno.ENETDOWN: NetworkFault.UNREACHABLE,
    errno.ETIMEDOUT: NetworkFault.UNREACHABLE,
}

_VERIFY = {
    9: TlsFault.NOT_YET_VALID,
    10: TlsFault.EXPIRED,
    18: TlsFault.UNKNOWN_CA,
    19: TlsFault.UNKNOWN_CA,
    20: TlsFault.UNKNOWN_CA,
    21: TlsFault.UNKNOWN_CA,
    62: TlsFault.WRONG_NAME,
    64: TlsFault.WRONG_NAME,
}
"""OpenSSL's X509_V_ERR_… numbers."""

_CUT_SHORT = ("Server disconnected", "peer closed connection", "received incomplete")
"""How the HTTP client's message begins after a cut; its other messages mean "not HTTP"."""


def evidence_of(exc: BaseException, *, doing: str, after: float = 0.0) -> Evidence | None:
    """What ``exc`` shows, or None if it is not about the network; ``doing`` is for a timeout's text."""
    if isinstance(exc, httpx2.TimeoutException | TimeoutError):
        return TimedOut(doing="a connection" if isinstance(exc, httpx2.ConnectTimeout) else doing, after=after)
    if isinstance(exc, httpx2.InvalidURL | httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
        return BadConfig(problems=("its URL or a header cannot be used in an HTTP request",), hint="check `url`")
    stood = not isinstance(exc, httpx2.ConnectError | httpx2.ProxyError | socket.gaierror | ConnectionRefusedError)
    if isinstance(exc, httpx2.RemoteProtocolError):
        return _broken_http(exc)
    if isinstance(exc, httpx2.DecodingError):
        return NotMcp(fault=NotMcpFault.NOT_JSON, detail="its answer is badly compressed")
    if isinstance(exc, httpx2.TransportError | OSError | anyio.BrokenResourceError | anyio.EndOfStream):
        return _from_chain(exc, stood=stood)
    return None


def _broken_http(exc: httpx2.RemoteProtocolError) -> Evidence:
    if str(exc).startswith(_CUT_SHORT):
        return NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
    return NotMcp(fault=NotMcpFault.CONTENT_TYPE, detail=NOT_HTTP)


def _from_chain(exc: BaseException, *, stood: bool) -> Evidence:
    """The first cause in the chain with a certificate, a name or an errno."""
    causes = list(_causes(exc))
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return _tls(cause)
        if isinstance(cause, socket.gaierror):
            return NetworkFailure(fault=NetworkFault.NAME_RESOLUTION, errno=cause.errno)
    for cause in causes:
        if isinstance(cause, OSError) and (fault := _ERRNO.get(cause.errno or 0)):
            return NetworkFailure(fault=fault, errno=cause.errno, stood=stood)
    if isinstance(exc, httpx2.ProxyError) and str(exc).startswith("407"):  # the client's message begins with the status
        return HttpStatus(status=407)
    if isinstance(exc, httpx2.ProxyError):
        return NetworkFailure(fault=NetworkFault.OTHER, detail="the proxy refused the connection")
    return NetworkFailure(fault=NetworkFault.CLOSED if stood else NetworkFault.OTHER, stood=stood)


def _tls(exc: ssl.SSLError) -> Evidence:
    if isinstance(exc, ssl.SSLCertVerificationError):
        fault = _VERIFY.get(exc.verify_code, TlsFault.NOT_VERIFIED)
        return TlsFailure(fault=fault, detail=exc.verify_message if fault is TlsFault.NOT_VERIFIED else "")
    if isinstance(exc, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
    return TlsFailure(fault=TlsFault.HANDSHAKE)


def _causes(exc: BaseException | None) -> Iterator[BaseException]:
    """An exception, its causes and contexts, and the members of groups: each once."""
    seen: set[int] = set()
    waiting = [exc]
    while waiting:
        current = waiting.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions
