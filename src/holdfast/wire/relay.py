"""Routes server-initiated requests and notifications to the hub's clients.

Each request is made for a caller. A context variable, set around the request, names that caller for everything that
the server sends on the request's own stream. A message on a shared stream (a pipe, the legacy era's GET stream) names
no caller; the relay decides where it goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.abc
from mcp.shared.dispatcher import CallOptions, DispatchContext, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.transport_context import TransportContext
from mcp_types import CLIENT_CAPABILITIES_META_KEY

from holdfast.core import is_own_uri
from holdfast.wire.in_flight import CURRENT, Caller, InFlight

__all__ = [
    "CALL_NOTIFICATIONS",
    "CLIENT_REQUESTS",
    "Relay",
    "RelayDispatcher",
    "attributed",
    "current_caller",
    "until_cancelled",
]

CLIENT_REQUESTS = frozenset({"sampling/createMessage", "elicitation/create", "roots/list"})
"""The requests that a server may send to a client."""

CALL_NOTIFICATIONS = frozenset({"notifications/message", "notifications/elicitation/complete"})
"""The notifications that belong to the call on whose stream they came."""


class Relay(Protocol):
    """Receives the requests and notifications of servers."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """The client capabilities to declare before a caller is known."""

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """The answer to a server's request; ``caller`` is None where the stream does not name one."""

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """A notification that belongs to no call. Never waits."""


def current_caller() -> Caller | None:
    """The caller of the request that this task makes."""
    request = CURRENT.get()
    return request.caller if request is not None else None


def attributed(method: str, params: Mapping[str, Any] | None) -> bool:
    """Pass a notification to the caller on whose stream it came; False if there is none."""
    caller = current_caller() if method in CALL_NOTIFICATIONS else None
    if caller is not None:
        caller.tell(method, params)
    return caller is not None


class RelayDispatcher(Dispatcher[TransportContext]):
    """A transport's dispatcher that declares the caller's capabilities and passes the server's requests to a relay."""

    def __init__(
        self, wire: Dispatcher[TransportContext], in_flight: InFlight, server: str, relay: Relay | None
    ) -> None:
        self._wire = wire
        self._in_flight = in_flight
        self._server = server
        self._relay = relay
        self.status_told = anyio.Event()
        """Set, and replaced, when a hub on the other side says that its status changed."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request with its caller's capabilities."""
        if self._relay is not None and params is not None:
            params = _declaring(method, params, self._relay)
        return await self._wire.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification."""
        await self._wire.notify(method, params, opts)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the connection; requests to a client go to the relay."""
        relay = self._relay

        async def asked(
            ctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
        ) -> dict[str, Any]:
            if relay is None or method not in CLIENT_REQUESTS:
                return await on_request(ctx, method, params)
            with self._paused():
                return await relay.asked(self._server, method, params, current_caller())

        async def told(ctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None) -> None:
            if method not in CALL_NOTIFICATIONS:
                self.told(method, params)
            await on_notify(ctx, method, params)

        def received(method: str, params: Mapping[str, Any] | None) -> bool:
            """Runs in the order of receipt: the result of a call must not overtake what belongs to the call."""
            if on_notify_intercept is not None and on_notify_intercept(method, params):
                return True
            if method not in CALL_NOTIFICATIONS:
                return False
            if attributed(method, params):
                return True
            self.told(method, params)
            return False

        await until_cancelled(partial(self._wire.run, asked, told, received, task_status=task_status))

    def told(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Pass on a notification that belongs to no call. What concerns the status of a hub is for this hub alone."""
        if method == "notifications/resources/updated" and is_own_uri(str((params or {}).get("uri", ""))):
            told, self.status_told = self.status_told, anyio.Event()
            told.set()
        elif self._relay is not None:
            self._relay.told(self._server, method, params)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Pause the timeout of the request that the server asks for; of all requests if that is unknown."""
        request = CURRENT.get()
        waiting = [request] if request is not None else list(self._in_flight.requests)
        pauses = [one.paused() for one in waiting]
        for pause in pauses:
            pause.__enter__()
        try:
            yield
        finally:
            for pause in pauses:
                pause.__exit__(None, None, None)


async def until_cancelled(work: Callable[..., Awaitable[object]], *args: object) -> None:
    """The work of a task whose group ends it by a cancellation: the task then ends without an exception.

    A task that ends as cancelled is kept in a cycle with its group, by the traceback, until a collection frees it. With
    it stays all that the group has to do with: a whole connection.
    """
    with suppress(asyncio.CancelledError):
        await work(*args)


def _declaring(method: str, params: Mapping[str, Any], relay: Relay) -> Mapping[str, Any]:
    if method == "initialize":
        return {**params, "capabilities": dict(relay.capabilities)}
    meta = params.get("_meta")
    if not isinstance(meta, Mapping) or CLIENT_CAPABILITIES_META_KEY not in meta:
        return params
    caller = current_caller()
    can = dict(caller.capabilities) if caller is not None else {}
    return {**params, "_meta": {**meta, CLIENT_CAPABILITIES_META_KEY: can}}
