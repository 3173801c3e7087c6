"""The era of a connection over stdio: the first request that needs one decides; a question about versions does not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import pytest

from holdfast.endpoint.broker import Broker
from holdfast.endpoint.server import McpServer
from holdfast.endpoint.view import View
from holdfast.front.stdio import MessageLines, PipeServer, StdoutWriter
from holdfast.hub import Hub
from tests.clients.raw import MODERN_META, discover, initialize

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2")]

MODERN_LIST = {"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": {"_meta": MODERN_META}}
LEGACY_LIST = {"jsonrpc": "2.0", "id": 4, "method": "tools/list"}


class Answers:
    """Keeps the answers by their ids; takes the place of the writer and of the input's lines."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = messages
        self._all = anyio.Event()
        self.by_id: dict[int, dict[str, Any]] = {}

    def write(self, line: bytes, *, extra: int = 0) -> bool:
        answer = json.loads(line)
        if "id" in answer:
            self.by_id[answer["id"]] = answer
        if len(self.by_id) == len(self._messages):
            self._all.set()
        return True

    async def lines(self) -> AsyncIterator[bytes]:
        for message in self._messages:
            yield json.dumps(message).encode()
        with anyio.fail_after(20):
            await self._all.wait()


async def _answers(*messages: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """What a hub without servers answers to messages that come at once."""
    answers = Answers(*messages)
    hub = Hub.from_config({"mcpServers": {}})
    async with hub, anyio.create_task_group() as tasks:
        server = McpServer(Broker(hub), View(hub))
        pipe = PipeServer.of(server, tasks, cast("StdoutWriter", answers), 1_000_000)
        await pipe.serve(cast("MessageLines", answers.lines()))
        tasks.cancel_scope.cancel()
    return answers.by_id


async def test_a_client_whose_question_was_answered_too_late_for_it_goes_on_with_the_handshake() -> None:
    """So does the Vercel AI SDK: it waits 1 s for ``server/discover``, which a hub that starts needs."""
    seen = await _answers(discover() | {"id": 2}, initialize(), LEGACY_LIST)
    assert seen[2]["result"]["supportedVersions"] == ["2026-07-28"]
    assert seen[1]["result"]["protocolVersion"] == "2025-11-25"
    assert "resultType" not in seen[4]["result"], "an answer of the modern era"


async def test_a_client_that_uses_an_answer_of_the_modern_era_stays_in_it() -> None:
    seen = await _answers(discover() | {"id": 2}, MODERN_LIST, initialize())
    assert "tools" in seen[3]["result"]
    assert seen[1]["error"]["code"] == -32022


async def test_a_client_that_made_the_handshake_stays_in_its_era() -> None:
    seen = await _answers(initialize(), discover() | {"id": 2}, MODERN_LIST)
    assert {seen[2]["error"]["code"], seen[3]["error"]["code"]} == {-32600}
