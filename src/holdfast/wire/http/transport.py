"""Streamable HTTP, both eras: each request is a POST of its own, made by the caller's task.

So one failed request affects no other, its evidence reaches its caller, and a cancelled caller closes only its own
stream. There is no connection to lose: one exchange fails, and the next one dials again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
from mcp import MCPError
from mcp.shared.dispatcher import (
    CallOptions,
    Dispatcher,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    ProgressFnT,
    coerce_request_id,
)
from mcp.shared.transport_context import TransportContext
from mcp_types import RequestId
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import from_json

from holdfast.config import Limits
from holdfast.core import (
    Evidence,
    HttpStatus,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    quoted,
    quoted_name,
)
from holdfast.errors import ServerFailure
from holdfast.wire.deadlines import Deadlines
from holdfast.wire.envelope import (
    SMALL_BYTES,
    BadJson,
    Bytes,
    Fields,
    RawObject,
    dump_object,
    dumps,
    fields,
    is_array,
    items,
    loads,
    read_bytes,
)
from holdfast.wire.event_stream import EventReader, ServerEvent, only_event
from holdfast.wire.http.client import (
    EVENT_STREAM,
    FED_BYTES,
    HttpPeer,
    content_type,
    read_bounded,
    read_events,
    translated,
)
from holdfast.wire.http.connection import Response
from holdfast.wire.http.evidence import evidence_of
from holdfast.wire.large import split, split_answer
from holdfast.wire.outgoing import Message, call_message, notification_message, request_message, with_progress_token
from holdfast.wire.rpc import LONGEST_ID, Exchange, PendingRequest, result_in, value_of
from holdfast.wire.tracing import in_headers

__all__ = ["HttpDispatcher"]

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

RESUME_ATTEMPTS = 2

HTTP_LEVEL = frozenset({401, 403, 407, 408, 429})
"""Statuses that concern the path to the server and not the request, for any body. 5xx belong here too."""


REPEATABLE = frozenset(
    {"initialize", "server/discover", "ping"}
    | {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read", "prompts/get"}
)
"""Requests that a server may get twice: they change nothing, or only make a session that is not used."""


_OTHERS: Fields = {}
"""Stands for a batch without the answer."""


class HttpDispatcher(Dispatcher[TransportContext]):
    """The SDK's dispatcher over streamable HTTP."""

    def __init__(self, peer: HttpPeer) -> None:
        self._peer = peer
        self._exchange = Exchange("streamable-http", self._post_answer, peer.limits)
        self._session_id: str | None = None
        self._version: str | None = None
        self._common: dict[str, str] | None = None
        self._closed = anyio.Event()
        self.deadlines = Deadlines()
        self.stood = False
        """Whether the handshake is complete; the dialer sets it."""

    def adopt(self, limits: Limits) -> None:
        """Use other bounds from now on."""
        self._peer.limits = limits
        self._exchange.adopt(limits)

    @property
    def connecting(self) -> bool:
        """Whether no connection to the server has stood yet."""
        return self._peer.connecting

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

    def failure(self) -> ServerFailure:
        """Why a request was cut when the connection was closed."""
        return self._exchange.failure()

    def call(
        self, method: str, params: Fields, *, headers: Mapping[str, str], on_progress: ProgressFnT | None = None
    ) -> Coroutine[Any, Any, Bytes | RawObject]:
        """POST a request as it is and wait for its result, also as it is. The caller bounds the time."""
        request_id, waiter = self._exchange.begin(on_progress)
        body = call_message(request_id, method, params, progress=on_progress is not None)
        common = self._common_headers()
        return self._answered(request_id, waiter, method, body, {**common, **headers} if headers else common)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> Message:
        """POST a request and wait for its result, on any stream. The caller bounds the time.

        The SDK's own ``timeout`` is left out: it gives its probe 10 s, and an attempt may have more.
        """
        opts = opts or {}
        request_id, waiter = self._exchange.open(opts)
        if method == "initialize":
            self._version = self._common = None
        headers = {**self._headers(opts), **in_headers(params)}
        body = dumps(request_message(request_id, method, with_progress_token(params, request_id, opts)))
        tell = opts.get("cancel_on_abandon", True)
        answer = self._answered(request_id, waiter, method, body, headers, tell=tell)
        return value_of(await self.deadlines.until_closed(answer, failure=self.failure))

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
            self.deadlines.cut_all()
            self._exchange.release()

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
                    await self._exchange.take_event(event.data)
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
        await self.deadlines.empty()

    def _headers(self, opts: CallOptions) -> dict[str, str]:
        """The headers that the protocol requires; the version comes from the session's own header."""
        given = {name.lower(): value for name, value in opts.get("headers", {}).items()}
        version = given.get(VERSION_HEADER, self._version)
        if version != self._version:
            self._version, self._common = version, None
        return {**self._common_headers(), **given}

    def _common_headers(self) -> dict[str, str]:
        """What every request of this connection carries."""
        if self._common is None:
            self._common = dict(ACCEPT)
            if self._version is not None:
                self._common[VERSION_HEADER] = self._version
            if self._session_id is not None:
                self._common[SESSION_HEADER] = self._session_id
        return self._common

    async def _answered(
        self,
        request_id: RequestId,
        waiter: PendingRequest,
        method: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        tell: bool = True,
    ) -> Bytes | RawObject:
        """The answer to one POST; a caller that stops waiting tells a legacy server so."""
        began = time.monotonic()
        response: Response | None = None
        try:
            response = await self._peer.post(body, headers, again=method in REPEATABLE)
            if response.status >= 400:
                await self._refuse_errors(response)
            if method == "initialize":
                self._begin_session(response)
            kind = response.headers.get("content-type", "")
            came = response.whole()
            if waiter.items:
                await waiter.deliver()  # progress that came on another stream
            if kind != _JSON and (kind := content_type(response)) != _JSON:
                if kind != EVENT_STREAM:
                    raise ServerFailure(_not_mcp(response, kind))
                only = self._in_one_event(came, request_id)
                return only if only is not None else await self._from_stream(response, request_id, waiter, method)
            if came is None or len(came) > SMALL_BYTES or len(came) > self._peer.limits.message_bytes:
                answer = await self._from_body(response, request_id)
                await waiter.deliver()
                return answer
            self._exchange.received += len(came)
            return self._answer_in(self._members(came, request_id), request_id)
        except asyncio.CancelledError:
            if tell and self._version not in MODERN_PROTOCOL_VERSIONS:
                self._exchange.say_cancelled(request_id, "the caller no longer waits")
            raise
        except Exception as exc:
            doing, after = f"the answer to {method}", round(time.monotonic() - began, 1)
            seen = _broken_off(exc, response) or evidence_of(exc, doing=doing, after=after)
            if seen is None:
                raise  # a failure with evidence, or an error of the server itself
            raise ServerFailure(seen) from exc
        finally:
            if response is not None:
                response.close()
            self._exchange.close(request_id)

    def _begin_session(self, response: Response) -> None:
        """Note the session that the server gives with its answer to the handshake."""
        self._session_id, self._common = response.headers.get(SESSION_HEADER, "").strip() or None, None
        if self._session_id is not None:
            if len(self._session_id) > LONGEST_SESSION_ID:
                detail = f"its session id has more than {LONGEST_SESSION_ID} characters"
                raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=detail))
            self._peer.learn_secret(self._session_id)

    async def _from_body(self, response: Response, request_id: RequestId) -> Bytes | RawObject:
        """The answer in a body that is large, or not all here."""
        came = await read_bounded(response, self._peer.limits)
        self._exchange.received += len(came)
        if len(came) <= SMALL_BYTES:
            return self._answer_in(self._members(bytes(came), request_id), request_id)
        members, result = await _split_answer(came, stood=self.stood)
        answered = self._answer_in(members, request_id)
        return answered if result is None else result

    def _answer_in(self, answer: Fields, request_id: RequestId) -> Bytes:
        if "result" not in answer and "error" not in answer:
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail="its answer is no JSON-RPC response"))
        self._exchange.spoke = True
        answered = answer.get("id")
        usual = type(request_id) is int and answered is not None and bytes(answered) == b"%d" % request_id
        if not usual and not _is_id(answered, request_id, or_none=True):
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail="its answer is to another request"))
        return result_in(answer)

    def _members(self, data: bytes, request_id: RequestId) -> Fields:
        """The members of a small message; raises ``ServerFailure`` where it is none."""
        try:
            return fields(read_bytes(data))
        except BadJson as exc:
            if "object" in str(exc) and (answer := self._in_batch(data, request_id)) is not None:
                return answer
            raise _unreadable(data, exc, stood=self.stood) from exc

    def _in_batch(self, data: bytes, request_id: RequestId) -> Fields | None:
        """The answer in a batch, ``_OTHERS`` where it is not among them; the other messages go their way.

        The version 2025-03-26 allows batches. None where the bytes are no batch.
        """
        try:
            batch = [fields(one) for one in items(data)]
        except BadJson:
            return None
        if len(batch) < 2:
            return batch[0] if batch else None
        answer = _OTHERS
        for members in batch:
            if answer is _OTHERS and "method" not in members and _is_id(members.get("id"), request_id, or_none=False):
                answer = members
            else:
                self._exchange.route(members)
        return answer

    def _in_one_event(self, came: bytes | None, request_id: RequestId) -> Bytes | None:
        """The answer, where a whole stream is here and is nothing but that."""
        if came is None or len(came) > min(SMALL_BYTES, self._peer.limits.message_bytes):
            return None
        data = only_event(came)
        if not data or is_array(data):
            return None
        members = self._members(data, request_id)
        if "method" in members or "result" not in members or not _is_id(members.get("id"), request_id, or_none=False):
            return None
        self._exchange.received += len(data)
        self._exchange.spoke = True
        return result_in(members)

    async def _from_stream(
        self, response: Response, request_id: RequestId, waiter: PendingRequest, method: str
    ) -> Bytes:
        """Read a request's own stream until the answer came; resume a stream that was cut.

        The caller's own task reads it, so progress is delivered as it comes and before the result.
        """
        cursor = _Cursor()
        answer = await self._drain(response, cursor, request_id, waiter, method)
        for _ in range(RESUME_ATTEMPTS):
            if answer is not None or not self._resumable(cursor):
                break
            await anyio.sleep(cursor.delay)
            headers = {**self._common_headers(), "accept": EVENT_STREAM, "last-event-id": cursor.header}
            async with self._peer.request(
                "GET", self._peer.url, headers=headers, doing="the resumed stream"
            ) as resumed:
                await self._refuse_errors(resumed)
                answer = await self._drain(resumed, cursor, request_id, waiter, method)
        if answer is None:
            raise ServerFailure(NetworkFailure(fault=NetworkFault.CLOSED, stood=True))
        return result_in(answer)

    def _resumable(self, cursor: _Cursor) -> bool:
        return bool(cursor.header) and self._version not in MODERN_PROTOCOL_VERSIONS

    async def _drain(
        self, response: Response, cursor: _Cursor, request_id: RequestId, waiter: PendingRequest, method: str
    ) -> Fields | None:
        """The answer, if it came on this stream; a cut that can be resumed counts as its end."""
        try:
            with translated(f"the answer to {method}"):
                return await self._until_answer(response, cursor, request_id, waiter)
        except ServerFailure as failure:
            if isinstance(failure.evidence, NetworkFailure) and self._resumable(cursor):
                return None
            raise

    async def _until_answer(
        self, response: Response, cursor: _Cursor, request_id: RequestId, waiter: PendingRequest
    ) -> Fields | None:
        reader = EventReader(self._peer.limits.message_bytes)

        def take(chunk: bytes) -> int:
            """Progress goes to its call when it comes, while the task waits for the answer."""
            taken = reader.take(chunk, self._take_progress) if len(chunk) <= FED_BYTES else 0
            if taken and reader.last_id:
                cursor.last_id = reader.last_id
            return taken

        response.first_look = take
        async for event in read_events(response, self._peer.limits, reader=reader):
            if event.id or event.retry is not None:
                cursor.note(event)
            if event.name != "message" or not event.data:
                continue
            self._exchange.received += len(event.data)
            if self._exchange.take_progress(event.data):
                await waiter.deliver()
                continue
            small = len(event.data) <= SMALL_BYTES
            members = self._members(event.data, request_id) if small else await _split_any(event.data, stood=self.stood)
            if members is _OTHERS:
                continue
            # An error without an id, on one request's stream, answers that request.
            mine = "method" not in members and _is_id(members.get("id"), request_id, or_none="error" in members)
            if mine and members.keys() & {"result", "error"}:
                self._exchange.spoke = True
                await waiter.deliver()
                return members
            self._exchange.route(members)
            await waiter.deliver()
        return None

    def _take_progress(self, data: bytes) -> bool:
        """Take a progress notice; False leaves the message, and what is wrong with it, to the task that waits."""
        try:
            taken = bool(data) and self._exchange.take_progress(data)
        except ServerFailure:
            return False
        if taken:
            self._exchange.received += len(data)
        return taken

    async def _post_answer(self, message: Message) -> None:
        await self._post_notice(message, self._headers({}))

    async def _post_notice(self, message: Message, headers: Mapping[str, str]) -> None:
        async with self._peer.request(
            "POST", self._peer.url, headers=headers, content=dump_object(message), doing="the receipt of a notification"
        ) as response:
            await self._refuse_errors(response)

    async def _refuse_errors(self, response: Response) -> None:
        """Raise for an error status: ``MCPError`` if the MCP server itself answered, else the evidence."""
        if response.status < 400:
            return
        refusal, body = await self._peer.refusal(response)
        if not self._is_http_level(refusal):
            _raise_rpc_error(body)
        raise ServerFailure(refusal)

    def _is_http_level(self, refusal: HttpStatus) -> bool:
        lost_session = refusal.status == 404 and self._session_id is not None
        return refusal.status in HTTP_LEVEL or refusal.status >= 500 or lost_session


class _Cursor:
    """The position in a stream, to resume it."""

    def __init__(self) -> None:
        self.last_id = ""
        self.delay = RESUME_DELAY_SECONDS

    @property
    def header(self) -> str:
        """The id for a header, where one byte is a character; empty if it cannot be in one."""
        return self.last_id.encode().decode("latin-1") if self.last_id.isprintable() else ""

    def note(self, event: ServerEvent) -> None:
        self.last_id = event.id or self.last_id
        if event.retry is not None:
            self.delay = event.retry / 1000


async def _split_answer(data: bytes | bytearray, *, stood: bool) -> tuple[Fields, RawObject | None]:
    """The same for an answer of any size, with its result if that was read already."""
    try:
        return await split_answer(data)
    except BadJson as exc:
        raise _unreadable(data, exc, stood=stood) from exc


async def _split_any(data: bytes, *, stood: bool) -> Fields:
    """The same for a message of any size: a large one takes a wait."""
    try:
        return await split(data)
    except BadJson as exc:
        raise _unreadable(data, exc, stood=stood) from exc


def _broken_off(exc: Exception, response: Response | None) -> Evidence | None:
    """What an incomplete answer without a stated length shows: its connection was closed too early."""
    cause = exc.__cause__
    if response is None or not response.ends_with_connection or not isinstance(cause, BadJson) or not cause.truncated:
        return None
    return NetworkFailure(fault=NetworkFault.CLOSED, stood=True)


def _unreadable(data: bytes | bytearray, exc: BadJson, *, stood: bool) -> ServerFailure:
    """What bytes show that are no message.

    Before the handshake is complete, the start of the text shows what answers there. Later it is the content of one
    answer, and belongs into no error (LIFE-28).
    """
    if stood:
        return ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc)))
    if not data:
        return ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSON, detail="its answer is empty"))
    if "object" in str(exc):
        return ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail="its answer is no JSON-RPC response"))
    return ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSON, detail=quoted(data[:80].decode("utf-8", "replace"))))


def _is_id(raw: Bytes | None, request_id: RequestId, *, or_none: bool) -> bool:
    """Whether this is the id of our request and of no other."""
    if raw is None or bytes(raw) == b"null":
        return or_none
    if isinstance(request_id, int) and bytes(raw) == b"%d" % request_id:
        return True
    if len(memoryview(raw)) > LONGEST_ID:
        return False
    try:
        given = loads(raw)
    except BadJson:
        return False
    if isinstance(given, float) and given.is_integer():
        given = int(given)  # some servers have no integers
    return isinstance(given, str | int) and coerce_request_id(given) == coerce_request_id(request_id)


def _raise_rpc_error(body: bytes) -> None:
    """Raise the JSON-RPC error that an HTTP error response carries, if it does."""
    try:
        parsed = from_json(body)
    except ValueError:
        return
    error = parsed.get("error") if isinstance(parsed, dict) and parsed.get("jsonrpc") == "2.0" else None
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        raise MCPError(error["code"], str(error.get("message", "")), error.get("data"))


def _not_mcp(response: Response, kind: str) -> NotMcp:
    if response.status == 202:
        return NotMcp(fault=NotMcpFault.NO_ANSWER, detail="it accepted a request without answering it")
    return NotMcp(
        fault=NotMcpFault.CONTENT_TYPE, detail=f"it answered with {quoted_name(kind) if kind else 'no content type'}"
    )
