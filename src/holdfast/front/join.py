"""The clients that joined this hub: each came by ``serve --stdio``, and is served like a pipe of its own.

Theory of operation. The process that a client started (``serve.joiner``) connects to a private Unix socket, and its
lines are those of its client. Three lines come before them:

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
import logging
import os
import secrets
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import anyio
import anyio.abc
from mcp import MCPError
from pydantic import ValidationError

from holdfast.access import LOCAL
from holdfast.config import ToolsMode
from holdfast.core import Kind, NameKey
from holdfast.endpoint import (
    LIST_METHODS,
    TOOLS_MODES,
    Client,
    ClientFolders,
    EndpointAddress,
    Exchange,
    McpServer,
    initialize,
    read_message,
)
from holdfast.front.app import Front
from holdfast.front.http import root_folder
from holdfast.front.stdio import CHUNK, FLUSH_SECONDS, UNREAD_BYTES, MessageLines, PipeClient, PipeServer
from holdfast.wire import dumps, loads, unix_peer_uid

__all__ = ["JoinServer", "JoinedClient", "SharedEnvironment"]

log = logging.getLogger("holdfast.front")

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
        self._front = front
        self._place = place
        self._listener: socket.socket | None = None
        self._environment = environment
        self._folders = folders
        self._answer = {"join": PROTOCOL, "version": version, "pid": os.getpid(), "background": background}
        self._changed = changed
        self._open: dict[_Connection, None] = {}
        """In the order in which they came."""
        self._gone = anyio.Event()
        self._accepting = anyio.CancelScope()

    async def run(self) -> None:
        """Listen and serve, until cancelled."""
        listener = self._listener = self._place.listen()
        if listener is None:
            return
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with anyio.create_task_group() as tasks:
                with self._accepting:
                    while True:
                        connection, _ = await loop.sock_accept(listener)
                        tasks.start_soon(self._serve, connection)
        finally:
            self._stop_listening()

    @property
    def clients(self) -> list[JoinedClient]:
        """Those that are connected now, in the order in which they came."""
        return [one.shown for one in self._open]

    async def leave(self, within: float) -> bool:
        """Take no more clients, and let those that are here go to the next hub; False if some stayed."""
        self._accepting.cancel()
        self._stop_listening()
        with anyio.move_on_after(within):
            for one in list(self._open):
                one.tell_leaving()
            while self._open:
                self._gone = anyio.Event()
                await self._gone.wait()
        return not self._open

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._place.close()
            self._listener.close()
            self._listener = None

    async def _serve(self, connection: socket.socket) -> None:
        if unix_peer_uid(connection) != os.geteuid() or len(self._open) >= MOST_CLIENTS:
            log.warning("a process that wanted to join was refused: it is another user's, or there are too many")
            connection.close()
            return
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=CHUNK)
        joined = _Connection(self._front, reader, writer, self._changed)
        try:
            await joined.serve(self._answer, self._environment, self._folders, self._open)
        except Exception as exc:  # noqa: BLE001 - what one process does must end no other one, and not the hub
            log.warning("a process that joined was disconnected: %s", _cause(exc))
        finally:
            self._open.pop(joined, None)
            self._gone.set()
            self._changed()
            writer.transport.abort()

    def __repr__(self) -> str:
        return f"<JoinServer of {len(self._open)} clients>"


class _Connection:
    """One client that joined."""

    def __init__(
        self,
        front: Front,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        changed: Callable[[], None],
    ) -> None:
        self._front = front
        self._writer = SocketWriter(writer, self._look)
        self._changed = changed
        self._told: JoinedClient | None = None
        self._longest = front.hub.config.settings.limits.message_bytes
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
            self._changed()

    def tell_leaving(self) -> None:
        """The hub leaves."""
        self._writer.write(LEAVING, extra=len(LEAVING))

    async def serve(
        self,
        answer: Mapping[str, Any],
        environment: SharedEnvironment,
        folders: ClientFolders,
        opened: dict[_Connection, None],
    ) -> None:
        """Serve it until it leaves."""
        with anyio.fail_after(HELLO_SECONDS):
            self._hello = _own_line(await anext(self._lines, b""))
            named, working = str(self._hello.get("folder") or ""), str(self._hello.get("cwd") or "")
            self._folder = folders.of(named, working) or ""
            address = _address(self._front, self._hello, self._folder)
            if not isinstance(address, EndpointAddress):
                self._tell({"error": address})
                await self._writer.close()
                return
            self._tell({**answer, "wants": sorted(await environment.wanted(self._folder))})
            begun = _own_line(await anext(self._lines, b""))
        opened[self] = None
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
        endpoint = self._front.endpoint_of(address)
        assert endpoint is not None  # noqa: S101 - it names no server
        client = PipeClient(self._writer)
        exchange = self._exchange = Exchange(
            endpoint.server,
            client,
            owner=(owner := secrets.token_bytes(16)),
            first_question=int(begun["question"]),
            roots=root_folder(self._front, address, LOCAL, variables),
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
            await self._writer.close()
        finally:
            exchange.close("the client left")
            self._front.hub.registry.clients.release(owner)

    def _name(self) -> str:
        """How a finding names the client before its handshake."""
        shown = self.shown
        return f"the client in {shown.folder}" if shown.folder else f"the client of process {shown.pid}"

    def _tell(self, message: Mapping[str, Any]) -> None:
        self._writer.write(dumps({"holdfast": message}) + b"\n")

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
    settings = front.hub.config.settings
    if hello.get("join") != PROTOCOL:
        return "this client speaks another version of Holdfast's own protocol: restart it, or the hub"
    tools: ToolsMode | None = next((one for one in TOOLS_MODES if one == hello.get("tools", settings.tools)), None)
    if tools is None:
        return f"--tools has no value `{hello.get('tools')}`: write {' or '.join(TOOLS_MODES)}"
    profile = hello.get("profile")
    known = [name for name, _ in settings.profiles]
    if profile is not None and profile not in known:
        return f"there is no profile `{profile}`; known: {', '.join(known) or 'none'}"
    if hello.get("folder") and not folder:
        return f"--folder names `{hello['folder']}`, which is no folder"
    return EndpointAddress(None, tools, profile, folder or None)


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
