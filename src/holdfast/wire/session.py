"""One live connection to a server, after its handshake: requests, listings, calls, pings, close.

Any task may use a connection; only the task that dialed it closes it. Every wait has a bound. Every failure is
``ServerFailure`` with evidence; a server's JSON-RPC error is an answer, and is ``RpcError`` evidence.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

import anyio
import mcp_types as types
from mcp import ClientSession, MCPError
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import ValidationError

from holdfast.config import Limits
from holdfast.core import (
    STATUS_URI,
    NotMcp,
    NotMcpFault,
    ServerRecord,
    TimedOut,
    read_records,
)
from holdfast.errors import ServerFailure
from holdfast.types import CallResult, ProgressFn
from holdfast.wire.http.sse import SseDispatcher
from holdfast.wire.http.transport import HttpDispatcher
from holdfast.wire.hub_peer import HubPeer
from holdfast.wire.in_flight import CURRENT, Caller, Era, RequestInFlight
from holdfast.wire.listing import Offers, ToolInfo, list_other_offers, list_tool_offers, list_tools
from holdfast.wire.raw_json import (
    BadJson,
    Fields,
    RawObject,
    dumps,
    load_members,
    text_of,
)
from holdfast.wire.relay import RelayDispatcher
from holdfast.wire.request_sender import RequestSender
from holdfast.wire.stdio import StdioDispatcher
from holdfast.wire.tasks import (
    call_as_task,
    task_support,
)

__all__ = ["Connection", "Wire", "close_session", "declared"]

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
        session: ClientSession,
        wire: Wire,
        relayed: RelayDispatcher,
        limits: Limits,
        closers: AsyncExitStack,
        *,
        era: Era,
        hub: HubPeer | None,
    ) -> None:
        self.session = session
        self.wire = wire
        self.relayed = relayed
        """Routes what the server sends by itself to the hub's clients."""
        self._limits = limits
        self._closers = closers
        self.era: Era = era
        self.hub = hub
        """The other side, if it is a hub."""
        self.instructions = session.instructions or ""
        """The server's instructions for its use."""
        self.capabilities = declared(session)
        """The capabilities that the server declared."""
        self._sender = RequestSender(session, wire, era, hub)
        self.protocol_version = self._sender.version
        self.runs_tasks = self._sender.runs_tasks
        """Whether the server runs tool calls as tasks, in the form of the legacy era."""
        self._task_tools: frozenset[str] | None = None
        self._listed: Offers | None = None
        self.on_stream: Callable[[], None] = _ignore
        """Called each time that a subscription to the server's notifications begins."""

    def adopt(self, limits: Limits) -> None:
        """Use other bounds from the next message on."""
        self._limits = limits
        self.wire.adopt(limits)

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification; the server does not answer it."""
        await self.relayed.notify(method, params)

    async def drain(self) -> None:
        """Wait for the requests under way to end. Bounded, and shielded from cancellation."""
        if isinstance(self.wire, HttpDispatcher):
            with anyio.move_on_after(DRAIN_SECONDS, shield=True):
                await self.wire.in_flight.empty()

    async def aclose(self) -> None:
        """End the session, then its transport. Bounded, and shielded from cancellation."""
        await close_session(self.session, self._closers)

    async def list_tools(self, *, within: float) -> tuple[ToolInfo, ...]:
        """Every tool of the server, over all pages, within so many seconds."""
        infos = await _within(self.wire, list_tools(self._sender, self._limits), within, "its list of tools")
        self._task_tools = frozenset(info.name for info in infos if info.needs_task)
        return infos

    async def list_everything(self, *, within: float) -> Offers:
        """Tools, prompts, resources and templates, over all pages, within so many seconds.

        Raises if the tools cannot be listed; another list that fails is among the ``failures`` of the result. It is the
        same object as the last time if the server sent the same bytes.
        """
        until = anyio.current_time() + within
        last = self._listed
        offers = await _within(
            self.wire, list_tool_offers(self._sender, self._limits, last), within, "its list of tools"
        )
        if last is None or offers["tools"] is not last["tools"]:
            self._task_tools = frozenset(name for name, raw in offers["tools"] if task_support(raw) == "required")
        await list_other_offers(self._sender, self._limits, offers, last, until=until)
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
        request = wire.in_flight.start(caller, on_progress, idle=idle, within=within)
        token = CURRENT.set(request)
        try:
            try:
                result = await self._sender.request(method, params, request, self._limits)
            except ServerFailure:
                await request.delivered()
                raise
            if request.delivery is not None:
                await request.delivered()
        except asyncio.CancelledError:
            if not request.absorb():
                raise
            if request.cut:
                raise wire.failure() from None
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

    @property
    def status_told(self) -> anyio.Event:
        """Set when the hub on the other side says that its status changed, or when that may have been missed."""
        return self.relayed.status_told

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

        async def answered() -> None:
            with suppress(MCPError, ValidationError):
                if self.era == "modern":
                    await self.session.send_discover(self.protocol_version or LATEST_MODERN_VERSION)
                else:
                    await self.session.send_request(types.PingRequest(), types.EmptyResult)

        await _within(self.wire, answered(), within, "a sign of life")

    def __repr__(self) -> str:
        return f"<Connection {self.era} {self.wire!r}>"


def declared(session: ClientSession) -> Mapping[str, Any]:
    """The capabilities that a server declared in its handshake."""
    can = session.server_capabilities
    return can.model_dump(by_alias=True, mode="json", exclude_none=True) if can is not None else {}


async def close_session(session: ClientSession, closers: AsyncExitStack) -> None:
    """End a session, then its transport. Bounded, and shielded from cancellation."""
    try:
        # No exception is passed in: a task group would wrap it, and callers check its type.
        await session.__aexit__(None, None, None)
    finally:
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


def _ignore() -> None:
    """The default for a callback that was not set."""
