"""Measures one call and writes its record: the outcome and the times.

It uses real time, whichever clock the hub has: an event loop's clock may have a resolution of a millisecond, and
many calls take less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from holdfast.core.evidence import RpcError, TimedOut
from holdfast.errors import CallDenied, CallFailed, HoldfastError, ServerUnavailable, ToolHeld
from holdfast.hub import tracing
from holdfast.hub.clock import Clock
from holdfast.hub.records import CallEnded, CallOutcome, HubRecord

__all__ = ["CallTimer"]


class CallTimer:
    """Wraps one call from its request to its end."""

    __slots__ = (
        "_began",
        "_clock",
        "_method",
        "_outcome",
        "_server",
        "_since",
        "_stage",
        "_trace",
        "_waited",
        "_write",
    )

    def __init__(
        self, server: str, method: str, params: Mapping[str, Any], clock: Clock, write: Callable[[HubRecord], None]
    ) -> None:
        self._server = server
        self._method = method
        self._clock = clock
        self._write = write
        self._trace = tracing.begin(server, method, params)
        self._outcome: CallOutcome = "completed"
        self._waited = 0.0
        self._stage: tracing.Stage | None = None
        self._began = self._since = perf_counter()

    def __enter__(self) -> Self:
        return self

    def enter(self, stage: tracing.Stage) -> None:
        """The call reaches this stage."""
        self._add_wait()
        self._stage = stage
        if self._trace is not None:
            self._trace.enter(stage)

    def carried(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters for the server, with the trace context if there is a trace."""
        return params if self._trace is None else self._trace.carried(params)

    def _add_wait(self) -> None:
        """Time that was not spent with the server counts as waiting."""
        now = perf_counter()
        if self._stage != "upstream":
            self._waited += now - self._since
        self._since = now

    def answered(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Note the server's result, and return it."""
        if result.get("isError") is True:
            self._outcome = "tool_error"
        return result

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._add_wait()
        ended = CallEnded(
            server=self._server,
            method=self._method,
            outcome=self._outcome if exc is None else _outcome(exc),
            waited=self._waited,
            seconds=self._since - self._began,
            at=self._clock.now(),
            error=type(exc).__name__ if isinstance(exc, HoldfastError) else "",
            reason=exc.message if isinstance(exc, HoldfastError) else "",
        )
        if self._trace is not None:
            self._trace.end(ended)
        self._write(ended)


def _outcome(exc: BaseException) -> CallOutcome:
    """The outcome of a call without a result. An exception that is no ``Exception`` is a cancellation."""
    match exc:
        case ServerUnavailable() | ToolHeld():
            return "refused"
        case CallDenied():
            return "denied"
        case CallFailed(evidence=RpcError()):
            return "rpc_error"
        case CallFailed(evidence=TimedOut()):
            return "timed_out"
        case Exception():
            return "failed"
        case _:
            return "cancelled"
