"""The connection that stands: what is remembered of it, and what its events change.

Listings, failed and denied calls, and liveness checks. None of them changes the state of the server by itself: where
they amount to that, ``judge`` (lifecycle.py) says so before, and another action follows.

What must never happen:

* A single failed call ends a connection. It may be that call's own fault, so the connection is in doubt (``suspect``),
  and a liveness check decides. One check at a time answers for any number of calls.
* A single denial shuts a server. Calls are refused only while the listing is denied too (``shut``), and it is asked for
  soon.
* A changed list is missed because the server said so while a listing was under way. What it says after that listing
  began counts for the next one; what it said before counts again if that one fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from holdfast.core.lifecycle.backoff import LifecyclePolicy, aligned, shortened
from holdfast.core.lifecycle.events import (
    AccessChanged,
    CallCompleted,
    CallDenial,
    CallTimedOut,
    CallTransportFailed,
    Cause,
    CheckLiveness,
    Emit,
    Event,
    IdleDue,
    LivenessConfirmed,
    LivenessFailed,
    Publish,
    RefreshDue,
    RefreshFailed,
    RefreshNow,
    RefreshSucceeded,
    StandingDue,
)

if TYPE_CHECKING:
    from holdfast.core.lifecycle.lifecycle import LifecycleState, Step

__all__ = ["ON_LEASE", "LeaseState", "act_on_lease", "adopt_on_lease", "list_again", "plan_refresh"]


@dataclass(slots=True)
class LeaseState:
    """The connection that stands: what the lifecycle remembers of it."""

    generation: int
    cause: Cause
    listed_at: float
    proven: bool = False
    """It has stood for a while, or completed a user's call: earlier failures are forgotten."""
    failures: int = 0
    denials: int = 0
    """Denied listings in a row."""
    denial: RefreshFailed | None = None
    """The latest of them."""
    call_denied: bool = False
    """Whether a call was denied and none completed since."""
    asked_at: float = -inf
    """When a denied call last asked for a listing."""
    refreshing: bool = False
    checking: bool = False
    suspect: bool = False
    """A call on it failed, or the breaker refuses calls because of earlier failures: one failed liveness check
    ends it."""
    list_changed: bool = False
    """Whether the server said so since the latest listing began."""
    looks_for_change: bool = False
    """Whether it had said so before that listing: if the listing fails, it is still to be looked for."""

    @property
    def shut(self) -> RefreshFailed | None:
        """The denied listing, if calls are denied too: then no call is sent before the next listing."""
        return self.denial if self.call_denied else None


ON_LEASE: frozenset[type[Event]] = frozenset(
    {
        CallCompleted,
        CallDenial,
        CallTransportFailed,
        CallTimedOut,
        LivenessConfirmed,
        LivenessFailed,
        RefreshDue,
        RefreshFailed,
        RefreshSucceeded,
        StandingDue,
    }
)


def act_on_lease(life: LifecycleState, lease: LeaseState, event: Event, step: Step) -> None:
    """Perform what follows from an event of a standing connection. None of these changes the state."""
    match event:
        case RefreshDue():
            _refresh(lease, step)
        case RefreshSucceeded():
            _refreshed(life, lease, event, step)
        case RefreshFailed():
            _refresh_failed(life, lease, event, step)
        case CallTimedOut():
            _check(lease, step)
        case CallDenial():
            # The listing shows whether the denial concerns this call or the server.
            lease.call_denied = True
            if not lease.refreshing and not lease.shut:
                at = max(lease.asked_at + life.policy.denied_spacing, lease.listed_at + life.policy.refresh_spacing)
                life.timers.hasten(RefreshDue, max(step.now, at))
        case LivenessConfirmed():
            # It shows that the connection stands, not that calls work: their failures still count.
            lease.checking = lease.suspect = False
        case LivenessFailed():
            lease.checking = False
            lease.failures += 1
        # Only a liveness check tells a server that is slow or that fails one tool from a connection that is dead.
        case CallTransportFailed():
            lease.failures += 1
            lease.suspect = True
            _check(lease, step)
        case CallCompleted():
            lease.failures = 0
            _open_access(life, lease, step)
            life.timers.drop(StandingDue)
            _mark_proven(life, lease)
        case StandingDue():
            _mark_proven(life, lease)


def _mark_proven(life: LifecycleState, lease: LeaseState) -> None:
    """The connection is proven: the budget is full again."""
    life.attempts = 0
    lease.proven = True


def _open_access(life: LifecycleState, lease: LeaseState, step: Step) -> None:
    """A call completed, or a listing was not denied: calls may pass again."""
    was_shut = lease.shut
    lease.denials, lease.denial, lease.call_denied = 0, None, False
    if was_shut:
        step.do(Emit(AccessChanged(server=life.server, denied=False, reason="", at=step.now)))


def plan_refresh(life: LifecycleState, lease: LeaseState, step: Step) -> None:
    """Plan the next listing: soon after a ``list_changed`` notice, else after the period."""
    if lease.list_changed:
        # A failed listing is repeated more slowly: the third failure gives the connection up.
        spacing = life.policy.refresh_spacing * 2**lease.failures
        life.timers.hasten(RefreshDue, max(step.now, lease.listed_at + spacing))
    elif life.policy.refresh is not None:
        due = step.now + shortened(life.policy.refresh, life.policy, step.chance)
        life.timers[RefreshDue] = aligned(due, life.policy.refresh)


def _refresh(lease: LeaseState, step: Step) -> None:
    lease.refreshing = True
    lease.looks_for_change, lease.list_changed = lease.list_changed, False
    lease.listed_at = step.now
    if lease.call_denied:
        lease.asked_at = step.now
    step.do(RefreshNow(lease.generation))


def _refreshed(life: LifecycleState, lease: LeaseState, event: RefreshSucceeded, step: Step) -> None:
    lease.refreshing = False
    lease.failures = 0
    _open_access(life, lease, step)
    if event.listing is not None:
        step.do(Publish(event.listing))
    plan_refresh(life, lease, step)


def _refresh_failed(life: LifecycleState, lease: LeaseState, event: RefreshFailed, step: Step) -> None:
    """A denied listing is that request's denial: it says nothing about the connection."""
    lease.refreshing = False
    lease.list_changed |= lease.looks_for_change
    if event.status != "denied":
        _open_access(life, lease, step)
        lease.failures += 1
        plan_refresh(life, lease, step)
        return
    was_shut = lease.shut
    lease.denials += 1
    lease.denial = event
    if not lease.shut:
        plan_refresh(life, lease, step)
        return
    # Calls and the listing are denied: ask again soon, and send no call before that.
    waits = life.policy.denied_again
    delay = waits[min(lease.denials, len(waits)) - 1]
    life.timers[RefreshDue] = step.now + shortened(delay, life.policy, step.chance)
    if not was_shut:
        step.do(Emit(AccessChanged(server=life.server, denied=True, reason=event.reason, at=step.now)))


def _check(lease: LeaseState, step: Step) -> None:
    """Start one liveness check at a time, for any number of failed and unanswered calls."""
    if not lease.checking:
        lease.checking = True
        step.do(CheckLiveness(lease.generation))


def list_again(life: LifecycleState, lease: LeaseState, step: Step) -> None:
    """Its list is another one: plan a listing, or leave that to the end of the one that is under way."""
    lease.list_changed = True
    if not lease.refreshing:
        plan_refresh(life, lease, step)


def adopt_on_lease(life: LifecycleState, lease: LeaseState, old: LifecyclePolicy, step: Step) -> None:
    """Plan the times of the connection again that the old policy planned."""
    timers, policy = life.timers, life.policy
    if (stands := timers.get(StandingDue)) is not None:
        timers[StandingDue] = stands + policy.standing - old.standing
    if IdleDue in timers:
        timers[IdleDue] = life.last_used + policy.idle_after
    if policy.refresh != old.refresh and not lease.refreshing:
        timers.drop(RefreshDue)
        plan_refresh(life, lease, step)
