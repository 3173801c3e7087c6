"""Connections of one client's own, to servers that are not to be shared (``sharing: per-client``).

Each is a slot like any other, with the same machine, so a server that dies under one client comes back
for that client. It shows nothing in the catalog: what a server offers is known from the hub's own connection.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from holdfast.config.spec import ServerSpec, Settings
from holdfast.core.catalog import Listing
from holdfast.core.lifecycle import effects as do
from holdfast.core.lifecycle import events as on
from holdfast.hub.journal import OfOneClient, Sink
from holdfast.hub.lease import FindRelay
from holdfast.hub.slot import Slot, Surroundings

__all__ = ["PrivateSlots", "ready_within"]


class PrivateSlots:
    """The connections of all clients that have some of their own."""

    def __init__(self) -> None:
        self._around: Surroundings | None = None
        self._slots: dict[tuple[Hashable, str], Slot] = {}

    def open(self, around: Surroundings, tell: Sink) -> None:
        """The hub is open; what happens to these connections is told as what it is."""
        self._around = replace(around, shelf=_OwnShelf(tell))

    def of(self, owner: Hashable, spec: ServerSpec, relay: FindRelay) -> Slot:
        """The owner's slot for a server; begun now if this is its first use, anew if the definition changed."""
        slot = self._slots.get((owner, spec.id))
        if slot is not None and slot.spec == spec:
            return slot
        if slot is not None:
            slot.tell(on.RemoveRequested())
        assert self._around is not None  # noqa: S101 - the hub is open
        slot = self._slots[owner, spec.id] = Slot(spec, replace(self._around, relay=relay))
        self._around.tasks.start_soon(slot.run, name=f"{spec.id} of one client")
        slot.tell(on.StartRequested())
        return slot

    def release(self, owner: Hashable) -> None:
        """The owner is gone, and with it every connection of its own."""
        for key in [key for key in self._slots if key[0] == owner]:
            self._slots.pop(key).tell(on.RemoveRequested())

    def all(self) -> list[Slot]:
        """Every slot that somebody has."""
        return list(self._slots.values())


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
