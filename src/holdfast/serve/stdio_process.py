"""The process of ``--workers`` that runs the stdio servers: once for all workers, as a hub behind them.

A stdio server is a process with memory, files or a login of its own, so it must not run once in each worker. One
process runs all of them. It is a hub that serves the workers on a private Unix socket, and each worker has it as a hub
behind a hub: it shows the inner state and words as its own, and decides approvals and quotas itself.

What can happen, and what is done:

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
from collections.abc import Callable
from pathlib import Path

import anyio

from holdfast.serve.program import program_stamp
from holdfast.serve.worker_link import LEAVE, RELOAD, WorkerTask
from holdfast.serve.worker_process import WorkerProcess, start_worker

__all__ = ["StdioProcess"]

log = logging.getLogger("holdfast.serve")

FIRST_DELAY, LONGEST_DELAY = 0.1, 30.0
"""Seconds until a process that ended is started again; they double each time."""
STEADY_SECONDS = 60.0
"""A process that ran for this long is started again as soon as the first time."""


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
        delay = FIRST_DELAY
        with _listening(self._path) as listener:
            while not self._ending.is_set():
                self._program = program_stamp()
                process = self._process = await start_worker(
                    self._task, os.environ, changed=self._changed, listener=listener
                )
                code = await process.attend()
                if process.leaves:
                    continue  # it was asked to: the next one starts at once, or none
                delay = FIRST_DELAY if anyio.current_time() - process.begun > STEADY_SECONDS else delay
                how = f"by signal {-code}" if code < 0 else f"with code {code}"
                log.error("the process of the stdio servers ended %s; the next one starts in %g s", how, delay)
                with anyio.move_on_after(delay):
                    await self._ending.wait()
                delay = min(2 * delay, LONGEST_DELAY)

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
