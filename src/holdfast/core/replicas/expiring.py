"""Records that end by themselves: the state of sessions, and which sessions were ended.

Each says in its value when it is over (``until``, wall clock). Their number is bounded: those that end first give way.
"""

from __future__ import annotations

import heapq
import json

from holdfast.core.replicas.records import FleetRecord

__all__ = ["EXPIRING_KINDS", "ExpiringKeys", "expires_at"]

EXPIRING_KINDS = frozenset({"session", "ended"})
MOST_EXPIRING = 100_000
"""Records in one fleet. Each is a few hundred bytes in the store and in every replica."""


def expires_at(record: FleetRecord) -> float | None:
    """When a record is over; None for one that stays."""
    if record.key.partition("/")[0] not in EXPIRING_KINDS:
        return None
    try:
        return float(json.loads(record.value)["until"])
    except (ValueError, KeyError, TypeError):
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
            current = self._until.get(key) == until
            if current and until > wall and len(self._until) <= self._most:
                break
            heapq.heappop(self._order)
            if current:
                self.crowded = self.crowded or until > wall
                del self._until[key]
                found.append(key)
        return found
