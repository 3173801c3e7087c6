"""The path of a call: resolved in the catalog, admitted, sent once, settled, timed and recorded.

A call is sent a second time only if the server refused it before acting (its session had expired, or nothing
listened), or if its tool is declared read-only or idempotent and the connection died. The error of every other
failure says that the outcome is uncertain. Times are real times, whichever clock the hub has: an event loop's clock
may have a resolution of a millisecond, and many calls take less.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from time import perf_counter
from typing import Protocol

from holdfast.config import ApprovalMode, Config
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
    command_line,
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
from holdfast.hub.client_slots import ready_within
from holdfast.hub.clock import Clock
from holdfast.hub.journal import Journal
from holdfast.hub.lease import Lease, session_expired
from holdfast.hub.limits import BulkheadFull
from holdfast.hub.records import CallEnded, CallOutcome
from holdfast.hub.slot import Slot
from holdfast.types import ProgressFn
from holdfast.wire import Caller, Connection, Fields, RawObject, descriptor_shortage, is_word

__all__ = [
    "CallHost",
    "HubCall",
    "approval_mode",
    "is_repeatable",
    "known",
    "refuse_held",
]


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
    own = spec.approvals if spec is not None else None
    return own or config.settings.approvals or default


def refuse_held(approvals: Approvals, server: str, name: str, kind: ApprovalKind) -> None:
    """Raise ``ToolHeld`` for a tool or a prompt that waits for approval."""
    if approvals.is_held(server, name, kind):
        command = command_line("approve", server, name, *([] if kind == "tool" else ["--kind", kind]))
        raise ToolHeld(
            f"the {kind} `{name}` of `{server}` is held: it is not known to be unchanged since it was first seen",
            hint=f"A person must review the change and approve it first: `{command}`",
        )


class CallHost(Protocol):
    """What a call needs of its hub."""

    config: Config
    clock: Clock
    journal: Journal

    def prepared(self, server: str, method: str, params: Fields, *, late: bool) -> Fields:
        """The parameters to send now. ``late``: they were made before the server was connected.

        Raises ``ToolHeld`` for a tool or a prompt that waits for approval.
        """


class HubCall:
    """One call from its request to its end. One object, and no wait or task but those of the server."""

    __slots__ = (
        "_asked_at",
        "_began",
        "_caller",
        "_connection",
        "_faults",
        "_hub",
        "_lease",
        "_method",
        "_on_progress",
        "_own_slot",
        "_params",
        "_sent_at",
        "_slot",
        "_trace",
        "_with_server",
    )

    def __init__(
        self,
        hub: CallHost,
        slot: Slot,
        method: str,
        params: Fields,
        on_progress: ProgressFn | None,
        caller: Caller | None,
        own_slot: bool,
    ) -> None:
        self._began = perf_counter()
        self._hub = hub
        self._slot = slot
        self._method = method
        self._params = params
        self._on_progress = on_progress
        self._caller = caller
        self._own_slot = own_slot
        self._trace = (
            tracing.begin(slot.id, method, params, principal=self._principal) if tracing.is_tracing() else None
        )
        self._lease: Lease | None = None
        self._connection: Connection | None = None
        self._faults = 0
        self._asked_at: float | None = None
        """When it was first admitted; the wait for a server that comes up is counted from there."""
        self._sent_at: float | None = None
        """When it was sent; None while it is not with the server."""
        self._with_server = 0.0
        """The seconds of earlier attempts in which it was."""

    @property
    def _principal(self) -> str:
        return self._caller.principal if self._caller is not None else ""

    async def run(self, *, repeatable: bool) -> RawObject:
        """Make the call, a second time where that is safe. Returns the server's result."""
        slot, repeated = self._slot, False
        try:
            lease = slot.lease
            late = lease is None
            params: Fields | None = self._hub.prepared(slot.spec.id, self._method, self._params, late=late)
            result: RawObject | None = None
            while result is None:
                try:
                    result = await self._attempt(lease, params, late)
                except ServerFailure as failure:
                    if repeated or not self._may_be_repeated(failure.evidence, repeatable=repeatable):
                        raise self._error(failure, repeatable=repeatable) from None
                    repeated, lease, params = True, slot.lease, None
                    self._begin_again(failure.evidence)
        except BaseException as exc:
            self._end(_outcome(exc), exc)
            raise
        failed = result.get("isError")
        self._end("tool_error" if failed is not None and is_word(failed, b"true") else "completed")
        return result

    def _begin_again(self, seen: Evidence) -> None:
        self._lease = self._connection = None
        if isinstance(seen, NetworkFailure) and seen.replica is not None and not seen.sent:
            self._asked_at = None  # its server moved to another replica meanwhile
        if self._sent_at is not None:
            self._with_server += perf_counter() - self._sent_at
            self._sent_at = None

    def _admitted(self) -> Permit:
        permit = self._slot.admit()
        if isinstance(permit, Refusal):
            raise refused(self._slot, permit)
        if self._asked_at is None:
            self._asked_at = permit.at
        return permit

    def _admitted_again(self, permit: Permit) -> Permit:
        """The permit of a call that has waited: meanwhile its server may have failed, or been disabled.

        A probe keeps its place.
        """
        if permit.probe:
            return permit
        self._slot.settle(permit, Outcome.NEUTRAL)
        return self._admitted()

    async def _attempt(self, lease: Lease | None, params: Fields | None, late: bool) -> RawObject:
        """Send it once. ``params`` are None, or those of this very moment: they are made again after a wait."""
        slot, trace = self._slot, self._trace
        if trace is not None:
            trace.enter("admission")
        permit, waited = self._admitted(), False
        outcome, reason = Outcome.NEUTRAL, ""
        try:
            if not slot.bulkhead.try_acquire():
                await slot.bulkhead.enter()
                lease, params = slot.lease, None
                waited = True
            try:
                if waited:
                    permit = self._admitted_again(permit)
                if trace is not None:
                    trace.enter("wait")
                if lease is None:
                    lease, params = await self._ready(), None
                    permit = self._admitted_again(permit)
                self._lease, permit.connection, self._faults = lease, lease.generation, lease.faults
                caller = self._caller
                connection = lease.connection if caller is None else lease.connection_at_once(caller)
                if connection is None:
                    connection, params = await lease.connection_for(caller), None
                self._connection = connection
                if params is None:
                    params = self._hub.prepared(slot.id, self._method, self._params, late=late)
                if trace is not None:
                    trace.enter("upstream")
                    params = trace.carried(params)
                policy = self._hub.config.settings.call.of(slot.spec)
                self._sent_at = perf_counter()
                result = await connection.request(
                    self._method,
                    params,
                    idle=policy.timeout,
                    within=policy.hard_timeout,
                    on_progress=self._on_progress,
                    caller=caller,
                )
                outcome = Outcome.COMPLETED
                return result
            finally:
                slot.bulkhead.release()
        except BulkheadFull:
            raise _unavailable(slot, ServerBusy, "has reached its limit of calls in flight", retry_in=1.0) from None
        except ServerFailure as raised:
            failure = raised if (shortage := descriptor_shortage(raised)) is None else ServerFailure(shortage)
            outcome, reason = self._failed(failure.evidence, permit)
            raise failure from raised
        finally:
            slot.settle(permit, outcome, reason)

    def _failed(self, seen: Evidence, permit: Permit) -> tuple[Outcome, str]:
        """What an attempt that failed says of the server, and why."""
        outcome = self._meaning(seen)
        reason = classify_evidence(self._masked(seen), connected_before=True).reason
        if session_expired(seen) and permit.connection is not None:
            self._expire(permit.connection)
        return outcome, reason

    async def _ready(self) -> Lease:
        """The live connection; waits for a dial that is under way, and for nothing else."""
        slot, settings = self._slot, self._hub.config.settings
        asked_at = self._asked_at if self._asked_at is not None else self._hub.clock.now()
        until = asked_at + ready_within(slot, settings, own=self._own_slot)
        while True:
            lease = slot.lease
            if lease is not None:
                return lease
            if slot.machine.dialing is None and slot.state in _HOPELESS:
                kind, words = _HOPELESS[slot.state]
                raise _unavailable(slot, kind, words)
            # A connection that comes with the end of the wait is used.
            if not await slot.changed(until=until) and slot.lease is None:
                raise _unavailable(slot, ServerNotReady, retry_in=slot.health().retry_in)

    def _end(self, outcome: CallOutcome, exc: BaseException | None = None) -> None:
        """Record the call, if the record has a reader."""
        hub, trace = self._hub, self._trace
        if trace is None and not hub.journal.reads_calls(outcome):
            return
        now = perf_counter()
        seconds, with_server = now - self._began, self._with_server
        if self._sent_at is not None:
            with_server += now - self._sent_at
        known = exc if isinstance(exc, HoldfastError) else None
        ended = CallEnded(
            server=self._slot.id,
            method=self._method,
            outcome=outcome,
            waited=seconds - with_server,
            seconds=seconds,
            at=hub.clock.now(),
            error=type(known).__name__ if known is not None else "",
            reason=known.message if known is not None else "",
            principal=self._principal,
        )
        if trace is not None:
            trace.end(ended)
        hub.journal.write_call(ended)

    def _expire(self, generation: int) -> None:
        """The server no longer knows the session of the connection that was used."""
        lease, used = self._lease, self._connection
        if self._uses_other_era() and lease is not None and lease.other is not None and used is not None:
            lease.other.drop(used)
        else:
            self._slot.session_expired(generation)

    def _uses_other_era(self) -> bool:
        return self._lease is not None and self._connection not in (None, self._lease.connection)

    def _may_be_repeated(self, seen: Evidence, *, repeatable: bool) -> bool:
        if isinstance(seen, NetworkFailure) and seen.fault is NetworkFault.REFUSED:
            # While the lost connection is still the current one, a second attempt would be refused too.
            stands = self._lease is not None and self._lease is self._slot.lease
            return not stands
        return session_expired(seen) or (repeatable and isinstance(seen, NetworkFailure | ProcessExit))

    def _error(self, failure: ServerFailure, *, repeatable: bool) -> CallFailed:
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

    def _meaning(self, seen: Evidence) -> Outcome:
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
            case HttpStatus(status=413):
                return Outcome.NEUTRAL  # this request was too large: that says nothing about the next one
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
        piped = self._slot.spec.transport == "stdio" and isinstance(seen, NetworkFailure | ProcessExit)
        return piped or (connection is not None and connection.wire.ended)

    def _masked(self, seen: Evidence) -> Evidence:
        return masked(seen, (self._lease or self._slot).redactor)


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


def refused(slot: Slot, refusal: Refusal) -> ServerUnavailable:
    """The error for a refusal; the network was not touched."""
    kind, words = _REFUSALS[refusal.reason]
    return _unavailable(slot, kind, words, retry_in=refusal.retry_in)


def _may_have_acted(seen: Evidence) -> bool:
    """Whether the server may have acted on the request. After a refusal or an error response it has not."""
    match seen:
        case HttpStatus():
            return seen.status >= 500 or seen.status == 408
        case NetworkFailure():
            return seen.stood and seen.sent
        case ProcessExit() | TimedOut():
            return seen.sent
        case _:
            return isinstance(seen, OverBound | NotMcp | Unexpected)


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
        text = for_caller(failure, refused_for=retry_in, now=datetime.now(UTC).astimezone())
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
