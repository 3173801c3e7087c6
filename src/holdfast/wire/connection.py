"""One live connection to a server: ask it, list it, listen to it, see it go.

Any task may use a connection; only the task that dialed it closes it. Every wait has a bound, and
whatever goes wrong is ``ServerFailure`` with evidence, except a server's own JSON-RPC error, which
is an answer like any other and is told as ``RpcError`` evidence too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeAlias, TypeVar

import anyio
import mcp_types as types
from mcp import ClientSession, MCPError
from mcp_types import HEADER_MISMATCH
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import ValidationError

from holdfast.config.spec import Limits
from holdfast.core.evidence import Evidence, NotMcp, NotMcpFault, RpcError, TimedOut
from holdfast.errors import ServerFailure
from holdfast.types import CallResult, ProgressFn
from holdfast.wire.handshake import Era
from holdfast.wire.http import HttpDispatcher
from holdfast.wire.listing import Offer, OfferKind, ToolInfo, list_everything, list_tools
from holdfast.wire.relay import Caller, Patience, Relayed, calling
from holdfast.wire.requests import RawRequest, RawResult, first_error
from holdfast.wire.sse import SseDispatcher
from holdfast.wire.stdio import StdioDispatcher

__all__ = ["Connection", "Wire"]

CLOSE_SECONDS = 10.0
"""Each way of closing has a bound of its own; this one is for the case that one of them is wrong."""

DRAIN_SECONDS = 2.0
"""How long requests may take to be refused one by one, once a session is known to have expired."""

_T = TypeVar("_T")
Wire: TypeAlias = HttpDispatcher | SseDispatcher | StdioDispatcher


class Connection:
    """One live connection."""

    def __init__(
        self, session: ClientSession, wire: Wire, relayed: Relayed, limits: Limits, closers: AsyncExitStack
    ) -> None:
        self.session = session
        self.wire = wire
        self._relayed = relayed
        self._limits = limits
        self._closers = closers
        self.era: Era = "legacy"
        self.on_stream: Callable[[], None] = _nobody
        """Told each time that a subscription to the server's notices has begun."""

    def adopt(self, limits: Limits) -> None:
        """Go by other bounds from the next message on."""
        self._limits = limits
        self.wire.adopt(limits)

    def noticed(self, method: str, pass_on: Callable[[str], None] | None) -> None:
        """A notice came that belongs to no request of ours."""
        if method == "notifications/subscriptions/acknowledged":
            self.on_stream()
        elif pass_on is not None:
            pass_on(method)

    @property
    def instructions(self) -> str:
        """What the server says of how it is to be used."""
        return self.session.instructions or ""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the server declared that it can do."""
        can = self.session.server_capabilities
        return can.model_dump(by_alias=True, mode="json", exclude_none=True) if can is not None else {}

    def missed(self, uri: str) -> None:
        """A resource that is watched may have changed unseen: whoever watches it is told so."""
        self._relayed.told("notifications/resources/updated", {"uri": uri})

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Tell the server something; it answers nothing, and nothing is known of how it took it."""
        await self._relayed.notify(method, params)

    async def drain(self) -> None:
        """Let the requests under way come to their own end. Bounded, and no cancellation cuts it short."""
        if isinstance(self.wire, HttpDispatcher):
            with anyio.move_on_after(DRAIN_SECONDS, shield=True):
                await self.wire.quiet()

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
        listing = list_tools(self.session, self._limits, lambda: self.wire.received)
        return await self._bounded(listing, within, "its list of tools")

    async def list_everything(self, *, within: float) -> Mapping[OfferKind, tuple[Offer, ...]]:
        """All that the server offers, over all pages, within so many seconds."""
        listing = list_everything(self.session, self._limits, lambda: self.wire.received)
        return await self._bounded(listing, within, "its lists")

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
        params = {"name": name, "arguments": dict(arguments)}
        return CallResult.from_raw(
            await self.request("tools/call", params, idle=idle, within=within, on_progress=on_progress)
        )

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        idle: float,
        within: float,
        on_progress: ProgressFn | None = None,
        caller: Caller | None = None,
    ) -> Mapping[str, Any]:
        """Send a request once, for ``caller``; its result is passed on as it came.

        ``idle`` is how long the server may be silent: progress extends it, up to ``within`` in all. The time
        in which the server waits for the caller's own answer does not count.
        """
        with anyio.CancelScope() as quiet:
            patience = Patience(quiet, idle=idle, within=within)

            async def tell(progress: float, total: float | None, message: str | None) -> None:
                patience.extend()
                if on_progress is not None:
                    await on_progress(progress, total, message)

            with calling(self._relayed, caller, patience):
                return await self._mirrored(method, params, tell)
        waited, key = (within, "hardTimeout") if patience.ran_out else (idle, "timeout")
        what = params.get("name") or params.get("uri") or method
        seen = TimedOut(doing=f"the result of {what}", after=waited, setting=f"holdfast.call.{key}")
        raise ServerFailure(self.wire.unanswered() or seen)

    async def ping(self, *, within: float) -> None:
        """See whether the connection still answers. Any answer will do, an error too."""
        await self._bounded(self._ping(), within, "a sign of life")

    async def _mirrored(self, method: str, params: Mapping[str, Any], on_progress: ProgressFn) -> Mapping[str, Any]:
        try:
            return await self._ask(method, params, on_progress)
        except MCPError as exc:
            if exc.code != HEADER_MISMATCH:
                raise _rpc_failure(method, exc) from exc
        # Refused before anything was done: the server wants arguments mirrored into headers, and the
        # session learns which from a listing.
        await list_tools(self.session, self._limits, lambda: self.wire.received)
        try:
            return await self._ask(method, params, on_progress)
        except MCPError as exc:
            raise _rpc_failure(method, exc) from exc

    async def _ask(self, method: str, params: Mapping[str, Any], on_progress: ProgressFn) -> Mapping[str, Any]:
        request = RawRequest(method=method, params=dict(params))
        try:
            result = await self.session.send_request(request, RawResult, progress_callback=on_progress)
        except ValidationError as exc:
            raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=first_error(exc))) from exc
        return result.raw

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


def _nobody() -> None:
    """Whoever is told of what nobody asked for."""


def _rpc_failure(method: str, exc: MCPError) -> ServerFailure:
    return ServerFailure(RpcError(method=method, code=exc.code, message=exc.message, data=exc.error.data))
