"""Breaker and lifecycle together, under everything that can happen in any order, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.core.breaker import BreakerPolicy, Outcome
from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.events import (
    AddressChecked,
    Closed,
    ConfigChanged,
    DialFailed,
    DialSucceeded,
    DisableRequested,
    EnableRequested,
    Event,
    ListChanged,
    LivenessConfirmed,
    LivenessFailed,
    LoginSucceeded,
    ReconnectRequested,
    RefreshFailed,
    RefreshSucceeded,
    RemoveRequested,
    SessionExpired,
    ShutdownRequested,
    StartRequested,
    TransportLost,
)
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Machine
from holdfast.core.messages import FailureStatus
from tests.core.mutants import MUTANTS
from tests.core.pinned import MACHINE, play
from tests.core.properties import PROPERTIES, Watcher
from tests.core.slot_harness import SlotHarness, listing

SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=50,
    stateful_step_count=60,
    report_multiple_bugs=False,
    # A mutant need only be caught, not explained.
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)

TOOLS = st.lists(st.sampled_from(["read", "write", "list", "stat"]), unique=True)
STATUSES: st.SearchStrategy[FailureStatus] = st.sampled_from(["transient", "transient", "permanent", "denied"])
CHANCE = st.sampled_from([0.0, 0.5, 0.99])

# Steps hold plain values, so that a pinned example can be written down: events are told by name.
NEWS: dict[str, Callable[[int], Event]] = {
    "lost": TransportLost,
    "expired": SessionExpired,
    "refresh failed": RefreshFailed,
    "alive": LivenessConfirmed,
    "dead": LivenessFailed,
    "list changed": ListChanged,
    "refreshed": lambda generation: RefreshSucceeded(generation, listing(generation)),
    "dialed": lambda generation: DialSucceeded(generation, listing(generation)),
    "dial failed": lambda generation: DialFailed(generation, "transient"),
}
OLD_NEWS = st.sampled_from([name for name in NEWS if name != "alive"])
OF_THE_CONNECTION = st.sampled_from(["lost", "expired", "refresh failed", "alive", "dead", "list changed"])
COMMANDS: dict[str, Event] = {
    "reconnect": ReconnectRequested(),
    "login": LoginSucceeded(),
    "enable": EnableRequested(),
    "disable": DisableRequested(),
    "shut down": ShutdownRequested(),
    "remove": RemoveRequested(),
}


class Anything(RuleBasedStateMachine):
    """All that can happen to a slot. The slot checks the properties after each step."""

    machine_type: ClassVar[type[Machine]] = Machine
    watched: ClassVar[tuple[type[Watcher], ...]] = PROPERTIES

    @initialize(lazy=st.booleans(), watchable=st.booleans(), listed=st.booleans())
    def begin(self, lazy: bool, watchable: bool, listed: bool) -> None:
        self.slot = SlotHarness(
            lifecycle=LifecyclePolicy(lazy=lazy, watchable=watchable, idle_after=90.0),
            listed=listed,
            machine_type=self.machine_type,
            properties=[kind() for kind in self.watched],
        )
        self.slot.send(StartRequested())

    # Time.

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 5.0, 29.0, 31.0, 61.0, 400.0]), chance=CHANCE)
    def time_passes(self, seconds: float, chance: float) -> None:
        self.slot.advance(seconds, chance=chance)

    @rule(chance=CHANCE)
    def the_timer_rings(self, chance: float) -> None:
        self.slot.sleep(chance=chance)

    @rule(times=st.sampled_from([1, 2, 3, 6, 130]), unreachable=st.booleans(), answers=st.booleans())
    def an_outage(self, times: int, unreachable: bool, answers: bool) -> None:
        slot = self.slot
        if slot.connection is not None:
            slot.send(TransportLost(slot.connection))
        for _ in range(times):
            if slot.dial is not None:
                slot.fail(unreachable=unreachable, answers=answers and not unreachable)
            if slot.look is not None:
                slot.send(AddressChecked(slot.look, listening=False))
            slot.sleep()

    @rule(times=st.sampled_from([1, 2, 5, 8]), unconfirmed=st.booleans())
    def a_denial(self, times: int, unconfirmed: bool) -> None:
        slot = self.slot
        for _ in range(times):
            if slot.dial is not None:
                slot.fail("denied", unconfirmed=unconfirmed)
            if slot.state() is State.DENIED:
                slot.sleep()

    @rule(tools=TOOLS, deaths=st.integers(0, 2))
    def it_comes_up_and_perhaps_dies(self, tools: list[str], deaths: int) -> None:
        for _ in range(deaths + 1):
            self._bring_up(tools)
            if deaths and self.slot.connection is not None:
                self.slot.send(TransportLost(self.slot.lease))

    def _bring_up(self, tools: list[str]) -> None:
        slot = self.slot
        slot.send(EnableRequested())
        for generation in sorted(slot.machine.life.closing):
            slot.send(Closed(generation))
        if slot.connection is None and slot.dial is None:
            slot.sleep()
        if slot.dial is not None:
            slot.connect(*tools)

    # Dials.

    @precondition(lambda self: self.slot.dial is not None)
    @rule(tools=TOOLS)
    def a_dial_succeeds(self, tools: list[str]) -> None:
        self.slot.connect(*tools)

    @precondition(lambda self: self.slot.dial is not None)
    @rule(
        status=STATUSES, kind=st.sampled_from(["", "unreachable", "answers", "unconfirmed", "neutral"]), chance=CHANCE
    )
    def a_dial_fails(self, status: FailureStatus, kind: str, chance: float) -> None:
        assert self.slot.dial is not None
        kinds = {kind: True} if kind else {}
        self.slot.send(DialFailed(self.slot.dial.generation, status, "", **kinds), chance=chance)

    @precondition(lambda self: self.slot.look is not None)
    @rule(listening=st.booleans())
    def a_look_ends(self, listening: bool) -> None:
        self.slot.send(AddressChecked(self.slot.look or 0, listening=listening))

    @rule(generation=st.integers(1, 8), error=st.sampled_from(["", "it hung"]))
    def a_close_ends(self, generation: int, error: str) -> None:
        if generation in self.slot.machine.life.closing:
            self.slot.send(Closed(generation, error))

    # The connection that stands.

    @precondition(lambda self: self.slot.connection is not None)
    @rule(tools=st.none() | TOOLS)
    def a_refresh_succeeds(self, tools: list[str] | None) -> None:
        lease = self.slot.lease
        self.slot.send(RefreshSucceeded(lease, None if tools is None else listing(lease, *tools)))

    @precondition(lambda self: self.slot.connection is not None)
    @rule(news=OF_THE_CONNECTION, chance=CHANCE)
    def something_of_the_connection(self, news: str, chance: float) -> None:
        self.slot.send(NEWS[news](self.slot.lease), chance=chance)

    @rule(news=OLD_NEWS, back=st.integers(1, 3), first=st.booleans())
    def something_of_an_older_one(self, news: str, back: int, first: bool) -> None:
        slot = self.slot
        if first and slot.connection is not None:
            slot.send(ReconnectRequested())
            slot.connect("read")
        older = len(slot.dials) - back
        if older > 0 and older not in {slot.connection, slot.dial.generation if slot.dial else None}:
            slot.send(NEWS[news](older))

    # Commands.

    @rule(command=st.sampled_from(["reconnect", "login", "enable", "enable", "disable"]))
    def a_command(self, command: str) -> None:
        self.slot.send(COMMANDS[command])

    @rule(lazy=st.booleans(), watchable=st.booleans())
    def another_definition(self, lazy: bool, watchable: bool) -> None:
        self.slot.send(ConfigChanged(lazy, watchable))

    @rule(command=st.sampled_from(["shut down", "remove"]), really=st.integers(0, 12))
    def the_end(self, command: str, really: int) -> None:
        if really == 12:
            self.slot.send(COMMANDS[command])

    # Calls.

    @rule(count=st.integers(1, 3))
    def calls_ask(self, count: int) -> None:
        for _ in range(count):
            self.slot.call()

    @precondition(lambda self: self.slot.connection is not None)
    @rule(slower=st.integers(0, 2), callers=st.integers(1, 3))
    def calls_trip_the_breaker_and_others_ask_after_the_cooldown(self, slower: int, callers: int) -> None:
        self.calls_ask(3 + slower)
        for permit in self.slot.permits[-3:]:
            self.slot.settle(permit, Outcome.TRANSPORT_FAILURE)
        self.slot.advance(60.0)
        self.calls_ask(callers)

    @precondition(lambda self: self.slot.connection is not None)
    @rule(which=st.integers(0, 5))
    def a_waiting_call_is_sent(self, which: int) -> None:
        waiting = [permit for permit in self.slot.permits if permit.connection is None]
        for permit in waiting[which : which + 1]:
            permit.connection = self.slot.connection

    @rule(which=st.integers(0, 5), outcome=st.sampled_from(Outcome))
    def a_call_ends(self, which: int, outcome: Outcome) -> None:
        for permit in self.slot.permits[which : which + 1]:
            self.slot.settle(permit, outcome)

    @rule()
    def every_call_fails(self) -> None:
        for permit in list(self.slot.permits):
            self.slot.settle(permit, Outcome.TRANSPORT_FAILURE)


@pytest.mark.requirement(
    "BRK-2", "BRK-5", "BRK-6", "BRK-7", "BRK-10", "LIFE-2", "LIFE-3", "LIFE-4", "LIFE-5", "LIFE-6", "LIFE-13",
    "LIFE-22",
)  # fmt: skip
def test_every_property_holds_after_every_event() -> None:
    run_state_machine_as_test(Anything, settings=SETTINGS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_property_holds_in_a_longer_search() -> None:
    run_state_machine_as_test(Anything, settings=settings(SETTINGS, max_examples=1_000))


class LifecycleAlone(Machine):
    """The breaker never trips: the lifecycle alone keeps its bounds."""

    def __init__(self, server: str, **options: Any) -> None:
        super().__init__(server, **{**options, "breaker": BreakerPolicy(threshold=1_000_000)})


class Alone(Anything):
    machine_type = LifecycleAlone


@pytest.mark.requirement("LIFE-2", "LIFE-3", "LIFE-4", "LIFE-5", "LIFE-6", "LIFE-13", "LIFE-22")
def test_every_property_holds_of_the_lifecycle_alone() -> None:
    run_state_machine_as_test(Alone, settings=settings(SETTINGS, max_examples=20))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_property_holds_of_the_lifecycle_alone_in_a_longer_search() -> None:
    run_state_machine_as_test(Alone, settings=settings(SETTINGS, max_examples=500))


def test_every_property_has_a_mutant() -> None:
    assert {watcher for watcher, _ in MUTANTS} == set(PROPERTIES)
    assert set(PROPERTIES) == set(Watcher.__subclasses__())


def _watched(watcher: type[Watcher], machine: type[Machine] = Machine) -> type[Anything]:
    return type("Watched", (Anything,), {"machine_type": machine, "watched": (watcher,)})


with_mutants = pytest.mark.parametrize(
    ("watcher", "mutant"), MUTANTS, ids=[f"{watcher.__name__}-{mutant.__name__}" for watcher, mutant in MUTANTS]
)


@with_mutants
def test_a_property_catches_its_mutant(watcher: type[Watcher], mutant: type[Machine]) -> None:
    steps = MACHINE[f"{watcher.__name__}-{mutant.__name__}"]
    play(_watched(watcher), steps)
    with pytest.raises(AssertionError, match=watcher.__name__):
        play(_watched(watcher, mutant), steps)


@pytest.mark.long
@with_mutants
def test_a_search_finds_the_mutant(watcher: type[Watcher], mutant: type[Machine]) -> None:
    with pytest.raises(AssertionError, match=watcher.__name__):
        run_state_machine_as_test(_watched(watcher, mutant), settings=settings(SETTINGS, max_examples=1_000))
