"""The hub as an MCP server over stdio, for clients that spawn their servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, cast

import anyio
from mcp.server.runner import serve_dual_era_loop
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError

from holdfast.front.desk import Desk
from holdfast.front.face import McpServer
from holdfast.front.lines import StdinLines
from holdfast.front.view import View
from holdfast.hub.hub import Hub

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import WriteStream

__all__ = ["serve_stdio"]


async def serve_stdio(hub: Hub, *, server: str | None = None, desk: Desk | None = None) -> None:
    """Serve one client over stdin and stdout until it leaves: all servers, or one.

    The hub must be open. Pass a broker that was created before the hub was entered, so that servers learn from
    the start that a client can answer requests; it can also drain the calls before the end.
    """
    desk = desk or Desk(hub)
    mcp_server = McpServer(desk, View(hub, server), owner="stdio")
    longest = hub.config.settings.limits.message_bytes
    out: WriteStream[SessionMessage] | None = None
    ready = anyio.Event()

    async def refuse(request: str | int | None) -> None:
        await ready.wait()
        assert out is not None  # noqa: S101 - it is ready
        text = f"a message of more than {longest} bytes is refused; `holdfast.limits.messageBytes` sets the limit"
        error = ErrorData(code=INVALID_REQUEST, message=text)
        await out.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=request, error=error)))

    with _own_stdin() as stdin:
        lines = cast("anyio.AsyncFile[str]", StdinLines(stdin, longest, refuse))  # the SDK only iterates over it
        async with stdio_server(stdin=lines) as (read, out), anyio.create_task_group() as tasks:
            ready.set()
            await tasks.start(desk.run)
            desk.add_subscriptions(mcp_server.subscriptions)
            await serve_dual_era_loop(mcp_server, read, out, lifespan_state=None)
            tasks.cancel_scope.cancel()


@contextmanager
def _own_stdin() -> Iterator[BinaryIO]:
    """Take stdin for the hub alone: a child process that inherits it reads an empty file."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    with os.fdopen(os.dup(0), "rb") as stdin:
        os.dup2(nothing, 0)
        os.close(nothing)
        try:
            yield stdin
        finally:
            os.dup2(stdin.fileno(), 0)
