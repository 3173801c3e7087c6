"""What the hub says of itself: handshake, instructions, errors, refusals, its status tool and resource (HUB-11).

Failures use the words of MSG-1 … MSG-3.

The endpoint of many servers declares everything. The endpoint of one server declares what that server declared, once it
is connected; the handshake waits for no server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import mcp_types as types
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from holdfast._version import __version__
from holdfast.access import HOW_TO_BE_KNOWN
from holdfast.core import (
    HUB_CAPABILITY,
    HUB_VERSION,
    STATUS_URI,
    Kind,
    NetworkFailure,
    NetworkFault,
    RpcError,
    State,
    Unknown,
    classify_evidence,
    plain,
    quote_block,
    quoted_line,
)
from holdfast.endpoint.view import View
from holdfast.errors import (
    CallFailed,
    CallForbidden,
    ConnectionClosed,
    HoldfastError,
    NotApproved,
    ServerUnavailable,
    explain,
)
from holdfast.hub import warnings_of
from holdfast.wire import FAILURE_KEY, TASKS_EXTENSION, Bytes, LoadedObject, RawObject, dumps, is_array, load_object

__all__ = [
    "IDENTITY",
    "LOGIN_TOOL",
    "STAMP",
    "STATELESS",
    "STATUS_TOOL",
    "STATUS_URI",
    "Handshake",
    "discover",
    "error_result",
    "initialize",
    "instructions",
    "mistake",
    "outcome_unknown",
    "own_capabilities",
    "program_in",
    "protocol_error",
    "said",
    "stateless_notice",
    "unknown_name",
    "warnings_at",
    "with_notice",
]

STATELESS = "holdfast/stateless"
"""The key in ``_meta`` that is true if the server kept no state from the client's earlier calls."""

RESTARTED = "holdfast/restarted"
"""The key in ``_meta`` that is true in the first result of a connection that was made again for a rebuilt session."""

RESOURCE_NOT_FOUND = -32002
"""The legacy era's own code; the modern era uses "invalid params"."""

STATUS_TOOL, LOGIN_TOOL = "holdfast_status", "holdfast_login"

IDENTITY = "Holdfast acts as one identity: every call uses the credentials of Holdfast's configuration."

FIND_INSTRUCTIONS = (
    "MCP servers behind one endpoint, kept by Holdfast. Not every tool is listed: `find_tools` finds them by what they"
    " do and says whether each can be called now, `describe_tools` shows the whole schema of a hit, and"
    " `call_readonly_tool` or `call_tool` calls it."
)
"""What a client reads at an endpoint in find mode."""

LONGEST_INSTRUCTIONS = 4_000
"""How many characters of each server's instructions are shown at an endpoint of many servers."""


class NotListed(MCPError):
    """No server that its client may see lists the name in a request, perhaps not yet."""


def unknown_name(kind: Kind, found: Unknown, *, modern: bool) -> NotListed:
    """Return the error for a name that was never listed."""
    noun = kind.value.removesuffix("s")
    near = f"; did you mean {' or '.join(found.nearest)}?" if found.nearest else ""
    legacy = RESOURCE_NOT_FOUND if kind is Kind.RESOURCE else INVALID_PARAMS
    return NotListed(INVALID_PARAMS if modern else legacy, f"Unknown {noun}: {quoted_line(found.name)}{near}")


def error_result(error: HoldfastError) -> dict[str, Any]:
    """Return a tool result with the reason: a model reads results, but may never see a protocol error.

    The mark tells a hub in front of this one that no server gave this result.
    """
    text = {"type": "text", "text": explain(error)}
    return {"content": [text], "isError": True, "_meta": {FAILURE_KEY: _mark(error)}}


def said(text: str, structured: Mapping[str, Any]) -> dict[str, Any]:
    """The result of one of the hub's own tools: for a model, and for a program."""
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured, "isError": False}


def mistake(text: str) -> dict[str, Any]:
    """The result of one of the hub's own tools that was called wrongly: a model reads what to do next."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def _mark(error: HoldfastError) -> dict[str, Any]:
    """What a program reads of an error that the hub itself made: the kind of error, the class, the reason."""
    mark: dict[str, Any] = {"error": type(error).__name__}
    if isinstance(error, ServerUnavailable):
        return mark | {
            "class": error.status,
            "server": error.server_id,
            "state": State(error.state).shown,
            "reason": error.reason,
            "retryIn": error.retry_in,
            "sent": False,
        }
    if not isinstance(error, CallFailed):
        kind = "denied" if isinstance(error, CallForbidden | NotApproved) else "transient"
        return mark | {"class": kind, "reason": error.message, "hint": error.hint, "sent": False}
    verdict = classify_evidence(error.evidence, connected_before=True)
    told = {"class": verdict.status, "reason": verdict.reason, "hint": verdict.hint, "sent": error.uncertain}
    return mark | told


def with_notice(result: RawObject, key: str, text: str, *, tool: bool) -> RawObject:
    """Add a notice about the server's state for this client: in ``_meta``, and as text for the model.

    The rest of the result passes as the bytes that it came in.
    """
    changes: dict[str, Bytes | None] = {}
    meta = result.get("_meta")
    known = load_object(meta) if meta is not None else {}
    if not isinstance(known, LoadedObject):  # a large one stays as it is
        changes["_meta"] = dumps({**(known or {}), key: True})
    content = result.get("content")
    if tool and content is not None and is_array(content):
        block = dumps({"type": "text", "text": text, "annotations": {"audience": ["assistant"]}})
        written = bytes(content).rstrip()[:-1].rstrip()
        changes["content"] = written + (b"," if written != b"[" else b"") + block + b"]"
    return result.changed(changes)


def restarted_notice(server: str) -> str:
    """Return the notice for a client whose own connection to a server did not outlive the hub."""
    return (
        f"Holdfast: MCP server '{server}' has one connection per client, and this client's was made again: "
        "the hub was restarted, another replica answers, or it was not used for long. What the server kept for this "
        "client before is gone."
    )


def stateless_notice(servers: Sequence[str]) -> str:
    """Return the notice for a client that sends no key; empty if no server needs it."""
    if not servers:
        return ""
    return (
        f"Holdfast: these MCP servers have one connection per client: {', '.join(servers)}. "
        "This client sends no client key, so each call gets a new connection and nothing is kept between calls. "
        f"{HOW_TO_BE_KNOWN}"
    )


def outcome_unknown(server: str) -> ConnectionClosed:
    """The error of a call that another hub got before and did not answer: it may not be made again (LIFE-16)."""
    words = (
        f"the call to `{server}` was cut off: the hub ended during the call. "
        "Its outcome is uncertain: the server may have acted on it"
    )
    return ConnectionClosed(NetworkFailure(fault=NetworkFault.CLOSED, stood=True), words, uncertain=True)


def protocol_error(error: HoldfastError, *, modern: bool) -> MCPError:
    """Return a protocol error; an error that the server itself answered passes unchanged."""
    seen = error.evidence if isinstance(error, CallFailed) else None
    if isinstance(seen, RpcError):
        code = INVALID_PARAMS if modern and seen.code == RESOURCE_NOT_FOUND else seen.code
        return MCPError(code, seen.message, seen.data)
    return MCPError(INTERNAL_ERROR, explain(error), {FAILURE_KEY: _mark(error)})


def identity(view: View) -> str:
    """Return whose credentials calls use."""
    own = sorted(name for name in view.hub.registry.users.servers if view.covers(name))
    if not own:
        return IDENTITY
    return (
        "At these MCP servers every user acts as herself, with her own login: "
        f"{', '.join(own)}. Calls to all others use the credentials of Holdfast's configuration. "
        f"If a login is missing, the tool `{LOGIN_TOOL}` says how to log in."
    )


def instructions(view: View) -> str:
    """Return the instructions that a client reads once: how to use the servers, and which are unavailable."""
    if view.server is not None and view.tools == "all":
        warning = warnings_of([view.slot(view.server).health()]).for_model
        said_by = _instructions_of(view, view.server)
        # Its own instructions pass as they are, unless words of the hub stand beside them.
        return f"{warning}\n\n{_section(view.server, said_by)}".rstrip() if warning else said_by
    if view.tools == "find":
        # The servers' own instructions would cost more than the list that this mode saves.
        return "\n\n".join(filter(None, (FIND_INSTRUCTIONS, warnings_at(view), identity(view))))
    names = ", ".join(view.servers) or "none"
    parts = [
        f"MCP servers behind one endpoint, kept by Holdfast: {names}. A tool's name begins with its server's name.",
        warnings_at(view),
        f"The tool `{STATUS_TOOL}` shows which servers are unavailable, why, and when to try again.",
        identity(view),
    ]
    said = {server: _instructions_of(view, server) for server in view.servers}
    parts += [_section(server, words) for server, words in said.items()]
    return "\n\n".join(filter(None, parts))


def _section(server: str, words: str) -> str:
    """A server's instructions under its name. Each line is marked: no server can forge the heading of another."""
    block = quote_block(words, LONGEST_INSTRUCTIONS)
    return f"## {server}\nThe instructions of this server, in its own words:\n{block}" if block else ""


def _instructions_of(view: View, server: str) -> str:
    """The instructions of a server that is connected, as they may be shown."""
    lease = view.slot(server).lease
    connection = lease.connection if lease is not None else None
    return view.hub.approvals.instructions(server, connection.instructions) if connection is not None else ""


def warnings_at(view: View) -> str:
    """What is unavailable at an endpoint, for a model."""
    return warnings_of(view.slot(name).health() for name in view.servers if view.has(name)).for_model


# The answers to ``initialize`` and ``server/discover``.

_INFO: Final = {"name": "holdfast", "title": "Holdfast", "version": __version__}
STAMP: Final = dumps({"name": "holdfast", "version": __version__, "title": "Holdfast"})
"""The hub's name and version, as each modern result has it."""


class Handshake(NamedTuple):
    """What ``initialize`` settled."""

    result: bytes
    version: str
    capabilities: Mapping[str, Any]
    """What the client declares."""
    program: str
    """What the client calls itself."""


def initialize(view: View, params: Mapping[str, Any]) -> Handshake:
    """The answer to ``initialize``; raises ``ValidationError`` for parameters that are not the protocol's."""
    init = types.InitializeRequestParams.model_validate(params, by_name=False)
    wanted = init.protocol_version
    version = str(wanted) if wanted in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
    result: dict[str, Any] = {
        "protocolVersion": version,
        "capabilities": _capabilities(view, modern=False),
        "serverInfo": _INFO,
    }
    if text := instructions(view):
        result["instructions"] = text
    can = init.capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
    return Handshake(dumps(result), version, can, program_in(params.get("clientInfo")))


LONGEST_PROGRAM: Final = 100
"""Characters of a name that a client gives itself."""


def program_in(info: object) -> str:
    """What a client calls itself, as it can be shown; empty if it does not."""
    name = info.get("name") if isinstance(info, dict) else None
    return plain(name)[:LONGEST_PROGRAM] if isinstance(name, str) else ""


def discover(view: View, stateless: Sequence[str]) -> RawObject:
    """The answer to ``server/discover``; ``stateless`` are the servers that keep nothing for this client."""
    result: dict[str, Any] = {
        "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
        "capabilities": _capabilities(view, modern=True),
    }
    if text := "\n\n".join(filter(None, (instructions(view), stateless_notice(stateless)))):
        result["instructions"] = text
    return RawObject.of(result)


def own_capabilities(view: View) -> Mapping[str, Any] | None:
    """What the one server of an endpoint declared; None for many servers, and while it is not connected."""
    lease = view.slot(view.server).lease if view.server is not None else None
    return lease.connection.capabilities if lease is not None and lease.connection is not None else None


def _capabilities(view: View, *, modern: bool) -> dict[str, Any]:
    full: dict[str, Any] = {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "completions": {},
    }
    if modern:
        full["extensions"] = {TASKS_EXTENSION: {}}
    else:
        full |= {"logging": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
    own = own_capabilities(view)
    if own is not None:
        kept = {name: full[name] for name in full if name in own or name == "tools"}
        full = kept | {name: own[name] for name in ("experimental", "extensions") if name in own}
        if "tasks" in full:
            full["tasks"] = {name: own["tasks"][name] for name in ("cancel", "requests") if name in own["tasks"]}
    # A hub behind this one announced itself to this hub, not to its clients.
    hub: dict[str, Any] = {"version": HUB_VERSION}
    if view.server is not None and warnings_of([view.slot(view.server).health()]).for_model:
        hub["warns"] = True  # its instructions begin with words of this hub: a hub in front does not approve those
    full["experimental"] = {**full.get("experimental", {}), HUB_CAPABILITY: hub}
    can = types.ServerCapabilities.model_validate(full)
    return can.model_dump(by_alias=True, mode="json", exclude_none=True)
