"""A slot without a network: performs a machine's effects by remembering them, in simulated time.

Tests play the network: they say how a dial ends or what a call met. What is known here is known
from the effects alone, never from inside the machine, so that properties can be checked against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holdfast.core.breaker import BreakerPolicy, Outcome, Permit, Refusal
from holdfast.core.catalog import Catalog, Item, Listing
from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.events import (
    AddressChecked,
    CheckAddress,
    Close,
    Dial,
    DialFailed,
    DialSucceeded,
    Effect,
    Emit,
    Event,
    OfDial,
    OfLease,
    Publish,
    Record,
    Reinstate,
    StartRequested,
    Tick,
    WakeAt,
    Withdraw,
)
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Machine
from tests.harness.catalogs import configured

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.core.messages import FailureStatus

SERVER = "files"


@dataclass(frozen=True)
class Asked:
    """A call asked to be admitted."""


@dataclass(frozen=True)
class Settled:
    """A call ended."""

    permit: Permit
    outcome: Outcome


Happening = Event | Asked | Settled


class Property(Protocol):
    """Something that must always hold; ``after`` raises AssertionError where it does not."""

    def before(self, slot: SlotHarness, happening: Happening) -> None: ...

    def after(self, slot: SlotHarness, happening: Happening, effects: tuple[Effect, ...]) -> None: ...


class SlotHarness:
    """One machine, its events and its effects."""

    def __init__(
        self,
        *,
        lifecycle: LifecyclePolicy | None = None,
        breaker: BreakerPolicy | None = None,
        listed: bool = False,
        machine_type: type[Machine] = Machine,
        properties: Iterable[Property] = (),
    ) -> None:
        self.machine = machine_type(SERVER, lifecycle=lifecycle, breaker=breaker, listed=listed)
        self.policy = lifecycle or LifecyclePolicy()
        self.properties = tuple(properties)
        self.now = 0.0
        self.wake_at: float | None = None
        self.dial: Dial | None = None
        self.dials: list[Dial] = []
        self.open: set[int] = set()
        self.connection: int | None = None
        self.look: int | None = None
        self.looks: list[float] = []
        self.catalog = configured(Catalog(), SERVER)
        self.records: list[Record] = []
        self.permits: list[Permit] = []
        self.decision: Permit | Refusal | None = None

    # What happens.

    def send(self, event: Event, *, chance: float = 0.0) -> tuple[Effect, ...]:
        """An event arrives."""
        self._before(event)
        known = self.is_current(event)
        if isinstance(event, DialSucceeded):
            self.open.add(event.generation)
        if isinstance(event, OfDial) and known:
            self.dial = None
        if isinstance(event, AddressChecked) and known:
            self.look = None
        effects = self.machine.handle(event, self.now, chance=chance)
        if isinstance(event, DialSucceeded) and known:
            self.connection = event.generation
        return self._after(event, effects)

    def call(self) -> Permit | Refusal:
        """A call asks to be admitted."""
        self._before(Asked())
        self.decision, effects = self.machine.admit(self.now)
        if isinstance(self.decision, Permit):
            self.permits.append(self.decision)
        self._after(Asked(), effects)
        return self.decision

    def permit(self) -> Permit:
        """A call asks and is admitted."""
        decision = self.call()
        assert isinstance(decision, Permit), decision
        return decision

    def refusal(self) -> Refusal:
        """A call asks and is refused."""
        decision = self.call()
        assert isinstance(decision, Refusal), decision
        return decision

    def settle(self, permit: Permit, outcome: Outcome, reason: str = "") -> tuple[Effect, ...]:
        """A call ends."""
        happening = Settled(permit, outcome)
        self._before(happening)
        effects = self.machine.settle(permit, outcome, self.now, reason=reason)
        if permit in self.permits:
            self.permits.remove(permit)
        return self._after(happening, effects)

    def complete_call(self) -> tuple[Effect, ...]:
        """A call asks, is admitted, and is answered."""
        return self.settle(self.permit(), Outcome.COMPLETED)

    def advance(self, seconds: float, *, chance: float = 0.0) -> list[Effect]:
        """Time passes; every wake-up call on the way is kept."""
        until = self.now + seconds
        effects: list[Effect] = []
        while self.wake_at is not None and self.wake_at <= until:
            self.now = max(self.now, self.wake_at)
            self.wake_at = None
            effects += self.send(Tick(), chance=chance)
        self.now = until
        return effects

    def sleep(self, *, chance: float = 0.0) -> list[Effect]:
        """Until the next wake-up call, if there is one."""
        return [] if self.wake_at is None else self.advance(max(0.0, self.wake_at - self.now), chance=chance)

    # How dials end.

    def connect(self, *tools: str) -> tuple[Effect, ...]:
        """The dial that is under way succeeds and lists these tools."""
        assert self.dial is not None, "nothing is being dialed"
        generation = self.dial.generation
        return self.send(DialSucceeded(generation, listing(generation, *tools)))

    def fail(
        self,
        status: FailureStatus = "transient",
        reason: str = "no luck",
        *,
        unreachable: bool = False,
        answers: bool = False,
        unconfirmed: bool = False,
        neutral: bool = False,
        retry_after: float | None = None,
    ) -> tuple[Effect, ...]:
        """The dial that is under way fails."""
        assert self.dial is not None, "nothing is being dialed"
        generation = self.dial.generation
        return self.send(
            DialFailed(
                generation,
                status,
                reason,
                unreachable=unreachable,
                answers=answers,
                unconfirmed=unconfirmed,
                neutral=neutral,
                retry_after=retry_after,
            )
        )

    def fail_until_parked(self, status: FailureStatus = "transient", *, unreachable: bool = False) -> int:
        """Every dial fails from now on; how many it took. The clock stops at the last one."""
        failed = 0
        while self.state() is not State.PERMANENTLY_FAILED:
            while self.dial is None:
                self.sleep()
                if self.look is not None:
                    self.send(AddressChecked(self.look, listening=False))
            self.fail(status, unreachable=unreachable)
            failed += 1
        return failed

    # What is known.

    def is_current(self, happening: Happening) -> bool:
        """Whether it comes from the dial that is under way, the connection that stands, or neither."""
        match happening:
            case OfDial(generation=generation):
                return self.dial is not None and self.dial.generation == generation
            case OfLease(generation=generation):
                return self.connection == generation
            case AddressChecked(number=number):
                return self.look == number
            case Settled(permit=permit):
                return permit.connection is not None and permit.connection == self.connection
        return True

    def state(self) -> State:
        """Where the server stands; a call, so that no type checker believes it stays."""
        return self.machine.state

    @property
    def lease(self) -> int:
        """The connection that stands."""
        assert self.connection is not None
        return self.connection

    @property
    def tools(self) -> set[str]:
        """The tools that the catalog lists."""
        return {entry.original for entry in self.catalog.tools}

    def _before(self, happening: Happening) -> None:
        for each in self.properties:
            each.before(self, happening)

    def _after(self, happening: Happening, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        for effect in effects:
            self.perform(effect)
        for each in self.properties:
            each.after(self, happening, effects)
        return effects

    def perform(self, effect: Effect) -> None:
        match effect:
            case Dial():
                self.dial, self.look = effect, None  # what a look shows is old news by then
                self.dials.append(effect)
            case Close(generation=generation):
                self.open.discard(generation)
                if self.dial is not None and self.dial.generation == generation:
                    self.dial = None
                if self.connection == generation:
                    self.connection = None
            case WakeAt(at=at):
                self.wake_at = at
            case Publish(listing=new):
                self.catalog = self.catalog.publish(new)
            case Withdraw(removed=removed):
                self.look = None
                self.catalog = self.catalog.remove(SERVER) if removed else self.catalog.withdraw(SERVER)
            case Reinstate():
                self.catalog = self.catalog.reinstate(SERVER)
            case CheckAddress(number=number):
                self.look = number
                self.looks.append(self.now)
            case Emit(record=record):
                self.records.append(record)


def listing(generation: int, *tools: str) -> Listing:
    """A listing of these tools."""
    return Listing(server=SERVER, generation=generation, tools=tuple(Item(tool) for tool in tools))


def started(lifecycle: LifecyclePolicy | None = None, *, listed: bool = False) -> SlotHarness:
    """A slot whose server is being dialed for the first time."""
    slot = SlotHarness(lifecycle=lifecycle, listed=listed)
    slot.send(StartRequested())
    return slot


def connected(lifecycle: LifecyclePolicy | None = None) -> SlotHarness:
    """A slot whose server is connected and lists two tools."""
    slot = started(lifecycle)
    slot.connect("read", "write")
    return slot
