"""The common part of the transports: one JSON-RPC peer behind the SDK's ``Dispatcher`` interface.

``ServerDispatcher`` is what every transport has. ``DuplexDispatcher`` is for those with one stream in each direction,
stdio and the older HTTP+SSE: requests go out one after the other, answers come in any order, and when the peer is gone
every waiting request fails.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
from mcp.shared.dispatcher import CallOptions, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.transport_context import TransportContext
from mcp_types import RequestId

from holdfast.config import Limits
from holdfast.core import Evidence, NetworkFailure, NetworkFault, Unexpected
from holdfast.errors import ServerFailure
from holdfast.wire.in_flight import InFlight, OnProgress
from holdfast.wire.raw_json import Fields, RawObject, dump_object, dumps
from holdfast.wire.rpc import (
    Message,
    RpcPeer,
    call_message,
    notification_message,
    value_of,
)
from holdfast.wire.tracing import in_headers

__all__ = ["DuplexDispatcher", "ServerDispatcher"]


class ServerDispatcher(Dispatcher[TransportContext]):
    """One server's JSON-RPC, the time limits of its requests, and whether its handshake is complete."""

    def __init__(self, kind: str, limits: Limits) -> None:
        self._rpc = RpcPeer(kind, self._send, limits)
        self._limits = limits
        self.in_flight = InFlight()
        self.stood = False
        """Whether the handshake is complete; the dialer sets it."""

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
        answer = self.call(
            method,
            {key: dumps(value) for key, value in (params or {}).items()},
            headers={**self._headers(method, opts), **in_headers(params)},
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


class DuplexDispatcher(ServerDispatcher):
    """One stream in each direction. A subclass writes a message, and reads messages until the peer is gone."""

    def __init__(self, kind: str, limits: Limits) -> None:
        super().__init__(kind, limits)
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
        await self._write(dump_object(message), doing=doing, headers=in_headers(message.get("params")))

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

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the connection until the peer is gone; then every waiting request fails with the reason."""
        gone: Evidence = NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
        try:
            async with anyio.create_task_group() as tasks:
                self._rpc.start(tasks, on_request, on_notify, on_notify_intercept)
                task_status.started()
                try:
                    gone = await self._read(tasks)
                except ServerFailure as failure:
                    gone = failure.evidence
                except Exception as exc:  # noqa: BLE001 - an unexpected fault ends this connection and no other
                    gone = Unexpected(type=type(exc).__name__)
                self._rpc.pending.fail(ServerFailure(gone))
                tasks.cancel_scope.cancel()
        finally:
            self._rpc.pending.fail(ServerFailure(gone))
            self._rpc.release()
            self._over.set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} stood={self.stood} {self._rpc!r}>"
