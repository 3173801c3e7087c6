"""The supervisor of ``serve --workers`` and a worker that hangs: alive as a process, with a loop that does not turn."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import anyio
import pytest

from holdfast.config import config_from_mapping
from holdfast.serve import supervisor as module
from holdfast.serve.listening_socket import bind
from holdfast.serve.options import ServeConfig, Serving
from holdfast.serve.supervisor import Reports, Supervisor
from holdfast.serve.worker_link import ALIVE, LISTENING, WorkerLink, WorkerTask, channel_pair, read_words
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
from holdfast.serve.leave import leave_terminal
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
        assert not any(reports.are_missing() for _ in range(module.MISSED_REPORTS))
    assert reports.are_missing()


async def test_a_worker_reports_from_when_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.serve.worker_link.REPORT_SECONDS", 0.001)
    ours, theirs = channel_pair()
    theirs.setblocking(False)
    listener, words, enough = bind("127.0.0.1", 0), list[str](), anyio.Event()
    task = WorkerTask(number=1, listener=0, supervisor=0, folder="", address="", token="")
    link = WorkerLink(task, theirs, listener)

    def heard(word: str) -> None:
        words.append(word)
        if len(words) == 3:
            enough.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.follow, anyio.sleep_forever)
        tasks.start_soon(read_words, ours, heard)
        link.listening()
        with anyio.fail_after(20):
            await enough.wait()
        tasks.cancel_scope.cancel()
    assert words[:3] == [LISTENING, ALIVE, ALIVE]
    link.close()
    ours.close()


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervisor]:
    """A supervisor whose workers do nothing but report, and which looks often."""
    monkeypatch.setattr(module, "own_command", lambda: [sys.executable, "-I", "-S", "-c", REPORTS])
    monkeypatch.setattr(sys, "argv", ["holdfast"])
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "FIRST_DELAY", 0.01)
    with bind("127.0.0.1", 0) as listener:
        config = config_from_mapping({"mcpServers": {}})
        yield Supervisor(Serving(options=ServeConfig(), config=config, listener=listener, host="127.0.0.1"))


async def test_a_worker_that_hangs_is_killed_and_the_next_one_starts(
    small: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "holdfast.serve")
    async with anyio.create_task_group() as small._tasks:
        with anyio.fail_after(20):
            first = await small._start(1)
            await first.listening.wait()
            await came_true(lambda: first.reports._missed is not None)
            with suppress(ProcessLookupError):  # a very busy machine may stop it first
                first.process.send_signal(signal.SIGSTOP)
            await first.ended.wait()
            assert first.process.returncode == -signal.SIGKILL
            await came_true(lambda: small._workers[1] is not first)
            await small._workers[1].listening.wait()
        small._ending = True
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
            monkeypatch.setattr(module, "own_command", lambda: [sys.executable, "-I", "-S", "-c", ENDS])
            monkeypatch.setattr(module, "_either", late)
            await small._roll()
        assert small._workers[1] is first
        assert not first.leaves
        small._ending = True
        for worker in list(small._all):
            worker.kill()
    assert "worker 1 was not replaced" in caplog.text
