"""When a hub ends: at a signal, or because its supervisor says so. The second time, without waiting for its calls."""

from __future__ import annotations

import logging
import os
import signal
import stat
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from holdfast.cli.worker_link import WorkerLink

__all__ = ["END_SIGNALS", "Drain", "end_when_asked", "leave_terminal", "on_terminal"]

log = logging.getLogger("holdfast.serve")

END_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Drain = Callable[[float], Awaitable[bool]]


def on_terminal() -> bool:
    """Whether this runs on a terminal. There SIGHUP means that the terminal closed; elsewhere it means: reload."""
    return os.isatty(2)


def leave_terminal() -> None:
    """If the terminal was closed, what is still printed goes nowhere: Python exits with 120 if its last write fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):  # a closed one is none any more
            os.dup2(nowhere, stream)
    os.close(nowhere)


async def end_when_asked(drain: Drain, seconds: float, end: Callable[[], None], link: WorkerLink | None = None) -> None:
    """At the first signal, drain and end. At the second, end at once.

    A worker's supervisor can ask for both. A terminal or systemd may send the same signal to both of them: so what the
    supervisor asks does not count as a signal.
    """
    leave, cut = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_follow_signals, leave, cut)
        if link is not None:
            tasks.start_soon(_follow_supervisor, link, leave, cut)
        await leave.wait()
        async with anyio.create_task_group() as both:
            both.start_soon(_drained, drain, seconds, both.cancel_scope)
            await cut.wait()
            orphan = link is not None and link.is_orphan
            log.warning("%s: the calls in flight are cut", "the supervisor is gone" if orphan else "second signal")
            both.cancel_scope.cancel()
        end()
        tasks.cancel_scope.cancel()


async def _follow_signals(leave: anyio.Event, cut: anyio.Event) -> None:
    hangup = (signal.SIGHUP,) if on_terminal() else ()
    with anyio.open_signal_receiver(*END_SIGNALS, *hangup) as signals:
        if await anext(signals) == signal.SIGHUP:
            leave_terminal()
        leave.set()
        await anext(signals)
        cut.set()


async def _follow_supervisor(link: WorkerLink, leave: anyio.Event, cut: anyio.Event) -> None:
    await link.asked_to_leave.wait()
    leave.set()
    await link.asked_to_end.wait()
    cut.set()


async def _drained(drain: Drain, seconds: float, done: anyio.CancelScope) -> None:
    if not await drain(seconds):
        log.warning("some calls did not finish within %g s, and are cut", seconds)
    done.cancel()
