"""Pass a client's request on to a server and its answer back, whatever eras the two are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp_types import INTERNAL_ERROR
from mcp_types.methods import INPUT_REQUIRED_METHODS

from holdfast.core.catalog import NameKey
from holdfast.core.evidence import RpcError
from holdfast.errors import CallFailed, HoldfastError
from holdfast.front.calls import Call
from holdfast.front.clients import Channel, Client, refuse_unasked
from holdfast.front.desk import Desk
from holdfast.front.eras import forwarded
from holdfast.front.identity import principal_of
from holdfast.front.rounds import OpenCall, identity_of
from holdfast.front.view import View
from holdfast.front.words import failed_tool, with_notice
from holdfast.hub.slot import Slot
from holdfast.wire.relay import RELAYED
from holdfast.wire.tracing import in_meta

__all__ = ["Passing"]

MOST_ROUNDS = 10
"""How often a modern server may ask for more, before a call on behalf of a legacy client is given up."""

DEFAULT_LOG_LEVEL = "info"

ROUND_PAUSE_SECONDS = 0.2
"""Before a call is repeated whose server asked for nothing but another round."""


class Passing:
    """The way from the clients of one face to servers and back."""

    def __init__(self, desk: Desk, view: View) -> None:
        self._desk = desk
        self._view = view

    async def call_tool(
        self, ctx: ServerRequestContext[Any, Any], client: Client, key: NameKey, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """A tool's result; one that says why, where the call never came to a result."""
        try:
            return await self.on(ctx, client, key.server, params, repeatable=self._view.is_repeatable(key))
        except CallFailed as error:
            if isinstance(error.evidence, RpcError):
                raise
            return failed_tool(error)
        except HoldfastError as error:
            return failed_tool(error)

    async def on(
        self,
        ctx: ServerRequestContext[Any, Any],
        client: Client,
        server: str,
        params: Mapping[str, Any],
        *,
        repeatable: bool,
    ) -> Mapping[str, Any]:
        """Any request's result."""
        result = await self._on(ctx, client, server, params, repeatable=repeatable)
        if result.get("resultType") != "input_required" and self._desk.forgets(client, server):
            return with_notice(result, server, tool=ctx.method == "tools/call")
        return result

    async def _on(
        self,
        ctx: ServerRequestContext[Any, Any],
        client: Client,
        server: str,
        params: Mapping[str, Any],
        *,
        repeatable: bool,
    ) -> Mapping[str, Any]:
        identity = identity_of(ctx.method, ctx.params or {}, principal_of(ctx))
        if client.modern and self._desk.parking.is_ours(params.get("requestState")):
            return await self._go_on(ctx, identity, params)
        modern_server = _speaks_modern(self._desk.slot(client, server))
        if client.log_level is not None:
            self._desk.wants_log(client, server, client.log_level)
        traced = in_meta(params, getattr(ctx.request, "headers", {}))
        wanted = forwarded(traced, log_level=_told_up_from(client) if modern_server else None)
        if client.modern and not modern_server and ctx.method in INPUT_REQUIRED_METHODS:
            return await self._open(ctx, client, server, wanted, identity, repeatable=repeatable)
        call = self._call(Call, ctx, client, server)
        return await self._answered(call, ctx.method, wanted, repeatable=repeatable)

    async def notice(self, client: Client, method: str, params: Mapping[str, Any] | None) -> None:
        """Tell every legacy server behind the face; the modern era has no such notices."""
        for server in self._view.servers:
            if (slot := self._desk.existing(client, server)) is not None:
                self._desk.notify(slot, method, params)

    # A modern client and a server that may ask.

    async def _open(
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
            return await self._answered(call, ctx.method, params, repeatable=repeatable)

        self._desk.start(call.run, work)
        return await self._advanced(ctx, call)

    async def _go_on(
        self, ctx: ServerRequestContext[Any, Any], identity: str, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        call = self._desk.parking.take(params["requestState"], identity)
        answers = params.get("inputResponses")
        call.answer(answers if isinstance(answers, Mapping) else {})
        return await self._advanced(ctx, call)

    async def _advanced(self, ctx: ServerRequestContext[Any, Any], call: OpenCall) -> Mapping[str, Any]:
        result = await call.advance(Channel(ctx.session, ctx.request_id), progress_token_from_params(ctx.params))
        return result if result is not None else self._desk.parking.park(call)

    # Any client, any server.

    async def _answered(
        self, call: Call, method: str, params: Mapping[str, Any], *, repeatable: bool
    ) -> Mapping[str, Any]:
        """The result; a legacy client is asked meanwhile whatever a modern server needs for it."""
        client, server = call.client, call.server
        slot = self._desk.slot(client, server)
        with self._desk.under_way(call):
            try:
                for _ in range(MOST_ROUNDS):
                    result = await self._desk.hub.registry.request(
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
                    self._desk.release(client)  # where there are no sessions, a call is all that there is of a client
        raise MCPError(INTERNAL_ERROR, f"MCP server '{server}' asked for more input than {MOST_ROUNDS} times")

    def _call(self, kind: type[Any], ctx: ServerRequestContext[Any, Any], client: Client, server: str) -> Any:
        call: Call

        def wake() -> None:
            self._desk.start(call.flush)

        token = progress_token_from_params(ctx.params)
        call = kind(client, server, channel=Channel(ctx.session, ctx.request_id), token=token, wake=wake)
        return call


async def _next_round(call: Call, params: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the client all that the server asked, at once, and make the request that brings the answers."""
    questions = result.get("inputRequests") or {}
    answers: dict[str, Any] = {}
    failures: list[MCPError] = []

    async def ask(key: str, question: Mapping[str, Any]) -> None:
        try:
            method = str(question.get("method"))
            if method not in RELAYED:
                raise MCPError(INTERNAL_ERROR, f"the server asked for {method}, which no client can answer")
            refuse_unasked(call.client, method, question.get("params"))
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


def _told_up_from(client: Client) -> str | None:
    """A modern server logs only what a request asks for; a legacy client that never asked expects to be told."""
    return client.log_level or (None if client.modern else DEFAULT_LOG_LEVEL)


def _speaks_modern(slot: Slot) -> bool:
    lease = slot.lease
    return lease is not None and lease.connection is not None and lease.connection.era == "modern"
