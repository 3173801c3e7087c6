"""Three hubs as processes, a real Redis with TLS and a real HAProxy without retries: one truth, no failed call."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import anyio
import pytest

from holdfast.testing import HttpServer
from tests.cli.balancer import HAPROXY, balancer
from tests.cli.load import Load
from tests.cli.serve_process import config, run, served
from tests.cli.test_serve import ready
from tests.cli.test_serve_restart import KEY, free_port
from tests.peers.redis import RedisPeer, has_redis
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
            async with balancer(tmp_path, free_port(), [first.url, second.url, third.url]) as front:
                load = Load(front.url, "it__a")
                await load.open_sessions(6)
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
                    third.send(signal.SIGTERM)
                    await third.ended()
                    await load.until_answered(20)
                    load.stop()
            assert load.failed == []
            for hub in (first, second, third):
                assert "secret-of-redis" not in hub.err


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
