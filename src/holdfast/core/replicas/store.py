"""What a store does for a fleet, as pure code: one operation, ``exchange``.

The local broker of ``serve --workers`` and the simulation run this class. The Redis store runs the same steps in a
script inside Redis. A store keeps records, the presence of replicas, and claims. It judges no content: a record with a
greater stamp replaces one with a smaller stamp.

A claim is a right that one replica has for a time: to probe a server, or to run it. Its token never decreases: it is
greater than the last one of the store and than the last one that the asking replica knows.
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
    "STALE_SECONDS",
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

REMEMBER_SECONDS = 24 * 3600.0
"""How long a claim that may not come again is remembered after it ended: a session that idles for longer is over."""

PRESENT_SECONDS = 3.0
"""A replica that has not exchanged for this long is not present."""

STALE_SECONDS = 3.0
"""A store that was stopped reads later what was sent to it. A claim that is this old gets nothing: the replica does not
wait for the answer any more, and would not know that it has the right. It is more than two exchanges may take."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A replica asks for a right, or extends the one that it has."""

    key: str
    known: int = 0
    """The greatest token that the replica knows for this key."""
    due_in: float = 0.0
    """Seconds until it is used."""
    ttl: float = 10.0
    """How long it is valid after that, unless it is extended; 0 only asks who has it."""
    instead_of: str = ""
    """A replica that was found dead: if it still has the right, the right passes to the one that asks."""


@dataclass(frozen=True, slots=True)
class ClaimRelease:
    """A replica gives a right back; it is given to no one before ``delay`` seconds have passed."""

    key: str
    token: int
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """Granted with a token, or refused with the seconds to wait."""

    key: str
    granted: bool
    token: int
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
    """The last sequence number that the replica has seen in this epoch."""
    records: tuple[FleetRecord, ...] = ()
    claims: tuple[Claim, ...] = ()
    releases: tuple[ClaimRelease, ...] = ()
    drops: tuple[tuple[str, str], ...] = ()
    """Key and stamp of records that are over: the store forgets them, unless it has a later one."""
    roster: bool = False
    """Whether the reply has the presence of all replicas."""
    leaving: bool = False
    sent: float = 0.0
    """When this was sent, by the clock of the store as the replica knows it; 0 if it does not know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReply:
    """What the store answers."""

    epoch: str
    """Changes when the store was emptied."""
    sequence: int
    """The last sequence number of the store: everything that was sent has a smaller or the same one."""
    cursor: int
    """The sequence number of the last record in this reply; the next exchange begins after it."""
    age: float = 0.0
    """Seconds since the store was empty."""
    records: tuple[FleetRecord, ...] = ()
    claims: tuple[ClaimAnswer, ...] = ()
    replicas: Mapping[str, str] | None = None
    strangers: int = 0
    """Replicas that are present and whose messages cannot be verified; set where signatures are checked."""
    now: float = 0.0
    """The clock of the store, which never jumps; replicas compare it with nothing but itself."""
    wall: float = 0.0
    """The time of day that the machine of the store shows; 0 if the store does not tell it."""


@dataclass(slots=True)
class _ClaimState:
    token: int = 0
    holder: str = ""
    until: float = 0.0
    next_at: float = 0.0


@dataclass(slots=True)
class SharedStore:
    """The content of a store. ``now`` is the store's own clock: replicas never compare theirs."""

    epoch: str = ""
    epoch_at: float = 0.0
    settled: bool = False
    """Whether it was made with its replicas, and so was never emptied under them."""
    sequence: int = 0
    records: dict[str, tuple[int, FleetRecord]] = field(default_factory=dict)
    """In the order of their sequence numbers, so that an exchange looks at new ones only."""
    replicas: dict[str, tuple[float, str]] = field(default_factory=dict)
    claims: dict[str, _ClaimState] = field(default_factory=dict)

    def exchange(self, asked: FleetExchange, now: float) -> FleetReply:
        """Take what a replica sends, and answer with what it has not seen."""
        if not self.epoch:
            self.epoch, self.epoch_at = asked.nonce, now
        for record in asked.records[:BATCH]:
            self._put(record)
        for key, stamp in asked.drops[:BATCH]:
            self._drop(key, stamp)
        for release in asked.releases:
            self._release(asked.replica, release, now)
        # A replica that does not know yet that the store was emptied must not get what its holder still has.
        known = asked.epoch == self.epoch and not is_stale(asked, now)
        answers = tuple(self._claim(asked.replica, claim, now) for claim in asked.claims) if known else ()
        self._note(asked, now)
        since = asked.cursor if asked.epoch == self.epoch and asked.cursor <= self.sequence else 0
        sent, complete = self._unseen(since)
        return FleetReply(
            epoch=self.epoch,
            sequence=self.sequence,
            cursor=self.sequence if complete else sent[-1][0],
            age=float("inf") if self.settled else now - self.epoch_at,
            records=tuple(record for _, record in sent),
            claims=answers,
            replicas=self._roster(now) if asked.roster else None,
            now=now,
        )

    def died(self, replica: str, now: float, *, within: float) -> None:
        """The process of a replica is gone, and what it ran is over within so many seconds."""
        self.replicas.pop(replica, None)
        for state in self.claims.values():
            if state.holder == replica:
                state.until = min(state.until, now + within)

    def _put(self, record: FleetRecord) -> None:
        known = self.records.get(record.key)
        if known is None or known[1].stamp < record.stamp:
            self.sequence += 1
            self.records.pop(record.key, None)
            self.records[record.key] = (self.sequence, record)

    def _drop(self, key: str, stamp: str) -> None:
        known = self.records.get(key)
        if known is not None and known[1].stamp <= stamp:
            del self.records[key]

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

    def _note(self, asked: FleetExchange, now: float) -> None:
        if asked.leaving:
            self.replicas.pop(asked.replica, None)
        else:
            self.replicas[asked.replica] = (now + PRESENT_SECONDS, asked.presence)

    def _roster(self, now: float) -> dict[str, str]:
        self.replicas = {replica: entry for replica, entry in self.replicas.items() if entry[0] > now}
        over = now - REMEMBER_SECONDS
        for key in [
            key
            for key, state in self.claims.items()
            if max(state.until, state.next_at) <= over and _comes_and_goes(key)
        ]:
            del self.claims[key]
        return {replica: presence for replica, (_, presence) in self.replicas.items()}

    def _claim(self, replica: str, asked: Claim, now: float) -> ClaimAnswer:
        state = self.claims.setdefault(asked.key, _ClaimState())
        held = bool(state.holder) and state.until > now
        if held and state.holder == asked.instead_of and state.holder != replica:
            held = False
        if held and state.holder != replica:
            return ClaimAnswer(asked.key, False, state.token, state.until - now, state.holder)
        if asked.ttl <= 0:
            return ClaimAnswer(asked.key, False, state.token, 0.0, state.holder if held else "")
        if held and state.token >= asked.known:
            state.until = max(state.until, now + asked.due_in + asked.ttl)
            return ClaimAnswer(asked.key, True, state.token, holder=replica)
        if now + asked.due_in < state.next_at:
            return ClaimAnswer(asked.key, False, state.token, state.next_at - now)
        state.token = max(state.token, asked.known) + 1
        state.holder, state.until = replica, now + asked.due_in + asked.ttl
        return ClaimAnswer(asked.key, True, state.token, holder=replica)

    def _release(self, replica: str, release: ClaimRelease, now: float) -> None:
        state = self.claims.get(release.key)
        if state is not None and state.holder == replica and state.token == release.token:
            state.holder, state.next_at = "", now + release.delay


def is_stale(asked: FleetExchange, now: float) -> bool:
    """Whether this was sent so long ago that its replica has given it up."""
    return asked.sent > 0 and now - asked.sent > STALE_SECONDS


def _comes_and_goes(key: str) -> bool:
    """Whether a claim is of a client with connections of its own, or of a probe of one definition or one replica.

    The claims of servers stay: their tokens only grow.
    """
    return key.startswith(("client/", "probe/"))
