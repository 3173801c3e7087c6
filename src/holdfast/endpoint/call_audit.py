"""The audit of calls: one record for each request of a client that a server answers, or that was refused (SEC-15).

It stands around the handler of a request, so it sees every way in which one ends: a result, an error of the server, a
failure that became a result for the model, a refusal of the hub, a cancellation. A request that another replica serves
is recorded there. Lists, pings and the like say nothing about what was done, and are not recorded.

Names and arguments are those that went to the server, also where the client knows the tool under another name, or calls
it through ``call_tool``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING, Final

from mcp import MCPError
from mcp_types import methods as protocol

from holdfast.access import AuditRecord, AuditTrail
from holdfast.core import mask_url
from holdfast.endpoint.clients import Call, LivesElsewhere
from holdfast.endpoint.eras import kind_of
from holdfast.endpoint.instructions import error_result
from holdfast.errors import HoldfastError, NotAudited
from holdfast.hub import outcome_of
from holdfast.wire import BadJson, Bytes, Fields, RawObject, fields, is_word, text_of

if TYPE_CHECKING:
    from holdfast.endpoint.own_tools import Handler  # its module needs the broker, which has this one

__all__ = ["CallAudit"]

RECORDED: Final = frozenset(
    {"tools/call", "prompts/get", "resources/read", "resources/subscribe", "completion/complete"}
    | {method for method in protocol.SPEC_CLIENT_METHODS if method.startswith("tasks/")}
)
"""The methods of the protocol that are recorded; those that the protocol does not define are recorded too."""

LONGEST_NAME: Final = 256
"""Characters of a name: a client may send any text."""


class CallAudit:
    """Records what clients ask of servers."""

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail

    def __repr__(self) -> str:
        return f"<CallAudit to {self._trail}>"

    async def answer(self, call: Call, handler: Handler) -> RawObject:
        """The result of a request, recorded however it ends. One that could not be recorded is not made."""
        if call.method not in RECORDED and call.method in protocol.SPEC_CLIENT_METHODS:
            return await handler(call)
        began = perf_counter()
        if why := self._trail.refusal():
            return self._refused(call, began, why)
        try:
            result = await handler(call)
        except LivesElsewhere:
            raise
        except BaseException as exc:
            self._record(call, began, *_failure(exc))
            raise
        if call.failed is not None:
            self._record(call, began, *_failure(call.failed), result)
            return result
        failed = result.get("isError")
        outcome = "completed"
        if failed is not None and is_word(failed, b"true"):
            outcome = "tool_error"
        elif kind_of(result) == "input_required":
            outcome = "input_required"
        self._record(call, began, outcome, "", result)
        return result

    def _refused(self, call: Call, began: float, why: str) -> RawObject:
        error = NotAudited(f"not called: {why}", hint="an operator has to look at the hub; then try again")
        self._record(call, began, "refused", error.message)
        if call.method != "tools/call":
            raise error
        return RawObject.of(error_result(error))

    def _record(self, call: Call, began: float, outcome: str, reason: str, result: RawObject | None = None) -> None:
        sent = call.sent
        arguments = sent.get("arguments")
        size = 0
        if result is not None:
            size = len(memoryview(result.raw)) if result.raw is not None else result.size
        client = call.client
        record = AuditRecord(
            time=datetime.now(UTC),
            event="call",
            principal=call.principal,
            groups=tuple(sorted(call.identity.groups)),
            scopes=tuple(sorted(call.identity.scopes)),
            program=client.program,
            server=call.server,
            method=call.method,
            tool=_name(call.method, sent),
            outcome=outcome,
            ms=int((perf_counter() - began) * 1e6) / 1e3,
            trace=call.trace_id or (_trace_in(call) if call.meta or "traceparent" in call.headers else ""),
            rule=call.judged.decision.rule if call.judged is not None else call.hidden_by,
            approval=call.judged.approval if call.judged is not None else "",
            authz=call.judged.authz if call.judged is not None else "",
            reason=reason,
            argument_bytes=len(memoryview(arguments)) if arguments is not None else 0,
            result_bytes=size,
        )
        self._trail.add(record, arguments)


def _failure(exc: BaseException) -> tuple[str, str]:
    """The outcome of a request without a result of a server, and why. The hub's own errors quote no secret."""
    if isinstance(exc, MCPError):
        return "refused", exc.error.message[:LONGEST_NAME]
    return outcome_of(exc), exc.message if isinstance(exc, HoldfastError) else ""


def _name(method: str, params: Fields) -> str:
    """What a request is about, by its name at the server. The URI of a resource may have secrets in it."""
    raw = params.get("name") or params.get("uri") or params.get("taskId") or _in_ref(params.get("ref"))
    name = (text_of(raw) or "")[:LONGEST_NAME] if raw is not None else ""
    return name if method == "tools/call" else mask_url(name)


def _in_ref(ref: Bytes | None) -> Bytes | None:
    """The prompt or the resource that a completion is for."""
    if ref is None:
        return None
    try:
        members = fields(ref)
    except BadJson:
        return None
    return members.get("name") or members.get("uri")


def _trace_in(call: Call) -> str:
    """The id of the trace that the client gave."""
    given = call.meta.get("traceparent") or call.headers.get("traceparent")
    parts = given.split("-", 2) if isinstance(given, str) else ()
    return parts[1] if len(parts) == 3 and len(parts[1]) == 32 else ""
