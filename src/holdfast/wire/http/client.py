"""The HTTP client of one server: fresh headers, credentials for its origin alone, every refusal as evidence.

One ``HttpPeer`` is one server's endpoint. A request yields a response, whose body the caller reads, or raises
``ServerFailure``. A failed request affects no other. Exceptions become evidence in ``pool``.

What can happen to a request, beside an answer:

- A redirect. It is followed within the origin only, and only where method and body stay the same: another origin would
  get our credentials, and a POST that becomes a GET is another request. HTTPS to HTTP is never followed.
- A 401 to a token of a login. The server did nothing yet, so the request is sent once more if there is another token.
- The peer closed a kept connection while the request was on its way. The server may have acted, so only a request that
  it may get twice is sent again, and on a new connection: the peer may have closed all that were kept.

What must never happen: a credential goes over an open line, except to this machine or where the definition allows it
(``Credentials``); a credential or a session id stands in a text; a text of the server decides what an exception means.
"""

from __future__ import annotations

import base64
import inspect
import os
import re
import ssl
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from types import TracebackType
from typing import Protocol, Self, TypeAlias
from urllib.parse import unquote, urlsplit

import anyio
import httpx2

from holdfast.config import UNIX, HeaderSource, Limits, ServerSpec
from holdfast.core import (
    LONGEST_BODY,
    BadConfig,
    CredentialsUnavailable,
    HttpStatus,
    Login,
    PlainHttpRefused,
    Redactor,
    Redirected,
    Statement,
    TimedOut,
    is_loopback,
    stated_in,
)
from holdfast.errors import ServerFailure
from holdfast.wire.http.answer_parser import BadEncoding, BrokenHttp, NotHttp, ServerEvent
from holdfast.wire.http.connection import EVENT_STREAM, Response, ServerEvents, over_message_bound
from holdfast.wire.http.pool import HttpOrigin, Pool, Proxy, evidence_of

__all__ = [
    "ApiClient",
    "Authorize",
    "Authorizer",
    "HttpAnswer",
    "HttpPeer",
    "content_type",
    "exchange",
    "fetch",
    "read_bounded",
    "ssl_context",
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


CONNECT_SECONDS = 9.0
"""A longer TCP and TLS handshake has met a packet filter, unless the attempts of a server may take longer."""

ERROR_BODY_BYTES = 64 * 1024
"""Enough of an error's body to hold a JSON-RPC error."""

ERROR_BODY_SECONDS = 2.0
"""How long an error's body is read: the status is known already."""

MAX_REDIRECTS = 5

LONGEST_TELLING = 8 * 1024
"""How much of such a header is kept: a challenge is searched on the event loop."""

LEAVING_HEADER = "holdfast-leaving"
"""In the 503 of a hub that ends: it did nothing for the request, and the next hub serves it."""
TELLING_HEADERS = ("content-type", "retry-after", "www-authenticate", "server", "via", "x-request-id", LEAVING_HEADER)
"""The response headers that explain a refusal."""

REDIRECTS = frozenset({301, 302, 303, 307, 308})

_DEFAULT_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "holdfast"}

_HeaderCallable: TypeAlias = Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Credentials:
    """What shows one server who asks: the headers of its definition, the user info of its URL, and a login's token.

    They go over no open line and into no text: each is a secret of the redactor.
    """

    def __init__(self, spec: ServerSpec, url: httpx2.URL, redactor: Redactor, authorizer: Authorizer | None) -> None:
        self._redactor = redactor
        self._authorizer = authorizer
        self.are_given = bool(spec.headers) or bool(url.userinfo)
        """Whether the definition has some."""
        self._exposed = url.scheme == "http" and not (spec.allow_plain_http or is_loopback(url.host))
        if self.are_given and self._exposed:
            raise ServerFailure(PlainHttpRefused())
        self._basic = _basic(url)
        self._headers = spec.headers if callable(spec.headers) else _checked(spec.headers)
        """The configured headers, or what gives them afresh for each request."""
        self._own_authorization = False
        """Whether the latest request used an ``Authorization`` of the server's definition."""

    async def current(self) -> tuple[Mapping[str, str], str | None]:
        """The headers of the next request, not to be changed, and the token among them if a login gave it."""
        own = await self._fresh(self._headers) if callable(self._headers) else self._headers
        self._own_authorization = "authorization" in own
        token = None
        if self._authorizer is not None and not self._own_authorization:
            token = await self._authorizer.token()
        if token is not None:
            if self._exposed:
                raise ServerFailure(PlainHttpRefused())
            self._redactor.learn(token)
            return {**own, "authorization": f"Bearer {token}"}, token
        return {"authorization": self._basic, **own} if self._basic else own, None

    async def renewed(self, refused: str) -> bool:
        """Whether there is another token than the one that the server refused."""
        return self._authorizer is not None and await self._authorizer.renewed(refused)

    def login(self) -> Login | None:
        """The state of the login, unless the request used an ``Authorization`` of the definition."""
        return None if self._authorizer is None or self._own_authorization else self._authorizer.login()

    async def _fresh(self, source: _HeaderCallable) -> Mapping[str, str]:
        """The configured headers, from the callable; each value is a secret."""
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

    def __repr__(self) -> str:
        return f"<Credentials {'given' if self.are_given else 'none given'}{', a login' if self._authorizer else ''}>"


MOST_COOKIES = 50
"""As many as browsers keep for one site, and more than any balancer sets."""


class StickyCookies:
    """What a balancer sets to find the same server again; no other cookie of a server means anything here."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self.header: Mapping[str, str] = {}
        """The header of a request; none without cookies."""

    def note(self, lines: str) -> None:
        """Keep the cookies of a ``set-cookie`` header, one in a line; one that has expired is dropped."""
        for line in lines.split("\n"):
            pair, *attributes = line.split(";")
            name, equals, value = pair.strip().partition("=")
            gone = any(one.strip().lower().replace(" ", "") in ("max-age=0", "max-age=-1") for one in attributes)
            if gone or not equals or _BAD_IN_VALUE.search(value) or not value.isascii():
                self._values.pop(name, None)
            elif _HEADER_NAME.fullmatch(name) and (name in self._values or len(self._values) < MOST_COOKIES):
                self._values[name] = value
        pairs = "; ".join(f"{name}={value}" for name, value in self._values.items())
        self.header = {"cookie": pairs} if pairs else {}


class HttpPeer:
    """One server's HTTP endpoint: its URL, its credentials and its connections.

    ``tls`` replaces the usual context, for another authority or a certificate of our own.
    """

    def __init__(
        self,
        spec: ServerSpec,
        redactor: Redactor,
        authorizer: Authorizer | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        connect_within: float = CONNECT_SECONDS,
    ) -> None:
        self._connect_within = connect_within
        self._tls = tls
        self._direct = bool(spec.hub)  # a hub of the fleet is reached as it is, never through a proxy
        self._unix = spec.hub.removeprefix(UNIX) if spec.hub.startswith(UNIX) else ""
        self.redactor = redactor
        try:
            self.url = httpx2.URL(spec.url)
        except (httpx2.InvalidURL, TypeError, ValueError) as exc:
            raise ServerFailure(BadConfig(problems=("its URL cannot be read",), hint="check `url`")) from exc
        self._credentials = Credentials(spec, self.url, redactor, authorizer)
        self._pools: dict[str, Pool] = {}
        """By scheme: every request goes to one host, and a redirect may lead from HTTP to HTTPS."""
        self._cookies = StickyCookies()

    @property
    def connecting(self) -> bool:
        """Whether it was dialed and no connection has stood yet."""
        return bool(self._pools) and not any(pool.reached for pool in self._pools.values())

    async def aclose(self) -> None:
        """Close every connection to the server."""
        for pool in self._pools.values():
            await pool.aclose()

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
    ) -> AsyncIterator[Response]:
        """One request; yields a 2xx or an error response, raises ``ServerFailure`` if there is none.

        A request that is refused for its token is made once more if there is another token: the server did nothing yet.
        ``on_sending`` is called when the connection is open and the request is about to be sent.
        """
        began = time.monotonic()
        try:
            response = await self.send(method, url, headers, content, on_sending=on_sending)
            try:
                yield response
            finally:
                response.close()
        except Exception as exc:
            seen = evidence_of(exc, doing=doing, after=round(time.monotonic() - began, 1))
            if seen is None:
                raise  # a failure with evidence, or a fault that is not about the network
            raise ServerFailure(seen) from exc

    async def send(
        self,
        method: str,
        url: httpx2.URL,
        headers: Mapping[str, str],
        content: bytes | None,
        *,
        on_sending: Callable[[], None] | None = None,
        again: bool = False,
        with_body: bool = False,
    ) -> Response:
        """Send a request with current headers and token. One that is refused for its token is sent again.

        The caller closes the response, and translates exceptions. A request is written once. A peer may close a kept
        connection while the next request is on its way: with ``again``, a request that met such an end is sent once
        more, only for those that a server may get twice. ``with_body`` as in ``PooledConnection.begin``.
        """
        refused, fresh, redirects = False, False, 0
        while True:
            pool = self._pools.get(url.scheme) or self._pool(url)
            target = url.raw_path.decode("ascii")
            own, token = await self._credentials.current()
            # The later one counts: a definition may replace our defaults, and no header of the protocol.
            given = {**_DEFAULT_HEADERS, **self._cookies.header, **own, **headers}
            connection = None if fresh else pool.free()
            if connection is None:
                connection = await pool.connected()
            if on_sending is not None:
                on_sending()
            head = pool.head(method, target, given, content)
            answer = connection.begin(head, content or b"", with_body=with_body)
            try:
                response = await answer
            except BaseException as exc:
                if not pool.give_up(connection, answer, exc) or not again:
                    raise
                fresh = True  # the peer may have closed all that were kept
                continue
            if "set-cookie" in response.headers:
                self._cookies.note(response.headers["set-cookie"])
            if response.status in REDIRECTS and "location" in response.headers:
                url = _following(method, url, response, may=redirects < MAX_REDIRECTS)
                redirects += 1
            elif response.status != 401 or token is None or refused or not await self._has_another(response, token):
                return response
            else:
                refused = True

    async def _has_another(self, refusal: Response, token: str) -> bool:
        """Whether there is another token. If so, or if the check fails, the refusal is closed."""
        another = True
        try:
            another = await self._credentials.renewed(token)
        finally:
            if another:
                refusal.close()
        return another

    async def refusal(self, response: Response) -> tuple[HttpStatus, bytes]:
        """An error response as evidence, and enough of its body for a JSON-RPC error."""
        body, whole = await _head(response, ERROR_BODY_BYTES)
        text = body.decode("utf-8", "replace")
        headers = {
            name: response.headers[name][:LONGEST_TELLING] for name in TELLING_HEADERS if name in response.headers
        }
        seen = HttpStatus(
            status=response.status,
            headers=headers,
            body=_cut(self.redactor.mask(text)),
            # Before masking and cutting, which change the text.
            stated=stated_in(text) if whole else Statement.DECISION,
            retry_after=_retry_after(headers.get("retry-after"), time.time()),
            credentials_sent=self._credentials.are_given,
            login=self._credentials.login(),
        )
        return seen, body

    def _pool(self, url: httpx2.URL) -> Pool:
        """New connections for a URL."""
        if url.scheme not in ("http", "https") or not url.host:
            problem = "its URL or a header cannot be used in an HTTP request"
            raise ServerFailure(BadConfig(problems=(problem,), hint="check `url`"))
        tls = url.scheme == "https"
        origin = HttpOrigin(url.raw_host.decode("ascii"), url.port or (443 if tls else 80), tls, self._unix)
        proxy = None if self._direct or is_loopback(url.host) else _proxy_for(url)
        context = (self._tls or ssl_context()) if tls or (proxy is not None and proxy.tls) else None
        pool = Pool(origin, tls=context, proxy=proxy, connect_within=self._connect_within)
        self._pools[url.scheme] = pool
        return pool

    def __repr__(self) -> str:
        shown = self.url.copy_with(userinfo=b"", query=None)
        return f"<HttpPeer {shown} {self._credentials!r} pools={len(self._pools)}>"


async def read_bounded(response: Response, limits: Limits) -> bytes | bytearray:
    """A whole body, unless it is over the bound on a message."""
    body = await response.read(limits.message_bytes)
    if body is None:
        raise ServerFailure(over_message_bound(limits))
    return body


def content_type(response: Response) -> str:
    """The content type without its parameters, in lower case; empty where there is none. Some proxies repeat it."""
    return response.headers.get("content-type", "").partition(",")[0].partition(";")[0].strip().lower()


# Peers that are no MCP servers: a document, an authorization server, or a small web API with an event stream. The
# caller interprets an answer, an error status too.

LARGEST = 16 << 20
LARGEST_ANSWER = 256 << 10
"""How many bytes of an authorization server's answer are read: it is parsed in one step of the event loop."""


@dataclass(frozen=True)
class HttpAnswer:
    """What came back; an error status is an answer too."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class ApiClient:
    """One API at one base URL, with its connections. Use it in an ``async with``."""

    def __init__(
        self,
        url: str,
        *,
        headers: HeaderSource | None = None,
        allow_plain_http: bool = False,
        largest: int = 64 << 20,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        given = headers or {}
        spec = ServerSpec(id="api", transport="http", url=url, headers=given, allow_plain_http=allow_plain_http)
        self._peer = HttpPeer(spec, Redactor(() if callable(given) else given.values()), tls=tls)
        self._limits = Limits(message_bytes=largest)
        self._base = url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._peer.aclose()

    async def read(self, *, within: float) -> bytes:
        """The body of a GET of the base URL; ``ServerFailure`` for an error status too."""
        async with self._response("GET", "", {}, within=within, doing="the document") as response:
            if response.status >= 300:
                raise ServerFailure((await self._peer.refusal(response))[0])
            return bytes(await read_bounded(response, self._limits))

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        doing: str = "its answer",
        within: float,
        on_sending: Callable[[], None] | None = None,
    ) -> HttpAnswer:
        """Send one request. Without headers of its own, a body is JSON."""
        if headers is None:
            headers = {"content-type": "application/json"} if body is not None else {}
        async with self._response(
            method, path, headers, body=body, within=within, doing=doing, on_sending=on_sending
        ) as response:
            return await self._whole(response)

    async def events(self, path: str, *, silence: float) -> AsyncGenerator[ServerEvent | HttpAnswer, None]:
        """The events of a stream until it ends; one ``HttpAnswer`` where there is no stream.

        A stream that sends nothing for ``silence`` seconds, not even a comment, counts as lost. So does one that has
        not begun by then.
        """
        async with AsyncExitStack() as stack:
            response = await self._opened(stack, path, silence)
            if isinstance(response, HttpAnswer):
                yield response
                return
            stream = ServerEvents(response, self._limits, silence=silence)
            while (event := await stream.next()) is not None:
                if event.data:
                    yield event

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        *,
        body: bytes | None = None,
        within: float,
        doing: str,
        on_sending: Callable[[], None] | None = None,
    ) -> AsyncIterator[Response]:
        """An answer whose head is here. The block ends within so many seconds from the request on."""
        url = httpx2.URL(self._base + path)
        with anyio.move_on_after(within):
            async with self._peer.request(
                method, url, headers=headers, content=body, doing=doing, on_sending=on_sending
            ) as response:
                yield response
                return
        raise ServerFailure(TimedOut(doing=doing, after=within))

    async def _whole(self, response: Response) -> HttpAnswer:
        return HttpAnswer(response.status, response.headers, bytes(await read_bounded(response, self._limits)))

    async def _opened(self, stack: AsyncExitStack, path: str, within: float) -> Response | HttpAnswer:
        """A stream, which ends with the stack, or the answer that came instead."""
        request = self._peer.request("GET", httpx2.URL(self._base + path), headers={"accept": EVENT_STREAM}, doing=path)
        with anyio.move_on_after(within):
            response = await stack.enter_async_context(request)
            if response.status == 200 and content_type(response) == EVENT_STREAM:
                return response
            return await self._whole(response)
        raise ServerFailure(TimedOut(doing="its answer", after=within))


async def fetch(
    url: str,
    *,
    headers: HeaderSource | None = None,
    allow_plain_http: bool = False,
    within: float = 10.0,
    largest: int = LARGEST,
) -> bytes:
    """The body of a GET; ``ServerFailure`` with its evidence if there is none, or an error status."""
    async with ApiClient(url, headers=headers, allow_plain_http=allow_plain_http, largest=largest) as api:
        return await api.read(within=within)


async def exchange(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
    doing: str,
    within: float = 10.0,
    on_sending: Callable[[], None] | None = None,
) -> HttpAnswer:
    """One request to an authorization server, and its answer, an error status too; ``ServerFailure`` without one.

    ``on_sending`` is called when the connection is open and the request is about to be sent.
    """
    async with ApiClient(url, largest=LARGEST_ANSWER) as api:
        return await api.ask(
            method, "", headers=headers or {}, body=content, doing=doing, within=within, on_sending=on_sending
        )


def _basic(url: httpx2.URL) -> str:
    """The user info of a URL as the header that it stands for."""
    if not url.userinfo:
        return ""
    user, _, password = url.userinfo.decode("ascii").partition(":")
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"


def _proxy_for(url: httpx2.URL) -> Proxy | None:
    """The proxy that the environment names for this URL."""
    proxies = urllib.request.getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    if not named or urllib.request.proxy_bypass(url.host):
        return None
    written = named if "://" in named else f"http://{named}"
    try:
        proxy = httpx2.URL(written)
        # That takes half of an IPv6 address for a name, and any number for a port; these raise ValueError.
        parts = urlsplit(written)
        has_place = bool(parts.hostname) and parts.port != 0
    except (httpx2.InvalidURL, ValueError) as exc:
        raise ServerFailure(BadConfig(problems=("the proxy's URL cannot be read",), hint=_PROXY_HINT)) from exc
    if proxy.scheme not in ("http", "https"):
        raise ServerFailure(BadConfig(problems=(f"a proxy by {proxy.scheme} cannot be used",), hint=_PROXY_HINT))
    if not has_place:
        raise ServerFailure(BadConfig(problems=("the proxy's URL names no host and port",), hint=_PROXY_HINT))
    tls = proxy.scheme == "https"
    port = proxy.port or (443 if tls else 80)
    return Proxy(proxy.raw_host.decode("ascii"), port, tls, _basic(proxy))


_PROXY_HINT = "check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"


def _cut(text: str) -> str:
    """The part that is kept; a cut ends with an ellipsis."""
    return text if len(text) <= LONGEST_BODY else text[: LONGEST_BODY - 1] + "…"


async def _head(response: Response, size: int) -> tuple[bytes, bool]:
    """The beginning of a body, and whether that is all of it; a broken body yields the part that came."""
    body = bytearray()
    with anyio.move_on_after(ERROR_BODY_SECONDS), suppress(OSError, NotHttp, BadEncoding):
        while (chunk := await response.next_chunk()) is not None:
            body += chunk
            if len(body) >= size:
                break
    return bytes(body[:size]), response.is_whole and len(body) <= size


def ssl_context() -> ssl.SSLContext:
    """The certificate authorities that every connection trusts: the usual ones, or those of the environment."""
    return _ssl_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=8)
def _ssl_context(*made_from: str | None) -> ssl.SSLContext:  # noqa: ARG001 - the key of the cache
    """One context for all servers, since it is the costly part of a client; the arguments are its cache key."""
    try:
        context = httpx2.create_ssl_context()
        context.set_alpn_protocols(["http/1.1"])
    except OSError as exc:
        problem = "the file or folder of trusted certificates cannot be read"
        raise ServerFailure(BadConfig(problems=(problem,), hint="check SSL_CERT_FILE and SSL_CERT_DIR")) from exc
    return context


def _following(method: str, url: httpx2.URL, response: Response, *, may: bool) -> httpx2.URL:
    """Where a redirect leads. Raises unless it stays within the origin and keeps method and body."""
    response.close()
    try:
        following = url.join(response.headers["location"].strip())
    except (httpx2.InvalidURL, ValueError) as exc:
        raise BrokenHttp("it redirects to no address") from exc
    # After 301 and 302 some clients send a POST again as a GET, so only 307 and 308 say that method and body stay.
    if may and _keeps_to(url, following) and (method == "GET" or response.status in (307, 308)):
        return following
    shown = str(following.copy_with(userinfo=b"", query=None, fragment=None))
    downgrade = url.scheme == "https" and following.scheme == "http"
    raise ServerFailure(Redirected(status=response.status, location=shown, downgrade=downgrade))


def _keeps_to(here: httpx2.URL, there: httpx2.URL) -> bool:
    """Whether a redirect stays on the origin and adds no user info."""
    upgrade = (here.scheme, there.scheme) == ("http", "https") and here.port is None and there.port is None
    same = (here.scheme, here.port) == (there.scheme, there.port) or upgrade
    return same and here.host == there.host and (not there.userinfo or there.userinfo == here.userinfo)


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
        at = parsedate_to_datetime(value)
        return max(0.0, (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() - now)
    except (TypeError, ValueError, OverflowError):
        return None
