"""JSON-RPC between us and one server: our requests under way, and the server's requests and notifications.

Every transport uses ``Exchange``. For each request under way it keeps the messages in their order, so progress is
always delivered before the result. It knows no transport: it gets messages as bytes and a function to send one.
An answer is kept as the bytes that it came in; a message that the hub itself reads is parsed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import mcp_types as types
from mcp import MCPError
from mcp.shared.dispatcher import (
    CallOptions,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    ProgressFnT,
    coerce_request_id,
    run_notify_intercept,
)
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR, RequestId
from pydantic import BaseModel, ConfigDict, ValidationError

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
    without_own_keys,
)
from holdfast.errors import ServerFailure
from holdfast.wire.envelope import (
    SMALL_BYTES,
    BadJson,
    Bytes,
    Fields,
    RawObject,
    RawValue,
    fields,
    is_object,
    is_word,
    items,
    loads,
    read_bytes,
    text_of,
)
from holdfast.wire.large import split
from holdfast.wire.outgoing import Message, notification_message
from holdfast.wire.own_meta import load_params
from holdfast.wire.progress import AtOnce, Progress, finite, progress_in, usual_progress
from holdfast.wire.relay import attributed, until_cancelled

__all__ = [
    "Exchange",
    "Inbound",
    "Message",
    "PendingRequest",
    "RawNotification",
    "RawRequest",
    "RawResult",
    "UnusableMessage",
    "answered_id",
    "first_error",
    "result_in",
    "value_of",
]


class RawRequest(types.Request[dict[str, Any], str]):
    """Any request: a method and its parameters."""


class RawNotification(types.Notification[dict[str, Any], str]):
    """Any notification: a method and its parameters."""


class RawResult(BaseModel):
    """Any result: ``raw`` is what the server sent."""

    model_config = ConfigDict(extra="allow")

    @property
    def raw(self) -> dict[str, Any]:
        """The whole result."""
        return self.model_extra or {}


def first_error(exc: ValidationError) -> str:
    """The place and kind of the first violation of the protocol, without the content."""
    first = exc.errors(include_url=False, include_input=False)[0]
    return f"{quoted_name('.'.join(str(step)[:40] for step in first['loc'][:12]))}: {first['msg']}"


log = logging.getLogger(__name__)

CANCEL_NOTICE_SECONDS = 5.0
"""How long sending ``notifications/cancelled`` may take; it is sent in the background."""

ANSWER_SECONDS = 30.0
"""How long writing our answer to a server's own request may take."""

REQUESTS_FROM_SERVER = 64
"""How many of a server's own requests (sampling, elicitation, …) may be under way at once.

As many more are refused at a time. Those beyond get no answer: a server that sends requests and does not read the
answers must not fill our memory."""

NOTICE_BYTES, NOTICE_PART_BYTES = 1 << 18, 1 << 12
"""The largest notification that passes on whole, and the largest part of a larger one that does.

Notifications wait for their readers, up to a thousand at a time: their size must be bounded too."""

NOTICES_WAITING = 1024
"""How many notifications may wait for their handler; the oldest is dropped, so a slow handler blocks no reader."""

NOTICES_IN_A_ROW = 8
"""How many notifications are handled before other tasks run: a handler that never waits would block all servers."""

LONGEST_ID = 1_024
"""Bytes; a longer id is no id."""

ERROR_TEXT_BYTES = 16 * 1024
"""How much is kept of the message of an error that is large."""

BURST_SECONDS = 5
"""The burst that is allowed, in seconds of the permitted rate; only a lasting flood is over the bound."""


class UnusableMessage(ValueError):
    """Bytes that are no JSON message; the text says why and quotes nothing of them."""


_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")\s*,')
_ID_LAST = re.compile(
    rb'[^\s{]\s*,\s*"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z'
)


def answered_id(data: bytes) -> RequestId | None:
    """The id of the request that unusable bytes answer, where it is at their beginning or at their end."""
    found = _ID_FIRST.match(data[:1024]) or _ID_LAST.search(data[-1024:])
    if found is None:
        return None
    try:
        written = found[1].decode()
    except UnicodeDecodeError:
        return None
    return written[1:-1] if written.startswith('"') else int(written)


class PendingRequest:
    """One request under way: the messages for it, in order, read by the task that waits."""

    __slots__ = ("_now", "_on_progress", "_waiter", "items", "sent_at")

    def __init__(self, on_progress: ProgressFnT | None = None) -> None:
        self._on_progress = on_progress
        self._now = on_progress.now if isinstance(on_progress, AtOnce) else None
        self.sent_at: int | None = None
        """Where it ends in what was written to a pipe; None until all of it is written, and without a pipe."""
        self.items: deque[Progress | Fields | Exception] = deque()
        """What came and was not read."""
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Progress | Fields | Exception) -> None:
        """Add progress, the answer, or the reason for a missing answer."""
        if self._now is not None and isinstance(item, tuple) and not self.items:
            try:
                self._now(*item)
            except Exception as exc:  # noqa: BLE001 - as below
                log.warning("a progress callback raised %s", type(exc).__name__)
            return
        self.items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def result(self) -> Bytes:
        """The result, after all progress was delivered. Raises ``MCPError`` for an error answer."""
        while True:
            while self.items:
                item = self.items.popleft()
                if isinstance(item, tuple):
                    self.items.appendleft(item)
                    await self.deliver()
                elif isinstance(item, Exception):
                    raise item
                else:
                    return result_in(item)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def deliver(self) -> None:
        """Deliver the progress that came, and no answer."""
        while self.items and isinstance(item := self.items[0], tuple):
            self.items.popleft()
            try:
                if self._on_progress is not None:
                    await self._on_progress(*item)
            except Exception as exc:  # noqa: BLE001 - a broken callback must not cost its caller the result
                log.warning("a progress callback raised %s", type(exc).__name__)


def result_in(answer: Fields) -> Bytes:
    """The result in an answer; raises ``MCPError`` for an error."""
    error = answer.get("error")
    if error is None or is_word(error, b"null"):
        result = answer.get("result")
        if result is not None and is_object(result):
            return result
        raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail="an answer without a result"))
    # A malformed error is still the answer to this request, and to no other.
    try:
        code, message, data = _error_parts(error)
    except BadJson:
        code, message, data = None, None, None
    raise MCPError(
        code if isinstance(code, int) else INTERNAL_ERROR,
        message if isinstance(message, str) and message else "the server gave an error without a message",
        data,
    )


def _error_parts(error: Bytes) -> tuple[object, object, object]:
    """Code, message and data of an error. What is large is cut, or passed on unread."""
    if len(memoryview(error)) <= SMALL_BYTES:
        said = loads(error)
        return (
            (said.get("code"), said.get("message"), said.get("data")) if isinstance(said, dict) else (None, said, None)
        )
    members = fields(error)
    code, message, data = members.get("code"), members.get("message"), members.get("data")
    return (
        loads(code) if code is not None and len(memoryview(code)) <= LONGEST_ID else None,
        _cut_text(message) if message is not None else None,
        RawValue(data) if data is not None else None,
    )


def _cut_text(raw: Bytes) -> str | None:
    """A text, or the beginning of a large one."""
    if len(memoryview(raw)) <= SMALL_BYTES:
        return text_of(raw)
    head = bytes(memoryview(raw)[:ERROR_TEXT_BYTES])
    if not head.startswith(b'"'):
        return None
    # The cut may be inside a character or an escape: a few bytes less are whole again.
    for less in range(16):
        try:
            return f"{json.loads(head[: len(head) - less].decode() + chr(34))} … (cut)"
        except ValueError:
            continue
    return None


@dataclass
class Inbound:
    """The context of a server's own message; nothing can be sent to the server through it."""

    transport: TransportContext
    request_id: RequestId | None = None
    message_metadata: None = None
    cancel_requested: anyio.Event = field(default_factory=anyio.Event)
    can_send_request: bool = False

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> Message:
        """Requests are sent by the session, never from a handler's context."""
        raise MCPError(INTERNAL_ERROR, f"{method} cannot be sent from here")

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Handlers send no notifications."""

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Handlers report no progress."""


class Exchange:
    """The state of one connection: our requests, and the server's requests and notifications."""

    def __init__(self, kind: str, send: Callable[[Message], Awaitable[None]], limits: Limits) -> None:
        self._context = TransportContext(kind=kind, can_send_request=False)
        self._send = send
        self._limits = limits
        self._next_id = 0
        self._waiters: dict[RequestId, PendingRequest] = {}
        self._answering: dict[RequestId, anyio.CancelScope] = {}
        self._turning_down = 0
        self._notices: deque[tuple[str, Mapping[str, Any] | None]] = deque(maxlen=NOTICES_WAITING)
        self._notice_came = anyio.Event()
        self._allowance = float(limits.notifications_per_second * BURST_SECONDS)
        self._counted_at = 0.0
        self._tasks: anyio.abc.TaskGroup | None = None
        self._on_request: OnRequest | None = None
        self._intercept: OnNotifyIntercept | None = None
        self.ended: ServerFailure | None = None
        self.spoke = False
        """Whether anything that is JSON-RPC ever came from the server."""
        self.received = 0
        """How many bytes of messages came; transports count them."""

    def adopt(self, limits: Limits) -> None:
        """Use other bounds from now on."""
        self._limits = limits

    def start(
        self,
        tasks: anyio.abc.TaskGroup,
        on_request: OnRequest,
        on_notify: OnNotify,
        intercept: OnNotifyIntercept | None,
    ) -> None:
        """Begin to serve the server's own requests and notifications, in tasks of ``tasks``."""
        self._tasks = tasks
        self._on_request = on_request
        self._intercept = intercept
        tasks.start_soon(until_cancelled, self._deliver_notices, on_notify)

    def open(self, opts: CallOptions) -> tuple[RequestId, PendingRequest]:
        """Register a request; returns its id, and the waiter for its answer."""
        if self.ended is not None:
            raise self.failure()
        request_id = opts.get("request_id")
        if request_id is None:
            self._next_id += 1
            request_id = self._next_id
        key = coerce_request_id(request_id)
        if key in self._waiters:
            raise ValueError(f"request id {request_id!r} is already in flight")
        waiter = self._waiters[key] = PendingRequest(opts.get("on_progress"))
        return request_id, waiter

    def begin(self, on_progress: ProgressFnT | None) -> tuple[int, PendingRequest]:
        """The same for a request with an id of our own."""
        if self.ended is not None:
            raise self.failure()
        self._next_id += 1
        request_id = self._next_id
        if request_id in self._waiters:
            raise ValueError(f"request id {request_id!r} is already in flight")
        waiter = self._waiters[request_id] = PendingRequest(on_progress)
        return request_id, waiter

    def close(self, request_id: RequestId) -> None:
        """Forget a request; later messages for it are dropped."""
        self._waiters.pop(request_id if type(request_id) is int else coerce_request_id(request_id), None)

    def fail(self, failure: ServerFailure) -> None:
        """The connection is gone: every waiting request fails at once, and every later one too."""
        if self.ended is None:
            self.ended = failure
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.put(self.failure())

    def release(self) -> None:
        """Let go of the transport and the session: all tasks have ended. No collection of cycles has to free them."""
        self._tasks = self._on_request = self._intercept = None
        self._send = _unsent

    def failure(self) -> ServerFailure:
        """Why the connection is gone, as a new exception: each waiting task raises its own."""
        gone = NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
        return ServerFailure(self.ended.evidence if self.ended is not None else gone)

    def refuse(self, request_id: RequestId | None, evidence: Evidence) -> bool:
        """Fail one request, whose answer cannot be used; False if no such request waits."""
        key = coerce_request_id(request_id) if request_id is not None else None
        waiter = self._waiters.pop(key, None) if key is not None else None
        if waiter is not None:
            self.spoke = True
            waiter.put(ServerFailure(evidence))
        return waiter is not None

    def fail_unread(self, read: int | None, evidence: Callable[[bool], Evidence]) -> None:
        """The peer reads no more: fail the requests that it has not read. It may still answer the others.

        ``read`` is how much it has read; None if that is not known, and then each of them may have been read.
        """
        for request_id, waiter in list(self._waiters.items()):
            if waiter.sent_at is not None and (read is None or waiter.sent_at > read):
                del self._waiters[request_id]
                waiter.put(ServerFailure(evidence(read is None)))

    def take(self, data: bytes) -> None:
        """Route one message from the server. Never waits; raises ``ServerFailure`` if it is no JSON-RPC message."""
        try:
            members: Fields | BadJson = fields(read_bytes(data))
        except BadJson as exc:
            members = exc
        self._take(data, members)

    def _take(self, data: bytes, members: Fields | BadJson) -> None:
        if isinstance(members, BadJson):
            if "object" not in str(members):
                raise UnusableMessage(str(members)) from members
            if len(data) <= SMALL_BYTES and self._take_batch(data):
                return
            detail = quoted(data[:80].decode("utf-8", "replace"))
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail=detail)) from members
        self.route(members)

    def _take_batch(self, data: bytes) -> bool:
        """Route the messages of a batch, which the version 2025-03-26 allows; False if it is none."""
        try:
            batch = [fields(one) for one in items(data)]
        except BadJson:
            return False
        for members in batch:
            self.route(members)
        return bool(batch)

    async def take_any(self, data: bytes) -> None:
        """The same for a message of any size: only a large one takes a wait."""
        if len(data) <= SMALL_BYTES:
            self.take(data)
        else:
            self._take(data, await _split_large(data))

    async def take_event(self, data: bytes) -> None:
        """The same for a message of an event stream. An answer that is no JSON fails its request.

        Any other bytes that are no JSON are the server's fault.
        """
        try:
            await self.take_any(data)
        except UnusableMessage as exc:
            if self.refuse(answered_id(data), NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc))):
                return
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSON, detail=str(exc))) from exc

    def route(self, members: Fields) -> None:
        """The same for a message that was split already."""
        if "id" not in members and self._usual_progress(members):
            return
        message_id = _id_of(members["id"]) if "id" in members else None
        if not ({"method", "result", "error"} & members.keys()):
            if self._resolve(message_id, members):
                return  # an empty answer: its request fails now and need not wait
            detail = quoted(", ".join(name[:40] for name in list(members)[:10]), origin="its members", most=100)
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail=detail))
        self.spoke = True
        method = text_of(members.get("method"))
        if method is None:
            self._resolve(message_id, members)
            return
        try:
            if message_id is None and len(memoryview(members.get("params", b""))) > NOTICE_BYTES:
                self._large_notice(method, members["params"])
                return
            params = load_params(members["params"]) if "params" in members else None
        except BadJson as exc:
            raise ServerFailure(
                NotMcp(fault=NotMcpFault.NOT_JSON, detail=f"the parameters of {quoted_name(method)}")
            ) from exc
        if message_id is None:
            self._notice(method, params)
        else:
            self._asked(message_id, method, params)

    def say_cancelled(self, request_id: RequestId, reason: str) -> None:
        """Send ``notifications/cancelled`` for a request, in the background."""
        if self._tasks is not None and self.ended is None:
            notice = notification_message("notifications/cancelled", {"requestId": request_id, "reason": reason})
            self._tasks.start_soon(self._send_quietly, notice, CANCEL_NOTICE_SECONDS)

    def _resolve(self, message_id: RequestId | None, members: Fields) -> bool:
        """Give an answer to the request that waits for it; False if there is none."""
        if message_id is None:
            return self._resolve_only(members)
        waiter = self._waiters.pop(coerce_request_id(message_id), None)
        if waiter is not None:
            waiter.put(members)
        return waiter is not None

    def _resolve_only(self, members: Fields) -> bool:
        """An answer without an id is to the request that waits, if that is only one: it need not wait longer.

        JSON-RPC allows ``null`` in an error alone.
        """
        written = members.get("id")
        nameless = written is None or ("error" in members and is_word(written, b"null"))
        if len(self._waiters) != 1 or not nameless or not members.keys() & {"result", "error"}:
            return False
        _, waiter = self._waiters.popitem()
        if "error" in members:
            waiter.put(members)
        else:
            detail = "an answer without an id"
            waiter.put(ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=detail)))
        return True

    def _notice(self, method: str, params: object) -> None:
        self._count_notice()
        params = params if isinstance(params, dict) else None
        if method == "notifications/progress" and params:
            if self._progress(params):
                return  # it belongs to that call alone
        elif method == "notifications/cancelled" and params:
            self._cancelled(params.get("requestId"))
        if not run_notify_intercept(self._intercept, method, params) and not attributed(method, params):
            self._notices.append((method, params))
            self._notice_came.set()

    def _large_notice(self, method: str, params: Bytes) -> None:
        """A notice over the bound: what is small in it passes on. A log message says that its text was left out."""
        parts = fields(params)
        small = {key: loads(one) for key, one in parts.items() if len(memoryview(one)) <= NOTICE_PART_BYTES}
        small = dict(without_own_keys(small))
        size = len(memoryview(params))
        if method == "notifications/message":
            self._notice(method, {**small, "data": f"(Holdfast left out a log message of {size:,} bytes)"})
        elif method in ("notifications/progress", "notifications/cancelled") or method.endswith("/list_changed"):
            self._notice(method, small)
        else:
            self._count_notice()
            log.warning("left out a notification %s of %d bytes", quoted_name(method), size)

    def _count_notice(self) -> None:
        """A leaky bucket: a burst is allowed, a lasting flood ends this connection."""
        rate = self._limits.notifications_per_second
        now = asyncio.get_running_loop().time()
        self._allowance = min(rate * BURST_SECONDS, self._allowance + (now - self._counted_at) * rate) - 1
        self._counted_at = now
        if self._allowance < 0:
            raise ServerFailure(
                OverBound(
                    bound="notifications per second", limit=rate, setting="holdfast.limits.notificationsPerSecond"
                )
            )

    def _usual_progress(self, members: Fields) -> bool:
        """Take a progress notice that is as the protocol has it, for a call under way; False leaves it as it is.

        A server may send hundreds for one call, so this is the short way.
        """
        read = usual_progress(members)
        return read is not None and self._progressed(*read)

    def take_progress(self, data: bytes) -> bool:
        """The same for a message that was not split."""
        read = progress_in(data)
        return read is not None and self._progressed(*read)

    def _progressed(self, token: int | str, progress: Progress) -> bool:
        waiter = self._waiters.get(token if type(token) is int else coerce_request_id(token))
        if waiter is None:
            return False
        self.spoke = True
        self._count_notice()
        waiter.put(progress)
        return True

    def _progress(self, params: Mapping[str, Any]) -> bool:
        """Give progress to the call that it is of; False if there is none."""
        token, progress, text = params.get("progressToken"), finite(params.get("progress")), params.get("message")
        if isinstance(token, str | int) and progress is not None:
            waiter = self._waiters.get(coerce_request_id(token))
            if waiter is not None:
                waiter.put((progress, finite(params.get("total")), text if isinstance(text, str) else None))
                return True
        return False

    def _cancelled(self, message_id: object) -> None:
        if isinstance(message_id, str | int) and (scope := self._answering.get(coerce_request_id(message_id))):
            scope.cancel()

    def _asked(self, message_id: object, method: str, params: object) -> None:
        if self._tasks is None or not isinstance(message_id, str | int):
            return
        if coerce_request_id(message_id) in self._answering:
            return  # the id is in use: the first request keeps it
        if len(self._answering) >= REQUESTS_FROM_SERVER:
            if self._turning_down < REQUESTS_FROM_SERVER:
                self._turning_down += 1
                self._tasks.start_soon(self._turn_down, message_id)
            return
        scope = self._answering[coerce_request_id(message_id)] = anyio.CancelScope()
        self._tasks.start_soon(self._answer, message_id, method, params if isinstance(params, dict) else None, scope)

    async def _answer(
        self, message_id: RequestId, method: str, params: Mapping[str, Any] | None, scope: anyio.CancelScope
    ) -> None:
        if self._on_request is None:
            return
        try:
            with scope:
                try:
                    result = await self._on_request(
                        Inbound(transport=self._context, request_id=message_id), method, params
                    )
                    answer: Message = {"jsonrpc": "2.0", "id": message_id, "result": result}
                except MCPError as exc:
                    answer = _error_message(message_id, exc.code, exc.message, exc.error.data)
                except Exception as exc:  # noqa: BLE001 - the server gets an answer also after a fault of ours
                    log.warning("a handler for %s raised %s", method, type(exc).__name__)
                    answer = _error_message(message_id, INTERNAL_ERROR, "the client failed to answer")
                await self._send_quietly(answer, ANSWER_SECONDS)
        finally:
            self._answering.pop(coerce_request_id(message_id), None)

    async def _turn_down(self, message_id: RequestId) -> None:
        await self._send_quietly(
            _error_message(message_id, INTERNAL_ERROR, "too many requests at once"), ANSWER_SECONDS
        )
        self._turning_down -= 1

    async def _send_quietly(self, message: Message, seconds: float) -> None:
        with anyio.move_on_after(seconds), suppress(ServerFailure):
            await self._send(message)

    async def _deliver_notices(self, on_notify: OnNotify) -> None:
        while True:
            await self._notice_came.wait()
            self._notice_came = anyio.Event()
            for turn in count():
                if not self._notices:
                    break
                if turn % NOTICES_IN_A_ROW == 0:
                    await anyio.lowlevel.checkpoint()
                method, params = self._notices.popleft()
                try:
                    await on_notify(Inbound(transport=self._context), method, params)
                except Exception as exc:  # noqa: BLE001 - a handler's fault costs one notification, not the connection
                    log.warning("a handler for %s raised %s", method, type(exc).__name__)


async def _unsent(message: Message) -> None:
    """The connection is gone."""


def _id_of(raw: Bytes | None) -> RequestId | None:
    """An id as a value; None for a missing one, and for one that no request can have."""
    try:
        value = loads(raw) if raw is not None and len(memoryview(raw)) <= LONGEST_ID else None
    except BadJson:
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)  # some servers have no integers: 1.0 is the same number as 1
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


async def _split_large(data: bytes) -> Fields | BadJson:
    try:
        return await split(data)
    except BadJson as exc:
        return exc


def value_of(result: Bytes | RawObject) -> Message:
    """A result as a value, for the parts that the hub itself reads."""
    try:
        return (result if isinstance(result, RawObject) else RawObject.read(result)).value()
    except BadJson as exc:
        raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSON, detail=str(exc))) from exc


def _error_message(message_id: RequestId, code: int, text: str, data: object = None) -> Message:
    error = {"code": code, "message": text} | ({"data": data} if data is not None else {})
    return {"jsonrpc": "2.0", "id": message_id, "error": error}
