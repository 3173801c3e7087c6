"""A repeated line is written once, then counted. Decisions only: time is an argument, and nothing is written here."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["WINDOW_SECONDS", "RepeatedLine", "RepeatedLines"]

WINDOW_SECONDS = 30.0
"""How long repetitions of a line are counted instead of written."""

MOST_COUNTED = 500
"""How many different lines are counted at a time; over it, the oldest count is written early."""

_T = TypeVar("_T")


@dataclass
class RepeatedLine(Generic[_T]):
    """A line that was written, and the count of its repetitions."""

    line: _T
    since: float
    times: int = field(default=0)

    def seconds(self, now: float) -> float:
        """Return for how many seconds it was counted."""
        return min(now - self.since, WINDOW_SECONDS)


class RepeatedLines(Generic[_T]):
    """The lines that are counted now."""

    def __init__(self) -> None:
        self._counted: dict[Hashable, RepeatedLine[_T]] = {}

    def is_new(self, key: Hashable, line: _T, now: float) -> bool:
        """Whether to write a line; if not, it is counted. Take what is ``due`` first."""
        counted = self._counted.get(key)
        if counted is not None:
            counted.times += 1
            return False
        self._counted[key] = RepeatedLine(line, now)
        return True

    def due(self, now: float) -> Iterator[RepeatedLine[_T]]:
        """Yield the counts to write now; a line without repetition has none."""
        for key, counted in [*self._counted.items()]:  # oldest first
            if now - counted.since < WINDOW_SECONDS and len(self._counted) <= MOST_COUNTED:
                return
            del self._counted[key]
            if counted.times:
                yield counted

    def rest(self) -> Iterator[RepeatedLine[_T]]:
        """Yield all remaining counts, at the end."""
        counted, self._counted = self._counted, {}
        yield from (one for one in counted.values() if one.times)

    def __len__(self) -> int:
        return len(self._counted)
