"""The hub as an MCP server over stdio, for clients that spawn their servers."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from holdfast.front.face import build_face
from holdfast.hub.hub import Hub

__all__ = ["serve_stdio"]


async def serve_stdio(hub: Hub) -> None:
    """Serve one client over our own stdin and stdout until it is gone."""
    face = build_face(hub)
    async with stdio_server() as (read, write):
        await face.run(read, write, face.create_initialization_options())
