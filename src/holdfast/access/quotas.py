"""What one principal may use at a time (SEC-11): sessions, connections, requests in flight, requests a minute.

Each principal has a count of its own, so one cannot use up what belongs to another. The rate is a bucket that holds a
minute's worth and refills steadily. The limits are ``holdfast.quotas`` in the configuration. ``local``, the principal
of a hub that asks for no credentials, has no rate: it is the user of the machine.

In a fleet the limits are for all replicas together. Each tells the others what principals use of it, and judges by its
own use and by what the others told last. No request waits for that. So a principal that begins on several replicas at
once may exceed a limit for as long as the news takes, about two seconds, by what the other replicas admit in that time.
What it spent too much of its rate is taken from the next minute. While the store is away each replica judges alone.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from holdfast.access.principals import LOCAL
from holdfast.config import QuotaSettings

__all__ = ["PrincipalUse", "Quota", "QuotaExceeded", "Quotas"]

Quota: TypeAlias = Literal["sessions", "connections", "bodyBytes", "callsInFlight", "callsPerMinute"]

RETRY_SECONDS: Final = 5
"""When to try again where nothing says how long it takes: a session or a call must end first."""

MOST_PRINCIPALS: Final = 10_000
"""How many principals without anything in use keep their bucket. It is full again after a minute anyway."""

MOST_TOLD: Final = 200
"""Principals whose use is told to other replicas: those with the most calls. It travels with every exchange."""

MOST_REMEMBERED: Final = 2_000
"""Principals whose spent calls on another replica are remembered."""


@dataclass(frozen=True)
class QuotaExceeded:
    """Why a request is refused, and when it may be repeated."""

    quota: Quota
    most: int
    retry_after: int

    @property
    def message(self) -> str:
        """What its sender is told."""
        what = {
            "sessions": f"{self.most} sessions are open",
            "connections": f"{self.most} connections are open",
            "bodyBytes": f"{self.most} bytes of its requests are under way",
            "callsInFlight": f"{self.most} requests are in flight",
            "callsPerMinute": f"{self.most} requests were sent in the last minute",
        }[self.quota]
        return (
            f"this caller has used up its quota: {what}; try again in {self.retry_after} s "
            f"(`holdfast.quotas.{self.quota}` in the hub's configuration)"
        )


class PrincipalUse:
    """What one principal uses now, here and on the other replicas. Who has a part of it gives that back here.

    So it is given back to the same one, also if its principal got another label meanwhile.
    """

    __slots__ = ("calls", "calls_elsewhere", "filled_at", "left", "sessions", "sessions_elsewhere", "spent")

    def __init__(self, now: float) -> None:
        self.sessions = self.sessions_elsewhere = 0
        self.calls = self.calls_elsewhere = 0
        self.spent = 0
        """Calls that were admitted here, ever."""
        self.left = math.inf
        """What is in the bucket; a new one is full, at any rate."""
        self.filled_at = now

    def fill(self, rate: int, now: float) -> None:
        """Give the bucket what has come since it was filled."""
        self.left = min(self.left + (now - self.filled_at) * rate / 60, rate)
        self.filled_at = now

    def end_call(self) -> None:
        """A request is over that ``Quotas.begin_call`` counted."""
        self.calls -= 1

    def end_session(self) -> None:
        """A session is over that ``Quotas.begin_session`` counted."""
        self.sessions -= 1


class Quotas:
    """The use of every principal."""

    def __init__(
        self,
        settings: Callable[[], QuotaSettings] = QuotaSettings,
        *,
        on_refused: Callable[[str, QuotaExceeded], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._on_refused = on_refused
        self._clock = clock
        self._label: Callable[[str], str] | None = None
        self._used: dict[str, PrincipalUse] = {}
        """By label, which is the name of a principal where no replica is told; also of those not seen here yet."""
        self._told: dict[str, dict[str, int]] = {}
        """The spent calls that each replica told, by label."""

    def begin_call(self, principal: str) -> PrincipalUse | QuotaExceeded:
        """Count a request in flight, until ``end_call`` of the result; or say why it is refused, and count nothing."""
        limits = self._settings()
        label = principal if self._label is None else self._label(principal)
        use = self._used.get(label) or self._use(label)
        if use.calls + use.calls_elsewhere >= limits.calls_in_flight:
            return self._refused(principal, QuotaExceeded("callsInFlight", limits.calls_in_flight, RETRY_SECONDS))
        if principal != LOCAL.name:
            rate = limits.calls_per_minute
            use.fill(rate, self._clock())
            if use.left < 1:
                seconds = max(1, math.ceil((1 - use.left) * 60 / rate))
                return self._refused(principal, QuotaExceeded("callsPerMinute", rate, seconds))
            use.left -= 1
        use.calls += 1
        use.spent += 1
        return use

    def begin_session(self, principal: str, make_room: Callable[[str], None]) -> PrincipalUse | QuotaExceeded:
        """Count a session, until ``end_session`` of the result; or say why it is refused.

        Idle sessions give way first (``make_room``), because they can be rebuilt. So clients that left cannot take the
        place of those that are there: a principal is refused only if all of its sessions are in use.
        """
        most = self.limits.sessions
        use = self._use(principal if self._label is None else self._label(principal))
        if use.sessions + use.sessions_elsewhere >= most:
            make_room(principal)
        if use.sessions + use.sessions_elsewhere >= most:
            return self._refused(principal, QuotaExceeded("sessions", most, RETRY_SECONDS))
        use.sessions += 1
        return use

    @property
    def limits(self) -> QuotaSettings:
        """What one principal may use, of all workers together."""
        return self._settings()

    def refuse_body(self, principal: str) -> None:
        """Note that a body found no room in what its principal has."""
        self._refused(principal, QuotaExceeded("bodyBytes", self.limits.body_bytes, 1))

    # Together with other replicas.

    def share(self, label: Callable[[str], str]) -> None:
        """Judge together with other replicas, to which principals are known by these labels; before any request."""
        self._label = label

    def told(self, busy: Mapping[str, int]) -> dict[str, list[int]]:
        """What other replicas are told: by label the sessions in use (``busy``, by principal), calls, and calls ever.

        Sessions that are idle are not told: they give way, and a session can be in the memory of several replicas.
        """
        if self._label is None:
            return {}
        sessions = {self._label(name): number for name, number in busy.items()}
        active = ((label, use) for label, use in self._used.items() if use.spent or sessions.get(label))
        most = heapq.nlargest(MOST_TOLD, active, key=lambda found: (found[1].calls, sessions.get(found[0], 0)))
        return {label: [sessions.get(label, 0), use.calls, use.spent] for label, use in most}

    def follow(self, replicas: Mapping[str, object]) -> None:
        """Take what the other replicas told, by their names; none while they are not heard."""
        for use in self._used.values():
            use.sessions_elsewhere = use.calls_elsewhere = 0
        before, self._told = self._told, {}
        for replica, told in replicas.items():
            self._told[replica] = self._follow(before.get(replica), _entries(told))

    def _follow(self, before: dict[str, int] | None, told: Iterable[tuple[str, int, int, int]]) -> dict[str, int]:
        rate = self.limits.calls_per_minute
        spents: dict[str, int] = {}
        for label, sessions, calls, spent in told:
            use = self._use(label)
            use.sessions_elsewhere += sessions
            use.calls_elsewhere += calls
            known = (before or {}).get(label, 0)
            if before is not None:
                use.fill(rate, self._clock())
                more = spent - known if spent >= known else spent
                use.left = max(use.left - more, -float(rate))
            spents[label] = spent
        old = [(label, spent) for label, spent in (before or {}).items() if label not in spents]
        return dict(old[: max(0, MOST_REMEMBERED - len(spents))]) | spents

    def _refused(self, principal: str, exceeded: QuotaExceeded) -> QuotaExceeded:
        if self._on_refused is not None:
            self._on_refused(principal, exceeded)
        return exceeded

    def _use(self, label: str) -> PrincipalUse:
        use = self._used.get(label)
        if use is None:
            if len(self._used) >= MOST_PRINCIPALS:
                self._used = {name: one for name, one in self._used.items() if one.calls or one.sessions}
            use = self._used[label] = PrincipalUse(self._clock())
        return use


def _entries(told: object) -> Iterable[tuple[str, int, int, int]]:
    """What another replica told, as far as it is of the right form."""
    for label, numbers in told.items() if isinstance(told, Mapping) else ():
        match numbers:
            case [int(sessions), int(calls), int(spent)]:
                yield str(label), max(sessions, 0), max(calls, 0), max(spent, 0)
