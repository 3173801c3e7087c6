"""The HTTP client of one server: fresh headers, credentials for its origin alone, every refusal as evidence.

One ``HttpPeer`` is one server's endpoint. A request yields a response, whose body the caller reads, or raises
``ServerFailure``. A failed request affects no other. Exceptions of the network and of the HTTP library become evidence
here, and nowhere else: by exception type and errno, and never by text of the peer.
"""

from __future__ import annotations

import errno
import inspect
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias

import anyio
import httpx2

from holdfast.config import Limits, ServerSpec
from holdfast.core import (
    BadConfig,
    CredentialsUnavailable,
    Evidence,
    HttpStatus,
    Login,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    OverBound,
    PlainHttpRefused,
    Redactor,
    Redirected,
    TimedOut,
    TlsFailure,
    TlsFault,
    is_loopback,
    is_outage_body,
)
from holdfast.errors import ServerFailure

__all__ = [
    "EVENT_STREAM",
    "NOT_HTTP",
    "Authorize",
    "Authorizer",
    "HttpPeer",
    "content_type",
    "evidence_of",
    "over_message_bound",
    "read_bounded",
    "read_events",
    "ssl_context",
    "translated",
]


class Authorizer(Protocol):
    """The login of one server. Its methods raise ``ServerFailure`` where a token cannot be had."""

    async def token(self) -> str | None:
        """The access token for the next request; None without a login."""

    async def renewed(self, refused: str) -> bool:
        """The server refused this token; returns whether there is another one now."""

    def login(self) -> Login:
        """The state of the login, and the command for a new one."""


Authorize: TypeAlias = Callable[[ServerSpec], Authorizer | None]
"""Finds a server's authorizer; None for a server that takes no login."""


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


EVENT_STREAM = "text/event-stream"
"""The content type of a stream of server-sent events."""

CONNECT_SECONDS = 10.0
"""A longer TCP and TLS handshake has met a packet filter; the attempt's own deadline may be shorter."""

ERROR_BODY_BYTES = 64 * 1024
"""Enough of an error's body to hold a JSON-RPC error."""

ERROR_BODY_SECONDS = 2.0
"""How long an error's body is read: the status is known already."""

SHOWN_BODY = 2048
"""How much of an error's body is kept as evidence."""

MAX_REDIRECTS = 5

TELLING_HEADERS = ("content-type", "retry-after", "www-authenticate", "server", "via", "x-request-id")
"""The response headers that explain a refusal."""

_OWN = "holdfast.own_authorization"
"""Marks a request whose ``Authorization`` came from the server's definition."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class HttpPeer:
    """One server's HTTP endpoint: its URL, its credentials and its connections."""

    def __init__(
        self, spec: ServerSpec, limits: Limits, redactor: Redactor, authorizer: Authorizer | None = None
    ) -> None:
        self.limits = limits
        self._headers = spec.headers
        self._authorizer = authorizer
        self._redactor = redactor
        try:
            self.url = httpx2.URL(spec.url)
        except (httpx2.InvalidURL, TypeError, ValueError) as exc:
            raise ServerFailure(BadConfig(problems=("its URL cannot be read",), hint="check `url`")) from exc
        self.credentials = bool(spec.headers) or bool(self.url.userinfo)
        self._exposed = self.url.scheme == "http" and not (spec.allow_plain_http or is_loopback(self.url.host))
        if self.credentials and self._exposed:
            raise ServerFailure(PlainHttpRefused())
        self._client = httpx2.AsyncClient(
            verify=ssl_context(),
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            headers={"accept-encoding": "identity", "user-agent": "holdfast"},
            follow_redirects=False,
            trust_env=not is_loopback(self.url.host),  # there is no proxy between us and this machine
        )

    async def aclose(self) -> None:
        """Close every connection to the server."""
        await self._client.aclose()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: httpx2.URL,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        doing: str,
        on_sending: Callable[[], None] | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        """One request; yields a 2xx or an error response, raises ``ServerFailure`` if there is none.

        A request that is refused for its token is made once more if there is another token: the server did nothing yet.
        ``on_sending`` is called when the connection is open and the request is about to be sent.
        """
        with translated(doing):
            asked = _Asked(method, url, headers, content, _trace(url, on_sending))
            response, token = await self._authorized(asked)
            if response.status_code == 401 and token is not None and await self._renewed(response, token):
                response, _ = await self._authorized(asked)
            try:
                yield response
            finally:
                with anyio.CancelScope(shield=True):
                    await response.aclose()

    async def refusal(self, response: httpx2.Response) -> tuple[HttpStatus, bytes]:
        """An error response as evidence, and enough of its body for a JSON-RPC error."""
        body = await _head(response, ERROR_BODY_BYTES)
        text = body.decode("utf-8", "replace")
        headers = {name: response.headers[name] for name in TELLING_HEADERS if name in response.headers}
        seen = HttpStatus(
            status=response.status_code,
            headers=headers,
            # An outage is recognised by its exact words, so masking must not change them.
            body=text if is_outage_body(text) else _cut(self._redactor.mask(text)),
            retry_after=_retry_after(headers.get("retry-after"), time.time()),
            credentials_sent=self.credentials,
            login=self._login(response.request),
        )
        return seen, body

    async def _authorized(self, asked: _Asked) -> tuple[httpx2.Response, str | None]:
        """Send a request with current headers and token; returns the token too, if one was sent."""
        own = await self._fresh_headers()
        token = None if "authorization" in own else await self._token()
        bearer = {"authorization": f"Bearer {token}"} if token is not None else {}
        merged = {**bearer, **own, **asked.headers}
        request = self._client.build_request(
            asked.method, asked.url, headers=merged, content=asked.content, extensions=asked.extensions
        )
        request.extensions[_OWN] = "authorization" in own
        with _unlogged():
            return await self._send(request), token

    def _login(self, refused: httpx2.Request) -> Login | None:
        """The state of the login, unless the request used an ``Authorization`` of the definition."""
        if self._authorizer is None or refused.extensions.get(_OWN):
            return None
        return self._authorizer.login()

    async def _token(self) -> str | None:
        token = await self._authorizer.token() if self._authorizer is not None else None
        if token is not None:
            if self._exposed:
                raise ServerFailure(PlainHttpRefused())
            self._redactor.learn(token)
        return token

    async def _renewed(self, refusal: httpx2.Response, token: str) -> bool:
        """Whether there is another token. If so, or if the check fails, the refusal is closed."""
        assert self._authorizer is not None  # noqa: S101 - it gave the token
        another = True
        try:
            another = await self._authorizer.renewed(token)
        finally:
            if another:
                with anyio.CancelScope(shield=True):
                    await refusal.aclose()
        return another

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send; follow a redirect only within the origin and only if it keeps method and body."""
        response = await self._client.send(request, stream=True)
        for _ in range(MAX_REDIRECTS):
            following = response.next_request
            if following is None or not _keeps_to(request, following):
                break
            await response.aclose()
            request = following
            response = await self._client.send(request, stream=True)
        if response.next_request is None:
            return response
        await response.aclose()
        location = response.next_request.url.copy_with(userinfo=b"", query=None, fragment=None)
        raise ServerFailure(Redirected(status=response.status_code, location=str(location)))

    async def _fresh_headers(self) -> Mapping[str, str]:
        """The configured headers, from the callable where there is one; each value is a secret."""
        source = self._headers
        if not callable(source):
            return _checked(source)
        try:
            given = source()
            headers = await given if inspect.isawaitable(given) else given
        except Exception as exc:
            network = evidence_of(exc, doing="") is not None
            raise ServerFailure(CredentialsUnavailable(type=type(exc).__name__, network=network)) from exc
        if not isinstance(headers, Mapping):
            raise ServerFailure(CredentialsUnavailable(type=f"it gave a {type(headers).__name__}"))
        checked = _checked(headers)
        self._redactor.learn(*checked.values())
        return checked


_OURS: ContextVar[bool] = ContextVar("a request of Holdfast", default=False)


def _is_of_others(record: logging.LogRecord) -> bool:  # noqa: ARG001 - the signature of a filter
    return not _OURS.get()


# The HTTP client logs the address of each request, and an address may hold a secret.
logging.getLogger("httpx2").addFilter(_is_of_others)


@contextmanager
def _unlogged() -> Iterator[None]:
    token = _OURS.set(True)
    try:
        yield
    finally:
        _OURS.reset(token)


class translated:  # noqa: N801 - used as `with translated("…"):`
    """In the block, exceptions of the HTTP client become ``ServerFailure`` with evidence."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._began = anyio.current_time()

    def __enter__(self) -> None:
        """Nothing is set up."""

    def __exit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        if isinstance(exc, Exception) and not isinstance(exc, ServerFailure):
            evidence = evidence_of(exc, doing=self._doing, after=round(anyio.current_time() - self._began, 1))
            if evidence is not None:
                raise ServerFailure(evidence) from exc


async def read_bounded(response: httpx2.Response, limits: Limits) -> bytes:
    """A whole body, unless it is over the bound on a message."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limits.message_bytes:
            raise ServerFailure(over_message_bound(limits))
    return bytes(body)


async def read_events(
    response: httpx2.Response, limits: Limits, *, silence: float | None = None
) -> AsyncIterator[httpx2.ServerSentEvent]:
    """The events of a stream until it ends; one that is over the bound on a message raises ``ServerFailure``.

    With ``silence``, a stream that sends nothing for so many seconds, not even a comment, counts as lost.
    """
    if silence is not None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - an async client gives no other
        response.stream = _SilenceBound(response.stream, silence)
    try:
        async for event in httpx2.EventSource(response, max_event_size=limits.message_bytes):
            yield event
    except httpx2.SSEError as exc:
        raise ServerFailure(over_message_bound(limits)) from exc


class _SilenceBound(httpx2.AsyncByteStream):
    """A response's bytes; a pause that is too long ends them with ``ServerFailure``."""

    def __init__(self, stream: httpx2.AsyncByteStream, silence: float) -> None:
        self._stream = stream
        self._silence = silence

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = self._stream.__aiter__()
        while (chunk := await self._next(chunks)) is not None:
            yield chunk

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        with anyio.move_on_after(self._silence):
            return await anext(chunks, None)
        raise ServerFailure(NetworkFailure(fault=NetworkFault.CLOSED, stood=True))

    async def aclose(self) -> None:
        await self._stream.aclose()


def content_type(response: httpx2.Response) -> str:
    """The content type without its parameters, in lower case; empty where there is none."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def over_message_bound(limits: Limits) -> OverBound:
    """The evidence of an answer that is too large."""
    return OverBound(bound="the size of a message", limit=limits.message_bytes, setting="holdfast.limits.messageBytes")


class _Asked(NamedTuple):
    """A request before it has credentials."""

    method: str
    url: httpx2.URL
    headers: Mapping[str, str]
    content: bytes | None
    extensions: dict[str, Any] | None


def _trace(url: httpx2.URL, on_sending: Callable[[], None] | None) -> dict[str, Any] | None:
    """A trace for one request that closes its socket if a cancellation ends the TLS handshake.

    The HTTP client closes it only when the handshake fails by itself. A socket to a server that never answers would
    otherwise stay open.
    """
    if url.scheme != "https" and on_sending is None:
        return None
    sockets: list[Any] = []

    async def trace(event: str, info: Mapping[str, Any]) -> None:
        if event.endswith("send_request_headers.started") and on_sending is not None:
            on_sending()
        elif event.endswith("connect_tcp.complete"):
            sockets.append(info["return_value"])
        elif event.endswith("start_tls.failed"):
            with anyio.CancelScope(shield=True):
                for opened in sockets:
                    await opened.aclose()

    return {"trace": trace}


def _cut(text: str) -> str:
    """The part that is kept; a cut ends with an ellipsis."""
    return text if len(text) <= SHOWN_BODY else text[: SHOWN_BODY - 1] + "…"


async def _head(response: httpx2.Response, size: int) -> bytes:
    """The beginning of a body; a broken body yields the part that came."""
    body = bytearray()
    with anyio.move_on_after(ERROR_BODY_SECONDS), suppress(httpx2.TransportError, httpx2.DecodingError):
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) >= size:
                break
    return bytes(body[:size])


def ssl_context() -> ssl.SSLContext:
    """The certificate authorities that every connection trusts: the usual ones, or those of the environment."""
    return _ssl_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=8)
def _ssl_context(*made_from: str | None) -> ssl.SSLContext:  # noqa: ARG001 - the key of the cache
    """One context for all servers, since it is the costly part of a client; the arguments are its cache key."""
    try:
        return httpx2.create_ssl_context()
    except OSError as exc:
        problem = "the file or folder of trusted certificates cannot be read"
        raise ServerFailure(BadConfig(problems=(problem,), hint="check SSL_CERT_FILE and SSL_CERT_DIR")) from exc


def _keeps_to(request: httpx2.Request, following: httpx2.Request) -> bool:
    """Whether a redirect stays on the origin, keeps the method (and so the body), and adds no user info."""
    here, there = request.url, following.url
    upgrade = (here.scheme, there.scheme) == ("http", "https") and here.port is None and there.port is None
    same = (here.scheme, here.port) == (there.scheme, there.port) or upgrade
    return (
        same
        and here.host == there.host
        and following.method == request.method
        and (not there.userinfo or there.userinfo == here.userinfo)
    )


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        good = type(name) is type(value) is str and _HEADER_NAME.fullmatch(name) and value.isascii()
        if not good or _BAD_IN_VALUE.search(value):
            problem = f"the header {name!r} cannot be sent: a name must be a token, a value printable ASCII on one line"
            raise ServerFailure(BadConfig(problems=(problem,), hint="check `headers`"))
    return {name.lower(): value.strip() for name, value in headers.items()}


def _retry_after(value: str | None, now: float) -> float | None:
    """Seconds from now, from either form of ``Retry-After``; None for an invalid value."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (TypeError, ValueError, OverflowError):
        return None
