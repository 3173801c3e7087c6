"""One server's fault, flood or hang is its own: the others keep their pace, their state and their tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest

from holdfast.core.lifecycle.table import State
from holdfast.errors import HoldfastError
from holdfast.hub.hub import Hub
from holdfast.hub.journal import CallEnded
from tests.harness.open_hubs import reaches, records, running, until
from tests.peers.http_fault import never_answer, trickle
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio
MakePeer = Callable[..., StdioPeer]

CALLS = 60
TURN_BYTES = 16 * 1024
"""How much of a flood one turn of the event loop may read. The rest waits in the pipe, and so does its writer."""


async def call_often(hub: Hub, name: str) -> None:
    """A number of calls, one after the other."""
    for number in range(CALLS):
        assert (await hub.call_tool(f"{name}__echo", {"text": str(number)})).text == str(number)


async def read_in_each_turn(hub: Hub, name: str, during: Awaitable[None]) -> list[int]:
    """How many bytes of a server each turn of the event loop read meanwhile."""
    lease = hub.registry.slot(name).lease
    assert lease is not None
    assert lease.connection is not None
    wire, read = lease.connection.wire, [0]

    async def watch() -> None:
        before = wire.rpc.received
        while True:
            await asyncio.sleep(0)
            read.append(wire.rpc.received - before)
            before = wire.rpc.received

    watching = asyncio.create_task(watch())
    try:
        await during
    finally:
        watching.cancel()
    return read


@pytest.mark.requirement("LIFE-14", "HUB-12")
async def test_a_server_that_floods_stderr_and_stdout_does_not_slow_the_others(stdio_peer: MakePeer) -> None:
    """The flood never ends, and every notice of it is read: no bound cuts it off."""
    flooding, calm = stdio_peer("--flood"), stdio_peer()
    limits = {"notificationsPerSecond": 10_000_000}
    async with McpPeer() as peer, running({"flooding": flooding, "calm": calm, "http": peer}, limits=limits) as hub:
        await hub.ready()
        told = records(hub)
        with anyio.fail_after(60):
            read = await read_in_each_turn(hub, "flooding", call_often(hub, "calm"))
            read += await read_in_each_turn(hub, "flooding", call_often(hub, "http"))
        assert hub.server_health("flooding").state is State.CONNECTED
        assert {record.outcome for record in told if isinstance(record, CallEnded)} == {"completed"}
        assert all(isinstance(record, CallEnded) for record in told)  # nothing else was worth a record
    assert sum(read) > TURN_BYTES, "it flooded meanwhile"
    assert max(read) <= TURN_BYTES


@pytest.mark.requirement("LIFE-14", "HUB-12")
async def test_a_flood_over_the_bound_ends_that_connection_alone_and_says_so(stdio_peer: MakePeer) -> None:
    flooding, calm = stdio_peer("--flood"), stdio_peer()
    async with running({"flooding": flooding, "calm": calm}) as hub:
        await reaches(hub, "calm")
        await until(hub, "flooding", lambda: "notifications per second" in hub.server_health("flooding").reason)
        await call_often(hub, "calm")
        assert hub.server_health("calm").generation == 1
        assert len(hub.catalog.tools) == 10


@pytest.mark.requirement("LIFE-14")
async def test_servers_that_hang_or_trickle_keep_nobody_waiting(stdio_peer: MakePeer) -> None:
    silent = stdio_peer("--never-answer")
    async with McpPeer(faults=[never_answer] * 99) as hanging, McpPeer(faults=[trickle()] * 99) as trickling:
        servers = {f"hanging{n}": hanging for n in range(20)} | {"trickling": trickling, "silent": silent}
        async with McpPeer() as good, running({**servers, "good": good}) as hub:
            await reaches(hub, "good")
            await call_often(hub, "good")
            assert {hub.server_health(name).state for name in servers} == {State.CONNECTING}


@pytest.mark.requirement("LIFE-14")
async def test_a_server_that_stops_reading_holds_up_only_its_own_callers(stdio_peer: MakePeer, brisk: None) -> None:
    stuck, calm = stdio_peer("--stop-reading"), stdio_peer()
    async with running({"stuck": stuck, "calm": calm}) as hub, anyio.create_task_group() as tasks:
        await hub.ready()

        async def call() -> None:
            with pytest.raises(HoldfastError):
                await hub.call_tool("stuck__echo", {"text": "x" * 300_000})

        for _ in range(5):
            tasks.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        await call_often(hub, "calm")
        await hub.toggle("stuck", False)


@pytest.mark.requirement("LIFE-14")
async def test_a_listener_that_raises_and_one_that_never_reads_harm_nobody(stdio_peer: MakePeer) -> None:
    def raising(server: str, status: str, text: str) -> None:
        raise RuntimeError("a fault of the user's")

    peer = stdio_peer()
    bad = {"command": "no-such-command-anywhere"}
    async with running({"a": peer, "b": bad}, hub={"on_warning": raising}) as hub:
        unread = hub.events()
        await hub.ready()
        for _ in range(3):
            await hub.reconnect("a")
        assert hub.server_health("b").state is State.PERMANENTLY_FAILED
        assert (await hub.call_tool("a__echo", {"text": "on"})).text == "on"
        first = await anext(unread)
        assert getattr(first, "server", "") in ("a", "b")
