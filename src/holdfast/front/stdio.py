"""The hub as an MCP server over stdio, for clients that spawn their servers."""

from __future__ import annotations

import anyio
from mcp.server.runner import serve_dual_era_loop
from mcp.server.stdio import stdio_server

from holdfast.front.desk import Desk
from holdfast.front.face import Face
from holdfast.front.view import View
from holdfast.hub.hub import Hub

__all__ = ["serve_stdio"]


async def serve_stdio(hub: Hub, *, server: str | None = None, desk: Desk | None = None) -> None:
    """Serve one client over our own stdin and stdout until it is gone: all servers, or one alone.

    The hub must be open. Give it a ``desk`` that was made before, where servers are to know from the start
    that clients can be asked, or where the calls are to be drained before the end.
    """
    desk = desk or Desk(hub)
    face = Face(desk, View(hub, server), owner="stdio")
    async with stdio_server() as (read, write), anyio.create_task_group() as tasks:
        await tasks.start(desk.run)
        desk.put_up(face.board)
        await serve_dual_era_loop(face, read, write, lifespan_state=None)
        tasks.cancel_scope.cancel()
