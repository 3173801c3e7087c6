"""Nothing outlives the hub, whenever it is closed, cancelled or killed; and nothing revives."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from holdfast.core.lifecycle.table import State
from holdfast.errors import HoldfastError, HubClosed, UnknownTool
from holdfast.hub import registry as hubs
from holdfast.hub.hub import Hub
from holdfast.testing import FakeClock
from tests.harness.open_hubs import config, reaches, running, settled, until
from tests.peers.http_fault import closed_port, never_answer, respond
from tests.peers.leaks import RUN_MARK, no_leaks
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio
MakePeer = Callable[..., StdioPeer]


@pytest.mark.requirement("LIFE-12", "LIFE-13")
async def test_a_closed_hub_has_ended_its_processes_and_its_sessions_and_answers_so(stdio_peer: MakePeer) -> None:
    child = stdio_peer("--grandchild")
    async with McpPeer(get_stream=True) as peer, no_leaks():
        async with running({"a": child, "b": peer}) as hub:
            await settled(hub, peer)
            await hub.close()
            assert child.living == []
            assert peer.sessions == set()
            assert peer.methods.count("DELETE") == 1
            for name in ("a", "b"):
                assert hub.registry.slot(name).state is State.DISCONNECTED
                with pytest.raises(HubClosed, match="the hub is closed"):
                    await hub.toggle(name, enabled=True)
            with pytest.raises(HubClosed):
                await hub.apply(config({"a": child, "b": peer, "c": stdio_peer()}))
            await hub.close()
        await peer.all_closed()
    assert child.starts == 1


Use = Callable[[Hub], Any]
AFTER_CLOSE: Mapping[str, Use] = {
    "catalog": lambda hub: hub.catalog,
    "servers": lambda hub: hub.servers,
    "tools": lambda hub: hub.tools(),
    "warnings": lambda hub: hub.warnings(),
    "server_health": lambda hub: hub.server_health("a"),
    "ready": lambda hub: hub.ready(),
    "listen": lambda hub: hub.listen(print),
    "call_tool": lambda hub: hub.call_tool("a__echo"),
    "get_prompt": lambda hub: hub.get_prompt("a__echo"),
    "read_resource": lambda hub: hub.read_resource("x://y", server="a"),
    "find_tools": lambda hub: hub.find_tools("echo"),
    "read_result": lambda hub: hub.read_result("x"),
    "complete": lambda hub: hub.complete({"name": "a__echo"}, {"name": "x", "value": "y"}),
    "reconnect": lambda hub: hub.reconnect("a"),
    "toggle": lambda hub: hub.toggle("a", enabled=False),
    "logged_in": lambda hub: hub.logged_in("a"),
    "apply": lambda hub: hub.apply(hub.config),
    "approve": lambda hub: hub.approve("a"),
}


@pytest.mark.requirement("LIFE-8", "LIFE-13")
async def test_a_closed_hub_answers_everything_by_saying_that_it_is_closed(stdio_peer: MakePeer) -> None:
    public = {name for name in dir(Hub) if not name.startswith("_")}
    assert public - {*AFTER_CLOSE} == {"from_config", "close", "config", "approvals", "events"}
    child = stdio_peer()
    async with running({"a": child}) as hub:
        await hub.ready()
        await hub.call_tool("a__echo")  # its place in the catalog is remembered
        [handle, *_] = hub.tools()
        await hub.close()
        uses: dict[str, Use] = {**AFTER_CLOSE, "a handle": lambda _: handle.call()}
        for name, use in uses.items():
            with pytest.raises(HubClosed, match="the hub is closed") as told:
                await _result(use(hub))
            assert told.value.hint, name
            assert not isinstance(told.value, UnknownTool), name
        assert [record async for record in hub.events()] == []
        with pytest.raises(HubClosed):
            async with hub:
                raise AssertionError("a closed hub is not opened again")
    assert child.starts == 1


async def _result(found: object) -> object:
    return await found if inspect.isawaitable(found) else found


@pytest.mark.requirement("LIFE-13")
async def test_a_hub_that_was_closed_before_it_was_opened_stays_closed(stdio_peer: MakePeer) -> None:
    child = stdio_peer()
    hub = Hub(config({"a": child}))
    await hub.close()
    with pytest.raises(HubClosed):
        async with hub:
            raise AssertionError("a closed hub is not opened")
    with anyio.fail_after(5):
        assert [record async for record in hub.events()] == [], "no record will come"
    assert child.starts == 0


@pytest.mark.requirement("LIFE-8", "LIFE-13")
@pytest.mark.parametrize("use", ["toggle", "reconnect"])
async def test_a_command_that_is_under_way_when_the_hub_closes_does_not_report_success(
    use: str, stdio_peer: MakePeer, brisk: None
) -> None:
    """Disabling waits for a stubborn process, and reconnecting for one that does not answer."""
    stubborn = ("--ignore-stdin-close", "--ignore-term") if use == "toggle" else ("--never-answer",)
    child = stdio_peer(*stubborn)
    async with running({"a": child}) as hub:
        if use == "toggle":
            await hub.ready()
        else:
            with anyio.fail_after(20):
                await child.until(lambda: child.methods)
        commands: Mapping[str, Use] = {
            "toggle": lambda hub: hub.toggle("a", enabled=False),
            "reconnect": lambda hub: hub.reconnect("a"),
        }
        told: list[str] = []

        async def command() -> None:
            with pytest.raises(HubClosed) as closed:
                await commands[use](hub)
            told.append(str(closed.value))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(command)
            await anyio.wait_all_tasks_blocked()
            await hub.close()
        assert told == ["MCP server 'a' is no longer served"]


@pytest.mark.requirement("LIFE-13")
async def test_a_hub_whose_servers_are_all_at_rest_closes_at_once(stdio_peer: MakePeer) -> None:
    """Disabled, denied, parked, waiting to retry: none of them has anything that a close must wait for."""
    clock = FakeClock()
    async with McpPeer(auth="Bearer x") as denying, McpPeer(faults=[respond(503)] * 9) as failing:
        with closed_port() as port:
            servers = {
                "disabled": {"command": "true", "enabled": False},
                "denied": denying,
                "refused": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"},
                "bad": {"url": 7},
                "retrying": failing,
            }
            async with running(servers, clock=clock) as hub:
                await hub.ready()
                with anyio.fail_after(hubs.CLOSE_SECONDS / 3):
                    await hub.close()


@pytest.mark.requirement("LIFE-13", "LIFE-12")
async def test_closing_while_servers_are_dialed_leaves_nothing_and_nothing_revives(stdio_peer: MakePeer) -> None:
    child = stdio_peer("--never-answer")
    async with McpPeer(faults=[never_answer] * 9) as peer, no_leaks():
        async with running({"a": child, "b": peer}) as hub:
            with anyio.fail_after(5):
                await child.until(lambda: child.methods)
                await peer.until(lambda: peer.requests)
            with anyio.fail_after(hubs.CLOSE_SECONDS / 2):
                await hub.close()
            assert child.living == []
        await peer.all_closed()
        assert (child.starts, peer.connections) == (1, 1)


@pytest.mark.requirement("LIFE-13")
async def test_closing_while_a_server_waits_to_reconnect_cancels_the_wait(stdio_peer: MakePeer) -> None:
    clock = FakeClock()
    async with McpPeer(get_stream=True) as peer, running({"a": peer}, clock=clock) as hub:
        await settled(hub, peer)
        await peer.stop()
        await until(hub, "a", lambda: hub.server_health("a").retry_in == 0.25)
        await peer.start()
        seen = peer.connections
        await hub.close()
        await clock.advance(3600)
        assert peer.connections == seen
        assert hub.registry.slot("a").state is State.DISCONNECTED


@pytest.mark.requirement("LIFE-13", "LIFE-12")
async def test_closing_while_a_server_is_being_reconnected_leaves_nothing(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--ignore-stdin-close")
    async with no_leaks(), running({"a": peer}) as hub:
        await hub.ready()
        os.kill(peer.pids[0], signal.SIGKILL)
        await reaches(hub, "a", State.RECONNECTING)
        with anyio.fail_after(hubs.CLOSE_SECONDS):
            await hub.close()
    assert peer.living == []


@pytest.mark.requirement("LIFE-13")
async def test_a_close_whose_caller_is_cancelled_goes_on_and_the_next_one_joins_it(
    stdio_peer: MakePeer, brisk: None
) -> None:
    peer = stdio_peer("--ignore-stdin-close", "--ignore-term")
    async with running({"a": peer}) as hub:
        await hub.ready()
        with anyio.move_on_after(0.05) as impatient:
            await hub.close()
        assert impatient.cancelled_caught
        with anyio.fail_after(5):
            await hub.close()
        assert peer.living == []


@pytest.mark.requirement("LIFE-12", "LIFE-13")
async def test_a_cancelled_user_of_a_hub_gets_its_cancellation_after_an_orderly_close(stdio_peer: MakePeer) -> None:
    child = stdio_peer()
    async with McpPeer() as peer, no_leaks():
        with anyio.fail_after(hubs.CLOSE_SECONDS / 3):
            async with anyio.create_task_group() as tasks, running({"a": child, "b": peer}) as hub:
                await settled(hub, peer)
                tasks.cancel_scope.cancel()
                await anyio.sleep_forever()
        assert child.living == []
        assert "eof" in child.log.read_text()  # it was asked to end, not killed
        assert peer.methods.count("DELETE") == 1
        await peer.all_closed()


@pytest.mark.requirement("LIFE-13")
async def test_an_error_in_the_users_block_comes_out_as_it_is(stdio_peer: MakePeer) -> None:
    peer = stdio_peer()

    async def stumble() -> None:
        async with running({"a": peer}) as hub:
            await hub.ready()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await stumble()
    assert peer.living == []


@pytest.mark.requirement("LIFE-12", "LIFE-13")
async def test_calls_under_way_when_the_hub_closes_are_told_at_once(stdio_peer: MakePeer) -> None:
    child = stdio_peer()
    async with McpPeer() as peer, running({"a": child, "b": peer}) as hub:
        await settled(hub, peer)
        ended: list[HoldfastError] = []

        async def call(name: str) -> None:
            try:
                await hub.call_tool(name)
            except HoldfastError as exc:
                ended.append(exc)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, "a__slow")
                tasks.start_soon(call, "b__slow")
                await child.until(lambda: "tools/call" in child.methods)
                await peer.slow_started.wait()
                await hub.close()
        assert len(ended) == 2


@pytest.mark.requirement("LIFE-12")
async def test_a_failed_handshake_leaves_no_process_however_stubborn(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--handshake-fault", "misfit", "--ignore-stdin-close", "--ignore-term", "--grandchild")
    async with running({"a": peer}, clock=FakeClock()) as hub:
        await reaches(hub, "a", State.PERMANENTLY_FAILED)
        assert peer.living == []


_OWNER = """
import anyio, sys
from holdfast.hub.hub import Hub

async def main():
    async with Hub.from_config({"mcpServers": {"a": {"command": sys.argv[1], "args": sys.argv[2:]}}}) as hub:
        await hub.ready()
        print(hub.server_health("a").state.value, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.requirement("LIFE-12")
async def test_nothing_is_left_after_kill_9_of_the_process_that_runs_the_hub(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--grandchild", "--ignore-stdin-close", "--ignore-term")
    source = str(Path(hubs.__file__).parents[2])
    command = [sys.executable, "-c", _OWNER, peer.command, *peer.args]
    env = {**os.environ, "PYTHONPATH": source, "HOLDFAST_TEST_RUN": RUN_MARK}
    async with await anyio.open_process(command, env=env, stderr=None) as owner:
        assert owner.stdout is not None
        with anyio.fail_after(30):
            assert (await owner.stdout.receive()).strip() == b"connected"
        assert len(peer.living) == 2
        owner.send_signal(signal.SIGKILL)
        await owner.wait()
        with anyio.fail_after(10):
            await peer.until(lambda: not peer.living)


async def test_a_hub_that_was_never_opened_can_be_closed() -> None:
    hub = Hub(config({}))
    await hub.close()
    await hub.close()


@pytest.mark.requirement("LIFE-13")
async def test_a_hub_whose_own_task_fails_closes_and_raises_that_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_: float) -> None:
        raise ZeroDivisionError("the fault itself")

    monkeypatch.setattr(hubs, "sleep_until_poll", fails)
    with pytest.raises(ExceptionGroup) as raised, anyio.fail_after(5):
        async with Hub.from_config({"mcpServers": {}}):
            await anyio.sleep_forever()
    assert raised.group_contains(ZeroDivisionError, match="the fault itself")
