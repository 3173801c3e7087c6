"""A client by hand over either transport of a real ``holdfast serve``: what goes in is the same, so is what comes out.

All that comes back is kept in the order in which it came. Over HTTP each request has a connection of its own, as its
client may close it; a session of the handshake era also reads the stream of notices.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.abc
import httpx2
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.cli.serve_process import COMMAND, environment
from tests.clients.raw import MODERN_META
from tests.harness.waiting import PATIENCE

__all__ = ["CAPABILITIES", "Era", "Message", "RawClient", "Transport", "over_http", "over_stdio"]

Era = Literal["legacy", "modern"]
Transport = Literal["http", "stdio"]
Message = dict[str, Any]

CAPABILITIES: Mapping[str, Any] = {"elicitation": {"form": {}}, "roots": {"listChanged": True}}
"""What the clients here declare. They cannot be asked for a sample."""
LEGACY = "2025-11-25"
_LONGEST = 1 << 24


class RawClient(ABC):
    """One client, in one era."""

    transport: Transport

    def __init__(self, era: Era) -> None:
        self.era = era
        self.heard: list[Message] = []
        self._news = anyio.Event()
        self._last = 0

    # What goes out.

    def request(self, method: str, *, meta: Mapping[str, Any] | None = None, **params: Any) -> Message:
        """A request under a new id, with what its era has in every request."""
        self._last += 1
        own: dict[str, Any] = dict(meta or {})
        if self.era == "modern":
            own = {**MODERN_META, "io.modelcontextprotocol/clientCapabilities": CAPABILITIES, **own}
        whole = {**params, "_meta": own} if own else params
        return {"jsonrpc": "2.0", "id": self._last, "method": method, "params": whole}

    async def ask(self, method: str, *, meta: Mapping[str, Any] | None = None, **params: Any) -> Message:
        """The answer to a request."""
        sent = self.request(method, meta=meta, **params)
        await self.send(sent)
        return await self.answer(sent["id"])

    async def call(self, tool: str, *, meta: Mapping[str, Any] | None = None, **arguments: Any) -> Message:
        """The answer to a call."""
        return await self.ask("tools/call", meta=meta, name=tool, arguments=arguments)

    async def tell(self, method: str, **params: Any) -> None:
        """A notification."""
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def send(self, message: Any) -> None:
        """A message, without a wait for what comes of it."""
        await self.send_bytes(json.dumps(message).encode(), message if isinstance(message, dict) else {})

    @abstractmethod
    async def send_bytes(self, content: bytes, message: Message) -> None:
        """Any bytes as one message; the message is what a client says of it in its headers."""

    @abstractmethod
    async def cancel(self, number: int) -> None:
        """Give up a request, as its era does over this transport."""

    @abstractmethod
    async def leave(self) -> None:
        """End the connection, or the session, in the orderly way."""

    # What comes back.

    async def answer(self, number: object) -> Message:
        """The answer under an id; it is taken out of what was heard."""
        found = await self.until(lambda one: one.get("id", "") == number and "method" not in one)
        self.heard.remove(found)
        return found

    async def until(self, wanted: Callable[[Message], object]) -> Message:
        """The first message of a kind, as soon as it came."""
        with anyio.fail_after(PATIENCE):
            while not (found := [one for one in self.heard if wanted(one)]):
                await self._news.wait()
        return found[0]

    def of(self, method: str) -> list[Message]:
        """The messages with a method that came so far."""
        return [one for one in self.heard if one.get("method") == method]

    def hear(self, message: Any) -> None:
        """A message came; the answers to a batch come together over HTTP."""
        self.heard += message if isinstance(message, list) else [message]
        self._news.set()
        self._news = anyio.Event()


class _Pipe(RawClient):
    transport = "stdio"

    def __init__(self, era: Era, process: anyio.abc.Process) -> None:
        super().__init__(era)
        self.process = process
        assert process.stdin is not None
        self._input = process.stdin

    async def send_bytes(self, content: bytes, message: Message) -> None:
        await self._input.send(content + b"\n")

    async def cancel(self, number: int) -> None:
        await self.tell("notifications/cancelled", requestId=number)

    async def leave(self) -> None:
        await self._input.aclose()
        with anyio.fail_after(PATIENCE):
            assert await self.process.wait() == 0

    async def read(self) -> None:
        """Take every line until the end; one that is no JSON-RPC fails the test."""
        assert self.process.stdout is not None
        output = BufferedByteReceiveStream(self.process.stdout)
        while True:
            try:
                line = await output.receive_until(b"\n", _LONGEST)
            except (anyio.EndOfStream, anyio.IncompleteRead):
                return
            message = json.loads(line)
            assert message["jsonrpc"] == "2.0", line
            self.hear(message)


class _Web(RawClient):
    transport = "http"

    def __init__(self, era: Era, http: httpx2.AsyncClient, url: str, tasks: anyio.abc.TaskGroup) -> None:
        super().__init__(era)
        self._http = http
        self._url = url
        self._tasks = tasks
        self.headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        self._open: dict[object, anyio.CancelScope] = {}

    async def send_bytes(self, content: bytes, message: Message) -> None:
        headers = dict(self.headers)
        if self.era == "modern":
            headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": str(message.get("method", ""))}
            params = message.get("params")
            name = (params.get("name") or params.get("uri")) if isinstance(params, dict) else None
            headers |= {"mcp-name": name} if isinstance(name, str) else {}
        scope = self._open[_mark(message.get("id"))] = anyio.CancelScope()
        if "id" in message and "method" in message:
            self._tasks.start_soon(self._exchange, content, headers, scope)
        else:  # in its order: nothing comes back but, for what is wrong, an error
            await self._exchange(content, headers, scope)

    async def _exchange(self, content: bytes, headers: dict[str, str], scope: anyio.CancelScope) -> None:
        with scope:
            try:
                async with self._http.stream("POST", self._url, content=content, headers=headers) as answer:
                    await self._read(answer)
            except httpx2.HTTPError as exc:  # it fails the test that waits for this answer, and no other
                self.hear({"lost": repr(exc)})

    async def _read(self, answer: httpx2.Response) -> None:
        if answer.headers.get("content-type", "") == "text/event-stream":
            async for line in answer.aiter_lines():
                if data := line.removeprefix("data: ") if line.startswith("data: ") else "":
                    self.hear(json.loads(data))
        elif body := await answer.aread():
            if "mcp-session-id" in answer.headers:
                self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
            self.hear(json.loads(body))

    async def listen(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Read the stream of notices of the session."""
        async with self._http.stream("GET", self._url, headers=self.headers) as answer:
            assert answer.status_code == 200
            task_status.started()
            await self._read(answer)

    async def cancel(self, number: int) -> None:
        if self.era == "modern":
            self._open[number].cancel()
        else:
            await self.tell("notifications/cancelled", requestId=number)

    async def leave(self) -> None:
        if self.era == "modern":
            for scope in self._open.values():
                scope.cancel()
        else:
            assert (await self._http.delete(self._url, headers=self.headers)).status_code == 200


def _mark(number: object) -> object:
    return number if isinstance(number, str | int) else None


async def _begin(client: RawClient, version: str) -> None:
    if client.era == "modern":
        assert "supportedVersions" in (await client.ask("server/discover"))["result"]
        return
    info = {"name": "raw", "version": "1"}
    begun = await client.ask("initialize", protocolVersion=version, capabilities=CAPABILITIES, clientInfo=info)
    assert begun["result"]["protocolVersion"] == version
    if isinstance(client, _Web):
        client.headers["mcp-protocol-version"] = version
    await client.tell("notifications/initialized")


@asynccontextmanager
async def over_http(url: str, era: Era, *, version: str = LEGACY) -> AsyncIterator[RawClient]:
    """A client of a hub that listens."""
    async with (
        httpx2.AsyncClient(trust_env=False, timeout=None) as http,
        anyio.create_task_group() as tasks,
    ):
        client = _Web(era, http, url, tasks)
        await _begin(client, version)
        if era == "legacy":
            await tasks.start(client.listen)
        yield client
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def over_stdio(home: Path, era: Era, *arguments: str, version: str = LEGACY) -> AsyncIterator[RawClient]:
    """A client that starts the hub, with these arguments of ``holdfast serve --stdio``."""
    home.mkdir(exist_ok=True)  # noqa: ASYNC240 - nothing else waits for the loop yet
    command = [*COMMAND, "serve", "--stdio", "--own", *arguments]
    with (home / "hub.log").open("wb") as log:
        process = await anyio.open_process(command, cwd=home, env=environment(home), stderr=log)
        async with process, anyio.create_task_group() as tasks:
            client = _Pipe(era, process)
            tasks.start_soon(client.read)
            try:
                await _begin(client, version)
                yield client
            finally:
                with anyio.CancelScope(shield=True):
                    if process.returncode is None:
                        process.kill()
                    await process.wait()
