"""The path of a call: admitted, sent once, settled, recorded. ``Slot.call`` makes the attempts (``CallAttempt``).

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
* The connection fails, or the time is up. ``CallAttempt.fail`` says what that means for the server. Only then the
  breaker and the lifecycle count it.
* The caller is cancelled: it takes nothing with it but itself. Its permit is settled as neutral.
* The caller's own time is up (``limit``): the call is cancelled likewise. If it was with the server, that is a timeout,
  and the server is asked for a sign of life, as after its own timeout.

What must never happen:

* A request is sent twice although the server may have acted on it. It is repeated once, and only if the server refused
  it before it acted (its session had expired, or nothing listened), or if the tool is declared read-only or idempotent
  and the connection died (LIFE-16). Every other failure says that the outcome is uncertain.
* A permit or a place is kept. ``CallAttempt.end`` gives both back in a ``finally``, also when the caller is cancelled.
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

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import ProxyTracerProvider, Span, SpanKind, StatusCode

from holdfast._version import __version__
from holdfast.core import (
    Evidence,
    HttpStatus,
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
from holdfast.hub.lease import Lease, session_expired
from holdfast.hub.limits import BulkheadFull
from holdfast.hub.records import CallEnded, CallOutcome
from holdfast.wire import (
    BadJson,
    Caller,
    Connection,
    Fields,
    RawObject,
    descriptor_shortage,
    dumps,
    fields,
    is_word,
    join_fields,
    load_members,
    text_of,
)

if TYPE_CHECKING:
    from holdfast.hub.slot import Slot, SlotContext

__all__ = ["CallAttempt", "SlotCall", "is_tracing", "outcome_of", "read_result"]


class SlotCall:
    """One call to one server, from its request to its end."""

    __slots__ = (
        "_asked_at",
        "_check",
        "_context",
        "_exact",
        "_late",
        "_method",
        "_params",
        "_repeatable",
        "_repeated",
        "_within",
        "caller",
        "limit",
        "slot",
        "timer",
        "trace",
    )

    def __init__(  # noqa: PLR0913 - what a request is, and what limits it
        self,
        slot: Slot,
        context: SlotContext,
        method: str,
        params: Fields,
        *,
        caller: Caller | None,
        repeatable: bool,
        within: float | None = None,
        exact: bool = False,
        check: Callable[[], object] | None = None,
    ) -> None:
        self.slot = slot
        self._context = context
        self._method = method
        self._params = params
        self.caller = caller
        self._repeatable = repeatable
        self._within = within
        self._exact = exact
        self._check = check
        self.limit = anyio.move_on_after(within) if within is not None else None
        """Ends the call when the caller's own time is up; most callers have none."""
        self.timer = _Timer()
        self.trace: Trace | None = None
        if is_tracing():
            self.trace = _begin_trace(slot.id, method, params, principal=self._principal)
            if caller is not None:
                caller.trace_id = self.trace.id
        self._asked_at: float | None = None
        """When it was first admitted; the wait for a server that comes up is counted from there."""
        self._late = slot.lease is None
        """Whether the server was not connected when it came: its name was a guess then, and is looked up again."""
        self._repeated = False

    def __repr__(self) -> str:
        return f"<SlotCall {self._method} to {self.slot.id!r} for {self._principal or 'this program'}>"

    @property
    def _principal(self) -> str:
        return self.caller.principal if self.caller is not None else ""

    def unfinished(self) -> Outcome:
        """What an attempt without an outcome says of the server. A timeout counts only if a sign of life is missing."""
        is_up = self.limit is not None and self.limit.cancel_called
        return Outcome.TIMED_OUT if is_up and self.timer.is_running else Outcome.NEUTRAL

    def prepared(self) -> Fields:
        """The parameters to send now; raises ``ToolHeld``, and ``CallForbidden`` where another name was judged."""
        found = self._context.host.prepared(self.slot.id, self._method, self._params, late=self._late)
        if self._exact and self._late and text_of(found.get("name")) != text_of(self._params.get("name")):
            raise CallForbidden(
                f"not called: MCP server '{self.slot.id}' was not connected yet, and the rules are about names that it"
                " lists",
                rule="",
                hint="It is connected now: make the call again.",
            )
        return found

    def prepared_again(self) -> Fields:
        """The parameters after a wait; raises ``ToolHeld``, and what ``check`` raises."""
        if self._check is not None:
            self._check()
        return self.prepared()

    def admitted(self) -> Permit:
        """The breaker's permit; raises ``ServerUnavailable``."""
        permit = self.slot.admit()
        if isinstance(permit, Refusal):
            kind, words = _REFUSALS[permit.reason]
            raise _unavailable(self.slot, kind, words, retry_in=permit.retry_in)
        if self._asked_at is None:
            self._asked_at = permit.at
        return permit

    def admitted_again(self, permit: Permit) -> Permit:
        """The permit after a wait: meanwhile the server may have failed, or been disabled. A probe keeps its own."""
        if permit.probe:
            return permit
        self.slot.settle(permit, Outcome.NEUTRAL)
        return self.admitted()

    async def ready(self) -> Lease:
        """The live connection; waits for a dial that is under way, and for nothing else."""
        slot = self.slot
        asked_at = self._asked_at if self._asked_at is not None else self._context.clock.now()
        settings = self._context.settings
        # The first call of one client's slot waits for its first dial.
        first = self._context.one_client and not slot.machine.life.ever_connected
        until = asked_at + (settings.load.attempt_timeout if first else settings.call.ready_timeout)
        while (lease := slot.lease) is None:
            if slot.machine.dialing is None and slot.state in _HOPELESS:
                kind, words = _HOPELESS[slot.state]
                raise _unavailable(slot, kind, words)
            # A connection that comes with the end of the wait is used.
            if not await slot.changed(until=until) and slot.lease is None:
                raise _unavailable(slot, ServerNotReady, retry_in=slot.health().retry_in)
        return lease

    def repeat(self, attempt: CallAttempt) -> None:
        """An attempt failed: the next one follows, or the caller's error is raised."""
        if self._repeated or not attempt.may_be_repeated(repeatable=self._repeatable):
            raise attempt.error(repeatable=self._repeatable)
        self._repeated = True
        self.timer.stop()

    def out_of_time(self) -> CallFailed | ServerUnavailable:
        """The error of a call that reached the caller's own limit. One that was not sent did nothing."""
        slot, limit = self.slot, f"the call's own timeout of {self._within:g} s"
        if not self.timer.is_running:
            if slot.lease is None:
                words = f"did not come up within {limit}"
                return _unavailable(slot, ServerNotReady, words, retry_in=slot.health().retry_in)
            return _unavailable(slot, ServerBusy, f"had no free place within {limit}", retry_in=1.0)
        seen = TimedOut(doing=f"the result of {self._method}", after=self._within or 0.0)
        words = f"the call to `{slot.id}` failed: no answer within {limit}"
        if not self._repeatable:
            words += _UNCERTAIN
        return CallFailed(seen, words, hint="if it is always this slow, give the call a longer `timeout`")

    def answered(self, result: RawObject) -> None:
        """Record a call that has a result."""
        failed = result.get("isError")
        self._record("tool_error" if failed is not None and is_word(failed, b"true") else "completed")

    def failed(self, exc: BaseException) -> None:
        """Record a call that has none."""
        self._record(outcome_of(exc), exc)

    def _record(self, outcome: CallOutcome, exc: BaseException | None = None) -> None:
        """Record the call, if the record has a reader."""
        journal, trace = self._context.journal, self.trace
        if trace is None and not journal.reads_calls(outcome):
            return
        seconds, with_server = self.timer.read()
        known = exc if isinstance(exc, HoldfastError) else None
        ended = CallEnded(
            server=self.slot.id,
            method=self._method,
            outcome=outcome,
            waited=seconds - with_server,
            seconds=seconds,
            at=self._context.clock.now(),
            error=type(known).__name__ if known is not None else "",
            reason=known.message if known is not None else "",
            principal=self._principal,
        )
        if trace is not None:
            trace.end(ended)
        journal.write_call(ended)


async def read_result(server: str, result: RawObject) -> dict[str, Any]:
    """A result as a value, also a large one; raises ``CallFailed`` where no program can read it."""
    try:
        return await load_members(result)
    except BadJson as exc:
        evidence = NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc))
        verdict = classify_evidence(evidence)
        raise CallFailed(evidence, f"the call to `{server}` failed: {verdict.reason}", hint=verdict.hint) from exc


class _Timer:
    """How long a call took, and how long of that it was with the server."""

    __slots__ = ("_began", "_sent_at", "_with_server")

    def __init__(self) -> None:
        self._began = perf_counter()
        self._sent_at: float | None = None
        self._with_server = 0.0
        """The seconds of earlier attempts."""

    def start(self) -> None:
        """It is sent now."""
        self._sent_at = perf_counter()

    def stop(self) -> None:
        """This attempt is over; another one follows."""
        _, self._with_server = self.read()
        self._sent_at = None

    @property
    def is_running(self) -> bool:
        """Whether it is with the server."""
        return self._sent_at is not None

    def read(self) -> tuple[float, float]:
        """All seconds until now, and those with the server."""
        now = perf_counter()
        sent = now - self._sent_at if self._sent_at is not None else 0.0
        return now - self._began, self._with_server + sent


class CallAttempt:
    """One attempt of a call: what it took, what it used, and what its failure says of the server.

    ``begin`` takes a permit and a place, and finds a connection. ``end`` gives both back, however the attempt ended.
    """

    __slots__ = (
        "_call", "_connection", "_faults", "_has_place", "_lease", "_outcome", "_permit", "_seen", "_slot", "params",
    )  # fmt: skip

    def __init__(self, call: SlotCall) -> None:
        self._call = call
        self._slot = call.slot
        self.params: Fields = {}
        """What is sent to the server."""
        self._permit: Permit | None = None
        self._has_place = False
        self._lease: Lease | None = None
        self._connection: Connection | None = None
        self._faults = 0
        """The faults of the lease when the attempt began."""
        self._outcome: Outcome | None = None
        self._seen: Evidence | None = None
        """Why it failed."""

    def __repr__(self) -> str:
        return f"<CallAttempt at {self._slot.id!r} on {self._lease}>"

    async def begin(self) -> Connection:
        """The connection to send it on, once it is admitted and has a place."""
        call, slot, trace = self._call, self._slot, self._call.trace
        self.params = call.prepared()  # what is held is refused before it takes a place
        if trace is not None:
            trace.enter("admission")
        self._permit = call.admitted()
        try:
            waited = await slot.bulkhead.enter()
        except BulkheadFull:
            raise _unavailable(slot, ServerBusy, "has reached its limit of calls in flight", retry_in=1.0) from None
        self._has_place = True
        if waited:
            self._permit = call.admitted_again(self._permit)
        if trace is not None:
            trace.enter("wait")
        lease = slot.lease
        if lease is None:
            waited, lease = True, await call.ready()
            self._permit = call.admitted_again(self._permit)
        self._permit.connection = lease.generation
        self._lease, self._faults = lease, lease.faults
        connection = self._connection = await lease.connection_for(call.caller)
        if waited or connection is not lease.connection:
            self.params = call.prepared_again()
        if trace is not None:
            trace.enter("upstream")
            self.params = trace.carried(self.params)
        call.timer.start()
        return connection

    def fail(self, raised: ServerFailure) -> None:
        """The server gave no result."""
        self._seen = descriptor_shortage(raised) or raised.evidence
        self._outcome = self._outcome_of(self._seen)

    def end(self, *, completed: bool) -> None:
        """Give back what it took, and report what it says of the server."""
        if self._has_place:
            self._slot.bulkhead.release()
        if self._permit is not None:
            outcome = Outcome.COMPLETED if completed else self._outcome or self._call.unfinished()
            self._slot.settle(self._permit, outcome, self._reason() if self._seen is not None else "")

    def _outcome_of(self, seen: Evidence) -> Outcome:  # noqa: PLR0912 - one arm for each kind of evidence
        """What the failure means for the connection; an expired session is given up here."""
        if session_expired(seen):
            self._expire()
            return Outcome.NEUTRAL
        match seen:
            case RpcError() | NotMcp(fault=NotMcpFault.BAD_RESULT):
                return Outcome.COMPLETED
            case TimedOut():
                return Outcome.TIMED_OUT
            case OutOfDescriptors():
                return Outcome.NEUTRAL  # the hub's own trouble
            case ToldByHub():
                return Outcome.NEUTRAL  # the hub that has the server counts it (BRK-3)
            case HttpStatus(status=429) if self._connection is not None and self._connection.hub is not None:
                return Outcome.NEUTRAL  # a quota of that hub, for one principal: no fault of the connection
            case TokenNotRenewed():
                return Outcome.NEUTRAL  # the authorization server is down: that says nothing about this one
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
                return self._counted_once(self._lease)
            case _:
                return Outcome.TRANSPORT_FAILURE

    def _reason(self) -> str:
        """Why it failed, without secrets."""
        return classify_evidence(self._masked(), connected_before=True).reason

    def may_be_repeated(self, *, repeatable: bool) -> bool:
        """Whether a second attempt is safe (LIFE-16)."""
        seen = self._failure
        if isinstance(seen, NetworkFailure) and seen.fault is NetworkFault.REFUSED:
            # While the lost connection is still the current one, a second attempt would be refused too.
            return self._lease is None or self._lease is not self._slot.lease
        return session_expired(seen) or (repeatable and isinstance(seen, NetworkFailure | ProcessExit))

    def error(self, *, repeatable: bool) -> CallFailed | ServerUnavailable:
        """The caller's error: what happened, on which server, and whether the server may have acted."""
        seen = self._masked()
        if isinstance(seen, ToldByHub):
            return _told(self._slot.id, seen)
        verdict = classify_evidence(seen, connected_before=True)
        lost = isinstance(seen, NetworkFailure | ProcessExit)
        cut = self._lease.cut if self._lease is not None and lost else ""
        what = f"was cut off by the hub: {cut}" if cut else f"failed: {verdict.reason}"
        words = f"the call to `{self._slot.id}` {what}"
        uncertain = not repeatable and _may_have_acted(seen)
        if uncertain:
            words += _UNCERTAIN
        if lost or (isinstance(seen, OverBound | NotMcp) and self._is_over(seen)):
            return ConnectionClosed(seen, words, hint="" if cut else verdict.hint, uncertain=uncertain)
        kind = CallDenied if verdict.status == "denied" else CallFailed
        return kind(seen, words, hint=verdict.hint)

    def _expire(self) -> None:
        """The server no longer knows the session of the connection that was used."""
        lease = self._lease
        if lease is None:
            return
        if self._uses_other_era and lease.other is not None and self._connection is not None:
            lease.other.drop(self._connection)
        else:
            self._slot.handle(on.SessionExpired(lease.generation))

    @property
    def _uses_other_era(self) -> bool:
        return self._lease is not None and self._connection not in (None, self._lease.connection)

    def _counted_once(self, lease: Lease) -> Outcome:
        """Over HTTP each call fails by itself when a server dies: calls in flight together are one failure."""
        if lease.faults != self._faults:
            return Outcome.NEUTRAL
        lease.faults += 1
        return Outcome.TRANSPORT_FAILURE

    def _is_over(self, seen: Evidence) -> bool:
        """Whether the server's first connection is lost, not only this request. A broken pipe is always lost."""
        if self._uses_other_era:
            return False
        connection = self._lease.connection if self._lease is not None else None
        piped = self._slot.spec.transport == "stdio" and isinstance(seen, NetworkFailure | ProcessExit)
        return piped or (connection is not None and connection.wire.ended)

    @property
    def _failure(self) -> Evidence:
        assert self._seen is not None  # noqa: S101 - it failed
        return self._seen

    def _masked(self) -> Evidence:
        return masked(self._failure, (self._lease or self._slot).redactor)


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
        kind = _TOLD.get(seen.refused, ServerNotReady)
        return kind(words, server_id=server, state=seen.state, reason=seen.reason, retry_in=seen.retry_in)
    if seen.status == "denied":
        return CallDenied(seen, words)
    return ConnectionClosed(seen, words) if seen.sent else CallFailed(seen, words)


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


Stage: TypeAlias = Literal["admission", "wait", "upstream"]
"""Asking the breaker and waiting for a place; waiting for a connection; waiting for the server."""

ANSWERED = ("completed", "tool_error", "rpc_error")

_tracer = trace.get_tracer("holdfast", __version__)
_NAMED_BY_ENVIRONMENT = OTEL_PYTHON_TRACER_PROVIDER in os.environ


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
    """Whether a tracer is configured."""
    # The public function reads the environment at every call until a provider is set; this is asked for every call.
    if _NAMED_BY_ENVIRONMENT or trace.__dict__.get("_TRACER_PROVIDER", trace) is not None:
        return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)
    return False


def _begin_trace(server: str, method: str, params: Fields, *, principal: str = "") -> Trace:
    """Start the trace of a call, inside the current span if there is one."""
    attributes = {"holdfast.server": server, "mcp.method.name": method}
    if principal:
        attributes["enduser.id"] = principal
    if method == "tools/call" and (tool := text_of(params.get("name"))) is not None:
        attributes["gen_ai.tool.name"] = tool
    return Trace(_tracer.start_span("holdfast.call", context=_parent(params), attributes=attributes))


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
