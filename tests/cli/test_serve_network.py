"""Replicas and the hub behind them on hosts of their own, and a network between them that loses packets silently."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.testing import StdioServer
from tests.cli.load import MODERN, Load
from tests.cli.serve_process import COMMAND, Served, config, spawned
from tests.cli.test_serve_restart import KEY
from tests.clients.raw import MODERN_META
from tests.harness.waiting import asked
from tests.peers.network import Network, missing
from tests.peers.redis import has_redis

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not has_redis(), reason="redis-server is not installed")]

REPLICAS = ("a", "b")
PORT, PEER_PORT, HUB_PORT, REDIS_PORT = 4653, 8766, 4654, 6379
TOKEN, CONTROL = "the token of the callers", "the token of the operator"
CALLER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def network() -> Iterator[Network]:
    if why := missing():
        pytest.skip(why)
    with Network(*REPLICAS, "inner", "redis") as made:
        yield made


class Hosts:
    """Two replicas, each on its host, as their operator and their clients reach them."""

    def __init__(self, network: Network, http: httpx2.AsyncClient) -> None:
        self._network = network
        self._http = http
        self.loads: dict[str, Load] = {}

    def at(self, replica: str) -> str:
        return f"http://{self._network[replica].address}:{PORT}"

    async def api(self, replica: str, path: str, *, change: bool = False) -> Any:
        ask = partial(self._http.post, json={}) if change else self._http.get
        answer = await ask(f"{self.at(replica)}/api/{path}", headers={"Authorization": f"Bearer {CONTROL}"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def shares(self, replica: str, count: int) -> bool:
        """Whether a replica shares what it knows with so many, itself included."""
        fleet = (await self.api(replica, "hub"))["fleet"]
        return bool(fleet["shared"]) and len(fleet["replicas"]) == count

    async def is_alone(self, replica: str) -> bool:
        """Whether a replica says that it shares nothing."""
        return not (await self.api(replica, "hub"))["fleet"]["shared"]

    async def switched(self, replica: str, how: str, scope: str) -> bool:
        """Enable or disable a server; whether the answer says that it holds there."""
        return bool((await self.api(replica, f"servers/other/{how}", change=True))["scope"] == scope)

    async def is_disabled(self, replica: str, *, wanted: bool) -> bool:
        return ((await self.api(replica, "servers/other"))["status"] == "disabled") is wanted

    async def summary(self, replica: str) -> str:
        """What a person reads of the server that runs once."""
        return str((await self.api(replica, "servers/once"))["summary"])

    async def answers(self, replica: str, tool: str) -> bool:
        """Whether a call through a replica succeeds."""
        params = {"name": tool, "arguments": {}, "_meta": MODERN_META}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {**MODERN, "Mcp-Name": tool, "Accept": "application/json, text/event-stream", **CALLER}
        answer = await self._http.post(f"{self.at(replica)}/mcp", json=body, headers=headers)
        said = answer.text.rpartition("data: ")[2]  # an answer that took long is an event
        return "content" in (result := json.loads(said).get("result", {})) and not result.get("isError")

    async def no_call_failed(self) -> None:
        """End the calls of the clients, each of which succeeded."""
        for load in self.loads.values():
            load.stop()
            await load.until_all_answered()
            assert load.failed == []


@asynccontextmanager
async def hosts(network: Network, folder: Path, each: StdioServer, once: StdioServer) -> AsyncIterator[Hosts]:
    """Redis, the hub that runs a server once, and two replicas in front of it; clients call at each replica."""
    inner = f"{network['inner'].address}:{HUB_PORT}"
    own = config(folder / "inner.json", once=once.definition)
    file = config(
        folder / "mcp.json", each=each.definition, once={"hub": inner}, other={"url": "http://127.0.0.1:9/mcp"}
    )
    environ = {"HOLDFAST_SESSION_KEY": KEY, "HOLDFAST_TOKEN": TOKEN, "HOLDFAST_CONTROL_TOKEN": CONTROL}
    shared = {**environ, "HOLDFAST_FLEET": f"redis://{network['redis'].address}:{REDIS_PORT}"}
    store = ["redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--port", str(REDIS_PORT)]
    async with AsyncExitStack() as stack:

        async def started(name: str, *words: str, **variables: Any) -> Served:
            home = folder / name
            home.mkdir()
            return await stack.enter_async_context(spawned([*network[name].enter, *words], home, home, **variables))

        redis = await started("redis", *store)
        await redis.said("Ready to accept connections")
        hub = (*COMMAND, "serve", "--port", str(PORT))
        hubs = [await started("inner", *hub, "--config", str(own), "--listen-hubs", inner, **environ)]
        for name in REPLICAS:
            address = network[name].address
            reached = ("--host", "0.0.0.0", "--allow-host", address, "--advertise", f"tcp://{address}:{PEER_PORT}")
            hubs.append(await started(name, *hub, "--config", str(file), *reached, **shared))
        for one in hubs:
            await one.said("ready when:")
        made = Hosts(network, await stack.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=120)))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        for name in REPLICAS:
            load = Load(f"{made.at(name)}/mcp", "each__a", headers=CALLER)
            made.loads[name] = load
            await asked(partial(made.shares, name, 2))
            await asked(partial(made.answers, name, "once__a"))
            await asked(partial(made.answers, name, "each__a"))
            await load.open_sessions(2)
            tasks.start_soon(load.run, 5)
        yield made
        for load in made.loads.values():
            load.stop()


@pytest.mark.requirement("FLEET-2", "FLEET-3")
async def test_a_replica_that_loses_redis_alone_goes_on_and_says_so(network: Network, tmp_path: Path) -> None:
    with StdioServer({"a": "1"}) as each, StdioServer({"a": "1"}) as once:
        async with hosts(network, tmp_path, each, once) as replicas:
            network.part("a", "redis")
            await asked(partial(replicas.is_alone, "a"))
            await asked(partial(replicas.shares, "b", 1))
            assert await replicas.switched("a", "disable", "this replica only")
            assert await replicas.is_disabled("b", wanted=False)
            for name in REPLICAS:
                assert await replicas.answers(name, "once__a")
                await replicas.loads[name].until_answered(5)
            network.heal()
            for name in REPLICAS:
                await asked(partial(replicas.shares, name, 2))
            assert await replicas.is_disabled("a", wanted=await replicas.is_disabled("b", wanted=True))
            await replicas.no_call_failed()
            assert len(once.pids) == 1, "what runs once ran once throughout"


@pytest.mark.long  # nothing says that the packets are lost: the call's own time has to pass
@pytest.mark.timeout(400)
@pytest.mark.requirement("FLEET-6", "MSG-8")
async def test_a_replica_that_cannot_reach_the_hub_behind_it_tells_an_outage_and_the_other_one_goes_on(
    network: Network, tmp_path: Path
) -> None:
    with StdioServer({"a": "1"}) as each, StdioServer({"a": "1"}) as once:
        async with hosts(network, tmp_path, each, once) as replicas:
            network.part("a", "inner")

            async def tells_an_outage() -> bool:
                return "was lost" in await replicas.summary("a")

            assert not await replicas.answers("a", "once__a"), "nothing comes back from there"
            await asked(tells_an_outage, within=180)
            assert "starting up" not in await replicas.summary("a")
            assert await replicas.answers("b", "once__a")
            network.heal()
            await asked(partial(replicas.answers, "a", "once__a"), within=180)
            await replicas.no_call_failed()
            assert len(once.pids) == 1
