"""Large results with much structure reach those who asked: the library as values, a client of the hub as they came."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

from holdfast.endpoint.instructions import with_notice
from holdfast.errors import CallFailed
from holdfast.hub.hub import Hub
from holdfast.wire import RawObject
from tests.front.loop_steps import LONGEST_STEP, measured_loop
from tests.peers.heavy_http import HeavyHttp, answer, heavy_http

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-1")]

TABLE = [{"a": number, "b": [number]} for number in range(30_000)]
DOCUMENT = json.dumps(TABLE)


def _stored(result: Any) -> bytes:
    return answer(b'{"jsonrpc":"2.0","id":@ID@,"result":' + json.dumps(result).encode() + b"}")


@asynccontextmanager
async def _hub() -> AsyncIterator[tuple[Hub, HeavyHttp]]:
    with heavy_http() as server:
        async with Hub.from_config({"mcpServers": {"heavy": {"url": server.url}}}) as hub:
            assert await hub.ready(10)
            yield hub, server


async def test_large_results_with_much_structure_are_read() -> None:
    async with _hub() as (hub, server):
        server.stored["tools/call"] = _stored(
            {"content": [{"type": "text", "text": DOCUMENT}], "structuredContent": {"table": TABLE}}
        )
        called = await hub.call_tool("heavy__poke", {})
        server.stored["resources/read"] = _stored({"contents": [{"uri": "file:///a", "text": DOCUMENT}]})
        read = await hub.read_resource(hub.catalog.resources[0].name)
        server.stored["prompts/get"] = _stored(
            {"messages": [{"role": "user", "content": {"type": "text", "text": DOCUMENT}}]}
        )
        prompt = await hub.get_prompt("heavy__ask")
    assert called.structured == {"table": TABLE}
    assert called.content[0]["text"] == DOCUMENT
    assert read["contents"][0]["text"] == DOCUMENT
    assert prompt["messages"][0]["content"]["text"] == DOCUMENT


@pytest.mark.requirement("SEC-7")
async def test_a_large_value_is_read_beside_the_event_loop() -> None:
    with measured_loop() as steps:
        async with _hub() as (hub, server):
            server.stored["tools/call"] = await anyio.to_thread.run_sync(
                _stored, {"content": [], "structuredContent": {"table": TABLE}}
            )

            async def act() -> None:
                assert (await hub.call_tool("heavy__poke", {})).structured is not None

            assert await steps.longest_in(act) <= LONGEST_STEP, steps.what


async def test_a_number_that_no_program_reads_fails_its_call_with_a_reason() -> None:
    async with _hub() as (hub, server):
        body = b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[],"structuredContent":{"n":' + b"1" * 5_000 + b"}}}"
        server.stored["tools/call"] = answer(body)
        with pytest.raises(CallFailed, match="its answer does not fit the protocol"):
            await hub.call_tool("heavy__poke", {})


@pytest.mark.parametrize("content", [[], [{"type": "text", "text": DOCUMENT}], [{"type": "text", "text": "a"}] * 9_000])
def test_a_notice_is_added_to_a_result_of_any_size(content: list[Any]) -> None:
    result = RawObject.read(json.dumps({"content": content, "_meta": {"x": 1}}).encode())
    noted = json.loads(with_notice(result, "holdfast/key", "Said by the hub.", tool=True).written())
    assert noted["content"][:-1] == content
    assert noted["content"][-1]["text"] == "Said by the hub."
    assert noted["_meta"] == {"x": 1, "holdfast/key": True}
