"""What all parts of a replica use: its copy of the records, its clocks, its hub, and a way to hurry the next exchange.

A replica is made of parts that share one state. Each part has one subject: who is present (``presence``), and each kind
of record that replicas share (``shared_records``). ``fleet`` performs the exchanges and gives what they bring to the
parts. No part waits for the store: a write goes out with the next exchange.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import anyio

from holdfast.core import FleetClock, FleetMember, FleetRecord, FleetReply, Ticket, record_value
from holdfast.hub import Clock, ReplicaHost

__all__ = ["ReplicaState", "SharedTime"]

log = logging.getLogger("holdfast.fleet")


class ReplicaState:
    """The state of one replica."""

    def __init__(
        self,
        replica: str,
        *,
        about: Mapping[str, object],
        records: Iterable[FleetRecord] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.member = FleetMember(replica, about=about, records=records, using=self._is_trying)
        self.clock = SharedTime(self, wall)
        self.problem = ""
        """Why the last exchange failed, or what makes the sharing unsafe; empty if all is well."""
        self.not_shared_since: float | None = None
        """Since when the store does not answer, in seconds since the epoch."""
        self.wake = anyio.Event()
        """Ends the wait for the next exchange."""
        self.changed = anyio.Event()
        """Set after each exchange that succeeds; then there is another one."""
        self.read_at = float("-inf")
        """When the last exchange began after which this replica had all that the store has."""
        self._open: tuple[ReplicaHost, Clock] | None = None

    def open(self, host: ReplicaHost, clock: Clock) -> None:
        """Begin for this hub."""
        self._open = host, clock

    @property
    def host(self) -> ReplicaHost:
        """The hub."""
        assert self._open is not None  # noqa: S101 - see open()
        return self._open[0]

    @property
    def waiting(self) -> Clock:
        """The clock of the hub."""
        assert self._open is not None  # noqa: S101 - see open()
        return self._open[1]

    def now(self) -> float:
        """The time on the clock of the hub, which only grows."""
        return self.waiting.now()

    @property
    def is_open(self) -> bool:
        """Whether this replica has its hub."""
        return self._open is not None

    @property
    def is_settled(self) -> bool:
        """Whether a first sight is one for the whole fleet."""
        return self.member.is_settled(self.now())

    @property
    def is_shared(self) -> bool:
        """Whether the store answers."""
        return self.not_shared_since is None and self.member.is_connected(self.now())

    def write(self, key: str, value: object, *, first: bool = False, again: bool = False) -> Ticket | None:
        """Share a value; see ``FleetMember.write``. It does not wait: the next exchange sends it."""
        ticket = self.member.write(key, value, self.clock.time(), first=first, again=again)
        self.wake.set()
        return ticket

    async def catch_up(self, within: float) -> bool:
        """Read what the others wrote until now; False if that could not be done within so many seconds."""
        began, until = self.now(), self.now() + within
        while self.read_at < began:
            self.member.pace.hurry()  # the next exchange is due at once
            self.wake.set()
            if not await self.waiting.wait(self.changed, until):
                return False
        return True

    def kept(self, key: str) -> Mapping[str, Any] | None:
        """A value that this or another replica shares."""
        record = self.member.book.get(key)
        return record_value(record) if record is not None else None

    @property
    def keeps_all(self) -> bool:
        """Whether this copy has the state of every session of the fleet."""
        return self.is_settled and not self.member.expiring.crowded

    def _is_trying(self, server: str) -> bool:
        return self._open is not None and self._open[0].is_trying(server)

    def __repr__(self) -> str:
        return f"<ReplicaState {self.member!r}{f': {self.problem}' if self.problem else ''}>"


class SharedTime:
    """The time of day for all that replicas share: a wrong clock must not end the sessions of the others."""

    def __init__(self, state: ReplicaState, wall: Callable[[], float]) -> None:
        self._state = state
        self.wall = wall
        """The clock of this machine."""
        self.agreed = FleetClock()
        """The time on which the replicas agree."""

    def time(self) -> float:
        """The time on which the replicas agree; that of this machine before the hub is open."""
        return self.agreed.time(self.wall(), self._count()) if self._state.is_open else self.wall()

    def _count(self) -> float:
        return self._state.now() + _suspended_seconds()

    def note(self, reply: FleetReply, store: str) -> None:
        """The store showed its time, and perhaps how far the others are ahead of it."""
        if not reply.wall:
            return
        member = self._state.member
        known = member.replica in self.agreed.wrong
        own = member.about["ahead"] = round(self.wall() - reply.wall)
        if reply.replicas is not None:
            told = {name: peer.about.get("ahead") for name, peer in member.peers.items()}
            self.agreed.note(reply.wall, told | {member.replica: own}, self._count())
        if member.replica in self.agreed.wrong and not known:
            log.warning("%s: %s", store, self.notice)

    @property
    def wrong(self) -> dict[str, float]:
        """The replicas whose clock is wrong, and how many seconds it is ahead of the others; a minus is behind."""
        return self.agreed.wrong if self._state.is_shared else {}

    @property
    def notice(self) -> str:
        """What the operator should know about clocks that are wrong; empty if none is."""
        return self.agreed.notice if self._state.is_shared else ""


def _suspended_seconds() -> float:
    """How long this machine was suspended since it started, where the system tells it."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(boot) - time.clock_gettime(time.CLOCK_MONOTONIC) if boot is not None else 0.0
