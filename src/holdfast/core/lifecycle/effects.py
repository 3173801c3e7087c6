"""What the slot must do, and what it must report: the lifecycle's answers, as frozen data.

The slot performs effects in their order and decides nothing. What it starts reports back
as an event with the same generation or number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from holdfast.core.breaker import BreakerEvent
    from holdfast.core.catalog import Listing
    from holdfast.core.lifecycle.events import Event
    from holdfast.core.lifecycle.table import State

__all__ = [
    "AccessChanged",
    "BreakerChanged",
    "Cause",
    "CheckAddress",
    "CheckLiveness",
    "ClaimProbe",
    "Close",
    "CloseFailed",
    "Dial",
    "Effect",
    "Emit",
    "Publish",
    "Record",
    "RefreshNow",
    "Reinstate",
    "ReleaseProbe",
    "RetryPlanned",
    "ShareEvidence",
    "Transition",
    "WakeAt",
    "Withdraw",
]


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

    generation: int
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
