"""One request to a server from its start to its end: who asks, how long it may take, and where its progress goes.

Time. A request may be silent for so long, and take so long in all. Progress starts the silence again; while the server
waits for our own answer neither runs. A request whose time is over is cancelled, and learns that it was for that. One
timer serves all requests of a connection, and none is set for each of them.

Progress. A notice extends the time first, and then reaches its receiver, all of it before the result and in its order.
A caller takes it at once, while the message is read. A callback of a program may wait, and the task that waits for the
answer cannot call it: over HTTP that task reads the stream. So a task of its own gives it one notice after the other.

The caller. A context variable names the request that a task makes, for everything that the server sends on the
request's own stream (``dispatcher``).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from holdfast.errors import ServerFailure
from holdfast.types import ProgressFn

__all__ = ["CURRENT", "Caller", "Era", "InFlight", "OnProgress", "RequestInFlight", "until_cancelled"]

log = logging.getLogger("holdfast.wire")

_T = TypeVar("_T")

Era: TypeAlias = Literal["modern", "legacy"]

OnProgress: TypeAlias = Callable[[float, float | None, str | None], None]
"""Gets how far a call is, of how much, and a text. It never waits."""


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

    # Its time.

    @property
    def hard(self) -> bool:
        """Whether the limit of the whole request is the one that counts now."""
        return self.due >= self._latest

    def extend(self) -> None:
        """The server sent something: the silence starts again."""
        if not self._waiting:
            self.due = min(self._all.now() + self.idle, self._latest)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock while the server waits for us."""
        if not self._waiting:
            self._since, self.due = self._all.now(), math.inf
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._latest += self._all.now() - self._since
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
        """Wait until the callback has all notices."""
        if self.delivery is not None:
            await asyncio.wait([self.delivery])

    def __repr__(self) -> str:
        state = "cut" if self.cut else "expired" if self.expired else f"due in {self.due - self._all.now():.1f} s"
        return f"<RequestInFlight for {self.caller!r} {state}>"


CURRENT: Final[ContextVar[RequestInFlight | None]] = ContextVar("holdfast_request", default=None)
"""The request that this task makes."""


class InFlight:
    """All requests of one connection that have no answer yet, and the timer that they share."""

    __slots__ = ("_emptied", "_looks_at", "_loop", "_timer", "requests")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf
        """When the timer comes."""
        self._emptied: asyncio.Future[None] | None = None
        self.requests: set[RequestInFlight] = set()

    def now(self) -> float:
        """The event loop's time."""
        return self._loop.time()

    def start(
        self, caller: Caller | None = None, on_progress: ProgressFn | None = None, *, idle: float, within: float
    ) -> RequestInFlight:
        """A request begins; end it with ``end``. ``on_progress`` gets its progress instead of the caller."""
        now, task = self._loop.time(), asyncio.current_task(self._loop)
        latest = now + within
        due = min(now + idle, latest)
        request = RequestInFlight(self, caller, on_progress, task, idle, latest, due)
        self.requests.add(request)
        if due < self._looks_at:
            self.look_at(due)
        return request

    def end(self, request: RequestInFlight) -> None:
        """The request is over: nothing more is delivered."""
        self.requests.discard(request)
        if request.delivery is not None:
            request.delivery.cancel()
        if self._emptied is not None and not self.requests and not self._emptied.done():
            self._emptied.set_result(None)

    async def until_closed(self, work: Awaitable[_T], *, failure: Callable[[], ServerFailure]) -> _T:
        """Wait for the answer to one request; ``failure`` says why the connection was closed.

        There is no time limit: the caller has one for the whole of its work.
        """
        request = self.start(idle=math.inf, within=math.inf)
        try:
            return await work
        except asyncio.CancelledError:
            if not request.absorb():
                raise
            raise failure() from None
        finally:
            self.end(request)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock of the request that this task makes, on which the server asks; of all if that is unknown."""
        request = CURRENT.get()
        with ExitStack() as pauses:
            for one in [request] if request is not None else list(self.requests):
                pauses.enter_context(one.paused())
            yield

    def cut_all(self) -> None:
        """The connection is closed: no request waits any longer."""
        for request in list(self.requests):
            request.cut = True
            request.cancel()

    async def empty(self) -> None:
        """Wait until no request is in flight."""
        while self.requests:
            self._emptied = self._loop.create_future()
            await self._emptied

    def look_at(self, due: float) -> None:
        """See that the timer does not come later than this."""
        if due < self._looks_at:
            if self._timer is not None:
                self._timer.cancel()
            self._looks_at = due
            self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer, self._looks_at = None, math.inf
        now = self._loop.time()
        # The timer is not moved when progress extends a request, so most often nothing is due yet.
        for request in list(self.requests):
            if request.due <= now:
                request.cancel()
        left = [request.due for request in self.requests if not request.expired]
        if left:
            self.look_at(min(left))

    def __repr__(self) -> str:
        return f"<InFlight {len(self.requests)} requests>"


async def until_cancelled(work: Callable[..., Awaitable[object]], *args: object) -> None:
    """The work of a task whose group ends it by a cancellation: the task then ends without an exception.

    A task that ends as cancelled is kept in a cycle with its group, by the traceback, until a collection frees it. With
    it stays all that the group has to do with: a whole connection.
    """
    with suppress(asyncio.CancelledError):
        await work(*args)
