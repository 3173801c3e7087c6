"""Three hubs as processes, a real Redis and a HAProxy that gives each request to the next hub."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client

from tests.cli.balancer import HAPROXY, Balancer, balancer
from tests.cli.serve_process import Served, config, run, served
from tests.cli.test_serve import ready
from tests.cli.test_serve_restart import KEY
from tests.fleet.test_homes import FORM, LegacyClient, message, modern_call
from tests.harness.served_hub import Era, Person, text_of
from tests.harness.waiting import asked
from tests.peers.peer_server import Origin, running
from tests.peers.ports import free_port
from tests.peers.redis import RedisPeer, has_redis

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requirement("FLEET-5"),
    pytest.mark.skipif(HAPROXY is None or not has_redis(), reason="haproxy or redis-server is not installed"),
]

ANYWHERE = ("--advertise", "tcp://127.0.0.1:0")


class Entrance:
    """A place at which requests come in: the balancer, or one hub."""

    def __init__(self, url: str) -> None:
        self.url = url


class Hubs:
    """The hubs of a fleet and what is around them."""

    def __init__(
        self, hubs: list[Served], homes: list[Path], front: Balancer, origin: Origin, redis: RedisPeer
    ) -> None:
        self.hubs = hubs
        self.homes = homes
        self.front: Any = Entrance(front.url)
        self.balancer = front
        self.each: list[Any] = [Entrance(hub.url) for hub in hubs]
        self.origin = origin
        self.redis = redis

    async def know_each_other(self, *homes: Path) -> None:
        async def complete(home: Path) -> bool:
            return len(await self.replicas(home)) == len(homes)

        for home in homes:
            await asked(partial(complete, home))

    async def replicas(self, home: Path) -> list[Any]:
        done = await anyio.to_thread.run_sync(lambda: run("status", "--json", home=home))
        found: list[Any] = json.loads(done.stdout)["hub"]["fleet"]["replicas"]
        return found


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Hubs]:
    homes = [folder / f"h{number}" for number in range(3)]
    async with RedisPeer(folder / "redis") as redis, running("legacy") as origin:
        servers = {"o": {"url": origin.url}, "own": {"url": origin.url, "sharing": "per-client"}}
        file = config(folder / "mcp.json", **servers)
        environ = {"HOLDFAST_SESSION_KEY": KEY, "HOLDFAST_FLEET": redis.url}
        options = ("--config", str(file), "--lame-duck", "0", *ANYWHERE)
        async with (
            served(homes[0], *options, **environ) as first,
            served(homes[1], *options, **environ) as second,
            served(homes[2], *options, **environ) as third,
        ):
            hubs = [first, second, third]
            for hub in hubs:
                await ready(hub)
            async with balancer(folder, str(free_port()), [hub.url for hub in hubs]) as front:
                found = Hubs(hubs, homes, front, origin, redis)
                await found.know_each_other(*homes)
                yield found


@pytest.mark.long
async def test_every_bound_request_reaches_its_replica_through_a_balancer(tmp_path: Path) -> None:
    async with fleet(tmp_path) as hubs, httpx2.AsyncClient(trust_env=False, timeout=30) as http:
        with anyio.fail_after(90):
            for era in ("legacy", "modern"):
                await _clients_of_the_sdk(hubs, era)
            await _streams(hubs, http)
            await _homes_outlive_the_store_and_their_replica(hubs, http)
            await _strangers(hubs, tmp_path)


async def _clients_of_the_sdk(hubs: Hubs, era: Era) -> None:
    """Questions of servers, asked in a call and answered at the next hub, and a server of the client's own."""
    person = Person("ada")
    async with person.client(hubs.front.url, era) as client:
        for kind, answer in (("elicit", "ada's blue"), ("sample", "ada says so"), ("roots", "file:///ada")):
            for _ in range(3):
                assert text_of(await client.call_tool("o__ask", {"kind": kind})) == answer
    if era == "legacy":
        async with person.client(hubs.front.url, era) as client:
            await _bumps(client, 6)


async def _bumps(client: Client, times: int) -> None:
    said = [text_of(await client.call_tool("own__bump", {})) for _ in range(times)]
    assert said == [str(number + 1) for number in range(times)]


async def _streams(hubs: Hubs, http: httpx2.AsyncClient) -> None:
    a, b, c = hubs.each
    client = LegacyClient(http)
    await client.begin(a, **FORM)
    async with client.stream(
        a, "tools/call", request_id="one", name="o__wait", arguments={}, _meta={"progressToken": 1}
    ) as events:
        seen = [await anext(events), await anext(events)]
        await hubs.origin.waiting.wait()
    async with client.open(b, after=seen[-1]["id"]) as events:
        hubs.origin.go.set()
        assert [event["message"]["id"] async for event in events if "message" in event] == ["one"]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_hang, client, a)
        await hubs.origin.hanging.wait()
        await client.notice(c, "notifications/cancelled", requestId="two")
        await hubs.origin.cancelled.wait()
    listed = await client.ask(a, "resources/list")
    uri = next(one["uri"] for one in listed["result"]["resources"] if "own" in one["uri"])
    async with client.open(c) as events:
        assert (await client.ask(b, "resources/subscribe", uri=uri))["result"] == {}
        await client.call(a, "own__touch", uri=hubs.origin.subscribed[-1])
        assert (await message(events, "notifications/resources/updated"))["params"]["uri"] == uri


async def _hang(client: LegacyClient, at: Any) -> None:
    async with client.stream(at, "tools/call", request_id="two", name="o__hang", arguments={}) as events:
        assert [event async for event in events][-1]["message"]["error"]["message"] == "Request cancelled"


async def _homes_outlive_the_store_and_their_replica(hubs: Hubs, http: httpx2.AsyncClient) -> None:
    a, b, c = hubs.each
    client, neighbour = LegacyClient(http), LegacyClient(http)
    await client.begin(a, **FORM)
    await neighbour.begin(b)
    for one in (client, neighbour):
        assert [await one.call(at, "own__bump") for at in (a, b, c)] == ["1", "2", "3"]
    await hubs.redis.kill()
    assert [await client.call(at, "own__bump") for at in (c, b, a)] == ["4", "5", "6"]  # each knows the way
    await hubs.redis.start()
    pending = (await modern_call(http, a, "o__ask", arguments={"kind": "elicit"}))["result"]["requestState"]
    async with client.stream(a, "tools/call", name="o__ask", arguments={"kind": "elicit"}) as events:
        question = await message(events, "elicitation/create")
        hubs.hubs[0].send(signal.SIGKILL)
        await hubs.hubs[0].ended()
    await hubs.know_each_other(*hubs.homes[1:])
    said = await client.ask(b, "tools/call", name="own__bump", arguments={})
    number, notice = [block["text"] for block in said["result"]["content"]]
    assert number == "1"
    assert "made again" in notice
    assert [await client.call(at, "own__bump") for at in (c, b)] == ["2", "3"]  # a new home, one for both
    assert [await neighbour.call(at, "own__bump") for at in (c, b)] == ["4", "5"]  # whose home is there still
    refused = await client.answer(c, question["id"], action="decline")
    assert refused.status_code == 400
    assert "question" in refused.json()["error"]["message"]
    answers = {"q1": {"action": "decline"}}
    lost = await modern_call(
        http, b, "o__ask", arguments={"kind": "elicit"}, requestState=pending, inputResponses=answers
    )
    assert "Make the call again, without requestState" in lost["error"]["message"]
    await _bumps_through(hubs)


async def _bumps_through(hubs: Hubs) -> None:
    await hubs.balancer.until("h0", "DOWN")
    async with Person("bob").client(hubs.front.url, "legacy") as client:
        await _bumps(client, 4)


async def _strangers(hubs: Hubs, folder: Path) -> None:
    """A hub with another key is no replica, and is not listened to."""
    environ = {"HOLDFAST_SESSION_KEY": "another key, which is long enough", "HOLDFAST_FLEET": hubs.redis.url}
    options = ("--config", str(folder / "mcp.json"), *ANYWHERE)
    async with served(folder / "stranger", *options, **environ) as stranger:
        await ready(stranger)
        assert len(await hubs.replicas(folder / "stranger")) == 1


@pytest.mark.long
@pytest.mark.requirement("FLEET-8")
async def test_every_bound_request_reaches_its_worker(tmp_path: Path) -> None:
    async with running("legacy") as origin, httpx2.AsyncClient(trust_env=False, timeout=30) as http:
        servers = {"o": {"url": origin.url}, "own": {"url": origin.url, "sharing": "per-client"}}
        file = config(tmp_path / "mcp.json", **servers)
        async with served(tmp_path / "home", "--config", str(file), "--workers", "2") as hub:
            await ready(hub)
            client = LegacyClient(http)
            client.headers["connection"] = "close"  # each request comes in at any worker
            at: Any = Entrance(hub.url)
            with anyio.fail_after(60):
                await client.begin(at, **FORM)
                assert [await client.call(at, "own__bump") for _ in range(8)] == [str(n) for n in range(1, 9)]
                for _ in range(6):
                    async with client.stream(at, "tools/call", name="o__ask", arguments={"kind": "elicit"}) as events:
                        question = await message(events, "elicitation/create")
                        said = {"action": "accept", "content": {"colour": "blue"}}
                        assert (await client.answer(at, question["id"], **said)).status_code == 202
                        result = [event async for event in events][-1]["message"]
                    assert result["result"]["content"][0]["text"] == "blue"


async def test_a_bad_address_for_replicas_ends_the_start_with_a_hint(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    file = config(tmp_path / "mcp.json", it={"command": "true"})

    async def refused(*options: str) -> str:
        words = ("serve", "--config", str(file), "--port", "0", *options)
        done = await anyio.to_thread.run_sync(lambda: run(*words, home=home))
        assert done.returncode != 0
        return done.stderr

    assert "--advertise needs --fleet" in await refused(*ANYWHERE)
