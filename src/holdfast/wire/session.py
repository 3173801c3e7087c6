"""One live connection to a server, after its handshake: requests, listings, calls, pings, notifications, close.

A request has the form that both sides agreed on, and a result is cleaned and checked (``request_form``). Both pass on
as the bytes that they came in.

Tools that run as tasks. At 2025-11-25 a tool says ``execution.taskSupport``: a ``required`` one refuses a plain call.
Most clients know no tasks, so such a call is made as a task here, which waits for its result. At 2026-07-28 the server
decides, for clients that declare the extension; nothing is needed here.

Notifications, and the end. A pipe (stdio, SSE) brings both by itself. Over HTTP there is a stream of notifications
where the server offers one: a GET in the legacy era, ``subscriptions/listen`` in the modern one. A stream that ends is
opened again. Nothing is replayed, so the lists then count as changed. A stream that cannot be opened again, because no
server answers, means that the server is gone. What the clients want of a server (subscribed resources, log level)
outlives connections: each new connection gets it again.

Any task may use a connection; only the task that dialed it closes it. Every wait has a bound. Every failure is
``ServerFailure`` with evidence; a server's JSON-RPC error is an answer, and is ``RpcError`` evidence.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import anyio
import anyio.abc
from mcp import MCPError
from mcp_types import HEADER_MISMATCH, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND

from holdfast.config import Limits
from holdfast.core import (
    STATUS_URI,
    Evidence,
    HttpStatus,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    ServerRecord,
    TimedOut,
    read_records,
)
from holdfast.errors import ServerFailure
from holdfast.turns import Turns
from holdfast.types import CallResult, ProgressFn
from holdfast.wire.http.transport import HttpDispatcher, SseDispatcher
from holdfast.wire.in_flight import CURRENT, Caller, Era, RequestInFlight
from holdfast.wire.listing import (
    Offer,
    Offers,
    list_other_offers,
    list_tool_offers,
    task_support,
)
from holdfast.wire.raw_json import (
    BadJson,
    Fields,
    RawObject,
    dumps,
    fields,
    is_object,
    join_fields,
    load_members,
    text_of,
)
from holdfast.wire.request_form import CallerIdentity, Greeting, HubPeer, RequestForm
from holdfast.wire.stdio_transport import StdioDispatcher

__all__ = [
    "LIST_CHANGED",
    "LOG_LEVELS",
    "RELATED_TASK",
    "STATUS_SECONDS",
    "Connection",
    "DesiredState",
    "Wire",
    "apply_desired_state",
    "close",
    "first_status",
    "follow_hub",
    "forget_client",
    "watch_connection",
]

RELATED_TASK = "io.modelcontextprotocol/related-task"
"""The key of ``_meta`` that names the task of a message."""

CANCEL_SECONDS = 2.0
"""How long the cancellation of a task may take, once its caller has left."""

STATUS_BYTES = 256 * 1024
"""How large the status of a hub may be: it is read on the event loop. One of a thousand servers is that large."""

CLOSE_SECONDS = 10.0
"""Each step of a close has a bound of its own; this one covers a mistake in them."""

DRAIN_SECONDS = 2.0
"""How long requests under way may take to end by themselves after a session has expired."""

_T = TypeVar("_T")
Wire: TypeAlias = HttpDispatcher | SseDispatcher | StdioDispatcher


class Connection:
    """One live connection, after its handshake."""

    def __init__(
        self,
        greeting: Greeting,
        wire: Wire,
        closers: AsyncExitStack,
        *,
        hub: HubPeer | None,
        identity: CallerIdentity | None = None,
    ) -> None:
        self.wire = wire
        self._closers = closers
        self.era: Era = greeting.era
        self.hub = hub
        """The other side, if it is a hub."""
        self.instructions = greeting.instructions
        """The server's instructions for its use."""
        self.capabilities = greeting.declared
        """The capabilities that the server declared."""
        self._form = RequestForm(greeting, wire, hub, identity)
        self.protocol_version = greeting.version
        self.runs_tasks = self._form.runs_tasks
        """Whether the server runs tool calls as tasks, in the form of the legacy era."""
        self._task_tools: frozenset[str] | None = None
        self._listed: Offers | None = None

    def adopt(self, limits: Limits) -> None:
        """Use other bounds from the next message on."""
        self.wire.rpc.limits = limits

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification; the server does not answer it."""
        await self.wire.notify(method, params)

    async def drain(self) -> None:
        """Wait for the requests under way to end. Bounded, and shielded from cancellation."""
        if isinstance(self.wire, HttpDispatcher):
            with anyio.move_on_after(DRAIN_SECONDS, shield=True):
                await self.wire.in_flight.empty()

    async def aclose(self) -> None:
        """End the connection, then its transport. Bounded, and shielded from cancellation."""
        await close(self._closers)

    async def list_tools(self, *, within: float) -> tuple[Offer, ...]:
        """Every tool of the server, over all pages, within so many seconds."""
        listing = list_tool_offers(self._form, self._listed)
        tools = (await _within(listing, within, "its list of tools"))["tools"]
        self._task_tools = _run_as_tasks(tools)
        return tools

    async def list_everything(self, *, within: float) -> Offers:
        """Tools, prompts, resources and templates, over all pages, within so many seconds.

        Raises if the tools cannot be listed; another list that fails is among the ``failures`` of the result. It is the
        same object as the last time if the server sent the same bytes.
        """
        until = anyio.current_time() + within
        last = self._listed
        offers = await _within(list_tool_offers(self._form, last), within, "its list of tools")
        if last is None or offers["tools"] is not last["tools"]:
            self._task_tools = _run_as_tasks(offers["tools"])
        await list_other_offers(self._form, offers, last, until=until)
        if last is None or not offers.equal(last):
            self._listed = last = offers
        return last

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        idle: float,
        within: float,
        on_progress: ProgressFn | None = None,
    ) -> CallResult:
        """Call a tool once. Raises ``ServerFailure`` unless the server gave a result."""
        params: Fields = {"name": dumps(name), "arguments": dumps(arguments)}
        result = await self.request("tools/call", params, idle=idle, within=within, on_progress=on_progress)
        try:
            return CallResult.from_raw(await load_members(result))
        except BadJson as exc:
            raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc))) from exc

    async def request(
        self,
        method: str,
        params: Fields,
        *,
        idle: float,
        within: float,
        on_progress: ProgressFn | None = None,
        caller: Caller | None = None,
    ) -> RawObject:
        """Send a request once, for ``caller``; its parameters and its result pass as the bytes that they came in.

        ``idle`` is how long the server may be silent: progress extends it, up to ``within`` in all. Time in which
        the server waits for the caller's answer does not count. A plain call of a tool that runs only as a task is
        made as one, and gives the task's result.
        """
        if method == "tools/call" and self.runs_tasks and await self._needs_task(params, within=idle):
            by_caller = partial(self.request, on_progress=on_progress, caller=caller)
            return await call_as_task(by_caller, params, idle=idle, within=within)
        wire = self.wire
        if method == "tasks/result":
            idle = math.inf  # it waits until the task has ended
        form = self._form
        request = wire.in_flight.start(caller, on_progress, idle=idle, within=within)
        # Set in the caller's own task: over HTTP that task reads the stream, so what comes on it finds its caller.
        token = CURRENT.set(request)
        try:
            try:
                sent, headers = form.addressed(method, params, caller)
                try:
                    result = await wire.call(request, method, sent, headers=headers)
                except MCPError as exc:
                    if exc.code != HEADER_MISMATCH:
                        raise
                    # The server did not act: it wants arguments as headers too. A listing tells which.
                    await list_tool_offers(form)
                    sent, headers = form.addressed(method, params, caller)
                    wire.in_flight.number(request)
                    result = await wire.call(request, method, sent, headers=headers)
                if result.is_large:
                    await Turns().give()  # each pass over a large result takes milliseconds
                result = form.checked(method, result)
            except MCPError as exc:
                await request.delivered()
                raise form.failure(method, exc) from exc
            except ServerFailure:
                await request.delivered()
                raise
            if request.delivery is not None:
                await request.delivered()
        except asyncio.CancelledError:
            # A timeout cancels this task. So may its owner, at the same moment: then the owner's wish counts.
            if not request.absorb():
                raise
            if request.cut:
                raise wire.in_flight.failure() from None
            raise ServerFailure(_timed_out(method, params, request, idle, within)) from None
        finally:
            CURRENT.reset(token)
            wire.in_flight.end(request)
        return result

    async def _needs_task(self, params: Fields, *, within: float) -> bool:
        if "task" in params:
            return False  # the caller runs the task itself
        if self._task_tools is None:
            await self.list_tools(within=within)
        return text_of(params.get("name")) in (self._task_tools or ())

    async def hub_status(self, *, within: float) -> dict[str, ServerRecord]:
        """What the hub on the other side tells about its servers; empty if nothing of it can be read."""
        assert self.hub is not None  # noqa: S101 - the caller looked
        asked: Fields = {"uri": dumps(STATUS_URI)}
        result = await self.request("resources/read", asked, idle=within, within=within)
        if result.size > STATUS_BYTES:
            return {}
        contents = result.value().get("contents")
        first = contents[0] if isinstance(contents, list) and contents else {}
        try:
            return read_records(json.loads(first.get("text", "")), proven=self.hub.proven)
        except (ValueError, TypeError, AttributeError, RecursionError):
            return {}

    async def ping(self, *, within: float) -> None:
        """Check that the connection still answers. An error is an answer too."""
        method = "server/discover" if self.era == "modern" else "ping"
        with suppress(MCPError):
            await _within(self.ask(method, {}, tell=False), within, "a sign of life")

    async def ask(self, method: str, params: Fields, *, tell: bool = True) -> RawObject:
        """A request of the hub itself, in the form of this connection. The caller bounds the time."""
        params, headers = self._form.addressed(method, params, None)
        return await self.wire.ask(method, params, headers=headers, tell=tell)

    def __repr__(self) -> str:
        return f"<Connection {self.era} {self.wire!r}>"


async def forget_client(connection: Connection, key: str, principal: str) -> None:
    """Tell the hub on the other side that a client left: what it has for that client alone ends."""
    if connection.hub is not None and isinstance(connection.wire, HttpDispatcher):
        await connection.wire.end_session(connection.hub.about(key, principal))


async def close(closers: AsyncExitStack) -> None:
    """Close all that a dial opened, the latest first. Bounded, and shielded from cancellation."""
    with anyio.move_on_after(CLOSE_SECONDS, shield=True):
        await closers.aclose()


async def _within(work: Awaitable[_T], within: float, doing: str) -> _T:
    try:
        with anyio.fail_after(within):
            return await work
    except TimeoutError:
        raise ServerFailure(TimedOut(doing=doing, after=within)) from None


def _timed_out(method: str, params: Fields, request: RequestInFlight, idle: float, within: float) -> TimedOut:
    # A server's own timeout raises its hard limit, so it is the one to raise where both are the same.
    waited, key = (within, "holdfast.call.hardTimeout") if request.hard and within != idle else (idle, "timeout")
    what = text_of(params.get("name")) or text_of(params.get("uri")) or method
    return TimedOut(doing=f"the result of {what}", after=waited, setting=key)


def _run_as_tasks(tools: Iterable[Offer]) -> frozenset[str]:
    """The tools that their server runs only as tasks."""
    return frozenset(name for name, raw in tools if task_support(raw) == "required")


class Requester(Protocol):
    """Sends one request of the caller."""

    async def __call__(self, method: str, params: Fields, *, idle: float, within: float) -> RawObject:
        """The server's result."""


async def call_as_task(request: Requester, params: Fields, *, idle: float, within: float) -> RawObject:
    """Create the task, wait for its result, and cancel it if the caller leaves or the time is over."""
    until = anyio.current_time() + within
    created = await request("tools/call", {**params, "task": b"{}"}, idle=idle, within=within)
    task = _created_task(created)
    if task is None:
        return created
    about: Fields = {"taskId": dumps(task)} | ({"_meta": params["_meta"]} if "_meta" in params else {})
    left = max(until - anyio.current_time(), 0.0)
    ended = False
    try:
        result = await request("tasks/result", about, idle=left, within=left)
        ended = True
    except ServerFailure as failure:
        ended = isinstance(failure.evidence, HttpStatus | NetworkFailure)
        raise _after_creation(failure, text_of(params.get("name")) or "the task", within) from failure
    finally:
        if not ended:
            await _cancel(request, about)
    return _plain(result)


def _created_task(created: RawObject) -> str | None:
    task = created.get("task")
    return text_of(fields(task).get("taskId")) if task is not None and is_object(task) else None


def _after_creation(failure: ServerFailure, name: str, within: float) -> ServerFailure:
    """The failure of a task that runs. The server did act: no evidence may say that it refused before."""
    seen = failure.evidence
    if isinstance(seen, TimedOut):
        return ServerFailure(replace(seen, doing=f"the result of {name}", after=within))
    expired = isinstance(seen, HttpStatus) and seen.status == 404
    refused = isinstance(seen, NetworkFailure) and seen.fault is NetworkFault.REFUSED
    if expired or refused:
        detail = "the server lost the task's session" if expired else "the server went away while the task ran"
        return ServerFailure(NetworkFailure(fault=NetworkFault.CLOSED, stood=True, detail=detail))
    return failure


async def _cancel(request: Requester, about: Fields) -> None:
    with anyio.move_on_after(CANCEL_SECONDS, shield=True):
        try:
            await request("tasks/cancel", about, idle=CANCEL_SECONDS, within=CANCEL_SECONDS)
        except ServerFailure:
            return  # it has ended, or its server has


def _plain(result: RawObject) -> RawObject:
    """The result without the name of a task that its caller never saw."""
    meta = result.get("_meta")
    if meta is None or not is_object(meta) or RELATED_TASK not in (members := fields(meta)):
        return result
    rest = {key: value for key, value in members.items() if key != RELATED_TASK}
    return result.changed({"_meta": join_fields(rest) if rest else None})


# Watching a connection: its notifications, and its end.

LIST_CHANGED = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
    }
)
"""The notifications of a changed list."""

SOUND_SECONDS = 5.0
"""After a stream that lasted this long, the next one is opened without a pause."""

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
"""The pause after a short stream; it doubles each time, up to the longest."""


async def watch_connection(connection: Connection, changed: Callable[[], object]) -> Evidence:
    """Wait until the connection is lost; ``changed`` is called when notifications may have been missed."""
    stream = _Stream(connection, changed)
    if isinstance(connection.wire, HttpDispatcher):
        return await stream.hold()
    async with anyio.create_task_group() as tasks:
        if connection.era == "modern":
            tasks.start_soon(stream.hold)
        gone = await connection.wire.gone()
        tasks.cancel_scope.cancel()
    return gone


class _Stream:
    """The stream of one connection, opened again each time that it ends."""

    def __init__(self, connection: Connection, changed: Callable[[], object]) -> None:
        self._connection = connection
        self._changed = changed
        self._pauses = _Pauses()
        self._open = False
        self._ever_open = False

    async def hold(self) -> Evidence:
        """Keep a stream open; returns the evidence when no stream can be opened any more."""
        with self._connection.wire.incoming.listening(self._opened):
            while True:
                began, self._open = anyio.current_time(), False
                try:
                    if not await self._read():
                        await anyio.sleep_forever()
                except ServerFailure as failure:
                    if self._tells_the_end(failure.evidence):
                        return failure.evidence
                    if _not_found(failure.evidence):
                        await anyio.sleep_forever()
                await self._pauses.wait(began)
                if not self._open:
                    self._changed()

    async def _read(self) -> bool:
        """Read one stream to its end; False if the server has none to offer."""
        connection = self._connection
        if connection.era == "modern":
            return await subscribe(connection, _offered(connection.capabilities))
        assert isinstance(connection.wire, HttpDispatcher)  # noqa: S101 - the only kind that comes here
        return await connection.wire.read_stream(opened=self._opened)

    def _opened(self) -> None:
        """From now on notifications come. One between the last listing and now was missed."""
        self._open = self._ever_open = True
        self._changed()

    def _tells_the_end(self, seen: Evidence) -> bool:
        """Whether the server is gone: no answer, or a forgotten session. A stream that was open and broke is no proof.

        A 404 to the first request means that the server offers no stream.
        """
        if isinstance(seen, HttpStatus):
            return _not_found(seen) and self._ever_open
        return isinstance(seen, NetworkFailure | TimedOut) and not self._open


class _Pauses:
    """The pauses before a stream is opened again: none after one that lasted, and longer ones after short ones."""

    def __init__(self) -> None:
        self._short_ones = 0

    async def wait(self, began: float) -> None:
        """The stream that was opened then has ended."""
        lasted = anyio.current_time() - began
        self._short_ones = 0 if lasted >= SOUND_SECONDS else self._short_ones + 1
        if self._short_ones > 1:
            await anyio.sleep(min(PAUSE_SECONDS * 2.0 ** min(self._short_ones - 2, 10), LONGEST_PAUSE_SECONDS))


def _not_found(seen: Evidence) -> bool:
    return isinstance(seen, HttpStatus) and seen.status == 404


async def subscribe(connection: Connection, wanted: Mapping[str, Any]) -> bool:
    """Hold a subscription until the server ends it; False if there is nothing to subscribe to."""
    if not wanted:
        return False
    try:
        await connection.ask("subscriptions/listen", RawObject.of({"notifications": wanted}).members)
    except MCPError as exc:
        return exc.code not in _NO_SUCH_THING
    return True


_NO_SUCH_THING = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, INVALID_REQUEST})


def _offered(can: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that the server offers notifications of, by its capabilities."""
    kinds = ("tools", "prompts", "resources")
    return {f"{kind}ListChanged": True for kind in kinds if can.get(kind, {}).get("listChanged")}


LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""From the most messages to the fewest."""

CONFIRM_SECONDS = 15.0
"""How long a server may take to confirm one request. Without an answer, the next connection asks again."""


STATUS_SECONDS = 10.0
"""How long a hub may take to tell its status."""

STATUS_AGAIN_SECONDS, DOWN_AGAIN_SECONDS = 60.0, 5.0
"""How often a hub is asked though it says nothing: a notice may be lost, and words such as "starting for 12 s" age."""


async def follow_hub(connection: Connection, told: Callable[[ServerRecord | None], object]) -> None:
    """Read the status of a hub whenever it changed, until cancelled; ``told`` gets what it says of its one server.

    A status that cannot be read changes nothing: whether the hub is gone is seen by ``watch_connection``.
    """
    well = False
    while True:
        changed = connection.wire.incoming.status_told
        with suppress(ServerFailure):
            record = _of_one(await connection.hub_status(within=STATUS_SECONDS), connection)
            told(record)
            well = record is None or record.is_available
        with anyio.move_on_after(STATUS_AGAIN_SECONDS if well else DOWN_AGAIN_SECONDS):
            await changed.wait()


async def first_status(connection: Connection, *, within: float) -> ServerRecord | None:
    """What a hub says of its one server; None if it says nothing that can be read."""
    with suppress(ServerFailure):
        return _of_one(await connection.hub_status(within=min(within, STATUS_SECONDS)), connection)
    return None


def _of_one(records: Mapping[str, ServerRecord], connection: Connection) -> ServerRecord | None:
    """The record of the server of an endpoint that has one; a hub of many is one server here, and it is up.

    An endpoint of one server is what ``{"hub": …}`` names. It can also be written as a URL.
    """
    if len(records) != 1 or connection.hub is None:
        return None
    return next(iter(records.values())).seen_by(connection.hub.own_id)


class DesiredState:
    """What all clients of one server together want of it."""

    def __init__(self) -> None:
        self._watchers: dict[str, int] = {}
        self.log_level: str | None = None
        """The lowest level that any client wants; each client then gets what it asked for itself."""
        self.changed = anyio.Event()

    @property
    def uris(self) -> frozenset[str]:
        """The resources that at least one client watches."""
        return frozenset(self._watchers)

    def watch(self, uri: str) -> bool:
        """Add a watcher; returns whether it is the first."""
        self._watchers[uri] = self._watchers.get(uri, 0) + 1
        self._wake()
        return self._watchers[uri] == 1

    def unwatch(self, uri: str) -> bool:
        """Remove a watcher; returns whether it was the last."""
        left = self._watchers.pop(uri, 0) - 1
        if left > 0:
            self._watchers[uri] = left
        self._wake()
        return left == 0

    def log(self, level: str) -> bool:
        """A client wants this level; returns whether the server must send more than before."""
        if self.log_level is not None and LOG_LEVELS.index(level) >= LOG_LEVELS.index(self.log_level):
            return False
        self.log_level = level
        return True

    def _wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


def _missed(connection: Connection, uri: str) -> None:
    """A watched resource may have changed while no stream was open: send its watchers a change."""
    connection.wire.incoming.pass_on("notifications/resources/updated", {"uri": uri})


async def apply_desired_state(connection: Connection, wishes: DesiredState) -> None:
    """Apply the desired state to a new connection, for as long as it lasts."""
    for uri in wishes.uris:
        _missed(connection, uri)
    own = frozenset({STATUS_URI}) if connection.hub is not None else frozenset[str]()
    if connection.era == "modern":
        await _subscribe_each(connection, wishes, own)
        return
    if wishes.log_level is not None:
        await _request(connection, "logging/setLevel", {"level": wishes.log_level})
    for uri in wishes.uris | own:
        await _request(connection, "resources/subscribe", {"uri": uri})


async def _request(connection: Connection, method: str, params: dict[str, str]) -> None:
    with suppress(ServerFailure):
        await connection.request(method, RawObject.of(params).members, idle=CONFIRM_SECONDS, within=CONFIRM_SECONDS)


async def _subscribe_each(connection: Connection, wishes: DesiredState, own: frozenset[str]) -> None:
    """Open one subscription for each resource, so that one can end without the others; ``own`` are for this hub."""
    open_ones: dict[str, anyio.CancelScope] = {}
    async with anyio.create_task_group() as tasks:
        while True:
            changed, wanted = wishes.changed, wishes.uris | own
            for uri in open_ones.keys() - wanted:
                open_ones.pop(uri).cancel()
            for uri in wanted - open_ones.keys():
                open_ones[uri] = anyio.CancelScope()
                tasks.start_soon(_keep_subscribed, connection, uri, open_ones[uri])
            await changed.wait()


async def _keep_subscribed(connection: Connection, uri: str, scope: anyio.CancelScope) -> None:
    """Keep one subscription open; open it again after a cut, for as long as the connection lasts."""
    pauses, goes_on = _Pauses(), True
    with scope:
        while goes_on:
            began = anyio.current_time()
            with suppress(ServerFailure):
                goes_on = await subscribe(connection, {"resourceSubscriptions": [uri]})
            if goes_on:
                await pauses.wait(began)
                _missed(connection, uri)
