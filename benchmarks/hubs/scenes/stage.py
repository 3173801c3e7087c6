"""What a scene plays on: servers that obey a file, the hub before them, clients, and the counts of all calls.

Everything that a scene starts carries its mark and is ended with the stage, also after an error.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp

from benchmarks.hubs import server as server_program
from benchmarks.hubs.adapter import MARK, Adapter, Behind, HubFailed, Running, Setup, end_marked
from benchmarks.hubs.client import Answer, Client, Era, Refused, connected
from benchmarks.hubs.rubric import Told, told
from benchmarks.processes import Tree

__all__ = ["FULL", "SMALL", "Grade", "Outcome", "Scale", "Spans", "Stage", "Tally", "listed", "stage", "until_back"]

PROGRAM = Path(str(server_program.__file__))
UP_SECONDS = 20.0
FAULTS = (aiohttp.ClientError, OSError, TimeoutError, Refused, ValueError, KeyError)

Grade = Literal["good", "part", "bad", "n/a", "failed"]
Spans = Sequence[tuple[float, float]]
"""Times in which a fault held: from, until."""


@dataclass(frozen=True)
class Scale:
    """How long and how much. All hubs of a run have the same."""

    down: float = 6.0
    """Seconds of an outage."""
    unavailable: float = 60.0
    slow: float = 20.0
    """How long a slow server needs to start."""
    patience: float = 30.0
    """How long a client waits for a server that is well again."""
    answer: float = 20.0
    """How long a client waits for the answer to a call."""
    hung: float = 90.0
    """How long it waits for a call that never ends."""
    flaps: int = 6
    flap: float = 3.0
    servers: int = 20
    sessions: int = 1000
    megabytes: float = 10.0
    notices: int = 100
    calls: int = 200
    """For the cost of a call: calls in a round."""
    rounds: int = 3
    memory: float = 4e9
    """A scene stops where a hub takes more bytes."""


FULL = Scale()
SMALL = Scale(
    down=1.0,
    unavailable=2.0,
    slow=2.0,
    patience=20.0,
    answer=10.0,
    hung=3.0,
    flaps=2,
    flap=0.7,
    servers=4,
    sessions=20,
    megabytes=1.0,
    notices=20,
    calls=10,
    rounds=1,
)
"""For the tests: each scene in some seconds."""


@dataclass(frozen=True)
class Outcome:
    """What came of a scene."""

    grade: Grade
    seen: str
    """What a user sees, in one sentence."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    told: Told | None = None

    def as_json(self) -> dict[str, Any]:
        """For the raw results."""
        return {
            "grade": self.grade,
            "seen": self.seen,
            "figures": dict(self.figures),
            "told": None if self.told is None else self.told.as_json(),
        }


@dataclass(frozen=True)
class _Call:
    key: str
    sent: float
    answer: Answer
    wrong: bool


class Tally:
    """All calls of a scene with a key of their own, and what became of each."""

    def __init__(self) -> None:
        self._keys = itertools.count(1)
        self._run = uuid.uuid4().hex[:6]
        self.calls: list[_Call] = []

    def key(self) -> str:
        """A text that no other call has."""
        return f"key-{self._run}-{next(self._keys)}."

    def add(self, key: str, sent: float, answer: Answer) -> None:
        """A call is over."""
        self.calls.append(_Call(key, sent, answer, wrong=answer.kind == "result" and key not in answer.text))

    def texts(self, spans: Spans) -> list[str]:
        """What callers were told whose calls were sent and answered within one of these times."""
        refused = [one for one in self.calls if one.answer.kind == "error"]
        return [
            one.answer.text
            for one in refused
            if any(since <= one.sent and one.sent + one.answer.seconds <= until for since, until in spans)
        ]

    def last_refusal(self, since: float) -> str:
        """What was told last to a caller who called after this."""
        return next(
            (one.answer.text for one in reversed(self.calls) if one.sent > since and one.answer.kind != "result"), ""
        )

    def first(self, broke: float, since: float) -> float | None:
        """Seconds from ``since`` to the first result of a call that was sent after ``broke``."""
        ends = [
            one.sent + one.answer.seconds for one in self.calls if one.sent >= broke and one.answer.kind == "result"
        ]
        return min((end - since for end in ends if end >= since), default=None)

    def counts(self, ran: Mapping[str, int]) -> dict[str, int]:
        """The sums; ``ran`` is what the servers wrote down."""
        kinds = Counter(one.answer.kind for one in self.calls)
        ended = {one.key: one.answer.kind for one in self.calls}
        return {
            "calls": len(self.calls),
            "answered": kinds["result"],
            "refused": kinds["error"],
            "lost": kinds["lost"],
            "wrong": sum(one.wrong for one in self.calls),
            "doubled": sum(times > 1 for key, times in ran.items() if key in ended),
            "ran_unseen": sum(ended.get(key, "result") != "result" for key in ran),
        }


class Servers:
    """The servers behind a hub: those over HTTP are started here, those over stdio by the hub."""

    def __init__(self, adapter: Adapter, folder: Path, mark: str) -> None:
        self._adapter = adapter
        self._folder = folder
        self._mark = mark
        self._ports: dict[str, int] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def orders(self, name: str, **orders: Any) -> None:
        """Tell a server how to behave from now on."""
        new = self._folder / f"{name}.json.new"
        new.write_text(json.dumps(orders))
        new.rename(self._folder / f"{name}.json")

    def add(self, name: str, *, token: str | None = None, delay: float = 0.0) -> Behind:
        """A server that the hub shall have; over HTTP it does not run yet."""
        self._ports[name] = _port()
        command = [sys.executable, "-S", str(PROGRAM), "stdio", *self._options(name, delay)]
        return Behind(f"http://127.0.0.1:{self._ports[name]}/mcp", command, token)

    def _options(self, name: str, delay: float) -> list[str]:
        return ["--folder", str(self._folder), "--name", name, "--delay", str(delay)]

    async def up(self, *names: str, delay: float = 0.0, wait: bool = True) -> None:
        """Start servers over HTTP; a server over stdio is started by its hub."""
        if self._adapter.behind == "stdio":
            return
        ports = ",".join(str(self._ports[name]) for name in names)
        command = [sys.executable, "-S", str(PROGRAM), "http", *self._options(",".join(names), delay), "--port", ports]
        environment = {**os.environ, MARK: self._mark}
        self._processes[names[0]] = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, process_group=0, env=environment
        )
        if wait:
            for name in names:
                await self._listens(self._ports[name])

    async def _listens(self, port: int) -> None:
        async with asyncio.timeout(UP_SECONDS):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    return

    def kill(self, name: str) -> None:
        """``kill -9`` for a server: its process, or the child of the hub that it is."""
        if self._adapter.behind == "stdio":
            for pid in self.children():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        process = self._processes.pop(name)
        process.kill()
        process.wait(UP_SECONDS)

    def children(self) -> list[int]:
        """The servers that the hub has started and that live."""
        return [pid for pid in _all_processes() if _runs_server(pid, self._folder)]

    def memory(self) -> int:
        """Bytes of the servers that the hub has started."""
        return sum(Tree.memory_of(pid) for pid in self.children())

    def log(self, name: str) -> list[tuple[float, str, str]]:
        """What a server wrote down: when, what, and the key of a call."""
        file = self._folder / f"{name}.log"
        if not file.exists():
            return []
        lines = [line.split(" ") for line in file.read_text().splitlines()]
        return [(float(when), event, key) for when, _, event, key in lines]

    def count(self, name: str, event: str) -> int:
        """How often a server wrote something down."""
        return sum(one == event for _, one, _ in self.log(name))

    def ran(self) -> dict[str, int]:
        """How often each call ran, by its key, over all servers."""
        found: Counter[str] = Counter()
        for name in self._ports:
            found.update(key for _, event, key in self.log(name) if event == "call" and key)
        return dict(found)

    def close(self) -> None:
        """End those that are left, and forget those that were ended."""
        for pid in self.children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes.values():
            process.wait(UP_SECONDS)


class Stage:
    """One scene with one hub."""

    def __init__(self, adapter: Adapter, folder: Path, mark: str, scale: Scale) -> None:
        self.adapter = adapter
        self.scale = scale
        self.tally = Tally()
        self.servers = Servers(adapter, folder, mark)
        self.setup = Setup(folder / "hub", _port(), {}, mark)
        self.running: Running | None = None
        self._clients: list[Client] = []

    def behind(self, *names: str, token: str | None = None, delay: float = 0.0) -> None:
        """The servers that the hub shall have."""
        added = {name: self.servers.add(name, token=token, delay=delay) for name in names}
        self.setup = Setup(self.setup.folder, self.setup.port, {**self.setup.servers, **added}, self.setup.mark)

    async def play(self, *names: str, token: str | None = None) -> Client:
        """The servers, the hub, and a client whose first call was answered."""
        self.behind(*names, token=token)
        await self.servers.up(*names)
        await self.hub()
        return await self.ready(names[0])

    async def registered(self, *names: str) -> None:
        """A hub with a database gets its servers while they are well, as its operator would have done before."""
        if not self.adapter.registers:
            return
        await self.servers.up(*names)
        await self.hub()
        await self.stop()
        self.servers.kill(names[0])

    async def hub(self) -> Running:
        """Start the hub, again if it was stopped: with the same folder and the same port."""
        self.running = await asyncio.to_thread(self.adapter.start, self.setup)
        return self.running

    async def stop(self) -> bool:
        """End the hub as an operator does."""
        assert self.running is not None
        return await asyncio.to_thread(self.running.stop)

    def memory(self) -> int:
        """Bytes of the hub and what it started, without the servers behind it."""
        assert self.running is not None
        behind = set(self.servers.children())
        return sum(Tree.memory_of(pid) for pid in Tree(self.running.pid).pids() if pid not in behind)

    async def client(self, server: str = "up", *, era: Era = "legacy", within: float = 20.0) -> Client:
        """A new client with an open session."""
        client = await connected(
            self.adapter.transport,
            self.adapter.url(self.setup, server),
            headers=await asyncio.to_thread(self.adapter.headers, self.setup),
            era=era,
            within=within,
        )
        self._clients.append(client)
        return client

    async def ready(self, server: str = "up", *, within: float = 60.0) -> Client:
        """A client whose call was answered. A hub may need a while after it listens."""
        deadline = time.monotonic() + within
        last = "no answer"
        while time.monotonic() < deadline:
            try:
                client = await self.client(server)
            except FAULTS as exc:
                last = f"{type(exc).__name__}: {exc}"
            else:
                await client.listen()
                answer = await self.raw(client, server, "echo", {"key": "first"})
                if answer.kind == "result":
                    return client
                last = answer.text
                await client.close()
            await asyncio.sleep(0.3)
        raise HubFailed(f"no call was answered within {within:g} s of its start: {last[:300]}")

    async def raw(
        self, client: Client, server: str, tool: str, arguments: Mapping[str, Any], *, within: float | None = None,
        progress: bool = False,
    ) -> Answer:  # fmt: skip
        """One call that is not counted."""
        wrapped = self.adapter.wrap(server, tool, arguments)
        seconds = self.scale.answer if within is None else within
        answer = await client.call(
            self.adapter.tool(self.setup, server, tool), wrapped, within=seconds, progress=progress
        )
        if answer.kind == "result" and (reason := self.adapter.failed(answer.text)) is not None:
            return Answer("error", reason, answer.seconds, answer.notices, answer.size)
        return answer

    async def call(
        self, client: Client, server: str = "up", *, tool: str = "echo", within: float | None = None, **arguments: Any
    ) -> Answer:
        """One call with a key of its own, which is counted."""
        key, sent = self.tally.key(), time.time()
        answer = await self.raw(client, server, tool, {"key": key, **arguments}, within=within)
        self.tally.add(key, sent, answer)
        return answer

    @asynccontextmanager
    async def calling(self, client: Client, server: str = "up", *, pause: float = 0.5) -> AsyncIterator[None]:
        """Calls at a steady pace, each waiting for itself, until the end of the block."""
        tasks: set[asyncio.Task[Answer]] = set()

        async def pace() -> None:
            while True:
                tasks.add(asyncio.create_task(self.call(client, server)))
                await asyncio.sleep(pause)

        pacing = asyncio.create_task(pace())
        try:
            yield
        finally:
            pacing.cancel()
            await asyncio.gather(pacing, *tasks, return_exceptions=True)

    def told(self, fact: str, spans: Spans, *, listed: bool = True) -> Told:
        """What callers were told in these times."""
        return told(self.tally.texts(spans), fact, listed=listed)

    def counts(self) -> dict[str, int]:
        """What became of all calls."""
        return self.tally.counts(self.servers.ran())

    async def close(self) -> None:
        """End everything."""
        for client in self._clients:
            with suppress(*FAULTS):
                await client.close()
        await asyncio.to_thread(end_marked, self.setup.mark)
        if self.running is not None:
            self.running.reap()
        self.servers.close()


async def listed(stage: Stage, client: Client, server: str = "up") -> list[str] | str:
    """The server's own tools that the hub lists now, or what it says instead."""
    own = ("echo", "big", "steps", "ask", "sample", "wait", "extra")
    try:
        if (other := stage.adapter.listing(server)) is not None:
            answer = await client.call(*other, within=stage.scale.answer)
            if answer.kind != "result":
                return answer.text[:200]
            return [name for name in own if f'"name": "{name}"' in answer.text or f'"name":"{name}"' in answer.text]
        names = set(await client.tools(within=stage.scale.answer))
    except FAULTS as exc:
        return (f"{exc}" or type(exc).__name__)[:200]
    return [name for name in own if stage.adapter.tool(stage.setup, server, name) in names]


async def until_back(
    stage: Stage, server: str = "up", *, broke: float, since: float, patience: float | None = None
) -> dict[str, float | None]:
    """Seconds until calls that go on meanwhile are answered: in the same session, and in a new one.

    None: not within the patience. Calls count that were sent after ``broke`` and answered after ``since``.
    """
    anew = asyncio.create_task(_until_anew(stage, server))
    deadline = since + (stage.scale.patience if patience is None else patience)
    same: float | None = None
    while same is None and time.time() < deadline:
        await asyncio.sleep(0.02)
        same = stage.tally.first(broke, since)
        if anew.done():
            # A session that is lost does not come back: some seconds more show it, without all of the patience.
            deadline = min(deadline, anew.result() + stage.scale.patience / 3)
    if not anew.done():
        anew.cancel()
        await asyncio.gather(anew, return_exceptions=True)
    new = None if anew.cancelled() else anew.result() - since
    return {"same_session": same, "new_session": same if new is None else new}


async def _until_anew(stage: Stage, server: str) -> float:
    while not await _answered_anew(stage, server):  # noqa: ASYNC110 - a hub sets no event
        await asyncio.sleep(0.2)
    return time.time()


async def _answered_anew(stage: Stage, server: str) -> bool:
    try:
        other = await stage.client(server, within=5.0)
    except FAULTS:
        return False
    answered = (await stage.raw(other, server, "echo", {"key": "again"})).kind == "result"
    await other.close()
    return answered


@asynccontextmanager
async def stage(adapter: Adapter, scale: Scale) -> AsyncIterator[Stage]:
    """A stage, until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="hubs-", ignore_cleanup_errors=True) as folder:
        # A scene that is a process of its own has a mark already, by which its parent ends what is left.
        made = Stage(adapter, Path(folder), os.environ.get(MARK) or uuid.uuid4().hex, scale)
        try:
            yield made
        finally:
            await made.close()


def _port() -> int:
    """A port that stays free until it is used, and while its server is down.

    Linux gives ports from 32768 on to outgoing connections, so one of those may be taken at any time. Other scenes
    that are played meanwhile see the reservation: an abstract Unix socket, whose name a process has alone.
    """
    while True:
        port = random.randrange(15_000, 32_000)
        reservation = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, suppress(OSError):
            reservation.bind(f"\0hubs-benchmark-port-{port}")
            probe.bind(("127.0.0.1", port))
            atexit.register(reservation.close)  # until then it is this process's
            return port
        reservation.close()


def _all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _runs_server(pid: int, folder: Path) -> bool:
    """By its command: a hub may give its children an environment of their own, without the mark."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return str(PROGRAM).encode() in words and str(folder).encode() in words
    return False


def names(count: int) -> Sequence[str]:
    """Names of servers."""
    return [f"s{number:02d}" for number in range(count)]
