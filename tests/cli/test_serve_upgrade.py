"""``serve --workers`` after an upgrade of the program: SIGHUP replaces the process of the stdio servers too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import anyio
import pytest

from holdfast.testing import StdioServer
from tests.cli.serve_process import Served, config, spawned
from tests.cli.test_serve_workers import all_gone, calls_work_again, stdio_process_of, workers_of
from tests.harness.waiting import came_true

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requirement("FLEET-8"),
    pytest.mark.skipif(sys.platform != "linux", reason="the processes are counted by /proc"),
]


def installed(folder: Path) -> Path:
    """The command in an environment of its own, with the packages of this one: it can be installed again."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "those.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    command = folder / "bin" / "holdfast"
    write(command)
    return command


def write(command: Path) -> None:
    """Write the command as an installer does: a new file takes the place of the old one."""
    fresh = command.with_suffix(".fresh")
    fresh.write_text(f"#!{command.with_name('python')}\nfrom holdfast.cli.entry import main\nmain()\n")
    fresh.chmod(0o755)
    fresh.replace(command)


def running(server: StdioServer) -> list[int]:
    """Those processes of a server that run now."""
    return [pid for pid in server.pids if os.path.exists(f"/proc/{pid}/cwd")]  # noqa: PTH110 - a zombie has none


async def test_after_an_upgrade_a_roll_replaces_the_process_of_the_stdio_servers_and_loses_no_call(
    tmp_path: Path,
) -> None:
    command = installed(tmp_path / "venv")
    home = tmp_path / "home"
    home.mkdir()
    with StdioServer({"b": "two"}) as child:
        file = config(tmp_path / "mcp.json", child=child.definition)
        words = [str(command), "serve", "--port", "0", "--config", str(file), "--workers", "2", "--drain", "5"]
        async with spawned(words, home, home, stdin=subprocess.DEVNULL) as hub:
            await hub.said("ready when:")
            await calls_work_again(hub, "child__b")
            before, workers = stdio_process_of(hub.process.pid), set(workers_of(hub.process.pid))
            write(command)
            hub.send(signal.SIGHUP)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(no_call_fails, hub, tasks.cancel_scope)
                await hub.said("another program is installed: the process of the stdio servers finishes its calls")
                await all_gone({before, *workers})
                await came_true(lambda: len(workers_of(hub.process.pid)) == 2)
                await calls_work_again(hub, "child__b")
                tasks.cancel_scope.cancel()
            assert stdio_process_of(hub.process.pid) != before
            assert len(running(child)) == 1, "two never run at the same time"
            assert len(child.pids) == 2
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0


async def no_call_fails(hub: Served, scope: anyio.CancelScope) -> None:
    """Call again and again; a call meanwhile waits for the next process."""
    while not scope.cancel_called:
        result = await hub.call("child__b")
        assert not result.is_error, result.text
