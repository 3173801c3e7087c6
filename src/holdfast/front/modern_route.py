"""What a modern request over HTTP says of itself, in its headers and in ``_meta``: both must agree.

A client says the same with each of its calls. So what was checked once is known by all that was checked: the headers
that route, the method, the name and the bytes of ``_meta``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from mcp import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    InboundLadderRejection,
    classify_inbound_request,
    decode_header_value,
)
from mcp_types import HEADER_MISMATCH

from holdfast.endpoint import Message, meta_of, params_of
from holdfast.front.requests import Request
from holdfast.wire import text_of

__all__ = ["KnownRoutes", "ModernRoute", "check_routing", "is_routed", "route_of"]

KNOWN_META_BYTES: Final = 2048
MOST_KNOWN: Final = 64
"""How large a ``_meta`` may be that is remembered, and how many of them."""

_ROUTING: Final = (MCP_PROTOCOL_VERSION_HEADER, MCP_METHOD_HEADER, MCP_NAME_HEADER)


class ModernRoute(NamedTuple):
    """What was checked."""

    version: str
    capabilities: Mapping[str, Any]
    meta: Mapping[str, Any]


KnownRoutes: TypeAlias = dict[tuple[object, ...], ModernRoute]
"""What was found right, by what was checked."""


def is_routed(request: Request) -> bool:
    """Whether its headers name a method or a tool."""
    return MCP_METHOD_HEADER in request.headers or MCP_NAME_HEADER in request.headers


def check_routing(message: Message, request: Request) -> None:
    """Refuse a legacy request whose headers name another method or tool than its body: a gateway may decide by them."""
    if not is_routed(request):
        return
    key = NAME_BEARING_METHODS.get(message.method or "")
    name = text_of(params_of(message).get(key)) if key is not None else None
    said = request.headers.get(MCP_METHOD_HEADER, message.method), request.headers.get(MCP_NAME_HEADER)
    if said[0] != message.method or (said[1] is not None and decode_header_value(said[1]) != name):
        raise MCPError(HEADER_MISMATCH, "the Mcp-Method or Mcp-Name header does not match the request body")


def route_of(message: Message, request: Request, known: KnownRoutes) -> ModernRoute:
    """Check that a request agrees with itself, and note it in ``known``; raises ``MCPError`` where it does not."""
    params, method = params_of(message), message.method or ""
    key = NAME_BEARING_METHODS.get(method)
    name = text_of(params.get(key)) if key is not None else None
    given = params.get("_meta")
    raw = bytes(given) if given is not None and len(memoryview(given)) <= KNOWN_META_BYTES else b""
    if (twice := next((one for one in request.head.repeated if one in _ROUTING), None)) is not None:
        raise MCPError(HEADER_MISMATCH, f"{twice} header appears more than once")
    checked = (raw, method, name, *(request.headers.get(one) for one in _ROUTING))
    if raw and (found_before := known.get(checked)) is not None:
        message.meta = found_before.meta
        return found_before
    meta = meta_of(message)
    read: dict[str, Any] = {"_meta": meta} if given is not None else {}
    if key is not None and key in params:
        read[key] = name
    found = classify_inbound_request({"method": message.method, "params": read}, headers=request.headers)
    if isinstance(found, InboundLadderRejection):
        raise MCPError(found.code, found.message, found.data)
    can = found.client_capabilities
    route = ModernRoute(found.protocol_version, can if isinstance(can, dict) else {}, meta)
    if raw:
        if len(known) >= MOST_KNOWN:
            known.clear()
        known[checked] = route
    return route
