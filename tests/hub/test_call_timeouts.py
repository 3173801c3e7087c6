"""A caller's own limit for one call, beside the limits of its server."""

from __future__ import annotations

import anyio
import pytest

from holdfast import CallFailed, Hub, ServerBusy, ServerNotReady
from holdfast.core import State
from holdfast.endpoint.instructions import error_result
from holdfast.hub.journal import CallEnded
from holdfast.testing import FakeClock, Fault, HttpServer
from holdfast.wire import FAILURE_KEY
from tests.harness.open_hubs import PATIENCE, running, settled
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DX-13")]


async def test_a_call_that_takes_longer_than_its_own_timeout_fails_and_names_it() -> None:
    async with McpPeer() as peer, running({"a": peer}) as hub:
        await settled(hub, peer)
        ended: list[object] = []
        hub.listen(ended.append)
        with anyio.fail_after(PATIENCE):
            with pytest.raises(CallFailed, match=r"own timeout of 0\.5 s.*uncertain.*longer `timeout`") as failed:
                await hub.call_tool("a__slow", timeout=0.5)
            assert error_result(failed.value)["_meta"][FAILURE_KEY]["sent"], "a program must not make it again blindly"
            await peer.until(lambda: "ping" in peer.methods)
        assert [one.outcome for one in ended if isinstance(one, CallEnded)] == ["timed_out"]
        assert (await hub.call_tool("a__echo", {"text": "fine"}, timeout=PATIENCE)).text == "fine"
        health = hub.server_health("a")
        assert (health.state, health.generation, health.failures) == (State.CONNECTED, 1, 0)


async def test_a_call_whose_time_is_up_before_its_turn_comes_is_not_sent() -> None:
    async with McpPeer() as peer, running({"a": peer}, call={"concurrency": 1, "queue": 1}) as hub:
        await settled(hub, peer)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hub.call_tool, "a__slow")
                await peer.slow_started.wait()
                with pytest.raises(ServerBusy, match=r"own timeout of 0\.05 s"):
                    await hub.call_tool("a__echo", timeout=0.05)
                peer.release.set()
        assert peer.methods.count("tools/call") == 1


async def test_a_call_whose_time_is_up_before_its_server_is_there_is_not_sent() -> None:
    async with HttpServer({"forecast": "sunny"}) as server:
        await server.fail(Fault.HANG)
        definition = {"mcpServers": {"a": server.definition}}
        async with Hub.from_config(definition, clock=FakeClock()) as hub:
            with anyio.fail_after(PATIENCE), pytest.raises(ServerNotReady, match=r"own timeout of 0\.05 s"):
                await hub.read_resource("notes://today", server="a", timeout=0.05)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
async def test_a_timeout_that_is_no_time_is_refused(seconds: float) -> None:
    async with Hub.from_config({"mcpServers": {}}) as hub:
        with pytest.raises(ValueError, match="seconds above 0"):
            await hub.call_tool("a__b", timeout=seconds)
