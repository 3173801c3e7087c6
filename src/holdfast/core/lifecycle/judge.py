"""What an event amounts to: the same one, or a judgement that the table has a row for.

Reads the lifecycle and changes nothing, so that an event which the table then forbids has left
no trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.lifecycle.effects import Cause
from holdfast.core.lifecycle.events import (
    CallFailed,
    Closed,
    Denied,
    DialFailed,
    Emptied,
    Event,
    Faltered,
    GaveUp,
    IdleDue,
    LivenessFailed,
    RefreshFailed,
    Rested,
    SessionExpired,
    StartRequested,
    TransportLost,
)
from holdfast.core.lifecycle.table import State

if TYPE_CHECKING:
    from holdfast.core.lifecycle.life import Lifecycle

__all__ = ["judge", "lost_session", "renewed_in_vain"]


def judge(life: Lifecycle, event: Event, now: float) -> Event:
    """The event that the table is asked about."""
    match event:
        case StartRequested():
            return Rested() if _may_rest(life) else event
        case DialFailed():
            return _failed_dial(life, event)
        case TransportLost():
            return _lost(life, event)
        case SessionExpired():
            return _lost(life, lost_session(event)) if renewed_in_vain(life) else event
        case RefreshFailed(status="denied"):
            return Denied(event.reason)
        case RefreshFailed() | CallFailed() | LivenessFailed():
            return _failed_on_lease(life, event)
        case IdleDue():
            return Rested() if _unused(life, now) else event
        case Closed():
            return _closed(life, event)
    return event


def renewed_in_vain(life: Lifecycle) -> bool:
    """Whether the connection was made to renew a session and has done nothing since."""
    lease = life.lease
    return lease is not None and lease.cause is Cause.SESSION and not lease.firm


def lost_session(event: SessionExpired) -> TransportLost:
    """An expiry is housekeeping once; a session that expires as soon as it was renewed is a loss."""
    return TransportLost(event.generation, "its sessions expire as soon as they are made")


def _may_rest(life: Lifecycle) -> bool:
    """A lazy server whose tools are not known has to be asked for them first."""
    return life.policy.lazy and life.listed and life.state is State.DISCONNECTED


def _failed_dial(life: Lifecycle, event: DialFailed) -> Event:
    if life.dial is not None and life.dial.again:
        return event
    if event.status == "denied":
        return Denied(event.reason)
    hopeless = event.status == "permanent" and not life.ever_connected
    if not (hopeless or life.spent()):
        return event
    return GaveUp(event.reason, event.refused, event.status == "transient", event.retry_after)


def _lost(life: Lifecycle, event: TransportLost) -> Event:
    return GaveUp(event.reason) if life.spent() else event


def _failed_on_lease(life: Lifecycle, event: RefreshFailed | CallFailed | LivenessFailed) -> Event:
    lease = life.lease
    failures = 1 + (lease.failures if lease is not None else 0)
    hopeless = isinstance(event, LivenessFailed) and lease is not None and lease.doubted
    if failures < life.policy.failures and not hopeless:
        return event
    return GaveUp(event.reason) if life.spent() else Faltered(event.reason)


def _unused(life: Lifecycle, now: float) -> bool:
    # The same sum as the timer's, so that rounding cannot make one say yes and the other no for ever.
    return life.calls == 0 and life.last_used + life.policy.idle_after <= now


def _closed(life: Lifecycle, event: Closed) -> Event:
    last = life.closing <= {event.generation}
    return Emptied(event.generation, event.error) if last and life.state is State.DISABLING else event
