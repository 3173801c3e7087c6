"""The same line again and again is one line and a count. Decisions only: time is an argument, nothing is written."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["WINDOW_SECONDS", "Folded", "Folds"]

WINDOW_SECONDS = 30.0
"""How long after a line its repetitions are counted rather than written."""

MOST = 500
"""Different lines that are counted at a time; over it, the count that has run longest is written early."""

_T = TypeVar("_T")


@dataclass
class Folded(Generic[_T]):
    """A line that was written, and how often it came again since."""

    line: _T
    since: float
    times: int = field(default=0)

    def seconds(self, now: float) -> float:
        """How long it has been counted."""
        return min(now - self.since, WINDOW_SECONDS)


class Folds(Generic[_T]):
    """The lines that are being counted."""

    def __init__(self) -> None:
        self._counted: dict[Hashable, Folded[_T]] = {}

    def is_new(self, key: Hashable, line: _T, now: float) -> bool:
        """Whether a line is to be written; if not, it is counted. Ask for what is ``due`` first."""
        counted = self._counted.get(key)
        if counted is not None:
            counted.times += 1
            return False
        self._counted[key] = Folded(line, now)
        return True

    def due(self, now: float) -> Iterator[Folded[_T]]:
        """The counts that are to be written now; of a line that did not come again there is none."""
        for key, counted in [*self._counted.items()]:  # in the order in which they began
            if now - counted.since < WINDOW_SECONDS and len(self._counted) <= MOST:
                return
            del self._counted[key]
            if counted.times:
                yield counted

    def rest(self) -> Iterator[Folded[_T]]:
        """All counts that are left, at the end."""
        counted, self._counted = self._counted, {}
        yield from (one for one in counted.values() if one.times)

    def __len__(self) -> int:
        return len(self._counted)
