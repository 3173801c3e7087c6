"""The leak check sees what was left behind, names it, and keeps quiet when there is nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Literal

import anyio
import pytest

from tests.peers.http_fault import FaultServer, respond
from tests.peers.leaks import alive, no_leaks, no_processes_left
from tests.peers.stdio import StdioPeer

QUICKLY = 0.05


@pytest.mark.anyio
async def test_a_clean_body_passes() -> None:
    async with no_leaks(), FaultServer(respond(200)) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.close()
        await writer.wait_closed()
        child = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "pass")
        await child.wait()


@pytest.mark.anyio
async def test_a_leaked_task_is_named() -> None:
    with pytest.raises(AssertionError, match=r"tasks: the-leak running Event\.wait"):
        async with no_leaks(settle=QUICKLY):
            task = asyncio.create_task(asyncio.Event().wait(), name="the-leak")
    task.cancel()


@pytest.mark.anyio
async def test_a_leaked_child_is_named_and_ended() -> None:
    with pytest.raises(AssertionError, match=r"processes: pid \d+ of parent .*import time"):
        async with no_leaks(settle=QUICKLY):
            child = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "import time; time.sleep(60)")
    with anyio.fail_after(5):
        assert await child.wait() == -signal.SIGKILL


@pytest.mark.anyio
async def test_a_leaked_socket_is_named_with_its_ports() -> None:
    async with FaultServer(respond(200)) as server:
        with pytest.raises(AssertionError, match=rf"descriptors: \d+ -> socket:.*to port {server.port}"):
            async with no_leaks(kinds=("descriptors",), settle=QUICKLY):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.close()
        await writer.wait_closed()


@pytest.mark.anyio
async def test_a_leaked_thread_is_named() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="the-thread")
    with pytest.raises(AssertionError, match="threads: the-thread"):
        async with no_leaks(settle=QUICKLY):
            thread.start()
    release.set()
    thread.join()


@pytest.mark.anyio
async def test_a_failing_body_keeps_its_own_error() -> None:
    tasks: list[asyncio.Task[Literal[True]]] = []

    async def leaks_and_fails() -> None:
        async with no_leaks():
            tasks.append(asyncio.create_task(asyncio.Event().wait()))
            raise ValueError("the body's")

    with pytest.raises(ValueError, match="the body's"):
        await leaks_and_fails()
    tasks[0].cancel()


@pytest.mark.parametrize("flag", ["--grandchild", "--grandchild-daemon"])
def test_an_orphan_is_found_by_its_mark_when_its_parent_is_gone(
    flag: str, stdio_peer: Callable[..., StdioPeer]
) -> None:
    peer = stdio_peer(flag, "--exit-at-once", "0")
    with pytest.raises(AssertionError, match=r"stdio_server\.py"), no_processes_left(settle=QUICKLY):
        subprocess.run([peer.command, *peer.args], check=True, start_new_session=True)
    assert len(peer.grandchildren) == 1
    assert peer.living == [], "what was found was ended"


def test_a_dead_process_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert alive(child.pid)
    with closing(child.stdin):
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not alive(child.pid), "a zombie does not live"
    child.wait()
    assert not alive(child.pid)


def test_the_guard_of_all_tests_fails_those_that_leave_something_behind(tmp_path: Path) -> None:
    guilty = tmp_path / "test_guilty.py"
    guilty.write_text(_GUILTY)
    root = Path(__file__).parents[1]
    pytest_here = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"]
    settings = ["-p", "tests.conftest", "--rootdir", str(root), "-c", str(root / "pyproject.toml")]
    run = subprocess.run([*pytest_here, *settings, str(guilty)], cwd=root, capture_output=True, text=True, check=False)
    errors = [line for line in run.stdout.splitlines() if line.startswith("ERROR")]
    assert len(errors) == 2, run.stdout
    assert "leaves_a_task" in errors[0]
    assert "leaves_a_child" in errors[1]
    assert "3 passed, 2 errors" in run.stdout


_GUILTY = """
import asyncio, subprocess, sys
import pytest
from tests.peers import leaks

leaks.SETTLE = 0.1

@pytest.mark.anyio
async def test_leaves_a_task():
    test_leaves_a_task.kept = asyncio.create_task(asyncio.Event().wait())

def test_leaves_a_child():
    test_leaves_a_child.kept = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])

@pytest.mark.anyio
async def test_leaves_nothing():
    await asyncio.create_task(asyncio.sleep(0))
"""
