"""One face of the hub: the SDK's server, whose answers come from the hub."""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import NotificationOptions, Server

from holdfast._version import __version__
from holdfast.hub.hub import Hub

__all__ = ["build_face"]


def build_face(hub: Hub, server: str | None = None) -> Server[Any]:
    """All servers under the catalog's names, or one alone with names untouched."""

    def entries() -> list[Any]:
        return [entry for entry in hub.catalog.tools if server in (None, entry.server)]

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        tools = [
            types.Tool.model_validate({**entry.item.raw, "name": entry.original if server else entry.name})
            for entry in entries()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        name = params.name
        if server is not None:
            name = next((entry.name for entry in entries() if entry.original == name), name)
        result = await hub.call_tool(name, params.arguments)
        return types.CallToolResult.model_validate(
            {
                "content": list(result.content),
                "structuredContent": result.structured,
                "isError": result.is_error,
            }
        )

    return Server("holdfast", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


__all__ += ["NotificationOptions"]
