"""A client over stdio that writes more than it may is told so, under its own id, and is never held in memory."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

import anyio
import pytest
from mcp import MCPError, StdioServerParameters

from holdfast.front.stdio import CHUNK, StdinLines
from tests.harness.served_hub import Era, Person, text_of
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-4", "HUB-1")]

BOUND = 1_000
LONG = {"text": "x" * 5_000}


async def _read(*lines: bytes) -> tuple[list[str], list[str | int | None]]:
    refused: list[str | int | None] = []

    async def refuse(request: str | int | None) -> None:
        refused.append(request)

    return [line.decode() async for line in StdinLines(io.BytesIO(b"".join(lines)), BOUND, refuse)], refused


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


async def test_an_endless_line_is_read_in_pieces_and_none_is_kept() -> None:
    class Endless(io.RawIOBase):
        """So many pieces without an end; it remembers the longest that was asked for."""

        left, longest = 500, 0

        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            self.longest = max(self.longest, size)
            self.left -= 1
            return b"x" * size if self.left > 0 else b""

    endless = Endless()
    refused: list[object] = []

    async def refuse(request: object) -> None:
        refused.append(request)

    assert [line async for line in StdinLines(endless, BOUND, refuse)] == []  # type: ignore[arg-type] # all it needs
    assert refused == [None]
    assert endless.longest == CHUNK


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
