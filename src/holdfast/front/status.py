"""The hub's own tool and resource: what is unavailable and why, for a model, at any time (HUB-11)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast.core.catalog import Kind
from holdfast.front.words import IDENTITY
from holdfast.hub.hub import Hub
from holdfast.hub.warnings import STATUS

__all__ = ["STATUS_URI", "resource", "resource_contents", "status_tool_name", "tool", "tool_result"]

STATUS_URI = "holdfast://status"

_TOOL = "holdfast_status"


def status_tool_name(hub: Hub) -> str:
    """Its name; a server's tool that already has it keeps it."""
    name = _TOOL
    while (Kind.TOOL, name) in hub.catalog.owners:
        name += "_"
    return name


def tool(hub: Hub) -> dict[str, Any]:
    """The tool, as it is listed."""
    return {
        "name": status_tool_name(hub),
        "title": "Holdfast status",
        "description": "Which MCP servers behind this endpoint are unavailable, why, and when to try again.",
        "inputSchema": {
            "type": "object",
            "properties": {"server": {"type": "string", "description": "One server alone; all of them if left out."}},
        },
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }


def resource() -> dict[str, Any]:
    """The resource, as it is listed."""
    return {
        "uri": STATUS_URI,
        "name": "holdfast-status",
        "title": "Holdfast status",
        "description": "The state of every MCP server behind this endpoint.",
        "mimeType": "application/json",
    }


def tool_result(hub: Hub, arguments: Mapping[str, Any], findings: Mapping[str, str]) -> dict[str, Any]:
    """What the tool answers."""
    wanted = arguments.get("server")
    servers = {name: one for name, one in _servers(hub, findings).items() if wanted in (None, name)}
    if wanted is not None and not servers:
        known = ", ".join(hub.servers) or "none"
        text = f"No server named {wanted!r} is configured. Configured: {known}."
        return {"content": [{"type": "text", "text": text}], "isError": True}
    lines = [_line(name, one) for name, one in servers.items()]
    text = "\n".join(filter(None, (hub.warnings().for_model, *lines)))
    return {"content": [{"type": "text", "text": text}], "structuredContent": {"servers": servers}, "isError": False}


def resource_contents(hub: Hub, findings: Mapping[str, str]) -> dict[str, Any]:
    """What reading the resource answers."""
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
            "available": health.state not in STATUS and health.state.value not in ("disabled", "disabling"),
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
    warning = f"; not what they were when first seen: {', '.join(changed)}" if changed else ""
    return f"{name}: {one['state']}{because}{later}; {one['tools']} tools listed{warning}"


def _collisions(hub: Hub) -> list[dict[str, str]]:
    return [
        {"server": one.key.server, "name": one.key.original, "wanted": one.wanted, "given": one.given}
        for one in hub.catalog.collisions
    ]
