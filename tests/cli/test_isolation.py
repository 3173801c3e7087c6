"""A server that runs as the hub's own user learns nothing from the hub's processes: real ones, under a real uid."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from holdfast.serve.isolation import ENVIRON_VARIABLE, hidden_environment
from tests.cli.serve_process import config, environment
from tests.harness.waiting import came_true

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requirement("SEC-21"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows processes to each other in this way"),
]

UID = 64_321
"""A user that owns nothing else: root could read everything."""

IS_ROOT = os.geteuid() == 0
PYTHON = (
    shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin") if IS_ROOT else sys.executable
)
"""One that this user may run. The one of a virtual environment of root is often below root's home."""

SECRET = "planted-0123456789abcdef"

SPY = """
import json, os, sys
def opened(path):
    try:
        with open(path, "rb") as file:
            file.read(0)
        return True
    except OSError:
        return False
me, seen = os.getuid(), {}
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{name}/status") as file:
            uid = next(int(line.split()[1]) for line in file if line.startswith("Uid:"))
    except (OSError, StopIteration):
        continue
    if uid == me and int(name) != os.getpid():
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environ = file.read().decode("utf-8", "replace")
        except OSError:
            environ = None
        try:
            fds = len(os.listdir(f"/proc/{name}/fd"))
        except OSError:
            fds = None
        seen[name] = {"environ": environ, "fd": fds, "mem": opened(f"/proc/{name}/mem")}
own = {}
for name in os.listdir("/proc/self/fd"):
    try:
        own[name] = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        pass  # that of the listing
report = {"parent": str(os.getppid()), "seen": seen, "own": own}
with open(sys.argv[1] + ".new", "w") as file:
    json.dump(report, file)
os.replace(sys.argv[1] + ".new", sys.argv[1])
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that another user can use: those of pytest are private to the user who runs it."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
    if os.geteuid() == 0:
        os.chown(folder, UID, UID)
    yield folder
    shutil.rmtree(folder)


@asynccontextmanager
async def hub(home: Path, *arguments: str, inherit: tuple[int, ...] = ()) -> AsyncIterator[dict[str, Any]]:
    """What the server of a hub found out, while that hub runs."""
    assert PYTHON is not None
    report = home / "report.json"
    spy = {"command": PYTHON, "args": ["-I", "-S", "-c", SPY, str(report)]}
    file = config(home / "mcp.json", spy=spy)
    command = [PYTHON, "-m", "holdfast", "serve", "--port", "0", "--drain", "0", "--config", str(file), *arguments]
    env = {**environment(home), "HOLDFAST_TOKEN": SECRET, "GITHUB_TOKEN": SECRET}
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], sysconfig.get_path("purelib")])
    env["HOLDFAST_TEST_COLD"] = "1"  # a program that a test forks has the descriptors of another process
    user = UID if IS_ROOT else None
    process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
        command,
        cwd=home,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=inherit,
        user=user,
        group=user,
        extra_groups=[] if IS_ROOT else None,
    )
    try:
        await came_true(report.exists)
        yield json.loads(report.read_text())
    finally:
        process.terminate()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(process.wait)


as_a_user = pytest.mark.skipif(PYTHON is None, reason="there is no Python of this version that another user may run")


@as_a_user
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_server_learns_nothing_from_the_processes_of_its_hub(home: Path, workers: str) -> None:
    with tempfile.TemporaryFile() as private:
        number = os.dup2(private.fileno(), 77)  # what the launcher of the hub left open
        try:
            async with hub(home, "--workers", workers, inherit=(number,)) as found:
                seen = found["seen"]
        finally:
            os.close(number)
    assert found["parent"] in seen, "the server runs as the hub's user, and sees that the hub is there"
    assert not [one for one in seen.values() if SECRET in (one["environ"] or "")]
    closed = [one for one in seen.values() if one["environ"] is None]
    assert len(closed) >= int(workers), "the hub, or its supervisor and the process of its stdio servers"
    assert seen[found["parent"]] in closed
    assert all(one["fd"] is None and not one["mem"] for one in closed)
    assert set(found["own"]) == {"0", "1", "2"}, "its pipes, and nothing of the launcher's or the hub's"
    assert all(target.startswith("pipe:") for target in found["own"].values())


def test_a_process_that_is_started_again_finds_its_variables_and_shows_none() -> None:
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": "/somewhere", "API_KEY": SECRET, "ODD": "a=b\nc"}
    with hidden_environment(given) as (shown, descriptor):
        assert SECRET not in str(shown)
        assert shown["PYTHONPATH"] == "/somewhere", "Python reads it before our first line runs"
        taken = {**shown, ENVIRON_VARIABLE: str(os.dup(descriptor))}
        isolate_variables(taken)
    assert taken == given


def test_too_many_variables_to_hide_are_passed_on_all_the_same() -> None:
    given = {f"LARGE_{number}": "x" * 60_000 for number in range(4)}
    with hidden_environment(given) as (shown, descriptor):
        taken = {**shown, ENVIRON_VARIABLE: str(os.dup(descriptor))}
        isolate_variables(taken)
    assert taken == given


def test_variables_find_room_where_sockets_have_little_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = socket.socketpair

    def small() -> tuple[socket.socket, socket.socket]:
        pair = usual()
        for one in pair:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # as on macOS
            one.settimeout(5)
        return pair

    monkeypatch.setattr(socket, "socketpair", small)
    given = {f"LARGE_{number}": "x" * 50_000 for number in range(2)}
    with hidden_environment(given) as (shown, descriptor):
        assert set(shown) == {ENVIRON_VARIABLE}
        taken = {**shown, ENVIRON_VARIABLE: str(os.dup(descriptor))}
        isolate_variables(taken)
    assert taken == given


def isolate_variables(environ: dict[str, str]) -> None:
    """In a process of its own: the process of the tests stays as it is."""
    descriptor = int(environ[ENVIRON_VARIABLE])
    script = (
        "import json, sys; from holdfast.serve.isolation import isolate; environ = json.load(sys.stdin);"
        "isolate(environ); json.dump(environ, sys.stdout)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(environ),
        pass_fds=(descriptor,),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    os.close(descriptor)
    environ.clear()
    environ.update(json.loads(ran.stdout))
