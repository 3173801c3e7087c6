"""What people and models are told of a fleet: true, in its fixed words, and once for each change."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from holdfast.core.lifecycle.table import State
from holdfast.testing import FakeClock
from tests.harness.open_hubs import reaches, running, settled, until
from tests.peers.http_fault import respond
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio
MakePeer = Callable[..., StdioPeer]


@pytest.mark.requirement("MSG-7", "MSG-5")
async def test_a_person_is_told_once_for_each_change_and_not_for_each_attempt() -> None:
    clock = FakeClock()
    told: list[tuple[str, str, str]] = []
    options = {"on_warning": lambda *warning: told.append(warning)}
    async with McpPeer(faults=[respond(503, "mending")]) as peer, running({"a": peer}, clock=clock, hub=options) as hub:
        peer.script = respond(503, "mending")
        await reaches(hub, "a", State.RECONNECTING)
        assert told == [("a", "transient", "MCP server 'a' is starting up and not ready yet — it will be retried.")]
        for _ in range(3):
            await clock.advance(2)
            await until(hub, "a", lambda: hub.registry.slots["a"].machine.dialing is None)
        assert len(told) == 1
        peer.script = respond(410, "mending")
        await clock.advance(2)
        await reaches(hub, "a", State.PERMANENTLY_FAILED)
        assert [status for _, status, _ in told] == ["transient", "permanent"]
        assert told[1][2].startswith("MCP server 'a' is unavailable: ")
        assert "mending" in told[1][2]
        await clock.advance(300)
        await until(hub, "a", lambda: hub.registry.slots["a"].machine.dialing is None)
        assert len(told) == 2  # a self-probe that failed changes nothing
        peer.script = peer.healthy
        await hub.reconnect("a")
        assert len(told) == 2
        peer.script = respond(403, "not you")
        with pytest.raises(Exception, match="not you"):
            await hub.reconnect("a")
        assert [status for _, status, _ in told] == ["transient", "permanent", "denied"]


@pytest.mark.requirement("MSG-7", "MSG-9")
async def test_a_server_whose_budget_is_spent_is_no_longer_starting_up_and_that_is_told_once() -> None:
    clock = FakeClock()
    told: list[tuple[str, str, str]] = []
    options = {"on_warning": lambda *warning: told.append(warning)}
    down = respond(503)
    async with McpPeer(faults=[down]) as peer, running({"a": peer}, clock=clock, hub=options) as hub:
        peer.script = down
        for _ in range(100):
            await clock.advance(2)
            await until(hub, "a", lambda: hub.registry.slots["a"].machine.dialing is None)
        health = hub.server_health("a")
        assert (health.state, health.status) == (State.PERMANENTLY_FAILED, "transient")
        assert [status for _, status, _ in told] == ["transient", "transient"]
        assert "is starting up and not ready yet" in told[0][2]
        spent = r"MCP server 'a' has not been ready for \d+ (s|min) \(it answered HTTP 503\) — it will be retried; "
        assert re.fullmatch(rf"{spent}next try in \d+ s\.", told[1][2])
        assert re.fullmatch(rf"{spent}next try (now|in \d+ s)\.", hub.warnings().for_user[0])
        model = "**MCP servers not ready for a while (will retry):** a: it answered HTTP 503"
        assert hub.warnings().for_model == model
        with pytest.raises(Exception, match="503"):
            await hub.reconnect("a")
        assert hub.warnings().for_model == model  # a reconnect that failed does not make it start up again
        peer.script = peer.healthy
        await hub.reconnect("a")
        await clock.advance(40)
        peer.script = down
        with pytest.raises(Exception, match="503"):
            await hub.reconnect("a")
        assert len(told) == 3  # it was up: it is lost now
        assert "was lost (it answered HTTP 503)" in told[2][2]


@pytest.mark.requirement("MSG-7")
async def test_nobody_is_warned_of_servers_that_come_up_are_renewed_or_switched_off(stdio_peer: MakePeer) -> None:
    told: list[object] = []
    options = {"on_warning": lambda *warning: told.append(warning)}
    async with McpPeer() as peer, running({"a": peer, "b": stdio_peer()}, hub=options) as hub:
        await settled(hub, peer)
        await hub.reconnect("a")
        await hub.reconnect("b")
        peer.sessions.clear()
        await hub.call_tool("a__echo")
        await hub.toggle("b", False)
    assert told == []


@pytest.mark.requirement("MSG-7")
async def test_a_renewal_that_fails_is_warned_of() -> None:
    told: list[tuple[str, str, str]] = []
    options = {"on_warning": lambda *warning: told.append(warning)}
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock(), hub=options) as hub:
        await settled(hub, peer)
        peer.script = respond(503)
        with pytest.raises(Exception, match="503"):
            await hub.reconnect("a")
        with pytest.raises(Exception, match="503"):
            await hub.reconnect("a")
        assert [status for _, status, _ in told] == ["transient"]


@pytest.mark.requirement("MSG-5", "MSG-7")
async def test_a_server_lost_in_service_is_warned_of_again_after_it_was_back(stdio_peer: MakePeer) -> None:
    told: list[tuple[str, str, str]] = []
    options = {"on_warning": lambda *warning: told.append(warning)}
    peer = stdio_peer()
    async with running({"a": peer}, hub=options, reconnect={"standing": "10ms"}) as hub:
        await hub.ready()
        for generation in (2, 3):
            peer.kill()
            await until(hub, "a", lambda n=generation: hub.server_health("a").generation == n)  # type: ignore[misc]
            assert len(told) == generation - 1
    assert {status for _, status, _ in told} == {"transient"}


@pytest.mark.requirement("MSG-5")
async def test_the_warnings_of_a_fleet_name_each_server_in_the_words_of_its_class() -> None:
    clock = FakeClock()
    denied, down = [respond(403, "no")] * 9, [respond(503)] * 9
    async with McpPeer() as good, McpPeer(faults=denied) as denying, McpPeer(faults=down) as starting:
        servers = {"good": good, "deny": denying, "start": starting, "bad": {"command": "no-such-command-anywhere"}}
        async with running(servers, clock=clock) as hub:
            await hub.ready()
            said = hub.warnings()
            model = said.for_model.splitlines()
            assert [line.partition(":** ")[0] for line in model] == [
                "**MCP servers still starting up (will retry; tools may appear shortly)",
                "**MCP servers that failed to load (tools unavailable — needs attention)",
                "**MCP servers that denied access (log in or ask for access to change that)",
            ]
            assert model[0].endswith(" start")
            assert len(said.for_user) == 3
            assert not any("'good'" in text for text in said.for_user)
            before = len(starting.requests)
            await clock.advance(2)
            await until(hub, "start", lambda: hub.server_health("start").attempts == 1)
            assert len(starting.requests) > before  # what was promised was done
