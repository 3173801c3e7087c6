"""A client's connection on another replica: requests and replies here use it like one of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.fleet import PeerReply
from holdfast.front.request_parser import RequestHead
from holdfast.front.requests import Request, WholeRequests
from holdfast.wire import Bytes

__all__ = ["ForwardedConnection"]


class ForwardedConnection(WholeRequests):
    """One request of a client that another replica sent here; its answer goes back the same way."""

    def __init__(self, reply: PeerReply) -> None:
        self._reply = reply
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def request(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Request:
        """The request, as the client sent it to the other replica."""
        head = RequestHead()
        head.method, head.path, head.headers = method, path, headers
        made = Request(self, head, body)
        made.forwarded = True

        def gone() -> None:
            if made.on_gone is not None:
                made.on_gone()

        self._reply.on_gone = gone
        return made

    # What requests and replies use.

    @property
    def lost(self) -> bool:
        """Whether the client, or the other replica, is gone."""
        return self._reply.lost

    @property
    def unread(self) -> int:
        """How many bytes wait for the other replica."""
        return self._reply.unread

    def write_plain(self, request: Request, status: int, body: bytes | list[Bytes], headers: bytes) -> None:
        """An answer that is complete."""
        self.disarm()
        whole = b"".join(body) if isinstance(body, list) else body
        self._reply.answer({"status": status, "headers": headers.decode("latin-1"), "plain": True}, whole)

    def write_head(self, request: Request, headers: bytes, status: int = 200) -> None:
        """The head of an answer that comes in pieces."""
        self._reply.begin({"status": status, "headers": headers.decode("latin-1"), "plain": False})

    def write_chunk(self, request: Request, data: bytes) -> None:
        """A piece of the answer."""
        self._reply.write(data)

    def write_end(self, request: Request) -> None:
        """Nothing: the answer ends with its handler."""

    async def drained(self) -> None:
        """Wait until the other replica has read most of what was written."""
        await self._reply.drained()

    def arm(self, seconds: float, then: Callable[[], None]) -> None:
        """Do something later, instead of what was to be done later before."""
        self.disarm()
        self._timer = self._loop.call_later(seconds, then)

    def disarm(self) -> None:
        """Do nothing later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        """Close it now."""
        self._reply.abort()
