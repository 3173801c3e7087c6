"""The connections of clients of their own, by their owner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.config import Settings
from holdfast.core import events as on
from holdfast.errors import ServerBusy
from holdfast.hub.hub import Hub
from holdfast.hub.owned_slots import CLIENTS, OwnedSlots, _Own
from holdfast.hub.slot import Slot
from holdfast.testing import FakeClock, HttpServer
from tests.harness.open_hubs import running, settled


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
    slots, stubs = OwnedSlots(CLIENTS), {}
    context: Any = SimpleNamespace(settings=Settings(), clock=LateClock())
    slots._context = context
    for owner in owners:
        for server in ("a", "b"):
            stub: Any = StubSlot()
            stubs[owner.name, server] = stub
            slots._own[owner, server] = _Own(stub, expires=False, principal="", unused_since=0.0)
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
    slots.use(owner, "a")
    with pytest.raises(Looked):
        await slots._expire()
    assert {key: len(stub.events) for key, stub in stubs.items()} == {("ada", "a"): 0, ("ada", "b"): 1}


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    """A hub whose clients have connections of their own, which may be unused for ten seconds."""
    limits: dict[str, Any] = {"perClient": {"idle": "10s", "connections": 3}, "quotas": {"clientConnections": 2}}
    async with HttpServer({"hello": "hi"}) as server:
        servers = {"own": {**server.definition, "sharing": "per-client"}}
        async with running(servers, clock=FakeClock(), **limits) as hub:
            await settled(hub)
            yield hub


def start(hub: Hub, owner: str, **more: Any) -> Slot:
    return hub.registry.clients.of(owner, hub.config.servers["own"], lambda: None, **more)


async def passes(hub: Hub, seconds: float) -> None:
    assert isinstance(hub.registry.clock, FakeClock)
    await hub.registry.clock.advance(seconds)


def is_there(hub: Hub, owner: str) -> bool:
    return hub.registry.clients.find(owner, "own") is not None


@pytest.mark.anyio
async def test_an_unused_slot_ends_and_its_time_counts_from_the_end_of_its_last_use(hub: Hub) -> None:
    clients = hub.registry.clients
    slot, other = start(hub, "ann", expires=True), start(hub, "bob", expires=True)
    use = clients.use("ann", "own")
    await passes(hub, 11)
    assert (is_there(hub, "ann"), is_there(hub, "bob")) == (True, False)
    clients.unuse(use)
    await passes(hub, 9)
    assert is_there(hub, "ann")
    await passes(hub, 2)
    assert not is_there(hub, "ann")
    assert slot.machine.life.stopped
    assert other.machine.life.stopped
    clients.unuse(clients.use("ann", "own"))  # it has none any more


@pytest.mark.anyio
async def test_a_slot_with_two_uses_is_in_use_until_both_have_ended(hub: Hub) -> None:
    clients = hub.registry.clients
    start(hub, "ann", expires=True)
    clients.leave("ann", "own")  # a use that was not counted: it takes nothing from the next
    for _ in range(2):
        clients.use("ann", "own")
    clients.leave("ann", "own")
    await passes(hub, 11)
    assert is_there(hub, "ann")
    clients.leave("ann", "own")
    await passes(hub, 11)
    assert not is_there(hub, "ann")


@pytest.mark.anyio
async def test_a_client_that_may_come_back_keeps_its_slots_for_a_while(hub: Hub) -> None:
    clients = hub.registry.clients
    start(hub, "ann")
    await passes(hub, 100)
    assert is_there(hub, "ann"), "it would say goodbye"
    clients.keep("ann", until_unused=True)
    await passes(hub, 9)
    clients.keep("ann")
    await passes(hub, 100)
    assert is_there(hub, "ann"), "it came back"
    clients.keep("ann", until_unused=True)
    clients.adopt(replace(hub.config.settings, per_client=replace(hub.config.settings.per_client, idle=5.0)))
    await passes(hub, 6)
    assert not is_there(hub, "ann"), "by the settings in force now"


@pytest.mark.anyio
async def test_a_use_that_ends_before_the_next_look_is_due_is_looked_at_in_time(hub: Hub) -> None:
    clients = hub.registry.clients
    start(hub, "ann", expires=True)
    start(hub, "bob", expires=True)
    uses = [clients.use(owner, "own") for owner in ("ann", "bob")]
    await passes(hub, 5)
    clients.unuse(uses[0])
    await passes(hub, 5)
    clients.unuse(uses[1])
    await passes(hub, 6)
    assert (is_there(hub, "ann"), is_there(hub, "bob")) == (False, True)
    await passes(hub, 5)
    assert not is_there(hub, "bob")


@pytest.mark.anyio
async def test_a_changed_definition_replaces_the_slot_unless_only_its_limits_changed(hub: Hub) -> None:
    clients, spec = hub.registry.clients, hub.config.servers["own"]
    first = start(hub, "ann")
    limited = replace(spec, timeout=7.0)
    assert clients.of("ann", limited, lambda: None) is first
    assert first.spec == limited
    assert clients.of("ann", limited, lambda: None) is first
    moved = replace(limited, url=f"{spec.url}/elsewhere")
    second = clients.of("ann", moved, lambda: None)
    assert second is not first
    assert (first.machine.life.stopped, clients.find("ann", "own") is second) == (True, True)


@pytest.mark.anyio
async def test_the_quota_of_a_caller_and_the_limit_of_all_name_their_settings(hub: Hub) -> None:
    for owner in ("one", "two"):
        start(hub, owner, principal="ann")
    with pytest.raises(ServerBusy, match=r"have 2 connections .* `holdfast\.quotas\.clientConnections`") as refused:
        start(hub, "three", principal="ann")
    assert (refused.value.server_id, refused.value.state) == ("own", "connected")
    start(hub, "three", principal="bob")
    with pytest.raises(ServerBusy, match=r"limit of 3 client connections; .* `holdfast\.perClient\.connections`"):
        start(hub, "four", principal="eve")
    start(hub, "one", principal="ann")  # it has one


@pytest.mark.anyio
async def test_the_first_call_of_a_client_waits_for_its_own_connection(hub: Hub) -> None:
    slot = start(hub, "ann")
    assert slot.lease is None
    result = await slot.call("tools/call", {"name": b'"hello"', "arguments": b"{}"})
    assert b"hi" in bytes(result.members["content"])
    assert [entry.name for entry in hub.catalog.tools] == ["own__hello"], "its listing is published for no one"
    hub.registry.clients.end("own")
    assert [entry.name for entry in hub.catalog.tools] == ["own__hello"]
