"""A stdio server that lives on one of several replicas on a real Redis, each with a port of its own."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from holdfast.core import STALE_SECONDS, State
from holdfast.core.fleet.placement import LEASE_SECONDS
from holdfast.hub import Fleet, PeerAddress, Peers, RedisAddress, RedisStore, SignedStore
from holdfast.testing import StdioServer
from tests.harness.open_hubs import fleet_of, running
from tests.harness.waiting import PATIENCE, asked, came_true
from tests.hub.test_placement import KEY, alive
from tests.peers.redis import RedisPeer, has_redis

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-6")]


@pytest.mark.long
@pytest.mark.skipif(not has_redis(), reason="redis-server is not installed")
async def test_replicas_on_redis_run_one_process_which_survives_the_store_and_moves_with_its_replica(
    tmp_path: Path,
) -> None:
    async with RedisPeer(tmp_path / "redis") as store, AsyncExitStack() as stack:
        server = stack.enter_context(StdioServer({"a": "1"}))
        servers: dict[str, object] = {"s": {**server.definition, "placement": "one"}}
        ends = []
        hubs = []
        for number in range(2):
            peers = Peers(lambda: [KEY], "test", advertise=PeerAddress.parse("tcp://127.0.0.1:0"))
            signed = SignedStore(RedisStore(RedisAddress.parse(store.url)), lambda: [KEY], "test")
            fleet = Fleet(signed, replica=f"r{number}", peers=peers)
            ends.append(await stack.enter_async_context(AsyncExitStack()))
            hubs.append(await ends[-1].enter_async_context(running(servers, hub={"fleet": fleet})))
        for hub in hubs:
            await came_true(lambda hub=hub: hub.server_health("s").state is State.CONNECTED)  # type: ignore[misc]
        holder = next(hub for hub in hubs if fleet_of(hub).leases.runs("s"))
        other = next(hub for hub in hubs if hub is not holder)
        await store.command("FLUSHALL")
        await came_true(lambda: fleet_of(other).is_settled and fleet_of(holder).is_settled)
        assert (await other.call_tool("s__a")).text == "1"
        store.stop()
        over = anyio.current_time() + LEASE_SECONDS + STALE_SECONDS

        async def lease_is_over() -> bool:
            assert (await other.call_tool("s__a")).text == (await holder.call_tool("s__a")).text == "1"
            return anyio.current_time() >= over

        await asked(lease_is_over, within=2 * PATIENCE)
        store.go_on()
        await came_true(lambda: fleet_of(other).is_settled and fleet_of(holder).is_settled)
        assert (await other.call_tool("s__a")).text == "1"
        assert len(server.pids) == 1
        await ends[hubs.index(holder)].aclose()
        await came_true(lambda: fleet_of(other).leases.runs("s") and other.server_health("s").state is State.CONNECTED)
        assert (await other.call_tool("s__a")).text == "1"
        assert len(alive(server.pids)) == 1
