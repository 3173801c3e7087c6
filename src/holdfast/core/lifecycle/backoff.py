"""When the lifecycle tries again: its policy, its timers, the backoff, and when to check an address.

All times are in seconds. There is no clock here: the caller gives the time, and the chance.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.lifecycle.events import Event

__all__ = [
    "JITTER",
    "RETRY_AFTER_CAP",
    "AddressWatch",
    "LifecyclePolicy",
    "Timers",
    "aligned",
    "delay",
    "shortened",
    "to_milliseconds",
]


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
    """How often the hub itself tries a server that is parked on permanent evidence, or denied; None for never."""
    transient_probe: float = 30.0
    """How often the hub itself tries a server that is parked on transient evidence."""
    ask_denied_after: tuple[float, ...] = (2.0, 10.0, 30.0)
    """When a denial that states no decision is asked again, in seconds after the first; then it is a decision."""
    denied_refreshes: int = 3
    """Consecutive denied listings of a connection that still stands, before the server is denied."""
    denied_again: tuple[float, ...] = (2.0, 3.0)
    """When a denied listing is repeated while calls are denied too: the waits after the first and the second. Calls are
    refused meanwhile."""
    denied_spacing: float = 5.0
    """The minimum time between two listings that denied calls ask for."""
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
    """How long checks stay that frequent."""
    check_share: float = 0.1
    """After that, the share of an outage's length that passes between two checks. So a server that comes back waits for
    at most that share of the time for which it was away."""
    check_at_least_every: float = 30.0
    """The longest wait between two address checks, or two dials of a server that answers that it is not ready."""
    not_ready_every: float = 2.0
    """How often a server that listens and answers that it is not ready is dialed, as long as checks are frequent."""
    claims: bool = False
    """Whether several replicas use the server: then each try after a failed one needs the right to probe."""
    peer_spacing: float = 10.0
    """The minimum time between two dials that the recovery of a peer starts."""
    close_patience: float = 10.0
    """How long disabling waits for a close; after that the server counts as disabled."""


def shortened(delay: float, policy: LifecyclePolicy, chance: float) -> float:
    """A delay with its jitter: ``chance`` is in [0, 1), and 0 leaves the delay as it is."""
    return delay * (1.0 - policy.jitter * chance)


REFRESH_STEPS = 120
"""In so many steps of its period a refresh can be due."""


def aligned(at: float, period: float) -> float:
    """The same time or a little earlier: at most a step of the period.

    Refreshes of many servers that are due at about the same time are then due at the same time. The event loop wakes
    once for all of them, and their answers come together.
    """
    return at - at % (period / REFRESH_STEPS)


class Timers(dict[type[Event], float]):
    """When each kind of timer event is due. At most one time for each kind; the caller gives the time."""

    def hasten(self, kind: type[Event], at: float) -> None:
        """Due at this time at the latest."""
        self[kind] = min(at, self.get(kind, at))

    def drop(self, *kinds: type[Event]) -> None:
        """Not due any more."""
        for kind in kinds:
            self.pop(kind, None)

    def earliest(self) -> float | None:
        """When the next of them is due."""
        return min(self.values(), default=None)

    def take_due(self, now: float) -> Event | None:
        """Take out the event that has been due longest; None when nothing is due."""
        # The oldest first: after a pause of the whole machine many are due, and their order is that of the world before
        # it.
        kind = min(self, key=self.__getitem__, default=None)
        if kind is None or self[kind] > now:
            return None
        del self[kind]
        return kind()


class AddressWatch:
    """When to check the address of a server that is unreachable: often at first, then ever more rarely.

    A check is one bare TCP connect, name lookup included. It is not a dial and spends no budget. So
    it can be frequent enough to see a server within a second of its return, and it costs the server
    almost nothing. A server that listens and answers that it is not ready cannot be judged from
    outside: it is dialed instead, less often.

    One watch covers one outage, from the first failure of this kind until something else happens.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        """The number of the check that is under way and counts."""
        self.answers = False
        """Whether it listens but is not ready: it is dialed instead of checked."""
        self._number = 0
        self._begun: float | None = None
        self._first_answer: float | None = None
        self._known = False
        self._checked_at = 0.0

    @property
    def watching(self) -> bool:
        """Whether there is an outage to watch."""
        return self._begun is not None or self._first_answer is not None

    def unreachable(self, now: float, policy: LifecyclePolicy, *, known: bool) -> float:
        """The time of the next check after a dial that did not reach it; ``known`` if it was up before in this run.

        An outage that goes on keeps its rate.
        """
        self._known, self.answers = known, False
        if self._begun is None:
            self._begun = now
        return now + self._wait(now, policy)

    def not_ready(self, now: float, policy: LifecyclePolicy) -> float:
        """The time of the next dial to a server that listens and is not ready."""
        self.answers = True
        if self._first_answer is None:
            self._first_answer = now
        return now + _backing_off(now - self._first_answer, policy, often=policy.not_ready_every)

    def begin_check(self, now: float) -> int:
        """The number of the check that starts now."""
        self._number += 1
        self.pending = self._number
        self._checked_at = now
        return self._number

    def not_listening(self, now: float, policy: LifecyclePolicy) -> float:
        """The time of the next check, after one that found no listener."""
        self.pending = None
        # From the beginning of the check: one that took its whole second must not slow the rate down.
        return max(now, self._checked_at + self._wait(now, policy))

    def end(self) -> None:
        """The outage is over, or something else is wrong now."""
        self._begun = self._first_answer = self.pending = None
        self.answers = False

    def _wait(self, now: float, policy: LifecyclePolicy) -> float:
        down = now - (now if self._begun is None else self._begun)
        restarting = policy.recheck_every * (1 if down < policy.restart else 2)
        return _backing_off(down, policy, often=restarting if self._known else policy.check_every)


def _backing_off(since: float, policy: LifecyclePolicy, *, often: float) -> float:
    """The wait ``since`` an outage began: ``often`` at first, then a share of the time so far, up to a limit."""
    if since < policy.check_often_for:
        return often
    return min(max(since * policy.check_share, often), policy.check_at_least_every)


JITTER = 0.5
"""At most this share of the delay is added, so that servers that failed together do not retry together."""

MAX_DOUBLINGS = 30
"""More doublings exceed every deadline, and would overflow a float."""

RETRY_AFTER_CAP = 5.0
"""A server's ``Retry-After`` is honoured up to this many seconds."""


def delay(attempt: int, *, base: float, chance: float, retry_after: float | None = None) -> float:
    """Seconds to wait after failed attempt number ``attempt`` (from 1); ``chance`` is in [0, 1)."""
    ours: float = base * 2.0 ** min(attempt - 1, MAX_DOUBLINGS) * (1 + JITTER * chance)
    asked = min(retry_after or 0.0, RETRY_AFTER_CAP)
    return max(ours, asked)


def to_milliseconds(seconds: float) -> float:
    """A number of seconds as it leaves the hub: the difference of two times has digits that mean nothing."""
    return round(seconds, 3)
