"""What replicas agree on beside the records: the configuration, the time of day, and whose a request is.

Configuration: each replica tells the others digests of what it runs, one for each key that it has: while a key is
replaced, two replicas have one in common. Replicas may differ for a while: a roll replaces one after the other, and a
file reaches machines at different times. So a difference is reported when it stays.

Each replica tells how far its clock is ahead of that of the store. The median, with the store as one of them, is right
as long as most of these clocks are. Between two answers of the store a replica counts the seconds itself, so that a
clock which jumps changes nothing. A clock that is wrong is named, and used for nothing that replicas share.

A question, an event and a pending call belong to the replica that made them, so their ids carry its tag. A tag opens
nothing: it says where to ask, and the replica that it names verifies the session and the principal.

A client that has connections of its own has a home: the replica with these connections. No store decides it, so it is
the same with and without one: it is the replica that the client's session names, while that one is present; else a
rendezvous hash over the replicas last known. Two replicas that know the same others find the same home. One that gets
a request for a client whose home it is not, by what it knows itself, refuses it: so a state never alternates between
two, also while the replicas learn that one has come or left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2s
from statistics import median_low

__all__ = [
    "LONGEST_ROLL_SECONDS",
    "SETTLED_SECONDS",
    "SKEW_SECONDS",
    "ConfigAgreement",
    "FleetClock",
    "home_of",
    "preferred",
    "question_number",
    "replica_tag",
    "replicas_with_tag",
    "tag_of_question",
]

SETTLED_SECONDS = 180.0
"""How long no replica may come, go or change before a difference counts.

The next step of a roll comes sooner: a pod of the chart drains for 30 s and starts in seconds, a kubelet brings a
changed ConfigMap within two minutes, and a hub reads a changed file within a second.
"""

LONGEST_ROLL_SECONDS = 900.0
"""A difference that is older counts, also if replicas still come and go: one of them may start again and again."""


class ConfigAgreement:
    """What the replicas that are present run, and since when they differ."""

    def __init__(self) -> None:
        self.groups: tuple[tuple[str, ...], ...] = ()
        """The replicas by configuration, largest group first, if they differ for long; else empty."""
        self._seen: dict[str, frozenset[str]] = {}
        self._changed_at = 0.0
        self._differ_since: float | None = None

    def note(self, told: Mapping[str, Collection[str]], now: float) -> bool:
        """Take what the replicas tell; those without a digest do not count. True if a difference counts from now on."""
        seen = {name: frozenset(digests) for name, digests in told.items() if digests}
        if seen != self._seen:
            self._seen, self._changed_at = seen, now
        groups = _grouped(seen)
        if len(groups) < 2:
            self.groups, self._differ_since = (), None
            return False
        if self._differ_since is None:
            self._differ_since = now
        settled = now - self._changed_at >= SETTLED_SECONDS or now - self._differ_since >= LONGEST_ROLL_SECONDS
        if not settled and not self.groups:
            return False
        begins, self.groups = not self.groups, groups
        return begins


def _grouped(seen: Mapping[str, frozenset[str]]) -> tuple[tuple[str, ...], ...]:
    """The replicas that have a digest in common, also through others."""
    groups: list[tuple[frozenset[str], list[str]]] = []
    for name in sorted(seen):
        digests, names = seen[name], [name]
        apart = []
        for known, members in groups:
            if known & digests:
                digests, names = known | digests, [*members, *names]
            else:
                apart.append((known, members))
        groups = [*apart, (digests, names)]
    return tuple(sorted((tuple(sorted(names)) for _, names in groups), key=lambda names: (-len(names), names)))


SKEW_SECONDS = 30.0
"""A clock that differs by more is wrong."""

MOST_NAMED = 3
"""Replicas that a sentence names."""


FARTHEST = 1e12
"""Seconds. No clock is so far ahead; an integer of a store may be larger than any float."""


class FleetClock:
    """The time of the fleet, as one replica knows it."""

    def __init__(self) -> None:
        self.ahead: Mapping[str, float] = {}
        """How many seconds the clock of each replica is ahead of the fleet's."""
        self._shown: tuple[float, float] | None = None
        """The time of the fleet, and what counted the seconds then."""

    def note(self, store: float, told: Mapping[str, object], count: float) -> None:
        """The store shows this time now; ``told`` is how far each replica's clock is ahead of it.

        Of two halves that disagree the earlier time counts: a session that lives too long is better than one that ends.
        """
        known = {name: float(one) for name, one in told.items() if isinstance(one, int | float) and abs(one) < FARTHEST}
        agreed = median_low([0.0, *known.values()])
        self._shown = store + agreed, count
        self.ahead = {name: one - agreed for name, one in known.items()}

    def time(self, wall: float, count: float) -> float:
        """The time of the fleet; that of this machine as long as no store told another one."""
        return wall if self._shown is None else self._shown[0] + count - self._shown[1]

    @property
    def wrong(self) -> dict[str, float]:
        """The replicas whose clock is wrong, and how many seconds it is ahead."""
        return {name: one for name, one in sorted(self.ahead.items()) if abs(one) > SKEW_SECONDS}

    @property
    def notice(self) -> str:
        """What the operator should know about clocks that are wrong; empty if none is."""
        wrong = [f"{name} is {_apart(seconds)} the fleet's" for name, seconds in self.wrong.items()]
        more = f", and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        if not wrong:
            return ""
        return (
            f"the clock of {', that of '.join(wrong[:MOST_NAMED])}{more}: correct it. Sessions, switches and approvals "
            "go by the time of the fleet; tokens and certificates are judged by the clock of each machine"
        )


def _apart(seconds: float) -> str:
    return f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'}"


_TAG_DIGITS = 5
_QUESTION_BITS = 32
"""Bits of a question's number below the tag. Both fit a number that JavaScript reads exactly (53 bits)."""


def home_of(client: str, named: str, replicas: Collection[str]) -> str:
    """The home of a client among these replicas: the one that its session names, or the first by a rendezvous hash."""
    return named if named in replicas else preferred(client, "home", replicas)[0]


def preferred(subject: str, turn: str, replicas: Collection[str]) -> list[str]:
    """The replicas in the order of their turn: a rendezvous hash, so that every replica finds the same order.

    A replica that leaves changes the first one only for what it was the first one of.
    """
    return list(_preferred(subject, turn, frozenset(replicas)))


@lru_cache(maxsize=4_096)
def _preferred(subject: str, turn: str, replicas: frozenset[str]) -> tuple[str, ...]:
    weights = {one: blake2s(f"{subject}\0{turn}\0{one}".encode(), digest_size=8).digest() for one in replicas}
    return tuple(sorted(replicas, key=lambda one: (weights[one], one)))


def replica_tag(replica: str) -> str:
    """Five hex digits that name a replica in ids. Two replicas may have the same ones: then both are asked."""
    return blake2s(replica.encode(), digest_size=8, person=b"tag").hexdigest()[:_TAG_DIGITS]


def replicas_with_tag(tag: str, replicas: Iterable[str]) -> list[str]:
    """The replicas that a tag may name."""
    return [replica for replica in replicas if replica_tag(replica) == tag]


def question_number(tag: str, number: int) -> int:
    """The id of a question that a replica asks a client."""
    return (int(tag, 16) << _QUESTION_BITS) | (number & ((1 << _QUESTION_BITS) - 1))


def tag_of_question(number: int) -> str:
    """The tag in the id of a question; empty if it has none."""
    top = number >> _QUESTION_BITS
    return f"{top:0{_TAG_DIGITS}x}" if 0 <= top < 16**_TAG_DIGITS else ""
