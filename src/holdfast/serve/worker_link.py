"""What a worker of ``serve --workers`` and its supervisor tell each other, over two pairs of sockets.

On the first pair the supervisor sends one JSON object with what the worker needs, then lines: ``leave`` (serve the
calls in flight, and end), ``succeed`` (a new worker accepts: the same, and open connections are served until they
close), ``end`` (now), ``ready`` (all workers that started together are ready) and ``members`` with the workers that
accept and stay. The worker answers ``listening``, then ``alive`` once a second with the number of its connections,
because its event loop turns; ``ready`` when its servers have an outcome, and ``closed`` when it takes no more
connections.

On the second pair the supervisor hands connections over. What it handed over before it said ``succeed`` waits there,
and is taken before the worker closes its end: so a roll loses no connection.

The process that runs the stdio servers (number 0) has the same link. It gets the listening Unix socket in the place of
handed connections, hears ``reload`` when the file is to be read again, and does not follow signals: the workers may
still use its servers after them. A worker whose file has stdio servers says ``stdio``, so that this process is started.

The first pair closes when the supervisor is gone, however it went. Then the worker ends at once, without waiting for
its calls: what starts in its place needs the port. A thread sees to it, because the event loop may hang: after a moment
it kills the worker, and the worker's warden ends its servers.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio

from holdfast.errors import UsageError

__all__ = [
    "ALIVE",
    "CLOSED",
    "END",
    "LEAVE",
    "LISTENING",
    "MEMBERS",
    "READY",
    "RELOAD",
    "REPORT_SECONDS",
    "STDIO",
    "STDIO_NUMBER",
    "SUCCEED",
    "WORKER_VARIABLE",
    "HandedConnections",
    "WorkerLink",
    "WorkerTask",
    "channel_pair",
    "read_lines",
    "tell",
]

WORKER_VARIABLE = "HOLDFAST_WORKER"
"""Set by the supervisor for its workers: the descriptor of the socket to it."""

LEAVE, SUCCEED, END, READY, MEMBERS, RELOAD = "leave", "succeed", "end", "ready", "members", "reload"
LISTENING, ALIVE, CLOSED, STDIO = "listening", "alive", "closed", "stdio"
STDIO_NUMBER = 0
"""The number of the process that runs the stdio servers."""
REPORT_SECONDS = 1.0
"""How often a worker says that it is alive."""
LONGEST_TASK = 64 * 1024
ORPHAN_SECONDS = 1.0
"""How long a worker without a supervisor may take to end by itself."""


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """What a worker gets from its supervisor."""

    number: int
    connections: int
    """The descriptor of the socket on which connections are handed over, or, of the stdio process, accepted."""
    host: str
    port: int
    """Where the supervisor listens."""
    supervisor: int
    """The process id of the supervisor."""
    folder: str
    """A private folder of the supervisor: the sockets of the store and of the workers."""
    start: int = 0
    """How many workers were started before: no two have the same sockets."""
    token: str = field(repr=False)
    """The token of the control API, the same for all."""
    key: str = field(default="", repr=False)
    """Signs what only the workers of this supervisor accept: sign-ins of pages, and sessions if no key can be kept."""
    started: float = 0.0
    """When the supervisor began."""
    demo: str = ""
    """The folder of the demo servers, which the supervisor runs; empty for the servers of a configuration."""
    waits: bool = False
    """Whether it connects its servers before it accepts: others accept meanwhile."""
    joins: bool = False
    """Whether clients join this worker: its supervisor holds the lock of their address."""
    together: bool = False
    """Whether it starts with others, and is ready when all of them are: its supervisor tells it."""

    @property
    def broker(self) -> Path:
        """The socket of the store that the workers share."""
        return Path(self.folder) / "broker.sock"

    @property
    def address(self) -> str:
        """The path of the Unix socket on which this worker listens for bound requests of the others."""
        return str(Path(self.folder) / f"{self.number}.{self.start}.sock")

    @property
    def socket(self) -> str:
        """The path of the private Unix socket at which the other workers reach the web server of this one."""
        return str(Path(self.folder) / f"{self.number}.{self.start}.web.sock")

    @property
    def stdio(self) -> Path:
        """The Unix socket at which workers reach the stdio servers. The supervisor keeps it open: calls wait there."""
        return Path(self.folder) / "stdio.sock"

    @property
    def runs_stdio(self) -> bool:
        """Whether this is the process that runs the stdio servers."""
        return self.number == STDIO_NUMBER

    @property
    def codes(self) -> Path:
        """The folder with a file for each sign-in code that was used."""
        return Path(self.folder) / "codes"

    @property
    def group(self) -> str:
        """Equal for all workers of this supervisor, on this machine alone."""
        return hashlib.sha256(f"{self.key} {self.supervisor}".encode()).hexdigest()[:16]

    def sent(self) -> bytes:
        """As the worker reads it."""
        return json.dumps(asdict(self)).encode() + b"\n"


class HandedConnections(socket.socket):
    """The worker's end of the socket on which connections come: it accepts like a listener."""

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection and its peer. One that its client left meanwhile is none."""
        _, descriptors, _, _ = socket.recv_fds(self, 1, 1)
        if not descriptors:
            raise ConnectionAbortedError("the supervisor is gone")
        connection = socket.socket(-1, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=descriptors[0])
        connection.set_inheritable(False)
        try:
            return connection, connection.getpeername()
        except OSError as exc:
            connection.close()
            raise ConnectionAbortedError from exc


class WorkerLink:
    """The worker's end."""

    def __init__(self, task: WorkerTask, channel: socket.socket, connections: socket.socket) -> None:
        self.task = task
        self.connections = connections
        self._channel = channel
        self._is_listening = anyio.Event()
        self.asked_to_leave = anyio.Event()
        self.asked_to_end = anyio.Event()
        self.all_ready = anyio.Event()
        self.reload_wanted = anyio.Event()
        self.members: tuple[tuple[int, str], ...] = ()
        """Number and private socket of the workers that accept and stay, the oldest first."""
        self.stdio_socket = ""
        """The private socket of the process that runs the stdio servers; empty if there is none."""
        self.is_orphan = False
        """Whether the supervisor is gone."""

    def __repr__(self) -> str:
        state = "orphan" if self.is_orphan else "leaving" if self.asked_to_leave.is_set() else "serving"
        return f"<WorkerLink of worker {self.task.number} {state}>"

    @classmethod
    def find(cls, environ: MutableMapping[str, str]) -> WorkerLink | None:
        """The link of this process; None if it is no worker. The variable is removed: children are no workers."""
        text = environ.pop(WORKER_VARIABLE, "")
        if not text:
            return None
        try:
            channel = socket.socket(fileno=int(text))
            channel.set_inheritable(False)
            channel.settimeout(10)
            said = b""
            while not said.endswith(b"\n") and len(said) < LONGEST_TASK:
                if not (part := channel.recv(1)):  # by the byte: what follows is read later
                    raise ValueError("the supervisor is gone")
                said += part
            task = WorkerTask(**json.loads(said))
            made = socket.socket if task.runs_stdio else HandedConnections
            connections = made(fileno=task.connections)
            connections.set_inheritable(False)
        except (OSError, ValueError, TypeError) as exc:
            raise UsageError(
                f"{WORKER_VARIABLE} is set, and this is no worker ({exc})", hint=f"unset {WORKER_VARIABLE}"
            ) from exc
        channel.setblocking(False)
        return cls(task, channel, connections)

    def close(self) -> None:
        """Close both sockets."""
        self._channel.close()
        self.connections.close()

    def listening(self) -> None:
        """Tell the supervisor that this worker takes connections."""
        tell(self._channel, LISTENING)
        self._is_listening.set()

    def ready(self) -> None:
        """Every server of this worker has an outcome."""
        tell(self._channel, READY)

    def wants_stdio(self) -> None:
        """The file has stdio servers: a process must run them."""
        tell(self._channel, STDIO)

    def closed(self) -> None:
        """This worker takes no more connections."""
        tell(self._channel, CLOSED)

    async def follow(self, succeeded: Callable[[], Coroutine[object, object, None]], held: Callable[[], int]) -> None:
        """Do what the supervisor says, until cancelled.

        ``succeeded`` serves what is open until it closes, and ends. ``held`` is the number of connections here.
        """
        async with anyio.create_task_group() as tasks:

            def heard(word: str, rest: str) -> None:
                if word == SUCCEED:
                    tasks.start_soon(succeeded)
                elif word == READY:
                    self.all_ready.set()
                elif word == MEMBERS:
                    workers, self.stdio_socket = json.loads(rest)
                    self.members = tuple((number, path) for number, path in workers)
                elif word == RELOAD:
                    self.reload_wanted.set()
                elif word in (LEAVE, END):
                    self.asked_to_leave.set()
                    if word == END:
                        self.asked_to_end.set()

            tasks.start_soon(self._report, held)
            await read_lines(self._channel, heard)
            self.is_orphan = True
            self.asked_to_leave.set()
            self.asked_to_end.set()
            await anyio.sleep_forever()

    def end_with_supervisor(self) -> None:
        """Kill this process a moment after the supervisor is gone, if it is still there."""
        channel = os.dup(self._channel.fileno())
        threading.Thread(target=_kill_orphan, args=(channel,), name="supervisor", daemon=True).start()

    async def _report(self, held: Callable[[], int]) -> None:
        """Say that the event loop turns, from when it takes connections."""
        await self._is_listening.wait()
        while True:
            tell(self._channel, f"{ALIVE} {held()}")
            await anyio.sleep(REPORT_SECONDS)


def _kill_orphan(channel: int) -> None:
    closed = select.poll()
    closed.register(channel, getattr(select, "POLLRDHUP", 0))  # what the other end says is read by the event loop
    closed.poll()
    time.sleep(ORPHAN_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


async def read_lines(channel: socket.socket, heard: Callable[[str, str], None]) -> None:
    """Call ``heard`` with the word and the rest of each line that comes, until the other end is closed."""
    rest = b""
    while True:
        await anyio.wait_readable(channel)
        try:
            part = channel.recv(4096)
        except BlockingIOError:
            continue
        except OSError:
            return
        if not part:
            return
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            word, _, more = line.decode("utf-8", "replace").partition(" ")
            heard(word, more)


def tell(channel: socket.socket, line: str) -> None:
    """Send a line; a process that is gone hears nothing."""
    with suppress(OSError):
        channel.send(line.encode() + b"\n")


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends: the supervisor's, which does not block, and the worker's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs
