"""A small web API, asked: one answer for each question, or a stream of events that tells when it has gone silent.

What an answer means is its reader's matter; a question that could not be put, or was never answered, is a
``ServerFailure`` with its evidence.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import NamedTuple, Self

import anyio
import httpx2

from holdfast.config.spec import Limits, ServerSpec
from holdfast.core.evidence import NetworkFailure, NetworkFault, TimedOut
from holdfast.core.redact import Redactor
from holdfast.errors import ServerFailure
from holdfast.wire.http_client import HttpPeer, over_message_bound, read_bounded

__all__ = ["Answer", "Api", "Event"]


class Answer(NamedTuple):
    """What came back; an error status is an answer too."""

    status: int
    body: bytes


class Event(NamedTuple):
    """One event of a stream."""

    name: str
    data: str


class Api:
    """One API, below one address. Use it as ``async with Api(url, headers=…) as api``."""

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
        """Ask once."""
        headers = {"content-type": "application/json"} if body is not None else {}
        with anyio.move_on_after(within):
            async with self._peer.request(
                method, httpx2.URL(self._base + path), headers=headers, content=body, doing=path
            ) as response:
                return Answer(response.status_code, await read_bounded(response, self._peer.limits))
        raise ServerFailure(TimedOut(doing="its answer", after=within))

    async def events(self, path: str, *, silence: float) -> AsyncGenerator[Event | Answer, None]:
        """The events of a stream until it ends; an ``Answer`` alone where there is no stream but an error.

        A stream of which nothing is heard for ``silence`` seconds, not even a comment, is dead, and so is one that
        has not begun by then.
        """
        async with AsyncExitStack() as stack:
            response = await self._opened(stack, path, silence)
            if isinstance(response, Answer):
                yield response
                return
            reader = _Reader()
            chunks = response.aiter_bytes()
            while (chunk := await _next(chunks, silence)) is not None:
                for event in reader.feed(chunk):
                    yield event
                if len(reader.rest) > self._peer.limits.message_bytes:
                    raise ServerFailure(over_message_bound(self._peer.limits))

    async def _opened(self, stack: AsyncExitStack, path: str, within: float) -> httpx2.Response | Answer:
        """A stream, which ends with the stack, or what there was instead."""
        request = self._peer.request(
            "GET", httpx2.URL(self._base + path), headers={"accept": "text/event-stream"}, doing=path
        )
        with anyio.move_on_after(within):
            response = await stack.enter_async_context(request)
            if response.status_code == 200:
                return response
            return Answer(response.status_code, await read_bounded(response, self._peer.limits))
        raise ServerFailure(TimedOut(doing="its answer", after=within))


class _Reader:
    """Events out of bytes: ``event:`` and ``data:`` lines, an empty line after each event."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, chunk: bytes) -> list[Event]:
        *whole, self.rest = (self.rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        return [event for block in whole if (event := _event(block.decode("utf-8", "replace"))) is not None]


def _event(block: str) -> Event | None:
    name, data = "message", []
    for line in block.split("\n"):
        field, _, value = line.partition(":")
        if field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))
    return Event(name, "\n".join(data)) if data else None


async def _next(chunks: AsyncIterator[bytes], silence: float) -> bytes | None:
    with anyio.move_on_after(silence):
        return await anext(chunks, None)
    raise ServerFailure(NetworkFailure(fault=NetworkFault.CLOSED, stood=True))
