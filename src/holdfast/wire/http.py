"""Streamable HTTP, both eras: every request of ours is a POST of its own, made by the task that asks.

So one failed request harms no other, its evidence reaches the one who asked, and a caller that is
cancelled closes its own stream and nothing else. There is no connection to lose: what dies is an
exchange, and the next one dials anew.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
import httpx2
from mcp import MCPError
from mcp.shared.dispatcher import CallOptions, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest, coerce_request_id
from mcp.shared.transport_context import TransportContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import from_json

from holdfast.config.spec import Limits
from holdfast.core.evidence import Evidence, HttpStatus, NetworkFailure, NetworkFault, NotMcp, NotMcpFault, TimedOut
from holdfast.errors import ServerFailure
from holdfast.wire.http_client import HttpPeer, over_message_bound, read_bounded, translated
from holdfast.wire.rpc import Exchange, Message, Waiter, notice_message, request_message, with_progress_token
from holdfast.wire.tracing import in_headers

__all__ = ["HttpDispatcher"]

SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = "mcp-protocol-version"
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

GOODBYE_SECONDS = 2.0
"""How long ending a session may take. It is a courtesy: the server forgets an idle session by itself."""

RESUME_DELAY_SECONDS = 1.0
"""Before a stream that was cut is taken up again, where the server named no delay of its own."""

RESUME_ATTEMPTS = 2

HTTP_LEVEL = frozenset({401, 403, 407, 408, 429})
"""Statuses that are about the way to the server, whatever the body says; 5xx belong here too."""


class HttpDispatcher(Dispatcher[TransportContext]):
    """The SDK's dispatcher over streamable HTTP."""

    def __init__(self, peer: HttpPeer) -> None:
        self._peer = peer
        self._exchange = Exchange("streamable-http", self._post_answer, peer.limits)
        self._session_id: str | None = None
        self._version: str | None = None
        self._closed = anyio.Event()
        self._under_way: set[anyio.CancelScope] = set()
        self._one_ended = anyio.Event()
        self.stood = False
        """Whether the handshake is done; set by whoever did it."""

    def adopt(self, limits: Limits) -> None:
        """Go by other bounds from now on."""
        self._peer.limits = limits
        self._exchange.adopt(limits)

    @property
    def ended(self) -> bool:
        """There is no connection to lose."""
        return False

    @property
    def received(self) -> int:
        """How many bytes of messages came so far."""
        return self._exchange.received

    def unanswered(self) -> Evidence | None:
        """A missing answer shows nothing beyond that time went by."""
        return None

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> Message:
        """POST a request and wait for its result, on whatever stream it comes."""
        opts = opts or {}
        request_id, waiter = self._exchange.open(opts)
        if method == "initialize":
            self._version = None
        headers = {**self._headers(opts), **in_headers(params)}
        message = request_message(request_id, method, with_progress_token(params, request_id, opts))
        timeout = opts.get("timeout")
        tell_server = opts.get("cancel_on_abandon", True) and self._version not in MODERN_PROTOCOL_VERSIONS
        answered = False
        try:
            with anyio.fail_after(timeout):
                result = await self._unless_closed(self._ask(message, headers, waiter))
            answered = True
        except TimeoutError:
            raise ServerFailure(TimedOut(doing=f"the answer to {method}", after=timeout or 0.0)) from None
        except (MCPError, ServerFailure):
            answered = True
            raise
        finally:
            self._exchange.close(request_id)
            if tell_server and not answered:
                self._exchange.say_cancelled(request_id, "the caller no longer waits")
        return result

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """POST a notice; a refused one is nobody's failure. The modern era has none from client to server."""
        headers = self._headers(opts or {})
        if self._version not in MODERN_PROTOCOL_VERSIONS:
            with suppress(ServerFailure, MCPError):
                await self._post_notice(notice_message(method, params), headers)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Own what the server asks of us on the streams of our requests, until closed."""
        try:
            async with anyio.create_task_group() as tasks:
                self._exchange.start(tasks, on_request, on_notify, on_notify_intercept)
                task_status.started()
                await self._closed.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._exchange.fail(ServerFailure(NetworkFailure(fault=NetworkFault.CLOSED, stood=True)))
            for scope in self._under_way:
                scope.cancel()

    async def read_stream(self, *, opened: Callable[[], None]) -> bool:
        """Read the legacy era's stream of notices to its end; False if the server offers none."""
        if self._session_id is None:
            return False
        headers = {**self._headers({}), "accept": "text/event-stream"}
        async with self._peer.request("GET", self._peer.url, headers=headers, doing="the event stream") as response:
            if response.status_code >= 400:
                refusal, _ = await self._peer.refusal(response)
                if refusal.status == 404 or (refusal.status >= 500 and refusal.status != 501):
                    raise ServerFailure(refusal)
                return False
            if _content_kind(response) != "text/event-stream":
                return False
            opened()
            async for event in _events(response, self._peer):
                if event.event == "message" and event.data:
                    self._exchange.take(_decode(event.data))
        return True

    async def end_session(self) -> None:
        """Tell the server that its session is over; best effort, bounded."""
        if self._session_id is not None:
            with anyio.move_on_after(GOODBYE_SECONDS, shield=True), suppress(ServerFailure):
                async with self._peer.request(
                    "DELETE", self._peer.url, headers=self._headers({}), doing="the end of the session"
                ):
                    pass

    async def quiet(self) -> None:
        """Wait until no request is under way."""
        while self._under_way:
            self._one_ended = anyio.Event()
            await self._one_ended.wait()

    async def _unless_closed(self, work: Awaitable[Message]) -> Message:
        """A request's own POST, ended at once when the connection is closed under it."""
        with anyio.CancelScope() as scope:
            self._under_way.add(scope)
            try:
                return await work
            finally:
                self._under_way.discard(scope)
                self._one_ended.set()
        raise self._exchange.failure()

    def _headers(self, opts: CallOptions) -> dict[str, str]:
        """What the protocol wants on each request; the version is learned from the session's own stamp."""
        given = {name.lower(): value for name, value in opts.get("headers", {}).items()}
        self._version = given.get(VERSION_HEADER, self._version)
        headers = {**ACCEPT, **given}
        if self._version is not None:
            headers.setdefault(VERSION_HEADER, self._version)
        if self._session_id is not None:
            headers[SESSION_HEADER] = self._session_id
        return headers

    async def _ask(self, message: Message, headers: Mapping[str, str], waiter: Waiter) -> Message:
        method = message["method"]
        async with self._peer.request(
            "POST", self._peer.url, headers=headers, content=_encode(message), doing=f"the answer to {method}"
        ) as response:
            await self._refuse_errors(response)
            if method == "initialize":
                self._session_id = response.headers.get(SESSION_HEADER)
            kind = _content_kind(response)
            if kind == "application/json":
                self._take_answer(await read_bounded(response, self._peer.limits), message, waiter)
            elif kind == "text/event-stream":
                return await self._from_stream(response, message, waiter)
            else:
                raise ServerFailure(_not_mcp(response, kind))
        return await waiter.result()

    def _take_answer(self, body: bytes, message: Message, waiter: Waiter) -> None:
        self._exchange.received += len(body)
        answer = _decode(body)
        if not isinstance(answer, dict) or not ({"result", "error"} & answer.keys()):
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail="its answer is no JSON-RPC response"))
        self._exchange.spoke = True
        if answer.get("id") is not None and coerce_request_id(answer["id"]) != coerce_request_id(message["id"]):
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail="its answer is to another request"))
        waiter.put(answer)

    async def _from_stream(self, response: httpx2.Response, message: Message, waiter: Waiter) -> Message:
        """Read a request's own stream beside the waiting, so that progress is told while it comes."""
        result: list[Message] = []
        failure: list[Exception] = []

        async def wait() -> None:
            try:
                result.append(await waiter.result())
            except Exception as exc:  # noqa: BLE001 - raised below, in the task that asked
                failure.append(exc)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            try:
                await self._read_stream(response, message)
            except Exception as exc:  # noqa: BLE001 - raised again by the waiter; a task group would wrap it
                waiter.put(exc)
        if failure:
            raise failure[0]
        return result[0]

    async def _read_stream(self, response: httpx2.Response, message: Message) -> None:
        """Give every event to the exchange until the answer was among them; take up a stream that was cut."""
        cursor = _Cursor()
        if await self._drain(response, cursor, message):
            return
        for _ in range(RESUME_ATTEMPTS):
            if not self._resumable(cursor):
                break
            await anyio.sleep(cursor.delay)
            headers = {**self._headers({}), "accept": "text/event-stream", "last-event-id": cursor.last_id}
            async with self._peer.request("GET", self._peer.url, headers=headers, doing="the stream again") as resumed:
                await self._refuse_errors(resumed)
                if await self._drain(resumed, cursor, message):
                    return
        raise ServerFailure(NetworkFailure(fault=NetworkFault.CLOSED, stood=True))

    def _resumable(self, cursor: _Cursor) -> bool:
        return bool(cursor.last_id) and self._version not in MODERN_PROTOCOL_VERSIONS

    async def _drain(self, response: httpx2.Response, cursor: _Cursor, message: Message) -> bool:
        """Whether the answer came on this stream; a cut that can be mended is an end like any other."""
        try:
            with translated(f"the answer to {message['method']}"):
                return await self._until_answer(response, cursor, message)
        except ServerFailure as failure:
            if isinstance(failure.evidence, NetworkFailure) and self._resumable(cursor):
                return False
            raise

    async def _until_answer(self, response: httpx2.Response, cursor: _Cursor, message: Message) -> bool:
        async for event in _events(response, self._peer):
            cursor.note(event)
            if event.event != "message" or not event.data:
                continue
            self._exchange.received += len(event.data)
            incoming = _decode(event.data)
            if isinstance(incoming, dict) and "error" in incoming and incoming.get("id") is None:
                incoming["id"] = message["id"]  # an error without an id, on the stream of one request, is that one's
            self._exchange.take(incoming)
            if isinstance(incoming, dict) and _answers(incoming, message):
                return True
        return False

    async def _post_answer(self, message: Message) -> None:
        await self._post_notice(message, self._headers({}))

    async def _post_notice(self, message: Message, headers: Mapping[str, str]) -> None:
        async with self._peer.request(
            "POST", self._peer.url, headers=headers, content=_encode(message), doing="the receipt of a notice"
        ) as response:
            await self._refuse_errors(response)

    async def _refuse_errors(self, response: httpx2.Response) -> None:
        """Raise for an error status: ``MCPError`` if the server itself answered, else the evidence."""
        if response.status_code < 400:
            return
        refusal, body = await self._peer.refusal(response)
        if not self._is_http_level(refusal):
            error = _rpc_error_in(body)
            if error is not None:
                raise error
        raise ServerFailure(refusal)

    def _is_http_level(self, refusal: HttpStatus) -> bool:
        lost_session = refusal.status == 404 and self._session_id is not None
        return refusal.status in HTTP_LEVEL or refusal.status >= 500 or lost_session


class _Cursor:
    """Where a stream stands, for taking it up again."""

    def __init__(self) -> None:
        self.last_id = ""
        self.delay = RESUME_DELAY_SECONDS

    def note(self, event: httpx2.ServerSentEvent) -> None:
        self.last_id = event.id or self.last_id
        if event.retry is not None:
            self.delay = event.retry / 1000


async def _events(response: httpx2.Response, peer: HttpPeer) -> AsyncIterator[httpx2.ServerSentEvent]:
    try:
        async for event in httpx2.EventSource(response, max_event_size=peer.limits.message_bytes):
            yield event
    except httpx2.SSEError as exc:
        raise ServerFailure(over_message_bound(peer.limits)) from exc


def _content_kind(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _answers(incoming: Mapping[str, Any], message: Message) -> bool:
    """Whether this is the answer to our request: another's, or a late one, is not."""
    given = incoming.get("id")
    same = isinstance(given, str | int) and coerce_request_id(given) == coerce_request_id(message["id"])
    return "method" not in incoming and same


def _encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def _decode(text: str | bytes) -> object:
    try:
        return from_json(text)
    except ValueError as exc:
        start = text[:80] if isinstance(text, str) else text[:80].decode("utf-8", "replace")
        raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSON, detail=start)) from exc


def _rpc_error_in(body: bytes) -> MCPError | None:
    """The JSON-RPC error that an HTTP error response carries, if it does."""
    try:
        parsed = from_json(body)
    except ValueError:
        return None
    error = parsed.get("error") if isinstance(parsed, dict) and parsed.get("jsonrpc") == "2.0" else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), int):
        return None
    return MCPError(error["code"], str(error.get("message", "")), error.get("data"))


def _not_mcp(response: httpx2.Response, kind: str) -> NotMcp:
    if response.status_code == 202:
        return NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail="it accepted a request without answering it")
    return NotMcp(fault=NotMcpFault.CONTENT_TYPE, detail=f"it answered with {kind or 'no content type'}")
