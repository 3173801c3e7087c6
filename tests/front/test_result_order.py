"""Around a result: all that the server said before it comes before it, nothing of its call comes after it (HUB-2).

The servers here write what precedes a result, the result, and what they should not say any more, in one piece.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import httpx2
import pytest

from holdfast.testing import HttpServer
from tests.cli.serve_process import COMMAND, Served, config, served, spawned
from tests.cli.test_serve import ready
from tests.clients.raw import MODERN_META, initialize, post
from tests.endpoint.test_progress import Streaming, _event, _log, _step
from tests.harness.raw_session import Session
from tests.harness.waiting import PATIENCE, asked, came_true

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2")]

SERVER = r"""
import json, sys
answered = []
for line in sys.stdin:
    asked = json.loads(line)
    if "method" not in asked:
        answered.append("result" if "result" in asked else "error")
        continue
    if "id" not in asked:
        continue
    method, key, out = asked["method"], asked["id"], []
    def said(**message):
        out.append(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    def step(number):
        token = asked["params"]["_meta"]["progressToken"]
        said(method="notifications/progress", params={"progressToken": token, "progress": number})
    def log(text):
        said(method="notifications/message", params={"level": "error", "data": text})
    if method == "initialize":
        about = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "s", "version": "1"}}
        said(id=key, result={**about, "capabilities": {"tools": {}, "logging": {}}})
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("steps", "answered")]
        said(id=key, result={"tools": tools})
    elif method == "tools/call" and asked["params"]["name"] == "steps":
        step(1), step(2), log("between"), step(3), step(4)
        said(id=key, result={"content": []})
        step(5), log("late"), step(6)
        for number in range(3):
            said(id=f"late-{number}", method="roots/list")
        step(7)
    elif method == "tools/call":
        said(id=key, result={"content": [{"type": "text", "text": json.dumps(answered)}]})
    elif method == "ping":
        said(id=key, result={})
    else:
        said(id=key, error={"code": -32601, "message": "no"})
    sys.stdout.write("".join(out))
    sys.stdout.flush()
"""

BEFORE = [1, 2, "between", 3, 4, "result"]


class StreamingTooLong(Streaming):
    """Its stream of a call goes on after the result."""

    def stream(self, number: object, token: object) -> list[bytes]:
        question = {"id": "late", "method": "roots/list"}
        late = [_event(one) for one in (_step(token, 5), _log("late"), question, _step(token, 6))]
        return [*super().stream(number, token), *late]


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[Path]:
    """A configuration with a server of each transport."""
    async with await asyncio.start_server(StreamingTooLong(), "127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"
        script = {"command": sys.executable, "args": ["-I", "-S", "-c", SERVER]}
        yield config(tmp_path / "mcp.json", piped=script, streamed={"url": url, "era": "legacy"})


class AnyClient(Protocol):
    """A client by hand: every message that its connection brings, in order."""

    async def call(self, tool: str, token: str) -> list[dict[str, Any]]:
        """What came until the answer, on the stream of the call, and with it all that came after."""

    async def rest(self) -> list[dict[str, Any]]:
        """What came besides, now that the client leaves."""


class OverHttp:
    """Each call has a response of its own, which is read to its end."""

    def __init__(self, url: str, *, session: str = "", notices: list[dict[str, Any]] | None = None) -> None:
        self._url = url
        self._session = session
        self._notices = notices if notices is not None else []

    async def call(self, tool: str, token: str) -> list[dict[str, Any]]:
        legacy = {"Mcp_Session_Id": self._session}
        modern = {"Mcp_Protocol_Version": "2026-07-28", "Mcp_Method": "tools/call", "Mcp_Name": tool}
        answer = await post(
            self._url, _call(tool, token, modern=not self._session), **legacy if self._session else modern
        )
        assert "chunked" not in answer.head.lower() or answer.body.endswith(b"0\r\n\r\n"), "its stream goes on"
        lines = answer.body.decode().splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith(("data: {", "{"))]

    async def rest(self) -> list[dict[str, Any]]:
        return self._notices


class OverStdio:
    """All messages come on one pipe: what follows the answer to a call is read with the next call."""

    def __init__(self, hub: Served, *, modern: bool) -> None:
        self._hub = hub
        self._modern = modern
        self._read = 0

    async def say(self, message: dict[str, Any]) -> None:
        assert self._hub.process.stdin is not None
        await self._hub.process.stdin.send(json.dumps(message).encode() + b"\n")

    async def call(self, tool: str, token: str) -> list[dict[str, Any]]:
        await self.say(_call(tool, token, modern=self._modern))
        await came_true(lambda: f'"id":"{token}"' in self._whole()[self._read :])
        return self._news()

    async def rest(self) -> list[dict[str, Any]]:
        return self._news()

    def _news(self) -> list[dict[str, Any]]:
        whole = self._whole()
        new, self._read = whole[self._read :], len(whole)
        return [json.loads(line) for line in new.splitlines()]

    def _whole(self) -> str:
        """The lines that are complete: one may come in pieces."""
        return self._hub.out[: self._hub.out.rfind("\n") + 1]


def _call(tool: str, token: str, *, modern: bool) -> dict[str, Any]:
    about = {**MODERN_META, "io.modelcontextprotocol/logLevel": "debug"} if modern else {}
    params = {"name": tool, "arguments": {}, "_meta": {**about, "progressToken": token}}
    return {"jsonrpc": "2.0", "id": token, "method": "tools/call", "params": params}


@asynccontextmanager
async def over_http(file: Path, *, modern: bool) -> AsyncIterator[AnyClient]:
    """A legacy client has a stream of notices open too."""
    async with served(file.parent / "home", "--config", str(file)) as hub, AsyncExitStack() as stack:
        await ready(hub)
        if modern:
            yield OverHttp(hub.url)
            return
        http = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=PATIENCE))
        session = Session(http, hub.url)
        await session.begin(roots={})
        notices: list[dict[str, Any]] = []

        async def listen() -> None:
            async with session.notices() as events:
                async for event in events:
                    notices.extend([json.loads(event["data"])] if event.get("data", "").strip() else [])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            client = OverHttp(hub.url, session=session.headers["mcp-session-id"], notices=notices)
            yield client
            await session.end()


@asynccontextmanager
async def over_stdio(file: Path, *, modern: bool) -> AsyncIterator[AnyClient]:
    home = file.parent / "home"
    home.mkdir()
    async with spawned([*COMMAND, "serve", "--stdio", "--own", "--config", str(file)], home, home) as hub:
        client = OverStdio(hub, modern=modern)
        if not modern:
            await client.say(initialize() | {"id": "begin"})
            await hub.said('"id":"begin"')
            await client.say({"jsonrpc": "2.0", "method": "notifications/initialized"})
            client._news()
        yield client


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
@pytest.mark.parametrize("over", [over_http, over_stdio])
async def test_all_that_precedes_a_result_comes_before_it_and_nothing_of_its_call_after_it(
    over: Any, modern: bool, file: Path
) -> None:
    beside: list[dict[str, Any]] = []
    async with over(file, modern=modern) as client:
        for token, tool in enumerate(["piped__steps", "streamed__steps"] * 2):
            came = [one for one in await client.call(tool, str(token)) if not _is_list_changed(one)]
            assert came[-1].get("id") == str(token), f"something came after the result: {came}"
            # A log message that names no call may come before the result: the server wrote both at once.
            assert [told for one in came if (told := _told(one)) != "late"] == BEFORE
            assert {one["params"]["progressToken"] for one in came if _is_progress(one)} == {str(token)}
        (answer,) = await client.call("piped__answered", "end")
        assert answer["id"] == "end", "what the server said late came on the stream of another call"
        beside = await client.rest()
    # A legacy client with a stream of its own can be asked there. It never hears of the call again.
    questions = {"roots/list", "notifications/cancelled"} if over is over_http and not modern else set()
    assert {one.get("method") for one in beside} <= questions


def _told(message: dict[str, Any]) -> object:
    params = message.get("params", {})
    return "result" if "result" in message else params.get("progress", params.get("data", message))


def _is_progress(message: dict[str, Any]) -> bool:
    return message.get("method") == "notifications/progress"


def _is_list_changed(message: dict[str, Any]) -> bool:
    """A hub over stdio that just started tells of its servers as they come up."""
    return str(message.get("method")).endswith("/list_changed")


@pytest.mark.requirement("LIFE-18")
async def test_a_change_that_a_client_without_a_stream_missed_is_told_when_it_opens_one(tmp_path: Path) -> None:
    async with HttpServer({"first": "1"}) as server, httpx2.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        file = config(tmp_path / "mcp.json", it=server.definition)
        async with served(tmp_path / "home", "--config", str(file)) as hub:
            await ready(hub)
            reader, other = Session(http, hub.url), Session(http, hub.url)
            for one in (reader, other):
                await one.begin()
            assert await _listed(reader) == {"it__first"}

            async def changed(*names: str) -> None:
                await server.set_tools(dict.fromkeys(names, "1"))
                await asked(partial(_lists, other, {f"it__{name}" for name in names}))

            await changed("first", "second")
            async with reader.notices() as events:
                assert await _notice(events) == CHANGED, "it changed before the stream was opened"
            assert await _listed(reader) == {"it__first", "it__second"}
            await changed("third")
            async with reader.notices() as events:
                assert await _notice(events) == CHANGED, "it changed between two streams"
            assert await _listed(reader) == {"it__third"}
            async with reader.notices() as events:
                await changed("fourth")
                assert await _notice(events) == CHANGED
                await reader.end()
                assert [one async for one in events if one.get("data", "").strip()] == [], "once for each change"


CHANGED = "notifications/tools/list_changed"


async def _listed(session: Session) -> set[str]:
    async with session.request("tools/list") as events:
        answer = json.loads((await anext(aiter(events)))["data"])
    return {tool["name"] for tool in answer["result"]["tools"]} - {"holdfast_status", "holdfast_doctor"}


async def _lists(session: Session, names: set[str]) -> bool:
    return await _listed(session) == names


async def _notice(events: AsyncIterator[dict[str, str]]) -> str:
    """The method of the next message."""
    with anyio.fail_after(PATIENCE):
        async for event in events:
            if event.get("data", "").strip():
                return str(json.loads(event["data"])["method"])
    raise AssertionError("the stream ended")
