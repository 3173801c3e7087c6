"""What a client is told when something cannot be done: the truth, in the words of MSG-1 … MSG-3."""

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
from holdfast.hub.warnings import STATUS, warnings_of

__all__ = [
    "IDENTITY",
    "STATELESS",
    "explained",
    "failed_tool",
    "forgetful",
    "instructions",
    "refusal",
    "unknown",
    "with_notice",
]

STATELESS = "holdfast/stateless"
"""The key in ``_meta`` that is true for the result of a server that kept nothing from the client's earlier calls."""

RESOURCE_NOT_FOUND = -32002
"""The legacy era's own code; the modern one says invalid params."""

IDENTITY = (
    "Holdfast acts as one identity: whoever calls, a server is called with the credentials of Holdfast's configuration."
)

LONGEST_INSTRUCTIONS = 4_000
"""How many characters of one server's instructions are passed on where many servers' stand together."""


def unknown(kind: Kind, found: Unknown, *, modern: bool) -> MCPError:
    """Nothing of that name was ever listed."""
    noun = kind.value.removesuffix("s")
    near = f"; did you mean {' or '.join(found.nearest)}?" if found.nearest else ""
    legacy = RESOURCE_NOT_FOUND if kind is Kind.RESOURCE else INVALID_PARAMS
    return MCPError(INVALID_PARAMS if modern else legacy, f"Unknown {noun}: {found.name}{near}")


def explained(error: HoldfastError) -> str:
    """One text that says what happened, why, and when to try again."""
    if not isinstance(error, ServerUnavailable):
        return " ".join(filter(None, (f"{error.message.rstrip('.')}.", error.hint)))
    status = STATUS.get(State(error.state))
    if status is None:
        return f"{error.message.rstrip('.')}."
    words = for_user(Failure(error.server_id, status, error.reason))
    return f"{words} Try again in {max(error.retry_in, 1.0):.0f} s." if error.retry_in is not None else words


def failed_tool(error: HoldfastError) -> dict[str, Any]:
    """A tool's result that says why there is none: a model reads results, and protocol errors it may never see."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": explained(error)}], "isError": True}
    if isinstance(error, ServerUnavailable):
        state = {"server": error.server_id, "state": error.state, "reason": error.reason, "retryIn": error.retry_in}
        result["_meta"] = {"holdfast/unavailable": state}
    return result


def with_notice(result: Mapping[str, Any], server: str, *, tool: bool) -> dict[str, Any]:
    """A result of a server that is to keep state, for a client that cannot be known again: said where models look."""
    meta = result.get("_meta")
    noted = {**result, "_meta": {**(meta if isinstance(meta, Mapping) else {}), STATELESS: True}}
    if tool and isinstance(result.get("content"), list):
        block = {"type": "text", "text": forgetful([server]), "annotations": {"audience": ["assistant"]}}
        noted["content"] = [*result["content"], block]
    return noted


def forgetful(servers: Sequence[str]) -> str:
    """What a client is told that cannot be known from one request to the next; nothing if that is no matter."""
    if not servers:
        return ""
    return (
        f"Holdfast: nothing is kept between calls to these MCP servers, which have a connection for each client: "
        f"{', '.join(servers)}. This client does not say who it is, so each of its calls has a new one. "
        f"{HOW_TO_BE_KNOWN}"
    )


def refusal(error: HoldfastError, *, modern: bool) -> MCPError:
    """The same as a protocol error; what a server itself answered is passed on as it came."""
    seen = error.evidence if isinstance(error, CallFailed) else None
    if isinstance(seen, RpcError):
        code = INVALID_PARAMS if modern and seen.code == RESOURCE_NOT_FOUND else seen.code
        return MCPError(code, seen.message, seen.data)
    return MCPError(INTERNAL_ERROR, explained(error))


def instructions(view: View, status_tool: str) -> str:
    """What a client reads once: how to use what is here, and what is not here at the moment."""
    hub = view.hub
    if view.server is not None:
        warning = warnings_of([hub.server_health(view.server)]).for_model
        return "\n\n".join(filter(None, (_said_by(hub, view.server), warning)))
    names = ", ".join(view.servers) or "none"
    parts = [
        f"MCP servers behind one endpoint, kept by Holdfast: {names}. A tool's name begins with its server's.",
        hub.warnings().for_model,
        f"The tool `{status_tool}` tells at any time which servers are unavailable, why, and when to try again.",
        IDENTITY,
    ]
    said = {server: _said_by(hub, server) for server in view.servers}
    parts += [f"## {server}\n{words[:LONGEST_INSTRUCTIONS]}" for server, words in said.items() if words]
    return "\n\n".join(filter(None, parts))


def _said_by(hub: Hub, server: str) -> str:
    lease = hub.registry.slot(server).lease
    connection = lease.connection if lease is not None else None
    return connection.instructions if connection is not None else ""
