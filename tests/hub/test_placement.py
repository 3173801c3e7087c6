"""A stdio server that lives on one replica: one process, and every replica uses it as if it were its own."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from holdfast import Hub
from holdfast.core import State
from holdfast.errors import ConnectionClosed, HoldfastError, ServerUnavailable
from holdfast.front import Broker
from holdfast.hub import Fleet, LocalStore, PeerAddress, Peers, serve_broker
from holdfast.testing import Fault, StdioServer
from tests.hub.open_hubs import PATIENCE, reaches, running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-6")]

KEY = b"k" * 32
EVERYTHING = {"command": sys.executable, "args": ["-m", "tests.front.peer_server", "legacy"]}


class Replicas:
    """Hubs that share the broker of one machine."""

    def __init__(self, folder: Path, tasks: anyio.abc.TaskGroup, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._tasks = tasks
        self._stack = stack
        self.hubs: list[Hub] = []

    async def start(self, servers: Mapping[str, object], **settings: Any) -> Hub:
        """One more hub."""
        hub = await self._stack.enter_async_context(replica(self._folder, len(self.hubs), servers, **settings))
        self.hubs.append(hub)
        return hub


@asynccontextmanager
async def replica(folder: Path, number: int, servers: Mapping[str, object], **settings: Any) -> AsyncIterator[Hub]:
    peers = Peers(lambda: [KEY], "test", advertise=PeerAddress(path=f"{folder}/p{number}"))
    fleet = Fleet(LocalStore(folder / "broker"), replica=f"r{number}", peers=peers, placement="one")
    broker: list[Broker] = []
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running(servers, hub={"fleet": fleet}, **settings))
        broker.append(Broker(hub))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await tasks.start(broker[0].run)
        yield hub


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await tasks.start(lambda task_status: serve_broker(tmp_path / "broker", task_status=task_status))
        yield Replicas(tmp_path, tasks, stack)


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the fleet works in tasks of its own
            await anyio.sleep(0.02)


def fleet_of(hub: Hub) -> Fleet:
    assert hub.registry.fleet is not None
    return hub.registry.fleet


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            os.kill(pid, 0)
            found.append(pid)
        except ProcessLookupError:
            continue
    return found


async def holder_and_other(replicas: Replicas, servers: Mapping[str, object], **settings: Any) -> tuple[Hub, Hub]:
    for _ in range(2):
        await replicas.start(servers, **settings)
    name = next(iter(servers))
    for hub in replicas.hubs:
        await reaches(hub, name)
    holders = [hub for hub in replicas.hubs if fleet_of(hub).runs(name)]
    assert len(holders) == 1
    return holders[0], next(hub for hub in replicas.hubs if hub is not holders[0])


async def test_one_process_serves_all_replicas_under_the_same_names(replicas: Replicas) -> None:
    with StdioServer({"a": "1"}) as server:
        holder, other = await holder_and_other(replicas, {"s": server.definition})
        assert len(server.pids) == 1
        assert (await holder.call_tool("s__a")).text == (await other.call_tool("s__a")).text == "1"
        assert [one.name for one in holder.catalog.tools] == [one.name for one in other.catalog.tools]
        assert fleet_of(other).home_of("s") == fleet_of(holder).home_of("s") == fleet_of(holder).replica
        assert len(alive(server.pids)) == 1
