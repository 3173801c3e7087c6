"""Starts processes that inherit nothing but their pipes (SEC-21), and leaves no orphans.

The warden is one small process that lives just long enough after us to end our children.

The hub tells the warden over a pipe which process groups are its own. The pipe ends when the hub closes it or is
killed. Then the warden ends every group that is left. On Linux it also ends processes that carry the hub's mark in
their environment: a child that was started as the hub died, and daemons that left their group. A daemon that also
cleared its environment escapes. On other systems every daemon that leaves its group escapes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio

__all__ = ["CHILD_MARK", "MARK", "OutputPipe", "Spawned", "Warden", "spawn"]

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
        # Random: another hub of this machine must not take our children for its own.
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
        # A hub without a stdio server has no warden, and needs none.
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
        self._process, self._pipe = await spawn(
            [sys.executable, "-I", "-S", str(PROGRAM), MARK, self.name],
            output=subprocess.DEVNULL,
            cwd="/",
            env=helper_environment(),  # without a mark: the warden of a hub around us must not end ours first
        )
        self._begun.set()
        # A new warden knows nothing of the children that the old one watched.
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


# Starting a process. uvloop starts processes without closing descriptors: a child of it has every inheritable
# descriptor that the hub got from its own launcher, and a second copy of its own pipes, so that closing stdout is not
# seen. So the standard library starts the process here, and the event loop reads the pipes and waits for the end.

BUFFERED_BYTES: Final = 64 * 1024
"""How much of a pipe is read ahead; the loop stops reading at twice as much."""


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
        # A transport that is closed tells its protocol at the next turn; a reader that waits now would miss it.
        self._reader.feed_eof()
        self._transport.close()


class Spawned:
    """A running process. Its end is noticed by the event loop, also while another process holds its pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._exited = asyncio.Event()
        self.pipes: list[OutputPipe] = []
        """Its stdout and its stderr, if they are read."""
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
        return self._process.returncode or 0

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        self._process.kill()

    async def aclose(self) -> None:
        """Stop reading its pipes, and wait for its end."""
        for pipe in self.pipes:
            pipe.close()
        await self.wait()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """A descriptor becomes readable when it exits (Linux); elsewhere a thread waits for it."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            threading.Thread(target=self._wait_in_thread, args=(loop,), name=f"waitpid-{self.pid}", daemon=True).start()
        else:
            loop.add_reader(pidfd, self._readable, loop, pidfd)

    def _readable(self, loop: asyncio.AbstractEventLoop, pidfd: int) -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
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
    output: int = subprocess.PIPE,
    cwd: Path | str | None = None,
    env: Mapping[str, str],
) -> tuple[Spawned, int]:
    """Start a process in a session of its own; raises ``OSError`` or ``ValueError``.

    With it comes our end of its stdin, which never blocks: the caller closes it. ``output`` is what stdout and stderr
    are. Shielded: a cancellation in the middle would leave a process without an owner.
    """
    # A pipe of our own: neither end is inherited by another child, so closing ours is seen as the end of stdin.
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    try:
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - it returns when the program is loaded, on any loop
            command, stdin=theirs, stdout=output, stderr=output, cwd=cwd, env=env, start_new_session=True, bufsize=0
        )
        spawned = Spawned(process)
        with anyio.CancelScope(shield=True):
            spawned.pipes += [await OutputPipe.open(pipe) for pipe in (process.stdout, process.stderr) if pipe]
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return spawned, ours


def helper_environment() -> dict[str, str]:
    """The environment of a helper of our own. It loads Python, and has no secret: every server can read it."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "LANG", "LC_ALL") or name.startswith(("LD_", "DYLD_"))
    }
