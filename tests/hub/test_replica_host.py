"""The hub as the other replicas reach it: what they decided and saw holds here too, and nothing raises (FLEET-2)."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.core import Item, Listing, State, events as on
from holdfast.hub import CallBinding, CallVerdict, ToolChanged
from holdfast.hub.hub import Hub
from holdfast.hub.registry import ReplicaHost, follow_switch
from holdfast.testing import FakeClock, HttpServer
from tests.harness.open_hubs import config, reaches, records, running, settled, until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-2")]

LAZY = {"url": "http://127.0.0.1:9/mcp", "lazy": True}


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    servers = {"a": LAZY, "b": LAZY, "off": {**LAZY, "enabled": False}, "wrong": {"url": "${env:HOLDFAST_NOT_SET}"}}
    async with Hub(config(servers, approvals="hold")) as hub:
        yield hub


@pytest.fixture
def host(hub: Hub) -> ReplicaHost:
    return ReplicaHost(hub.registry)


def listing(generation: int, description: str = "") -> Listing:
    return Listing(server="a", generation=generation, tools=(Item("echo", {"description": description}),))


def listed(hub: Hub) -> list[str]:
    return [entry.name for entry in hub.catalog.tools]


async def test_a_definition_is_known_by_its_fingerprint(host: ReplicaHost) -> None:
    assert host.definition_of("a") == host.definition_of("b") != ""
    assert host.definition_of("wrong") == "", "nothing can be said of a server that cannot be used"
    assert host.definition_of("gone") is None


async def test_a_switch_of_a_peer_is_followed_once(hub: Hub, host: ReplicaHost) -> None:
    host.follow_switch("a", True)
    await reaches(hub, "a", State.DISABLED)
    assert list(host.disabled_servers()) == ["a"]
    assert not follow_switch(hub.registry, "a", True)
    assert follow_switch(hub.registry, "a", False)
    await until(hub, "a", lambda: not list(host.disabled_servers()))
    for server in ("gone", "off"):
        assert not follow_switch(hub.registry, server, True)


async def test_an_event_of_a_peer_reaches_the_slot_of_its_server(hub: Hub, host: ReplicaHost) -> None:
    host.handle("gone", on.DisableRequested())
    host.handle("a", on.DisableRequested())
    await reaches(hub, "a", State.DISABLED)
    assert not host.is_trying("a")
    assert not host.is_trying("gone")


async def test_a_listing_of_a_peer_is_shown_until_the_server_is_listed_here(hub: Hub, host: ReplicaHost) -> None:
    assert host.needs_listing("a")
    assert not host.needs_listing("gone")
    host.follow_listing(listing(0))
    assert (listed(hub), host.needs_listing("a")) == (["a__echo"], True)
    hub.registry.publisher.publish(listing(1))
    assert (listed(hub), host.needs_listing("a")) == (["a__echo"], False)


async def test_a_listing_of_a_peer_does_not_show_a_disabled_server(hub: Hub, host: ReplicaHost) -> None:
    host.follow_switch("a", True)
    await reaches(hub, "a", State.DISABLED)
    host.follow_listing(listing(0))
    assert listed(hub) == []


async def test_what_the_fleet_approved_is_shown_here(hub: Hub, host: ReplicaHost) -> None:
    hub.registry.publisher.publish(listing(1, "first"))
    hub.registry.publisher.publish(listing(2, "second"))
    assert hub.registry.approvals.is_held("a", "echo")
    (new,) = (text for text in hub.registry.approvals.pins.changed["a"].values())
    (key,) = hub.registry.approvals.pins.changed["a"]
    host.follow_pin("a", key, new)
    assert not hub.registry.approvals.is_held("a", "echo")
    assert hub.catalog.tools[0].item.raw["description"] == "second"


async def test_what_was_pinned_before_the_fleet_was_known_is_told_to_it(
    hub: Hub, host: ReplicaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, bool]] = []
    decisions = SimpleNamespace(note_pin=lambda server, key, text, approved: told.append((server, approved)))
    hub.registry.publisher.publish(listing(1))
    host.settled()
    monkeypatch.setattr(hub.registry, "fleet", SimpleNamespace(decisions=decisions))
    host.settled()
    assert ("a", False) in told


async def test_a_call_that_waits_at_a_peer_is_decided_here_and_one_of_here_there(hub: Hub, host: ReplicaHost) -> None:
    questions = hub.registry.call_approvals
    binding = CallBinding("ann", "a", "echo", "hash", "1", "rules[0]")
    own = questions.open(binding, approver="operator", rule="rules[0]", program="", arguments="")
    there: dict[str, Any] = {**asdict(own), "id": "there", "home": "other", "binding": list(binding)}
    host.follow_question("there", there)
    host.follow_question("old", {"id": "old"})
    assert {one.id for one in questions.waiting()} == {own.id, "there"}
    host.follow_question("there", None)
    host.follow_verdict(own.id, {"approved": True, "by": "bob"})
    assert questions.waiting() == []
    assert questions.take(binding) == CallVerdict(True, "bob", "")


class Recorded:
    """The other replicas, as one that notes what it is told. It implements every part of ``Replicas``."""

    home = "here"

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.is_settled = False
        self.not_shared_since: float | None = None
        self.presence = self.evidence = self.listings = self.decisions = self.questions = self

    def open(self, host: ReplicaHost, clock: object) -> None:
        self.told.append(("open", type(host)))

    async def run(self) -> None:
        self.told.append(("run",))
        await anyio.sleep_forever()

    async def scope(self, server: str) -> str:
        return f"all replicas of {server}"

    def user_home(self, principal: str) -> str | None:
        return None

    def __getattr__(self, what: str) -> Any:
        return lambda *values: self.told.append((what, *values))

    def of(self, what: str) -> list[tuple[Any, ...]]:
        return [values for name, *values in self.told if name == what]  # type: ignore[misc]


async def test_the_other_replicas_are_told_what_happens_here() -> None:
    fleet: Any = Recorded()
    async with HttpServer({"hello": "hi"}) as server:
        servers = {"up": server.definition, "down": {"url": "http://127.0.0.1:9/mcp"}}
        async with running(servers, hub={"fleet": fleet}) as hub:
            await settled(hub)
            assert await hub.registry.scope("up") == "all replicas of up"
            await until(hub, "up", lambda: fleet.of("published"))
            ((listed,),) = fleet.of("published")
            assert (listed.server, [tool.name for tool in listed.tools]) == ("up", ["hello"])
            assert {values[0] for values in fleet.of("note_pin")} == {"up"}
            await until(hub, "down", lambda: fleet.of("claim") and "down" in {one[0] for one in fleet.of("share")})
            assert {values[0] for values in fleet.of("claim")} == {"down"}
            await hub.toggle("up", False)
            await hub.toggle("up", True)
            assert fleet.of("note_switch") == [["up", True], ["up", False]]
    assert fleet.told[:2] == [("open", ReplicaHost), ("run",)]
    async with Hub(config({})) as alone:
        assert await alone.registry.scope("up") == ""


async def test_a_probe_that_was_made_is_told_to_the_other_replicas() -> None:
    fleet: Any = Recorded()
    clock = FakeClock()
    async with running({"down": {"url": "http://127.0.0.1:9/mcp"}}, clock=clock, hub={"fleet": fleet}) as hub:
        host, slot = ReplicaHost(hub.registry), hub.registry.slot("down")
        await until(hub, "down", lambda: fleet.of("claim"))
        assert not host.is_trying("down")
        host.handle("down", on.ClaimGranted(until=math.inf))
        while not fleet.of("release"):
            await until(hub, "down", lambda: slot.machine.dialing is None)
            await clock.advance_to_next()
        assert fleet.of("release")[0][0] == "down"


async def test_what_is_held_is_a_change_once_it_is_known_that_the_fleet_will_not_tell() -> None:
    fleet: Any = Recorded()
    async with Hub(config({"a": LAZY}, approvals="hold"), fleet=fleet) as hub:
        told = records(hub)
        hub.registry.publisher.publish(listing(1))
        hub.registry.publisher.publish(listing(2))
        assert listed(hub) == [], "another replica may have seen another version first"
        changes = [record for record in told if isinstance(record, ToolChanged)]
        assert changes == []
        ReplicaHost(hub.registry).alone()
        ReplicaHost(hub.registry).alone()
        (change,) = (record for record in told if isinstance(record, ToolChanged))
        assert (change.server, change.tool, change.new, change.held) == ("a", "echo", True, True)
        fleet.is_settled = True
        ReplicaHost(hub.registry).settled()
        assert listed(hub) == ["a__echo"], "no replica has seen it: it is the first sight"
        assert fleet.of("note_pin")


async def test_the_servers_that_peers_compare_are_those_of_the_configuration(hub: Hub, host: ReplicaHost) -> None:
    assert host.servers() is hub.config.servers
