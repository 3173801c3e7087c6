"""Three hubs as processes, a real Redis with TLS and a real HAProxy without retries: one truth, no failed call."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import anyio
import httpx2
import pytest

from holdfast.testing import HttpServer
from tests.cli.balancer import HAPROXY, balancer
from tests.cli.load import Load
from tests.cli.serve_process import config, environment, run, served
from tests.cli.test_serve import ready
from tests.cli.test_serve_restart import KEY
from tests.harness.raw_session import Session
from tests.harness.waiting import asked
from tests.peers.peer_server import running
from tests.peers.ports import free_port
from tests.peers.redis import RedisPeer, has_redis, sentinel
from tests.peers.tls import Certificates

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(HAPROXY is None or not has_redis(), reason="haproxy or redis-server is not installed"),
]


async def command(home: Path, *words: str) -> str:
    done = await anyio.to_thread.run_sync(lambda: run(*words, home=home))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.requirement("FLEET-2", "FLEET-3")
async def test_three_hubs_are_one_and_lose_no_call_whatever_happens_to_redis(tmp_path: Path) -> None:
    tls = Certificates().write_server(tmp_path)
    async with (
        RedisPeer(tmp_path / "redis", password="secret-of-redis", tls=tls) as redis,
        HttpServer({"a": "one"}) as server,
        HttpServer({"b": "two"}) as other,
    ):
        file = config(tmp_path / "mcp.json", it=server.definition, other=other.definition)
        environ = {"HOLDFAST_SESSION_KEY": KEY, "HOLDFAST_FLEET": redis.url}
        homes = [tmp_path / f"h{number}" for number in range(3)]
        async with (
            served(homes[0], "--config", str(file), "--lame-duck", "2", **environ) as first,
            served(homes[1], "--config", str(file), "--lame-duck", "2", **environ) as second,
            served(homes[2], "--config", str(file), "--lame-duck", "2", **environ) as third,
        ):
            for hub in (first, second, third):
                await ready(hub)
            async with balancer(tmp_path, str(free_port()), [first.url, second.url, third.url]) as front:
                load = Load(front.url, "it__a")
                await load.open_sessions(6)
                copy = await redis.save()
                ended = await ended_session(first.url)
                for hub in (second, third):
                    await until_ended(hub.url, ended)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(load.run, 20)
                    await load.until_answered(20)
                    said = await command(homes[0], "disable", "other")
                    assert "on all 3 replicas" in said
                    for home in homes:
                        status = json.loads(await command(home, "status", "--json"))
                        assert {one["id"]: one["status"] for one in status["servers"]}["other"] == "disabled"
                        assert len(status["hub"]["fleet"]["replicas"]) == 3
                    await redis.kill()
                    await load.until_answered(20)
                    assert "on this replica only" in await command(homes[1], "enable", "other")
                    await redis.start()
                    await load.until_answered(20)
                    redis.stop()
                    await load.until_answered(20)
                    redis.go_on()
                    await redis.command("FLUSHALL")
                    await load.until_answered(20)
                    await redis.replace_by(copy)
                    await load.until_answered(20)
                    for hub in (first, second, third):
                        await until_ended(hub.url, ended)
                    third.send(signal.SIGTERM)
                    await third.ended()
                    await load.until_answered(20)
                    load.stop()
            assert load.failed == []
            for hub in (first, second, third):
                assert "secret-of-redis" not in hub.err


@pytest.mark.long
@pytest.mark.requirement("FLEET-2", "FLEET-3")
async def test_a_killed_hub_costs_the_calls_that_it_had_and_a_stream_of_it_goes_on_elsewhere(tmp_path: Path) -> None:
    tls = Certificates().write_server(tmp_path)
    async with (
        RedisPeer(tmp_path / "redis", password="secret-of-redis", tls=tls) as redis,
        running("legacy") as origin,
        HttpServer({"a": "one"}) as server,
    ):
        file = config(tmp_path / "mcp.json", it=server.definition, o={"url": origin.url})
        environ = {"HOLDFAST_SESSION_KEY": KEY, "HOLDFAST_FLEET": redis.url}
        async with (
            served(tmp_path / "h0", "--config", str(file), **environ) as first,
            served(tmp_path / "h1", "--config", str(file), **environ) as second,
            served(tmp_path / "h2", "--config", str(file), **environ) as third,
            httpx2.AsyncClient(trust_env=False, timeout=60) as http,
        ):
            for hub in (first, second, third):
                await ready(hub)
            async with balancer(tmp_path, str(free_port()), [first.url, second.url, third.url]) as front:
                session = Session(http, third.url)
                await session.begin()
                async with session.call("o__wait", {}, progressToken=1) as events:
                    begun = await anext(events)
                    assert "progress" in (await anext(events))["data"]
                origin.go.set()
                load = Load(front.url, "it__a")
                await load.open_sessions(6)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(load.run, 40)
                    await load.until_answered(40)
                    third.send(signal.SIGKILL)
                    under_way = load.under_way
                    await front.until("h2", "DOWN")
                    seen = load.answered
                    await load.until_answered(80)
                    load.stop()
                again = Session(http, second.url)
                again.headers = session.headers
                read = await again.come_back(after=begun["id"])
                assert "waited" in read[-1]["data"]
                # HAProxy tries nothing twice: what it sent to the killed hub until its next check is lost.
                assert len(load.failed) <= under_way + 20, load.failed
                assert seen > 0


@pytest.mark.long
@pytest.mark.requirement("FLEET-2", "FLEET-3")
async def test_a_failover_of_sentinel_loses_no_call_and_the_fleet_shares_again(tmp_path: Path) -> None:
    async with (
        RedisPeer(tmp_path / "main") as main,
        RedisPeer(tmp_path / "replica", replica_of=main) as replica,
        sentinel(tmp_path / "sentinel", main) as watch,
        HttpServer({"a": "one"}) as server,
    ):
        file = config(tmp_path / "mcp.json", it=server.definition, other={"url": "http://127.0.0.1:9/"})
        store = f"redis+sentinel://127.0.0.1:{watch.port}/main"
        environ = {"HOLDFAST_SESSION_KEY": KEY, "HOLDFAST_FLEET": store}
        homes = [tmp_path / "h0", tmp_path / "h1"]
        async with (
            served(homes[0], "--config", str(file), **environ) as first,
            served(homes[1], "--config", str(file), **environ) as second,
        ):
            await ready(first)
            await ready(second)
            async with balancer(tmp_path, str(free_port()), [first.url, second.url]) as front:
                load = Load(front.url, "it__a")
                await load.open_sessions(4)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(load.run, 20)
                    await load.until_answered(20)
                    ended = await ended_session(first.url)
                    await until_ended(second.url, ended)
                    await main.kill()
                    await watch.until_master(replica)
                    await load.until_answered(40)
                    with anyio.fail_after(60):
                        while "on all 2 replicas" not in await command(homes[1], "disable", "other"):
                            pass
                    status = json.loads(await command(homes[0], "status", "--json"))
                    assert {one["id"]: one["status"] for one in status["servers"]}["other"] == "disabled"
                    load.stop()
                await until_ended(first.url, ended)
                assert await replica.command("HLEN", "holdfast2:{default}:records") >= 2
            assert load.failed == []


async def ended_session(url: str) -> str:
    """A session that its client ended at this hub."""
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
        session = Session(http, url)
        await session.begin()
        await session.end()
        return session.headers["mcp-session-id"]


async def until_ended(url: str, session: str) -> None:
    """Wait until a hub does not know a session any more."""
    headers = {"accept": "application/json, text/event-stream", "mcp-session-id": session}
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:

        async def unknown() -> bool:
            return (await http.post(url, json=ping, headers=headers)).status_code == 404

        await asked(unknown)


@pytest.mark.requirement("FLEET-2")
async def test_without_the_extra_a_fleet_is_refused_and_the_extra_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    file = config(tmp_path / "mcp.json", it={"command": "true"})
    hidden = "import sys; sys.modules['redis'] = None; from holdfast.cli.entry import main; main()"
    asked = ["serve", "--config", str(file), "--port", "0", "--fleet", "redis://127.0.0.1:1"]
    ran = await anyio.run_process(
        [sys.executable, "-c", hidden, *asked],
        env={**environment(home), "HOLDFAST_SESSION_KEY": "k" * 40},
        check=False,
    )
    assert ran.returncode == 2
    assert b"'.[fleet]'" in ran.stderr
    assert ran.stdout == b"", "it does not listen"


@pytest.mark.requirement("FLEET-2")
async def test_a_fleet_without_a_common_session_key_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    file = config(tmp_path / "mcp.json", it={"command": "true"})
    done = await anyio.to_thread.run_sync(
        lambda: run("serve", "--config", str(file), "--port", "0", "--fleet", "redis://127.0.0.1:1", home=home)
    )
    assert done.returncode != 0
    assert "session key" in done.stderr
    assert "--session-key-file" in done.stderr
    assert not [*home.rglob("session.key")], "a replica makes no key of its own"
