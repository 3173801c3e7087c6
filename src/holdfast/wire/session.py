"""One live connection to a server, after its handshake: requests, listings, calls, pings, close.

A request has the form that both sides agreed on, and a result is cleaned and checked (``request_form``). Both pass on
as the bytes that they came in.

Tools that run as tasks. At 2025-11-25 a tool says ``execution.taskSupport``: a ``required`` one refuses a plain call.
Most clients know no tasks, so such a call is made as a task here, which waits for its result. At 2026-07-28 the server
decides, for clients that declare the extension; nothing is needed here.

Any task may use a connection; only the task that dialed it closes it. Every wait has a bound. Every failure is
``ServerFailure`` with evidence; a server's JSON-RPC error is an answer, and is ``RpcError`` evidence.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import anyio
from mcp import MCPError
from mcp_types import (
    HEADER_MISMATCH,
)

from holdfast.config import Limits
from holdfast.core import (
    STATUS_URI,
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

__all__ = ["RELATED_TASK", "Connection", "Wire", "close", "forget_client"]

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
        tools = (await _within(self.wire, listing, within, "its list of tools"))["tools"]
        self._task_tools = _run_as_tasks(tools)
        return tools

    async def list_everything(self, *, within: float) -> Offers:
        """Tools, prompts, resources and templates, over all pages, within so many seconds.

        Raises if the tools cannot be listed; another list that fails is among the ``failures`` of the result. It is the
        same object as the last time if the server sent the same bytes.
        """
        until = anyio.current_time() + within
        last = self._listed
        offers = await _within(self.wire, list_tool_offers(self._form, last), within, "its list of tools")
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
            raise ServerFailure(wire.unanswered() or _timed_out(method, params, request, idle, within)) from None
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
            await _within(self.wire, self.ask(method, {}, tell=False), within, "a sign of life")

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


async def _within(wire: Wire, work: Awaitable[_T], within: float, doing: str) -> _T:
    try:
        with anyio.fail_after(within):
            return await work
    except TimeoutError:
        raise ServerFailure(wire.unanswered() or TimedOut(doing=doing, after=within)) from None


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
