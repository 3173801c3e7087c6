"""A client of a small web API: one answer for each request, or a stream of events with a limit on silence.

The caller interprets an answer. A request without an answer is ``ServerFailure`` with evidence.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import NamedTuple, Self

import anyio
import httpx2

from holdfast.config.spec import Limits, ServerSpec
from holdfast.core.evidence import TimedOut
from holdfast.core.redact import Redactor
from holdfast.errors import ServerFailure
from holdfast.wire.fetch import Answer
from holdfast.wire.http_client import EVENT_STREAM, HttpPeer, content_type, read_bounded, read_events

__all__ = ["Api", "Event"]


class Event(NamedTuple):
    """One event of a stream."""

    name: str
    data: str


class Api:
    """One API at one base URL. Use it as ``async with Api(url, headers=…) as api``."""

    def __init__(self, url: str, *, headers: Mapping[str, str], largest: int = 64 << 20) -> None:
        spec = ServerSpec(id="api", transport="http", url=url, headers=headers)
        self._peer = HttpPeer(spec, Limits(message_bytes=largest), Redactor(headers.values()))
        self._base = url.rstrip("/")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._peer.aclose()

    async def ask(self, method: str, path: str, *, body: bytes | None = None, within: float) -> Answer:
        """Send one request."""
        headers = {"content-type": "application/json"} if body is not None else {}
        with anyio.move_on_after(within):
            async with self._peer.request(
                method, httpx2.URL(self._base + path), headers=headers, content=body, doing=path
            ) as response:
                return Answer(response.status_code, response.headers, await read_bounded(response, self._peer.limits))
        raise ServerFailure(TimedOut(doing="its answer", after=within))

    async def events(self, path: str, *, silence: float) -> AsyncGenerator[Event | Answer, None]:
        """The events of a stream until it ends; one ``Answer`` where there is no stream.

        A stream that sends nothing for ``silence`` seconds, not even a comment, counts as lost. So does one that has
        not begun by then.
        """
        async with AsyncExitStack() as stack:
            response = await self._opened(stack, path, silence)
            if isinstance(response, Answer):
                yield response
                return
            async for event in read_events(response, self._peer.limits, silence=silence):
                yield Event(event.event, event.data)

    async def _opened(self, stack: AsyncExitStack, path: str, within: float) -> httpx2.Response | Answer:
        """A stream, which ends with the stack, or the answer that came instead."""
        request = self._peer.request("GET", httpx2.URL(self._base + path), headers={"accept": EVENT_STREAM}, doing=path)
        with anyio.move_on_after(within):
            response = await stack.enter_async_context(request)
            if response.status_code == 200 and content_type(response) == EVENT_STREAM:
                return response
            return Answer(response.status_code, response.headers, await read_bounded(response, self._peer.limits))
        raise ServerFailure(TimedOut(doing="its answer", after=within))
