"""What replicas share, and what their store does, as pure code: records with stamps, and one operation, ``exchange``.

The store of workers and the simulation run this class; the store in Redis does the same with Redis's own primitives. A
store keeps records, the presence of replicas, and claims. It judges no content: a record with a greater stamp replaces
one with a smaller stamp, and every write gets the next number of a sequence, by which a replica reads what is new.

What can happen to a store, and what it means here:
- It is emptied, or one of its parts is: a new *epoch* begins. A replica that sees another epoch reads all, and sends
  its whole copy again.
- It is replaced by an older copy: its sequence is behind what a replica has seen, which means the same.

A claim is the right to probe a server, which one replica has for a time. It is no lock that anything depends on: two
replicas that have it for a moment cost a dial. So it has no token and no witness, as ``SET NX PX`` has none.

Of two versions of one record, the greater stamp wins, everywhere. A stamp is a text that sorts: a rank, a number that
never decreases, and the writer. The number is the wall clock in milliseconds, or one more than the greatest number
seen, if that is more. So a clock that is slow or goes backwards, an emptied store and an older copy of it never make a
new decision look old.

Most records stay: switches, approvals, evidence, listings. Evidence names the definition of its server: replicas with
another definition, in the middle of a change of the configuration, learn nothing from it. The state of sessions, which
ones were ended, and calls that wait for a person are records that end by themselves. Each says in its value when it is
over (``until``, wall clock). Their number is bounded: those that end first give way.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal
from urllib.parse import quote, unquote

from holdfast.core.lifecycle.events import Event, PeerRecovered, PeerTripped

__all__ = [
    "BATCH",
    "BATCH_BYTES",
    "PRESENT_SECONDS",
    "Claim",
    "ClaimAnswer",
    "ClaimRelease",
    "ExpiringKeys",
    "FleetExchange",
    "FleetRecord",
    "FleetReply",
    "RecordBook",
    "SharedStore",
    "VersionClock",
    "evidence_event",
    "evidence_value",
    "expires_at",
    "first_stamp",
    "is_stamp",
    "keyed_tool",
    "record_key",
    "record_value",
    "stamp",
]

_LARGEST = 2**63
_RANK_FIRST, _RANK_DECIDED = "0", "1"
_STAMP = re.compile(r"[01][0-9a-f]{16}\.[!-~]+")


@dataclass(frozen=True, slots=True)
class FleetRecord:
    """One fact that replicas share: ``switch/github``, ``pin/github/search``, ``evidence/github``."""

    key: str
    stamp: str
    value: str

    @property
    def writer(self) -> str:
        """The replica that wrote it."""
        return self.stamp.partition(".")[2]


def stamp(number: int, writer: str) -> str:
    """The stamp of a decision: the latest wins."""
    return f"{_RANK_DECIDED}{number:016x}.{writer}"


def first_stamp(number: int, writer: str) -> str:
    """The stamp of a first sight: the earliest wins, and every decision wins over it."""
    return f"{_RANK_FIRST}{_LARGEST - number:016x}.{writer}"


def is_stamp(text: str) -> bool:
    """Whether a text is a stamp: another program may have written any text into a store."""
    return _STAMP.fullmatch(text) is not None


class VersionClock:
    """Numbers that never decrease in one replica, and are greater than every number that it saw."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, wall: float) -> int:
        """The next number; ``wall`` is the wall clock in seconds."""
        self._last = max(self._last + 1, int(wall * 1000))
        return self._last

    def saw(self, text: str) -> None:
        """Note the stamp of another replica."""
        number = int(text[1:17], 16)
        # Two ranks count in opposite directions: of first sights the earliest is to win, so theirs counts down.
        self._last = max(self._last, number if text[:1] == _RANK_DECIDED else _LARGEST - number)


class RecordBook(dict[str, FleetRecord]):
    """One replica's copy of all records, by their keys. It outlives the store."""

    def merge(self, record: FleetRecord) -> bool:
        """Take a record; False if the copy has it already, or has a later one."""
        known = self.get(record.key)
        if known is not None and known.stamp >= record.stamp:
            return False
        self[record.key] = record
        return True


_STATUSES = frozenset({"transient", "permanent", "denied"})
LONGEST_REASON = 500
"""Characters of a reason that are shared."""
LONGEST_WAIT = 600.0
"""Seconds. A peer may postpone the next try by this much; the slowest schedule of a hub is faster."""


def record_key(kind: Literal["switch", "pin", "evidence", "listing"], server: str, *tool: str) -> str:
    """The key of what replicas share of a server.

    ``switch``: whether it is disabled. ``pin``: the approved version of one of its tools. ``evidence``: the latest
    evidence about it. ``listing``: the hash of its listing.
    """
    return "/".join((kind, *(quote(name, safe="", errors="surrogatepass") for name in (server, *tool))))


def keyed_tool(key: str) -> tuple[str, str]:
    """The server and the tool of a ``record_key``; the tool is empty where the key has none."""
    _, server, *tool = key.split("/")
    return unquote(server), unquote(tool[0], errors="surrogatepass") if tool else ""


def record_value(record: FleetRecord) -> Mapping[str, Any]:
    """The value of a record; empty if it is not an object."""
    try:
        read = json.loads(record.value)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def evidence_value(event: Event, definition: str) -> dict[str, object]:
    """What is written about an event."""
    if isinstance(event, PeerTripped):
        told: dict[str, object] = {
            "up": False,
            "status": event.status,
            "reason": event.reason[:LONGEST_REASON],
            "attempts": event.attempts,
            "retry_in": round(event.retry_in, 3),
            "parked": event.parked,
            "unreachable": event.unreachable,
            "answers": event.answers,
            "by_calls": event.by_calls,
        }
        return {"definition": definition, **told}
    return {"definition": definition, "up": True}


def evidence_event(record: FleetRecord, definition: str) -> Event | None:
    """The event that a peer's evidence is for the machine; None if it concerns another definition."""
    told = record_value(record)
    if told.get("definition") != definition:
        return None
    if told.get("up") is True:
        return PeerRecovered()
    try:
        status = told["status"]
        return PeerTripped(
            status=status if status in _STATUSES else "transient",
            reason=str(told["reason"])[:LONGEST_REASON],
            attempts=max(0, int(told["attempts"])),
            retry_in=min(max(0.0, float(told["retry_in"])), LONGEST_WAIT),
            parked=told["parked"] is True,
            unreachable=told["unreachable"] is True,
            answers=told["answers"] is True,
            by_calls=told["by_calls"] is True,
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


EXPIRING_KINDS = frozenset({"session", "ended", "question", "verdict"})
MOST_EXPIRING = 100_000
"""Records in one fleet. Each is a few hundred bytes in the store and in every replica."""


def expires_at(record: FleetRecord) -> float | None:
    """When a record is over; None for one that stays."""
    if record.key.partition("/")[0] not in EXPIRING_KINDS:
        return None
    try:
        return float(json.loads(record.value)["until"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0.0


class ExpiringKeys:
    """The keys of records that end, in the order of their ends."""

    def __init__(self, most: int = MOST_EXPIRING) -> None:
        self._most = most
        self._until: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []
        self.crowded = False
        """Whether records gave way before their time in this run."""

    def __len__(self) -> int:
        return len(self._until)

    def note(self, record: FleetRecord) -> None:
        """A record was written, here or elsewhere."""
        until = expires_at(record)
        if until is None or self._until.get(record.key) == until:
            return
        self._until[record.key] = until
        heapq.heappush(self._order, (until, record.key))
        if len(self._order) > 2 * len(self._until) + 100:  # most of them are of earlier versions
            self._order = [(end, key) for key, end in self._until.items()]
            heapq.heapify(self._order)

    def take_over(self, wall: float) -> list[str]:
        """The keys whose time is over, or that give way; they are forgotten here."""
        found = []
        while self._order:
            until, key = self._order[0]
            if until > wall and len(self._until) <= self._most:
                break
            heapq.heappop(self._order)
            if self._until.get(key) == until:  # else it is of an earlier version
                self.crowded = self.crowded or until > wall
                del self._until[key]
                found.append(key)
        return found


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
            # Taken out first: a dict keeps the place of a key that is only replaced, and the order is that of the
            # numbers.
            self.records.pop(record.key, None)
            self.records[record.key] = (self.sequence, record)

    def _unseen(self, since: int) -> tuple[list[tuple[int, FleetRecord]], bool]:
        """What has a later number, oldest first, as much as one exchange carries; and whether that is all."""
        # From the newest back: an exchange that has seen all but one record looks at two of a hundred thousand.
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
