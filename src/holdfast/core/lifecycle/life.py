"""One server's lifecycle: takes events, changes its state by the table, answers with effects.

This file holds what a server is at any moment and the few things that can be done with it;
``judge.py`` says what an event amounts to, ``actions.py`` what follows from it. Pure: no I/O,
no clock, no tasks. Time and chance are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.core.backoff import RETRY_AFTER_CAP
from holdfast.core.lifecycle import actions
from holdfast.core.lifecycle.connection import Dialing, Lease
from holdfast.core.lifecycle.effects import (
    Cause,
    CheckLiveness,
    Close,
    Dial,
    Effect,
    Emit,
    Reject,
    RejectReason,
    RetryPlanned,
    StopWatch,
    Transition,
    WakeAt,
)
from holdfast.core.lifecycle.events import (
    Closed,
    Command,
    DialSucceeded,
    Event,
    ListChanged,
    LookDue,
    Looked,
    OfDial,
    OfLease,
    RefreshDue,
    RetryDue,
    SelfProbeDue,
    Tick,
)
from holdfast.core.lifecycle.judge import judge
from holdfast.core.lifecycle.policy import LifecyclePolicy, shortened
from holdfast.core.lifecycle.table import TRANSITIONS, State, next_state
from holdfast.core.lifecycle.timers import Timers
from holdfast.core.lifecycle.watch import Lookout

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Lifecycle", "Turn"]


@dataclass(slots=True)
class Turn:
    """One event being handled: the time, the chance, and what has to be done so far."""

    now: float
    chance: float
    effects: list[Effect] = field(default_factory=list)

    def do(self, *effects: Effect) -> None:
        """Add what is to be done."""
        self.effects += effects


class Lifecycle:
    """The state of one server's slot, and nothing but decisions about it."""

    def __init__(self, server: str, policy: LifecyclePolicy | None = None, *, listed: bool = False) -> None:
        self.server = server
        self.policy = policy or LifecyclePolicy()
        self.state = State.DISCONNECTED
        self.reason = ""
        self.generation = 0
        self.attempts = 0
        self.listed = listed
        self.ever_connected = False
        self.stopped = False
        self.enable_next = False
        self.hurried_at: float | None = None
        self.parked_until = 0.0
        self.dial: Dialing | None = None
        self.lease: Lease | None = None
        self.closing: set[int] = set()
        self.calls = 0
        self.last_used = 0.0
        self.timers = Timers()
        self.lookout = Lookout()
        self._armed: float | None = None

    def __repr__(self) -> str:
        attempt = f" attempt={self.attempts}" if self.attempts else ""
        return f"<Lifecycle {self.server!r} {self.state.value}{attempt} gen={self.generation}>"

    def handle(self, event: Event, now: float, *, chance: float = 0.0) -> tuple[Effect, ...]:
        """Take an event; ``IllegalTransition`` means that the table forbids it and nothing changed."""
        events = self.due(now) if isinstance(event, Tick) else (event,)
        effects = [effect for each in events for effect in self.apply(each, now, chance=chance)]
        return (*effects, *self.wake())

    def apply(self, event: Event, now: float, *, chance: float = 0.0) -> list[Effect]:
        """The same for any event but a tick, and without asking to be woken."""
        if self.is_stale(event):
            return self._discard(event)
        judged = judge(self, event, now)
        new = next_state(self.state, type(judged))
        turn = Turn(now, chance)
        self._move(new, judged, turn)
        actions.act(self, judged, turn)
        return turn.effects

    def due(self, now: float) -> Iterator[Event]:
        """The timer events that are due, each after the one before has been handled."""
        self._armed = None
        while (event := self.timers.pop(now)) is not None:
            yield event

    def wake(self) -> tuple[WakeAt, ...]:
        """The next wake-up call, if it is another one than before."""
        earliest = self.timers.earliest()
        if earliest == self._armed:
            return ()
        self._armed = earliest
        return (WakeAt(earliest),)

    def is_stale(self, event: Event) -> bool:
        """Whether the event comes from a dial, a connection or a look that is not the current one."""
        if self.stopped:
            return not isinstance(event, Closed)
        match event:
            case OfDial(generation=generation):
                return self.dial is None or self.dial.generation != generation
            case Looked(look=look):
                return self.lookout.pending != look
            case ListChanged(generation=generation):
                return generation not in self._live()
            case OfLease(generation=generation):
                return self.lease is None or self.lease.generation != generation
        return False

    # What can be done with it. Only judge.py and actions.py call these.

    def begin_dial(self, cause: Cause, turn: Turn) -> None:
        """Dial, now; every other plan to do so waits for the end of it."""
        retry_at = self.timers.at(RetryDue)
        self.timers.drop(RetryDue, SelfProbeDue, LookDue)
        self.stop_look(self.lookout.interrupt(), turn)
        self.generation += 1
        self.dial = Dialing(self.generation, cause, retry_at=retry_at)
        turn.do(Dial(self.generation, cause))

    def let_go(self, turn: Turn) -> None:
        """Detach the connection and the dial, if there are any; then have them closed."""
        live = self._live()
        self.lease = self.dial = None
        self.closing.update(live)
        turn.do(*[Close(generation) for generation in live])

    def plan_retry(
        self, turn: Turn, *, share: float = 1.0, planned: float | None = None, retry_after: float | None = None
    ) -> None:
        """Wait (or a share of it), then reconnect; at the time that was planned already, if it is still to come."""
        delay = shortened(share * self.policy.backoff[self.attempts], self.policy, turn.chance)
        if planned is not None and planned > turn.now:
            delay = planned - turn.now
        delay = max(delay, min(retry_after or 0.0, RETRY_AFTER_CAP))
        self.timers.set(RetryDue, turn.now + delay)
        turn.do(Emit(RetryPlanned(server=self.server, attempt=self.attempts + 1, delay=delay, at=turn.now)))

    def plan_self_probe(self, turn: Turn) -> None:
        """Try a parked server by itself, one day."""
        if self.policy.self_probe is not None:
            delay = shortened(self.policy.self_probe, self.policy, turn.chance)
            self.timers.set(SelfProbeDue, turn.now + delay)

    def plan_look(self, turn: Turn, *, refused: bool, transient: bool, retry_after: float | None) -> None:
        """Look for a server that refused; one that did and has begun to answer is dialed for a while, until it is well.

        Anything else that is wrong cannot be seen from outside.
        """
        at: float | None = None
        if refused and self.policy.watchable:
            at = self.lookout.refused(turn.now, self.policy, known=self.ever_connected)
        elif transient and self.lookout.watching:
            at = self.lookout.not_well(turn.now, self.policy)
        if at is None:
            self.end_watch(turn)
        else:
            self.timers.set(LookDue, max(at, turn.now + min(retry_after or 0.0, RETRY_AFTER_CAP)))

    def end_watch(self, turn: Turn) -> None:
        """The outage that was watched is over."""
        self.timers.drop(LookDue)
        self.stop_look(self.lookout.end(), turn)

    def stop_look(self, look: int | None, turn: Turn) -> None:
        """Call off the look that is under way, if there is one."""
        if look is not None:
            turn.do(StopWatch(look))

    def plan_refresh(self, lease: Lease, turn: Turn) -> None:
        """List again: soon if the server said that its list changed, else when the period is over."""
        if lease.notices > lease.covered:
            # A listing that fails is not repeated at full pace: the third failure gives the connection up.
            spacing = self.policy.refresh_spacing * 2**lease.failures
            self.timers.hasten(RefreshDue, max(turn.now, lease.listed_at + spacing))
        elif self.policy.refresh is not None:
            self.timers.set(RefreshDue, turn.now + shortened(self.policy.refresh, self.policy, turn.chance))

    def doubt(self, *, failures: int) -> list[Effect]:
        """Calls are refused from now on, though fewer than ``failures`` of them failed on this connection:
        the rest came before it. See whether it answers.
        """
        lease = self.lease
        if lease is None or lease.failures + 1 >= failures:
            return []
        checking, lease.checking, lease.doubted = lease.checking, True, True
        return [] if checking else [CheckLiveness(lease.generation)]

    def owed(self) -> int:
        """What the budget is charged if the current dial fails, or the current connection dies, now.

        Only a reconnect is charged. One whose connection dies before it has stood counts as failed.
        """
        if self.dial is not None:
            return int(self.dial.cause is Cause.RECONNECT and not self.dial.again)
        if self.lease is not None:
            return int(self.lease.cause is Cause.RECONNECT and not self.lease.firm)
        return 0

    def charge(self) -> None:
        """Spend what is owed."""
        self.attempts = min(self.attempts + self.owed(), len(self.policy.backoff))

    def spent(self) -> bool:
        """Whether the budget is used up once what is owed is charged."""
        return self.attempts + self.owed() >= len(self.policy.backoff)

    def settle_down(self, lease: Lease) -> None:
        """The connection has proved itself: the budget is whole again."""
        self.attempts = 0
        lease.firm = True

    def _live(self) -> list[int]:
        return [part.generation for part in (self.lease, self.dial) if part is not None]

    def _move(self, new: State, event: Event, turn: Turn) -> None:
        old, self.state = self.state, new
        reason: str = getattr(event, "reason", "")
        if new is not State.CONNECTED:
            self.reason = reason or self.reason
        if new is old:
            return
        if new in _WELL:
            self.reason = ""
        self.timers.keep(TRANSITIONS[new])
        turn.do(
            Emit(
                Transition(
                    server=self.server,
                    old=old,
                    new=new,
                    cause=type(event).__name__,
                    at=turn.now,
                    generation=self.generation,
                    reason=reason,
                )
            )
        )

    def _discard(self, event: Event) -> list[Effect]:
        if isinstance(event, DialSucceeded):
            # Nobody else knows of this connection: left alone it would live for ever.
            self.closing.add(event.generation)
            return [Close(event.generation)]
        if isinstance(event, Command):
            return [Reject(event, RejectReason.STOPPED)]
        return []


_WELL = frozenset({State.CONNECTED, State.IDLE, State.DISABLING})
