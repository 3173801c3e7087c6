"""The life of a server, as one table: state x event -> state.

``MOVES`` is the whole lifecycle at a glance, and what the diagram in the docs is drawn from;
``STAYS`` lists what a state takes without leaving. A pair that stands in neither raises
``IllegalTransition`` before anything has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

from holdfast.core.lifecycle.events import (
    CallCompleted,
    CallFailed,
    CallTimedOut,
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
    LivenessConfirmed,
    LivenessFailed,
    LoginSucceeded,
    LookDue,
    Looked,
    ReconnectRequested,
    RefreshDue,
    RefreshFailed,
    RefreshSucceeded,
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

__all__ = ["MOVES", "STAYS", "TRANSITIONS", "IllegalTransition", "State", "next_state"]


class State(Enum):
    """Where a server stands."""

    DISCONNECTED = "disconnected"
    """Nothing is under way: not started yet, or stopped for good."""
    CONNECTING = "connecting"
    """A dial is under way that no reconnect budget pays for."""
    CONNECTED = "connected"
    """A connection stands."""
    RECONNECTING = "reconnecting"
    """No connection, and the hub is working on it: dialing, or waiting to dial."""
    DENIED = "denied"
    """Loading was refused on policy; nothing is tried until a person changes something."""
    PERMANENTLY_FAILED = "permanently_failed"
    """Parked: tried slowly by itself, and by a call after the cooldown."""
    IDLE = "idle"
    """A lazy server that nobody uses: no connection, its tools listed."""
    DISABLING = "disabling"
    """Switched off; its connection is being closed."""
    DISABLED = "disabled"
    """Switched off."""


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
        Rested: State.IDLE,
        ReconnectRequested: State.CONNECTING,
        DisableRequested: State.DISABLING,
    },
    State.CONNECTING: {
        DialSucceeded: State.CONNECTED,
        DialFailed: State.RECONNECTING,
        GaveUp: State.PERMANENTLY_FAILED,
        Denied: State.DENIED,
        **_ENABLED,
    },
    State.CONNECTED: {
        TransportLost: State.RECONNECTING,
        Faltered: State.RECONNECTING,
        SessionExpired: State.RECONNECTING,
        ReconnectRequested: State.RECONNECTING,
        GaveUp: State.PERMANENTLY_FAILED,
        Denied: State.DENIED,
        Rested: State.IDLE,
        ConfigChanged: State.CONNECTING,
        **_ENABLED,
    },
    State.RECONNECTING: {
        DialSucceeded: State.CONNECTED,
        GaveUp: State.PERMANENTLY_FAILED,
        Denied: State.DENIED,
        ConfigChanged: State.CONNECTING,
        **_ENABLED,
    },
    State.DENIED: {
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
    State.DISABLING: {Emptied: State.DISABLED, CloseOverdue: State.DISABLED, **_ANY},
    State.DISABLED: {EnableRequested: State.CONNECTING, **_ANY},
}

STAYS: Mapping[State, frozenset[type[Event]]] = {
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
            CallFailed,
            CallTimedOut,
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
            LookDue,
            Looked,
            ReconnectRequested,
            EnableRequested,
            LoginSucceeded,
            CallWaiting,
            ListChanged,
            Closed,
        }
    ),
    State.DENIED: frozenset({EnableRequested, Closed}),
    State.PERMANENTLY_FAILED: frozenset(
        {GaveUp, SelfProbeDue, LookDue, Looked, EnableRequested, CallWaiting, ListChanged, Closed}
    ),
    State.IDLE: frozenset({EnableRequested, LoginSucceeded, Closed}),
    State.DISABLING: frozenset(
        {DisableRequested, EnableRequested, ReconnectRequested, LoginSucceeded, ConfigChanged, Closed}
    ),
    State.DISABLED: frozenset({DisableRequested, ReconnectRequested, LoginSucceeded, ConfigChanged, Closed}),
}

TRANSITIONS: Mapping[State, Row] = {state: {**dict.fromkeys(STAYS[state], state), **MOVES[state]} for state in State}


def next_state(state: State, event: type[Event]) -> State:
    """Where this event leads; raises ``IllegalTransition`` for a pair that the table does not have."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(state, event) from None
