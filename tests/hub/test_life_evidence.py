"""What the evidence decides, on real sockets: words, retry times and what a server really receives.

The clock is the test's own; each dial and each call is a real exchange with a real server, and what is
counted is counted there.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from holdfast.core.classify import classify_evidence
from holdfast.core.evidence import ProcessExit
from holdfast.core.lifecycle.table import State
from holdfast.errors import BreakerOpen, CallDenied, CallFailed, ServerDenied, ServerFailure, ServerUnavailable
from holdfast.hub import lease as leases
from holdfast.hub.hub import Hub
from holdfast.hub.journal import HubRecord, Transition
from holdfast.hub.loader import get_tools_with_resilience
from holdfast.testing import FakeClock
from tests.harness.open_hubs import reaches, running, settled, until
from tests.peers.http_fault import Behaviour, Request, respond
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio
MakePeer = Callable[..., StdioPeer]

STARTING = "**MCP servers still starting up (will retry; tools may appear shortly):** a"
NO_WORK = "Tools from this server will not work"


async def pass_time(hub: Hub, clock: FakeClock, seconds: float, *, step: float = 0.5) -> None:
    """Let the time go by in small steps; each exchange that the hub starts ends before the next step."""
    machine = hub.registry.slots["a"].machine
    for _ in range(round(seconds / step)):
        await clock.advance(step)
        await until(hub, "a", lambda: machine.dialing is None and not _is_busy(machine))


def _is_busy(machine: Any) -> bool:
    lease = machine.life.lease
    return machine.life.address_watch.pending is not None or (
        lease is not None and (lease.checking or lease.refreshing)
    )


async def call(hub: Hub) -> type[Exception] | None:
    try:
        await hub.call_tool("a__echo", {"text": "hi"})
    except Exception as exc:  # noqa: BLE001 - the kind of the error is what is looked at
        return type(exc)
    return None


def calls_only(behaviour: Behaviour, peer: McpPeer) -> Callable[[Request], Behaviour]:
    """Calls meet this behaviour; everything else is healthy."""
    return lambda request: behaviour if b'"tools/call"' in request.body else peer.healthy


# Transient stays transient.


@pytest.mark.requirement("LIFE-25", "MSG-9")
@pytest.mark.parametrize("up_before", [True, False])
async def test_forty_seconds_of_503_stay_transient_and_the_server_is_back_within_two_seconds(up_before: bool) -> None:
    clock = FakeClock()
    async with McpPeer() as peer:
        if not up_before:
            peer.script = respond(503, "mending")
        async with running({"a": peer}, clock=clock) as hub:
            await hub.ready()
            if up_before:
                await settled(hub, peer)
                peer.script = respond(503, "mending")
                assert await call(hub) is CallFailed
            seen = len(peer.requests)
            await pass_time(hub, clock, 40)
            assert 15 <= len(peer.requests) - seen <= 25
            health = hub.server_health("a")
            assert (health.state, health.status) == (State.PERMANENTLY_FAILED, "transient")
            words = hub.warnings().for_user[0]
            assert NO_WORK not in words
            assert 'has not been ready for 40 s (it answered HTTP 503: "mending") — it will be retried' in words
            peer.script = peer.healthy
            await pass_time(hub, clock, 2)
            assert hub.server_health("a").state is State.CONNECTED
            assert await call(hub) is None


@pytest.mark.requirement("LIFE-25", "MSG-9")
async def test_minutes_of_503_are_said_with_their_duration_and_a_next_try_within_thirty_seconds() -> None:
    clock = FakeClock()
    async with McpPeer() as peer:
        peer.script = respond(503, "mending")
        async with running({"a": peer}, clock=clock) as hub:
            await hub.ready()
            await pass_time(hub, clock, 245, step=1.0)
            said = hub.warnings()
            for_a_while = "**MCP servers not ready for a while (will retry):**"
            assert said.for_model == f'{for_a_while} a: it answered HTTP 503: "mending"'
            assert re.fullmatch(
                r"MCP server 'a' has not been ready for 4 min \(it answered HTTP 503: \"mending\"\)"
                r" — it will be retried; next try in \d+ s\.",
                said.for_user[0],
            )
            assert (hub.server_health("a").retry_in or 0) <= 30.0
            peer.script = peer.healthy
            await pass_time(hub, clock, 30, step=1.0)
            assert hub.server_health("a").state is State.CONNECTED


@pytest.mark.requirement("LIFE-25", "LIFE-22", "LOAD-3")
async def test_a_name_that_does_not_resolve_at_the_start_is_looked_up_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The resolver is the one thing that is played: a name that appears later cannot be had otherwise."""
    real, known = socket.getaddrinfo, False

    def resolve(host: Any, *args: Any, **options: Any) -> Any:
        if host in ("later.test", b"later.test"):
            if not known:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            host = "127.0.0.1"
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    clock = FakeClock()
    async with McpPeer() as peer:
        url = peer.url.replace("127.0.0.1", "later.test")
        async with running({"a": {"type": "http", "url": url}}, clock=clock) as hub:
            await hub.ready()
            health = hub.server_health("a")
            assert (health.status, health.retry_in) == ("permanent", 1.0)
            assert NO_WORK in hub.warnings().for_user[0]
            await pass_time(hub, clock, 3)
            assert peer.connections == 0
            known = True
            await pass_time(hub, clock, 1.5)
            await reaches(hub, "a")


# Denials.


@pytest.mark.requirement("LIFE-24", "LOAD-4", "MSG-3")
@pytest.mark.parametrize("body", ["", "external authorization failed"], ids=["Envoy", "AgentGateway"])
async def test_a_blip_of_four_seconds_in_the_authorization_check_is_over_at_the_next_question(body: str) -> None:
    clock = FakeClock()
    async with McpPeer() as peer:
        peer.script = respond(403, body)
        async with running({"a": peer}, clock=clock) as hub:
            await hub.ready()
            assert hub.server_health("a").state is State.DENIED
            said = hub.warnings()
            for words in (said.for_model, said.for_user[0]):
                assert "may be an outage" in words
                assert "is asked again in 2 s" in words
                assert "starting up" not in words
            await pass_time(hub, clock, 4)
            asked = len(peer.requests)
            assert asked == 2
            peer.script = peer.healthy
            await pass_time(hub, clock, 6)
            assert hub.server_health("a").state is State.CONNECTED
            assert await call(hub) is None


@pytest.mark.requirement("LIFE-24")
@pytest.mark.parametrize("body", ["", "not in the group"], ids=["unconfirmed", "decided"])
async def test_a_real_denial_is_never_hammered_though_calls_go_on(body: str) -> None:
    clock = FakeClock()
    async with McpPeer() as peer:
        peer.script = respond(403, body)
        async with running({"a": peer}, clock=clock) as hub:
            await hub.ready()
            for _ in range(60):
                with pytest.raises(ServerDenied):
                    await hub.read_resource("note://1", server="a")
                await pass_time(hub, clock, 1, step=1.0)
            first_minute = len(peer.requests)
            assert first_minute <= 8
            for _ in range(240):
                with pytest.raises(ServerUnavailable):
                    await hub.read_resource("note://1", server="a")
                await pass_time(hub, clock, 1, step=1.0)
            assert len(peer.requests) - first_minute <= 4 * 2  # one load per cooldown, of one request or two
            words = hub.warnings().for_user[0]
            assert "is not asked again before" in words or "The next call asks it again" in words
            peer.script = peer.healthy
            await pass_time(hub, clock, 60, step=1.0)
            with suppress(CallFailed):  # it has no such resource
                await hub.read_resource("note://1", server="a")
            assert hub.server_health("a").state is State.CONNECTED


@pytest.mark.requirement("LIFE-23")
async def test_one_denied_listing_of_a_healthy_server_changes_nothing() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        peer.script = respond(403, "")
        await pass_time(hub, clock, 61, step=1.0)
        assert hub.server_health("a").state is State.CONNECTED
        peer.script = peer.healthy
        assert await call(hub) is None
        await pass_time(hub, clock, 61, step=1.0)
        assert (hub.server_health("a").status, hub.server_health("a").generation) == ("available", 1)


@pytest.mark.requirement("LIFE-23", "LIFE-24", "MSG-9")
async def test_a_server_that_begins_to_deny_everything_is_called_denied_within_seconds_of_use() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        await pass_time(hub, clock, 10, step=1.0)
        peer.script = respond(403, "the policy changed")
        seconds = 0
        while (error := await call(hub)) is not ServerDenied:
            assert error is CallDenied
            await pass_time(hub, clock, 1, step=1.0)
            seconds += 1
            assert seconds <= 12
        assert hub.server_health("a").status == "denied"
        assert len(hub.catalog.tools) == 5


@pytest.mark.requirement("LIFE-23")
async def test_a_call_that_is_denied_alone_leaves_its_server_available() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        peer.script = calls_only(respond(403, "not this tool"), peer)
        lists = peer.methods.count("tools/list")
        for _ in range(30):
            assert await call(hub) is CallDenied
            await pass_time(hub, clock, 1, step=1.0)
        assert hub.server_health("a").status == "available"
        assert peer.methods.count("tools/list") - lists <= 7  # at most one in five seconds


# Calls that fail while everything else works.


@pytest.mark.requirement("BRK-2", "BRK-11", "BRK-8")
async def test_three_of_three_hundred_calls_reach_a_server_that_lists_and_fails_every_call() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        peer.script = calls_only(respond(500, "broken"), peer)
        errors = []
        for _ in range(300):
            errors.append(await call(hub))
            await pass_time(hub, clock, 0.1, step=0.1)
        assert peer.methods.count("tools/call") == 3
        assert errors.count(BreakerOpen) == 297
        health = hub.server_health("a")
        assert (health.state, health.status) == (State.CONNECTED, "transient")
        assert "calls to it fail (" in hub.warnings().for_user[0]
        assert "broken" in hub.warnings().for_model
        peer.script = peer.healthy
        await pass_time(hub, clock, 60, step=1.0)
        assert await call(hub) is None
        assert hub.server_health("a").status == "available"


@pytest.mark.requirement("LIFE-10", "LIFE-22")
async def test_a_failed_call_finds_out_at_once_that_the_whole_server_is_down() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        peer.script = respond(503, "mending")
        assert await call(hub) is CallFailed
        await until(hub, "a", lambda: hub.server_health("a").state is State.RECONNECTING)
        assert hub.server_health("a").status == "transient"
        assert hub.warnings().for_model.startswith("**MCP servers lost and being reconnected (will retry):** a: ")
        peer.script = peer.healthy
        await pass_time(hub, clock, 1)
        assert await call(hub) is None


@pytest.mark.requirement("LIFE-25", "BRK-11", "MSG-9")
async def test_a_server_under_load_is_back_soon_after_twenty_seconds_of_503() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        peer.script = respond(503, "mending")
        seen = len(peer.requests)

        async def load(seconds: float) -> None:
            for _ in range(round(seconds * 2)):
                with anyio.move_on_after(0.05):  # a call may wait for a server that is coming up
                    await call(hub)
                await pass_time(hub, clock, 0.5)

        await load(20)
        assert hub.server_health("a").status == "transient"
        assert len(peer.requests) - seen <= 20
        peer.script = peer.healthy
        await load(2)
        assert hub.server_health("a").status == "available"
        assert await call(hub) is None


# Words.


@pytest.mark.requirement("MSG-8")
async def test_a_lost_server_is_not_starting_up_in_any_text(stdio_peer: MakePeer) -> None:
    clock = FakeClock()
    peer = stdio_peer()
    async with running({"a": peer}, clock=clock, reconnect={"standing": "1000s"}) as hub:
        await hub.ready()
        for generation in (2, 3):
            peer.kill()
            await until(
                hub,
                "a",
                lambda n=generation: (
                    hub.server_health("a").generation == n  # type: ignore[misc]
                    or hub.server_health("a").state is State.RECONNECTING
                ),
            )
        await reaches(hub, "a", State.RECONNECTING)
        said = hub.warnings()
        assert said.for_model.startswith(
            "**MCP servers lost and being reconnected (will retry):** a: its process was killed by signal 9"
        )
        assert said.for_user[0].startswith("MCP server 'a' was lost (its process was killed by signal 9")
        assert ") and is being reconnected — it will be retried. Next try " in said.for_user[0]


@pytest.mark.requirement("MSG-10", "LOAD-4")
async def test_a_one_shot_load_promises_only_what_happens() -> None:
    async with McpPeer() as busy, McpPeer() as denying:
        busy.script, denying.script = respond(503, "mending"), respond(403, "")
        connections = {
            name: {"transport": "streamable_http", "url": peer.url} for name, peer in (("b", busy), ("d", denying))
        }
        result = await get_tools_with_resilience(connections, base_backoff_s=0.01)
        transient, denied = result.outcomes
        assert transient.error == 'it answered HTTP 503: "mending"; it is tried again at the next load'
        assert "it will be retried" not in transient.message
        assert transient.message.endswith("it is tried again at the next load.")
        assert (denied.status, denied.attempts, len(denying.requests)) == ("denied", 1, 1)
        assert "may be an outage" in denied.message
        assert "is not retried" in denied.message
        assert result.model_message.startswith(STARTING.removesuffix("a"))


@pytest.mark.requirement("FLEET-8")
async def test_a_connection_that_ended_by_a_fault_is_lost_for_the_reason_that_was_seen(
    stdio_peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, seen = anyio.Event(), ProcessExit(code=3, stood=True)

    async def watch(*_: object) -> None:
        await ends.wait()
        raise ServerFailure(seen)

    monkeypatch.setattr(leases, "watch_connection", watch)
    async with running({"a": stdio_peer()}) as hub:
        await reaches(hub, "a")
        lease, records = hub.registry.slots["a"].lease, list[HubRecord]()
        hub.listen(records.append)
        ends.set()
        await until(hub, "a", lambda: hub.registry.slots["a"].lease is not lease)
        lost = [one for one in records if isinstance(one, Transition) and one.new is State.RECONNECTING]
        assert [(one.cause, one.reason) for one in lost] == [("TransportLost", classify_evidence(seen).reason)]
