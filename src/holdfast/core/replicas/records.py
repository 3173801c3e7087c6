"""What replicas agree on: records with stamps. Of two versions of one record, the greater stamp wins, everywhere.

A stamp is a text that sorts: a rank, a number that never decreases, and the writer. The number is the wall clock in
milliseconds, or one more than the greatest number seen, if that is more. So a clock that is slow or goes backwards, an
emptied store and an older copy of it never make a new decision look old.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["FleetRecord", "RecordBook", "VersionClock", "first_stamp", "stamp"]

_LARGEST = 2**63
_RANK_FIRST, _RANK_DECIDED = "0", "1"


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
        self._last = max(self._last, number if text[:1] == _RANK_DECIDED else _LARGEST - number)


class RecordBook:
    """One replica's copy of all records. It outlives the store."""

    def __init__(self, records: Iterable[FleetRecord] = ()) -> None:
        self._records: dict[str, FleetRecord] = {}
        for record in records:
            self.merge(record)

    def __iter__(self) -> Iterator[FleetRecord]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> FleetRecord | None:
        """The record of this key."""
        return self._records.get(key)

    def merge(self, record: FleetRecord) -> bool:
        """Take a record; False if the copy has it already, or has a later one."""
        known = self._records.get(record.key)
        if known is not None and known.stamp >= record.stamp:
            return False
        self._records[record.key] = record
        return True

    def remove(self, key: str) -> FleetRecord | None:
        """Forget a record that is over."""
        return self._records.pop(key, None)
