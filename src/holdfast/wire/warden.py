"""No orphan, whatever happens to us: one small process that outlives us just long enough to clean up.

The warden is told over a pipe which process groups are ours. When the pipe ends, because we closed
it or because we were killed, it ends every group that is left; on Linux it then looks for processes
that carry our mark in their environment, which also finds a child that was started in the very moment
we died, and daemons that left their group. A daemon that also cleared its environment escapes, and
so, on other systems, does any daemon that leaves its group.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.abc

__all__ = ["MARK", "Warden"]

MARK = "HOLDFAST_WARDEN"
"""The environment variable that marks our children; its value names their warden."""

PROGRAM = Path(__file__).with_name("warden_process.py")

REPLACE_SECONDS = 1.0
"""The least time between two replacements: one that cannot live here is not started as fast as it dies."""

END_SECONDS = 5.0
"""The warden needs a second at the most to end what is left; then it is gone."""


class Warden:
    """Watches over the process groups of one owner; started when the first one is."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(16)
        self._groups: set[int] = set()
        self._pipe: int | None = None
        self._process: anyio.abc.Process | None = None
        self._starting = anyio.Lock()
        self._begun = anyio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._end()

    async def ready(self) -> None:
        """Call before a child is started: from now on none of ours can be left behind."""
        async with self._starting:
            self._tell("\n")  # says nothing, but shows at once whether anybody is left to read it
            if self._pipe is None:
                await self._start()

    async def keep(self) -> None:
        """Replace its process whenever that dies, until cancelled; for an owner who starts no child for a long time."""
        await self._begun.wait()
        while True:
            if self._process is not None:
                await self._process.wait()
            async with self._starting:
                if self._process is None or self._process.returncode is not None:
                    with suppress(OSError):  # no process can be started at all just now
                        await self._start()
            await anyio.sleep(REPLACE_SECONDS)

    def watch(self, group: int) -> None:
        """A process group of ours has begun."""
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def release(self, group: int) -> None:
        """A process group of ours is gone."""
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    async def _start(self) -> None:
        await self._end()
        ours, theirs = _pipe()
        try:
            with anyio.CancelScope(shield=True):
                self._process = await anyio.open_process(
                    [sys.executable, "-I", "-S", str(PROGRAM), MARK, self.name],
                    stdin=theirs,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd="/",
                    # We may be the child of another Holdfast: its warden must not end ours before its work is done.
                    env={name: value for name, value in os.environ.items() if name != MARK},
                )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._pipe = ours
        self._begun.set()
        for group in self._groups:
            self._tell(f"+{group}\n")

    def _tell(self, line: str) -> None:
        """Far less than a pipe holds is ever under way, so this never blocks; a dead warden is replaced anyway."""
        if self._pipe is not None:
            try:
                os.write(self._pipe, line.encode())
            except OSError:
                os.close(self._pipe)
                self._pipe = None

    async def _end(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._process is not None:
            with anyio.move_on_after(END_SECONDS):
                await self._process.wait()
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()
            self._process = None

    def __repr__(self) -> str:
        return f"<Warden of {sorted(self._groups)}>"


def _pipe() -> tuple[int, int]:
    """A pipe as (our end, the child's end); neither is inherited by accident."""
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    return ours, theirs
