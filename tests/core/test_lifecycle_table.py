from __future__ import annotations

import pytest

from holdfast.core.lifecycle import events
from holdfast.core.lifecycle.events import DialFailed, DialSucceeded, Event, StartRequested
from holdfast.core.lifecycle.lease_state import ON_LEASE
from holdfast.core.lifecycle.lifecycle import _ACTIONS, _ON_DIAL, Lifecycle
from holdfast.core.lifecycle.table import MOVES, STAYS, TRANSITIONS, IllegalTransition, State, next_state

ROOTS = {events.Event, events.OfDial, events.OfLease, events.Tick}
EVENTS = [
    kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event) and kind not in ROOTS
]


@pytest.mark.requirement("LIFE-2")
def test_the_states_are_the_nine_that_people_are_told_of() -> None:
    assert {state.value for state in State} == {
        "connecting",
        "connected",
        "reconnecting",
        "disconnected",
        "denied",
        "disabling",
        "disabled",
        "permanently_failed",
        "idle",
    }


@pytest.mark.requirement("LIFE-2")
@pytest.mark.parametrize("state", State)
def test_every_state_has_a_row_and_a_way_out(state: State) -> None:
    assert set(MOVES[state].values()) - {state}
    assert not set(MOVES[state]) & STAYS[state]


@pytest.mark.requirement("LIFE-2")
@pytest.mark.parametrize("state", State)
def test_every_state_can_be_reached_and_connected_can_be_reached_from_it(state: State) -> None:
    assert state in reachable(State.DISCONNECTED)
    assert State.CONNECTED in reachable(state)


def reachable(start: State) -> set[State]:
    seen = {start}
    while new := {to for state in seen for to in MOVES[state].values()} - seen:
        seen |= new
    return seen


@pytest.mark.requirement("LIFE-2")
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", EVENTS, ids=lambda kind: kind.__name__)
def test_a_pair_that_the_table_does_not_have_is_an_error(state: State, event: type[Event]) -> None:
    if event in TRANSITIONS[state]:
        assert isinstance(next_state(state, event), State)
    else:
        with pytest.raises(IllegalTransition, match=f"{event.__name__} is not allowed while {state.value}"):
            next_state(state, event)


@pytest.mark.requirement("LIFE-2")
def test_an_event_that_is_not_allowed_changes_nothing() -> None:
    life = Lifecycle("files")
    life.apply(StartRequested(), 0.0)
    before = repr(life), life.dial, life.timers.earliest()

    with pytest.raises(IllegalTransition):
        life.apply(StartRequested(), 1.0)

    assert (repr(life), life.dial, life.timers.earliest()) == before


def test_every_event_in_the_table_has_an_action_and_every_action_an_event() -> None:
    acted_upon = set(_ACTIONS) | set(_ON_DIAL) | ON_LEASE
    assert acted_upon == {event for row in TRANSITIONS.values() for event in row} == set(EVENTS)


def test_a_dial_can_end_in_every_state_that_dials() -> None:
    for state in (State.CONNECTING, State.RECONNECTING, State.PERMANENTLY_FAILED):
        assert {DialSucceeded, DialFailed, events.Denied, events.Parked} <= set(TRANSITIONS[state])
