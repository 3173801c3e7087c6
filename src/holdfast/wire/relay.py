"""What a server asks and tells on its own account, and for whom: the seam between a server and the hub's clients.

A request is made for a caller. Whatever the server asks or tells on that request's own stream is the
caller's: a context variable, set around the request, says so. What comes on a stream that all callers
share (a pipe, the legacy era's GET stream) names nobody, and the relay must decide without a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import anyio
import anyio.abc
from mcp.shared.dispatcher import CallOptions, DispatchContext, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.transport_context import TransportContext
from mcp_types import CLIENT_CAPABILITIES_META_KEY

__all__ = ["OF_A_CALL", "RELAYED", "Caller", "Patience", "Relay", "Relayed", "attributed", "calling"]

RELAYED = frozenset({"sampling/createMessage", "elicitation/create", "roots/list"})
"""What a server may ask of a client."""

OF_A_CALL = frozenset({"notifications/message", "notifications/elicitation/complete"})
"""The notices that belong to whoever's call they came with."""


class Caller(Protocol):
    """Whoever a request is made for."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What it can be asked, as it declared it."""

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Its answer to the server's request; raises ``MCPError`` where it gives none."""

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """A notice for it, in order with everything else that it is told. Never waits."""


class Relay(Protocol):
    """Where the requests and notices of one server go."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What is declared to a server that is told before any caller is known."""

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """The answer to a server's request; ``caller`` is None where it cannot be told whose it is."""

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """A notice that belongs to no call. Never waits."""


class Patience:
    """How long one request may be silent; it does not run while the server waits for an answer of ours."""

    def __init__(self, scope: anyio.CancelScope, *, idle: float, within: float) -> None:
        self._scope = scope
        self._idle = idle
        self._latest = anyio.current_time() + within
        self._waiting = 0
        self._since = 0.0
        self.extend()

    @property
    def ran_out(self) -> bool:
        """Whether the time for all of it passed, rather than the time for silence."""
        return self._scope.deadline >= self._latest

    def extend(self) -> None:
        """The server gave a sign of life."""
        if not self._waiting:
            self._scope.deadline = min(anyio.current_time() + self._idle, self._latest)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It is our turn."""
        if not self._waiting:
            self._since, self._scope.deadline = anyio.current_time(), float("inf")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._latest += anyio.current_time() - self._since
                self.extend()


class _Call:
    """A request under way, as the stream that carries it knows it."""

    __slots__ = ("caller", "patience")

    def __init__(self, caller: Caller | None, patience: Patience) -> None:
        self.caller = caller
        self.patience = patience


_CALL: ContextVar[_Call | None] = ContextVar("holdfast_call", default=None)


def attributed(method: str, params: Mapping[str, Any] | None) -> bool:
    """Hand a notice to the caller on whose stream it came; False if it is nobody's in particular."""
    call = _CALL.get()
    if method not in OF_A_CALL or call is None or call.caller is None:
        return False
    call.caller.tell(method, params)
    return True


@contextmanager
def calling(wire: Relayed, caller: Caller | None, patience: Patience) -> Iterator[None]:
    """Within the block, a request through ``wire`` is made for ``caller``."""
    call = _Call(caller, patience)
    token = _CALL.set(call)
    wire.under_way.add(call)
    try:
        yield
    finally:
        wire.under_way.discard(call)
        _CALL.reset(token)


class Relayed(Dispatcher[TransportContext]):
    """A transport's dispatcher, with the capabilities of whoever is behind it and with a relay for the server."""

    def __init__(self, wire: Dispatcher[TransportContext], server: str, relay: Relay | None) -> None:
        self._wire = wire
        self._server = server
        self._relay = relay
        self.under_way: set[_Call] = set()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request, declaring what its caller can be asked."""
        if self._relay is not None and params is not None:
            params = _declaring(method, params, self._relay)
        return await self._wire.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notice."""
        await self._wire.notify(method, params, opts)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the connection; what the server asks of a client goes to the relay."""
        relay = self._relay

        async def asked(
            ctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
        ) -> dict[str, Any]:
            if relay is None or method not in RELAYED:
                return await on_request(ctx, method, params)
            with self._all_patient():
                call = _CALL.get()
                return await relay.asked(self._server, method, params, call.caller if call is not None else None)

        async def told(ctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None) -> None:
            self.told(method, params)
            await on_notify(ctx, method, params)

        await self._wire.run(asked, told, on_notify_intercept, task_status=task_status)

    def told(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Pass a notice on that belongs to no call."""
        if self._relay is not None:
            self._relay.told(self._server, method, params)

    @contextmanager
    def _all_patient(self) -> Iterator[None]:
        """The request that waits for our answer is one of those under way; where it is not known which, all wait."""
        call = _CALL.get()
        waiting = [call] if call is not None else list(self.under_way)
        pauses = [one.patience.paused() for one in waiting]
        for pause in pauses:
            pause.__enter__()
        try:
            yield
        finally:
            for pause in pauses:
                pause.__exit__(None, None, None)


def _declaring(method: str, params: Mapping[str, Any], relay: Relay) -> Mapping[str, Any]:
    if method == "initialize":
        return {**params, "capabilities": dict(relay.capabilities)}
    meta = params.get("_meta")
    if not isinstance(meta, Mapping) or CLIENT_CAPABILITIES_META_KEY not in meta:
        return params
    call = _CALL.get()
    can = dict(call.caller.capabilities) if call is not None and call.caller is not None else {}
    return {**params, "_meta": {**meta, CLIENT_CAPABILITIES_META_KEY: can}}
