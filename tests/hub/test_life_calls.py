"""The path of a call: it finds the live connection, is sent once, and its failure is reported truthfully."""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from holdfast.core.lifecycle.table import State
from holdfast.errors import (
    BreakerOpen,
    CallDenied,
    CallFailed,
    ConnectionClosed,
    ServerDenied,
    ServerFailure,
    ServerNotReady,
)
from holdfast.hub.hub import Hub
from holdfast.hub.slot import Slot
from holdfast.testing import FakeClock
from holdfast.wire.http.connection import PooledConnection
from holdfast.wire.http.pool import ConnectTimedOut, Pool
from tests.harness.open_hubs import reaches, records, running, settled, states, until
from tests.harness.waiting import came_true
from tests.peers.http_fault import Behaviour, Exchange, Request, never_answer, reset_before_answer, respond
from tests.peers.mcp_http import McpPeer, calls_meet
from tests.peers.mcp_sse import SsePeer
from tests.peers.peer_server import running as front_peer
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio
MakePeer = Callable[..., StdioPeer]


async def failing(hub: Hub, tool: str, into: list[ServerFailure]) -> None:
    """Call a tool, and keep how it failed."""
    try:
        await hub.call_tool(tool)
    except ServerFailure as exc:
        into.append(exc)


@pytest.mark.requirement("LIFE-9")
async def test_a_handle_taken_before_a_reconnect_works_after_it(stdio_peer: MakePeer) -> None:
    peer = stdio_peer()
    async with running({"a": peer}) as hub:
        await hub.ready()
        echo = next(tool for tool in hub.tools() if tool.name == "a__echo")
        peer.kill()
        await until(hub, "a", lambda: hub.server_health("a").generation == 2)
        assert (await echo.call({"text": "after"})).text == "after"


@pytest.mark.requirement("LIFE-9", "LIFE-5")
async def test_a_handle_of_a_restored_listing_waits_for_the_first_connection() -> None:
    async with McpPeer() as peer, running({"a": peer}) as hub:
        await hub.ready()
        handle = hub.tools()[0]
        await hub.toggle("a", False)
        await hub.toggle("a", True)
        assert hub.server_health("a").state is State.CONNECTING
        assert (await handle.call({"text": "came"})).text == "came"


@pytest.mark.requirement("LIFE-10")
async def test_three_slow_calls_do_not_tear_down_a_server_that_still_answers() -> None:
    async with McpPeer() as peer, running({"a": peer}, call={"timeout": "200ms"}) as hub:
        await settled(hub, peer)
        failures: list[ServerFailure] = []
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(failing, hub, "a__slow", failures)
        with anyio.fail_after(5):
            await peer.until(lambda: "ping" in peer.methods)
        await until(hub, "a", lambda: not hub.registry.slots["a"].machine.life.lease.checking)  # type: ignore[union-attr]
        health = hub.server_health("a")
        assert (health.state, health.generation, health.failures) == (State.CONNECTED, 1, 0)
        assert hub.registry.slots["a"].machine.breaker.failures == 0
        assert len(failures) == 3
        assert all("raise `timeout` in its definition" in failure.hint for failure in failures)
        assert all("uncertain" in str(failure) for failure in failures)
        assert peer.methods.count("initialize") == 1


@pytest.mark.requirement("HUB-2")
async def test_a_servers_own_limit_holds_for_its_calls_and_for_no_other_server() -> None:
    limits = {"timeout": "200ms", "hardTimeout": "300ms"}
    async with front_peer("legacy") as patient, front_peer("legacy") as usual, McpPeer() as hasty:
        servers = {
            "patient": {"url": patient.url, "timeout": 300},
            "usual": {"url": usual.url},
            "hasty": {"url": hasty.url, "timeout": "50ms"},
        }
        async with Hub.from_config({"mcpServers": servers, "holdfast": {"call": limits}}) as hub:
            await settled(hub)
            answers: list[str] = []

            async def wait() -> None:
                answers.append((await hub.call_tool("patient__wait", {})).text)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                with anyio.fail_after(10):
                    await patient.waiting.wait()
                    with pytest.raises(CallFailed) as slow:
                        await hub.call_tool("usual__hang", {})
                    with pytest.raises(CallFailed) as sooner:
                        await hub.call_tool("hasty__slow", {})
                    patient.go.set()
    assert "within 0.2 s" in str(slow.value)
    assert "within 0.05 s" in str(sooner.value)
    assert len(answers) == 1, "the patient server answered after both limits of the others"


@pytest.mark.requirement("LIFE-10")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_timeout_counts_once_the_server_does_not_answer_a_sign_of_life_either(
    era: str, stdio_peer: MakePeer, brisk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.hub.lease.PING_SECONDS", 0.2)
    peer = stdio_peer("--stop-reading", "--era", era)
    async with running({"a": peer}, call={"timeout": "200ms"}, reconnect={"failures": 2}) as hub:
        await hub.ready()
        failures: list[ServerFailure] = []
        await failing(hub, "a__echo", failures)
        await until(hub, "a", lambda: hub.server_health("a").failures == 1)
        assert hub.server_health("a").state is State.CONNECTED
        await failing(hub, "a__echo", failures)
        await until(hub, "a", lambda: hub.server_health("a").generation != 1)
        assert len(failures) == 2


@pytest.mark.requirement("LIFE-11", "BRK-2", "LIFE-14")
async def test_twenty_calls_on_a_child_that_dies_are_told_at_once_and_are_one_failure(stdio_peer: MakePeer) -> None:
    peer = stdio_peer()
    async with running({"a": peer}) as hub:
        await hub.ready()
        failures: list[ServerFailure] = []
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(failing, hub, "a__slow", failures)
                await peer.until(lambda: peer.methods.count("tools/call") == 20)
                peer.kill()
        assert [type(failure) for failure in failures] == [ConnectionClosed] * 20
        assert all(isinstance(failure, ConnectionClosed) and failure.uncertain for failure in failures)
        assert all("uncertain" in str(failure) for failure in failures)
        await reaches(hub, "a")
        assert hub.registry.slots["a"].machine.breaker.failures == 1
        assert peer.methods.count("tools/call") == 20  # none was sent again


@pytest.mark.requirement("LIFE-11", "BRK-2")
@pytest.mark.parametrize("stream", [True, False])
async def test_twenty_calls_on_an_http_server_that_dies_are_told_at_once_and_are_one_failure(stream: bool) -> None:
    async with McpPeer(get_stream=stream) as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        failures: list[ServerFailure] = []
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(failing, hub, "a__slow", failures)
                await peer.until(lambda: peer.methods.count("tools/call") == 20)
                await peer.stop()
        assert [type(failure) for failure in failures] == [ConnectionClosed] * 20
        assert peer.methods.count("tools/call") == 20
        counted = hub.registry.slots["a"].machine.breaker.failures
        assert counted <= 3 if stream else counted == 1  # with a stream, the loss and a refused dial are seen as well


@pytest.mark.requirement("LIFE-11")
async def test_calls_on_an_event_stream_that_ends_are_told_at_once() -> None:
    async with SsePeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await hub.ready()
        failures: list[ServerFailure] = []
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(failing, hub, "a__slow", failures)
                await peer.slow_started.wait()
                await peer.stop()
        assert [type(failure) for failure in failures] == [ConnectionClosed]


@pytest.mark.requirement("LIFE-11", "BRK-2")
@pytest.mark.parametrize("fault", [reset_before_answer, respond(503, "busy")])
async def test_a_message_that_cannot_be_posted_fails_its_own_call_and_the_event_stream_goes_on(
    fault: Behaviour,
) -> None:
    async with SsePeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await hub.ready()
        failures: list[ServerFailure] = []
        answers: list[str] = []

        async def slow() -> None:
            answers.append((await hub.call_tool("a__slow", {"text": "in the end"})).text)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(slow)
                await peer.slow_started.wait()
                peer.post_fault = fault
                await failing(hub, "a__echo", failures)
                peer.post_fault = None
                assert (await hub.call_tool("a__echo", {"text": "the next"})).text == "the next"
                peer.release.set()
        assert len(failures) == 1
        assert answers == ["in the end"]
        health = hub.server_health("a")
        assert (health.state, health.generation, health.failures) == (State.CONNECTED, 1, 0)


@pytest.mark.requirement("LIFE-11", "BRK-2")
async def test_calls_of_both_kinds_on_an_event_stream_that_dies_are_one_failure() -> None:
    async with SsePeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await hub.ready()
        failures: list[ServerFailure] = []
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(failing, hub, "a__slow", failures)
                await peer.slow_started.wait()
                peer.post_fault = never_answer
                tasks.start_soon(failing, hub, "a__echo", failures)
                await peer.until(lambda: peer.methods.count("tools/call") == 2)
                await peer.stop()
        assert [type(failure) for failure in failures] == [ConnectionClosed] * 2
        assert hub.server_health("a").state is State.RECONNECTING
        # One for the connection, and one for the reconnect that is refused, where that is over by now.
        assert hub.registry.slots["a"].machine.breaker.failures <= 2


@pytest.mark.requirement("LIFE-11", "LIFE-16")
async def test_a_flood_that_ends_the_connection_is_told_to_its_callers_as_its_end(
    stdio_peer: MakePeer, brisk: None
) -> None:
    peer = stdio_peer("--flood")
    async with running({"a": peer}, clock=FakeClock(), limits={"notificationsPerSecond": 100}) as hub:
        await until(hub, "a", lambda: hub.catalog.tools)
        failures: list[ServerFailure] = []
        await failing(hub, "a__echo", failures)
        assert [type(failure) for failure in failures] == [ConnectionClosed]
        assert "notifications per second" in str(failures[0])
        assert "uncertain" in str(failures[0])


@pytest.mark.requirement("LIFE-16")
async def test_a_call_is_not_sent_again_on_a_new_connection_unless_its_tool_allows_it(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--die-in-first-call")
    async with running({"a": peer}) as hub:
        await hub.ready()
        with pytest.raises(ConnectionClosed, match="uncertain") as failure:
            await hub.call_tool("a__echo", {"text": "once"})
        assert failure.value.uncertain
        await until(hub, "a", lambda: hub.server_health("a").generation == 2)
        assert peer.methods.count("tools/call") == 1


@pytest.mark.requirement("LIFE-16")
async def test_a_read_only_call_is_repeated_once_when_its_connection_dies(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--die-in-first-call", "--read-only")
    async with running({"a": peer}) as hub:
        await hub.ready()
        assert (await hub.call_tool("a__echo", {"text": "twice"})).text == "twice"
        assert peer.methods.count("tools/call") == 2
        assert peer.starts == 2


@pytest.mark.requirement("LIFE-16")
async def test_a_read_only_call_is_sent_twice_and_no_more(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--die-in-call", "--read-only")
    async with running({"a": peer}) as hub:
        await hub.ready()
        with pytest.raises(ConnectionClosed) as failure:
            await hub.call_tool("a__echo")
        assert not failure.value.uncertain  # nothing was changed by it, however often it ran
        assert peer.methods.count("tools/call") == 2


@pytest.mark.requirement("LIFE-16")
@pytest.mark.parametrize(
    ("hints", "sent"),
    [({"idempotentHint": True}, 2), ({"readOnlyHint": True}, 2), ({"readOnlyHint": False}, 1), ({}, 1)],
)
async def test_a_reset_request_is_repeated_only_if_its_tool_says_that_it_may_be(
    hints: dict[str, Any], sent: int
) -> None:
    async with McpPeer(hints={"echo": hints}) as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        seen = len(peer.requests)
        peer.script = calls_meet(reset_before_answer, peer)
        with pytest.raises(ConnectionClosed):
            await hub.call_tool("a__echo")
        assert peer.methods[seen:].count("tools/call") == sent


@pytest.mark.requirement("LIFE-16")
@pytest.mark.parametrize(("status", "uncertain"), [(502, True), (503, True), (408, True), (429, False), (400, False)])
async def test_an_error_status_says_whether_the_server_may_have_acted(status: int, uncertain: bool) -> None:
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        peer.script = calls_meet(respond(status, "no"), peer)
        with pytest.raises(CallFailed) as failure:
            await hub.call_tool("a__echo")
        assert ("uncertain" in str(failure.value)) == failure.value.uncertain == uncertain
        assert peer.methods.count("tools/call") == 1


@pytest.mark.requirement("LIFE-16")
@pytest.mark.parametrize("status", [401, 404, 405, 503])
async def test_a_call_whose_answer_cannot_be_resumed_is_not_sent_again_and_is_uncertain(status: int) -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        await exchange.chunk(b"retry: 1\nid: 7\ndata:\n\n")
        await exchange.end()

    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        calls = calls_meet(Behaviour("cut", cut), peer)
        peer.script = lambda request: respond(status) if "last-event-id" in request.headers else calls(request)
        with pytest.raises(ConnectionClosed, match="closed before the answer was complete") as failure:
            await hub.call_tool("a__echo")
        assert failure.value.uncertain
        assert peer.methods.count("tools/call") == 1


@pytest.mark.requirement("LIFE-16", "LIFE-22")
async def test_a_call_that_is_refused_because_nobody_listens_waits_and_is_sent_when_somebody_does() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        await peer.stop()
        answers: list[str] = []

        async def call() -> None:
            answers.append((await hub.call_tool("a__echo", {"text": "once"})).text)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await until(hub, "a", lambda: hub.server_health("a").retry_in == 0.25)
                await peer.start()
                await clock.advance(1)
        assert answers == ["once"]
        assert peer.methods.count("tools/call") == 1


@pytest.mark.requirement("LIFE-16")
async def test_a_call_that_stays_refused_was_not_acted_upon_and_says_so() -> None:
    async with McpPeer() as peer, running({"a": peer}, call={"readyTimeout": "100ms"}) as hub:
        await settled(hub, peer)
        await peer.stop()
        with anyio.fail_after(5), pytest.raises(ServerNotReady, match="refused") as failure:
            await hub.call_tool("a__echo")
        assert "uncertain" not in str(failure.value)


@pytest.mark.requirement("LIFE-16")
async def test_a_call_whose_connection_never_came_to_stand_was_not_acted_upon_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def dropped(pool: Pool) -> PooledConnection:
        raise ConnectTimedOut

    async with McpPeer() as peer, running({"a": peer}) as hub:
        await settled(hub, peer)
        monkeypatch.setattr(Pool, "connected", dropped)
        monkeypatch.setattr(Pool, "free", lambda pool: None)
        with pytest.raises(CallFailed, match="waiting for a connection") as failure:
            await hub.call_tool("a__echo")
        assert "uncertain" not in str(failure.value)
        assert "firewall" in failure.value.hint


@pytest.mark.requirement("LIFE-17")
async def test_a_connection_that_comes_with_the_end_of_the_wait_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with McpPeer() as peer, running({"a": peer}) as hub:
        await settled(hub, peer)
        slot = hub.registry.slots["a"]
        stands, changed = slot.lease, type(slot).changed
        looks = 0

        async def too_late(self: Slot, until: float | None = None) -> bool:
            if until is None:
                return await changed(self)
            nonlocal looks
            looks += 1
            return False

        monkeypatch.setattr(type(slot), "changed", too_late)
        monkeypatch.setattr(type(slot), "lease", property(lambda _: stands if looks else None))
        assert (await hub.call_tool("a__echo", {"text": "hi"})).text == "hi"


@pytest.mark.requirement("LIFE-17", "BRK-2")
async def test_an_expired_session_is_renewed_once_and_the_refused_request_repeated_without_counting() -> None:
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        peer.sessions.clear()
        assert (await hub.call_tool("a__echo", {"text": "again"})).text == "again"
        health = hub.server_health("a")
        assert (health.state, health.generation, health.failures, health.attempts) == (State.CONNECTED, 2, 0, 0)
        assert hub.registry.slots["a"].machine.breaker.failures == 0
        assert peer.methods.count("initialize") == 2
        assert peer.methods.count("tools/call") == 2


@pytest.mark.requirement("LIFE-17", "LIFE-16")
async def test_many_calls_that_meet_an_expired_session_renew_it_once_and_are_all_answered() -> None:
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        peer.sessions.clear()
        answers: list[str] = []

        async def call(number: int) -> None:
            answers.append((await hub.call_tool("a__echo", {"text": str(number)})).text)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for number in range(16):
                    tasks.start_soon(call, number)
        assert sorted(answers) == sorted(map(str, range(16)))
        assert peer.methods.count("initialize") == 2
        assert peer.methods.count("tools/call") <= 32
        assert hub.registry.slots["a"].machine.breaker.failures == 0


@pytest.mark.requirement("LIFE-17", "LIFE-16")
async def test_calls_under_way_when_a_session_is_renewed_are_refused_by_the_server_and_not_cut_off() -> None:
    """The first refusal renews the session; the others come while the old connection is let go."""
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        peer.sessions.clear()
        peer.script = _all_but_the_first_call_wait(peer)
        answers: list[str] = []

        async def call(number: int) -> None:
            answers.append((await hub.call_tool("a__echo", {"text": str(number)})).text)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for number in range(5):
                    tasks.start_soon(call, number)
                await peer.until(lambda: peer.methods.count("initialize") == 2)
                await until(hub, "a", lambda: hub.server_health("a").generation == 2)
                peer.release.set()
        assert sorted(answers) == ["0", "1", "2", "3", "4"]
        assert peer.methods.count("initialize") == 2


def _all_but_the_first_call_wait(peer: McpPeer) -> Callable[[Request], Behaviour]:
    async def wait(exchange: Exchange) -> None:
        await peer.release.wait()
        await peer.healthy.act(exchange)

    def choose(request: Request) -> Behaviour:
        late = b'"tools/call"' in request.body and 1 < peer.methods.count("tools/call") <= 5
        return Behaviour("late", wait) if late else peer.healthy

    return choose


@pytest.mark.requirement("LIFE-17")
async def test_sessions_that_expire_as_soon_as_they_are_made_are_a_loss_and_no_endless_loop() -> None:
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        peer.script = calls_meet(respond(404), peer)
        with pytest.raises(CallFailed):
            await hub.call_tool("a__echo")
        await until(hub, "a", lambda: hub.registry.slots["a"].machine.dialing is None)
        assert peer.methods.count("tools/call") == 2
        assert peer.methods.count("initialize") <= 3
        assert hub.registry.slots["a"].machine.breaker.failures == 1


@pytest.mark.requirement("BRK-4")
async def test_a_call_that_is_too_large_for_the_server_takes_it_from_no_other_caller() -> None:
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        peer.script = calls_meet(respond(413, "too large"), peer)
        for _ in range(5):
            with pytest.raises(CallFailed, match="too large for it"):
                await hub.call_tool("a__echo")
        assert hub.registry.slots["a"].machine.breaker.failures == 0
        peer.script = peer.healthy
        assert (await hub.call_tool("a__echo", {"text": "less"})).text == "less"


@pytest.mark.requirement("BRK-11")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(respond(202, ""), "it accepted a request without answering it", id="no answer"),
        pytest.param(
            respond(200, "{}", {"content-type": "application/json", "content-encoding": "gzip"}),
            "its answer is badly compressed",
            id="badly compressed",
        ),
        pytest.param(respond(200, "{}", {"transfer-encoding": "chunked"}), "breaks the rules of HTTP", id="bad HTTP"),
    ],
)
async def test_a_server_that_answers_no_call_trips_the_breaker(answer: Behaviour, words: str) -> None:
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        peer.script = calls_meet(answer, peer)
        for _ in range(3):
            with pytest.raises(CallFailed, match=words):
                await hub.call_tool("a__echo")
        with pytest.raises(BreakerOpen):
            await hub.call_tool("a__echo")


@pytest.mark.requirement("LIFE-23", "BRK-4")
@pytest.mark.parametrize("status", [401, 403])
async def test_a_denied_call_is_that_calls_denial_and_no_more(status: int) -> None:
    async with McpPeer() as peer, running({"a": peer}, clock=FakeClock()) as hub:
        await settled(hub, peer)
        told = records(hub)
        peer.script = calls_meet(respond(status, "not you"), peer)
        for _ in range(5):
            with pytest.raises(CallDenied):
                await hub.call_tool("a__echo")
        health = hub.server_health("a")
        assert (health.state, health.failures) == (State.CONNECTED, 0)
        assert hub.registry.slots["a"].machine.breaker.failures == 0
        assert states(told) == []
        assert peer.methods.count("tools/call") == 5
        peer.script = peer.healthy
        assert (await hub.call_tool("a__echo", {"text": "you"})).text == "you"


@pytest.mark.requirement("LIFE-23", "LIFE-4")
async def test_three_denied_refreshes_make_the_server_denied_and_it_keeps_its_tools() -> None:
    clock = FakeClock()
    async with McpPeer() as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        peer.script = respond(403, "not you")
        lease = hub.registry.slots["a"].machine.life.lease
        assert lease is not None
        for denials in (1, 2):
            await clock.advance(60)
            await until(hub, "a", lambda n=denials: lease.denials == n)  # type: ignore[misc]
            assert hub.server_health("a").state is State.CONNECTED
        await clock.advance(60)
        await reaches(hub, "a", State.DENIED)
        seen = len([request for request in peer.requests if request.method == "POST"])
        await clock.advance(59)
        for _ in range(5):
            with pytest.raises(ServerDenied, match="not you"):
                await hub.call_tool("a__echo")
        assert len([request for request in peer.requests if request.method == "POST"]) == seen
        assert len(hub.catalog.tools) == 5


@pytest.mark.requirement("LIFE-28", "HUB-2")
@pytest.mark.parametrize("transport", ["http", "stdio", "sse"])
async def test_a_callback_that_waits_hears_of_all_progress_in_order_and_before_the_result(
    transport: str, stdio_peer: MakePeer
) -> None:
    told: list[float] = []

    async def slowly(progress: float, total: float | None, message: str | None) -> None:
        for _ in range(5):  # more notices come meanwhile
            await anyio.lowlevel.checkpoint()
        told.append(progress)

    async with AsyncExitStack() as stack:
        if transport == "stdio":
            peer: object = stdio_peer()
        else:
            peer = await stack.enter_async_context(McpPeer() if transport == "http" else SsePeer())
        hub = await stack.enter_async_context(running({"a": peer}))
        await hub.ready()
        await hub.call_tool("a__progress", {"count": 30}, on_progress=slowly)
        assert told == sorted(told)
        assert len(told) == 30


@pytest.mark.requirement("BRK-3")
async def test_a_caller_that_is_cancelled_tells_the_server_and_harms_nobody(stdio_peer: MakePeer) -> None:
    peer = stdio_peer()
    async with running({"a": peer}, clock=FakeClock()) as hub:
        await hub.ready()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hub.call_tool, "a__slow")
                await peer.until(lambda: "tools/call" in peer.methods)
                tasks.cancel_scope.cancel()
            await peer.until(lambda: "notifications/cancelled" in peer.methods)
        assert (await hub.call_tool("a__echo", {"text": "fine"})).text == "fine"
        assert hub.server_health("a").generation == 1


async def test_progress_reaches_the_caller_and_extends_its_patience() -> None:
    async with McpPeer() as peer, running({"a": peer}) as hub:
        await hub.ready()
        steps: list[float] = []

        async def step(progress: float, total: float | None, message: str | None) -> None:
            steps.append(progress)

        await hub.call_tool("a__progress", {"count": 3}, on_progress=step)
        assert steps == [1, 2, 3]


@pytest.mark.requirement("LIFE-11")
async def test_a_call_on_a_child_that_stops_reading_ends_by_its_deadline(stdio_peer: MakePeer, brisk: None) -> None:
    peer = stdio_peer("--stop-reading")
    async with running({"a": peer}, call={"timeout": "200ms"}) as hub:
        await hub.ready()
        failures: list[ServerFailure] = []
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(_large_call, hub, failures)
        assert len(failures) == 4


async def _large_call(hub: Hub, into: list[ServerFailure]) -> None:
    """More than a pipe holds: the write itself is what hangs."""
    try:
        await hub.call_tool("a__echo", {"text": "x" * 500_000})
    except ServerFailure as exc:
        into.append(exc)


async def _stdin_is_closed(hub: Hub, server: str) -> None:
    """Wait until nobody reads the pipe: what was written before would be lost without a word."""
    lease: Any = hub.registry.slot(server).lease
    poll = select.poll()
    poll.register(lease.connection.wire.child._stdin, 0)
    await came_true(lambda: poll.poll(0))


@pytest.mark.requirement("LIFE-16")
async def test_a_call_that_could_not_be_written_is_not_uncertain(stdio_peer: MakePeer) -> None:
    """The process closed its stdin and lives on: nothing of the call reached it."""
    peer = stdio_peer("--close-stdin")
    async with running({"deaf": peer}) as hub:
        await reaches(hub, "deaf")
        await _stdin_is_closed(hub, "deaf")
        with anyio.fail_after(20), pytest.raises(ConnectionClosed) as failed:
            await hub.call_tool("deaf__echo", {"text": "x"})
    assert failed.value.uncertain is False
    assert "uncertain" not in failed.value.message
    assert "it closed its stdin" in failed.value.message
