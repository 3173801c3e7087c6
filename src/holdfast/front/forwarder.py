"""Forwards a client's request to a server and its result back, between any two protocol eras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp_types import INTERNAL_ERROR
from mcp_types.methods import INPUT_REQUIRED_METHODS

from holdfast.core import NameKey, RpcError
from holdfast.errors import CallFailed, HoldfastError
from holdfast.front.access.principals import principal_of
from holdfast.front.broker import Broker
from holdfast.front.clients import Call, Channel, Client, require_capability
from holdfast.front.eras import params_for_server
from holdfast.front.input_required import OpenCall, request_identity
from holdfast.front.messages import error_result, with_notice
from holdfast.front.view import View
from holdfast.hub import Slot
from holdfast.wire import CLIENT_REQUESTS, in_meta

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

    async def call_tool(
        self, ctx: ServerRequestContext[Any, Any], client: Client, key: NameKey, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return a tool's result; if the call failed, an error result that says why."""
        try:
            return await self.forward(ctx, client, key.server, params, repeatable=self._view.is_repeatable(key))
        except CallFailed as error:
            if isinstance(error.evidence, RpcError):
                raise
            return error_result(error)
        except HoldfastError as error:
            return error_result(error)

    async def forward(
        self,
        ctx: ServerRequestContext[Any, Any],
        client: Client,
        server: str,
        params: Mapping[str, Any],
        *,
        repeatable: bool,
    ) -> Mapping[str, Any]:
        """Return the result of any request."""
        result = await self._forward(ctx, client, server, params, repeatable=repeatable)
        if result.get("resultType") != "input_required" and self._broker.is_stateless(client, server):
            return with_notice(result, server, tool=ctx.method == "tools/call")
        return result

    async def _forward(
        self,
        ctx: ServerRequestContext[Any, Any],
        client: Client,
        server: str,
        params: Mapping[str, Any],
        *,
        repeatable: bool,
    ) -> Mapping[str, Any]:
        identity = request_identity(ctx.method, ctx.params or {}, principal_of(ctx).name)
        if client.modern and self._broker.pending_calls.is_ours(params.get("requestState")):
            return await self._resume(ctx, identity, params)
        modern_server = _speaks_modern(self._broker.slot(client, server))
        if client.log_level is not None:
            self._broker.wants_log(client, server, client.log_level)
        traced = in_meta(params, getattr(ctx.request, "headers", {}))
        wanted = params_for_server(traced, log_level=_log_level_for(client) if modern_server else None)
        if client.modern and not modern_server and ctx.method in INPUT_REQUIRED_METHODS:
            return await self._start(ctx, client, server, wanted, identity, repeatable=repeatable)
        call = self._call(Call, ctx, client, server)
        return await self._request(call, ctx.method, wanted, repeatable=repeatable)

    async def notice(self, client: Client, method: str, params: Mapping[str, Any] | None) -> None:
        """Notify every legacy server of the endpoint; the modern era has no such notification."""
        for server in self._view.servers:
            if (slot := self._broker.existing_slot(client, server)) is not None:
                self._broker.notify(slot, method, params)

    # A modern client and a legacy server, which may send requests.

    async def _start(
        self,
        ctx: ServerRequestContext[Any, Any],
        client: Client,
        server: str,
        params: Mapping[str, Any],
        identity: str,
        *,
        repeatable: bool,
    ) -> Mapping[str, Any]:
        call = self._call(OpenCall, ctx, client, server)
        call.identity = identity

        async def work() -> Mapping[str, Any]:
            return await self._request(call, ctx.method, params, repeatable=repeatable)

        self._broker.start(call.run, work)
        return await self._advance(ctx, call)

    async def _resume(
        self, ctx: ServerRequestContext[Any, Any], identity: str, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        call = self._broker.pending_calls.take(params["requestState"], identity)
        answers = params.get("inputResponses")
        call.answer(answers if isinstance(answers, Mapping) else {})
        return await self._advance(ctx, call)

    async def _advance(self, ctx: ServerRequestContext[Any, Any], call: OpenCall) -> Mapping[str, Any]:
        result = await call.advance(Channel(ctx.session, ctx.request_id), progress_token_from_params(ctx.params))
        return result if result is not None else self._broker.pending_calls.add(call)

    # Any client, any server.

    async def _request(
        self, call: Call, method: str, params: Mapping[str, Any], *, repeatable: bool
    ) -> Mapping[str, Any]:
        """Return the result; the requests of a modern server go to a legacy client meanwhile."""
        client, server = call.client, call.server
        slot = self._broker.slot(client, server)
        with self._broker.in_flight(call):
            try:
                for _ in range(MAX_ROUNDS):
                    result = await self._broker.hub.registry.request(
                        server,
                        method,
                        params,
                        repeatable=repeatable,
                        on_progress=call.progress,
                        caller=call,
                        slot=slot,
                    )
                    if client.modern or result.get("resultType") != "input_required":
                        await call.flush()
                        return result
                    params = await _next_round(call, params, result)
            finally:
                if client.modern:
                    self._broker.release(client)  # a modern client without a key ends with its call
        raise MCPError(INTERNAL_ERROR, f"MCP server '{server}' asked for input more than {MAX_ROUNDS} times")

    def _call(self, kind: type[Any], ctx: ServerRequestContext[Any, Any], client: Client, server: str) -> Any:
        call: Call

        def wake() -> None:
            self._broker.start(call.flush)

        token = progress_token_from_params(ctx.params)
        call = kind(client, server, channel=Channel(ctx.session, ctx.request_id), token=token, wake=wake)
        return call


async def _next_round(call: Call, params: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
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
        following["inputResponses"] = answers
    if result.get("requestState") is not None:
        following["requestState"] = result["requestState"]
    return following


def _log_level_for(client: Client) -> str | None:
    """A modern server logs only if the request asks for it; a legacy client expects logs without asking."""
    return client.log_level or (None if client.modern else DEFAULT_LOG_LEVEL)


def _speaks_modern(slot: Slot) -> bool:
    lease = slot.lease
    return lease is not None and lease.connection is not None and lease.connection.era == "modern"
