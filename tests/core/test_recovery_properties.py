"""How long the hub takes to be back after outages of any length, with the shipped settings, in simulated time."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings, strategies as st

from holdfast.config import ServerSpec, Settings
from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.core.lifecycle.events import AddressChecked, TransportLost
from holdfast.core.lifecycle.table import State
from holdfast.hub.slot import lifecycle_policy
from tests.core.slot_harness import started

EPSILON = 1e-6
MINUTE = 60.0
HTTP = ServerSpec(id="a", transport="http", url="http://a.example/mcp")
STDIO = ServerSpec(id="a", transport="stdio", command="a")
LENGTHS = st.floats(0.001, 7200.0) | st.floats(0.001, 90.0)
CHANCE = st.floats(0.0, 0.999)


def thrifty(*, max_examples: int) -> settings:
    return settings(max_examples=max_examples, derandomize=True, database=None, deadline=None)


class Outage:
    """A server that is away, and what the hub does about it until it is back."""

    def __init__(self, server: ServerSpec, *, known: bool, chance: float = 0.0) -> None:
        self.slot = started(shipped(server))
        self.chance = chance
        self.contacts = 0
        if known:
            self.slot.connect("read")
            self.slot.advance(100.0, chance=chance)
            self.slot.send(TransportLost(self.slot.lease), chance=chance)
        self.known = known
        self.began = self.slot.now

    def last(self, length: float, *, listens_after: float | None = None) -> float:
        """How long the server waited for the hub once it was well again. ``listens_after``: first it answers 503."""
        slot, well_at = self.slot, self.began + length
        listens_at = well_at if listens_after is None else self.began + listens_after
        while True:
            if slot.look is not None:
                self.contacts += 1
                slot.send(AddressChecked(slot.look, listening=slot.now >= listens_at), chance=self.chance)
            elif slot.dial is not None and slot.now >= well_at:
                slot.connect("read")
                assert slot.state() is State.CONNECTED
                return slot.now - well_at
            elif slot.dial is not None:
                self.contacts += 1
                self._refused() if slot.now < listens_at else slot.fail(answers=True)
            else:
                assert slot.wake_at is not None, "the hub tries again"
                slot.sleep(chance=self.chance)

    def _refused(self) -> None:
        if not self.slot.policy.watchable:
            self.slot.fail("transient", "its process exited")
        else:
            self.slot.fail("transient" if self.known else "permanent", "connection refused", unreachable=True)


def shipped(server: ServerSpec) -> LifecyclePolicy:
    return lifecycle_policy(server, Settings())


@pytest.mark.requirement("LIFE-22")
@given(length=LENGTHS, known=st.booleans(), chance=CHANCE)
@example(length=75.0, known=True, chance=0.0)
@example(length=76.1, known=False, chance=0.0)
@example(length=3600.0, known=False, chance=0.0)
@thrifty(max_examples=60)
def test_a_server_that_listens_again_is_back_within_a_second_or_a_tenth_of_its_outage(
    length: float, known: bool, chance: float
) -> None:
    """Nothing listened at its port, or its name did not resolve: both are looked at alike."""
    waited = Outage(HTTP, known=known, chance=chance).last(length)
    assert waited <= (1.0 if length < MINUTE else min(length / 10, 30.0)) + EPSILON


@pytest.mark.requirement("LIFE-22")
@given(length=LENGTHS, known=st.booleans())
@thrifty(max_examples=20)
def test_a_server_that_is_gone_is_not_hammered(length: float, known: bool) -> None:
    """Four looks a second at first if it was up before, and one in half a minute in the end."""
    outage = Outage(HTTP, known=known)
    outage.last(length)
    first_minute = min(length, MINUTE) * (4 if known and length < 10 else 2.5 if known else 1) + 15
    assert outage.contacts <= first_minute + 20 + max(0.0, length - 300.0) / 15


@pytest.mark.requirement("LIFE-22")
@given(length=LENGTHS)
@thrifty(max_examples=20)
def test_a_server_refused_at_cold_start_is_not_dialed_and_looked_at_once_a_second_at_most(length: float) -> None:
    outage = Outage(HTTP, known=False)
    outage.last(length)
    gaps = [later - earlier for earlier, later in zip(outage.slot.looks, outage.slot.looks[1:], strict=False)]
    assert min(gaps, default=1.0) >= 1.0 - EPSILON
    probes = int(length // 240)  # the slow self-probe of a parked server
    assert len(outage.slot.dials) <= 2 + probes


@pytest.mark.requirement("LIFE-25")
@given(length=LENGTHS, known=st.booleans(), chance=CHANCE)
@example(length=76.1, known=False, chance=0.0)
@example(length=76.1, known=True, chance=0.0)
@thrifty(max_examples=40)
def test_a_server_that_answers_that_it_is_not_ready_is_asked_once_in_two_seconds_then_less_often(
    length: float, known: bool, chance: float
) -> None:
    outage = Outage(HTTP, known=known, chance=chance)
    waited = outage.last(length, listens_after=0.0)
    assert waited <= (2.0 if length < MINUTE else min(max(length / 10, 2.0), 30.0)) + EPSILON
    assert outage.contacts <= min(length, MINUTE) / 2 + 10 + 20 + max(0.0, length - 300.0) / 15


@pytest.mark.requirement("LIFE-22", "LIFE-25")
@given(refused=LENGTHS, starting=st.floats(0.001, 600.0), known=st.booleans(), chance=CHANCE)
@thrifty(max_examples=40)
def test_a_server_that_listens_again_and_starts_for_a_while_is_back_soon_after(
    refused: float, starting: float, known: bool, chance: float
) -> None:
    outage = Outage(HTTP, known=known, chance=chance)
    waited = outage.last(refused + starting, listens_after=refused)
    length = refused + starting
    assert waited <= (2.0 if length < MINUTE else min(max(length / 10, 2.0), 30.0)) + EPSILON


@pytest.mark.requirement("LIFE-25")
@given(length=LENGTHS, chance=CHANCE)
@thrifty(max_examples=20)
def test_a_process_that_can_start_again_is_back_within_half_a_minute(length: float, chance: float) -> None:
    """Nothing outside shows that it can: it is started, after 1, 2, 4, 8 and 16 s and then every 30 s."""
    assert Outage(STDIO, known=True, chance=chance).last(length) <= 30.0 + EPSILON
