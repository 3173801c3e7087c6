"""The hub as an MCP server over lines: the shell around the exchange for clients that start their servers.

**One client on stdin and stdout** (``serve_stdio``). What can happen. A line is longer than a message may be: it is
never held whole, and is refused under its id. The client does not read (HUB-17): what waits for it is bounded, and a
thread of its own writes it, so that a full pipe delays neither the hub nor its shutdown. The client closes its end: all
of its calls are cancelled, at their servers too. A library or a child process prints: that goes to stderr, as stdout
has the protocol alone.

What must hold: a line is a whole message; messages of a batch are answered each by itself; every request gets an
answer, though it may be a short error in place of a result that the client had no room for.

**The clients that joined this hub** (``JoinServer``): each came by ``serve --stdio``, and is served like a pipe of its
own. The process that a client started (``serve.joiner``) connects to a private Unix socket, and its lines are those of
its client. Three lines come before them:

1. It says hello: ``{"holdfast": {"join": 1, "version", "pid", "cwd", "folder", "tools", "profile"}}``.
2. The hub answers with its own version, and with the names of the variables that its configuration uses; or with an
   ``error``, which the client is told.
3. It says what it has: the values of those variables, and what another hub before this one knew of the client: its
   handshake, its log level, its subscriptions, and how many of the lines that follow were sent before.

What must hold. The kernel says who connects, and only the hub's own user may. A process that is killed, or that says
what was not agreed, ends its own connection: its faults are caught where its task begins (``JoinServer._serve``). A
request that was sent before is never sent to a server again unless its tool allows that (LIFE-16): ``Exchange.handle``
gets the mark. When the hub leaves it says so (``{"holdfast": {"leaving": true}}``), answers what it has, and the
process takes its client to the next hub.
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
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, ErrorData
from pydantic import ValidationError

from holdfast.access import LOCAL, Admission, ConnectionLimits
from holdfast.config import ToolsMode
from holdfast.core import Kind, NameKey
from holdfast.endpoint import (
    LIST_METHODS,
    Broker,
    Client,
    ClientFolders,
    EndpointAddress,
    Exchange,
    McpServer,
    Message,
    RootFolder,
    View,
    error_message,
    initialize,
    is_batch,
    notice_message,
    read_batch,
    read_message,
    result_message,
)
from holdfast.front.line_peek import Lines
from holdfast.front.listener import Acceptor
from holdfast.hub import Hub
from holdfast.wire import Bytes, RawObject, dumps, loads, one_line

if TYPE_CHECKING:
    from holdfast.front.app import Front

__all__ = [
    "JoinServer",
    "JoinedClient",
    "MessageLines",
    "PipeClient",
    "PipeServer",
    "Refuse",
    "SharedEnvironment",
    "SocketWriter",
    "StdoutWriter",
    "serve_stdio",
]

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


class SocketWriter:
    """Writes lines to a socket; what its reader leaves unread is bounded."""

    def __init__(self, writer: asyncio.StreamWriter, wrote: Callable[[], None], *, limit: int = UNREAD_BYTES) -> None:
        """``wrote`` is called after each line."""
        self._writer = writer
        self._wrote = wrote
        self._limit = limit

    @property
    def unread(self) -> int:
        """Bytes that the client has not read, as far as the socket shows it."""
        return self._writer.transport.get_write_buffer_size()

    def write(self, line: bytes, *, extra: int = 0) -> bool:
        """Queue a line; False if too much is unread. ``extra`` bytes are allowed over the limit."""
        unread = self.unread
        if unread and unread + len(line) > self._limit + extra:
            return False
        self._writer.write(line)
        self._wrote()
        return True

    async def close(self) -> None:
        """Wait until all is written, as long as the client goes on reading."""
        before = -1
        while (left := self.unread) and left != before and not self._writer.is_closing():
            before = left
            with anyio.move_on_after(FLUSH_SECONDS):
                await self._writer.drain()


class PipeClient:
    """The client on the pipe: all that goes out to it. The ``MessageReply`` of each of its messages, and its outlet.

    An answer that the client does not read is replaced by a short error, so that each request still has its answer.
    Notifications are dropped meanwhile.
    """

    is_open = True

    def __init__(self, writer: StdoutWriter | SocketWriter) -> None:
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
            self.write_error(error_message(request_id, ErrorData(code=INTERNAL_ERROR, message=text)))

    def error(self, request_id: Bytes | None, error: ErrorData) -> None:
        """The error."""
        self.write_error(error_message(request_id, error))

    def cancelled(self, request_id: Bytes) -> None:
        """A request that was given up has no answer."""

    def _write(self, message: bytes) -> bool:
        if self._writer.write(one_line(message) + b"\n"):
            return True
        self._dropped += 1
        if self._dropped == 1:
            log.warning("the client does not read: %d bytes are unread, and more is dropped", self._writer.unread)
        return False

    def write_error(self, message: bytes) -> None:
        """A refusal, also while too much is unread."""
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
        writer: StdoutWriter | SocketWriter,
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
            if not is_batch(line, self._exchange.version):
                return [await read_message(line)]
            parts = await read_batch(line)
        except MCPError as exc:
            self._client.error(None, exc.error)
            return []
        for part in parts:
            if isinstance(part, bytes):
                self._client.write_error(part)
        return [part for part in parts if not isinstance(part, bytes)]


async def serve_stdio(
    hub: Hub,
    *,
    broker: Broker,
    tools: ToolsMode | None = None,
    profile: str | None = None,
    folder: str | None = None,
    folders: ClientFolders | None = None,
    ended: anyio.Event | None = None,
) -> None:
    """Serve one client over stdin and stdout until it leaves, or until ``ended``.

    ``tools``, ``profile`` and ``folder`` are what an address says over HTTP. A client that has no
    folder may choose one of ``folders`` by its roots.

    The hub must be open. The broker was created before the hub was entered, so that servers learn from the start
    that a client can answer requests; it can also drain the calls before the end.
    """
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


# The clients that joined this hub.

PROTOCOL: Final = 1

HELLO_SECONDS: Final = 10.0
"""How long a process that connects may take for its hello."""

MOST_CLIENTS: Final = 500

LARGEST_PID: Final = 1 << 31
LONGEST_FOLDER: Final = 4_096
"""Characters. What a hello says is shown to people, and written as JSON."""

LEAVING: Final = b'{"holdfast":{"leaving":true}}\n'


class JoinPlace(Protocol):
    """Where clients join."""

    def listen(self) -> socket.socket | None:
        """Listen from now on; None if that is not possible."""

    def close(self) -> None:
        """Take the name away, unless another hub has it."""


class SharedEnvironment(Protocol):
    """The variables of the hub, which its clients may complete."""

    async def wanted(self, folder: str) -> Collection[str]:
        """The names that a client that works there is asked for."""

    async def offer(self, client: str, variables: Mapping[str, str]) -> None:
        """What a client has of them."""


@dataclass(frozen=True, kw_only=True)
class JoinedClient:
    """A client that is connected now."""

    program: str
    """What it calls itself; empty before its handshake."""
    folder: str
    """Where it works; empty if it did not say."""
    pid: int
    """The process that it started."""


class JoinServer:
    """Serves all that connect to one socket."""

    def __init__(
        self,
        front: Front,
        place: JoinPlace,
        environment: SharedEnvironment,
        folders: ClientFolders,
        *,
        version: str,
        background: bool,
        changed: Callable[[], None],
    ) -> None:
        """``changed`` is called when a client came or left, or when more is known of one."""
        self.front = front
        self._place = place
        self._acceptor: Acceptor | None = None
        self.environment = environment
        self.folders = folders
        self.answer = {"join": PROTOCOL, "version": version, "pid": os.getpid(), "background": background}
        self.changed = changed
        self.open: dict[_Connection, None] = {}
        """Those that said hello, in the order in which they came."""
        self._gone = anyio.Event()

    async def run(self) -> None:
        """Listen and serve, until cancelled."""
        if (listener := self._place.listen()) is None:
            return
        async with anyio.create_task_group() as tasks:
            self._acceptor = Acceptor(listener, partial(self._arrived, tasks), limits=ConnectionLimits())
            try:
                await anyio.sleep_forever()
            finally:
                self._stop_listening()
                with anyio.CancelScope(shield=True):  # no connection opens when the tasks have ended
                    await self._acceptor.wait_closed()

    @property
    def clients(self) -> list[JoinedClient]:
        """Those that are connected now, in the order in which they came."""
        return [one.shown for one in self.open]

    async def leave(self, within: float) -> bool:
        """Take no more clients, and let those that are here go to the next hub; False if some stayed."""
        self._stop_listening()
        with anyio.move_on_after(within):
            for one in list(self.open):
                one.writer.write(LEAVING, extra=len(LEAVING))
            while self.open:
                self._gone = anyio.Event()
                await self._gone.wait()
        return not self.open

    def _stop_listening(self) -> None:
        if self._acceptor is not None and not self._acceptor.is_closed:
            self._place.close()
            self._acceptor.close()

    def _arrived(self, tasks: anyio.abc.TaskGroup, admission: Admission) -> asyncio.Protocol:
        """The protocol of a connection of this user, which a task serves as soon as it is open."""
        return asyncio.StreamReaderProtocol(
            asyncio.StreamReader(limit=CHUNK), lambda *streams: tasks.start_soon(self._serve, admission, *streams)
        )

    async def _serve(self, admission: Admission, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        joined = _Connection(self, admission, reader, writer)
        try:
            if len(self.open) < MOST_CLIENTS:
                await joined.serve()
            else:
                log.warning("a process that wanted to join was refused: %d clients are here", MOST_CLIENTS)
        except Exception as exc:  # noqa: BLE001 - what one process does must end no other one, and not the hub
            log.warning("a process that joined was disconnected: %s", _cause(exc))
        finally:
            self.open.pop(joined, None)
            self._gone.set()
            self.changed()
            admission.end()
            writer.transport.abort()

    def __repr__(self) -> str:
        return f"<JoinServer of {len(self.open)} clients>"


class _Connection:
    """One client that joined."""

    def __init__(
        self, server: JoinServer, admission: Admission, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._admission = admission
        self.writer = SocketWriter(writer, self._look)
        self._told: JoinedClient | None = None
        self._longest = server.front.hub.config.settings.limits.message_bytes
        self._lines = MessageLines(partial(reader.read, CHUNK), self._longest, self._refuse_early)
        self._exchange: Exchange | None = None
        self._hello: Mapping[str, Any] = {}
        self._folder = ""
        """Where the client works; empty if it does not say, or if that is no project."""

    @property
    def shown(self) -> JoinedClient:
        """What people are shown of it."""
        exchange = self._exchange
        program = exchange.program if exchange is not None else ""
        by_roots = exchange.roots.folder if exchange is not None and exchange.roots is not None else ""
        folder = self._folder or by_roots or str(self._hello.get("cwd") or "")
        pid = self._hello.get("pid")
        process = pid if isinstance(pid, int) and 0 < pid <= LARGEST_PID else 0
        return JoinedClient(program=program, folder=folder[:LONGEST_FOLDER], pid=process)

    def _look(self) -> None:
        """A line went out to the client: with an answer to it, what is shown of it may have changed."""
        if self._exchange is not None and self._told != (shown := self.shown):
            self._told = shown
            self._server.changed()

    async def serve(self) -> None:
        """Serve it until it leaves."""
        environment, folders = self._server.environment, self._server.folders
        with anyio.fail_after(HELLO_SECONDS):
            self._hello = _own_line(await anext(self._lines, b""))
            named, working = str(self._hello.get("folder") or ""), str(self._hello.get("cwd") or "")
            self._folder = folders.of(named, working) or ""
            address = _address(self._server.front, self._hello, self._folder)
            if not isinstance(address, EndpointAddress):
                self._tell({"error": address})
                await self.writer.close()
                return
            self._tell({**self._server.answer, "wants": sorted(await environment.wanted(self._folder))})
            begun = _own_line(await anext(self._lines, b""))
        self._server.open[self] = None
        self._admission.accepted(LOCAL.name, None)  # it does not give way any more to those that come
        variables = {str(name): str(value) for name, value in (begun.get("environment") or {}).items()}
        await environment.offer(self._name(), variables)
        entered = bool(self._folder) and await folders.enter(self._folder, variables)
        if self._folder and not entered:
            log.warning("clients work in too many folders: the servers of %s do not run", self._folder)
        try:
            await self._converse(address, begun, variables)
        finally:
            if entered:
                folders.leave(self._folder)

    async def _converse(self, address: EndpointAddress, begun: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        """Serve the client's own messages."""
        front = self._server.front
        endpoint = front.endpoint_of(address)
        assert endpoint is not None  # noqa: S101 - it names no server
        client = PipeClient(self.writer)
        exchange = self._exchange = Exchange(
            endpoint.server,
            client,
            owner=(owner := secrets.token_bytes(16)),
            first_question=int(begun["question"]),
            roots=front.root_folder(address, LOCAL, variables),
        )
        try:
            async with anyio.create_task_group() as tasks:
                pipe = PipeServer(exchange, client, tasks, self._longest)
                self._lines.refuse = pipe.refuse_long
                if begun.get("handshake"):
                    await self._resume(endpoint.server, exchange, begun, tasks)
                # The first lines are those that another hub got before and did not answer.
                for _ in range(int(begun["sent"])):
                    if not (line := await anext(self._lines, b"")):
                        break  # it left: its count may be any number
                    await pipe.take(line, sent_before=True)
                await pipe.serve(self._lines)
                tasks.cancel_scope.cancel()
            await self.writer.close()
        finally:
            exchange.close("the client left")
            front.hub.registry.clients.release(owner)

    def _name(self) -> str:
        """How a finding names the client before its handshake."""
        shown = self.shown
        return f"the client in {shown.folder}" if shown.folder else f"the client of process {shown.pid}"

    def _tell(self, message: Mapping[str, Any]) -> None:
        self.writer.write(dumps({"holdfast": message}) + b"\n")

    async def _refuse_early(self, _: str | int | None) -> None:
        raise ValueError("a hello is not that long")

    async def _resume(
        self, server: McpServer, exchange: Exchange, begun: Mapping[str, Any], tasks: anyio.abc.TaskGroup
    ) -> None:
        """The client has shaken hands with a hub before: it goes on as it was."""
        message = await read_message(str(begun["handshake"]).encode())
        try:
            settled = initialize(server.view.seen_by(exchange.principal), message.values())
        except (MCPError, ValidationError) as exc:
            log.warning("the handshake of a client that joined again cannot be read: %s", type(exc).__name__)
            return
        client = exchange.begin(settled.version, settled.capabilities, program=settled.program, rebuilt=True)
        if begun.get("level"):
            server.broker.servers.set_log_level(client, str(begun["level"]))
        tasks.start_soon(_catch_up, server, client, begun)


async def _catch_up(server: McpServer, client: Client, begun: Mapping[str, Any]) -> None:
    """Subscribe again, and tell the client that what it knows may have changed while it had no hub."""
    servers, view = server.broker.servers, client.seen
    await servers.wait_for_first_listing(view)
    found = [view.find(Kind.RESOURCE, str(uri)) for uri in begun.get("subscribed") or ()]
    servers.follow_subscriptions(client, [(one.server, one.original) for one in found if isinstance(one, NameKey)])
    kinds = {LIST_METHODS[one][0].value for one in begun.get("listed") or () if one in LIST_METHODS}
    server.broker.announcer.missed(client, kinds)


def _cause(exc: Exception) -> str:
    """The kind of a fault: of those that came at the same time the first one."""
    while isinstance(exc, ExceptionGroup):
        exc = exc.exceptions[0]
    return type(exc).__name__


def _own_line(line: bytes) -> Mapping[str, Any]:
    """What a line of the process itself says; raises ``EOFError``, ``TypeError`` or ``KeyError``."""
    if not line:
        raise EOFError
    said = loads(line)
    if not isinstance(said, dict) or not isinstance(said["holdfast"], dict):
        raise TypeError("no hello")
    return said["holdfast"]


def _address(front: Front, hello: Mapping[str, Any], folder: str) -> EndpointAddress | str:
    """The endpoint that a client asks for, or what is wrong with it."""
    if hello.get("join") != PROTOCOL:
        return "this client speaks another version of Holdfast's own protocol: restart it, or the hub"
    if hello.get("folder") and not folder:
        return f"--folder names `{hello['folder']}`, which is no folder"
    return EndpointAddress.asked(front.hub.config.settings, None, {**hello, "folder": folder})
