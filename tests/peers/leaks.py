"""Proof that nothing was left behind: tasks, processes, descriptors and threads, before and after.

Processes are found by descent and by the mark of this test run, so that an orphan which the
system has handed to another parent is found too. Linux keeps all of this under ``/proc``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

__all__ = ["RUN_MARK", "SETTLE", "Snapshot", "alive", "lasting", "no_leaks", "no_processes_left", "processes"]

RUN_MARK = f"holdfast-test-{os.getpid()}-{secrets.token_hex(4)}"
"""Stands in the command line or the environment of every peer process that this run starts."""

lasting: set[int] = set()
"""Processes that tests share, such as a browser: what descends from them belongs to no test."""

# Sockets, pipes and children are let go by the kernel and the event loop a moment after they are closed.
SETTLE = 3.0
_PAUSE = 0.01
_PROC = Path("/proc")
# Pools keep their idle threads, and asyncio waits for each child in one: none of them is a leak.
_POOLS = ("asyncio_", "AnyIO worker", "waitpid-", "ThreadPoolExecutor")


@dataclass(frozen=True)
class Snapshot:
    """What exists at one moment; each thing is described for people."""

    tasks: Mapping[Hashable, str]
    processes: Mapping[Hashable, str]
    descriptors: Mapping[Hashable, str]
    threads: Mapping[Hashable, str]

    @classmethod
    def take(cls) -> Snapshot:
        """Look around; inside a running event loop."""
        return cls(tasks=_tasks(), processes=processes(), descriptors=_descriptors(), threads=_threads())

    def grown(self, since: Snapshot, *, kinds: tuple[str, ...]) -> list[str]:
        """One line for each thing that is here now and was not then."""
        return [
            f"{kind}: {text}"
            for kind in kinds
            for key, text in getattr(self, kind).items()
            if key not in getattr(since, kind)
        ]


@asynccontextmanager
async def no_leaks(
    *, kinds: tuple[str, ...] = ("tasks", "processes", "descriptors", "threads"), settle: float | None = None
) -> AsyncIterator[None]:
    """Fail if the body left anything behind that was not there before; leaked processes are killed.

    A body that fails is not examined: its own error tells more.
    """
    before = Snapshot.take()
    yield
    deadline = time.monotonic() + (SETTLE if settle is None else settle)
    while (left := (now := Snapshot.take()).grown(before, kinds=kinds)) and time.monotonic() < deadline:  # noqa: ASYNC110 - the kernel sets no event
        await anyio.sleep(_PAUSE)
    _kill_new(before.processes, now.processes)
    assert not left, _report(left)


@contextmanager
def no_processes_left(*, settle: float | None = None) -> Iterator[None]:
    """The same for code without an event loop, and for processes alone."""
    before = processes()
    yield
    deadline = time.monotonic() + (SETTLE if settle is None else settle)
    while (new := _new(before, processes())) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    _kill_new(before, new)
    assert not new, _report([f"processes: {text}" for text in new.values()])


def processes() -> dict[Hashable, str]:
    """Every process that descends from this one or carries the run's mark, by pid and start time."""
    names = set(filter(str.isdigit, os.listdir(_PROC)))  # noqa: PTH208 - names alone are enough, and cost a tenth
    _strangers.intersection_update(names)
    stats = filter(None, (_Stat.read(int(name)) for name in names - _strangers))
    table = {stat.pid: stat for stat in stats}
    birth = table[os.getpid()].started
    ours = {
        stat.pid: stat
        for stat in table.values()
        if stat.pid != os.getpid() and stat.started >= birth  # cheap to ask, and rules out most of them
        if _descends(stat.pid, table) or stat.is_marked()
    }
    _strangers.update(str(pid) for pid in table if pid not in ours and pid != os.getpid())
    return {(stat.pid, stat.started): stat.describe() for stat in ours.values()}


def alive(pid: int) -> bool:
    """Whether a process exists and is not just waiting to be buried."""
    stat = _Stat.read(pid)
    return stat is not None and stat.state != "Z"


@dataclass(frozen=True)
class _Stat:
    """The few facts of ``/proc/PID`` that matter here."""

    pid: int
    state: str
    parent: int
    started: int

    @classmethod
    def read(cls, pid: int) -> _Stat | None:
        # Read without pathlib: the suite reads thousands of these files for every second that it takes.
        try:
            file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        except OSError:
            return None
        try:
            text = os.read(file, 1024)
        except OSError:
            return None
        finally:
            os.close(file)
        # The name is in brackets and may contain anything: the fields begin after the last bracket.
        fields = text[text.rindex(b")") + 2 :].split()
        return cls(pid=pid, state=fields[0].decode(), parent=int(fields[1]), started=int(fields[19]))

    def is_marked(self) -> bool:
        """Whether it carries the run's mark. A process that does not, and is no descendant, never will."""
        return any(RUN_MARK.encode() in self._read(name) for name in ("cmdline", "environ"))

    def describe(self) -> str:
        command = self._read("cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        return f"pid {self.pid} of parent {self.parent}, state {self.state}: {command or '(no command)'}"

    def _read(self, name: str) -> bytes:
        try:
            return (_PROC / str(self.pid) / name).read_bytes()
        except OSError:
            return b""


_strangers: set[str] = set()
"""The ids of living processes that are not ours, and never will be: every test looks twice, at hundreds of them."""


def _descends(pid: int, table: Mapping[int, _Stat]) -> bool:
    while (stat := table.get(pid)) is not None and pid not in lasting:
        pid = stat.parent
        if pid == os.getpid():
            return True
    return False


def _tasks() -> dict[Hashable, str]:
    """Tasks that are not done, but for those with which the test runner drives the test itself."""
    return {
        task: f"{task.get_name()} running {_coroutine_name(task)}"
        for task in asyncio.all_tasks()
        if not _coroutine_name(task).startswith("TestRunner.")
    }


def _coroutine_name(task: asyncio.Task[object]) -> str:
    return getattr(task.get_coro(), "__qualname__", repr(task.get_coro()))


def _descriptors() -> dict[Hashable, str]:
    found: dict[Hashable, str] = {}
    for entry in (_PROC / "self" / "fd").iterdir():
        # The descriptor that lists this folder is gone by now.
        with contextlib.suppress(FileNotFoundError):
            target = str(entry.readlink())
            found[entry.name, target] = f"{entry.name} -> {target}"
    return found


def _threads() -> dict[Hashable, str]:
    return {thread: thread.name for thread in threading.enumerate() if not thread.name.startswith(_POOLS)}


def _new(before: Mapping[Hashable, str], now: Mapping[Hashable, str]) -> dict[Hashable, str]:
    return {key: text for key, text in now.items() if key not in before}


def _kill_new(before: Mapping[Hashable, str], now: Mapping[Hashable, str]) -> None:
    """End what a test left behind, so that it harms no later one, and see that it is dead."""
    pids = [key[0] for key in _new(before, now) if isinstance(key, tuple)]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + SETTLE
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(_PAUSE)


def _report(left: list[str]) -> str:
    return "left behind:\n" + "\n".join(f"  {_addressed(line)}" for line in left)


def _addressed(line: str) -> str:
    """The line; if it is a socket's, with the addresses that the kernel knows for it."""
    if "socket:[" not in line:
        return line
    inode = line.rpartition("[")[2].rstrip("]")
    for table in ("tcp", "tcp6"):
        for row in (_PROC / "net" / table).read_text().splitlines()[1:]:
            fields = row.split()
            if fields[9] == inode:
                return f"{line} ({_place(fields[1])} to {_place(fields[2])})"
    return line


def _place(field: str) -> str:
    return f"port {int(field.partition(':')[2], 16)}"
