"""Hubs of a fleet on hosts of their own, and a network between them that loses packets without a word."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.testing import StdioServer
from tests.cli.load import Load
from tests.cli.serve_process import COMMAND, Served, config, spawned
from tests.cli.test_serve_restart import KEY
from tests.harness.waiting import asked
from tests.peers.network import Network, missing
from tests.peers.redis import has_redis

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not has_redis(), reason="redis-server is not installed")]

HUBS = ("a", "b", "c")
PORT, PEER_PORT, REDIS_PORT = 4653, 8766, 6379
TOKEN, CONTROL = "the token of the callers", "the token of the operator"


@pytest.fixture
def network() -> Iterator[Network]:
    if why := missing():
        pytest.skip(why)
    with Network(*HUBS, "redis") as made:
        yield made


class Fleet:
    """Three hubs, each on its host, as their operator and their clients reach them."""

    def __init__(self, network: Network, http: httpx2.AsyncClient, one: StdioServer) -> None:
        self._network = network
        self._http = http
        self._one = one
        self.loads: dict[str, Load] = {}

    def at(self, hub: str) -> str:
        return f"http://{self._network[hub].address}:{PORT}"

    async def api(self, hub: str, path: str, *, change: bool = False) -> Any:
        ask = partial(self._http.post, json={}) if change else self._http.get
        answer = await ask(f"{self.at(hub)}/api/{path}", headers={"Authorization": f"Bearer {CONTROL}"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def runs_on(self, seen_by: str) -> str:
        """The host of the replica that runs the server for all; empty if that is not known there."""
        self.at_most_one_process()
        server, hub = await self.api(seen_by, "servers/one"), await self.api(seen_by, "hub")
        found = [one["address"] for one in hub["fleet"]["replicas"] if one["id"] == server["runs_on"]]
        hosts = [name for name in HUBS if found and f"//{self._network[name].address}:" in found[0]]
        return hosts[0] if hosts and server["status"] == "available" else ""

    async def shares(self, hub: str, count: int) -> bool:
        """Whether a hub shares what it knows with so many replicas. Meanwhile, no two processes run."""
        self.at_most_one_process()
        fleet = (await self.api(hub, "hub"))["fleet"]
        return bool(fleet["shared"]) and len(fleet["replicas"]) == count

    async def is_alone(self, hub: str) -> bool:
        """Whether a hub says that it shares nothing."""
        self.at_most_one_process()
        return not (await self.api(hub, "hub"))["fleet"]["shared"]

    async def switched(self, hub: str, how: str, scope: str) -> bool:
        """Enable or disable a server; whether the answer says that it holds there."""
        answer = await self.api(hub, f"servers/other/{how}", change=True)
        return bool(answer["scope"] == scope)

    async def is_disabled(self, hub: str, wanted: bool) -> bool:
        """Whether that server is disabled on a hub."""
        return ((await self.api(hub, "servers/other"))["status"] == "disabled") is wanted

    async def no_call_failed(self, *at: str) -> None:
        """End the calls of these clients, each of which succeeded."""
        for name in at:
            self.loads[name].stop()
            await self.loads[name].until_all_answered()
            assert self.loads[name].failed == []

    def at_most_one_process(self) -> None:
        alive = [pid for pid in self._one.pids if Path(f"/proc/{pid}/cmdline").exists() and _args(pid)]
        assert len(alive) <= 1, alive

    async def answers(self, hub: str, tool: str) -> bool:
        """Whether a call through a hub succeeds."""
        self.at_most_one_process()
        load = Load(f"{self.at(hub)}/mcp", tool, headers=self.loads[hub].headers)
        await load._ask(0)
        return not load.failed


def _args(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()  # empty for a process that has ended
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _hub(
    network: Network, name: str, folder: Path, file: Path, environ: Mapping[str, Any]
) -> AbstractAsyncContextManager[Served]:
    home, host = folder / name, network[name]
    home.mkdir()
    command = [*host.enter, *COMMAND, "serve", "--config", str(file), "--host", "0.0.0.0", "--port", str(PORT)]
    command += ["--allow-host", host.address, "--advertise", f"tcp://{host.address}:{PEER_PORT}"]
    return spawned(command, home, home, **environ)


@asynccontextmanager
async def fleet(network: Network, folder: Path, each: StdioServer, one: StdioServer) -> AsyncIterator[Fleet]:
    """Redis and three hubs, which know each other, and clients that call at each of them."""
    file = config(
        folder / "mcp.json",
        each=each.definition,
        one={**one.definition, "placement": "one"},
        other={"url": "http://127.0.0.1:9/mcp"},
    )
    environ = {"HOLDFAST_SESSION_KEY": KEY, "HOLDFAST_TOKEN": TOKEN, "HOLDFAST_CONTROL_TOKEN": CONTROL}
    environ["HOLDFAST_FLEET"] = f"redis://{network['redis'].address}:{REDIS_PORT}"
    store = ["redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--port", str(REDIS_PORT)]
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(spawned([*network["redis"].enter, *store], folder, folder))
        await redis.said("Ready to accept connections")
        started = [await stack.enter_async_context(_hub(network, name, folder, file, environ)) for name in HUBS]
        for hub in started:
            await hub.said("ready when:")
        http = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=30))
        made = Fleet(network, http, one)
        for name in HUBS:
            await asked(partial(made.shares, name, 3))
            await asked(partial(made.runs_on, name))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        for name in HUBS:
            load = made.loads[name] = Load(
                f"{made.at(name)}/mcp", "each__a", headers={"Authorization": f"Bearer {TOKEN}"}
            )
            await load.open_sessions(2)
            tasks.start_soon(load.run, 5)
        yield made
        for load in made.loads.values():
            load.stop()


@pytest.mark.requirement("FLEET-2", "FLEET-3", "FLEET-6")
async def test_a_hub_that_loses_redis_alone_goes_on_and_uses_its_server_where_it_moved(
    network: Network, tmp_path: Path
) -> None:
    with StdioServer({"a": "1"}) as each, StdioServer({"a": "1"}) as one:
        async with fleet(network, tmp_path, each, one) as hubs:
            cut = await hubs.runs_on("a")
            near, far = [name for name in HUBS if name != cut]
            network.part(cut, "redis")
            await asked(partial(hubs.shares, near, 2))
            await asked(partial(hubs.is_alone, cut))
            assert await hubs.switched(cut, "disable", "this replica only")
            await asked(partial(hubs.switched, near, "disable", "all 2 replicas"))
            await asked(partial(hubs.switched, far, "enable", "all 2 replicas"))
            assert await hubs.is_disabled(cut, True)

            async def has_moved() -> bool:
                return await hubs.runs_on(near) in (near, far) and await hubs.runs_on(cut) == await hubs.runs_on(near)

            await asked(has_moved)
            for name in HUBS:
                await asked(partial(hubs.answers, name, "one__a"))
            assert await hubs.is_alone(cut)
            network.heal()
            for name in HUBS:
                await asked(partial(hubs.shares, name, 3))
                await asked(partial(hubs.is_disabled, name, False))
                await asked(partial(hubs.answers, name, "one__a"))
            await hubs.no_call_failed(*HUBS)


@pytest.mark.long
@pytest.mark.requirement("FLEET-2", "FLEET-3", "FLEET-6")
async def test_without_redis_no_call_fails_and_a_host_that_is_gone_loses_its_server_to_another(
    network: Network, tmp_path: Path
) -> None:
    with StdioServer({"a": "1"}) as each, StdioServer({"a": "1"}) as one:
        async with fleet(network, tmp_path, each, one) as hubs:
            network.unplug("redis")
            for name in HUBS:
                await asked(partial(hubs.is_alone, name))
                assert await hubs.switched(name, "disable", "this replica only")
            (before,) = one.pids
            for _ in range(10):  # longer than a lease lasts
                for name in HUBS:
                    await hubs.loads[name].until_answered(5)
                    assert await hubs.answers(name, "one__a")
            assert one.pids == [before]
            network.heal()
            for name in HUBS:
                await asked(partial(hubs.shares, name, 3))
            gone = await hubs.runs_on("a")
            left = [name for name in HUBS if name != gone]
            await hubs.no_call_failed(*HUBS)
            network.unplug(gone)
            for name in left:
                await asked(partial(hubs.shares, name, 2))
                await asked(partial(hubs.answers, name, "one__a"))
            assert await hubs.runs_on(left[0]) in left
            network.heal()
            for name in HUBS:
                await asked(partial(hubs.shares, name, 3))
                await asked(partial(hubs.answers, name, "one__a"))
