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
from typing import Any, Final, NamedTuple

import anyio

from holdfast.control.server.group import GATHER_SECONDS, WorkerGroup
from holdfast.control.server.history import History, ServerHistory
from holdfast.control.server.logs import LogBuffer
from holdfast.core import Redactor
from holdfast.fleet import PeerReply, PeerRequest, Peers
from holdfast.hub import Hub

__all__ = ["SharedHistory"]

TELL_SECONDS: Final = 1.0
LAST_SECONDS: Final = 0.5
"""How long a worker that ends may take to tell its last calls."""
TOLD_TIMES: Final = 16
"""Durations of calls that are told for each server: enough for a median."""
MOST_STDERR: Final = 64 * 1024
"""Bytes of stderr that are told at a time; the oldest are left out."""


class _OwnCalls(NamedTuple):
    """The calls of one server in this worker, as the others were told."""

    calls: int = 0
    errors: int = 0


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
        self._told: dict[str, _OwnCalls] = {}
        self._busy: set[str] = set()
        """The servers that have calls under way here, as the others were told."""
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
                joined = bool(others - self._told_to)
                self._told_to = others
                if others:
                    await self._tell(everything=joined)
        finally:
            with anyio.move_on_after(LAST_SECONDS, shield=True):
                await self._tell(everything=False)  # the calls of the last second

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
        calls, errors = told["of"].pop(self._group.own, (0, 0))
        self._history.of(server).inherit(told["history"], calls_here=int(calls), errors_here=int(errors))
        for known in self._known.values():
            known.pop(server, None)  # the past counts in its place, and may have less of it
        for replica, (calls, errors) in told["of"].items():
            self._known.setdefault(replica, {})[server] = (int(calls), int(errors))
        self._called(server)

    async def _told_past(self, request: PeerRequest, reply: PeerReply) -> None:
        """A worker that starts asks for the history of a server, and for what it contains of each worker."""
        server = str(request.about.get("server"))
        if server not in self._hub.config.servers:
            return
        seen = self._history.of(server)
        of = {replica: known[server] for replica, known in self._known.items() if server in known}
        of[self._group.own] = _own(seen)
        reply.answer(body=json.dumps({"history": seen.told(), "of": of}).encode())

    async def _tell(self, *, everything: bool) -> None:
        """Tell what changed, or ``everything``. No call is noted for this: the history has counted it."""
        busy, servers = set[str](), dict[str, object]()
        for name, seen in self._history.servers.items():
            own = _own(seen)
            if not own.calls:
                continue
            before, in_flight = self._told.get(name, _OwnCalls()), self._calls_of(name)
            if in_flight:
                busy.add(name)
            if everything or own != before or in_flight or name in self._busy:
                servers[name] = _told(seen, own, before, in_flight)
                self._told[name] = own
        self._busy = busy  # they are told once more when they are at rest
        stderr, self._stderr, self._stderr_bytes = self._stderr, deque(), 0
        if not servers and not stderr:
            return
        body = {"servers": servers, "stderr": [[server, line.decode("latin-1")] for server, line in stderr]}
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
            if now[0] < before[0]:
                before = (0, 0)  # the server was removed there meanwhile, and added again
            known[server] = now
            in_flight[server] = int(one["in_flight"])
            if now[0] > before[0]:
                self._history.called_elsewhere(
                    server,
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


def _own(seen: ServerHistory) -> _OwnCalls:
    return _OwnCalls(seen.calls - seen.calls_elsewhere, seen.errors - seen.errors_elsewhere)


def _told(seen: ServerHistory, own: _OwnCalls, before: _OwnCalls, in_flight: int) -> dict[str, object]:
    """What the others are told of one server."""
    answered = own.calls - before.calls - (own.errors - before.errors)
    return {
        "calls": own.calls,
        "errors": own.errors,
        "times": [round(one, 6) for one in seen.tally.latest_times(min(answered, TOLD_TIMES))],
        "error": seen.own_error,
        "in_flight": in_flight,
    }
