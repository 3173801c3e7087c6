"""Everything that can happen to a server's slot, as frozen data.

The shell sends commands, the ends of what it was told to do, and ticks. The timers' events come
out of a tick, and the judgements at the end of this file are made by ``judge.py`` out of what
was sent; neither is sent by the shell. Whatever concerns a dial or a connection carries its generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.catalog import Listing
    from holdfast.core.messages import FailureStatus

__all__ = [
    "CallCompleted",
    "CallFailed",
    "CallTimedOut",
    "CallWaiting",
    "CloseOverdue",
    "Closed",
    "Command",
    "ConfigChanged",
    "Denied",
    "DialFailed",
    "DialSucceeded",
    "DisableRequested",
    "Emptied",
    "EnableRequested",
    "Event",
    "Faltered",
    "GaveUp",
    "IdleDue",
    "ListChanged",
    "LivenessConfirmed",
    "LivenessFailed",
    "LoginSucceeded",
    "LookDue",
    "Looked",
    "OfDial",
    "OfLease",
    "ReconnectRequested",
    "RefreshDue",
    "RefreshFailed",
    "RefreshSucceeded",
    "RemoveRequested",
    "Rested",
    "RetryDue",
    "SelfProbeDue",
    "SessionExpired",
    "ShutdownRequested",
    "StandingDue",
    "StartRequested",
    "Tick",
    "TransportLost",
]


@dataclass(frozen=True, slots=True)
class Event:
    """The root: never sent itself."""


@dataclass(frozen=True, slots=True)
class Command(Event):
    """Somebody wants something of the server."""


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


# Commands.


@dataclass(frozen=True, slots=True)
class StartRequested(Command):
    """The hub opens."""


@dataclass(frozen=True, slots=True)
class ReconnectRequested(Command):
    """Somebody asks for a new connection now."""


@dataclass(frozen=True, slots=True)
class EnableRequested(Command):
    """The server is to be used."""


@dataclass(frozen=True, slots=True)
class DisableRequested(Command):
    """The server is not to be used, and its tools are to go."""


@dataclass(frozen=True, slots=True)
class LoginSucceeded(Command):
    """New credentials are there."""


@dataclass(frozen=True, slots=True)
class ConfigChanged(Command):
    """The server's definition is another one now."""

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
    """Not connected, or not listed; the dial has cleaned up after itself."""

    status: FailureStatus
    reason: str = ""
    refused: bool = False
    """Nothing listens: a bare TCP connect will show when that changes."""
    cut: bool = False
    """It listened, and the connection was cut before an answer: it may just be going away."""
    neutral: bool = False
    """The definition is at fault, not the server: says nothing to the breaker."""
    retry_after: float | None = None
    """The wait that the server asked for; honoured within reason."""


# The connection that stands.


@dataclass(frozen=True, slots=True)
class TransportLost(OfLease):
    """The connection is dead: the child exited, or the stream ended."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class SessionExpired(OfLease):
    """The server forgot the session and refused a request for it; nothing failed."""


@dataclass(frozen=True, slots=True)
class ListChanged(Event):
    """The server says that its list is another one now."""

    generation: int


@dataclass(frozen=True, slots=True)
class RefreshSucceeded(OfLease):
    """Listed again; ``listing`` is None where nothing changed."""

    listing: Listing | None = None


@dataclass(frozen=True, slots=True)
class RefreshFailed(OfLease):
    """Could not be listed again."""

    status: FailureStatus = "transient"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LivenessConfirmed(OfLease):
    """The connection answered a ping."""


@dataclass(frozen=True, slots=True)
class LivenessFailed(OfLease):
    """The connection did not answer a ping."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Closed(Event):
    """A connection or a dial that was given up is gone, cleanly or with an error."""

    generation: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Looked(Event):
    """One bare TCP connect was tried."""

    look: int
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
class CallFailed(OfLease):
    """A call failed at the transport, on a connection that still stands."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class CallTimedOut(OfLease):
    """A call had no answer in time."""


# Timers.


@dataclass(frozen=True, slots=True)
class RetryDue(Event):
    """The wait before the next reconnect is over."""


@dataclass(frozen=True, slots=True)
class SelfProbeDue(Event):
    """A parked server is due for a try."""


@dataclass(frozen=True, slots=True)
class LookDue(Event):
    """A server that refused the connection is due for a look."""


@dataclass(frozen=True, slots=True)
class RefreshDue(Event):
    """The listing is due to be read again."""


@dataclass(frozen=True, slots=True)
class StandingDue(Event):
    """The connection has stood long enough to forget the past."""


@dataclass(frozen=True, slots=True)
class IdleDue(Event):
    """A lazy server may have been unused for long enough."""


@dataclass(frozen=True, slots=True)
class CloseOverdue(Event):
    """A close takes longer than anyone will wait."""


# Judgements.


@dataclass(frozen=True, slots=True)
class Rested(Event):
    """No connection is needed until the next call."""


@dataclass(frozen=True, slots=True)
class Faltered(Event):
    """Failed too often in a row: the connection still stands, and is given up."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class GaveUp(Event):
    """The budget is spent, or there was no hope from the start."""

    reason: str = ""
    refused: bool = False
    transient: bool = False
    """The dial that failed last might have gone well a moment later."""
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Denied(Event):
    """Loading was refused on policy: trying again will not change it."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Emptied(Event):
    """The last connection that was being closed is gone."""

    generation: int = 0
    error: str = ""
