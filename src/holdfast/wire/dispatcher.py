"""The common part of the transports: one JSON-RPC peer behind the SDK's ``Dispatcher`` interface.

``ServerDispatcher`` is what every transport has. ``DuplexDispatcher`` is for those with one stream in each direction,
stdio and the older HTTP+SSE: requests go out one after the other, answers come in any order, and when the peer is gone
every waiting request fails.

What a server sends by itself goes to the hub's clients through a ``Relay``. Each request is made for a caller. A
context variable, set around the request, names that caller for everything that the server sends on the request's own
stream. A message on a shared stream (a pipe, the legacy era's GET stream) names no caller; the relay decides where it
goes.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

import anyio
import anyio.abc
from mcp import MCPError
from mcp.shared.dispatcher import CallOptions, DispatchContext, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.transport_context import TransportContext
from mcp_types import CLIENT_CAPABILITIES_META_KEY, INVALID_REQUEST, RequestId

from holdfast.config import Limits
from holdfast.core import Evidence, NetworkFailure, NetworkFault, Unexpected, is_own_uri
from holdfast.errors import ServerFailure
from holdfast.wire.in_flight import CURRENT, Caller, InFlight, OnProgress
from holdfast.wire.raw_json import Fields, RawObject, dump_object, dumps
from holdfast.wire.request_headers import trace_headers
from holdfast.wire.rpc import Message, RpcPeer, call_message, notification_message, value_of

__all__ = [
    "CALL_NOTIFICATIONS",
    "CLIENT_REQUESTS",
    "SHARED_CAPABILITIES",
    "DuplexDispatcher",
    "NoClients",
    "Relay",
    "ServerDispatcher",
]

CLIENT_REQUESTS = frozenset({"sampling/createMessage", "elicitation/create", "roots/list"})
"""The requests that a server may send to a client."""

CALL_NOTIFICATIONS = frozenset({"notifications/message", "notifications/elicitation/complete"})
"""The notifications that belong to the call on whose stream they came."""

SHARED_CAPABILITIES: Final[Mapping[str, Any]] = {
    "sampling": {},
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
}
"""What the hub declares to a shared server, before any client is known. Some servers list more tools for it."""

_CLOSED = NetworkFailure(fault=NetworkFault.CLOSED, stood=True)


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


class NoClients:
    """The relay of a hub that no client is connected to: a dial with it sees what the hub sees."""

    capabilities = SHARED_CAPABILITIES

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """Refuse a server's request."""
        raise MCPError(INVALID_REQUEST, f"{method} cannot be answered: no client is connected")

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """Nothing: there is none to tell."""


class ServerDispatcher(Dispatcher[TransportContext]):
    """One server's JSON-RPC, the time limits of its requests, and whether its handshake is complete."""

    def __init__(self, kind: str, limits: Limits, server: str = "", relay: Relay | None = None) -> None:
        self._rpc = RpcPeer(kind, self._send, limits)
        self._limits = limits
        self._server = server
        self._relay = relay
        self.in_flight = InFlight()
        self.stood = False
        """Whether the handshake is complete; the dialer sets it."""
        self.status_told = anyio.Event()
        """Set, and replaced, when a hub on the other side says that its status changed."""

    def adopt(self, limits: Limits) -> None:
        """Use other bounds from now on."""
        self._limits = limits
        self._rpc.adopt(limits)

    @property
    def ended(self) -> bool:
        """Whether the peer is gone, for a transport that can tell."""
        return self._rpc.pending.ended is not None

    @property
    def received(self) -> int:
        """How many bytes of messages came so far."""
        return self._rpc.received

    def unanswered(self) -> Evidence | None:
        """Evidence that a missing answer gives beyond the timeout, if there is any."""
        return None

    def failure(self) -> ServerFailure:
        """Why the connection is gone."""
        return self._rpc.pending.failure()

    @abstractmethod
    async def call(
        self,
        method: str,
        params: Fields,
        *,
        headers: Mapping[str, str],
        on_progress: OnProgress | None = None,
        request_id: RequestId | None = None,
        tell: bool = True,
    ) -> RawObject:
        """Send a request as it is and wait for its result, also as it is. The caller bounds the time.

        A caller that stops waiting tells the server so, with ``tell``. ``request_id`` is an id of the SDK's session.
        """

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> Message:
        """Send a request of the session itself and wait for its result. The caller bounds the time.

        The SDK's own ``timeout`` is left out: it gives its probe 10 s, and an attempt may have more.
        """
        opts = opts or {}
        if self._relay is not None and params is not None:
            params = _declaring(method, params, self._relay)
        written: Fields = {key: dumps(value) for key, value in (params or {}).items()}
        answer = self.call(
            method,
            written,
            headers={**self._headers(method, opts), **trace_headers(written)},
            request_id=opts.get("request_id"),
            tell=opts.get("cancel_on_abandon", True),
        )
        return value_of(await self.in_flight.until_closed(answer, failure=self.failure))

    def _headers(self, method: str, opts: CallOptions) -> Mapping[str, str]:
        """The headers of one of the session's own requests, for a transport that has some."""
        return {}

    @abstractmethod
    async def _send(self, message: Message) -> None:
        """Send a notification, or an answer to the server's own request."""

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the connection until the peer is gone; then every waiting request fails with the reason.

        Requests of the server to a client go to the relay, others to the session. It ends without an exception, see
        ``until_cancelled``.
        """
        relay = self._relay

        async def asked(
            ctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
        ) -> dict[str, Any]:
            if relay is None or method not in CLIENT_REQUESTS:
                return await on_request(ctx, method, params)
            with self.in_flight.paused():
                return await relay.asked(self._server, method, params, _current_caller())

        async def told(ctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None) -> None:
            if method not in CALL_NOTIFICATIONS:
                self.pass_on(method, params)
            await on_notify(ctx, method, params)

        def received(method: str, params: Mapping[str, Any] | None) -> bool:
            """Runs in the order of receipt: the result of a call must not overtake what belongs to the call."""
            if on_notify_intercept is not None and on_notify_intercept(method, params):
                return True
            if method not in CALL_NOTIFICATIONS:
                return False
            if (caller := _current_caller()) is not None:
                caller.tell(method, params)
                return True
            self.pass_on(method, params)
            return False

        gone: Evidence = _CLOSED
        with suppress(asyncio.CancelledError):
            try:
                async with anyio.create_task_group() as tasks:
                    self._rpc.start(tasks, asked, told, received)
                    task_status.started()
                    gone = await self._until_gone(tasks)
                    # Before another task runs: one that the end has woken asks for the reason.
                    self._rpc.pending.fail(ServerFailure(gone))
                    tasks.cancel_scope.cancel()
            finally:
                self._rpc.pending.fail(ServerFailure(gone))
                self._closed()
                self._rpc.release()

    @abstractmethod
    async def _until_gone(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        """Wait until the peer is gone; return the evidence."""

    @abstractmethod
    def _closed(self) -> None:
        """The connection has ended."""

    def pass_on(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Pass on a notification that belongs to no call. What concerns the status of a hub is for this hub alone."""
        if method == "notifications/resources/updated" and is_own_uri(str((params or {}).get("uri", ""))):
            told, self.status_told = self.status_told, anyio.Event()
            told.set()
        elif self._relay is not None:
            self._relay.told(self._server, method, params)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} stood={self.stood} {self._rpc!r}>"


class DuplexDispatcher(ServerDispatcher):
    """One stream in each direction. A subclass writes a message, and reads messages until the peer is gone."""

    def __init__(self, kind: str, limits: Limits, server: str = "", relay: Relay | None = None) -> None:
        super().__init__(kind, limits, server, relay)
        self._over = anyio.Event()

    async def gone(self) -> Evidence:
        """Wait until the peer is gone; returns the evidence."""
        await self._over.wait()
        return self.failure().evidence

    @abstractmethod
    async def _write(self, data: bytes, *, doing: str, headers: Mapping[str, str]) -> int | None:
        """Write one message; raise ``ServerFailure`` if that fails. Headers are for transports that have them.

        Returns how much was written to the peer so far, where it is one pipe.
        """

    @abstractmethod
    async def _read(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        """Give messages to the RPC peer until the server is gone; return the evidence."""

    async def _send(self, message: Message) -> None:
        doing = f"the receipt of {message.get('method', 'an answer')}"
        await self._write(dump_object(message), doing=doing, headers={})

    async def call(
        self,
        method: str,
        params: Fields,
        *,
        headers: Mapping[str, str],
        on_progress: OnProgress | None = None,
        request_id: RequestId | None = None,
        tell: bool = True,
    ) -> RawObject:
        """Write a request and wait for its answer."""
        pending = self._rpc.pending.open(on_progress, request_id)
        try:
            message = call_message(pending.id, method, params, progress=on_progress is not None)
            pending.sent_at = await self._write(message, doing=f"the receipt of {method}", headers=headers)
            return await pending.result()
        except asyncio.CancelledError:
            if tell:
                self._rpc.say_cancelled(pending)
            raise
        finally:
            self._rpc.pending.close(pending)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification; one that cannot be written is dropped, as the protocol expects."""
        with suppress(ServerFailure):
            await self._send(notification_message(method, params))

    async def _until_gone(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        try:
            return await self._read(tasks)
        except ServerFailure as failure:
            return failure.evidence
        except Exception as exc:  # noqa: BLE001 - an unexpected fault ends this connection and no other
            return Unexpected(type=type(exc).__name__)

    def _closed(self) -> None:
        self._over.set()


def _current_caller() -> Caller | None:
    """The caller of the request that this task makes."""
    request = CURRENT.get()
    return request.caller if request is not None else None


def _declaring(method: str, params: Mapping[str, Any], relay: Relay) -> Mapping[str, Any]:
    """The parameters of a request of the session, with the capabilities of its caller."""
    if method == "initialize":
        return {**params, "capabilities": dict(relay.capabilities)}
    meta = params.get("_meta")
    if not isinstance(meta, Mapping) or CLIENT_CAPABILITIES_META_KEY not in meta:
        return params
    caller = _current_caller()
    can = dict(caller.capabilities) if caller is not None else {}
    return {**params, "_meta": {**meta, CLIENT_CAPABILITIES_META_KEY: can}}
