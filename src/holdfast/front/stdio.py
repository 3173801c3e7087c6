"""The hub as an MCP server over stdio: the shell of lines around the exchange, for clients that start their servers.

What can happen. A line is longer than a message may be: it is never held whole, and is refused under its id. The client
does not read (HUB-17): what waits for it is bounded, and a thread of its own writes it, so that a full pipe delays
neither the hub nor its shutdown. The client closes its end: all of its calls are cancelled, at their servers too. A
library or a child process prints: that goes to stderr, as stdout has the protocol alone.

What must hold: a line is a whole message; messages of a batch are answered each by itself; every request gets an
answer, though it may be a short error in place of a result that the client had no room for.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import queue
import secrets
import socket
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol, Self, TypeAlias

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, ErrorData

from holdfast.config import ToolsMode
from holdfast.endpoint import (
    Broker,
    ClientFolders,
    EndpointAddress,
    Exchange,
    McpServer,
    Message,
    RootFolder,
    View,
    error_message,
    is_batch,
    notice_message,
    read_batch,
    read_message,
    result_message,
)
from holdfast.front.line_peek import Lines
from holdfast.hub import Hub
from holdfast.wire import Bytes, RawObject, dumps, one_line

__all__ = ["MessageLines", "PipeClient", "PipeServer", "Refuse", "StdoutWriter", "serve_stdio"]

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


class MessageLines:
    """Reads line after line from a pipe or a socket, within a bound; the last one may have no end (``Lines``)."""

    def __init__(self, read: Callable[[], Awaitable[bytes]], longest: int, refuse: Refuse) -> None:
        """``read`` returns the bytes that came, at most ``CHUNK`` of them; none at the end."""
        self._read = read
        self.refuse = refuse
        """Told of a line over the bound, by the id in it."""
        self._lines = Lines(longest)
        self._here: Iterator[bytes] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next line within the bound."""
        while not (line := await self._in_turn(next(self._here, b""))):
            data = await self._read()
            if not data:
                if last := await self._in_turn(self._lines.rest()):
                    return last
                raise StopAsyncIteration
            self._here = self._lines.add(data)
        return line

    async def _in_turn(self, line: bytes) -> bytes:
        """The same line, after the lines before it that are over the bound were refused."""
        refused, self._lines.refused = self._lines.refused, []
        for one in refused:
            await self.refuse(one)
        return line


class StdinReader:
    """Reads stdin in a thread of its own: stdin may be a file or a terminal, which the event loop cannot wait for.

    Such a read cannot be interrupted. So what the thread reads comes through a socket, which can be ended from this
    side. The thread is a daemon: one that waits for input delays no exit.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._feed, self._fed = socket.socketpair()
        self._fed.setblocking(False)
        threading.Thread(target=self._run, name="stdin", daemon=True).start()

    async def read(self) -> bytes:
        """What came, at most ``CHUNK`` bytes; none at the end."""
        return await asyncio.get_running_loop().sock_recv(self._fed, CHUNK)

    def end(self) -> None:
        """Let ``read`` see the end after what came. Idempotent."""
        with suppress(OSError):
            self._feed.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Read no more."""
        self._fed.close()

    def _run(self) -> None:
        with self._feed, suppress(OSError):
            while data := os.read(self._fd, CHUNK):
                self._feed.sendall(data)


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
                    while rest:  # a pipe may take a part of it
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


class LineWriter(Protocol):
    """What takes the lines for a client. It never waits."""

    @property
    def unread(self) -> int:
        """Bytes that the client has not read."""

    def write(self, line: bytes, *, extra: int = 0) -> bool:
        """Queue a line; False if too much is unread. ``extra`` bytes are allowed over the limit."""


class PipeClient:
    """The client on the pipe: all that goes out to it. The ``MessageReply`` of each of its messages, and its outlet.

    An answer that the client does not read is replaced by a short error, so that each request still has its answer.
    Notifications are dropped meanwhile.
    """

    is_open = True

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        self._dropped = 0

    def tell(self, method: str, params: Mapping[str, Any] | None, *, everywhere: bool = False) -> None:
        """Send a notification; it is dropped while too much is unread."""
        self._write(notice_message(method, params))

    async def reach(self, method: str) -> PipeClient:
        """The pipe is always there."""
        return self

    def put_question(self, message: bytes) -> None:
        """Send a request of the hub."""
        if not self._write(message):
            raise MCPError(INTERNAL_ERROR, "the client does not read its messages")

    def result(self, request_id: Bytes, result: RawObject | bytes) -> None:
        """The result; a short error takes its place while too much is unread."""
        if not self._write(result_message(request_id, result)):
            text = "the result was dropped: the client did not read its earlier results"
            self._write_error(error_message(request_id, ErrorData(code=INTERNAL_ERROR, message=text)))

    def error(self, request_id: Bytes, error: ErrorData) -> None:
        """The error."""
        self._write_error(error_message(request_id, error))

    def cancelled(self, request_id: Bytes) -> None:
        """A request that was given up has no answer."""

    def refuse(self, error: ErrorData) -> None:
        """The message is no request that can be answered under its id."""
        self._write_error(error_message(None, error))

    def refuse_part(self, refusal: bytes) -> None:
        """A part of a batch is no message."""
        self._write_error(refusal)

    def _write(self, message: bytes) -> bool:
        if self._writer.write(one_line(message) + b"\n"):
            return True
        self._dropped += 1
        if self._dropped == 1:
            log.warning("the client does not read: %d bytes are unread, and more is dropped", self._writer.unread)
        return False

    def _write_error(self, message: bytes) -> None:
        self._writer.write(one_line(message) + b"\n", extra=ERROR_BYTES)

    def __repr__(self) -> str:
        return f"<PipeClient unread={self._writer.unread} dropped={self._dropped}>"


class PipeServer:
    """Serves the client on the pipe: a task for each of its messages, in one exchange."""

    def __init__(self, exchange: Exchange, client: PipeClient, tasks: anyio.abc.TaskGroup, longest: int) -> None:
        self._exchange = exchange
        self._client = client
        self._tasks = tasks
        self._longest = longest

    @classmethod
    def of(
        cls,
        server: McpServer,
        tasks: anyio.abc.TaskGroup,
        writer: LineWriter,
        longest: int,
        roots: RootFolder | None = None,
    ) -> PipeServer:
        """A pipe whose client nothing is known of."""
        client = PipeClient(writer)
        return cls(Exchange(server, client, owner=secrets.token_bytes(16), roots=roots), client, tasks, longest)

    async def serve(self, lines: AsyncIterable[bytes]) -> None:
        """Take messages until the client closes the pipe; what is in line is written."""
        async for line in lines:
            await self.take(line)
        self._exchange.close("the client left")

    async def take(self, line: bytes, *, sent_before: bool = False) -> None:
        """Take the messages of a line; ``sent_before`` if another hub got them and did not answer."""
        for message in await self._messages(line):
            self._tasks.start_soon(partial(self._exchange.handle, message, self._client, sent_before=sent_before))
        # The tasks begin in this turn, in their order: so the handshake is done before the next message is taken.
        await anyio.lowlevel.checkpoint()

    async def refuse_long(self, request: str | int | None) -> None:
        """Refuse a line over the bound, under its id if that was found."""
        hint = "`holdfast.limits.messageBytes` sets the limit"
        text = f"a message of more than {self._longest} bytes is refused; {hint}"
        self._client.error(dumps(request), ErrorData(code=INVALID_REQUEST, message=text))

    async def _messages(self, line: bytes) -> list[Message]:
        """The messages of a line: one, or those of a batch. What is none is refused."""
        try:
            return [await read_message(line)]
        except MCPError as exc:
            refusal = exc
        try:
            if not is_batch(line, self._exchange.version):
                raise refusal
            parts = await read_batch(line)
        except MCPError as exc:
            self._client.refuse(exc.error)
            return []
        for part in parts:
            if isinstance(part, bytes):
                self._client.refuse_part(part)
        return [part for part in parts if not isinstance(part, bytes)]


async def serve_stdio(
    hub: Hub,
    *,
    broker: Broker | None = None,
    tools: ToolsMode | None = None,
    profile: str | None = None,
    folder: str | None = None,
    folders: ClientFolders | None = None,
    ended: anyio.Event | None = None,
) -> None:
    """Serve one client over stdin and stdout until it leaves, or until ``ended``.

    ``tools``, ``profile`` and ``folder`` are what an address says over HTTP. A client that has no
    folder may choose one of ``folders`` by its roots.

    The hub must be open. Pass a broker that was created before the hub was entered, so that servers learn from
    the start that a client can answer requests; it can also drain the calls before the end.
    """
    broker = broker or Broker(hub)
    mode = tools or hub.config.settings.tools

    def server_of(folder: str | None) -> McpServer:
        return McpServer(broker, View(hub, EndpointAddress(None, mode, profile, folder)))

    mcp_server = server_of(folder)
    roots = RootFolder(folders, server_of) if folders is not None and folder is None else None
    longest = hub.config.settings.limits.message_bytes
    # A child process that inherits stdin reads an empty file; what a library or a child prints goes to stderr.
    nothing = os.open(os.devnull, os.O_RDONLY)
    with _taken(0, nothing) as stdin, _taken(1, 2) as stdout:
        os.close(nothing)
        reader, writer = StdinReader(stdin), StdoutWriter(stdout)
        async with anyio.create_task_group() as tasks:
            pipe = PipeServer.of(mcp_server, tasks, writer, longest, roots)
            await tasks.start(broker.run)
            tasks.start_soon(_when, writer.broken, tasks.cancel_scope.cancel)
            if ended is not None:
                tasks.start_soon(_when, ended, reader.end)
            await pipe.serve(MessageLines(reader.read, longest, pipe.refuse_long))
            mcp_server.close()
            tasks.cancel_scope.cancel()
        reader.close()
        if not await writer.close():
            log.warning("%d bytes of answers were not read by the client", writer.unread)


async def _when(event: anyio.Event, act: Callable[[], None]) -> None:
    await event.wait()
    act()


@contextmanager
def _taken(fd: int, instead: int) -> Iterator[int]:
    """Take stdin or stdout for the protocol alone; its number means another descriptor meanwhile.

    What it was is not closed: a thread may still be stuck in a read or a write of it.
    """
    own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.dup2(instead, fd)
    try:
        yield own
    finally:
        os.dup2(own, fd)
