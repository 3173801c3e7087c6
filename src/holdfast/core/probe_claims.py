"""The right to probe, among replicas: who tries a server that failed, and what the others learn (FLEET-4).

A machine alone has the right always. Among replicas a server that failed is tried by one of them at a time: the machine
asks for a claim where a try would be of use, uses it for one dial or one probe, and gives it back with the time after
which another try makes sense. What the try shows is shared, so that the others need none of their own. The functions
here decide when; ``core.machine`` calls them after each step, and only where replicas share (``policy.claims``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.breaker import Breaker, BreakerState, Refusal, RefusalReason
from holdfast.core.lifecycle.effects import Effect, ReleaseProbe, ShareEvidence
from holdfast.core.lifecycle.events import (
    AddressCheckDue,
    DialFailed,
    DialSucceeded,
    Event,
    PeerRecovered,
    PeerTripped,
    RetryDue,
    SelfProbeDue,
)
from holdfast.core.lifecycle.table import State

if TYPE_CHECKING:
    from holdfast.core.lifecycle.lifecycle import Lifecycle

__all__ = ["claims", "interested", "lacks_claim", "next_try", "planned", "shared"]

_CLAIMS_NOTHING = frozenset({State.DISCONNECTED, State.IDLE, State.DISABLING, State.DISABLED})
_WORTH_A_PROBE = frozenset(
    {RefusalReason.OPEN, RefusalReason.PROBING, RefusalReason.PERMANENTLY_FAILED, RefusalReason.DENIED}
)


def planned(life: Lifecycle, breaker: Breaker, now: float) -> tuple[Effect, ...]:
    """What the machine plans after a step: when to wake, and what to ask for."""
    wake = life.wake()
    return (*wake, *claims(life, breaker, now)) if life.policy.claims else wake


def claims(life: Lifecycle, breaker: Breaker, now: float) -> list[Effect]:
    """Give the right to probe back once it was used or is not needed, and ask for it where it is needed."""
    effects: list[Effect] = []
    if life.claim_until is not None and _is_done(life, breaker):
        life.claim_until, life.claim_used = None, False
        effects.append(ReleaseProbe(next_try(life, breaker, now)))
    return [*effects, *life.ask()]


def _is_done(life: Lifecycle, breaker: Breaker) -> bool:
    if life.stopped or (life.claim_used and life.dial is None and not breaker.probing):
        return True
    well = breaker.state is BreakerState.CLOSED and life.lease is not None
    return well or life.state in _CLAIMS_NOTHING


def next_try(life: Lifecycle, breaker: Breaker, now: float) -> float:
    """Seconds until a replica should try again; 0 if the server can be used."""
    if life.lease is not None:
        return breaker.retry_in(now)
    kinds = (RetryDue, SelfProbeDue, *((AddressCheckDue,) if life.address_watch.answers else ()))
    plans = [at for kind in kinds if (at := life.timers.at(kind)) is not None]
    return max(0.0, min(plans, default=now) - now)


def shared(life: Lifecycle, breaker: Breaker, event: Event, now: float) -> list[Effect]:
    """What the other replicas learn from an event of this one."""
    if isinstance(event, DialSucceeded):
        return [ShareEvidence(PeerRecovered())]
    if not isinstance(event, DialFailed) or life.dial is not None:
        return []
    tripped = PeerTripped(
        status=event.status,
        reason=event.reason,
        attempts=life.attempts,
        retry_in=next_try(life, breaker, now),
        parked=life.state is State.PERMANENTLY_FAILED,
        unreachable=event.unreachable,
        answers=event.answers,
    )
    return [ShareEvidence(tripped)]


def lacks_claim(life: Lifecycle, breaker: Breaker, now: float) -> bool:
    """Whether an admitted call would try a server that failed, without the right to probe."""
    if life.dial is not None or life.may_probe(now):
        return False
    return breaker.would_probe(now) or life.state in (State.PERMANENTLY_FAILED, State.DENIED)


def interested(life: Lifecycle, breaker: Breaker, refusal: Refusal, now: float) -> tuple[Effect, ...]:
    """A refused call shows that the right to probe is of use here once the wait is over."""
    if not life.policy.claims or life.interest_at is not None or refusal.reason not in _WORTH_A_PROBE:
        return ()
    until = {State.DENIED: life.denied_until, State.PERMANENTLY_FAILED: life.parked_until}.get(life.state, now)
    life.interest_at = max(until, now + breaker.retry_in(now))
    return life.ask()
