"""One request to a server from its start to its end: who asks, how long it may take, its progress, and its answer.

All requests of a connection are in one table, by id, from ``start`` to ``end``. A request is settled once: by its
result, its error, or the reason for a missing answer. The task that made it awaits ``result``, or reads messages itself
until it is settled. When the connection is gone, every request fails with the reason, and every later one too.

Time. A request may be silent for so long, and take so long in all. Progress starts the silence again; while the server
waits for our own answer neither runs. A request whose time is over is cancelled, and learns that it was for that. One
timer serves all requests of a connection, and none is set for each of them.

Progress. A notice extends the time first, and then reaches its receiver, all of it before the result and in its order.
A caller takes it at once, while the message is read. A callback of a program may wait, and the task that waits for the
answer cannot call it: over HTTP that task reads the stream. So a task of its own gives it one notice after the other.
An answer waits for that, but no longer than ``DELIVERY_SECONDS``.

The caller. A context variable names the request that a task makes, for everything that the server sends on the
request's own stream (``dispatcher``).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
from mcp.shared.dispatcher import coerce_request_id
from mcp_types import RequestId

from holdfast.core import Evidence, NetworkFailure, NetworkFault
from holdfast.errors import ServerFailure
from holdfast.types import ProgressFn
from holdfast.wire.raw_json import RawObject

__all__ = ["CURRENT", "Caller", "Era", "InFlight", "RequestInFlight", "until_cancelled"]

log = logging.getLogger("holdfast.wire")

Era: TypeAlias = Literal["modern", "legacy"]


DELIVERY_SECONDS = 60.0
"""How long a callback may hold up the answer for the notices before it: as long as a server may be silent."""


class Caller(Protocol):
    """The client that a request is made for."""

    @property
    def era(self) -> Era | None:
        """The protocol era that it speaks; None where that does not matter."""

    @property
    def principal(self) -> str:
        """The name of the principal that it acts for; empty where a program acts in its own name."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """The client capabilities that it declared."""

    @property
    def client_key(self) -> str | None:
        """What recognises the client in its next requests, for a hub behind this one; None if nothing does."""

    @property
    def via(self) -> tuple[str, ...]:
        """The hubs that its request has passed before this one."""

    @property
    def log_level(self) -> str | None:
        """The level from which on it wants log messages; None if its request says that itself, or it wants none.

        Only a server of the modern era is asked for them with each request.
        """

    trace_id: str
    """The id of the trace that the hub makes of it; empty if it makes none."""

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Its answer to the server's request; raises ``MCPError`` where it gives none."""

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send it a notification, in order with its other messages. Never waits."""

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send it the progress of its request, in order with its other messages. Never waits."""


class RequestInFlight(msgspec.Struct, eq=False):
    """One request, made by the task that waits for it."""

    _all: InFlight
    caller: Caller | None
    _callback: ProgressFn | None
    _task: asyncio.Task[Any] | None
    idle: float
    _latest: float
    """When it ends at the latest."""
    due: float
    """When it ends if nothing more comes."""
    wants_progress: bool
    """Whether the server is asked for progress: it extends the time of a request that has a limit."""
    id: int = 0
    """The id of its message."""
    sent_at: int | None = None
    """Where it ends in what was written to a pipe; None until all of it is written, and without a pipe."""
    settled: bool = False
    """Whether its answer came, or the reason for a missing one."""
    _answer: RawObject | Exception | None = None
    _waiter: asyncio.Future[None] | None = None
    _notices: deque[tuple[float, float | None, str | None]] | None = None
    """What waits for the callback."""
    delivery: asyncio.Task[None] | None = None
    """Gives the callback its notices."""
    _waiting: int = 0
    """For how many of our answers the server waits."""
    _since: float = 0.0
    expired: bool = False
    cut: bool = False
    """Whether it ended because its connection was closed, and not for its time."""

    # Its answer.

    def settle(self, answer: RawObject | Exception) -> None:
        """Its result, its error, or the reason for a missing answer; the first one counts."""
        if not self.settled:
            self._answer, self.settled = answer, True
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def result(self) -> RawObject:
        """The result, when it has come. Raises ``MCPError`` for an error answer."""
        if not self.settled:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.answer()

    def answer(self) -> RawObject:
        """The result of one that is settled. Raises ``MCPError`` for an error answer."""
        answer, self._answer = self._answer, None
        assert answer is not None  # noqa: S101 - it is settled
        if isinstance(answer, RawObject):
            return answer
        try:
            raise answer
        finally:
            del answer  # an exception leads back to the frame that raised it: a cycle

    # Its time.

    @property
    def hard(self) -> bool:
        """Whether the limit of the whole request is the one that counts now."""
        return self.due >= self._latest

    def extend(self) -> None:
        """The server sent something: the silence starts again."""
        if not self._waiting:
            self.due = min(self._all.loop.time() + self.idle, self._latest)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock while the server waits for us."""
        if not self._waiting:
            self._since, self.due = self._all.loop.time(), math.inf
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._latest += self._all.loop.time() - self._since
                self.extend()
                self._all.look_at(self.due)

    def cancel(self) -> None:
        """End the wait of the task; it asks ``absorb`` why."""
        if not self.expired and self._task is not None:
            self.expired = True
            self._task.cancel()

    def absorb(self) -> bool:
        """Whether a cancellation came from here, and from nowhere else; then the task is no longer cancelled."""
        return self.expired and self._task is not None and self._task.uncancel() == 0

    # Its progress.

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """One notice of the server."""
        self.extend()
        if self._callback is not None:
            if self._notices is None:
                self._notices = deque()
            self._notices.append((progress, total, message))
            if self.delivery is None or self.delivery.done():
                self.delivery = asyncio.create_task(self._deliver(self._callback, self._notices))
        elif self.caller is not None:
            try:
                self.caller.progress(progress, total, message)
            except Exception as exc:  # noqa: BLE001 - a broken receiver must not cost its caller the result
                log.warning("a receiver of progress raised %s", type(exc).__name__)

    async def _deliver(self, callback: ProgressFn, notices: deque[tuple[float, float | None, str | None]]) -> None:
        while notices:
            try:
                await callback(*notices.popleft())
            except Exception as exc:  # noqa: BLE001 - as above
                log.warning("a progress callback raised %s", type(exc).__name__)

    async def delivered(self) -> None:
        """The answer is here: wait until the callback has all notices. A slow one is no timeout of the server."""
        self._task, self.due = None, math.inf
        if self.delivery is not None:
            await asyncio.wait([self.delivery], timeout=DELIVERY_SECONDS)

    def __repr__(self) -> str:
        due = f"due in {self.due - self._all.loop.time():.1f} s"
        state = "settled" if self.settled else "cut" if self.cut else "expired" if self.expired else due
        return f"<RequestInFlight {self.id} for {self.caller!r} {state}>"


CURRENT: Final[ContextVar[RequestInFlight | None]] = ContextVar("holdfast_request", default=None)
"""The request that this task makes."""


class InFlight:
    """All requests of one connection that have not ended, and the timer that they share."""

    __slots__ = ("_last_id", "_looks_at", "_one_ended", "_timer", "ended", "loop", "requests")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf
        """When the timer comes."""
        self._one_ended = asyncio.Event()
        self.requests: dict[RequestId, RequestInFlight] = {}
        self._last_id = 0
        self.ended: Evidence | None = None
        """Why the connection is gone."""

    def start(
        self, caller: Caller | None = None, on_progress: ProgressFn | None = None, *, idle: float, within: float
    ) -> RequestInFlight:
        """A request begins; end it with ``end``. ``on_progress`` gets its progress instead of the caller.

        Raises ``ServerFailure`` if the connection is gone.
        """
        now, task = self.loop.time(), asyncio.current_task(self.loop)
        latest = now + within
        due = min(now + idle, latest)
        request = RequestInFlight(self, caller, on_progress, task, idle, latest, due, latest < math.inf)
        self.number(request)
        if due < self._looks_at:
            self.look_at(due)
        return request

    def number(self, request: RequestInFlight) -> None:
        """Give a request the next id: it is about to be sent, for the first time or once more."""
        if self.ended is not None:
            raise self.failure()
        self.requests.pop(request.id, None)
        self._last_id += 1
        request.id = self._last_id
        request.sent_at = None
        request.settled = False
        self.requests[request.id] = request

    def end(self, request: RequestInFlight) -> None:
        """The request is over: nothing more is delivered."""
        self.requests.pop(request.id, None)
        if request.delivery is not None:
            request.delivery.cancel()
        self._one_ended.set()

    def waiting(self, request_id: RequestId) -> RequestInFlight | None:
        """The request with this id, if it has no answer yet. ``"1"`` is the same id as 1."""
        # Almost every id is a number of our own.
        key = request_id if type(request_id) is int else coerce_request_id(request_id)
        request = self.requests.get(key)
        return request if request is not None and not request.settled else None

    def only(self) -> RequestInFlight | None:
        """The request without an answer, if it is the only one."""
        waiting = [request for request in self.requests.values() if not request.settled]
        return waiting[0] if len(waiting) == 1 else None

    def refuse(self, request_id: RequestId | None, evidence: Evidence) -> bool:
        """Fail one request, whose answer cannot be used; False if no such request waits."""
        request = self.waiting(request_id) if request_id is not None else None
        if request is not None:
            request.settle(ServerFailure(evidence))
        return request is not None

    def fail(self, evidence: Evidence) -> None:
        """The connection is gone: every request fails at once, and every later one too."""
        self.ended = self.ended or evidence
        for request in self.requests.values():
            request.settle(self.failure())

    def failure(self) -> ServerFailure:
        """Why the connection is gone, as a new exception: each waiting task raises its own."""
        return ServerFailure(self.ended or NetworkFailure(fault=NetworkFault.CLOSED, stood=True))

    def fail_unread(self, read: int | None, evidence: Evidence) -> None:
        """The peer reads no more: fail the requests that it has not read. It may still answer the others.

        ``read`` is how much it has read; None if that is not known, and then each of them may have been read.
        """
        for request in self.requests.values():
            # One that is written in part has no place yet: its sender finds out itself.
            if request.sent_at is not None and (read is None or request.sent_at > read):
                request.settle(ServerFailure(evidence))

    def cut_all(self) -> None:
        """The connection is closed: no request waits any longer."""
        for request in self.requests.values():
            request.cut = True
            request.cancel()

    async def empty(self) -> None:
        """Wait until no request that has a time limit is in flight. A subscription lasts as long as its connection."""
        while any(request.wants_progress for request in self.requests.values()):
            self._one_ended.clear()
            await self._one_ended.wait()

    def look_at(self, due: float) -> None:
        """See that the timer does not come later than this."""
        if due < self._looks_at:
            if self._timer is not None:
                self._timer.cancel()
            self._looks_at = due
            self._timer = self.loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer, self._looks_at = None, math.inf
        now = self.loop.time()
        # The timer is not moved when progress extends a request, so most often nothing is due yet.
        for request in self.requests.values():
            if request.due <= now:
                request.cancel()
        left = [request.due for request in self.requests.values() if not request.expired]
        if left:
            self.look_at(min(left))

    def __repr__(self) -> str:
        gone = f" gone: {self.ended!r}" if self.ended is not None else ""
        return f"<InFlight {list(self.requests)}{gone}>"


async def until_cancelled(work: Callable[..., Awaitable[object]], *args: object) -> None:
    """The work of a task whose group ends it by a cancellation: the task then ends without an exception.

    A task that ends as cancelled is kept in a cycle with its group, by the traceback, until a collection frees it. With
    it stays all that the group has to do with: a whole connection.
    """
    with suppress(asyncio.CancelledError):
        await work(*args)
