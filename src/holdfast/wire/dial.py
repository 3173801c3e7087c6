"""Dial a server: a live connection, or ``ServerFailure`` with the evidence. Every connection is closed again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeAlias

import anyio
import mcp_types as types
from mcp import ClientSession
from mcp.client.session import IncomingMessage

from holdfast._version import __version__
from holdfast.config import Limits, ServerSpec
from holdfast.core import Evidence, ProcessExit, Redactor, TimedOut
from holdfast.errors import ServerFailure
from holdfast.wire.descriptors import require_descriptors
from holdfast.wire.http.client import Authorize, HttpPeer
from holdfast.wire.http.sse import SseDispatcher
from holdfast.wire.http.transport import HttpDispatcher
from holdfast.wire.process import Child, OnStderr
from holdfast.wire.relay import Relay, RelayDispatcher
from holdfast.wire.session import CLOSE_SECONDS, Connection, Era, Wire, negotiate
from holdfast.wire.stdio import StdioDispatcher
from holdfast.wire.warden import Warden

__all__ = ["Dialer", "OnNotification"]

OnNotification: TypeAlias = Callable[[str], None]
"""Called with the method of each notification that belongs to no request; must not wait."""


class Dialer:
    """Dials servers under one set of bounds and one warden."""

    def __init__(
        self,
        *,
        warden: Warden,
        limits: Limits,
        authorize: Authorize | None = None,
        on_stderr: OnStderr | None = None,
    ) -> None:
        self._warden = warden
        self._limits = limits
        self._authorize = authorize
        self._on_stderr = on_stderr

    def adopt(self, limits: Limits) -> None:
        """Use other bounds for new connections."""
        self._limits = limits

    @asynccontextmanager
    async def connect(
        self,
        spec: ServerSpec,
        *,
        within: float,
        redactor: Redactor,
        era: Era | None = None,
        on_notice: OnNotification | None = None,
        relay: Relay | None = None,
    ) -> AsyncIterator[Connection]:
        """A connection after its handshake, within so many seconds; ``relay`` gets the server's own requests."""
        require_descriptors()
        deadline = anyio.current_time() + within
        try:
            connection = await self._dial(spec, deadline, redactor, era, on_notice, relay)
        except ServerFailure as failure:
            if not _probe_ended_it(failure.evidence, era):
                raise
            connection = await self._dial(spec, deadline, redactor, "legacy", on_notice, relay)
        try:
            yield connection
        finally:
            await connection.aclose()

    async def _dial(
        self,
        spec: ServerSpec,
        deadline: float,
        redactor: Redactor,
        era: Era | None,
        on_notice: OnNotification | None,
        relay: Relay | None,
    ) -> Connection:
        closers = AsyncExitStack()

        async def _noticed(message: IncomingMessage) -> None:
            if not isinstance(message, Exception) and not _of_one_resource(message):
                connection.noticed(message.method, on_notice)

        try:
            wire = await self._open(closers, spec, redactor)
            me = types.Implementation(name="holdfast", version=__version__)
            relayed = RelayDispatcher(wire, spec.id, relay)
            session = ClientSession(dispatcher=relayed, client_info=me, message_handler=_noticed)
            connection = Connection(session, wire, relayed, self._limits, closers)
            await session.__aenter__()
        except BaseException:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await closers.aclose()
            raise
        try:
            # The SSE transport exists only in the legacy era.
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

    async def _open(self, stack: AsyncExitStack, spec: ServerSpec, redactor: Redactor) -> Wire:
        """Open the transport; the stack closes it. Does not wait for an answer."""
        if spec.transport == "stdio":
            child = await Child.start(spec, warden=self._warden, redactor=redactor, keep=self._limits.stderr_bytes)
            if self._on_stderr is not None:
                child.on_line = partial(_pass_on, self._on_stderr, spec.id, redactor)
            pipes = StdioDispatcher(child, self._limits, redactor)
            stack.push_async_callback(lambda: child.close(politely=pipes.stood))
            return pipes
        authorizer = self._authorize(spec) if self._authorize is not None else None
        peer = HttpPeer(spec, self._limits, redactor, authorizer)
        stack.push_async_callback(peer.aclose)
        if spec.transport == "sse":
            return SseDispatcher(peer)
        posts = HttpDispatcher(peer)
        stack.push_async_callback(posts.end_session)
        return posts


def _pass_on(on_stderr: OnStderr, server: str, redactor: Redactor, line: bytes) -> None:
    on_stderr(server, line, redactor)


def _of_one_resource(message: types.ServerNotification) -> bool:
    """Whether a stream was opened for one resource, and not for the lists."""
    if not isinstance(message, types.SubscriptionsAcknowledgedNotification):
        return False
    return bool(message.params.notifications.resource_subscriptions)


def _probe_ended_it(seen: Evidence, era: Era | None) -> bool:
    """Some old servers exit when a request comes before ``initialize``: they are dialed again without a probe."""
    return era is None and isinstance(seen, ProcessExit) and seen.heard and not seen.stood
