"""A scripted server over streamable HTTP, in the test's own event loop; its faults can be switched while it runs.

``StdioServer`` is one as a real child process; its tools and its faults can be changed while it runs.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from holdfast.testing import script
from holdfast.testing.script import Fault

if TYPE_CHECKING:
    from holdfast.testing.script import Era, Message

__all__ = ["Answer", "HttpServer", "StdioServer", "stop_listening"]


async def stop_listening(listener: asyncio.Server) -> None:
    """Accept nothing more, let accepted connections reach their handler, then close.

    The event loop accepts a connection in one turn and makes its transport in the next. A server that is closed in
    between leaves that socket open without an owner, until it is garbage-collected.
    """
    loop = asyncio.get_running_loop()
    for accepting in listener.sockets:
        loop.remove_reader(accepting)
    try:
        await asyncio.sleep(0)  # one turn: after it, every accepted connection has its transport
    finally:
        listener.close()


Answer: TypeAlias = "str | Message | Callable[[Mapping[str, Any]], str | Awaitable[str]]"
"""The result of a tool: a text, or a function of its arguments, which may be async.

An object has the ``text``, in which ``{name}`` stands for an argument, and how the tool is listed: its ``description``
and its ``inputs``, a description of each argument by its name.
"""

_SESSION = "mcp-session-id"
_JSON, _EVENTS = "application/json", "text/event-stream"
_REASONS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Not Allowed",
    503: "Service Unavailable",
}


class _Request(NamedTuple):
    method: str
    headers: Mapping[str, str]
    body: bytes


class HttpServer:
    """``async with HttpServer({"forecast": "sunny"}) as server``, on a free loopback port.

    With ``stream=False`` it offers no stream of notifications, so that only the next request notices its death. A
    server that was stopped has no sessions when it starts again.
    """

    def __init__(self, tools: Mapping[str, Answer], *, era: Era = "legacy", stream: bool = True) -> None:
        self.port = 0
        self.connections = 0
        """The number of accepted connections."""
        self._state = _ScriptedState(tools=dict(tools), era=era, with_stream=stream)
        self.asked = self._state.asked
        """The methods of all received requests, in order: of JSON-RPC, or of HTTP where the body has none."""
        self._serving: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """The URL for clients; it never changes."""
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def definition(self) -> dict[str, object]:
        """The server as an entry of ``mcpServers``."""
        return {"type": "http", "url": self.url}

    async def start(self) -> None:
        """Listen; after a stop, on the same port."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and cut all connections."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        await stop_listening(listener)
        self._state.sessions.clear()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def fail(self, fault: Fault) -> None:
        """Fail in this way from now on."""
        if fault is Fault.REFUSE:
            await self.stop()
        self._state.fault = fault
        self._state.healed.clear()

    def fail_after(self, calls: int, fault: Fault = Fault.REFUSE) -> None:
        """Answer so many more tool calls, then fail: an outage in the middle of an agent's run."""
        self._state.calls_left, self._state.next_fault = calls, fault

    async def arrived(self, method: str, times: int = 1) -> None:
        """Wait until so many requests or notifications of this method have arrived."""
        while self.asked.count(method) < times:
            await self._state.arrival.wait()

    async def heal(self) -> None:
        """End the fault; requests that hang are answered now."""
        if self._state.failing is not None:
            await self._state.failing
        self._state.fault = None
        self._state.healed.set()
        await self.start()

    async def set_tools(self, tools: Mapping[str, Answer]) -> None:
        """Replace the tools, and send ``list_changed`` on every open stream."""
        self._state.tools = dict(tools)
        for stream in tuple(self._state.streams):
            with suppress(ConnectionError):
                await _send_event(stream, script.notice(script.LIST_CHANGED))

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listener is None:
            return writer.transport.abort()  # accepted while the server was being stopped
        self.connections += 1
        task = asyncio.ensure_future(_ScriptedConnection(self._state, self.fail, reader, writer).serve())
        self._serving.add(task)

        def let_go(ended: asyncio.Task[None]) -> None:
            # Not in the task itself: a task that is cancelled before its first step runs no `finally`.
            self._serving.discard(ended)
            self._state.streams.discard(writer)
            writer.transport.abort()

        task.add_done_callback(let_go)
        return None


@dataclass(kw_only=True)
class _ScriptedState:
    """What a scripted HTTP server does now, and what came to it: the server and its connections share it."""

    tools: dict[str, Answer]
    era: Era
    with_stream: bool
    asked: list[str] = field(default_factory=list)
    fault: Fault | None = None
    healed: asyncio.Event = field(default_factory=asyncio.Event)
    arrival: asyncio.Event = field(default_factory=asyncio.Event)
    calls_left: int | None = None
    next_fault: Fault = Fault.REFUSE
    failing: asyncio.Task[None] | None = None
    sessions: set[str] = field(default_factory=set)
    streams: set[asyncio.StreamWriter] = field(default_factory=set)

    async def called(self, message: Message) -> Message:
        """The answer to a call of a tool; that of a function may take its time."""
        answer = self.tools.get(message["params"]["name"])
        if not callable(answer):
            return script.called(message, era=self.era, tools=self.tools)
        try:
            text = answer(message["params"].get("arguments") or {})
            text = await text if inspect.isawaitable(text) else text
        except Exception as exc:  # noqa: BLE001 - a failing tool gives an error result, as on any server
            return script.answered(message, f"{type(exc).__name__}: {exc}", era=self.era, is_error=True)
        return script.answered(message, text, era=self.era)


class _ScriptedConnection:
    """One connection to a scripted server, request after request."""

    def __init__(
        self,
        state: _ScriptedState,
        fail: Callable[[Fault], Coroutine[None, None, None]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """``fail`` lets the whole server fail in a way."""
        self._state = state
        self._fail = fail
        self._reader = reader
        self._writer = writer

    async def serve(self) -> None:
        """Answer until the client or the server leaves."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while not self._writer.is_closing():
                await self._answer(await _read_request(self._reader))

    async def _answer(self, request: _Request) -> None:
        state = self._state
        message: Message = json.loads(request.body) if request.body else {}
        state.asked.append(message.get("method") or request.method)
        state.arrival.set()
        state.arrival = asyncio.Event()
        if state.fault is Fault.HANG:
            await state.healed.wait()
        if state.fault is Fault.DIE or self._reader.at_eof():
            self._writer.close()
        elif state.fault is Fault.DENY:
            await _respond(self._writer, 403, b"the scripted server denies everything", kind="text/plain")
        elif state.fault is Fault.BUSY:
            await _respond(self._writer, 503, b"warming up", kind="text/plain", headers={"retry-after": "1"})
        elif request.method == "POST":
            await self._post(request, message)
        else:
            await self._other(request)

    async def _other(self, request: _Request) -> None:
        state = self._state
        session = request.headers.get(_SESSION, "")
        if request.method == "DELETE":
            await _respond(self._writer, 200 if session in state.sessions else 404)
            state.sessions.discard(session)
        elif request.method != "GET" or not state.with_stream or state.era == "modern":
            await _respond(self._writer, 405)
        elif session not in state.sessions:
            await _respond(self._writer, 404)
        else:
            await self._stream()

    async def _post(self, request: _Request, message: Message) -> None:
        state = self._state
        method = message.get("method")
        headers: dict[str, str] = {}
        if state.era == "legacy" and method == "initialize":
            headers[_SESSION] = secrets.token_hex(8)
            state.sessions.add(headers[_SESSION])
        elif state.era == "legacy" and method != "server/discover":
            session = request.headers.get(_SESSION)
            if session not in state.sessions:
                return await _respond(self._writer, 404 if session else 400)
        if method == "subscriptions/listen" and state.era == "modern" and state.with_stream:
            return await self._stream(acknowledge=message)
        if method == "tools/call":
            answer: Message | None = await state.called(message)
        else:
            answer = script.said(message, era=state.era, tools=state.tools)
        if answer is None:
            return await _respond(self._writer, 202)
        await _respond(self._writer, 200, script.encoded(answer), headers=headers)
        if method == "tools/call" and state.calls_left is not None:
            state.calls_left -= 1
            if state.calls_left <= 0:
                state.calls_left = None
                # In a task of its own: a stop cancels the task that serves this request.
                state.failing = asyncio.ensure_future(self._fail(state.next_fault))
        return None

    async def _stream(self, *, acknowledge: Message | None = None) -> None:
        """Hold a stream of notifications open until the client leaves."""
        state = self._state
        await _send(self._writer, _head(200, {"content-type": _EVENTS, "transfer-encoding": "chunked"}))
        if acknowledge is not None:
            wanted = acknowledge["params"].get("notifications", {})
            ready = script.notice("notifications/subscriptions/acknowledged")
            await _send_event(self._writer, {**ready, "params": {"notifications": wanted}})
        state.streams.add(self._writer)
        while await self._reader.read(65536):
            pass
        self._writer.close()


async def _read_request(reader: asyncio.StreamReader) -> _Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head.removesuffix("\r\n\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return _Request(line.split(" ")[0], headers, body)


async def _respond(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes = b"",
    *,
    kind: str = _JSON,
    headers: Mapping[str, str] | None = None,
) -> None:
    described = {"content-length": str(len(body)), **({"content-type": kind} if body else {}), **(headers or {})}
    await _send(writer, _head(status, described) + body)


async def _send_event(writer: asyncio.StreamWriter, message: Message) -> None:
    event = b"event: message\ndata: " + script.encoded(message) + b"\n\n"
    await _send(writer, b"%x\r\n%s\r\n" % (len(event), event))


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


CLEANUPS = 20
"""How often the folder is emptied at most: each time it can meet one more process that starts."""


class StdioServer:
    """``with StdioServer({"forecast": "sunny"}) as server``: each tool returns its text.

    Nothing runs until a client starts the command in ``definition``. The server logs what it receives.
    """

    def __init__(self, tools: Mapping[str, str | Message], *, era: Era = "legacy") -> None:
        self._tools = dict(tools)
        self._era = era
        self._fault: Fault | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-testing-")
        self._script = Path(self._folder.name) / "script.json"
        self._log = Path(self._folder.name) / "log"
        self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A process that a client started a moment ago may write its log while the folder is emptied: begin again then.
        for left in reversed(range(CLEANUPS)):
            self.kill()
            try:
                self._folder.cleanup()
            except OSError:
                if not left:
                    raise
            else:
                return

    @property
    def definition(self) -> dict[str, object]:
        """The server as an entry of ``mcpServers``."""
        arguments = ["-I", "-S", script.__file__, str(self._script), str(self._log)]
        return {"command": sys.executable, "args": arguments}

    @property
    def pids(self) -> list[int]:
        """The process id of each start, in order; older processes have ended."""
        return [int(rest) for rest in self._noted("start")]

    @property
    def asked(self) -> list[str]:
        """The methods of all received messages, in order, over all starts."""
        return self._noted("asked")

    def fail(self, fault: Fault) -> None:
        """Fail in this way from now on."""
        if fault in (Fault.DENY, Fault.BUSY):
            raise ValueError("a process cannot answer with a status: use HttpServer")
        self._fault = fault
        self._write()
        if fault is Fault.REFUSE:
            self.kill()

    def heal(self) -> None:
        """End the fault; requests from before stay unanswered."""
        self._fault = None
        self._write()

    def set_tools(self, tools: Mapping[str, str | Message]) -> None:
        """Replace the tools, and send ``list_changed`` to the connected client."""
        self._tools = dict(tools)
        self._write()
        self._signal(signal.SIGUSR1)

    def kill(self) -> None:
        """Kill the process at once, as ``kill -9`` does."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the live processes of this server; a process id that the system reused is skipped."""
        for pid in self.pids:
            if self._is_ours(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _is_ours(self, pid: int) -> bool:
        command = Path("/proc") / str(pid) / "cmdline"
        try:
            return not command.parent.parent.exists() or str(self._script).encode() in command.read_bytes()
        except OSError:
            return False

    def _write(self) -> None:
        """Write the script in one step: the child never reads half of it."""
        fresh = self._script.with_suffix(".new")
        fault = self._fault.value if self._fault is not None else None
        fresh.write_text(json.dumps({"tools": self._tools, "era": self._era, "fault": fault}))
        fresh.replace(self._script)

    def _noted(self, kind: str) -> list[str]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == kind]
