"""``holdfast serve --workers 2`` as processes: one hub for its clients, however its workers come and go."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.cli.supervisor import private_place
from holdfast.cli.worker_link import WORKER_VARIABLE, WorkerLink, WorkerTask, channel_pair
from holdfast.control.find import running_hubs
from holdfast.testing import HttpServer, StdioServer
from tests.cli.in_process import Inside
from tests.cli.load import Load
from tests.cli.serve_process import Served, config, run, served
from tests.cli.test_serve import ready

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requirement("FLEET-8"),
    pytest.mark.skipif(sys.platform != "linux", reason="the processes are counted by /proc"),
]


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> set[int]:
    found = children(pid)
    return {*found, *(deeper for one in found for deeper in descendants(one))}


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def gone(pids: set[int]) -> None:
    with anyio.fail_after(30):
        while any(map(runs, pids)):  # noqa: ASYNC110 - they are no children of this process
            await anyio.sleep(0.02)


async def replicas_of(hub: Served) -> list[dict[str, Any]]:
    done = await anyio.to_thread.run_sync(lambda: run("status", "--json", home=hub.home))
    assert done.returncode == 0, done.stderr
    replicas: list[dict[str, Any]] = json.loads(done.stdout)["hub"]["fleet"]["replicas"]
    return replicas


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def no_task_or_process_left() -> None:
    """The tests share one fleet, and replace its workers: the fixture ``hub`` looks for what is left."""


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[HttpServer]:
    async with HttpServer({"a": "one"}) as server:
        yield server


@pytest.fixture(scope="module")
async def hub(server: HttpServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("workers")
    with StdioServer({"b": "two"}) as child:
        file = config(folder / "mcp.json", it=server.definition, child=child.definition)
        async with served(folder / "home", "--config", str(file), "--workers", "2", "--drain", "5") as hub:
            await ready(hub)
            yield hub
            all_of_it = descendants(hub.process.pid)
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0
            await gone(all_of_it)
            assert list((hub.home / "state/holdfast/hubs").iterdir()) == []


async def test_it_says_where_it_listens_once_and_is_one_hub_of_two_replicas(hub: Served) -> None:
    assert hub.out.count("MCP endpoint:") == hub.out.count("status page:") == hub.out.count("ready when:") == 1
    assert len(children(hub.process.pid)) == 2
    (found,) = running_hubs({"XDG_STATE_HOME": str(hub.home / "state")})
    assert found.pid == hub.process.pid
    with anyio.fail_after(30):
        while len(replicas := await replicas_of(hub)) < 2:  # noqa: ASYNC110 - each asks once a second who is there
            await anyio.sleep(0.1)
    assert {one["pid"] for one in replicas} == set(children(hub.process.pid))
    assert all(one["address"].startswith("unix:/") for one in replicas)


@pytest.mark.requirement("FLEET-7")
async def test_workers_are_replaced_one_at_a_time_and_no_call_fails(hub: Served) -> None:
    load = Load(hub.url, "it__a")
    await load.open_sessions(4)
    before = set(children(hub.process.pid))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load.run, 20)
        await load.until_answered(10)
        hub.send(signal.SIGHUP)
        await hub.said("worker 2 is replaced")
        await gone(before)
        await load.until_answered(20)
        load.stop()
    assert load.failed == []
    assert len(children(hub.process.pid)) == 2


async def test_a_killed_worker_fails_only_its_own_calls_and_is_started_again(hub: Served) -> None:
    load = Load(hub.url, "it__a")
    await load.open_sessions(4)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load.run, 20)
        await load.until_answered(10)
        victim = children(hub.process.pid)[0]
        its_children = descendants(victim)
        assert its_children, "no stdio server runs there"
        under_way = load.under_way
        os.kill(victim, signal.SIGKILL)
        await hub.said("ended by signal 9; the next one starts in 0.5 s")
        await gone({victim, *its_children})
        await load.until_answered(10)
        with anyio.fail_after(30):
            while len(children(hub.process.pid)) < 2:  # noqa: ASYNC110 - it is started by the hub
                await anyio.sleep(0.05)
        await load.until_answered(20)
        load.stop()
    assert len(load.failed) <= under_way


@pytest.mark.long
async def test_a_killed_supervisor_takes_its_workers_their_servers_and_the_port_with_it(tmp_path: Path) -> None:
    with StdioServer({"b": "two"}) as child:
        file = config(tmp_path / "mcp.json", child=child.definition)
        async with served(tmp_path / "home", "--config", str(file), "--workers", "2") as hub:
            await ready(hub)
            all_of_it = descendants(hub.process.pid)
            assert len(all_of_it) > 4
            port = hub.url.rpartition(":")[2].removesuffix("/mcp")
            hub.send(signal.SIGKILL)
            await hub.ended()
            await gone(all_of_it)
    async with served(tmp_path / "home", "--config", str(config(tmp_path / "mcp.json")), port=port) as again:
        assert again.url == hub.url


async def test_a_worker_leaves_when_its_supervisor_is_gone(tmp_path: Path) -> None:
    ours, theirs = channel_pair()
    with socket.socket() as listener, theirs:
        task = WorkerTask(
            number=1, count=2, listener=os.dup(listener.fileno()), supervisor=1, folder="f", address="a", token="t"
        )
        ours.send(task.sent())
        environ = {WORKER_VARIABLE: str(os.dup(theirs.fileno())), "OTHER": "stays"}
        link = WorkerLink.find(environ)
        assert link is not None
        assert link.task == task
        assert environ == {"OTHER": "stays"}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.follow, never)
            link.listening()
            with anyio.fail_after(10):
                await anyio.wait_readable(ours)
                assert ours.recv(100) == b"listening\n"
                assert not link.asked_to_leave.is_set()
                ours.close()
                await link.asked_to_leave.wait()
            assert link.is_orphan
            assert not link.asked_to_end.is_set()
            tasks.cancel_scope.cancel()
        link.close()


async def never() -> None:
    raise AssertionError("it was not told that another worker takes its place")


def test_the_folder_that_a_killed_supervisor_left_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    left = tmp_path / "holdfast/hubs/4194305.workers"
    left.mkdir(parents=True)
    with private_place() as folder:
        assert not left.exists()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


@pytest.mark.parametrize("wrong", ["0", "x", "", "-1", "65", "100000000000", "1.5"])
def test_a_number_that_makes_no_sense_is_refused_with_a_hint(wrong: str, inside: Inside, tmp_path: Path) -> None:
    file = config(tmp_path / "mcp.json")
    ran = inside("serve", "--config", str(file), f"--workers={wrong}")
    assert ran.code == 2
    assert "--workers" in ran.err
    assert "hint: give a number from 1 to 64" in ran.err


@pytest.mark.parametrize("other", [("--stdio",), ("--demo",)])
def test_what_does_not_go_with_workers_is_refused(other: tuple[str], inside: Inside, tmp_path: Path) -> None:
    given = () if other == ("--demo",) else ("--config", str(config(tmp_path / "mcp.json")))
    ran = inside("serve", *given, *other, environment={"HOLDFAST_WORKERS": "2"})
    assert ran.code == 2
    assert "--workers does not go with" in ran.err
    assert "hint" in ran.err
