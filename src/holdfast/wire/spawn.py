"""Starts a process that inherits nothing but its pipes (SEC-21), the same on every event loop.

uvloop starts processes without closing descriptors: a child of it has every inheritable descriptor that the hub got
from its own launcher, and a second copy of its own pipes, so that closing stdout is not seen. So the standard library
starts the process here, and the event loop reads the pipes and waits for the end.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import anyio

__all__ = ["OutputPipe", "Spawned", "helper_environment", "spawn"]

BUFFERED_BYTES: Final = 64 * 1024
"""How much of a pipe is read ahead; the loop stops reading at twice as much."""

Target: TypeAlias = int | None
"""What a standard stream is: a descriptor, ``subprocess.PIPE`` or ``subprocess.DEVNULL``."""


class OutputPipe:
    """Reads one pipe of a process."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.BaseTransport) -> None:
        self._reader = reader
        self._transport = transport

    @classmethod
    async def open(cls, pipe: object) -> OutputPipe:
        """Read a pipe that nothing else reads."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=BUFFERED_BYTES, loop=loop)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), pipe)
        return cls(reader, transport)

    async def receive(self, at_most: int = 64 * 1024) -> bytes:
        """Some bytes; ``anyio.EndOfStream`` when there are no more."""
        if data := await self._reader.read(at_most):
            return data
        raise anyio.EndOfStream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self._reader.read(BUFFERED_BYTES):
            yield data

    def close(self) -> None:
        """Read no more; a reader that waits sees the end."""
        self._reader.feed_eof()
        self._transport.close()


class Spawned:
    """A running process. Its end is noticed by the event loop, also while another process holds its pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._exited = asyncio.Event()
        self._pidfd: int | None = None
        self.stdout: OutputPipe | None = None
        self.stderr: OutputPipe | None = None
        self._watch(asyncio.get_running_loop())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; minus the signal that ended it."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until it exited; returns its code."""
        await self._exited.wait()
        code = self._process.returncode
        return code if code is not None else 0

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def aclose(self) -> None:
        """Stop reading its pipes, and wait for its end."""
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        await self.wait()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """A descriptor becomes readable when it exits (Linux); elsewhere a thread waits for it."""
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            threading.Thread(target=self._wait_in_thread, args=(loop,), name=f"waitpid-{self.pid}", daemon=True).start()
        else:
            loop.add_reader(self._pidfd, self._readable, loop)

    def _readable(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._pidfd is not None:
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self._process.wait()  # it has exited: this takes no time
        self._exited.set()

    def _wait_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        self._process.wait()
        with suppress(RuntimeError):  # the loop is closed: its owner is gone too
            loop.call_soon_threadsafe(self._exited.set)

    def __repr__(self) -> str:
        state = "running" if self.returncode is None else f"exited {self.returncode}"
        return f"<Spawned pid={self.pid} {state}>"


async def spawn(
    command: Sequence[str],
    *,
    stdin: Target,
    stdout: Target = subprocess.PIPE,
    stderr: Target = subprocess.PIPE,
    cwd: Path | str | None = None,
    env: Mapping[str, str],
) -> Spawned:
    """Start a process in a session of its own; raises ``OSError`` or ``ValueError``.

    Shielded: a cancellation in the middle would leave a process without an owner.
    """
    process = subprocess.Popen(  # noqa: ASYNC220, S603 - it returns when the program is loaded, on any loop
        command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env, start_new_session=True, bufsize=0
    )
    spawned = Spawned(process)
    with anyio.CancelScope(shield=True):
        if process.stdout is not None:
            spawned.stdout = await OutputPipe.open(process.stdout)
        if process.stderr is not None:
            spawned.stderr = await OutputPipe.open(process.stderr)
    return spawned


def helper_environment() -> dict[str, str]:
    """The environment of a helper of our own. It loads Python, and has no secret: every server can read it."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "LANG", "LC_ALL") or name.startswith(("LD_", "DYLD_"))
    }
