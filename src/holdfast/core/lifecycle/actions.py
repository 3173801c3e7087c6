"""What follows from each event, once the table has said where it leads.

One function an event; ``act`` finds it (what a connection goes through while it stands is in
``standing.py``). By then the state is the new one and the event is known to be current and allowed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.core.lifecycle.connection import Dialing, Lease
from holdfast.core.lifecycle.effects import (
    Cause,
    CloseFailed,
    Emit,
    Publish,
    Reinstate,
    Reject,
    RejectReason,
    Watch,
    Withdraw,
)
from holdfast.core.lifecycle.events import (
    CallWaiting,
    Closed,
    CloseOverdue,
    ConfigChanged,
    Denied,
    DialFailed,
    DialSucceeded,
    DisableRequested,
    Emptied,
    EnableRequested,
    Event,
    Faltered,
    GaveUp,
    IdleDue,
    ListChanged,
    LoginSucceeded,
    LookDue,
    Looked,
    ReconnectRequested,
    RemoveRequested,
    Rested,
    RetryDue,
    SelfProbeDue,
    SessionExpired,
    ShutdownRequested,
    StandingDue,
    StartRequested,
    TransportLost,
)
from holdfast.core.lifecycle.standing import ON_LEASE, act_on_lease
from holdfast.core.lifecycle.table import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.core.lifecycle.life import Lifecycle, Turn

__all__ = ["act"]


def act(life: Lifecycle, event: Event, turn: Turn) -> None:
    """Do what follows from an event."""
    kind = type(event)
    if kind in _ON_DIAL and life.dial is not None:
        _ON_DIAL[kind](life, life.dial, event, turn)
    elif kind in ON_LEASE and life.lease is not None:
        act_on_lease(life, life.lease, event, turn)
    else:
        _ACTIONS[kind](life, event, turn)


# Commands.


def _start(life: Lifecycle, _: StartRequested, turn: Turn) -> None:
    life.begin_dial(Cause.START, turn)


def _reconnect(life: Lifecycle, event: ReconnectRequested, turn: Turn) -> None:
    if life.state in _OFF:
        turn.do(Reject(event, RejectReason.DISABLED))
    elif life.dial is not None:
        life.dial.cause = Cause.MANUAL
    else:
        life.let_go(turn)
        life.begin_dial(Cause.MANUAL, turn)


def _enable(life: Lifecycle, _: EnableRequested, turn: Turn) -> None:
    if life.state is State.DISABLING:
        life.enable_next = True
    elif life.state is State.CONNECTING and life.dial is None:
        _start_afresh(life)
        turn.do(Reinstate())
        life.begin_dial(Cause.ENABLE, turn)


def _disable(life: Lifecycle, _: DisableRequested, turn: Turn) -> None:
    life.enable_next = False
    if life.state is State.DISABLED or CloseOverdue in life.timers:
        return
    turn.do(Withdraw())
    life.end_watch(turn)
    life.let_go(turn)
    if life.closing:
        life.timers.set(CloseOverdue, turn.now + life.policy.close_patience)
    else:
        turn.do(*life.apply(Emptied(), turn.now, chance=turn.chance))


def _login(life: Lifecycle, _: LoginSucceeded, turn: Turn) -> None:
    if life.dial is not None:
        # It may have been sent with the old credentials; a second dial beside it is not allowed.
        life.dial.again = True
    elif life.state in _TRYING:
        life.begin_dial(Cause.LOGIN, turn)


def _reconfigure(life: Lifecycle, event: ConfigChanged, turn: Turn) -> None:
    life.policy = replace(life.policy, lazy=event.lazy, watchable=event.watchable)
    life.ever_connected = False
    if life.state is State.CONNECTING:
        _start_afresh(life)
        life.end_watch(turn)
        life.let_go(turn)
        life.begin_dial(Cause.CONFIG, turn)


def _remove(life: Lifecycle, _: RemoveRequested, turn: Turn) -> None:
    turn.do(Withdraw(removed=True))
    _stop(life, turn)


def _shut_down(life: Lifecycle, _: ShutdownRequested, turn: Turn) -> None:
    _stop(life, turn)


def _stop(life: Lifecycle, turn: Turn) -> None:
    life.stopped = True
    life.end_watch(turn)
    life.let_go(turn)


def _start_afresh(life: Lifecycle) -> None:
    life.attempts = 0
    life.reason = ""


# Dials.


def _dial_succeeded(life: Lifecycle, dial: Dialing, event: DialSucceeded, turn: Turn) -> None:
    life.dial = None
    life.lease = lease = Lease(dial.generation, dial.cause, listed_at=turn.now, notices=dial.notices)
    life.ever_connected = life.listed = True
    life.last_used = max(life.last_used, turn.now)
    life.end_watch(turn)
    life.timers.set(StandingDue, turn.now + life.policy.standing)
    if life.policy.lazy:
        life.timers.set(IdleDue, turn.now + life.policy.idle_after)
    life.plan_refresh(lease, turn)
    turn.do(Publish(event.generation, event.listing))


def _dial_failed(life: Lifecycle, dial: Dialing, event: DialFailed, turn: Turn) -> None:
    life.charge()
    life.dial = None
    if dial.again:
        life.begin_dial(Cause.LOGIN, turn)
        return
    life.plan_retry(turn, planned=dial.retry_at, retry_after=event.retry_after)
    # One that was up, and cuts off whoever dials it, is most likely restarting: soon it refuses, or is back.
    leaving = event.cut and life.ever_connected and not life.lookout.watching
    transient = event.status == "transient"
    life.plan_look(turn, refused=event.refused or leaving, transient=transient, retry_after=event.retry_after)


def _gave_up(life: Lifecycle, event: GaveUp, turn: Turn) -> None:
    life.charge()
    life.dial = None
    life.let_go(turn)
    life.parked_until = turn.now + life.policy.parked
    life.plan_self_probe(turn)
    life.plan_look(turn, refused=event.refused, transient=event.transient, retry_after=event.retry_after)


def _denied(life: Lifecycle, _: Denied, turn: Turn) -> None:
    life.dial = None
    life.let_go(turn)
    life.end_watch(turn)


def _retry(life: Lifecycle, _: RetryDue, turn: Turn) -> None:
    life.begin_dial(Cause.RECONNECT, turn)


def _self_probe(life: Lifecycle, _: SelfProbeDue, turn: Turn) -> None:
    life.begin_dial(Cause.SELF_PROBE, turn)


def _look(life: Lifecycle, _: LookDue, turn: Turn) -> None:
    if life.lookout.starting:
        life.begin_dial(Cause.WATCH, turn)
    else:
        turn.do(Watch(life.lookout.look(turn.now)))


def _looked(life: Lifecycle, event: Looked, turn: Turn) -> None:
    if event.listening:
        life.lookout.pending = None
        life.begin_dial(Cause.WATCH, turn)
    else:
        life.timers.set(LookDue, life.lookout.not_listening(turn.now, life.policy))


# The connection that stands.


def _lost(life: Lifecycle, _: TransportLost, turn: Turn) -> None:
    life.charge()
    life.let_go(turn)
    if life.hurried_at is None or turn.now - life.hurried_at >= life.policy.standing:
        life.hurried_at = turn.now
        life.begin_dial(Cause.RECONNECT, turn)
    else:
        life.plan_retry(turn, share=1.0 if life.attempts else life.policy.after_loss)


def _faltered(life: Lifecycle, _: Faltered, turn: Turn) -> None:
    life.charge()
    life.let_go(turn)
    life.plan_retry(turn)


def _session_expired(life: Lifecycle, _: SessionExpired, turn: Turn) -> None:
    life.let_go(turn)
    life.begin_dial(Cause.SESSION, turn)


def _list_changed(life: Lifecycle, _: ListChanged, turn: Turn) -> None:
    if life.dial is not None:
        life.dial.notices += 1
    elif life.lease is not None:
        life.lease.notices += 1
        if not life.lease.refreshing:
            life.plan_refresh(life.lease, turn)


def _closed(life: Lifecycle, event: Closed | Emptied, turn: Turn) -> None:
    life.closing.discard(event.generation)
    if event.error:
        turn.do(Emit(CloseFailed(server=life.server, generation=event.generation, error=event.error, at=turn.now)))


def _disabled(life: Lifecycle, event: Emptied | CloseOverdue, turn: Turn) -> None:
    if isinstance(event, Emptied):
        _closed(life, event, turn)
    if life.enable_next:
        life.enable_next = False
        turn.do(*life.apply(EnableRequested(), turn.now, chance=turn.chance))


# Calls.


def _call_waiting(life: Lifecycle, event: CallWaiting, turn: Turn) -> None:
    if life.dial is not None or life.lease is not None:
        return
    if life.state is State.CONNECTING:
        life.begin_dial(Cause.FIRST_USE, turn)
    elif event.probe or life.state is State.PERMANENTLY_FAILED:
        life.begin_dial(Cause.PROBE, turn)


def _idle_later(life: Lifecycle, _: IdleDue, turn: Turn) -> None:
    since = turn.now if life.calls else life.last_used
    life.timers.set(IdleDue, since + life.policy.idle_after)


def _rested(life: Lifecycle, _: Rested, turn: Turn) -> None:
    life.let_go(turn)


_OFF = frozenset({State.DISABLING, State.DISABLED})
_TRYING = frozenset({State.CONNECTING, State.RECONNECTING})

# The key decides the type of the event; no annotation can say that of a mapping.
_ACTIONS: Mapping[type[Event], Callable[[Lifecycle, Any, Turn], None]] = {
    StartRequested: _start,
    ReconnectRequested: _reconnect,
    EnableRequested: _enable,
    DisableRequested: _disable,
    LoginSucceeded: _login,
    ConfigChanged: _reconfigure,
    RemoveRequested: _remove,
    ShutdownRequested: _shut_down,
    GaveUp: _gave_up,
    Denied: _denied,
    RetryDue: _retry,
    SelfProbeDue: _self_probe,
    LookDue: _look,
    Looked: _looked,
    TransportLost: _lost,
    Faltered: _faltered,
    SessionExpired: _session_expired,
    ListChanged: _list_changed,
    Closed: _closed,
    Emptied: _disabled,
    CloseOverdue: _disabled,
    CallWaiting: _call_waiting,
    IdleDue: _idle_later,
    Rested: _rested,
}
_ON_DIAL: Mapping[type[Event], Callable[[Lifecycle, Dialing, Any, Turn], None]] = {
    DialSucceeded: _dial_succeeded,
    DialFailed: _dial_failed,
}
