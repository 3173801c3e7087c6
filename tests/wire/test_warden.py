"""No orphan is left: real processes, really killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from holdfast import Hub, load
from holdfast.testing import StdioServer
from holdfast.wire.warden import MARK, Warden
from tests.harness.waiting import came_true
from tests.peers.leaks import RUN_MARK, alive, no_leaks
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import _SCRIPT
from tests.wire.processes import Journal, gone, journal

pytestmark = pytest.mark.anyio

OWNER = """
import json, sys, anyio
from holdfast import load
connections = json.loads(sys.argv[1])
anyio.run(load, {"mcpServers": connections, "holdfast": {"load": {"attemptTimeout": "60s", "totalTimeout": "90s"}}})
"""

STUBBORN = ("--never-answer", "--ignore-term", "--ignore-stdin-close")


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Journal]:
    with journal(tmp_path) as opened:
        yield opened


@asynccontextmanager
async def owner_of(*flags: str, heard: Journal) -> AsyncIterator[anyio.abc.Process]:
    """A process of its own that loads a stdio server with these flags."""
    args = ["-I", "-S", str(_SCRIPT), "--mark", RUN_MARK, "--log", str(heard.path), *flags]
    connections = {"a": {"command": sys.executable, "args": args}}
    command = [sys.executable, "-c", OWNER, json.dumps(connections)]
    async with await anyio.open_process(command, stdout=None, stderr=None) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


async def killed_owner_leaves_none(*flags: str, heard: Journal) -> None:
    async with owner_of(*flags, heard=heard) as owner:
        child, grandchild = int(await heard.line("start")), int(await heard.line("grandchild"))
        await heard.line("message server/discover")
        owner.send_signal(signal.SIGKILL)
        await gone(child, grandchild)
        assert not alive(child)
        assert not alive(grandchild)


async def test_when_we_are_killed_a_child_that_ignores_everything_and_its_grandchild_are_gone(heard: Journal) -> None:
    await killed_owner_leaves_none(*STUBBORN, "--grandchild", heard=heard)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="this system shows no environments")
async def test_when_we_are_killed_a_daemon_that_left_its_group_is_gone_too(heard: Journal) -> None:
    await killed_owner_leaves_none(*STUBBORN, "--grandchild-daemon", heard=heard)


SLEEPER = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(100)"


class Sleepers:
    """Starts processes in groups of their own that do nothing and ignore SIGTERM."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, **environment: str) -> int:
        command = [sys.executable, "-I", "-S", "-c", SLEEPER]
        process = self._stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, env=environment)
        )
        self._stack.callback(process.kill)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    with ExitStack() as stack:
        yield Sleepers(stack)


async def test_at_the_end_of_a_warden_every_group_it_was_told_of_ends_and_no_other(sleepers: Sleepers) -> None:
    watched, released, stranger = sleepers.start(), sleepers.start(), sleepers.start()
    async with Warden() as warden:
        await warden.ready()
        warden.watch(watched)
        warden.watch(released)
        warden.release(released)
    await gone(watched)
    assert alive(released)
    assert alive(stranger)


async def test_a_child_that_nobody_could_tell_the_warden_of_any_more_is_found_by_its_mark(sleepers: Sleepers) -> None:
    async with Warden() as warden:
        await warden.ready()
        untold = sleepers.start(**{MARK: warden.name})
        stranger = sleepers.start(**{MARK: "another warden"})
    await gone(untold)
    assert alive(stranger)


def warden_process(warden: Warden) -> int:
    assert warden._process is not None
    return warden._process.pid


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_warden_that_was_killed_is_replaced_and_knows_the_groups_again(
    sleepers: Sleepers, *, noticed: bool
) -> None:
    watched, later = sleepers.start(), sleepers.start()
    async with no_leaks(), Warden() as warden:
        await warden.ready()
        warden.watch(watched)
        first = warden_process(warden)
        os.kill(first, signal.SIGKILL)
        await gone(first)
        if not noticed:  # the loop has not heard of its end when we next speak to it
            warden.watch(later)
        await warden.ready()
        assert warden_process(warden) != first
        assert alive(watched)
    await gone(watched)
    if noticed:
        assert alive(later)
    else:
        await gone(later)


@pytest.mark.requirement("LIFE-12")
async def test_a_warden_that_is_kept_is_replaced_as_soon_as_it_dies_and_knows_the_groups_again(
    sleepers: Sleepers,
) -> None:
    watched, released = sleepers.start(), sleepers.start()
    async with no_leaks(), Warden() as warden:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(warden.keep)
            await warden.ready()
            warden.watch(watched)
            warden.watch(released)
            warden.release(released)
            await replaced(warden)
            tasks.cancel_scope.cancel()
        assert alive(watched)
    await gone(watched)
    assert alive(released)


@pytest.mark.requirement("LIFE-12")
async def test_a_hub_keeps_its_warden_and_its_servers_notice_nothing() -> None:
    with StdioServer({"say": "hello"}) as server:
        async with no_leaks(), Hub.from_config({"mcpServers": {"a": server.definition}}) as hub:
            assert await hub.ready(20)
            await replaced(hub.registry._warden)
            assert (await hub.call_tool("a__say")).text == "hello"
            assert len(server.pids) == 1


async def replaced(warden: Warden) -> None:
    """Kill a warden, and wait until there is another, without a request for it."""
    first = warden_process(warden)
    os.kill(first, signal.SIGKILL)
    await came_true(lambda: warden._pipe is not None and warden_process(warden) != first)
    assert alive(warden_process(warden))


async def test_a_warden_is_not_started_twice_and_ends_with_its_owner() -> None:
    async with no_leaks(), Warden() as warden:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(warden.ready)
        first = warden_process(warden)
        await warden.ready()
        assert warden_process(warden) == first
    assert not alive(first)


async def test_a_signal_to_everything_does_not_end_the_warden_before_its_work(sleepers: Sleepers) -> None:
    watched = sleepers.start()
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
    async with Warden() as warden:
        await warden.ready()
        warden.watch(watched)
        await ignores(warden_process(warden), numbers)
        for number in numbers:
            os.kill(warden_process(warden), number)
    await gone(watched)


async def ignores(pid: int, numbers: Sequence[int]) -> None:
    """Wait until a process has come so far that it ignores these signals."""
    wanted = sum(1 << (number - 1) for number in numbers)
    await came_true(lambda: _ignored(pid) & wanted == wanted)


def _ignored(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")), 16)


async def test_a_warden_carries_nobodys_mark_and_holds_none_of_our_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "the warden of the process that started us")
    async with Warden() as warden:
        await warden.ready()
        place = Path("/proc", str(warden_process(warden)))
        assert MARK.encode() not in (place / "environ").read_bytes()
        assert {str((place / "fd" / number).readlink()) for number in "12"} == {"/dev/null"}


async def test_who_dials_over_http_alone_needs_no_warden(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(self: Warden) -> None:
        raise AssertionError("a warden was started")

    monkeypatch.setattr(Warden, "_start", refuse)
    async with McpPeer() as peer:
        assert (await load({"mcpServers": {"a": {"url": peer.url}}})).available == ["a"]
