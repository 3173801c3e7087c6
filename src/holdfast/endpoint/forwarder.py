"""Forwards a client's request to a server and its result back, between any two protocol eras."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

import anyio
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from mcp_types.methods import INPUT_REQUIRED_METHODS

from holdfast.core import RpcError
from holdfast.endpoint.broker import Broker
from holdfast.endpoint.clients import Call, Client, require_capability
from holdfast.endpoint.eras import COMPLETE, params_for_server
from holdfast.endpoint.inbound import ClientRequest
from holdfast.endpoint.input_required import EXPIRED, OpenCall, request_identity
from holdfast.endpoint.instructions import (
    RESTARTED,
    STATELESS,
    error_result,
    restarted_notice,
    stateless_notice,
    with_notice,
)
from holdfast.endpoint.view import View
from holdfast.errors import CallFailed, HoldfastError
from holdfast.hub import Slot
from holdfast.wire import CLIENT_REQUESTS, TASK_METHODS, AtOnce, Fields, RawObject, dumps, load_members, text_of

__all__ = ["Forwarder"]

MAX_ROUNDS = 10
"""How often a modern server may ask for input during one call of a legacy client."""

DEFAULT_LOG_LEVEL = "info"

ROUND_PAUSE_SECONDS = 0.2
"""The pause before a call is repeated, if the server asked only for another round."""


class Forwarder:
    """Forwards the requests of one endpoint."""

    def __init__(self, broker: Broker, view: View) -> None:
        self._broker = broker
        self._view = view

    async def forward(self, request: ClientRequest, server: str, params: Fields, *, repeatable: bool) -> RawObject:
        """Return the result of any request; of a tool's call that failed, an error result that says why."""
        client = request.client
        tool = request.method == "tools/call"
        try:
            result = await self._forward(request, server, params, repeatable=repeatable)
        except HoldfastError as error:
            if not tool or (isinstance(error, CallFailed) and isinstance(error.evidence, RpcError)):
                raise
            return RawObject.of(error_result(error))
        if client.modern and not _is_input_required(result) and self._broker.is_stateless(client, server):
            return with_notice(result, STATELESS, stateless_notice([server]), tool=tool)
        if server in client.restarted:
            client.restarted -= {server}
            return with_notice(result, RESTARTED, restarted_notice(server), tool=tool)
        return result

    def _forward(
        self, request: ClientRequest, server: str, params: Fields, *, repeatable: bool
    ) -> Coroutine[Any, Any, RawObject]:
        client = request.client
        state = text_of(params["requestState"]) if client.modern and "requestState" in params else None
        if state is not None and self._broker.pending_calls.is_ours(state):
            return self._resume(request, state)
        if self._broker.homes is not None and (state is not None or self._broker.is_per_client(server)):
            return self._forward_from_home(request, server, params, state, repeatable=repeatable)
        return self._forward_here(request, server, params, state, repeatable=repeatable)

    async def _forward_from_home(
        self, request: ClientRequest, server: str, params: Fields, state: str | None, *, repeatable: bool
    ) -> RawObject:
        """The same for a request that may belong to another replica."""
        await self._broker.check_pending(state)
        await self._broker.check_home(request.client, server)
        return await self._forward_here(request, server, params, state, repeatable=repeatable)

    def _forward_here(
        self, request: ClientRequest, server: str, params: Fields, state: str | None, *, repeatable: bool
    ) -> Coroutine[Any, Any, RawObject]:
        client = request.client
        slot = self._broker.slot(client, server)
        modern_server = _speaks_modern(slot)
        if state is not None and not modern_server and self._broker.pending_calls.is_of_a_hub(state):
            raise MCPError(INVALID_PARAMS, EXPIRED)  # a legacy server has no such state, so it is of a hub from before
        if client.log_level is not None:
            self._broker.wants_log(client, server, client.log_level)
        level = _log_level_for(client) if modern_server else None
        if "task" in params and not self._takes_task(client, slot):
            params = {key: value for key, value in params.items() if key != "task"}
        wanted = params_for_server(
            params, meta=request.meta, escapes=request.escapes, headers=request.headers, log_level=level
        )
        if client.modern and not modern_server and request.method in INPUT_REQUIRED_METHODS:
            return self._start(request, server, wanted, repeatable=repeatable)
        token = request.progress_token if request.meta else None
        call = Call(client, server, channel=request.channel, token=token)
        call.task = text_of(request.params.get("taskId")) if request.method in TASK_METHODS else None
        return self._request(call, slot, request.method, wanted, repeatable=repeatable)

    def _takes_task(self, client: Client, slot: Slot) -> bool:
        """Whether a call may be made as a task; without the capability the protocol wants the wish ignored."""
        lease = slot.lease
        if client.modern or lease is None or lease.connection is None:
            return False
        other = lease.other.connection if lease.other is not None else None
        return (other or lease.connection).runs_tasks

    async def notice(self, client: Client, method: str, params: Mapping[str, Any] | None) -> None:
        """Notify every legacy server of the endpoint; the modern era has no such notification."""
        for server in self._view.servers:
            if (slot := self._broker.existing_slot(client, server)) is not None:
                self._broker.notify(slot, method, params)

    # A modern client and a legacy server, which may send requests.

    async def _start(self, request: ClientRequest, server: str, params: Fields, *, repeatable: bool) -> RawObject:
        call = OpenCall(request.client, server, channel=request.channel, token=request.progress_token)
        call.identity = request_identity(request.method, request.params, request.principal.name)
        slot = self._broker.slot(request.client, server)

        async def work() -> RawObject:
            return await self._request(call, slot, request.method, params, repeatable=repeatable)

        self._broker.start(call.run, work)
        return await self._advance(request, call)

    async def _resume(self, request: ClientRequest, state: str) -> RawObject:
        identity = request_identity(request.method, request.params, request.principal.name)
        given = {key: one for key, one in request.params.items() if key == "inputResponses"}
        answers = (await load_members(RawObject(given))).get("inputResponses", {})
        call = self._broker.pending_calls.take(state, identity)
        call.answer(answers if isinstance(answers, Mapping) else {})
        return await self._advance(request, call)

    async def _advance(self, request: ClientRequest, call: OpenCall) -> RawObject:
        result = await call.advance(request.channel, request.progress_token)
        return result if result is not None else self._broker.pending_calls.add(call)

    # Any client, any server.

    async def _request(self, call: Call, slot: Slot, method: str, params: Fields, *, repeatable: bool) -> RawObject:
        """Return the result; the requests of a modern server go to a legacy client meanwhile."""
        client, server = call.client, call.server
        told = AtOnce(call.progress)
        use = self._broker.begin(call)
        try:
            for _ in range(MAX_ROUNDS):
                result = await slot.call(method, params, caller=call, repeatable=repeatable, on_progress=told)
                if client.modern or not _is_input_required(result):
                    return result
                params = await _next_round(call, params, await self._broker.hub.registry.read_result(server, result))
        finally:
            self._broker.end(call, use)
            if client.modern:
                self._broker.release(client)  # a modern client without a key ends with its call
        raise MCPError(INTERNAL_ERROR, f"MCP server '{server}' asked for input more than {MAX_ROUNDS} times")


def _is_input_required(result: RawObject) -> bool:
    kind = result.get("resultType")
    return kind is not None and bytes(kind) != COMPLETE and text_of(kind) == "input_required"


async def _next_round(call: Call, params: Fields, result: Mapping[str, Any]) -> Fields:
    """Send all of the server's requests to the client at once; return the parameters with the answers."""
    questions = result.get("inputRequests") or {}
    answers: dict[str, Any] = {}
    failures: list[MCPError] = []

    async def ask(key: str, question: Mapping[str, Any]) -> None:
        try:
            method = str(question.get("method"))
            if method not in CLIENT_REQUESTS:
                raise MCPError(INTERNAL_ERROR, f"the server asked for {method}, which is not a request to a client")
            require_capability(call.client, method, question.get("params"))
            answers[key] = await call.ask(method, question.get("params"))
        except MCPError as exc:
            failures.append(exc)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for key, question in questions.items():
            tasks.start_soon(ask, key, question)
    if failures:
        raise failures[0]
    if not questions:
        await anyio.sleep(ROUND_PAUSE_SECONDS)
    following = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
    if answers:
        following["inputResponses"] = dumps(answers)
    if result.get("requestState") is not None:
        following["requestState"] = dumps(result["requestState"])
    return following


def _log_level_for(client: Client) -> str | None:
    """A modern server logs only if the request asks for it; a legacy client expects logs without asking."""
    return client.log_level or (None if client.modern else DEFAULT_LOG_LEVEL)


def _speaks_modern(slot: Slot) -> bool:
    lease = slot.lease
    return lease is not None and lease.connection is not None and lease.connection.era == "modern"
