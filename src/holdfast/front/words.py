"""Texts for clients: errors, refusals and instructions, in the words of MSG-1 … MSG-3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from holdfast.core.catalog import Unknown
from holdfast.core.evidence import RpcError
from holdfast.core.lifecycle.table import State
from holdfast.core.messages import Failure, for_user
from holdfast.core.names import Kind
from holdfast.errors import CallFailed, HoldfastError, ServerUnavailable
from holdfast.front.identity import HOW_TO_BE_KNOWN
from holdfast.front.view import View
from holdfast.hub.hub import Hub
from holdfast.hub.warnings import failure_status, warnings_of

__all__ = [
    "IDENTITY",
    "STATELESS",
    "error_result",
    "explained",
    "instructions",
    "protocol_error",
    "stateless_notice",
    "unknown_name",
    "with_notice",
]

STATELESS = "holdfast/stateless"
"""The key in ``_meta`` that is true if the server kept no state from the client's earlier calls."""

RESOURCE_NOT_FOUND = -32002
"""The legacy era's own code; the modern era uses "invalid params"."""

IDENTITY = "Holdfast acts as one identity: every call uses the credentials of Holdfast's configuration."

LONGEST_INSTRUCTIONS = 4_000
"""How many characters of each server's instructions are shown at an endpoint of many servers."""


def unknown_name(kind: Kind, found: Unknown, *, modern: bool) -> MCPError:
    """Return the error for a name that was never listed."""
    noun = kind.value.removesuffix("s")
    near = f"; did you mean {' or '.join(found.nearest)}?" if found.nearest else ""
    legacy = RESOURCE_NOT_FOUND if kind is Kind.RESOURCE else INVALID_PARAMS
    return MCPError(INVALID_PARAMS if modern else legacy, f"Unknown {noun}: {found.name}{near}")


def explained(error: HoldfastError) -> str:
    """Return one text: what happened, why, and when to try again."""
    if not isinstance(error, ServerUnavailable):
        return " ".join(filter(None, (f"{error.message.rstrip('.')}.", error.hint)))
    status = failure_status(State(error.state))
    if status is None:
        return f"{error.message.rstrip('.')}."
    words = for_user(Failure(error.server_id, status, error.reason))
    return f"{words} Try again in {max(error.retry_in, 1.0):.0f} s." if error.retry_in is not None else words


def error_result(error: HoldfastError) -> dict[str, Any]:
    """Return a tool result with the reason: a model reads results, but may never see a protocol error."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": explained(error)}], "isError": True}
    if isinstance(error, ServerUnavailable):
        state = {"server": error.server_id, "state": error.state, "reason": error.reason, "retryIn": error.retry_in}
        result["_meta"] = {"holdfast/unavailable": state}
    return result


def with_notice(result: Mapping[str, Any], server: str, *, tool: bool) -> dict[str, Any]:
    """Add the notice that the server kept no state for this client: in ``_meta``, and as text for the model."""
    meta = result.get("_meta")
    noted = {**result, "_meta": {**(meta if isinstance(meta, Mapping) else {}), STATELESS: True}}
    if tool and isinstance(result.get("content"), list):
        block = {"type": "text", "text": stateless_notice([server]), "annotations": {"audience": ["assistant"]}}
        noted["content"] = [*result["content"], block]
    return noted


def stateless_notice(servers: Sequence[str]) -> str:
    """Return the notice for a client that sends no key; empty if no server needs it."""
    if not servers:
        return ""
    return (
        f"Holdfast: these MCP servers have one connection per client: {', '.join(servers)}. "
        "This client sends no client key, so each call gets a new connection and nothing is kept between calls. "
        f"{HOW_TO_BE_KNOWN}"
    )


def protocol_error(error: HoldfastError, *, modern: bool) -> MCPError:
    """Return a protocol error; an error that the server itself answered passes unchanged."""
    seen = error.evidence if isinstance(error, CallFailed) else None
    if isinstance(seen, RpcError):
        code = INVALID_PARAMS if modern and seen.code == RESOURCE_NOT_FOUND else seen.code
        return MCPError(code, seen.message, seen.data)
    return MCPError(INTERNAL_ERROR, explained(error))


def instructions(view: View, status_tool: str) -> str:
    """Return the instructions that a client reads once: how to use the servers, and which are unavailable."""
    hub = view.hub
    if view.server is not None:
        warning = warnings_of([hub.server_health(view.server)]).for_model
        return "\n\n".join(filter(None, (_instructions_of(hub, view.server), warning)))
    names = ", ".join(view.servers) or "none"
    parts = [
        f"MCP servers behind one endpoint, kept by Holdfast: {names}. A tool's name begins with its server's name.",
        hub.warnings().for_model,
        f"The tool `{status_tool}` shows which servers are unavailable, why, and when to try again.",
        IDENTITY,
    ]
    said = {server: _instructions_of(hub, server) for server in view.servers}
    parts += [f"## {server}\n{words[:LONGEST_INSTRUCTIONS]}" for server, words in said.items() if words]
    return "\n\n".join(filter(None, parts))


def _instructions_of(hub: Hub, server: str) -> str:
    lease = hub.registry.slot(server).lease
    connection = lease.connection if lease is not None else None
    return connection.instructions if connection is not None else ""
