"""How long a call may take: progress extends the time that its server may be silent, up to a limit in all.

The limits are the shipped ones where the event loop's clock can jump: in the library, and at the HTTP endpoint. A hub
that was started over stdio is a process of its own, with its own clock: there the limits are small.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast import CallFailed
from tests.cli.serve_process import COMMAND, Served, spawned
from tests.clients.raw import MODERN_META, initialize
from tests.harness.open_hubs import running
from tests.harness.raw_session import Session
from tests.harness.served_hub import front
from tests.harness.waiting import PATIENCE, all_blocked, came_true, jump
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.requirement("LIFE-10", "HUB-2")]

SILENT, IN_ALL = 60, 600
"""Seconds: the shipped limits."""
STEP = 40
"""Seconds between two notices of progress. What the test itself takes is added: the rest is for a busy machine."""


class SlowCall:
    """A call that waits for its server: how far it came, and how it ended."""

    def __init__(self) -> None:
        self.progress = 0.0
        self.ended: str | None = None
        self._news = anyio.Event()

    async def told(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Progress came."""
        self.progress = progress
        self._news.set()
        self._news = anyio.Event()

    async def run(self, make: Callable[[SlowCall], Awaitable[str]]) -> None:
        """Make the call; it ends with a result or with an error, in words."""
        self.ended = await make(self)
        self._news.set()

    async def reaches(self, progress: float) -> None:
        """Wait for the progress; a call that ended first does not reach it."""
        with anyio.fail_after(PATIENCE):
            while self.progress < progress and self.ended is None:
                await self._news.wait()
        assert self.ended is None, self.ended

    async def end(self) -> str:
        """Wait for the end; the words of the result or of the error."""
        with anyio.fail_after(PATIENCE):
            while self.ended is None:
                await self._news.wait()
        return self.ended


Make = Callable[[SlowCall], Awaitable[str]]
passes = partial(jump, settled=False)


@asynccontextmanager
async def in_the_library(peer: McpPeer) -> AsyncIterator[Make]:
    """A program calls the tool by itself."""
    async with running({"a": peer}) as hub:
        assert await hub.ready(10)

        async def make(call: SlowCall) -> str:
            try:
                return (await hub.call_tool("a__slow", {"text": "done"}, on_progress=call.told)).text
            except CallFailed as exc:
                return f"{exc.message} {exc.hint}"

        yield make


@asynccontextmanager
async def over_http(peer: McpPeer, era: str) -> AsyncIterator[Make]:
    """A client calls it at the hub's endpoint."""
    async with front({"a": {"url": peer.url}}) as served, httpx2.AsyncClient(trust_env=False, timeout=None) as http:
        session = Session(http, served.all)
        await session.begin()
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "a__slow",
        }
        asked = {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}
        params = {"name": "a__slow", "arguments": {"text": "done"}}
        body = {**asked, "params": {**params, "_meta": {**MODERN_META, "progressToken": "mine"}}}

        async def make(call: SlowCall) -> str:
            if era == "legacy":
                async with session.call("a__slow", {"text": "done"}, progressToken="mine") as events:
                    return await outcome((event.get("data", "") async for event in events), call)
            async with http.stream("POST", served.all, json=body, headers=headers) as answer:
                return await outcome((line.removeprefix("data:") async for line in answer.aiter_lines()), call)

        yield make


async def outcome(data: AsyncIterator[str], call: SlowCall) -> str:
    """Read the messages of an answer; returns the words of its result or of its error."""
    async for text in data:
        message = json.loads(text) if text.strip().startswith("{") else {}
        if message.get("method") == "notifications/progress":
            assert message["params"]["progressToken"] == "mine"
            await call.told(message["params"]["progress"])
        elif "method" not in message and message:
            return words(message)
    raise AssertionError("the answer ended without a result")


def words(message: dict[str, Any]) -> str:
    if "error" in message:
        return str(message["error"])
    return "\n".join(block["text"] for block in message["result"]["content"])


PATHS: dict[str, Callable[[McpPeer], Any]] = {
    "library": in_the_library,
    "legacy client": lambda peer: over_http(peer, "legacy"),
    "modern client": lambda peer: over_http(peer, "modern"),
}


@pytest.fixture(params=["modern", "legacy", "legacy, beside the answer"])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[McpPeer]:
    """A server that tells of progress when the test says so: in its answer's stream, or in the one of its notices."""
    era, beside = request.param.partition(",")[::2]
    async with McpPeer(era=era, respond_with="json" if beside else "sse", get_stream=bool(beside)) as made:
        yield made


async def started(peer: McpPeer, tasks: Any, make: Make) -> SlowCall:
    """A call that has arrived at the server."""
    peer.slow_started.clear()
    call = SlowCall()
    tasks.start_soon(call.run, make)
    with anyio.fail_after(PATIENCE):
        await peer.slow_started.wait()
    return call


@pytest.mark.parametrize("path", PATHS)
async def test_progress_extends_the_silence_that_a_server_may_keep_and_silence_ends_the_call(
    path: str, peer: McpPeer
) -> None:
    async with PATHS[path](peer) as make, anyio.create_task_group() as tasks:
        call = await started(peer, tasks, make)
        for number in range(1, 5):
            await passes(STEP)
            await peer.step(number)
            await call.reaches(number)
        peer.release.set()
        assert await call.end() == "done"

        peer.release.clear()
        call = await started(peer, tasks, make)
        await passes(STEP)
        await peer.step(1)
        await call.reaches(1)
        await passes(SILENT)
        ended = await call.end()
    assert f"within {SILENT} s" in ended
    assert "raise `timeout` in its definition" in ended
    assert "hardTimeout" not in ended


@pytest.mark.parametrize("path", PATHS)
async def test_progress_without_end_ends_at_the_hard_limit_and_the_error_names_it(path: str, peer: McpPeer) -> None:
    async with PATHS[path](peer) as make, anyio.create_task_group() as tasks:
        call = await started(peer, tasks, make)
        for number in range(1, IN_ALL // STEP):
            await passes(STEP)
            await peer.step(number)
            await call.reaches(number)
        await passes(STEP)
        with anyio.fail_after((SILENT - STEP) / 2):  # the silence itself would end it later
            ended = await call.end()
    assert f"within {IN_ALL} s" in ended
    assert "raise `holdfast.call.hardTimeout`" in ended


async def test_progress_extends_a_call_over_a_pipe_although_its_caller_does_not_listen(
    stdio_peer: Callable[..., StdioPeer],
) -> None:
    async with running({"a": stdio_peer("--steps")}) as hub, anyio.create_task_group() as tasks:
        assert await hub.ready(PATIENCE)

        async def make(_: SlowCall) -> str:
            try:
                return (await hub.call_tool("a__slow", {"text": "done"})).text
            except CallFailed as exc:
                return f"{exc.message} {exc.hint}"

        async def stepped(call: SlowCall) -> None:
            assert (await hub.call_tool("a__step")).text == "stepped"  # its answer follows the progress in the pipe
            assert call.ended is None, call.ended

        for steps, last in ((4, "done"), (4, f"within {SILENT} s"), (IN_ALL // STEP - 1, "hardTimeout")):
            call = SlowCall()
            tasks.start_soon(call.run, make)
            await all_blocked()
            for _ in range(steps):
                await passes(STEP)
                await stepped(call)
            if last == "done":
                await hub.call_tool("a__release")
            else:
                await passes(STEP if last == "hardTimeout" else SILENT)
            assert last in await call.end()


@asynccontextmanager
async def over_stdio(folder: Path, era: str, **servers: Any) -> AsyncIterator[StdioClient]:
    """A hub that its client started, with these limits: the shipped ones cannot be waited for in another process."""
    file = folder / "mcp.json"
    call = {"timeout": "1s", "hardTimeout": "2500ms"}
    file.write_text(json.dumps({"mcpServers": servers, "holdfast": {"call": call}}))
    async with spawned([*COMMAND, "serve", "--stdio", "--own", "--config", str(file)], folder, folder / "home") as hub:
        client = StdioClient(hub, MODERN_META if era == "modern" else {})
        if era == "legacy":
            await client.send("first", "initialize", **initialize()["params"])
            assert "result" in await client.answer("first")
        yield client


class StdioClient:
    """Writes lines to a hub, and reads its lines."""

    def __init__(self, hub: Served, meta: dict[str, Any]) -> None:
        self._hub = hub
        self._meta = meta

    async def send(self, number: str, method: str, **params: Any) -> None:
        """A request; progress in it has its number."""
        assert self._hub.process.stdin is not None
        meta = {"_meta": {**self._meta, "progressToken": number}}
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, **meta}}
        await self._hub.process.stdin.send(json.dumps(message).encode() + b"\n")

    async def call(self, number: str, tool: str) -> None:
        """Call a tool."""
        await self.send(number, "tools/call", name=tool, arguments={"text": "done"})

    def _came(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._hub.out.splitlines(keepends=True) if line.endswith("\n")]

    def answered(self, number: str) -> dict[str, Any] | None:
        """The answer to a request, if it came."""
        return next((message for message in self._came() if message.get("id") == number), None)

    async def answer(self, number: str) -> dict[str, Any]:
        """The answer to a request, when it came."""
        await came_true(lambda: self.answered(number))
        found = self.answered(number)
        assert found is not None
        return found

    def progress(self, number: str) -> int:
        """How far a call came."""
        steps = [one["params"] for one in self._came() if one.get("method") == "notifications/progress"]
        return max((step["progress"] for step in steps if step["progressToken"] == number), default=0)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_over_stdio_progress_extends_the_silence_and_ends_at_the_hard_limit(era: str, tmp_path: Path) -> None:
    async with (
        McpPeer(respond_with="sse") as busy,
        McpPeer(respond_with="sse") as quiet,
        McpPeer() as clock,
        over_stdio(
            tmp_path,
            era,
            busy={"url": busy.url},
            quiet={"url": quiet.url},
            clock={"url": clock.url, "timeout": "200ms"},
        ) as client,
    ):
        await client.call("busy", "busy__slow")
        await client.call("quiet", "quiet__slow")
        with anyio.fail_after(PATIENCE):
            await busy.slow_started.wait()
            await quiet.slow_started.wait()
        await quiet.step(1)
        steps, outlived = 0, 0
        while client.answered("busy") is None:
            steps += 1
            await client.call(
                f"clock {steps}", "clock__slow"
            )  # a call that fails after a while, by the hub's own clock
            await busy.step(steps)
            await client.answer(f"clock {steps}")
            if client.answered("quiet") is not None and client.answered("busy") is None:
                outlived = client.progress("busy")
        silent, endless = words(await client.answer("quiet")), words(await client.answer("busy"))
    assert client.progress("quiet") == 1
    assert "within 1 s" in silent
    assert "raise `timeout` in its definition" in silent
    assert outlived, "it had progress after the time in which a silent call ends"
    assert "within 2.5 s" in endless
    assert "raise `holdfast.call.hardTimeout`" in endless
