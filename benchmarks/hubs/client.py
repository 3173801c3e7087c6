"""The one client that every hub gets: Streamable HTTP in both eras, or HTTP+SSE for a hub that has nothing else.

It mends nothing: it keeps its session, sends what a scene tells it, and records what came back and when. A question of
the server (elicitation, sampling) is answered, as a client with these capabilities does. Every wait has a deadline;
what is over it counts as lost.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urljoin

import aiohttp

from benchmarks.hubs.server import LEGACY, MODERN, STATED_VERSION

__all__ = ["Answer", "Client", "Era", "Refused", "SseClient", "Transport", "connected"]

Era = Literal["legacy", "modern"]
Transport = Literal["http", "sse"]
ACCEPT = "application/json, text/event-stream"
OPEN_SECONDS = 20.0
ELICITED = {"action": "accept", "content": {"colour": "green"}}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "yes"}, "model": "m", "stopReason": "endTurn"}
SHOWN = 400


@dataclass(frozen=True)
class Answer:
    """What came of one request."""

    kind: Literal["result", "error", "lost"]
    """``error``: the client was told why not. ``lost``: no answer in time, or the connection broke."""
    text: str
    seconds: float
    notices: tuple[float, ...] = ()
    """The progress that was reported before the result, in the order in which it came."""
    size: int = 0


class Refused(RuntimeError):
    """The hub answered with an error, where there is nothing to go on with."""


@dataclass
class _Reading:
    """The messages that came for one request."""

    final: Mapping[str, Any] | None = None
    notices: list[float] = field(default_factory=list)


class Client:
    """One client with one session, over Streamable HTTP."""

    transport: Transport = "http"

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, era: Era = "legacy") -> None:
        self.url = url
        self.era = era
        self.notified: list[str] = []
        """The methods of the notices that belong to no call."""
        self._ids = itertools.count(1)
        self._session: str | None = None
        self._headers = {"accept": ACCEPT, **(headers or {})}
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(None), read_bufsize=1024 * 1024
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, *, within: float = OPEN_SECONDS) -> None:
        """Begin: `initialize`, or `server/discover`."""
        async with asyncio.timeout(within):
            if self.era == "modern":
                await self._checked("server/discover", {})
                return
            params = {
                "protocolVersion": LEGACY,
                "capabilities": {"elicitation": {}, "sampling": {}},
                "clientInfo": {"name": "benchmark", "version": "1"},
            }
            await self._checked("initialize", params)
            await self._notify({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def listen(self) -> None:
        """Open the stream for notices, where the hub has one, and keep it."""
        self._keep(self._listening())
        await asyncio.sleep(0)

    async def tools(self, *, within: float = OPEN_SECONDS) -> list[str]:
        """The names of all tools, from all pages."""
        names: list[str] = []
        cursor: dict[str, str] = {}
        async with asyncio.timeout(within):
            while True:
                result = await self._checked("tools/list", cursor)
                names += [tool["name"] for tool in result["tools"]]
                if not (more := result.get("nextCursor")):
                    return names
                cursor = {"cursor": more}

    async def call(self, tool: str, arguments: Mapping[str, Any], *, within: float, progress: bool = False) -> Answer:
        """Call a tool; an error or a loss is an answer too."""
        began = time.monotonic()
        params: dict[str, Any] = {"name": tool, "arguments": dict(arguments)}
        reading = _Reading()
        try:
            async with asyncio.timeout(within):
                await self._request("tools/call", params, reading, progress=progress)
        except TimeoutError:
            return Answer("lost", f"no answer within {within:g} s", time.monotonic() - began, tuple(reading.notices))
        except Refused as exc:
            return Answer("error", str(exc), time.monotonic() - began, tuple(reading.notices))
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return Answer("lost", f"{type(exc).__name__}: {exc}"[:SHOWN], time.monotonic() - began)
        return _answered(reading, time.monotonic() - began)

    async def close(self) -> None:
        """Close all connections. The session is not ended, as clients that crash do not end theirs."""
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.close()

    async def _checked(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        reading = _Reading()
        await self._request(method, dict(params), reading)
        final = reading.final or {}
        if "result" not in final:
            raise Refused(_said(final))
        result: dict[str, Any] = final["result"]
        return result

    async def _request(self, method: str, params: dict[str, Any], reading: _Reading, *, progress: bool = False) -> None:
        """Send a request and read until its answer is there."""
        number = next(self._ids)
        meta: dict[str, Any] = {"progressToken": f"p-{number}"} if progress else {}
        headers: dict[str, str] = {}
        if self.era == "modern":
            meta |= {
                STATED_VERSION: MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1"},
            }
            headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
            if "name" in params:
                headers["mcp-name"] = params["name"]
        message = {
            "jsonrpc": "2.0",
            "id": number,
            "method": method,
            "params": {**params, **({"_meta": meta} if meta else {})},
        }
        await self._exchange(message, headers, reading)

    async def _exchange(self, message: Mapping[str, Any], headers: Mapping[str, str], reading: _Reading) -> None:
        async with self._http.post(self.url, json=message, headers=self._with_session(headers)) as response:
            self._session = response.headers.get("mcp-session-id") or self._session
            if response.status >= 400:
                raise Refused(_refusal(response.status, await response.text(errors="replace")))
            if response.content_type == "text/event-stream":
                async for event in _events(response):
                    self._take(json.loads(event[1]), message["id"], reading)
                    if reading.final is not None:
                        return
            else:
                self._take(json.loads(await response.read()), message["id"], reading)
        if reading.final is None:
            raise aiohttp.ClientPayloadError("the stream ended before the answer")

    def _take(self, message: Mapping[str, Any], wanted: int, reading: _Reading) -> None:
        method = message.get("method")
        if method is None and message.get("id") == wanted:
            reading.final = message
        elif method == "notifications/progress":
            reading.notices.append(float(message["params"]["progress"]))
        elif method is not None:
            self._came(message)

    def _came(self, message: Mapping[str, Any]) -> None:
        """A question or a notice of the server."""
        method = message["method"]
        if "id" not in message:
            self.notified.append(method)
            return
        results = {"elicitation/create": ELICITED, "sampling/createMessage": SAMPLED, "ping": {}}
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if method in results:
            answer["result"] = results[method]
        else:
            answer["error"] = {"code": -32601, "message": "Method not found"}
        self._keep(self._notify(answer))

    async def _notify(self, message: Mapping[str, Any]) -> None:
        with suppress(aiohttp.ClientError, OSError):
            async with self._http.post(self.url, json=message, headers=self._with_session({})) as response:
                await response.read()

    async def _listening(self) -> None:
        headers = self._with_session({"accept": "text/event-stream"})
        with suppress(aiohttp.ClientError, OSError, ValueError):
            async with self._http.get(self.url, headers=headers) as response:
                if response.status == 200:
                    async for event in _events(response):
                        if "method" in (message := json.loads(event[1])):
                            self._came(message)

    def _with_session(self, more: Mapping[str, str]) -> dict[str, str]:
        session = {} if self._session is None else {"mcp-session-id": self._session, "mcp-protocol-version": LEGACY}
        return {**self._headers, **session, **more}

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class SseClient(Client):
    """The same over HTTP+SSE of 2024: one stream for all answers, and an address for what is sent."""

    transport: Transport = "sse"

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, era: Era = "legacy") -> None:
        super().__init__(url, headers=headers, era=era)
        self._posts = asyncio.get_running_loop().create_future()
        self._waiting: dict[int, tuple[_Reading, asyncio.Future[None]]] = {}

    async def open(self, *, within: float = OPEN_SECONDS) -> None:
        """Open the stream, then initialize."""
        self._keep(self._listening())
        async with asyncio.timeout(within):
            self.posts = await self._posts
        await super().open(within=within)

    async def listen(self) -> None:
        """The stream is open already."""

    async def _listening(self) -> None:
        try:
            async with self._http.get(self.url, headers={**self._headers, "accept": "text/event-stream"}) as response:
                async for name, data in _events(response):
                    if name == "endpoint":
                        self._posts.set_result(urljoin(self.url, data.decode()))
                    else:
                        self._came_by_stream(json.loads(data))
            raise aiohttp.ClientPayloadError("the stream ended")
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            for _, waiter in [*self._waiting.values()]:
                if not waiter.done():
                    waiter.set_exception(aiohttp.ClientPayloadError(f"the stream ended: {exc}"))
            if not self._posts.done():
                self._posts.set_exception(aiohttp.ClientPayloadError(f"no stream: {exc}"))

    def _came_by_stream(self, message: Mapping[str, Any]) -> None:
        if "method" not in message:
            if (waiting := self._waiting.get(message["id"])) and not waiting[1].done():
                waiting[0].final = message
                waiting[1].set_result(None)
        elif message["method"] == "notifications/progress":
            for reading, _ in self._waiting.values():
                reading.notices.append(float(message["params"]["progress"]))
        else:
            self._came(message)

    async def _exchange(self, message: Mapping[str, Any], headers: Mapping[str, str], reading: _Reading) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[message["id"]] = (reading, waiter)
        try:
            await self._notify(message)
            await waiter
        finally:
            del self._waiting[message["id"]]

    async def _notify(self, message: Mapping[str, Any]) -> None:
        async with self._http.post(self.posts, json=message, headers=self._headers) as response:
            text = await response.text(errors="replace")
            if response.status >= 400:
                raise Refused(_refusal(response.status, text))


async def connected(
    transport: Transport,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    era: Era = "legacy",
    within: float = 20.0,
) -> Client:
    """A client with an open session. It is closed if that fails."""
    client = (SseClient if transport == "sse" else Client)(url, headers=headers, era=era)
    try:
        await client.open(within=within)
    except BaseException:
        await client.close()
        raise
    return client


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, bytes]]:
    """The name and the data of each event. Events may be far longer than a line that aiohttp reads."""
    rest = bytearray()
    async for chunk in response.content.iter_any():
        rest += chunk
        if b"\n" not in chunk:
            continue
        text = bytes(rest).replace(b"\r\n", b"\n")
        *whole, last = text.split(b"\n\n")
        rest = bytearray(last)
        for event in whole:
            lines = [line.partition(b":") for line in event.split(b"\n")]
            data = b"\n".join(value.removeprefix(b" ") for key, _, value in lines if key == b"data")
            name = next((value.strip().decode() for key, _, value in lines if key == b"event"), "message")
            if data:
                yield name, data


def _answered(reading: _Reading, seconds: float) -> Answer:
    final = reading.final or {}
    notices = tuple(reading.notices)
    if "error" in final:
        return Answer("error", _said(final), seconds, notices)
    result = final["result"]
    if "content" not in result:
        return Answer("error", f"a result without content: {json.dumps(result)[:SHOWN]}", seconds, notices)
    text = " ".join(str(block.get("text", "")) for block in result["content"])
    return Answer("error" if result.get("isError") else "result", text, seconds, notices, len(text))


def _refusal(status: int, body: str) -> str:
    """An error status: its JSON-RPC message if it has one, else the text."""
    with suppress(ValueError):
        message = json.loads(body)
        if isinstance(message, dict) and isinstance(message.get("error"), dict):
            return f"HTTP {status}: {_said(message)}"
    return f"HTTP {status}: {' '.join(body.split())}"[:SHOWN]


def _said(message: Mapping[str, Any]) -> str:
    error = message.get("error") or {}
    return f"{error.get('message', '')}"[:SHOWN] or f"error {error.get('code')}"
