"""The numbers and times of the lifecycle: its policy, its timers, and when to check an address.

All times are in seconds. There is no clock here: the caller gives the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

    from holdfast.core.lifecycle.events import Event

__all__ = ["AddressWatch", "LifecyclePolicy", "Timers", "shortened"]


@dataclass(frozen=True, kw_only=True)
class LifecyclePolicy:
    """One server's policy; the defaults are the documented ones."""

    failures: int = 3
    """Consecutive failures of a connection that still stands, before it is given up."""
    backoff: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """The wait before each reconnect; as many reconnects may fail as there are waits."""
    jitter: float = 0.2
    """The share of a wait that chance may remove; no wait is longer than configured."""
    after_loss: float = 0.3
    """The share of the first wait that applies after a lost connection, where an immediate reconnect is not allowed.
    A server that is reachable at once is then back within a second, on a busy machine too."""
    standing: float = 30.0
    """How long a connection stands before earlier failures are forgotten; also the minimum time between
    two immediate reconnects."""
    self_probe: float | None = 300.0
    """How often the hub itself tries a parked server; None for never."""
    parked: float = 60.0
    """How long a parked server answers calls with its reason before a call may try again."""
    refresh: float | None = 60.0
    """How often a connected server is listed again; None: only after a ``list_changed`` notice."""
    refresh_spacing: float = 1.0
    """The minimum time between two listings, for any number of ``list_changed`` notices."""
    lazy: bool = False
    """Whether the server is dialed at first use and stopped when idle."""
    idle_after: float = 300.0
    """How long a lazy server may be unused before it is stopped."""
    watchable: bool = False
    """Whether a bare TCP connect can show that the server listens: it has a host and a port."""
    check_every: float = 1.0
    """The minimum time between two address checks of a server that refused and was never up in this run."""
    recheck_every: float = 0.25
    """The same for a server that was up and is probably restarting; twice that after ``restart``."""
    restart: float = 10.0
    """The longest time that counts as a quick restart."""
    check_often_for: float = 60.0
    """How long checks stay that frequent; then each wait is about twice the one before. For the same time, a server
    that listens again but is not ready yet is dialed at half that rate."""
    check_at_least_every: float = 30.0
    """The longest wait between two address checks."""
    close_patience: float = 10.0
    """How long disabling waits for a close; after that the server counts as disabled."""


def shortened(delay: float, policy: LifecyclePolicy, chance: float) -> float:
    """A delay with its jitter: ``chance`` is in [0, 1), and 0 leaves the delay as it is."""
    return delay * (1.0 - policy.jitter * chance)


class Timers:
    """When each kind of timer event is due. At most one time for each kind; the caller gives the time."""

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
        """Drop the timers that a new state does not allow."""
        self.drop(*[kind for kind in self._due if kind not in allowed])

    def at(self, kind: type[Event]) -> float | None:
        """When this kind is due, if it is."""
        return self._due.get(kind)

    def earliest(self) -> float | None:
        """When the next of them is due."""
        return min(self._due.values(), default=None)

    def pop(self, now: float) -> Event | None:
        """Take out the event that has been due longest; None when nothing is due."""
        if not self._due:
            return None
        kind = min(self._due, key=lambda kind: self._due[kind])
        if self._due[kind] > now:
            return None
        del self._due[kind]
        return kind()


class AddressWatch:
    """When to check the address of a server that refused the connection: often at first, then rarely.

    A check is one bare TCP connect. It is not a dial and spends no budget. So it can be frequent
    enough to see a server within a second of its return, and it costs the server almost nothing.
    A server that listens again but is not ready yet cannot be judged from outside: for a minute
    it is dialed instead, at half the rate of the checks.

    One watch covers one outage, from the first refusal until something else happens.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        self.starting = False
        """Whether it listens again but is not ready yet."""
        self._number = 0
        self._begun: float | None = None
        self._first_answer: float | None = None
        self._known = False
        self._checked_at = 0.0

    @property
    def watching(self) -> bool:
        """Whether there is an outage to watch."""
        return self._begun is not None

    def refused(self, now: float, policy: LifecyclePolicy, *, known: bool) -> float:
        """The time of the next check after a refused dial; ``known`` if the server was up before in this run.

        An outage that goes on keeps its rate.
        """
        self._known, self.starting = known, False
        if self._begun is None:
            self._begun = now
        return now + self._wait(now, policy)

    def not_ready(self, now: float, policy: LifecyclePolicy) -> float | None:
        """The time of the next dial to a server that listens again and is not ready; None after too long a wait."""
        self.starting = True
        if self._first_answer is None:
            self._first_answer = now
        if now - self._first_answer >= policy.check_often_for:
            return None
        return now + 2 * _interval(now - self._first_answer, policy)

    def begin_check(self, now: float) -> int:
        """The number of the check that starts now."""
        self._number += 1
        self.pending = self._number
        self._checked_at = now
        return self._number

    def not_listening(self, now: float, policy: LifecyclePolicy) -> float:
        """The time of the next check, after one that found no listener."""
        self.pending = None
        return max(now, self._checked_at + self._wait(now, policy))

    def interrupt(self) -> int | None:
        """Give up the check that is under way, if there is one; the outage goes on."""
        pending, self.pending = self.pending, None
        return pending

    def end(self) -> int | None:
        """The outage is over, or something else is wrong now."""
        self._begun = self._first_answer = None
        self.starting = False
        return self.interrupt()

    def _wait(self, now: float, policy: LifecyclePolicy) -> float:
        """After the frequent checks, wait as long as they have been over: each wait doubles."""
        down = now - (now if self._begun is None else self._begun)
        often = _interval(down, policy) if self._known else policy.check_every
        return min(max(down - policy.check_often_for, often), policy.check_at_least_every)


def _interval(since: float, policy: LifecyclePolicy) -> float:
    """The wait for a server that is probably restarting; ``since`` is the time since that began."""
    return policy.recheck_every * (1 if since < policy.restart else 2)
