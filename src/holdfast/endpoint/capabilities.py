"""What an endpoint says of itself: the answers to ``initialize`` and ``server/discover``.

The endpoint of many servers declares everything. The endpoint of one server declares what that server declared, once it
is connected; the handshake waits for no server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import mcp_types as types
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from holdfast._version import __version__
from holdfast.core import HUB_CAPABILITY, HUB_VERSION, plain
from holdfast.endpoint.instructions import instructions, stateless_notice
from holdfast.endpoint.view import View
from holdfast.hub import warnings_of
from holdfast.wire import TASKS_EXTENSION, RawObject, dumps

__all__ = ["STAMP", "Handshake", "discover", "initialize", "own_capabilities", "program_in"]

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
    lease = view.user.slot(view.server).lease if view.server is not None else None
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
    if view.server is not None and warnings_of([view.user.health(view.server)]).for_model:
        hub["warns"] = True  # its instructions begin with words of this hub: a hub in front does not approve those
    full["experimental"] = {**full.get("experimental", {}), HUB_CAPABILITY: hub}
    can = types.ServerCapabilities.model_validate(full)
    return can.model_dump(by_alias=True, mode="json", exclude_none=True)
