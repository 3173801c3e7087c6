"""What a store does for replicas, as pure code: one operation, ``exchange``.

The store of workers and the simulation run this class; the store in Redis does the same with Redis's own primitives. A
store keeps records, the presence of replicas, and claims. It judges no content: a record with a greater stamp replaces
one with a smaller stamp, and every write gets the next number of a sequence, by which a replica reads what is new.

What can happen to a store, and what it means here:
- It is emptied, or one of its parts is: a new *epoch* begins. A replica that sees another epoch reads all, and sends
  its whole copy again.
- It is replaced by an older copy: its sequence is behind what a replica has seen, which means the same.

A claim is the right to probe a server, which one replica has for a time. It is no lock that anything depends on: two
replicas that have it for a moment cost a dial. So it has no token and no witness, as ``SET NX PX`` has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from holdfast.core.replicas.records import FleetRecord

__all__ = [
    "BATCH",
    "BATCH_BYTES",
    "PRESENT_SECONDS",
    "Claim",
    "ClaimAnswer",
    "ClaimRelease",
    "FleetExchange",
    "FleetReply",
    "SharedStore",
]

BATCH = 250
"""Records in one exchange: a flood of them must not block the store."""

BATCH_BYTES = 512 * 1024
"""Characters of records in one exchange, and one record at least: large ones must not block the store either."""

PRESENT_SECONDS = 3.0
"""A replica that has not exchanged for this long is not present."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A replica asks for a right for so many seconds; ``extends`` the one that it has."""

    key: str
    seconds: float = 10.0
    extends: bool = False


@dataclass(frozen=True, slots=True)
class ClaimRelease:
    """A replica gives a right back; it is given to no one before ``delay`` seconds have passed."""

    key: str
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """Granted, or refused with the seconds to wait; ``holder`` is empty while no replica may have it."""

    key: str
    granted: bool
    wait: float = 0.0
    holder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetExchange:
    """What a replica sends."""

    replica: str
    presence: str = ""
    nonce: str = ""
    """Names the epoch, if the store is empty."""
    epoch: str = ""
    cursor: int = 0
    """The last sequence number that the replica has seen in this epoch; 0: it wants all."""
    records: tuple[FleetRecord, ...] = ()
    claims: tuple[Claim, ...] = ()
    releases: tuple[ClaimRelease, ...] = ()
    drops: tuple[str, ...] = ()
    """Keys of records that are over: the store forgets them."""
    roster: bool = False
    """Whether the reply has the presence of all replicas."""
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReply:
    """What the store answers."""

    epoch: str
    """Changes when the store was emptied."""
    sequence: int
    """The last sequence number of the store: everything that was sent has a smaller or the same one."""
    cursor: int
    """Up to which number the replica has seen everything; the next exchange begins after it."""
    records: tuple[FleetRecord, ...] = ()
    claims: tuple[ClaimAnswer, ...] = ()
    replicas: Mapping[str, str] | None = None
    strangers: int = 0
    """Replicas that are present and whose messages cannot be verified; set where signatures are checked."""
    wall: float = 0.0
    """The time of day that the machine of the store shows; 0 if the store does not tell it."""


@dataclass(slots=True)
class SharedStore:
    """The content of a store. ``now`` is the store's own clock: replicas never compare theirs."""

    epoch: str = ""
    sequence: int = 0
    records: dict[str, tuple[int, FleetRecord]] = field(default_factory=dict)
    """In the order of their sequence numbers, so that an exchange looks at new ones only."""
    replicas: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Until when each replica is present, and what it says of itself."""
    claims: dict[str, tuple[str, float]] = field(default_factory=dict)
    """The holder of each right, and until when; no holder while it is given to no one."""

    def exchange(self, asked: FleetExchange, now: float) -> FleetReply:
        """Take what a replica sends, and answer with what it has not seen."""
        self.epoch = self.epoch or asked.nonce
        for record in asked.records[:BATCH]:
            self._put(record)
        for key in asked.drops[:BATCH]:
            self.records.pop(key, None)
        for release in asked.releases:
            self._release(asked.replica, release, now)
        answers = tuple(self._claim(asked.replica, claim, now) for claim in asked.claims)
        if asked.leaving:
            self.replicas.pop(asked.replica, None)
        else:
            self.replicas[asked.replica] = (now + PRESENT_SECONDS, asked.presence)
        since = asked.cursor if asked.epoch == self.epoch and asked.cursor <= self.sequence else 0
        sent, complete = self._unseen(since)
        return FleetReply(
            epoch=self.epoch,
            sequence=self.sequence,
            cursor=self.sequence if complete else sent[-1][0],
            records=tuple(record for _, record in sent),
            claims=answers,
            replicas=self._roster(now) if asked.roster else None,
        )

    def died(self, replica: str) -> None:
        """The process of a replica is gone: it is not present, and has no right any more."""
        self.replicas.pop(replica, None)
        self.claims = {key: claim for key, claim in self.claims.items() if claim[0] != replica}

    def _put(self, record: FleetRecord) -> None:
        known = self.records.get(record.key)
        if known is None or known[1].stamp < record.stamp:
            self.sequence += 1
            self.records.pop(record.key, None)
            self.records[record.key] = (self.sequence, record)

    def _unseen(self, since: int) -> tuple[list[tuple[int, FleetRecord]], bool]:
        """What has a later number, oldest first, as much as one exchange carries; and whether that is all."""
        unseen = list(takewhile(lambda entry: entry[0] > since, reversed(self.records.values())))
        unseen.reverse()
        size = 0
        for index, (_, record) in enumerate(unseen):
            if index == BATCH or size >= BATCH_BYTES:
                return unseen[:index], False
            size += len(record.value)
        return unseen, True

    def _roster(self, now: float) -> dict[str, str]:
        self.replicas = {replica: entry for replica, entry in self.replicas.items() if entry[0] > now}
        self.claims = {key: claim for key, claim in self.claims.items() if claim[1] > now}
        return {replica: presence for replica, (_, presence) in self.replicas.items()}

    def _claim(self, replica: str, asked: Claim, now: float) -> ClaimAnswer:
        holder, until = self.claims.get(asked.key, ("", 0.0))
        if until > now and not (asked.extends and holder == replica):
            return ClaimAnswer(asked.key, False, until - now, holder)
        self.claims[asked.key] = (replica, now + asked.seconds)
        return ClaimAnswer(asked.key, True, holder=replica)

    def _release(self, replica: str, release: ClaimRelease, now: float) -> None:
        if self.claims.get(release.key, ("", 0.0))[0] == replica:
            self.claims[release.key] = ("", now + release.delay)
