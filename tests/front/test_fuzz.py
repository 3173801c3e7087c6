"""Whatever a client sends, the front answers or refuses it, and serves the next one."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from subprocess import PIPE
from typing import Any

import anyio
import httpx2
import pytest

from tests.front.conftest import Person, front, text_of
from tests.front.origin import running
from tests.front.test_guard import HEADERS, INITIALIZE

pytestmark = pytest.mark.anyio

ROUNDS = 150
VALUES: list[Any] = [None, True, 0, -1, 1e308, "", "x" * 3000, "\ud800", [], {}, [[]], {"a": {"b": []}}, "tools/call"]
METHODS = [
    "tools/call", "tools/list", "prompts/get", "resources/read", "completion/complete", "resources/subscribe",
    "logging/setLevel", "ping", "initialize", "server/discover", "subscriptions/listen", "no/such", "",
]  # fmt: skip


def messages(seed: int) -> Iterator[bytes]:
    """Messages that are almost right, then less and less so."""
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        params = {
            key: chance.choice(VALUES)
            for key in chance.sample(["name", "arguments", "uri", "cursor", "ref", "argument", "level", "_meta"], 3)
        }
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "method": chance.choice(METHODS), "params": params}
        for key in chance.sample(sorted(message), chance.randrange(3)):
            message[key] = chance.choice(VALUES)
        raw = json.dumps(message).encode()
        if chance.random() < 0.3:
            cut = chance.randrange(len(raw))
            raw = raw[:cut] + bytes(chance.randrange(256) for _ in range(3)) + raw[cut + 1 :]
        yield raw


@pytest.mark.requirement("SEC-4")
@pytest.mark.parametrize("version", [None, "2025-11-25", "2026-07-28", "1999-01-01"])
async def test_no_message_over_http_hurts_the_next(version: str | None, ada: Person) -> None:
    async with running() as origin, front({"o": {"url": origin.url}}) as served, httpx2.AsyncClient() as http:
        opened = await http.post(served.all, json=INITIALIZE, headers=HEADERS)
        headers = {**HEADERS, "mcp-session-id": opened.headers["mcp-session-id"]}
        if version is not None:
            headers["mcp-protocol-version"] = version
        for raw in messages(seed=1):
            with anyio.move_on_after(0.5):  # a stream that is rightly opened has no end
                response = await http.post(served.all, content=raw, headers=headers)
                assert response.status_code < 500, (raw, response.text)
        async with ada.client(served.all, "legacy") as client:
            assert text_of(await client.call_tool("o__echo", {"text": "hi"})) == "hi"


@pytest.mark.requirement("SEC-4")
async def test_no_message_over_stdio_ends_the_hub() -> None:
    command = [sys.executable, "-m", "tests.front.stdio_hub", json.dumps({"mcpServers": {}})]
    async with await anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=None) as hub:
        assert hub.stdin is not None
        assert hub.stdout is not None
        with anyio.fail_after(60):
            await hub.stdin.send(json.dumps(INITIALIZE).encode() + b"\n")
            for raw in messages(seed=2):
                await hub.stdin.send(raw.replace(b"\n", b" ") + b"\n")
            await hub.stdin.send(b'{"jsonrpc":"2.0","id":"last","method":"ping"}\n')
            heard = b""
            while b'"last"' not in heard:
                heard = heard[-65536:] + await hub.stdout.receive()
            await hub.stdin.aclose()
            assert await hub.wait() == 0
