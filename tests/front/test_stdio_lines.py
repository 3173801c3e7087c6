"""A client over stdio that writes more than it may is told so, under its own id, and is never held in memory."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp import MCPError, StdioServerParameters

from holdfast.front.stdio import CHUNK, MessageLines
from tests.front.loop_steps import LONGEST_STEP, measured_loop
from tests.harness.served_hub import Era, Person, text_of
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-4", "HUB-1")]

BOUND = 1_000
LONG = {"text": "x" * 5_000}


def pieces_of(data: bytes, most: int = CHUNK) -> Callable[[], Awaitable[bytes]]:
    """What reads these bytes, so many at a time."""
    file = io.BytesIO(data)

    async def read() -> bytes:
        return file.read(most)

    return read


async def _read(*lines: bytes) -> tuple[list[str], list[str | int | None]]:
    refused: list[str | int | None] = []

    async def refuse(request: str | int | None) -> None:
        refused.append(request)

    return [line.decode() async for line in MessageLines(pieces_of(b"".join(lines)), BOUND, refuse)], refused


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": LONG}, 5),
        ({"jsonrpc": "2.0", "method": "tools/call", "id": "a", "params": LONG}, "a"),
        ({"method": "tools/call", "params": LONG, "jsonrpc": "2.0", "id": 6}, 6),
        ({"method": "tools/call", "params": LONG, "id": "b", "jsonrpc": "2.0"}, "b"),
        ({"method": "tools/call", "params": {"id": 7, **LONG}}, None),
        ({"method": "tools/call", "params": {**LONG, "id": 7}}, None),
        ({"params": {"x": {"id": 7}, **LONG}, "method": "tools/call"}, None),
    ],
)
async def test_a_line_over_the_bound_is_refused_under_the_id_that_is_its_own(message: Any, told: object) -> None:
    short = b'{"id": 1}\n'
    assert await _read(short, json.dumps(message).encode() + b"\n", short) == ([short.decode()] * 2, [told])


async def test_a_line_at_the_bound_is_read_and_its_end_is_no_part_of_it() -> None:
    assert await _read(b"x" * BOUND + b"\n", b"y" * BOUND) == (["x" * BOUND + "\n", "y" * BOUND], [])


@pytest.mark.parametrize("most", [1, 3, 7, CHUNK])
async def test_lines_do_not_depend_on_how_their_bytes_come(most: int) -> None:
    refused: list[object] = []

    async def refuse(request: object) -> None:
        refused.append(request)

    data = b' \n\r\n a\n\n  \n0123456789\n01234567890\n {"id":7,"method":"x"}\n\n' + b"  " * 50 + b"b"
    lines = [line async for line in MessageLines(pieces_of(data, most), 10, refuse)]
    assert lines == [b"a\n", b"0123456789\n", b"b"]
    assert refused == [None, 7]


async def test_an_endless_line_is_read_in_pieces_and_none_is_kept() -> None:
    left = 500

    async def read() -> bytes:
        nonlocal left
        left -= 1
        return b"x" * CHUNK if left > 0 else b""

    refused: list[object] = []

    async def refuse(request: object) -> None:
        refused.append(request)

    tracemalloc.start()
    try:
        assert [line async for line in MessageLines(read, BOUND, refuse)] == []
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused == [None]
    assert most < 10 * CHUNK


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize("data", [b"\n", b" \r\n", b"{}\n"])
async def test_a_chunk_of_the_shortest_lines_does_not_hold_up_the_event_loop(data: bytes) -> None:
    """One that joined sends as fast as it can: what came is there at once, and nothing of a chunk waits."""

    async def refuse(_: object) -> None:
        raise AssertionError

    reader = asyncio.StreamReader()
    reader.feed_data(data * (CHUNK // len(data)))
    reader.feed_eof()
    with measured_loop() as steps:
        found = [line async for line in MessageLines(partial(reader.read, CHUNK), BOUND, refuse)]
        await anyio.lowlevel.checkpoint()
        assert steps.longest < LONGEST_STEP, steps.what
    assert len(found) == (CHUNK // len(data) if data == b"{}\n" else 0)


async def test_a_client_that_writes_too_much_hears_so_and_goes_on(client_era: Era, ada: Person) -> None:
    async with running() as origin:
        config = {"mcpServers": {"o": {"url": origin.url}}, "holdfast": {"limits": {"messageBytes": "32KiB"}}}
        hub = StdioServerParameters(
            command=sys.executable,
            args=["-m", "tests.harness.stdio_hub", json.dumps(config)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        async with ada.client(hub, client_era) as client:
            with anyio.fail_after(30):
                with pytest.raises(MCPError, match=r"more than 32768 bytes.*holdfast\.limits\.messageBytes"):
                    await client.call_tool("o__echo", {"text": "x" * 100_000})
                echoed = await client.call_tool("o__echo", {"text": "hi"})
    assert text_of(echoed) == "hi"
