"""Servers that live on one replica: which replica runs a server, from when, and until when.

A replica runs such a server while it has the lease: a claim of the store with a token, renewed with every exchange.
The rendezvous hash decides who asks first, so that servers which start together spread over the replicas. A lease
never moves while its holder renews it: a replica that joins takes nothing away.

At most one replica runs the server. The store counts a lease from the moment that it gives it, the holder from the
moment that it asked, which is earlier, and the holder stops ``STOP_SECONDS`` before the end. Only spans of time are
compared, never two clocks.

Without the store, a lease would end for a reason that has nothing to do with the server. So the other replicas can
prolong it. Each of them promises, while it does not reach the store either, to claim nothing for a while. The holder
goes on as long as every replica that it knows promises. If one of them reaches the store, it promises nothing, and the
lease ends: that replica, and not the store, tells that the holder is cut off. A holder that knows no other replica goes
on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, KeysView
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2s
from typing import TypeAlias

from holdfast.core.fleet.store import Claim, ClaimAnswer, ClaimRelease

__all__ = ["CHILD_SECONDS", "HomeMoved", "LeaseGained", "LeaseLost", "PlaceHappening", "Placement", "preferred"]

LEASE_SECONDS = 8.0
"""How long the store keeps a lease after its last renewal."""
STOP_SECONDS = 2.5
"""The holder stops this long before the end of its lease: calls are refused at once, its child gets time to end."""
KILL_SECONDS = 1.0
"""A child that is still there this long before the end of the lease is killed, even if its hub is stopped."""
CHILD_SECONDS = STOP_SECONDS - KILL_SECONDS
"""How long a child has to end after its hub stopped it."""
RENEW_SECONDS = 1.0
"""How often a holder renews its lease."""
ASK_SECONDS = 0.25
"""How often the others ask for it: a lease that was given back is taken soon."""
JOIN_SECONDS = 0.75
"""A replica that just joined asks for nothing: those that start together must know each other first."""
TURN_SECONDS = 0.5
"""A replica whose turn it is not asks this much later, for each replica before it."""
LAST_TURN = 3
"""No replica waits for more than this many others."""
PROMISE_SECONDS = 6.0
"""How long a replica that promised claims nothing."""
LOST_SECONDS = 2.0
"""After so long without an exchange a replica counts as cut off from the store."""
PROMISE_EVERY_SECONDS = 1.0
"""How often a holder asks for promises."""


@dataclass(frozen=True, slots=True)
class LeaseGained:
    """This replica runs the server now, with this token."""

    server: str
    token: int


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """This replica must not run the server any more."""

    server: str


@dataclass(frozen=True, slots=True)
class HomeMoved:
    """Another replica runs the server now; no replica if ``home`` is empty."""

    server: str
    home: str


PlaceHappening: TypeAlias = LeaseGained | LeaseLost | HomeMoved


@dataclass(slots=True)
class _Place:
    token: int = 0
    """The token of the lease that this replica has; 0 without a lease."""
    until: float = 0.0
    """When this replica stops, unless it renews."""
    home: str = ""
    known: int = 0
    """The latest token of any replica."""
    ask_at: float = 0.0
    turn_waited: bool = False
    promised_until: float = 0.0
    """This replica promised to claim nothing before."""
    promises: dict[str, float] = field(default_factory=dict)
    """Until when this replica may go on, by the replica that promised."""
    prolonged: float = 0.0
    """When this replica stops, because all others promised."""


class Placement:
    """The leases of one replica, and what it knows about those of others."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._places: dict[str, _Place] = {}
        self.witnesses: frozenset[str] = frozenset()
        """The other replicas of the last roster: all of them must promise."""
        self.take_from = 0.0
        """Before this time nothing is taken over: a holder may not have found the store yet."""
        self._asked: frozenset[str] = frozenset()
        """The servers whose claims are under way: a promise would come too late."""
        self._promises_at = 0.0
        self.retired = False
        """Whether this replica leaves: it takes nothing any more."""

    @property
    def servers(self) -> KeysView[str]:
        """The servers that live on one replica, as they are at each look."""
        return self._places.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def place(self, server: str, *, wanted: bool) -> ClaimRelease | None:
        """A server that lives on one replica is configured, or not any more."""
        if wanted:
            self._places.setdefault(server, _Place())
            return None
        place = self._places.pop(server, None)
        return ClaimRelease(_key(server), place.token) if place is not None and place.token else None

    def home_of(self, server: str) -> str:
        """The replica that runs the server, as far as it is known; empty if it is not."""
        place = self._places.get(server)
        return place.home if place is not None else ""

    def lease_of(self, server: str, now: float) -> int:
        """The token with which this replica may run the server now; 0 if it may not. Asked before every use."""
        place = self._places.get(server)
        return place.token if place is not None and place.token and now < self._until(place) else 0

    def is_over(self, server: str, now: float) -> bool:
        """Whether the lease of this replica has ended, and ``tick`` has not said so yet."""
        place = self._places.get(server)
        return place is not None and place.token > 0 and now >= self._until(place)

    def stops_at(self, server: str) -> float:
        """When the lease of this replica ends, unless it is renewed or prolonged."""
        place = self._places.get(server)
        return self._until(place) if place is not None and place.token else 0.0

    def token_of(self, server: str) -> int:
        """The latest token of the server's home that this replica knows."""
        place = self._places.get(server)
        return place.known if place is not None else 0

    def _until(self, place: _Place) -> float:
        return max(place.until, place.prolonged)

    # Claims.

    def claims(self, now: float, *, replicas: Collection[str], may_take: bool) -> list[Claim]:
        """What to ask the store for: renewals, and leases that may be free."""
        asked = [server for server, place in self._places.items() if self._asks(server, place, now, replicas, may_take)]
        self._asked = frozenset(server for server in asked if self._ttl(server, now))
        return [Claim(_key(server), self._places[server].known, 0.0, self._ttl(server, now)) for server in asked]

    def _ttl(self, server: str, now: float) -> float:
        """A replica that leaves renews what it has, and only asks who has the rest."""
        return LEASE_SECONDS if not self.retired or self.lease_of(server, now) else 0.0

    def _asks(self, server: str, place: _Place, now: float, replicas: Collection[str], may_take: bool) -> bool:
        if now < place.ask_at:
            return False
        if self.lease_of(server, now):
            return True
        if self.retired:
            return True  # it asks who has it, and takes nothing
        if not may_take or now < self.take_from or now < place.promised_until:
            return False
        turn = self._turn(server, replicas)
        if not place.home and turn and not place.turn_waited:
            place.turn_waited, place.ask_at = True, now + TURN_SECONDS * turn
            return False
        return True

    def _turn(self, server: str, replicas: Collection[str]) -> int:
        order = preferred(server, "", replicas)
        return min(order.index(self._replica), LAST_TURN) if self._replica in order else 0

    def settled(self) -> None:
        """The exchange that was under way has ended."""
        self._asked = frozenset()

    def answered(
        self, answer: ClaimAnswer, began: float, now: float, *, replicas: Collection[str]
    ) -> tuple[list[PlaceHappening], ClaimRelease | None]:
        """The store's answer to a claim of an exchange that began at that time."""
        server = answer.key.partition("/")[2]
        place = self._places.get(server)
        if place is None:
            return [], ClaimRelease(answer.key, answer.token) if answer.granted else None
        if answer.token < place.known:
            place.ask_at = now + ASK_SECONDS  # an older copy of the store: the next claim tells it the token
            return [], None
        place.known = answer.token
        before, place.home = place.home, answer.holder
        if answer.granted:
            return self._granted(server, place, answer.token, began, now), None
        place.ask_at = began + ASK_SECONDS
        if answer.holder and answer.holder not in replicas:
            # Its holder is gone: the replicas ask in their order, the first one as soon as the lease is over.
            place.ask_at = began + max(ASK_SECONDS, answer.wait) + TURN_SECONDS * self._turn(server, replicas)
        lost, place.token = place.token, 0
        moved: list[PlaceHappening] = [HomeMoved(server, place.home)] if place.home != before else []
        return [*([LeaseLost(server)] if lost else []), *moved], None

    def heard(self, server: str, home: str, token: int) -> None:
        """Another replica says which one runs the server: this one does not reach the store. The later token wins."""
        place = self._places.get(server)
        if place is not None and not place.token and home not in ("", self._replica) and token >= place.known:
            place.home, place.known = home, token

    def _granted(self, server: str, place: _Place, token: int, began: float, now: float) -> list[PlaceHappening]:
        held = self.lease_of(server, now)
        had = place.token
        place.token, place.turn_waited, place.promises, place.prolonged = token, False, {}, 0.0
        place.until, place.ask_at = began + LEASE_SECONDS - STOP_SECONDS, began + RENEW_SECONDS
        if now >= place.until:
            place.token = 0  # the answer took too long
            return [LeaseLost(server)] if had else []
        if held:
            return []  # also with another token: no replica had the lease in between
        return [*([LeaseLost(server)] if had else []), LeaseGained(server, token)]

    def slept(self, seconds: float) -> None:
        """The machine was suspended for so long, which the clock of this replica does not show."""
        for place in self._places.values():
            place.until -= seconds
            place.prolonged -= seconds

    def tick(self, now: float) -> list[PlaceHappening]:
        """Leases that end by time alone."""
        happened: list[PlaceHappening] = []
        for server, place in self._places.items():
            if place.token and now >= self._until(place):
                place.token, place.home, place.promises, place.prolonged = 0, "", {}, 0.0
                happened.append(LeaseLost(server))
        return happened

    def next_tick(self) -> float | None:
        """When ``tick`` has something to do at the latest."""
        return min((self._until(place) for place in self._places.values() if place.token), default=None)

    def release(self, server: str) -> ClaimRelease | None:
        """Give one lease back: the server does not run here any more."""
        place = self._places.get(server)
        if place is None or not place.token:
            return None
        token, place.token, place.home = place.token, 0, ""
        return ClaimRelease(_key(server), token)

    def releases(self) -> list[ClaimRelease]:
        """Give back every lease: the replica leaves, and runs nothing any more."""
        return [ClaimRelease(_key(server), place.token) for server, place in self._places.items() if place.token]

    # Promises, while the store does not answer.

    def wants_promises(self, now: float, last_good: float | None) -> dict[str, int]:
        """The servers, with their tokens, for which every witness should be asked for a promise now."""
        held = {server: place.token for server, place in self._places.items() if self.lease_of(server, now)}
        if not held or last_good is None or now < max(last_good + LOST_SECONDS, self._promises_at):
            return {}
        self._promises_at = now + PROMISE_EVERY_SECONDS
        if not self.witnesses:
            for server in held:
                self._places[server].prolonged = now + PROMISE_SECONDS - STOP_SECONDS
            return {}
        return held

    def promises_due(self, last_good: float | None) -> float | None:
        """When ``wants_promises`` has something to say, if no exchange succeeds."""
        if last_good is None or not any(place.token for place in self._places.values()):
            return None
        return max(last_good + LOST_SECONDS, self._promises_at)

    def promised(self, peer: str, server: str, token: int, asked_at: float, seconds: float) -> None:
        """A replica promised to claim nothing for so long; ``asked_at`` is when it was asked."""
        place = self._places.get(server)
        if place is not None and place.token == token and seconds > STOP_SECONDS and self.witnesses:
            place.promises[peer] = max(place.promises.get(peer, 0.0), asked_at + seconds - STOP_SECONDS)
            place.prolonged = self._prolonged(place)

    def _prolonged(self, place: _Place) -> float:
        return max(place.prolonged, min(place.promises.get(one, 0.0) for one in self.witnesses))

    def promise(self, server: str, token: int, now: float, last_good: float | None) -> float:
        """Promise a holder to claim nothing for so many seconds; 0 if this replica does not."""
        place = self._places.get(server)
        if place is None:
            return PROMISE_SECONDS  # it is not configured here
        reaches_store = last_good is not None and now < last_good + LOST_SECONDS
        if reaches_store or server in self._asked or place.token or place.known > token:
            return 0.0
        place.promised_until = max(place.promised_until, now + PROMISE_SECONDS)
        return PROMISE_SECONDS


def preferred(server: str, turn: str, replicas: Collection[str]) -> list[str]:
    """The replicas in the order of their turn: a rendezvous hash, so that every replica finds the same order."""
    return list(_preferred(server, turn, frozenset(replicas)))


@lru_cache(maxsize=4_096)
def _preferred(server: str, turn: str, replicas: frozenset[str]) -> tuple[str, ...]:
    def weight(replica: str) -> bytes:
        return blake2s(f"{server}\0{turn}\0{replica}".encode(), digest_size=8).digest()

    return tuple(sorted(replicas, key=lambda replica: (weight(replica), replica)))


def _key(server: str) -> str:
    return f"run/{server}"
