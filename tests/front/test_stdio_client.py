"""`holdfast serve --stdio` against clients that hurry, that stop reading, and that use one id twice."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from holdfast.front.stdio import StdoutWriter
from holdfast.testing import HttpServer
from tests.cli.serve_process import COMMAND, environment
from tests.clients.raw import initialize
from tests.harness.waiting import until

pytestmark = pytest.mark.anyio

LARGE = 2_000_000


class Client:
    """A client that reads only when the test says so."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._input = process.stdin
        self._output = BufferedByteReceiveStream(process.stdout)

    async def send(self, **message: Any) -> None:
        await self._input.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def read(self) -> dict[str, Any]:
        """The next answer; notifications are skipped."""
        while True:
            message: dict[str, Any] = json.loads(await self._output.receive_until(b"\n", 2 * LARGE))
            if "id" in message:
                return message

    async def begin(self) -> dict[str, Any]:
        await self.send(**initialize())
        answer = await self.read()
        await self.send(method="notifications/initialized")
        return answer

    async def leave(self) -> None:
        """Close stdin."""
        await self._input.aclose()

    async def call(self, tool: str, number: Any) -> None:
        await self.send(id=number, method="tools/call", params={"name": tool, "arguments": {}})


class Large:
    """A tool with a large result that reports when it was called so many times."""

    def __init__(self, times: int) -> None:
        self._left = times
        self.all_called = anyio.Event()

    async def __call__(self, _: object) -> str:
        self._left -= 1
        if not self._left:
            self.all_called.set()
        return "x" * LARGE


@asynccontextmanager
async def client(folder: Path, servers: dict[str, Any], **call: Any) -> AsyncIterator[Client]:
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers, "holdfast": {"call": call}}))
    command = [*COMMAND, "serve", "--stdio", "--own", "--config", str(file)]
    with open(folder / "hub.log", "wb") as log:  # noqa: ASYNC230, PTH123 - the child's own
        process = await anyio.open_process(command, cwd=folder, env=environment(folder / "home"), stderr=log)
        async with process:
            try:
                with anyio.fail_after(60):
                    yield Client(process)
            finally:
                if process.returncode is None:
                    process.kill()


@pytest.mark.requirement("HUB-13")
async def test_initialize_is_answered_before_any_server_is_ready(tmp_path: Path) -> None:
    silent = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}
    async with client(tmp_path, {"silent": silent}, readyTimeout="600s") as hub:
        assert "serverInfo" in (await hub.begin())["result"]


@pytest.mark.requirement("HUB-17")
async def test_one_sigterm_ends_the_hub_though_its_stdout_is_full(tmp_path: Path) -> None:
    large = Large(4)
    async with HttpServer({"large": large}) as server, client(tmp_path, {"it": server.definition}) as hub:
        await hub.begin()
        for number in range(2, 6):
            await hub.call("it__large", number)
        await large.all_called.wait()
        hub.process.send_signal(signal.SIGTERM)
        assert await hub.process.wait() == 0


@pytest.mark.requirement("HUB-17")
async def test_what_a_client_does_not_read_is_bounded_and_every_call_is_answered(tmp_path: Path) -> None:
    calls = range(2, 32)
    async with HttpServer({"large": "x" * LARGE}) as server, client(tmp_path, {"it": server.definition}) as hub:
        await hub.begin()
        for number in calls:
            await hub.call("it__large", number)
        await hub.send(id="last", method="ping")
        await until(lambda: "does not read" in (tmp_path / "hub.log").read_text(), beside=tmp_path)
        answers: dict[Any, dict[str, Any]] = {}
        while len(answers) < len(calls) + 1:
            answer = await hub.read()
            answers[answer["id"]] = answer
    dropped = [answers[one]["error"]["message"] for one in calls if "error" in answers[one]]
    assert set(dropped) == {"the result was dropped: the client did not read its earlier results"}


@pytest.mark.requirement("HUB-17")
async def test_a_client_that_leaves_without_reading_ends_the_hub_which_says_what_was_not_read(tmp_path: Path) -> None:
    log = tmp_path / "hub.log"
    async with HttpServer({"large": "x" * LARGE}) as server, client(tmp_path, {"it": server.definition}) as hub:
        await hub.begin()
        for number in range(2, 32):
            await hub.call("it__large", number)
        await until(lambda: "does not read" in log.read_text(), beside=tmp_path)
        await hub.leave()
        assert await hub.process.wait() == 0
    assert "were not read by the client" in log.read_text()


@pytest.mark.requirement("HUB-17")
async def test_a_client_that_read_all_leaves_a_hub_that_ends_without_a_warning(tmp_path: Path) -> None:
    async with client(tmp_path, {}) as hub:
        await hub.begin()
        await hub.leave()
        assert await hub.process.wait() == 0
    assert "were not read" not in (tmp_path / "hub.log").read_text()


@pytest.mark.requirement("HUB-17")
async def test_the_queue_for_a_full_pipe_is_bounded_and_always_takes_one_message() -> None:
    reader, end = os.pipe()
    try:
        writer = StdoutWriter(end, limit=100_000)
        assert writer.write(b"x" * 1_000_000)
        assert not writer.write(b"y" * 1_000)
        assert writer.unread <= 1_000_000
        assert await writer.close() is False
    finally:
        os.close(reader)
        with anyio.fail_after(10):
            await writer.broken.wait()
        os.close(end)


@pytest.mark.requirement("HUB-17")
async def test_a_request_with_an_id_in_flight_is_refused_and_the_first_gets_its_answer(tmp_path: Path) -> None:
    go, asked = anyio.Event(), anyio.Event()

    async def slow(_: object) -> str:
        asked.set()
        await go.wait()
        return "the first"

    tools: Any = {"slow": slow, "quick": "the second"}
    async with HttpServer(tools) as server, client(tmp_path, {"it": server.definition}) as hub:
        await hub.begin()
        await hub.call("it__slow", 7)
        await asked.wait()
        await hub.call("it__quick", 7)
        refused = await hub.read()
        go.set()
        answer = await hub.read()
        await hub.call("it__quick", 7)
        again = await hub.read()
    assert (refused["id"], refused["error"]["message"]) == (None, "the id 7 is in flight already")
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (7, "the first")
    assert again["result"]["content"][0]["text"] == "the second"
    assert "in flight already" in (tmp_path / "hub.log").read_text()
