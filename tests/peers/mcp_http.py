"""An MCP server over streamable HTTP, of either protocol era, written by hand on top of ``FaultServer``.

Every byte and every request is under the test's control. What the server says is ``rpc.Mind``'s
matter; sessions, statuses, headers and streams are settled here, as strictly as a strict server would.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack

from tests.peers.http_fault import Behaviour, Exchange, FaultServer, Request, respond
from tests.peers.rpc import HANDSHAKE_VERSIONS, MODERN_VERSION, Mind, encode, failure

if TYPE_CHECKING:
    import ssl

    from tests.peers.rpc import Era, HandshakeFault, ListFault, Message

__all__ = ["HTML_PAGE", "McpPeer", "MindOptions", "Refusal", "calls_meet", "rpc_methods"]

EVENT_STREAM = "text/event-stream"
HTML_PAGE = respond(200, "<!doctype html><title>Welcome</title>", content_type="text/html; charset=utf-8")
"""A behaviour: something that is up, friendly, and not an MCP server."""

_HEADER_MISMATCH = -32020
_MODERN_STATUS = {-32700: 400, -32600: 400, -32601: 404, -32602: 400, -32020: 400, -32021: 400, -32022: 400}


class Refusal(NamedTuple):
    """How a legacy server turns ``server/discover`` down; without a code there is no JSON-RPC body."""

    status: int = 400
    code: int | None = -32601


METHOD_NOT_FOUND = Refusal()


class MindOptions(TypedDict, total=False):
    """What ``rpc.Mind`` can be told."""

    era: Era
    tools: int
    page_size: int | None
    instructions: str | None
    version: str
    initialize_code: int
    list_fault: ListFault | None
    handshake_fault: HandshakeFault | None
    oversized: int
    offers: bool
    hints: dict[str, Any] | None


class McpPeer(FaultServer):
    """A healthy server at ``url``, except for the faults that a test sets.

    ``faults`` meet the first requests, one each; ``auth`` is the value that ``Authorization`` must
    have. Calls of ``slow`` set ``slow_started`` and wait for ``release``; those that the client
    gave up are counted in ``abandoned`` and set ``given_up``. They tell of progress with each
    ``step``: in their own answer where that is a stream, else in the stream of notices.
    """

    def __init__(
        self,
        *,
        faults: Sequence[Behaviour] = (),
        sessions: bool = True,
        respond_with: Literal["json", "sse"] = "json",
        get_stream: bool = False,
        auth: str | None = None,
        refuse_discover: Refusal = METHOD_NOT_FOUND,
        path: str = "/mcp",
        ssl: ssl.SSLContext | None = None,
        port: int = 0,
        **mind: Unpack[MindOptions],
    ) -> None:
        self.healthy = Behaviour("mcp", self._answer)
        super().__init__([*faults, self.healthy], ssl=ssl, port=port)
        self.mind = Mind(**mind)
        self.path = path
        self.sessions: set[str] = set()
        self.slow_started = asyncio.Event()
        self.release = asyncio.Event()
        self.given_up = asyncio.Event()
        self.abandoned = 0
        self._with_sessions = sessions
        self._stream_answers = respond_with == "sse"
        self._with_get_stream = get_stream
        self._auth = auth
        self._refuse_discover = refuse_discover
        self._slow: dict[Exchange, Message] = {}
        self._streams: dict[Exchange, asyncio.Event] = {}
        self.streams_opened = 0

    @property
    def url(self) -> str:
        """Where a client connects."""
        return self.origin + self.path

    @property
    def methods(self) -> list[str]:
        """What was asked for, in order: the JSON-RPC method, or the HTTP method where there is none."""
        return rpc_methods(self.requests)

    async def push(self, message: Message) -> None:
        """Send a message of the server's own on every open stream of notices."""
        for stream in list(self._streams):
            await stream.chunk(_event(message))

    async def step(self, number: int) -> None:
        """Tell of progress in every call of ``slow`` that is open."""
        if not self._stream_answers:
            await self.streaming()
        for exchange, message in list(self._slow.items()):
            for notice in self.mind.step(message, number):
                with suppress(ConnectionError):  # the hub may have ended the call since: then none hears it
                    await (exchange.chunk(_event(notice)) if self._stream_answers else self.push(notice))

    def end_streams(self) -> None:
        """Bring every open stream of notices to an orderly end."""
        for ended in self._streams.values():
            ended.set()

    async def streaming(self, times: int = 1) -> None:
        """Wait until streams of notices have been opened so many times."""
        await self.until(lambda: self.streams_opened >= times)

    async def _answer(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.path.partition("?")[0] != self.path:
            return await exchange.respond(404, b"not found", content_type="text/plain")
        if self._auth is not None and request.headers.get("authorization") != self._auth:
            challenge = {"www-authenticate": 'Bearer error="invalid_token"'}
            return await exchange.respond(401, b'{"error":"invalid_token"}', headers=challenge)
        if request.method == "GET":
            return await self._open_stream(exchange)
        if request.method == "DELETE":
            return await self._end_session(exchange)
        return await self._post(exchange)

    async def _open_stream(self, exchange: Exchange) -> None:
        if not self._with_get_stream:
            return await exchange.respond(405, headers={"allow": "POST, DELETE"})
        if self._with_sessions and exchange.request.headers.get("mcp-session-id") not in self.sessions:
            return await exchange.respond(404)
        return await self._hold_stream(exchange)

    async def _listen(self, exchange: Exchange, message: Message) -> None:
        params = {"notifications": message["params"]["notifications"]}
        acknowledged = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
        await self._hold_stream(exchange, first=acknowledged)

    async def _hold_stream(self, exchange: Exchange, *, first: Message | None = None) -> None:
        await exchange.start(content_type=EVENT_STREAM)
        if first is not None:
            await exchange.chunk(_event(first))
        ended = self._streams[exchange] = asyncio.Event()
        self.streams_opened += 1
        self.stirred()
        try:
            if await exchange.unless_gone(ended.wait()):
                await exchange.end()
        finally:
            del self._streams[exchange]

    async def _end_session(self, exchange: Exchange) -> None:
        session = exchange.request.headers.get("mcp-session-id", "")
        known = session in self.sessions
        self.sessions.discard(session)
        await exchange.respond(204 if known else 404)

    async def _post(self, exchange: Exchange) -> None:
        headers = exchange.request.headers
        accepts = headers.get("accept", "")
        if "application/json" not in accepts or EVENT_STREAM not in accepts:
            return await exchange.respond(406)
        try:
            message = json.loads(exchange.request.body)
        except ValueError:
            return await exchange.respond(400, encode(failure({"id": None}, -32700, "Parse error")))
        if self.mind.is_modern(message):
            return await self._post_modern(exchange, message)
        return await self._post_legacy(exchange, message)

    async def _post_modern(self, exchange: Exchange, message: Message) -> None:
        if message.get("method") == "initialize":
            answer = self.mind.answer(message)
        elif (mismatch := _header_fault(message, exchange.request.headers)) is not None:
            answer = failure(message, _HEADER_MISMATCH, mismatch)
        elif message.get("method") == "subscriptions/listen" and self._with_get_stream:
            return await self._listen(exchange, message)
        else:
            answer = self.mind.answer(message)
        if answer is not None and "error" in answer:
            status = _MODERN_STATUS.get(answer["error"]["code"], 200)
            return await exchange.respond(status, encode(answer))
        return await self._reply(exchange, message, answer)

    async def _post_legacy(self, exchange: Exchange, message: Message) -> None:
        method = message.get("method")
        if method == "server/discover":
            return await self._turn_down(exchange, message)
        headers = {}
        if method == "initialize" and self._with_sessions:
            headers["mcp-session-id"] = self._new_session()
        elif method != "initialize" and (fault := self._session_fault(exchange.request)):
            return await exchange.respond(fault, encode(failure({"id": None}, -32600, "No such session")))
        answer = self.mind.answer(message) if method is not None else None
        return await self._reply(exchange, message, answer, headers=headers)

    async def _turn_down(self, exchange: Exchange, message: Message) -> None:
        status, code = self._refuse_discover
        body = b"" if code is None else encode(failure(message, code, "Method not found"))
        await exchange.respond(status, body)

    def _new_session(self) -> str:
        session = secrets.token_hex(8)
        self.sessions.add(session)
        return session

    def _session_fault(self, request: Request) -> int | None:
        """The status that refuses a request which belongs to no session, or to no version we speak."""
        if request.headers.get("mcp-protocol-version", HANDSHAKE_VERSIONS[0]) not in HANDSHAKE_VERSIONS:
            return 400
        if not self._with_sessions:
            return None
        session = request.headers.get("mcp-session-id")
        return 400 if session is None else None if session in self.sessions else 404

    async def _reply(
        self,
        exchange: Exchange,
        message: Message,
        answer: Message | None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if "id" not in message or "method" not in message:
            return await exchange.respond(202)
        if answer is None:
            return await self._take_time(exchange, message)
        if not self._stream_answers:
            return await exchange.respond(200, encode(answer), headers=headers or {})
        await exchange.start(content_type=EVENT_STREAM, headers=headers or {})
        await exchange.chunk(_event(answer))
        return await exchange.end()

    async def _take_time(self, exchange: Exchange, message: Message) -> None:
        """Answer a call of ``progress`` or ``slow``."""
        streamed = self._stream_answers or message["params"]["name"] == "progress"
        if streamed:
            await exchange.start(content_type=EVENT_STREAM)
        if message["params"]["name"] == "progress":
            for notice in self.mind.progress(message):
                await exchange.chunk(_event(notice))
        elif not await self._released(exchange, message):
            return None
        if not streamed:
            return await exchange.respond(200, encode(self.mind.called(message)))
        await exchange.chunk(_event(self.mind.called(message)))
        return await exchange.end()

    async def _released(self, exchange: Exchange, message: Message) -> bool:
        """Wait for ``release``; false if the client left first."""
        self._slow[exchange] = message
        self.slow_started.set()
        try:
            if await exchange.unless_gone(self.release.wait()):
                return True
        finally:
            del self._slow[exchange]
        self.abandoned += 1
        self.given_up.set()
        return False


def rpc_methods(requests: Sequence[Request]) -> list[str]:
    """Of each request the JSON-RPC method, or the HTTP method where the body has none."""
    return [_rpc_method(request) for request in requests]


def _rpc_method(request: Request) -> str:
    try:
        message = json.loads(request.body)
    except ValueError:
        return request.method
    return str(message.get("method", "response"))


def _header_fault(message: Message, headers: Mapping[str, str]) -> str | None:
    """What the routing headers of a modern request say other than its body, if anything."""
    params = message.get("params") or {}
    meta = params.get("_meta") or {}
    expected = {
        "mcp-protocol-version": meta.get("io.modelcontextprotocol/protocolVersion", MODERN_VERSION),
        "mcp-method": message.get("method"),
    }
    if message.get("method") == "tools/call":
        expected["mcp-name"] = params.get("name")
    wrong = [name for name, value in expected.items() if headers.get(name) != value]
    return f"{', '.join(wrong)} does not match the body" if wrong else None


def _event(message: Message) -> bytes:
    return b"event: message\ndata: " + encode(message) + b"\n\n"


def calls_meet(fault: Behaviour, peer: McpPeer) -> Callable[[Request], Behaviour]:
    """A script in which each call meets this fault, and all else is answered."""
    return lambda request: fault if b'"tools/call"' in request.body else peer.healthy
