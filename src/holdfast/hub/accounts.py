"""What became of one call, and how long it took: the one record that the journal gets for it.

Real time, whatever clock the hub plans by: an event loop's own clock may tell no less than a millisecond,
and many a call takes less.
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

__all__ = ["Account"]


class Account:
    """Around one call, from when it was asked for to its end, however it ends."""

    __slots__ = ("_began", "_clock", "_method", "_outcome", "_server", "_since", "_stage", "_tell", "_trace", "_waited")

    def __init__(
        self, server: str, method: str, params: Mapping[str, Any], clock: Clock, tell: Callable[[HubRecord], None]
    ) -> None:
        self._server = server
        self._method = method
        self._clock = clock
        self._tell = tell
        self._trace = tracing.begin(server, method, params)
        self._outcome: CallOutcome = "completed"
        self._waited = 0.0
        self._stage: tracing.Stage | None = None
        self._began = self._since = perf_counter()

    def __enter__(self) -> Self:
        return self

    def enter(self, stage: tracing.Stage) -> None:
        """The call is at this stage from now on."""
        self._add_wait()
        self._stage = stage
        if self._trace is not None:
            self._trace.enter(stage)

    def carried(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The call's parameters as they go to the server: in its trace, if it has one."""
        return params if self._trace is None else self._trace.carried(params)

    def _add_wait(self) -> None:
        """Whatever time was not the server's was a wait."""
        now = perf_counter()
        if self._stage != "upstream":
            self._waited += now - self._since
        self._since = now

    def answered(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """The server gave a result, which is returned."""
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
        self._tell(ended)


def _outcome(exc: BaseException) -> CallOutcome:
    """How a call ended that has no result. Whatever is not an ordinary exception is a cancellation of its caller."""
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
