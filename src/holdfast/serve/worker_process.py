"""One process of ``--workers`` as its supervisor sees it: what it says, the connections that it gets, and its end.

A worker is this program again, with the same command line. It may die at any time, hang, or never begin to accept. A
worker that hangs does not report, and is killed. Looks without a report are counted, not seconds: a machine that was
suspended has looked once meanwhile. SIGABRT would leave a core with secrets, and does not end a stopped process: it is
SIGKILL.

``StdioProcess`` runs the stdio servers: once for all workers, as a hub behind them. A stdio server is a process with
memory, files or a login of its own, so it must not run once in each worker. One process runs all of them. It is a hub
that serves the workers on a private Unix socket, and each worker has it as a hub behind a hub: it shows the inner state
and words as its own, and decides approvals and quotas itself. What can happen to it, and what is done:

- **It dies.** It is started again, later each time. The supervisor keeps the listening socket open, so a call waits in
  its queue for the next process, as long as the call may wait, and is not refused.
- **SIGHUP** replaces the workers and leaves this process alone: its servers keep what they have. It reads the file
  again, and restarts the servers whose definition changed. Only if another program is installed by then it is replaced
  too: it finishes its calls and ends, then the next one starts. Two never run at the same time.
- **The hub ends.** It ends after the last worker, whose calls may need its servers. It does not follow signals: systemd
  and terminals send them to all processes at once.
- **The supervisor dies.** Its link closes, it ends, and its warden ends its servers.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.abc

from holdfast.serve.isolation import hidden_environment
from holdfast.serve.program import own_command, program_stamp
from holdfast.serve.worker_link import (
    ALIVE,
    CLOSED,
    LEAVE,
    LISTENING,
    READY,
    RELOAD,
    REPORT_SECONDS,
    STDIO,
    WORKER_VARIABLE,
    WorkerTask,
    channel_pair,
    read_lines,
    tell,
)

__all__ = ["Reports", "RestartDelays", "StdioProcess", "WorkerProcess", "start_worker"]

log = logging.getLogger("holdfast.serve")

LONGEST_DELAY = 30.0
"""Seconds until a process that ended is started again, at the most; they double each time."""
STEADY_SECONDS = 60.0
"""A process that ran for this long is started again as soon as the first time."""
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


class RestartDelays:
    """How long the next process in the place of one that ended waits: longer each time, unless it ran for a while."""

    def __init__(self, first: float) -> None:
        self._first = self._next = first

    def after(self, ended: WorkerProcess, code: int) -> float:
        """Seconds until the next one starts; the log says it."""
        steady = anyio.current_time() - ended.begun > STEADY_SECONDS
        delay = self._first if steady else self._next
        self._next = min(2 * delay, LONGEST_DELAY)
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        log.error("%s ended %s; the next one starts in %g s", ended.name, how, delay)
        return delay


class Reports:
    """The reports of a worker. Before the first one nothing is missed: a worker that starts sends none."""

    def __init__(self) -> None:
        self.missed: int | None = None

    def heard(self) -> None:
        """A report came."""
        self.missed = 0

    def are_missing(self) -> bool:
        """Look: whether too many are missing by now."""
        if self.missed is not None:
            self.missed += 1
        return self.missed is not None and self.missed > MISSED_REPORTS


class WorkerProcess:
    """One process, and the supervisor's ends of its two sockets."""

    def __init__(
        self,
        task: WorkerTask,
        process: anyio.abc.Process,
        channel: socket.socket,
        connections: socket.socket,
        *,
        changed: Callable[[], None],
    ) -> None:
        """``changed`` is called when it begins or ends to take connections, or needs the stdio servers."""
        self.task = task
        self.number = task.number
        """The one that takes its place has the same."""
        self.name = "the process of the stdio servers" if task.runs_stdio else f"worker {task.number}"
        self.process = process
        self.begun = anyio.current_time()
        self.listening = anyio.Event()
        self.ready = anyio.Event()
        """Set when its servers have an outcome, if it starts with others."""
        self.has_stdio_servers = False
        """Whether its file has stdio servers, which another process runs."""
        self.ended = anyio.Event()
        self.leaves = False
        """Whether it was told to leave, or is not wanted any more."""
        self.reports = Reports()
        self.held = 0
        """How many connections it holds: those that it reported, and those that it got since."""
        self._is_closed = False
        self._channel = channel
        self._connections = connections
        self._changed = changed

    def __repr__(self) -> str:
        state = (
            "ended"
            if self.ended.is_set()
            else "leaving"
            if self.leaves
            else "serving"
            if self.listening.is_set()
            else "starting"
        )
        return f"<WorkerProcess {self.number} pid={self.process.pid} {state} held={self.held}>"

    @property
    def stays(self) -> bool:
        """Whether it takes connections, and was not told to leave."""
        return self.listening.is_set() and not self.leaves and not self.ended.is_set()

    @property
    def takes(self) -> bool:
        """Whether it takes connections: one that leaves goes on until the lame-duck period is over."""
        return self.listening.is_set() and not self._is_closed and not self.ended.is_set()

    @property
    def is_late(self) -> bool:
        """Whether it has not reported for some looks."""
        return self.reports.missed is None or self.reports.missed > LATE_REPORTS

    def hand(self, connection: socket.socket) -> bool:
        """Hand a connection over; False if it cannot take it now."""
        try:
            socket.send_fds(self._connections, [b"."], [connection.fileno()])
        except OSError:  # it is gone, or has not taken those before
            return False
        self.held += 1
        return True

    def say(self, line: str) -> None:
        """Tell it something that changes nothing about its life."""
        tell(self._channel, line)

    def tell_to_leave(self, word: str) -> None:
        """Send ``leave``, ``succeed`` or ``end``; from now on its end is expected."""
        self.leaves = True
        tell(self._channel, word)

    def stop_handing(self) -> None:
        """Give it no more connections: another one takes its place, and its end is expected."""
        self._is_closed = True
        self.leaves = True

    def kill(self, why: str = "") -> None:
        """End it now; its warden ends its children."""
        if why:
            log.error("%s %s, and is killed", self.name, why)
        with suppress(ProcessLookupError):
            self.process.kill()

    async def attend(self) -> int:
        """Listen to it until it ends; returns its exit code."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_lines, self._channel, self._heard)
            tasks.start_soon(self._limit_start)
            tasks.start_soon(self._end_if_stuck)
            code = await self.process.wait()
            tasks.cancel_scope.cancel()
        self._channel.close()
        self._connections.close()
        self.ended.set()
        self._changed()
        return code

    async def gone(self, seconds: float) -> None:
        """Wait until it ended, as it was told to; if it does not, kill it."""
        with anyio.move_on_after(seconds + END_SECONDS):
            await self.ended.wait()
            return
        self.kill("did not end in time")

    def _heard(self, word: str, rest: str) -> None:
        if word == LISTENING:
            self.listening.set()
            self._changed()
        elif word == CLOSED:
            self._is_closed = True
            self._changed()
        elif word == STDIO:
            self.has_stdio_servers = True
            self._changed()
        elif word == READY:
            self.ready.set()
        elif word == ALIVE:
            self.reports.heard()
            self.held = int(rest) if rest.isdigit() else self.held

    async def _limit_start(self) -> None:
        with anyio.move_on_after(START_SECONDS):
            await self.listening.wait()
            return
        self.kill(f"does not accept connections after {START_SECONDS:g} s")

    async def _end_if_stuck(self) -> None:
        """Kill it if it does not report any more. One that was told to leave has its own deadline."""
        while not self.leaves:
            await anyio.sleep(LOOK_SECONDS)
            if self.reports.are_missing() and not self.leaves:
                self.kill(f"hangs: it has not reported for {MISSED_REPORTS * LOOK_SECONDS:g} s")
                return


async def start_worker(
    task: Callable[[int], WorkerTask],
    environ: Mapping[str, str],
    *,
    changed: Callable[[], None],
    listener: socket.socket | None = None,
) -> WorkerProcess:
    """Start the program again as a worker. ``task`` gets the descriptor on which connections come.

    With ``listener`` the process accepts there itself, and nothing is handed over.
    """
    ours, theirs = channel_pair()
    handing, other = channel_pair()
    handed = listener.dup() if listener is not None else other
    with theirs, other, handed, hidden_environment(environ) as (shown, hidden):
        wanted = task(handed.fileno())
        ours.send(wanted.sent())
        process = await anyio.open_process(
            [*own_command(), *sys.argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=None,
            stderr=None,
            env={**shown, WORKER_VARIABLE: str(theirs.fileno())},
            pass_fds=(theirs.fileno(), handed.fileno(), hidden),
        )
    return WorkerProcess(wanted, process, ours, handing, changed=changed)


class StdioProcess:
    """Keeps one process running from when it is wanted."""

    def __init__(self, path: Path, task: Callable[[int], WorkerTask], *, changed: Callable[[], None]) -> None:
        """``task`` gets the descriptor of the Unix socket at ``path``. ``changed`` is called when it came or went."""
        self._path = path
        self._task = task
        self._changed = changed
        self._wanted = anyio.Event()
        self._ending = anyio.Event()
        self._process: WorkerProcess | None = None
        self._program: object = None

    def __repr__(self) -> str:
        return f"<StdioProcess {self._process or ('starting' if self._wanted.is_set() else 'not wanted')}>"

    @property
    def web_socket(self) -> str:
        """Where workers reach its control API; empty if it does not run."""
        return self._process.task.socket if self._process is not None and self._process.stays else ""

    def want(self) -> None:
        """There are stdio servers: run them from now on."""
        self._wanted.set()

    async def run(self) -> None:
        """Keep it running until the end."""
        await self._wanted.wait()
        delays = RestartDelays(first=0.1)
        with _listening(self._path) as listener:
            while not self._ending.is_set():
                self._program = program_stamp()
                process = self._process = await start_worker(
                    self._task, os.environ, changed=self._changed, listener=listener
                )
                code = await process.attend()
                if process.leaves:
                    continue  # it was asked to: the next one starts at once, or none
                with anyio.move_on_after(delays.after(process, code)):
                    await self._ending.wait()

    async def roll(self, seconds: float) -> None:
        """The workers are replaced: replace it only if another program is installed now."""
        process = self._process
        if process is None or process.leaves:
            return
        if program_stamp() == self._program:
            process.say(RELOAD)
            return
        log.info("another program is installed: the process of the stdio servers finishes its calls and is replaced")
        process.tell_to_leave(LEAVE)
        await process.gone(seconds)

    async def end(self, seconds: float) -> None:
        """End it: no worker needs it any more."""
        self._ending.set()
        self._wanted.set()
        process = self._process
        if process is not None and not process.ended.is_set():
            process.tell_to_leave(LEAVE)
            await process.gone(seconds)


def _listening(path: Path) -> socket.socket:
    """The socket at which workers reach the stdio servers; its folder is private to the user."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(1024)
    return listener
