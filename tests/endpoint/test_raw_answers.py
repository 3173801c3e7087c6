"""Over every transport and in both eras: what JSON allows passes as it came; what it does not allow fails alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest

from tests.clients.raw import MODERN_META, initialize
from tests.harness.served_hub import PATIENT, Era, Served, front
from tests.wire.raw_answers import LARGE, TRANSPORTS, raw_server

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LIFE-28")]

SECRET = "SECRET-CONTENT"

PASSES = (
    r'"x":"cut \ud83d"',
    r'"x":"\ude00\ud83d reversed"',
    '"x":' + "9" * 4000,
    '"x":-123456789012345678901234567890',
    '"x":1e400',
    '"x":1.0e-7',
    '"x":{"b":1,"a":2,"unknown":{"deep":[null, true]}}',
    '"x":"\u00e4"'.encode().decode("latin-1"),
)
FAILS = (
    ('"x":"\xff"', "it is not UTF-8"),
    ('"x":NaN', "NaN and Infinity are not JSON"),
    ('"x":-Infinity', "NaN and Infinity are not JSON"),
    ('"x":$DEEP', "it is nested too deep"),
    ('"x":}', "it is not JSON"),
    ('"x":$LARGE', "messageBytes"),
)


def line(text: str) -> str:
    content = '{"content":[{"type":"text","text":"' + SECRET + '"}],' + text + "}"
    return '{"jsonrpc":"2.0","id":$ID,"result":' + content + "}"


class Client:
    """A client by hand, whose answers are bytes."""

    def __init__(self, http: httpx2.AsyncClient, url: str, era: Era) -> None:
        self._http, self._url, self._era = http, url, era
        self._headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

    async def begin(self) -> None:
        if self._era == "legacy":
            answer = await self._http.post(self._url, json=initialize(), headers=self._headers)
            self._headers["mcp-session-id"] = answer.headers["mcp-session-id"]

    async def call(self, tool: str, **arguments: Any) -> bytes:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        headers = dict(self._headers)
        if self._era == "modern":
            params["_meta"] = MODERN_META
            headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        with anyio.fail_after(20):  # a call that waits out its timeout takes 60 s
            return (await self._http.post(self._url, json=body, headers=headers)).content


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        servers: dict[str, Any] = {name: await stack.enter_async_context(raw_server(name)) for name in TRANSPORTS}
        limits = {"messageBytes": len(LARGE) - 50_000}
        yield await stack.enter_async_context(front(servers, call=PATIENT, limits=limits))


async def test_answers_pass_as_they_came_or_fail_their_own_call_at_once_with_the_reason(
    client_era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: list[str] = []
    async with served() as hub, httpx2.AsyncClient(timeout=30) as http:
        client = Client(http, hub.all, client_era)
        await client.begin()
        for transport in TRANSPORTS:
            for text in PASSES:
                answer = await client.call(f"{transport}__raw", line=line(text))
                if text.encode("latin-1") not in answer:
                    wrong.append(f"{transport}: {text[:40]} came as {answer[:300]!r}")
            for text, why in FAILS:
                answer = await client.call(f"{transport}__raw", line=line(text))
                if why.encode() not in answer or SECRET.encode() in answer:
                    wrong.append(f"{transport}: {text[:20]} failed as {answer[:300]!r}")
                fine = json.loads(await client.call(f"{transport}__fine"))
                if fine.get("result", {}).get("content") != [{"type": "text", "text": "fine"}]:
                    wrong.append(f"{transport}: after {text[:20]}: {fine}")
        health = {name: hub.hub.server_health(name) for name in TRANSPORTS}
    assert not wrong, "\n".join(wrong)
    assert {name: (one.status, one.generation) for name, one in health.items()} == dict.fromkeys(
        TRANSPORTS, ("available", 1)
    )
    assert SECRET not in caplog.text
