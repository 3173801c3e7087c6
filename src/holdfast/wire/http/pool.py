"""The connections to one origin, which stay open for a while, and what their failures show. No retry of its own.

A request is written once. A connection that turns out to be closed before anything was written gives way to
another one; after the first byte left, every failure belongs to the caller, because the server may have acted.
It does not follow redirects, keeps no credentials and reads no environment: callers decide that.

A name may have several addresses: they are tried one after the other, the next one a moment later (RFC 8305). A Unix
socket has no TLS: the kernel says who is at the other end, to both sides. A peer of another user is refused here as it
is by the hub's listener, so what comes over such a connection is said by a program of this user.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

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
from holdfast.wire.http.connection import IDLE_SECONDS, PooledConnection, Response

__all__ = [
    "NOT_HTTP",
    "ConnectFailed",
    "ConnectTimedOut",
    "HttpOrigin",
    "Pool",
    "Proxy",
    "ProxyFailed",
    "causes",
    "evidence_of",
    "unix_peer_uid",
]

IDLE_CONNECTIONS: Final = 64
"""Unused connections that are kept: as many as calls may run at the same time by default. With fewer, calls that end
together close connections which the next ones open again."""

CLOSING_SECONDS: Final = 60.0
"""After a kept connection met its end under a request, no connection to that peer is kept for so long.

Some servers close after each answer and do not say so."""


class ConnectFailed(OSError):
    """No connection came to stand; the cause says why."""


class ConnectTimedOut(TimeoutError):
    """No connection came to stand in time."""


class ProxyFailed(ConnectFailed):
    """The proxy on the way did not connect us: nothing of it is about the server."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__("the proxy did not connect us")
        self.evidence = evidence


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy on the way."""

    host: str
    port: int
    tls: bool = False
    authorization: str = field(default="", repr=False)
    """The header that shows it who asks; empty where it wants none."""


@dataclass(frozen=True)
class HttpOrigin:
    """Where requests go. With ``unix`` they go to that socket, and host and port are only what the Host header says."""

    host: str
    port: int
    tls: bool
    unix: str = ""

    @property
    def authority(self) -> str:
        """As the Host header says it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class Pool:
    """The connections to one origin.

    ``tls`` is the context of its connections. One with a certificate chain presents it to a server that asks for one.
    ``check`` looks at each new connection before anything is sent over it, and raises ``ConnectFailed`` to refuse it.
    """

    def __init__(
        self,
        origin: HttpOrigin,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: Proxy | None = None,
        connect_within: float = 10.0,
        check: Callable[[asyncio.Transport], None] | None = None,
    ) -> None:
        self.origin = origin
        self._authority = origin.authority
        self._check = check
        self._tls = tls
        self._proxy = proxy
        self._connect_within = connect_within
        self._loop = asyncio.get_running_loop()
        self._idle: deque[PooledConnection] = deque()
        self._all: set[PooledConnection] = set()
        self._ending: dict[PooledConnection, float] = {}
        """Connections whose answer has not ended though its reader has left, and since when."""
        self._last_head: tuple[tuple[str, str, Mapping[str, str]], bytes] = ("", "", {}), b""
        """What was asked last, as it was written: the next call has the same headers, but for its length."""
        self._closed = False
        self.reached = False
        """Whether a connection has stood."""
        self._keep_none_until = 0.0
        self._sweeper: asyncio.TimerHandle | None = None

    async def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Response:
        """Send one request; the answer's head. For a peer that needs no credentials; ``HttpPeer.send`` has them."""
        connection = self.free() or await self.connected()
        answer = connection.begin(self.head(method, target, headers, body), body or b"")
        try:
            return await answer
        except BaseException as exc:
            self.give_up(connection, answer, exc)
            raise

    def head(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """The head of a request. Names of headers are in lower case."""
        # A call takes 160 µs, and to write the head again is 2 of them.
        if self._last_head[0] != (method, target, headers):
            self._last_head = (method, target, dict(headers)), self._written(method, target, headers)
        length = b""
        if body is not None or method == "POST":  # a POST without a length is refused by some servers
            length = b"content-length: %d\r\n" % len(body or b"")
        return b"%b%b\r\n" % (self._last_head[1], length)

    def _written(self, method: str, target: str, headers: Mapping[str, str]) -> bytes:
        """The head of a request without its length."""
        proxy = self._proxy
        if proxy is not None and not self.origin.tls:
            target = f"http://{self._authority}{target}"
        lines = [f"{method} {target} HTTP/1.1\r\n"]
        if "host" not in headers:  # a definition may name another Host
            lines.append(f"host: {self._authority}\r\n")
        lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
        if proxy is not None and proxy.authorization and not self.origin.tls:
            lines.append(f"proxy-authorization: {proxy.authorization}\r\n")
        return "".join(lines).encode("latin-1")

    def free(self) -> PooledConnection | None:
        """The connection that was used last, if it can be used: the others age meanwhile and are dropped."""
        now = self._loop.time()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable(now):
                return connection
            self._drop(connection)
        return None

    async def connected(self) -> PooledConnection:
        """A new connection."""
        try:
            async with asyncio.timeout(self._connect_within):
                connection = await self._connect()
        except TimeoutError as exc:
            raise ConnectTimedOut from exc
        except ConnectFailed:
            raise
        except (OSError, UnicodeError) as exc:
            raise ConnectFailed(*exc.args) from exc
        if self._check is not None:
            try:
                self._check(connection.transport)
            except ConnectFailed:
                connection.abort()
                raise
        # Those that their peers closed leave here: no event tells the pool of them.
        self._all = {one for one in self._all if not one.closed}
        self._all.add(connection)
        self.reached = True
        return connection

    def give_up(self, connection: PooledConnection, answer: asyncio.Future[Response], exc: BaseException) -> bool:
        """The answer did not come, or is not wanted any more: the connection is of no further use.

        Returns whether it is a kept connection whose peer had closed it, as it may while a request is on its way.
        """
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            answer.result().close()
        else:
            connection.abort()
        # On a new connection the same exceptions say something about the server.
        met_end = connection.is_kept and isinstance(exc, Disconnected | ConnectionResetError | BrokenPipeError)
        if met_end:
            self._keep_none_until = self._loop.time() + CLOSING_SECONDS
        return met_end

    async def aclose(self) -> None:
        """Close every connection."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._all):
            connection.abort()
        # A connection refers to its pool: without these each would keep the other until a collection of cycles.
        self._all.clear()
        self._idle.clear()
        self._ending.clear()

    def release(self, connection: PooledConnection) -> None:
        """A connection is free for the next request."""
        self._ending.pop(connection, None)
        connection.idle_since, connection.is_kept = self._loop.time(), True
        # A dial may have been under way when the pool was closed: nothing else would close its connection. One that is
        # not known yet has only a proxy's answer to CONNECT: nothing may be sent over it.
        if self._closed or connection not in self._all or connection.idle_since < self._keep_none_until:
            self._drop(connection)
            return
        self._idle.append(connection)
        if len(self._idle) > IDLE_CONNECTIONS:
            self._drop(self._idle.popleft())
        if self._sweeper is None:
            self._sweeper = self._loop.call_at(_next_sweep(connection.idle_since), self._sweep)

    def await_end(self, connection: PooledConnection) -> None:
        """The reader of an answer has left. Its connection is released at the end of the answer, if that comes soon."""
        now = self._ending[connection] = self._loop.time()
        if self._sweeper is None:
            self._sweeper = self._loop.call_at(_next_sweep(now), self._sweep)

    def _sweep(self) -> None:
        """Close connections that were idle for long; one timer for all connections, and none where nothing is idle."""
        now = self._loop.time()
        while self._idle and (self._idle[0].closed or now - self._idle[0].idle_since >= IDLE_SECONDS):
            self._drop(self._idle.popleft())
        for connection in [one for one, since in self._ending.items() if one.closed or now - since >= IDLE_SECONDS]:
            self._drop(connection)
        waits = self._idle or self._ending
        self._sweeper = self._loop.call_at(_next_sweep(now), self._sweep) if waits else None

    def _drop(self, connection: PooledConnection) -> None:
        self._all.discard(connection)
        self._ending.pop(connection, None)
        connection.abort()

    async def _connect(self) -> PooledConnection:
        proxy, origin = self._proxy, self.origin
        if origin.unix:
            return await dial_unix(lambda: PooledConnection(self), origin.unix)
        host, port = (proxy.host, proxy.port) if proxy is not None else (origin.host, origin.port)
        first_tls = self._tls if (proxy.tls if proxy is not None else origin.tls) else None
        try:
            connection = await dial(lambda: PooledConnection(self), host, port, first_tls)
        except (OSError, UnicodeError) as exc:
            if proxy is None or isinstance(exc, TimeoutError):
                raise
            raise ProxyFailed(_no_proxy(_from_chain(exc, stood=False))) from exc
        if proxy is not None and origin.tls:
            try:
                return await self._tunnel(connection, proxy)
            except BaseException:
                connection.abort()
                raise
        return connection

    async def _tunnel(self, plain: PooledConnection, proxy: Proxy) -> PooledConnection:
        """Have the proxy connect us, then speak TLS with the origin through it."""
        loop, origin = asyncio.get_running_loop(), self.origin
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        credentials = f"proxy-authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
        wanted = f"CONNECT {host}:{origin.port} HTTP/1.1\r\nhost: {host}:{origin.port}\r\n{credentials}\r\n"
        try:
            answer = await plain.begin(wanted.encode("latin-1"), b"", tunnels=True)
        except OSError as exc:
            lost = NetworkFailure(fault=NetworkFault.PROXY_FAILED, detail="it closed the connection")
            raise ProxyFailed(lost) from exc
        except NotHttp as exc:
            detail = str(exc) if isinstance(exc, BrokenHttp) else NOT_HTTP
            raise ProxyFailed(NetworkFailure(fault=NetworkFault.PROXY_REFUSED, detail=detail)) from exc
        if not 200 <= answer.status < 300:
            raise ProxyFailed(_refused_by_proxy(answer.status))
        assert self._tls is not None  # noqa: S101 - an origin with TLS has a context
        connection = PooledConnection(self)
        secure = await loop.start_tls(
            plain.transport, connection, self._tls, server_hostname=origin.host, ssl_handshake_timeout=NO_LIMIT
        )
        connection.connection_made(secure)  # type: ignore[arg-type]  # None only where the handshake failed, which raises
        return connection


def _next_sweep(now: float) -> float:
    """When a connection that is idle from now on may be closed. All pools use the same times.

    So five hundred servers that are listed one after the other wake the event loop once to close what they used.
    """
    return (now // IDLE_SECONDS + 2) * IDLE_SECONDS


STAGGER_SECONDS: Final = 0.25
"""Before the next address of a name is tried beside the first (RFC 8305)."""

NO_LIMIT: Final = 24 * 3600.0
"""For a TLS handshake. An event loop ends one after a minute otherwise, and the caller may allow more."""


_P = TypeVar("_P", bound=Any)


async def dial(make: Callable[[], _P], host: str, port: int, tls: ssl.SSLContext | None) -> _P:
    """A connection to whichever address of a name answers first; each next one is tried a moment later.

    The caller bounds the time.
    """
    loop = asyncio.get_running_loop()
    secure: dict[str, Any] = {}
    if tls is not None:
        secure = {"ssl": tls, "server_hostname": host, "ssl_handshake_timeout": NO_LIMIT}

    async def one(address: str) -> _P:
        _, protocol = await loop.create_connection(make, address, port, **secure)
        return protocol

    addresses = deque(await _addresses(host, port))
    if len(addresses) == 1:  # as for most servers: nothing has to run beside it
        return await one(addresses[0])
    under_way: set[asyncio.Task[_P]] = set()
    failures: list[BaseException] = []
    try:
        while addresses or under_way:
            if addresses:
                under_way.add(loop.create_task(one(addresses.popleft())))
            wait = STAGGER_SECONDS if addresses else None
            done, _ = await asyncio.wait(under_way, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (failure := task.exception()) is None:
                    under_way.discard(task)
                    return task.result()
                under_way.discard(task)
                failures.append(failure)
        raise failures[0]
    finally:
        for task in under_way:
            task.cancel()
        for outcome in await asyncio.gather(*under_way, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                outcome.abort()


async def dial_unix(make: Callable[[], _P], path: str) -> _P:
    """A connection to a Unix socket of this user. The caller bounds the time."""
    try:
        transport, protocol = await asyncio.get_running_loop().create_unix_connection(make, path)
    except FileNotFoundError as exc:  # no socket at that path means the same as a port on which nothing listens
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)) from exc
    if unix_peer_uid(transport.get_extra_info("socket")) != os.geteuid():
        transport.abort()
        raise PermissionError(errno.EACCES, "another user listens on the Unix socket")
    return protocol


_LINUX_CREDENTIALS: Final = struct.Struct("=iII")
"""``struct ucred``: pid, uid, gid."""
_BSD_CREDENTIALS: Final = struct.Struct("=II")
"""The beginning of ``struct xucred``: its version, and the uid."""


def unix_peer_uid(connection: Any) -> int | None:
    """The user at the other end of a Unix socket, as the kernel noted it at ``connect``; None if it is not known."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            noted = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _LINUX_CREDENTIALS.size)
            return int(_LINUX_CREDENTIALS.unpack(noted)[1])
        noted = connection.getsockopt(0, 1, _BSD_CREDENTIALS.size)  # SOL_LOCAL, LOCAL_PEERCRED
        return int(_BSD_CREDENTIALS.unpack(noted)[1])
    except (OSError, struct.error):
        return None


async def _addresses(host: str, port: int) -> list[str]:
    """The addresses of a name, the families in turn: one that does not work must not hold up the other."""
    if ":" in host or host.replace(".", "").isdigit():
        return [host]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    by_family: dict[int, list[str]] = {}
    for family, _, _, _, address in found:
        by_family.setdefault(family, []).append(str(address[0]))
    lists = [list(dict.fromkeys(addresses)) for addresses in by_family.values()]
    longest = max(map(len, lists), default=0)
    return [addresses[turn] for turn in range(longest) for addresses in lists if turn < len(addresses)]


# What a failure shows, by the types and the numbers of exceptions: a text of the peer decides nothing. Exceptions
# become evidence here, and nowhere else.

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
        case ProxyFailed(evidence=evidence):
            return evidence
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


def _refused_by_proxy(status: int) -> Evidence:
    """What a proxy's answer to CONNECT shows."""
    if status == 407:
        return HttpStatus(status=status)
    passing = status_class(status) == "transient"
    fault = NetworkFault.PROXY_FAILED if passing else NetworkFault.PROXY_REFUSED
    return NetworkFailure(fault=fault, detail=f"it answered HTTP {status}")


def _no_proxy(seen: Evidence) -> NetworkFailure:
    """What happened on the way to the proxy: nothing of it is about the server."""
    if not isinstance(seen, NetworkFailure):
        return NetworkFailure(fault=NetworkFault.PROXY_REFUSED, detail="the TLS handshake with it failed")
    unknown = seen.fault is NetworkFault.NAME_RESOLUTION
    fault = NetworkFault.PROXY_REFUSED if unknown else NetworkFault.PROXY_FAILED
    return NetworkFailure(fault=fault, detail=_PROXY.get(seen.fault, "the connection to it failed"))


def _from_chain(exc: BaseException, *, stood: bool) -> Evidence:
    """The first cause in the chain with a certificate, a name or an errno."""
    found = list(causes(exc))
    for cause in found:
        if isinstance(cause, ssl.SSLError):
            return _tls_fault(cause, stood=stood)
        if isinstance(cause, socket.gaierror):
            return NetworkFailure(fault=NetworkFault.NAME_RESOLUTION)
    for cause in found:
        if isinstance(cause, OSError) and (fault := _ERRNO.get(cause.errno or 0)):
            return NetworkFailure(fault=fault, stood=stood)
        if isinstance(cause, ConnectionResetError):  # event loops say so of a peer that leaves during the TLS handshake
            return NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
    return NetworkFailure(fault=NetworkFault.CLOSED if stood else NetworkFault.OTHER, stood=stood)


_ABOUT_OURS = re.compile(r"ALERT_(BAD_CERTIFICATE|CERTIFICATE_|UNKNOWN_CA|ACCESS_DENIED)")
"""OpenSSL's names of the alerts by which a peer refuses the certificate of its client, or the lack of one."""


def _tls_fault(exc: ssl.SSLError, *, stood: bool) -> Evidence:
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
