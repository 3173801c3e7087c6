"""Three hubs with one key behind a real HAProxy, and one hub that is taken over: no call fails under load."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest
from mcp import Client

from holdfast.testing import HttpServer
from tests.cli.balancer import HAPROXY, Balancer, balancer
from tests.cli.load import Load
from tests.cli.serve_process import Served, config, served
from tests.cli.test_serve import ready
from tests.cli.test_serve_restart import KEY
from tests.harness.served_hub import text_of
from tests.peers.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-7")]
behind_haproxy = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")

RATES = [pytest.param(20, id="20/s"), pytest.param(200, id="200/s", marks=pytest.mark.long)]


class Fleet:
    """Hubs with one key, each with a state folder of its own, as on machines of their own."""

    def __init__(self, folder: Path, file: Path, tasks: anyio.abc.TaskGroup, store: str | None = None) -> None:
        self._folder = folder
        self._environ = {"HOLDFAST_SESSION_KEY": KEY, **({"HOLDFAST_FLEET": store} if store is not None else {})}
        self._file = file
        self._tasks = tasks
        self.hubs: dict[int, Served] = {}
        self.ports = [str(free_port()) for _ in range(3)]

    async def start(self, number: int) -> None:
        """Start one, and wait until it is ready."""
        await self._tasks.start(self._run, number)
        await ready(self.hubs[number])

    async def _run(self, number: int, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        arguments = ("--config", str(self._file), "--lame-duck", "1", "--drain", "20")
        home = self._folder / f"h{number}"
        async with served(home, *arguments, port=self.ports[number], **self._environ) as hub:
            self.hubs[number] = hub
            task_status.started()
            await hub.process.wait()

    async def stop(self, number: int, how: signal.Signals = signal.SIGTERM) -> None:
        """End one, and wait for its end."""
        self.hubs[number].send(how)
        await self.hubs[number].ended()


@asynccontextmanager
async def three_hubs(
    folder: Path, store: str | None = None, **servers: object
) -> AsyncIterator[tuple[Fleet, Balancer]]:
    """Three hubs of these servers behind HAProxy; with ``store``, they share it."""
    async with anyio.create_task_group() as tasks:
        fleet = Fleet(folder, config(folder / "mcp.json", **servers), tasks, store)
        for number in range(3):
            await fleet.start(number)
        async with balancer(folder, str(free_port()), [hub.url for hub in fleet.hubs.values()]) as front:
            yield fleet, front
        tasks.cancel_scope.cancel()


@behind_haproxy
@pytest.mark.requirement("FLEET-1", "HUB-14")
async def test_clients_of_both_eras_use_three_hubs_as_one_and_survive_the_kill_of_one(tmp_path: Path) -> None:
    async with (
        HttpServer({"a": "one"}) as server,
        three_hubs(tmp_path, it=server.definition) as (fleet, front),
        Client(front.url, mode="legacy") as legacy,
        Client(front.url) as modern,
    ):
        for _ in range(4):
            assert [await _call(legacy), await _call(modern)] == ["one", "one"]
        await fleet.stop(0, signal.SIGKILL)
        await front.until("h0", "DOWN")
        for _ in range(4):
            assert [await _call(legacy), await _call(modern)] == ["one", "one"]


async def _call(client: Client) -> str:
    with anyio.fail_after(30):
        return text_of(await client.call_tool("it__a", {}))


@behind_haproxy
@pytest.mark.parametrize("rate", RATES)
async def test_a_rolling_restart_of_three_hubs_under_load_fails_no_call(tmp_path: Path, rate: int) -> None:
    async with HttpServer({"a": "one"}) as server, three_hubs(tmp_path, it=server.definition) as (fleet, front):
        load = Load(front.url, "it__a")
        await load.open_sessions(6)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.run, rate)
            await load.until_answered(rate)
            for number in range(3):
                await fleet.stop(number)
                await fleet.start(number)
                await front.until(f"h{number}", "UP")
            await load.until_answered(rate)
            load.stop()
    assert load.failed == []


@pytest.mark.parametrize("keep_alive", [False, True], ids=["new connections", "kept connections"])
@pytest.mark.parametrize("rate", RATES)
async def test_a_takeover_under_load_fails_no_call(tmp_path: Path, rate: int, keep_alive: bool) -> None:
    home = tmp_path / "home"
    async with HttpServer({"a": "one"}) as server:
        file = config(tmp_path / "mcp.json", it=server.definition)
        async with served(home, "--config", str(file)) as old:
            await ready(old)
            load = Load(old.url, "it__a", keep_alive=keep_alive)
            await load.open_sessions(6)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(load.run, rate)
                await load.until_answered(rate)
                async with served(home, "--config", str(file), "--takeover") as new:
                    assert await old.ended() == 0
                    await load.until_answered(rate)
                    load.stop()
                    await load.until_all_answered()
                    assert new.process.returncode is None
    assert load.failed == []
