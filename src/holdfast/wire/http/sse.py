"""The older HTTP+SSE transport: one long stream brings everything, each message of ours is a POST.

A refused POST fails its own request alone; the end of the stream fails all requests.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import anyio.abc
import httpx2

from holdfast.core import Evidence, NetworkFailure, NetworkFault, NotMcp, NotMcpFault, quoted_name
from holdfast.errors import ServerFailure
from holdfast.wire.dispatcher import DuplexDispatcher
from holdfast.wire.http.client import EVENT_STREAM, HttpPeer, content_type, over_message_bound, read_events
from holdfast.wire.http.connection import Response
from holdfast.wire.rpc import answered_id

__all__ = ["SseDispatcher"]

CUT_SECONDS = 0.2
"""A server that dies cuts its stream at about the same time as a POST under way."""


class SseDispatcher(DuplexDispatcher):
    """The SDK's dispatcher over HTTP+SSE."""

    def __init__(self, peer: HttpPeer) -> None:
        super().__init__("sse", peer.limits)
        self._peer = peer
        self._endpoint: httpx2.URL | None = None
        self._known = anyio.Event()
        self._posting: set[anyio.CancelScope] = set()

    @property
    def connecting(self) -> bool:
        """Whether no connection to the server has stood yet."""
        return self._peer.connecting

    async def _write(self, data: bytes, *, doing: str, headers: Mapping[str, str]) -> int | None:
        """POST a message, unless the stream ends first: then no answer could come.

        A POST that went on would also open a connection that has no owner.
        """
        with anyio.CancelScope() as scope:
            self._posting.add(scope)
            try:
                await self._post(data, doing, headers)
            except ServerFailure as failure:
                if _was_cut(failure.evidence):
                    await self._end_or_moment()
                raise
            else:
                return None
            finally:
                self._posting.discard(scope)
        raise self.failure()

    async def _end_or_moment(self) -> None:
        """Wait a moment for the end of the stream: it tells whether only the POST was cut."""
        with anyio.move_on_after(CUT_SECONDS):
            await self._over.wait()

    async def _post(self, data: bytes, doing: str, headers: Mapping[str, str]) -> None:
        await self._known.wait()
        if self._endpoint is None:
            raise self.failure()
        headers = {"content-type": "application/json", **headers}
        async with self._peer.request("POST", self._endpoint, headers=headers, content=data, doing=doing) as response:
            if response.status >= 400:
                raise ServerFailure((await self._peer.refusal(response))[0])

    async def _read(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        headers = {"accept": EVENT_STREAM, "cache-control": "no-store"}
        try:
            async with self._peer.request("GET", self._peer.url, headers=headers, doing="the event stream") as response:
                if response.status >= 400:
                    return (await self._peer.refusal(response))[0]
                kind = content_type(response)
                if kind != EVENT_STREAM:
                    detail = f"it answered with {quoted_name(kind) if kind else 'no content type'}"
                    return NotMcp(fault=NotMcpFault.CONTENT_TYPE, detail=detail)
                await self._take_events(response)
            return NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
        finally:
            self._endpoint = None
            self._known.set()
            for scope in self._posting:
                scope.cancel()

    async def _take_events(self, response: Response) -> None:
        # A stream keeps the bound that it was opened with.
        async for event in read_events(response, self._limits, skips=True):
            if event.cut:
                over = over_message_bound(self._limits)
                if not self._rpc.refuse(answered_id(event.data), over):
                    raise ServerFailure(over)
            elif event.name == "endpoint":
                self._endpoint = self._same_origin(event.data.decode("utf-8", "replace"))
                self._known.set()
            elif event.name == "message" and event.data:
                await self._rpc.take_shared(event.data)

    def _same_origin(self, place: str) -> httpx2.URL:
        """The URL for POSTs. Another origin is refused, since it would get our credentials."""
        here = self._peer.url
        try:
            there = here.join(place)
        except (httpx2.InvalidURL, ValueError) as exc:
            raise ServerFailure(NotMcp(fault=NotMcpFault.NO_ENDPOINT, detail="it is no address")) from exc
        if (here.scheme, here.host, here.port) != (there.scheme, there.host, there.port):
            raise ServerFailure(NotMcp(fault=NotMcpFault.NO_ENDPOINT, detail="it is on another origin"))
        return there


def _was_cut(seen: Evidence) -> bool:
    return isinstance(seen, NetworkFailure) and seen.fault is not NetworkFault.REFUSED
