"""The hub on the pipe of its client, in this process: what is read, what waits to be read, what the options mean."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from mcp import MCPError

from holdfast.endpoint import Broker
from holdfast.front import stdio
from holdfast.front.stdio import ERROR_BYTES, PipeClient, StdinReader, StdoutWriter, serve_stdio
from holdfast.hub import Hub
from tests.clients.raw import initialize
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-17")]

NEVER = 3_600.0
"""Seconds that no test waits for."""


# What is read.


async def test_what_came_is_read_before_the_end_that_the_hub_sets() -> None:
    out, client = os.pipe()
    reader = StdinReader(out)
    with anyio.fail_after(20):
        os.write(client, b"the last words")
        read = await reader.read()
        reader.end()
        reader.end()
        assert (read, await reader.read()) == (b"the last words", b"")
    reader.close()
    os.close(client)
    os.close(out)


async def test_the_end_of_the_client_is_the_end_of_what_is_read() -> None:
    out, client = os.pipe()
    reader = StdinReader(out)
    os.write(client, b"x" * 10)
    os.close(client)
    with anyio.fail_after(20):
        assert (await reader.read(), await reader.read()) == (b"x" * 10, b"")
    reader.end()  # its thread has ended
    reader.close()
    os.close(out)


# What waits to be read.


@asynccontextmanager
async def reading(fd: int) -> AsyncIterator[asyncio.StreamReader]:
    """A reader of a descriptor, which is closed at the end."""
    reader = asyncio.StreamReader()
    with os.fdopen(fd, "rb") as file:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
        try:
            yield reader
        finally:
            transport.close()
            await anyio.lowlevel.checkpoint()


class FullPipe:
    """A pipe that takes nothing more until it is read."""

    def __init__(self) -> None:
        self.out, self.end = os.pipe()
        os.set_blocking(self.end, False)
        self.filled = 0
        try:
            while True:
                self.filled += os.write(self.end, b"-" * 4_096)
        except BlockingIOError:
            os.set_blocking(self.end, True)

    async def read(self, size: int) -> bytes:
        """What was written behind the filling."""
        async with reading(os.dup(self.out)) as reader:
            return (await reader.readexactly(self.filled + size))[self.filled :]


@contextmanager
def full_pipe() -> Iterator[FullPipe]:
    pipe = FullPipe()
    try:
        yield pipe
    finally:
        os.close(pipe.end)
        os.close(pipe.out)


async def test_as_much_as_the_bound_may_wait_and_an_error_a_little_more() -> None:
    with full_pipe() as pipe, anyio.fail_after(20):
        writer = StdoutWriter(pipe.end, limit=1_000)
        assert writer.write(b"a" * 600)
        assert writer.write(b"b" * 400)
        assert not writer.write(b"c")
        assert not writer.write(b"d" * 6, extra=5)
        assert writer.write(b"e" * 5, extra=5)
        assert writer.unread == 1_005
        assert await pipe.read(1_005) == b"a" * 600 + b"b" * 400 + b"e" * 5
        assert await writer.close() is True


async def test_at_the_end_a_client_that_goes_on_reading_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "FLUSH_SECONDS", NEVER)
    with full_pipe() as pipe, anyio.fail_after(20):
        writer = StdoutWriter(pipe.end)
        writer.write(b"x" * 300_000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipe.read, 300_000)
            assert await writer.close() is True
    assert writer.unread == 0


async def test_a_hub_whose_client_read_all_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "FLUSH_SECONDS", NEVER)
    out, end = os.pipe()
    with anyio.fail_after(20):
        assert await StdoutWriter(end).close() is True
    os.close(out)
    os.close(end)


async def test_a_hub_does_not_wait_for_a_client_that_closed_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "FLUSH_SECONDS", NEVER)
    out, end = os.pipe()
    os.close(out)
    with anyio.fail_after(20):
        writer = StdoutWriter(end)
        writer.write(b"no one reads this")
        await writer.broken.wait()
        assert await writer.close() is False
    os.close(end)


class Unread:
    """A writer whose client reads nothing any more: it takes short errors alone."""

    unread = 7

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []

    def write(self, line: bytes, *, extra: int = 0) -> bool:
        assert extra in (0, ERROR_BYTES)
        if extra:
            self.taken.append(json.loads(line))
        return bool(extra)


async def test_a_client_that_does_not_read_gets_errors_in_place_of_results_and_is_not_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = Unread()
    client = PipeClient(writer)  # type: ignore[arg-type]
    client.tell("notifications/tools/list_changed", None)
    client.result(b"1", b'{"content":[]}')
    client.write_error(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no message"}}')
    with pytest.raises(MCPError, match="the client does not read its messages"):
        client.put_question(b'{"jsonrpc":"2.0","id":5,"method":"roots/list"}')
    told = [(one["id"], one["error"]["message"]) for one in writer.taken]
    assert told == [
        (1, "the result was dropped: the client did not read its earlier results"),
        (None, "no message"),
    ]
    assert len(caplog.records) == 1, "it is said once"


# The options.


class Pipe:
    """The client's ends of the pipes."""

    def __init__(self, stdin: int, stdout: asyncio.StreamReader) -> None:
        self._stdin = stdin
        self._stdout = stdout

    async def ask(self, number: int, method: str, **params: Any) -> Any:
        """The result of a request."""
        self.send(id=number, method=method, params=params)
        while (answer := await self.read()).get("id") != number:
            pass
        return answer["result"]

    async def begin(self) -> None:
        await self.ask(1, "initialize", **initialize()["params"])

    def send(self, **message: Any) -> None:
        os.write(self._stdin, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def read(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self._stdout.readline())
        return message


@asynccontextmanager
async def on_the_pipe(
    hub: Hub, *, leaves: bool = True, broker: Broker | None = None, **options: Any
) -> AsyncIterator[Pipe]:
    """Serve a hub on pipes in place of stdin and stdout of this process; afterwards these are as they were.

    At the end the client closes its pipe, unless it stays.
    """
    broker = broker or Broker(hub)
    (stdin, client), (answers, stdout) = os.pipe(), os.pipe()
    kept = os.dup(0), os.dup(1)
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    try:
        with anyio.fail_after(60):
            async with reading(answers) as reader, hub, anyio.create_task_group() as tasks:
                assert await hub.ready(60)
                tasks.start_soon(lambda: serve_stdio(hub, broker=broker, **options))
                with os.fdopen(client if leaves else os.dup(client), "wb"):
                    yield Pipe(client, reader)
        assert (os.fstat(0).st_ino, os.fstat(1).st_ino) == (os.fstat(stdin).st_ino, os.fstat(stdout).st_ino)
    finally:
        for one, fd in enumerate(kept):
            os.dup2(fd, one)
            os.close(fd)
        os.close(stdin)
        os.close(stdout)
        if not leaves:
            os.close(client)


async def tools_of(pipe: Pipe) -> set[str]:
    await pipe.begin()
    return {tool["name"] for tool in (await pipe.ask(2, "tools/list"))["tools"]}


@pytest.mark.parametrize(
    ("setting", "options", "shown"),
    [
        ("all", {}, {"o__echo", "o__fail"}),
        ("all", {"profile": "work"}, {"o__echo"}),
        ("all", {"tools": "find"}, {"find_tools"}),
        ("find", {}, {"find_tools"}),
        ("find", {"tools": "all", "profile": "work"}, {"o__echo"}),
    ],
)
async def test_a_client_on_the_pipe_sees_what_the_options_and_else_the_settings_say(
    setting: str, options: dict[str, Any], shown: set[str]
) -> None:
    async with running() as origin:
        own = {"tools": setting, "profiles": {"work": ["o/echo"]}}
        hub = Hub.from_config({"mcpServers": {"o": {"url": origin.url}}, "holdfast": own})
        async with on_the_pipe(hub, **options) as pipe:
            assert {"o__echo", "o__fail", "find_tools"} & await tools_of(pipe) == shown


async def test_while_the_pipe_is_served_what_else_is_printed_or_read_stays_apart_from_it() -> None:
    async with on_the_pipe(Hub.from_config({"mcpServers": {}})) as pipe:
        await pipe.begin()
        pipe.send(method="notifications/initialized")
        os.write(1, b"")  # stderr of this process, which stays as it is
        assert os.fstat(1).st_ino == os.fstat(2).st_ino
        assert os.read(0, 10) == b"", "what a child inherits as its input is empty"
        assert await pipe.ask(3, "ping") == {}


async def test_a_hub_that_is_told_to_end_ends_while_its_client_stays() -> None:
    ended = anyio.Event()
    async with on_the_pipe(Hub.from_config({"mcpServers": {}}), leaves=False, ended=ended) as pipe:
        await pipe.begin()
        ended.set()


async def test_a_broker_that_is_passed_is_the_one_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub.from_config({"mcpServers": {}})
    broker = Broker(hub)
    run, running_ones = broker.run, list[Broker]()

    async def noted(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        running_ones.append(broker)
        await run(task_status=task_status)

    monkeypatch.setattr(broker, "run", noted)
    async with on_the_pipe(hub, broker=broker) as pipe:
        await pipe.begin()
    assert running_ones == [broker]
