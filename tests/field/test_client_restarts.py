"""The client matrix across the hub's own restarts: each client goes on with the session that it has.

Restart, kill and restart, takeover, three hubs with one key behind HAProxy, the same as a fleet on Redis, and workers
of one supervisor. The table of results is written to ``test-results/field/``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest

from holdfast.testing import HttpServer
from tests.cli.balancer import HAPROXY
from tests.cli.serve_process import Served, config, served
from tests.cli.test_serve import ready
from tests.cli.test_serve_fleet import three_hubs
from tests.cli.test_serve_workers import all_gone, children
from tests.field import results
from tests.field.matrix import CLIENTS, Client, Driven
from tests.field.test_client_matrix import TOOL
from tests.peers.ports import free_port
from tests.peers.redis import RedisPeer, has_redis
from tests.peers.tls import Certificates

pytestmark = [pytest.mark.anyio, pytest.mark.field, pytest.mark.timeout(900), pytest.mark.requirement("HUB-14")]

COLUMNS = (
    "hub restart",
    "kill -9",
    "takeover",
    "three hubs",
    "fleet on Redis",
    "without Redis",
    "a hub killed",
    "workers",
    "workers replaced",
    "a worker killed",
)
RESTARTED = tuple(client for client in CLIENTS if not client.hangs_at_changes)
CALLS = 3
"""How many calls a client makes after each event: one hub after the other answers behind a balancer."""


class Seen:
    """What each client saw, for people."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, str]] = {}
        self._versions: dict[str, str] = {}

    def note(self, client: Client, column: str, seen: str) -> None:
        self._versions[client.name] = client.versions
        self._rows.setdefault(client.name, {})[column] = seen
        results.note(client.name, client.versions, "http", column, seen)

    def text(self) -> str:
        lines = [f"| client | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
        for name, row in self._rows.items():
            cells = [row.get(column, "").replace("|", "\\|").replace("\n", " ") for column in COLUMNS]
            lines.append(f"| {name} ({self._versions[name]}) | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    found = Seen()
    yield found
    (results.FOLDER / "client-restarts.md").write_text(found.text())


class Hub:
    """One hub on one port that ends and comes back."""

    def __init__(self, folder: Path, file: Path, tasks: anyio.abc.TaskGroup) -> None:
        self._home = folder / "home"
        self._file = file
        self._tasks = tasks
        self._port = str(free_port())
        self.running: Served | None = None

    async def start(self, *options: str) -> str:
        """Start it, and wait until it is ready; returns its address."""
        hub: Served = await self._tasks.start(self._run, options)
        self.running = hub
        await ready(hub)
        return hub.url

    async def _run(self, options: tuple[str, ...], *, task_status: anyio.abc.TaskStatus[Served]) -> None:
        async with served(self._home, "--config", str(self._file), *options, port=self._port) as hub:
            task_status.started(hub)
            await hub.process.wait()

    async def end(self, how: signal.Signals) -> None:
        assert self.running is not None
        self.running.send(how)
        await self.running.ended()

    async def taken_over(self) -> None:
        before = self.running
        assert before is not None
        await self.start("--takeover")
        await before.ended()


@asynccontextmanager
async def _hub(folder: Path) -> AsyncIterator[Hub]:
    async with (
        HttpServer({"echo": lambda arguments: str(arguments["text"])}) as server,
        anyio.create_task_group() as tasks,
    ):
        yield Hub(folder, config(folder / "mcp.json", one={"type": "http", "url": server.url}), tasks)
        tasks.cancel_scope.cancel()


async def _calls(client: Client, driven: Driven, seen: Seen, column: str) -> list[str]:
    """What went wrong in some calls."""
    answers = [await driven.call(TOOL, text=f"{column} {number}") for number in range(CALLS)]
    wrong = [f"{column}: {saw}" for number, saw in enumerate(answers) if saw.error or saw.text != f"{column} {number}"]
    seen.note(client, column, f"{CALLS - len(wrong)} of {CALLS}")
    return wrong


@pytest.mark.parametrize("client", RESTARTED, ids=str)
async def test_a_client_goes_on_across_the_restarts_of_its_hub(client: Client, tmp_path: Path, seen: Seen) -> None:
    await anyio.to_thread.run_sync(client.ready)
    async with _hub(tmp_path) as hub:
        url = await hub.start()
        async with client.driven({"url": url}, tmp_path) as driven:
            assert TOOL in await driven.tools()
            wrong = []
            await hub.end(signal.SIGTERM)
            await hub.start()
            wrong += await _calls(client, driven, seen, "hub restart")
            await hub.end(signal.SIGKILL)
            await hub.start()
            wrong += await _calls(client, driven, seen, "kill -9")
            await hub.taken_over()
            wrong += await _calls(client, driven, seen, "takeover")
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
@pytest.mark.requirement("FLEET-1")
@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_a_client_uses_three_hubs_as_one(client: Client, tmp_path: Path, seen: Seen) -> None:
    await anyio.to_thread.run_sync(client.ready)
    async with (
        HttpServer({"echo": lambda arguments: str(arguments["text"])}) as server,
        three_hubs(tmp_path, one=server.definition) as (_, front),
        client.driven({"url": front.url}, tmp_path) as driven,
    ):
        assert TOOL in await driven.tools()
        wrong = await _calls(client, driven, seen, "three hubs")
        assert TOOL in await driven.tools()
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(HAPROXY is None or not has_redis(), reason="haproxy or redis-server is not installed")
@pytest.mark.requirement("FLEET-2", "FLEET-3")
@pytest.mark.parametrize("client", RESTARTED, ids=str)
async def test_a_client_uses_a_fleet_on_redis_and_goes_on_without_redis_and_without_a_hub(
    client: Client, tmp_path: Path, seen: Seen
) -> None:
    await anyio.to_thread.run_sync(client.ready)
    tls = Certificates().write_server(tmp_path)
    async with (
        RedisPeer(tmp_path / "redis", password="secret-of-redis", tls=tls) as redis,
        HttpServer({"echo": lambda arguments: str(arguments["text"])}) as server,
        three_hubs(tmp_path, redis.url, one=server.definition) as (fleet, front),
        client.driven({"url": front.url}, tmp_path) as driven,
    ):
        assert TOOL in await driven.tools()
        wrong = await _calls(client, driven, seen, "fleet on Redis")
        await redis.kill()
        wrong += await _calls(client, driven, seen, "without Redis")
        await redis.start()
        await fleet.stop(2, signal.SIGKILL)
        await front.until("h2", "DOWN")
        wrong += await _calls(client, driven, seen, "a hub killed")
        assert TOOL in await driven.tools()
    assert not wrong, "\n".join(wrong)


@pytest.mark.requirement("FLEET-7", "FLEET-8")
@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_a_client_uses_workers_as_one_hub_while_they_come_and_go(
    client: Client, tmp_path: Path, seen: Seen
) -> None:
    await anyio.to_thread.run_sync(client.ready)
    async with HttpServer({"echo": lambda arguments: str(arguments["text"])}) as server:
        file = config(tmp_path / "mcp.json", one=server.definition)
        async with served(tmp_path / "home", "--config", str(file), "--workers", "2", "--drain", "2") as hub:
            await ready(hub)
            async with client.driven({"url": hub.url}, tmp_path) as driven:
                assert TOOL in await driven.tools()
                wrong = await _calls(client, driven, seen, "workers")
                old = set(children(hub.process.pid))
                hub.send(signal.SIGHUP)
                await hub.said("worker 2 is replaced")
                await all_gone(old)
                wrong += await _calls(client, driven, seen, "workers replaced")
                os.kill(children(hub.process.pid)[0], signal.SIGKILL)
                await hub.said("ended by signal 9")
                wrong += await _calls(client, driven, seen, "a worker killed")
                assert TOOL in await driven.tools()
            hub.send(signal.SIGTERM)
            await hub.ended()
    assert not wrong, "\n".join(wrong)
