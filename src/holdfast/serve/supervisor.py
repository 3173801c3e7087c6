"""``serve --workers N``: a supervisor owns the listening socket and a broker; each worker is a replica of the hub.

A worker is this program again, with the socket as an inherited descriptor. One that dies is started again, later each
time. One that hangs does not report, and is killed. SIGHUP replaces them one at a time: the new one connects its
servers and accepts, then the old one finishes what is open and ends. SIGTERM and Ctrl-C end all of them after their
calls. A successor (``--takeover``, SIGUSR2) gets the socket from the supervisor. Workers end when their supervisor is
gone.
"""

from __future__ import annotations

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
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread

from holdfast.config import Config, load_config, state_folder
from holdfast.core import typed_as
from holdfast.errors import HoldfastError
from holdfast.files import PRIVATE_FOLDER, private_folder
from holdfast.fleet import serve_broker
from holdfast.front import ConnectionShares
from holdfast.hub import sleep_until_poll
from holdfast.serve.announcement import Announcement, keep_state_private, tell_addresses
from holdfast.serve.isolation import hidden_environment
from holdfast.serve.leave import END_SIGNALS, leave_terminal, on_terminal
from holdfast.serve.listening_socket import notify_successor
from holdfast.serve.options import Serving
from holdfast.serve.program import anywhere, own_command
from holdfast.serve.takeover import handing_over, start_successors
from holdfast.serve.telemetry import log_faults_in_lines, mask_in_log
from holdfast.serve.tokens import read_token
from holdfast.serve.worker_link import (
    ALIVE,
    ALL,
    END,
    IDLE,
    LEAVE,
    LISTENING,
    MEMBERS,
    READY,
    REPORT_SECONDS,
    SUCCEED,
    WORKER_VARIABLE,
    WorkerTask,
    channel_pair,
    read_words,
    tell,
)

__all__ = ["Reports", "Supervisor", "private_place"]

log = logging.getLogger("holdfast.serve")

START_SECONDS = 150.0
"""How long a worker may take until it accepts; a minute of it may be its servers. Then it is killed."""
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""Seconds until a worker that ended is started again; they double each time."""
STEADY_SECONDS = 60.0
"""A worker that ran for this long is started again as soon as the first time."""
END_SECONDS = 15.0
"""Beyond the time for its calls: after that, a worker is killed."""
LOOK_SECONDS = REPORT_SECONDS
"""How often the supervisor looks whether a worker has reported."""
MISSED_REPORTS = 30
"""A worker that has not reported at so many looks in a row is killed."""
TOKEN_SECONDS = 1.0
LONGEST_PATH = 80
"""Bytes of the folder. The system allows 104 to 108 for the path of a Unix socket in it."""


class Reports:
    """The reports of a worker. Looks are counted, not seconds: a machine that was suspended has looked once meanwhile.

    Before the first report nothing is missed: a worker may run a release of this program that sends none.
    """

    def __init__(self) -> None:
        self._missed: int | None = None

    def heard(self) -> None:
        """A report came."""
        self._missed = 0

    def are_missing(self) -> bool:
        """Look: whether too many are missing by now."""
        if self._missed is not None:
            self._missed += 1
        return self._missed is not None and self._missed > MISSED_REPORTS


@dataclass(eq=False)
class _Worker:
    """One process."""

    number: int
    process: anyio.abc.Process
    channel: socket.socket
    begun: float
    place: int
    socket: str
    """Its place among the numbers of connections."""
    listening: anyio.Event = field(default_factory=anyio.Event)
    ready: anyio.Event = field(default_factory=anyio.Event)
    """Set when its servers have an outcome, if it starts with others."""
    idle: anyio.Event = field(default_factory=anyio.Event)
    """Set when it serves no client any more, if all leave."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    reports: Reports = field(default_factory=Reports)
    leaves: bool = False
    """Whether it was told to leave, or is not wanted any more."""

    def tell(self, word: str) -> None:
        """Send a word. After the first one, its end is expected."""
        self.leaves = True
        tell(self.channel, word)

    def kill(self) -> None:
        """End it now; its warden ends its children."""
        self.leaves = True
        with suppress(ProcessLookupError):
            self.process.kill()


class Supervisor:
    """The parent of the workers."""

    def __init__(self, serving: Serving) -> None:
        assert serving.listener is not None  # noqa: S101 - several workers serve over HTTP
        self._serving = serving
        self._listener = serving.listener
        self._count = serving.options.worker_count
        self._note: Announcement
        self._config: Config
        self._demo = ""
        self._token = serving.control_token
        self._key = secrets.token_urlsafe(48)
        self._began = time.time()
        self._workers: dict[int, _Worker] = {}
        """The worker in force for each number."""
        self._all: set[_Worker] = set()
        """Those too that are being replaced."""
        self._delays: dict[int, float] = {}
        self._started = 0
        self._ending = False
        self._roll_wanted = anyio.Event()
        self._folder = Path()
        self._shares: ConnectionShares | None = None
        self._on_terminal = on_terminal()  # now: a terminal that was closed is none any more
        self._tasks: anyio.abc.TaskGroup
        self._code = 0
        """The exit code: that of the first worker, if it does not start."""

    def run(self) -> int:
        """Serve until a signal; returns the exit code."""
        keep_state_private(os.environ)
        with private_place() as folder:
            self._folder = folder
            self._shares = ConnectionShares.create(folder / "connections", 2 * self._count)
            anyio.run(self._run)
        return self._code

    async def _run(self) -> None:
        log_faults_in_lines()
        async with self._found_config() as self._config, anyio.create_task_group() as self._tasks:
            self._note = Announcement(self._serving, self._config)
            await self._tasks.start(serve_broker, self._folder / "broker.sock")
            self._tasks.start_soon(self._follow_signals)
            async with self._offered() as handover:
                with self._note.at(handover):
                    self._tasks.start_soon(self._follow_token)
                    self._tasks.start_soon(self._roll_when_asked)
                    await self._begin()
                    await self._all_ended()
            self._tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _found_config(self) -> AsyncIterator[Config]:
        """The configuration; without one, the demo servers run until the end of the block."""
        if self._serving.config is not None:
            with typed_as(anywhere(self._serving.config.source, os.environ)):
                yield self._serving.config
            return
        from holdfast.demo import demo_fleet, forget_running, note_running  # noqa: PLC0415 - of the demo alone

        async with demo_fleet() as control:
            self._demo = str(control.folder)
            note_running(control, self._serving.url)
            try:
                with typed_as(anywhere(control.config_file, os.environ)):
                    yield load_config(control.config_file)
            finally:
                forget_running()

    @asynccontextmanager
    async def _offered(self) -> AsyncIterator[str]:
        """Offer the listening socket to a successor; the demo servers end with their hub, so it offers none."""
        if self._demo:
            yield ""
            return
        async with handing_over(self._listener, state_folder(os.environ) / "hubs", self._succeeded) as handover:
            self._tasks.start_soon(start_successors, os.environ)
            yield handover

    # The start.

    async def _begin(self) -> None:
        """Start the workers, the first one alone: what is wrong with the options is told once."""
        takes_over = self._serving.predecessor is not None
        first = await self._start(1, waits=takes_over, together=not takes_over)
        await _either(first.listening, first.ended)
        if not first.listening.is_set():
            if self._is_ending():
                return
            self._ending = True
            self._code = first.process.returncode or 1
            return
        for number in range(2, self._count + 1):
            if not self._is_ending():
                await self._start(number, waits=takes_over, together=not takes_over)
        self._tasks.start_soon(self._tell_when_ready, tuple(self._workers.values()))
        for number in range(2, self._count + 1):
            await self._accepts(number)
        if not self._is_ending():
            self._announce()

    async def _tell_when_ready(self, begun: Sequence[_Worker]) -> None:
        """Tell the workers when all of them are ready: a probe gets one answer, not that of the worker it meets.

        One that ends first does not count. The next one accepts when it is ready, because others accept meanwhile.
        """
        for worker in begun:
            await _either(worker.ready, worker.ended)
        for worker in begun:
            tell(worker.channel, READY)

    async def _tell_when_idle(self, leaving: Sequence[_Worker]) -> None:
        """Tell the workers that leave when none of them serves a client: a server of one is used by all."""
        for worker in leaving:
            await _either(worker.idle, worker.ended)
        for worker in leaving:
            tell(worker.channel, IDLE)

    async def _accepts(self, number: int) -> None:
        """Wait until the worker of a number accepts; one that ends first is started again."""
        while not self._is_ending():
            worker = self._workers[number]
            await _either(worker.listening, worker.ended)
            if worker.listening.is_set():
                return
            await anyio.sleep(FIRST_DELAY)  # the next one starts

    def _announce(self) -> None:
        tell_addresses(self._serving, self._config, sign_in_code=self._sign_in_code)

    def _sign_in_code(self) -> str:
        from holdfast.control import BrowserSessions  # noqa: PLC0415 - it imports cryptography, and few need a code

        return BrowserSessions(self._token, key=self._key.encode(), used_in=self._folder / "codes").new_code()

    # Workers.

    async def _start(
        self, number: int, *, waits: bool = False, together: bool = False, candidate: bool = False
    ) -> _Worker:
        """Start a worker. A candidate is in force when it accepts, and not started again before that."""
        ours, theirs = channel_pair()
        self._started += 1
        task = WorkerTask(
            number=number,
            listener=self._listener.fileno(),
            supervisor=os.getpid(),
            folder=str(self._folder),
            address=str(self._folder / f"{number}.{self._started}.sock"),
            token=self._token,
            key=self._key,
            started=self._began,
            socket=str(self._folder / f"{number}.{self._started}.web.sock"),
            place=self._place(number),
            demo=self._demo,
            waits=waits,
            together=together,
        )
        with theirs, hidden_environment(os.environ) as (environ, hidden):
            ours.send(task.sent())
            process = await anyio.open_process(
                [*own_command(), *sys.argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=None,
                stderr=None,
                env={**environ, WORKER_VARIABLE: str(theirs.fileno())},
                pass_fds=(self._listener.fileno(), theirs.fileno(), hidden),
            )
        worker = _Worker(number, process, ours, anyio.current_time(), task.place, task.socket)
        if not candidate:
            self._workers[number] = worker
        self._all.add(worker)
        self._tasks.start_soon(self._attend, worker)
        if self._is_ending():
            worker.kill()
        return worker

    def _place(self, number: int) -> int:
        """A number has two places, because a worker and the one that replaces it run together."""
        taken = {one.place for one in self._all}
        first = 2 * (number - 1)
        return first + 1 if first in taken else first

    async def _attend(self, worker: _Worker) -> None:
        """Listen to a worker until it ends, and start the next one if its end was not wanted."""

        def heard(word: str) -> None:
            if word == LISTENING:
                worker.listening.set()
                self._tell_members()
            elif word == READY:
                worker.ready.set()
            elif word == IDLE:
                worker.idle.set()
            elif word == ALIVE:
                worker.reports.heard()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_words, worker.channel, heard)
            tasks.start_soon(self._limit_start, worker)
            tasks.start_soon(self._end_if_stuck, worker)
            code = await worker.process.wait()
            tasks.cancel_scope.cancel()
        worker.channel.close()
        if self._shares is not None:
            self._shares.clear(worker.place)
        self._all.discard(worker)
        worker.ended.set()
        self._tell_members()
        first = not worker.listening.is_set() and self._started == 1
        if worker.leaves or self._is_ending() or first or self._workers.get(worker.number) is not worker:
            return
        await self._start_again(worker, code)

    async def _start_again(self, worker: _Worker, code: int) -> None:
        steady = anyio.current_time() - worker.begun > STEADY_SECONDS
        delay = FIRST_DELAY if steady else self._delays.get(worker.number, FIRST_DELAY)
        self._delays[worker.number] = min(2 * delay, LONGEST_DELAY)
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        log.error("worker %d ended %s; the next one starts in %g s", worker.number, how, delay)
        await anyio.sleep(delay)
        if not self._is_ending() and self._workers[worker.number] is worker:
            await self._start(worker.number, waits=self._others_accept(worker.number))

    def _others_accept(self, number: int) -> bool:
        return any(
            one.listening.is_set() and not one.leaves and not one.ended.is_set()
            for one in self._workers.values()
            if one.number != number
        )

    async def _limit_start(self, worker: _Worker) -> None:
        with anyio.move_on_after(START_SECONDS):
            await worker.listening.wait()
            return
        log.error("worker %d does not accept connections after %g s, and is killed", worker.number, START_SECONDS)
        with suppress(ProcessLookupError):
            worker.process.kill()

    async def _end_if_stuck(self, worker: _Worker) -> None:
        """Kill a worker that does not report any more. One that was told to leave has its own deadline."""
        while not worker.leaves:
            await anyio.sleep(LOOK_SECONDS)
            if worker.reports.are_missing() and not worker.leaves:
                seconds = MISSED_REPORTS * LOOK_SECONDS
                log.error("worker %d hangs: it has not reported for %g s, and is killed", worker.number, seconds)
                with suppress(ProcessLookupError):
                    worker.process.kill()
                return

    # Rolling.

    async def _roll_when_asked(self) -> None:
        while True:
            await self._roll_wanted.wait()
            self._roll_wanted = anyio.Event()
            await self._roll()

    async def _roll(self) -> None:
        """Replace the workers one at a time. A new one that does not start leaves the old one in its place."""
        log.info("the workers are replaced, one at a time")
        for number in sorted(self._workers):
            if self._is_ending():
                return
            new = await self._start(number, waits=True, candidate=True)
            await _either(new.listening, new.ended)
            if self._is_ending():
                return
            if not new.listening.is_set() or new.ended.is_set():
                log.error("worker %d was not replaced, because the new one did not start: the old one goes on", number)
                return
            old, self._workers[number] = self._workers[number], new
            log.info("worker %d is replaced: the old one serves open connections until they close", number)
            old.tell(SUCCEED)
            self._tell_members()
            await self._gone(old, 2 * self._serving.leave_seconds)

    async def _gone(self, worker: _Worker, seconds: float) -> None:
        """Wait until a worker ended that was told to; one that does not is killed."""
        with anyio.move_on_after(seconds + END_SECONDS):
            await worker.ended.wait()
            return
        log.warning("worker %d did not end in time, and is killed", worker.number)
        worker.kill()

    # The end.

    async def _follow_signals(self) -> None:
        with anyio.open_signal_receiver(*END_SIGNALS, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGHUP and self._on_terminal:
                    leave_terminal()
                if number == signal.SIGHUP and not self._on_terminal:
                    self._roll_wanted.set()
                elif not self._is_ending():
                    self._leave(LEAVE, self._serving.lame_duck + self._serving.options.drain)
                else:
                    self._tell_all(END)

    async def _succeeded(self, pid: int) -> None:
        """A successor accepts connections."""
        log.info("a successor took over: connections that are open are served until they close")
        if pid:
            notify_successor(os.environ, pid)
        self._note.withdraw()
        self._leave(SUCCEED, 2 * self._serving.leave_seconds)

    def _leave(self, word: str, seconds: float) -> None:
        self._ending = True
        self._tell_all(ALL)
        self._tell_all(word)
        self._tasks.start_soon(self._tell_when_idle, tuple(self._all))
        for worker in self._all:
            self._tasks.start_soon(self._gone, worker, seconds)

    def _tell_members(self) -> None:
        """Tell each worker which of them accept and stay. The oldest comes first: it answers the control API."""
        stay = [one for one in self._all if one.listening.is_set() and not one.leaves and not one.ended.is_set()]
        stay.sort(key=lambda one: one.begun)
        text = MEMBERS + json.dumps([(one.number, one.socket) for one in stay])
        for one in self._all:
            tell(one.channel, text)

    def _is_ending(self) -> bool:
        return self._ending

    def _tell_all(self, word: str) -> None:
        for worker in self._all:
            worker.tell(word)

    async def _all_ended(self) -> None:
        while self._all or not self._is_ending():
            running = next(iter(self._all), None)
            if running is not None:
                await running.ended.wait()
            else:
                await anyio.sleep(0.05)  # all ended at once, and are being started again

    async def _follow_token(self) -> None:
        """Commands find the hub by the note of this process: it must have the token that the workers accept."""
        file = self._serving.options.control_token_file
        while file is not None:
            await sleep_until_poll(TOKEN_SECONDS)
            with suppress(HoldfastError):
                token = await anyio.to_thread.run_sync(read_token, file)
                if token != self._token:
                    mask_in_log(token)
                    self._token = token
                    self._note.change_token(token)


async def _either(one: anyio.Event, other: anyio.Event) -> None:
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
