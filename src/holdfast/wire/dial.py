"""Dial a server: a live connection, or ``ServerFailure`` with the evidence. Whatever happens, it is closed again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import anyio
import mcp_types as types
from mcp import ClientSession, MCPError
from mcp_types import HEADER_MISMATCH
from pydantic import ValidationError

from holdfast._version import __version__
from holdfast.config.spec import Limits, ServerSpec
from holdfast.core.evidence import Evidence, NotMcp, NotMcpFault, ProcessExit, RpcError, TimedOut
from holdfast.core.redact import Redactor
from holdfast.errors import ServerFailure
from holdfast.wire.handshake import Era, negotiate
from holdfast.wire.http import HttpDispatcher
from holdfast.wire.http_client import HttpPeer
from holdfast.wire.listing import ToolInfo, list_tools
from holdfast.wire.process import Child
from holdfast.wire.sse import SseDispatcher
from holdfast.wire.stdio import StdioDispatcher
from holdfast.wire.warden import Warden

__all__ = ["CallResult", "Connection", "Dialer", "ProgressFn"]

CLOSE_SECONDS = 10.0
"""Each way of closing has a bound of its own; this one is for the case that one of them is wrong."""

_T = TypeVar("_T")
_Wire: TypeAlias = HttpDispatcher | SseDispatcher | StdioDispatcher


class ProgressFn(Protocol):
    """Told of a call's progress, in order, all of it before the result."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """One step."""


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """What a tool gave back."""

    content: tuple[Mapping[str, Any], ...] = ()
    """The blocks as the server sent them: ``{"type": "text", "text": …}`` and so on."""
    structured: Mapping[str, Any] | None = None
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All text blocks, joined by line ends."""
        return "\n".join(str(block["text"]) for block in self.content if block.get("type") == "text")


class Connection:
    """One live connection. Any task may use it; only the one that dialed it closes it."""

    def __init__(self, session: ClientSession, wire: _Wire, limits: Limits, closers: AsyncExitStack) -> None:
        self.session = session
        self.wire = wire
        self._limits = limits
        self._closers = closers
        self.era: Era = "legacy"

    async def aclose(self) -> None:
        """End the session, then whatever carried it. Bounded, and no cancellation cuts it short."""
        try:
            # No exception is passed in: a task group would wrap it, and its type is what callers go by.
            await self.session.__aexit__(None, None, None)
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._closers.aclose()

    @property
    def protocol_version(self) -> str:
        """The version that both sides speak."""
        return self.session.protocol_version or ""

    async def list_tools(self, *, within: float) -> tuple[ToolInfo, ...]:
        """Every tool of the server, over all pages, within so many seconds."""
        return await self._bounded(self._list(), within, "its list of tools")

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        idle: float,
        within: float,
        on_progress: ProgressFn | None = None,
    ) -> CallResult:
        """Call a tool once. Raises ``ServerFailure`` unless the server gave a result.

        ``idle`` is how long the server may be silent: progress extends it, up to ``within`` in all.
        """
        latest = anyio.current_time() + within

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            quiet.deadline = min(anyio.current_time() + idle, latest)
            if on_progress is not None:
                await on_progress(progress, total, message)

        with anyio.move_on_after(min(idle, within)) as quiet:
            return await self._call(name, arguments, tell)
        waited, key = (idle, "timeout") if quiet.deadline < latest else (within, "hardTimeout")
        seen = TimedOut(doing=f"the result of {name}", after=waited, setting=f"holdfast.call.{key}")
        raise ServerFailure(self.wire.unanswered() or seen)

    async def _list(self) -> tuple[ToolInfo, ...]:
        return await list_tools(self.session, self._limits, lambda: self.wire.received)

    async def _call(self, name: str, arguments: Mapping[str, Any], on_progress: ProgressFn | None) -> CallResult:
        try:
            return await self._call_once(name, arguments, on_progress)
        except MCPError as exc:
            if exc.code != HEADER_MISMATCH:
                raise _rpc_failure(exc) from exc
        # Refused before anything was done: the server wants arguments mirrored into headers, and the
        # session learns which from a listing.
        await self._list()
        try:
            return await self._call_once(name, arguments, on_progress)
        except MCPError as exc:
            raise _rpc_failure(exc) from exc

    async def _call_once(self, name: str, arguments: Mapping[str, Any], on_progress: ProgressFn | None) -> CallResult:
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=dict(arguments)))
        try:
            result = await self.session.send_request(request, types.CallToolResult, progress_callback=on_progress)
        except ValidationError as exc:
            raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT)) from exc
        return CallResult(
            content=tuple(block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content),
            structured=result.structured_content,
            is_error=result.is_error,
            meta=dict(result.meta or {}),
        )

    async def _bounded(self, work: Awaitable[_T], within: float, doing: str) -> _T:
        try:
            with anyio.fail_after(within):
                return await work
        except TimeoutError:
            raise ServerFailure(self.wire.unanswered() or TimedOut(doing=doing, after=within)) from None


def _rpc_failure(exc: MCPError) -> ServerFailure:
    return ServerFailure(RpcError(method="tools/call", code=exc.code, message=exc.message))


class Dialer:
    """Dials servers under one set of bounds and one warden."""

    def __init__(self, *, warden: Warden, limits: Limits) -> None:
        self._warden = warden
        self._limits = limits

    @asynccontextmanager
    async def connect(
        self, spec: ServerSpec, *, within: float, redactor: Redactor, era: Era | None = None
    ) -> AsyncIterator[Connection]:
        """A connection whose handshake is done, within so many seconds."""
        deadline = anyio.current_time() + within
        try:
            connection = await self._dial(spec, deadline, redactor, era)
        except ServerFailure as failure:
            if not _probe_ended_it(failure.evidence, era):
                raise
            connection = await self._dial(spec, deadline, redactor, "legacy")
        try:
            yield connection
        finally:
            await connection.aclose()

    async def _dial(self, spec: ServerSpec, deadline: float, redactor: Redactor, era: Era | None) -> Connection:
        closers = AsyncExitStack()
        try:
            wire = await self._open(closers, spec, redactor)
            me = types.Implementation(name="holdfast", version=__version__)
            session = ClientSession(dispatcher=wire, client_info=me)
            await session.__aenter__()
        except BaseException:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await closers.aclose()
            raise
        connection = Connection(session, wire, self._limits, closers)
        try:
            # That transport ended with the legacy era: there is nothing to probe for.
            connection.era = await self._greet(connection, deadline, "legacy" if spec.transport == "sse" else era)
        except BaseException:
            await connection.aclose()
            raise
        return connection

    async def _greet(self, connection: Connection, deadline: float, era: Era | None) -> Era:
        wire, left = connection.wire, max(deadline - anyio.current_time(), 0.0)
        try:
            with anyio.fail_after(left):
                era = await negotiate(connection.session, era=era, patient=isinstance(wire, StdioDispatcher))
        except TimeoutError:
            seen = wire.unanswered() or TimedOut(doing="its first answer", after=round(left, 1))
            raise ServerFailure(seen) from None
        wire.stood = True
        return era

    async def _open(self, stack: AsyncExitStack, spec: ServerSpec, redactor: Redactor) -> _Wire:
        """The transport, and on the stack whatever ends it again. No answer is waited for here."""
        if spec.transport == "stdio":
            child = await Child.start(spec, warden=self._warden, redactor=redactor, keep=self._limits.stderr_bytes)
            pipes = StdioDispatcher(child, self._limits, redactor)
            stack.push_async_callback(lambda: child.close(politely=pipes.stood))
            return pipes
        peer = HttpPeer(spec, self._limits, redactor)
        stack.push_async_callback(peer.aclose)
        if spec.transport == "sse":
            return SseDispatcher(peer)
        posts = HttpDispatcher(peer)
        stack.push_async_callback(posts.end_session)
        return posts


def _probe_ended_it(seen: Evidence, era: Era | None) -> bool:
    """Some old servers end when they are asked anything before ``initialize``: they get another chance."""
    return era is None and isinstance(seen, ProcessExit) and seen.heard and not seen.stood
