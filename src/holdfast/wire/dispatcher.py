"""The common part of the transports: the JSON-RPC of one server, and what it sends by itself.

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
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import anyio
import anyio.abc
from mcp import MCPError
from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND

from holdfast.config import Limits
from holdfast.core import Evidence, NetworkFailure, NetworkFault, Unexpected, is_own_uri
from holdfast.errors import ServerFailure
from holdfast.wire.in_flight import CURRENT, Caller, InFlight, RequestInFlight
from holdfast.wire.raw_json import Fields, RawObject, dump_object
from holdfast.wire.rpc import Message, RpcPeer, call_message, notification_message

if TYPE_CHECKING:
    from holdfast.wire.process import Child

__all__ = [
    "CALL_NOTIFICATIONS",
    "CLIENT_REQUESTS",
    "NO_HOOKS",
    "SHARED_CAPABILITIES",
    "DialHooks",
    "DuplexDispatcher",
    "NoClients",
    "OnNotification",
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

OnNotification: TypeAlias = Callable[[str], None]
"""Called with the method of each notification that belongs to no request; must not wait."""

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


@dataclass(frozen=True, kw_only=True)
class DialHooks:
    """What a connection reports to its owner, from the dial on."""

    on_notice: OnNotification | None = None
    relay: Relay | None = None
    """Gets the server's own requests."""
    on_start: Callable[[Child], None] | None = None
    """Called with each process that the dial starts."""


NO_HOOKS: Final = DialHooks()


class Incoming:
    """What the server sends by itself: its own requests, and its notifications. Each goes to who it is for."""

    def __init__(self, server: str, hooks: DialHooks, in_flight: InFlight) -> None:
        self._server = server
        self._hooks = hooks
        self._in_flight = in_flight
        self._on_subscribed: Callable[[], None] | None = None
        self.status_told = anyio.Event()
        """Set, and replaced, when a hub on the other side says that its status changed."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the hub declares to the server for clients that are not known yet."""
        return self._hooks.relay.capabilities if self._hooks.relay is not None else {}

    def release(self) -> None:
        """Let go of the owner of the connection, which leads back to it."""
        self._hooks = NO_HOOKS

    async def asked(self, method: str, params: Mapping[str, Any] | None) -> Message:
        """The answer to the server's own request. All but a ping is for a client."""
        if method == "ping":
            return {}
        if method not in CLIENT_REQUESTS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", method)
        relay = self._hooks.relay or NoClients()
        request = CURRENT.get()
        with ExitStack() as pauses:
            # The clock stops for the request on whose stream the server asks; for all where that is not known.
            for one in [request] if request is not None else list(self._in_flight.requests.values()):
                pauses.enter_context(one.paused())
            return await relay.asked(self._server, method, params, request.caller if request is not None else None)

    def belongs_to_call(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Give a notification to the call on whose stream it came; False if it belongs to none."""
        if method not in CALL_NOTIFICATIONS:
            return False
        request = CURRENT.get()
        if request is not None and request.caller is not None:
            request.caller.tell(method, params)
            return True
        self.pass_on(method, params)
        return False

    def told(self, method: str, params: Mapping[str, Any] | None) -> None:
        """A notification that belongs to no call."""
        if method not in CALL_NOTIFICATIONS:
            self.pass_on(method, params)
        if method == "notifications/subscriptions/acknowledged":
            if self._on_subscribed is not None and not _is_of_one_resource(params):
                self._on_subscribed()
        elif self._hooks.on_notice is not None:
            self._hooks.on_notice(method)

    @contextmanager
    def listening(self, opened: Callable[[], None]) -> Iterator[None]:
        """In the block, ``opened`` is called each time that a subscription to the changes of lists begins."""
        self._on_subscribed = opened
        try:
            yield
        finally:
            self._on_subscribed = None  # else the two keep each other

    def pass_on(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Pass on a notification that belongs to no call. What concerns the status of a hub is for this hub alone."""
        if method == "notifications/resources/updated" and is_own_uri(str((params or {}).get("uri", ""))):
            told, self.status_told = self.status_told, anyio.Event()
            told.set()
        elif self._hooks.relay is not None:
            self._hooks.relay.told(self._server, method, params)

    def __repr__(self) -> str:
        return f"<Incoming from {self._server!r}{'' if self._hooks.relay is None else ' for clients'}>"


class ServerDispatcher(ABC):
    """One server's JSON-RPC, the time limits of its requests, and whether its handshake is complete."""

    def __init__(self, limits: Limits, server: str = "", hooks: DialHooks = NO_HOOKS) -> None:
        self.in_flight = InFlight()
        self.rpc = RpcPeer(self._send, limits, self.in_flight)
        self._serving: asyncio.Task[None] | None = None
        self._over = anyio.Event()
        self.incoming = Incoming(server, hooks, self.in_flight)
        self.stood = False
        """Whether the handshake is complete; the dialer sets it."""

    def agree(self, version: str | None) -> None:  # noqa: B027 - a pipe has no headers that would name it
        """Requests are of this version of the protocol from now on; of none while a handshake begins."""

    @property
    def ended(self) -> bool:
        """Whether the peer is gone, for a transport that can tell."""
        return self.in_flight.ended is not None

    def unanswered(self) -> Evidence | None:
        """Evidence that a missing answer gives beyond the timeout, if there is any."""
        return None

    @abstractmethod
    async def call(
        self, request: RequestInFlight, method: str, params: Fields, *, headers: Mapping[str, str], tell: bool = True
    ) -> RawObject:
        """Send a request as it is and wait for its result, also as it is. The caller starts and ends the request.

        A caller that stops waiting tells the server so, with ``tell``. Raises ``MCPError`` for an error answer.
        """

    async def ask(
        self, method: str, params: Fields, *, headers: Mapping[str, str] | None = None, tell: bool = True
    ) -> RawObject:
        """Send a request of the hub itself, which no client waits for: of the handshake, a list, or a ping.

        There is no time limit: the caller has one for the whole of its work.
        """
        request = self.in_flight.start(idle=math.inf, within=math.inf)
        try:
            return await self.call(request, method, params, headers=headers or {}, tell=tell)
        except asyncio.CancelledError:
            if not request.absorb():
                raise
            raise self.in_flight.failure() from None
        finally:
            self.in_flight.end(request)

    @abstractmethod
    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification; one that cannot be sent is dropped, as the protocol expects."""

    @abstractmethod
    async def _send(self, message: Message) -> None:
        """Send a notification, or an answer to the server's own request."""

    def start(self) -> None:
        """Begin to serve the connection, in a task of its own; ``aclose`` must follow."""
        self._serving = asyncio.create_task(self._serve())

    async def aclose(self) -> None:
        """Serve no more. Every request that waits fails with the reason."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])

    async def _serve(self) -> None:
        """Serve the connection until the peer is gone; then every waiting request fails with the reason.

        It ends without an exception, see ``until_cancelled``.
        """
        gone: Evidence = _CLOSED
        with suppress(asyncio.CancelledError):
            try:
                async with anyio.create_task_group() as tasks:
                    self.rpc.start(tasks, self.incoming)
                    gone = await self._until_gone(tasks)
                    # Before another task runs: one that the end has woken asks for the reason.
                    self.in_flight.fail(gone)
                    tasks.cancel_scope.cancel()
            finally:
                self.in_flight.fail(gone)
                self.rpc.release()
                self.incoming.release()
                self._over.set()

    @abstractmethod
    async def _until_gone(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        """Wait until the peer is gone; return the evidence."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} stood={self.stood} {self.rpc!r}>"


class DuplexDispatcher(ServerDispatcher):
    """One stream in each direction. A subclass writes a message, and reads messages until the peer is gone."""

    async def gone(self) -> Evidence:
        """Wait until the peer is gone; returns the evidence."""
        await self._over.wait()
        return self.in_flight.failure().evidence

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
        self, request: RequestInFlight, method: str, params: Fields, *, headers: Mapping[str, str], tell: bool = True
    ) -> RawObject:
        """Write a request and wait for its answer."""
        try:
            message = call_message(request.id, method, params, progress=request.wants_progress)
            request.sent_at = await self._write(message, doing=f"the receipt of {method}", headers=headers)
            return await request.result()
        except asyncio.CancelledError:
            if tell:
                self.rpc.say_cancelled(request)
            raise

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Write a notification."""
        with suppress(ServerFailure):
            await self._send(notification_message(method, params))

    async def _until_gone(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        try:
            return await self._read(tasks)
        except ServerFailure as failure:
            return failure.evidence
        except Exception as exc:  # noqa: BLE001 - an unexpected fault ends this connection and no other
            return Unexpected(type=type(exc).__name__)


def _is_of_one_resource(params: Mapping[str, Any] | None) -> bool:
    """Whether the subscription that is acknowledged is for a resource, and not for the lists."""
    wanted = (params or {}).get("notifications")
    return isinstance(wanted, Mapping) and bool(wanted.get("resourceSubscriptions"))
