"""What stands around a client's call: the rules, a person's approval, an external decision, and the audit of it all.

A call comes here when its server and its tool are known, and before it takes a place at the server: no timeout of the
call runs, and nothing here counts for the breaker. In this order:

1. **The rules** (``judge``, SEC-14). What they deny ends here.
2. **A person** (SEC-19), where a rule says ``ask``. ``caller``: the caller's own client is asked (elicitation), in the
   way of its era. ``operator``, or a client that cannot be asked: the call waits in ``CallApprovals`` for a person who
   decides on the status page or by ``holdfast approve --call``.
3. **An external service** (SEC-14), if one is configured. It is asked last: its answer is fresh when the call is made.

What must never happen: a call passes because something failed. Each error leaves the call unmade, and says so. An
approval is for one call under one policy: if the rules changed while a person decided, the call is judged again. So is
one that waited for its server (``check_again``).

A modern server may answer with questions of its own, and the client repeats the call with the answers. That is the same
call for a person, so she is not asked twice: ``note_round`` remembers which state of the server belongs to an approved
call. The external service is asked again each time.

**The audit** (``CallAudit``, SEC-15): one record for each request of a client that a server answers, or that was
refused. It stands around the handler of a request, so it sees every way in which one ends: a result, an error of the
server, a failure that became a result for the model, a refusal of the hub, a cancellation. A request that another
replica serves is recorded there. Lists, pings and the like say nothing about what was done, and are not recorded.

Names and arguments are those that went to the server, also where the client knows the tool under another name, or calls
it through ``call_tool``.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from time import perf_counter
from typing import Final

import anyio
import anyio.to_thread
from mcp import MCPError
from mcp_types import methods as protocol

from holdfast.access import (
    AccessDecision,
    AccessItem,
    AuditRecord,
    AuditTrail,
    AuthzQuestion,
    ExtAuthz,
    ItemKind,
    NotAsked,
    Policy,
    Principal,
)
from holdfast.config import ExtAuthzSettings
from holdfast.core import Redactor, command_line, mask_url, masked_data, quoted_line, span
from holdfast.endpoint.clients import Call, Client, Handler, LivesElsewhere, RequestHomes
from holdfast.endpoint.instructions import error_result
from holdfast.endpoint.message import canonical, kind_of, read_strictly
from holdfast.errors import CallForbidden, HoldfastError, NotApproved, NotAudited, NotAuthorized
from holdfast.hub import CallBinding, CallVerdict, Hub, outcome_of
from holdfast.wire import SMALL_BYTES, TASK_METHODS, BadJson, Bytes, Fields, RawObject, fields, is_word, text_of

__all__ = ["CallAudit", "CallGate", "Judgement", "argument_hash"]

log = logging.getLogger("holdfast.access")

GATED: Final[dict[str, ItemKind]] = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}
"""The methods that are calls."""

LONGEST_SHOWN: Final = 2_000
"""Characters of the arguments that a person sees."""

LARGEST_SHOWN: Final = 64 * 1024
"""Bytes. Larger arguments are not read to be shown."""

MOST_ROUNDS: Final = 1_000
"""Approved calls whose servers ask something; the oldest gives way, and is asked about again."""

QUESTION_LOST: Final = (
    "the call waits for an approval on a replica that does not answer. It was not made. Make it again to ask again."
)


class Judgement:
    """What was decided about one call. The audit reads it."""

    __slots__ = ("approval", "arguments", "authz", "decision", "item", "policy", "principal")

    def __init__(self, principal: Principal, item: AccessItem, arguments: Bytes | None, policy: Policy) -> None:
        self.principal = principal
        self.item = item
        self.arguments = arguments
        self.approval = ""
        """What a person decided: ``approved by alice``."""
        self.authz = ""
        """What the external service decided: ``allowed``, ``denied``, or why it could not be asked."""
        self.policy = policy
        self.decision: AccessDecision = policy.decide(
            principal, item, bytes(arguments) if arguments is not None else None
        )

    @property
    def what(self) -> str:
        """The call, in words."""
        return f"{quoted_line(self.item.name)} of MCP server '{self.item.server}'"

    def __repr__(self) -> str:
        return f"<Judgement {self.decision.effect} by {self.decision.rule} of {self.item.name!r}>"


class CallGate:
    """Lets calls pass, or says why not."""

    def __init__(self, hub: Hub, homes: RequestHomes | None) -> None:
        self._hub = hub
        self._homes = homes
        self._asked = ExtAuthzSettings()
        """The settings that ``_service`` was made for."""
        self._service: ExtAuthz | None = None
        self._failing = ""
        """Why the service could not be asked last; empty if it could."""
        self._rounds: OrderedDict[tuple[CallBinding, bytes], None] = OrderedDict()

    def judge(self, call: Call) -> Judgement | None:
        """What the rules say about a call, unless there is nothing to decide; raises ``CallForbidden``."""
        registry, kind = self._hub.registry, GATED.get(call.method)
        if registry.policy.passes_all or kind is None:
            return None
        if call.identity.source == "hub":
            return None  # the hub in front asked its own rules, its people and its service
        name = text_of(call.sent.get("uri" if kind == "resource" else "name")) or ""
        spec = self._hub.config.servers.get(call.server)
        item = AccessItem(kind, spec.plain_name if spec is not None else call.server, name)
        judged = call.judged = Judgement(call.identity, item, call.sent.get("arguments"), registry.policy)
        _check(judged)
        return judged

    def asks_client(self, call: Call, judged: Judgement) -> bool:
        """Whether the caller's own client will be asked. A modern one needs an ``input_required`` result for that."""
        decision = judged.decision
        return decision.effect == "ask" and decision.approver == "caller" and _can_be_asked(call.client)

    async def admit(self, call: Call, judged: Judgement) -> None:
        """Return if the call may be made; raises what says why not."""
        if judged.decision.effect == "allow" and self._current_service() is None:
            return  # the rules decided it, and no one else is asked
        digest = await argument_hash(judged.arguments)
        while judged.decision.effect == "ask":
            await self._approve(call, judged, _binding(judged, digest))
            policy = self._hub.registry.policy
            if judged.policy.version == policy.version:
                break
            call.judged = judged = Judgement(judged.principal, judged.item, judged.arguments, policy)
            _check(judged)
        if (service := self._current_service()) is not None:
            await self._authorize(service, call, judged, digest)

    def check_again(self, call: Call) -> None:
        """A call waited for its server. If the rules changed meanwhile, it is judged again; raises if it is refused."""
        before, registry = call.judged, self._hub.registry
        service = registry.config.settings.access.ext_authz
        if before is not None and before.policy.version == registry.policy.version:
            return  # the version is that of the service too
        judged = self.judge(call)
        if judged is None:
            return
        if before is not None:
            judged.approval, judged.authz = before.approval, before.authz
        if judged.decision.effect == "ask":
            raise NotApproved(
                f"{judged.what} was not called: the rules changed while it waited, and it needs an approval now",
                hint="Make the call again to be asked.",
            )
        if service.address is not None and (before is None or before.policy.settings.ext_authz != service):
            raise NotAuthorized(
                f"{judged.what} was not called: the authorization service of the hub changed while it waited",
                hint="Make the call again. Then the service is asked.",
            )

    async def note_round(self, judged: Judgement, result: RawObject) -> None:
        """The server of an approved call asks something: the next request of the client goes on with this call."""
        if judged.approval and (state := result.get("requestState")) is not None:
            key = _binding(judged, await argument_hash(judged.arguments)), hashlib.sha256(state).digest()
            self._rounds[key] = None
            if len(self._rounds) > MOST_ROUNDS:
                self._rounds.popitem(last=False)

    def close(self) -> None:
        """The hub ends: calls that wait are told so, and the connection to the service is closed."""
        self._hub.registry.call_approvals.close()
        if self._service is not None:
            self._service.close()

    def _current_service(self) -> ExtAuthz | None:
        """The service of the configuration in force."""
        config = self._hub.registry.config
        wanted = config.settings.access.ext_authz
        if wanted != self._asked:
            if self._service is not None:
                self._service.close()
            self._asked = wanted
            self._service = ExtAuthz(wanted, config.source) if wanted.address is not None else None
        return self._service

    # A person.

    async def _approve(self, call: Call, judged: Judgement, binding: CallBinding) -> None:
        if self._is_next_round(call, binding):
            judged.approval = "approved with the round before"
            return
        verdict = self._hub.registry.call_approvals.take(binding)
        if verdict is None:
            asks = self.asks_client(call, judged)
            verdict = await (self._ask_client(call, judged) if asks else self._ask_elsewhere(call, judged, binding))
        judged.approval = f"{'approved' if verdict.approved else 'refused'} by {verdict.by}"
        if not verdict.approved:
            why = f": {quoted_line(verdict.reason)}" if verdict.reason else ""
            raise NotApproved(
                f"{judged.what} was not called: it needs an approval, and was {judged.approval}{why}",
                hint="Make the same call again only if the person asks for it.",
            )

    def _is_next_round(self, call: Call, binding: CallBinding) -> bool:
        """Whether the client answers a question of the server, in a call that was approved. It counts once."""
        state = call.params.get("requestState")
        if state is None or not self._rounds:
            return False
        key = binding, hashlib.sha256(state).digest()
        return self._rounds.pop(key, self) is None

    async def _ask_client(self, call: Call, judged: Judgement) -> CallVerdict:
        """Ask the person at the caller's own client."""
        question = {
            "message": f"Allow the call of {judged.what}?{_shown(self._hub, call.server, judged.arguments)}",
            "requestedSchema": {"type": "object", "properties": {}},
        }
        answer = None
        try:
            with anyio.move_on_after(self._hub.registry.config.settings.access.approvals.lifetime):
                answer = await call.ask("elicitation/create", question)
        except MCPError as exc:
            raise NotApproved(
                f"{judged.what} was not called: it needs your approval, and your client gave no answer"
                f" ({quoted_line(exc.error.message)})",
                hint="Make the call again to be asked again.",
            ) from exc
        if answer is None:
            raise NotApproved(
                f"{judged.what} was not called: it needs your approval, and no answer came in time",
                hint="Make the call again to be asked again.",
            )
        action = answer.get("action")
        return CallVerdict(
            action == "accept", judged.principal.name, "the question was closed" if action == "cancel" else ""
        )

    async def _ask_elsewhere(self, call: Call, judged: Judgement, binding: CallBinding) -> CallVerdict:
        """Let the call wait for a person who decides on the page or by a command."""
        questions, settings = self._hub.registry.call_approvals, self._hub.registry.config.settings.access.approvals
        there = questions.elsewhere(binding)
        if there and self._homes is not None and (home := await self._homes.replica_of(there)) is not None:
            raise LivesElsewhere(home, QUESTION_LOST)
        by_operator = judged.decision.approver == "operator"
        question = questions.open(
            binding,
            approver=judged.decision.approver,
            rule=judged.decision.rule,
            program=call.client.program,
            arguments=_shown(self._hub, call.server, judged.arguments).strip(),
        )
        log.info("%s: %s waits for an approval (%s)", judged.principal.name, judged.what, question.id)
        call.progress(0, None, f"waits for an approval ({question.id})")
        # A client that cannot ask shows nothing before the call ends, so its user would never know: no wait for her.
        verdict = await questions.wait(binding, settings.wait if by_operator else 0)
        if verdict is not None:
            return verdict
        command = command_line("approve", "--call", question.id)
        who = "an operator" if by_operator else "you, and this client cannot ask you"
        way = f"{'An operator decides' if by_operator else 'Decide'} on the hub's status page, or with `{command}`"
        raise NotApproved(
            f"{judged.what} was not called: it needs the approval of {who}. The approval {question.id} is open for "
            f"{span(settings.lifetime)}",
            hint=f"{way}. Then make the same call again.",
        )

    # The external service.

    async def _authorize(self, service: ExtAuthz, call: Call, judged: Judgement, digest: str) -> None:
        size = len(judged.arguments) if judged.arguments is not None else 0
        item = judged.item
        try:
            answer = await service.ask(
                AuthzQuestion(judged.principal, item.server, call.method, item.name, digest, size)
            )
        except NotAsked as exc:
            self._note_failure(exc.reason)
            judged.authz = f"not asked: {exc.reason}"
            raise NotAuthorized(
                f"{judged.what} could not be authorized ({exc.reason}); not called",
                hint="The authorization service of the hub must answer first. Each new call asks it again.",
            ) from exc
        self._note_failure("")
        judged.authz = "allowed" if answer.allowed else "denied"
        if not answer.allowed:
            said = f': "{answer.reason}"' if answer.reason else ""
            raise _denial(judged, f"the authorization service of the hub does not allow it{said}", "extAuthz")

    def _note_failure(self, reason: str) -> None:
        """Tell the operator once when it begins, and once when it is over."""
        before, self._failing = self._failing, reason
        if reason and not before:
            words = "the authorization service %s cannot be asked (%s): calls are refused"
            log.warning(words, self._asked.address, reason)
        elif before and not reason:
            log.warning("the authorization service answers again")


def _denial(judged: Judgement, reason: str, rule: str) -> CallForbidden:
    """The error of a call that was denied: who was denied what, and what would change it (MSG-3)."""
    return CallForbidden(
        f"'{judged.principal.name}' was denied {judged.what}: {reason}",
        rule=rule,
        hint="Ask the operator of the hub for access to change that. Each call is judged again.",
    )


def _check(judged: Judgement) -> None:
    if judged.decision.effect == "deny":
        raise _denial(judged, judged.decision.reason, judged.decision.rule)


def _binding(judged: Judgement, digest: str) -> CallBinding:
    item, policy = judged.item, judged.policy
    return CallBinding(judged.principal.name, item.server, item.name, digest, policy.version, judged.decision.rule)


def _can_be_asked(client: Client) -> bool:
    """Whether the client shows forms to its user. An empty capability means forms."""
    declared = client.capabilities.get("elicitation")
    return declared is not None and (not declared or "form" in declared)


async def argument_hash(arguments: Bytes | None) -> str:
    """The same for the same arguments, however they are written; those that are large must be written the same."""
    if arguments is None:
        return ""
    if len(arguments) > SMALL_BYTES:
        return await anyio.to_thread.run_sync(lambda: hashlib.sha256(arguments).hexdigest())
    return hashlib.sha256(canonical(arguments)).hexdigest()


def _shown(hub: Hub, server: str, arguments: Bytes | None) -> str:
    """The arguments for a person: without the secrets of their server, and cut."""
    if arguments is None:
        return ""
    if len(arguments) > LARGEST_SHOWN:
        return f"\nIts arguments have {len(arguments)} bytes, too many to show."
    spec = hub.config.servers.get(server)
    redactor = Redactor(spec.secrets if spec is not None else ())
    try:
        text = json.dumps(masked_data(read_strictly(arguments), redactor), ensure_ascii=False, indent=1)
    except ValueError:
        return "\nIts arguments cannot be read, or name a key twice: the server may read something else than is shown."
    cut = f"{text[:LONGEST_SHOWN]}… ({len(text)} characters)" if len(text) > LONGEST_SHOWN else text
    return f"\n{cut}"


RECORDED: Final = frozenset(
    {"tools/call", "prompts/get", "resources/read", "resources/subscribe", "completion/complete"}
    | {method for method in protocol.SPEC_CLIENT_METHODS if method.startswith("tasks/")}
)
"""The methods of the protocol that are recorded; those that the protocol does not define are recorded too."""

_NAMES: Final = ("name", "uri", "taskId")
_NAMED_BY: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "resources/subscribe": "uri",
    **dict.fromkeys(TASK_METHODS, "taskId"),
}
"""The parameter that says what a request is about; of a method that the protocol does not define any of ``_NAMES``."""

LONGEST_NAME: Final = 256
"""Characters of a name: a client may send any text."""

LONGEST_REASON: Final = 1_000
"""Characters. The hub's own words are shorter; what they quote of a server may not be."""


class CallAudit:
    """Records what clients ask of servers."""

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail

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

    def not_passed_on(self, principal: str, method: str, why: str) -> None:
        """Record a request that belongs to another replica, which gave no answer and may have no record of it."""
        if method in RECORDED or method not in protocol.SPEC_CLIENT_METHODS:
            self._trail.event("refusal", principal=principal, method=method, reason=why)

    def _refused(self, call: Call, began: float, why: str) -> RawObject:
        error = NotAudited(f"not called: {why}", hint="an operator has to look at the hub; then try again")
        self._record(call, began, "refused", error.message)
        if call.method != "tools/call":
            raise error
        return RawObject.of(error_result(error))

    def _record(self, call: Call, began: float, outcome: str, reason: str, result: RawObject | None = None) -> None:
        record = AuditRecord(
            time=datetime.now(UTC),
            event="call",
            principal=call.principal,
            program=call.client.program,
            server=call.server,
            method=call.method,
            tool=_name(call.method, call.sent),
            outcome=outcome,
            ms=int((perf_counter() - began) * 1e6) / 1e3,
            reason=reason,
        )
        # What most calls do not have is set by itself: with all 18 fields at once the event loop takes 3.1 µs for a
        # record, and so 2.3 µs.
        if result is not None:
            record.result_bytes = len(memoryview(result.raw)) if result.raw is not None else result.size
        if (arguments := call.sent.get("arguments")) is not None:
            record.argument_bytes = len(memoryview(arguments))
        if call.identity.groups or call.identity.scopes:
            record.groups = tuple(sorted(call.identity.groups))
            record.scopes = tuple(sorted(call.identity.scopes))
        if call.trace_id or call.meta or "traceparent" in call.headers:
            record.trace = call.trace_id or _trace_in(call)
        if (judged := call.judged) is not None:
            record.rule, record.approval, record.authz = judged.decision.rule, judged.approval, judged.authz
        elif call.hidden_by:
            record.rule = call.hidden_by
        self._trail.add(record, arguments)


def _failure(exc: BaseException) -> tuple[str, str]:
    """The outcome of a request without a result of a server, and why. The hub's own errors quote no secret."""
    if isinstance(exc, MCPError):
        return "refused", exc.error.message[:LONGEST_NAME]
    return outcome_of(exc), exc.message[:LONGEST_REASON] if isinstance(exc, HoldfastError) else ""


def _name(method: str, params: Fields) -> str:
    """What a request is about, by its name at the server. The URI of a resource may have secrets in it."""
    # Its own parameter alone: a caller may add others, and must not choose by them what the record says.
    own = _NAMED_BY.get(method)
    if method == "completion/complete":
        raw = _in_ref(params.get("ref"))
    else:
        raw = next((params[one] for one in ((own,) if own is not None else _NAMES) if one in params), None)
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
