"""The transports over HTTP.

Streamable HTTP, both eras: each request is a POST of its own, made by the caller's task. So one failed request affects
no other, its evidence reaches its caller, and a cancelled caller closes only its own stream. There is no connection to
lose: one exchange fails, and the next one dials again.

What can happen to a POST: an error status, which is the server's JSON-RPC error or evidence of the path to it; a JSON
body with the answer; an event stream that has the answer somewhere, before it progress, questions and notifications.
A stream that was cut is resumed where its server gave ids (legacy era); if it cannot be, the cut is the reason. The
answer may also come on another stream: the request is settled by its id, and only then its POST is over.

The older HTTP+SSE: one long stream brings everything, each message of ours is a POST. A refused POST fails its own
request alone; the end of the stream fails all requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
import httpx2
from mcp import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from holdfast.config import Limits
from holdfast.core import (
    Evidence,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    OverBound,
    quoted,
    quoted_name,
)
from holdfast.errors import ServerFailure
from holdfast.wire.dispatcher import NO_HOOKS, DialHooks, DuplexDispatcher, ServerDispatcher
from holdfast.wire.http.client import HttpPeer, content_type, read_bounded
from holdfast.wire.http.connection import EVENT_STREAM, Response, ServerEvents, over_message_bound
from holdfast.wire.http.pool import evidence_of
from holdfast.wire.in_flight import RequestInFlight
from holdfast.wire.raw_json import BadJson, Fields, NotAnObject, RawObject, dump_object, loads
from holdfast.wire.rpc import Message, answered_id, call_message, notification_message

__all__ = ["HttpDispatcher", "SseDispatcher"]

SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = "mcp-protocol-version"
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

_JSON = "application/json"

LONGEST_SESSION_ID = 8 * 1024
"""It goes with every request, and every spelling of it is masked: longer ones would hold up the event loop."""

GOODBYE_SECONDS = 2.0
"""How long ending a session may take. It is best effort: the server drops an idle session by itself."""

RESUME_DELAY_SECONDS = 1.0
"""The pause before a cut stream is resumed, where the server names none."""

LONGEST_RESUME_DELAY_SECONDS = 30.0
"""The longest pause that a server may ask for: the caller waits, and a connection that is lost must be told to it."""

RESUME_ATTEMPTS = 2

CUT_SECONDS = 0.2
"""A server that dies cuts its stream at about the same time as a POST under way."""

HTTP_LEVEL = frozenset({401, 403, 407, 408, 429})
"""Statuses that concern the path to the server and not the request, for any body. 5xx belong here too."""


REPEATABLE = frozenset(
    {"initialize", "server/discover", "ping"}
    | {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read", "prompts/get"}
)
"""Requests that a server may get twice: they change nothing, or only make a session that is not used."""


class ServerSession:
    """What the requests of one connection carry: the protocol version, and in the legacy era the session's id."""

    def __init__(self, peer: HttpPeer) -> None:
        self._peer = peer
        self.id: str | None = None
        self.headers = {**ACCEPT}
        """The headers that the protocol requires; a version only from the end of the handshake on."""
        self.modern = False
        """Whether the version is one of the modern era."""

    def agree(self, version: str | None) -> None:
        """A version is agreed on, or none yet, since a handshake begins."""
        self.modern = version in MODERN_PROTOCOL_VERSIONS
        self.headers.pop(VERSION_HEADER, None)
        if version is not None:
            self.headers[VERSION_HEADER] = version

    def begin(self, response: Response) -> None:
        """Note the session that the server gives with its answer to the handshake."""
        self.headers.pop(SESSION_HEADER, None)
        self.id = response.headers.get(SESSION_HEADER, "").strip() or None
        if self.id is not None:
            self.headers[SESSION_HEADER] = self.id
            if len(self.id) > LONGEST_SESSION_ID:
                detail = f"its session id has more than {LONGEST_SESSION_ID} characters"
                raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=detail))
            self._peer.redactor.learn(self.id)  # it is masked in later texts, as a secret

    async def refuse_errors(self, response: Response) -> None:
        """Raise for an error status: ``MCPError`` if the MCP server itself answered, else the evidence."""
        refusal, body = await self._peer.refusal(response)
        lost_session = refusal.status == 404 and self.id is not None
        if refusal.status not in HTTP_LEVEL and refusal.status < 500 and not lost_session:
            _raise_rpc_error(body)
        raise ServerFailure(refusal)

    def __repr__(self) -> str:
        return (
            f"<ServerSession {self.headers.get(VERSION_HEADER)} {'with' if self.id is not None else 'without'} an id>"
        )


class HttpDispatcher(ServerDispatcher):
    """Streamable HTTP."""

    def __init__(self, peer: HttpPeer, limits: Limits, server: str = "", hooks: DialHooks = NO_HOOKS) -> None:
        super().__init__(limits, server, hooks)
        self.peer = peer
        self._session = ServerSession(peer)

    def agree(self, version: str | None) -> None:
        """Name this version in the headers of requests."""
        self._session.agree(version)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """POST a notification. The modern era has none from client to server."""
        if not self._session.modern:
            with suppress(ServerFailure):
                await self._send(notification_message(method, params))

    async def _until_gone(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        """There is no connection to lose: it lasts until the session ends it."""
        await anyio.sleep_forever()
        return NetworkFailure(fault=NetworkFault.CLOSED, stood=True)

    async def _serve(self) -> None:
        try:
            await super()._serve()
        finally:
            self.in_flight.cut_all()

    async def read_stream(self, *, opened: Callable[[], None]) -> bool:
        """Read the legacy era's stream of notifications to its end; False if the server offers none."""
        if self._session.id is None:
            return False
        headers = {**self._session.headers, "accept": EVENT_STREAM}
        async with self.peer.request("GET", self.peer.url, headers=headers, doing="the event stream") as response:
            if response.status >= 400:
                refusal, _ = await self.peer.refusal(response)
                if refusal.status == 404 or (refusal.status >= 500 and refusal.status != 501):
                    raise ServerFailure(refusal)
                return False
            if content_type(response) != EVENT_STREAM:
                return False
            opened()
            stream = ServerEvents(response, self.rpc.limits)
            while (event := await stream.next()) is not None:
                if event.name == "message" and event.data:
                    await self.rpc.take_shared(event.data)
        return True

    async def end_session(self, client: Mapping[str, str] | None = None) -> None:
        """End the session at the server, or what a hub has for the client that these headers name.

        Best effort, bounded.
        """
        if client is None and self._session.id is None:
            return
        headers = client if client is not None else self._session.headers
        with anyio.move_on_after(GOODBYE_SECONDS, shield=True), suppress(ServerFailure):
            async with self.peer.request("DELETE", self.peer.url, headers=headers, doing="the end of the session"):
                pass

    async def call(
        self, request: RequestInFlight, method: str, params: Fields, *, headers: Mapping[str, str], tell: bool = True
    ) -> RawObject:
        """POST a request and read until it is settled."""
        session = self._session
        began = time.monotonic()
        response: Response | None = None
        try:
            message = call_message(request.id, method, params, progress=request.wants_progress)
            response = await self.peer.send(
                "POST",
                self.peer.url,
                {**session.headers, **headers},
                message,
                again=method in REPEATABLE,
                with_body=True,
            )
            if response.status >= 400:
                await session.refuse_errors(response)
            if method == "initialize":
                session.begin(response)
            kind = content_type(response)
            if kind == _JSON:
                body = await read_bounded(response, self.rpc.limits)
                await self._take_body(body, response, request)
            elif kind == EVENT_STREAM:
                cursor = _Cursor(resumes=not session.modern)
                await self._take_stream(response, request, cursor, method)
                if not request.settled:
                    await self._resume(request, cursor, method)
            else:
                accepted = NotMcp(fault=NotMcpFault.NO_ANSWER, detail="it accepted a request without answering it")
                raise ServerFailure(accepted if response.status == 202 else _wrong_type(kind))
            return request.answer()
        except asyncio.CancelledError:
            if tell and not session.modern:
                self.rpc.say_cancelled(request)
            raise
        except Exception as exc:
            seen = evidence_of(exc, doing=f"the answer to {method}", after=round(time.monotonic() - began, 1))
            if seen is None:
                raise  # a failure with evidence, or an error of the server itself
            raise ServerFailure(seen) from exc
        finally:
            if response is not None:
                response.close(satisfied=request.settled)

    async def _take_body(self, came: bytes | bytearray, response: Response, request: RequestInFlight) -> None:
        """Take an answer that came in one piece."""
        try:
            await self.rpc.take(came, request)
        except BadJson as exc:
            if response.head.ends_with_connection and _is_beginning(came):
                raise ServerFailure(NetworkFailure(fault=NetworkFault.CLOSED, stood=True)) from exc
            raise _unreadable(came, exc, stood=self.stood) from exc
        if not request.settled:
            detail = "its answer is no JSON-RPC response to this request"
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail=detail))

    async def _take_stream(self, response: Response, request: RequestInFlight, cursor: _Cursor, method: str) -> None:
        """Read a stream of the request until it is settled; a cut that can be resumed counts as its end.

        The caller's own task reads it, so progress is delivered as it comes and before the result.
        """
        data, stream = b"", ServerEvents(response, self.rpc.limits)
        try:
            while (event := await stream.next()) is not None:
                if event.id:
                    cursor.last_id = event.id
                if event.retry is not None:
                    cursor.delay = min(event.retry / 1000, LONGEST_RESUME_DELAY_SECONDS)
                if event.name == "message" and event.data:
                    data = event.data
                    await self.rpc.take(data, request)
                    if request.settled:
                        return
        except BadJson as exc:
            raise _unreadable(data, exc, stood=self.stood) from exc
        except Exception as exc:
            seen = exc.evidence if isinstance(exc, ServerFailure) else evidence_of(exc, doing=f"the answer to {method}")
            if not isinstance(seen, NetworkFailure) or not cursor.header:
                raise

    async def _resume(self, request: RequestInFlight, cursor: _Cursor, method: str) -> None:
        """Read on a stream that was cut, where its server gave ids, until the request is settled.

        The server has the request and may have acted. A refused GET must not be the reason of the failure: it would
        say that the request was refused, and the request would be sent again (LIFE-16).
        """
        for _ in range(RESUME_ATTEMPTS):
            if not cursor.header:
                break
            await anyio.sleep(cursor.delay)
            headers = {**self._session.headers, "accept": EVENT_STREAM, "last-event-id": cursor.header}
            get = self.peer.request("GET", self.peer.url, headers=headers, doing="the resumed stream")
            try:
                async with get as resumed:
                    if resumed.status >= 400:
                        break
                    await self._take_stream(resumed, request, cursor, method)
            except ServerFailure as failure:
                if isinstance(failure.evidence, NotMcp | OverBound):
                    raise  # it is about what came
                break
            if request.settled:
                return
        raise ServerFailure(NetworkFailure(fault=NetworkFault.CLOSED, stood=True))

    async def _send(self, message: Message) -> None:
        content, doing = dump_object(message), "the receipt of a notification"
        # A refusal is no failure, and must not be raised as one: the server may have forgotten what it asked, or not
        # know what we cancel. The other requests of the connection have nothing to do with that.
        post = self.peer.request("POST", self.peer.url, headers=self._session.headers, content=content, doing=doing)
        async with post:
            pass

    def __repr__(self) -> str:
        return f"<HttpDispatcher stood={self.stood} {self._session!r} {self.rpc!r}>"


class SseDispatcher(DuplexDispatcher):
    """The older HTTP+SSE."""

    def __init__(self, peer: HttpPeer, limits: Limits, server: str = "", hooks: DialHooks = NO_HOOKS) -> None:
        super().__init__(limits, server, hooks)
        self.peer = peer
        self._endpoint: httpx2.URL | None = None
        self._known = anyio.Event()
        self._posting: set[anyio.CancelScope] = set()

    async def _write(self, data: bytes, *, doing: str, headers: Mapping[str, str]) -> int | None:
        """POST a message, unless the stream ends first: then no answer could come.

        A POST that went on would also open a connection that has no owner.
        """
        with anyio.CancelScope() as scope:
            self._posting.add(scope)
            try:
                await self._post(data, doing, headers)
            except ServerFailure as failure:
                seen = failure.evidence
                if isinstance(seen, NetworkFailure) and seen.fault is not NetworkFault.REFUSED:
                    with anyio.move_on_after(CUT_SECONDS):  # the end of the stream tells whether only the POST was cut
                        await self._over.wait()
                raise
            else:
                return None
            finally:
                self._posting.discard(scope)
        raise self.in_flight.failure()

    async def _post(self, data: bytes, doing: str, headers: Mapping[str, str]) -> None:
        await self._known.wait()
        if self._endpoint is None:
            raise self.in_flight.failure()
        headers = {"content-type": "application/json", **headers}
        async with self.peer.request("POST", self._endpoint, headers=headers, content=data, doing=doing) as response:
            if response.status >= 400:
                raise ServerFailure((await self.peer.refusal(response))[0])

    async def _read(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        headers = {"accept": EVENT_STREAM, "cache-control": "no-store"}
        try:
            async with self.peer.request("GET", self.peer.url, headers=headers, doing="the event stream") as response:
                if response.status >= 400:
                    return (await self.peer.refusal(response))[0]
                if (kind := content_type(response)) != EVENT_STREAM:
                    return _wrong_type(kind)
                await self._take_events(response)
            return NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
        finally:
            self._endpoint = None
            self._known.set()
            for scope in self._posting:
                scope.cancel()

    async def _take_events(self, response: Response) -> None:
        # A stream keeps the bound that it was opened with.
        stream = ServerEvents(response, self.rpc.limits, skips=True)
        while (event := await stream.next()) is not None:
            if event.cut:
                over = over_message_bound(self.rpc.limits)
                if not self.in_flight.refuse(answered_id(event.data), over):
                    raise ServerFailure(over)
            elif event.name == "endpoint":
                self._endpoint = self._same_origin(event.data.decode("utf-8", "replace"))
                self._known.set()
            elif event.name == "message" and event.data:
                await self.rpc.take_shared(event.data)

    def _same_origin(self, place: str) -> httpx2.URL:
        """The URL for POSTs. Another origin is refused, since it would get our credentials."""
        here = self.peer.url
        try:
            there = here.join(place)
        except (httpx2.InvalidURL, ValueError) as exc:
            raise ServerFailure(NotMcp(fault=NotMcpFault.NO_ENDPOINT, detail="it is no address")) from exc
        if (here.scheme, here.host, here.port) != (there.scheme, there.host, there.port):
            raise ServerFailure(NotMcp(fault=NotMcpFault.NO_ENDPOINT, detail="it is on another origin"))
        return there


@dataclass(slots=True)
class _Cursor:
    """The position in a stream, to resume it. ``resumes``: the era has that."""

    resumes: bool
    last_id: str = ""
    delay: float = RESUME_DELAY_SECONDS

    @property
    def header(self) -> str:
        """The id for a header, where one byte is a character; empty if the stream cannot be resumed."""
        return self.last_id.encode().decode("latin-1") if self.resumes and self.last_id.isprintable() else ""


def _is_beginning(data: bytes | bytearray) -> bool:
    """Whether an unreadable body is the beginning of an object: then its connection was closed too early."""
    return data[:64].lstrip().startswith(b"{") and not data[-64:].rstrip().endswith(b"}")


def _unreadable(data: bytes | bytearray, exc: BadJson, *, stood: bool) -> ServerFailure:
    """What bytes show that are no message.

    Before the handshake is complete, the start of the text shows what answers there. Later it is the content of one
    answer, and belongs into no error (LIFE-28).
    """
    if stood:
        return ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc)))
    if not data:
        return ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSON, detail="its answer is empty"))
    if isinstance(exc, NotAnObject):
        return ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail="its answer is no JSON-RPC response"))
    return ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSON, detail=quoted(data[:80].decode("utf-8", "replace"))))


def _raise_rpc_error(body: bytes) -> None:
    """Raise the JSON-RPC error that an HTTP error response carries, if it does."""
    try:
        parsed = loads(body)
    except BadJson:
        return
    error = parsed.get("error") if isinstance(parsed, dict) and parsed.get("jsonrpc") == "2.0" else None
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        raise MCPError(error["code"], str(error.get("message", "")), error.get("data"))


def _wrong_type(kind: str) -> NotMcp:
    detail = f"it answered with {quoted_name(kind) if kind else 'no content type'}"
    return NotMcp(fault=NotMcpFault.CONTENT_TYPE, detail=detail)
