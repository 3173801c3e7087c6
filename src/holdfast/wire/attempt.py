"""One attempt to bring a server up: wait for a place, dial, list, close. The hub, one-shot loads and doctor share it.

Nothing is decided here. An attempt says what was seen and how long each step took; ``core.classify`` says what that
means, and the caller decides whether there is another attempt.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

import anyio

from holdfast.config import ServerSpec
from holdfast.core import Evidence, Redactor, TimedOut, Unexpected, masked
from holdfast.errors import ServerFailure
from holdfast.wire.descriptors import descriptor_shortage
from holdfast.wire.dial import Dialer, OnNotification
from holdfast.wire.relay import Relay
from holdfast.wire.session import Connection, Era
from holdfast.wire.stdio import StdioDispatcher

__all__ = ["Attempt", "Limit", "evidence_in"]

T = TypeVar("T")


class Limit(Protocol):
    """Limits how many attempts begin at once."""

    def place(self) -> AbstractAsyncContextManager[None]:
        """Wait for a place and hold it."""


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
    listing_within: float | None = None
    """Seconds for the listing alone; None where it must end with the rest."""
    era: Era | None = None
    """The era that the server spoke last time, then the one that it speaks now."""

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
            async with self.connected(dialer, limit):
                pass
        except Exception as exc:  # noqa: BLE001 - a fault of a library is what this attempt showed, and fails no other
            self.evidence = masked(evidence_in(exc), self.redactor)
            self.error = exc
        return self

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
            began = anyio.current_time()
            until = min(self.deadline, began + self.within)
            async with dialer.connect(
                self.spec,
                within=until - began,
                redactor=self.redactor,
                era=self.era,
                on_notice=on_notice,
                relay=relay,
            ) as connection:
                await place.aclose()
                if on_connected is not None:
                    on_connected(connection)
                await self._list(connection, began, until)
                yield connection

    async def _list(self, connection: Connection, began: float, until: float) -> None:
        stands = anyio.current_time()
        self.handshake_seconds = stands - began
        self.era, self.version = connection.era, connection.protocol_version or connection.era
        left = max(until - stands, 0.0) if self.listing_within is None else self.listing_within
        self.listing = await self.read(connection, left)
        self.listing_seconds = anyio.current_time() - stands
        self.noise = connection.wire.noise if isinstance(connection.wire, StdioDispatcher) else ""


async def _take(place: AsyncExitStack, limit: Limit, deadline: float) -> None:
    began = anyio.current_time()
    with anyio.move_on_at(deadline):
        await place.enter_async_context(limit.place())
        if anyio.current_time() < deadline:
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
