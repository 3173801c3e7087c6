"""A stdio server's process: started in its own group, read, and ended with its whole group.

What can happen, and what is done:

- It writes to stderr, without end or in one long line. ``StderrTail`` reads all of it, so that it never blocks on a
  write, passes whole lines on, and keeps the end as evidence.
- It exits while a grandchild holds its pipes. The exit is seen by the event loop itself, not by the end of a pipe.
- It does not read its stdin. A write waits for its turn; a message that was begun is written whole by the next sender,
  so no line is cut.
- It ignores a polite end, or its children leave its group. ``ProcessGroup`` ends the group and those that escaped:
  closed stdin, SIGTERM, SIGKILL, each with a bound.

What must never happen: a process of ours is left after a close; a close waits without a bound, or is cancelled in the
middle; a server sees more of our environment than its definition gives (SEC-1); a secret is cut in two before it is
masked, and passes.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import itertools
import os
import shutil
import signal
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import anyio
import anyio.to_thread

from holdfast.config import ServerSpec
from holdfast.core import BadConfig, CommandFault, CommandUnusable, Redactor, plain
from holdfast.errors import ServerFailure
from holdfast.wire.warden import CHILD_MARK, MARK, OutputPipe, Spawned, Warden, spawn

__all__ = [
    "LONGEST_LINE",
    "LONGEST_SECRET",
    "Child",
    "OnStderr",
    "ProcessGroup",
    "StderrTail",
    "adopt_orphans",
    "environment_of",
    "find_program",
    "keep_reaping",
    "reap_orphans",
]

INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""The variables that a server inherits; its definition names all others."""

POLITE_SECONDS = 2.0
"""A server that was ready gets this long to end after its stdin is closed, and again after SIGTERM."""

BRISK_SECONDS = 0.5
"""The same for one that was never ready: it has nothing to save, and the load waits for it."""

LAST_WORDS_SECONDS = 0.25
"""How long the pipes are read after an exit: a grandchild may hold them open without end."""

LAST_WORDS_LOOKS = 10
"""The parts of that time. After each the event loop turns, so what is in the pipe is read, however late the loop is."""

FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.01, 0.2
"""The first and the longest pause between two looks at an ending group: the system sends no event when it is empty."""

KILLED_SECONDS = 2.0
"""A process is gone at once after SIGKILL, unless the kernel holds it or it belongs to another user by now."""

REAP_SECONDS = 30.0
"""How often the adopted orphans that exited by themselves are collected; each close does it too."""

WRITE_BYTES = 64 * 1024

LINES_PASSED_ON = 1_000
"""How many lines of one piece of stderr are passed on: a piece may hold thousands of empty ones."""

LONGEST_LINE = 8 * 1024
"""Bytes; only the beginning of a longer line on stderr is passed on."""

OnStderr: TypeAlias = Callable[[str, bytes, Redactor], None]
"""Called for each line of a server's stderr: the server's id, the line as it came, the redactor for it."""

SHOWN_LINE = 200
"""How many characters of the last line on stderr are shown while a server starts."""

LONGEST_LAST_WORDS = 16 * 1024
"""How many characters of the end of stderr are masked and kept as evidence."""

LONGEST_SECRET = 1024
"""How much is dropped where stderr was cut inside a line: a cut secret would not be recognised."""


RECENT_SECONDS = 5.0
"""What a process wrote that shortly before its end is about its end: it may have closed files and children since."""

STDERR_PIECES = 256
"""Of how many pieces of stderr the time is kept. A process that writes more in its last seconds tells it at the end."""


class StderrTail:
    """Reads the stderr of a process to its end, passes on its lines and keeps the last part of it."""

    def __init__(
        self, pipe: OutputPipe, redactor: Redactor, keep: int, on_line: Callable[[bytes], object] | None
    ) -> None:
        self._pipe = pipe
        self._redactor = redactor
        self._keep = keep
        self._on_line = on_line or (lambda _: None)
        self._tail = bytearray()
        self._cut = False
        """Whether something was dropped before the tail."""
        self._times: deque[tuple[float, int]] = deque(maxlen=STDERR_PIECES)
        """When each of the last pieces came, and its bytes."""
        self._line = b""
        """The beginning of a line that has no end yet."""
        self._in_long_line = False
        self._ended = anyio.Event()

    async def drain(self) -> None:
        """Read it to the end. One that was cancelled can go on."""
        async for chunk in self._pipe:
            self._line = self._pass_on(self._line + chunk)
            self._tail += chunk
            self._times.append((time.monotonic(), len(chunk)))
            if (over := len(self._tail) - self._keep) > 0:
                self._cut = True
                del self._tail[:over]
        if self._line:  # not after a cancellation: it may be cut inside a secret
            self._on_line(self._line)
        self._line = b""
        self._ended.set()

    def _pass_on(self, text: bytes) -> bytes:
        """Pass on whole lines; returns the unfinished rest."""
        # Lines go on as they came: the reader masks them, because only a whole line shows a whole secret.
        *lines, rest = text.split(b"\n")
        if len(lines) > LINES_PASSED_ON:
            lines = lines[-LINES_PASSED_ON:]  # a flood: the last ones tell most
        for line in lines:
            if line.strip() and not self._in_long_line:
                self._on_line(line[:LONGEST_LINE])
            self._in_long_line = False
        if len(rest) > LONGEST_LINE and not self._in_long_line:
            self._on_line(rest[:LONGEST_LINE])
            self._in_long_line = True
        return b"" if self._in_long_line else rest

    @property
    def last_line(self) -> str:
        """The last line so far, masked and without control characters; empty if there is none."""
        lines = self._tail.decode("utf-8", "replace").splitlines()[-2:]
        if self._cut:
            lines = lines[1:]  # the first may be cut inside a secret
        line = next((line for line in reversed(lines) if line.strip()), "")
        return plain(self._redactor.mask(line)).strip()[:SHOWN_LINE]

    async def last_words(self) -> tuple[str, str]:
        """The end of it, and what of that came in the last seconds; masked. It waits a moment for the rest."""
        since = time.monotonic() - RECENT_SECONDS
        await self.read_to_end()
        recent = sum(size for at, size in self._times if at >= since)
        whole = self._masked(bytes(self._tail), cut=self._cut)
        if recent >= len(self._tail):
            return whole, whole
        before = self._tail[: len(self._tail) - recent]
        # A piece may begin inside a line: half of a secret would not be recognised.
        return whole, self._masked(bytes(self._tail[len(before) :]), cut=not before.endswith(b"\n"))

    def _masked(self, raw: bytes, *, cut: bool) -> str:
        text = raw.decode("utf-8", "replace")
        if cut:
            text = text.partition("\n")[2] or text[LONGEST_SECRET:]
        if len(text) > LONGEST_LAST_WORDS:  # a long text is cut before it is masked, and the end tells most
            text = text[-LONGEST_LAST_WORDS:].partition("\n")[2] or text[LONGEST_SECRET - LONGEST_LAST_WORDS :]
        return self._redactor.mask(text).strip()

    @property
    def ended(self) -> bool:
        """Whether it was read to the end."""
        return self._ended.is_set()

    async def read_to_end(self) -> None:
        """Wait a moment until it is read to the end: a grandchild may hold it open without one."""
        for _ in range(LAST_WORDS_LOOKS):
            with anyio.move_on_after(LAST_WORDS_SECONDS / LAST_WORDS_LOOKS):
                await self._ended.wait()
                return

    def __repr__(self) -> str:
        return f"<StderrTail {len(self._tail)} bytes{' and more' if self._cut else ''}{' ended' if self.ended else ''}>"


class ProcessGroup:
    """The group of a process, and its descendants that left it: signals, and whether one of them lives."""

    def __init__(self, number: int, mark: bytes, warden: Warden) -> None:
        self.number = number
        self._mark = mark
        """The variable in the environment of each descendant."""
        self._warden = warden

    def tell(self, number: int) -> bool:
        """Signal the group; False if nothing of it is left."""
        try:
            # A refusal counts as gone: macOS refuses for a group of zombies, and what belongs to another user by now
            # is out of reach.
            os.killpg(self.number, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    async def gone_within(self, seconds: float) -> bool:
        """Wait until no process of the group lives; False if that takes longer."""
        pause = FIRST_LOOK_SECONDS
        with anyio.move_on_after(seconds):
            # Zombies take signals too. Their parent may never collect them, and a close must not wait for that.
            while self.tell(0) and _has_living(self.number):
                await anyio.sleep(pause)
                pause = min(2 * pause, LAST_LOOK_SECONDS)
            return True
        return False

    async def end_escaped(self, polite: float) -> None:
        """End the descendants that left the group: SIGTERM, then SIGKILL. Bounded."""
        if not _HAS_PROC:
            return
        began, pause = anyio.current_time(), FIRST_LOOK_SECONDS
        while left := await anyio.to_thread.run_sync(self._escaped):
            waited = anyio.current_time() - began
            if waited > polite + KILLED_SECONDS:
                return
            for process in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGTERM if waited < polite else signal.SIGKILL)
            await anyio.sleep(pause)
            pause = min(2 * pause, LAST_LOOK_SECONDS)

    def _escaped(self) -> list[_Process]:
        """Living descendants outside the group: by their mark, or as adopted orphans that can be no other child's."""
        # An orphan that cleared its environment has no mark. It is this child's only if the hub has no other child.
        found, alone = [], self._warden.groups == {self.number}
        for process in _WALK.processes():
            if process.group != self.number and process.pid != os.getpid():
                marks = _marks_of(process.pid)
                if self._mark in marks or (alone and _is_adopted(process, marks, self._warden)):
                    found.append(process)
        return found

    def __repr__(self) -> str:
        return f"<ProcessGroup {self.number}>"


class Child:
    """One process and its group. The caller of ``start`` closes it."""

    def __init__(
        self, process: Spawned, stdin: int, stdout: OutputPipe, stderr: StderrTail, group: ProcessGroup, warden: Warden
    ) -> None:
        self.process = process
        """Its end is seen here, also while another process holds its pipes."""
        self._stdin: int | None = stdin
        self._group = group
        self._warden = warden
        self.stdout = stdout
        self.stderr = stderr
        self._unsent = bytearray()
        """The rest of a message whose sender was cancelled."""
        self.written = 0
        """How many bytes were written to its stdin."""
        self._turn = asyncio.Lock()  # unlike anyio's, it lets no other task run where nothing waits

    @classmethod
    async def start(
        cls,
        spec: ServerSpec,
        *,
        warden: Warden,
        redactor: Redactor,
        keep: int,
        on_line: Callable[[bytes], object] | None = None,
    ) -> Child:
        """Start the server's command; raises ``ServerFailure`` with the reason if that fails.

        ``on_line`` is called for each line of its stderr, as it came; ``keep`` bytes of the end are kept.
        """
        # Two marks: one for the warden, which ends all of them, and one that tells the children of one hub apart.
        mark = f"{warden.name}-{next(_NUMBERS)}"
        environment = {**environment_of(spec), MARK: warden.name, CHILD_MARK: mark}
        program = find_program(spec, environment)
        # Before the process: a hub that is killed between the two would leave a child that no warden knows.
        await warden.ready()
        try:
            process, stdin = await spawn([program, *spec.args], cwd=spec.cwd, env=environment)
        except (OSError, ValueError) as exc:
            raise ServerFailure(_unusable(spec, exc)) from exc
        # At once, before anything can be cancelled: if the hub is killed now, the warden knows the group.
        warden.watch(process.pid)
        stdout, errors = process.pipes
        stderr = StderrTail(errors, redactor, keep, on_line)
        group = ProcessGroup(process.pid, f"{CHILD_MARK}={mark}".encode(), warden)
        return cls(process, stdin, stdout, stderr, group, warden)

    @property
    def group(self) -> int:
        """The number of its process group, which is its own process id."""
        return self._group.number

    async def send(self, data: bytes) -> None:
        """Write to its stdin. The next sender writes the rest of a cancelled one first, so no line is cut."""
        async with self._turn:
            await self._send_rest()  # one that waits for its turn and is cancelled has written nothing
            self._unsent += data
            await self._send_rest()

    async def _send_rest(self) -> None:
        while self._unsent:
            if self._stdin is None:
                raise BrokenPipeError(errno.EPIPE, "its stdin is closed")
            try:
                # What is written is removed in the same step. A cancellation comes in the wait alone: the next sender
                # goes on at the right byte.
                wrote = os.write(self._stdin, self._unsent[:WRITE_BYTES])
            except BlockingIOError:
                await anyio.wait_writable(self._stdin)
                continue
            self.written += wrote
            del self._unsent[:wrote]

    def has_read(self) -> bool | None:
        """Whether it has read everything that we wrote; None where the system does not tell."""
        if self._stdin is None or self._unsent:
            return False
        read = self.bytes_read()
        return read == self.written if read is not None else None

    def bytes_read(self) -> int | None:
        """How much of what we wrote it has read; None where the system does not tell."""
        if self._stdin is None:
            return None
        try:
            unread = fcntl.ioctl(self._stdin, termios.FIONREAD, bytes(4))
        except OSError:  # not every system reports this for the writing end of a pipe
            return None
        return self.written - int(struct.unpack("i", unread)[0])

    async def stdin_closed(self) -> None:
        """Wait until no process can read its stdin any more. A pipe has nothing else to tell its writer."""
        if self._stdin is not None:
            with suppress(anyio.ClosedResourceError):
                await anyio.wait_readable(self._stdin)

    async def close(self, *, politely: bool) -> None:
        """End the whole group and what left it: close its stdin, then SIGTERM, then SIGKILL. Shielded and bounded."""
        timeout = POLITE_SECONDS if politely else BRISK_SECONDS
        with anyio.CancelScope(shield=True):
            # The order that the protocol describes for stdio: the end of stdin, SIGTERM, SIGKILL.
            self._close_stdin()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_discard, self.stdout)  # one that blocks on a write cannot exit
                if not self.stderr.ended:
                    tasks.start_soon(self.stderr.drain)
                # One that was never ready has no state to save: its group is told at once.
                if politely:
                    with anyio.move_on_after(timeout):
                        await self.process.wait()
                if self._group.tell(signal.SIGTERM) and not await self._group.gone_within(timeout):
                    self._group.tell(signal.SIGKILL)
                    await self._group.gone_within(KILLED_SECONDS)
                await self._group.end_escaped(timeout)
                await self.stderr.read_to_end()
                tasks.cancel_scope.cancel()
            # After the group is gone: a server that still writes would die of SIGPIPE, before it has saved anything.
            await self._let_go()
            self._warden.release(self.group)
            if _ADOPTS:
                await anyio.to_thread.run_sync(reap_orphans, self._warden)

    async def _let_go(self) -> None:
        """Close our ends of its pipes; do not wait for a process that survived SIGKILL."""
        with anyio.move_on_after(KILLED_SECONDS):
            await self.process.wait()
        if self.process.returncode is not None:
            await self.process.aclose()

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            anyio.notify_closing(self._stdin)
            os.close(self._stdin)
            self._stdin = None

    def __repr__(self) -> str:
        state = "running" if self.process.returncode is None else f"exited {self.process.returncode}"
        return f"<Child group={self.group} {state}>"


async def _discard(pipe: OutputPipe) -> None:
    """Read to the end."""
    async for _ in pipe:
        pass


def adopt_orphans() -> bool:
    """Become the parent of orphaned descendants (Linux), for a process that is a hub and nothing else.

    A daemon that left its process group and cleared its environment is then found, and ends with its connection.
    Returns whether the system can do that. A program that embeds a hub does not call this: it may have children of
    its own.
    """
    global _ADOPTS  # noqa: PLW0603 - a property of the process, as the system keeps it
    try:
        done = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    except (OSError, AttributeError):
        done = False
    _ADOPTS = done and _HAS_PROC
    return _ADOPTS


async def keep_reaping(warden: Warden) -> None:
    """Collect adopted orphans from time to time, until cancelled; nothing to do in a process that adopts none."""
    while _ADOPTS:
        await anyio.sleep(REAP_SECONDS)
        await anyio.to_thread.run_sync(reap_orphans, warden)


def reap_orphans(warden: Warden) -> None:
    """Collect the adopted orphans that have exited: a dead process stays until its parent asks for its end."""
    if _ADOPTS:
        for process in _WALK.processes(dead=True):
            if process.state == "Z" and _is_adopted(process, frozenset(), warden):
                with suppress(OSError):
                    os.waitpid(process.pid, os.WNOHANG)


_HAS_PROC = Path("/proc/self").is_dir()
_PR_SET_CHILD_SUBREAPER = 36
_ADOPTS = False
_NUMBERS = itertools.count(1)


class _Process(NamedTuple):
    """A process, as the system lists it."""

    pid: int
    state: str
    parent: int
    group: int
    session: int


class _Walk:
    """One walk through the list of processes at a time; a walk serves all that asked before it began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = -1.0
        self._found: list[_Process] = []

    def processes(self, *, dead: bool = False) -> list[_Process]:
        """Every process that lives; with ``dead``, also those whose parent has not asked for their end."""
        # A walk that began before this question may have missed a process that was there when it was asked.
        asked = time.monotonic()
        with self._lock:
            if self._began < asked:
                self._began = time.monotonic()
                self._found = [*_listed()]
            return [process for process in self._found if dead or process.state not in "ZX"]


_WALK = _Walk()


def _listed() -> Iterator[_Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError):  # it exited while we looked
                # The name of a program may hold blanks and parentheses: the fields begin after the last one.
                state, *numbers = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                yield _Process(int(entry.name), state, *map(int, numbers))


def _marks_of(pid: int) -> frozenset[bytes]:
    """The variables in a process's environment; none, where it is another user's."""
    try:
        return frozenset(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return frozenset()


def _is_adopted(process: _Process, marks: frozenset[bytes], warden: Warden) -> bool:
    """Whether a process is an orphan of our children: ours by adoption, in a session of its own, with no other mark.

    Our own children without a mark share our session, except the warden and the children that it knows.
    """
    if not _ADOPTS or process.parent != os.getpid() or process.session == os.getsid(0):
        return False
    known = process.pid == warden.pid or process.pid in warden.groups
    return not known and not any(mark.startswith(f"{CHILD_MARK}=".encode()) for mark in marks)


def _has_living(group: int) -> bool:
    """Whether a group has a living process. A container's first process often leaves zombies."""
    return not _HAS_PROC or any(process.group == group for process in _WALK.processes())


def environment_of(spec: ServerSpec) -> Mapping[str, str]:
    """A server's environment: the inherited minimum and the variables of its definition."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    safe = {name: value for name, value in inherited.items() if not value.startswith("()")}  # exported functions
    return {**safe, **spec.env}


def find_program(spec: ServerSpec, environment: Mapping[str, str]) -> str:
    """The path of the program that the command names; raises ``ServerFailure`` if there is none."""
    command = spec.command
    if spec.cwd is not None and not spec.cwd.is_dir():
        raise ServerFailure(CommandUnusable(command=command, fault=CommandFault.BAD_DIRECTORY))
    # A relative path is meant from ``cwd``, as a shell there would take it; ``exec`` would take it from ours.
    base = (spec.cwd or Path()) / Path(command).expanduser()
    where = str(base) if os.sep in command else command
    found = shutil.which(where, path=environment.get("PATH", os.defpath))
    if found is not None:
        return str(Path(found).absolute())
    fault = CommandFault.NOT_FOUND
    if os.sep in command and base.exists():
        fault = CommandFault.IS_FOLDER if base.is_dir() else CommandFault.NOT_EXECUTABLE
    raise ServerFailure(CommandUnusable(command=command, fault=fault))


_FAULT = {
    errno.ENOENT: CommandFault.NOT_FOUND,
    errno.EACCES: CommandFault.NOT_EXECUTABLE,
    errno.EPERM: CommandFault.NOT_EXECUTABLE,
    errno.ENOEXEC: CommandFault.BAD_FORMAT,
}


def _unusable(spec: ServerSpec, exc: OSError | ValueError) -> CommandUnusable | BadConfig:
    if isinstance(exc, ValueError):
        problem = "its command, arguments or environment contain a character that the system does not accept"
        return BadConfig(problems=(problem,), hint="look for a NUL character in `args` and `env`")
    fault = _FAULT.get(exc.errno or 0, CommandFault.OTHER)
    detail = os.strerror(exc.errno) if fault is CommandFault.OTHER and exc.errno else ""
    return CommandUnusable(command=spec.command, fault=fault, detail=detail)
