"""What a modern request says of itself is checked for every request, also where the one before said the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from mcp_types import CLIENT_CAPABILITIES_META_KEY, HEADER_MISMATCH, INVALID_PARAMS, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION

from holdfast.endpoint import EndpointAddress, Exchange, Message
from holdfast.front import Front
from holdfast.hub import Hub
from holdfast.wire import dumps
from tests.front.test_streams import Client
from tests.harness.served_hub import front
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-1")]

META: dict[str, Any] = {PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION, CLIENT_CAPABILITIES_META_KEY: {}}
HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": LATEST_MODERN_VERSION,
    "mcp-method": "tools/call",
    "mcp-name": "s__echo",
}


class ModernCaller:
    """Calls by hand, over one connection and with the same head each time."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url

    async def call(self, name: str = "s__echo", text: str = "x", meta: dict[str, Any] = META) -> dict[str, Any]:
        params = {"name": name, "arguments": {"text": text}, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        answer = await self._http.post(self._url, json=body, headers=HEADERS)
        return answer.json() if answer.headers["content-type"] == "application/json" else _in_stream(answer.text)


def _in_stream(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.rpartition("data: ")[2])
    return found


@pytest.fixture
async def caller() -> AsyncIterator[ModernCaller]:
    async with (
        running("modern") as origin,
        front({"s": {"url": origin.url}}) as served,
        httpx2.AsyncClient() as http,
    ):
        one = ModernCaller(http, served.all)
        for _ in range(3):
            assert "x" in json.dumps((await one.call())["result"]["content"])
        yield one


async def test_another_version_in_meta_is_refused_after_calls_that_agreed(caller: ModernCaller) -> None:
    refused = await caller.call(meta={**META, PROTOCOL_VERSION_META_KEY: "2025-11-25"})
    assert refused["error"]["code"] == HEADER_MISMATCH


async def test_another_name_than_the_header_says_is_refused_after_calls_that_agreed(caller: ModernCaller) -> None:
    refused = await caller.call("s__other")
    assert refused["error"]["code"] == HEADER_MISMATCH


async def test_meta_without_what_it_must_say_is_refused_after_calls_that_said_it(caller: ModernCaller) -> None:
    refused = await caller.call(meta={})
    assert refused["error"]["code"] == INVALID_PARAMS


async def test_each_call_gets_the_answer_to_its_own_arguments(caller: ModernCaller) -> None:
    for text in ("one", "two", "three"):
        assert text in json.dumps((await caller.call(text=text))["result"]["content"])


async def test_a_request_whose_client_left_before_it_was_read_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Message] = []

    async def handled(_: Exchange, message: Message, *__: object, **___: object) -> None:
        made.append(message)

    monkeypatch.setattr(Exchange, "handle", handled)
    headers = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items()).encode()
    async with Hub.from_config({"mcpServers": {}}) as hub:
        endpoint = Front(hub).endpoint_of(EndpointAddress())
        assert endpoint is not None
        for has_left in (False, True):
            client = Client(headers=headers)
            client.request.feed(dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"_meta": META}}))
            client.request.complete = True
            if has_left:
                client.out.drop()
            await endpoint.serve(client.request, client.reply)
            assert len(made) == 1, "only that of the client who is there"
