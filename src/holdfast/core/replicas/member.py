"""One replica of a fleet: what it sends to the store, and what it does with the answers.

Pure: the time (``now``, monotonic), the wall clock and chance are arguments. The hub performs the exchanges and passes
on what happens. No call waits for any of this. Without the store a replica goes on with its copy, and grants itself
the right to probe.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TypeAlias

from holdfast.core.replicas.expiring import ExpiringKeys
from holdfast.core.replicas.homes import ClientHomes, is_home_key, preferred
from holdfast.core.replicas.records import FleetRecord, RecordBook, VersionClock, first_stamp, stamp
from holdfast.core.replicas.sharing import evidence_key
from holdfast.core.replicas.store import (
    BATCH,
    BATCH_BYTES,
    PRESENT_SECONDS,
    Claim,
    ClaimAnswer,
    ClaimRelease,
    FleetExchange,
    FleetReply,
)

__all__ = [
    "Alone",
    "Connected",
    "FleetMember",
    "Granted",
    "Happening",
    "HomeLost",
    "Peer",
    "RecordLearned",
    "Ticket",
    "Unused",
]

EXCHANGE_SECONDS = 0.25
"""Between two exchanges: a decision is known everywhere within a second."""
QUIET_SECONDS = 0.75
"""Between two exchanges with a store that tells of every change, while nothing changes."""
ROSTER_SECONDS = 1.0
"""How often a replica asks who is present."""
SOONEST_SECONDS = 0.02
"""Between two exchanges that cannot wait."""
RETRY_SECONDS = 0.5
"""Between two tries to reach a store that does not answer."""
ALONE_SECONDS = 2.0
"""Without a good exchange for this long, a replica is alone."""
LEAD_SECONDS = 1.0
"""The right to probe is claimed this long before it is used."""
GRACE_SECONDS = 0.5
"""A replica whose turn it is not asks this much later, for each replica before it."""
LAST_TURN = 3
"""No replica waits for more than this many others."""
PROBE_SECONDS = 10.0
"""How long the right to probe is valid; it is extended during a dial."""
PATIENCE_SECONDS = 60.0
"""A store that refuses the right to probe for this long after its time is not believed."""
PATIENCE_CHECK_SECONDS = 1.0
"""How often that is looked for: a fleet may have thousands of dead servers."""
SETTLED_SECONDS = 3.0
"""After a replica found the store, or found it emptied, the others have sent their copies to it."""
MOST_TOLD = 100
"""Servers that a replica names in its presence, which travels with every exchange."""
JOIN_SECONDS = 1.0
"""A replica that just joined asks who is present with every exchange."""


@dataclass(frozen=True, slots=True)
class RecordLearned:
    """Another replica wrote this record."""

    record: FleetRecord
    before: FleetRecord | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """This replica has the right to probe the server until that time."""

    server: str
    until: float


@dataclass(frozen=True, slots=True)
class Unused:
    """The right to probe ended, and was not used."""

    server: str


@dataclass(frozen=True, slots=True)
class HomeLost:
    """Another replica has the connections of this client now."""

    key: str


@dataclass(frozen=True, slots=True)
class Alone:
    """The store does not answer, and since when."""

    since: float


@dataclass(frozen=True, slots=True)
class Connected:
    """The store answers: for the first time, again, or after it was emptied."""

    emptied: bool = False


Happening: TypeAlias = RecordLearned | Granted | Unused | HomeLost | Alone | Connected


@dataclass(frozen=True, slots=True)
class Peer:
    """A replica that is present."""

    replica: str
    seen: tuple[str, int] = ("", 0)
    """The epoch, and the sequence number up to which it has seen everything."""
    about: Mapping[str, object] = field(default_factory=dict)
    """What it says about itself: address, process, version."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A write whose arrival at the other replicas can be waited for."""

    key: str
    stamp: str


@dataclass(slots=True)
class _Want:
    at: float
    round: int
    ask_at: float
    since: float


@dataclass(slots=True)
class _Held:
    key: str
    token: int
    until: float
    local: bool


class FleetMember:
    """The state of one replica in its fleet."""

    def __init__(
        self,
        replica: str,
        *,
        about: Mapping[str, object] | None = None,
        records: Iterable[FleetRecord] = (),
        using: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.replica = replica
        self._using = using
        """Whether a try of this server is under way here: then its right to probe does not end."""
        self.about = dict(about or {})
        self.book = RecordBook(records)
        self.peers: dict[str, Peer] = {}
        """The replicas that are present, this one included, as of the last good exchange."""
        self.strangers = 0
        """Replicas with another key that use the same part of the store, as of the last roster."""
        self.alone_since: float | None = None
        """Since when the store does not answer; None while it does, and before the first try."""
        self.synced = False
        """Whether the whole store was read in this run."""
        self._versions = VersionClock()
        for record in self.book:
            self._versions.saw(record.stamp)
        self._epoch, self._cursor = "", 0
        self._stored: dict[str, str] = {}
        """The stamps that the store is known to have."""
        self._unsent: dict[str, None] = dict.fromkeys(record.key for record in self.book)
        self._arrived: dict[str, tuple[str, int, str]] = {}
        """The epoch and sequence number of the store after a key was written, and the stamp, for tickets."""
        self._wants: dict[str, _Want] = {}
        self._asks: list[tuple[float, str]] = []
        """When each right is asked for, the first on top; entries of an earlier plan are passed over."""
        self._next_patience = 0.0
        self._expected: frozenset[str] = frozenset()
        self._expected_until = 0.0
        """Until then these replicas may be present, though a store that just began has not heard of them yet."""
        self._held: dict[str, _Held] = {}
        self._releases: list[ClaimRelease] = []
        self.homes = ClientHomes(replica)
        self._drops: dict[str, str] = {}
        self.expiring = ExpiringKeys()
        for record in self.book:
            self.expiring.note(record)
        self._tokens: dict[str, int] = {}
        self._definitions: dict[str, str] = {}
        self._next_exchange = 0.0
        self._last_exchange = self._last_roster = float("-inf")
        self._last_good: float | None = None
        self._first_try: float | None = None
        self._store_clock: tuple[float, float] | None = None
        """The clock of the store and that of this replica when the last answer came."""
        self._found_at: float | None = None
        self._urgent = False
        """Whether the next exchange cannot wait."""
        self._store_tells = False
        """Whether the store says by itself that another replica changed something."""
        self._joined_at: float | None = None
        self._watching_tickets = 0.0

    def __repr__(self) -> str:
        state = "alone" if self.alone_since is not None else "connected" if self.synced else "new"
        return f"<FleetMember {self.replica!r} {state} peers={len(self.peers)} records={len(self.book)}>"

    # Records.

    def value(self, key: str) -> object | None:
        """The value of a record."""
        record = self.book.get(key)
        return json.loads(record.value) if record is not None else None

    def write(self, key: str, value: object, wall: float, *, first: bool = False, again: bool = False) -> Ticket | None:
        """Decide something for the fleet; with ``first`` it is a first sight, and an earlier one stays.

        None if nothing changed; with ``again`` the same value counts as new: two equal failures are two.
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
        self._drops.pop(key, None)
        self._unsent[key] = None
        self._urgent = True
        return Ticket(key, made)

    def is_everywhere(self, ticket: Ticket, now: float) -> bool:
        """Whether the store has it, and every replica that is present has seen it."""
        if not self.is_connected(now):
            return False
        record = self.book.get(ticket.key)
        if record is None or record.stamp < ticket.stamp:
            return False
        arrived = self._arrived.get(ticket.key)
        if arrived is None or arrived[0] != self._epoch or arrived[2] < ticket.stamp:
            return False
        if now < self._expected_until and not self._expected <= self.peers.keys():
            return False
        if self.strangers:
            return False  # they write under the same keys: a replica may have read theirs instead
        others = [peer for name, peer in self.peers.items() if name != self.replica]
        return all(peer.seen[0] == arrived[0] and peer.seen[1] >= arrived[1] for peer in others)

    def want_roster(self) -> None:
        """A replica is named that is not known: ask who is present, soon."""
        self._last_roster = float("-inf")
        self._urgent = True

    def has_roster(self, since: float) -> bool:
        """Whether the store was asked who is present at that time or later."""
        return self._last_roster >= since

    def watch_tickets(self, until: float) -> None:
        """Somebody waits for a ticket until then: ask who has seen what more often."""
        self._watching_tickets = max(self._watching_tickets, until)
        self._urgent = self._urgent or self._store_tells

    def purge(self, wall: float) -> None:
        """Forget the records that are over, here and in the store. A lone replica keeps them: none tells it again."""
        if self.alone_since is not None:
            return
        for key in self.expiring.take_over(wall):
            record = self.book.remove(key)
            if record is not None:
                self._drops[key] = record.stamp
            for known in (self._unsent, self._stored, self._arrived):
                known.pop(key, None)

    # The right to probe.

    def want_probe(self, server: str, at: float | None, number: int, now: float, *, definition: str = "") -> None:
        """The right to probe is needed at that time, or not any more. Each definition of a server has its own."""
        self._definitions[server] = definition
        if at is None:
            self._wants.pop(server, None)
        else:
            known = self._wants.get(server)
            since = max(now, at)
            if known is not None and known.round == number:
                since = min(since, known.since)  # a turn that moved to an earlier time waits from then on
            self._wants[server] = _Want(at, number, 0.0, since)
            self._ask(server, self._ask_at(server, at))

    def release_probe(self, server: str, delay: float) -> None:
        """The right to probe was used, or is not needed."""
        held = self._held.pop(server, None)
        if held is not None and not held.local:
            self._releases.append(ClaimRelease(held.key, held.token, delay))
            self._urgent = True

    def probes(self) -> list[str]:
        """The servers that this replica has the right to probe, as it tells the others."""
        return sorted(islice(self._held, MOST_TOLD))

    def unsent_decisions(self) -> list[str]:
        """The keys of switches and approvals that the store does not have."""
        return [key for key in self._unsent if key.startswith(("switch/", "pin/"))]

    def next_prober(self, server: str) -> str:
        """The replica whose turn it is to try a server next."""
        return self._turns(server)[0] if self.alone_since is None else self.replica

    def _turns(self, server: str) -> list[str]:
        """The turn follows from the latest evidence: every replica knows it, and it changes with every try."""
        evidence = self.book.get(evidence_key(server))
        order = preferred(server, evidence.stamp if evidence is not None else "", self.peers or [self.replica])
        if evidence is not None and (writer := evidence.writer) in order:
            order.remove(writer)
            order.append(writer)
        return order

    def _ask(self, server: str, at: float) -> None:
        self._wants[server].ask_at = at
        heapq.heappush(self._asks, (at, server))

    def _first_ask(self) -> float:
        while self._asks:
            at, server = self._asks[0]
            want = self._wants.get(server)
            if want is not None and want.ask_at == at:
                return at
            heapq.heappop(self._asks)
        return math.inf

    def _probe(self, server: str) -> str:
        return f"probe/{self._definitions.get(server, '')}/{server}"

    def _ask_at(self, server: str, at: float) -> float:
        order = self._turns(server)
        turn = order.index(self.replica) if self.replica in order else 0
        return at - LEAD_SECONDS if turn == 0 else at + GRACE_SECONDS * min(turn, LAST_TURN)

    # Clients that have connections of their own.

    def find_home(self, key: str, now: float, *, instead_of: str = "") -> str | None:
        """The replica with the connections of a client; None if the store is asked for it, soon.

        ``instead_of`` is a replica that was found dead: this one takes over, unless another was faster. Without the
        store a client is served where it comes in, if its home is not known.
        """
        known = self.homes.holder(key)
        if known and known != instead_of and (known == self.replica or known in self.peers):
            return known
        if not self.is_connected(now):
            return self.replica
        self.homes.ask(key, instead_of=instead_of or known)
        self._urgent = True
        return None

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
        at = self._next_exchange
        if self._urgent:
            at = min(at, self._last_exchange + SOONEST_SECONDS)
        if self.alone_since is None:
            at = min(at, self._first_ask())
        return max(at, self._last_exchange + SOONEST_SECONDS)

    def store_changed(self) -> None:
        """The store says that another replica changed something. From now on it always does, until it fails."""
        self._store_tells = self._urgent = True
        self._last_roster = float("-inf")  # a replica may have left

    def _pause(self, now: float) -> float:
        """How long until the next exchange, if nothing happens here or elsewhere."""
        waits = self._wants or self._held or self._unsent or self._drops or now < self._watching_tickets
        return QUIET_SECONDS if self._store_tells and self.is_settled(now) and not waits else EXCHANGE_SECONDS

    def request(self, now: float, *, chance: float, nonce: str, leaving: bool = False) -> FleetExchange:
        """The next exchange. ``chance`` in [0, 1) spreads the replicas; ``nonce`` names an epoch."""
        if self._first_try is None:
            self._first_try = now
        self._last_exchange = now
        self._next_exchange = now + self._pause(now) * (0.75 + 0.5 * chance)
        self._urgent = False
        joining = self._joined_at is None or now - self._joined_at < JOIN_SECONDS
        watching = joining or now < self._watching_tickets
        roster = leaving or watching or now - self._last_roster >= ROSTER_SECONDS
        if leaving:
            self._releases += [ClaimRelease(held.key, held.token) for held in self._held.values()]
        return FleetExchange(
            replica=self.replica,
            presence=json.dumps({**self.about, "epoch": self._epoch, "seen": self._cursor}, sort_keys=True),
            nonce=nonce,
            epoch=self._epoch,
            cursor=self._cursor,
            records=self._to_send(),
            claims=() if leaving else (*self._probe_claims(now), *self.homes.claims(now)),
            releases=(*self._releases, *self.homes.releases(leaving=leaving)),
            drops=tuple(islice(self._drops.items(), BATCH)),
            roster=roster,
            leaving=leaving,
            sent=self.store_time(now),
        )

    def _to_send(self) -> tuple[FleetRecord, ...]:
        if not self.synced:
            return ()  # the store is read first: most of the copy is there already
        sent: list[FleetRecord] = []
        size = 0
        for key in islice(self._unsent, BATCH):
            record = self.book.get(key)
            if record is not None:
                sent.append(record)
                size += len(record.value)
            if size >= BATCH_BYTES:
                break
        return tuple(sent)

    def _probe_claims(self, now: float) -> list[Claim]:
        due: list[str] = []
        while self._first_ask() <= now and len(due) < BATCH:
            due.append(heapq.heappop(self._asks)[1])
        for server in due:  # it is asked again, unless an answer changes that
            self._ask(server, self._wants[server].ask_at)
        asked = [
            Claim(self._probe(server), self._tokens.get(self._probe(server), 0), max(0.0, want.at - now), PROBE_SECONDS)
            for server, want in ((server, self._wants[server]) for server in dict.fromkeys(due))
        ]
        kept = [
            Claim(held.key, held.token, 0.0, PROBE_SECONDS)
            for held in self._held.values()
            if not held.local and held.until - now < PROBE_SECONDS / 2
        ]
        return asked + kept

    def store_time(self, now: float) -> float:
        """What the clock of the store shows, as far as its last answer tells; 0 if it is not known."""
        return self._store_clock[0] + now - self._store_clock[1] if self._store_clock is not None else 0.0

    def reconnected(self) -> None:
        """The connection to the store is new: it may be another store, or an older copy."""
        self._cursor, self._epoch = 0, ""
        self._store_clock = None
        self.synced = False

    def receive(self, asked: FleetExchange, reply: FleetReply, now: float) -> tuple[Happening, ...]:
        """Take the answer to an exchange that began at the time of its ``request``."""
        began = self._last_exchange
        happened: list[Happening] = []
        emptied = bool(self._epoch) and reply.epoch != self._epoch
        restarted = not self._epoch or emptied or reply.sequence < self._cursor
        if restarted:
            if self._last_good is not None:
                self._expected, self._expected_until = frozenset(self.peers), now + PRESENT_SECONDS
            self.homes.extend_all()
            self._stored, self._arrived = {}, {}
            self._unsent = dict.fromkeys(record.key for record in self.book)
        if self.alone_since is not None or self._last_good is None or restarted:
            happened.append(Connected(emptied=emptied))
            self._found_at = began
        self.alone_since, self._last_good = None, began
        self._store_clock = (reply.now, now) if reply.now else None
        self._epoch = reply.epoch
        self._releases = [release for release in self._releases if release not in asked.releases]
        self.homes.released(asked.releases)
        for key, dropped in asked.drops:
            if self._drops.get(key) == dropped:
                del self._drops[key]
        for record in asked.records:
            self._has(record, reply)
        happened += [event for record in reply.records for event in self._merge(record)]
        for record in reply.records:
            self._arrived[record.key] = (reply.epoch, reply.sequence, record.stamp)
        # Others may wait to hear that something new was seen here.
        news = self._store_tells and reply.cursor != self._cursor
        self._next_exchange = min(self._next_exchange, began + EXCHANGE_SECONDS if news else math.inf)
        self._cursor = reply.cursor
        self.synced = reply.cursor == reply.sequence or (self.synced and not restarted)
        if reply.replicas is not None:
            self._last_roster, self.strangers = began, reply.strangers
            self.peers = {name: _peer(name, text) for name, text in reply.replicas.items()}
        if self.synced and self._joined_at is None:
            self._joined_at = began
        for answer in reply.claims:
            happened += self._answered(answer, began, now)
        self._urgent = self._urgent or bool(self._unsent) or bool(self._drops) or reply.cursor < reply.sequence
        return (*happened, *self.tick(now))

    def _has(self, record: FleetRecord, reply: FleetReply) -> None:
        self._stored[record.key] = max(self._stored.get(record.key, ""), record.stamp)
        known = self.book.get(record.key)
        if known is not None and self._stored[record.key] >= known.stamp:
            self._unsent.pop(record.key, None)
            self._arrived[record.key] = (reply.epoch, reply.sequence, record.stamp)

    def _merge(self, record: FleetRecord) -> list[Happening]:
        self._versions.saw(record.stamp)
        self._stored[record.key] = max(self._stored.get(record.key, ""), record.stamp)
        known = self.book.get(record.key)
        if self.book.merge(record):
            self.expiring.note(record)
            self._drops.pop(record.key, None)
            self._unsent.pop(record.key, None)
            return [RecordLearned(record, known)]
        if known is not None and known.stamp == record.stamp:
            self._unsent.pop(record.key, None)
        else:
            self._unsent[record.key] = None
        return []

    def _answered(self, answer: ClaimAnswer, began: float, now: float) -> list[Happening]:
        if is_home_key(answer.key):
            lost = self.homes.answered(answer, began)
            return [HomeLost(lost)] if lost is not None else []
        server = answer.key.split("/", 2)[2]
        if answer.token < self._tokens.get(answer.key, 0):
            # An older copy of the store: the next claim tells it the token.
            if server in self._wants:
                self._ask(server, now + GRACE_SECONDS)
            return []
        self._tokens[answer.key] = answer.token
        return self._probe_answered(server, answer, began, now)

    def _probe_answered(self, server: str, answer: ClaimAnswer, began: float, now: float) -> list[Happening]:
        held, want = self._held.get(server), self._wants.get(server)
        if answer.key != self._probe(server):
            want = None  # the definition changed meanwhile
        if held is not None:
            if answer.granted and held.key == answer.key:
                held.until = began + PROBE_SECONDS
            return []
        if want is None:
            if answer.granted:
                self._releases.append(ClaimRelease(answer.key, answer.token))
            return []
        if not answer.granted:
            self._ask(server, now + max(answer.wait, SOONEST_SECONDS) + (GRACE_SECONDS if answer.holder else 0.0))
            return []
        until = max(began, want.at) + PROBE_SECONDS
        return [self._grant(server, answer.token, until, local=False)]

    def _grant(self, server: str, token: int, until: float, *, local: bool) -> Granted:
        self._wants.pop(server, None)
        self._held[server] = _Held(self._probe(server), token, until, local)
        return Granted(server, until)

    def failed(self, now: float) -> tuple[Happening, ...]:
        """An exchange failed, or took too long."""
        happened: list[Happening] = []
        self._next_exchange = now + RETRY_SECONDS
        self._store_tells = False
        self._urgent = False
        since = self._last_good if self._last_good is not None else self._first_try
        if since is None:
            since = now
        if self.alone_since is None and now - since >= ALONE_SECONDS:
            self.alone_since = since
            happened.append(Alone(since))
        return (*happened, *self.tick(now))

    def tick(self, now: float) -> tuple[Happening, ...]:
        """What time alone brings: rights that end, and rights that a lone replica gives itself."""
        happened: list[Happening] = []
        for server, held in list(self._held.items()):
            if now < held.until:
                continue
            if self._using(server):
                held.until = now + PROBE_SECONDS  # a try is under way; without the store it cannot be extended there
            else:
                self.release_probe(server, 0.0)
                happened.append(Unused(server))
        if self.alone_since is not None or now >= self._next_patience:
            self._next_patience = now + PATIENCE_CHECK_SECONDS
            patience = 0.0 if self.alone_since is not None else PATIENCE_SECONDS
            for server, want in list(self._wants.items()):
                if want.at <= now and now - max(want.at, want.since) >= patience:
                    happened.append(self._grant(server, 0, now + PROBE_SECONDS, local=True))
        return tuple(happened)

    def next_tick(self) -> float | None:
        """When ``tick`` has something to do at the latest, if no exchange succeeds."""
        grants = [want.at for want in self._wants.values()] if self.alone_since is not None else []
        return min([*grants, *(held.until for held in self._held.values())], default=None)


@lru_cache(maxsize=1_024)
def _peer(name: str, text: str) -> Peer:
    try:
        about = json.loads(text)
        return Peer(name, (str(about.pop("epoch", "")), int(about.pop("seen", 0))), about)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return Peer(name)
