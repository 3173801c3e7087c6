"""The hub as an MCP server over stdio, for clients that start their servers.

Each line of the client is bounded: a longer one is never held whole, and is refused under its id. So are the answers
that the client does not read (HUB-17): a thread of its own writes them, so a full pipe delays neither the hub nor its
shutdown. A request whose id is in flight already is refused.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import queue
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, Self, TypeAlias

import anyio
import anyio.to_thread
from mcp.server.runner import serve_dual_era_loop
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from holdfast.front.broker import Broker
from holdfast.front.server import McpServer
from holdfast.front.view import View
from holdfast.hub import Hub

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import ReadStream, WriteStream

__all__ = ["Refuse", "StdinLines", "StdoutWriter", "serve_stdio"]

log = logging.getLogger("holdfast.front")

UNREAD_BYTES = 32 * 1024 * 1024
"""How much may wait for a client that does not read; one message may always wait."""

ERROR_BYTES = 1024 * 1024
"""How much more may wait of the short errors that replace larger messages."""

FLUSH_SECONDS = 1.0
"""At the end, the hub gives up on a client that reads nothing for this long."""

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


class StdoutWriter:
    """Writes lines in a thread of its own. The thread is a daemon: one that is stuck in a full pipe delays no exit."""

    def __init__(self, fd: int, *, limit: int = UNREAD_BYTES) -> None:
        self._fd = fd
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._moved = anyio.Event()
        self.unread = 0
        """Bytes that the client has not read, as far as the pipe shows it."""
        self.broken = anyio.Event()
        """Set when the client closed its end."""
        threading.Thread(target=self._run, name="stdout", daemon=True).start()

    def write(self, line: bytes, *, extra: int = 0) -> bool:
        """Queue a line; False if too much is unread. ``extra`` bytes are allowed over the limit."""
        if self.unread and self.unread + len(line) > self._limit + extra:
            return False
        self.unread += len(line)
        self._lines.put(line)
        return True

    async def close(self) -> bool:
        """Wait until all is written, as long as the client goes on reading; whether it is."""
        self._lines.put(None)
        while self.unread and not self.broken.is_set():
            with anyio.move_on_after(FLUSH_SECONDS) as waited:
                await self._moved.wait()
            if waited.cancelled_caught:
                break
        return not self.unread

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            for start in range(0, len(line), CHUNK):
                rest = line[start : start + CHUNK]
                size = len(rest)
                try:
                    while rest:
                        rest = rest[os.write(self._fd, rest) :]
                except OSError:
                    self._call(self.broken.set)
                    return
                self._call(self._wrote, size)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nothing waits
            self._loop.call_soon_threadsafe(function, *args)

    def _wrote(self, size: int) -> None:
        self.unread -= size
        self._moved.set()
        self._moved = anyio.Event()


class _Pipe:
    """The messages of one client: from its lines to the SDK, and from the SDK to its pipe."""

    def __init__(self, writer: StdoutWriter, longest: int) -> None:
        self._writer = writer
        self._longest = longest
        self._in_flight: set[tuple[type, str | int]] = set()
        self._dropped = 0
        self._to_sdk, self.read = create_context_streams[SessionMessage | Exception](0)
        self.write, self._from_sdk = create_context_streams[SessionMessage](0)

    async def take(self, lines: AsyncIterator[str]) -> None:
        """Pass the client's messages on, until it closes its end."""
        async with self._to_sdk:
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                async for line in lines:
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except Exception as exc:  # noqa: BLE001 - the SDK answers any line that is no message
                        await self._to_sdk.send(exc)
                        continue
                    if self._admits(message):
                        await self._to_sdk.send(SessionMessage(message))

    async def give(self) -> None:
        """Write the SDK's messages, until it closes its end."""
        async with self._from_sdk:
            async for session_message in self._from_sdk:
                message = session_message.message
                if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                    self._in_flight.discard((type(message.id), message.id))
                if not self._writer.write(_line(message)):
                    await self._drop(message)

    def refuse(self, request: str | int | None, text: str) -> None:
        """Answer a request that is not passed on; an id that is not the request's alone is left out."""
        error = JSONRPCError(jsonrpc="2.0", id=request, error=ErrorData(code=INVALID_REQUEST, message=text))
        self._writer.write(_line(error), extra=ERROR_BYTES)

    async def refuse_long(self, request: str | int | None) -> None:
        """Refuse a line over the bound."""
        hint = "`holdfast.limits.messageBytes` sets the limit"
        self.refuse(request, f"a message of more than {self._longest} bytes is refused; {hint}")

    def _admits(self, message: JSONRPCMessage) -> bool:
        """Refuse a request whose id is in flight: its answer could not be told from the other's."""
        if isinstance(message, JSONRPCRequest):
            key = type(message.id), message.id
            if key in self._in_flight:
                log.warning("the client sent a request with an id that is in flight already: %r", message.id)
                self.refuse(None, f"the id {json.dumps(message.id)} is in flight already")
                return False
            self._in_flight.add(key)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            request = (message.params or {}).get("requestId")
            self._in_flight.discard((type(request), request))
        return True

    async def _drop(self, message: JSONRPCMessage) -> None:
        """Too much is unread: a result becomes a short error, a request fails at once, a notification is dropped."""
        self._dropped += 1
        if self._dropped == 1:
            log.warning("the client does not read: %d bytes are unread, and more is dropped", self._writer.unread)
        text = "the result was dropped: the client did not read its earlier results"
        error = ErrorData(code=INTERNAL_ERROR, message=text)
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._writer.write(_line(JSONRPCError(jsonrpc="2.0", id=message.id, error=error)), extra=ERROR_BYTES)
        elif isinstance(message, JSONRPCRequest):
            failed = ErrorData(code=INTERNAL_ERROR, message="the client does not read its messages")
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await self._to_sdk.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=message.id, error=failed)))


def _line(message: JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


async def serve_stdio(hub: Hub, *, server: str | None = None, broker: Broker | None = None) -> None:
    """Serve one client over stdin and stdout until it leaves: all servers, or one.

    The hub must be open. Pass a broker that was created before the hub was entered, so that servers learn from
    the start that a client can answer requests; it can also drain the calls before the end.
    """
    broker = broker or Broker(hub)
    mcp_server = McpServer(broker, View(hub, server), owner="stdio")
    longest = hub.config.settings.limits.message_bytes
    with _own_stdin() as stdin, _own_stdout() as stdout:
        writer = StdoutWriter(stdout)
        pipe = _Pipe(writer, longest)
        async with anyio.create_task_group() as tasks:
            await tasks.start(broker.run)
            broker.add_subscriptions(mcp_server.subscriptions)
            tasks.start_soon(_cancel_when, writer.broken, tasks.cancel_scope)
            tasks.start_soon(pipe.take, StdinLines(stdin, longest, pipe.refuse_long))
            tasks.start_soon(_serve_messages, mcp_server, pipe.read, pipe.write)
            await pipe.give()
            tasks.cancel_scope.cancel()
        if not await writer.close():
            log.warning("%d bytes of answers were not read by the client", writer.unread)


async def _serve_messages(
    mcp_server: McpServer, read: ReadStream[SessionMessage | Exception], write: WriteStream[SessionMessage]
) -> None:
    await serve_dual_era_loop(mcp_server, read, write, lifespan_state=None)


async def _cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


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


@contextmanager
def _own_stdout() -> Iterator[int]:
    """Take stdout for the protocol alone: what a library or a child prints goes to stderr.

    The descriptor is not closed: a thread may still be stuck in a write to it.
    """
    own = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    os.dup2(2, 1)
    try:
        yield own
    finally:
        os.dup2(own, 1)
