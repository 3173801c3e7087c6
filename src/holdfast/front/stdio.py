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
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Self, TypeAlias

import anyio
import anyio.abc
import anyio.to_thread
from mcp import MCPError
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorData,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from holdfast.access import LOCAL
from holdfast.endpoint import (
    ASK_SECONDS,
    Broker,
    Client,
    ClientRequest,
    McpServer,
    Message,
    View,
    cancelled_id,
    error_message,
    error_of,
    meta_of,
    notice_message,
    params_of,
    read_message,
    request_message,
    result_message,
    settle,
    small_values,
)
from holdfast.front.batches import is_batch, read_batch
from holdfast.hub import Hub
from holdfast.wire import Bytes, RawObject, dumps, one_line, text_of

__all__ = ["PipeServer", "Refuse", "StdinLines", "StdoutWriter", "serve_stdio"]

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

BLANK_BYTES = 1024
"""A longer line is no blank one that a client writes between messages; it gets an answer."""

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

    async def __anext__(self) -> bytes:
        """Return the next line within the bound."""
        while True:
            line = await anyio.to_thread.run_sync(self._next)
            if not line:
                raise StopAsyncIteration
            if len(line) <= self._longest or line.endswith(b"\n"):
                return line
            head, line = line[:CHUNK], line[-CHUNK:]
            tail = await anyio.to_thread.run_sync(self._skip, line)
            await self._refuse(_id_in(head, tail))

    def _next(self) -> bytes:
        """The next line that is not blank; blank ones are left out here, where they hold up only this thread."""
        while True:
            line = self._file.readline(self._longest + 1)
            if len(line) > BLANK_BYTES or not line or line.strip():
                return line

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


class PipeServer:
    """One client on a pipe. A ``Channel``.

    Its first request decides the era of the whole connection. ``server/discover`` is only a question: a client that
    got no answer in time (the Vercel AI SDK waits 1 s, while the hub still starts) goes on with ``initialize``.
    """

    def __init__(self, server: McpServer, tasks: anyio.abc.TaskGroup, writer: StdoutWriter, longest: int) -> None:
        self._server = server
        self._tasks = tasks
        self._writer = writer
        self._longest = longest
        self._modern: bool | None = None
        self._client: Client | None = None
        self._version = LATEST_HANDSHAKE_VERSION
        self._attached = False
        self._calls: dict[str | int, anyio.CancelScope] = {}
        self._asked = 0
        self._questions: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._dropped = 0

    # What goes out.

    def answer(self, request_id: Bytes | None, message: bytes) -> None:
        """Write an answer; a short error takes its place while too much is unread."""
        if not self._written(message):
            text = "the result was dropped: the client did not read its earlier results"
            self._write_error(request_id, ErrorData(code=INTERNAL_ERROR, message=text))

    def tell(self, method: str, params: Mapping[str, Any] | None, *, everywhere: bool = False) -> None:
        """Send a notification; it is dropped while too much is unread."""
        self._written(notice_message(method, params))

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the client's answer to a request; raise ``MCPError`` if there is none."""
        self._asked += 1
        number = self._asked
        if not self._written(request_message(number, method, params)):
            raise MCPError(INTERNAL_ERROR, "the client does not read its messages")
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        try:
            with anyio.fail_after(ASK_SECONDS):
                return await answer
        except TimeoutError:
            raise MCPError(INVALID_REQUEST, f"the client did not answer {method} in time") from None
        except asyncio.CancelledError:
            self.tell("notifications/cancelled", {"requestId": number, "reason": "the answer is no longer needed"})
            raise
        finally:
            del self._questions[number]

    async def refuse_long(self, request: str | int | None) -> None:
        """Refuse a line over the bound."""
        hint = "`holdfast.limits.messageBytes` sets the limit"
        text = f"a message of more than {self._longest} bytes is refused; {hint}"
        self._write_error(dumps(request), ErrorData(code=INVALID_REQUEST, message=text))

    def _written(self, message: bytes) -> bool:
        if self._writer.write(one_line(message) + b"\n"):
            return True
        self._dropped += 1
        if self._dropped == 1:
            log.warning("the client does not read: %d bytes are unread, and more is dropped", self._writer.unread)
        return False

    def _write_error(self, request_id: Bytes | None, error: ErrorData) -> None:
        self._writer.write(error_message(request_id, error) + b"\n", extra=ERROR_BYTES)

    # What comes in.

    async def serve(self, lines: StdinLines) -> None:
        """Take messages until the client closes the pipe; what is in line is written."""
        async for line in lines:
            if not line.strip():
                continue
            try:
                self._take(await read_message(line))
            except MCPError as exc:
                if is_batch(line, self._version):
                    self._take_batch(line)
                else:
                    self._write_error(None, exc.error)
        self._server.close()
        for scope in list(self._calls.values()):
            scope.cancel()
        if self._client is not None and self._attached:
            self._server.detach(self._client)

    def _take_batch(self, line: bytes) -> None:
        """Take the messages of a batch; each is answered by itself."""
        try:
            batch = read_batch(line)
        except MCPError as exc:
            self._write_error(None, exc.error)
            return
        for _, message in batch:
            if isinstance(message, bytes):
                self._writer.write(message + b"\n", extra=ERROR_BYTES)
            else:
                self._take(message)

    def _take(self, message: Message) -> None:
        if message.method is None:
            self._answered(message)
        elif message.id is None:
            self._notified(message)
        elif message.key in self._calls:
            log.warning("the client sent a request with an id that is in flight already: %r", message.key)
            text = f"the id {json.dumps(message.key)} is in flight already"
            self._write_error(None, ErrorData(code=INVALID_REQUEST, message=text))
        elif message.method == "initialize" and self._modern is not True:
            self._initialize(message)
        else:
            assert message.key is not None  # noqa: S101 - a request has an id
            modern = _has_envelope(message) if self._modern is None else self._modern
            if message.method != "server/discover":
                self._modern = modern
            scope = self._calls[message.key] = anyio.CancelScope()
            self._tasks.start_soon(self._request, message, scope, modern)

    def _answered(self, message: Message) -> None:
        question = self._questions.get(message.key) if isinstance(message.key, int) else None
        if question is not None and not question.done():
            settle(question, message)

    def _notified(self, message: Message) -> None:
        if message.method == "notifications/cancelled":
            wanted = cancelled_id(message)
            if wanted is not None and (scope := self._calls.get(wanted)) is not None:
                scope.cancel()
            return
        self._attach()
        if self._client is not None and not self._modern:
            self._tasks.start_soon(self._notice, self._client, message)

    async def _notice(self, client: Client, message: Message) -> None:
        try:
            await self._server.noticed(client, self._version, message)
        except (MCPError, ValueError) as exc:
            log.debug("a notification of the client was dropped: %s", type(exc).__name__)

    def _initialize(self, message: Message) -> None:
        assert message.id is not None  # noqa: S101 - it is a request
        self._modern = False
        try:
            params = small_values(message)
            result, self._version, capabilities = self._server.initialize(params)
        except Exception as exc:  # noqa: BLE001 - every request gets an answer
            self.answer(message.id, error_message(message.id, error_of(exc)))
            return
        if self._client is None:
            self._client = self._server.new_client(channel=self, capabilities=capabilities)
        else:
            self._client.capabilities = capabilities
        self.answer(message.id, result_message(message.id, result))

    def _attach(self) -> None:
        if self._client is not None and not self._attached:
            self._attached = True
            self._server.attach(self._client)

    async def _request(self, message: Message, scope: anyio.CancelScope, modern: bool) -> None:
        assert message.id is not None  # noqa: S101 - it is a request
        assert message.key is not None  # noqa: S101 - as above
        try:
            with scope:
                try:
                    answer = result_message(message.id, await self._result(message, modern=modern))
                except Exception as exc:  # noqa: BLE001 - every request gets an answer
                    answer = error_message(message.id, error_of(exc))
                self.answer(message.id, answer)
        finally:
            self._calls.pop(message.key, None)

    async def _result(self, message: Message, *, modern: bool) -> RawObject:
        if not modern:
            if _has_envelope(message):
                raise MCPError(
                    INVALID_REQUEST,
                    "this connection serves the handshake protocol era; "
                    "requests carrying the 2026-07-28 envelope are not accepted on it",
                )
            if self._client is None and message.method != "ping":
                raise MCPError(INVALID_PARAMS, "Invalid request parameters", "")
            self._attach()
            client = self._client or self._server.new_client(channel=self, capabilities={})
            return await self._server.answer(_request_of(message, client, self, self._version))
        client, version = self._modern_client(message)
        self._server.attach(client)
        try:
            return await self._server.answer(_request_of(message, client, self, version))
        finally:
            self._server.detach(client)

    def _modern_client(self, message: Message) -> tuple[Client, str]:
        params = params_of(message)
        if message.method == "initialize":
            asked = text_of(params.get("protocolVersion"))
            data: dict[str, Any] = {"supported": list(MODERN_PROTOCOL_VERSIONS)}
            raise MCPError(
                UNSUPPORTED_PROTOCOL_VERSION,
                "connection is serving the 2026-07-28 protocol; the initialize handshake is not accepted",
                data | ({"requested": asked} if asked is not None else {}),
            )
        meta = meta_of(message)
        route = classify_inbound_request(
            {"method": message.method, "params": {"_meta": meta} if "_meta" in params else {}}
        )
        if isinstance(route, InboundLadderRejection):
            raise MCPError(route.code, route.message, route.data)
        can = route.client_capabilities
        client = self._server.new_client(channel=self, capabilities=can if isinstance(can, dict) else {}, meta=meta)
        return client, route.protocol_version


def _request_of(message: Message, client: Client, channel: PipeServer, version: str) -> ClientRequest:
    return ClientRequest(message, version=version, client=client, channel=channel, headers={}, principal=LOCAL)


def _has_envelope(message: Message) -> bool:
    """Whether a request says its protocol version itself, as the modern era has it."""
    try:
        return message.method != "initialize" and PROTOCOL_VERSION_META_KEY in meta_of(message)
    except MCPError:
        return False


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
        async with anyio.create_task_group() as tasks:
            pipe = PipeServer(mcp_server, tasks, writer, longest)
            await tasks.start(broker.run)
            broker.add_subscriptions(mcp_server.subscriptions)
            tasks.start_soon(_cancel_when, writer.broken, tasks.cancel_scope)
            await pipe.serve(StdinLines(stdin, longest, pipe.refuse_long))
            tasks.cancel_scope.cancel()
        if not await writer.close():
            log.warning("%d bytes of answers were not read by the client", writer.unread)


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
