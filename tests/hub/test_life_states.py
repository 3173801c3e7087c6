"""A slot is always there, its state is always one of the table's, and only the current generation speaks for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import anyio
import pytest

from holdfast.core.breaker import BreakerState, Outcome, Permit
from holdfast.core.catalog import Item, Listing
from holdfast.core.lifecycle import events as on
from holdfast.core.lifecycle.table import State
from holdfast.errors import ConnectionClosed, HubClosed, LoadFailed, ServerDisabled, UnknownServer, UnknownTool
from holdfast.testing import FakeClock
from tests.harness.open_hubs import config, reaches, records, running, states, until
from tests.peers.http_fault import closed_port, never_answer, respond
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio
MakePeer = Callable[..., StdioPeer]


@contextmanager
def dead() -> Iterator[dict[str, object]]:
    """A server that refuses for sure."""
    with closed_port() as port:
        yield {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}


@pytest.mark.requirement("LIFE-1", "LIFE-15")
async def test_every_server_is_there_from_the_first_moment_whatever_it_does() -> None:
    async with McpPeer() as good, McpPeer(faults=[never_answer]) as hanging, McpPeer(auth="Bearer x") as denying:
        with dead() as refusing:
            servers = {"good": good, "hanging": hanging, "denying": denying, "refusing": refusing, "bad": {"url": 7}}
            async with running(servers) as hub:
                assert list(hub.servers) == list(servers)
                assert list(hub.catalog.servers) == list(servers)
                await reaches(hub, "good")
                await reaches(hub, "denying", State.DENIED)
                await reaches(hub, "refusing", State.PERMANENTLY_FAILED)
                await reaches(hub, "bad", State.PERMANENTLY_FAILED)
                said = {name: (health.state, health.reason) for name, health in hub.servers.items()}
                assert said["good"] == (State.CONNECTED, "")
                assert said["hanging"][0] is State.CONNECTING
                assert all(said[name][1] for name in ("denying", "refusing", "bad"))
            assert list(hub.registry.slots) == list(servers)


@pytest.mark.requirement("LIFE-1", "LIFE-4")
async def test_a_reader_at_any_await_sees_every_server_and_every_tool(stdio_peer: MakePeer) -> None:
    """It looks between any two steps of anybody, while servers die, come back and are switched about."""
    child = stdio_peer()
    holes: list[object] = []
    async with McpPeer(get_stream=True) as peer, running({"a": child, "b": peer}) as hub:
        await hub.ready()
        tools = {entry.name for entry in hub.catalog.tools}

        async def read() -> None:
            while True:
                if set(hub.servers) != {"a", "b"} or set(hub.catalog.servers) != {"a", "b"}:
                    holes.append(dict(hub.servers))
                if {entry.name for entry in hub.catalog.tools} != tools:
                    holes.append(hub.catalog)
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            child.kill()
            await reaches(hub, "a", State.RECONNECTING)
            await reaches(hub, "a")
            await peer.stop()
            await reaches(hub, "b", State.RECONNECTING)
            await peer.start()
            await reaches(hub, "b")
            await hub.reconnect("a")
            await hub.apply(config({"a": child, "b": peer}))
            tasks.cancel_scope.cancel()
    assert holes == []


@pytest.mark.requirement("LIFE-2")
async def test_an_event_that_the_table_forbids_changes_nothing_and_is_an_error(
    stdio_peer: MakePeer, caplog: pytest.LogCaptureFixture, no_illegal_transition: None
) -> None:
    hub_log = logging.getLogger("holdfast.hub")
    async with running({"a": stdio_peer()}) as hub:
        await hub.ready()
        before = hub.server_health("a")
        guards, hub_log.handlers = hub_log.handlers, []  # this once, the error is what is wanted
        hub.registry.slots["a"].handle(on.StartRequested())
        hub_log.handlers = guards
        assert "StartRequested is not allowed while connected" in caplog.text
        assert hub.server_health("a") == before


@pytest.mark.requirement("LIFE-3", "BRK-7")
async def test_a_late_failure_of_an_old_connection_is_no_failure_of_the_new_one() -> None:
    async with McpPeer() as peer, running({"a": peer}) as hub:
        await hub.ready()
        async with anyio.create_task_group() as tasks:
            ended: list[Exception] = []

            async def call() -> None:
                try:
                    await hub.call_tool("a__slow")
                except ConnectionClosed as exc:
                    ended.append(exc)

            for _ in range(5):
                tasks.start_soon(call)
            with anyio.fail_after(5):
                await peer.until(lambda: peer.methods.count("tools/call") == 5)
            await hub.reconnect("a")
        health = hub.server_health("a")
        assert len(ended) == 5
        assert (health.state, health.failures, health.generation) == (State.CONNECTED, 0, 2)
        assert hub.registry.slots["a"].machine.breaker.failures == 0
        assert (await hub.call_tool("a__echo", {"text": "well"})).text == "well"


@pytest.mark.requirement("LIFE-3", "BRK-7")
async def test_late_news_of_an_old_generation_touch_neither_health_nor_breaker_nor_catalog() -> None:
    async with McpPeer() as peer, running({"a": peer}) as hub:
        await hub.ready()
        slot = hub.registry.slots["a"]
        late = slot.admit()
        assert isinstance(late, Permit)
        await hub.reconnect("a")
        before, catalog = replace(hub.server_health("a"), calls=0), hub.catalog  # the late one is counted until then
        other = Listing(server="a", generation=1, tools=(Item("old"),))
        for event in (
            on.DialSucceeded(1, other),
            on.DialFailed(1, "permanent", "late"),
            on.RefreshSucceeded(1, other),
            on.RefreshFailed(1, "denied", "late"),
            on.TransportLost(1, "late"),
            on.SessionExpired(1),
            on.LivenessFailed(1, "late"),
            on.ListChanged(1),
        ):
            slot.handle(event)
        slot.settle(late, Outcome.CONNECTION_LOST, "late")
        assert hub.server_health("a") == before
        assert hub.catalog is catalog
        assert slot.machine.breaker.failures == 0


@pytest.mark.requirement("LIFE-8")
async def test_toggling_is_idempotent_and_switching_on_resets_the_health(stdio_peer: MakePeer) -> None:
    peer = stdio_peer()
    async with running({"a": peer}) as hub:
        await hub.ready()
        told = records(hub)
        await hub.toggle("a", True)
        assert states(told) == []
        assert (await hub.toggle("a", False)).state is State.DISABLED
        assert (await hub.toggle("a", False)).state is State.DISABLED
        assert states(told) == [State.DISABLING, State.DISABLED]
        assert [*hub.catalog.tools] == []
        assert peer.living == []
        await hub.toggle("a", True)
        await hub.toggle("a", True)
        assert len(hub.catalog.tools) == 5  # the last good listing shows again, before it is connected
        await reaches(hub, "a")
        health = hub.server_health("a")
        assert (health.failures, health.attempts, health.breaker) == (0, 0, BreakerState.CLOSED)
        assert peer.starts == 2


@pytest.mark.requirement("LIFE-8")
async def test_a_disabled_server_refuses_calls_and_reconnects_with_its_state(stdio_peer: MakePeer) -> None:
    peer = stdio_peer()
    async with running({"a": peer}) as hub:
        await hub.ready()
        await hub.toggle("a", False)
        with pytest.raises(ServerDisabled) as refusal:
            await hub.reconnect("a")
        assert (refusal.value.server_id, refusal.value.state) == ("a", "disabled")
        with pytest.raises(ServerDisabled):
            await hub.call_tool("a__echo")
        assert peer.starts == 1
        assert peer.methods.count("tools/call") == 0


@pytest.mark.requirement("LIFE-8")
async def test_a_manual_reconnect_that_fails_reports_its_error_and_charges_no_budget() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await hub.ready()
        peer.script = respond(503, "being mended")
        for _ in range(2):
            with pytest.raises(LoadFailed, match="503"):
                await hub.reconnect("a")
            health = hub.server_health("a")
            assert (health.state, health.attempts) == (State.RECONNECTING, 0)
        peer.script = peer.healthy
        assert (await hub.reconnect("a")).state is State.CONNECTED


@pytest.mark.requirement("LIFE-8")
async def test_a_reconnect_of_a_denied_server_tries_again_and_says_what_came_of_it() -> None:
    async with McpPeer() as peer, running({"a": peer}) as hub:
        await hub.ready()
        peer.script = respond(403, "not you")
        with pytest.raises(LoadFailed, match="403"):
            await hub.reconnect("a")
        assert hub.server_health("a").state is State.DENIED
        peer.script = peer.healthy
        assert (await hub.reconnect("a")).state is State.CONNECTED


@pytest.mark.requirement("LIFE-7", "LIFE-8")
async def test_a_server_disabled_while_it_is_dialed_ends_disabled_and_leaves_nothing(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--never-answer")
    async with running({"a": peer}) as hub:
        with anyio.fail_after(5):
            await peer.until(lambda: peer.methods)
        assert hub.server_health("a").state is State.CONNECTING
        with anyio.fail_after(5):
            assert (await hub.toggle("a", False)).state is State.DISABLED
        assert peer.living == []
        assert hub.registry.slots["a"].machine.life.closing == set()


@pytest.mark.requirement("LIFE-7", "LIFE-8")
async def test_a_server_disabled_while_a_failed_dial_is_cleaned_up_ends_disabled_at_once(stdio_peer: MakePeer) -> None:
    """The dial failed, and its child takes a moment to end: only the dial itself reports that end."""
    peer = stdio_peer("--handshake-fault", "error", "--ignore-stdin-close", "--ignore-term")
    clock = FakeClock()  # so that no deadline for the close can help
    async with running({"a": peer}, clock=clock) as hub:
        with anyio.fail_after(5):
            await peer.until(lambda: "eof" in peer.log.read_text())
        assert hub.server_health("a").state is State.CONNECTING
        with anyio.fail_after(5):
            assert (await hub.toggle("a", False)).state is State.DISABLED
        assert peer.living == []


@pytest.mark.requirement("LIFE-8")
async def test_enabling_while_it_is_still_being_disabled_brings_it_back(stdio_peer: MakePeer, brisk: None) -> None:
    peer = stdio_peer("--ignore-stdin-close")
    async with running({"a": peer}) as hub:
        await hub.ready()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hub.toggle, "a", False)
            await reaches(hub, "a", State.DISABLING)
            await hub.toggle("a", True)
        await reaches(hub, "a")
        assert peer.starts == 2
        assert len(peer.living) == 1


async def test_what_is_not_configured_is_named_with_what_is() -> None:
    async with McpPeer() as peer, running({"a": peer}) as hub:
        await hub.ready()
        with pytest.raises(UnknownServer, match="`b`") as unknown:
            hub.server_health("b")
        assert unknown.value.hint == "known: a"
        with pytest.raises(UnknownTool) as tool:
            await hub.call_tool("a__ecko")
        assert "a__echo" in tool.value.hint


@pytest.mark.requirement("LIFE-1")
async def test_nobody_waits_for_the_outcome_of_a_server_that_is_gone() -> None:
    async with McpPeer(faults=[never_answer] * 9) as peer:
        hub_done = anyio.Event()

        async def wait(hub_ready: Callable[[], object]) -> None:
            await hub_ready()  # type: ignore[misc]  # a coroutine function
            hub_done.set()

        async with running({"a": peer, "b": peer}) as hub, anyio.create_task_group() as tasks:
            tasks.start_soon(wait, hub.ready)
            await anyio.lowlevel.checkpoint()
            await hub.apply(config({"b": peer}))
            assert list(hub.servers) == ["b"]
            await hub.close()
            with anyio.fail_after(5):
                await hub_done.wait()
            with pytest.raises(HubClosed):
                await hub.reconnect("b")


@pytest.mark.requirement("LIFE-1")
async def test_ready_means_that_every_server_has_an_outcome_not_that_it_is_up() -> None:
    clock = FakeClock()
    async with McpPeer() as good, McpPeer(auth="Bearer x") as denying, McpPeer(faults=[never_answer] * 9) as hanging:
        with dead() as refusing:
            async with running({"good": good, "denying": denying, "refusing": refusing}) as hub:
                assert await hub.ready(timeout=10)
            async with running({"hanging": hanging}, clock=clock) as hub, anyio.create_task_group() as tasks:
                answers: list[bool] = []

                async def wait() -> None:
                    answers.append(await hub.ready(timeout=3))

                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await clock.advance(3)
                await until(hub, "hanging", lambda: True)
                assert answers == [False]
