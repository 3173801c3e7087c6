"""Replicas with one guard less than production, each beside what it breaks. The simulation must find them all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.core import (
    Effect,
    FleetExchange,
    FleetMember,
    FleetRecord,
    Machine,
    events as on,
)
from holdfast.core.lifecycle.events import Event
from holdfast.core.lifecycle.lifecycle import Lifecycle
from holdfast.core.replicas.store import RecordBook
from holdfast.front.session_id import SessionTicket, TicketSeal
from tests.simulation.replica import Replica

__all__ = [
    "MEMBERS",
    "LatestWins",
    "NoClaims",
    "NoJitter",
    "ServesEveryClient",
    "StaleGeneration",
    "replica_with",
]


class _AnyVersion(RecordBook):
    def merge(self, record: FleetRecord) -> bool:
        known = self.get(record.key)
        self[record.key] = record
        return known != record


class NoVersion(FleetMember):
    """Takes every record that arrives, also an older one."""

    def __init__(self, replica: str, **options: Any) -> None:
        super().__init__(replica, **options)
        self.book = _AnyVersion(self.book)
        self.probes._book = self.book


class TrustsTheStoreAlone(FleetMember):
    """Says "everywhere" as soon as the store has it, though no other replica has seen it."""

    def is_everywhere(self, written: FleetRecord, now: float) -> bool:
        peers, self.peers = self.peers, {}
        try:
            return super().is_everywhere(written, now)
        finally:
            self.peers = peers


class ForgetsItsCopy(FleetMember):
    """Does not send its copy to a store that was emptied or is older."""

    def request(self, now: float, *, chance: float, nonce: str, leaving: bool = False) -> FleetExchange:
        sent: set[str] = self.__dict__.setdefault("_sent_once", set())
        asked = super().request(now, chance=chance, nonce=nonce, leaving=leaving)
        fresh = tuple(one for one in asked.records if one.writer == self.replica and one.stamp not in sent)
        sent.update(record.stamp for record in fresh)
        return replace(asked, records=fresh)


class ServesEveryClient(Replica):
    """Serves each client where it comes in, also if its home is another replica."""

    def home_of(self, client: str) -> str:
        return self.name


MEMBERS: tuple[type[FleetMember], ...] = (NoVersion, ForgetsItsCopy)


class NoJitter(FleetMember):
    """Exchanges in the same rhythm as every other replica."""

    def request(self, now: float, *, chance: float, nonce: str, leaving: bool = False) -> FleetExchange:
        return super().request(now, chance=0.5, nonce=nonce, leaving=leaving)


class _NotStale(Lifecycle):
    def is_stale(self, event: Event) -> bool:
        if isinstance(event, on.DialSucceeded) and self.dial is None:
            # It takes the place of the current connection.
            return False
        return super().is_stale(event)

    def apply(self, event: Event, now: float, *, chance: float = 0.0) -> list[Effect]:
        if isinstance(event, on.DialSucceeded) and self.dial is not None and self.dial.generation != event.generation:
            event = replace(event, generation=self.dial.generation)
        return super().apply(event, now, chance=chance)


class StaleGeneration(Machine):
    """Takes the success of a dial that was given up for that of the current dial."""

    def __init__(self, server: str, **options: Any) -> None:
        super().__init__(server, **options)
        self.life = _NotStale(server, options["lifecycle"])

    def handle(self, event: Event, now: float, *, chance: float = 0.0) -> tuple[Effect, ...]:
        dialing = self.life.dial
        if isinstance(event, on.DialSucceeded) and dialing is not None and dialing.generation != event.generation:
            event = replace(event, generation=dialing.generation)
        return super().handle(event, now, chance=chance)


class NoClaims(Machine):
    """Tries a dead server without the right to probe."""

    def __init__(self, server: str, **options: Any) -> None:
        super().__init__(server, **{**options, "lifecycle": replace(options["lifecycle"], claims=False)})


class LatestWins(FleetMember):
    """Takes the latest first sight of a tool instead of the earliest."""

    def write(
        self, key: str, value: object, wall: float, *, first: bool = False, again: bool = False
    ) -> FleetRecord | None:
        return super().write(key, value, wall, again=again)


class AnyPrincipal(TicketSeal):
    """Opens a session for every principal."""

    def seal(self, written: SessionTicket, *, endpoint: str | None, principal: str) -> str:
        return super().seal(written, endpoint=endpoint, principal="")

    def open(self, session_id: str, *, endpoint: str | None, principal: str) -> SessionTicket | None:
        return super().open(session_id, endpoint=endpoint, principal="")


def replica_with(member: type[FleetMember] = FleetMember, machine: type[Machine] = Machine) -> type[Replica]:
    """A replica type with other parts."""
    return type("Mutated", (Replica,), {"member_type": member, "machine_type": machine})
