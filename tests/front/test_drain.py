"""How a hub leaves: readiness first, then 503 for what is new, and an answer for all that is under way."""

from __future__ import annotations

from typing import Any

import anyio
import httpx2
import pytest

from holdfast.config import config_from_mapping
from holdfast.testing import Fault, HttpServer
from tests.clients.raw import discover, initialize
from tests.harness import waiting
from tests.harness.served_hub import Era, Person, front, text_of
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-7")]

ASK = {"kind": "elicit"}


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_draining_refuses_new_requests_with_503_and_waits_for_those_under_way(ada: Person, era: Era) -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, era) as client,
        httpx2.AsyncClient() as http,
    ):
        results: list[Any] = []
        await client.list_tools()  # the SDK's client would list after its first call

        async def call() -> None:
            results.append(await client.call_tool("o__wait", {}))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await origin.waiting.wait()
                assert not await served.app.state.front.drain(0.01)
                assert served.app.state.front.retiring
                late = [await http.post(served.all, json=one, headers=headers) for one, headers in _late(era)]
                origin.go.set()
            assert await served.app.state.front.drain(5)
    assert text_of(results[0]) == "waited"
    for answer in late:
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["connection"] == "close"
        assert "shutting down" in answer.json()["error"]


def _late(era: Era) -> list[tuple[dict[str, Any], dict[str, str]]]:
    accept = {"accept": "application/json, text/event-stream"}
    if era == "legacy":
        return [(initialize(), accept), ({"jsonrpc": "2.0", "id": 2, "method": "ping"}, accept)]
    return [(discover(), {**accept, "mcp-protocol-version": "2026-07-28", "mcp-method": "server/discover"})]


async def test_while_it_retires_a_hub_serves_all_and_closes_each_connection_after_its_answer(ada: Person) -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, "legacy") as client,
        httpx2.AsyncClient() as http,
    ):
        served.app.state.front.retire()
        with anyio.fail_after(10):
            assert text_of(await client.call_tool("o__echo", {"text": "still here"})) == "still here"
            ready = await http.get(f"{served.base}/readyz")
            alive = await http.get(f"{served.base}/healthz")
    assert (ready.status_code, alive.status_code) == (503, 200)
    assert ready.headers["connection"] == alive.headers["connection"] == "close"


async def test_a_server_that_is_added_later_does_not_take_the_hub_out_of_its_balancer() -> None:
    async with HttpServer({"a": "one"}) as old, HttpServer({"b": "two"}) as new:
        await new.fail(Fault.HANG)
        async with (
            front({"old": old.definition}, wait=False) as served,
            httpx2.AsyncClient(trust_env=False) as http,
        ):
            await waiting.ready(f"{served.base}/readyz")
            added = {"old": old.definition, "new": new.definition}
            await served.hub.apply(config_from_mapping({"mcpServers": added}))
            assert not await served.hub.ready(0)
            assert (await http.get(f"{served.base}/readyz")).status_code == 200
            served.app.state.front.retire()
            assert (await http.get(f"{served.base}/readyz")).status_code == 503


async def test_a_question_that_cannot_be_answered_any_more_is_told_to_client_and_server(ada: Person) -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, "legacy") as client,
    ):
        asked = anyio.Event()

        async def never() -> None:
            asked.set()
            await anyio.sleep_forever()

        ada.before_answering = never
        await client.list_tools()
        results: list[str] = []

        async def call() -> None:
            results.append(text_of(await client.call_tool("o__ask", ASK)))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await asked.wait()
                assert await served.app.state.front.drain(5)
    assert "the hub is shutting down" in results[0]
