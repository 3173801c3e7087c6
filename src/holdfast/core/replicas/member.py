"""One replica: what it sends to the store, and what it does with the answers.

Pure: the time (``now``, monotonic), the wall clock and chance are arguments. The hub performs the exchanges and passes
on what happens. No call waits for any of this. Every replica has a copy of all records, which outlives the store.

What can happen, and what a replica does then:
- The store answers. What it has and the copy has not is merged by stamp; what only the copy has is sent.
- It fails for a while: the replica is *alone*. It goes on with its copy, and grants itself the right to probe.
- It is emptied, or an older copy takes its place: the whole copy is sent again (``epoch``, ``sequence``).

What must never happen: a decision is answered "everywhere" and a replica that is present does not know it. So each
replica tells in its presence how far it has read, and a decision counts once all that are present have read past it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TypeAlias

from holdfast.core.replicas.probe_rights import SOONEST_SECONDS, ProbeClaims, ProbeRight
from holdfast.core.replicas.store import (
    BATCH,
    BATCH_BYTES,
    PRESENT_SECONDS,
    ExpiringKeys,
    FleetExchange,
    FleetRecord,
    FleetReply,
    RecordBook,
    VersionClock,
    first_stamp,
    stamp,
)

__all__ = ["Alone", "Connected", "FleetMember", "Happening", "Peer", "RecordLearned"]

EXCHANGE_SECONDS = 0.25
"""Between two exchanges: a decision is known everywhere within a second."""
ROSTER_SECONDS = 1.0
"""How often a replica asks who is present."""
RETRY_SECONDS = 0.5
"""Between two tries to reach a store that does not answer."""
ALONE_SECONDS = 2.0
"""Without a good exchange for this long, a replica is alone."""
SETTLED_SECONDS = 3.0
"""After a replica found the store, or found it emptied, the others have sent their copies to it."""
JOIN_SECONDS = 1.0
"""A replica that just joined asks who is present with every exchange."""


@dataclass(frozen=True, slots=True)
class RecordLearned:
    """Another replica wrote this record."""

    record: FleetRecord


@dataclass(frozen=True, slots=True)
class Alone:
    """The store does not answer."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The store answers: for the first time, again, or after it was emptied."""

    emptied: bool = False


Happening: TypeAlias = RecordLearned | ProbeRight | Alone | Connected


@dataclass(frozen=True, slots=True)
class Peer:
    """A replica that is present."""

    replica: str
    seen: tuple[str, int] = ("", 0)
    """The epoch, and the sequence number up to which it has seen everything."""
    about: Mapping[str, object] = field(default_factory=dict)
    """What it says about itself: address, process, version."""


class Outbox:
    """What the store does not have yet, and what it is known to have."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.unsent: dict[str, None] = dict.fromkeys(keys)
        self.drops: dict[str, None] = {}
        """The keys of records that are over, and that the store may still have."""
        self.arrived: dict[str, tuple[str, int, str]] = {}
        """The epoch and sequence number of the store after a key was written, and the stamp (``is_everywhere``)."""

    def decisions(self) -> list[str]:
        """The keys of switches and approvals that the store does not have."""
        return [key for key in self.unsent if key.startswith(("switch/", "pin/"))]

    def begin_again(self, keys: Iterable[str]) -> None:
        """The store has lost what it had, or is another one."""
        self.arrived = {}
        self.unsent = dict.fromkeys(keys)

    def wrote(self, key: str) -> None:
        self.drops.pop(key, None)
        self.unsent[key] = None

    def forget(self, key: str) -> None:
        """A record is over."""
        self.drops[key] = None
        for known in (self.unsent, self.arrived):
            known.pop(key, None)

    def taken(self, record: FleetRecord, known: FleetRecord | None, reply: FleetReply) -> None:
        """The store took a record that was sent, or has a later one; ``known`` is the one of the copy by now."""
        if known is not None and record.stamp >= known.stamp:
            self.unsent.pop(record.key, None)
            self.arrived[record.key] = (reply.epoch, reply.sequence, record.stamp)

    def found(self, record: FleetRecord, known: FleetRecord | None, reply: FleetReply) -> None:
        """The store has a record; ``known`` is the one of the copy, which is sent if it is later."""
        self.arrived[record.key] = (reply.epoch, reply.sequence, record.stamp)
        if known is not None and known.stamp > record.stamp:
            self.unsent[record.key] = None
        else:
            self.unsent.pop(record.key, None)
            self.drops.pop(record.key, None)

    def batch(self, book: RecordBook) -> tuple[FleetRecord, ...]:
        """As much of it as one exchange carries."""
        sent: list[FleetRecord] = []
        size = 0
        for record in filter(None, map(book.get, islice(self.unsent, BATCH))):
            sent.append(record)
            size += len(record.value)
            if size >= BATCH_BYTES:
                break
        return tuple(sent)


class ExchangePace:
    """When the next exchange is due, and whether it asks who is present."""

    def __init__(self) -> None:
        self.next = 0.0
        self.last = -math.inf
        self.urgent = False
        """Whether the next exchange cannot wait."""
        self.last_roster = -math.inf
        """When it was last asked who is present."""
        self.watched_until = 0.0
        """A caller waits until then for a write to be everywhere."""

    def hurry(self) -> None:
        """The next exchange cannot wait."""
        self.urgent = True

    def watch_writes(self, until: float) -> None:
        """A caller waits until then for a write to be everywhere: ask who has seen what more often."""
        self.watched_until = max(self.watched_until, until)

    def want_roster(self) -> None:
        """A replica is named that is not known: ask who is present, soon."""
        self.last_roster, self.urgent = -math.inf, True

    def has_roster(self, since: float) -> bool:
        """Whether the store was asked who is present at that time or later."""
        return self.last_roster >= since

    def due(self, first_ask: float) -> float:
        soonest = self.last + SOONEST_SECONDS
        return soonest if self.urgent else max(soonest, min(self.next, first_ask))

    def begun(self, now: float, chance: float) -> None:
        """``chance`` in [0, 1) spreads the replicas."""
        self.last, self.urgent = now, False
        self.next = now + EXCHANGE_SECONDS * (0.75 + 0.5 * chance)

    def failed(self, now: float) -> None:
        self.next = now + RETRY_SECONDS
        self.urgent = False


class FleetMember:
    """The state of one replica."""

    def __init__(
        self,
        replica: str,
        *,
        about: Mapping[str, object] | None = None,
        records: Iterable[FleetRecord] = (),
        using: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.replica = replica
        self.about = dict(about or {})
        self.book = RecordBook()
        self.pace = ExchangePace()
        self.probes = ProbeClaims(replica, self.book, using, replicas=lambda: self.peers, hurry=self.pace.hurry)
        """The rights to probe that this replica wants and has."""
        self.peers: dict[str, Peer] = {}
        """The replicas that are present, this one included, as of the last good exchange."""
        self.strangers = 0
        """Replicas with another key that use the same part of the store, as of the last roster."""
        self.is_alone = False
        """Whether the store does not answer, for longer than a moment."""
        self.synced = False
        """Whether the whole store was read in this run."""
        self.expiring = ExpiringKeys()
        self._versions = VersionClock()
        for record in records:
            self.book.merge(record)
            self._versions.saw(record.stamp)
            self.expiring.note(record)
        self.outbox = Outbox(self.book)
        self._epoch, self._cursor = "", 0
        self._last_good: float | None = None
        self._first_try: float | None = None
        self._found_at: float | None = None
        self._joined_at: float | None = None
        self._expected: tuple[frozenset[str], float] = (frozenset(), 0.0)
        """Until that time these replicas may be present, though a store that just began has not heard of them yet.

        A decision that did not wait for them was once answered "everywhere" in the first moment of a new store."""

    def __repr__(self) -> str:
        state = "alone" if self.is_alone else "connected" if self.synced else "new"
        return f"<FleetMember {self.replica!r} {state} peers={len(self.peers)} records={len(self.book)}>"

    # Records.

    def write(
        self, key: str, value: object, wall: float, *, first: bool = False, again: bool = False
    ) -> FleetRecord | None:
        """Decide something for the fleet; with ``first`` it is a first sight, and an earlier one stays.

        None if nothing changed; with ``again`` the same value counts as new: two equal failures are two. Taken for
        one, the second would move no turn, and after a minute every replica would dial at once.
        """
        known = self.book.get(key)
        if first and known is not None:
            return None
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        if known is not None and known.value == text and not again:
            return None
        number = self._versions.next(wall)
        made = first_stamp(number, self.replica) if first else stamp(number, self.replica)
        record = FleetRecord(key, made, text)
        self.book.merge(record)
        self.expiring.note(record)
        self.outbox.wrote(key)
        self.pace.urgent = True
        return record

    def is_everywhere(self, written: FleetRecord, now: float) -> bool:
        """Whether the store has it, or a later one, and every replica that is present has seen it."""
        record, arrived = self.book.get(written.key), self.outbox.arrived.get(written.key)
        if not self.is_connected(now) or record is None or record.stamp < written.stamp:
            return False
        if arrived is None or arrived[0] != self._epoch or arrived[2] < written.stamp:
            return False
        expected, until = self._expected
        if now < until and not expected <= self.peers.keys():
            return False
        if self.strangers:
            return False  # they write under the same keys: a replica may have read theirs instead
        others = [peer for name, peer in self.peers.items() if name != self.replica]
        return all(peer.seen[0] == arrived[0] and peer.seen[1] >= arrived[1] for peer in others)

    def purge(self, wall: float) -> None:
        """Forget the records that are over, here and in the store. A lone replica keeps them: none tells it again."""
        if self.is_alone:
            return
        for key in self.expiring.take_over(wall):
            if self.book.pop(key, None) is not None:
                self.outbox.forget(key)

    # Exchanges.

    def is_connected(self, now: float) -> bool:
        """Whether the store answered lately."""
        return self._last_good is not None and now - self._last_good < ALONE_SECONDS

    def is_settled(self, now: float) -> bool:
        """Whether the copy has what the fleet has: only then is a first sight a first sight."""
        found = self._found_at
        return self.synced and self.is_connected(now) and found is not None and now - found >= SETTLED_SECONDS

    def due(self) -> float:
        """When the next exchange is due."""
        return self.pace.due(self.probes.first_ask() if not self.is_alone else math.inf)

    def request(self, now: float, *, chance: float, nonce: str, leaving: bool = False) -> FleetExchange:
        """The next exchange. ``nonce`` names an epoch."""
        if self._first_try is None:
            self._first_try = now
        self.pace.begun(now, chance)
        if leaving:
            self.probes.leave()
        joining = self._joined_at is None or now - self._joined_at < JOIN_SECONDS
        watching = joining or now < self.pace.watched_until
        return FleetExchange(
            replica=self.replica,
            presence=json.dumps({**self.about, "epoch": self._epoch, "seen": self._cursor}, sort_keys=True),
            nonce=nonce,
            epoch=self._epoch,
            cursor=self._cursor,
            # The store is read first: most of the copy is there already.
            records=self.outbox.batch(self.book) if self.synced else (),
            # Whose turn it is follows from the evidence in the store, which a first exchange has not read yet.
            claims=() if leaving or not self._epoch else tuple(self.probes.claims(now)),
            releases=tuple(self.probes.to_release),
            drops=tuple(islice(self.outbox.drops, BATCH)),
            roster=watching or now - self.pace.last_roster >= ROSTER_SECONDS,
            leaving=leaving,
        )

    def reconnected(self) -> None:
        """The connection to the store is new: it may be another store, or an older copy."""
        self._cursor, self._epoch = 0, ""
        self.synced = False

    def receive(self, asked: FleetExchange, reply: FleetReply, now: float) -> tuple[Happening, ...]:
        """Take the answer to an exchange that began at the time of its ``request``."""
        # An answer may be late: what it says was true when the exchange began, so every time here counts from then.
        began = self.pace.last
        happened: list[Happening] = []
        emptied = bool(self._epoch) and reply.epoch != self._epoch
        restarted = not self._epoch or emptied or reply.sequence < self._cursor
        if restarted:
            if self._last_good is not None:
                self._expected = frozenset(self.peers), now + PRESENT_SECONDS
            # It may lack any of them. What it has after all is taken out again as it is read (`found`).
            self.outbox.begin_again(self.book)
        if self.is_alone or self._last_good is None or restarted:
            happened.append(Connected(emptied=emptied))
            self._found_at = began
        self.is_alone, self._last_good, self._epoch = False, began, reply.epoch
        self.probes.to_release = [one for one in self.probes.to_release if one not in asked.releases]
        for key in asked.drops:
            self.outbox.drops.pop(key, None)
        for record in asked.records:
            self.outbox.taken(record, self.book.get(record.key), reply)
        for record in reply.records:
            known = self.book.get(record.key)
            self._versions.saw(record.stamp)
            self.outbox.found(record, known, reply)
            if self.book.merge(record):
                self.expiring.note(record)
                happened.append(RecordLearned(record))
        self._cursor = reply.cursor
        # A flood of records by others does not make a replica new again: it stays in sync while it reads them.
        self.synced = reply.cursor == reply.sequence or (self.synced and not restarted)
        if reply.replicas is not None:
            self.pace.last_roster, self.strangers = began, reply.strangers
            self.peers = {name: _peer(name, text) for name, text in reply.replicas.items()}
        if self.synced and self._joined_at is None:
            self._joined_at = began
        for answer in reply.claims:
            happened += self.probes.answered(answer, began, now)
        more = bool(self.outbox.unsent) or bool(self.outbox.drops) or reply.cursor < reply.sequence
        self.pace.urgent = self.pace.urgent or more
        return (*happened, *self.tick(now))

    def failed(self, now: float) -> tuple[Happening, ...]:
        """An exchange failed, or took too long."""
        happened: list[Happening] = []
        self.pace.failed(now)
        # A store that never answered is gone as well: a replica that starts without one must not wait for it for ever.
        since = self._last_good if self._last_good is not None else self._first_try
        if not self.is_alone and since is not None and now - since >= ALONE_SECONDS:
            self.is_alone = True
            happened.append(Alone())
        return (*happened, *self.tick(now))

    def tick(self, now: float) -> tuple[Happening, ...]:
        """What time alone brings: rights that end, and rights that a lone replica gives itself."""
        return tuple(self.probes.tick(now, alone=self.is_alone))

    def next_tick(self) -> float | None:
        """When ``tick`` has something to do at the latest, if no exchange succeeds."""
        return self.probes.next_tick(alone=self.is_alone)


@lru_cache(maxsize=1_024)
def _peer(name: str, text: str) -> Peer:
    try:
        about = json.loads(text)
        return Peer(name, (str(about.pop("epoch", "")), int(about.pop("seen", 0))), about)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return Peer(name)
