"""A call that the hub itself cuts is told so, and why (LIFE-29)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from holdfast import CallFailed, ConnectionClosed, Hub
from holdfast.config import config_from_mapping
from holdfast.testing import Fault, HttpServer, StdioServer
from tests.harness.open_hubs import PATIENCE, config, running, settled

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LIFE-29")]


async def reconnect(hub: Hub) -> object:
    return await hub.reconnect("a")


async def disable(hub: Hub) -> object:
    return await hub.toggle("a", enabled=False)


async def remove(hub: Hub) -> None:
    await hub.apply(config_from_mapping({"mcpServers": {}}))


async def redefine(hub: Hub) -> None:
    await hub.apply(config({"a": {"command": "holdfast-no-such-program"}}))


async def close(hub: Hub) -> None:
    await hub.close()


REASONS: dict[Callable[[Hub], Awaitable[object]], str] = {
    reconnect: "a reconnect was requested",
    disable: "the server was disabled",
    remove: "the server was removed from the configuration",
    redefine: "the server's definition changed",
    close: "the hub is closing",
}


async def cut_off(hub: Hub, cut: Callable[[Hub], Awaitable[object]]) -> CallFailed:
    """The error of a call that is in flight when the hub does this."""
    errors: list[CallFailed] = []

    async def call() -> None:
        with pytest.raises(CallFailed) as failed:
            await hub.call_tool("a__stuck")
        errors.append(failed.value)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            await cut(hub)
    return errors[0]


@pytest.mark.parametrize("cut", REASONS)
async def test_a_call_over_http_says_that_the_hub_cut_it(cut: Callable[[Hub], Awaitable[object]]) -> None:
    called = anyio.Event()

    async def stuck(_: object) -> str:
        called.set()
        await anyio.sleep_forever()
        return ""

    async def cut_once_called(hub: Hub) -> None:
        await called.wait()
        await cut(hub)

    async with HttpServer({"stuck": stuck}) as server, running({"a": server.definition}) as hub:
        await settled(hub)
        error = await cut_off(hub, cut_once_called)
    assert isinstance(error, ConnectionClosed)
    assert f"was cut off by the hub: {REASONS[cut]}. Its outcome is uncertain" in error.message
    assert error.uncertain


async def test_a_call_over_stdio_says_that_the_hub_cut_it() -> None:
    with StdioServer({"stuck": ""}) as server:
        async with running({"a": server.definition}) as hub:
            await settled(hub)
            server.fail(Fault.HANG)
            error = await cut_off(hub, disable)
    assert isinstance(error, ConnectionClosed)
    assert "was cut off by the hub: the server was disabled" in error.message


async def test_a_call_whose_server_died_does_not_blame_the_hub() -> None:
    with StdioServer({"stuck": ""}) as server:
        async with running({"a": server.definition}) as hub:
            await settled(hub)
            server.fail(Fault.DIE)
            with pytest.raises(ConnectionClosed) as died:
                await hub.call_tool("a__stuck")
    assert "by the hub" not in died.value.message
