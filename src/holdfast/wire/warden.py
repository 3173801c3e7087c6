"""Leaves no orphans: one small process that lives just long enough after us to end our children.

The hub tells the warden over a pipe which process groups are its own. The pipe ends when the hub closes it or is
killed. Then the warden ends every group that is left. On Linux it also ends processes that carry the hub's mark in
their environment: a child that was started as the hub died, and daemons that left their group. A daemon that also
cleared its environment escapes. On other systems every daemon that leaves its group escapes.
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

from holdfast.wire.spawn import Spawned, helper_environment, spawn

__all__ = ["CHILD_MARK", "MARK", "Warden"]

MARK = "HOLDFAST_WARDEN"
"""The environment variable that marks our children; its value names their warden."""

CHILD_MARK = "HOLDFAST_CHILD"
"""The environment variable that marks one child and its descendants."""

PROGRAM = Path(__file__).with_name("warden_process.py")

REPLACE_SECONDS = 1.0
"""The shortest time between two replacements, for a warden that dies at once."""

END_SECONDS = 5.0
"""The warden needs a second at most to end what is left."""


class Warden:
    """The warden of one owner's process groups; it starts with the first group."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(16)
        self._groups: set[int] = set()
        self._pipe: int | None = None
        self._process: Spawned | None = None
        self._starting = anyio.Lock()
        self._begun = anyio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._end()

    @property
    def groups(self) -> frozenset[int]:
        """The process groups that live."""
        return frozenset(self._groups)

    @property
    def pid(self) -> int | None:
        """The id of its own process, while there is one."""
        return self._process.pid if self._process is not None else None

    async def ready(self) -> None:
        """Call this before a child is started: from now on no child can be left behind."""
        async with self._starting:
            self._tell("\n")  # an empty line fails at once if the warden is gone
            if self._pipe is None:
                await self._start()

    async def keep(self) -> None:
        """Replace its process when that dies, until cancelled; for an owner that starts no child for a long time."""
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
        """Add a process group."""
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def release(self, group: int) -> None:
        """Remove a process group that has ended."""
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    async def _start(self) -> None:
        await self._end()
        ours, theirs = _pipe()
        try:
            self._process = await spawn(
                [sys.executable, "-I", "-S", str(PROGRAM), MARK, self.name],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=helper_environment(),  # without a mark: the warden of a hub around us must not end ours first
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
        """Write one line. The pipe never fills up, so this never blocks; a dead warden is replaced."""
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
    """A pipe as (our end, the child's end); no other child inherits either."""
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    return ours, theirs
