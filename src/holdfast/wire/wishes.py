"""What clients want of a server beside answers: resources that are watched, and how much it logs.

Wishes outlive connections: whenever a new one stands, they are made again, and since nothing is replayed,
what is watched is then taken to have changed.
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
"""From the most that is told to the least."""

WISH_SECONDS = 15.0
"""How long a server may take to confirm a wish; it is then left without it until the next connection."""


class Wishes:
    """What is wanted of one server, by all its clients together."""

    def __init__(self) -> None:
        self._watched: dict[str, int] = {}
        self.log_level: str | None = None
        """The most that any client wants to be told; each client is then told what it wants itself."""
        self.changed = anyio.Event()

    @property
    def uris(self) -> frozenset[str]:
        """The resources that somebody watches."""
        return frozenset(self._watched)

    def watch(self, uri: str) -> bool:
        """One more watches it; whether it is the first."""
        self._watched[uri] = self._watched.get(uri, 0) + 1
        self._wake()
        return self._watched[uri] == 1

    def unwatch(self, uri: str) -> bool:
        """One fewer watches it; whether it was the last."""
        left = self._watched.pop(uri, 0) - 1
        if left > 0:
            self._watched[uri] = left
        self._wake()
        return left == 0

    def log(self, level: str) -> bool:
        """Somebody wants to be told this much; whether nobody wanted as much before."""
        if self.log_level is not None and LOG_LEVELS.index(level) >= LOG_LEVELS.index(self.log_level):
            return False
        self.log_level = level
        return True

    def _wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


async def grant(connection: Connection, wishes: Wishes) -> None:
    """Make the wishes on a new connection, for as long as it stands."""
    for uri in wishes.uris:
        connection.missed(uri)
    if connection.era == "modern":
        await _listen_for_each(connection, wishes)
        return
    if wishes.log_level is not None:
        await _wish(connection, "logging/setLevel", {"level": wishes.log_level})
    for uri in wishes.uris:
        await _wish(connection, "resources/subscribe", {"uri": uri})


async def _wish(connection: Connection, method: str, params: dict[str, str]) -> None:
    with suppress(ServerFailure):
        await connection.request(method, params, idle=WISH_SECONDS, within=WISH_SECONDS)


async def _listen_for_each(connection: Connection, wishes: Wishes) -> None:
    """A subscription of its own for each resource: it can be ended without losing what the others bring."""
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
    """Hold one subscription open; one that was cut is opened again, for as long as the connection stands."""
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
