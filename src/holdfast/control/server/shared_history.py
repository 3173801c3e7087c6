"""Lets every worker know what the others did: their calls, and the stderr of the stdio servers that run there.

Once a second a worker tells the others its own totals, of the servers that changed. The others add the difference to
their history. A message that is lost costs nothing: the next one has the totals again.

A worker that starts takes over the history of the worker that was here first, with the totals of each worker that it
contains. So totals and timelines go on when all workers are replaced.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from holdfast.control.server.group import GATHER_SECONDS, WorkerGroup
from holdfast.control.server.history import History, counts_as
from holdfast.control.server.logs import LogBuffer
from holdfast.core import Redactor
from holdfast.hub import CallEnded, Hub, PeerReply, PeerRequest, Peers

__all__ = ["SharedHistory"]

TELL_SECONDS: Final = 1.0
LAST_SECONDS: Final = 0.5
"""How long a worker that ends may take to tell its last calls."""
TOLD_TIMES: Final = 16
"""Durations of calls that are told for each server: enough for a median."""
MOST_STDERR: Final = 64 * 1024
"""Bytes of stderr that are told at a time; the oldest are left out."""


class _OwnCalls:
    """The calls of one server in this worker."""

    def __init__(self) -> None:
        self.calls = self.errors = 0
        self.times: deque[float] = deque(maxlen=TOLD_TIMES)
        self.last_error = ""

    def told(self, in_flight: int) -> dict[str, Any]:
        """What the others are told."""
        times = [round(one, 6) for one in self.times]
        self.times.clear()
        return {
            "calls": self.calls,
            "errors": self.errors,
            "times": times,
            "error": self.last_error,
            "in_flight": in_flight,
        }


class SharedHistory:
    """This worker's part of the history of all."""

    def __init__(
        self,
        hub: Hub,
        group: WorkerGroup,
        peers: Peers,
        *,
        history: History,
        logs: LogBuffer,
        called: Callable[[str], None],
    ) -> None:
        self._hub = hub
        self._group = group
        self._history = history
        self._logs = logs
        self._called = called
        self._own: dict[str, _OwnCalls] = {}
        self._changed: set[str] = set()
        self._stderr: deque[tuple[str, bytes]] = deque()
        self._stderr_bytes = 0
        self._known: dict[str, dict[str, tuple[int, int]]] = {}
        """Calls and errors of each other worker and server, as it told them last."""
        self._in_flight: dict[str, dict[str, int]] = {}
        self._told_to: frozenset[str] = frozenset()
        history.elsewhere = self.in_flight
        self._no_past: set[str] | None = None
        """Servers whose history from before this worker is still to be asked for; None before it has begun."""
        peers.handle("seen", self._seen)
        peers.handle("past", self._told_past)

    def called(self, record: CallEnded) -> None:
        """A call ended here."""
        own = self._own.get(record.server)
        if own is None:
            own = self._own[record.server] = _OwnCalls()
        own.calls += 1
        self._changed.add(record.server)
        if record.outcome == "completed":  # most calls
            own.times.append(record.seconds)
            return
        error, seconds, reason = counts_as(record)
        own.errors += error
        if seconds is not None:
            own.times.append(seconds)
        if reason:
            own.last_error = reason

    def add_stderr(self, server: str, line: bytes, _: Redactor) -> None:
        """A server that runs here wrote a line."""
        self._stderr.append((server, line))
        self._stderr_bytes += len(line)
        while self._stderr_bytes > MOST_STDERR:
            self._stderr_bytes -= len(self._stderr.popleft()[1])

    def in_flight(self, server: str) -> int:
        """The calls of a server that are under way in the other workers."""
        present = self._group.others
        return sum(told.get(server, 0) for replica, told in self._in_flight.items() if replica in present)

    async def run(self) -> None:
        """Tell the others until cancelled."""
        try:
            while True:
                await anyio.sleep(TELL_SECONDS)
                await self._take_past()
                others = frozenset(self._group.others)
                if others - self._told_to:
                    self._changed |= self._own.keys()
                self._told_to = others
                if others:
                    await self._tell()
        finally:
            with anyio.move_on_after(LAST_SECONDS, shield=True):
                await self._tell()  # the calls of the last second

    async def _take_past(self) -> None:
        """Take over the history of the worker that was here first, a server at a time; the rest is asked for later."""
        if self._no_past is None and self._group.is_known:
            self._no_past = set(self._hub.config.servers)
        while self._no_past:
            oldest = self._group.oldest
            if oldest is None:
                self._no_past.clear()  # none was here before
                return
            server = next(iter(self._no_past))
            told = await self._group.ask(oldest, "past", {"server": server}, within=GATHER_SECONDS)
            if told is None:
                return
            self._no_past.discard(server)
            if told:
                self._inherit(server, json.loads(told))

    def _inherit(self, server: str, told: Mapping[str, Any]) -> None:
        own = self._own.get(server) or _OwnCalls()
        self._history.of(server).inherit(told["history"], calls=own.calls, errors=own.errors)
        for replica, (calls, errors) in told["of"].items():
            self._known.setdefault(replica, {})[server] = (int(calls), int(errors))
        self._called(server)

    async def _told_past(self, request: PeerRequest, reply: PeerReply) -> None:
        """A worker that starts asks for the history of a server, and for what it contains of each worker."""
        server = str(request.about.get("server"))
        own = self._own.get(server) or _OwnCalls()
        of = {replica: known[server] for replica, known in self._known.items() if server in known}
        of[self._group.own] = (own.calls, own.errors)
        if server in self._hub.config.servers:
            told = {"history": self._history.of(server).told(), "of": of}
            reply.answer(body=json.dumps(told).encode())

    async def _tell(self) -> None:
        busy = {name for name in self._own if self._calls_of(name)}
        changed, self._changed = self._changed | busy, busy  # once more when they are at rest
        stderr, self._stderr, self._stderr_bytes = self._stderr, deque(), 0
        if not changed and not stderr:
            return
        body = {
            "servers": {name: self._own[name].told(self._calls_of(name)) for name in changed if name in self._own},
            "stderr": [[server, line.decode("latin-1")] for server, line in stderr],
        }
        await self._group.ask_all("seen", body=json.dumps(body).encode())

    def _calls_of(self, server: str) -> int:
        slot = self._hub.registry.slots.get(server)
        return slot.machine.life.calls if slot is not None else 0

    async def _seen(self, request: PeerRequest, _: PeerReply) -> None:
        """Another worker tells what it did."""
        told = json.loads(request.body)
        known = self._known.setdefault(request.sender, {})
        in_flight = self._in_flight.setdefault(request.sender, {})
        for server, one in told["servers"].items():
            if server not in self._hub.config.servers:
                continue
            before, now = known.get(server, (0, 0)), (int(one["calls"]), int(one["errors"]))
            known[server] = now
            in_flight[server] = int(one["in_flight"])
            if now[0] > before[0]:
                self._history.of(server).called_elsewhere(
                    now[0] - before[0],
                    now[1] - before[1],
                    times=[float(seconds) for seconds in one["times"][:TOLD_TIMES]],
                    error=str(one["error"]),
                )
                self._called(server)
        for server, line in told["stderr"]:
            slot = self._hub.registry.slots.get(server)
            if slot is not None:
                self._logs.add_stderr(server, str(line).encode("latin-1", "replace"), slot.redactor)
        for gone in self._known.keys() - {request.sender, *self._group.present}:
            self._known.pop(gone)
            self._in_flight.pop(gone, None)
