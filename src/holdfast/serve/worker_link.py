"""What a worker of ``serve --workers`` and its supervisor tell each other, over a pair of sockets.

The supervisor sends one JSON object with what the worker needs; then single words: ``leave`` (serve the calls in
flight, and end), ``succeed`` (a new worker accepts: the same, and open connections are served until they close) and
``end`` (now). ``all`` comes before the first two if every worker of the supervisor leaves. The worker answers
``listening``, and then ``alive`` once a second, because its event loop turns. ``members`` says which
workers accept and stay. Workers that start together say ``ready`` when their servers have an outcome, and hear it when
all of them said it. Workers that leave together say ``idle`` when
they serve no client any more, and hear it too: until then their servers run for all.

The socket closes when the supervisor is gone, however it went. Then the worker ends at once, without waiting for its
calls: what starts in its place needs the port. A thread sees to it, because the event loop may hang: after a moment it
kills the worker, and the worker's warden ends its servers.
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

import anyio

from holdfast.errors import UsageError

__all__ = [
    "ALIVE",
    "ALL",
    "END",
    "IDLE",
    "LEAVE",
    "LISTENING",
    "MEMBERS",
    "READY",
    "REPORT_SECONDS",
    "SUCCEED",
    "WORKER_VARIABLE",
    "WorkerLink",
    "WorkerTask",
    "channel_pair",
    "read_words",
    "tell",
]

WORKER_VARIABLE = "HOLDFAST_WORKER"
"""Set by the supervisor for its workers: the descriptor of the socket to it."""

LEAVE, SUCCEED, END, LISTENING, ALIVE, READY = "leave", "succeed", "end", "listening", "alive", "ready"
ALL, IDLE = "all", "idle"
MEMBERS = "members "
"""Before the list of workers, as JSON."""
REPORT_SECONDS = 1.0
"""How often a worker says that it is alive."""
LONGEST_TASK = 64 * 1024
ORPHAN_SECONDS = 1.0
"""How long a worker without a supervisor may take to end by itself."""


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """What a worker gets from its supervisor."""

    number: int
    listener: int
    """The descriptor of the listening socket."""
    supervisor: int
    """The process id of the supervisor."""
    folder: str
    """A private folder of the supervisor: the broker's socket and those of the workers."""
    address: str
    """The path of the Unix socket on which this worker listens for the others."""
    token: str = field(repr=False)
    """The token of the control API, the same for all."""
    key: str = field(default="", repr=False)
    """Signs what only the workers of this supervisor accept: sign-ins of pages, and sessions if no key can be kept."""
    started: float = 0.0
    """When the supervisor began."""
    socket: str = ""
    """The path of the private Unix socket at which the other workers reach the web server of this one."""
    place: int = 0
    """Its place in the file that says how many connections each worker holds."""
    demo: str = ""
    """The folder of the demo servers, which the supervisor runs; empty for the servers of a configuration."""
    waits: bool = False
    """Whether it connects its servers before it accepts: others accept meanwhile."""
    together: bool = False
    """Whether it starts with others, and is ready when all of them are: its supervisor tells it."""

    @property
    def broker(self) -> Path:
        """The socket of the broker."""
        return Path(self.folder) / "broker.sock"

    @property
    def group(self) -> str:
        """Equal for all workers of this supervisor, on this machine alone."""
        return hashlib.sha256(f"{self.key} {self.supervisor}".encode()).hexdigest()[:16]

    @property
    def codes(self) -> Path:
        """The folder with a file for each sign-in code that was used."""
        return Path(self.folder) / "codes"

    @property
    def shares(self) -> Path:
        """The file that says how many connections each worker holds."""
        return Path(self.folder) / "connections"

    def sent(self) -> bytes:
        """As the worker reads it."""
        return json.dumps(asdict(self)).encode() + b"\n"


class WorkerLink:
    """The worker's end."""

    def __init__(self, task: WorkerTask, channel: socket.socket, listener: socket.socket) -> None:
        self.task = task
        self.listener = listener
        self._channel = channel
        self._is_listening = anyio.Event()
        self.asked_to_leave = anyio.Event()
        self.asked_to_end = anyio.Event()
        self.all_ready = anyio.Event()
        self.all_leave = anyio.Event()
        """Set when every worker of the supervisor leaves."""
        self.all_idle = anyio.Event()
        self.members: tuple[tuple[int, str], ...] = ()
        """Number and private socket of the workers that accept and stay, the oldest first."""
        self.is_orphan = False
        """Whether the supervisor is gone."""

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
            listener = socket.socket(fileno=task.listener)
            listener.set_inheritable(False)
        except (OSError, ValueError, TypeError) as exc:
            raise UsageError(
                f"{WORKER_VARIABLE} is set, and this is no worker ({exc})", hint=f"unset {WORKER_VARIABLE}"
            ) from exc
        channel.setblocking(False)
        return cls(task, channel, listener)

    def close(self) -> None:
        """Close both sockets."""
        self._channel.close()
        self.listener.close()

    def listening(self) -> None:
        """Tell the supervisor that this worker accepts connections."""
        tell(self._channel, LISTENING)
        self._is_listening.set()

    async def follow(self, succeeded: Callable[[], Coroutine[object, object, None]]) -> None:
        """Do what the supervisor says, until cancelled; ``succeeded`` serves what is open until it closes, and ends."""
        flags = {READY: self.all_ready, ALL: self.all_leave, IDLE: self.all_idle}
        async with anyio.create_task_group() as tasks:

            def heard(word: str) -> None:
                if word.startswith(MEMBERS):
                    self.members = tuple((number, path) for number, path in json.loads(word[len(MEMBERS) :]))
                elif word == SUCCEED:
                    tasks.start_soon(succeeded)
                elif word in flags:
                    flags[word].set()
                elif word in (LEAVE, END):
                    self.asked_to_leave.set()
                    if word == END:
                        self.asked_to_end.set()

            tasks.start_soon(self._report)
            await read_words(self._channel, heard)
            self.is_orphan = True
            self.all_leave.set()
            self.asked_to_leave.set()
            self.asked_to_end.set()
            await anyio.sleep_forever()

    def end_with_supervisor(self) -> None:
        """Kill this process a moment after the supervisor is gone, if it is still there."""
        channel = os.dup(self._channel.fileno())
        threading.Thread(target=_kill_orphan, args=(channel,), name="supervisor", daemon=True).start()

    def ready(self) -> None:
        """Every server of this worker has an outcome."""
        tell(self._channel, READY)

    def idle(self) -> None:
        """No client is served here any more, and all workers leave."""
        tell(self._channel, IDLE)

    async def _report(self) -> None:
        """Say that the event loop turns, from when it accepts connections."""
        await self._is_listening.wait()
        while True:
            tell(self._channel, ALIVE)
            await anyio.sleep(REPORT_SECONDS)


def _kill_orphan(channel: int) -> None:
    closed = select.poll()
    closed.register(channel, getattr(select, "POLLRDHUP", 0))  # what the other end says is read by the event loop
    closed.poll()
    time.sleep(ORPHAN_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


async def read_words(channel: socket.socket, heard: Callable[[str], None]) -> None:
    """Call ``heard`` with each word that comes, until the other end is closed."""
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
            heard(line.decode("ascii", "replace"))


def tell(channel: socket.socket, word: str) -> None:
    """Send a word; a process that is gone hears nothing."""
    with suppress(OSError):
        channel.send(word.encode() + b"\n")


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends: the supervisor's, which does not block, and the worker's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs
