"""When to look at a server that refused the connection: often at first, then rarely.

A look is one bare TCP connect. It is no dial and spends no budget, so it can be frequent enough
to see a server come back within a second, and it costs a server that is not there next to nothing.
A server that listens again and still answers that it is starting cannot be judged from outside:
for a minute it is dialed instead, at half the pace of looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.lifecycle.policy import LifecyclePolicy

__all__ = ["Lookout"]


class Lookout:
    """The looks of one outage: from the first refusal until something else happens."""

    def __init__(self) -> None:
        self.pending: int | None = None
        self.starting = False
        """Whether it listens again, and is not well yet."""
        self._number = 0
        self._begun: float | None = None
        self._first_answer: float | None = None
        self._known = False
        self._looked_at = 0.0

    @property
    def watching(self) -> bool:
        """Whether there is an outage to watch."""
        return self._begun is not None

    def refused(self, now: float, policy: LifecyclePolicy, *, known: bool) -> float:
        """When to look next, after a dial was refused; ``known`` if it was up before in this run.

        An outage that goes on keeps its pace.
        """
        self._known, self.starting = known, False
        if self._begun is None:
            self._begun = now
        return now + self._wait(now, policy)

    def not_well(self, now: float, policy: LifecyclePolicy) -> float | None:
        """When to dial next, after a server that listens again could not answer yet; None if that took too long."""
        self.starting = True
        if self._first_answer is None:
            self._first_answer = now
        if now - self._first_answer >= policy.look_briskly_for:
            return None
        return now + 2 * _pace(now - self._first_answer, policy)

    def look(self, now: float) -> int:
        """The number of the look that is taken now."""
        self._number += 1
        self.pending = self._number
        self._looked_at = now
        return self._number

    def not_listening(self, now: float, policy: LifecyclePolicy) -> float:
        """When to look next, after a look that found nothing."""
        self.pending = None
        return max(now, self._looked_at + self._wait(now, policy))

    def interrupt(self) -> int | None:
        """Give up the look that is under way, if there is one; the outage goes on."""
        pending, self.pending = self.pending, None
        return pending

    def end(self) -> int | None:
        """The outage is over, or something else is wrong now."""
        self._begun = self._first_answer = None
        self.starting = False
        return self.interrupt()

    def _wait(self, now: float, policy: LifecyclePolicy) -> float:
        """As long as the brisk time has been over: that doubles each wait, whatever came between."""
        down = now - (now if self._begun is None else self._begun)
        brisk = _pace(down, policy) if self._known else policy.look_every
        return min(max(down - policy.look_briskly_for, brisk), policy.look_at_least_every)


def _pace(since: float, policy: LifecyclePolicy) -> float:
    """The wait at a server that is most likely restarting, so long ``since`` that began."""
    return policy.look_again_every * (1 if since < policy.restart else 2)
