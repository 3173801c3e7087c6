"""Stay with a connection: hold open what brings the server's notices, and see at once when it is gone.

A pipe (stdio, SSE) ends by itself. Over HTTP there is a stream where the server offers one: a GET in
the legacy era, ``subscriptions/listen`` in the modern one. A stream that ends is opened again, and
since nothing is replayed, the lists are then taken to have changed; one that cannot be opened again
because nobody answers means that the server is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
from mcp import ClientSession, MCPError
from mcp_types import ServerCapabilities
from pydantic import ValidationError

from holdfast.core.evidence import Evidence, HttpStatus, NetworkFailure, TimedOut
from holdfast.errors import ServerFailure
from holdfast.wire.connection import Connection
from holdfast.wire.http import HttpDispatcher
from holdfast.wire.requests import RawRequest, RawResult

__all__ = ["LIST_CHANGED", "stay", "subscribe"]

LIST_CHANGED = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
    }
)
"""The notices that say that a list is another one now."""

SOUND_SECONDS = 5.0
"""A stream that lasted this long was a good one: the next is opened without a pause."""

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
"""The pause after a stream that ended soon, doubled each time up to the longest."""


async def stay(connection: Connection, changed: Callable[[], object]) -> Evidence:
    """Wait until the connection is seen to be gone; ``changed`` is told when notices may have been missed."""
    if isinstance(connection.wire, HttpDispatcher):
        return await _Stream(connection, changed).hold()
    async with anyio.create_task_group() as tasks:
        if connection.era == "modern":
            tasks.start_soon(_subscribe_for_ever, connection, changed)
        gone = await connection.wire.gone()
        tasks.cancel_scope.cancel()
    return gone


class _Stream:
    """The stream of one HTTP connection, opened again and again."""

    def __init__(self, connection: Connection, changed: Callable[[], object]) -> None:
        self._connection = connection
        self._changed = changed
        self._short_ones = 0

    async def hold(self) -> Evidence:
        while True:
            began = anyio.current_time()
            self._connection.acknowledged = anyio.Event()
            try:
                if not await self._read():
                    await anyio.sleep_forever()
            except ServerFailure as failure:
                if self._tells_the_end(failure.evidence):
                    return failure.evidence
            await self._pause(anyio.current_time() - began)
            self._changed()

    async def _read(self) -> bool:
        """Read one stream to its end; False if the server has none to offer."""
        connection = self._connection
        if connection.era == "modern":
            return await subscribe(connection.session, _offered(connection.session.server_capabilities))
        assert isinstance(connection.wire, HttpDispatcher)  # noqa: S101 - the only kind that comes here
        return await connection.wire.read_stream(opened=connection.acknowledged.set)

    def _tells_the_end(self, seen: Evidence) -> bool:
        """Nobody answers, or the session is forgotten; a stream that was open and broke is no such sign."""
        if isinstance(seen, HttpStatus):
            return seen.status == 404
        return isinstance(seen, NetworkFailure | TimedOut) and not self._connection.acknowledged.is_set()

    async def _pause(self, lasted: float) -> None:
        self._short_ones = 0 if lasted >= SOUND_SECONDS else self._short_ones + 1
        if self._short_ones > 1:
            await anyio.sleep(min(PAUSE_SECONDS * 2.0 ** (self._short_ones - 2), LONGEST_PAUSE_SECONDS))


async def _subscribe_for_ever(connection: Connection, changed: Callable[[], object]) -> None:
    """The same subscription over a pipe: the end of the pipe is seen elsewhere."""
    pause = PAUSE_SECONDS
    try:
        while await subscribe(connection.session, _offered(connection.session.server_capabilities)):
            await anyio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            changed()
    except ServerFailure:
        return


async def subscribe(session: ClientSession, wanted: Mapping[str, Any]) -> bool:
    """Hold a subscription until the server ends it; False if there is nothing to subscribe to."""
    if not wanted:
        return False
    try:
        await session.send_request(
            RawRequest(method="subscriptions/listen", params={"notifications": dict(wanted)}), RawResult
        )
    except MCPError:
        return False
    except ValidationError:
        return True
    return True


def _offered(can: ServerCapabilities | None) -> dict[str, Any]:
    """The changes that the server says it tells of."""
    if can is None:
        return {}
    offers = {"toolsListChanged": can.tools, "promptsListChanged": can.prompts, "resourcesListChanged": can.resources}
    return {key: True for key, offer in offers.items() if offer is not None and offer.list_changed}
