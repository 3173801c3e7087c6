"""What goes into a server's machine and what comes out of it, as frozen data.

Events are everything that can happen to a server's slot. The slot sends commands, the results of effects, and ticks.
The lifecycle itself makes two kinds: timer events out of a tick, and judgements out of other events. An event about a
dial or a connection carries its generation.

Effects are what the slot must do, and what it must report. It performs them in their order and decides nothing. What it
starts reports back as an event with the same generation or number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from holdfast.core.breaker import BreakerEvent
    from holdfast.core.catalog import Listing
    from holdfast.core.lifecycle.table import State
    from holdfast.core.messages import FailureStatus

__all__ = [
    "AccessChanged",
    "AddressCheckDue",
    "AddressChecked",
    "AllClosed",
    "BreakerChanged",
    "CallCompleted",
    "CallDenial",
    "CallTimedOut",
    "CallTransportFailed",
    "CallWaiting",
    "Cause",
    "CheckAddress",
    "CheckLiveness",
    "ClaimExpired",
    "ClaimGranted",
    "ClaimProbe",
    "Close",
    "CloseFailed",
    "CloseOverdue",
    "Closed",
    "ConfigChanged",
    "Denied",
    "Dial",
    "DialFailed",
    "DialSucceeded",
    "DisableRequested",
    "Effect",
    "Emit",
    "EnableRequested",
    "Event",
    "FailedRepeatedly",
    "IdleDue",
    "ListChanged",
    "LivenessConfirmed",
    "LivenessFailed",
    "LoginSucceeded",
    "OfDial",
    "OfLease",
    "Parked",
    "PeerPublished",
    "PeerRecovered",
    "PeerTripped",
    "Publish",
    "ReconnectRequested",
    "Record",
    "RefreshDue",
    "RefreshFailed",
    "RefreshNow",
    "RefreshSucceeded",
    "Reinstate",
    "ReleaseProbe",
    "RemoveRequested",
    "RetryDue",
    "RetryPlanned",
    "SelfProbeDue",
    "SessionExpired",
    "ShareEvidence",
    "ShutdownRequested",
    "StandingDue",
    "StartRequested",
    "Tick",
    "Transition",
    "TransportLost",
    "WakeAt",
    "WentIdle",
    "Withdraw",
]


@dataclass(frozen=True, slots=True)
class Event:
    """The base class: never sent itself."""


@dataclass(frozen=True, slots=True)
class OfDial(Event):
    """The end of the dial of this generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class OfLease(Event):
    """Something about the connection of this generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """The time that ``WakeAt`` asked for has come."""


# Commands: a person or a program asks something of the server.


@dataclass(frozen=True, slots=True)
class StartRequested(Event):
    """The hub opens."""


@dataclass(frozen=True, slots=True)
class ReconnectRequested(Event):
    """A new connection is asked for, now."""


@dataclass(frozen=True, slots=True)
class EnableRequested(Event):
    """The server is to be used."""


@dataclass(frozen=True, slots=True)
class DisableRequested(Event):
    """The server is not to be used, and its tools are withdrawn."""


@dataclass(frozen=True, slots=True)
class LoginSucceeded(Event):
    """New credentials are available."""


@dataclass(frozen=True, slots=True)
class ConfigChanged(Event):
    """The server's definition changed."""

    lazy: bool = False
    watchable: bool = False


@dataclass(frozen=True, slots=True)
class RemoveRequested(Event):
    """The server is no longer configured."""


@dataclass(frozen=True, slots=True)
class ShutdownRequested(Event):
    """The hub closes."""


# Dials.


@dataclass(frozen=True, slots=True)
class DialSucceeded(OfDial):
    """Connected and listed."""

    listing: Listing


@dataclass(frozen=True, slots=True)
class DialFailed(OfDial):
    """Not connected, or not listed. The dial has closed what it opened."""

    status: FailureStatus
    reason: str = ""
    unreachable: bool = False
    """Nothing listens, the name does not resolve, or the host is silent: a bare TCP connect shows when that changes."""
    answers: bool = False
    """It listens and says that it is not ready (408, 429, 5xx)."""
    unconfirmed: bool = False
    """A denial that states no decision: it may be an outage of the authorization check."""
    neutral: bool = False
    """The definition is wrong, not the server: the breaker does not count it."""
    retry_after: float | None = None
    """The wait that the server asked for; honoured up to a limit."""


# The connection that stands.


@dataclass(frozen=True, slots=True)
class TransportLost(OfLease):
    """The connection is dead: the child exited, or the stream ended."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class SessionExpired(OfLease):
    """The server no longer knows the session and refused a request; nothing failed."""


@dataclass(frozen=True, slots=True)
class ListChanged(Event):
    """The server says that its list changed."""

    generation: int


@dataclass(frozen=True, slots=True)
class RefreshSucceeded(OfLease):
    """Listed again; ``listing`` is None where nothing changed."""

    listing: Listing | None = None


@dataclass(frozen=True, slots=True)
class RefreshFailed(OfLease):
    """A repeated listing failed."""

    status: FailureStatus = "transient"
    reason: str = ""
    unconfirmed: bool = False


@dataclass(frozen=True, slots=True)
class LivenessConfirmed(OfLease):
    """The connection answered a ping."""


@dataclass(frozen=True, slots=True)
class LivenessFailed(OfLease):
    """The connection did not answer a ping."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Closed(Event):
    """A detached connection or dial is closed, cleanly or with an error."""

    generation: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class AddressChecked(Event):
    """One address check ended: a bare TCP connect."""

    number: int
    listening: bool


# Calls.


@dataclass(frozen=True, slots=True)
class CallWaiting(Event):
    """An admitted call needs a connection; a probe does not wait for the backoff."""

    probe: bool = False


@dataclass(frozen=True, slots=True)
class CallCompleted(OfLease):
    """A user's call was answered."""


@dataclass(frozen=True, slots=True)
class CallTransportFailed(OfLease):
    """A call failed at the transport, on a connection that still stands."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class CallDenial(OfLease):
    """A call was denied, on a connection that still stands."""


@dataclass(frozen=True, slots=True)
class CallTimedOut(OfLease):
    """A call had no answer in time."""


# Other replicas. What a peer saw never closes a connection that stands here, and never stops a first dial.


@dataclass(frozen=True, slots=True)
class PeerTripped(Event):
    """A peer could not use the server: its dial failed, or its breaker opened."""

    status: FailureStatus = "transient"
    reason: str = ""
    attempts: int = 0
    """The charged reconnects of the peer."""
    retry_in: float = 0.0
    """Seconds until the next try of the fleet."""
    parked: bool = False
    unreachable: bool = False
    answers: bool = False
    by_calls: bool = False
    """Calls failed on a connection that stands."""


@dataclass(frozen=True, slots=True)
class PeerRecovered(Event):
    """A peer that could not use the server can use it again."""


@dataclass(frozen=True, slots=True)
class PeerPublished(Event):
    """A peer has another listing of the server."""


@dataclass(frozen=True, slots=True)
class ClaimGranted(Event):
    """This replica has the right to probe until that time."""

    until: float


@dataclass(frozen=True, slots=True)
class ClaimExpired(Event):
    """The right to probe ended unused."""


# Timers.


@dataclass(frozen=True, slots=True)
class RetryDue(Event):
    """The wait before the next reconnect is over."""


@dataclass(frozen=True, slots=True)
class SelfProbeDue(Event):
    """The hub's own try of a parked server is due."""


@dataclass(frozen=True, slots=True)
class AddressCheckDue(Event):
    """An address check of a server that refused the connection is due."""


@dataclass(frozen=True, slots=True)
class RefreshDue(Event):
    """The periodic listing is due."""


@dataclass(frozen=True, slots=True)
class StandingDue(Event):
    """The connection has stood long enough to forget earlier failures."""


@dataclass(frozen=True, slots=True)
class IdleDue(Event):
    """A lazy server may have been unused long enough to stop it."""


@dataclass(frozen=True, slots=True)
class CloseOverdue(Event):
    """A close takes longer than its limit."""


# Judgements: what another event amounts to. They say that alone; what happened stays in the event that is judged.


@dataclass(frozen=True, slots=True)
class WentIdle(Event):
    """No connection is needed until the next call."""


@dataclass(frozen=True, slots=True)
class FailedRepeatedly(Event):
    """Too many consecutive failures: the connection still stands and is given up."""


@dataclass(frozen=True, slots=True)
class Parked(Event):
    """The reconnect budget is spent, or the first dial failed permanently: the server is parked."""


@dataclass(frozen=True, slots=True)
class Denied(Event):
    """Loading was denied."""


@dataclass(frozen=True, slots=True)
class AllClosed(Event):
    """The last connection of a server that is being disabled is closed."""


# Effects.


class Cause(Enum):
    """Why a dial is made. Only a reconnect spends the budget."""

    START = "start"
    RECONNECT = "reconnect"
    MANUAL = "manual"
    PROBE = "probe"
    SELF_PROBE = "self_probe"
    PEER = "peer"
    WATCH = "watch"
    FIRST_USE = "first_use"
    SESSION = "session"
    ENABLE = "enable"
    LOGIN = "login"
    CONFIG = "config"


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect and list; report ``DialSucceeded`` or ``DialFailed``."""

    generation: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class Close:
    """Close this connection, or this dial that is under way; report ``Closed``."""

    generation: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send one ``Tick`` at this time instead of the time before; None: no tick."""

    at: float | None


@dataclass(frozen=True, slots=True)
class Publish:
    """This listing is now the server's last good one."""

    listing: Listing


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Withdraw the server's tools: it is disabled, or no longer configured (``removed``)."""

    removed: bool = False


@dataclass(frozen=True, slots=True)
class Reinstate:
    """Show the server's last good listing again, if there is one."""


@dataclass(frozen=True, slots=True)
class CheckAddress:
    """Check the address by one bare TCP connect, now; report ``AddressChecked`` with the same number.

    It ends within a second. A check that is not needed any more is not cancelled: its report is of an older number.
    """

    number: int


@dataclass(frozen=True, slots=True)
class RefreshNow:
    """List again on this connection; report ``RefreshSucceeded`` or ``RefreshFailed``."""

    generation: int


@dataclass(frozen=True, slots=True)
class CheckLiveness:
    """Ping this connection; report ``LivenessConfirmed`` or ``LivenessFailed``."""

    generation: int


@dataclass(frozen=True, slots=True)
class ClaimProbe:
    """Ask the fleet for the right to probe, for use at this time; None: it is not needed any more.

    Report ``ClaimGranted``; without other replicas, or without their store, at once.
    """

    at: float | None
    round: int = 0
    """Counts the tries of this outage: the turn moves on with it."""


@dataclass(frozen=True, slots=True)
class ReleaseProbe:
    """The right to probe was used: no replica needs to try again before ``delay`` seconds have passed."""

    delay: float


@dataclass(frozen=True, slots=True)
class ShareEvidence:
    """Send this event to the other replicas."""

    evidence: Event


@dataclass(frozen=True, kw_only=True)
class Transition:
    """A server changed its state."""

    server: str
    old: State
    new: State
    cause: str
    at: float
    generation: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RetryPlanned:
    """A reconnect is planned after ``delay``; ``attempt`` counts from 1 to the budget.

    ``delay`` is the most: a server that answers, or an address that listens again, is tried sooner.
    """

    server: str
    attempt: int
    delay: float
    at: float


@dataclass(frozen=True, kw_only=True)
class AccessChanged:
    """A call and the listing after it were denied: calls are refused until the next listing. Or that is over."""

    server: str
    denied: bool
    reason: str
    at: float


@dataclass(frozen=True, kw_only=True)
class CloseFailed:
    """An old connection did not close cleanly. This is reported and has no other effect."""

    server: str
    generation: int
    error: str
    at: float


@dataclass(frozen=True, kw_only=True)
class BreakerChanged:
    """A server's breaker opened or closed."""

    server: str
    change: BreakerEvent


Record: TypeAlias = Transition | RetryPlanned | AccessChanged | CloseFailed | BreakerChanged


@dataclass(frozen=True, slots=True)
class Emit:
    """Send this record to the log, the metrics and the status page."""

    record: Record


Effect: TypeAlias = (
    Dial
    | Close
    | WakeAt
    | Publish
    | Withdraw
    | Reinstate
    | CheckAddress
    | RefreshNow
    | CheckLiveness
    | ClaimProbe
    | ReleaseProbe
    | ShareEvidence
    | Emit
)
