"""The login of a user to a server that is per user: the hub's own tool ``holdfast_login`` (AUTH-7).

A server that denies a user access because her login is missing lists nothing, so there would be nothing to call. While
that is so, her list of tools has ``holdfast_login``. It says truly what is missing, and how she logs in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core import command_line, quoted
from holdfast.endpoint.instructions import LOGIN_TOOL
from holdfast.endpoint.view import View

__all__ = ["lacking_login", "login_result", "login_tool", "offers_login"]


def lacking_login(view: View) -> tuple[str, ...]:
    """The servers of an endpoint that lack the login of its user."""
    return tuple(one for one in view.hub.registry.users.lacking_login(view.principal) if view.covers(one))


def offers_login(view: View) -> bool:
    """Whether the tool can be called: the endpoint has servers to which its user may log in."""
    users = view.hub.registry.users
    return any(users.has_own(view.principal, server) and view.has(server) for server in users.servers)


def login_tool(servers: tuple[str, ...]) -> dict[str, Any]:
    """Return the tool for the list, while these servers lack the login of a user."""
    return {
        "name": LOGIN_TOOL,
        "title": "Log in to an MCP server",
        "description": f"Log in to an MCP server as yourself. Your login is missing at: {', '.join(servers)}. "
        "Until then its tools are not listed.",
        "inputSchema": {
            "type": "object",
            "properties": {"server": {"type": "string", "description": "The server to log in to."}},
            "required": ["server"],
        },
        "annotations": {"readOnlyHint": False, "idempotentHint": True, "openWorldHint": True},
    }


def login_result(view: View, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of the tool: how this user logs in to a server."""
    wanted = arguments.get("server")
    users = view.hub.registry.users
    own = sorted(server for server in users.servers if view.has(server))
    if wanted not in own:
        named = quoted(str(wanted)[:400]) if wanted is not None else "no server"
        text = f"The argument `server` names {named}. Servers that take a login of yours: {', '.join(own) or 'none'}."
        return {"content": [{"type": "text", "text": text}], "isError": True}
    spec = view.hub.registry.slot(str(wanted)).spec
    if not users.grants(view.principal).address_of(spec):
        return _told(str(wanted), "not_needed", f"MCP server '{wanted}' takes no login: it is a local command.")
    if not users.grants(view.principal).lacks_login(spec):
        return _told(str(wanted), "logged_in", f"You are logged in to MCP server '{wanted}'.")
    command = command_line("login", server=str(wanted), options=("--user", view.principal))
    text = (
        f"You are not logged in to MCP server '{wanted}'. The login is made where this hub runs, by the command: "
        f"{command}\nIts tools are listed as soon as the login is there."
    )
    return _told(str(wanted), "login_required", text)


def _told(server: str, status: str, text: str) -> dict[str, Any]:
    structured = {"server": server, "status": status}
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured, "isError": False}
