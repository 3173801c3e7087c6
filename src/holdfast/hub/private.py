"""Connections of one client's own, to servers that are not to be shared (``sharing: per-client``).

Each is a slot like any other, with the same machine, so a server that dies under one client comes back
for that client. It shows nothing in the catalog: what a server offers is known from the hub's own connection.
There are only so many for each server. One whose owner can leave without a word ends when it was long unused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import anyio

from holdfast.config.spec import ServerSpec, Settings
from holdfast.core.catalog import Listing
from holdfast.core.lifecycle import effects as do
from holdfast.core.lifecycle import events as on
from holdfast.errors import ServerBusy
from holdfast.hub.lease import FindRelay
from holdfast.hub.records import OfOneClient, Sink
from holdfast.hub.slot import Slot, Surroundings

__all__ = ["PrivateSlots", "ready_within"]


@dataclass(eq=False)
class _Own:
    """One owner's connection to one server."""

    slot: Slot
    expires: bool
    """Whether nobody will say when its owner is gone."""
    unused_since: float
    uses: int = 0


class PrivateSlots:
    """The connections of all clients that have some of their own."""

    def __init__(self) -> None:
        self._around: Surroundings | None = None
        self._own: dict[tuple[Hashable, str], _Own] = {}
        self._changed = anyio.Event()

    def open(self, around: Surroundings, tell: Sink) -> None:
        """The hub is open; what happens to these connections is told as what it is."""
        self._around = replace(around, shelf=_OwnShelf(tell))
        around.tasks.start_soon(self._expire, name="unused connections")

    def adopt(self, settings: Settings) -> None:
        """From now on these settings hold, also for connections that are there."""
        if self._around is not None:
            self._around = replace(self._around, settings=settings)
            self._changed.set()

    def of(self, owner: Hashable, spec: ServerSpec, relay: FindRelay, *, expires: bool = False) -> Slot:
        """The owner's slot for a server; begun now if this is its first use, anew if the definition changed."""
        own = self._own.get((owner, spec.id))
        if own is not None and own.slot.spec == spec:
            return own.slot
        assert self._around is not None  # noqa: S101 - the hub is open
        if own is not None:
            own.slot.tell(on.RemoveRequested())
        else:
            self._refuse_too_many(spec.id, self._around.settings.per_client.connections)
        slot = Slot(spec, replace(self._around, relay=relay))
        self._own[owner, spec.id] = _Own(slot, expires, unused_since=self._around.clock.now())
        self._around.tasks.start_soon(slot.run, name=f"{spec.id} of one client")
        slot.tell(on.StartRequested())
        self._changed.set()
        return slot

    def find(self, owner: Hashable, server: str) -> Slot | None:
        """The owner's slot for a server, if it has one already."""
        own = self._own.get((owner, server))
        return own.slot if own is not None else None

    @contextmanager
    def using(self, owner: Hashable, server: str) -> Iterator[None]:
        """For the length of the block the owner's connection, if it has one of its own, is in use."""
        own = self.use(owner, server)
        try:
            yield
        finally:
            self._unuse(own)

    def use(self, owner: Hashable, server: str) -> _Own | None:
        """The owner has one more reason to keep its connection, until it says ``leave``."""
        if (own := self._own.get((owner, server))) is not None:
            own.uses += 1
        return own

    def leave(self, owner: Hashable, server: str) -> None:
        """The owner has one reason fewer."""
        self._unuse(self._own.get((owner, server)))

    def _unuse(self, own: _Own | None) -> None:
        if own is not None and self._around is not None:
            own.uses = max(own.uses - 1, 0)
            own.unused_since = self._around.clock.now()
            self._changed.set()

    def release(self, owner: Hashable) -> None:
        """The owner is gone, and with it every connection of its own."""
        self._end([key for key in self._own if key[0] == owner])

    def end(self, server: str) -> None:
        """The server is gone, or switched off, and with it everybody's connection to it."""
        self._end([key for key in self._own if key[1] == server])

    def all(self) -> list[Slot]:
        """Every slot that somebody has."""
        return [own.slot for own in self._own.values()]

    def _end(self, keys: list[tuple[Hashable, str]]) -> None:
        for key in keys:
            self._own.pop(key).slot.tell(on.RemoveRequested())

    def _refuse_too_many(self, server: str, most: int) -> None:
        if sum(1 for key in self._own if key[1] == server) >= most:
            raise ServerBusy(
                f"MCP server '{server}' has as many clients with a connection of their own as it may ({most}); "
                "one must leave first, or `holdfast.perClient.connections` be raised",
                server_id=server,
                state="connected",
            )

    async def _expire(self) -> None:
        """End what was unused for too long, whenever there is something that can be."""
        while (around := self._around) is not None:
            self._changed = anyio.Event()
            idle, now = around.settings.per_client.idle, around.clock.now()
            due = {key: own.unused_since + idle for key, own in self._own.items() if own.expires and not own.uses}
            self._end([key for key, at in due.items() if at <= now])
            await around.clock.wait(self._changed, min((at for at in due.values() if at > now), default=None))


def ready_within(slot: Slot, settings: Settings, *, own: bool) -> float:
    """How long a call waits for its server; one that starts a connection of its own waits for its first dial."""
    first = own and not slot.machine.life.ever_connected
    return settings.load.attempt_timeout if first else settings.call.ready_timeout


class _OwnShelf:
    """Nobody reads what is put here; what is told is told as one client's own."""

    def __init__(self, tell: Sink) -> None:
        self._tell = tell

    def publish(self, listing: Listing) -> None:
        """The hub's own connection lists."""

    def withdraw(self, server: str, *, removed: bool) -> None:
        """Nothing was shown."""

    def reinstate(self, server: str) -> None:
        """Nothing was shown."""

    def tell(self, record: do.Record) -> None:
        """One client's connection says nothing about the server's health for others."""
        self._tell(OfOneClient(server=record.server, record=record))
