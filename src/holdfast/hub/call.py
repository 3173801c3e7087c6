"""The path of a call: resolved in the catalog, admitted, sent once, settled, timed and recorded.

A call is sent a second time only if the server refused it before acting (its session had expired, or nothing
listened), or if its tool is declared read-only or idempotent and the connection died. The error of every other
failure says that the outcome is uncertain. Times are real times, whichever clock the hub has: an event loop's clock
may have a resolution of a millisecond, and many calls take less.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from time import perf_counter
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.config import ApprovalMode, CallPolicy, Config, ServerSpec
from holdfast.core import (
    ApprovalKind,
    Catalog,
    Evidence,
    HttpStatus,
    Kind,
    NameKey,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    Outcome,
    OutOfDescriptors,
    OverBound,
    Permit,
    ProcessExit,
    Refusal,
    RefusalReason,
    RpcError,
    State,
    TimedOut,
    TokenNotRenewed,
    Unexpected,
    Unknown,
    classify_evidence,
    for_caller,
    masked,
    span,
)
from holdfast.errors import (
    BreakerOpen,
    CallDenied,
    CallFailed,
    ConnectionClosed,
    HoldfastError,
    HubClosed,
    ServerBusy,
    ServerDenied,
    ServerDisabled,
    ServerFailure,
    ServerNotReady,
    ServerPermanentlyFailed,
    ServerUnavailable,
    ToolHeld,
    UnknownTool,
)
from holdfast.hub import tracing
from holdfast.hub.approvals import Approvals
from holdfast.hub.clock import Clock
from holdfast.hub.lease import Lease, session_expired
from holdfast.hub.limits import BulkheadFull
from holdfast.hub.records import CallEnded, CallOutcome, HubRecord
from holdfast.hub.slot import Slot
from holdfast.types import ProgressFn
from holdfast.wire import Caller, Connection, Era, Fields, RawObject, descriptor_shortage

__all__ = ["CallRequest", "CallTimer", "approval_mode", "is_repeatable", "known", "refuse_held", "send"]


def known(found: NameKey | Unknown, kind: Kind) -> NameKey:
    """The owner of an item; raises ``UnknownTool`` if there is none."""
    if isinstance(found, Unknown):
        noun = kind.value.removesuffix("s")
        hint = f"did you mean {' or '.join(found.nearest)}?" if found.nearest else ""
        raise UnknownTool(f"no server has a {noun} named `{found.name}`", hint=hint)
    return found


def is_repeatable(catalog: Catalog, name: str) -> bool:
    """Whether a tool declares itself read-only or idempotent."""
    entry = catalog.entry(name)
    annotations = entry.item.raw.get("annotations") if entry is not None else None
    if not isinstance(annotations, Mapping):
        return False
    return annotations.get("readOnlyHint") is True or annotations.get("idempotentHint") is True


def approval_mode(config: Config, server: str, default: ApprovalMode) -> ApprovalMode:
    """What happens with a server's changes: its own setting wins, then that of all servers, then ``default``."""
    spec = config.servers.get(server)
    own = spec.approvals if isinstance(spec, ServerSpec) else None
    return own or config.settings.approvals or default


def refuse_held(approvals: Approvals, server: str, name: str, kind: ApprovalKind) -> None:
    """Raise ``ToolHeld`` for a tool or a prompt that waits for approval."""
    if approvals.is_held(server, name, kind):
        command = shlex.join(["holdfast", "approve", server, name, *([] if kind == "tool" else ["--kind", kind])])
        raise ToolHeld(
            f"the {kind} `{name}` of `{server}` is held: it is not known to be unchanged since it was first seen",
            hint=f"A person must review the change and approve it first: `{command}`",
        )


class CallTimer:
    """Wraps one call from its request to its end."""

    __slots__ = (
        "_began",
        "_clock",
        "_method",
        "_outcome",
        "_principal",
        "_server",
        "_since",
        "_stage",
        "_trace",
        "_waited",
        "_write",
    )

    def __init__(
        self,
        server: str,
        method: str,
        params: Fields,
        clock: Clock,
        write: Callable[[HubRecord], None],
        *,
        principal: str = "",
    ) -> None:
        self._server = server
        self._method = method
        self._clock = clock
        self._write = write
        self._principal = principal
        self._trace = tracing.begin(server, method, params, principal=principal)
        self._outcome: CallOutcome = "completed"
        self._waited = 0.0
        self._stage: tracing.Stage | None = None
        self._began = self._since = perf_counter()

    def __enter__(self) -> Self:
        return self

    def enter(self, stage: tracing.Stage) -> None:
        """The call reaches this stage."""
        now = perf_counter()
        if self._stage != "upstream":
            self._waited += now - self._since  # time that was not spent with the server
        self._since, self._stage = now, stage
        if self._trace is not None:
            self._trace.enter(stage)

    def carried(self, params: Fields) -> Fields:
        """The parameters for the server, with the trace context if there is a trace."""
        return params if self._trace is None else self._trace.carried(params)

    def answered(self, result: RawObject) -> RawObject:
        """Note the server's result, and return it."""
        failed = result.get("isError")
        if failed is not None and bytes(failed) == b"true":
            self._outcome = "tool_error"
        return result

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        now = perf_counter()
        known = exc if isinstance(exc, HoldfastError) else None
        ended = CallEnded(
            server=self._server,
            method=self._method,
            outcome=self._outcome if exc is None else _outcome(exc),
            waited=self._waited if self._stage == "upstream" else self._waited + now - self._since,
            seconds=now - self._began,
            at=self._clock.now(),
            error=type(known).__name__ if known is not None else "",
            reason=known.message if known is not None else "",
            principal=self._principal,
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


_T = TypeVar("_T")


class CallRequest:
    """One request, for the connection that stands when it is sent."""

    __slots__ = ("_caller", "_method", "_on_progress", "_policy", "_prepare", "_timer")

    def __init__(
        self,
        method: str,
        prepare: Callable[[], Fields],
        policy: CallPolicy,
        timer: CallTimer,
        *,
        on_progress: ProgressFn | None,
        caller: Caller | None,
    ) -> None:
        self._method = method
        self._prepare = prepare
        self._policy = policy
        self._timer = timer
        self._on_progress = on_progress
        self._caller = caller

    @property
    def era(self) -> Era | None:
        """The era of the client that asks."""
        return self._caller.era if self._caller is not None else None

    def __call__(self, connection: Connection) -> Coroutine[Any, Any, RawObject]:
        """Send it once. ``prepare`` gives the parameters now: a tool's name, and that it is held, may be new."""
        params = self._prepare()
        return connection.request(
            self._method,
            self._timer.carried(params),
            idle=self._policy.timeout,
            within=self._policy.hard_timeout,
            on_progress=self._on_progress,
            caller=self._caller,
        )


async def send(
    slot: Slot, ask: Callable[[Connection], Awaitable[_T]], timer: CallTimer, *, repeatable: bool, ready_at: float
) -> _T:
    """Make one call; it waits until ``ready_at`` for a server that is coming up."""
    attempt = _Attempt(slot, timer)
    try:
        return await attempt.make(ask, ready_at)
    except ServerFailure as failure:
        if not attempt.may_be_repeated(failure.evidence, repeatable=repeatable):
            raise attempt.error(failure, repeatable=repeatable) from None
    again = _Attempt(slot, timer)
    try:
        return await again.make(ask, ready_at)
    except ServerFailure as failure:
        raise again.error(failure, repeatable=repeatable) from None


class _Attempt:
    """One attempt to send a call, on one connection."""

    __slots__ = ("_connection", "_faults", "_lease", "_slot", "_timer")

    def __init__(self, slot: Slot, timer: CallTimer) -> None:
        self._slot = slot
        self._timer = timer
        self._lease: Lease | None = None
        self._connection: Connection | None = None
        self._faults = 0

    async def make(self, ask: Callable[[Connection], Awaitable[_T]], ready_at: float) -> _T:
        slot, timer = self._slot, self._timer
        timer.enter("admission")
        permit = _admitted(slot)
        outcome, reason = Outcome.NEUTRAL, ""
        try:
            if not slot.bulkhead.try_enter():
                await slot.bulkhead.enter()
            try:
                timer.enter("wait")
                lease = self._lease = slot.lease or await _ready(slot, ready_at)
                permit.connection, self._faults = lease.generation, lease.faults
                self._connection = await lease.connection_for(getattr(ask, "era", None))
                timer.enter("upstream")
                result = await ask(self._connection)
                outcome = Outcome.COMPLETED
                return result
            finally:
                slot.bulkhead.leave()
        except BulkheadFull:
            raise _unavailable(slot, ServerBusy, "has reached its limit of calls in flight", retry_in=1.0) from None
        except ServerFailure as raised:
            failure = raised if (shortage := descriptor_shortage(raised)) is None else ServerFailure(shortage)
            outcome = self._outcome(failure.evidence)
            reason = classify_evidence(self._masked(failure.evidence), connected_before=True).reason
            if session_expired(failure.evidence) and permit.connection is not None:
                self._expire(permit.connection)
            raise failure from raised
        finally:
            slot.settle(permit, outcome, reason)

    def _expire(self, generation: int) -> None:
        """The server no longer knows the session of the connection that was used."""
        lease, used = self._lease, self._connection
        if self._uses_other_era() and lease is not None and lease.other is not None and used is not None:
            lease.other.drop(used)
        else:
            self._slot.session_expired(generation)

    def _uses_other_era(self) -> bool:
        return self._lease is not None and self._connection not in (None, self._lease.connection)

    def may_be_repeated(self, seen: Evidence, *, repeatable: bool) -> bool:
        if isinstance(seen, NetworkFailure) and seen.fault is NetworkFault.REFUSED:
            # While the lost connection is still the current one, a second attempt would be refused too.
            stands = self._lease is not None and self._lease is self._slot.lease
            return not stands
        return session_expired(seen) or (repeatable and isinstance(seen, NetworkFailure | ProcessExit))

    def error(self, failure: ServerFailure, *, repeatable: bool) -> CallFailed:
        """The caller's error: what happened, on which server, and whether the server may have acted.

        It is never chained to the original exception, which may quote secrets.
        """
        seen = self._masked(failure.evidence)
        verdict = classify_evidence(seen, connected_before=True)
        cut = self._lease.cut if self._lease is not None and isinstance(seen, NetworkFailure | ProcessExit) else ""
        words = (
            f"the call to `{self._slot.id}` {f'was cut off by the hub: {cut}' if cut else f'failed: {verdict.reason}'}"
        )
        uncertain = not repeatable and _may_have_acted(seen)
        if uncertain:
            words += ". Its outcome is uncertain: the server may have acted on it, or still act"
        lost = isinstance(seen, OverBound | NotMcp) and self._is_over(seen)
        if lost or isinstance(seen, NetworkFailure | ProcessExit):
            return ConnectionClosed(seen, words, hint="" if cut else verdict.hint, uncertain=uncertain)
        kind = CallDenied if verdict.status == "denied" else CallFailed
        return kind(seen, words, hint=verdict.hint)

    def _outcome(self, seen: Evidence) -> Outcome:
        """What a failure means for the connection."""
        match seen:
            case RpcError() | NotMcp(fault=NotMcpFault.BAD_RESULT):
                return Outcome.COMPLETED
            case TimedOut():
                return Outcome.TIMED_OUT
            case OutOfDescriptors():
                return Outcome.NEUTRAL  # the hub's own trouble
            case TokenNotRenewed():
                return Outcome.NEUTRAL  # the authorization server is down: that says nothing about this one
            case HttpStatus() if session_expired(seen):
                return Outcome.NEUTRAL
            case HttpStatus() if classify_evidence(seen).status == "denied":
                return Outcome.DENIED
            case NetworkFailure() | ProcessExit() | OverBound() | NotMcp() if self._is_over(seen):
                return Outcome.CONNECTION_LOST
            case OverBound():
                return Outcome.COMPLETED  # an answer came; it was too large, and the connection goes on
            case NetworkFailure(fault=NetworkFault.REFUSED):
                return Outcome.CONNECTION_LOST  # nothing listens: no connection can still stand
            case NetworkFailure() if self._lease is not None:
                return self._counted(self._lease)
            case _:
                return Outcome.TRANSPORT_FAILURE

    def _counted(self, lease: Lease) -> Outcome:
        """Over HTTP each call fails by itself when a server dies: calls in flight together are one failure."""
        if lease.faults != self._faults:
            return Outcome.NEUTRAL
        lease.faults += 1
        return Outcome.TRANSPORT_FAILURE

    def _is_over(self, seen: Evidence) -> bool:
        """Whether the server's first connection is lost, not only this request. A broken pipe is always lost."""
        if self._uses_other_era():
            return False
        connection = self._lease.connection if self._lease is not None else None
        piped = getattr(self._slot.spec, "transport", "") == "stdio" and isinstance(seen, NetworkFailure | ProcessExit)
        return piped or (connection is not None and connection.wire.ended)

    def _masked(self, seen: Evidence) -> Evidence:
        return masked(seen, (self._lease or self._slot).redactor)


def _admitted(slot: Slot) -> Permit:
    decision = slot.admit()
    if isinstance(decision, Permit):
        return decision
    raise refused(slot, decision)


def refused(slot: Slot, refusal: Refusal) -> ServerUnavailable:
    """The error for a refusal; the network was not touched."""
    kind, words = _REFUSALS[refusal.reason]
    return _unavailable(slot, kind, words, retry_in=refusal.retry_in)


async def _ready(slot: Slot, ready_at: float) -> Lease:
    """The live connection; waits for a dial that is under way, and for nothing else."""
    while True:
        lease = slot.lease
        if lease is not None:
            return lease
        if slot.machine.dialing is None and slot.state in _HOPELESS:
            kind, words = _HOPELESS[slot.state]
            raise _unavailable(slot, kind, words)
        if not await slot.changed(until=ready_at):
            raise _unavailable(slot, ServerNotReady, retry_in=slot.health().retry_in)


def _may_have_acted(seen: Evidence) -> bool:
    """Whether the server may have acted on the request. After a refusal or an error response it has not."""
    match seen:
        case HttpStatus():
            return seen.status >= 500 or seen.status == 408
        case NetworkFailure():
            return seen.stood and seen.sent
        case ProcessExit():
            return seen.sent
        case _:
            return isinstance(seen, ProcessExit | TimedOut | OverBound | NotMcp | Unexpected)


def _unavailable(
    slot: Slot, kind: type[ServerUnavailable], words: str = "", *, retry_in: float | None = None
) -> ServerUnavailable:
    """The error of a call that was not sent. ``words`` are for what is no failure of the server."""
    health = slot.health()
    failure = health.failure
    if failure is None or words:
        because = f": {health.reason}" if health.reason else ""
        later = f". Try again in {span(retry_in)}" if retry_in is not None else ""
        text = f"MCP server '{slot.id}' {words or 'is not available'}{because}{later}"
    else:
        failure = failure._replace(retry_in=retry_in if retry_in is not None else failure.retry_in)
        text = for_caller(failure, now=datetime.now(UTC).astimezone())
    return kind(text, server_id=slot.id, state=health.state.value, reason=health.reason, retry_in=retry_in)


# A failure of the server has its words in ``core.messages``; the others have theirs here.
_REFUSALS: dict[RefusalReason, tuple[type[ServerUnavailable], str]] = {
    RefusalReason.OPEN: (BreakerOpen, ""),
    RefusalReason.PROBING: (BreakerOpen, "is being probed by another call"),
    RefusalReason.PERMANENTLY_FAILED: (ServerPermanentlyFailed, ""),
    RefusalReason.DENIED: (ServerDenied, ""),
    RefusalReason.DISABLED: (ServerDisabled, "is disabled"),
    RefusalReason.STOPPED: (HubClosed, "is no longer served"),
}

_HOPELESS: dict[State, tuple[type[ServerUnavailable], str]] = {
    State.PERMANENTLY_FAILED: (ServerPermanentlyFailed, ""),
    State.DENIED: (ServerDenied, ""),
    State.DISABLING: (ServerDisabled, "is disabled"),
    State.DISABLED: (ServerDisabled, "is disabled"),
    State.DISCONNECTED: (HubClosed, "is no longer served"),
}
