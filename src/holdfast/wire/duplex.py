"""The SDK's dispatcher over one stream in each direction: the common part of stdio and SSE."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
from mcp import MCPError
from mcp.shared.dispatcher import CallOptions, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.transport_context import TransportContext

from holdfast.config.spec import Limits
from holdfast.core.evidence import Evidence, NetworkFailure, NetworkFault, TimedOut, Unexpected
from holdfast.errors import ServerFailure
from holdfast.wire.rpc import Exchange, Message, notice_message, request_message, with_progress_token

__all__ = ["DuplexDispatcher"]


class DuplexDispatcher(Dispatcher[TransportContext]):
    """The SDK's dispatcher over one stream in each direction (stdio, SSE).

    A subclass writes a message, and reads messages until the peer is gone.
    """

    def __init__(self, kind: str, limits: Limits) -> None:
        self._limits = limits
        self._exchange = Exchange(kind, self._write, limits)
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

    @abstractmethod
    async def _write(self, message: Message) -> None:
        """Write one message; raise ``ServerFailure`` if that fails."""

    @abstractmethod
    async def _read(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        """Give messages to the exchange until the peer is gone; return the evidence."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> Message:
        """Send a request and wait for its result; the deadline covers the write too."""
        opts = opts or {}
        request_id, waiter = self._exchange.open(opts)
        timeout = opts.get("timeout")
        abandoned = "the caller no longer waits" if opts.get("cancel_on_abandon", True) else ""
        try:
            with anyio.fail_after(timeout):
                await self._write(request_message(request_id, method, with_progress_token(params, request_id, opts)))
                result = await waiter.result()
            abandoned = ""
        except TimeoutError:
            raise ServerFailure(TimedOut(doing=f"the answer to {method}", after=timeout or 0.0)) from None
        except (MCPError, ServerFailure):
            abandoned = ""
            raise
        finally:
            self._exchange.close(request_id)
            if abandoned:
                self._exchange.say_cancelled(request_id, abandoned)
        return result

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification; one that cannot be written is dropped, as the protocol expects."""
        with suppress(ServerFailure):
            await self._write(notice_message(method, params))

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
            self._over.set()
