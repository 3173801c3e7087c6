"""An MCP server over the older HTTP+SSE transport: one GET stream carries every answer.

The same tools and manners as the other peers (``rpc.Mind``), and the faults that belong to this transport.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, Unpack

from tests.peers.http_fault import Behaviour, Exchange, FaultServer
from tests.peers.mcp_http import EVENT_STREAM, MindOptions, rpc_methods
from tests.peers.rpc import Mind, encode

if TYPE_CHECKING:
    import ssl

    from tests.peers.rpc import Message

    _Outbox: TypeAlias = asyncio.Queue[Message | None]

__all__ = ["SsePeer"]


class SsePeer(FaultServer):
    """A server at ``url`` (``/sse``) that takes messages at the endpoint which its stream names.

    ``endpoint`` replaces that address, None means that none is ever sent; ``post`` is done to every
    posted message instead of taking it; ``stream_ends`` closes the stream at that point.
    """

    def __init__(
        self,
        *,
        faults: Sequence[Behaviour] = (),
        post: Behaviour | None = None,
        endpoint: str | None = "/messages",
        stream_ends: Literal["at_once", "after_endpoint", "after_handshake"] | None = None,
        auth: str | None = None,
        ssl: ssl.SSLContext | None = None,
        port: int = 0,
        **mind: Unpack[MindOptions],
    ) -> None:
        super().__init__([*faults, Behaviour("sse", self._answer)], ssl=ssl, port=port)
        self.mind = Mind(**mind)
        self.slow_started = asyncio.Event()
        self.release = asyncio.Event()
        self.post_fault = post
        self._endpoint = endpoint
        self._stream_ends = stream_ends
        self._auth = auth
        self._outboxes: dict[str, _Outbox] = {}
        self._waiting: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where a client connects."""
        return f"{self.origin}/sse"

    @property
    def methods(self) -> list[str]:
        """What was asked for, in order: the JSON-RPC method, or the HTTP method where there is none."""
        return rpc_methods(self.requests)

    async def stop(self) -> None:
        """Stop listening, drop every connection, and give up the calls that still wait."""
        for task in self._waiting:
            task.cancel()
        await super().stop()

    async def _answer(self, exchange: Exchange) -> None:
        request = exchange.request
        path = request.path.partition("?")[0]
        if self._auth is not None and request.headers.get("authorization") != self._auth:
            return await exchange.respond(401, headers={"www-authenticate": "Bearer"})
        if (request.method, path) == ("GET", "/sse"):
            return await self._stream(exchange)
        if (request.method, path) == ("POST", "/messages"):
            return await self._take(exchange)
        return await exchange.respond(404)

    async def _stream(self, exchange: Exchange) -> None:
        session = secrets.token_hex(8)
        outbox = self._outboxes[session] = asyncio.Queue()
        await exchange.start(content_type=EVENT_STREAM)
        sending = asyncio.ensure_future(self._send_all(exchange, outbox, session=session))
        leaving = asyncio.ensure_future(exchange.gone())
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._outboxes[session]
            sending.cancel()
            leaving.cancel()
            await asyncio.wait({sending, leaving})
        exchange.close()

    async def _send_all(self, exchange: Exchange, outbox: asyncio.Queue[Message | None], *, session: str) -> None:
        """Name the endpoint, then send what the outbox brings, until the end that was asked for."""
        if self._stream_ends != "at_once":
            if self._endpoint is not None:
                place = f"{self._endpoint}?session_id={session}"
                await exchange.chunk(f"event: endpoint\ndata: {place}\n\n".encode())
            if self._stream_ends != "after_endpoint":
                while (message := await outbox.get()) is not None:
                    await exchange.chunk(b"event: message\ndata: " + encode(message) + b"\n\n")
        await exchange.end()

    async def _take(self, exchange: Exchange) -> None:
        if self.post_fault is not None:
            return await self.post_fault.act(exchange)
        session = exchange.request.path.partition("session_id=")[2]
        outbox = self._outboxes.get(session)
        if outbox is None:
            return await exchange.respond(404, b"no such session", content_type="text/plain")
        message = json.loads(exchange.request.body)
        await exchange.respond(202, b"Accepted", content_type="text/plain")
        return self._reply(outbox, message)

    def _reply(self, outbox: _Outbox, message: Message) -> None:
        if message.get("method") == "notifications/initialized" and self._stream_ends == "after_handshake":
            outbox.put_nowait(None)
        if "id" not in message or "method" not in message:
            return
        answer = self.mind.answer(message)
        if answer is not None:
            outbox.put_nowait(answer)
        elif message["params"]["name"] == "progress":
            for notice in [*self.mind.progress(message), self.mind.called(message)]:
                outbox.put_nowait(notice)
        else:
            # A task of its own: the connection that brought the call has its answer and takes the next.
            task = asyncio.ensure_future(self._reply_on_release(outbox, message))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _reply_on_release(self, outbox: _Outbox, message: Message) -> None:
        self.slow_started.set()
        await self.release.wait()
        outbox.put_nowait(self.mind.called(message))
