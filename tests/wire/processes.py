"""Waiting for other processes without polling: a pipe with a name for what they say, a pidfd for their end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

__all__ = ["Journal", "gone", "journal"]

LONGEST = 20.0


class Journal:
    """Lines that other processes append to ``path``, which is a named pipe."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._unread = b""
        self.lines: list[str] = []

    async def line(self, start: str) -> str:
        """Wait for a line that starts so; what follows the start."""
        with anyio.fail_after(LONGEST):
            while not (found := [line for line in self.lines if line.startswith(start)]):
                await anyio.wait_readable(self._descriptor)
                *whole, self._unread = (self._unread + os.read(self._descriptor, 65536)).split(b"\n")
                self.lines += [line.decode() for line in whole]
        return found[0].removeprefix(start).strip()


@contextmanager
def journal(folder: Path) -> Iterator[Journal]:
    """A journal in ``folder``; a writer never waits when it opens it."""
    path = folder / "journal"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield Journal(path, descriptor)
    finally:
        os.close(descriptor)


async def gone(*pids: int) -> None:
    """Wait until every one of these processes has ended."""
    with anyio.fail_after(LONGEST):
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
