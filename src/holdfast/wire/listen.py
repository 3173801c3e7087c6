"""Watch a connection: keep its streams of notifications open, and see at once when the server is gone.

A pipe (stdio, SSE) ends by itself. Over HTTP there is a stream where the server offers one: a GET in the legacy era,
``subscriptions/listen`` in the modern one. A stream that ends is opened again. Nothing is replayed, so the lists then
count as changed. A stream that cannot be opened again, because no server answers, means that the server is gone. The
desired state (subscribed resources, log level) outlives connections: each new connection gets it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
from mcp import MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND

from holdfast.core import STATUS_URI, Evidence, HttpStatus, NetworkFailure, ServerRecord, TimedOut
from holdfast.errors import ServerFailure
from holdfast.wire.http.transport import HttpDispatcher
from holdfast.wire.raw_json import RawObject
from holdfast.wire.session import Connection

__all__ = [
    "LIST_CHANGED",
    "LOG_LEVELS",
    "STATUS_SECONDS",
    "DesiredState",
    "apply_desired_state",
    "first_status",
    "follow_hub",
    "subscribe",
    "watch_connection",
]

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


async def watch_connection(connection: Connection, changed: Callable[[], object]) -> Evidence:
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
        with self._connection.wire.incoming.listening(self._opened):
            return await self._hold()

    async def _hold(self) -> Evidence:
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
            return await subscribe(connection, _offered(connection.capabilities))
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


async def subscribe(connection: Connection, wanted: Mapping[str, Any]) -> bool:
    """Hold a subscription until the server ends it; False if there is nothing to subscribe to."""
    if not wanted:
        return False
    try:
        await connection.ask("subscriptions/listen", RawObject.of({"notifications": wanted}).members)
    except MCPError as exc:
        return exc.code not in _NO_SUCH_THING
    return True


_NO_SUCH_THING = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, INVALID_REQUEST})


def _offered(can: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that the server offers notifications of, by its capabilities."""
    kinds = ("tools", "prompts", "resources")
    return {f"{kind}ListChanged": True for kind in kinds if can.get(kind, {}).get("listChanged")}


LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""From the most messages to the fewest."""

CONFIRM_SECONDS = 15.0
"""How long a server may take to confirm one request. Without an answer, the next connection asks again."""


STATUS_SECONDS = 10.0
"""How long a hub may take to tell its status."""

STATUS_AGAIN_SECONDS, DOWN_AGAIN_SECONDS = 60.0, 5.0
"""How often a hub is asked though it says nothing: a notice may be lost, and words such as "starting for 12 s" age."""


async def follow_hub(connection: Connection, told: Callable[[ServerRecord | None], object]) -> None:
    """Read the status of a hub whenever it changed, until cancelled; ``told`` gets what it says of its one server.

    A status that cannot be read changes nothing: whether the hub is gone is seen by ``watch_connection``.
    """
    well = False
    while True:
        changed = connection.wire.incoming.status_told
        with suppress(ServerFailure):
            record = _of_one(await connection.hub_status(within=STATUS_SECONDS), connection)
            told(record)
            well = record is None or record.is_available
        with anyio.move_on_after(STATUS_AGAIN_SECONDS if well else DOWN_AGAIN_SECONDS):
            await changed.wait()


async def first_status(connection: Connection, *, within: float) -> ServerRecord | None:
    """What a hub says of its one server; None if it says nothing that can be read."""
    with suppress(ServerFailure):
        return _of_one(await connection.hub_status(within=min(within, STATUS_SECONDS)), connection)
    return None


def _of_one(records: Mapping[str, ServerRecord], connection: Connection) -> ServerRecord | None:
    """The record of the server of an endpoint that has one; a hub of many is one server here, and it is up.

    An endpoint of one server is what ``{"hub": …}`` names. It can also be written as a URL.
    """
    if len(records) != 1 or connection.hub is None:
        return None
    return next(iter(records.values())).seen_by(connection.hub.own_id)


class DesiredState:
    """What all clients of one server together want of it."""

    def __init__(self) -> None:
        self._watchers: dict[str, int] = {}
        self.log_level: str | None = None
        """The lowest level that any client wants; each client then gets what it asked for itself."""
        self.changed = anyio.Event()

    @property
    def uris(self) -> frozenset[str]:
        """The resources that at least one client watches."""
        return frozenset(self._watchers)

    def watch(self, uri: str) -> bool:
        """Add a watcher; returns whether it is the first."""
        self._watchers[uri] = self._watchers.get(uri, 0) + 1
        self._wake()
        return self._watchers[uri] == 1

    def unwatch(self, uri: str) -> bool:
        """Remove a watcher; returns whether it was the last."""
        left = self._watchers.pop(uri, 0) - 1
        if left > 0:
            self._watchers[uri] = left
        self._wake()
        return left == 0

    def log(self, level: str) -> bool:
        """A client wants this level; returns whether the server must send more than before."""
        if self.log_level is not None and LOG_LEVELS.index(level) >= LOG_LEVELS.index(self.log_level):
            return False
        self.log_level = level
        return True

    def _wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


def _missed(connection: Connection, uri: str) -> None:
    """A watched resource may have changed while no stream was open: send its watchers a change."""
    connection.wire.incoming.pass_on("notifications/resources/updated", {"uri": uri})


async def apply_desired_state(connection: Connection, wishes: DesiredState) -> None:
    """Apply the desired state to a new connection, for as long as it lasts."""
    for uri in wishes.uris:
        _missed(connection, uri)
    own = frozenset({STATUS_URI}) if connection.hub is not None else frozenset[str]()
    if connection.era == "modern":
        await _subscribe_each(connection, wishes, own)
        return
    if wishes.log_level is not None:
        await _request(connection, "logging/setLevel", {"level": wishes.log_level})
    for uri in wishes.uris | own:
        await _request(connection, "resources/subscribe", {"uri": uri})


async def _request(connection: Connection, method: str, params: dict[str, str]) -> None:
    with suppress(ServerFailure):
        await connection.request(method, RawObject.of(params).members, idle=CONFIRM_SECONDS, within=CONFIRM_SECONDS)


async def _subscribe_each(connection: Connection, wishes: DesiredState, own: frozenset[str]) -> None:
    """Open one subscription for each resource, so that one can end without the others; ``own`` are for this hub."""
    open_ones: dict[str, anyio.CancelScope] = {}
    async with anyio.create_task_group() as tasks:
        while True:
            changed, wanted = wishes.changed, wishes.uris | own
            for uri in open_ones.keys() - wanted:
                open_ones.pop(uri).cancel()
            for uri in wanted - open_ones.keys():
                open_ones[uri] = anyio.CancelScope()
                tasks.start_soon(_keep_subscribed, connection, uri, open_ones[uri])
            await changed.wait()


async def _keep_subscribed(connection: Connection, uri: str, scope: anyio.CancelScope) -> None:
    """Keep one subscription open; open it again after a cut, for as long as the connection lasts."""
    pause = PAUSE_SECONDS
    with scope:
        while await _subscription_ended(connection, uri):
            await anyio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            _missed(connection, uri)


async def _subscription_ended(connection: Connection, uri: str) -> bool:
    try:
        return await subscribe(connection, {"resourceSubscriptions": [uri]})
    except ServerFailure:
        return True
