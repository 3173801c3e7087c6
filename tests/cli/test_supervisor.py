"""The supervisor of ``serve --workers`` and a worker that hangs: alive as a process, with a loop that does not turn."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from holdfast.config import config_from_mapping
from holdfast.serve import supervisor as module
from holdfast.serve.listening import bind
from holdfast.serve.options import ServeConfig, Serving
from holdfast.serve.supervisor import WorkerPool, WorkerProcess, spread
from holdfast.serve.worker_link import (
    END,
    LEAVE,
    STDIO_NUMBER,
    SUCCEED,
    HandedConnections,
    WorkerLink,
    WorkerOrders,
    WorkerReport,
    WorkerTask,
    channel_pair,
    known_state,
    read_states,
)
from tests.harness.waiting import PATIENCE, came_true

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-8")]

LISTENS = """
import json, os, signal, socket
given = socket.socket(fileno=int(os.environ["HOLDFAST_ENVIRON"])).makefile().read().split(chr(0))
(task,) = (one.partition("=")[2] for one in given if one.startswith("HOLDFAST_WORKER="))
channel = socket.socket(fileno=json.loads(task)["channel"])
takes = "true"
channel.send(b'{"takes": true}\\n')
"""

REPORTS = f"""{LISTENS}
def turn(*_):
    global takes
    takes = "false" if takes == "true" else "true"

signal.signal(signal.SIGUSR1, turn)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
while channel.send(b'{{"takes": %s, "held": 1}}\\n' % takes.encode()):
    signal.sigwait([signal.SIGALRM])
"""
"""A worker as its supervisor sees it. At SIGUSR1 it takes no more connections, or takes them again."""

SILENT = REPORTS.replace("true", "false", 2)
"""A worker that takes connections at SIGUSR1."""


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


def link_of_worker() -> tuple[WorkerLink, socket.socket, socket.socket]:
    """The link of a worker, and the supervisor's ends of it."""
    ours, theirs = channel_pair()
    handing, handed = channel_pair()
    task = WorkerTask(
        number=1,
        channel=theirs.detach(),
        connections=handed.detach(),
        host="",
        port=0,
        supervisor=0,
        folder="",
        token="",
    )
    return WorkerLink(task), ours, handing


async def test_a_worker_reports_all_that_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.serve.worker_link.REPORT_SECONDS", 0.001)
    link, ours, handing = link_of_worker()
    reports = list[WorkerReport]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.follow, anyio.sleep_forever, lambda: 7)
        tasks.start_soon(read_states, ours, lambda state: reports.append(WorkerReport(**state)))
        link.report(takes=True)
        with anyio.fail_after(20):
            await came_true(lambda: len(reports) > 2)
        tasks.cancel_scope.cancel()
    assert reports[:3] == [WorkerReport(takes=True), *2 * [WorkerReport(takes=True, held=7)]]
    link._channel.close()
    link.connections.close()
    ours.close()
    handing.close()


@pytest.mark.parametrize("kind", [WorkerTask, WorkerReport, WorkerOrders])
async def test_a_field_of_a_newer_program_is_passed_over(kind: type[Any]) -> None:
    """After an upgrade, a new worker may report what an old supervisor does not know."""
    required = {"number": 1, "channel": 3, "connections": 4, "host": "", "port": 0, "supervisor": 0}
    told = {**required, "folder": "", "token": "", "takes": True, "ready": True, "unheard": 1}
    known = {name: value for name, value in told.items() if name in kind.__dataclass_fields__}
    assert known_state(kind, told) == kind(**known)


async def test_a_line_that_is_no_state_is_passed_over() -> None:
    link, ours, handing = link_of_worker()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.follow, anyio.sleep_forever, lambda: 0)
        ours.send(b'{"unheard": 1}\nleave\n5\n[]\n{"ready": true}\n')
        with anyio.fail_after(20):
            await link.all_ready.wait()
        tasks.cancel_scope.cancel()
    assert repr(link) == "<WorkerLink of worker 1 serving>"
    link._channel.close()
    link.connections.close()
    ours.close()
    handing.close()


async def test_orders_that_found_no_room_are_told_again_after_the_next_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.serve.worker_link.REPORT_SECONDS", 0.001)
    link, ours, handing = link_of_worker()
    process: Any = SimpleNamespace(pid=7, returncode=None)
    worker = WorkerProcess(link.task, process, ours, handing, changed=lambda: None)
    with suppress(BlockingIOError):
        while ours.send(b"{" * 65536) == 65536:
            pass
    worker.asked = LEAVE
    worker.tell(WorkerOrders())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.follow, anyio.sleep_forever, lambda: 0)
        tasks.start_soon(read_states, ours, worker._heard)
        with anyio.fail_after(20):
            await link.asked_to_leave.wait()
        tasks.cancel_scope.cancel()
    for one in (link._channel, link.connections, ours, handing):
        one.close()


def runs_only(script: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-I", "-S", "-c", script]


@pytest.fixture
async def tasks() -> AsyncIterator[TaskGroup]:
    async with anyio.create_task_group() as tasks:
        yield tasks


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tasks: TaskGroup) -> AsyncIterator[WorkerPool]:
    """Workers that do nothing but report, and which are looked at often."""
    monkeypatch.setattr(module, "own_command", runs_only(REPORTS))
    monkeypatch.setattr(sys, "argv", ["holdfast"])
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "FIRST_DELAY", 0.01)
    serving = Serving(options=ServeConfig(workers="2"), config=config_from_mapping({"mcpServers": {}}))
    task = WorkerTask(host="127.0.0.1", port=0, supervisor=0, folder=str(tmp_path), token="")
    with socket.socket(socket.AF_UNIX) as stdio:
        pool = WorkerPool(serving, task, stdio, tasks)
        yield pool
        pool.is_ending = True
        for worker in pool.all:
            worker.process.kill()
        await pool.end()


Started = Callable[..., Awaitable[list[WorkerProcess]]]


@pytest.fixture
def started(pool: WorkerPool, tasks: TaskGroup) -> Started:
    """Keeps processes with the given numbers, and waits until they take connections."""

    async def start(*numbers: int) -> list[WorkerProcess]:
        for number in numbers:
            tasks.start_soon(pool.keep, number)
        await came_true(lambda: [number for number, one in pool.in_force.items() if one.takes] == [*numbers])
        return [pool.in_force[number] for number in numbers]

    return start


async def test_a_worker_that_hangs_is_killed_and_the_next_one_starts(
    pool: WorkerPool, started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "holdfast.serve")
    (first,) = await started(1)
    first.process.send_signal(signal.SIGSTOP)
    await came_true(lambda: first.ended)
    assert first.process.returncode == -signal.SIGKILL
    await came_true(lambda: pool.in_force[1] is not first and pool.in_force[1].takes)
    assert "worker 1 hangs: it has not reported for 0.3 s, and is killed" in caplog.text
    assert "worker 1 ended by signal 9; the next one starts in" in caplog.text


async def test_a_worker_that_never_accepts_is_killed(
    pool: WorkerPool, started: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await started(1)
    monkeypatch.setattr(module, "own_command", runs_only("import signal; signal.pause()"))
    monkeypatch.setattr(module, "START_SECONDS", 0.1)
    with anyio.fail_after(PATIENCE):
        await pool.roll()
    assert "worker 1 does not accept connections after 0.1 s, and is killed" in caplog.text
    assert "worker 1 was not replaced, because the new one did not start: the old one goes on" in caplog.text


async def test_a_worker_that_does_not_leave_in_time_is_killed(
    pool: WorkerPool, started: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (first,) = await started(1)
    monkeypatch.setattr(module, "END_SECONDS", 0.1)
    pool.leave(END)
    with anyio.fail_after(PATIENCE):
        await pool.end()
    assert first.process.returncode == -signal.SIGKILL
    assert "worker 1 did not end in time, and is killed" in caplog.text


async def test_a_worker_that_a_person_ends_has_the_time_for_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no connections meanwhile, and was not asked to leave: it is not one that never accepted."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "START_SECONDS", -1.0)
    link, ours, handing = link_of_worker()
    process: Any = SimpleNamespace(pid=7, returncode=None)
    worker = WorkerProcess(link.task, process, ours, handing, changed=lambda: None)
    for takes in (True, False):
        link.report(takes=takes)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.attend)
        await came_true(lambda: worker.missed > 3)
        tasks.cancel_scope.cancel()
    for one in (link._channel, link.connections, ours, handing):
        one.close()


async def test_an_end_of_the_first_worker_before_it_accepts_is_the_end_of_all(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong option is told once."""
    monkeypatch.setattr(module, "own_command", runs_only("raise SystemExit(2)"))
    with anyio.fail_after(PATIENCE):
        assert not await pool.begin()
        await pool.end()
    assert pool.code == 2
    assert list(pool.in_force) == [1]
    assert "the next one starts" not in caplog.text


async def test_the_others_start_when_the_first_worker_accepts(pool: WorkerPool) -> None:
    with anyio.fail_after(PATIENCE):
        assert await pool.begin()
    assert [(one.number, one.task.waits, one.stays) for one in pool.all] == [(1, False, True), (2, False, True)]


async def test_a_first_worker_that_cannot_be_started_is_started_later(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tasks: TaskGroup
) -> None:
    """The system has no process left when the machine comes up."""
    with monkeypatch.context() as broken:
        broken.setattr(module, "own_command", lambda: ["/nonexistent/python"])
        tasks.start_soon(pool.begin)
        again = "worker 1 cannot be started (No such file or directory); the next one starts in 0.02 s"
        await came_true(lambda: again in caplog.text)
    await came_true(lambda: sum(one.stays for one in pool.all) == 2)


async def test_a_new_worker_that_ends_as_soon_as_it_listens_replaces_none(
    pool: WorkerPool, started: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A supervisor that had no CPU time hears both at once."""
    until = pool.until

    async def late(holds: Callable[[], bool]) -> None:
        await until(holds)
        await until(lambda: pool.all == [first])

    caplog.set_level(logging.ERROR, "holdfast.serve")
    (first,) = await started(1)
    monkeypatch.setattr(module, "own_command", runs_only(LISTENS))
    with monkeypatch.context() as busy, anyio.fail_after(PATIENCE):
        busy.setattr(pool, "until", late)
        await pool.roll()
    assert pool.in_force[1] is first
    assert not first.asked
    assert "worker 1 was not replaced" in caplog.text


async def test_a_roll_replaces_the_worker_that_was_started_again_meanwhile(
    pool: WorkerPool, started: Started, monkeypatch: pytest.MonkeyPatch, tasks: TaskGroup
) -> None:
    """The old one may die while the new one starts: the one in its place must not stay beside the new one."""
    first, _ = await started(1, 2)
    monkeypatch.setattr(module, "own_command", runs_only(SILENT))
    tasks.start_soon(pool.roll)
    await came_true(lambda: [one.held for one in pool.all] == [1, 1, 1])
    new = pool.all[-1]
    first.process.kill()
    await came_true(lambda: pool.in_force[1] is not first)
    again = pool.in_force[1]
    new.process.send_signal(signal.SIGUSR1)
    await came_true(lambda: again.asked)
    assert pool.in_force[1] is new
    assert (first.asked, again.asked, new.asked) == ("", SUCCEED, "")


async def test_a_worker_that_is_started_again_does_not_take_the_place_of_one_that_a_roll_put_there(
    pool: WorkerPool, started: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_DELAY", 0.1)
    first, _ = await started(1, 2)
    monkeypatch.setattr(module, "own_command", runs_only(SILENT))
    async with anyio.create_task_group() as rolls:
        rolls.start_soon(pool.roll)
        await came_true(lambda: [one.held for one in pool.all] == [1, 1, 1])
        new = pool.all[-1]
        first.process.kill()
        await came_true(lambda: "worker 1 ended by signal 9" in caplog.text)
        new.process.send_signal(signal.SIGUSR1)
        await came_true(lambda: pool.in_force[1] is new)
        rolls.cancel_scope.cancel()
    killed = anyio.current_time()
    await came_true(lambda: anyio.current_time() > killed + 2 * module.FIRST_DELAY)
    assert pool.in_force[1] is new


async def test_workers_that_leave_are_members_until_they_take_no_more_connections(
    pool: WorkerPool, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them answers for all until the lame-duck period is over."""
    told = dict[WorkerProcess, WorkerOrders]()
    monkeypatch.setattr(WorkerProcess, "tell", lambda one, orders: told.update({one: orders}))
    one, other = await started(1, 2)
    pool.leave(LEAVE)
    assert [number for number, _ in told[one].members] == [1, 2]
    other.report = WorkerReport(takes=False)
    pool.changed()
    assert [number for number, _ in told[one].members] == [1]
    one.asked = SUCCEED
    pool.changed()
    assert told[one].members == ()


async def test_the_process_of_the_stdio_servers_is_started_again_while_workers_finish_their_calls(
    pool: WorkerPool, started: Started
) -> None:
    worker, stdio = await started(1, STDIO_NUMBER)
    pool.leave(LEAVE)
    stdio.process.kill()
    await came_true(lambda: pool.in_force[STDIO_NUMBER] is not stdio and pool.in_force[STDIO_NUMBER].takes)
    worker.process.kill()
    await came_true(lambda: pool.all == [pool.in_force[STDIO_NUMBER]])
    assert pool.in_force[1] is worker, "no worker is started any more"


async def test_the_process_of_the_stdio_servers_is_replaced_also_if_the_end_begins_meanwhile(
    pool: WorkerPool, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, stdio = await started(1, STDIO_NUMBER)
    monkeypatch.setattr(module, "program_stamp", lambda: "another")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pool.roll)
        await came_true(lambda: worker.asked == SUCCEED)
        worker.process.kill()
        await came_true(lambda: stdio.asked == LEAVE)
        new = pool.in_force[1]
        pool.leave(LEAVE)
        stdio.process.kill()
    await came_true(lambda: pool.in_force[STDIO_NUMBER] is not stdio and pool.in_force[STDIO_NUMBER].takes)
    assert pool.in_force[1] is new, "no other worker is replaced"


async def test_a_program_that_does_not_start_leaves_the_process_of_the_stdio_servers(
    pool: WorkerPool, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, stdio = await started(1, STDIO_NUMBER)
    monkeypatch.setattr(module, "program_stamp", lambda: "another")
    monkeypatch.setattr(module, "own_command", runs_only("raise SystemExit(1)"))
    with anyio.fail_after(PATIENCE):
        await pool.roll()
    assert pool.all == [worker, stdio]
    assert not stdio.asked


async def test_a_process_that_cannot_be_started_is_started_later_and_ends_a_roll(
    pool: WorkerPool, started: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The system has no process left, or the environment of the program is being built again."""
    caplog.set_level(logging.WARNING, "holdfast.serve")
    (first,) = await started(1)
    with monkeypatch.context() as broken:
        broken.setattr(module, "own_command", lambda: ["/nonexistent/python"])
        with anyio.fail_after(PATIENCE):
            await pool.roll()
        assert "worker 1 was not replaced (No such file or directory): the old one goes on" in caplog.text
        assert pool.all == [first]
        first.process.kill()
        again = "worker 1 cannot be started (No such file or directory); the next one starts in 0.02 s"
        await came_true(lambda: again in caplog.text)
    await came_true(lambda: pool.in_force[1].takes and pool.in_force[1] is not first)


async def test_nothing_is_replaced_while_workers_finish_their_calls(
    pool: WorkerPool, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, stdio = await started(1, STDIO_NUMBER)
    monkeypatch.setattr(module, "program_stamp", lambda: "another")
    pool.leave(LEAVE)
    with anyio.fail_after(PATIENCE):
        await pool.roll()
    assert pool.all == [worker, stdio]
    assert not stdio.asked


class Taking:
    """A worker as the spread of connections sees it: it counts what it gets."""

    def __init__(self, number: int, *, held: int = 0, missed: int = 0, takes: bool = True) -> None:
        self.number, self.held, self.missed, self.takes = number, held, missed, takes
        self.got = 0

    def hand(self, _: socket.socket) -> bool:
        self.held += 1
        self.got += 1
        return True


async def shares(*workers: Taking, count: int = 60) -> list[int]:
    with bind("127.0.0.1", 0) as listener, ExitStack() as clients:
        wanted: Any = workers
        address = listener.getsockname()
        for _ in range(count):
            clients.enter_context(socket.create_connection(address))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(spread, listener, lambda: wanted)
            with anyio.fail_after(20):
                await came_true(lambda: sum(one.got for one in workers) == count)
            tasks.cancel_scope.cancel()
    return [one.got for one in workers]


async def test_connections_that_come_at_once_are_spread_evenly() -> None:
    assert await shares(Taking(1), Taking(2)) == [30, 30]


async def test_a_worker_that_was_started_again_gets_connections_until_it_holds_as_many() -> None:
    assert await shares(Taking(1, held=40), Taking(2)) == [10, 50]


async def test_a_worker_that_does_not_report_gets_none_while_another_one_does() -> None:
    assert await shares(Taking(1, missed=module.LATE_REPORTS + 1), Taking(2)) == [0, 60]
    assert await shares(Taking(1, missed=module.LATE_REPORTS + 1), Taking(2, takes=False)) == [60, 0]


async def test_connections_wait_while_no_worker_takes_them() -> None:
    one = Taking(1, takes=False)
    with bind("127.0.0.1", 0) as listener:
        wanted: Any = [one]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(spread, listener, lambda: wanted)
            with socket.create_connection(listener.getsockname()), anyio.fail_after(20):
                await anyio.wait_all_tasks_blocked()
                assert one.got == 0
                one.takes = True
                await came_true(lambda: one.got == 1)
            tasks.cancel_scope.cancel()


async def test_a_connection_that_was_handed_over_is_taken_by_the_worker() -> None:
    ours, theirs = channel_pair()
    channel, other = channel_pair()
    task = WorkerTask(number=3, channel=0, connections=0, host="", port=0, supervisor=0, folder="", token="")
    process: Any = SimpleNamespace(pid=7, returncode=None)
    worker = WorkerProcess(task, process, channel, ours, changed=lambda: None)
    assert repr(worker) == "<worker 3 pid=7 starting held=0>"
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


@pytest.mark.requirement("FLEET-7")
async def test_a_connection_behind_one_whose_client_left_is_taken() -> None:
    ours, theirs = channel_pair()
    with (
        ours,
        bind("127.0.0.1", 0) as listener,
        HandedConnections(fileno=theirs.detach()) as handed,
        socket.socket() as left,
        socket.create_connection(listener.getsockname()) as client,
    ):
        accepted, _ = listener.accept()
        with accepted:
            socket.send_fds(ours, [b"."], [left.fileno()])
            socket.send_fds(ours, [b"."], [accepted.fileno()])
        taken, peer = handed.accept()
        taken.close()
        assert peer == client.getsockname()
        handed.setblocking(False)
        with pytest.raises(BlockingIOError):
            handed.accept()


@pytest.mark.requirement("FLEET-7")
async def test_a_connection_waits_while_the_worker_has_no_free_descriptor() -> None:
    ours, theirs = channel_pair()
    with (
        ours,
        bind("127.0.0.1", 0) as listener,
        HandedConnections(fileno=theirs.detach()) as handed,
        socket.create_connection(listener.getsockname()) as client,
    ):
        accepted, _ = listener.accept()
        with accepted:
            socket.send_fds(ours, [b"."], [accepted.fileno()])
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(handed.fileno())
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
                handed.accept()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        taken, peer = handed.accept()
        taken.close()
        assert peer == client.getsockname()


class Starting:
    """A worker that starts with others, as its supervisor sees it."""

    stays, takes, begun = False, False, 0.0

    def __init__(self, *, waits: bool = False) -> None:
        self.task = SimpleNamespace(waits=waits, runs_stdio=False)
        self.report = WorkerReport()
        self.is_ready = False

    def tell(self, orders: WorkerOrders) -> None:
        self.is_ready = orders.ready


async def test_workers_hear_that_they_are_ready_when_all_of_them_are(pool: WorkerPool) -> None:
    one, other, third = Starting(), Starting(), Starting(waits=True)

    def heard(*started: Any) -> set[bool]:
        pool.in_force, pool.all = dict(enumerate(started, start=1)), [*started]
        pool.changed()
        return {worker.is_ready for worker in started}

    one.report = WorkerReport(ready=True)
    assert heard(one) == {False}, "the others have not started yet"
    assert heard(one, other, third) == {False}, "a probe would get another answer from each worker"
    other.report = WorkerReport(ready=True)
    assert heard(one, other, third) == {True}, "one that waits accepts when it is ready"
    pool.all = []
