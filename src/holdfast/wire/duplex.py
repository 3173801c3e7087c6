"""The common part of the transports that have one stream in each direction: stdio and the older HTTP+SSE.

Requests go out one after the other, answers come in any order. When the peer is gone, every waiting request fails.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
from mcp.shared.dispatcher import CallOptions, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest, ProgressFnT
from mcp.shared.transport_context import TransportContext
from mcp_types import RequestId

from holdfast.config import Limits
from holdfast.core import Evidence, NetworkFailure, NetworkFault, Unexpected
from holdfast.errors import ServerFailure
from holdfast.wire.deadlines import Deadlines
from holdfast.wire.envelope import Bytes, Fields, dump_object, dumps
from holdfast.wire.outgoing import Message, call_message, notification_message, request_message, with_progress_token
from holdfast.wire.rpc import Exchange, PendingRequest, value_of
from holdfast.wire.tracing import in_headers

__all__ = ["DuplexDispatcher"]


class DuplexDispatcher(Dispatcher[TransportContext]):
    """The SDK's dispatcher over one stream in each direction (stdio, SSE).

    A subclass writes a message, and reads messages until the peer is gone.
    """

    def __init__(self, kind: str, limits: Limits) -> None:
        self._limits = limits
        self._exchange = Exchange(kind, self._send, limits)
        self.deadlines = Deadlines()
        self._over = anyio.Event()
        self.stood = False
        """Whether the handshake is complete; the dialer sets it."""

    def adopt(self, limits: Limits) -> None:
        """Use other bounds from now on."""
        self._limits = limits
        self._exchange.adopt(limits)

    async def gone(self) -> Evidence:
        """Wait until the peer is gone; returns the evidence."""
        await self._over.wait()
        return self._exchange.failure().evidence

    @property
    def ended(self) -> bool:
        """Whether the peer is gone."""
        return self._exchange.ended is not None

    @property
    def received(self) -> int:
        """How many bytes of messages came so far."""
        return self._exchange.received

    def unanswered(self) -> Evidence | None:
        """Evidence that a missing answer gives beyond the timeout, if there is any."""
        return None

    def failure(self) -> ServerFailure:
        """Why the connection is gone."""
        return self._exchange.failure()

    @abstractmethod
    async def _write(self, data: bytes, *, doing: str, headers: Mapping[str, str]) -> None:
        """Write one message; raise ``ServerFailure`` if that fails. Headers are for transports that have them."""

    def _written(self) -> int | None:
        """How much was written to the peer so far, where it is one pipe."""
        return None

    async def _send(self, message: Message) -> None:
        doing = f"the receipt of {message.get('method', 'an answer')}"
        await self._write(dump_object(message), doing=doing, headers=in_headers(message.get("params")))

    @abstractmethod
    async def _read(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        """Give messages to the exchange until the peer is gone; return the evidence."""

    def call(
        self, method: str, params: Fields, *, headers: Mapping[str, str], on_progress: ProgressFnT | None = None
    ) -> Coroutine[Any, Any, Bytes]:
        """Send a request as it is and wait for its result, also as it is. The caller bounds the time."""
        request_id, waiter = self._exchange.begin(on_progress)
        message = call_message(request_id, method, params, progress=on_progress is not None)
        return self._answered(request_id, waiter, message, method, headers)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> Message:
        """Send a request and wait for its result. The caller bounds the time, not the SDK's ``timeout``."""
        opts = opts or {}
        request_id, waiter = self._exchange.open(opts)
        message = dumps(request_message(request_id, method, with_progress_token(params, request_id, opts)))
        answer = self._answered(
            request_id, waiter, message, method, in_headers(params), tell=opts.get("cancel_on_abandon", True)
        )
        return value_of(await self.deadlines.until_closed(answer, failure=self.failure))

    async def _answered(
        self,
        request_id: RequestId,
        waiter: PendingRequest,
        message: bytes,
        method: str,
        headers: Mapping[str, str],
        *,
        tell: bool = True,
    ) -> Bytes:
        """Write a request and wait for its answer; a caller that stops waiting tells the server so."""
        try:
            await self._write(message, doing=f"the receipt of {method}", headers=headers)
            waiter.sent_at = self._written()
            return await waiter.result()
        except asyncio.CancelledError:
            if tell:
                self._exchange.say_cancelled(request_id, "the caller no longer waits")
            raise
        finally:
            self._exchange.close(request_id)

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
                self._exchange.start(tasks, on_request, on_notify, on_notify_intercept)
                task_status.started()
                try:
                    gone = await self._read(tasks)
                except ServerFailure as failure:
                    gone = failure.evidence
                except Exception as exc:  # noqa: BLE001 - an unexpected fault ends this connection and no other
                    gone = Unexpected(type=type(exc).__name__)
                self._exchange.fail(ServerFailure(gone))
                tasks.cancel_scope.cancel()
        finally:
            self._exchange.fail(ServerFailure(gone))
            self._exchange.release()
            self._over.set()
