"""What a connection goes through while it stands: listings, liveness, calls, and time.

None of this changes the server's state; what does is judged first and acted upon in ``actions.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.lifecycle.effects import CheckLiveness, Publish, RefreshNow
from holdfast.core.lifecycle.events import (
    CallCompleted,
    CallFailed,
    CallTimedOut,
    Event,
    LivenessConfirmed,
    LivenessFailed,
    RefreshDue,
    RefreshFailed,
    RefreshSucceeded,
    StandingDue,
)

if TYPE_CHECKING:
    from holdfast.core.lifecycle.connection import Lease
    from holdfast.core.lifecycle.life import Lifecycle, Turn

__all__ = ["ON_LEASE", "act_on_lease"]

ON_LEASE: frozenset[type[Event]] = frozenset(
    {
        CallCompleted,
        CallFailed,
        CallTimedOut,
        LivenessConfirmed,
        LivenessFailed,
        RefreshDue,
        RefreshFailed,
        RefreshSucceeded,
        StandingDue,
    }
)


def act_on_lease(life: Lifecycle, lease: Lease, event: Event, turn: Turn) -> None:
    """Do what follows from one of these events."""
    match event:
        case RefreshDue():
            _refresh(lease, turn)
        case RefreshSucceeded():
            _refreshed(life, lease, event, turn)
        case RefreshFailed():
            lease.refreshing = False
            lease.failures += 1
            life.plan_refresh(lease, turn)
        case CallTimedOut():
            _check(lease, turn)
        case LivenessConfirmed():
            lease.checking = lease.doubted = False
            lease.failures = 0
        case LivenessFailed():
            lease.checking = False
            lease.failures += 1
        case CallFailed():
            lease.failures += 1
        case CallCompleted():
            lease.failures = 0
            life.timers.drop(StandingDue)
            life.settle_down(lease)
        case StandingDue():
            life.settle_down(lease)


def _refresh(lease: Lease, turn: Turn) -> None:
    lease.refreshing = True
    lease.covering = lease.notices
    lease.listed_at = turn.now
    turn.do(RefreshNow(lease.generation))


def _refreshed(life: Lifecycle, lease: Lease, event: RefreshSucceeded, turn: Turn) -> None:
    lease.refreshing = False
    lease.covered = lease.covering
    lease.failures = 0
    if event.listing is not None:
        turn.do(Publish(event.generation, event.listing))
    life.plan_refresh(lease, turn)


def _check(lease: Lease, turn: Turn) -> None:
    """One check at a time, however many calls had no answer."""
    if not lease.checking:
        lease.checking = True
        turn.do(CheckLiveness(lease.generation))
