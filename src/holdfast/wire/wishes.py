"""The desired state of a server's connection: subscribed resources and the log level.

It outlives connections. Each new connection gets it again. Nothing is replayed, so every subscribed resource then
counts as changed.
"""

from __future__ import annotations

from contextlib import suppress

import anyio
import anyio.abc

from holdfast.errors import ServerFailure
from holdfast.wire.connection import Connection
from holdfast.wire.listening import LONGEST_PAUSE_SECONDS, PAUSE_SECONDS, subscribe

__all__ = ["LOG_LEVELS", "Wishes", "grant"]

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""From the most messages to the fewest."""

CONFIRM_SECONDS = 15.0
"""How long a server may take to confirm one request. Without an answer, the next connection asks again."""


class Wishes:
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


async def grant(connection: Connection, wishes: Wishes) -> None:
    """Apply the desired state to a new connection, for as long as it lasts."""
    for uri in wishes.uris:
        connection.missed(uri)
    if connection.era == "modern":
        await _listen_for_each(connection, wishes)
        return
    if wishes.log_level is not None:
        await _request(connection, "logging/setLevel", {"level": wishes.log_level})
    for uri in wishes.uris:
        await _request(connection, "resources/subscribe", {"uri": uri})


async def _request(connection: Connection, method: str, params: dict[str, str]) -> None:
    with suppress(ServerFailure):
        await connection.request(method, params, idle=CONFIRM_SECONDS, within=CONFIRM_SECONDS)


async def _listen_for_each(connection: Connection, wishes: Wishes) -> None:
    """Open one subscription for each resource, so that one can end without the others."""
    open_ones: dict[str, anyio.CancelScope] = {}
    async with anyio.create_task_group() as tasks:
        while True:
            changed, wanted = wishes.changed, wishes.uris
            for uri in open_ones.keys() - wanted:
                open_ones.pop(uri).cancel()
            for uri in wanted - open_ones.keys():
                open_ones[uri] = anyio.CancelScope()
                tasks.start_soon(_listen, connection, uri, open_ones[uri])
            await changed.wait()


async def _listen(connection: Connection, uri: str, scope: anyio.CancelScope) -> None:
    """Keep one subscription open; open it again after a cut, for as long as the connection lasts."""
    pause = PAUSE_SECONDS
    with scope:
        while await _held(connection, uri):
            await anyio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            connection.missed(uri)


async def _held(connection: Connection, uri: str) -> bool:
    try:
        return await subscribe(connection.session, {"resourceSubscriptions": [uri]})
    except ServerFailure:
        return True
