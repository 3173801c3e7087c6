"""``serve --workers N``: a supervisor owns the listening socket and the local store, and hands connections to workers.

One Python process uses one core. Several must look like one hub: one address, one status page, one truth, without
Redis. Each worker is a hub of its own; they share switches, evidence and sessions through the supervisor's store, and
one of them answers the control API.

A stdio server is a process with memory, files or a login of its own, so it must not run once in each worker. One more
process, number 0, runs all of them. It is a hub that serves the workers on a private Unix socket, and each worker has
it as a hub behind a hub: it shows the inner state and words as its own, and decides approvals and quotas itself.

What can happen, and what is done:

- **A worker dies.** Its calls fail, no others. The next one starts, later each time. The same is done if the system
  cannot start one, also the first: a machine that comes up may have no process left for a moment.
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

The first worker starts alone. If it ends before it accepts, that is the end of all: a wrong option is told once.

A process has few states, and they are read from what is known anyway. It *takes* connections if its last report says
so; it *leaves* if it was asked to; it has *ended* if the system has its exit code. The system closes its end of the
socket when it is gone: that is how its end is noticed. One deadline says until when it must accept or end, and one task
looks at it (``WorkerProcess.attend``).
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from holdfast.core import SharedStore
from holdfast.fleet import serve_broker
from holdfast.serve.hub_secrets import SecretFile, SecretFiles
from holdfast.serve.isolation import hidden_environment
from holdfast.serve.listening import (
    Announcement,
    keep_state_private,
    private_place,
    shared_place,
    tell_addresses,
)
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

__all__ = ["Supervisor", "WorkerPool", "WorkerProcess", "spread"]

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
PAUSE_SECONDS = 0.05
"""How long connections wait in the system's queue if no worker can take one, or no descriptor is left."""
JOIN_WORKER = 1
"""The worker that serves the clients that join: they need one process that has them."""


class Supervisor:
    """The parent of the workers: from its start to its end, and what people and programs ask of it."""

    def __init__(self, serving: Serving) -> None:
        assert serving.listener is not None  # noqa: S101 - several workers serve over HTTP
        self._serving = serving
        self._listener = serving.listener
        self._roll_wanted = anyio.Event()
        self._on_terminal = on_terminal()  # now: a terminal that was closed is none any more

    def run(self) -> int:
        """Serve until a signal; returns the exit code: that of the first worker, if it does not start."""
        keep_state_private(os.environ)
        with private_place("workers", os.environ) as folder, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stdio:
            stdio.bind(str(folder / "stdio.sock"))
            stdio.listen(1024)
            return anyio.run(self._run, folder, stdio)

    async def _run(self, folder: Path, stdio: socket.socket) -> int:
        log_faults_in_lines()
        serving = self._serving
        async with found_config(serving) as config, anyio.create_task_group() as tasks:
            note, place = Announcement(serving, config), shared_place(serving)
            task = WorkerTask(
                host=serving.host,
                port=serving.port,
                supervisor=os.getpid(),
                folder=str(folder),
                token=serving.control_token,
                key=secrets.token_urlsafe(48),
                started=time.time(),
                joins=place is not None,
            )
            self._pool = pool = WorkerPool(serving, task, stdio, tasks)
            if place is not None:
                # The supervisor, and not the worker that serves them, holds the lock: when that worker dies, its
                # clients wait for the next one, and start no hub of their own.
                tasks.start_soon(place.follow)
            await tasks.start(serve_broker, folder / "broker.sock", pool.store)
            tasks.start_soon(self._follow_signals)
            tasks.start_soon(spread, self._listener, lambda: pool.of_clients)
            has_stdio = any(one.transport == "stdio" and not one.problems for one in config.servers.values())
            tasks.start_soon(self._run_stdio_servers, None if has_stdio else stdio)
            async with handing_over(self._listener, os.environ, partial(self._succeeded, note)) as handover:
                with note.at(handover):
                    tasks.start_soon(self._token_files(note).run)
                    if await pool.begin():
                        tell_addresses(serving, config, sign_in_code=self._new_code)
                    tasks.start_soon(self._roll_when_asked)
                    await pool.end()
            tasks.cancel_scope.cancel()
        return pool.code

    def _new_code(self) -> str:
        """A code that signs in a browser at any worker."""
        from holdfast.control import BrowserSessions  # noqa: PLC0415 - it imports cryptography, and few need a code

        task = self._pool.task
        return BrowserSessions(task.token, key=task.key.encode(), used_in=task.codes).new_code()

    async def _run_stdio_servers(self, unused: socket.socket | None) -> None:
        """Run the process of the stdio servers; where there are none, once a worker has connected to ``unused``.

        The file may have none at the start, and get some later.
        """
        if unused is not None:
            await anyio.wait_readable(unused)
        await self._pool.keep(STDIO_NUMBER)

    def _token_files(self, note: Announcement) -> SecretFiles:
        """The file of the control token: commands find the hub by a note, which must have the new one."""

        def use(token: str) -> None:
            self._pool.task = replace(self._pool.task, token=token)
            note.change_token(token)

        serving = self._serving
        token = SecretFile(
            serving.options.control_token_file,
            serving.control_token,
            use,
            "the control token changed: workers that start from now on have the new one",
            other=lambda: serving.token or "",
        )
        return SecretFiles([token], mask=mask_in_log)

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

    async def _succeeded(self, note: Announcement) -> None:
        note.withdraw()
        self._pool.leave(SUCCEED)


class WorkerPool:
    """The processes of one supervisor. Each number is a place, and one process is in it.

    ``keep`` alone starts a process in a place that is empty, and ``roll`` alone puts another one in the place of one
    that runs. Both are plain code from the start of a process to the place it gets, so neither can come between.
    """

    def __init__(
        self, serving: Serving, task: WorkerTask, stdio_listener: socket.socket, tasks: anyio.abc.TaskGroup
    ) -> None:
        """``task`` is what all processes are told; each gets its number and its sockets besides."""
        self.size = serving.options.worker_count
        """How many workers there are to be, besides the process of the stdio servers."""
        self.task = task
        self.in_force: dict[int, WorkerProcess] = {}
        """The process in each place: the last one, while it has ended and the next one has not started."""
        self.all: list[WorkerProcess] = []
        """Those that run, the oldest first: those too that are being replaced, or are to take the place of another."""
        self.store = SharedStore()
        """What the workers share."""
        self.is_ending = False
        """Whether the workers leave, and none is started any more."""
        self.code = 0
        """The exit code of the supervisor."""
        self._drain = serving.options.drain
        self._seconds = {LEAVE: serving.lame_duck + self._drain, SUCCEED: 2 * serving.leave_seconds, END: 0.0}
        """How long a worker may take that is asked to leave."""
        self._succeeds = serving.predecessor is not None
        self._has_begun = False
        """Whether a worker ever took connections."""
        self._stdio_listener = stdio_listener
        self._tasks = tasks
        self._starts = 0
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
        """Tell each worker which of them are members, and whether all that start are ready.

        Members take connections: those that leave go on until the lame-duck period is over, and till then they are one
        hub. A probe gets one answer, and not that of the worker that it meets. A worker that waits does not count: it
        accepts when it is ready.
        """
        members = tuple((one.number, one.task.socket) for one in self.all if one.takes)
        self._has_begun = self._has_begun or any(one.takes for one in self.of_clients)
        ready = self.size in self.in_force and all(one.task.waits or one.report.ready for one in self.of_clients)
        for one in self.all:
            # The process of the stdio servers answers for itself alone.
            one.tell(WorkerOrders(members=() if one.task.runs_stdio else members, ready=ready))
        self._changed.set()
        self._changed = anyio.Event()

    async def begin(self) -> bool:
        """Start the workers, the first one alone, so that a wrong option is told once; whether all of them accept."""
        for number in range(1, self.size + 1):
            self._tasks.start_soon(self.keep, number)
            await self.until(lambda: self._has_begun or self.is_ending)
        await self.until(lambda: sum(one.stays for one in self.of_clients) == self.size or self.is_ending)
        return not self.is_ending

    async def keep(self, number: int) -> None:
        """Keep a process in a place. The next one starts a moment after one that ended by itself, later each time."""
        delay = FIRST_DELAY
        while not self._is_over(number):
            try:
                if number not in self.in_force or self.in_force[number].ended:
                    self.in_force[number] = self.start(number)
            except OSError as exc:  # no process or memory is left, or the program is being installed again
                what = f"cannot be started ({exc.strerror})"
            else:
                await self.until(lambda: self.in_force[number].ended)  # a roll may have put it there
                ended = self.in_force[number]
                if ended.asked:
                    continue
                if not self._has_begun and number != STDIO_NUMBER:
                    self.code = ended.process.returncode or 1
                    self.leave(END)
                if anyio.current_time() - ended.begun > STEADY_SECONDS:
                    delay = FIRST_DELAY
                code = ended.process.returncode
                what = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
            if not self._is_over(number):
                log.error("%s %s; the next one starts in %g s", name_of(number), what, delay)
                await anyio.sleep(delay)
                delay = min(2 * delay, LONGEST_DELAY)

    def _is_over(self, number: int) -> bool:
        """Whether a place stays empty. Calls of the last worker may need the process of the stdio servers."""
        return self.is_ending and not (number == STDIO_NUMBER and self.of_clients)

    def start(self, number: int) -> WorkerProcess:
        """Start a process, which is in no place yet; raises ``OSError``."""
        self._starts += 1
        # One that starts while others accept connects its servers first: no call waits for it.
        waits = any(one.stays for one in self.of_clients) if self.size in self.in_force else self._succeeds
        joins = self.task.joins and number == JOIN_WORKER
        task = replace(self.task, number=number, start=self._starts, waits=waits, joins=joins)
        listener = self._stdio_listener if number == STDIO_NUMBER else None
        process = WorkerProcess.start(task, self.changed, listener)
        self.all.append(process)
        self._tasks.start_soon(self._attend, process)
        return process

    async def _attend(self, process: WorkerProcess) -> None:
        await process.attend()
        self.all.remove(process)
        self.store.died(process.task.replica_of(process.process.pid))
        self.changed()

    async def roll(self) -> None:
        """Replace the workers one at a time. A new one that does not start leaves the old one in its place."""
        if self.is_ending:
            return
        log.info("the workers are replaced, one at a time")
        outdated: WorkerProcess | None = None
        if (stdio := self.in_force.get(STDIO_NUMBER)) is not None:
            await self.until(lambda: stdio.takes or stdio.ended)  # before that, the signal would end it
            if program_stamp() == stdio.program:
                stdio.process.send_signal(signal.SIGHUP)  # it stays, and reads its files again
            else:
                outdated = stdio
        for number in range(1, self.size + 1):
            if self._is_over(number) or not await self._replace(number):
                return
            # After the first worker: a program that does not start must not cost the stdio servers.
            if outdated is not None and outdated.stays and not self._is_over(number):
                log.info("another program is installed: %s finishes its calls and is replaced", outdated.name)
                await self._let_go(outdated, LEAVE, self._drain)

    async def _replace(self, number: int) -> bool:
        """Put a new worker in a place when it accepts, and wait until the one before has left."""
        try:
            new = self.start(number)
        except OSError as exc:
            log.warning("worker %d was not replaced (%s): the old one goes on", number, exc.strerror)
            return False
        await self.until(lambda: new.takes or new.ended)
        if self.is_ending:
            return False
        if new.ended:
            log.error("%s was not replaced, because the new one did not start: the old one goes on", new.name)
            return False
        log.info("%s is replaced: the old one serves open connections until they close", new.name)
        old, self.in_force[number] = self.in_force[number], new
        await self._let_go(old, SUCCEED, self._seconds[SUCCEED])
        return True

    async def _let_go(self, process: WorkerProcess, asked: str, seconds: float) -> None:
        process.ask(asked, seconds)
        self.changed()
        await self.until(lambda: process.ended)

    def leave(self, asked: str) -> None:
        """Ask all workers to leave."""
        self.is_ending = True
        for worker in self.of_clients:
            worker.ask(asked, self._seconds[asked])
        self.changed()

    async def end(self) -> None:
        """Wait until the workers were asked to leave, and for the end of all; the stdio servers are the last."""
        await self.until(lambda: self.is_ending and not self.of_clients)
        if (stdio := self.in_force.get(STDIO_NUMBER)) is not None:
            await self._let_go(stdio, LEAVE, self._drain)


async def spread(listener: socket.socket, workers: Callable[[], Iterable[WorkerProcess]]) -> None:
    """Accept connections while a worker takes them, and hand each to the worker that holds the fewest."""
    listener.setblocking(False)
    while True:
        await anyio.wait_readable(listener)
        if not _hand_out(listener, workers()):
            await anyio.sleep(PAUSE_SECONDS)


def _hand_out(listener: socket.socket, workers: Iterable[WorkerProcess]) -> bool:
    """Hand the next connection over; False if there is a reason to wait."""
    taking = [one for one in workers if one.takes]
    if not taking:
        return False  # it stays in the queue of the system, where it is not lost if all of this ends now
    try:
        connection, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):  # a successor was quicker, or the client left
        return True
    except OSError as exc:  # mostly: no descriptor is left, which does not change by a second try at once
        log.warning("a connection could not be accepted: %s", exc.strerror)
        return False
    with connection:
        # Those that report in time come first: one that hangs holds few, and would get all.
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
        process: subprocess.Popen[bytes],
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
        self.name = name_of(task.number)
        self.process = process
        self.program = program
        self.begun = anyio.current_time()
        self.report = WorkerReport()
        self.held = 0
        """How many connections it holds: those that it reported, and those that it got since."""
        self.missed = 0
        """Looks since its last report."""
        self.asked = ""
        """What it was asked to do. Its end is expected from then on."""
        self._deadline = self.begun + START_SECONDS
        """When it is killed if it does not accept, or does not end as it was asked to."""
        self._orders = WorkerOrders()
        self._channel = channel
        self._connections = connections
        self._changed = changed

    def __repr__(self) -> str:
        state = "serving" if self.report.takes else "starting"
        return f"<{self.name} pid={self.process.pid} {'ended' if self.ended else self.asked or state} held={self.held}>"

    @classmethod
    def start(
        cls, task: WorkerTask, changed: Callable[[], None], listener: socket.socket | None = None
    ) -> WorkerProcess:
        """Start the program again. With ``listener`` it accepts there itself, and nothing is handed over."""
        with ExitStack() as opened:
            ours, theirs, handing, other = map(opened.enter_context, (*channel_pair(), *channel_pair()))
            program = program_stamp()
            task = replace(task, channel=theirs.fileno(), connections=(listener or other).fileno())
            # The task has secrets, and goes the way of the other variables.
            with hidden_environment({**os.environ, WORKER_VARIABLE: json.dumps(asdict(task))}) as (shown, hidden):
                process = subprocess.Popen(  # noqa: S603 - ours
                    [*own_command(), *sys.argv[1:]],
                    stdin=subprocess.DEVNULL,
                    env=shown,
                    pass_fds=(task.channel, task.connections, hidden),
                )
            opened.pop_all()
        theirs.close()
        other.close()
        return cls(task, process, ours, handing, changed=changed, program=program)

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        return self.process.returncode is not None

    @property
    def takes(self) -> bool:
        """Whether it takes connections: one that leaves goes on until the lame-duck period is over."""
        return self.report.takes and self.asked != SUCCEED and not self.ended

    @property
    def stays(self) -> bool:
        """Whether it takes connections, and its end is not expected."""
        return self.takes and not self.asked

    def hand(self, connection: socket.socket) -> bool:
        """Hand a connection over; False if it cannot take it now."""
        try:
            socket.send_fds(self._connections, [b"."], [connection.fileno()])
        except OSError:  # it is gone, or has not taken those before
            return False
        self.held += 1
        return True

    def tell(self, orders: WorkerOrders) -> None:
        """Tell it how things are, with what it is asked to do."""
        self._orders = replace(orders, asked=self.asked)
        send_state(self._channel, self._orders)

    def ask(self, asked: str, seconds: float) -> None:
        """Ask it to ``LEAVE``, ``SUCCEED`` or ``END`` with the next orders; after ``seconds`` it is late."""
        self.asked = asked
        self._deadline = anyio.current_time() + seconds + END_SECONDS

    async def attend(self) -> None:
        """Listen to it until it ends."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_if_late)
            # The system closes its end of the socket when it is gone, however it went.
            await read_states(self._channel, self._heard)
            while self.process.poll() is None:  # noqa: ASYNC110 - it takes a moment
                await anyio.sleep(PAUSE_SECONDS)
            tasks.cancel_scope.cancel()
        self._channel.close()
        self._connections.close()

    def _heard(self, state: dict[str, Any]) -> None:
        before, self.report = self.report, known_state(WorkerReport, state)
        self.missed, self.held = 0, self.report.held
        if self.stays:
            self._deadline = math.inf
        # Orders that found no room were cut. Each report shows that it reads again, so they are told again.
        send_state(self._channel, self._orders)
        if (before.takes, before.ready) != (self.report.takes, self.report.ready):
            self._changed()

    async def _end_if_late(self) -> None:
        """Kill it if it does not accept or end in time, or does not report any more.

        Looks without a report are counted, not seconds: a machine that was suspended has looked once meanwhile.
        """
        why = ""
        while not why:
            await anyio.sleep(LOOK_SECONDS)
            self.missed += 1
            if anyio.current_time() > self._deadline:
                why = "did not end in time" if self.asked else f"does not accept connections after {START_SECONDS:g} s"
            elif self.stays and self.missed > MISSED_REPORTS:
                why = f"hangs: it has not reported for {MISSED_REPORTS * LOOK_SECONDS:g} s"
        log.error("%s %s, and is killed", self.name, why)
        self.process.kill()  # its warden ends its children; SIGABRT would leave a core with secrets


def name_of(number: int) -> str:
    """What the log calls the process in a place."""
    return "the process of the stdio servers" if number == STDIO_NUMBER else f"worker {number}"
