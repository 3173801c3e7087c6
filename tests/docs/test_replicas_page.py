"""`docs/how-to/replicas.md`, walked as it is printed: its key, its Redis, its hubs, its HAProxy, and what it promises.

The machines of the page are addresses of this one. Replaced are addresses, ports, folders and the password; all else is
as it is printed.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest

from holdfast.front.requests import COMMENT_SECONDS
from holdfast.testing import Fault, HttpServer
from tests.cli.balancer import HAPROXY, Balancer, haproxy
from tests.cli.load import Load
from tests.cli.serve_process import COMMAND, Served, config, run, spawned
from tests.clients.raw import MODERN_META, send
from tests.harness.waiting import asked
from tests.peers.ports import free_port
from tests.peers.redis import has_redis
from tests.peers.tls import Certificates

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/replicas.md").read_text()
BLOCKS = [
    textwrap.dedent(block) for block in re.findall(r"^ *```[a-z]*\n(.*?)^ *```$", PAGE, flags=re.DOTALL | re.MULTILINE)
]
MACHINES = {"a": "10.0.0.7", "b": "10.0.0.8", "c": "10.0.0.9"}

behind_haproxy = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")


def block(beginning: str) -> str:
    """The block of the page that begins so."""
    (found,) = [one for one in BLOCKS if one.startswith(beginning)]
    return found


@behind_haproxy
def test_haproxy_takes_the_configuration_and_the_compose_file_has_the_same(tmp_path: Path) -> None:
    assert HAPROXY is not None
    printed = block("defaults\n")
    (tmp_path / "haproxy.cfg").write_text(printed)
    checked = subprocess.run(
        [HAPROXY, "-c", "-f", tmp_path / "haproxy.cfg"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    (silent,) = re.findall(r"timeout server (\d+)s", printed)
    assert int(silent) >= 3 * COMMENT_SECONDS, "a silent stream is not a dead one"
    assert "option http-no-delay" in printed

    def rules(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.strip() and not re.match(r"\s*(#|server )", line)]

    shipped = (ROOT / "deploy/compose/haproxy.cfg").read_text().replace(" init-addr last,libc,none", "")
    assert rules(shipped) == rules(printed)


class Walk:
    """The page in a folder: what is printed there, with the addresses, ports and folders of this test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.front, redis, peers = (str(free_port()) for _ in range(4))
        self._instead = {
            "PASSWORD": "secret-of-this-walk",
            "bind 10.0.0.5": "bind 127.0.0.1",
            "redis.internal": "localhost",
            "10.0.0.": "127.0.0.",
            "6379": redis,
            "8766": peers,
            "bind :4653": f"bind 127.0.0.1:{self.front}",
            "4653": self.port,
            "/etc/redis": str(folder),
            "/etc/holdfast": str(folder),
        }

    def printed(self, text: str) -> str:
        for there, here in self._instead.items():
            text = text.replace(there, here)
        return text

    def prepare(self) -> None:
        """The key of the first step, the token that is made like it, and the certificate of Redis."""
        (command,) = re.findall(r"^\$ (python3 .*)$", block("$ python3 -c"), flags=re.MULTILINE)
        for made in (command, command.replace("keys", "token")):
            subprocess.run(["bash", "-c", made], cwd=self.folder, check=True)
        chain, key, _ = Certificates().write_server(self.folder)
        chain.rename(self.folder / "redis.pem")
        key.rename(self.folder / "redis.key")
        (self.folder / "redis.conf").write_text(self.printed(block("bind 10.0.0.5")))

    @property
    def token(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {(self.folder / 'token').read_text().strip()}"}

    @property
    def headers(self) -> dict[str, str]:
        return {**self.token, "Host": "mcp.example.com"}

    @asynccontextmanager
    async def redis(self) -> AsyncIterator[anyio.abc.Process]:
        command = ["redis-server", str(self.folder / "redis.conf")]
        async with await anyio.open_process(command, cwd=self.folder, stdout=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.kill()

    @asynccontextmanager
    async def hub(self, name: str) -> AsyncIterator[Served]:
        """One hub, started by the commands of the third step."""
        lines = block("$ export HOLDFAST_FLEET").replace("\\\n", " ").splitlines()
        printed = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
        environ: dict[str, Any] = dict(self.printed(one[1]).split("=", 1) for one in printed if one[0] == "export")
        (serve,) = [one for one in printed if one[0] == "holdfast"]
        address = self.printed(MACHINES[name])
        # All machines are this one: each hub listens on its own address, where a hub waits for no balancer.
        arguments = [
            "--lame-duck",
            "3",
            "--port",
            self.port,
            "--config",
            str(self.folder / "mcp.json"),
        ]
        given = [self.printed(one.replace(MACHINES["a"], MACHINES[name])) for one in serve[2:]]
        given = [address if one == "0.0.0.0" else one for one in given]
        command = [*COMMAND, serve[1], *given, *arguments]
        home = self.folder / name
        home.mkdir(exist_ok=True)
        async with spawned(command, self.folder, home, stdin=subprocess.DEVNULL, **environ) as hub:
            await hub.said("ready when:")
            yield hub

    async def call(self, tool: str) -> str:
        """The outcome of a call through the balancer: the text of the tool, or the status."""
        params = {"name": tool, "arguments": {}, "_meta": MODERN_META}
        message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(message)),
            "Accept": "application/json, text/event-stream",
            "Mcp-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
            **self.headers,
        }
        answer = await send(f"http://127.0.0.1:{self.front}/mcp", "POST", headers, message, patience=90)
        found = re.search(rb'"text":\s*"(\w+)"', answer.body)
        return found[1].decode() if found is not None else str(answer.status)

    def status(self, name: str) -> dict[str, Any]:
        ran = run("status", "--json", home=self.folder / name)
        shown: dict[str, Any] = json.loads(ran.stdout)["hub"]["fleet"]
        return shown


@pytest.mark.anyio
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.requirement("FLEET-1", "FLEET-2", "FLEET-3", "FLEET-7", "OBS-1", "DX-1")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 without setup")
@pytest.mark.skipif(HAPROXY is None or not has_redis(), reason="haproxy or redis-server is not installed")
async def test_the_page_walked_as_printed_gives_three_hubs_that_lose_nothing(tmp_path: Path) -> None:
    walk = Walk(tmp_path)
    walk.prepare()
    async with AsyncExitStack() as stack:
        quick = await stack.enter_async_context(HttpServer({"a": "one"}))
        slow = await stack.enter_async_context(HttpServer({"b": "two"}))
        config(tmp_path / "mcp.json", quick=quick.definition, slow=slow.definition)
        redis = await stack.enter_async_context(walk.redis())
        machines = {name: Machine(walk, name) for name in MACHINES}
        tasks = await stack.enter_async_context(anyio.create_task_group())
        for machine in machines.values():
            await tasks.start(machine.run)
        front = await stack.enter_async_context(
            haproxy(tmp_path, walk.printed(block("defaults\n")), f"http://127.0.0.1:{walk.front}/mcp", list(MACHINES))
        )
        await all_are_there(walk)
        await every_hub_is_read_by_its_address(walk)
        await a_rolling_restart_fails_no_call(walk, machines, front, slow)
        await a_frozen_hub_holds_no_call(walk, machines, front, slow)
        redis.kill()
        await asked(lambda: in_thread(lambda: not walk.status("a")["shared"]))
        assert await walk.call("quick__a") == "one"
        assert "holdfast_fleet_shared 0.0" in await metrics(walk, "a")
        tasks.cancel_scope.cancel()


class Machine:
    """One machine of the page: its hub runs again after it ended."""

    def __init__(self, walk: Walk, name: str) -> None:
        self._walk = walk
        self._name = name
        self.hub: Served | None = None

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        while True:
            async with self._walk.hub(self._name) as self.hub:
                task_status.started()
                task_status = anyio.TASK_STATUS_IGNORED
                await self.hub.process.wait()

    def send(self, number: signal.Signals) -> None:
        assert self.hub is not None
        self.hub.send(number)


async def in_thread(what: Any) -> Any:
    return await anyio.to_thread.run_sync(what)


async def all_are_there(walk: Walk) -> None:
    """Step four: each shows all three, and where they are."""
    wanted = {walk.printed(f"tcp://{address}:8766") for address in MACHINES.values()}
    for name in MACHINES:

        async def present(name: str = name) -> bool:
            seen = await in_thread(lambda: walk.status(name))
            return {one["address"] for one in seen["replicas"]} == wanted

        await asked(present)
    shown = await in_thread(lambda: run("status", home=walk.folder / "a").stdout)
    assert walk.printed("fleet: 3 replicas on rediss://redis.internal:6379?fleet=production") in shown
    assert await walk.call("quick__a") == "one"


async def metrics(walk: Walk, name: str) -> str:
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.get(walk.printed(f"http://{MACHINES[name]}:4653/metrics"), headers=walk.token)
    assert answer.status_code == 200, answer.text
    return answer.text


async def every_hub_is_read_by_its_address(walk: Walk) -> None:
    for name in MACHINES:
        assert "holdfast_fleet_replicas 3.0" in await metrics(walk, name)


async def a_rolling_restart_fails_no_call(
    walk: Walk, machines: dict[str, Machine], front: Balancer, slow: HttpServer
) -> None:
    """Also not those that take longer than the balancer needs to see that a hub leaves."""
    load = Load(front.url, "quick__a", headers=walk.headers)
    await load.open_sessions(6)
    waiting: list[str] = []

    async def long_call() -> None:
        waiting.append(await walk.call("slow__b"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load.run, 10)
        for name, machine in machines.items():
            already = slow.asked.count("tools/call")
            await slow.fail(Fault.HANG)
            for _ in MACHINES:
                tasks.start_soon(long_call)
            await slow.arrived("tools/call", already + len(MACHINES))
            before = machine.hub
            machine.send(signal.SIGTERM)
            await front.until(name, "NOLB")
            await load.until_answered(10)
            await slow.heal()
            assert before is not None
            await before.ended()
            await front.until(name, "UP")
        await load.until_answered(10)
        load.stop()
    assert load.failed == []
    assert waiting == ["two"] * 9


async def a_frozen_hub_holds_no_call(
    walk: Walk, machines: dict[str, Machine], front: Balancer, slow: HttpServer
) -> None:
    already = slow.asked.count("tools/call")
    await slow.fail(Fault.HANG)
    ended: list[str] = []
    once = anyio.Event()

    async def long_call() -> None:
        ended.append(await walk.call("slow__b"))
        once.set()

    async with anyio.create_task_group() as tasks:
        for _ in MACHINES:
            tasks.start_soon(long_call)
        await slow.arrived("tools/call", already + len(MACHINES))
        machines["b"].send(signal.SIGSTOP)
        await front.until("b", "DOWN")
        with anyio.fail_after(10):
            await once.wait()
        assert ended == ["502"], "the call that waited for the frozen hub, and no other"
        assert await walk.call("quick__a") == "one"
        await slow.heal()
    assert ended == ["502", "two", "two"]
    machines["b"].send(signal.SIGCONT)
    await front.until("b", "UP")
