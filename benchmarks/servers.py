"""Healthy MCP servers in a separate process, so that their CPU is not counted for the client.

As a program (``python -m benchmarks.servers COUNT``) it prints the addresses as one line of JSON, answers
each line on stdin with the number of requests per era since the last line, and ends at the end of stdin.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Literal

from tests.peers.mcp_http import McpPeer

__all__ = ["ERAS", "Fleet", "fleet"]

ERAS: tuple[Literal["modern", "legacy"], ...] = ("modern", "legacy")
TOOLS = 20
PAGE = 10
"""Two pages each, so that a listing that stops at the first page is noticed."""

END_SECONDS = 10.0

ROOT = Path(__file__).parents[1]


class Fleet:
    """The servers, seen from the process that measures."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.urls: list[str] = json.loads(self._line())

    def requests(self) -> Mapping[str, int]:
        """The number of requests per era since the last time. Waits for open connections to end."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        counted: dict[str, int] = json.loads(self._line())
        return counted

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def fleet(count: int) -> Iterator[Fleet]:
    """Run this many servers, half of each era, until the end of the block."""
    command = [sys.executable, "-m", "benchmarks.servers", str(count)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Fleet(process)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Close its stdin, which ends it. A process that does not end is killed, and that is an error."""
    try:
        process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


async def serve(count: int) -> None:
    """The main function of that process."""
    peers = [McpPeer(era=ERAS[number % 2], tools=TOOLS, page_size=PAGE) for number in range(count)]
    async with AsyncExitStack() as stack:
        for peer in peers:
            await stack.enter_async_context(peer)
        _say([peer.url for peer in peers])
        while await asyncio.to_thread(sys.stdin.readline):
            _say(await _counted(peers))


async def _counted(peers: list[McpPeer]) -> Mapping[str, int]:
    seen: Counter[str] = Counter(dict.fromkeys(ERAS, 0))
    for peer in peers:
        await peer.all_closed()
        seen[peer.mind.era] += len(peer.requests)
        peer.requests.clear()
    return seen


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
