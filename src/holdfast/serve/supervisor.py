"""``serve --workers N``: a supervisor owns the listening socket and the local store, and hands connections to workers.

One Python process uses one core. Several must look like one hub: one address, one status page, one truth, without
Redis. Each worker is a hub of its own; they share switches, evidence and sessions through the supervisor's store, and
one of them answers the control API.

What can happen, and what is done:

- **A worker dies.** Its calls fail, no others. The next one starts, later each time.
- **A worker hangs.** It gets no more connections, and is killed after a while (``worker_process``).
- **SIGHUP** replaces the workers one at a time, with the program that is installed now. The new one connects its
  servers and takes connections; then the old one gets none, finishes what is open, and ends. A new one that does not
  start leaves the old one in its place, and ends the roll.
- **SIGTERM and Ctrl-C** end all of them after their calls; the second time, at once. A terminal and systemd send the
  same signal to all processes; what the supervisor says on its own socket is what counts.
- **A successor** (``--takeover``, SIGUSR2) gets the listening socket. Until it accepts, nothing changes here.
- **Clients join** (``serve --stdio``) at one worker. Its supervisor holds the lock of their address: when that worker
  dies, they wait for the next one.
- **The supervisor dies.** Its sockets close, and every worker ends within a moment: nothing is left behind.

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
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread

from holdfast.config import state_folder
from holdfast.errors import HoldfastError
from holdfast.files import PRIVATE_FOLDER, private_folder
from holdfast.fleet import serve_broker
from holdfast.hub import sleep_until_poll
from holdfast.serve.hub_secrets import read_token
from holdfast.serve.listening import (
    Announcement,
    keep_state_private,
    notify_successor,
    shared_place,
    tell_addresses,
)
from holdfast.serve.options import Serving
from holdfast.serve.program import END_SIGNALS, found_config, leave_terminal, on_terminal
from holdfast.serve.takeover import handing_over
from holdfast.serve.telemetry import log_faults_in_lines, mask_in_log
from holdfast.serve.worker_link import END, LEAVE, MEMBERS, READY, STDIO_NUMBER, SUCCEED, WorkerTask
from holdfast.serve.worker_process import RestartDelays, StdioProcess, WorkerProcess, start_worker

__all__ = ["ConnectionSpread", "Supervisor", "private_place"]

log = logging.getLogger("holdfast.serve")

FIRST_DELAY = 0.5
"""Seconds until a worker that ended is started again the first time."""
TOKEN_SECONDS = 1.0
AT_ONCE = 64
"""Connections that are handed out in one step of the event loop."""
PAUSE_SECONDS = 0.05
"""How long connections wait in the system's queue if no worker can take one, or no descriptor is left."""
JOIN_WORKER = 1
"""The worker that serves the clients that join: they need one process that has them."""
LONGEST_PATH = 80
"""Bytes of the folder. The system allows 104 to 108 for the path of a Unix socket in it."""


class ConnectionSpread:
    """Accepts connections, and hands each to the worker that holds the fewest."""

    def __init__(self, listener: socket.socket, workers: set[WorkerProcess]) -> None:
        self._listener = listener
        self._workers = workers
        self._changed = anyio.Event()
        self._stopped = anyio.Event()
        listener.setblocking(False)

    def workers_changed(self) -> None:
        """A worker takes connections now, or no longer does."""
        self._changed.set()

    def stop(self) -> None:
        """Accept nothing from now on."""
        self._stopped.set()

    async def run(self) -> None:
        """Hand connections out until it is stopped."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hand_out_while_taken)
            await self._stopped.wait()
            tasks.cancel_scope.cancel()

    async def _hand_out_while_taken(self) -> None:
        while True:
            while not any(one.takes for one in self._workers):
                self._changed = anyio.Event()
                await self._changed.wait()
            await anyio.wait_readable(self._listener)
            if not self._hand_out():
                await anyio.sleep(PAUSE_SECONDS)

    def _hand_out(self) -> bool:
        """Take what waits; False if there is a reason to wait."""
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return True
            except OSError as exc:
                log.warning("a connection could not be accepted: %s", exc.strerror)
                return exc.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
            with connection:
                if not any(one.hand(connection) for one in self._in_turn()):
                    log.warning("no worker could take a connection")
                    return False
        return True

    def _in_turn(self) -> Sequence[WorkerProcess]:
        """The workers that take connections, those that report in time and hold the fewest first."""
        return sorted((one for one in self._workers if one.takes), key=lambda one: (one.is_late, one.held, one.number))


class Supervisor:
    """The parent of the workers."""

    def __init__(self, serving: Serving) -> None:
        assert serving.listener is not None  # noqa: S101 - several workers serve over HTTP
        self._serving = serving
        self._key = secrets.token_urlsafe(48)
        self._token = serving.control_token
        self._began = time.time()
        self._workers: dict[int, WorkerProcess] = {}
        """The worker in force for each number."""
        self._all: set[WorkerProcess] = set()
        """Those too that are being replaced."""
        self._spread = ConnectionSpread(serving.listener, self._all)
        self._delays: dict[int, RestartDelays] = {}
        self._starts = 0
        self._ending = anyio.Event()
        self._roll_wanted = anyio.Event()
        self._on_terminal = on_terminal()  # now: a terminal that was closed is none any more
        self._demo = ""
        self._joins = False
        self._has_begun = False
        """Whether a worker ever accepted: the first one that does not ends the start."""
        self._code = 0

    def __repr__(self) -> str:
        return f"<Supervisor of {self._workers}{' ending' if self._ending.is_set() else ''}>"

    def run(self) -> int:
        """Serve until a signal; returns the exit code: that of the first worker, if it does not start."""
        keep_state_private(os.environ)
        with private_place() as folder:
            anyio.run(self._run, folder)
        return self._code

    async def _run(self, folder: Path) -> None:
        log_faults_in_lines()
        self._folder = folder
        self._stdio = StdioProcess(
            folder / "stdio.sock", partial(self._task, STDIO_NUMBER), changed=self._workers_changed
        )
        async with found_config(self._serving) as (config, self._demo), anyio.create_task_group() as self._tasks:
            note = Announcement(self._serving, config)

            def use_token(token: str) -> None:
                self._token = token
                note.change_token(token)

            if (place := shared_place(self._serving)) is not None:
                # It, and not the worker that serves them, holds the lock: when that worker dies, its clients wait for
                # the next one, and start no hub of their own.
                self._joins = True
                self._tasks.start_soon(place.follow)
            await self._tasks.start(serve_broker, folder / "broker.sock")
            self._tasks.start_soon(self._follow_signals)
            self._tasks.start_soon(self._spread.run)
            if any(one.transport == "stdio" and not one.problems for one in config.servers.values()):
                self._stdio.want()
            self._tasks.start_soon(self._stdio.run)
            offered = None if self._demo else self._serving.listener
            async with handing_over(offered, os.environ, partial(self._succeeded, note)) as handover:
                with note.at(handover):
                    file = self._serving.options.control_token_file
                    self._tasks.start_soon(follow_token, file, self._token, use_token)
                    self._tasks.start_soon(self._roll_when_asked)
                    if await self._begin():
                        tell_addresses(
                            self._serving, config, sign_in_code=lambda: new_code(self._token, self._key, folder)
                        )
                    await self._all_ended()
            await self._stdio.end(self._serving.options.drain)
            self._tasks.cancel_scope.cancel()

    async def _succeeded(self, note: Announcement, pid: int) -> None:
        log.info("a successor took over: connections that are open are served until they close")
        if pid:
            notify_successor(os.environ, pid)
        note.withdraw()
        self._spread.stop()
        self._leave(SUCCEED, 2 * self._serving.leave_seconds)

    # Workers.

    async def _begin(self) -> bool:
        """Start the workers, the first one alone; whether all of them accept."""
        takes_over = self._serving.predecessor is not None
        first = await self._start(1, waits=takes_over, together=not takes_over)
        await either(first.listening, first.ended)
        if not first.listening.is_set():
            if not self._ending.is_set():
                self._ending.set()
                self._code = first.process.returncode or 1
            return False
        for number in range(2, self._serving.options.worker_count + 1):
            await self._start(number, waits=takes_over, together=not takes_over)
        self._tasks.start_soon(tell_when_ready, tuple(self._workers.values()))
        for number in sorted(self._workers):
            while not self._ending.is_set() and not (worker := self._workers[number]).listening.is_set():
                await either(worker.listening, worker.ended)
                if not worker.listening.is_set():
                    await anyio.sleep(FIRST_DELAY)  # the next one starts
        return not self._ending.is_set()

    async def _start(
        self, number: int, *, waits: bool = False, together: bool = False, candidate: bool = False
    ) -> WorkerProcess:
        """Start a worker. A candidate is in force when it accepts, and not started again before that."""
        task = partial(self._task, number, waits=waits, together=together)
        worker = await start_worker(task, os.environ, changed=self._workers_changed)
        if not candidate:
            self._workers[number] = worker
        self._all.add(worker)
        self._tasks.start_soon(self._attend, worker)
        if self._ending.is_set():
            worker.kill()
        return worker

    def _task(self, number: int, connections: int, *, waits: bool = False, together: bool = False) -> WorkerTask:
        self._starts += 1
        return WorkerTask(
            number=number,
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
            together=together,
        )

    async def _attend(self, worker: WorkerProcess) -> None:
        """Look after a worker until it ends, and start the next one if its end was not wanted."""
        code = await worker.attend()
        self._all.discard(worker)
        number = worker.number
        self._has_begun = self._has_begun or worker.listening.is_set()
        if worker.leaves or not self._has_begun or self._workers.get(number) is not worker or self._ending.is_set():
            return
        await anyio.sleep(self._delays.setdefault(number, RestartDelays(FIRST_DELAY)).after(worker, code))
        if not self._ending.is_set() and self._workers[number] is worker:
            await self._start(number, waits=any(one.stays for one in self._workers.values()))

    def _workers_changed(self) -> None:
        """Tell each worker which of them accept and stay. The oldest comes first: it answers the control API."""
        self._spread.workers_changed()
        if any(one.has_stdio_servers for one in self._all):
            self._stdio.want()
        stay = sorted((one for one in self._all if one.stays), key=lambda one: one.begun)
        line = f"{MEMBERS} {json.dumps([[(one.number, one.task.socket) for one in stay], self._stdio.web_socket])}"
        for one in self._all:
            one.say(line)
        if self._ending.is_set() and not any(one.takes for one in self._all):
            self._spread.stop()  # no worker serves what comes now: it is refused when the socket closes

    async def _roll_when_asked(self) -> None:
        while True:
            await self._roll_wanted.wait()
            self._roll_wanted = anyio.Event()
            await self._roll()

    async def _roll(self) -> None:
        """Replace the workers one at a time. A new one that does not start leaves the old one in its place."""
        log.info("the workers are replaced, one at a time")
        await self._stdio.roll(self._serving.options.drain)
        for number in sorted(self._workers):
            if self._ending.is_set():
                return
            new = await self._start(number, waits=True, candidate=True)
            await either(new.listening, new.ended)
            if self._ending.is_set():
                return
            if not new.listening.is_set() or new.ended.is_set():
                log.error("worker %d was not replaced, because the new one did not start: the old one goes on", number)
                return
            old, self._workers[number] = self._workers[number], new
            log.info("worker %d is replaced: the old one serves open connections until they close", number)
            old.stop_handing()
            # First who stays: an old one without connections ends at once, and leaves its totals to one of those.
            self._workers_changed()
            old.tell_to_leave(SUCCEED)
            await old.gone(2 * self._serving.leave_seconds)

    # The end.

    async def _follow_signals(self) -> None:
        with anyio.open_signal_receiver(*END_SIGNALS, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGHUP and self._on_terminal:
                    leave_terminal()
                if number == signal.SIGHUP and not self._on_terminal:
                    self._roll_wanted.set()
                elif not self._ending.is_set():
                    self._leave(LEAVE, self._serving.lame_duck + self._serving.options.drain)
                else:
                    for worker in self._all:
                        worker.tell_to_leave(END)

    def _leave(self, word: str, seconds: float) -> None:
        self._ending.set()
        for worker in self._all:
            worker.tell_to_leave(word)
            self._tasks.start_soon(worker.gone, seconds)

    async def _all_ended(self) -> None:
        while self._all or not self._ending.is_set():
            running = next(iter(self._all), None)
            if running is not None:
                await running.ended.wait()
            await anyio.sleep(PAUSE_SECONDS)  # those that ended are taken off, or started again


async def tell_when_ready(begun: Sequence[WorkerProcess]) -> None:
    """Tell the workers when all of them are ready: a probe gets one answer, not that of the worker it meets.

    One that ends first does not count. The next one accepts when it is ready, because others accept meanwhile.
    """
    for worker in begun:
        await either(worker.ready, worker.ended)
    for worker in begun:
        worker.say(READY)


def new_code(token: str, key: str, folder: Path) -> str:
    """A code that signs in a browser at any worker."""
    from holdfast.control import BrowserSessions  # noqa: PLC0415 - it imports cryptography, and few need a code

    return BrowserSessions(token, key=key.encode(), used_in=folder / "codes").new_code()


async def follow_token(file: Path | None, token: str, use: Callable[[str], None]) -> None:
    """Call ``use`` with each new token in the file: commands find the hub by a note, which must have it."""
    while file is not None:
        await sleep_until_poll(TOKEN_SECONDS)
        with suppress(HoldfastError):
            read = await anyio.to_thread.run_sync(read_token, file)
            if read != token:
                token = read
                mask_in_log(token)
                use(token)


async def either(one: anyio.Event, other: anyio.Event) -> None:
    """Wait for the first of two events."""

    async def wait(event: anyio.Event) -> None:
        await event.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, one)
        tasks.start_soon(wait, other)


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
