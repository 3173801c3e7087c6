"""The supervisor of ``serve --workers`` and a worker that hangs: alive as a process, with a loop that does not turn."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.config import config_from_mapping
from holdfast.serve import supervisor as module, worker_process
from holdfast.serve.listening import bind
from holdfast.serve.options import ServeConfig, Serving
from holdfast.serve.supervisor import ConnectionSpread, Supervisor, tell_when_ready
from holdfast.serve.worker_link import (
    ALIVE,
    LISTENING,
    READY,
    HandedConnections,
    WorkerLink,
    WorkerTask,
    channel_pair,
    read_lines,
)
from holdfast.serve.worker_process import Reports, StdioProcess, WorkerProcess
from tests.harness.waiting import came_true

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-8")]

REPORTS = f"""
import os, signal, socket
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
channel = socket.socket(fileno=int(os.environ["HOLDFAST_WORKER"]))
channel.send(b"{LISTENING}\\n")
while channel.send(b"{ALIVE}\\n"):
    signal.sigwait([signal.SIGALRM])
"""
"""A worker as its supervisor sees it."""


CLOSED_TERMINAL = """
import os, pty, sys
from holdfast.serve.program import leave_terminal
controller, terminal = pty.openpty()
os.dup2(terminal, 1)
os.close(controller)
sys.stdout = open(1, "w", buffering=4096, closefd=False)
print("a line that is on its way when the terminal closes")
leave_terminal()
"""


def test_the_exit_code_tells_nothing_of_a_terminal_that_was_closed() -> None:
    done = subprocess.run([sys.executable, "-c", CLOSED_TERMINAL], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_reports_are_missing_after_some_looks_in_a_row() -> None:
    reports = Reports()
    assert not any(reports.are_missing() for _ in range(100))  # it never reported: it may know nothing of reports
    for _ in range(3):
        reports.heard()
        assert not any(reports.are_missing() for _ in range(worker_process.MISSED_REPORTS))
    assert reports.are_missing()


async def test_a_worker_reports_from_when_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.serve.worker_link.REPORT_SECONDS", 0.001)
    ours, theirs = channel_pair()
    theirs.setblocking(False)
    words, enough = list[str](), anyio.Event()
    handing, handed = channel_pair()
    task = WorkerTask(number=1, connections=0, host="", port=0, supervisor=0, folder="", token="")
    link = WorkerLink(task, theirs, HandedConnections(fileno=handed.detach()))

    def heard(word: str, rest: str) -> None:
        words.append(f"{word} {rest}".strip())
        if len(words) == 3:
            enough.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.follow, anyio.sleep_forever, lambda: 7)
        tasks.start_soon(read_lines, ours, heard)
        link.listening()
        with anyio.fail_after(20):
            await enough.wait()
        tasks.cancel_scope.cancel()
    assert words[:3] == [LISTENING, f"{ALIVE} 7", f"{ALIVE} 7"]
    link.close()
    ours.close()
    handing.close()


def never() -> WorkerTask:
    raise AssertionError("it has no stdio servers")


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Supervisor]:
    """A supervisor whose workers do nothing but report, and which looks often."""
    monkeypatch.setattr(worker_process, "own_command", lambda: [sys.executable, "-I", "-S", "-c", REPORTS])
    monkeypatch.setattr(sys, "argv", ["holdfast"])
    monkeypatch.setattr(worker_process, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "FIRST_DELAY", 0.01)
    with bind("127.0.0.1", 0) as listener:
        config = config_from_mapping({"mcpServers": {}})
        supervisor = Supervisor(Serving(options=ServeConfig(), config=config, listener=listener, host="127.0.0.1"))
        supervisor._folder = tmp_path
        supervisor._stdio = StdioProcess(tmp_path / "stdio.sock", lambda _: never(), changed=lambda: None)
        yield supervisor


async def test_a_worker_that_hangs_is_killed_and_the_next_one_starts(
    small: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "holdfast.serve")
    async with anyio.create_task_group() as small._tasks:
        with anyio.fail_after(20):
            first = await small._start(1)
            await first.listening.wait()
            await came_true(lambda: first.reports.missed is not None)
            with suppress(ProcessLookupError):  # a very busy machine may stop it first
                first.process.send_signal(signal.SIGSTOP)
            await first.ended.wait()
            assert first.process.returncode == -signal.SIGKILL
            await came_true(lambda: small._workers[1] is not first)
            await small._workers[1].listening.wait()
        small._ending.set()
        for worker in list(small._all):
            worker.kill()
    assert "worker 1 hangs: it has not reported for 0.3 s, and is killed" in caplog.text
    assert "worker 1 ended by signal 9; the next one starts in" in caplog.text


ENDS = f"""
import os, socket
channel = socket.socket(fileno=int(os.environ["HOLDFAST_WORKER"]))
channel.send(b"{LISTENING}\\n")
channel.close()
"""


async def test_a_new_worker_that_ends_as_soon_as_it_listens_replaces_none(
    small: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A supervisor that had no CPU time hears both at once."""

    async def late(_: anyio.Event, ended: anyio.Event) -> None:
        await ended.wait()

    caplog.set_level(logging.ERROR, "holdfast.serve")
    async with anyio.create_task_group() as small._tasks:
        with anyio.fail_after(20):
            first = await small._start(1)
            await first.listening.wait()
            monkeypatch.setattr(worker_process, "own_command", lambda: [sys.executable, "-I", "-S", "-c", ENDS])
            monkeypatch.setattr(module, "either", late)
            await small._roll()
        assert small._workers[1] is first
        assert not first.leaves
        small._ending.set()
        for worker in list(small._all):
            worker.kill()
    assert "worker 1 was not replaced" in caplog.text


class Taking:
    """A worker as the spread of connections sees it: it counts what it gets."""

    def __init__(self, number: int, *, held: int = 0, is_late: bool = False, takes: bool = True) -> None:
        self.number, self.held, self.is_late, self.takes = number, held, is_late, takes
        self.got = 0

    def hand(self, _: socket.socket) -> bool:
        self.held += 1
        self.got += 1
        return True


async def spread(*workers: Taking, count: int = 60) -> list[int]:
    with bind("127.0.0.1", 0) as listener, ExitStack() as clients:
        wanted: Any = set(workers)
        handing = ConnectionSpread(listener, wanted)
        address = listener.getsockname()
        for _ in range(count):
            clients.enter_context(socket.create_connection(address))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handing.run)
            with anyio.fail_after(20):
                await came_true(lambda: sum(one.got for one in workers) == count)
            handing.stop()
    return [one.got for one in workers]


async def test_connections_that_come_at_once_are_spread_evenly() -> None:
    assert await spread(Taking(1), Taking(2)) == [30, 30]


async def test_a_worker_that_was_started_again_gets_connections_until_it_holds_as_many() -> None:
    assert await spread(Taking(1, held=40), Taking(2)) == [10, 50]


async def test_a_worker_that_does_not_report_gets_none_while_another_one_does() -> None:
    assert await spread(Taking(1, is_late=True), Taking(2)) == [0, 60]
    assert await spread(Taking(1, is_late=True), Taking(2, takes=False)) == [60, 0]


async def test_connections_wait_while_no_worker_takes_them() -> None:
    one = Taking(1, takes=False)
    with bind("127.0.0.1", 0) as listener:
        wanted: Any = {one}
        handing = ConnectionSpread(listener, wanted)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handing.run)
            with socket.create_connection(listener.getsockname()), anyio.fail_after(20):
                await anyio.wait_all_tasks_blocked()
                assert one.got == 0
                one.takes = True
                handing.workers_changed()
                await came_true(lambda: one.got == 1)
            handing.stop()


async def test_a_connection_that_was_handed_over_is_taken_by_the_worker() -> None:
    ours, theirs = channel_pair()
    task = WorkerTask(number=3, connections=0, host="", port=0, supervisor=0, folder="", token="")
    process: Any = SimpleNamespace(pid=7)
    channel, other = channel_pair()
    worker = WorkerProcess(task, process, channel, ours, changed=lambda: None)
    assert repr(worker) == "<WorkerProcess 3 pid=7 starting held=0>"
    with (
        bind("127.0.0.1", 0) as listener,
        HandedConnections(fileno=theirs.detach()) as handed,
        socket.create_connection(listener.getsockname()) as client,
    ):
        accepted, _ = listener.accept()
        with accepted:
            assert worker.hand(accepted)
        taken, peer = handed.accept()
        assert peer == client.getsockname()
        assert not taken.get_inheritable()
        client.sendall(b"x")
        assert taken.recv(1) == b"x"
        taken.close()
    assert worker.held == 1
    with socket.socket() as late:
        assert not worker.hand(late), "its end is closed"
    for one in (ours, channel, other):
        one.close()


class Starting:
    """A worker that starts with others, as its supervisor sees it."""

    def __init__(self) -> None:
        self.ready, self.ended = anyio.Event(), anyio.Event()
        self.heard: list[str] = []

    def say(self, line: str) -> None:
        self.heard.append(line)


async def test_workers_hear_that_they_are_ready_when_all_of_them_are() -> None:
    one, other, third = Starting(), Starting(), Starting()
    begun: Any = (one, other, third)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tell_when_ready, begun)
        one.ready.set()
        third.ended.set()  # one that ended does not count
        await anyio.wait_all_tasks_blocked()
        assert one.heard == [], "a probe would get another answer from each worker"
        other.ready.set()
    assert one.heard == other.heard == [READY]
