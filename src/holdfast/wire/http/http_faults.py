"""What exceptions of the network and of the HTTP library show: by their type and errno, never by text of a peer.

They become evidence here, and nowhere else.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator

import anyio
import httpx2

from holdfast.core import (
    Evidence,
    HttpStatus,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    TimedOut,
    TlsFailure,
    TlsFault,
    status_class,
)
from holdfast.wire.http.answer_parser import BadEncoding, BrokenHttp, Disconnected, NotHttp
from holdfast.wire.http.pool import ConnectFailed, ConnectTimedOut, ProxyRefused, ProxyUnreachable, ProxyUnusable

__all__ = ["NOT_HTTP", "causes", "evidence_of"]

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


def evidence_of(exc: BaseException, *, doing: str, after: float = 0.0, connecting: bool = False) -> Evidence | None:
    """What ``exc`` shows, or None if it is not about the network; ``doing`` is for a timeout's text.

    ``connecting`` says that no connection stands yet, where the exception does not say it.
    """
    match exc:
        case TimeoutError() | httpx2.TimeoutException():
            early = isinstance(exc, ConnectTimedOut | httpx2.ConnectTimeout)
            return TimedOut(doing="a connection" if early else doing, after=after, sent=not early)
        case ProxyRefused(status=407):
            return HttpStatus(status=407)
        case ProxyRefused(status=status):
            passing = status_class(status) == "transient"
            fault = NetworkFault.PROXY_FAILED if passing else NetworkFault.PROXY_REFUSED
            return NetworkFailure(fault=fault, detail=f"it answered HTTP {status}")
        case ProxyUnreachable():
            return _no_proxy(_from_chain(exc, stood=False))
        case ProxyUnusable(lost=lost):
            fault = NetworkFault.PROXY_FAILED if lost else NetworkFault.PROXY_REFUSED
            return NetworkFailure(fault=fault, detail=str(exc))
        case Disconnected():
            return NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
        case BrokenHttp() | BadEncoding():
            return NotMcp(fault=NotMcpFault.BROKEN_HTTP, detail=str(exc))
        case NotHttp():
            return NotMcp(fault=NotMcpFault.CONTENT_TYPE, detail=NOT_HTTP)
        case OSError() | httpx2.TransportError() | anyio.BrokenResourceError() | anyio.EndOfStream():
            # A program that gives us headers may fail by the library that the SDK uses.
            never = ConnectFailed | httpx2.ConnectError | socket.gaierror | ConnectionRefusedError
            return _from_chain(exc, stood=not connecting and not isinstance(exc, never))
        case _:
            return None


_PROXY = {
    NetworkFault.NAME_RESOLUTION: "its host name does not resolve",
    NetworkFault.REFUSED: "it refuses connections",
    NetworkFault.UNREACHABLE: "its host cannot be reached",
}


def _no_proxy(seen: Evidence) -> NetworkFailure:
    """What happened on the way to the proxy: nothing of it is about the server."""
    if not isinstance(seen, NetworkFailure):
        return NetworkFailure(fault=NetworkFault.PROXY_REFUSED, detail="the TLS handshake with it failed")
    unknown = seen.fault is NetworkFault.NAME_RESOLUTION
    fault = NetworkFault.PROXY_REFUSED if unknown else NetworkFault.PROXY_FAILED
    return NetworkFailure(fault=fault, detail=_PROXY.get(seen.fault, "the connection to it failed"), errno=seen.errno)


def _from_chain(exc: BaseException, *, stood: bool) -> Evidence:
    """The first cause in the chain with a certificate, a name or an errno."""
    found = list(causes(exc))
    for cause in found:
        if isinstance(cause, ssl.SSLError):
            return _tls(cause, stood=stood)
        if isinstance(cause, socket.gaierror):
            return NetworkFailure(fault=NetworkFault.NAME_RESOLUTION, errno=cause.errno)
    for cause in found:
        if isinstance(cause, OSError) and (fault := _ERRNO.get(cause.errno or 0)):
            return NetworkFailure(fault=fault, errno=cause.errno, stood=stood)
        if isinstance(cause, ConnectionResetError):  # event loops say so of a peer that leaves during the TLS handshake
            return NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
    return NetworkFailure(fault=NetworkFault.CLOSED if stood else NetworkFault.OTHER, stood=stood)


_ABOUT_OURS = re.compile(r"ALERT_(BAD_CERTIFICATE|CERTIFICATE_|UNKNOWN_CA|ACCESS_DENIED)")
"""OpenSSL's names of the alerts by which a peer refuses the certificate of its client, or the lack of one."""


def _tls(exc: ssl.SSLError, *, stood: bool) -> Evidence:
    if isinstance(exc, ssl.SSLCertVerificationError):
        fault = _VERIFY.get(exc.verify_code, TlsFault.NOT_VERIFIED)
        return TlsFailure(fault=fault, detail=exc.verify_message if fault is TlsFault.NOT_VERIFIED else "")
    if isinstance(exc, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
    reason = exc.reason or ""
    if _ABOUT_OURS.search(reason):  # with TLS 1.3 it comes after the handshake
        return TlsFailure(fault=TlsFault.CLIENT_CERTIFICATE)
    if stood or reason.endswith("ALERT_INTERNAL_ERROR"):
        return NetworkFailure(fault=NetworkFault.OTHER, stood=True)
    return TlsFailure(fault=TlsFault.HANDSHAKE)


def causes(exc: BaseException | None) -> Iterator[BaseException]:
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
