"""Waiting for what other processes do, without looking again and again: the system tells of a change.

Linux tells of changes in a folder (inotify) and of the end of any process (a pidfd). Elsewhere, and for what can only
be asked for over HTTP, a condition is looked at every few milliseconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2

__all__ = ["PATIENCE", "all_blocked", "asked", "came_true", "gone", "jump", "ready", "until"]

PATIENCE = 45.0
"""Seconds: what does not come by then does not come, however busy the machine is."""
_PAUSE = 0.02
_SOON = 0.1
"""The end of a process, or the health of a server, follows a line in its log, and changes no file itself."""
# IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_MOVED_FROM
_CHANGES = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x40
_LARGE = 64 * 1024


async def all_blocked() -> None:
    """Let all other tasks come to a wait, where a web server runs beside.

    anyio looks every 0.1 s, and such a server wakes as often: in step with each other they would never end.
    """
    with anyio.move_on_after(2):
        await anyio.wait_all_tasks_blocked()


async def until(condition: Callable[[], object], *, beside: Path, within: float = PATIENCE) -> None:
    """Wait until something is true that comes true with a change in a folder, or soon after one."""
    with anyio.fail_after(within):
        async with _watched(beside) as change:
            while not condition():
                with anyio.move_on_after(_SOON):
                    await change()


async def asked(question: Callable[[], Awaitable[object]], *, within: float = PATIENCE) -> None:
    """Wait until another program answers what is hoped for. It tells nothing by itself, so it is asked again."""
    with anyio.fail_after(within):
        while not await question():  # noqa: ASYNC110 - see above
            await anyio.sleep(_PAUSE)


async def came_true(condition: Callable[[], object], *, within: float = PATIENCE) -> None:
    """Wait until something is true that other tasks, or the system, make true. Nothing tells of it: it is looked at."""

    async def look() -> object:
        return condition()

    await asked(look, within=within)


async def gone(pid: int, *, within: float = PATIENCE) -> None:
    """Wait for the end of a process; it need not be a child of this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with anyio.fail_after(within):
            await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)


async def ready(url: str, *, within: float = PATIENCE, **headers: str) -> None:
    """Wait until an address answers 200, as a probe does it."""
    async with httpx2.AsyncClient(trust_env=False, headers=headers) as http:

        async def answered() -> bool:
            return (await http.get(url)).status_code == 200

        await asked(answered, within=within)


async def jump(seconds: float, *, settled: bool = True) -> None:
    """Let the event loop's clock go ahead, and everything that was due by then happen, before this returns.

    Without ``settled`` what was due has only begun: for a test that then waits for something by itself.
    """
    loop = asyncio.get_running_loop()
    before = loop.time
    setattr(loop, "time", lambda: before() + seconds)  # noqa: B010 - a method, which a type checker lets nobody replace
    await asyncio.sleep(0)
    if settled:
        await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def _watched(folder: Path) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Gives what waits for the next change in a folder; none is missed from here on."""
    if sys.platform != "linux":
        yield lambda: anyio.sleep(_PAUSE)
        return
    system = ctypes.CDLL(None, use_errno=True)
    descriptor = system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    try:
        if system.inotify_add_watch(descriptor, os.fsencode(folder), _CHANGES) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch", str(folder))

        async def change() -> None:
            await anyio.wait_readable(descriptor)
            os.read(descriptor, _LARGE)

        yield change
    finally:
        os.close(descriptor)
