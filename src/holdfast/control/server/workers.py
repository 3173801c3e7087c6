"""The workers of one supervisor, as one of them sees the others: one of them answers the control API for all.

A request comes to any worker, and each of them has its own connections, counters and logs. So that an answer does not
depend on the connection that a request came on, the oldest worker speaks: the others send requests on to it, as they
came, over its private Unix socket. The supervisor says who is there. If the speaker cannot be reached, a worker answers
for itself; a change whose outcome is unknown is an error.

The stdio servers run in a process of their own, which has its own control API. Their logs are asked there, and a switch
or a reconnect reaches their process too.

What came over a private socket is answered here and goes no further, so a request cannot run in circles. Only workers
reach that socket: the kernel says who is at the other end.

The speaker asks the others once a second for their totals, so that its pages count the calls of all, and for the
clients that joined: one worker serves them, and it need not be the oldest. A worker that ends
leaves its totals to the speaker, so that they go on when all workers are replaced. Timelines and durations are the
speaker's own: they begin again with the next one, as after a restart.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.control.models import JoinedClientView
from holdfast.control.server.control_events import EventStream, end_with_reader
from holdfast.control.server.operations import LARGEST_BODY, look_up
from holdfast.control.server.views import History, HubInfo
from holdfast.errors import HoldfastError
from holdfast.hub import Hub
from holdfast.wire import HttpOrigin, Pool, joined

__all__ = [
    "SharedTotals",
    "SpokenApi",
    "Worker",
    "WorkerGroup",
    "asked",
    "is_from_worker",
    "keep_switches",
    "worker_routes",
]

log = logging.getLogger("holdfast.control")

ANSWER_SECONDS: Final = 660.0
"""How long the head of an answer may take: a login waits for a person."""
GATHER_SECONDS: Final = 1.0
"""How long the others may take to answer a question to all of them."""
LARGEST_ANSWER: Final = 64 * 1024 * 1024
TOTALS_SECONDS: Final = 1.0
LAST_SECONDS: Final = 5.0
"""How long a worker that ends may take to leave its totals. On a busy machine half a second was too short, and then all
that it ever counted was lost. A speaker that is gone refuses at once, and an orphan is killed before."""
_PER_CONNECTION: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "te", "upgrade"})


class Worker(NamedTuple):
    """One worker: its number, and its private socket."""

    number: int
    socket: str


STDIO_NUMBER: Final = 0
"""The number of the process that runs the stdio servers."""

GONE: Final = Worker(-1, "")
"""Stands for all workers that left their totals."""


class WorkerGroup:
    """The processes of one supervisor that are present and stay.

    ``members`` returns them, the oldest first, this one included. The process that runs the stdio servers is among
    them, and is no worker.
    """

    def __init__(self, own: Worker, members: Callable[[], Sequence[Worker]]) -> None:
        self.own = own
        self._members = members

    def __repr__(self) -> str:
        return f"<WorkerGroup {self.own.number} of {[one.number for one in self._members()]}>"

    @property
    def _workers(self) -> list[Worker]:
        return [one for one in self._members() if one.number != STDIO_NUMBER]

    @property
    def others(self) -> tuple[Worker, ...]:
        """The other workers."""
        return tuple(one for one in self._workers if one != self.own)

    @property
    def speaker(self) -> Worker | None:
        """The worker that answers for all; None if it is this one, or if this one is alone."""
        # The oldest: a worker that starts later does not change who speaks, and all of them find the same one.
        oldest = next(iter(self._workers), self.own)
        return None if oldest == self.own else oldest

    @property
    def stdio(self) -> Worker | None:
        """The process that runs the stdio servers; None if there is none."""
        return next((one for one in self._members() if one.number == STDIO_NUMBER), None)

    @property
    def is_member(self) -> bool:
        """Whether this worker counts: it is not leaving."""
        return self.own in self._workers

    async def ask_others(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, *, within: float = GATHER_SECONDS
    ) -> dict[Worker, bytes]:
        """Ask all other members at once; what came within the time, of those that answered with 200."""
        answers: dict[Worker, bytes] = {}

        async def ask(worker: Worker) -> None:
            answer = await asked(worker, method, target, headers, within=within)
            if answer is not None:
                answers[worker] = answer

        async with anyio.create_task_group() as tasks:
            for worker in self.others:
                tasks.start_soon(ask, worker)
        return answers


async def asked(
    worker: Worker,
    method: str,
    target: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    *,
    within: float,
) -> bytes | None:
    """The answer of one worker; None if it does not answer in time, or not with 200."""
    pool = _pool(worker)
    try:
        with anyio.move_on_after(within):
            answer = await pool.request(method, target, headers or {}, body)
            read = await answer.read(LARGEST_ANSWER)
            return bytes(read) if answer.status == 200 and read is not None else None
    except OSError as exc:
        log.debug("worker %d did not answer %s: %s", worker.number, target, exc)
    finally:
        await pool.aclose()
    return None


def _pool(worker: Worker) -> Pool:
    return Pool(HttpOrigin("localhost", 80, tls=False, unix=worker.socket))


def is_from_worker(scope: Scope) -> bool:
    """Whether a request came over the private socket: only a TCP client has an address."""
    return scope.get("client") is None


class SpokenApi:
    """The control API of a worker: an ASGI application that lets the speaker answer."""

    def __init__(self, api: ASGIApp, group: WorkerGroup, runs_in_stdio: Callable[[str], bool]) -> None:
        """``runs_in_stdio`` says of a server whether the process of the stdio servers runs it."""
        self._api = api
        self._group = group
        self._runs_in_stdio = runs_in_stdio

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        speaker = None if is_from_worker(scope) else self._group.speaker
        if speaker is None and self._is_of_stdio_log(scope):
            speaker = self._group.stdio
        if speaker is None or scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        # Read before it is sent on: if the speaker ends meanwhile, this worker may have to answer itself.
        body = await _body(receive)
        if body is None:
            return
        begun = False

        async def answered(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await _send_on(speaker, scope, body, receive, answered)
        except OSError as exc:
            log.debug("worker %d, which answers, does not: %r", speaker.number, exc)
            if begun:
                return
            # A connection that was refused sent nothing; after that, only a question may be asked again.
            if scope["method"] in ("GET", "HEAD") or isinstance(exc, ConnectionRefusedError | FileNotFoundError):
                read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

                async def replayed() -> Message:
                    return read.pop() if read else await receive()

                await self._api(scope, replayed, send)
            else:
                failed = {
                    "error": "the worker that answers for all ended meanwhile",
                    "hint": "look at the state, then try again",
                }
                await JSONResponse(failed, 502, {"cache-control": "no-store"})(scope, receive, send)

    def _is_of_stdio_log(self, scope: Scope) -> bool:
        """Whether the stderr of a stdio server is asked for: only the process that runs it has it."""
        found = look_up(scope["method"], scope["raw_path"].decode("latin-1"))
        reads_log = found.operation is not None and found.operation.name in ("get_logs", "follow_logs")
        return reads_log and self._runs_in_stdio(found.parameters["server"])


async def _send_on(worker: Worker, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Send a request on, and stream the answer back until its reader leaves."""
    failure: OSError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_with_reader, receive, tasks.cancel_scope)
        try:
            await _relay(worker, scope, body, send)
        except OSError as exc:  # a task group would wrap it
            failure = exc
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _relay(worker: Worker, scope: Scope, body: bytes, send: Send) -> None:
    target = (scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")).decode("latin-1")
    written = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
    sent = joined(written, {"cookie": "; "})
    pool = _pool(worker)
    try:
        with anyio.fail_after(ANSWER_SECONDS):
            answer = await pool.request(
                scope["method"],
                target,
                {name: value for name, value in sent.items() if name not in _PER_CONNECTION},
                body or None,
            )
        headers = [
            (name.encode("latin-1"), one.encode("latin-1"))
            for name, value in answer.headers.items()
            if name not in _PER_CONNECTION
            for one in value.split("\n")  # cookies that are set, one in a line
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        while (piece := await answer.next_chunk()) is not None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        await pool.aclose()


async def _body(receive: Receive) -> bytes | None:
    """The body, up to a byte more than the API takes; None if the client left."""
    data = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        data += message.get("body", b"")
        if not message.get("more_body") or len(data) > LARGEST_BODY:
            return bytes(data[: LARGEST_BODY + 1])


# What workers ask each other.


class SharedTotals:
    """The calls and clients of this worker for the others, and those of the others for this one while it speaks."""

    def __init__(self, hub: Hub, group: WorkerGroup, history: History, about: HubInfo, events: EventStream) -> None:
        self._hub = hub
        self._group = group
        self._history = history
        self._about = about
        self._events = events
        self._known: dict[Worker, dict[str, tuple[int, int]]] = {}
        """Calls and errors of each other worker and server, as it told them last; of all that ended, under ``GONE``."""
        self._ended: set[Worker] = set()
        """Those that left their totals. What else is told of them is older, and must not count again."""

    def told(self) -> dict[str, Any]:
        """What the speaker is told of this worker."""
        return {"calls": self.own(), "clients": [one.model_dump() for one in self._about.clients()]}

    def own(self) -> dict[str, tuple[int, int, int, str]]:
        """Calls, errors, calls under way and the last error of each server that was called here."""
        slots = self._hub.registry.slots
        return {
            name: (seen.own_calls, seen.own_errors, slots[name].machine.life.calls, seen.own_error)
            for name, seen in self._history.servers.items()
            if name in slots and seen.own_calls
        }

    async def run(self) -> None:
        """Ask the others while this worker speaks, until cancelled; then leave the totals to the one that stays."""
        try:
            while True:
                await anyio.sleep(TOTALS_SECONDS)
                if self._group.speaker is None:
                    answers = await self._group.ask_others("GET", "/workers/totals")
                    self.answered({one: json.loads(answer) for one, answer in answers.items()})
        finally:
            with anyio.CancelScope(shield=True):
                await self._leave_totals()

    async def _leave_totals(self) -> None:
        speaker = self._group.speaker
        if speaker is not None and not self._group.is_member:
            await asked(speaker, "POST", "/workers/ended", body=self.left(), within=LAST_SECONDS)

    def left(self) -> bytes:
        """What the speaker is told at the end of this worker: its totals, after those of workers that ended before."""
        present = {*self._group.others}
        # What a worker learned of those that ended before it is known nowhere else.
        ended = [(one, known) for one, known in self._known.items() if one not in present]
        told = [(one, {server: (*counts, 0, "") for server, counts in known.items()}) for one, known in ended]
        return json.dumps([*told, (self._group.own, self.own())]).encode()

    def answered(self, answers: Mapping[Worker, Mapping[str, Any]]) -> None:
        """Take what other workers answered, as ``told`` gives it."""
        told = {worker: answer for worker, answer in answers.items() if worker not in self._ended}
        in_flight: dict[str, int] = {}
        for worker, answer in told.items():
            self._take(worker, answer["calls"])
            for server, (_, _, open_calls, _) in answer["calls"].items():
                if server in self._hub.config.servers:
                    in_flight[server] = in_flight.get(server, 0) + open_calls
        for server, count in self._history.in_flight_elsewhere.items():
            if count and not in_flight.get(server):
                self._events.called(server)  # its readers see that it is at rest
        self._history.in_flight_elsewhere = in_flight
        joined_there = (client for answer in told.values() for client in answer["clients"])
        clients = tuple(map(JoinedClientView.model_validate, joined_there))
        if clients != self._about.clients_elsewhere:
            self._about.clients_elsewhere = clients
            self._events.hub_changed()

    def worker_ended(self, body: bytes) -> None:
        """A worker that leaves told its totals, as ``left`` gives them."""
        *others, last = [(Worker(*worker), totals) for worker, totals in json.loads(body)]
        worker, totals = last
        if worker in self._ended:
            return
        self._ended.add(worker)
        for one, known in others:
            if one == GONE:
                sums = _plus(self._known.get(GONE, {}), known)
                self._take(GONE, {server: (*counts, 0, "") for server, counts in sums.items()})
            elif one not in self._ended:
                self._take(one, known)
        self._take(worker, totals)
        # It is complete, so it is summed up: what is handed on must not grow with each roll.
        self._known[GONE] = _plus(self._known.get(GONE, {}), self._known.pop(worker))

    def _take(self, worker: Worker, totals: Mapping[str, Sequence[Any]]) -> None:
        """Count what is new in the totals of a worker."""
        known = self._known.setdefault(worker, {})
        for server, (calls, errors, _, error) in totals.items():
            if server not in self._hub.config.servers:
                continue
            before = known.get(server, (0, 0))
            if calls < before[0]:
                before = (0, 0)  # the server was removed there meanwhile, and added again
            known[server] = (calls, errors)
            if calls > before[0]:
                self._history.called_elsewhere(server, calls - before[0], errors - before[1], error=error)
                self._events.called(server)


def _plus(sums: Mapping[str, tuple[int, int]], more: Mapping[str, Sequence[Any]]) -> dict[str, tuple[int, int]]:
    """Sums of calls and errors by server, with those of one more worker."""
    merged = dict(sums)
    for server, (calls, errors, *_) in more.items():
        before = merged.get(server, (0, 0))
        merged[server] = (before[0] + calls, before[1] + errors)
    return merged


async def keep_switches(hub: Hub, group: WorkerGroup, runs_in_stdio: Callable[[str], bool]) -> None:
    """While this worker speaks: end the process of a stdio server that is disabled, and start it when it is enabled.

    Workers learn of a switch in many ways: from a person, from the store, from the state of the run before. What they
    know is told to the process of the stdio servers, and told again to the one that takes its place.
    """
    told: dict[tuple[Worker, str], bool] = {}
    while True:
        await anyio.sleep(TOTALS_SECONDS)
        stdio = group.stdio if group.speaker is None else None
        if stdio is None:
            continue
        for name, slot in [*hub.registry.slots.items()]:
            off = slot.switched_off
            if runs_in_stdio(name) and told.get((stdio, name), False) != off:
                target = f"/workers/switch?server={quote(name, safe='')}&to={'off' if off else 'on'}"
                # Noted only if it was heard: otherwise the next turn tells it again.
                if await asked(stdio, "POST", target, within=GATHER_SECONDS) is not None:
                    told[stdio, name] = off


def worker_routes(totals: SharedTotals, hub: Hub) -> Mount:
    """What the other workers ask; a client gets 404."""

    async def answer(request: Request) -> Response:
        if not is_from_worker(request.scope):
            return JSONResponse({"error": "there is nothing at this path"}, status_code=404)
        server = request.query_params.get("server", "")
        # The speaker tells the person what went wrong; this is only the same request in another process.
        with suppress(HoldfastError):
            match request.path_params["what"]:
                case "totals":
                    return JSONResponse(totals.told())
                case "reconnect":
                    await hub.reconnect(server)
                case "switch":
                    await hub.toggle(server, request.query_params.get("to") == "on")
                case "ended":
                    totals.worker_ended(await request.body())
        return JSONResponse({})

    return Mount("/workers", routes=[Route("/{what}", answer, methods=["GET", "POST"])])
