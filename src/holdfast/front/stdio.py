"""The hub as an MCP server over stdio, for clients that start their servers.

Each line of the client is bounded: a longer one is never held whole, and is refused under its id.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Self, TypeAlias, cast

import anyio
import anyio.to_thread
from mcp.server.runner import serve_dual_era_loop
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError

from holdfast.front.broker import Broker
from holdfast.front.server import McpServer
from holdfast.front.view import View
from holdfast.hub import Hub

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import WriteStream

__all__ = ["Refuse", "StdinLines", "serve_stdio"]

Refuse: TypeAlias = Callable[[str | int | None], Awaitable[None]]
"""Called with the id of a message that was too long; None if the id was not found."""

CHUNK = 64 * 1024

_ID = rb'"id"\s*:\s*(?P<id>"(?:[^"\\]|\\.){0,256}"|-?\d{1,18})\s*'
_FIRST = re.compile(rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]{0,256}"\s*,\s*)*' + _ID + rb"[,}]")
_LAST = re.compile(rb"[{,]\s*" + _ID + rb'(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')
"""The id of the message itself, not of a nested object: it stands before the first nested value, or at the end."""


class StdinLines:
    """Reads line after line, in a worker thread."""

    def __init__(self, file: BinaryIO, longest: int, refuse: Refuse) -> None:
        self._file = file
        self._longest = longest
        self._refuse = refuse

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        """Return the next line within the bound; invalid UTF-8 is replaced."""
        while True:
            line = await anyio.to_thread.run_sync(self._file.readline, self._longest + 1)
            if not line:
                raise StopAsyncIteration
            if len(line) <= self._longest or line.endswith(b"\n"):
                return line.decode("utf-8", "replace")
            head, line = line[:CHUNK], line[-CHUNK:]
            tail = await anyio.to_thread.run_sync(self._skip, line)
            await self._refuse(_id_in(head, tail))

    def _skip(self, tail: bytes) -> bytes:
        """Read to the end of the line and keep only its last bytes."""
        while not tail.endswith(b"\n"):
            more = self._file.readline(CHUNK)
            if not more:
                break
            tail = tail[-CHUNK:] + more
        return tail


def _id_in(head: bytes, tail: bytes) -> str | int | None:
    found = _FIRST.match(head) or _LAST.search(tail)
    try:
        known = json.loads(found["id"]) if found is not None else None
    except ValueError:
        return None
    return known if isinstance(known, str | int) else None


async def serve_stdio(hub: Hub, *, server: str | None = None, broker: Broker | None = None) -> None:
    """Serve one client over stdin and stdout until it leaves: all servers, or one.

    The hub must be open. Pass a broker that was created before the hub was entered, so that servers learn from
    the start that a client can answer requests; it can also drain the calls before the end.
    """
    broker = broker or Broker(hub)
    mcp_server = McpServer(broker, View(hub, server), owner="stdio")
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
            await tasks.start(broker.run)
            broker.add_subscriptions(mcp_server.subscriptions)
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
