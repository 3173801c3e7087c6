"""Parked is not dead, denied waits for a person, and a lazy server rests with its tools listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core.lifecycle.table import State
from holdfast.errors import ServerDenied, ServerPermanentlyFailed
from holdfast.hub.hub import Hub
from holdfast.testing import FakeClock
from tests.harness.open_hubs import config, defined, reaches, running, settled, until
from tests.peers.http_fault import respond
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio
MakePeer = Callable[..., StdioPeer]


async def park(peer: McpPeer, hub: Hub, clock: FakeClock) -> None:
    """Spend the budget of one reconnect on permanent evidence."""
    peer.script = respond(410, "mending")
    with pytest.raises(Exception, match="mending"):
        await hub.reconnect("a")
    await clock.advance(1)
    await reaches(hub, "a", State.PERMANENTLY_FAILED)


ONE_TRY: dict[str, Any] = {"reconnect": {"backoff": ["1s"]}}


@pytest.mark.requirement("LIFE-19", "LIFE-8")
async def test_a_parked_server_answers_with_its_reason_and_a_call_after_the_cooldown_brings_it_back() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock, **ONE_TRY) as hub:
        await settled(hub, peer)
        await park(peer, hub, clock)
        seen = len(peer.requests)
        for _ in range(20):
            with pytest.raises(ServerPermanentlyFailed, match="mending"):
                await hub.call_tool("a__echo")
        with pytest.raises(ServerPermanentlyFailed) as refusal:
            await hub.call_tool("a__echo")
        assert (refusal.value.state, refusal.value.retry_in) == ("permanently_failed", 60)
        assert len(peer.requests) == seen
        await clock.advance(60)
        with pytest.raises(ServerPermanentlyFailed, match="mending"):
            await hub.call_tool("a__echo")  # this one tried
        assert len(peer.requests) == seen + 1
        peer.script = peer.healthy
        await clock.advance(60)
        assert (await hub.call_tool("a__echo", {"text": "back"})).text == "back"


@pytest.mark.requirement("LIFE-19", "MSG-5")
async def test_a_parked_server_is_tried_by_the_hub_itself_every_300_seconds() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock, **ONE_TRY) as hub:
        await settled(hub, peer)
        await park(peer, hub, clock)
        for _ in range(2):
            seen = peer.methods.count("initialize")
            await clock.advance(299)
            assert peer.methods.count("initialize") == seen
            await clock.advance(1)
            with anyio.fail_after(5):
                await peer.until(lambda n=seen: peer.methods.count("initialize") == n + 1)  # type: ignore[misc]
            await until(hub, "a", lambda: hub.registry.slots["a"].machine.dialing is None)
            assert hub.server_health("a").state is State.PERMANENTLY_FAILED
        peer.script = peer.healthy
        await clock.advance(300)
        await reaches(hub, "a")


@pytest.mark.requirement("LIFE-19")
async def test_the_self_probe_can_be_off() -> None:
    clock = FakeClock()
    off = {"reconnect": {"backoff": ["1s"], "selfProbe": "off"}}
    async with McpPeer() as peer, running({"a": peer}, clock=clock, **off) as hub:
        await settled(hub, peer)
        await park(peer, hub, clock)
        seen = len(peer.requests)
        await clock.advance(100_000)
        assert len(peer.requests) == seen
        assert hub.server_health("a").retry_in is None
        with anyio.fail_after(3), pytest.raises(ServerPermanentlyFailed):  # told as soon as its dial failed
            await hub.call_tool("a__echo")


@pytest.mark.requirement("LIFE-19")
@pytest.mark.parametrize("how", ["reconnect", "login", "toggle", "config"])
async def test_a_parked_server_is_brought_back_by(how: str) -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock, **ONE_TRY) as hub:
        await settled(hub, peer)
        await park(peer, hub, clock)
        peer.script = peer.healthy
        await _bring_back(how, hub, peer)
        await reaches(hub, "a")
        assert hub.server_health("a").reason == ""
        assert (await hub.call_tool("a__echo", {"text": "back"})).text == "back"


@pytest.mark.requirement("LIFE-23", "LIFE-8")
@pytest.mark.parametrize("how", ["reconnect", "login", "toggle", "config"])
async def test_a_denied_server_is_brought_back_at_once_by_a_person(how: str) -> None:
    clock = FakeClock()
    async with McpPeer(faults=[respond(401, "who?")]) as peer, running({"a": peer}, clock=clock, **ONE_TRY) as hub:
        await reaches(hub, "a", State.DENIED)
        await clock.advance(59)
        with pytest.raises(ServerDenied, match="401"):
            await hub.read_resource("note://1", server="a")
        assert len(peer.requests) == 1  # one dial in the first minute
        await _bring_back(how, hub, peer)
        await reaches(hub, "a")


async def _bring_back(how: str, hub: Hub, peer: McpPeer) -> None:
    if how == "reconnect":
        await hub.reconnect("a")
    elif how == "login":
        hub.logged_in("a")
    elif how == "toggle":
        await hub.toggle("a", False)
        await hub.toggle("a", True)
    else:
        await hub.apply(config({"a": defined(peer, headers={"X-New": "yes!"})}, **ONE_TRY))


@pytest.mark.requirement("LIFE-4", "LIFE-6")
async def test_a_lazy_server_is_stopped_when_idle_keeps_its_tools_and_is_dialed_at_its_next_use(
    stdio_peer: MakePeer,
) -> None:
    clock = FakeClock()
    peer = stdio_peer()
    async with running({"a": defined(peer, lazy=True)}, clock=clock, idle="100s", refresh="off") as hub:
        await hub.ready()
        assert peer.starts == 1  # its tools are not known yet
        await clock.advance(60)
        await hub.call_tool("a__echo")
        await clock.advance(60)
        assert hub.server_health("a").state is State.CONNECTED  # it was used since
        await clock.advance(60)
        await reaches(hub, "a", State.IDLE)
        with anyio.fail_after(5):
            await peer.until(lambda: not peer.living)
        assert len(hub.catalog.tools) == 5
        assert not hub.warnings()
        await clock.advance(100_000)
        assert peer.starts == 1
        assert (await hub.call_tool("a__echo", {"text": "woken"})).text == "woken"
        assert peer.starts == 2


@pytest.mark.requirement("LIFE-21")
async def test_a_lazy_server_whose_tools_are_known_is_not_started_before_its_first_use(
    stdio_peer: MakePeer, tmp_path: Path
) -> None:
    peer = stdio_peer()
    servers = {"a": defined(peer, lazy=True)}
    options = {"state_file": tmp_path / "state.sqlite"}
    async with running(servers, hub=options) as hub:
        await hub.ready()
    async with running(servers, hub=options) as hub:
        assert await hub.ready(timeout=5)
        assert hub.server_health("a").state is State.IDLE
        assert len(hub.catalog.tools) == 5
        assert peer.starts == 1
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(hub.call_tool, "a__echo")
        assert peer.starts == 2


@pytest.mark.requirement("LIFE-4")
async def test_a_lazy_server_with_a_call_under_way_is_not_stopped(stdio_peer: MakePeer) -> None:
    clock = FakeClock()
    peer = stdio_peer()
    async with running({"a": defined(peer, lazy=True)}, clock=clock, idle="100s", refresh="off") as hub:
        await hub.ready()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hub.call_tool, "a__slow")
            with anyio.fail_after(5):
                await peer.until(lambda: "tools/call" in peer.methods)
            await clock.advance(1000)
            assert hub.server_health("a").state is State.CONNECTED
            tasks.cancel_scope.cancel()
        await clock.advance(200)
        await reaches(hub, "a", State.IDLE)
