"""``serve --workers N``: a supervisor owns the listening socket and the local store, and hands connections to workers.

One Python process uses one core. Several must look like one hub: one address, one status page, one truth, without
Redis. Each worker is a hub of its own; they share switches, evidence and sessions through the supervisor's store, and
one of them answers the control API.

A stdio server is a process with memory, files or a login of its own, so it must not run once in each worker. One more
process, number 0, runs all of them. It is a hub that serves the workers on a private Unix socket, and each worker has
it as a hub behind a hub: it shows the inner state and words as its own, and decides approvals and quotas itself.

What can happen, and what is done:

- **A worker dies.** Its calls fail, no others. The next one starts, later each time.
- **A worker hangs.** It gets no more connections, and is killed after a while.
- **The process of the stdio servers dies.** The next one starts. The supervisor keeps its listening socket open, so a
  call waits in the queue for the next process, as long as the call may wait, and is not refused.
- **SIGHUP** replaces the workers one at a time, with the program that is installed now. The new one connects its
  servers and takes connections; then the old one gets none, finishes what is open, and ends. A new one that does not
  start leaves the old one in its place, and ends the roll. The process of the stdio servers stays: it reads the file
  again, and restarts the servers whose definition changed. Only if another program is installed by then it is replaced
  too, after the first worker: it finishes its calls and ends, then the next one starts. Two never run at the same time.
- **SIGTERM and Ctrl-C** end all workers after their calls; the second time, at once. The process of the stdio servers
  ends after the last worker, whose calls may need it. A terminal and systemd send the same signal to all processes;
  what the supervisor says on its own socket is what counts.
- **A successor** (``--takeover``, SIGUSR2) gets the listening socket. Until it accepts, nothing changes here.
- **Clients join** (``serve --stdio``) at one worker. Its supervisor holds the lock of their address: when that worker
  dies, they wait for the next one.
- **The supervisor dies.** Its sockets close, and every process ends within a moment: nothing is left behind.

What must never happen: a connection is taken that no worker will serve. So the supervisor accepts only while a worker
takes connections, and what it handed over is served, also by a worker that is being replaced. A connection goes to the
worker that holds the fewest, so they are spread evenly, also after one was started again. The system's own ways do not:
workers that accept on one socket take what they get, and ``SO_REUSEPORT`` resets what waits in the queue of a worker
that ends (docs/adr/0029).

The first worker starts alone, so that a wrong option is told once.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread

from holdfast.config import state_folder
from holdfast.core import SharedStore
from holdfast.errors import HoldfastError
from holdfast.files import PRIVATE_FOLDER, private_folder
from holdfast.fleet import serve_broker
from holdfast.hub import sleep_until_poll
from holdfast.serve.hub_secrets import read_token
from holdfast.serve.isolation import hidden_environment
from holdfast.serve.listening import Announcement, keep_state_private, notify_successor, shared_place, tell_addresses
from holdfast.serve.options import Serving
from holdfast.serve.program import END_SIGNALS, found_config, leave_terminal, on_terminal, own_command, program_stamp
from holdfast.serve.takeover import handing_over
from holdfast.serve.telemetry import log_faults_in_lines, mask_in_log
from holdfast.serve.worker_link import (
    END,
    LEAVE,
    REPORT_SECONDS,
    STDIO_NUMBER,
    SUCCEED,
    WORKER_VARIABLE,
    WorkerOrders,
    WorkerReport,
    WorkerTask,
    channel_pair,
    known_state,
    read_states,
    send_state,
)

__all__ = ["ConnectionSpread", "Supervisor", "WorkerPool", "WorkerProcess", "private_place"]

log = logging.getLogger("holdfast.serve")

START_SECONDS = 150.0
"""How long a worker may take until it accepts; a minute of it may be its servers. Then it is killed."""
END_SECONDS = 15.0
"""Beyond the time for its calls: after that, a worker is killed."""
LOOK_SECONDS = REPORT_SECONDS
"""How often the supervisor looks whether a worker has reported."""
MISSED_REPORTS = 30
"""A worker that has not reported at so many looks in a row is killed."""
LATE_REPORTS = 3
"""A worker that has not reported at so many looks gets no connections while another one has."""
FIRST_DELAY, LONGEST_DELAY = 0.1, 30.0
"""Seconds until a process that ended is started again: the first time, and at the most. They double each time."""
STEADY_SECONDS = 60.0
"""A process that ran for this long is started again as soon as the first time."""
TOKEN_SECONDS = 1.0
AT_ONCE = 64
"""Connections that are handed out in one step of the event loop."""
PAUSE_SECONDS = 0.05
"""How long connections wait in the system's queue if no worker can take one, or no descriptor is left."""
JOIN_WORKER = 1
"""The worker that serves the clients that join: they need one process that has them."""
LONGEST_PATH = 80
"""Bytes of the folder. The system allows 104 to 108 for the path of a Unix socket in it."""


class Supervisor:
    """The parent of the workers: from its start to its end, and what people and programs ask of it."""

    def __init__(self, serving: Serving) -> None:
        assert serving.listener is not None  # noqa: S101 - several workers serve over HTTP
        self._serving = serving
        self._listener = serving.listener
        self._key = secrets.token_urlsafe(48)
        self._token = serving.control_token
        self._began = time.time()
        self._starts = 0
        self._roll_wanted = anyio.Event()
        self._on_terminal = on_terminal()  # now: a terminal that was closed is none any more
        self._demo = ""
        self._joins = False
        self._code = 0

    def run(self) -> int:
        """Serve until a signal; returns the exit code: that of the first worker, if it does not start."""
        keep_state_private(os.environ)
        with private_place() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stdio:
            stdio.bind(str(folder / "stdio.sock"))
            stdio.listen(1024)
            anyio.run(self._run, folder, stdio)
        return self._code

    async def _run(self, folder: Path, stdio: socket.socket) -> None:
        log_faults_in_lines()
        self._folder = folder
        async with found_config(self._serving) as (config, self._demo), anyio.create_task_group() as tasks:
            self._pool = pool = WorkerPool(self._serving, self._task, stdio, tasks)
            note = Announcement(self._serving, config)
            if (place := shared_place(self._serving)) is not None:
                # It, and not the worker that serves them, holds the lock: when that worker dies, its clients wait for
                # the next one, and start no hub of their own.
                self._joins = True
                tasks.start_soon(place.follow)
            await tasks.start(serve_broker, folder / "broker.sock", pool.store)
            tasks.start_soon(self._follow_signals)
            tasks.start_soon(ConnectionSpread(self._listener, pool.all).run)
            has_stdio = any(one.transport == "stdio" and not one.problems for one in config.servers.values())
            tasks.start_soon(self._run_stdio_servers, None if has_stdio else stdio)
            offered = None if self._demo else self._listener
            async with handing_over(offered, os.environ, partial(self._succeeded, note)) as handover:
                with note.at(handover):
                    tasks.start_soon(self._follow_token, note)
                    if await self._begin():
                        tell_addresses(self._serving, config, sign_in_code=self._new_code)
                    tasks.start_soon(self._roll_when_asked)
                    await pool.until(lambda: pool.is_ending and not pool.of_clients)
            await pool.end_stdio_servers()
            tasks.cancel_scope.cancel()

    def _new_code(self) -> str:
        """A code that signs in a browser at any worker."""
        from holdfast.control import BrowserSessions  # noqa: PLC0415 - it imports cryptography, and few need a code

        return BrowserSessions(self._token, key=self._key.encode(), used_in=self._folder / "codes").new_code()

    def _task(self, number: int, waits: bool, channel: int, connections: int) -> WorkerTask:
        self._starts += 1
        return WorkerTask(
            number=number,
            channel=channel,
            connections=connections,
            host=self._serving.host,
            port=self._serving.port,
            supervisor=os.getpid(),
            folder=str(self._folder),
            start=self._starts,
            token=self._token,
            key=self._key,
            started=self._began,
            demo=self._demo,
            joins=self._joins and number == JOIN_WORKER,
            waits=waits,
        )

    async def _begin(self) -> bool:
        """Start the workers, the first one alone; whether all of them accept."""
        pool, waits = self._pool, self._serving.predecessor is not None
        first = await pool.start(1, waits=waits)
        if not await pool.put_in_force(first):
            if not pool.is_ending:
                pool.leave(END)
                self._code = first.process.returncode or 1
            return False
        others = range(2, pool.size + 1)
        for number in others:
            pool.in_force[number] = await pool.start(number, waits=waits)
        await pool.until(lambda: pool.is_ending or all(pool.in_force[number].stays for number in others))
        return not pool.is_ending

    async def _run_stdio_servers(self, unused: socket.socket | None) -> None:
        """Start the process of the stdio servers; where there are none, when a worker first connects to ``unused``.

        The file may have none at the start, and get some later.
        """
        if unused is not None:
            await anyio.wait_readable(unused)
        self._pool.in_force[STDIO_NUMBER] = await self._pool.start(STDIO_NUMBER)

    async def _follow_token(self, note: Announcement) -> None:
        """Read each new token in the file: commands find the hub by a note, which must have it."""
        file = self._serving.options.control_token_file
        while file is not None:
            await sleep_until_poll(TOKEN_SECONDS)
            with suppress(HoldfastError):
                token = await anyio.to_thread.run_sync(read_token, file)
                if token != self._token:
                    mask_in_log(token)
                    self._token = token
                    note.change_token(token)

    async def _follow_signals(self) -> None:
        with anyio.open_signal_receiver(*END_SIGNALS, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGHUP and self._on_terminal:
                    leave_terminal()
                if number == signal.SIGHUP and not self._on_terminal:
                    self._roll_wanted.set()
                else:
                    self._pool.leave(END if self._pool.is_ending else LEAVE)

    async def _roll_when_asked(self) -> None:
        while True:
            await self._roll_wanted.wait()
            self._roll_wanted = anyio.Event()
            await self._pool.roll()

    async def _succeeded(self, note: Announcement, pid: int) -> None:
        log.info("a successor took over: connections that are open are served until they close")
        if pid:
            notify_successor(os.environ, pid)
        note.withdraw()
        self._pool.leave(SUCCEED)


class WorkerPool:
    """The processes of one supervisor: which of them run, and which one takes the place of another."""

    def __init__(
        self,
        serving: Serving,
        task: Callable[[int, bool, int, int], WorkerTask],
        stdio_listener: socket.socket,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        """``task`` gets a number, whether the worker waits for its servers, and the descriptors of its sockets."""
        self.size = serving.options.worker_count
        """How many workers there are to be, besides the process of the stdio servers."""
        self._drain = serving.options.drain
        self._seconds = {LEAVE: serving.lame_duck + self._drain, SUCCEED: 2 * serving.leave_seconds, END: 0.0}
        """How long a worker may take that is asked to leave."""
        self.in_force: dict[int, WorkerProcess] = {}
        """The process for each number."""
        self.all: set[WorkerProcess] = set()
        """Those too that are being replaced, or are to take the place of another one."""
        self.store = SharedStore()
        """What the workers share."""
        self.is_ending = False
        """Whether the workers leave, and none is started any more."""
        self.is_over = False
        """Whether the last worker has ended. Until then calls may need the process of the stdio servers."""
        self._task = task
        self._stdio_listener = stdio_listener
        self._tasks = tasks
        self._delays: dict[int, float] = {}
        self._changed = anyio.Event()
        """Set, and replaced by the next one, when anything changed that a task may wait for."""

    def __repr__(self) -> str:
        return f"<WorkerPool {self.in_force}{' ending' if self.is_ending else ''}>"

    @property
    def of_clients(self) -> list[WorkerProcess]:
        """The workers: all processes but the one that runs the stdio servers."""
        return [one for one in self.all if not one.task.runs_stdio]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that depends on the processes."""
        while not holds():
            await self._changed.wait()

    def changed(self) -> None:
        """Tell each worker which of them are members, the oldest first, and whether all that start are ready.

        Members accept, and stay or go on until the lame-duck period is over: till then they are one hub. A probe gets
        one answer, and not that of the worker that it meets. A worker that waits does not count: it accepts when it is
        ready.
        """
        self._changed.set()
        self._changed = anyio.Event()
        accept = sorted((one for one in self.all if one.stays or one.takes), key=lambda one: one.begun)
        members = tuple((one.number, one.task.socket) for one in accept)
        ready = self.size in self.in_force and all(one.task.waits or one.report.ready for one in self.of_clients)
        for one in self.all:
            # The process of the stdio servers answers for itself alone.
            one.tell(WorkerOrders(members=() if one.task.runs_stdio else members, ready=ready))

    async def start(self, number: int, *, waits: bool = False) -> WorkerProcess:
        """Start a process. Until it is in force, it is not started again if it ends."""
        listener = self._stdio_listener if number == STDIO_NUMBER else None
        worker = await WorkerProcess.start(partial(self._task, number, waits), self.changed, listener)
        self.all.add(worker)
        self._tasks.start_soon(self._attend, worker)
        if self._ends(number):
            worker.kill()
        return worker

    def _ends(self, number: int) -> bool:
        """Whether the process with this number is needed no more."""
        return self.is_over if number == STDIO_NUMBER else self.is_ending

    async def put_in_force(self, new: WorkerProcess) -> bool:
        """Wait until a new worker accepts, and until the one before has left; False if the new one does not accept."""
        await self.until(lambda: new.accepted or new.ended)
        if self.is_ending or new.ended:
            return False
        old = self.in_force.get(new.number)
        self.in_force[new.number] = new
        if old is not None:
            log.info("%s is replaced: the old one serves open connections until they close", new.name)
            old.ask(SUCCEED)
            await old.gone(self._seconds[SUCCEED])
        return True

    async def _attend(self, worker: WorkerProcess) -> None:
        """Look after a process until it ends, and start the next one if its end was not wanted."""
        code = await worker.attend()
        self.all.discard(worker)
        self.store.died(worker.task.replica_of(worker.process.pid))
        self.changed()
        if not worker.asked:
            if anyio.current_time() - worker.begun > STEADY_SECONDS:  # as soon as the first time
                self._delays.pop(worker.number, None)
            await self._start_next(worker, f"ended by signal {-code}" if code < 0 else f"ended with code {code}")

    async def _start_next(self, ended: WorkerProcess, why: str = "") -> None:
        """Start the one that takes the place of one that ended: at once, or, with a reason ``why``, later each time."""
        number = ended.number
        while self._is_missed(ended):
            if why:
                delay = self._delays.get(number, FIRST_DELAY)
                self._delays[number] = min(2 * delay, LONGEST_DELAY)
                log.error("%s %s; the next one starts in %g s", ended.name, why, delay)
                await anyio.sleep(delay)
            if not self._is_missed(ended):
                return
            try:
                waits = not ended.asked and any(one.stays for one in self.of_clients)
                new = await self.start(number, waits=waits)
            except OSError as exc:
                why = f"cannot be started ({exc.strerror})"
                continue
            if not self._is_missed(ended):
                new.kill()  # a roll put another one in its place meanwhile
                return
            self.in_force[number] = new

    def _is_missed(self, ended: WorkerProcess) -> bool:
        return not self._ends(ended.number) and self.in_force.get(ended.number) is ended

    async def roll(self) -> None:
        """Replace the workers one at a time. A new one that does not start leaves the old one in its place."""
        if self.is_ending:
            return
        log.info("the workers are replaced, one at a time")
        stdio = self.in_force.get(STDIO_NUMBER)
        if stdio is not None and await self._reloads(stdio):
            stdio = None
        for number in range(1, self.size + 1):
            if self._ends(number):
                return
            try:
                new = await self.start(number, waits=True)
            except OSError as exc:
                log.warning("worker %d was not replaced (%s): the old one goes on", number, exc.strerror)
                return
            if not await self.put_in_force(new):
                if not self.is_ending:
                    log.error("%s was not replaced, because the new one did not start: the old one goes on", new.name)
                return
            # After the first worker: a program that does not start must not cost the stdio servers.
            if stdio is not None and number == 1 and stdio.stays and not self._ends(number):
                log.info("another program is installed: %s finishes its calls and is replaced", stdio.name)
                stdio.ask(LEAVE)
                await stdio.gone(self._drain)
                await self._start_next(stdio)

    async def _reloads(self, stdio: WorkerProcess) -> bool:
        """Let the process of the stdio servers read its files again; False if another program is installed by now."""
        await self.until(lambda: stdio.accepted or stdio.ended)
        is_same = program_stamp() == stdio.program
        if is_same and not self.is_ending:
            stdio.reload()
        return is_same

    async def end_stdio_servers(self) -> None:
        """After the last worker: let the process of the stdio servers finish its calls, and wait for its end."""
        self.is_over = True
        if (process := self.in_force.get(STDIO_NUMBER)) is not None:
            process.ask(LEAVE)
            await process.gone(self._drain)

    def leave(self, asked: str) -> None:
        """Ask all workers to leave; those that do not end in time are killed."""
        self.is_ending = True
        for worker in self.of_clients:
            worker.asked = asked  # all of them before one is told
            self._tasks.start_soon(worker.gone, self._seconds[asked])
        self.changed()


class ConnectionSpread:
    """Accepts connections while a worker takes them, and hands each to the worker that holds the fewest."""

    def __init__(self, listener: socket.socket, workers: set[WorkerProcess]) -> None:
        self._listener = listener
        self._workers = workers
        listener.setblocking(False)

    async def run(self) -> None:
        """Hand connections out until cancelled."""
        while True:
            await anyio.wait_readable(self._listener)
            if not self._hand_out():
                await anyio.sleep(PAUSE_SECONDS)

    def _hand_out(self) -> bool:
        """Take what waits; False if there is a reason to wait."""
        for _ in range(AT_ONCE):
            taking = [one for one in self._workers if one.takes]
            if not taking:
                return False
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return True
            except OSError as exc:
                log.warning("a connection could not be accepted: %s", exc.strerror)
                return exc.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
            with connection:
                # Those that report in time come first.
                in_turn = sorted(taking, key=lambda one: (one.missed > LATE_REPORTS, one.held, one.number))
                if not any(one.hand(connection) for one in in_turn):
                    log.warning("no worker could take a connection")
                    return False
        return True


class WorkerProcess:
    """One process as its supervisor sees it, and the supervisor's ends of its two sockets.

    It is this program again, with the same command line. It may die at any time, hang, or never begin to accept.
    """

    def __init__(
        self,
        task: WorkerTask,
        process: anyio.abc.Process,
        channel: socket.socket,
        connections: socket.socket,
        *,
        changed: Callable[[], None],
        program: object = None,
    ) -> None:
        """``changed`` is called when anything here changed but the number of connections.

        ``program`` is the stamp of the program that it runs.
        """
        self.task = task
        self.number = task.number
        """The one that takes its place has the same."""
        self.name = "the process of the stdio servers" if task.runs_stdio else f"worker {task.number}"
        self.process = process
        self.program = program
        self.begun = anyio.current_time()
        self.report = WorkerReport()
        self.accepted = False
        """Whether it ever took connections."""
        self.ended = False
        self.held = 0
        """How many connections it holds: those that it reported, and those that it got since."""
        self.missed = 0
        """Looks since its last report."""
        self.asked = ""
        """What it was asked to do. Its end is expected from then on."""
        self._owed: WorkerOrders | None = None
        """What it could not be told."""
        self._channel = channel
        self._connections = connections
        self._changed = changed

    def __repr__(self) -> str:
        state = "serving" if self.accepted else "starting"
        return f"<{self.name} pid={self.process.pid} {'ended' if self.ended else self.asked or state} held={self.held}>"

    @classmethod
    async def start(
        cls, task: Callable[[int, int], WorkerTask], changed: Callable[[], None], listener: socket.socket | None = None
    ) -> WorkerProcess:
        """Start the program again. ``task`` gets the descriptors of both sockets.

        With ``listener`` the process accepts there itself, and nothing is handed over.
        """
        with ExitStack() as opened:
            ours, theirs, handing, other = map(opened.enter_context, (*channel_pair(), *channel_pair()))
            program = program_stamp()
            given = task(theirs.fileno(), (listener or other).fileno())
            # The task has secrets, and goes the way of the other variables.
            with hidden_environment({**os.environ, WORKER_VARIABLE: json.dumps(asdict(given))}) as (shown, hidden):
                process = await anyio.open_process(
                    [*own_command(), *sys.argv[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=None,
                    stderr=None,
                    env=shown,
                    pass_fds=(given.channel, given.connections, hidden),
                )
            opened.pop_all()
        theirs.close()
        other.close()
        return cls(given, process, ours, handing, changed=changed, program=program)

    @property
    def stays(self) -> bool:
        """Whether it accepted, and its end is not expected."""
        return self.accepted and not self.asked and not self.ended

    @property
    def takes(self) -> bool:
        """Whether it takes connections: one that leaves goes on until the lame-duck period is over."""
        return self.report.takes and self.asked != SUCCEED and not self.ended and not self.task.runs_stdio

    def hand(self, connection: socket.socket) -> bool:
        """Hand a connection over; False if it cannot take it now."""
        try:
            socket.send_fds(self._connections, [b"."], [connection.fileno()])
        except OSError:  # it is gone, or has not taken those before
            return False
        self.held += 1
        return True

    def tell(self, orders: WorkerOrders) -> None:
        """Tell it how things are, with what it is asked to do; again after its next report, if it found no room."""
        told = send_state(self._channel, replace(orders, asked=self.asked))
        self._owed = None if told else orders

    def ask(self, asked: str) -> None:
        """Ask it to ``LEAVE``, ``SUCCEED`` or ``END``."""
        self.asked = asked
        self._changed()

    def reload(self) -> None:
        """Let it read its files again."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGHUP)

    def kill(self, why: str = "") -> None:
        """End it now; its warden ends its children. SIGABRT would leave a core with secrets."""
        if why:
            log.error("%s %s, and is killed", self.name, why)
        with suppress(ProcessLookupError):
            self.process.kill()

    async def attend(self) -> int:
        """Listen to it until it ends; returns its exit code."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_states, self._channel, self._heard)
            tasks.start_soon(self._end_if_stuck)
            code = await self.process.wait()
            tasks.cancel_scope.cancel()
        self._channel.close()
        self._connections.close()
        self.ended = True
        return code

    async def gone(self, seconds: float) -> None:
        """Wait until it ended, as it was asked to; if it does not, kill it."""
        with anyio.move_on_after(seconds + END_SECONDS) as waiting:
            await self.process.wait()
        if waiting.cancelled_caught:
            self.kill("did not end in time")
            await self.process.wait()

    def _heard(self, state: dict[str, Any]) -> None:
        before, self.report = self.report, known_state(WorkerReport, state)
        self.missed, self.held = 0, self.report.held
        self.accepted = self.accepted or self.report.takes
        if self._owed is not None:
            self.tell(self._owed)
        if (before.takes, before.ready) != (self.report.takes, self.report.ready):
            self._changed()

    async def _end_if_stuck(self) -> None:
        """Kill it if it never accepts, or does not report any more; one that was asked to leave has its own deadline.

        Looks without a report are counted, not seconds: a machine that was suspended has looked once meanwhile.
        """
        why = ""
        while not why and not self.asked:
            await anyio.sleep(LOOK_SECONDS)
            self.missed += 1
            if not self.accepted and anyio.current_time() > self.begun + START_SECONDS:
                why = f"does not accept connections after {START_SECONDS:g} s"
            elif self.accepted and self.missed > MISSED_REPORTS:
                why = f"hangs: it has not reported for {MISSED_REPORTS * LOOK_SECONDS:g} s"
        if not self.asked:
            self.kill(why)


@contextmanager
def private_place() -> Iterator[Path]:
    """A folder for the sockets, private to the user. One that a killed supervisor left is removed."""
    folder: Path | None = None
    with suppress(OSError):
        hubs = private_folder(private_folder(state_folder(os.environ)) / "hubs")
        for left in hubs.glob("*.workers"):
            if not _runs(left.stem):
                shutil.rmtree(left, ignore_errors=True)
        if len(os.fsencode(hubs)) < LONGEST_PATH:
            folder = hubs / f"{os.getpid()}.workers"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=PRIVATE_FOLDER)
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _runs(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (OSError, ValueError, OverflowError):
        return False
    return True
