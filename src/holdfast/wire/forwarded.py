"""The transport to a server that runs on another replica: that replica makes each request, for the same caller.

One stream per connection shows that the server is up there, and brings what belongs to no call. Each request has a
stream of its own, for its progress, for the questions of the server and for the result. Whose request it is goes with
it, so the server's questions come back to the right client. What the other replica saw of the server arrives as the
same evidence, so the words are the same on every replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from enum import IntEnum
from itertools import count
from typing import Any, NamedTuple, Protocol

import anyio
import anyio.abc
from mcp import MCPError
from mcp.shared.dispatcher import CallOptions, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest, ProgressFnT
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST

from holdfast.config import Limits
from holdfast.core import Evidence, NetworkFailure, NetworkFault
from holdfast.errors import HoldfastError, ServerFailure
from holdfast.wire.deadlines import Deadlines
from holdfast.wire.envelope import Bytes, Fields, RawObject, join_fields, loads
from holdfast.wire.relay import Caller, current_caller
from holdfast.wire.rpc import Inbound, value_of

__all__ = [
    "ForwardedDispatcher",
    "ForwardedMessage",
    "MessageKind",
    "RemoteServer",
    "RemoteStream",
    "RpcRefusal",
    "refusal",
]

RpcRefusal = MCPError
"""A JSON-RPC error, for the packages that do not know the SDK."""


def refusal(message: str, *, code: object = None, data: object = None) -> MCPError:
    """An error answer to a request."""
    return MCPError(code if isinstance(code, int) else INVALID_REQUEST, message, data)


class MessageKind(IntEnum):
    """What a message of a stream is."""

    HEAD = 1
    """The answer to ``initialize``."""
    PROGRESS = 2
    ASK = 3
    TELL = 4
    RESULT = 5
    RPC_ERROR = 6
    MOVING = 7
    """The server moves to another replica soon: new requests wait, those in flight end first."""


class ForwardedMessage(NamedTuple):
    """One message of a stream; the content is JSON."""

    kind: MessageKind
    content: bytes


class RemoteStream(Protocol):
    """A stream from the other replica."""

    async def next(self) -> ForwardedMessage | None:
        """The next message; None at the end. Raises ``ServerFailure`` if the replica is gone.

        Raises what the other replica raised, if the request failed there.
        """

    async def end(self) -> None:
        """Read to the end of the stream, so that its connection serves the next request too."""

    def close(self) -> None:
        """No more is read. A request that has no result yet is cancelled."""


class RemoteServer(Protocol):
    """A server that runs on another replica."""

    @property
    def replica(self) -> str:
        """The name of that replica."""

    async def watch(self) -> RemoteStream:
        """The stream of the connection, which must be closed. Raises ``ServerFailure``."""

    async def call(self, number: int, method: str, params: bytes, caller: Caller | None) -> RemoteStream:
        """The stream of one request, which must be closed. Raises ``ServerFailure``."""

    async def answer(self, call: int | None, question: int, answer: Mapping[str, Any]) -> None:
        """The answer to a question of the server; of no call if that is None."""

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send the server a notification."""


class ForwardedDispatcher(Dispatcher[TransportContext]):
    """The SDK's dispatcher over another replica."""

    def __init__(self, remote: RemoteServer, limits: Limits) -> None:
        self._remote = remote
        self._limits = limits
        self.deadlines = Deadlines()
        self.stood = False
        """Whether the handshake is complete; the dialer sets it."""
        self.received = 0
        self._context = TransportContext(kind="forwarded", can_send_request=False)
        self._numbers = count(1)
        self._moving = False
        self._head: dict[str, Any] | None = None
        self._known = anyio.Event()
        self._over = anyio.Event()
        self._gone: Evidence | None = None
        self._on_request: OnRequest | None = None
        self._on_notify: OnNotify | None = None
        self._intercept: OnNotifyIntercept | None = None

    @property
    def replica(self) -> str:
        """The replica that runs the server."""
        return self._remote.replica

    def adopt(self, limits: Limits) -> None:
        """Use other bounds from now on."""
        self._limits = limits

    async def gone(self) -> Evidence:
        """Wait until the server is not there any more; returns the evidence."""
        await self._over.wait()
        return self.failure().evidence

    @property
    def ended(self) -> bool:
        """Whether the server is not there any more."""
        return self._gone is not None

    def unanswered(self) -> Evidence | None:
        """A missing answer shows no more than its timeout."""
        return None

    def failure(self) -> ServerFailure:
        """Why the connection is gone."""
        closed = NetworkFailure(fault=NetworkFault.CLOSED, stood=self.stood, replica=self._remote.replica)
        return ServerFailure(self._gone or closed)

    # Requests.

    def call(
        self, method: str, params: Fields, *, headers: Mapping[str, str], on_progress: ProgressFnT | None = None
    ) -> Coroutine[Any, Any, Bytes]:
        """Make a request there and wait for its result. The caller bounds the time."""
        return self._call(method, join_fields(params), on_progress)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """The session's own requests; the handshake was made there already."""
        if method == "initialize":
            await self._known.wait()
            if self._head is None:
                raise self.failure()
            return self._head
        return value_of(await self._call(method, join_fields(RawObject.of(params or {}).members), None))

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification, except for those of the handshake."""
        if method != "notifications/initialized" and not self.ended:
            await self._remote.notify(method, params)

    async def _call(self, method: str, params: bytes, on_progress: ProgressFnT | None) -> Bytes:
        if self._moving:
            await self._over.wait()
            raise ServerFailure(NetworkFailure(fault=NetworkFault.REFUSED, sent=False, replica=self._remote.replica))
        if self.ended:
            raise self.failure()
        number = next(self._numbers)
        answering: set[asyncio.Task[None]] = set()
        stream = await self._remote.call(number, method, params, current_caller())
        try:
            while (message := await stream.next()) is not None:
                self.received += len(message.content)
                if message.kind is MessageKind.RESULT:
                    await stream.end()
                    return message.content
                await self._during(number, message, on_progress, answering)
        finally:
            stream.close()
            for task in answering:
                task.cancel()
        raise self.failure()

    async def _during(
        self,
        number: int,
        message: ForwardedMessage,
        on_progress: ProgressFnT | None,
        answering: set[asyncio.Task[None]],
    ) -> None:
        """What comes before the result. It runs in the task of the call, so it is for the caller of that call."""
        value = loads(message.content)
        match message.kind:
            case MessageKind.PROGRESS if on_progress is not None:
                await on_progress(*value)
            case MessageKind.TELL:
                await self._told(value)
            case MessageKind.ASK:
                task = asyncio.create_task(self._asked(number, value))
                answering.add(task)
                task.add_done_callback(answering.discard)
            case MessageKind.RPC_ERROR:
                raise MCPError(value["code"], value["message"], value.get("data"))
            case _:
                pass

    # The connection.

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the connection until the server is gone there, or the replica is gone."""
        self._on_request, self._on_notify, self._intercept = on_request, on_notify, on_notify_intercept
        ended_there = False
        try:
            async with anyio.create_task_group() as tasks:
                task_status.started()
                try:
                    stream = await self._remote.watch()
                    try:
                        while (message := await stream.next()) is not None and self._gone is None:
                            await self._came(message, tasks)
                    finally:
                        stream.close()
                except ServerFailure as failure:
                    self._gone = self._gone or failure.evidence
                except HoldfastError as refused:  # the other hub has a reason of its own: a limit, for one
                    told = NetworkFault.REFUSED, refused.message
                    self._gone = NetworkFailure(fault=told[0], sent=False, detail=told[1], replica=self._remote.replica)
                ended_there = True
                tasks.cancel_scope.cancel()
        finally:
            self._gone = self.failure().evidence
            self._known.set()
            self._over.set()
            if not ended_there:
                self.deadlines.cut_all()  # else each request learns on its own stream how it ended

    async def _came(self, message: ForwardedMessage, tasks: anyio.abc.TaskGroup) -> None:
        self.received += len(message.content)
        value = loads(message.content)
        match message.kind:
            case MessageKind.HEAD:
                self._head = value
                self._known.set()
            case MessageKind.TELL:
                await self._told(value)
            case MessageKind.ASK:
                tasks.start_soon(self._asked, None, value)
            case MessageKind.MOVING:
                self._moving = True
            case _:
                pass

    async def _told(self, value: Mapping[str, Any]) -> None:
        method, params = value["method"], value.get("params")
        if self._intercept is not None and self._intercept(method, params):
            return
        if self._on_notify is not None:
            await self._on_notify(Inbound(transport=self._context), method, params)

    async def _asked(self, call: int | None, value: Mapping[str, Any]) -> None:
        """Answer a question of the server, and send the answer there."""
        answer: dict[str, Any]
        try:
            if self._on_request is None:
                return
            inbound = Inbound(transport=self._context, request_id=value["id"])
            answer = {"result": await self._on_request(inbound, value["method"], value.get("params"))}
        except MCPError as exc:
            answer = {"error": {"code": exc.code, "message": exc.message, "data": exc.error.data}}
        except Exception:  # noqa: BLE001 - the server gets an answer also after a fault of ours
            answer = {"error": {"code": INTERNAL_ERROR, "message": "the client failed to answer"}}
        try:
            await self._remote.answer(call, value["id"], answer)
        except ServerFailure:
            return  # the replica is gone, and the call with it
