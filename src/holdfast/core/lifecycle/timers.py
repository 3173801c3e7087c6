"""The times that a server waits for: at most one per kind, and no more than its state allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

    from holdfast.core.lifecycle.events import Event

__all__ = ["Timers"]


class Timers:
    """When each kind of timer event is due. No clock: whoever asks says what time it is."""

    def __init__(self) -> None:
        self._due: dict[type[Event], float] = {}

    def __contains__(self, kind: type[Event]) -> bool:
        return kind in self._due

    def set(self, kind: type[Event], at: float) -> None:
        """Due at this time, in place of any time before."""
        self._due[kind] = at

    def hasten(self, kind: type[Event], at: float) -> None:
        """Due at this time at the latest."""
        self._due[kind] = min(at, self._due.get(kind, at))

    def drop(self, *kinds: type[Event]) -> None:
        """Not due any more."""
        for kind in kinds:
            self._due.pop(kind, None)

    def keep(self, allowed: Container[type[Event]]) -> None:
        """Drop whatever a new state does not allow."""
        self.drop(*[kind for kind in self._due if kind not in allowed])

    def at(self, kind: type[Event]) -> float | None:
        """When this kind is due, if it is."""
        return self._due.get(kind)

    def earliest(self) -> float | None:
        """When the next of them is due."""
        return min(self._due.values(), default=None)

    def pop(self, now: float) -> Event | None:
        """The event that is due longest, taken out; None when nothing is due."""
        if not self._due:
            return None
        kind = min(self._due, key=lambda kind: self._due[kind])
        if self._due[kind] > now:
            return None
        del self._due[kind]
        return kind()
