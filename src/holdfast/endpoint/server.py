"""The hub as an MCP server: what it does with each request. Most are forwarded, as the bytes that they came in.

It knows no transport: a ``Call`` comes with its client and with the way back to it. ``answer`` is the path of every
request:

1. **Who answers** (``Router``, which waits for nothing). The methods and tools that the hub answers itself are in
   ``own_answers``. Of all others the name in the request says which server has it (``View``); from
   here on the call has its server and the parameters for it. What the hub does not read passes unread. A call through
   find mode's ``call_tool`` is the inner call from here on.
2. **May it be made** (``call_gate``), and is it one that began before: a login that it needs first, a call that it
   resumes, another replica that has its connection (``_before``). A call of a shared server has none of these.
3. **It is made** (``_send``), on the client's connection to that server. A legacy server may ask a modern client, and a
   modern server a legacy client: ``input_required`` translates both.
4. **Its result** gets links and ids that are good at this endpoint. A tool's call that failed has a result that says
   why: a model reads results, and may never see a protocol error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

from mcp import MCPError
from mcp.shared.inbound import validate_mcp_param_headers
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    methods as protocol,
)
from mcp_types.methods import INPUT_REQUIRED_METHODS

from holdfast.core import STATUS_URI, Kind, NameKey, RpcError, Unknown, quoted_line
from holdfast.endpoint.attribution import notify
from holdfast.endpoint.broker import LONGEST_WAIT, Broker, ClientServers, era_of
from holdfast.endpoint.clients import Call, Client, Handler
from holdfast.endpoint.find_tools import CALL_READONLY, FIND_NAMES, FindTools, InnerCall
from holdfast.endpoint.input_required import EXPIRED, MAX_ROUNDS, next_round
from holdfast.endpoint.instructions import (
    RESTARTED,
    STATELESS,
    NotListed,
    error_result,
    outcome_unknown,
    own_capabilities,
    restarted_notice,
    stateless_notice,
    with_notice,
)
from holdfast.endpoint.message import Message, kind_of, may_link, params_for_server, relinked
from holdfast.endpoint.own_answers import (
    OwnMethods,
    OwnTools,
    checked_values,
    keeps_results,
    not_listed,
    unknown_method,
)
from holdfast.endpoint.tasks import LEGACY_TASKS, MODERN_TASKS, renamed
from holdfast.endpoint.user_login import without_login_state
from holdfast.endpoint.view import ToolRoute, View, has_all, input_schema, view_for
from holdfast.errors import CallFailed, HoldfastError
from holdfast.hub import RESULTS_URI, Slot, read_result, suggested
from holdfast.turns import Turns
from holdfast.wire import (
    SMALL_BYTES,
    TASK_METHODS,
    TASKS_EXTENSION,
    BadJson,
    Bytes,
    Fields,
    KeyNames,
    RawObject,
    dumps,
    fields,
    is_array,
    is_object,
    items,
    loads,
    text_of,
)

__all__ = ["McpServer"]

MOST_USERS = 1_024
"""Users whose view of one endpoint is kept; it holds nothing but what is looked up again."""

Answerer: TypeAlias = Handler | RawObject | None
"""Who answers a request: the hub, by a handler or with this result; None: the server that the call has now."""

_PARAMS = KeyNames(
    *("_meta", "name", "arguments", "uri", "ref", "argument", "context", "task", "taskId"),
    *("requestState", "inputResponses", "cursor", "level", "notifications", "type"),
)
"""The parameters that the protocol's own methods have, and the parts of a reference."""


_REFERENCES: Mapping[str, tuple[Kind, str, str]] = {
    "ref/prompt": (Kind.PROMPT, "name", "uri"),
    "ref/resource": (Kind.TEMPLATE, "uri", "name"),
}
"""What a reference of each type means, the key that names it, and the key of the other type."""


class McpServer:
    """All servers, or one, as an MCP server."""

    def __init__(self, broker: Broker, view: View) -> None:
        self.broker = broker
        self.view = view
        self._of_user = lru_cache(maxsize=MOST_USERS)(lambda name: McpServer(broker, view_for(view, name)))
        self.own = OwnMethods(broker, view)
        self._own_tools = OwnTools(broker, view)
        self._router = Router(broker, view, self.own, self._own_tools)

    def of(self, principal: str) -> McpServer:
        """The endpoint as this user has it: itself, unless servers are per user."""
        if principal == self.view.principal or not self.view.hub.registry.users.servers:
            return self
        return self._of_user(principal)

    async def answer(self, call: Call) -> RawObject:
        """The result of a request; raises ``MCPError``, ``HoldfastError`` and ``LivesElsewhere``."""
        broker, registry, client = self.broker, self.view.hub.registry, call.client
        view = call.view = self.view if registry.policy.is_open else self.view.seen_by(call.identity)
        # A caller with rules: all items are looked up in short steps. A call looks up one name, and needs no such step.
        if view is not self.view and call.method != "tools/call":
            await view.settle()
        if (call.sent_before or view.tools == "find") and _needs_all_lists(call):
            await self._wait_for_lists(view, at_most=LONGEST_WAIT if call.sent_before else None)
        try:
            by = self._router.route(call)
        except NotListed:  # perhaps not yet: servers that were never listed get a moment
            await self._wait_for_lists(view)
            by = self._router.route(call)
        if by is not None:
            return by if isinstance(by, RawObject) else await by(call)
        try:
            if call.sent_before and not call.repeatable:
                raise outcome_unknown(call.server)
            # The rules of now decide: they may have changed while it waited.
            settings = registry.config.settings
            if not registry.policy.passes_all:
                broker.gate.judge(call)
            slot = registry.slots.get(call.server) or registry.slot(call.server)
            result: RawObject | None = None
            # What may come before a call needs waits and look-ups that a call of a shared server does without.
            if slot.spec.sharing != "shared" or (client.modern and "requestState" in call.sent):
                result = await self._before(call)
                slot = broker.servers.slot(client, call.server) if result is None else slot
            if result is None:
                call.sent = _for_server(broker, call, slot)
                is_open = client.modern and _may_ask(broker, call, slot)
                send = partial(self._send, call, slot)
                result = await (broker.pending.begin(call, send) if is_open else send())
        except HoldfastError as error:
            return _told(call, error)
        if result.is_large:
            await Turns().give()  # each pass over a large result takes milliseconds
        result = await self._finished(call, result)
        if settings.large_results.over and call.tool and kind_of(result) != "task" and keeps_results(self.view):
            return await self._own_tools.shortened(call, call.tool, result)
        return result

    async def roots_changed(self, client: Client, version: str, message: Message) -> None:
        """Tell every legacy server of the endpoint that the client's roots changed."""
        params = message.values()
        protocol.validate_client_notification(message.method or "", version, params or None)
        for server in client.seen.servers:
            if (slot := self.broker.servers.existing_slot(client, server)) is not None:
                self.broker.start(notify, slot, message.method, params)

    def close(self) -> None:
        """End the subscription streams cleanly."""
        self.broker.announcer.close(self.view.address)

    async def _wait_for_lists(self, view: View, *, at_most: float | None = None) -> None:
        """Give servers that were never listed a moment, and look up what is there by the caller's rules."""
        await self.broker.servers.wait_for_first_listing(view, at_most=at_most)
        await view.settle()

    async def _before(self, call: Call) -> RawObject | None:
        """What comes before a call can be made: its user's login, the call that it resumes, or another replica.

        None: it can be made here and now.
        """
        broker, modern = self.broker, call.client.modern
        if (instead := await broker.logins.before(call, call.server)) is not None:
            return instead
        call.sent = without_login_state(call.sent, modern=modern)
        if (state := _state_in(call)) is not None:
            if broker.pending.is_ours(state):
                return await broker.pending.resume(call, state)
            await broker.pending.check(state)
        await broker.servers.check_home(call.client, call.server)
        return None

    async def _send(self, call: Call, slot: Slot) -> RawObject:
        """Make the call, if it may be made; the requests of a modern server go to a legacy client meanwhile."""
        broker, judged = self.broker, call.judged
        if judged is not None:
            await broker.gate.admit(call, judged)  # before ``begin``: a person may take minutes, and holds no place
        use = broker.begin(call, slot)
        try:
            for _ in range(MAX_ROUNDS):
                result = await slot.call(
                    call.method,
                    call.sent,
                    caller=call,
                    repeatable=call.repeatable,
                    exact=judged is not None,
                    check=partial(broker.gate.check_again, call),
                )
                if kind_of(result) != "input_required":
                    return result
                if call.client.modern:
                    if call.judged is not None:
                        await broker.gate.note_round(call.judged, result)
                    return result
                call.sent = await next_round(call, call.sent, await read_result(call.server, result))
        finally:
            broker.end(call, use)
        raise MCPError(INTERNAL_ERROR, f"MCP server '{call.server}' asked for input more than {MAX_ROUNDS} times")

    async def _finished(self, call: Call, result: RawObject) -> RawObject:
        """A server's result for this endpoint: its links can be read here, and its tasks have ids of the hub."""
        client, server, ids = call.client, call.server, self.broker.task_ids
        if client.modern or client.restarted:
            result = _noticed(self.broker.servers, call, result)
        if call.method == "tools/call" and kind_of(result) == "task":
            return renamed(result, server, ids, call.bound_to)
        if call.method == "completion/complete":
            return await _suggested(self.view, call, result)
        if may_link(result):
            result = await _linked(self.view, server, result)
        if call.method == "resources/read":
            own, asked = text_of(call.sent["uri"]) or "", text_of(call.params["uri"]) or ""
            if own == asked:
                return result
            shown = self.view.uris.shown(server, own)
            return await relinked(result, lambda uri: asked if uri == shown else uri)
        if call.task is None or text_of(call.sent.get("taskId")) == call.task:
            return result
        inner = result.get("result")
        if inner is not None and is_object(inner):
            linked = await _linked(self.view, server, RawObject.read(inner))
            result = result.changed({"result": linked.written()})
        return renamed(result, server, ids, call.bound_to)

    def __repr__(self) -> str:
        return f"<McpServer of {self.view!r}>"


class Router:
    """Decides who answers a request of one endpoint. It waits for nothing."""

    def __init__(self, broker: Broker, view: View, own: OwnMethods, own_tools: OwnTools) -> None:
        self._broker = broker
        self._view = view
        self._own = own
        self._own_tools = own_tools
        self._routers: Mapping[str, Callable[[Call], Answerer]] = {
            "tools/call": self._tool,
            "prompts/get": self._prompt,
            "resources/read": self._resource,
            "completion/complete": self._completion,
            **dict.fromkeys(TASK_METHODS, self._task),
        }

    def route(self, call: Call) -> Answerer:
        """Who answers. A call of a server has it from here on, and the parameters for it. Raises ``MCPError``."""
        method = call.method
        router, handler = self._routers.get(method), self._own.handlers.get(method)
        if router is None and handler is None:
            return unknown_method if method in protocol.SPEC_CLIENT_METHODS else self._unknown(call)
        if others := _PARAMS.misspelled(call.params):
            raise _misspelled(others)
        return router(call) if router is not None else handler

    def _tool(self, call: Call) -> Answerer:
        params, view = call.params, call.view
        name, arguments = text_of(params.get("name")), params.get("arguments")
        if name is None or (arguments is not None and not is_object(arguments)):
            raise MCPError(INVALID_PARAMS, "Invalid request parameters", "")
        own = self._own_tools.by_name.get(name)
        if own is not None and own.is_offered(view):
            return own.answer
        if view.tools == "find" and name in FIND_NAMES:
            return _route_inner(call, self._view, name, arguments)
        route = view.tool(name)
        if not isinstance(route, ToolRoute):
            raise not_listed(call, self._view, Kind.TOOL, route)
        if route.mirrors and call.client.modern and call.headers:
            _check_mirrored(call, input_schema(view, name))
        call.tool = route.key
        call.to(
            route.key.server,
            params if route.own_name is None else {**params, "name": route.own_name},
            repeatable=route.repeatable,
        )
        return None

    def _task(self, call: Call) -> Answerer:
        """A request about a task; its id says which server has it."""
        client = call.client
        if self._view.server is not None and not _runs_tasks(own_capabilities(self._view), modern=client.modern):
            return self._unknown(call)
        if call.method not in (MODERN_TASKS if client.modern else LEGACY_TASKS):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", call.method)
        if client.modern and TASKS_EXTENSION not in (client.capabilities.get("extensions") or {}):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "Missing required client capability", needed)
        homes = self._broker.homes
        found = self._broker.task_ids.find(call.task or "", call.bound_to)
        here = found is not None and (homes is None or not found.home or homes.check_task(found.home))
        if found is None or not call.view.has(found.server) or not here:
            raise MCPError(INVALID_PARAMS, "there is no such task here, or it has expired", "taskId")
        repeatable = call.method in ("tasks/get", "tasks/result")
        call.to(found.server, {**call.params, "taskId": dumps(found.id)}, repeatable=repeatable)
        return None

    def _prompt(self, call: Call) -> Answerer:
        key = self._found(call, Kind.PROMPT, checked_values(call)["name"])
        call.to(key.server, {**call.params, "name": dumps(key.original)}, repeatable=True)
        return None

    def _resource(self, call: Call) -> Answerer:
        uri = str(checked_values(call)["uri"])
        if uri == STATUS_URI:
            return self._own_tools.status_contents(call.view)
        if uri.startswith(RESULTS_URI):
            return self._own_tools.kept_result
        key = self._found(call, Kind.RESOURCE, uri)
        call.to(key.server, {**call.params, "uri": dumps(key.original)}, repeatable=True)
        return None

    def _completion(self, call: Call) -> Answerer:
        ref = checked_values(call)["ref"]
        if others := _PARAMS.misspelled(ref):
            raise _misspelled(others)
        # Its type says what it means. A reference may have both keys: the server gets the one that was judged.
        kind, by, other = _REFERENCES[ref["type"]]
        key = self._found(call, kind, ref[by])
        sent = {**ref, by: key.original}
        sent.pop(other, None)
        call.to(key.server, {**call.params, "ref": dumps(sent)}, repeatable=True)
        return None

    def _unknown(self, call: Call) -> Answerer:
        """A method that the protocol does not define is forwarded where the endpoint has one server.

        No rule covers it, so it passes only where nothing of the server is limited for its caller.
        """
        server = self._view.server
        if server is not None and has_all(call.view, server):
            call.to(server, call.params, repeatable=False)
            return None
        why = (
            f"{call.method} is not forwarded from here: this endpoint has many servers; "
            "use the endpoint of one server, /servers/<id>/mcp"
        )
        raise MCPError(METHOD_NOT_FOUND, why if server is None else "Method not found", call.method)

    def _found(self, call: Call, kind: Kind, name: str) -> NameKey:
        found = call.view.find(kind, name)
        if not isinstance(found, NameKey):
            raise not_listed(call, self._view, kind, found)
        return found


def _route_inner(call: Call, view: View, name: str, arguments: Bytes | None) -> Answerer:
    """Find mode: from here on the request is the call that its arguments ask for."""
    inner = FindTools(call.view).inner_call(arguments, readonly=name == CALL_READONLY)
    if not isinstance(inner, InnerCall):
        _note_refused(call, view, arguments)
        return RawObject.of(inner)
    route = inner.route
    own = route.own_name if route.own_name is not None else dumps(inner.name)
    call.inner, call.tool = inner, route.key
    # Parameters of the outer call that are not its own stay: a task, a continuation.
    call.to(route.key.server, {**call.params, "name": own, "arguments": inner.arguments}, repeatable=route.repeatable)
    return None


def _note_refused(call: Call, view: View, arguments: Bytes | None) -> None:
    """Let the audit name the tool that was asked for through ``call_tool``, and the rule that hides it (FIND-7)."""
    try:
        asked = fields(arguments) if arguments is not None else {}
    except BadJson:
        return
    name = text_of(asked.get("name"))
    if name is None:
        return
    call.sent = {**asked, "name": dumps(name)}
    if isinstance(found := call.view.find(Kind.TOOL, name), Unknown):
        call.failed = not_listed(call, view, Kind.TOOL, found)


def _needs_all_lists(call: Call) -> bool:
    """Whether a call can be understood only when every server was listed.

    In find mode all tools are searched. Whether a call may be made again is known when its tool is listed.
    """
    if call.method != "tools/call":
        return False
    return call.sent_before or text_of(call.params.get("name")) in FIND_NAMES


def _told(call: Call, error: HoldfastError) -> RawObject:
    """What a model reads of a call that failed; raises what is for its client's program."""
    if isinstance(error, CallFailed) and isinstance(error.evidence, RpcError):  # the server itself said so
        if call.inner is None:
            raise error
        return RawObject.of(call.inner.refused(error))
    if call.method != "tools/call":
        raise error
    call.failed = error
    return RawObject.of(error_result(error))


def _state_in(call: Call) -> str | None:
    """The state that a modern client repeats its request with."""
    return text_of(call.sent.get("requestState")) if call.client.modern else None


def _may_ask(broker: Broker, call: Call, slot: Slot) -> bool:
    """Whether a modern client may be asked something in the middle of its call: then its call can be interrupted."""
    if call.method not in INPUT_REQUIRED_METHODS:
        return False
    return _is_legacy(call, slot) or (call.judged is not None and broker.gate.asks_client(call, call.judged))


def _is_legacy(call: Call, slot: Slot) -> bool:
    """Whether the server may be spoken to in the legacy era for this call: it or the client knows no other."""
    return era_of(slot) != "modern" or call.era == "legacy"


def _for_server(broker: Broker, call: Call, slot: Slot) -> Fields:
    """The parameters without what the server, or its era, must not have."""
    client, params = call.client, call.sent
    if client.modern and _is_legacy(call, slot) and broker.pending.is_of_a_hub(_state_in(call) or ""):
        raise MCPError(INVALID_PARAMS, EXPIRED)  # a legacy server has no such state, so it is of a hub from before
    if client.log_level is not None:
        broker.servers.ask_for_logs(client, call.server)
    if "task" in params and not _takes_task(client, slot):
        params = {key: value for key, value in params.items() if key != "task"}
    if "_meta" not in params and "traceparent" not in call.headers and not call.message.escapes:
        return params  # almost every call
    return params_for_server(params, meta=call.meta, escapes=call.message.escapes, headers=call.headers)


def _noticed(servers: ClientServers, call: Call, result: RawObject) -> RawObject:
    """The result with what its client should know about its connection to the server."""
    client, server, tool = call.client, call.server, call.method == "tools/call"
    if client.modern and kind_of(result) != "input_required" and servers.is_stateless(client, server):
        return with_notice(result, STATELESS, stateless_notice([server]), tool=tool)
    if server in client.restarted:
        client.restarted -= {server}
        return with_notice(result, RESTARTED, restarted_notice(server), tool=tool)
    return result


async def _linked(view: View, server: str, result: RawObject) -> RawObject:
    """A result whose resource URIs can be read at this endpoint."""
    if view.server is not None or server not in view.hub.registry.slots:
        return result
    return await relinked(result, partial(view.uris.shown, server))


async def _suggested(view: View, call: Call, result: RawObject) -> RawObject:
    """A completion without the resources that the rules hide; without their number too. One that is large has none."""
    if view.seen_by(call.identity) is view:
        return result
    names: tuple[str, ...] = ("ref", "argument", "context")
    asked = {name: loads(call.sent[name]) for name in names if name in call.sent}
    if "uri" not in asked["ref"]:
        return result
    given = result.get("completion")
    if given is not None and (len(given) > SMALL_BYTES or not is_object(given)):
        given = None
    values = fields(given).get("values") if given is not None else None
    texts = map(text_of, items(values) if values is not None and is_array(values) else ())
    key = NameKey(Kind.TEMPLATE, call.server, asked["ref"]["uri"])
    listed = await suggested(view.hub.registry, call.identity, key, asked, texts)
    return result.changed({"completion": dumps({"values": listed})})


def _misspelled(names: Sequence[str]) -> MCPError:
    """The refusal of a second spelling of a parameter: a server that does not look at case would read that one."""
    return MCPError(INVALID_PARAMS, f"{quoted_line(names[0])} is another spelling of a parameter's name")


def _check_mirrored(call: Call, schema: Mapping[str, Any] | None) -> None:
    """Refuse a call whose headers contradict the arguments that they mirror."""
    raw = call.params.get("arguments")
    arguments = loads(raw) if raw is not None else {}
    if not isinstance(arguments, dict):
        return
    rejected = validate_mcp_param_headers(schema, arguments, call.headers)
    if rejected is not None:
        raise MCPError(rejected.code, rejected.message, rejected.data)


def _runs_tasks(own: Mapping[str, Any] | None, *, modern: bool) -> bool:
    """Whether the endpoint's server declares tasks in the client's era; assumed while it is not connected."""
    if own is None:
        return True
    return TASKS_EXTENSION in own.get("extensions", {}) if modern else "tasks" in own


def _takes_task(client: Client, slot: Slot) -> bool:
    """Whether a call may be made as a task; without the capability the protocol wants the wish ignored."""
    lease = slot.lease
    if client.modern or lease is None or lease.connection is None:
        return False
    other = lease.other.connection if lease.other is not None else None
    return (other or lease.connection).runs_tasks
