"""``holdfast serve --workers 2`` as processes: one hub for its clients, however its workers come and go."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.control.hub_finder import running_hubs
from holdfast.files import replace_file
from holdfast.serve.listening import bind, private_place
from holdfast.serve.worker_link import WORKER_VARIABLE, WorkerLink, WorkerTask, channel_pair
from holdfast.testing import HttpServer, StdioServer
from tests.cli.in_process import Inside
from tests.cli.load import Load
from tests.cli.serve_process import COMMAND, Served, config, environment, run, served, spawned
from tests.cli.test_serve import ready
from tests.cli.test_serve_restart import AS_SYSTEMD, KEY
from tests.clients.raw import MODERN_META
from tests.harness.waiting import asked, came_true, gone, until
from tests.peers.redis import RedisPeer, has_redis

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requirement("FLEET-8"),
    pytest.mark.skipif(sys.platform != "linux", reason="the processes are counted by /proc"),
]

MODERN = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/list",
}


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def workers_of(pid: int) -> list[int]:
    """The processes that serve clients. Only the one that runs the stdio servers has processes of its own."""
    return [one for one in children(pid) if not children(one)]


def stdio_process_of(pid: int) -> int:
    """The process that runs the stdio servers."""
    (found,) = (one for one in children(pid) if children(one))
    return found


def descendants(pid: int) -> set[int]:
    found = children(pid)
    return {*found, *(deeper for one in found for deeper in descendants(one))}


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def all_gone(pids: set[int]) -> None:
    for pid in pids:
        await gone(pid)


async def two_replicas(hub: Served) -> None:
    """Each asks once a second who is there."""

    async def there() -> bool:
        return len(workers_of(hub.process.pid)) == len(await replicas_of(hub)) == 2

    await asked(there)


async def replicas_of(hub: Served) -> list[dict[str, Any]]:
    done = await anyio.to_thread.run_sync(lambda: run("status", "--json", home=hub.home))
    assert done.returncode in (0, 1), done.stderr  # 1: a server is not well
    replicas: list[dict[str, Any]] = json.loads(done.stdout)["hub"]["fleet"]["replicas"]
    return replicas


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
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
            await all_gone(all_of_it)
            assert list((hub.home / "state/holdfast/hubs").iterdir()) == []


async def test_it_says_where_it_listens_once_and_is_one_hub_of_two_replicas(hub: Served) -> None:
    assert hub.out.count("MCP endpoint:") == hub.out.count("status page:") == hub.out.count("ready when:") == 1
    assert len(workers_of(hub.process.pid)) == 2
    (found,) = running_hubs({"XDG_STATE_HOME": str(hub.home / "state")})
    assert found.pid == hub.process.pid
    await two_replicas(hub)
    replicas = await replicas_of(hub)
    assert {one["pid"] for one in replicas} == set(workers_of(hub.process.pid))
    assert all(one["address"].startswith("unix:/") for one in replicas)


async def test_it_is_ready_when_its_servers_are_and_gives_each_probe_the_same_answer(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with StdioServer({"b": "two"}) as child:
        definition: dict[str, Any] = child.definition
        its_own = [definition["command"], *definition["args"]]
        late = {"command": "sh", "args": ["-c", 'read -r _ < "$0"; exec "$@"', str(gate), *its_own]}
        file = config(tmp_path / "mcp.json", child=late)
        async with served(tmp_path / "home", "--config", str(file), "--workers", "2") as hub:
            assert await probed(hub) == {503}, "its server still starts"
            await anyio.to_thread.run_sync(gate.write_text, "\n")
            await ready(hub)
            assert await probed(hub) == {200}


async def probed(hub: Served) -> set[int]:
    """What probes are answered on connections that are all open at once, so that each worker has some."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=30)) for _ in range(8)]
        return {(await one.get(hub.url.replace("/mcp", "/readyz"))).status_code for one in clients}


@asynccontextmanager
async def at_each_worker(hub: Served) -> AsyncIterator[list[httpx2.AsyncClient]]:
    """Clients with a connection of their own each, held open, until each worker has one of them."""
    (found,) = running_hubs({"XDG_STATE_HOME": str(hub.home / "state")})
    headers = {"authorization": f"Bearer {found.token}"}
    async with AsyncExitStack() as stack:
        clients: list[httpx2.AsyncClient] = []
        with anyio.fail_after(30):
            while not clients or {held(pid, hub) for pid in workers_of(hub.process.pid)} & {0}:
                made = httpx2.AsyncClient(base_url=found.url, trust_env=False, headers=headers, timeout=30)
                clients.append(await stack.enter_async_context(made))
                assert (await made.get("/readyz")).status_code == 200
        yield clients


def held(pid: int, hub: Served) -> int:
    """How many connections of clients a worker holds."""
    port = int(hub.url.rpartition(":")[2].removesuffix("/mcp"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    connected = {f"socket:[{row[9]}]" for row in rows if row[3] == "01" and row[1].endswith(f":{port:04X}")}
    found = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found += str(one.readlink()) in connected
    return found


async def test_connections_spread_over_the_workers(hub: Served) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(20):
            client = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=30))
            assert (await client.get(hub.url.replace("/mcp", "/readyz"))).status_code == 200
        assert min(held(pid, hub) for pid in workers_of(hub.process.pid)) >= 5


async def test_each_worker_gives_the_same_answers_and_follows_the_same_switches(hub: Served) -> None:
    async with at_each_worker(hub) as clients:
        about = [(await client.get("/api/hub")).json() for client in clients]
        assert {one["pid"] for one in about} == {hub.process.pid}
        assert len({one["started"] for one in about}) == 1
        assert len({json.dumps([row["here"] for row in one["fleet"]["replicas"]]) for one in about}) == 1
        switched = (await clients[0].post("/api/servers/it/disable")).json()
        assert switched["scope"] == "all 2 replicas"
        for client in clients:
            shown = (await client.get("/api/servers/it")).json()
            assert shown["status"] == "disabled"
            assert "it__a" not in await tools_of(client)
        await clients[-1].post("/api/servers/it/enable")
        for client in clients:
            assert (await client.get("/api/servers/it")).json()["status"] != "disabled"


async def test_a_change_of_the_file_reaches_each_worker(hub: Served, server: HttpServer) -> None:
    file = hub.home.parent / "mcp.json"
    before = json.loads(file.read_text())["mcpServers"]
    config(file, **before, again=server.definition)
    async with at_each_worker(hub) as clients:

        async def listed(client: httpx2.AsyncClient, *, wanted: bool) -> bool:
            return ("again__a" in await tools_of(client)) is wanted

        for client in clients:
            await asked(partial(listed, client, wanted=True))
        config(file, **before)
        for client in clients:
            await asked(partial(listed, client, wanted=False))


async def tools_of(client: httpx2.AsyncClient) -> list[str]:
    answer = await client.post("/mcp", json=list_tools(), headers=MODERN)
    return [tool["name"] for tool in answer.json()["result"]["tools"]]


async def test_a_page_signs_in_at_one_worker_and_is_known_to_all(hub: Served) -> None:
    async with at_each_worker(hub) as clients:
        code = (await clients[0].post("/api/codes")).json()["code"]
        token = (await clients[-1].post("/api/session", json={"code": code})).json()["token"]
        for client in clients:
            answer = await client.get("/api/servers", headers={"authorization": f"Bearer {token}"})
            assert answer.status_code == 200
            assert (await client.post("/api/session", json={"code": code})).status_code == 401


async def test_every_scrape_and_the_totals_count_the_calls_of_all_workers(hub: Served) -> None:
    async with at_each_worker(hub) as clients:
        before = (await clients[0].get("/api/servers/it")).json()["calls_total"]
        for client in clients:
            for _ in range(3):
                await called(client, "it__a")
        for client in clients:
            text = (await client.get("/metrics")).text
            counted = re.findall(r'^holdfast_calls_total{worker="(\d)",.*server="it".*} ([\d.]+)$', text, re.MULTILINE)
            assert {worker for worker, _ in counted} == {"1", "2"}
            assert sum(float(calls) for _, calls in counted) >= 3 * len(clients)
            assert "holdfast_workers 2.0" in text
            series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
            assert len(series) == len(set(series))

        async def counted_by_all() -> bool:
            total: float = (await clients[0].get("/api/servers/it")).json()["calls_total"]
            return bool(total >= before + 3 * len(clients))

        await asked(counted_by_all)


def list_tools() -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": MODERN_META}}


async def called(client: httpx2.AsyncClient, tool: str) -> None:
    params = {"name": tool, "arguments": {}, "_meta": MODERN_META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = await client.post("/mcp", json=body, headers={**MODERN, "mcp-method": "tools/call", "mcp-name": tool})
    assert answer.status_code == 200, answer.text


async def test_events_and_a_reconnect_pass_through_any_worker(hub: Served) -> None:
    async with at_each_worker(hub) as clients:
        for client in clients:
            async with client.stream("GET", "/api/events") as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                assert await anext(lines) == "event: hello"
        answers = [await client.post("/api/servers/it/reconnect") for client in clients]
        assert [answer.status_code for answer in answers] == [200] * len(clients)
        refused = [await client.get("/api/servers/nothing") for client in clients]
        assert [answer.status_code for answer in refused] == [404] * len(clients)
        for client in clients:
            assert (await client.get("/api/hub", headers={"authorization": "Bearer no"})).status_code == 401


async def test_a_file_that_cannot_be_used_replaces_no_worker(hub: Served) -> None:
    file = hub.home.parent / "mcp.json"
    good, before = file.read_text(), set(workers_of(hub.process.pid))
    file.write_text("{")
    try:
        hub.send(signal.SIGHUP)
        await hub.said("worker 1 was not replaced, because the new one did not start: the old one goes on")
    finally:
        replace_file(file, good)
    assert set(workers_of(hub.process.pid)) == before
    assert (await hub.call("it__a")).text == "one"


@pytest.mark.requirement("FLEET-7")
async def test_workers_are_replaced_one_at_a_time_and_no_call_fails(hub: Served) -> None:
    load, forwarded = Load(hub.url, "it__a"), Load(hub.url, "child__b")
    before = set(workers_of(hub.process.pid))
    seen = await shown(hub, "it")
    async with anyio.create_task_group() as tasks:
        for one in (load, forwarded):
            await one.open_sessions(4)
            tasks.start_soon(one.run, 10)
            await one.until_answered(10)
        hub.send(signal.SIGHUP)
        await hub.said("worker 2 is replaced")
        await all_gone(before)
        for one in (load, forwarded):
            await one.until_answered(20)
            one.stop()
    assert load.failed == forwarded.failed == []
    assert len(workers_of(hub.process.pid)) == 2

    async def counted() -> bool:
        # A worker that ends leaves its totals to the one that speaks, so none is lost. Calls of the test before may
        # be told late: control/server/test_workers.py shows that each counts once.
        total: int = (await shown(hub, "it"))["calls_total"] - seen["calls_total"]
        return total >= load.answered

    await asked(counted)
    now = await shown(hub, "it")
    assert sum(now["activity"]["calls"]) >= load.answered


async def shown(hub: Served, server: str) -> dict[str, Any]:
    """A server as the control API shows it."""
    done = await anyio.to_thread.run_sync(lambda: run("status", server, "--json", home=hub.home))
    found: dict[str, Any] = json.loads(done.stdout)
    return found["servers"][0] if "servers" in found else found


async def test_a_killed_worker_fails_only_its_own_calls_and_is_started_again(hub: Served) -> None:
    load = Load(hub.url, "it__a")
    await load.open_sessions(4)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load.run, 20)
        await load.until_answered(10)
        victim = workers_of(hub.process.pid)[0]
        before = load.answered
        os.kill(victim, signal.SIGKILL)
        await hub.said("ended by signal 9; the next one starts in 0.1 s")
        # What is under way now, or ended since, may have been given to the victim before its end was seen.
        its_own = load.under_way + load.answered - before
        assert await replicas_of(hub)
        await gone(victim)
        await load.until_answered(10)
        await two_replicas(hub)
        await load.until_answered(20)
        load.stop()
    assert len(load.failed) <= its_own
    await calls_work_again(hub, "child__b")


async def test_stdio_servers_run_in_one_process_which_a_roll_leaves_alone(hub: Served) -> None:
    process = stdio_process_of(hub.process.pid)
    its_server = descendants(process)
    before = set(workers_of(hub.process.pid))
    hub.send(signal.SIGHUP)
    await all_gone(before)
    await two_replicas(hub)
    assert stdio_process_of(hub.process.pid) == process
    assert descendants(process) == its_server, "the server keeps what it has"
    await calls_work_again(hub, "child__b")


async def test_a_killed_process_of_stdio_servers_is_started_again_and_leaves_none_of_them_behind(hub: Served) -> None:
    process, workers = stdio_process_of(hub.process.pid), set(workers_of(hub.process.pid))
    its_servers = descendants(process)
    os.kill(process, signal.SIGKILL)
    await hub.said("the process of the stdio servers ended by signal 9")
    await all_gone({process, *its_servers})
    await calls_work_again(hub, "child__b")
    assert set(workers_of(hub.process.pid)) == workers, "the workers go on"


def scripts_of(pid: int) -> set[int]:
    """The processes of servers below a process; its warden is none."""
    return {one for one in descendants(pid) if "script.json" in Path(f"/proc/{one}/cmdline").read_text()}


async def test_the_process_of_a_disabled_stdio_server_ends(hub: Served) -> None:
    its_servers = scripts_of(stdio_process_of(hub.process.pid))
    assert its_servers
    done = await anyio.to_thread.run_sync(lambda: run("disable", "child", home=hub.home))
    assert done.returncode == 0, done.stderr
    await all_gone(its_servers)
    await anyio.to_thread.run_sync(lambda: run("enable", "child", home=hub.home))
    await calls_work_again(hub, "child__b")


async def calls_work_again(hub: Served, tool: str) -> None:
    """Wait until calls of a tool succeed, at any worker: its server comes up where it did not run before."""
    params = {"name": tool, "arguments": {}, "_meta": MODERN_META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {**MODERN, "mcp-method": "tools/call", "mcp-name": tool}
    in_a_row = 0
    with anyio.fail_after(60):
        while in_a_row < 6:
            async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
                answer = await client.post(hub.url, json=body, headers=headers)
            said = answer.text.rpartition("data: ")[2]  # a call that waited for long is answered as a stream
            well = answer.status_code == 200 and not json.loads(said)["result"].get("isError")
            in_a_row = in_a_row + 1 if well else 0
            await anyio.sleep(0 if well else 0.05)


@pytest.mark.long
@pytest.mark.requirement("FLEET-7")
async def test_workers_take_over_from_workers_and_systemd_learns_who_serves(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    async with HttpServer({"a": "one"}) as server:
        file = config(tmp_path / "mcp.json", it=server.definition)
        arguments = ("--config", str(file), "--workers", "2", "--drain", "3")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(address)
            notify.settimeout(60)
            async with served(tmp_path / "home", *arguments, NOTIFY_SOCKET=address) as old:
                assert await anyio.to_thread.run_sync(notify.recv, 100) == b"READY=1"
                assert len(workers_of(old.process.pid)) == 2
                await ready(old)
                load = Load(old.url, "it__a")
                await load.open_sessions(4)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(load.run, 20)
                    await load.until_answered(10)
                    async with served(tmp_path / "home", *arguments, "--takeover", NOTIFY_SOCKET=address) as new:
                        assert new.url == old.url
                        assert await old.ended() == 0
                        await load.until_answered(20)
                        load.stop()
                        heard = {await anyio.to_thread.run_sync(notify.recv, 100) for _ in range(2)}
                        assert heard == {b"READY=1", f"MAINPID={new.process.pid}".encode()}
                        await load.until_all_answered()
                        new.send(signal.SIGTERM)
                        assert await new.ended() == 0
    assert load.failed == []


@pytest.mark.long
@pytest.mark.requirement("FLEET-7")
async def test_workers_listen_on_the_socket_that_systemd_passes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    file = config(tmp_path / "mcp.json")
    with bind("127.0.0.1", 0) as listener:
        hand_on = [sys.executable, "-c", AS_SYSTEMD, str(listener.fileno())]
        command = [*hand_on, *COMMAND, "serve", "--config", str(file), "--workers", "2"]
        async with spawned(command, tmp_path, home, stdin=subprocess.DEVNULL, inherit=listener.fileno()) as hub:
            await hub.said("ready when:")
            assert hub.url == f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
            assert len(workers_of(hub.process.pid)) == 2
            await ready(hub)
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0


@pytest.mark.long
@pytest.mark.skipif(not has_redis(), reason="redis-server is not installed")
async def test_workers_of_a_fleet_use_redis_and_a_wrong_option_is_told_once(tmp_path: Path) -> None:
    file = config(tmp_path / "mcp.json")
    async with RedisPeer(tmp_path / "redis") as redis:
        arguments = ("--config", str(file), "--workers", "2", "--fleet", redis.url)
        refused = await anyio.to_thread.run_sync(
            lambda: run("serve", "--port", "0", *arguments, home=tmp_path / "home")
        )
        assert refused.returncode == 2
        assert refused.stderr.count("a fleet needs a session key") == 1
        assert "MCP endpoint" not in refused.stdout
        async with served(tmp_path / "home", *arguments, HOLDFAST_SESSION_KEY=KEY) as hub:

            async def both_are_present() -> bool:
                return {one["worker"] for one in await replicas_of(hub)} == {1, 2}

            await asked(both_are_present)
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0


@pytest.mark.long
async def test_workers_end_when_their_terminal_is_closed(tmp_path: Path) -> None:
    file = config(tmp_path / "mcp.json")
    controller, terminal = pty.openpty()
    command = [*COMMAND, "serve", "--config", str(file), "--port", "0", "--workers", "2"]
    process = await anyio.to_thread.run_sync(
        lambda: subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *command],
            env=environment(tmp_path),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
    )
    os.close(terminal)
    said = b""
    with anyio.fail_after(60):
        while b"with 2 workers" not in said:
            await anyio.wait_readable(controller)
            said += os.read(controller, 4096)
    assert b"/#code=" in said
    all_of_it = descendants(process.pid)
    os.close(controller)
    assert await anyio.to_thread.run_sync(process.wait, 30) == 0
    await all_gone(all_of_it)


ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.long
@pytest.mark.requirement("FLEET-3")
async def test_a_supervisor_that_is_late_by_more_than_a_second_costs_no_call(tmp_path: Path) -> None:
    """The machine is busy: a worker that gave up its store would not learn where the server runs after the roll."""
    with StdioServer({"b": "two"}) as child:
        file = config(tmp_path / "mcp.json", child=child.definition)
        async with (
            served(tmp_path / "home", "--config", str(file), "--workers", "2") as hub,
            anyio.create_task_group() as tasks,
        ):
            await ready(hub)
            load = Load(hub.url, "child__b")
            await load.open_sessions(4)
            tasks.start_soon(load.run, 30)
            for roll in (1, 2):
                hub.send(signal.SIGHUP)
                await load.until_answered(60)
                hub.send(signal.SIGSTOP)
                await came_true(lambda: load.under_way >= 45)  # a second and a half: new connections wait
                hub.send(signal.SIGCONT)
                await hub.said("worker 2 is replaced", times=roll)
                await load.until_answered(30)
            load.stop()
            await load.until_all_answered()
    assert load.failed == []


STUBBORN = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
tool = {"name": "wait", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "tools/call":
        open(sys.argv[1], "w").close()
        time.sleep(1000)
    if "id" in asked:
        result = about if asked["method"] == "initialize" else {"tools": [tool]}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


async def test_a_killed_supervisor_takes_its_workers_their_servers_and_the_port_with_it(tmp_path: Path) -> None:
    """At once: also with a call in flight that may take ten minutes, and a server that ignores SIGTERM."""
    begun = tmp_path / "begun"
    child = {"command": sys.executable, "args": ["-I", "-S", "-c", STUBBORN, str(begun)]}
    file = config(tmp_path / "mcp.json", child=child)
    options = ("--config", str(file), "--workers", "2", "--drain", "600")
    async with served(tmp_path / "home", *options) as hub, anyio.create_task_group() as tasks:
        await ready(hub)
        tasks.start_soon(_cut, hub, "child__wait")
        await until(begun.exists, beside=begun.parent)
        all_of_it = descendants(hub.process.pid)
        assert len(all_of_it) >= 4, "two workers, one server, and its warden"
        port = int(hub.url.rpartition(":")[2].removesuffix("/mcp"))
        hub.send(signal.SIGKILL)
        await hub.ended()
        await all_gone(all_of_it)
        tasks.cancel_scope.cancel()
    bind("127.0.0.1", port).close()


async def _cut(hub: Served, tool: str) -> None:
    """A call whose end does not matter."""
    with suppress(Exception):
        await hub.loader().call("hub", tool, {})


def test_several_workers_serve_no_demo(tmp_path: Path) -> None:
    done = run("serve", "--demo", "--workers", "2", home=tmp_path)
    assert done.returncode == 2
    assert "error: --workers needs an mcp.json" in done.stderr


async def test_a_worker_leaves_when_its_supervisor_is_gone(tmp_path: Path) -> None:
    ours, theirs = channel_pair()
    handing, handed = channel_pair()
    with handing:
        task = WorkerTask(
            number=1,
            channel=theirs.detach(),
            connections=handed.detach(),
            host="127.0.0.1",
            port=1,
            supervisor=1,
            folder="f",
            token="t",
        )
        environ = {WORKER_VARIABLE: json.dumps(asdict(task)), "OTHER": "stays"}
        link = WorkerLink.find(environ)
        assert link is not None
        assert link.task == task
        assert environ == {"OTHER": "stays"}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.follow, never, lambda: 0)
            with anyio.fail_after(10):
                await anyio.wait_readable(ours)
                assert not link.asked_to_leave.is_set()
                ours.close()
                await link.asked_to_leave.wait()
            assert link.is_orphan
            assert link.asked_to_end.is_set(), "its calls are not waited for: the next hub needs the port"
            tasks.cancel_scope.cancel()
        link._channel.close()
        link.connections.close()


async def never() -> None:
    raise AssertionError("it was not told that another worker takes its place")


def test_a_supervisor_imports_neither_the_protocol_nor_a_server() -> None:
    heavy = "mcp", "mcp_types", "starlette", "uvicorn", "httpx2", "cryptography", "prometheus_client"
    asks = (
        f"import sys, holdfast.cli.service, holdfast.serve.supervisor; print(*sorted({{*{heavy}}} & {{*sys.modules}}))"
    )
    ran = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == [], "each takes megabytes of a process that serves nothing"


def test_the_folder_that_a_killed_supervisor_left_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    left = tmp_path / "holdfast/hubs/4194305.workers"
    left.mkdir(parents=True)
    with private_place("workers", os.environ) as folder:
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


def test_what_does_not_go_with_workers_is_refused(inside: Inside, tmp_path: Path) -> None:
    given = ("--config", str(config(tmp_path / "mcp.json")), "--stdio", "--own")
    ran = inside("serve", *given, environment={"HOLDFAST_WORKERS": "2"})
    assert ran.code == 2
    assert "--workers does not go with" in ran.err
    assert "hint" in ran.err
