"""A policy that changes under way: plans made by the old one are made anew, and the connection is left alone.

A reconnect that is planned already keeps its time; the next one goes by the new policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.lifecycle.events import IdleDue, RefreshDue, SelfProbeDue, StandingDue
from holdfast.core.lifecycle.table import State

if TYPE_CHECKING:
    from holdfast.core.lifecycle.connection import Lease
    from holdfast.core.lifecycle.life import Lifecycle, Turn
    from holdfast.core.lifecycle.policy import LifecyclePolicy

__all__ = ["adopt"]


def adopt(life: Lifecycle, policy: LifecyclePolicy, turn: Turn) -> None:
    """Go by another policy from now on."""
    old, life.policy = life.policy, policy
    life.attempts = min(life.attempts, len(policy.backoff))
    life.parked_until += policy.parked - old.parked
    if life.state is State.PERMANENTLY_FAILED and life.dial is None and policy.self_probe != old.self_probe:
        life.timers.drop(SelfProbeDue)
        life.plan_self_probe(turn)
    if life.lease is not None:
        _adopt_on_lease(life, life.lease, old, turn)


def _adopt_on_lease(life: Lifecycle, lease: Lease, old: LifecyclePolicy, turn: Turn) -> None:
    timers, policy = life.timers, life.policy
    if (stands := timers.at(StandingDue)) is not None:
        timers.set(StandingDue, stands + policy.standing - old.standing)
    if IdleDue in timers:
        timers.set(IdleDue, life.last_used + policy.idle_after)
    if policy.refresh != old.refresh and not lease.refreshing:
        timers.drop(RefreshDue)
        life.plan_refresh(lease, turn)
