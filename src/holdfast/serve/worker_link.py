"""What a worker of ``serve --workers`` and its supervisor tell each other, over two pairs of sockets.

A worker begins with a ``WorkerTask`` in its environment. On the first pair each side then sends its state, whole, as a
line of JSON, whenever it changed. So each line replaces the one before, and no order of messages has to be thought of:

- **The worker sends a ``WorkerReport``**, also once a second: that the event loop turns is news for its supervisor.
- **The supervisor sends ``WorkerOrders``**: who else is there, whether all workers are ready, and what it asks for.

On the second pair the supervisor hands connections over. They have a pair of their own, so that no order waits behind
them, and so that a worker that does not take them gets no more. What was handed over before ``SUCCEED`` waits there,
and is taken before the worker closes its end: so a roll loses no connection.

The process that runs the stdio servers (number 0) has the same link. It gets the listening Unix socket in the place of
handed connections.

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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import anyio

from holdfast.errors import UsageError

__all__ = [
    "END",
    "LEAVE",
    "REPORT_SECONDS",
    "STDIO_NUMBER",
    "SUCCEED",
    "WORKER_VARIABLE",
    "HandedConnections",
    "WorkerLink",
    "WorkerOrders",
    "WorkerReport",
    "WorkerTask",
    "channel_pair",
    "known_state",
    "read_states",
    "send_state",
]

WORKER_VARIABLE = "HOLDFAST_WORKER"
"""Set by the supervisor for its workers: the task, as JSON."""
LEAVE, SUCCEED, END = "leave", "succeed", "end"
"""What a supervisor asks for: serve the calls in flight and end; the same, and open connections are served until they
close, because another worker accepts; end now."""
STDIO_NUMBER = 0
"""The number of the process that runs the stdio servers."""
REPORT_SECONDS = 1.0
"""How often a worker reports."""
ORPHAN_SECONDS = 1.0
"""How long a worker without a supervisor may take to end by itself."""


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """What a worker gets from its supervisor."""

    number: int = STDIO_NUMBER
    """The one that takes its place has the same."""
    channel: int = -1
    """The descriptor of the socket for reports and orders."""
    connections: int = -1
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
    waits: bool = False
    """Whether it connects its servers before it accepts, because others accept meanwhile. One that does not wait is
    ready when all workers are."""
    joins: bool = False
    """Whether clients join this worker: its supervisor holds the lock of their address."""

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

    def replica_of(self, pid: int) -> str:
        """The name of the replica that this worker is, in a process with this id."""
        return f"{socket.gethostname()}-worker-{self.number}-{pid}"

    @property
    def group(self) -> str:
        """Equal for all workers of this supervisor, on this machine alone."""
        return hashlib.sha256(f"{self.key} {self.supervisor}".encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """How a worker is."""

    takes: bool = False
    """Whether it takes connections: not yet when it starts, and no more when it leaves and the lame duck is over."""
    ready: bool = False
    """Whether each of its servers has an outcome."""
    held: int = 0
    """How many connections it holds."""


@dataclass(frozen=True, kw_only=True)
class WorkerOrders:
    """What a supervisor has to say."""

    asked: str = ""
    """``LEAVE``, ``SUCCEED`` or ``END``; empty while the worker is to serve."""
    members: tuple[tuple[int, str], ...] = ()
    """Number and private socket of the processes that accept and are not being replaced, the oldest first."""
    ready: bool = False
    """Whether all workers are ready."""


class HandedConnections(socket.socket):
    """The worker's end of the socket on which connections come: it accepts like a listener."""

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection and its peer. One that its client left meanwhile is passed over: others wait behind."""
        while True:
            # A descriptor that finds no place here is closed by the system, and its connection with it. So a place must
            # be free first: this raises EMFILE, as a listener does, and the connection waits.
            os.close(os.dup(self.fileno()))
            _, descriptors, _, _ = socket.recv_fds(self, 1, 1)
            if not descriptors:
                raise ConnectionAbortedError("the supervisor is gone")
            connection = socket.socket(-1, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=descriptors[0])
            connection.set_inheritable(False)
            try:
                return connection, connection.getpeername()
            except OSError:
                connection.close()


class WorkerLink:
    """The worker's end."""

    def __init__(self, task: WorkerTask) -> None:
        """Owns the sockets that the task names."""
        self.task = task
        self._channel = socket.socket(fileno=task.channel)
        self.connections = (socket.socket if task.runs_stdio else HandedConnections)(fileno=task.connections)
        for one in (self._channel, self.connections):
            one.set_inheritable(False)
        self._channel.setblocking(False)
        self._report = WorkerReport()
        self.orders = WorkerOrders()
        self.asked_to_leave = anyio.Event()
        self.asked_to_succeed = anyio.Event()
        self.asked_to_end = anyio.Event()
        self.all_ready = anyio.Event()
        self.is_orphan = False
        """Whether the supervisor is gone."""

    def __repr__(self) -> str:
        state = "orphan" if self.is_orphan else self.orders.asked or "serving"
        return f"<WorkerLink of worker {self.task.number} {state}>"

    @classmethod
    def find(cls, environ: MutableMapping[str, str]) -> WorkerLink | None:
        """The link of this process; None if it is no worker. The variable is removed: children are no workers."""
        text = environ.pop(WORKER_VARIABLE, "")
        if not text:
            return None
        try:
            return cls(known_state(WorkerTask, json.loads(text)))
        except (OSError, ValueError, TypeError) as exc:
            raise UsageError(
                f"{WORKER_VARIABLE} is set, and this is no worker ({exc})", hint=f"unset {WORKER_VARIABLE}"
            ) from exc

    def report(self, **changes: Any) -> None:
        """Tell the supervisor what changed, with the rest of the ``WorkerReport``."""
        self._report = replace(self._report, **changes)
        send_state(self._channel, self._report)

    async def follow(self, succeeded: Callable[[], Coroutine[object, object, None]], held: Callable[[], int]) -> None:
        """Report, and do what the supervisor says, until cancelled.

        ``succeeded`` serves what is open until it closes, and ends. ``held`` is the number of connections here.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._report_often, held)
            tasks.start_soon(self._obey)
            await self.asked_to_succeed.wait()
            await succeeded()

    def end_with_supervisor(self) -> None:
        """Kill this process a moment after the supervisor is gone, if it is still there."""
        channel = os.dup(self._channel.fileno())
        threading.Thread(target=_kill_orphan, args=(channel,), name="supervisor", daemon=True).start()

    async def _report_often(self, held: Callable[[], int]) -> None:
        while True:
            self.report(held=held())
            await anyio.sleep(REPORT_SECONDS)

    async def _obey(self) -> None:
        await read_states(self._channel, self._heard)
        self.is_orphan = True
        self._ask(END)

    def _heard(self, state: dict[str, Any]) -> None:
        self.orders = known_state(WorkerOrders, state)
        if self.orders.ready:
            self.all_ready.set()
        self._ask(self.orders.asked)

    def _ask(self, asked: str) -> None:
        if asked == SUCCEED:
            self.asked_to_succeed.set()
        if asked in (LEAVE, END):
            self.asked_to_leave.set()
        if asked == END:
            self.asked_to_end.set()


def _kill_orphan(channel: int) -> None:
    closed = select.poll()
    closed.register(channel, getattr(select, "POLLRDHUP", 0))  # what the other end says is read by the event loop
    closed.poll()
    time.sleep(ORPHAN_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


# The channel, at both ends.

State = TypeVar("State", WorkerTask, WorkerReport, WorkerOrders)


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends: the supervisor's, which does not block, and the worker's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


def send_state(channel: socket.socket, state: WorkerReport | WorkerOrders) -> None:
    """Send a state. One that finds no room is cut: it is sent again, by a report each second and by its answer."""
    with suppress(OSError):  # no room at all, or the process is gone
        # The first line end is that of a line before that was cut: it must not spoil this one.
        channel.send(b"\n" + json.dumps(asdict(state)).encode() + b"\n")


def known_state(kind: type[State], told: dict[str, Any]) -> State:
    """What the other end told, without fields that this program does not know: the other one may be newer."""
    return kind(**{name: value for name, value in {**told}.items() if name in kind.__dataclass_fields__})


async def read_states(channel: socket.socket, heard: Callable[[dict[str, Any]], None]) -> None:
    """Call ``heard`` with each state that comes, until the other end is closed."""
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
            # One that found no room was cut. The next line replaces it.
            with suppress(ValueError, TypeError):
                heard(json.loads(line))
