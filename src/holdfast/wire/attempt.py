"""One attempt to bring a server up: wait for a place, dial, list, close. The hub, one-shot loads and doctor share it.

Nothing is decided here. An attempt says what was seen and how long each step took; ``core.classify`` says what that
means, and the caller decides whether there is another attempt.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import anyio

from holdfast.config import ServerSpec
from holdfast.core import Evidence, Redactor, TimedOut, ToldByHub, Unexpected, masked, quoted
from holdfast.errors import ServerFailure
from holdfast.wire.dial import Dialer, DialHooks, OnNotification, descriptor_shortage
from holdfast.wire.in_flight import Era
from holdfast.wire.listen import STATUS_SECONDS, first_status
from holdfast.wire.process import Child
from holdfast.wire.relay import Relay
from holdfast.wire.session import Connection
from holdfast.wire.stdio_transport import StdioDispatcher

__all__ = ["SHORTEST_DIAL", "Attempt", "Limit", "Starting", "evidence_in"]

T = TypeVar("T")


class Limit(Protocol):
    """Limits how many attempts begin at once."""

    def place(self) -> AbstractAsyncContextManager[None]:
        """Wait for a place and hold it."""


class Starting(NamedTuple):
    """A process that is alive and has not answered yet."""

    seconds: float
    line: str
    """The last line of its stderr, masked; empty if there is none."""

    @property
    def words(self) -> str:
        """``starting for 12 s; stderr: "fetching …"``: the process's own text is quoted and labelled."""
        said = quoted(self.line, origin="stderr")
        return f"starting for {self.seconds:.0f} s" + (f"; {said}" if said else "")


@dataclass(kw_only=True)
class Attempt(Generic[T]):
    """One attempt: what it goes by, and what it showed as far as it came."""

    spec: ServerSpec
    redactor: Redactor
    read: Callable[[Connection, float], Awaitable[T]]
    """Lists what the caller wants, within so many seconds."""
    deadline: float = math.inf
    """When all of it has ended, the wait for a place too; a time of the event loop."""
    within: float = math.inf
    """Seconds from the moment that the attempt has its place."""
    total: float = math.inf
    """The seconds that led to ``deadline``, for the reason of an attempt that it cut short."""
    start_within: float | None = None
    """Seconds in which a process may start, instead of its server's ``startTimeout``."""
    listing_within: float | None = None
    """Seconds for the listing alone; None where it must end with the rest, for a process where it gets ``within``."""
    era: Era | None = None
    """The era that the server spoke last time, then the one that it speaks now."""

    began: float = 0.0
    """When it got its place; a time of the event loop."""
    child: Child | None = field(default=None, repr=False)
    """The process that starts, or has started."""
    version: str = ""
    """The protocol version that both sides speak; empty where the handshake failed."""
    handshake_seconds: float = 0.0
    listing: T | None = None
    listing_seconds: float = 0.0
    noise: str = ""
    """What a command printed on stdout that is not the protocol, masked."""
    evidence: Evidence | None = None
    """What went wrong, masked: in the handshake if there is no version, else in the listing or the close."""
    error: Exception | None = field(default=None, repr=False)
    """The exception behind the evidence. It may quote secrets, so it is for debugging alone."""

    async def run(self, dialer: Dialer, limit: Limit) -> Self:
        """Wait for a place, dial, list and close. Raises nothing but a cancellation."""
        try:
            async with self.connected(dialer, limit) as connection:
                await self._ask_hub(connection)
        except Exception as exc:  # noqa: BLE001 - a fault of a library is what this attempt showed, and fails no other
            self.evidence = masked(self._whole(evidence_in(exc)), self.redactor)
            self.error = exc
        return self

    async def _ask_hub(self, connection: Connection) -> None:
        """A hub on the other side answers, also while its server is down: the outcome is what it says of the server."""
        if connection.hub is None:
            return
        record = await first_status(connection, within=STATUS_SECONDS)
        if record is not None and (failure := record.health.failure) is not None:
            told = ToldByHub(
                status=failure.status, reason=failure.error, hint=record.hint, retry_in=record.health.next_try
            )
            raise ServerFailure(told)

    @property
    def starting(self) -> Starting | None:
        """How the start of its process goes; None where no process starts, or it has answered."""
        if self.child is None or self.version or self.child.exit_code is not None:
            return None
        return Starting(seconds=anyio.current_time() - self.began, line=self.child.stderr.last_line)

    def _whole(self, seen: Evidence) -> Evidence:
        """An attempt that the deadline of all attempts cut short says how long that was, not what was left of it."""
        cut = self.deadline < self.began + self.within and not self._is_process
        if isinstance(seen, TimedOut) and cut and math.isfinite(self.total):
            return replace(seen, after=self.total, setting="holdfast.load.totalTimeout")
        return seen

    @property
    def _is_process(self) -> bool:
        return self.spec.transport == "stdio"

    @asynccontextmanager
    async def connected(
        self,
        dialer: Dialer,
        limit: Limit,
        *,
        on_connected: Callable[[Connection], None] | None = None,
        on_notice: OnNotification | None = None,
        relay: Relay | None = None,
    ) -> AsyncIterator[Connection]:
        """A connection whose listing is complete; it is closed when the block ends.

        The place is given back after the handshake. Raises what went wrong, which ``evidence_in`` reads.
        """
        async with AsyncExitStack() as place:
            await _take(place, limit, self.deadline)
            self.began = anyio.current_time()
            hooks = DialHooks(on_notice=on_notice, relay=relay, on_start=self._started)
            async with dialer.connect(
                self.spec,
                within=self._left(self.began),
                start_within=self.spec.start_timeout if self.start_within is None else self.start_within,
                redactor=self.redactor,
                era=self.era,
                hooks=hooks,
            ) as connection:
                await place.aclose()
                if on_connected is not None:
                    on_connected(connection)
                await self._list(connection)
                yield connection

    def _started(self, child: Child) -> None:
        self.child = child

    def _left(self, now: float) -> float:
        """Seconds for the next step. The deadline of all attempts does not cut a process that started (LOAD-13)."""
        if self._is_process:
            return self.within
        return max(min(self.deadline, self.began + self.within) - now, 0.0)

    async def _list(self, connection: Connection) -> None:
        stands = anyio.current_time()
        self.handshake_seconds = stands - self.began
        self.era, self.version = connection.era, connection.protocol_version or connection.era
        left = self._left(stands) if self.listing_within is None else self.listing_within
        self.listing = await self.read(connection, left)
        self.listing_seconds = anyio.current_time() - stands
        self.noise = connection.wire.noise if isinstance(connection.wire, StdioDispatcher) else ""


SHORTEST_DIAL = 0.02
"""Seconds. With less time left no server answers: a dial would only blame it for the wait."""


async def _take(place: AsyncExitStack, limit: Limit, deadline: float) -> None:
    began = anyio.current_time()
    with anyio.move_on_at(deadline):
        await place.enter_async_context(limit.place())
        if anyio.current_time() < deadline - SHORTEST_DIAL:
            return
    after = max(round(deadline - began, 1), 0.0)
    raise ServerFailure(TimedOut(doing="its turn", after=after, setting="holdfast.load.concurrency"))


def evidence_in(exc: Exception) -> Evidence:
    """What an exception shows; one that a task group wrapped is looked for inside."""
    if (shortage := descriptor_shortage(exc)) is not None:
        return shortage
    while isinstance(exc, ExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    if isinstance(exc, ServerFailure):
        return exc.evidence
    return Unexpected(type=type(exc).__name__, detail=str(exc))
