"""The hub's own tool and resource: which servers are unavailable and why (HUB-11)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast.core.names import Kind
from holdfast.front.words import IDENTITY
from holdfast.hub.hub import Hub
from holdfast.hub.warnings import failure_status

__all__ = ["STATUS_URI", "status_contents", "status_resource", "status_result", "status_tool", "status_tool_name"]

STATUS_URI = "holdfast://status"

_TOOL = "holdfast_status"


def status_tool_name(hub: Hub) -> str:
    """Return the name of the tool; it gives way to a server's tool of the same name."""
    name = _TOOL
    while (Kind.TOOL, name) in hub.catalog.owners:
        name += "_"
    return name


def status_tool(hub: Hub) -> dict[str, Any]:
    """Return the tool for the list."""
    return {
        "name": status_tool_name(hub),
        "title": "Holdfast status",
        "description": "Which MCP servers behind this endpoint are unavailable, why, and when to try again.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "server": {"type": "string", "description": "The id of one server; all servers if left out."}
            },
        },
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }


def status_resource() -> dict[str, Any]:
    """Return the resource for the list."""
    return {
        "uri": STATUS_URI,
        "name": "holdfast-status",
        "title": "Holdfast status",
        "description": "The state of every MCP server behind this endpoint.",
        "mimeType": "application/json",
    }


def status_result(hub: Hub, arguments: Mapping[str, Any], findings: Mapping[str, str]) -> dict[str, Any]:
    """Return the result of the tool."""
    wanted = arguments.get("server")
    servers = {name: one for name, one in _servers(hub, findings).items() if wanted in (None, name)}
    if wanted is not None and not servers:
        known = ", ".join(hub.servers) or "none"
        text = f"No server named {wanted!r} is configured. Configured: {known}."
        return {"content": [{"type": "text", "text": text}], "isError": True}
    lines = [_line(name, one) for name, one in servers.items()]
    text = "\n".join(filter(None, (hub.warnings().for_model, *lines)))
    return {"content": [{"type": "text", "text": text}], "structuredContent": {"servers": servers}, "isError": False}


def status_contents(hub: Hub, findings: Mapping[str, str]) -> dict[str, Any]:
    """Return the contents of the resource."""
    body = {"servers": _servers(hub, findings), "identity": IDENTITY, "collisions": _collisions(hub)}
    text = json.dumps(body, ensure_ascii=False, indent=1)
    return {"contents": [{"uri": STATUS_URI, "mimeType": "application/json", "text": text}]}


def _servers(hub: Hub, findings: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    tools: dict[str, int] = {}
    all_changed = hub.approvals.changed
    for entry in hub.catalog.tools:
        tools[entry.server] = tools.get(entry.server, 0) + 1
    return {
        name: {
            "state": health.state.value,
            "available": failure_status(health.state) is None and health.state.value not in ("disabled", "disabling"),
            "reason": health.reason,
            "retryIn": health.retry_in,
            "tools": tools.get(name, 0),
        }
        | ({"finding": findings[name]} if name in findings else {})
        | ({"changedTools": sorted(changed)} if (changed := all_changed.get(name)) else {})
        for name, health in hub.servers.items()
    }


def _line(name: str, one: Mapping[str, Any]) -> str:
    because = f": {one['reason']}" if one["reason"] and not one["available"] else ""
    later = f" (next try in {one['retryIn']:.0f} s)" if one["retryIn"] and not one["available"] else ""
    changed = one.get("changedTools")
    warning = f"; changed since first seen: {', '.join(changed)}" if changed else ""
    return f"{name}: {one['state']}{because}{later}; {one['tools']} tools listed{warning}"


def _collisions(hub: Hub) -> list[dict[str, str]]:
    return [
        {"server": one.key.server, "name": one.key.original, "wanted": one.wanted, "given": one.given}
        for one in hub.catalog.collisions
    ]
