"""When to look at a server that refused the connection: often at first, then rarely.

A look is one bare TCP connect. It is no dial and spends no budget, so it can be frequent enough
to see a server come back within a second, and it costs a server that is not there next to nothing.
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
        self._number = 0
        self._begun: float | None = None
        self._looked_at = 0.0

    def refused(self, now: float, policy: LifecyclePolicy) -> float:
        """When to look next, after a dial was refused; an outage that goes on keeps its pace."""
        if self._begun is None:
            self._begun = now
        return now + self._wait(now, policy)

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
        self._begun = None
        return self.interrupt()

    def _wait(self, now: float, policy: LifecyclePolicy) -> float:
        """As long as the brisk time has been over: that doubles each wait, whatever came between."""
        over = now - (now if self._begun is None else self._begun) - policy.look_briskly_for
        return min(max(over, policy.look_every), policy.look_at_least_every)
