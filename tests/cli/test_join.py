"""``serve --stdio`` joins the hub of its user: one hub and one process of each server, whatever happens to the hub."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.config import load_config
from holdfast.serve.client_context import IDLE_SECONDS, end_when_idle
from holdfast.serve.join_address import JoinAddress, try_lock
from holdfast.serve.joiner import HubFinder, JoinOptions
from holdfast.serve.listening import SharedPlace
from holdfast.serve.options import ServeConfig
from holdfast.serve.start import served_part
from holdfast.testing import FakeClock
from tests.cli.in_process import Inside
from tests.cli.serve_process import COMMAND, spawned
from tests.cli.test_serve_workers import stdio_process_of, workers_of
from tests.harness.joined import JoinHome, join_home, text_in
from tests.harness.waiting import PATIENCE, asked, came_true, gone

pytestmark = pytest.mark.anyio

ITSELF = {"command": "holdfast", "args": ["serve", "--stdio"]}
REAL_PYTHON = os.path.realpath(sys.executable)


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[JoinHome]:
    async with join_home(tmp_path) as made:
        yield made


@pytest.mark.requirement("DX-8", "PERF-10")
async def test_ten_clients_that_start_in_one_moment_share_one_hub_and_one_process_of_a_server(home: JoinHome) -> None:
    seen: list[str] = []

    async def visit(number: int) -> None:
        async with home.client(modern=bool(number % 2)) as client:
            seen.append(await client.call("s__pid"))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(visit, number)
    assert len(seen) == 10
    assert len(set(seen)) == 1
    assert home.starts == 1
    assert len(home.hubs) == 1


@pytest.mark.requirement("DX-8", "LIFE-16")
async def test_clients_of_both_eras_outlive_a_hub_that_is_killed_during_their_calls(home: JoinHome) -> None:
    async with home.client() as legacy, home.client(modern=True) as modern:
        assert await legacy.call("s__pid") == await modern.call("s__pid")
        await legacy.ask("tools/list")
        await legacy.ask("resources/subscribe", uri="note://one")
        uncertain = await legacy.request("tools/call", name="s__hang", arguments={})
        safe = await modern.request("tools/call", name="s__look", arguments={})
        listening = await modern.request("subscriptions/listen", notifications={"toolsListChanged": True})
        await modern.told("notifications/subscriptions/acknowledged")
        await came_true(lambda: home.notes.exists() and sorted(home.notes.read_text().split()) == ["hang", "look"])
        await home.kill_hub()
        cut = (await legacy.answer(uncertain))["result"]
        assert cut["isError"] is True
        assert "outcome is uncertain" in cut["content"][0]["text"]
        assert text_in(await modern.answer(safe)) == "seen", "a tool that only reads is asked again"
        closed = (await modern.answer(listening))["result"]["_meta"]
        assert closed["io.modelcontextprotocol/subscriptionId"] == listening
        await legacy.told("notifications/tools/list_changed")
        assert await legacy.call("s__pid") == await modern.call("s__pid")
        assert home.notes.read_text().split().count("hang") == 1
        assert len(home.hubs) == 1


@pytest.mark.requirement("DX-8")
async def test_stop_ends_the_hub_and_the_next_request_starts_another(home: JoinHome) -> None:
    async with home.client() as client:
        first = await client.call("s__pid")
        hub = await home.one_hub()
        assert hub.background
        shown = await anyio.to_thread.run_sync(home.run, "status")
        assert f"test in {home.folder}" in shown.stdout
        missed = await anyio.to_thread.run_sync(home.run, "stop", "--hub", "another")
        assert missed.returncode == 1
        assert "no running hub is meant by `another`" in missed.stderr
        assert f"--hub {hub.pid}" in missed.stderr
        stopped = await anyio.to_thread.run_sync(home.run, "stop")
        assert stopped.returncode == 0, stopped.stderr
        assert f"process id {hub.pid} has ended" in stopped.stdout
        await gone(int(first))
        assert home.hubs == []
        assert await client.call("s__pid") != first
    again = await anyio.to_thread.run_sync(home.run, "stop")
    assert again.returncode == 0


@pytest.mark.requirement("DX-8")
async def test_a_hub_that_a_person_starts_takes_the_place_of_the_one_in_the_background(home: JoinHome) -> None:
    async with home.client() as client:
        await client.call("s__pid")
        before = await home.one_hub()
        command = [*COMMAND, "serve", "--config", str(home.config), "--port", "0"]
        runtime = home.environ["XDG_RUNTIME_DIR"]
        async with spawned(command, home.folder, home.folder, XDG_RUNTIME_DIR=runtime) as served:
            await served.said("ready when:")
            await gone(before.pid)
            (after,) = home.hubs
            assert not after.background
            assert await client.call("s__pid")
            served.send(signal.SIGTERM)
            await served.ended()
        assert await client.call("s__pid"), "its next request starts a hub in the background"
        assert (await home.one_hub()).background


@pytest.mark.long  # it waits for a dozen processes, one after another
@pytest.mark.timeout(300)
@pytest.mark.requirement("DX-8", "FLEET-8")
async def test_clients_join_a_hub_of_several_workers_and_outlive_each_of_its_processes(home: JoinHome) -> None:
    command = [*COMMAND, "serve", "--config", str(home.config), "--port", "0", "--workers", "2"]
    runtime = home.environ["XDG_RUNTIME_DIR"]

    async def both_are_named() -> bool:
        shown = await anyio.to_thread.run_sync(home.run, "status")
        return shown.stdout.count(f"test in {home.folder}") == 2 and "2 workers" in shown.stdout

    async with spawned(command, home.folder, home.folder, XDG_RUNTIME_DIR=runtime) as served:
        await served.said("ready when:")
        async with home.client() as legacy, home.client() as other, home.client(modern=True) as modern:

            async def one_process() -> str:
                (seen,) = {await client.call("s__pid") for client in (legacy, other, modern)}
                return seen

            first = await one_process()
            await asked(both_are_named)
            supervisor = served.process.pid
            for worker in workers_of(supervisor):  # one of them has the clients
                os.kill(worker, signal.SIGKILL)
                await gone(worker)
                assert await one_process() == first, "the servers run in a process of their own"
                await asked(both_are_named)
            served.send(signal.SIGHUP)  # each worker is replaced by a new one
            assert await one_process() == first
            os.kill(stdio_process_of(supervisor), signal.SIGKILL)
            await gone(int(first))
            second = await one_process()
            assert second != first
            os.kill(int(second), signal.SIGKILL)
            await gone(int(second))
            assert await one_process() not in (first, second)
            assert [hub.pid for hub in home.hubs] == [supervisor]
            workers = workers_of(supervisor)
            served.send(signal.SIGKILL)
            for process in (supervisor, *workers):
                await gone(process)
            await one_process()
            assert (await home.one_hub()).background, "the next request starts a hub in the background"


@pytest.mark.requirement("DX-8")
async def test_a_newer_client_replaces_an_older_hub_in_the_background_once(home: JoinHome) -> None:
    newer = COMMAND[-1].replace("from", "import holdfast._version; holdfast._version.__version__ = '99.0'; from", 1)
    async with home.client() as older:
        first = await older.call("s__pid")
        before = await home.one_hub()
        async with home.client(program=[*COMMAND[:-1], newer]) as client:
            second = await client.call("s__pid")
            await gone(before.pid)
            after = await home.one_hub()
            assert after.pid != before.pid
            assert after.background
            assert second != first
            assert await older.call("s__pid") == second, "the older client came along"


@pytest.mark.requirement("DX-8")
async def test_no_third_hub_starts_between_the_end_of_one_and_the_lock_of_its_successor(
    home: JoinHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor lives and listens. It gets the lock of the first one a moment after that one has ended."""
    hubs = HubFinder(JoinOptions(str(home.config), {}, (), ()), home.environ)
    started: list[int] = []

    def start(lock: int) -> int:
        started.append(lock)
        return 0

    monkeypatch.setattr(hubs, "start", start)
    successor = try_lock(hubs.address.next_lock)
    assert successor is not None
    hubs.start_once(None)
    assert started == []
    os.close(successor)
    hubs.start_once(None)
    assert len(started) == 1


@pytest.mark.requirement("DX-8")
async def test_a_hub_in_the_background_ends_when_its_time_without_use_is_over(home: JoinHome) -> None:
    hasty = COMMAND[-1].replace("from", "from holdfast.serve import client_context as c; c.IDLE_SECONDS = 0.0; from", 1)
    command = [*COMMAND[:-1], hasty, "serve", "--config", str(home.config), "--port", "0", "--log-level", "debug"]
    runtime = home.environ["XDG_RUNTIME_DIR"]
    async with spawned(command, home.folder, home.folder, XDG_RUNTIME_DIR=runtime, HOLDFAST_BACKGROUND="0 ") as hub:
        assert await hub.ended() == 0
    assert home.hubs == []


@pytest.mark.requirement("DX-8")
def test_a_hub_that_ends_leaves_the_name_to_its_successor(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    file = tmp_path / "mcp.json"
    first = SharedPlace.find(file, environ, takes_over=False)
    assert first is not None
    assert SharedPlace.find(file, environ, takes_over=False) is None, "one hub has the place"
    second = SharedPlace.find(file, environ, takes_over=True)
    assert second is not None
    path = Path(JoinAddress.of(str(file), (), environ).path)
    with closing(first.listen() or socket.socket()), closing(second.listen() or socket.socket()):
        first.close()
        assert path.is_socket(), "clients find the successor"
        second.close()
        assert not path.exists()


@pytest.mark.requirement("DX-8")
async def test_each_use_of_a_hub_in_the_background_begins_its_idle_time_again() -> None:
    clock, requests, clients = FakeClock(), [0], [1]
    ended = anyio.Event()

    async def watch() -> None:
        await end_when_idle(clock, lambda: requests[0], lambda: bool(clients[0]))
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await anyio.wait_all_tasks_blocked()
        await clock.advance(2 * IDLE_SECONDS)
        assert not ended.is_set(), "a client is there"
        clients[0] = 0
        await clock.advance(IDLE_SECONDS - 10)
        requests[0] += 1
        await clock.advance(IDLE_SECONDS - 10)
        assert not ended.is_set(), "it answered a request"
        await clock.advance(20)
        assert ended.is_set()


@pytest.mark.requirement("DX-8")
async def test_a_client_brings_the_path_and_the_variables_that_the_hub_does_not_have(home: JoinHome) -> None:
    tools = home.folder / "bin"
    tools.mkdir()
    (tools / "own-python").symlink_to(REAL_PYTHON)
    home.write(s=home.server(command="own-python", env={"KEY": "${env:HF_KEY}"}))
    bare = {**home.environ, "PATH": "/usr/bin:/bin"}
    async with home.client(environ=bare) as desktop:
        listed = await desktop.ask("tools/call", name="holdfast_status", arguments={})
        assert "HF_KEY" in text_in(listed)
        shell = {**home.environ, "PATH": f"{tools}:/usr/bin:/bin", "HF_KEY": "from the shell"}
        async with home.client(environ=shell) as terminal:
            assert await terminal.call("s__add") == "from the shell"
            async with home.client(environ={**shell, "HF_KEY": "another"}, cwd=tools) as third:
                assert await third.call("s__add") == "from the shell", "a value is never replaced"
                status = text_in(await third.ask("tools/call", name="holdfast_status", arguments={}))
                assert f"`HF_KEY` has another value in the client in {tools}" in status
                assert f"than in the client in {home.folder}" in status
                shown = (await anyio.to_thread.run_sync(home.run, "status")).stdout
                assert f"`HF_KEY` has another value in the client in {tools}" in shown
                assert f"clients  test in {home.folder}" in shown
    assert len(home.hubs) == 1


@pytest.mark.requirement("DX-8")
async def test_a_file_that_is_named_has_a_hub_of_its_own_that_all_who_name_it_share(home: JoinHome) -> None:
    other = home.folder / "other.json"
    home.write(other, t=home.server())
    named = ("--config", str(other))
    async with home.client() as own, home.client(*named) as first, home.client(*named, modern=True) as second:
        assert await first.call("t__pid") == await second.call("t__pid")
        assert await own.call("s__pid") != await first.call("t__pid")
        tools = (await own.ask("tools/list"))["result"]["tools"]
        assert not [tool for tool in tools if tool["name"].startswith("t__")]
    assert {Path(hub.config) for hub in home.hubs} == {home.config, other}


@pytest.mark.requirement("DX-8")
async def test_a_hub_that_cannot_start_is_told_on_stderr_and_to_the_client(home: JoinHome) -> None:
    home.config.write_text('{"mcpServers": {}, "nonsense": 1}')
    async with home.client(begin=False) as client:
        answer = await client.begin()
        assert "the hub could not be started" in answer["error"]["message"]
        assert "nonsense" in answer["error"]["message"]
        with anyio.fail_after(PATIENCE):
            assert await client.process.wait() == 1
        assert client.process.stderr is not None
        assert b"nonsense" in await client.process.stderr.receive()
    assert home.hubs == []


@pytest.mark.requirement("DX-8")
@pytest.mark.parametrize(
    ("entry", "is_itself"),
    [
        ({"command": "holdfast", "args": ["serve", "--stdio"]}, True),
        ({"command": "/opt/bin/holdfast", "args": ["serve", "--stdio", "--own", "--config", "{file}"]}, True),
        ({"command": "python", "args": ["-m", "holdfast", "serve", "--stdio"]}, True),
        ({"command": "uvx", "args": ["holdfast-mcp@0.2.0", "serve", "--stdio"]}, True),
        ({"command": "uvx", "args": ["--from", "holdfast-mcp", "holdfast", "serve", "--stdio"]}, True),
        ({"command": "docker", "args": ["run", "-i", "holdfast", "serve", "--stdio"]}, False),
        ({"url": "http://127.0.0.1:4653/mcp"}, True),
        ({"command": "holdfast", "args": ["serve", "--stdio", "--config", "/another.json"]}, False),
        ({"url": "http://127.0.0.1:4000/mcp"}, False),
        ({"command": "holdfast-notes", "args": ["serve", "--stdio"]}, False),
    ],
)
async def test_an_entry_that_is_the_hub_itself_is_left_out_and_named(
    entry: dict[str, object], is_itself: bool, tmp_path: Path
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": entry}}).replace("{file}", str(file)))
    spec = served_part(ServeConfig(), load_config(file)).servers["one"]
    assert bool(spec.problems) is is_itself
    assert not is_itself or "Holdfast itself" in spec.problems[0].message


@pytest.mark.parametrize("command", ["tools", "check", "doctor"])
def test_commands_that_start_servers_leave_out_the_hub_itself_and_name_it(
    command: str, inside: Inside, tmp_path: Path
) -> None:
    (file := tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"me": ITSELF}}))
    ran = inside(command, "--config", str(file))
    assert ran.code != 0
    assert "Holdfast itself" in " ".join(ran.out.split())


async def test_a_holdfast_that_a_hub_started_is_a_hub_of_its_own() -> None:
    assert JoinOptions.read(["--stdio"], {"HOLDFAST_CHILD": "1", "HOME": "/"}) is None
    assert JoinOptions.read(["--stdio"], {"HOME": "/"}) is not None


@pytest.mark.requirement("DX-9")
async def test_two_folders_see_their_own_files_through_one_hub(home: JoinHome) -> None:
    one, two, three = (home.folder / name for name in ("one", "two", "three"))
    for folder in (one, two, three):
        folder.mkdir()
    home.write(s=home.server(), p=home.server(scope="project"), w=home.server(env={"KEY": "${workspaceFolder}"}))
    hub = {"command": "holdfast", "args": ["serve", "--stdio"]}
    project = {"mcpServers": {"extra": home.server(), "holdfast": hub}}
    (two / ".mcp.json").write_text(json.dumps(project))
    (three / ".mcp.json").write_text(json.dumps(project))
    assert (await anyio.to_thread.run_sync(home.run, "trust", str(two / ".mcp.json"))).returncode == 0
    async with (
        home.client(cwd=one) as first,
        home.client(cwd=one, modern=True) as beside,
        home.client(cwd=two) as second,
    ):
        assert await first.call("p__where") == str(one)
        assert await second.call("p__where") == str(two)
        assert await first.call("w__add") == str(one)
        assert await second.call("w__add") == str(two)
        assert await first.call("p__pid") == await beside.call("p__pid") != await second.call("p__pid")
        assert await first.call("s__pid") == await second.call("s__pid"), "the others are shared"
        assert await second.call("extra__where") == str(two)
        assert _servers(await first.ask("tools/list")) == {"s", "p", "w"}
        assert _servers(await second.ask("tools/list")) == {"s", "p", "w", "extra"}
        unknown = await first.ask("tools/call", name="extra__where", arguments={})
        assert "error" in unknown
        async with home.client(cwd=home.folder, begin=False) as nowhere, home.client("--folder", str(three)) as third:
            await nowhere.begin()
            assert _servers(await nowhere.ask("tools/list")) == {"s"}, "the home folder is no project"
            assert await third.call("p__where") == str(three)
            assert _servers(await third.ask("tools/list")) == {"s", "p", "w"}, "its project file is not trusted"
        status = text_in(await first.ask("tools/call", name="holdfast_status", arguments={}))
        assert "two" not in status.replace(str(home.folder), ""), "another project is not named"
    assert len(home.hubs) == 1


@pytest.mark.requirement("DX-9")
async def test_a_client_that_was_started_in_no_project_works_in_its_first_root(home: JoinHome) -> None:
    one, two = home.folder / "one project", home.folder / "two"
    for folder in (one, two):
        folder.mkdir()
    home.write(s=home.server(), p=home.server(scope="project"))
    async with home.client(begin=False) as client, home.client("--folder", str(two), begin=False) as named:
        client.roots = named.roots = (one, two)
        await client.begin("desktop")
        await named.begin()
        assert _servers(await client.ask("tools/list")) == {"s", "p"}
        assert await client.call("p__where") == str(one)
        assert await named.call("p__where") == str(two), "what it names counts before its roots"
        assert not any(message.get("method") == "roots/list" for message in named.heard)
        shown = await anyio.to_thread.run_sync(home.run, "status")
        assert f"desktop in {one}" in shown.stdout
        await home.kill_hub()
        assert await client.call("p__where") == str(one), "the next hub asks again"
        client.roots = (two,)
        await client.send({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
        assert await client.call("p__where") == str(two)
        assert await client.call("p__pid") == await named.call("p__pid")
        client.roots = (home.folder,)
        await client.send({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
        assert _servers(await client.ask("tools/list")) == {"s"}, "the home folder is no project"
    async with home.client("--own", begin=False) as own:
        own.roots = (one,)
        await own.begin()
        assert await own.call("p__where") == str(one)


def _servers(answer: dict[str, Any]) -> set[str]:
    """The servers whose tools are listed."""
    names = [tool["name"] for tool in answer["result"]["tools"]]
    return {name.partition("__")[0] for name in names if "__" in name}
