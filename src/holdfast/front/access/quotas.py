"""What one principal may use at a time (SEC-11): sessions, connections, requests in flight, requests a minute.

Each principal has a count of its own, so one cannot use up what belongs to another. The rate is a bucket that holds a
minute's worth and refills steadily. The limits are ``holdfast.quotas`` in the configuration. ``local``, the principal
of a hub that asks for no credentials, has no rate: it is the user of the machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from holdfast.config import QuotaSettings
from holdfast.front.access.principals import LOCAL

__all__ = ["Quota", "QuotaExceeded", "Quotas"]

Quota: TypeAlias = Literal["sessions", "connections", "callsInFlight", "callsPerMinute"]

RETRY_SECONDS: Final = 5
"""When to try again where nothing says how long it takes: a session or a call must end first."""

MOST_PRINCIPALS: Final = 10_000
"""How many principals without anything in use keep their bucket. It is full again after a minute anyway."""


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
            "callsInFlight": f"{self.most} requests are in flight",
            "callsPerMinute": f"{self.most} requests were sent in the last minute",
        }[self.quota]
        return (
            f"this caller has used up its quota: {what}; try again in {self.retry_after} s "
            f"(`holdfast.quotas.{self.quota}` in the hub's configuration)"
        )


class _Use:
    """What one principal uses now."""

    __slots__ = ("calls", "filled_at", "left", "sessions")

    def __init__(self) -> None:
        self.sessions = 0
        self.calls = 0
        self.left = math.inf
        self.filled_at = 0.0


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
        self._used: dict[str, _Use] = {}
        self.make_room: Callable[[str], None] | None = None
        """Ends the use of sessions that a principal does not need in memory now."""

    def begin_call(self, principal: str) -> QuotaExceeded | None:
        """Count a request in flight, until ``end_call``; or say why it is refused, and count nothing."""
        limits = self._settings()
        use = self._used.get(principal)
        if use is None:
            use = self._new(principal)
        if use.calls >= limits.calls_in_flight:
            return self._refused(principal, QuotaExceeded("callsInFlight", limits.calls_in_flight, RETRY_SECONDS))
        if principal != LOCAL.name:
            rate = limits.calls_per_minute
            now = self._clock()
            use.left = min(use.left + (now - use.filled_at) * rate / 60, rate)
            use.filled_at = now
            if use.left < 1:
                seconds = max(1, math.ceil((1 - use.left) * 60 / rate))
                return self._refused(principal, QuotaExceeded("callsPerMinute", rate, seconds))
            use.left -= 1
        use.calls += 1
        return None

    def end_call(self, principal: str) -> None:
        """A request that ``begin_call`` counted is over."""
        if (use := self._used.get(principal)) is not None:
            use.calls = max(use.calls - 1, 0)

    def begin_session(self, principal: str) -> QuotaExceeded | None:
        """Count a session, until ``end_session``; or say why it is refused.

        Idle sessions give way first, because they can be rebuilt. So clients that left cannot take the place of those
        that are there: a principal is refused only if all of its sessions are in use.
        """
        most = self._settings().sessions
        use = self._used.get(principal) or self._new(principal)
        if use.sessions >= most and self.make_room is not None:
            self.make_room(principal)
        if use.sessions >= most:
            return self._refused(principal, QuotaExceeded("sessions", most, RETRY_SECONDS))
        use.sessions += 1
        return None

    def end_session(self, principal: str) -> None:
        """A session that ``begin_session`` counted is over."""
        if (use := self._used.get(principal)) is not None:
            use.sessions = max(use.sessions - 1, 0)

    @property
    def connections(self) -> int:
        """How many connections one principal may hold."""
        return self._settings().connections

    def _refused(self, principal: str, exceeded: QuotaExceeded) -> QuotaExceeded:
        if self._on_refused is not None:
            self._on_refused(principal, exceeded)
        return exceeded

    def _new(self, principal: str) -> _Use:
        if len(self._used) >= MOST_PRINCIPALS:
            self._used = {name: use for name, use in self._used.items() if use.calls or use.sessions}
        use = self._used[principal] = _Use()
        use.filled_at = self._clock()
        return use
