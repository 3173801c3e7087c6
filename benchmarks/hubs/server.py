"""The MCP server behind every hub: it does what a file tells it, and writes down each call that reaches it.

``server.py http --port P --folder F --name N`` and ``server.py stdio --folder F --name N``. The file ``F/N.json`` says
how it behaves; it is read at each request, so a scene changes a running server. ``F/N.log`` has a line for each call,
with the key that the client gave it: what ran twice stands there twice. It needs the standard library alone, since the
environments of other hubs start it.

What the file may say:

- ``eras``: ``legacy`` (the default), ``modern`` or ``both``.
- ``status``, ``body``, ``headers``: over HTTP, the answer to every request.
- ``die``: over stdio, exit with code 1 at the first message.
- ``tools``: ``second`` is another list of tools; a change is announced.
- ``hostile``: ``pages``, ``garbage``, ``flood`` or ``ids``; see `Behaviour`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

LEGACY, MODERN = "2025-11-25", "2026-07-28"
OLDER = ("2024-11-05", "2025-03-26", "2025-06-18", LEGACY)
"""The versions that it agrees to, as the SDKs' servers do."""

STATED_VERSION = "io.modelcontextprotocol/protocolVersion"
FLOOD = 20_000
"""How many log notices a flood has."""

LOOK_SECONDS = 0.1
LARGEST_LINE = 64 * 1024 * 1024

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]
Ask = Callable[[str, Message], Awaitable[Message]]


class Orders:
    """The file that says how to behave, and the log of what came."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = folder / f"{name}.json"
        self._log = folder / f"{name}.log"
        self._seen: tuple[int, dict[str, Any]] = (0, {})

    def read(self) -> dict[str, Any]:
        """What the file says now. A file that is not there says nothing."""
        with suppress(OSError, ValueError):
            changed = self._file.stat().st_mtime_ns
            if changed != self._seen[0]:
                self._seen = (changed, json.loads(self._file.read_text()))
            return self._seen[1]
        return {}

    def note(self, event: str, key: str = "") -> None:
        """Add a line: one write, so that lines of two processes do not mix."""
        with self._log.open("ab", buffering=0) as log:
            log.write(f"{time.time():.3f} {os.getpid()} {event} {key}\n".encode())


class Behaviour:
    """The answers. Transports give it messages and ways to send and to ask.

    Hostile kinds: ``pages`` lists tools on pages that never end; ``garbage`` answers a call with bytes that are no
    JSON; ``flood`` sends log notices without pause before a result; ``ids`` answers with the id of another call first.
    """

    def __init__(self, orders: Orders) -> None:
        self.orders = orders

    async def handle(self, message: Message, send: Send, ask: Ask) -> None:
        """Answer one message. A notification gets none."""
        if "id" not in message or "method" not in message:
            return
        method, params = message["method"], message.get("params") or {}
        orders = self.orders.read()
        self.orders.note(method)
        try:
            result = await self._result(method, params, orders, send, ask)
        except LookupError:
            await send(_answer(message["id"], error={"code": -32601, "message": "Method not found"}))
            return
        hostile = orders.get("hostile") if method == "tools/call" else None
        if hostile == "ids":
            stolen = {"content": [{"type": "text", "text": "the answer of another call"}]}
            other = message["id"] + 1 if isinstance(message["id"], int) else f"{message['id']}1"
            await send(_answer(other, result=stolen))
        if STATED_VERSION in (params.get("_meta") or {}):
            result = {"resultType": "complete", **result}
        await send(_answer(message["id"], result=result))

    async def _result(self, method: str, params: Message, orders: Message, send: Send, ask: Ask) -> Message:
        eras = orders.get("eras", "legacy")
        about = {"capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "bench", "version": "1"}}
        if method == "initialize" and eras != "modern":
            asked = params.get("protocolVersion")
            return {"protocolVersion": asked if asked in OLDER else LEGACY, **about}
        if method == "server/discover" and eras != "legacy":
            return {"supportedVersions": [MODERN], **about, "ttlMs": 0, "cacheScope": "private"}
        if method == "ping":
            return {}
        if method == "tools/list":
            more = {"nextCursor": uuid.uuid4().hex} if orders.get("hostile") == "pages" else {}
            return {"tools": _tools(orders), "ttlMs": 0, "cacheScope": "private", **more}
        if method == "tools/call":
            return await self._call(params, orders, send, ask)
        raise LookupError(method)

    async def _call(self, params: Message, orders: Message, send: Send, ask: Ask) -> Message:
        arguments = params.get("arguments") or {}
        tool = params.get("name", "")
        if tool not in {listed["name"] for listed in _tools(orders)}:
            return _text(f"there is no tool {tool} here", failed=True)
        self.orders.note("call", str(arguments.get("key", "")))
        if orders.get("hostile") == "flood":
            for number in range(FLOOD):
                await send(_notice("notifications/message", {"level": "info", "data": f"noise {number}"}))
        if tool == "big":
            return _text("x" * int(arguments.get("size", 0)))
        if tool == "wait":
            await asyncio.sleep(float(arguments.get("seconds", 0)))
        if tool == "steps":
            await _steps(int(arguments.get("count", 0)), (params.get("_meta") or {}).get("progressToken"), send)
        if tool == "ask":
            schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
            said = await ask("elicitation/create", {"message": "Which colour?", "requestedSchema": schema})
            return _text(f"the user said {json.dumps(said)}")
        if tool == "sample":
            asked = [{"role": "user", "content": {"type": "text", "text": "Say a word."}}]
            said = await ask("sampling/createMessage", {"messages": asked, "maxTokens": 10})
            return _text(f"the model said {json.dumps(said)}")
        return _text(str(arguments.get("key", "")))


async def _steps(count: int, token: Any, send: Send) -> None:
    for done in range(1, count + 1):
        if token is not None:
            await send(_notice("notifications/progress", {"progressToken": token, "progress": done, "total": count}))
        await asyncio.sleep(0)


def _tools(orders: Message) -> list[Message]:
    names = ["echo", "big", "steps", "ask", "sample", "extra" if orders.get("tools") == "second" else "wait"]
    kinds = {"key": "string", "size": "integer", "count": "integer", "seconds": "number"}
    schema = {"type": "object", "properties": {name: {"type": kind} for name, kind in kinds.items()}}
    return [{"name": name, "description": f"The tool {name}.", "inputSchema": schema} for name in names]


def _text(text: str, *, failed: bool = False) -> Message:
    return {"content": [{"type": "text", "text": text}], **({"isError": True} if failed else {})}


def _notice(method: str, params: Message) -> Message:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def _answer(call: Any, **what: Message) -> Message:
    return {"jsonrpc": "2.0", "id": call, **what}


def _dumped(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


class Questions:
    """Questions to the client that wait for their answers."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Message]] = {}

    async def ask(self, method: str, params: Message, send: Send) -> Message:
        """Send a question and wait for what comes back."""
        number = f"q-{uuid.uuid4().hex}"
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        await send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        said = await future
        return said.get("result") or {"error": said.get("error")}

    def settle(self, message: Message) -> None:
        """An answer came."""
        future = self._waiting.pop(str(message.get("id")), None)
        if future is not None and not future.done():
            future.set_result(message)


class HttpServer:
    """Streamable HTTP with sessions, as the SDKs' servers have them: an unknown session gets 404."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._questions = Questions()
        self._sessions: set[str] = set()
        self._streams: set[asyncio.StreamWriter] = set()
        self._listed = behaviour.orders.read().get("tools")

    async def serve(self, port: int) -> None:
        """Listen and say so; watch the file for a change of the list."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", port, limit=LARGEST_LINE)
        print(server.sockets[0].getsockname()[1], flush=True)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if (listed := self._behaviour.orders.read().get("tools")) != self._listed:
                self._listed = listed
                for writer in [*self._streams]:
                    _write_event(writer, _notice("notifications/tools/list_changed", {}))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            async for verb, headers, body in _requests(reader):
                await self._answer(verb, headers, body, writer)
                await writer.drain()
        self._streams.discard(writer)
        writer.close()

    async def _answer(self, verb: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        orders = self._behaviour.orders.read()
        if "status" in orders:
            self._behaviour.orders.note("refused")
            _write(writer, orders["status"], orders.get("body", "").encode(), orders.get("headers"))
        elif verb == "GET":
            if headers.get("mcp-session-id") not in self._sessions:
                _write(writer, 405, b"")
                return
            _write_stream_head(writer)
            self._streams.add(writer)
        elif verb == "DELETE":
            self._sessions.discard(headers.get("mcp-session-id", ""))
            _write(writer, 200, b"")
        else:
            await self._post(json.loads(body), headers, writer)

    async def _post(self, message: Message, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        if "method" not in message:
            self._questions.settle(message)
        modern = STATED_VERSION in ((message.get("params") or {}).get("_meta") or {})
        opening = message.get("method") in {"initialize", "server/discover"}
        if not modern and not opening and headers.get("mcp-session-id") not in self._sessions:
            _write(writer, 404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}')
            return
        if "id" not in message or "method" not in message:
            _write(writer, 202, b"")
            return
        orders = self._behaviour.orders.read()
        if orders.get("hostile") == "garbage" and message["method"] == "tools/call":
            self._behaviour.orders.note("garbage")
            _write(writer, 200, b'{"jsonrpc":"2.0","id":\xff\xfe{{{{', {"content-type": "application/json"})
            return
        reply = _HttpReply(writer, message["id"])
        if message["method"] == "initialize" and orders.get("eras", "legacy") != "modern":
            reply.session = uuid.uuid4().hex
            self._sessions.add(reply.session)

        async def ask(method: str, params: Message) -> Message:
            return await self._questions.ask(method, params, reply.send)

        await self._behaviour.handle(message, reply.send, ask)
        reply.end()


class _HttpReply:
    """The answer to one POST: plain JSON, or an event stream from the first message that precedes the result."""

    def __init__(self, writer: asyncio.StreamWriter, call: Any) -> None:
        self._writer = writer
        self._call = call
        self._streaming = False
        self.session: str | None = None

    async def send(self, message: Message) -> None:
        final = "method" not in message and message.get("id") == self._call
        if final and not self._streaming:
            extra = {} if self.session is None else {"mcp-session-id": self.session}
            _write(self._writer, 200, _dumped(message), {"content-type": "application/json", **extra})
            return
        if not self._streaming:
            self._streaming = True
            _write_stream_head(self._writer)
        _write_event(self._writer, message)
        await self._writer.drain()

    def end(self) -> None:
        if self._streaming:
            self._writer.write(b"0\r\n\r\n")


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[tuple[str, dict[str, str], bytes]]:
    while head := await _head(reader):
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = await _chunked(reader)
        else:
            body = await reader.readexactly(int(headers.get("content-length") or 0))
        yield first.split()[0], headers, body


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return body


def _write(writer: asyncio.StreamWriter, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    writer.write(f"HTTP/1.1 {status} Status\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body)


def _write_stream_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")


def _write_event(writer: asyncio.StreamWriter, message: Message) -> None:
    event = b"event: message\ndata: %b\n\n" % _dumped(message)
    writer.write(b"%x\r\n%b\r\n" % (len(event), event))


class StdioServer:
    """The same over stdin and stdout. Calls run side by side."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._questions = Questions()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Answer until stdin ends."""
        reader = asyncio.StreamReader(limit=LARGEST_LINE)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        self._keep(self._watch())
        while line := await reader.readline():
            if self._behaviour.orders.read().get("die"):
                print("cannot start: no database", file=sys.stderr)
                sys.exit(1)
            message = json.loads(line)
            if "method" not in message:
                self._questions.settle(message)
            else:
                self._keep(self._handle(message))

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, message: Message) -> None:
        async def ask(method: str, params: Message) -> Message:
            return await self._questions.ask(method, params, _say)

        if self._behaviour.orders.read().get("hostile") == "garbage" and message["method"] == "tools/call":
            self._behaviour.orders.note("garbage")
            _put(b'{"jsonrpc":"2.0","id":\xff\xfe{{{{\n')
            return
        await self._behaviour.handle(message, _say, ask)

    async def _watch(self) -> None:
        listed = self._behaviour.orders.read().get("tools")
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if (now := self._behaviour.orders.read().get("tools")) != listed:
                listed = now
                await _say(_notice("notifications/tools/list_changed", {}))


async def _say(message: Message) -> None:
    _put(_dumped(message) + b"\n")


def _put(data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(1, view) :]
        except BlockingIOError:
            time.sleep(0.001)


def main(argv: Sequence[str]) -> None:
    """Run the server. One HTTP process may be several servers: `--names` and `--ports` have commas."""
    parser = argparse.ArgumentParser(prog="server")
    parser.add_argument("transport", choices=("http", "stdio"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--name", required=True, help="with commas: several servers in one process")
    parser.add_argument("--port", default="0", help="as many as names")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds until it starts to listen")
    options = parser.parse_args(argv)
    time.sleep(options.delay)
    behaviours = {name: Behaviour(Orders(options.folder, name)) for name in options.name.split(",")}
    for behaviour in behaviours.values():
        behaviour.orders.note("start")
    if options.transport == "stdio":
        asyncio.run(StdioServer(behaviours[options.name]).serve())
    else:
        asyncio.run(_serve(behaviours, itertools.cycle(int(port) for port in options.port.split(","))))


async def _serve(behaviours: dict[str, Behaviour], ports: Any) -> None:
    await asyncio.gather(*(HttpServer(behaviour).serve(next(ports)) for behaviour in behaviours.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
