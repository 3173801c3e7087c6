"""What a modern request says of itself is checked for every request, also where the one before said the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings, strategies as st
from mcp import MCPError
from mcp_types import CLIENT_CAPABILITIES_META_KEY, HEADER_MISMATCH, INVALID_PARAMS, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION

from holdfast.endpoint.inbound import meta_of, read_small
from holdfast.front.modern_route import KnownRoutes, route_of
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


GOOD = json.dumps(META)
METAS = [GOOD, GOOD, "{}", "null", "[]", f" {GOOD}", GOOD.replace("/", "\\/"), GOOD.replace("{}", '{"roots":{}}')]
METAS += [f'{GOOD[:-1]},"progressToken":1}}', f'{GOOD[:-1]},"x":"\\ud800"}}', GOOD.replace("{}", "1")]
NAMES = ['"s__echo"', '"s__echo"', '"other"', "5", "null", '"s\\u005f_echo"', '["s__echo"]']
METHODS = ["tools/call", "tools/call", "tools\\/call", "tools/list", "resources/read"]
MEMBERS = st.lists(
    st.sampled_from(METAS).map('"_meta":{}'.format) | st.sampled_from(NAMES).map('"name":{}'.format),
    min_size=1,
    max_size=3,
)

OTHERS = [HEADERS, HEADERS, {**HEADERS, "mcp-name": "other"}, {**HEADERS, "mcp-method": "tools/list"}]
OTHERS += [{**HEADERS, "mcp-protocol-version": "2025-11-25"}]


def _found(method: str, members: list[str], headers: dict[str, str], known: KnownRoutes) -> object:
    """What a request is found to be, or why it is refused."""
    request: Any = SimpleNamespace(head=SimpleNamespace(repeated=()), headers=headers)
    try:
        text = f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{",".join(members)}}}}}'
        message = read_small(text.encode())
        return route_of(message, request, known), meta_of(message)
    except MCPError as refused:
        return refused.error


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(METHODS), MEMBERS, st.sampled_from(OTHERS)), min_size=2, max_size=6))
def test_a_request_is_found_to_be_the_same_after_any_others(
    requests: list[tuple[str, list[str], dict[str, str]]],
) -> None:
    shared: KnownRoutes = {}
    for method, members, headers in requests:
        assert _found(method, members, headers, shared) == _found(method, members, headers, {})
