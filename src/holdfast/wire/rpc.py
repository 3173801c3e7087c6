"""JSON-RPC between us and one server: answers to our requests, and the server's own requests and notifications.

Every transport has one ``RpcPeer``. It knows no transport: it gets messages as bytes and has a function to send one.
Our requests under way are in the table of ``in_flight``.

What can happen:

- An answer comes. It settles the request that has its id, on any stream. Answers may come in any order.
- Progress comes for a request under way. Its receiver is called at once, so all progress is delivered before the
  result. Progress for no request is dropped with the other notifications.
- The server asks something itself (sampling, elicitation, roots, ping). A task for each such request gives the answer.
- A notification comes. It waits in a short queue for its handler, so that a slow handler blocks no reader.
- The connection ends. Every request that waits fails with the reason, and every later one too.

What must never happen:

- One server fills our memory: requests, notifications, ids and texts of errors have bounds, and the oldest
  notification gives way. A lasting flood of notifications ends the connection.
- One unusable message fails anything but the request that it answers (LIFE-28). ``answered_id`` finds that request
  also in bytes that are no JSON.
- An answer is read further than needed. It stays the bytes that it came in; a message that the hub itself reads is
  parsed, within the bounds of ``raw_json``.

A message may name no caller: a transport with one stream for all (a pipe) does not say whose call a log message
belongs to. Over HTTP the task of the caller reads its own stream, so a context variable names the caller
(``dispatcher``).
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
import anyio.abc
import msgspec
from mcp import MCPError
from mcp.shared.dispatcher import coerce_request_id
from mcp_types import INTERNAL_ERROR, RequestId

from holdfast.config import Limits
from holdfast.core import (
    LEFT_OUT,
    NotMcp,
    NotMcpFault,
    OverBound,
    quoted,
    quoted_name,
    without_own_keys,
)
from holdfast.errors import ServerFailure
from holdfast.turns import Turns
from holdfast.wire.in_flight import InFlight, RequestInFlight, until_cancelled
from holdfast.wire.raw_json import (
    SMALL_BYTES,
    BadJson,
    Bytes,
    Fields,
    NotAnObject,
    RawObject,
    dumps,
    field_pieces,
    fields,
    is_object,
    is_word,
    items,
    join_fields,
    loads,
    long_text,
    split_answer,
    text_of,
)
from holdfast.wire.request_form import load_params

if TYPE_CHECKING:
    from holdfast.wire.dispatcher import Incoming

__all__ = [
    "Message",
    "RpcPeer",
    "answered_id",
    "call_message",
    "notification_message",
]

Message: TypeAlias = dict[str, Any]
"""A message that the hub itself writes, as a Python value."""

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

PROGRESS: Final = "notifications/progress"

NOTICES_WAITING = 1024
"""How many notifications may wait for their handler; the oldest is dropped, so a slow handler blocks no reader."""

LONGEST_ID = 1_024
"""Bytes; a longer id is no id."""

LONGEST_ERROR = 16 * 1024
"""How many characters are kept of the message of an error."""

BURST_SECONDS = 5
"""The burst that is allowed, in seconds of the permitted rate; only a lasting flood is over the bound."""


_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")\s*,')
_ID_LAST = re.compile(
    rb'[^\s{]\s*,\s*"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z'
)


def answered_id(data: bytes) -> RequestId | None:
    """The id of the request that unusable bytes answer, where it is at their beginning or at their end."""
    # Not in the middle: an `id` there is data of the result, and another request would fail for it.
    found = _ID_FIRST.match(data[:1024]) or _ID_LAST.search(data[-1024:])
    if found is None:
        return None
    try:
        written = found[1].decode()
    except UnicodeDecodeError:
        return None
    return written[1:-1] if written.startswith('"') else int(written)


def notification_message(method: str, params: Mapping[str, Any] | None) -> Message:
    """A JSON-RPC notification."""
    return {"jsonrpc": "2.0", "method": method} | ({"params": params} if params else {})


def call_message(request_id: int, method: str, params: Fields, *, progress: bool) -> bytes:
    """A JSON-RPC request whose parameters are passed on as they are; our id is its progress token."""
    raw_id = b"%d" % request_id
    if progress:
        meta = b'{"progressToken":%b}' % raw_id
        if "_meta" in params:
            meta = join_fields({**fields(params["_meta"]), "progressToken": raw_id})
        params = {**params, "_meta": meta}
    lead = b'{"jsonrpc":"2.0","id":%b,"method":%b' % (raw_id, dumps(method))
    return b"".join([lead, b',"params":', *field_pieces(params), b"}"]) if params else lead + b"}"


def _answer_in(members: Fields, result: RawObject | BadJson | None) -> RawObject | Exception:
    """What an answer says: its result, ``MCPError`` for an error, or why it is of no use."""
    error = members.get("error")
    if error is None or is_word(error, b"null"):
        if isinstance(result, RawObject):
            return result
        detail = "an answer without a result" if result is None else str(result)
        return ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=detail))
    # A malformed error is still the answer to this request, and to no other.
    with suppress(BadJson):
        return _error_in(fields(error) if is_object(error) else {"message": error})  # some write the message alone
    return _error_in({})


def _error_in(members: Fields) -> MCPError:
    """An error by its parts. What is large is cut, or left out: it could not be searched for secrets."""
    raw, data = members.get("code", b"null"), members.get("data", b"null")
    code = loads(raw) if len(raw) <= LONGEST_ID else None
    return MCPError(
        code if isinstance(code, int) else INTERNAL_ERROR,
        _cut_text(members.get("message")) or "the server gave an error without a message",
        loads(data) if len(data) <= SMALL_BYTES else LEFT_OUT,
    )


def _cut_text(raw: Bytes | None) -> str | None:
    """A text, or the beginning of a long one; None for anything else."""
    text = long_text(raw)
    return text if text is None or len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]} … (cut)"


class ServerRequests:
    """The server's own requests under way: each is answered by a task."""

    def __init__(
        self, tasks: anyio.abc.TaskGroup, incoming: Incoming, send: Callable[[Message, float], Awaitable[None]]
    ) -> None:
        self._tasks = tasks
        self._incoming = incoming
        self._send = send
        self._answering: dict[RequestId, anyio.CancelScope] = {}
        self._turning_down = 0

    def take(self, message_id: RequestId, method: str, params: object) -> None:
        """A request came. One whose id is in use is dropped: the first request keeps it."""
        if coerce_request_id(message_id) in self._answering:
            return  # a second answer under one id would be taken for the first
        # Each holds a task and perhaps a person: a server that floods must not take all of both.
        if len(self._answering) >= REQUESTS_FROM_SERVER:
            # A refusal is written to the server too, and waits if the server does not read.
            if self._turning_down < REQUESTS_FROM_SERVER:
                self._turning_down += 1
                self._tasks.start_soon(self._turn_down, message_id)
            return
        scope = self._answering[coerce_request_id(message_id)] = anyio.CancelScope()
        self._tasks.start_soon(self._answer, message_id, method, params if isinstance(params, dict) else None, scope)

    def cancel(self, message_id: object) -> None:
        """The server does not want the answer any more."""
        if isinstance(message_id, str | int) and (scope := self._answering.get(coerce_request_id(message_id))):
            scope.cancel()

    async def _answer(
        self, message_id: RequestId, method: str, params: Mapping[str, Any] | None, scope: anyio.CancelScope
    ) -> None:
        try:
            with scope:
                try:
                    result = await self._incoming.asked(method, params)
                    answer: Message = {"jsonrpc": "2.0", "id": message_id, "result": result}
                except MCPError as exc:
                    answer = _error_message(message_id, exc.code, exc.message, exc.error.data)
                except Exception as exc:  # noqa: BLE001 - the server gets an answer also after a fault of ours
                    log.warning("a handler for %s raised %s", method, type(exc).__name__)
                    answer = _error_message(message_id, INTERNAL_ERROR, "the client failed to answer")
                await self._send(answer, ANSWER_SECONDS)
        finally:
            self._answering.pop(coerce_request_id(message_id), None)

    async def _turn_down(self, message_id: RequestId) -> None:
        await self._send(_error_message(message_id, INTERNAL_ERROR, "too many requests at once"), ANSWER_SECONDS)
        self._turning_down -= 1

    def __repr__(self) -> str:
        return f"<ServerRequests {list(self._answering)}>"


class Notices:
    """The server's notifications that wait for their handler, and the rate at which they may come."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Mapping[str, Any] | None]] = deque(maxlen=NOTICES_WAITING)
        self._came = anyio.Event()
        self._allowance = math.inf
        self._counted_at = 0.0

    def count(self, rate: int) -> None:
        """One came. A leaky bucket: a burst is allowed, a lasting flood ends this connection."""
        now = asyncio.get_running_loop().time()
        self._allowance = min(rate * BURST_SECONDS, self._allowance + (now - self._counted_at) * rate) - 1
        self._counted_at = now
        if self._allowance < 0:
            raise ServerFailure(
                OverBound(
                    bound="notifications per second", limit=rate, setting="holdfast.limits.notificationsPerSecond"
                )
            )

    def put(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Let one wait for its handler."""
        self._waiting.append((method, params))
        self._came.set()

    async def deliver(self, incoming: Incoming) -> None:
        """Give each to the handler, until cancelled."""
        while True:
            await self._came.wait()
            self._came = anyio.Event()
            turns = Turns()
            while self._waiting:
                method, params = self._waiting.popleft()
                try:
                    incoming.told(method, params)
                except Exception as exc:  # noqa: BLE001 - a handler's fault costs one notification, not the connection
                    log.warning("a handler for %s raised %s", method, type(exc).__name__)
                await turns.offer()  # a thousand of them would hold up all servers

    def __repr__(self) -> str:
        return f"<Notices waiting={len(self._waiting)} allowance={self._allowance:.0f}>"


class RpcPeer:
    """The state of JSON-RPC with one server: routes each message to what waits for it."""

    def __init__(self, send: Callable[[Message], Awaitable[None]], limits: Limits, in_flight: InFlight) -> None:
        self._send = send
        self.limits = limits
        """The bounds of this connection; others may be set for the messages to come."""
        self._in_flight = in_flight
        self._tasks: anyio.abc.TaskGroup | None = None
        self._incoming: Incoming | None = None
        self._requests: ServerRequests | None = None
        self._notices = Notices()
        self.spoke = False
        """Whether anything that is JSON-RPC ever came from the server."""
        self.received = 0
        """How many bytes of messages came."""

    def start(self, tasks: anyio.abc.TaskGroup, incoming: Incoming) -> None:
        """Begin to serve the server's own requests and notifications, in tasks of ``tasks``."""
        self._tasks = tasks
        self._incoming = incoming
        self._requests = ServerRequests(tasks, incoming, self.send_quietly)
        tasks.start_soon(until_cancelled, self._notices.deliver, incoming)

    def release(self) -> None:
        """Let go of the transport and the session: all tasks have ended. No collection of cycles has to free them."""
        self._tasks = self._incoming = self._requests = None
        self._send = _unsent

    async def take(self, data: bytes | bytearray, own: RequestInFlight | None = None) -> None:
        """Route a message, or each message of a batch (2025-03-26). It waits only for a large one.

        ``own`` is the request on whose stream it came: an answer without an id is its answer. Raises ``BadJson`` where
        it is no JSON object, and ``ServerFailure`` where it is no JSON-RPC message.
        """
        self.received += len(data)
        try:
            batch = [await split_answer(data)]
        except NotAnObject:
            if len(data) > SMALL_BYTES:
                raise
            batch = [await split_answer(bytes(one)) for one in items(bytes(data))]
            if not batch:
                raise
        for members, result in batch:
            self._route(members, result, own)

    async def take_shared(self, data: bytes) -> None:
        """Route a message on a stream that all requests share. An answer that is no JSON fails its request.

        Any other bytes that are no message are ``ServerFailure``: they are the server's fault.
        """
        try:
            await self.take(data)
        except NotAnObject as exc:
            detail = quoted(data[:80].decode("utf-8", "replace"))
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail=detail)) from exc
        except BadJson as exc:
            if not self._in_flight.refuse(answered_id(data), NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc))):
                raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSON, detail=str(exc))) from exc

    def say_cancelled(self, request: RequestInFlight) -> None:
        """Tell the server in the background that its answer is not waited for."""
        if self._tasks is not None and self._in_flight.ended is None:
            params = {"requestId": request.id, "reason": "the caller no longer waits"}
            notice = notification_message("notifications/cancelled", params)
            self._tasks.start_soon(self.send_quietly, notice, CANCEL_NOTICE_SECONDS)

    async def send_quietly(self, message: Message, seconds: float) -> None:
        """Send a message that no caller waits for; one that cannot be sent in time is dropped."""
        with anyio.move_on_after(seconds):
            try:
                await self._send(message)
            except ServerFailure:
                return
            except Exception as exc:  # noqa: BLE001 - a fault of ours costs one message, not the connection
                log.warning("an answer or a cancellation could not be sent: %s", type(exc).__name__)

    def _route(self, members: Fields, result: RawObject | BadJson | None, own: RequestInFlight | None) -> None:
        message_id = _id_of(members["id"]) if "id" in members else None
        if _KINDS.isdisjoint(members):
            if self._resolve(message_id, members, result, own):
                return  # an empty answer: its request fails now and need not wait
            detail = "its answer is no JSON-RPC response"
            if own is None:
                detail = quoted(", ".join(name[:40] for name in list(members)[:10]), origin="its members", most=100)
            raise ServerFailure(NotMcp(fault=NotMcpFault.NOT_JSONRPC, detail=detail))
        self.spoke = True
        method = text_of(members["method"]) if "method" in members else None
        if method is None and self._resolve(message_id, members, result, own):
            return
        # All that settles nothing counts: progress costs its receiver a message, and answers that no request waits for
        # cost us time, without end.
        self._notices.count(self.limits.notifications_per_second)
        if method is None:
            return
        raw = members.get("params")
        if method == PROGRESS and message_id is None and raw is not None and self._progress(raw):
            return  # it belongs to that call alone
        try:
            if message_id is None and raw is not None and len(raw) > NOTICE_BYTES:
                self._large_notice(method, raw)
                return
            params = load_params(raw) if raw is not None else None
        except BadJson as exc:
            raise ServerFailure(
                NotMcp(fault=NotMcpFault.NOT_JSON, detail=f"the parameters of {quoted_name(method)}")
            ) from exc
        if message_id is None:
            self._notice(method, params)
        elif self._requests is not None:
            self._requests.take(message_id, method, params)

    def _resolve(
        self,
        message_id: RequestId | None,
        members: Fields,
        result: RawObject | BadJson | None,
        own: RequestInFlight | None,
    ) -> bool:
        """Give an answer to the request that waits for it; False if there is none."""
        if message_id is not None:
            request = self._in_flight.waiting(message_id)
            if request is not None:
                request.settle(_answer_in(members, result))
            return request is not None
        # One without an id is to the request on whose stream it came, else to the only one that waits. JSON-RPC allows
        # `null` in an error alone; some servers write it in any answer to a POST.
        written = members.get("id")
        nameless = written is None or (("error" in members or own is not None) and is_word(written, b"null"))
        request = own or self._in_flight.only()
        if request is None or not nameless or not members.keys() & {"result", "error"}:
            return False
        if own is not None or "error" in members:
            request.settle(_answer_in(members, result))
        else:
            request.settle(ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail="an answer without an id")))
        return True

    def _notice(self, method: str, params: object) -> None:
        params = params if isinstance(params, dict) else None
        if method == "notifications/cancelled" and params and self._requests is not None:
            self._requests.cancel(params.get("requestId"))
        if self._incoming is None or not self._incoming.belongs_to_call(method, params):
            self._notices.put(method, params)

    def _large_notice(self, method: str, params: Bytes) -> None:
        """A notice over the bound: what is small in it passes on. A log message says that its text was left out."""
        parts = fields(params)
        small = {key: loads(one) for key, one in parts.items() if len(one) <= NOTICE_PART_BYTES}
        small = dict(without_own_keys(small))
        size = len(params)
        if method == "notifications/message":
            self._notice(method, {**small, "data": f"(Holdfast left out a log message of {size:,} bytes)"})
        elif method == "notifications/cancelled" or method.endswith("/list_changed"):
            self._notice(method, small)
        elif method != PROGRESS or not self._progress(dumps(small)):
            log.warning("left out a notification %s of %d bytes", quoted_name(method), size)

    def _progress(self, raw: Bytes) -> bool:
        """Give progress to the call that it is of; False if there is none, or if this is no progress."""
        if len(raw) > NOTICE_BYTES:
            return False
        try:
            try:
                told = _PROGRESS.decode(raw)
            except msgspec.DecodeError:
                told = msgspec.convert(loads(raw), _Progress)  # half of a surrogate pair
        except (msgspec.ValidationError, BadJson):
            return False
        request, progress = self._in_flight.waiting(told.progressToken), _finite(told.progress)
        if request is None or progress is None:
            return False
        request.progress(progress, _finite(told.total), told.message if isinstance(told.message, str) else None)
        return True

    def __repr__(self) -> str:
        return f"<RpcPeer {self._in_flight!r} {self._requests!r}>"


class _Progress(msgspec.Struct):
    """The parameters of a progress notice. What is wrong in the last two is left out."""

    progressToken: int | str  # noqa: N815 - the protocol's name
    progress: int | float
    total: Any = None
    message: Any = None


_PROGRESS: Final = msgspec.json.Decoder(_Progress)
_KINDS: Final = frozenset({"method", "result", "error"})
"""A message has one of these."""


async def _unsent(message: Message) -> None:
    """The connection is gone."""


def _id_of(raw: Bytes | None) -> RequestId | None:
    """An id as a value; None for a missing one, and for one that no request can have."""
    if raw is None or len(raw) > LONGEST_ID:
        return None
    try:
        value = loads(raw)
    except BadJson:
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)  # some servers have no integers: 1.0 is the same number as 1
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def _finite(value: object) -> float | None:
    """A finite number as it came; None for anything else, also for an integer that no float can hold."""
    try:
        return value if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:
        return None


def _error_message(message_id: RequestId, code: int, text: str, data: object = None) -> Message:
    error = {"code": code, "message": text} | ({"data": data} if data is not None else {})
    return {"jsonrpc": "2.0", "id": message_id, "error": error}
