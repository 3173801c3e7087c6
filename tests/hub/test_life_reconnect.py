"""How a lost connection comes back: at once, by the budget, by a look from outside; and how it is given up."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest

from holdfast.core.breaker import BreakerState
from holdfast.core.lifecycle.events import CloseFailed, RetryPlanned
from holdfast.core.lifecycle.table import State
from holdfast.errors import CallFailed, ConnectionClosed, ServerNotReady, ServerPermanentlyFailed
from holdfast.hub import slot
from holdfast.hub.hub import Hub
from holdfast.hub.slot import is_listening
from holdfast.testing import FakeClock
from holdfast.wire.process import Child
from tests.harness.open_hubs import reaches, records, retries, running, settled, states, until
from tests.peers.http_fault import closed_port, never_answer, reset_before_answer, respond
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio
MakePeer = Callable[..., StdioPeer]

UNSHELTERED: dict[str, Any] = {"breaker": {"threshold": 99}}
"""For tests of the lifecycle alone."""


@pytest.mark.requirement("LIFE-5", "MSG-5")
async def test_three_failed_refreshes_start_a_reconnect_and_five_failed_reconnects_park_the_server() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        told = records(hub)
        peer.script = respond(410, "mending")
        for failures in (1, 2):
            await clock.advance(60)
            await until(hub, "a", lambda n=failures: hub.server_health("a").failures == n)  # type: ignore[misc]
            assert hub.server_health("a").state is State.CONNECTED
        await clock.advance(60)
        await reaches(hub, "a", State.RECONNECTING)
        tools, seen = hub.catalog.tools, len(peer.requests)
        for attempt in range(1, 6):
            assert hub.server_health("a").attempts == attempt - 1
            await clock.advance(hub.server_health("a").retry_in or 0)
            await until(hub, "a", lambda n=attempt: hub.server_health("a").attempts == n)  # type: ignore[misc]
        assert hub.server_health("a").state is State.PERMANENTLY_FAILED
        assert retries(told) == [1, 2, 4, 8, 16]
        assert peer.methods[seen:].count("initialize") == 5  # each was a dial, and there was no other
        assert hub.catalog.tools == tools
        assert len(tools) == 5


@pytest.mark.requirement("LIFE-5", "LIFE-4")
async def test_a_successful_reconnect_republishes_and_gives_the_budget_back() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock, **UNSHELTERED) as hub:
        await settled(hub, peer)
        peer.script = respond(410)
        with pytest.raises(Exception, match="410"):
            await hub.reconnect("a")
        for attempt in (1, 2, 3):
            await clock.advance(hub.server_health("a").retry_in or 0)
            await until(hub, "a", lambda n=attempt: hub.server_health("a").attempts == n)  # type: ignore[misc]
        peer.mind.names.append("newcomer")
        peer.script = peer.healthy
        await clock.advance(hub.server_health("a").retry_in or 0)
        await reaches(hub, "a")
        assert "a__newcomer" in {entry.name for entry in hub.catalog.tools}
        assert hub.server_health("a").attempts == 3  # it has not proved itself yet
        await hub.call_tool("a__echo")
        assert hub.server_health("a").attempts == 0


@pytest.mark.requirement("LIFE-6")
async def test_the_death_of_a_child_is_noticed_and_mended_at_once(stdio_peer: MakePeer) -> None:
    """No time goes by on the hub's clock: neither a refresh nor a backoff has any part in it."""
    peer = stdio_peer()
    async with running({"a": peer}, clock=FakeClock()) as hub:
        await hub.ready()
        told = records(hub)
        peer.kill()
        await until(hub, "a", lambda: hub.server_health("a").generation == 2)
        assert states(told) == [State.RECONNECTING, State.CONNECTED]
        assert peer.starts == 2
        assert hub.registry.slots["a"].machine.breaker.failures == 1


@pytest.mark.requirement("LIFE-6", "LIFE-12")
async def test_a_child_whose_grandchild_holds_its_pipes_is_noticed_dead_at_once(
    stdio_peer: MakePeer, brisk: None
) -> None:
    peer = stdio_peer("--grandchild")
    async with running({"a": peer}, clock=FakeClock()) as hub:
        await hub.ready()
        os.kill(peer.pids[0], signal.SIGKILL)
        await until(hub, "a", lambda: hub.server_health("a").generation == 2)
        first = peer.grandchildren[0]
        with anyio.fail_after(10):
            await peer.until(lambda: first not in peer.living)
    assert peer.living == []


@pytest.mark.requirement("LIFE-6", "LIFE-22")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_death_of_an_http_server_with_a_stream_is_noticed_at_once(era: str) -> None:
    clock = FakeClock()
    async with McpPeer(get_stream=True, era=era) as peer, running({"a": peer}, clock=clock) as hub:  # type: ignore[arg-type]
        await hub.ready()
        with anyio.fail_after(20):
            await peer.streaming()
        await peer.stop()
        await until(hub, "a", lambda: hub.server_health("a").retry_in == 0.25)
        assert hub.server_health("a").state is State.RECONNECTING
        peer.sessions.clear()
        await peer.start()
        await clock.advance(1)
        await reaches(hub, "a")
        assert hub.server_health("a").attempts <= 1


@pytest.mark.requirement("LIFE-22")
async def test_a_server_refused_at_cold_start_is_looked_at_ever_less_often_and_never_dialed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    looked_at: list[float] = []

    async def counted(host: str, port: int) -> bool:
        looked_at.append(clock.now())
        return await is_listening(host, port)

    monkeypatch.setattr(slot, "is_listening", counted)
    with closed_port() as port:
        server = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}
        async with running({"a": server}, clock=clock, reconnect={"selfProbe": "off"}) as hub:
            await reaches(hub, "a", State.PERMANENTLY_FAILED)
            assert "refused" in hub.server_health("a").reason
            life = hub.registry.slots["a"].machine.life
            for _ in range(300):
                await clock.advance(1)
                await until(hub, "a", lambda: life.address_watch.pending is None)
            assert life.generation == 1  # one dial, at the very start
    waits = [later - sooner for sooner, later in pairwise(looked_at)]
    assert min(waits) >= 1
    assert 50 <= len([at for at in looked_at if at <= 60]) <= 60
    assert waits == sorted(waits)
    assert all(wait <= max(1.0, at / 10) + 0.001 for at, wait in zip(looked_at, waits, strict=False))
    assert waits[-1] > 20


@pytest.mark.requirement("LIFE-22")
@pytest.mark.parametrize("known", [True, False], ids=["up before", "never up"])
async def test_a_server_that_was_away_for_75_seconds_is_back_within_a_tenth_of_that(known: bool) -> None:
    clock = FakeClock()
    async with McpPeer(get_stream=True) as peer:
        if not known:
            await peer.stop()
        async with running({"a": peer}, clock=clock) as hub:
            await hub.ready()
            if known:
                with anyio.fail_after(5):
                    await peer.streaming()
                await peer.stop()
            await until(hub, "a", lambda: hub.server_health("a").retry_in not in (None, 0.0))
            while clock.now() < 75:
                await _all_answered(hub)
                await anyio.wait_all_tasks_blocked()  # the owner of the server has yet to wait for its time
                await clock.advance_to_next()
            away = clock.now()
            await _all_answered(hub)
            await peer.start()
            await clock.advance(away / 10)
            await reaches(hub, "a")


@contextmanager
def black_hole() -> Iterator[int]:
    """A port that takes no connection and refuses none: its queue is full."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield full.getsockname()[1]


@pytest.mark.requirement("LIFE-22")
async def test_a_server_whose_host_was_silent_is_back_within_a_second_of_listening() -> None:
    clock = FakeClock()
    patient: dict[str, Any] = {"load": {"attemptTimeout": "300ms"}, "reconnect": {"backoff": ["100s"]}}
    with ExitStack() as silent:
        port = silent.enter_context(black_hole())
        server = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}
        async with running({"a": server}, clock=clock, **patient) as hub:
            await reaches(hub, "a", State.RECONNECTING)
            assert "waiting for a connection" in hub.server_health("a").reason
            await clock.advance(1)
            await _all_answered(hub)
            assert hub.server_health("a").state is State.RECONNECTING
            silent.close()
            async with McpPeer(port=port):
                await clock.advance(1)
                await reaches(hub, "a")
                await hub.close()


@pytest.mark.requirement("LIFE-22", "LIFE-19")
async def test_a_server_refused_at_cold_start_is_back_within_a_second_of_listening() -> None:
    clock = FakeClock()
    async with McpPeer() as peer:
        await peer.stop()
        async with running({"a": peer}, clock=clock) as hub:
            await reaches(hub, "a", State.PERMANENTLY_FAILED)
            await peer.start()
            await clock.advance(1)
            await reaches(hub, "a")
            assert peer.methods.count("initialize") == 1
            assert hub.server_health("a").attempts == 0


@pytest.mark.requirement("LIFE-22", "LIFE-5")
async def test_a_server_that_restarts_is_back_within_a_second_however_long_its_backoff() -> None:
    clock = FakeClock()
    async with McpPeer(get_stream=True) as peer, running({"a": peer}, clock=clock) as hub:
        await hub.ready()
        with anyio.fail_after(5):
            await peer.streaming()
        await peer.stop()
        life = hub.registry.slots["a"].machine.life
        for _ in range(20):
            await until(
                hub, "a", lambda: life.address_watch.pending is None and life.dial is None and life.lease is None
            )
            await clock.advance(1)
        await until(hub, "a", lambda: life.address_watch.pending is None and life.dial is None)
        dialed = life.generation
        await peer.start()
        await clock.advance(1)
        await reaches(hub, "a")
        assert dialed <= 7


@pytest.mark.requirement("LIFE-6", "LIFE-22")
async def test_a_refresh_that_finds_nobody_listening_starts_a_reconnect_at_once() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        await peer.stop()
        await clock.advance(60)
        await reaches(hub, "a", State.RECONNECTING)
        assert "refused" in hub.server_health("a").reason


@pytest.mark.requirement("LIFE-17", "LIFE-22")
async def test_a_liveness_check_that_finds_the_session_forgotten_renews_it_at_once() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock, call={"timeout": "3s"}) as hub:
        await settled(hub, peer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_times_out, hub)
            with anyio.fail_after(10):
                await peer.slow_started.wait()
            peer.sessions.clear()
        await until(hub, "a", lambda: hub.server_health("a").generation == 2)
        assert peer.methods.count("ping") == 1
        assert hub.server_health("a").attempts == 0


async def _times_out(hub: Hub) -> None:
    with pytest.raises(CallFailed):
        await hub.call_tool("a__slow")


@pytest.mark.requirement("LIFE-19", "LIFE-22")
async def test_a_parked_server_that_listens_again_but_answers_503_is_back_within_a_second_of_being_well() -> None:
    clock = FakeClock()
    async with (
        McpPeer(get_stream=True) as peer,
        running({"a": peer}, clock=clock, reconnect={"backoff": ["1s"]}) as hub,
    ):
        await hub.ready()
        with anyio.fail_after(5):
            await peer.streaming()
        await peer.stop()
        await reaches(hub, "a", State.PERMANENTLY_FAILED)
        peer.script = respond(503, "starting")
        await peer.start()
        for _ in range(10):
            await _all_answered(hub)
            await clock.advance(1)
        await _all_answered(hub)
        assert hub.server_health("a").state is State.PERMANENTLY_FAILED
        assert "starting" in hub.server_health("a").reason
        peer.script = peer.healthy
        await clock.advance(1)
        await reaches(hub, "a")
        assert hub.server_health("a").attempts == 1


async def _all_answered(hub: Hub) -> None:
    """Wait until neither a look nor a dial is under way."""
    life = hub.registry.slots["a"].machine.life
    await until(hub, "a", lambda: life.address_watch.pending is None and life.dial is None)


@pytest.mark.requirement("LIFE-5", "LIFE-6", "BRK-10")
async def test_a_flapping_server_is_hurried_once_then_backed_off_then_parked_and_trips(stdio_peer: MakePeer) -> None:
    """Counted by its own starts: one at first, one hurried reconnect, and the budget."""
    clock = FakeClock()
    peer = stdio_peer("--die-after-list")
    async with running({"a": peer}, clock=clock) as hub:
        told = records(hub)
        await until(hub, "a", lambda: retries(told))
        assert hub.registry.slots["a"].machine.life.generation == 2
        tripped = False
        while hub.server_health("a").state is not State.PERMANENTLY_FAILED:
            seen = len(told)
            await clock.advance(1)
            if hub.registry.slots["a"].machine.dialing is not None:
                await until(hub, "a", lambda seen=seen: _settled(hub, told[seen:]))  # type: ignore[misc]
            tripped = tripped or hub.server_health("a").breaker is BreakerState.OPEN
        assert tripped
        assert peer.starts <= 7
        assert len(hub.catalog.tools) == 5
        with pytest.raises(ServerPermanentlyFailed):
            await hub.call_tool("a__echo")


def _settled(hub: Hub, told: Sequence[object]) -> bool:
    """The dial that was under way stood and fell."""
    parked = hub.server_health("a").state is State.PERMANENTLY_FAILED
    return parked or any(isinstance(record, RetryPlanned) for record in told)


@pytest.mark.requirement("LIFE-7")
async def test_a_reconnect_does_not_wait_for_the_old_connection_to_close(stdio_peer: MakePeer, brisk: None) -> None:
    """Its child ignores the end of its stdin and SIGTERM: the new one stands long before the old one is gone."""
    peer = stdio_peer("--ignore-stdin-close", "--ignore-term")
    async with running({"a": peer}) as hub:
        await hub.ready()
        assert (await hub.reconnect("a")).state is State.CONNECTED
        assert len(peer.living) == 2
        assert (await hub.call_tool("a__echo", {"text": "new"})).text == "new"
    assert peer.living == []


@pytest.mark.requirement("LIFE-5", "LIFE-7")
async def test_a_close_that_fails_is_reported_charges_nothing_and_rolls_nothing_back(
    stdio_peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Child.close

    async def fail(child: Child, *, politely: bool) -> None:
        await close(child, politely=politely)
        raise OSError("its pipe is on fire")

    peer = stdio_peer()
    monkeypatch.setattr(Child, "close", fail)
    async with running({"a": peer}) as hub:
        await hub.ready()
        told = records(hub)
        await hub.reconnect("a")
        await until(hub, "a", lambda: any(isinstance(record, CloseFailed) for record in told))
        health = hub.server_health("a")
        assert (health.state, health.attempts, health.failures) == (State.CONNECTED, 0, 0)
        assert (await hub.toggle("a", False)).state is State.DISABLED
        reports = [record.error for record in told if isinstance(record, CloseFailed)]
        assert len(reports) == 2
        assert "on fire" in reports[0]


@pytest.mark.requirement("LIFE-7")
async def test_a_close_that_hangs_does_not_keep_a_server_from_being_disabled(
    stdio_peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, let_go = Child.close, anyio.Event()

    async def hang(child: Child, *, politely: bool) -> None:
        with anyio.CancelScope(shield=True):
            await let_go.wait()
            await close(child, politely=politely)

    monkeypatch.setattr(Child, "close", hang)
    clock = FakeClock()
    async with running({"a": stdio_peer(), "b": stdio_peer()}, clock=clock) as hub:
        await hub.ready()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hub.toggle, "a", False)
            await reaches(hub, "a", State.DISABLING)
            assert (await hub.call_tool("b__echo", {"text": "still"})).text == "still"
            await clock.advance(10)
        assert hub.server_health("a").state is State.DISABLED
        let_go.set()


@pytest.mark.requirement("LIFE-5")
async def test_a_caller_cancelled_in_mid_reconnect_cancels_only_itself() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock, load={"attemptTimeout": "1s"}) as hub:
        await settled(hub, peer)
        peer.script = never_answer
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hub.reconnect, "a")
            tasks.start_soon(hub.call_tool, "a__echo")
            await reaches(hub, "a", State.RECONNECTING)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert hub.registry.slots["a"].machine.dialing == 2  # the dial does not belong to the caller that waits for it
        peer.script = peer.healthy
        await until(hub, "a", lambda: hub.registry.slots["a"].machine.dialing is None)
        await clock.advance(1)
        await reaches(hub, "a")
        assert (await hub.call_tool("a__echo", {"text": "back"})).text == "back"


@pytest.mark.requirement("LIFE-5")
async def test_a_call_waits_for_a_server_that_is_coming_back_and_no_longer_than_it_is_told() -> None:
    clock = FakeClock()
    async with McpPeer(get_stream=True) as peer, running({"a": peer}, clock=clock, **UNSHELTERED) as hub:
        await hub.ready()
        with anyio.fail_after(5):
            await peer.streaming()
        await peer.stop()
        await until(hub, "a", lambda: hub.server_health("a").retry_in == 0.25)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_not_ready, hub)
            await anyio.wait_all_tasks_blocked()
            for _ in range(5):
                await clock.advance(1)
                await until(hub, "a", lambda: hub.registry.slots["a"].machine.dialing is None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_echoes, hub)
            await anyio.wait_all_tasks_blocked()
            await peer.start()
            await clock.advance(1)


async def _not_ready(hub: Hub) -> None:
    with pytest.raises(ServerNotReady) as refusal:
        await hub.call_tool("a__echo")
    assert refusal.value.state == "reconnecting"


async def _echoes(hub: Hub) -> None:
    with anyio.fail_after(10):
        assert (await hub.call_tool("a__echo", {"text": "back"})).text == "back"


@pytest.mark.requirement("LIFE-10", "LIFE-5")
async def test_failed_calls_and_failed_refreshes_feed_the_same_count() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock, **UNSHELTERED) as hub:
        await settled(hub, peer)
        peer.script = reset_before_answer
        for failures in (1, 2):
            with pytest.raises(ConnectionClosed):
                await hub.call_tool("a__echo")
            assert hub.server_health("a").failures == failures
        await clock.advance(60)
        await reaches(hub, "a", State.RECONNECTING)
