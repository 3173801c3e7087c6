"""Streamable HTTP, both eras: each request is a POST of its own, made by the caller's task.

So one failed request affects no other, its evidence reaches its caller, and a cancelled caller closes only its own
stream. There is no connection to lose: one exchange fails, and the next one dials again.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
from mcp import MCPError
from mcp.shared.dispatcher import CallOptions, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest, coerce_request_id
from mcp.shared.transport_context import TransportContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import from_json

from holdfast.config import Limits
from holdfast.core import Evidence, HttpStatus, NetworkFailure, NetworkFault, NotMcp, NotMcpFault, TimedOut
from holdfast.errors import ServerFailure
from holdfast.wire.event_stream import ServerEvent
from holdfast.wire.http.client import EVENT_STREAM, HttpPeer, content_type, read_bounded, read_events, translated
from holdfast.wire.http.connection import Response
from holdfast.wire.rpc import (
    Exchange,
    Message,
    PendingRequest,
    notification_message,
    request_message,
    with_progress_token,
)
from holdfast.wire.tracing import in_headers

__all__ = ["HttpDispatcher"]

SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = "mcp-protocol-version"
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

GOODBYE_SECONDS = 2.0
"""How long ending a session may take. It is best effort: the server drops an idle session by itself."""

RESUME_DELAY_SECONDS = 1.0
"""The pause before a cut stream is resumed, where the server names none."""

RESUME_ATTEMPTS = 2

HTTP_LEVEL = frozenset({401, 403, 407, 408, 429})
"""Statuses that concern the path to the server and not the request, for any body. 5xx belong here too."""


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
        """Whether the handshake is complete; the dialer sets it."""

    def adopt(self, limits: Limits) -> None:
        """Use other bounds from now on."""
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
        """A missing answer gives no evidence beyond the timeout."""
        return None

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> Message:
        """POST a request and wait for its result, on any stream."""
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
        """POST a notification; a refused one is no failure. The modern era has none from client to server."""
        headers = self._headers(opts or {})
        if self._version not in MODERN_PROTOCOL_VERSIONS:
            with suppress(ServerFailure, MCPError):
                await self._post_notice(notification_message(method, params), headers)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the requests that the server sends on our streams, until closed."""
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
        """Read the legacy era's stream of notifications to its end; False if the server offers none."""
        if self._session_id is None:
            return False
        headers = {**self._headers({}), "accept": EVENT_STREAM}
        async with self._peer.request("GET", self._peer.url, headers=headers, doing="the event stream") as response:
            if response.status >= 400:
                refusal, _ = await self._peer.refusal(response)
                if refusal.status == 404 or (refusal.status >= 500 and refusal.status != 501):
                    raise ServerFailure(refusal)
                return False
            if content_type(response) != EVENT_STREAM:
                return False
            opened()
            async for event in read_events(response, self._peer.limits):
                if event.name == "message" and event.data:
                    self._exchange.take(_decode(event.data))
        return True

    async def end_session(self) -> None:
        """End the session at the server; best effort, bounded."""
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
        """Run a request's POST; it ends at once when the connection is closed."""
        with anyio.CancelScope() as scope:
            self._under_way.add(scope)
            try:
                return await work
            finally:
                self._under_way.discard(scope)
                self._one_ended.set()
        raise self._exchange.failure()

    def _headers(self, opts: CallOptions) -> dict[str, str]:
        """The headers that the protocol requires; the version comes from the session's own header."""
        given = {name.lower(): value for name, value in opts.get("headers", {}).items()}
        self._version = given.get(VERSION_HEADER, self._version)
        headers = {**ACCEPT, **given}
        if self._version is not None:
            headers.setdefault(VERSION_HEADER, self._version)
        if self._session_id is not None:
            headers[SESSION_HEADER] = self._session_id
        return headers

    async def _ask(self, message: Message, headers: Mapping[str, str], waiter: PendingRequest) -> Message:
        method = message["method"]
        async with self._peer.request(
            "POST", self._peer.url, headers=headers, content=_encode(message), doing=f"the answer to {method}"
        ) as response:
            await self._refuse_errors(response)
            if method == "initialize":
                self._session_id = response.headers.get(SESSION_HEADER)
            kind = content_type(response)
            if kind == "application/json":
                self._take_answer(await read_bounded(response, self._peer.limits), message, waiter)
            elif kind == EVENT_STREAM:
                return await self._from_stream(response, message, waiter)
            else:
                raise ServerFailure(_not_mcp(response, kind))
        return await waiter.result()

    def _take_answer(self, body: bytes, message: Message, waiter: PendingRequest) -> None:
        self._exchange.received += len(body)
        answer = _decode(body)
        if not isinstance(answer, dict) or not ({"result", "error"} & answer.keys()):
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail="its answer is no JSON-RPC response"))
        self._exchange.spoke = True
        if answer.get("id") is not None and coerce_request_id(answer["id"]) != coerce_request_id(message["id"]):
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail="its answer is to another request"))
        waiter.put(answer)

    async def _from_stream(self, response: Response, message: Message, waiter: PendingRequest) -> Message:
        """Read a request's own stream while its caller waits, so that progress is delivered as it comes."""
        result: list[Message] = []
        failure: list[Exception] = []

        async def wait() -> None:
            try:
                result.append(await waiter.result())
            except Exception as exc:  # noqa: BLE001 - raised below, in the caller's task
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

    async def _read_stream(self, response: Response, message: Message) -> None:
        """Give every event to the exchange until the answer came; resume a stream that was cut."""
        cursor = _Cursor()
        if await self._drain(response, cursor, message):
            return
        for _ in range(RESUME_ATTEMPTS):
            if not self._resumable(cursor):
                break
            await anyio.sleep(cursor.delay)
            headers = {**self._headers({}), "accept": EVENT_STREAM, "last-event-id": cursor.last_id}
            async with self._peer.request(
                "GET", self._peer.url, headers=headers, doing="the resumed stream"
            ) as resumed:
                await self._refuse_errors(resumed)
                if await self._drain(resumed, cursor, message):
                    return
        raise ServerFailure(NetworkFailure(fault=NetworkFault.CLOSED, stood=True))

    def _resumable(self, cursor: _Cursor) -> bool:
        return bool(cursor.last_id) and self._version not in MODERN_PROTOCOL_VERSIONS

    async def _drain(self, response: Response, cursor: _Cursor, message: Message) -> bool:
        """Whether the answer came on this stream; a cut that can be resumed counts as its end."""
        try:
            with translated(f"the answer to {message['method']}"):
                return await self._until_answer(response, cursor, message)
        except ServerFailure as failure:
            if isinstance(failure.evidence, NetworkFailure) and self._resumable(cursor):
                return False
            raise

    async def _until_answer(self, response: Response, cursor: _Cursor, message: Message) -> bool:
        async for event in read_events(response, self._peer.limits):
            cursor.note(event)
            if event.name != "message" or not event.data:
                continue
            self._exchange.received += len(event.data)
            incoming = _decode(event.data)
            if isinstance(incoming, dict) and "error" in incoming and incoming.get("id") is None:
                incoming["id"] = message["id"]  # an error without an id, on one request's stream, answers that request
            self._exchange.take(incoming)
            if isinstance(incoming, dict) and _answers(incoming, message):
                return True
        return False

    async def _post_answer(self, message: Message) -> None:
        await self._post_notice(message, self._headers({}))

    async def _post_notice(self, message: Message, headers: Mapping[str, str]) -> None:
        async with self._peer.request(
            "POST", self._peer.url, headers=headers, content=_encode(message), doing="the receipt of a notification"
        ) as response:
            await self._refuse_errors(response)

    async def _refuse_errors(self, response: Response) -> None:
        """Raise for an error status: ``MCPError`` if the MCP server itself answered, else the evidence."""
        if response.status < 400:
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
    """The position in a stream, to resume it."""

    def __init__(self) -> None:
        self.last_id = ""
        self.delay = RESUME_DELAY_SECONDS

    def note(self, event: ServerEvent) -> None:
        self.last_id = event.id or self.last_id
        if event.retry is not None:
            self.delay = event.retry / 1000


def _answers(incoming: Mapping[str, Any], message: Message) -> bool:
    """Whether this message answers our request and no other."""
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


def _not_mcp(response: Response, kind: str) -> NotMcp:
    if response.status == 202:
        return NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail="it accepted a request without answering it")
    return NotMcp(fault=NotMcpFault.CONTENT_TYPE, detail=f"it answered with {kind or 'no content type'}")
