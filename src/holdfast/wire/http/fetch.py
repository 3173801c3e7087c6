"""HTTP with peers that are no MCP servers: one document, one exchange, or a small web API with an event stream.

Everything is bounded in time and size, and credentials go to their origin alone. The caller interprets an answer, an
error status too. A request without an answer is ``ServerFailure`` with evidence.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

import anyio
import httpx2

from holdfast.config import HeaderSource, Limits, ServerSpec
from holdfast.core import Redactor, TimedOut
from holdfast.errors import ServerFailure
from holdfast.wire.http.client import EVENT_STREAM, HttpPeer, content_type, read_bounded, read_events
from holdfast.wire.http.connection import Response

__all__ = ["ApiClient", "ApiEvent", "HttpAnswer", "exchange", "fetch"]

LARGEST = 16 << 20
LARGEST_ANSWER = 256 << 10
"""How many bytes of an authorization server's answer are read: it is parsed in one step of the event loop."""


@dataclass(frozen=True)
class HttpAnswer:
    """What came back; an error status is an answer too."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


async def fetch(
    url: str,
    *,
    headers: HeaderSource | None = None,
    allow_plain_http: bool = False,
    within: float = 10.0,
    largest: int = LARGEST,
) -> bytes:
    """The body of a GET; ``ServerFailure`` with its evidence if there is none, or an error status."""
    spec = ServerSpec(
        id="document", transport="http", url=url, headers=headers or {}, allow_plain_http=allow_plain_http
    )
    doing = "the document"
    with anyio.move_on_after(within):
        peer = HttpPeer(spec, Limits(message_bytes=largest), Redactor())
        try:
            async with peer.request("GET", httpx2.URL(url), headers={}, doing=doing) as response:
                if response.status < 300:
                    return bytes(await read_bounded(response, peer.limits))
                raise ServerFailure((await peer.refusal(response))[0])
        finally:
            with anyio.CancelScope(shield=True):
                await peer.aclose()
    raise ServerFailure(TimedOut(doing=doing, after=within))


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
    """One request and its answer, an error status too; ``ServerFailure`` if there is none."""
    with anyio.move_on_after(within):
        peer = HttpPeer(
            ServerSpec(id="authorization", transport="http", url=url), Limits(message_bytes=LARGEST_ANSWER), Redactor()
        )
        try:
            async with peer.request(
                method, peer.url, headers=headers or {}, content=content, doing=doing, on_sending=on_sending
            ) as response:
                return HttpAnswer(response.status, response.headers, bytes(await read_bounded(response, peer.limits)))
        finally:
            with anyio.CancelScope(shield=True):
                await peer.aclose()
    raise ServerFailure(TimedOut(doing=doing, after=within))


class ApiEvent(NamedTuple):
    """One event of a stream."""

    name: str
    data: str


class ApiClient:
    """One API at one base URL. Use it as ``async with ApiClient(url, headers=…) as api``."""

    def __init__(
        self, url: str, *, headers: Mapping[str, str], largest: int = 64 << 20, tls: ssl.SSLContext | None = None
    ) -> None:
        spec = ServerSpec(id="api", transport="http", url=url, headers=headers)
        self._peer = HttpPeer(spec, Limits(message_bytes=largest), Redactor(headers.values()), tls=tls)
        self._base = url.rstrip("/")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._peer.aclose()

    async def ask(self, method: str, path: str, *, body: bytes | None = None, within: float) -> HttpAnswer:
        """Send one request."""
        headers = {"content-type": "application/json"} if body is not None else {}
        with anyio.move_on_after(within):
            async with self._peer.request(
                method, httpx2.URL(self._base + path), headers=headers, content=body, doing=path
            ) as response:
                return HttpAnswer(
                    response.status, response.headers, bytes(await read_bounded(response, self._peer.limits))
                )
        raise ServerFailure(TimedOut(doing="its answer", after=within))

    async def events(self, path: str, *, silence: float) -> AsyncGenerator[ApiEvent | HttpAnswer, None]:
        """The events of a stream until it ends; one ``HttpAnswer`` where there is no stream.

        A stream that sends nothing for ``silence`` seconds, not even a comment, counts as lost. So does one that has
        not begun by then.
        """
        async with AsyncExitStack() as stack:
            response = await self._opened(stack, path, silence)
            if isinstance(response, HttpAnswer):
                yield response
                return
            async for event in read_events(response, self._peer.limits, silence=silence):
                if event.data:
                    yield ApiEvent(event.name, event.data.decode("utf-8", "replace"))

    async def _opened(self, stack: AsyncExitStack, path: str, within: float) -> Response | HttpAnswer:
        """A stream, which ends with the stack, or the answer that came instead."""
        request = self._peer.request("GET", httpx2.URL(self._base + path), headers={"accept": EVENT_STREAM}, doing=path)
        with anyio.move_on_after(within):
            response = await stack.enter_async_context(request)
            if response.status == 200 and content_type(response) == EVENT_STREAM:
                return response
            return HttpAnswer(response.status, response.headers, bytes(await read_bounded(response, self._peer.limits)))
        raise ServerFailure(TimedOut(doing="its answer", after=within))
