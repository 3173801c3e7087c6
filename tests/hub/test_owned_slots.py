"""The connections of clients of their own, by their owner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.config import Settings
from holdfast.core import events as on
from holdfast.hub.owned_slots import ClientOwners, OwnedSlots, _Own
from holdfast.hub.slot import SlotKey


class Owner:
    """Counts how often it is looked at."""

    looks = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        Owner.looks += 1
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        Owner.looks += 1
        return isinstance(other, Owner) and other.name == self.name


class StubSlot:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[on.Event] = []

    def handle(self, event: on.Event) -> None:
        self.events.append(event)


def _of(owners: list[Owner]) -> tuple[OwnedSlots, dict[tuple[str, str], Any]]:
    slots, stubs = OwnedSlots(ClientOwners()), {}
    for owner in owners:
        for server in ("a", "b"):
            stub: Any = StubSlot()
            stubs[owner.name, server] = stub
            slots._own[SlotKey(server, "client", owner)] = _Own(stub, expires=False, principal="", unused_since=0.0)
            slots.servers_of.setdefault(owner, set()).add(server)
    return slots, stubs


@pytest.mark.requirement("PERF-4")
@pytest.mark.parametrize("act", ["release", "keep"])
@pytest.mark.parametrize("known", [True, False])
def test_what_is_done_for_one_client_looks_at_no_other(act: str, known: bool) -> None:
    looks = []
    for others in (2, 500):
        slots, _ = _of([Owner(f"{number}") for number in range(others)])
        wanted = Owner("1" if known else "someone else")
        Owner.looks = 0
        getattr(slots, act)(wanted)
        looks.append(Owner.looks)
    assert looks[0] == looks[1]


def test_a_client_that_leaves_ends_its_own_connections_and_no_others() -> None:
    slots, stubs = _of([Owner("ada"), Owner("bob")])
    slots.end("b")
    slots.release(Owner("ada"))
    slots.release(Owner("ada"))
    assert {key: len(stub.events) for key, stub in stubs.items()} == {
        ("ada", "a"): 1,
        ("ada", "b"): 1,
        ("bob", "a"): 0,
        ("bob", "b"): 1,
    }
    assert [slots.find(Owner("bob"), server) is not None for server in ("a", "b")] == [True, False]
    assert len(slots.all()) == 1


class Looked(Exception):
    """One look for unused slots is over."""


class LateClock:
    """A clock on which every slot was idle for too long; its first wait ends the test's look."""

    def now(self) -> float:
        return 1e9

    async def wait(self, event: anyio.Event, until: float | None) -> bool:
        raise Looked


@pytest.mark.anyio
async def test_a_slot_in_use_does_not_expire_however_long_ago_its_last_use_ended() -> None:
    owner = Owner("ada")
    slots, stubs = _of([owner])
    for own in slots._own.values():
        own.expires = True
    context: Any = SimpleNamespace(settings=Settings(), clock=LateClock())
    slots._context = context
    slots.use(owner, "a")
    with pytest.raises(Looked):
        await slots._expire()
    assert {key: len(stub.events) for key, stub in stubs.items()} == {("ada", "a"): 0, ("ada", "b"): 1}
