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
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar

import anyio
import mcp_types as types
from mcp import ClientSession, MCPError
from mcp.shared.inbound import (
    NAME_BEARING_METHODS,
    mcp_param_headers,
)
from mcp_types import HEADER_MISMATCH
from mcp_types.methods import validate_server_result
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import ValidationError

from holdfast._version import __version__
from holdfast.config import Limits
from holdfast.core import (
    STATUS_URI,
    Evidence,
    NotMcp,
    NotMcpFault,
    RpcError,
    ServerRecord,
    TimedOut,
    read_records,
)
from holdfast.errors import ServerFailure
from holdfast.turns import Turns
from holdfast.types import CallResult, ProgressFn
from holdfast.wire.deadlines import Deadline
from holdfast.wire.http.sse import SseDispatcher
from holdfast.wire.http.transport import HttpDispatcher
from holdfast.wire.hub_peer import HubPeer
from holdfast.wire.listing import Offers, ToolInfo, list_other_offers, list_tool_offers, list_tools
from holdfast.wire.own_meta import clean_data, clean_result
from holdfast.wire.progress import CallProgress
from holdfast.wire.raw_json import (
    BadJson,
    Bytes,
    Fields,
    RawObject,
    dumps,
    fields,
    is_array,
    is_object,
    join_fields,
    load_members,
    loads,
    objects,
    read_object,
    text_of,
)
from holdfast.wire.relay import Caller, Era, RelayDispatcher
from holdfast.wire.rpc import first_error
from holdfast.wire.stamp import RequestStamp
from holdfast.wire.stdio import StdioDispatcher
from holdfast.wire.tasks import (
    TASK_METHODS,
    call_as_task,
    task_support,
)
from holdfast.wire.tracing import trace_headers

__all__ = ["Connection", "Era", "Wire"]

STATUS_BYTES = 256 * 1024
"""How large the status of a hub may be: it is read on the event loop. One of a thousand servers is that large."""

CLOSE_SECONDS = 10.0
"""Each step of a close has a bound of its own; this one covers a mistake in them."""

CHECKED_BYTES = 256 * 1024
"""Up to this size results are checked against the protocol. Another pass over a large one costs more than it gives."""

_IN_PLACE_OF_CONTENT = ("resultType", "structuredContent", "task")

_BLOCKS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"text"}),
    "image": frozenset({"data", "mimeType"}),
    "audio": frozenset({"data", "mimeType"}),
    "resource": frozenset({"resource"}),
    "resource_link": frozenset({"uri", "name"}),
}
"""The blocks of a tool's result, and what each must have."""

_WRITTEN_BLOCKS: Mapping[bytes, frozenset[str]] = {dumps(kind): wanted for kind, wanted in _BLOCKS.items()}

DRAIN_SECONDS = 2.0
"""How long requests under way may take to end by themselves after a session has expired."""

_T = TypeVar("_T")
Wire: TypeAlias = HttpDispatcher | SseDispatcher | StdioDispatcher


class Connection:
    """One live connection."""

    def __init__(
        self, session: ClientSession, wire: Wire, relayed: RelayDispatcher, limits: Limits, closers: AsyncExitStack
    ) -> None:
        self.session = session
        self.wire = wire
        self._relayed = relayed
        self._limits = limits
        self._closers = closers
        self.era: Era = "legacy"
        self.hub: HubPeer | None = None
        """Set after the handshake, if the other side is a hub."""
        self._stamp: RequestStamp | None = None
        self._header_maps: Mapping[str, Mapping[tuple[str, ...], str]] = {}
        self._task_tools: frozenset[str] | None = None
        self._listed: Offers | None = None
        self.on_stream: Callable[[], None] = _ignore
        """Called each time that a subscription to the server's notifications begins."""

    def adopt(self, limits: Limits) -> None:
        """Use other bounds from the next message on."""
        self._limits = limits
        self.wire.adopt(limits)

    def noticed(self, method: str, pass_on: Callable[[str], None] | None) -> None:
        """A notification came that belongs to no request."""
        if method == "notifications/subscriptions/acknowledged":
            self.on_stream()
        elif pass_on is not None:
            pass_on(method)

    @property
    def instructions(self) -> str:
        """The server's instructions for its use."""
        return self.session.instructions or ""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """The capabilities that the server declared."""
        can = self.session.server_capabilities
        return can.model_dump(by_alias=True, mode="json", exclude_none=True) if can is not None else {}

    @property
    def handshake(self) -> dict[str, Any]:
        """The answer to ``initialize`` for another replica that uses this connection."""
        known = self.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        head: dict[str, Any] = {
            "protocolVersion": self.protocol_version if known else LATEST_HANDSHAKE_VERSION,
            "capabilities": dict(self.capabilities),
            "serverInfo": {"name": "holdfast", "version": __version__},
        }
        return head | ({"instructions": self.instructions} if self.instructions else {})

    @cached_property
    def runs_tasks(self) -> bool:
        """Whether the server runs tool calls as tasks, in the form of the legacy era. Known after the handshake."""
        can = self.session.server_capabilities
        offered = can.tasks if can is not None and self.era == "legacy" else None
        requests = offered.requests if offered is not None else None
        return requests is not None and requests.tools is not None and requests.tools.call is not None

    def missed(self, uri: str) -> None:
        """A watched resource may have changed while no stream was open: send its watchers a change."""
        self._relayed.told("notifications/resources/updated", {"uri": uri})

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification; the server does not answer it."""
        await self._relayed.notify(method, params)

    async def drain(self) -> None:
        """Wait for the requests under way to end. Bounded, and shielded from cancellation."""
        if isinstance(self.wire, HttpDispatcher):
            with anyio.move_on_after(DRAIN_SECONDS, shield=True):
                await self.wire.quiet()

    async def aclose(self) -> None:
        """End the session, then its transport. Bounded, and shielded from cancellation."""
        try:
            # No exception is passed in: a task group would wrap it, and callers check its type.
            await self.session.__aexit__(None, None, None)
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._closers.aclose()

    @property
    def protocol_version(self) -> str:
        """The negotiated protocol version."""
        return self.session.protocol_version or ""

    async def list_tools(self, *, within: float) -> tuple[ToolInfo, ...]:
        """Every tool of the server, over all pages, within so many seconds."""
        infos = await self._bounded(list_tools(self, self._limits), within, "its list of tools")
        self._task_tools = frozenset(info.name for info in infos if info.needs_task)
        return infos

    async def list_everything(self, *, within: float) -> Offers:
        """Tools, prompts, resources and templates, over all pages, within so many seconds.

        Raises if the tools cannot be listed; another list that fails is among the ``failures`` of the result. It is the
        same object as the last time if the server sent the same bytes.
        """
        until = anyio.current_time() + within
        last = self._listed
        offers = await self._bounded(list_tool_offers(self, self._limits, last), within, "its list of tools")
        if last is None or offers["tools"] is not last["tools"]:
            self._task_tools = frozenset(name for name, raw in offers["tools"] if task_support(raw) == "required")
        await list_other_offers(self, self._limits, offers, last, until=until)
        if last is None or not offers.equal(last):
            self._listed = last = offers
        return last

    @property
    def modern(self) -> bool:
        """Whether it speaks the modern era."""
        return self.era == "modern"

    @property
    def offers(self) -> types.ServerCapabilities:
        """What the server says that it has."""
        return self.session.server_capabilities or types.ServerCapabilities()

    @property
    def received(self) -> int:
        """How many bytes the server has sent so far."""
        return self.wire.received

    def mirrored(self, headers: Mapping[str, Mapping[tuple[str, ...], str]]) -> None:
        """Send arguments of tools as headers too: by tool, the header of each argument."""
        self._header_maps = headers

    async def list_page(self, method: str, cursor: str | None) -> RawObject:
        """One page of a list, as the bytes that it came in."""
        params: Fields = {"cursor": dumps(cursor)} if cursor is not None else {}
        headers = self.hub.headers(None) if self.hub is not None else {}
        if self.modern:
            params, headers = self._stamped(method, params, headers, None)
        return await read_object(await self.wire.call(method, params, headers=headers))

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
        request = partial(self._request, on_progress=on_progress, caller=caller)
        if method == "tools/call" and self.runs_tasks and await self._needs_task(params, within=idle):
            return await call_as_task(request, params, idle=idle, within=within)
        return await request(method, params, idle=idle, within=within)

    async def _needs_task(self, params: Fields, *, within: float) -> bool:
        if "task" in params:
            return False  # the caller runs the task itself
        if self._task_tools is None:
            await self.list_tools(within=within)
        return text_of(params.get("name")) in (self._task_tools or ())

    async def _request(
        self,
        method: str,
        params: Fields,
        *,
        idle: float,
        within: float,
        on_progress: ProgressFn | None = None,
        caller: Caller | None = None,
    ) -> RawObject:
        wire = self.wire
        if method == "tasks/result":
            idle = math.inf  # it waits until the task has ended
        timeout = wire.deadlines.start(idle=idle, within=within)
        call, token = self._relayed.begin(caller, timeout)
        progress = CallProgress(on_progress, timeout.extend)
        try:
            try:
                result = await self._sent(method, params, progress, caller)
            except MCPError as exc:
                if exc.code != HEADER_MISMATCH:
                    await progress.delivered()
                    raise self._rpc_failure(method, exc) from exc
                result = await self._sent_with_headers(method, params, progress, caller)
            await progress.delivered()
        except asyncio.CancelledError:
            if not timeout.absorb():
                raise
            if timeout.cut:
                raise wire.failure() from None
            raise ServerFailure(wire.unanswered() or _timed_out(method, params, timeout, idle, within)) from None
        finally:
            progress.close()
            self._relayed.end(call, token)
            wire.deadlines.end(timeout)
        return result

    @property
    def status_told(self) -> anyio.Event:
        """Set when the hub on the other side says that its status changed, or when that may have been missed."""
        return self._relayed.status_told

    async def hub_status(self, *, within: float) -> dict[str, ServerRecord]:
        """What the hub on the other side tells about its servers; empty if nothing of it can be read."""
        assert self.hub is not None  # noqa: S101 - the caller looked
        asked: Fields = {"uri": dumps(STATUS_URI)}
        result = await self._request("resources/read", asked, idle=within, within=within)
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
        await self._bounded(self._ping(), within, "a sign of life")

    async def _sent(self, method: str, params: Fields, progress: CallProgress, caller: Caller | None) -> RawObject:
        """Send a request once; raises ``MCPError`` for an error answer."""
        headers = trace_headers(params)
        if self.hub is not None:
            headers |= self.hub.headers(caller)
        if self.modern:
            params, headers = self._stamped(method, params, headers, caller)
        raw = await self.wire.call(method, params, headers=headers, on_progress=progress)
        try:
            result = await read_object(raw)
            if self.hub is not None and (told := self.hub.failure_in(result)) is not None:
                raise ServerFailure(told)
            if result.is_large:
                await Turns().give()  # each pass over a large result takes milliseconds
            result = clean_result(result)
            self._check_result(method, result)
        except BadJson as exc:
            raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc))) from exc
        except ValidationError as exc:
            raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=first_error(exc))) from exc
        return result

    async def _sent_with_headers(
        self, method: str, params: Fields, progress: CallProgress, caller: Caller | None
    ) -> RawObject:
        """Send a request again that the server refused before it acted: it wants arguments mirrored into headers.

        A listing tells which ones.
        """
        await list_tools(self, self._limits)
        try:
            return await self._sent(method, params, progress, caller)
        except MCPError as exc:
            raise self._rpc_failure(method, exc) from exc

    def _rpc_failure(self, method: str, exc: MCPError) -> ServerFailure:
        data = exc.error.data
        if self.hub is not None and (told := self.hub.failure_of(data, exc.message)) is not None:
            return ServerFailure(told)
        return ServerFailure(RpcError(method=method, code=exc.code, message=exc.message, data=clean_data(data)))

    def _stamped(
        self, method: str, params: Fields, headers: dict[str, str], caller: Caller | None
    ) -> tuple[Fields, dict[str, str]]:
        """A modern request: it says in ``_meta`` and in headers what a legacy session says once."""
        if self._stamp is None or self._stamp.version != self.protocol_version:
            self._stamp = RequestStamp(self.protocol_version)
        stamp = self._stamp.meta(caller)
        raw = params.get("_meta")
        meta = stamp if raw is None else join_fields({**fields(raw), **fields(stamp)})
        named = "taskId" if method in TASK_METHODS else NAME_BEARING_METHODS.get(method)
        name = text_of(params.get(named)) if named is not None else None
        routing = self._stamp.headers(method, name)
        if method == "tools/call" and name is not None:
            headers |= self._mirrored_arguments(name, params)
        return {**params, "_meta": meta}, {**headers, **routing} if headers else routing

    def _mirrored_arguments(self, name: str, params: Fields) -> dict[str, str]:
        """The arguments that a tool wants as headers too; they are read for such a tool alone."""
        wanted = self._header_maps.get(name)
        if not wanted:
            return {}
        given = params.get("arguments")
        arguments = fields(given) if is_object(given) and given is not None else {}
        read = {path[0] for path in wanted}
        return mcp_param_headers(wanted, {key: loads(value) for key, value in arguments.items() if key in read})

    def _check_result(self, method: str, result: RawObject) -> None:
        """A tool's result is passed on unread; of any other the hub reads what the protocol says of it."""
        if method == "tools/call":
            content = result.get("content")
            if content is not None and not is_array(content):
                raise BadJson("content: it is not a list")
            if content is None and not any(key in result.members for key in _IN_PLACE_OF_CONTENT):
                raise BadJson("content: it is missing")
            if content is not None and len(memoryview(content)) <= CHECKED_BYTES:
                _check_blocks(content)
            return
        if result.size > CHECKED_BYTES:
            return
        with suppress(KeyError):
            validate_server_result(method, self.protocol_version or LATEST_HANDSHAKE_VERSION, result.value())

    async def _ping(self) -> None:
        try:
            if self.era == "modern":
                await self.session.send_discover(self.protocol_version or LATEST_MODERN_VERSION)
            else:
                await self.session.send_request(types.PingRequest(), types.EmptyResult)
        except (MCPError, ValidationError):
            return

    async def _bounded(self, work: Awaitable[_T], within: float, doing: str) -> _T:
        try:
            with anyio.fail_after(within):
                return await work
        except TimeoutError:
            raise ServerFailure(self._silence(doing, within)) from None

    def _silence(self, doing: str, after: float) -> Evidence:
        return self.wire.unanswered() or TimedOut(doing=doing, after=after)


def _check_blocks(content: Bytes) -> None:
    """Refuse a block that no client can read: one that is malformed costs some clients their whole session."""
    for place, block in enumerate(objects(content)):
        kind = block.get("type")
        wanted = _WRITTEN_BLOCKS.get(bytes(kind)) if kind is not None else None
        if wanted is None and kind is not None:
            wanted = _BLOCKS.get(text_of(kind) or "")
        if wanted is None or not wanted <= block.keys():
            raise BadJson(f"content.{place}: it is no block that the protocol knows")


def _timed_out(method: str, params: Fields, timeout: Deadline, idle: float, within: float) -> TimedOut:
    # A server's own timeout raises its hard limit, so it is the one to raise where both are the same.
    waited, key = (within, "holdfast.call.hardTimeout") if timeout.hard and within != idle else (idle, "timeout")
    what = text_of(params.get("name")) or text_of(params.get("uri")) or method
    return TimedOut(doing=f"the result of {what}", after=waited, setting=key)


def _ignore() -> None:
    """The default for a callback that was not set."""
