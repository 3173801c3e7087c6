"""The lifecycle of a server as one table: state x event -> state.

``MOVES`` holds the changes of state; ``diagram`` draws it for the docs (``python -m
holdfast.core.lifecycle.table`` prints it). ``STAYS`` lists the events that leave the state as it is.
A pair in neither raises ``IllegalTransition`` before anything has changed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

from holdfast.core.lifecycle.events import (
    AddressCheckDue,
    AddressChecked,
    AllClosed,
    CallCompleted,
    CallDenial,
    CallTimedOut,
    CallTransportFailed,
    CallWaiting,
    ClaimExpired,
    ClaimGranted,
    Closed,
    CloseOverdue,
    ConfigChanged,
    Denied,
    DialFailed,
    DialSucceeded,
    DisableRequested,
    EnableRequested,
    Event,
    FailedRepeatedly,
    IdleDue,
    ListChanged,
    LivenessConfirmed,
    LivenessFailed,
    LoginSucceeded,
    Parked,
    PeerPublished,
    PeerRecovered,
    PeerTripped,
    ReconnectRequested,
    RefreshDue,
    RefreshFailed,
    RefreshSucceeded,
    RemoveRequested,
    RetryDue,
    SelfProbeDue,
    SessionExpired,
    ShutdownRequested,
    StandingDue,
    StartRequested,
    TransportLost,
    WentIdle,
)

__all__ = ["MOVES", "STAYS", "TRANSITIONS", "IllegalTransition", "State", "diagram", "next_state"]


class State(Enum):
    """The state of a server."""

    __hash__ = object.__hash__  # a member is one object; Enum's own hash is a call in Python for each lookup

    DISCONNECTED = "disconnected"
    """Nothing is under way: not started yet, or stopped."""
    CONNECTING = "connecting"
    """A dial is under way that is not charged to the reconnect budget."""
    CONNECTED = "connected"
    """A connection stands."""
    RECONNECTING = "reconnecting"
    """No connection; the hub dials, or waits for the next dial."""
    DENIED = "denied"
    """Loading was denied: the hub asks again slowly, and a call may ask after the cooldown."""
    PERMANENTLY_FAILED = "permanently_failed"
    """Parked: the reconnect budget is spent. The hub tries it again, and a call may try it after the cooldown."""
    IDLE = "idle"
    """A lazy server that is not in use: no connection, its tools listed."""
    DISABLING = "disabling"
    """Disabled by its user; its connection is being closed."""
    DISABLED = "disabled"
    """Disabled by its user."""

    @property
    def shown(self) -> str:
        """The name that people read: ``permanently_failed`` says only that the budget is spent."""
        return "parked" if self is State.PERMANENTLY_FAILED else self.value


class IllegalTransition(Exception):
    """An event that the table does not allow in this state; nothing has changed."""

    def __init__(self, state: State, event: type[Event]) -> None:
        super().__init__(f"{event.__name__} is not allowed while {state.value}")
        self.state = state
        self.event = event


Row: TypeAlias = Mapping[type[Event], State]

_D = State.DISCONNECTED
_ANY: Row = {ShutdownRequested: _D, RemoveRequested: _D}
_ENABLED: Row = {**_ANY, DisableRequested: State.DISABLING}

MOVES: Mapping[State, Row] = {
    State.DISCONNECTED: {
        StartRequested: State.CONNECTING,
        WentIdle: State.IDLE,
        ReconnectRequested: State.CONNECTING,
        DisableRequested: State.DISABLING,
    },
    State.CONNECTING: {
        DialSucceeded: State.CONNECTED,
        DialFailed: State.RECONNECTING,
        Parked: State.PERMANENTLY_FAILED,
        Denied: State.DENIED,
        **_ENABLED,
    },
    State.CONNECTED: {
        TransportLost: State.RECONNECTING,
        FailedRepeatedly: State.RECONNECTING,
        SessionExpired: State.RECONNECTING,
        ReconnectRequested: State.RECONNECTING,
        Parked: State.PERMANENTLY_FAILED,
        Denied: State.DENIED,
        WentIdle: State.IDLE,
        ConfigChanged: State.CONNECTING,
        **_ENABLED,
    },
    State.RECONNECTING: {
        DialSucceeded: State.CONNECTED,
        Parked: State.PERMANENTLY_FAILED,
        Denied: State.DENIED,
        ConfigChanged: State.CONNECTING,
        **_ENABLED,
    },
    State.DENIED: {
        DialSucceeded: State.CONNECTED,
        DialFailed: State.RECONNECTING,
        Parked: State.PERMANENTLY_FAILED,
        LoginSucceeded: State.CONNECTING,
        ReconnectRequested: State.CONNECTING,
        ConfigChanged: State.CONNECTING,
        **_ENABLED,
    },
    State.PERMANENTLY_FAILED: {
        DialSucceeded: State.CONNECTED,
        DialFailed: State.RECONNECTING,
        Denied: State.DENIED,
        LoginSucceeded: State.CONNECTING,
        ReconnectRequested: State.CONNECTING,
        ConfigChanged: State.CONNECTING,
        **_ENABLED,
    },
    State.IDLE: {
        CallWaiting: State.CONNECTING,
        ReconnectRequested: State.CONNECTING,
        ConfigChanged: State.CONNECTING,
        **_ENABLED,
    },
    State.DISABLING: {AllClosed: State.DISABLED, CloseOverdue: State.DISABLED, **_ANY},
    State.DISABLED: {EnableRequested: State.CONNECTING, **_ANY},
}

_OF_PEERS = frozenset({PeerTripped, PeerRecovered, PeerPublished, ClaimGranted, ClaimExpired})

_STAYS_ALONE: Mapping[State, frozenset[type[Event]]] = {
    State.DISCONNECTED: frozenset(
        {ShutdownRequested, RemoveRequested, EnableRequested, LoginSucceeded, ConfigChanged, Closed}
    ),
    State.CONNECTING: frozenset(
        {ReconnectRequested, EnableRequested, LoginSucceeded, ConfigChanged, CallWaiting, ListChanged, Closed}
    ),
    State.CONNECTED: frozenset(
        {
            EnableRequested,
            LoginSucceeded,
            CallWaiting,
            CallCompleted,
            CallTransportFailed,
            CallTimedOut,
            CallDenial,
            LivenessConfirmed,
            LivenessFailed,
            RefreshDue,
            RefreshSucceeded,
            RefreshFailed,
            ListChanged,
            StandingDue,
            IdleDue,
            Closed,
        }
    ),
    State.RECONNECTING: frozenset(
        {
            DialFailed,
            RetryDue,
            AddressCheckDue,
            AddressChecked,
            ReconnectRequested,
            EnableRequested,
            LoginSucceeded,
            CallWaiting,
            ListChanged,
            Closed,
        }
    ),
    State.DENIED: frozenset({Denied, SelfProbeDue, EnableRequested, CallWaiting, ListChanged, Closed}),
    State.PERMANENTLY_FAILED: frozenset(
        {Parked, SelfProbeDue, AddressCheckDue, AddressChecked, EnableRequested, CallWaiting, ListChanged, Closed}
    ),
    State.IDLE: frozenset({EnableRequested, LoginSucceeded, Closed}),
    State.DISABLING: frozenset(
        {DisableRequested, EnableRequested, ReconnectRequested, LoginSucceeded, ConfigChanged, Closed}
    ),
    State.DISABLED: frozenset({DisableRequested, ReconnectRequested, LoginSucceeded, ConfigChanged, Closed}),
}

STAYS: Mapping[State, frozenset[type[Event]]] = {state: kinds | _OF_PEERS for state, kinds in _STAYS_ALONE.items()}

TRANSITIONS: Mapping[State, Row] = {state: {**dict.fromkeys(STAYS[state], state), **MOVES[state]} for state in State}


def next_state(state: State, event: type[Event]) -> State:
    """The state after this event; ``IllegalTransition`` for a pair that the table does not have."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(state, event) from None


_ENDINGS = frozenset({RemoveRequested, ShutdownRequested})


def diagram() -> str:
    """The table as a Mermaid state diagram, one line for each pair of states."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.DISCONNECTED.shown}"]
    for old, new in itertools.product(MOVES, State):
        events = [event.__name__ for event, to in MOVES[old].items() if to is new and event not in _ENDINGS]
        if events:
            words = (re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower() for name in events)
            lines.append(f"    {old.shown} --> {new.shown}: {', '.join(words)}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())  # noqa: T201 - a command's output; the docs are made from it
