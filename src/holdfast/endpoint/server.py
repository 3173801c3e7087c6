"""The hub as an MCP server: what it does with each request. Most are forwarded, as the bytes that they came in.

It knows no transport: a ``Call`` comes with its client and with the way back to it. The methods that the hub answers
itself are in ``own_methods``; here are those that go to a server, and how they get there:

1. The name in the request says which server has it (``View``). What the hub does not read passes unread.
2. The client's connection to that server is found (``ClientServers.slot``), on another replica if its home is there.
3. What one era has and the other must not have is taken out (``eras``), and the call is made.
4. A legacy server may ask a modern client, and a modern server a legacy client: ``input_required`` translates both.
5. A tool's call that failed has a result that says why: a model reads results, and may never see a protocol error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

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

from holdfast.core import STATUS_URI, Kind, RpcError, quoted_line
from holdfast.endpoint.announcements import Listeners
from holdfast.endpoint.attribution import notify
from holdfast.endpoint.broker import LONGEST_WAIT, Broker, ClientServers
from holdfast.endpoint.clients import Call, Client
from holdfast.endpoint.doctor_tool import DOCTOR_TOOL, doctor_result, offers_doctor
from holdfast.endpoint.eras import params_for_server, relinked, result_for_client
from holdfast.endpoint.find_tools import FIND_NAMES, FindTools, own_arguments
from holdfast.endpoint.inbound import Message
from holdfast.endpoint.input_required import EXPIRED, MAX_ROUNDS, is_input_required, next_round
from holdfast.endpoint.instructions import (
    LOGIN_TOOL,
    RESTARTED,
    STAMP,
    STATELESS,
    STATUS_TOOL,
    error_result,
    outcome_unknown,
    own_capabilities,
    protocol_error,
    restarted_notice,
    stateless_notice,
    status_contents,
    status_result,
    with_notice,
)
from holdfast.endpoint.large_results import LargeResults, keeps_results
from holdfast.endpoint.own_methods import (
    Handler,
    OwnMethods,
    checked_values,
    find_item,
    hidden_or_unknown,
    unknown_method,
)
from holdfast.endpoint.tasks import LEGACY_TASKS, MODERN_TASKS, is_new_task, renamed
from holdfast.endpoint.user_login import offers_login, without_login_state
from holdfast.endpoint.view import ToolRoute, View, has_all, input_schema, view_for
from holdfast.errors import CallFailed, HoldfastError
from holdfast.hub import READ_RESULT, RESULTS_URI, Slot, findings, read_result
from holdfast.turns import Turns
from holdfast.wire import (
    TASK_METHODS,
    TASKS_EXTENSION,
    Fields,
    KeyNames,
    RawObject,
    dumps,
    fields,
    is_array,
    is_object,
    items,
    join_items,
    loads,
    text_of,
)

__all__ = ["McpServer"]

DEFAULT_LOG_LEVEL = "info"

MOST_USERS = 1_024
"""Users whose view of one endpoint is kept; it holds nothing but what is looked up again."""

_PARAMS = KeyNames(
    *("_meta", "name", "arguments", "uri", "ref", "argument", "context", "task", "taskId"),
    *("requestState", "inputResponses", "cursor", "level", "notifications", "type"),
)
"""The parameters that the protocol's own methods have, and the parts of a reference."""


class McpServer:
    """All servers, or one, as an MCP server."""

    def __init__(self, broker: Broker, view: View, *, listeners: Listeners | None = None) -> None:
        """``listeners`` are those of the endpoint; a user's part of it shares them."""
        self.broker = broker
        self.view = view
        self.listeners = listeners or Listeners(view)
        self._users: OrderedDict[str, McpServer] = OrderedDict()
        self.own = OwnMethods(broker, view, self.listeners)
        self._large = LargeResults(view, broker.homes)
        self._handlers: dict[str, Handler] = {
            **self.own.handlers,
            "tools/call": self._call_tool,
            "prompts/get": self._get_prompt,
            "resources/read": self._read,
            "completion/complete": self._complete,
            **dict.fromkeys(TASK_METHODS, self._task),
        }

    def of(self, principal: str) -> McpServer:
        """The endpoint as this user has it: itself, unless servers are per user."""
        if principal == self.view.principal or not self.view.hub.registry.users.servers:
            return self
        known = self._users.get(principal)
        if known is None:
            known = self._users[principal] = McpServer(
                self.broker, view_for(self.view, principal), listeners=self.listeners
            )
            while len(self._users) > MOST_USERS:
                self._users.popitem(last=False)
        self._users.move_to_end(principal)
        return known

    async def answer(self, call: Call) -> RawObject:
        """The result of a request, as the client's era writes it; raises ``MCPError``."""
        modern = call.client.modern
        view = call.view = self.view.seen_by(call.identity)
        handler = self._handlers.get(call.method)
        if handler is not None:
            _check_spelling(call.params)
        else:
            handler = unknown_method if call.method in protocol.SPEC_CLIENT_METHODS else self._forward_unknown
        if view is not self.view and call.method != "tools/call":
            await view.settle()
        try:
            audit = self.broker.audit
            result = await (handler(call) if audit is None else audit.answer(call, handler))
        except HoldfastError as error:
            raise protocol_error(error, modern=modern) from None
        if result.is_large:
            await Turns().give()  # each pass over a large result takes milliseconds
        return result_for_client(call.method, result, modern=modern, stamp=STAMP)

    async def roots_changed(self, client: Client, version: str, message: Message) -> None:
        """Tell every legacy server of the endpoint that the client's roots changed."""
        params = message.values()
        protocol.validate_client_notification(message.method or "", version, params or None)
        for server in client.seen.servers:
            if (slot := self.broker.servers.existing_slot(client, server)) is not None:
                self.broker.start(notify, slot, message.method, params)

    def close(self) -> None:
        """End the subscription streams cleanly."""
        self.listeners.close()

    # The methods that servers answer.

    async def _call_tool(self, call: Call) -> RawObject:
        params = call.params
        name = text_of(params.get("name"))
        arguments = params.get("arguments")
        if name is None or (arguments is not None and not is_object(arguments)):
            raise MCPError(INVALID_PARAMS, "Invalid request parameters", "")
        view = call.view
        if view.tools == "find" and name in FIND_NAMES:
            await self.broker.servers.wait_for_first_listing(view)
            await view.settle()
            return await FindTools(view).answer(call, name, arguments, self._call_route)
        if name == READ_RESULT and keeps_results(view):
            return await self._large.read_on(call, own_arguments(arguments))
        if name == STATUS_TOOL and (view.server is None or view.tools == "find"):
            await view.settle()
            return RawObject.of(status_result(view, own_arguments(arguments), _findings(self.broker, view)))
        if name == DOCTOR_TOOL and offers_doctor(view):
            return RawObject.of(doctor_result(view, own_arguments(arguments)))
        if name == LOGIN_TOOL and offers_login(view):
            return await self.broker.logins.answer(call, view, own_arguments(arguments))
        if call.sent_before:  # whether it may be made again is known when its tool is listed
            await self.broker.servers.wait_for_first_listing(view, at_most=LONGEST_WAIT)
        route = view.tool(name)
        if not isinstance(route, ToolRoute):
            await self.broker.servers.wait_for_first_listing(view)
            await view.settle()
            route = view.tool(name)
        if not isinstance(route, ToolRoute):
            raise hidden_or_unknown(call, self.view, Kind.TOOL, route)
        if route.mirrors and call.client.modern and call.headers:
            _check_mirrored(call, input_schema(view, name))
        own = params if route.own_name is None else {**params, "name": route.own_name}
        return await self._call_route(call, route, own)

    async def _call_route(self, call: Call, route: ToolRoute, params: Fields) -> RawObject:
        """Call a tool whose server is known, with the parameters for that server."""
        result = await self._forward(call, route.key.server, params, repeatable=route.repeatable)
        if keeps_results(self.view) and not is_new_task(result):
            return await self._large.shortened(call, route, result)
        return result

    async def _task(self, call: Call) -> RawObject:
        """A request about a task; its id says which server has it."""
        client = call.client
        if self.view.server is not None and not _runs_tasks(own_capabilities(self.view), modern=client.modern):
            return await self._forward_unknown(call)
        if call.method not in (MODERN_TASKS if client.modern else LEGACY_TASKS):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", call.method)
        if client.modern and TASKS_EXTENSION not in (client.capabilities.get("extensions") or {}):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "Missing required client capability", needed)
        ids, homes = self.broker.task_ids, self.broker.homes
        found = ids.find(call.task or "", call.bound_to)
        here = found is not None and (homes is None or not found.home or homes.check_task(found.home))
        if found is None or not call.view.has(found.server) or not here:
            raise MCPError(INVALID_PARAMS, "there is no such task here, or it has expired", "taskId")
        own = {**call.params, "taskId": dumps(found.id)}
        repeatable = call.method in ("tasks/get", "tasks/result")
        result = await self._forward(call, found.server, own, repeatable=repeatable)
        inner = result.get("result")
        if inner is not None and is_object(inner):
            result = result.changed({"result": _linked(self.view, found.server, RawObject.read(inner)).written()})
        return renamed(result, found.server, ids, call.bound_to)

    async def _get_prompt(self, call: Call) -> RawObject:
        key = await find_item(self.broker, self.view, Kind.PROMPT, checked_values(call)["name"], call)
        own = {**call.params, "name": dumps(key.original)}
        return await self._forward(call, key.server, own, repeatable=True)

    async def _read(self, call: Call) -> RawObject:
        uri = str(checked_values(call)["uri"])
        if uri == STATUS_URI:
            return RawObject.of(status_contents(call.view, _findings(self.broker, call.view)))
        if uri.startswith(RESULTS_URI) and (kept := await self._large.contents(call, uri)) is not None:
            return kept
        key = await find_item(self.broker, self.view, Kind.RESOURCE, uri, call)
        own = {**call.params, "uri": dumps(key.original)}
        result = await self._forward(call, key.server, own, repeatable=True)
        return result if key.original == uri else _with_uri(result, self.view.shown_uri(key.server, key.original), uri)

    async def _complete(self, call: Call) -> RawObject:
        ref = checked_values(call)["ref"]
        _check_spelling(ref)
        by = "uri" if "uri" in ref else "name"
        kind = Kind.TEMPLATE if by == "uri" else Kind.PROMPT
        key = await find_item(self.broker, self.view, kind, ref[by], call)
        own = {**call.params, "ref": dumps({**ref, by: key.original})}
        return await self._forward(call, key.server, own, repeatable=True)

    async def _forward_unknown(self, call: Call) -> RawObject:
        """Forward a method that the protocol does not define, where the endpoint has one server.

        No rule covers it, so it passes only where nothing of the server is limited for its caller.
        """
        if self.view.server is not None and not has_all(call.view):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", call.method)
        if self.view.server is not None:
            return await self._forward(call, self.view.server, call.params, repeatable=False)
        raise MCPError(
            METHOD_NOT_FOUND,
            f"{call.method} is not forwarded from here: this endpoint has many servers; "
            "use the endpoint of one server, /servers/<id>/mcp",
            call.method,
        )

    # How they get there.

    async def _forward(  # noqa: PLR0912 - all that can happen to a call, in its order
        self, call: Call, server: str, params: Fields, *, repeatable: bool
    ) -> RawObject:
        """Send any request to the slot of its client; one that continues a pending call goes to that call.

        The result is for this endpoint: its links can be read here. Of a tool's call that failed it says why.
        """
        client, broker, tool = call.client, self.broker, call.method == "tools/call"
        servers, pending = broker.servers, broker.pending
        call.server, call.sent = server, params
        try:
            if call.sent_before and not repeatable:
                raise outcome_unknown(server)
            judged = broker.gate.judge(call, server, params)
            if (instead := await broker.logins.before(call, server)) is not None:
                return instead
            params = without_login_state(params, modern=client.modern)
            state = text_of(params["requestState"]) if client.modern and "requestState" in params else None
            if state is not None and pending.is_ours(state):
                result = await pending.resume(call, state)
            else:
                if state is not None:
                    await pending.check(state)
                if broker.homes is not None:
                    await servers.check_home(client, server)
                slot = servers.slot(client, server)
                wanted = _for_server(broker, call, slot, params, state)
                asks = judged is not None and broker.gate.asks_client(call, judged)
                if client.modern and (asks or not _speaks_modern(slot)) and call.method in INPUT_REQUIRED_METHODS:
                    work = partial(self._send, call, slot, wanted, repeatable=repeatable)
                    result = await pending.begin(call, work)
                else:
                    result = await self._send(call, slot, wanted, repeatable=repeatable)
        except HoldfastError as error:
            if not tool or (isinstance(error, CallFailed) and isinstance(error.evidence, RpcError)):
                raise
            call.failed = error
            return RawObject.of(error_result(error))
        if client.modern or client.restarted:
            result = _noticed(servers, call, result)
        if tool and is_new_task(result):
            return renamed(result, server, broker.task_ids, call.bound_to)
        if result.is_large:
            await Turns().give()
        return _linked(self.view, server, result)

    async def _send(self, call: Call, slot: Slot, params: Fields, *, repeatable: bool) -> RawObject:
        """Make the call, if it may be made; the requests of a modern server go to a legacy client meanwhile."""
        gate, judged = self.broker.gate, call.judged
        if judged is not None:
            await gate.admit(call, judged)
        begun = self.broker.begin(call)
        try:
            for _ in range(MAX_ROUNDS):
                result = await slot.call(
                    call.method,
                    params,
                    caller=call,
                    repeatable=repeatable,
                    exact=judged is not None,
                    check=partial(gate.check_again, call),
                )
                if not is_input_required(result):
                    return result
                if call.client.modern:
                    if judged is not None:
                        await gate.note_round(judged, result)
                    return result
                params = await next_round(call, params, await read_result(call.server, result))
        finally:
            self.broker.end(call, begun)
        raise MCPError(INTERNAL_ERROR, f"MCP server '{call.server}' asked for input more than {MAX_ROUNDS} times")

    def __repr__(self) -> str:
        return f"<McpServer of {self.view!r}>"


def _for_server(broker: Broker, call: Call, slot: Slot, params: Fields, state: str | None) -> Fields:
    """The parameters without what the server, or its era, must not have."""
    client, modern_server = call.client, _speaks_modern(slot)
    if state is not None and not modern_server and broker.pending.is_of_a_hub(state):
        raise MCPError(INVALID_PARAMS, EXPIRED)  # a legacy server has no such state, so it is of a hub from before
    if client.log_level is not None:
        broker.servers.ask_for_logs(client, call.server)
    if "task" in params and not _takes_task(client, slot):
        params = {key: value for key, value in params.items() if key != "task"}
    return params_for_server(
        params,
        meta=call.message.meta,
        escapes=call.message.escapes,
        headers=call.headers,
        log_level=_log_level_for(client) if modern_server else None,
    )


def _noticed(servers: ClientServers, call: Call, result: RawObject) -> RawObject:
    """The result with what its client should know about its connection to the server."""
    client, server, tool = call.client, call.server, call.method == "tools/call"
    if client.modern and not is_input_required(result) and servers.is_stateless(client, server):
        return with_notice(result, STATELESS, stateless_notice([server]), tool=tool)
    if server in client.restarted:
        client.restarted -= {server}
        return with_notice(result, RESTARTED, restarted_notice(server), tool=tool)
    return result


def _linked(view: View, server: str, result: RawObject) -> RawObject:
    """A result whose resource URIs can be read at this endpoint."""
    if view.server is not None or server not in view.hub.registry.slots:
        return result
    return relinked(result, partial(view.shown_uri, server))


def _findings(broker: Broker, view: View) -> Mapping[str, str]:
    """What is wrong with each server, of its lists and of its requests."""
    listed, asked = findings(view.user.catalog), broker.findings
    return {one: "; ".join(filter(None, (listed.get(one), asked.get(one)))) for one in {**listed, **asked}}


def _check_spelling(params: Mapping[str, object]) -> None:
    """Refuse a second spelling of a parameter: a server that does not look at case would read that one."""
    if others := _PARAMS.misspelled(params):
        raise MCPError(INVALID_PARAMS, f"{quoted_line(others[0])} is another spelling of a parameter's name")


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


def _log_level_for(client: Client) -> str | None:
    """A modern server logs only if the request asks for it; a legacy client expects logs without asking."""
    return client.log_level or (None if client.modern else DEFAULT_LOG_LEVEL)


def _speaks_modern(slot: Slot) -> bool:
    lease = slot.lease
    return lease is not None and lease.connection is not None and lease.connection.era == "modern"


def _with_uri(result: RawObject, own: str, shown: str) -> RawObject:
    """A resource's contents under the URI that the client asked for."""
    contents = result.get("contents")
    if contents is None or not is_array(contents):
        return result
    new = []
    for one in items(contents):
        members: Fields = fields(one) if is_object(one) else {}
        same = text_of(members.get("uri")) == own if members else False
        new.append(RawObject(members).changed({"uri": dumps(shown)}).written() if same else one)
    return result.changed({"contents": join_items(new)})
