"""Watch a connection: keep the stream of notifications open, and see at once when the server is gone.

A pipe (stdio, SSE) ends by itself. Over HTTP there is a stream where the server offers one: a GET in the legacy era,
``subscriptions/listen`` in the modern one. A stream that ends is opened again. Nothing is replayed, so the lists then
count as changed. A stream that cannot be opened again, because no server answers, means that the server is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
from mcp import ClientSession, MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, ServerCapabilities
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
"""The notifications of a changed list."""

SOUND_SECONDS = 5.0
"""After a stream that lasted this long, the next one is opened without a pause."""

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
"""The pause after a short stream; it doubles each time, up to the longest."""


async def stay(connection: Connection, changed: Callable[[], object]) -> Evidence:
    """Wait until the connection is lost; ``changed`` is called when notifications may have been missed."""
    stream = _Stream(connection, changed)
    if isinstance(connection.wire, HttpDispatcher):
        return await stream.hold()
    async with anyio.create_task_group() as tasks:
        if connection.era == "modern":
            tasks.start_soon(stream.hold)
        gone = await connection.wire.gone()
        tasks.cancel_scope.cancel()
    return gone


class _Stream:
    """The stream of one connection, opened again each time that it ends."""

    def __init__(self, connection: Connection, changed: Callable[[], object]) -> None:
        self._connection = connection
        self._changed = changed
        self._short_ones = 0
        self._open = False
        self._ever_open = False

    async def hold(self) -> Evidence:
        """Keep a stream open; returns the evidence when no stream can be opened any more."""
        self._connection.on_stream = self._opened
        while True:
            began, self._open = anyio.current_time(), False
            try:
                if not await self._read():
                    await anyio.sleep_forever()
            except ServerFailure as failure:
                if self._tells_the_end(failure.evidence):
                    return failure.evidence
                if _not_found(failure.evidence):
                    await anyio.sleep_forever()
            await self._pause(anyio.current_time() - began)
            if not self._open:
                self._changed()

    async def _read(self) -> bool:
        """Read one stream to its end; False if the server has none to offer."""
        connection = self._connection
        if connection.era == "modern":
            return await subscribe(connection.session, _offered(connection.session.server_capabilities))
        assert isinstance(connection.wire, HttpDispatcher)  # noqa: S101 - the only kind that comes here
        return await connection.wire.read_stream(opened=self._opened)

    def _opened(self) -> None:
        """From now on notifications come. One between the last listing and now was missed."""
        self._open = self._ever_open = True
        self._changed()

    def _tells_the_end(self, seen: Evidence) -> bool:
        """Whether the server is gone: no answer, or a forgotten session. A stream that was open and broke is no proof.

        A 404 to the first request means that the server offers no stream.
        """
        if isinstance(seen, HttpStatus):
            return _not_found(seen) and self._ever_open
        return isinstance(seen, NetworkFailure | TimedOut) and not self._open

    async def _pause(self, lasted: float) -> None:
        self._short_ones = 0 if lasted >= SOUND_SECONDS else self._short_ones + 1
        if self._short_ones > 1:
            await anyio.sleep(min(PAUSE_SECONDS * 2.0 ** min(self._short_ones - 2, 10), LONGEST_PAUSE_SECONDS))


def _not_found(seen: Evidence) -> bool:
    return isinstance(seen, HttpStatus) and seen.status == 404


async def subscribe(session: ClientSession, wanted: Mapping[str, Any]) -> bool:
    """Hold a subscription until the server ends it; False if there is nothing to subscribe to."""
    if not wanted:
        return False
    try:
        await session.send_request(
            RawRequest(method="subscriptions/listen", params={"notifications": dict(wanted)}), RawResult
        )
    except MCPError as exc:
        return exc.code not in _NO_SUCH_THING
    except ValidationError:
        return True
    return True


_NO_SUCH_THING = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, INVALID_REQUEST})


def _offered(can: ServerCapabilities | None) -> dict[str, Any]:
    """The changes that the server offers notifications of."""
    if can is None:
        return {}
    offers = {"toolsListChanged": can.tools, "promptsListChanged": can.prompts, "resourcesListChanged": can.resources}
    return {key: True for key, offer in offers.items() if offer is not None and offer.list_changed}
