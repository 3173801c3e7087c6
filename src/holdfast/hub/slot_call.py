"""The path of a call: admitted, sent once, settled, recorded. ``Slot.call`` goes through the steps of a ``SlotCall``.

Theory of operation. A call goes through these steps, in one coroutine, without a task or a queue of its own::

    held?  ->  admitted?  ->  a place?  ->  a connection?  ->  sent  ->  settled  ->  recorded
           refused at once   waits for    waits for a dial    the bytes of the answer come back
                             its turn     that is under way

What can happen:

* The breaker refuses, or the lifecycle does: the network is not touched, and the error says when to try again.
* The call waits for its turn or for a connection. Then the world may have changed, so it is admitted again, what is
  held is looked at again, its caller's rights are (``check``), and its parameters get the names that the server lists
  now. A probe keeps its place in the breaker: it is the one call that may try.
* The server answers: any answer, also an error, is a completed round trip (BRK-3).
* The connection fails, or the time is up. ``_outcome_of`` says what that means for the server. Only then the
  breaker and the lifecycle count it.
* The caller is cancelled: it takes nothing with it but itself. Its permit is settled as neutral.
* The caller's own time is up (``limit``): the call is cancelled likewise. If it was with the server, that is a timeout,
  and the server is asked for a sign of life, as after its own timeout.

What must never happen:

* A request is sent twice although the server may have acted on it. It is repeated once, and only if the server refused
  it before it acted (its session had expired, or nothing listened), or if the tool is declared read-only or idempotent
  and the connection died (LIFE-16). Every other failure says that the outcome is uncertain.
* A permit or a place is kept. ``SlotCall.end`` gives both back in a ``finally``, also when the caller is cancelled.
* One death of a server counts as many failures. Over HTTP every call in flight fails by itself; the lease counts its
  faults, and a call that began before the latest one counts nothing (BRK-2).
* An error quotes a secret. Evidence is masked before any text is made of it, and the error is not chained to the
  exception, which may quote one.

A call that is traced has spans for its admission, its wait for a connection, and the time of the server (OBS-2). They
are made with OpenTelemetry's API, which does nothing until a program sets up its SDK. Without one the trace context in
a request's ``_meta`` passes through unchanged.

Times are real times, whichever clock the hub has: an event loop's clock may have a resolution of a millisecond, and
many calls take less.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import Span, SpanKind, StatusCode

from holdfast._version import __version__
from holdfast.core import (
    CredentialRefused,
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
    ToldByHub,
    Unexpected,
    classify_evidence,
    events as on,
    for_caller,
    masked,
    span,
)
from holdfast.errors import (
    BreakerOpen,
    CallDenied,
    CallFailed,
    CallForbidden,
    ConnectionClosed,
    HoldfastError,
    HubClosed,
    NotApproved,
    NotAuthorized,
    ServerBusy,
    ServerDenied,
    ServerDisabled,
    ServerFailure,
    ServerNotReady,
    ServerPermanentlyFailed,
    ServerUnavailable,
    ToolHeld,
)
from holdfast.hub.journal import ANSWERED, CallEnded, CallOutcome
from holdfast.hub.lease import Lease, session_expired
from holdfast.wire import (
    LEAVING_HEADER,
    BadJson,
    Caller,
    Connection,
    Fields,
    RawObject,
    descriptor_shortage,
    dumps,
    fields,
    join_fields,
    load_members,
    text_of,
)

if TYPE_CHECKING:
    from holdfast.hub.slot import Slot, SlotContext

__all__ = [
    "NAMED_CALLS",
    "SlotCall",
    "begin_trace",
    "is_tracing",
    "no_answer",
    "out_of_time",
    "outcome_of",
    "read_result",
]

NAMED_CALLS = {"tools/call": Kind.TOOL, "prompts/get": Kind.PROMPT}
"""The requests that name an item with a prefix, and its kind."""


class SlotCall(msgspec.Struct, eq=False):
    """One call to one server, from its request to its end: what was asked, what it holds, and what was seen.

    Each attempt takes a permit and a place, and finds a connection. ``end`` gives both back, however it ended.
    """

    slot: Slot
    context: SlotContext
    method: str
    params: Fields
    """As they were asked for."""
    caller: Caller | None
    principal: str
    """Who calls; empty where a program calls in its own name."""
    repeatable: bool
    within: float | None
    """The caller's own limit."""
    exact: bool
    check: Callable[[], object] | None
    late: bool
    """Whether the server was not connected when it came: its name was a guess then, and is looked up again."""
    began: float
    limit: anyio.CancelScope | None = None
    """Ends the call when the caller's own time is up; most callers have none."""
    trace: Trace | None = None
    asked_at: float | None = None
    """When it was first admitted; the wait for a server that comes up is counted from there."""
    has_repeated: bool = False

    sent: Fields = {}
    """What this attempt sends to the server."""
    permit: Permit | None = None
    has_place: bool = False
    has_waited: bool = False
    lease: Lease | None = None
    connection: Connection | None = None
    faults: int = 0
    """The faults of the lease when the attempt began."""
    seen: Evidence | None = None
    """Why it failed."""
    outcome: Outcome | None = None
    sent_at: float | None = None
    """When it was sent; None while it is not with the server."""
    with_server: float = 0.0
    """The seconds of earlier attempts with the server."""

    def __repr__(self) -> str:
        return f"<SlotCall {self.method} to {self.slot.id!r} for {self.principal or 'this program'}>"

    # The steps of an attempt, in their order.

    def admit(self) -> None:
        """Ask for the permit; what is held is refused before. Raises ``ToolHeld`` or ``ServerUnavailable``."""
        self.sent = self.prepared()
        permit = self.slot.admit()
        if isinstance(permit, Refusal):
            kind, words = _REFUSALS[permit.reason]
            raise _unavailable(self.slot, kind, words, retry_in=permit.retry_in)
        self.permit = permit
        if self.asked_at is None:
            self.asked_at = permit.at

    async def wait_for_place(self) -> None:
        """Wait for a place. Raises ``ServerBusy``, and what ``admit`` raises."""
        self.has_place = await self.slot.bulkhead.wait()
        if not self.has_place:
            raise _unavailable(self.slot, ServerBusy, "has reached its limit of calls in flight", retry_in=1.0)
        self._admit_again()

    async def wait_for_lease(self) -> Lease:
        """The live connection; waits for a dial that is under way, and for nothing else."""
        slot, settings = self.slot, self.context.settings
        # The first call of one client's slot waits for its first dial.
        first = self.context.one_client and not slot.machine.life.ever_connected
        until = (self.asked_at or 0.0) + (
            settings.load.attempt_timeout if first else slot.bulkhead.policy.ready_timeout
        )
        while (lease := slot.lease) is None:
            if slot.machine.dialing is None and slot.state in _HOPELESS:
                kind, words = _HOPELESS[slot.state]
                raise _unavailable(slot, kind, words, retry_in=slot.health().next_try)
            # Any change wakes all that wait. Most of these changes are not the one that they wait for, hence the loop.
            # A connection that comes with the end of the wait is used.
            if not await slot.changed(until=until) and slot.lease is None:
                raise _unavailable(slot, ServerNotReady, retry_in=slot.health().retry_in)
        self._admit_again()
        return lease

    def send_on(self, lease: Lease, connection: Connection) -> Fields:
        """The parameters to send now, on this connection. Raises ``ToolHeld``, and what ``check`` raises."""
        assert self.permit is not None  # noqa: S101 - it was admitted
        self.permit.connection = lease.generation
        self.lease, self.connection, self.faults = lease, connection, lease.faults
        # Without a wait nothing else ran since ``admit``: its answers still hold.
        if self.has_waited:
            if self.check is not None:
                self.check()
            self.sent = self.prepared()
        if self.trace is not None:
            self.trace.enter("upstream")
            self.sent = self.trace.carried(self.sent)
        self.sent_at = perf_counter()
        return self.sent

    def fail(self, raised: ServerFailure) -> None:
        """The server gave no result."""
        # A hub without a free descriptor reaches no server: none of them must be blamed for that.
        self.seen = descriptor_shortage(raised) or raised.evidence
        self.outcome = _outcome_of(self, self.seen)

    def end(self, *, completed: bool) -> None:
        """Give back what the attempt took, and report what it says of the server."""
        slot, permit = self.slot, self.permit
        if self.has_place:
            self.has_place = False
            slot.bulkhead.release()
        if permit is None:
            return
        self.permit = None
        if completed:
            slot.settle(permit, Outcome.COMPLETED)
        elif self.seen is not None and self.outcome is not None:
            reason = classify_evidence(_masked(self, self.seen), connected_before=True).reason
            slot.settle(permit, self.outcome, reason)
        else:  # a timeout counts only if a sign of life is missing
            is_up = self.limit is not None and self.limit.cancel_called and self.sent_at is not None
            slot.settle(permit, Outcome.TIMED_OUT if is_up else Outcome.NEUTRAL)

    def begin_again(self) -> None:
        """The attempt failed: another one follows, or the caller's error is raised."""
        assert self.seen is not None  # noqa: S101 - it failed
        if self.has_repeated or not _may_be_repeated(self, self.seen):
            raise _error_of(self, self.seen)
        if self.sent_at is not None:
            self.with_server += perf_counter() - self.sent_at
        # Nothing of the first attempt may decide the second one. ``asked_at`` stays: the caller waits once.
        self.has_repeated, self.sent_at, self.seen, self.outcome = True, None, None, None
        self.has_waited, self.lease, self.connection = False, None, None

    def record(self, outcome: CallOutcome, exc: BaseException | None = None) -> None:
        """Record the end of the call, if the record has a reader."""
        journal, trace = self.context.journal, self.trace
        if trace is None and not journal.reads_calls(outcome):
            return
        now = perf_counter()
        seconds, with_server = now - self.began, self.with_server
        if self.sent_at is not None:
            with_server += now - self.sent_at
        known = exc if isinstance(exc, HoldfastError) else None
        ended = CallEnded(
            server=self.slot.id,
            method=self.method,
            outcome=outcome,
            waited=seconds - with_server,
            seconds=seconds,
            at=self.context.clock.now(),
            error=type(known).__name__ if known is not None else "",
            reason=known.message if known is not None else "",
            principal=self.principal,
        )
        if trace is not None:
            trace.end(ended)
        journal.write_call(ended)

    def prepared(self) -> Fields:
        """The parameters to send now; raises ``ToolHeld``, and ``CallForbidden`` where another name was judged."""
        server, approvals, kind = self.slot.id, self.context.approvals, NAMED_CALLS.get(self.method)
        # Else no item of the server is held, and the name is the one that it lists.
        if kind is None or not (self.late or approvals.pins.changed.get(server)):
            return self.params
        asked = name = text_of(self.params.get("name")) or ""
        if self.late:
            name = self.context.host.catalog.listed_name(NameKey(kind, server, asked))
        approvals.refuse_held(server, name, "tool" if kind is Kind.TOOL else "prompt")
        if name == asked:
            return self.params
        if self.exact:
            raise CallForbidden(
                f"not called: MCP server '{server}' was not connected yet, and the rules are about names that it lists",
                rule="",
                hint="It is connected now: make the call again.",
            )
        return {**self.params, "name": dumps(name)}

    def _admit_again(self) -> None:
        """Admit it after a wait: meanwhile the server may have failed, or been disabled. A probe keeps its permit."""
        self.has_waited = True
        # A probe keeps its permit: given back, another caller would take its place, and this one would be refused by
        # it.
        if self.permit is not None and not self.permit.probe:
            self.slot.settle(self.permit, Outcome.NEUTRAL)
            self.permit = None  # a refusal leaves none to give back
            self.admit()


def out_of_time(call: SlotCall) -> CallFailed | ServerUnavailable:
    """The error of a call that reached the caller's own limit. One that was not sent did nothing."""
    slot, limit = call.slot, f"the call's own timeout of {call.within:g} s"
    if call.sent_at is None:
        if slot.lease is None:
            words = f"did not come up within {limit}"
            return _unavailable(slot, ServerNotReady, words, retry_in=slot.health().retry_in)
        return _unavailable(slot, ServerBusy, f"had no free place within {limit}", retry_in=1.0)
    return no_answer(slot.id, call.method, call.within or 0.0, uncertain=not call.repeatable)


def no_answer(server: str, method: str, limit: float, *, uncertain: bool = True) -> CallFailed:
    """The error of a call that was sent and reached the caller's own limit."""
    words = f"the call to `{server}` failed: no answer within the call's own timeout of {limit:g} s"
    return CallFailed(
        TimedOut(doing=f"the result of {method}", after=limit),
        words + _UNCERTAIN if uncertain else words,
        hint="if it is always this slow, give the call a longer `timeout`",
        uncertain=uncertain,
    )


# What a failure means.


def _outcome_of(call: SlotCall, seen: Evidence) -> Outcome:  # noqa: PLR0912 - one arm for each kind of evidence
    """What the failure means for the connection. It is given up here if its session expired, or its hub leaves."""
    lease = call.lease
    # Neutral: the server refused before it acted, so the call is repeated on the next connection, and nothing failed.
    if session_expired(seen) or _hub_leaves(call, seen):
        if lease is not None and lease.other is not None and _uses_other_era(call):
            lease.other.drop(call.connection)
        elif lease is not None:
            call.slot.handle(on.SessionExpired(lease.generation))
        return Outcome.NEUTRAL
    match seen:
        case RpcError() | NotMcp(fault=NotMcpFault.BAD_RESULT):
            return Outcome.COMPLETED
        case TimedOut():
            return Outcome.TIMED_OUT
        case (
            OutOfDescriptors()  # the hub's own trouble
            | ToldByHub()  # the hub that has the server counts it (BRK-3)
            | TokenNotRenewed()  # the authorization server is down: that says nothing about this one
            | HttpStatus(status=413)  # this request was too large: that says nothing about the next one
        ):
            return Outcome.NEUTRAL
        case HttpStatus(status=429) if call.connection is not None and call.connection.hub is not None:
            return Outcome.NEUTRAL  # a quota of that hub, for one principal: no fault of the connection
        case CredentialRefused():
            return Outcome.DENIED
        case HttpStatus() if classify_evidence(seen).status == "denied":
            return Outcome.DENIED
        case NetworkFailure() | ProcessExit() | OverBound() | NotMcp() if _is_over(call, seen):
            return Outcome.CONNECTION_LOST
        case OverBound():
            return Outcome.COMPLETED  # an answer came; it was too large, and the connection goes on
        case NetworkFailure(fault=NetworkFault.REFUSED):
            return Outcome.CONNECTION_LOST  # nothing listens: no connection can still stand
        case NetworkFailure() if lease is not None:
            # Over HTTP each call fails by itself when a server dies: calls in flight together are one failure.
            # Another call has noted this fault since the call began. One that began later, and fails too, notes the
            # next.
            if lease.faults != call.faults:
                return Outcome.NEUTRAL
            lease.faults += 1
            return Outcome.TRANSPORT_FAILURE
        case _:
            return Outcome.TRANSPORT_FAILURE


def _uses_other_era(call: SlotCall) -> bool:
    return call.lease is not None and call.connection not in (None, call.lease.connection)


def _is_over(call: SlotCall, seen: Evidence) -> bool:
    """Whether the server's first connection is lost, not only this request. A broken pipe is always lost."""
    if _uses_other_era(call):
        return False
    piped = call.slot.spec.transport == "stdio" and isinstance(seen, NetworkFailure | ProcessExit)
    return piped or (call.connection is not None and call.connection.wire.ended)


def _may_be_repeated(call: SlotCall, seen: Evidence) -> bool:
    """Whether a second attempt is safe (LIFE-16)."""
    # Nothing listened, so nothing was acted on: safe for any tool.
    if isinstance(seen, NetworkFailure) and seen.fault is NetworkFault.REFUSED:
        # While the lost connection is still the current one, a second attempt would be refused too.
        return call.lease is None or call.lease is not call.slot.lease
    if session_expired(seen) or _hub_leaves(call, seen):
        return True
    return call.repeatable and isinstance(seen, NetworkFailure | ProcessExit)


def _hub_leaves(call: SlotCall, seen: Evidence) -> bool:
    """Whether the hub that has the server ends, and did nothing: the next one is dialed (FLEET-8)."""
    hub = call.connection.hub if call.connection is not None else None
    left = isinstance(seen, HttpStatus) and seen.status == 503 and LEAVING_HEADER in seen.headers
    return left and hub is not None and hub.proven


def _error_of(call: SlotCall, seen: Evidence) -> CallFailed | ServerUnavailable:
    """The caller's error: what happened, on which server, and whether the server may have acted."""
    seen = _masked(call, seen)
    if isinstance(seen, ToldByHub):
        return _told(call.slot.id, seen)
    verdict = classify_evidence(seen, connected_before=True)
    lost = isinstance(seen, NetworkFailure | ProcessExit)
    cut = call.lease.cut if call.lease is not None and lost else ""
    what = f"was cut off by the hub: {cut}" if cut else f"failed: {verdict.reason}"
    words = f"the call to `{call.slot.id}` {what}"
    uncertain = not call.repeatable and _may_have_acted(seen)
    if uncertain:
        words += _UNCERTAIN
    if lost or (isinstance(seen, OverBound | NotMcp) and _is_over(call, seen)):
        return ConnectionClosed(seen, words, hint="" if cut else verdict.hint, uncertain=uncertain)
    kind = CallDenied if verdict.status == "denied" else CallFailed
    return kind(seen, words, hint=verdict.hint, uncertain=uncertain)


def _masked(call: SlotCall, seen: Evidence) -> Evidence:
    return masked(seen, (call.lease or call.slot).redactor)


async def read_result(server: str, result: RawObject) -> dict[str, Any]:
    """A result as a value, also a large one; raises ``CallFailed`` where no program can read it."""
    try:
        return await load_members(result)
    except BadJson as exc:
        evidence = NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc))
        verdict = classify_evidence(evidence)
        raise CallFailed(evidence, f"the call to `{server}` failed: {verdict.reason}", hint=verdict.hint) from exc


def outcome_of(exc: BaseException) -> CallOutcome:
    """The outcome of a call without a result. An exception that is no ``Exception`` is a cancellation."""
    match exc:
        case ServerUnavailable() | ToolHeld() | NotApproved() | NotAuthorized():
            return "refused"
        case CallDenied() | CallForbidden():
            return "denied"
        case CallFailed(evidence=RpcError()):
            return "rpc_error"
        case CallFailed(evidence=TimedOut()):
            return "timed_out"
        case Exception():
            return "failed"
        case _:
            return "cancelled"


def _told(server: str, seen: ToldByHub) -> CallFailed | ServerUnavailable:
    """The error that the hub behind gave to this one, as it would be if the server were here."""
    words = seen.words or f"the call to `{server}` failed: {seen.reason}"
    if seen.refused:
        # That hub may be of a later version, with an error that is unknown here.
        kind = _TOLD.get(seen.refused, ServerNotReady)
        return kind(
            words,
            server_id=server,
            state=seen.state,
            reason=seen.reason,
            retry_in=seen.retry_in,
            status=seen.status,
        )
    failed = CallDenied if seen.status == "denied" else ConnectionClosed if seen.closed else CallFailed
    return failed(seen, words, uncertain=seen.sent)


_TOLD: dict[str, type[ServerUnavailable]] = {kind.__name__: kind for kind in ServerUnavailable.__subclasses__()}


_UNCERTAIN = ". Its outcome is uncertain: the server may have acted on it, or still act"


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
    status = failure.status if failure is not None else "transient"
    return kind(
        text, server_id=slot.id, state=health.state.value, reason=health.reason, retry_in=retry_in, status=status
    )


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


Stage: TypeAlias = Literal["admission", "wait", "upstream"]
"""Asking the breaker and waiting for a place; waiting for a connection; waiting for the server."""


_tracer = trace.get_tracer("holdfast", __version__)


class Trace:
    """The spans of one call."""

    __slots__ = ("_call", "_context", "_stage")

    def __init__(self, call: Span) -> None:
        self._call = call
        self._context = trace.set_span_in_context(call)
        self._stage: Span | None = None

    @property
    def id(self) -> str:
        """The id of the trace, as other programs write it."""
        return trace.format_trace_id(self._call.get_span_context().trace_id)

    def enter(self, stage: Stage) -> None:
        """End the span of the stage before, and start the span of this one."""
        self._leave()
        kind = SpanKind.CLIENT if stage == "upstream" else SpanKind.INTERNAL
        self._stage = _tracer.start_span(f"holdfast.{stage}", context=self._context, kind=kind)

    def carried(self, params: Fields) -> Fields:
        """The parameters with the trace context: the current stage is the parent of the server's span."""
        # In `_meta`, not in headers: it must pass through pipes too, and through a hub behind this one.
        own: dict[str, str] = {}
        inject(own, context=trace.set_span_in_context(self._stage or self._call, self._context))
        meta = {**_meta(params), **{key: dumps(value) for key, value in own.items()}}
        return {**params, "_meta": join_fields(meta)}

    def end(self, ended: CallEnded) -> None:
        """End the spans of the call."""
        self._leave(failed=ended.outcome not in ANSWERED)
        self._call.set_attribute("holdfast.outcome", ended.outcome)
        if ended.outcome not in ("completed", "cancelled"):
            self._call.set_attribute("error.type", ended.error or ended.outcome)
            self._call.set_status(StatusCode.ERROR, ended.reason or None)
        self._call.end()

    def _leave(self, *, failed: bool = False) -> None:
        if self._stage is not None:
            if failed:
                self._stage.set_status(StatusCode.ERROR)
            self._stage.end()
            self._stage = None


def is_tracing() -> bool:
    """Whether a tracer is configured: by a program at any time, or by the environment before ``_tracer`` was made."""
    # ``get_tracer_provider`` searches the environment until there is one: 3 µs of each call that is not traced.
    return trace._TRACER_PROVIDER is not None  # noqa: SLF001 - as said


def begin_trace(call: SlotCall) -> None:
    """Start the trace of a call, inside the current span if there is one."""
    attributes = {"holdfast.server": call.slot.id, "mcp.method.name": call.method}
    if call.principal:
        attributes["enduser.id"] = call.principal
    if call.method == "tools/call" and (tool := text_of(call.params.get("name"))) is not None:
        attributes["gen_ai.tool.name"] = tool
    call.trace = Trace(_tracer.start_span("holdfast.call", context=_parent(call.params), attributes=attributes))
    if call.caller is not None:
        call.caller.trace_id = call.trace.id


def _parent(params: Fields) -> Context | None:
    """None for the current span; if there is none, the context in the request."""
    if trace.get_current_span().get_span_context().is_valid:
        return None
    with suppress(ValueError):
        return extract({key: text for key, value in _meta(params).items() if (text := text_of(value)) is not None})
    return None


def _meta(params: Fields) -> Fields:
    try:
        return fields(params["_meta"]) if "_meta" in params else {}
    except BadJson:
        return {}
