"""The right to probe a server that is down: one replica tries, and all learn (FLEET-2, FLEET-4).

A slot that has to try again needs the right at a certain time. It is a claim in the store with an expiry. Whose turn it
is follows from the latest evidence: every replica knows it, and it changes with every try. The replica whose turn it is
claims the right a moment before it is due; the others ask a moment after, in case it does not come.

What must never happen: a server that no replica tries. So a right that was granted and not used ends by itself, a
replica without a store grants the right to itself, and a store that refuses it for a minute is not believed. Two
replicas that try at the same time cost a dial and nothing else: no rule here pays for excluding that.

A want becomes a right by one of three ways: the store grants it (``answered``), the replica is alone, or its patience
ends (both ``tick``). A right ends when it was used (``release``) or when its time is over. While a try is under way it
is extended, in the store as long as that answers: a cold start may take longer than a right lasts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from holdfast.core.replicas.agreement import preferred
from holdfast.core.replicas.store import BATCH, Claim, ClaimAnswer, ClaimRelease, RecordBook, record_key

__all__ = ["Granted", "ProbeClaims", "ProbeRight", "Unused"]

SOONEST_SECONDS = 0.02
"""Between two questions that cannot wait."""
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
MOST_TOLD = 100
"""Servers that a replica names in its presence, which travels with every exchange."""


@dataclass(frozen=True, slots=True)
class Granted:
    """This replica has the right to probe the server until that time."""

    server: str
    until: float


@dataclass(frozen=True, slots=True)
class Unused:
    """The right to probe ended, and was not used."""

    server: str


ProbeRight: TypeAlias = Granted | Unused


@dataclass(slots=True)
class _Want:
    key: str
    at: float
    round: int
    ask_at: float
    since: float


@dataclass(slots=True)
class _Held:
    key: str
    until: float
    local: bool
    """Granted by this replica to itself: the store does not know it."""


class ProbeClaims:
    """The rights that one replica wants and has.

    ``using`` says whether a try of a server is under way here: then its right does not end. ``replicas`` are those that
    are present. ``hurry`` is called when the store has to be told something soon.
    """

    def __init__(
        self,
        replica: str,
        book: RecordBook,
        using: Callable[[str], bool],
        *,
        replicas: Callable[[], Collection[str]],
        hurry: Callable[[], None],
    ) -> None:
        self._replica = replica
        self._book = book
        self._using = using
        self._replicas = replicas
        self._hurry = hurry
        self._wants: dict[str, _Want] = {}
        self._held: dict[str, _Held] = {}
        self.to_release: list[ClaimRelease] = []
        """What the store is to take back."""

    def want(self, server: str, at: float | None, number: int, now: float, *, definition: str = "") -> None:
        """The right is needed at that time, or not any more. Each definition of a server has its own."""
        if at is None:
            self._wants.pop(server, None)
            return
        known = self._wants.get(server)
        since = max(now, at)
        if known is not None and known.round == number:
            since = min(since, known.since)  # a turn that moved to an earlier time waits from then on
        # By the evidence of now: each try writes other evidence, and moves the turn on.
        turn = self.turns(server).index(self._replica)
        ask_at = at - LEAD_SECONDS if turn == 0 else at + GRACE_SECONDS * min(turn, LAST_TURN)
        self._wants[server] = _Want(f"probe/{definition}/{server}", at, number, ask_at, since)

    def release(self, server: str, delay: float) -> None:
        """The right was used, or is not needed. The store is told soon, if it gave the right."""
        held = self._held.pop(server, None)
        if held is not None and not held.local:
            # The next one claims it before it is due.
            self.to_release.append(ClaimRelease(held.key, max(0.0, delay - LEAD_SECONDS)))
            self._hurry()

    def told(self) -> list[str]:
        """The servers that this replica has the right to probe, as it tells the others."""
        return sorted(islice(self._held, MOST_TOLD))

    def turns(self, server: str) -> list[str]:
        """The replicas in the order in which they may try a server."""
        evidence = self._book.get(record_key("evidence", server))
        # This replica is one of them, also before the store has heard of it.
        present = {*self._replicas(), self._replica}
        order = preferred(server, evidence.stamp if evidence is not None else "", present)
        # The one that tried last tries last: what it could not reach, another may.
        if evidence is not None and (writer := evidence.writer) in order:
            order.remove(writer)
            order.append(writer)
        return order

    def first_ask(self) -> float:
        """When the store is to be asked for the next right."""
        return min((want.ask_at for want in self._wants.values()), default=math.inf)

    def claims(self, now: float) -> list[Claim]:
        """What is asked of the store now."""
        due = (want for want in self._wants.values() if want.ask_at <= now)
        # Each is asked again, unless an answer changes that.
        asked = [
            Claim(want.key, max(0.0, want.at - now) + PROBE_SECONDS)
            for want in heapq.nsmallest(BATCH, due, key=lambda want: want.ask_at)
        ]
        # Only a right that is in use is kept: one that waits for a call which does not come would shut out all others.
        kept = [
            Claim(held.key, PROBE_SECONDS, extends=True)
            for server, held in self._held.items()
            if not held.local and held.until - now < PROBE_SECONDS / 2 and self._using(server)
        ]
        return asked + kept

    def leave(self) -> None:
        """This replica leaves: it gives everything back."""
        self.to_release += [ClaimRelease(held.key) for held in self._held.values()]

    def answered(self, answer: ClaimAnswer, began: float, now: float) -> list[ProbeRight]:
        """Take the store's answer to a claim of an exchange that began at that time."""
        server = answer.key.split("/", 2)[2]
        held, want = self._held.get(server), self._wants.get(server)
        if held is not None and held.key == answer.key:
            if answer.granted:
                held.until = began + PROBE_SECONDS
            return []
        # The definition may have changed since it was asked: then this is the right to another one.
        if held is not None or want is None or want.key != answer.key:
            if answer.granted:
                self.to_release.append(ClaimRelease(answer.key))  # it is not needed any more: let another have it
            return []
        if not answer.granted:
            # A holder that uses it gives it back at the end of the wait; the grace lets that release come first.
            want.ask_at = now + max(answer.wait, SOONEST_SECONDS) + (GRACE_SECONDS if answer.holder else 0.0)
            return []
        return [self._grant(server, want, max(began, want.at) + PROBE_SECONDS, local=False)]

    def tick(self, now: float, *, alone: bool) -> list[ProbeRight]:
        """What time alone brings: rights that end, and rights that a lone replica gives itself."""
        happened: list[ProbeRight] = []
        for server, held in list(self._held.items()):
            if now < held.until:
                continue
            if self._using(server):
                held.until = now + PROBE_SECONDS  # a try is under way; without the store it cannot be extended there
            else:
                # Given back at once and without a delay: no try was made, so the next replica need not wait for
                # anything.
                self.release(server, 0.0)
                happened.append(Unused(server))
        patience = 0.0 if alone else PATIENCE_SECONDS
        for server, want in list(self._wants.items()):
            if now - max(want.at, want.since) >= patience:
                happened.append(self._grant(server, want, now + PROBE_SECONDS, local=True))
        return happened

    def next_tick(self, *, alone: bool) -> float | None:
        """When ``tick`` has something to do at the latest, if no exchange succeeds."""
        grants = [want.at for want in self._wants.values()] if alone else []
        return min([*grants, *(held.until for held in self._held.values())], default=None)

    def _grant(self, server: str, want: _Want, until: float, *, local: bool) -> Granted:
        del self._wants[server]
        self._held[server] = _Held(want.key, until, local)
        return Granted(server, until)

    def __repr__(self) -> str:
        return f"<ProbeClaims of {self._replica!r} wants={len(self._wants)} held={len(self._held)}>"
