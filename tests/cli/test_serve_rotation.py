"""The session key is replaced while hubs run: what the older key sealed or signed is good until it is removed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.files import replace_file
from tests.cli.serve_process import config, run, served
from tests.cli.test_serve import ready
from tests.harness.raw_session import Session
from tests.harness.waiting import PATIENCE, asked
from tests.peers.peer_server import running
from tests.peers.redis import RedisPeer, has_redis

pytestmark = pytest.mark.anyio

OLD, NEW = "the key of last year, long enough for all", "the key of this year, long enough for all"
BOTH = f"{NEW}\n{OLD}\n"


async def answers(http: httpx2.AsyncClient, url: str, session: Session) -> int:
    """What a hub says to a session: 200, or 404 if it does not know it."""
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    return (await http.post(url, json=ping, headers=session.headers)).status_code


async def begun(http: httpx2.AsyncClient, url: str) -> Session:
    session = Session(http, url)
    await session.begin()
    return session


@pytest.mark.requirement("FLEET-1", "HUB-14")
async def test_the_second_key_of_a_file_opens_sessions_and_the_first_one_seals(tmp_path: Path) -> None:
    file, keys, only_new = config(tmp_path / "mcp.json"), tmp_path / "keys", tmp_path / "new"
    replace_file(keys, OLD)
    replace_file(only_new, NEW)
    async with httpx2.AsyncClient(trust_env=False) as http:
        async with served(tmp_path / "h0", "--config", str(file), "--session-key-file", str(keys)) as first:
            old = await begun(http, first.url)
        replace_file(keys, BOTH)
        async with (
            served(tmp_path / "h1", "--config", str(file), "--session-key-file", str(keys)) as both,
            served(tmp_path / "h2", "--config", str(file), "--session-key-file", str(only_new)) as later,
        ):
            new = await begun(http, both.url)
            found = [await answers(http, hub.url, one) for one in (old, new) for hub in (both, later)]
    assert found == [200, 404, 200, 200]


@pytest.mark.requirement("FLEET-1", "FLEET-2", "FLEET-5")
@pytest.mark.skipif(not has_redis(), reason="redis-server is not installed")
async def test_a_fleet_is_one_while_its_key_is_replaced_hub_by_hub(tmp_path: Path) -> None:
    """One replica has the old key alone, the other one both: what the old key signed and sealed must be accepted."""
    homes, keys = [tmp_path / "h0", tmp_path / "h1"], [tmp_path / "k0", tmp_path / "k1"]
    replace_file(keys[0], OLD)
    replace_file(keys[1], BOTH)

    async def status(number: int) -> Any:
        done = await anyio.to_thread.run_sync(lambda: run("status", "--json", home=homes[number]))
        return json.loads(done.stdout)

    async def is_complete(number: int) -> bool:
        return len((await status(number))["hub"]["fleet"]["replicas"]) == 2

    async def says(number: int, wanted: str) -> bool:
        (server,) = (await status(number))["servers"]
        return bool(server["status"] == wanted)

    async def answer(url: str, session: Session, wanted: int) -> bool:
        return await answers(http, url, session) == wanted

    async with RedisPeer(tmp_path / "redis") as redis, running("legacy") as origin:
        file = config(tmp_path / "mcp.json", o={"url": origin.url})
        options = ("--config", str(file), "--advertise", "tcp://127.0.0.1:0", "--session-key-file")
        async with (
            served(homes[0], *options, str(keys[0]), HOLDFAST_FLEET=redis.url) as before,
            served(homes[1], *options, str(keys[1]), HOLDFAST_FLEET=redis.url) as after,
            httpx2.AsyncClient(trust_env=False, timeout=PATIENCE) as http,
        ):
            for hub in (before, after):
                await ready(hub)
            await asked(partial(is_complete, 1))
            session, ended = await begun(http, before.url), await begun(http, before.url)

            # The id, what the session has, and its stream.
            async with session.request("logging/setLevel", {"level": "error"}) as events:
                assert json.loads((await anext(events))["data"])["result"] == {}
            async with session.call("o__wait", {}, progressToken=1) as events:
                begin = await anext(events)
                assert "progress" in (await anext(events))["data"]
            session.url = after.url
            origin.go.set()
            resumed = [json.loads(one["data"]) for one in await session.come_back(after=begin["id"]) if one.get("data")]
            assert resumed[-1]["result"]["content"][0]["text"] == "waited"

            async def is_quiet() -> bool:
                async with session.call("o__log", {"level": "info", "text": "too much"}) as events:
                    return not ["too much" for event in [one async for one in events] if "too much" in event["data"]]

            await asked(is_quiet)

            # What replicas tell each other.
            await ended.end()
            await asked(partial(answer, after.url, ended, 404))
            await anyio.to_thread.run_sync(lambda: run("disable", "o", home=homes[0]))
            await asked(partial(says, 1, "disabled"))

            # The other replica gets the new key, and no client begins a session there meanwhile.
            replace_file(keys[0], BOTH)
            await asked(partial(is_complete, 0))
            await anyio.to_thread.run_sync(lambda: run("enable", "o", home=homes[1]))
            await asked(partial(says, 0, "available"))

            # The old key is removed: what it sealed is unknown, and the fleet is still one.
            latest = await begun(http, before.url)
            for one in keys:
                replace_file(one, NEW)
            unseen = await begun(http, before.url)
            assert [await answers(http, after.url, one) for one in (latest, unseen)] == [200, 200]
            await asked(partial(answer, after.url, ended, 404))
            for number in (0, 1):
                await asked(partial(is_complete, number))
