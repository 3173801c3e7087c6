"""The stdio peer is a real child that the SDK loads, and that misbehaves as its flags say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import TextContent

from tests.harness.waiting import gone
from tests.peers.leaks import alive, no_leaks
from tests.peers.rpc import BUILT_IN, MODERN_VERSION
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio

MakePeer: TypeAlias = Callable[..., StdioPeer]
LIST: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
DISCOVER: dict[str, Any] = {"jsonrpc": "2.0", "id": 2, "method": "server/discover", "params": {}}


def sdk_client(peer: StdioPeer, **options: Any) -> Client:
    parameters = StdioServerParameters(command=peer.command, args=list(peer.args), env={"MINE": "yes"})
    return Client(stdio_client(parameters), cache=None, **options)


class Child:
    """A started peer, spoken to line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process, self.stdin = process, process.stdin
        self.stdout, self.stderr = process.stdout, process.stderr

    def say(self, message: dict[str, Any]) -> None:
        self.stdin.write(json.dumps(message).encode() + b"\n")

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self.say(message)
        answer: dict[str, Any] = json.loads(await self.stdout.readline())
        return answer

    async def silence(self) -> bool:
        """Whether stdout stays open and has nothing to say."""
        with anyio.move_on_after(0.1) as waiting:
            await self.stdout.read(1)
        return waiting.cancelled_caught


@contextlib.asynccontextmanager
async def started(peer: StdioPeer) -> AsyncIterator[Child]:
    """Run the peer, killing whatever of it is left at the end."""
    process = await asyncio.create_subprocess_exec(
        peer.command,
        *peer.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with anyio.fail_after(10):
            yield Child(process)
    finally:
        peer.kill()
        # Its pipes first: wait() waits for their end too, and a pipe that was written faster than it was read has none.
        process._transport.close()  # type: ignore[attr-defined]
        await process.wait()


@pytest.mark.parametrize(("era", "version"), [("legacy", "2025-11-25"), ("modern", MODERN_VERSION)])
async def test_the_sdk_loads_and_calls_a_peer_of_either_era(era: str, version: str, stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--era", era, "--instructions", "Be kind.")
    async with no_leaks(), sdk_client(peer) as client:
        assert (client.protocol_version, client.instructions) == (version, "Be kind.")
        assert [tool.name for tool in (await client.list_tools()).tools] == list(BUILT_IN)
        assert (await client.call_tool("fail", {})).is_error
        assert not (await client.call_tool("progress", {})).is_error
    assert (peer.starts, peer.living) == (1, [])
    assert peer.methods[0] == "server/discover"
    assert ("initialize" in peer.methods) is (era == "legacy")


async def test_the_environment_is_shown_on_request(stdio_peer: MakePeer) -> None:
    async with sdk_client(stdio_peer("--print-env")) as client:
        [content] = (await client.call_tool("env", {})).content
        assert isinstance(content, TextContent)
        assert json.loads(content.text)["MINE"] == "yes"


async def test_pages_and_a_padded_catalog_are_as_told(stdio_peer: MakePeer) -> None:
    async with started(stdio_peer("--tools", "7", "--page-size", "3")) as child:
        page = (await child.ask(LIST))["result"]
        assert (len(page["tools"]), page["nextCursor"]) == (3, "3")
    async with started(stdio_peer("--tools", "1", "--oversized", "20000")) as child:
        assert len((await child.ask(LIST))["result"]["tools"][0]["description"]) > 20_000


async def test_a_slow_call_is_answered_when_another_call_releases_it(stdio_peer: MakePeer) -> None:
    async with started(stdio_peer()) as child:
        child.say({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "slow"}})
        release = {"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": {"name": "release"}}
        assert (await child.ask(release))["id"] == 7
        assert json.loads(await child.stdout.readline())["id"] == 8


async def test_a_peer_exits_at_once_with_its_code_and_its_words(stdio_peer: MakePeer) -> None:
    async with started(stdio_peer("--exit-at-once", "3", "--stderr", "no database")) as child:
        assert await child.process.wait() == 3
        assert await child.stderr.read() == b"no database\n"
        assert await child.stdout.read() == b""


@pytest.mark.parametrize(
    ("flag", "noise"), [("--banner", b"Welcome"), ("--bad-utf8", b"\xff\xfe")], ids=["banner", "bad-utf8"]
)
async def test_noise_comes_first_and_then_the_peer_works(flag: str, noise: bytes, stdio_peer: MakePeer) -> None:
    async with started(stdio_peer(flag)) as child:
        child.say(LIST)
        lines = [await child.stdout.readline()]
        while b"jsonrpc" not in lines[-1]:
            lines.append(await child.stdout.readline())
        assert noise in lines[0]
        assert "result" in json.loads(lines[-1])


async def test_garbage_is_all_that_a_garbage_peer_says(stdio_peer: MakePeer) -> None:
    async with started(stdio_peer("--garbage")) as child:
        child.say(LIST)
        assert await child.stdout.readline() == b"Traceback (most recent call last):\n"
        await child.stdout.readline()
        assert await child.silence()
    async with started(stdio_peer("--garbage-flood")) as child:
        assert len(await child.stdout.readexactly(1_000_000)) == 1_000_000


@pytest.mark.parametrize("flag", ["--never-answer", "--ignore-discover"])
async def test_silence_is_kept_where_it_was_asked_for(flag: str, stdio_peer: MakePeer) -> None:
    peer = stdio_peer(flag)
    async with started(peer) as child:
        child.say(DISCOVER)
        await peer.until(lambda: peer.methods)
        assert await child.silence()
        assert peer.methods == ["server/discover"]
        if flag == "--ignore-discover":
            assert "result" in await child.ask(LIST)


@pytest.mark.parametrize(
    ("flags", "messages", "code"),
    [
        (["--die-on-discover"], [DISCOVER], 1),
        (["--die-after-handshake"], [{"jsonrpc": "2.0", "method": "notifications/initialized"}], 1),
        (["--die-in-call"], [{**LIST, "method": "tools/call", "params": {"name": "echo"}}], 9),
    ],
    ids=["on-discover", "after-handshake", "in-call"],
)
async def test_a_peer_dies_where_it_was_told_to(
    flags: list[str], messages: list[dict[str, Any]], code: int, stdio_peer: MakePeer
) -> None:
    async with started(stdio_peer(*flags)) as child:
        assert "result" in await child.ask(LIST)
        for message in messages:
            child.say(message)
        assert await child.process.wait() == code
        assert await child.stdout.read() == b""


async def test_a_flood_on_stderr_has_to_be_drained_before_the_peer_works(stdio_peer: MakePeer) -> None:
    async with started(stdio_peer("--flood-stderr")) as child:
        child.say(LIST)
        assert await child.silence()
        assert len(await child.stderr.readexactly(4 * 1024 * 1024)) == 4 * 1024 * 1024
        assert b"result" in await child.stdout.readline()


async def test_a_peer_stops_reading_after_its_tools_were_listed(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--stop-reading")
    async with started(peer) as child:
        assert "result" in await child.ask(LIST)
        child.say(LIST)
        assert await child.silence()
        assert peer.methods == ["tools/list"]


async def test_a_stubborn_peer_survives_the_end_of_stdin_and_a_polite_signal(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--ignore-stdin-close", "--ignore-term")
    async with started(peer) as child:
        assert "result" in await child.ask(LIST)
        child.process.send_signal(signal.SIGTERM)
        assert "result" in await child.ask(LIST)
        child.stdin.close()
        assert await child.silence()
        assert alive(peer.pids[0])


@pytest.mark.parametrize("flag", ["--grandchild", "--grandchild-daemon"])
async def test_a_grandchild_holds_the_pipes_of_a_parent_that_is_gone(flag: str, stdio_peer: MakePeer) -> None:
    peer = stdio_peer(flag)
    async with no_leaks(), started(peer) as child:
        assert "result" in await child.ask(LIST)
        child.stdin.close()
        await gone(child.process.pid)  # asyncio tells of an exit only once the pipes close
        assert await child.silence(), "stdout is still open"
        assert peer.living == peer.grandchildren
        in_the_group = os.getpgid(peer.grandchildren[0]) == child.process.pid
        assert in_the_group is (flag == "--grandchild")


async def test_each_start_is_logged(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--exit-at-once", "0")
    for _ in range(3):
        async with started(peer) as child:
            await child.process.wait()
    assert peer.starts == 3
    assert peer.command == sys.executable
