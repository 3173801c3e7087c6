"""Breaker and lifecycle of one server, together: the one object that a slot asks.

Theory of operation. Two questions are kept apart. The breaker decides whether a call may try; the lifecycle decides
whether the hub itself tries. Both learn from the same events, in one step, so they never disagree about what happened:

* ``handle`` takes an event: the lifecycle changes its state and returns effects, then the breaker learns of it
  (``_learn``). An event of an older connection is dropped before either sees it. An event that the table does not allow
  raises ``IllegalTransition``, and nothing has changed.
* ``admit`` asks the state first (disabled, denied and parked servers refuse by themselves), then the breaker. A call
  that is admitted without a connection is an event too: it may start a dial.
* ``settle`` takes the permit of a call back, with what the call showed of the server. Most calls change nothing, and
  most return here at once: no timer has moved.

One event in the world is one failure, whichever parts notice it: the breaker's rules for that are in breaker.py.
Everything is pure. Time and chance are arguments; the slot performs the effects. Among replicas, a
machine needs the right to try a server that failed.

Where the server is behind another hub, both know the connection to that hub alone. What that hub tells of the server is
kept beside them, for as long as the connection lasts. It changes what is shown, never what is decided: the hub that has
the server also has its breaker and its lifecycle.

The right to probe (FLEET-4). A machine alone has it always. Among replicas a server that failed is tried by one of them
at a time: the machine asks for a claim where a try would be of use, uses it for one dial or one probe, and gives it
back with the time after which another try makes sense. What the try shows is shared, so that the others need none of
their own. The functions at the end decide when, after each step, and only where replicas share (``policy.claims``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.breaker import (
    Breaker,
    BreakerEvent,
    BreakerPolicy,
    BreakerState,
    ClosedAgain,
    Outcome,
    Permit,
    Refusal,
    RefusalReason,
    Tripped,
)
from holdfast.core.lifecycle.backoff import to_milliseconds
from holdfast.core.lifecycle.events import (
    AccessChanged,
    AddressCheckDue,
    BreakerChanged,
    CallCompleted,
    CallDenial,
    CallTimedOut,
    CallTransportFailed,
    CallWaiting,
    Cause,
    CheckLiveness,
    ConfigChanged,
    DialFailed,
    DialSucceeded,
    DisableRequested,
    Effect,
    Emit,
    Event,
    LivenessConfirmed,
    LivenessFailed,
    LoginSucceeded,
    PeerRecovered,
    PeerTripped,
    ReconnectRequested,
    Record,
    RefreshDue,
    RefreshSucceeded,
    ReleaseProbe,
    RetryDue,
    RetryPlanned,
    SelfProbeDue,
    SessionExpired,
    ShareEvidence,
    StandingDue,
    Tick,
    Transition,
    TransportLost,
)
from holdfast.core.lifecycle.lifecycle import Lifecycle, Step, adopt_policy
from holdfast.core.lifecycle.table import State
from holdfast.core.messages import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.core.hub_record import ServerRecord
    from holdfast.core.lifecycle.backoff import LifecyclePolicy
    from holdfast.core.messages import FailureStatus, ServerStatus

__all__ = ["Health", "Machine"]


@dataclass(frozen=True, kw_only=True)
class Health:
    """The health of a server at one moment."""

    server: str
    state: State
    reason: str
    generation: int | None
    """The connection that stands, if one does."""
    failures: int
    attempts: int
    breaker: BreakerState
    retry_in: float | None
    """Seconds until the hub itself tries or checks the address again; 0 during a dial, None without a plan."""
    evidence: FailureStatus | None = None
    """The class of the latest failure; None while nothing failed."""
    lost: bool = False
    """Whether it was up in this run and is not connected now."""
    spent: bool = False
    """Whether it is not connected, and its reconnect budget is spent: also while it is dialed on request."""
    down_for: float | None = None
    """Seconds since it was last connected, or since it should be; None while it is connected or off."""
    unconfirmed: bool = False
    """Whether a denial states no decision, and is asked again soon."""
    call_asks_in: float | None = None
    """Seconds until a server that refuses calls is asked again, for calls to pass or by one; None unless it does."""
    breaker_retry_in: float | None = None
    """Seconds until a call may try again; None unless the breaker is open."""
    calls: int = 0
    """The calls that were admitted and have not ended."""

    @property
    def status(self) -> ServerStatus:
        """The server in one word. Permanent needs permanent evidence; a server that refuses calls is not available."""
        match self.state:
            case State.CONNECTED if self.call_asks_in is not None:
                return "denied"
            case State.CONNECTED:
                return "available" if self.breaker is BreakerState.CLOSED else "transient"
            case State.PERMANENTLY_FAILED:
                return "permanent" if self.evidence == "permanent" else "transient"
            case state:
                return _STATUS[state]

    @property
    def shown_state(self) -> str:
        """The state as every view names it; the Python API keeps the name of the enum."""
        return self.state.shown

    @property
    def next_try(self) -> float | None:
        """Seconds until the next try, by the hub or by a call."""
        if self.state is State.CONNECTED:
            return self.breaker_retry_in if self.call_asks_in is None else self.call_asks_in
        # On transient evidence the hub tries soon. Once calls may try (0), only its own try has a time.
        soon = self.status == "transient" and self.retry_in is not None
        ahead = None if soon else self.call_asks_in or None
        return min((seconds for seconds in (self.retry_in, ahead) if seconds is not None), default=None)

    @property
    def failure(self) -> Failure | None:
        """What is wrong, for the words of ``messages``; None if it is available, idle or off."""
        status = self.status
        if status not in ("transient", "permanent", "denied"):
            return None
        return Failure(
            self.server,
            status,
            self.reason,
            calls_fail=self.state is State.CONNECTED and status != "denied",
            lost=self.lost,
            spent=self.spent or self.state is State.PERMANENTLY_FAILED,
            unconfirmed=self.unconfirmed,
            down_for=self.down_for,
            retry_in=self.next_try,
            call_asks=self.call_asks_in == 0.0,
            in_hub=True,
        )


class Machine:
    """One server's breaker and lifecycle. The slot's owner is its only caller."""

    def __init__(
        self,
        server: str,
        *,
        breaker: BreakerPolicy | None = None,
        lifecycle: LifecyclePolicy | None = None,
        listed: bool = False,
    ) -> None:
        self.breaker = Breaker(breaker)
        self.life = Lifecycle(server, lifecycle, listed=listed)
        self.failed_call = ""
        """Why the latest call failed: the reason while the breaker is open and the connection stands."""
        self._mirrored: tuple[ServerRecord, float] | None = None
        """What the hub behind the connection told, and when; None while its server is available. It ends with the
        connection."""

    def __repr__(self) -> str:
        return f"<Machine {self.life!r} {self.breaker!r}>"

    @property
    def state(self) -> State:
        """The state of the server."""
        return self.life.state

    @property
    def connection(self) -> int | None:
        """The generation of the connection that stands, if one does."""
        return self.life.lease.generation if self.life.lease is not None else None

    @property
    def dialing(self) -> int | None:
        """The generation of the dial that is under way, if one is."""
        return self.life.dial.generation if self.life.dial is not None else None

    def handle(self, event: Event, now: float, *, chance: float = 0.0) -> tuple[Effect, ...]:
        """Take an event. ``IllegalTransition``: the table forbids it, and nothing changed."""
        # A tick stands for every timer that is due. Each is an event of its own, in the order of their times.
        events = self.life.due(now) if isinstance(event, Tick) else (event,)
        # `due` is a generator, and it must be: an event of one timer may drop or set other timers, so the next one is
        # taken out only when the one before it has been handled.
        effects = [effect for each in events for effect in self._take(each, now, chance)]
        return (*effects, *_planned(self.life, self.breaker, now))

    def adopt(
        self, breaker: BreakerPolicy, lifecycle: LifecyclePolicy, now: float, *, chance: float = 0.0
    ) -> tuple[Effect, ...]:
        """Use other policies from now on; the connection and a dial under way stay as they are."""
        if self.life.stopped:
            return ()
        self.breaker.adopt(breaker)
        step = Step(now, chance)
        adopt_policy(self.life, lifecycle, step)
        return (*step.effects, *_planned(self.life, self.breaker, now))

    def admit(self, now: float) -> tuple[Permit | Refusal, tuple[Effect, ...]]:
        """May a call try? A call that is admitted without a connection waits for one, and may start a dial."""
        life, breaker = self.life, self.breaker
        lease = life.lease
        well = lease is not None and not lease.call_denied and breaker.state is BreakerState.CLOSED
        decision: Permit | Refusal | None = None if well else _shut(self, now)  # most calls are well
        if decision is None:
            decision = breaker.admit(now, lease.generation if lease is not None else None)
            if isinstance(decision, Refusal):
                decision = _explained(self, decision, now)
        if isinstance(decision, Refusal):
            return decision, _interested(life, breaker, decision, now)
        # Counted from the permit to its settlement, so waits count too: a lazy server must not be stopped under a call
        # that waits for it.
        life.calls += 1
        life.last_used = now
        # One claim is one try: the result goes to the other replicas, and they decide who is next.
        if decision.probe and life.claim_until is not None:
            life.claim_used = True
        return decision, () if decision.connection is not None else self.handle(CallWaiting(decision.probe), now)

    def settle(
        self, permit: Permit, outcome: Outcome, now: float, *, chance: float = 0.0, reason: str = ""
    ) -> tuple[Effect, ...]:
        """Take a permit back; a call that was never sent proves nothing."""
        if permit.settled:
            return ()
        self.life.calls -= 1
        self.life.last_used = now
        connection = permit.connection
        if connection is None:
            self.breaker.settle(permit, Outcome.NEUTRAL, now)
            return tuple(_claims(self.life, self.breaker, now))
        # The reason of a lost connection is kept by the lifecycle; this one is for a connection that stands.
        if outcome is Outcome.TRANSPORT_FAILURE:
            self.failed_call = reason
        # The breaker first: an event below may detach the connection, and late outcomes count nothing then.
        change = self.breaker.settle(permit, outcome, now)
        lease, routine = self.life.lease, outcome is Outcome.NEUTRAL
        if outcome is Outcome.COMPLETED and lease is not None:
            # A completed call on a proven connection without failures changes nothing.
            # Else it proves the connection, ends a row of failures, or shows that calls are no longer denied.
            routine = lease.proven and not lease.failures and not lease.call_denied
        if change is None and routine and not permit.probe:
            return ()  # no timer has changed either: most calls end here
        effects = self._changed(change)
        if not routine:
            event = _EVENTS[outcome](connection, reason)
            effects += self._take(event, now, chance)
        return (*effects, *_planned(self.life, self.breaker, now))

    def mirror(self, record: ServerRecord | None, generation: int, now: float) -> tuple[Effect, ...]:
        """The hub behind this connection tells how its server is; None if it tells nothing that can be read."""
        if generation != self.connection:
            return ()  # told over a connection that is lost
        # Compared as people see it: the records are those that the same change would have made here.
        before = self.health(now)
        # An available server behind the hub needs no mirror: then the health of the connection is that of the server.
        self._mirrored = (record, now) if record is not None and not record.is_available else None
        return tuple(Emit(one) for one in _changes(before, self.health(now), now))

    @property
    def told(self) -> ServerRecord | None:
        """What the hub behind the present connection told, if its server is not available."""
        return self._mirrored[0] if self._mirrored is not None else None

    def health(self, now: float) -> Health:
        """The server's health: as the hub behind the connection tells it, where only that hub has something to tell."""
        own, mirrored = self._own_health(now), self._mirrored
        if mirrored is None or own.status != "available":
            return own
        record, told_at = mirrored
        return record.seen_from(own, age=now - told_at)

    def _own_health(self, now: float) -> Health:
        life = self.life
        lease = life.lease
        denial = lease.shut if lease is not None else None
        return Health(
            server=life.server,
            state=life.state,
            reason=_reason(self),
            generation=self.connection,
            failures=lease.failures if lease is not None else 0,
            attempts=life.attempts,
            breaker=self.breaker.state,
            retry_in=_shown(_retry_in(self, now)),
            breaker_retry_in=_shown(self.breaker.retry_in(now)) if self.breaker.state is BreakerState.OPEN else None,
            evidence=life.evidence if denial is None else "denied",
            # A server that was ended on purpose, to be started again, has no reason and is not lost.
            lost=life.ever_connected and lease is None and (bool(life.reason) or life.state is not State.CONNECTING),
            spent=lease is None and life.attempts >= len(life.policy.backoff),
            down_for=_shown(max(0.0, now - life.down_since)) if life.down_since is not None else None,
            unconfirmed=denial.unconfirmed if denial is not None else life.state is State.DENIED and life.unconfirmed,
            call_asks_in=_shown(_call_asks_in(self, now)),
            calls=life.calls,
        )

    def _take(self, event: Event, now: float, chance: float) -> list[Effect]:
        if self.life.is_stale(event):
            return self.life.discard(event)
        lease, before = self.life.lease, self.connection
        unused = lease is not None and lease.cause is Cause.SESSION and not lease.proven
        if isinstance(event, SessionExpired) and unused:
            # One expiry is normal. A session that expires right after its renewal is a lost connection, for both.
            event = TransportLost(event.generation, "its sessions expire as soon as they are made")
        # Read before the lifecycle applies the event, which may change it.
        suspect = lease is not None and lease.suspect
        effects = self.life.apply(event, now, chance=chance)
        if isinstance(event, LivenessFailed) and suspect:
            # The check that a failed call asked for shows that its connection is dead.
            effects += self._changed(self.breaker.lost(event.generation, now))
        else:
            effects += self._changed(_learn(self, event, now))
        # After the breaker has learned: a call of the old connection that fails later is the same failure (BRK-2).
        if before is not None and before != self.connection:
            self.breaker.detached(before)
            self._mirrored = None
        return effects + _shared(self.life, event, now)

    def _changed(self, change: BreakerEvent | None) -> list[Effect]:
        """What follows from a change of the breaker, if there is one."""
        if change is None:
            return []
        emitted: list[Effect] = [Emit(BreakerChanged(server=self.life.server, change=change))]
        if isinstance(change, Tripped):
            emitted += _check_suspect(self.life, failures=self.breaker.policy.threshold)
            if self.life.policy.claims and self.breaker.by_calls:
                tripped = PeerTripped(reason=self.failed_call, retry_in=change.retry_in, by_calls=True)
                emitted.append(ShareEvidence(tripped))
        elif self.life.policy.claims and self.life.lease is not None:
            emitted.append(ShareEvidence(PeerRecovered()))
        return emitted


def _check_suspect(life: Lifecycle, *, failures: int) -> list[Effect]:
    """Check the liveness of a connection that the breaker holds responsible for earlier failures.

    The breaker has tripped, though fewer than ``failures`` calls failed on this connection.
    """
    lease = life.lease
    if lease is None or lease.failures + 1 >= failures:
        return []
    checking, lease.checking, lease.suspect = lease.checking, True, True
    return [] if checking else [CheckLiveness(lease.generation)]


def _reason(machine: Machine) -> str:
    lease = machine.life.lease
    if lease is None or (lease.shut is None and machine.breaker.state is BreakerState.CLOSED):
        return machine.life.reason
    return lease.shut.reason if lease.shut is not None else machine.failed_call


def _call_asks_in(machine: Machine, now: float) -> float | None:
    """Seconds until a server that refuses calls is asked again: by a call, or by the listing that they wait for."""
    life = machine.life
    if life.state in _REFUSED_IN:
        return max(0.0, life.refuses_until - now, machine.breaker.retry_in(now))
    if life.lease is None or life.lease.shut is None:
        return None
    listing_at = life.timers.get(RefreshDue)
    return max(0.0, listing_at - now) if listing_at is not None else 0.0


def _retry_in(machine: Machine, now: float) -> float | None:
    if machine.life.dial is not None:
        return 0.0
    if machine.life.waiting is not None:
        return machine.breaker.policy.probe_wait  # the right to probe comes, or the result of the peer that has it
    at = _next_look(machine.life)
    return max(0.0, at - now) if at is not None else None


def _next_look(life: Lifecycle) -> float | None:
    """When the hub itself looks at a server that failed: by a try, or by a check of its address."""
    plans = [life.timers.get(kind) for kind in (RetryDue, SelfProbeDue, AddressCheckDue)]
    return min((at for at in plans if at is not None), default=None)


def _learn(machine: Machine, event: Event, now: float) -> BreakerEvent | None:
    """Tell the breaker about an event that the lifecycle has taken."""
    breaker = machine.breaker
    match event:
        case DialSucceeded():
            return breaker.connected(event.generation, now)
        case DialFailed():
            return breaker.connect_failed(now, neutral=event.status == "denied" or event.neutral)
        case TransportLost():
            return breaker.lost(event.generation, now)
        case LivenessFailed():
            return breaker.unanswered(event.generation, now)
        case LivenessConfirmed() | RefreshSucceeded():
            breaker.answered(event.generation)
        case StandingDue():
            breaker.stood()
        case PeerTripped(by_calls=True):
            breaker.warned(now)
        case PeerRecovered():
            breaker.hasten(now)
        case ReconnectRequested() | LoginSucceeded():
            return breaker.close(now)
        case DisableRequested() | ConfigChanged():
            return breaker.reset(now)
    return None


def _shut(machine: Machine, now: float) -> Refusal | None:
    """The refusal by a state that admits no calls, or for the right to probe, before the breaker is asked."""
    life = machine.life
    reason = _SHUT.get(life.state)
    if reason is not None:
        return Refusal(reason, None)
    # After that time calls are admitted again: the first of them starts a dial, and the others join it.
    if life.state in _REFUSED_IN and now < life.refuses_until:
        return Refusal(_REFUSED_IN[life.state], _or_sooner(machine, _call_asks_in(machine, now), now))
    if life.lease is not None and life.lease.shut is not None:
        wait = max(_call_asks_in(machine, now) or 0.0, machine.breaker.policy.probe_wait)
        return Refusal(RefusalReason.DENIED, wait)
    # Last: only a call that nothing else refuses would try the server.
    if _lacks_claim(life, machine.breaker, now):
        return _explained(machine, Refusal(RefusalReason.PROBING, machine.breaker.policy.probe_wait), now)
    return None


def _explained(machine: Machine, refusal: Refusal, now: float) -> Refusal:
    reason = _REFUSED_IN.get(machine.life.state, refusal.reason)
    # Only a call closes a breaker that calls opened: a try of the hub's own does not help.
    wait = refusal.retry_in if machine.breaker.by_calls else _or_sooner(machine, refusal.retry_in, now)
    return Refusal(reason, wait)


def _or_sooner(machine: Machine, wait: float | None, now: float) -> float | None:
    """Seconds until a call may try, or until the hub itself tries: after its success calls pass at once.

    The hub's own try takes some time, so the answer is never shorter than ``probe_wait``.
    """
    plan = _retry_in(machine, now)
    if wait is None or plan is None:
        return wait
    return min(wait, max(plan, machine.breaker.policy.probe_wait))


_SHUT: Mapping[State, RefusalReason] = {
    State.DISCONNECTED: RefusalReason.STOPPED,
    State.DISABLING: RefusalReason.DISABLED,
    State.DISABLED: RefusalReason.DISABLED,
}
_REFUSED_IN: Mapping[State, RefusalReason] = {
    State.PERMANENTLY_FAILED: RefusalReason.PERMANENTLY_FAILED,
    State.DENIED: RefusalReason.DENIED,
}
_STATUS: Mapping[State, ServerStatus] = {
    State.CONNECTING: "transient",
    State.RECONNECTING: "transient",
    State.DENIED: "denied",
    State.IDLE: "idle",
    State.DISCONNECTED: "idle",
    State.DISABLING: "disabled",
    State.DISABLED: "disabled",
}
_EVENTS: Mapping[Outcome, Callable[[int, str], Event]] = {
    Outcome.COMPLETED: lambda connection, _: CallCompleted(connection),
    Outcome.TRANSPORT_FAILURE: CallTransportFailed,
    Outcome.CONNECTION_LOST: TransportLost,
    Outcome.DENIED: lambda connection, _: CallDenial(connection),
    Outcome.TIMED_OUT: lambda connection, _: CallTimedOut(connection),
}


def _shown(seconds: float | None) -> float | None:
    return to_milliseconds(seconds) if seconds is not None else None


def _changes(before: Health, after: Health, now: float) -> list[Record]:
    """The records of a change that another hub told: the ones that the same change would have made here."""
    server = after.server
    if before.state is not after.state:
        moved = Transition(
            server=server,
            old=before.state,
            new=after.state,
            cause="ToldByHub",
            at=now,
            generation=after.generation or 0,
            reason=after.reason,
        )
        return [moved]
    changed: list[Record] = []
    if (before.breaker is BreakerState.CLOSED) is not (after.breaker is BreakerState.CLOSED):
        retry_in = after.breaker_retry_in or 0.0
        opened = Tripped(at=now, failures=after.failures, retry_in=retry_in, refused=0)
        closed = ClosedAgain(at=now, refused=0)
        is_closed = after.breaker is BreakerState.CLOSED
        changed.append(BreakerChanged(server=server, change=closed if is_closed else opened))
    if after.state is State.CONNECTED and (before.status == "denied") is not (after.status == "denied"):
        denied = after.status == "denied"
        changed.append(AccessChanged(server=server, denied=denied, reason=after.reason, at=now))
    if after.attempts > before.attempts:
        changed.append(RetryPlanned(server=server, attempt=after.attempts, delay=after.retry_in or 0.0, at=now))
    return changed


_CLAIMS_NOTHING = frozenset({State.DISCONNECTED, State.IDLE, State.DISABLING, State.DISABLED})
_WORTH_A_PROBE = frozenset(
    {RefusalReason.OPEN, RefusalReason.PROBING, RefusalReason.PERMANENTLY_FAILED, RefusalReason.DENIED}
)


def _planned(life: Lifecycle, breaker: Breaker, now: float) -> tuple[Effect, ...]:
    """What the machine plans after a step: when to wake, and what to ask for."""
    return (*life.wake(), *_claims(life, breaker, now))


def _claims(life: Lifecycle, breaker: Breaker, now: float) -> list[Effect]:
    """Give the right to probe back once it was used or is not needed, and ask for it where it is needed."""
    effects: list[Effect] = []
    if life.claim_until is not None and _is_done(life, breaker):
        life.claim_until, life.claim_used = None, False
        effects.append(ReleaseProbe(_free_in(life, breaker, now)))
    return [*effects, *life.ask()]


def _is_done(life: Lifecycle, breaker: Breaker) -> bool:
    if life.stopped or (life.claim_used and life.dial is None and breaker.probe is None):
        return True
    # A server that is well needs no probe: the right was granted for an outage that is over.
    well = breaker.state is BreakerState.CLOSED and life.lease is not None
    return well or life.state in _CLAIMS_NOTHING


def _free_in(life: Lifecycle, breaker: Breaker, now: float) -> float:
    """Seconds until a replica may have the right to probe again; 0 if the server can be used.

    A check that sees a watched address listen is followed by a try at once, so the right is free by then.
    """
    if life.lease is not None:
        return breaker.retry_in(now)
    return max(0.0, (_next_look(life) or now) - now)


def _shared(life: Lifecycle, event: Event, now: float) -> list[Effect]:
    """What the other replicas learn from an event of this one."""
    if not life.policy.claims:
        return []
    if isinstance(event, DialSucceeded):
        return [ShareEvidence(PeerRecovered())]
    if not isinstance(event, DialFailed) or life.dial is not None:
        return []
    tripped = PeerTripped(
        status=event.status,
        reason=event.reason,
        attempts=life.attempts,
        retry_in=max(0.0, min(life.planned_tries(), default=now) - now),
        parked=life.state is State.PERMANENTLY_FAILED,
        unreachable=event.unreachable,
        answers=event.answers,
    )
    return [ShareEvidence(tripped)]


def _lacks_claim(life: Lifecycle, breaker: Breaker, now: float) -> bool:
    """Whether an admitted call would try a server that failed, without the right to probe."""
    if life.dial is not None or life.may_probe(now):
        return False
    return breaker.would_probe(now) or life.state in _REFUSED_IN


def _interested(life: Lifecycle, breaker: Breaker, refusal: Refusal, now: float) -> tuple[Effect, ...]:
    """A refused call shows that the right to probe is of use here once the wait is over.

    While a connection stands the hub plans no try of its own: then only calls ask for the right.
    """
    if life.interest_at is not None or refusal.reason not in _WORTH_A_PROBE:
        return ()
    until = life.refuses_until if life.state in _REFUSED_IN else now
    life.interest_at = max(until, now + breaker.retry_in(now))
    return life.ask()
