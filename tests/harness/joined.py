"""Clients that join a hub by ``serve --stdio``: real processes, a home of their own, and no hub left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from holdfast.control.hub_finder import RunningHub, running_hubs
from tests.cli.serve_process import COMMAND, environment
from tests.clients.raw import MODERN_META
from tests.harness.waiting import PATIENCE, came_true, gone

__all__ = ["JoinHome", "JoinedProcess", "join_home"]

SERVER = """
import json, os, sys, time
TOOLS = [("pid", {"readOnlyHint": True}), ("where", {"readOnlyHint": True}), ("add", {}), ("hang", {}),
         ("look", {"readOnlyHint": True})]
def answer(message):
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "resources": {"subscribe": True}},
                "serverInfo": {"name": "counted", "version": "1"}}
    if method == "tools/list":
        return {"tools": [{"name": n, "inputSchema": {"type": "object"}, "annotations": a} for n, a in TOOLS]}
    if method == "resources/list":
        return {"resources": [{"uri": "note://one", "name": "one"}]}
    if method == "tools/call":
        name = params["name"]
        if name in ("hang", "look"):
            with open(sys.argv[1], "a") as file:
                file.write(name + "\\n")
            if open(sys.argv[1]).read().count(name + "\\n") == 1:
                return None
        text = {"pid": str(os.getpid()), "where": os.getcwd(), "look": "seen",
                "add": os.environ.get("KEY", "no key")}.get(name, "done")
        return {"content": [{"type": "text", "text": text}]}
    if method in ("ping", "resources/subscribe", "resources/unsubscribe"):
        return {}
    return "unknown"
with open(sys.argv[1] + ".started", "a") as file:
    file.write("started\\n")
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    result = answer(message)
    if result == "unknown":
        said = {"error": {"code": -32601, "message": "Method not found"}}
    elif result is None:
        continue
    else:
        said = {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
"""
"""A server of the standard library alone: it starts in no time. The first ``hang`` and ``look`` are never answered."""


class JoinedProcess:
    """One client, by hand: the process that it started, and what came back."""

    def __init__(self, process: anyio.abc.Process, *, modern: bool) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.heard: list[dict[str, Any]] = []
        self.roots: tuple[Path, ...] = ()
        """The folders that its person opened."""
        self._modern = modern
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)
        self._last = 0
        self._news = anyio.Event()

    async def read(self) -> None:
        with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            while True:
                line = await self._stdout.receive_until(b"\n", 1 << 24)
                self.heard.append(message := json.loads(line))
                if message.get("method") == "roots/list":
                    roots = {"roots": [{"uri": root.as_uri()} for root in self.roots]}
                    await self.send({"jsonrpc": "2.0", "id": message["id"], "result": roots})
                self._news.set()
                self._news = anyio.Event()

    async def begin(self, program: str = "test") -> dict[str, Any]:
        """The handshake."""
        if self._modern:
            return await self.ask("server/discover")
        info = {"name": program, "version": "1"}
        can: dict[str, Any] = {"roots": {"listChanged": True}} if self.roots else {}
        found = await self.ask("initialize", protocolVersion="2025-11-25", capabilities=can, clientInfo=info)
        if "result" in found:  # one that was refused may have ended already, and reads nothing more
            await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return found

    async def send(self, message: Mapping[str, Any]) -> None:
        await self._stdin.send(json.dumps(message).encode() + b"\n")

    async def request(self, method: str, **params: Any) -> int:
        """Send a request; its id."""
        self._last += 1
        meta = {"_meta": MODERN_META} if self._modern else {}
        await self.send({"jsonrpc": "2.0", "id": self._last, "method": method, "params": {**params, **meta}})
        return self._last

    async def answer(self, number: int) -> dict[str, Any]:
        with anyio.fail_after(PATIENCE):
            while True:
                for message in self.heard:
                    if message.get("id") == number and "method" not in message:
                        return message
                await self._news.wait()

    async def told(self, method: str) -> dict[str, Any]:
        """Wait for a notification."""
        with anyio.fail_after(PATIENCE):
            while True:
                for message in self.heard:
                    if message.get("method") == method:
                        return message
                await self._news.wait()

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return await self.answer(await self.request(method, **params))

    async def call(self, tool: str) -> str:
        """The text of a tool's result."""
        return text_in(await self.ask("tools/call", name=tool, arguments={}))


def text_in(answer: Mapping[str, Any]) -> str:
    assert "result" in answer, answer
    return str(answer["result"]["content"][0]["text"])


class JoinHome:
    """A user with a configuration, a runtime folder, and servers that count their starts."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder = folder
        self.environ = {**environment(folder), "XDG_RUNTIME_DIR": str(runtime)}
        self.config = folder / ".config" / "holdfast" / "mcp.json"
        self.config.parent.mkdir(parents=True)
        (folder / "server.py").write_text(SERVER)
        self.notes = folder / "notes"

    def write(self, file: Path | None = None, **servers: Mapping[str, Any]) -> None:
        """The user's own file: one server, unless others are given."""
        named = servers or {"s": self.server()}
        (file or self.config).write_text(json.dumps({"mcpServers": named}))

    def server(self, **more: Any) -> dict[str, Any]:
        return {"command": sys.executable, "args": [str(self.folder / "server.py"), str(self.notes)], **more}

    @property
    def hubs(self) -> list[RunningHub]:
        return running_hubs(self.environ)

    @property
    def starts(self) -> int:
        """How many processes of the server were started."""
        noted = Path(f"{self.notes}.started")
        return noted.read_text().count("\n") if noted.exists() else 0

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    @asynccontextmanager
    async def client(
        self,
        *options: str,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        modern: bool = False,
        begin: bool = True,
        program: Sequence[str] = COMMAND,
    ) -> AsyncIterator[JoinedProcess]:
        command = [*program, "serve", "--stdio", *options]
        env = dict(self.environ if environ is None else environ)
        process = await anyio.open_process(command, cwd=cwd or self.folder, env=env, stderr=subprocess.PIPE)
        async with process, anyio.create_task_group() as tasks:
            joined = JoinedProcess(process, modern=modern)
            tasks.start_soon(joined.read)
            try:
                if begin:
                    await joined.begin()
                yield joined
            finally:
                with anyio.CancelScope(shield=True):
                    if process.returncode is None:
                        process.kill()
                    await process.wait()
                tasks.cancel_scope.cancel()

    async def kill_hub(self) -> None:
        """The hub dies without a word."""
        (hub,) = self.hubs
        os.kill(hub.pid, signal.SIGKILL)
        await gone(hub.pid)

    async def one_hub(self) -> RunningHub:
        await came_true(lambda: len(self.hubs) == 1)
        return self.hubs[0]


@asynccontextmanager
async def join_home(folder: Path) -> AsyncIterator[JoinHome]:
    """A home whose hubs end with the body."""
    with tempfile.TemporaryDirectory(prefix="hf-") as runtime:
        home = JoinHome(folder, Path(runtime))
        home.write()
        try:
            yield home
        finally:
            with anyio.CancelScope(shield=True):
                for hub in home.hubs:
                    with suppress(ProcessLookupError):
                        os.kill(hub.pid, signal.SIGTERM)
                for hub in home.hubs:
                    await gone(hub.pid)
