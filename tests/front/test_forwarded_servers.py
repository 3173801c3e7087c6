"""Clients of a replica whose stdio server runs on another one: all that the server sends reaches them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import httpx2
import pytest

from tests.front.test_homes import FORM, PATIENCE, LegacyClient, Replica, hurry, message, replicas
from tests.harness.waiting import asked
from tests.peers.leaks import no_leaks

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-6")]

SERVER = {"command": sys.executable, "args": ["-m", "tests.peers.peer_server", "legacy"]}


class Pair(NamedTuple):
    """Two replicas: one runs the server, the other forwards to it."""

    holder: Replica
    other: Replica


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """The tests share two replicas: the fixture ``pair`` looks for what is left."""


@pytest.fixture(scope="module")
async def pair() -> AsyncIterator[Pair]:
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        async with no_leaks(kinds=("tasks", "processes")), replicas({"o": SERVER}, placement="one") as found:
            holder, other = sorted(found, key=lambda one: not one.fleet.leases.runs("o"))
            assert not other.fleet.leases.runs("o")
            yield Pair(holder, other)


@asynccontextmanager
async def client_at(replica: Replica, **capabilities: Any) -> AsyncIterator[LegacyClient]:
    async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        client = LegacyClient(http)
        await client.begin(replica, **capabilities)
        with anyio.fail_after(PATIENCE):
            yield client


async def resource_of(client: LegacyClient, replica: Replica) -> str:
    listed = await client.ask(replica, "resources/list")
    return next(str(one["uri"]) for one in listed["result"]["resources"] if one["name"].endswith("one"))


async def test_an_update_reaches_the_client_that_subscribed_at_the_other_replica_and_no_other(pair: Pair) -> None:
    async with client_at(pair.other) as client, client_at(pair.holder) as stranger:
        uri = await resource_of(client, pair.other)
        async with client.open(pair.other) as events, stranger.open(pair.holder) as elsewhere:
            assert (await client.ask(pair.other, "resources/subscribe", uri=uri))["result"] == {}
            for one, at in ((client, pair.other), (stranger, pair.holder)):
                for changed in ("note://two", "note://one"):
                    await one.call(at, "o__touch", uri=changed)
                assert (await message(events, "notifications/resources/updated"))["params"]["uri"] == uri
            assert (await client.ask(pair.other, "resources/unsubscribe", uri=uri))["result"] == {}
            await stranger.call(pair.holder, "o__grow")
            first = await anext(told async for told in elsewhere if "message" in told)
            assert first["message"]["method"] == "notifications/tools/list_changed", "it subscribed to nothing"
            await message(events, "notifications/tools/list_changed")


async def test_a_changed_list_reaches_the_clients_of_both_replicas(pair: Pair) -> None:
    async with client_at(pair.other) as client, client_at(pair.holder) as near:
        async with client.open(pair.other) as events, near.open(pair.holder) as there:
            await near.call(pair.holder, "o__grow")
            for stream in (events, there):
                await message(stream, "notifications/tools/list_changed")
        seen = [
            {tool["name"] for tool in (await one.ask(at, "tools/list"))["result"]["tools"]}
            for one, at in ((client, pair.other), (near, pair.holder))
        ]
        assert seen[0] == seen[1]
        assert any("grown" in name for name in seen[0])


async def test_progress_and_a_log_message_come_before_the_result(pair: Pair) -> None:
    async with client_at(pair.other) as client:
        counted = client.stream(
            pair.other, "tools/call", name="o__count", arguments={"n": 3}, _meta={"progressToken": "mine"}
        )
        async with counted as events:
            told = [event["message"] async for event in events if "message" in event]
        assert [(one["params"]["progressToken"], one["params"]["progress"]) for one in told[:-1]] == [
            ("mine", number) for number in (1, 2, 3)
        ]
        assert (await client.ask(pair.other, "logging/setLevel", level="warning"))["result"] == {}
        for level, wanted in (("error", ["oh"]), ("info", [])):
            logged = client.stream(pair.other, "tools/call", name="o__log", arguments={"level": level, "text": "oh"})
            async with logged as events:
                told = [event["message"] async for event in events if "message" in event]
            assert [one["params"]["data"] for one in told[:-1]] == wanted
            assert told[-1]["result"]["content"][0]["text"] == "done"


async def test_a_question_in_a_forwarded_call_is_answered_by_its_client(pair: Pair) -> None:
    async with client_at(pair.other, **FORM) as client:
        asking = client.stream(pair.other, "tools/call", name="o__ask", arguments={"kind": "elicit"})
        async with asking as events:
            question = await message(events, "elicitation/create")
            answer = {"action": "accept", "content": {"colour": "blue"}}
            assert (await client.answer(pair.other, question["id"], **answer)).status_code == 202
            result = [event async for event in events][-1]["message"]
        assert result["result"]["content"][0]["text"] == "blue"


async def test_a_cancelled_call_is_cancelled_at_the_server_on_the_other_replica(pair: Pair) -> None:
    async with client_at(pair.other) as client:

        async def text() -> str:
            read = await client.ask(pair.other, "resources/read", request_id="read", uri=cancelled)
            return str(read["result"]["contents"][0]["text"])

        cancelled = (await resource_of(client, pair.other)).replace("one", "cancelled")
        assert await text() == "False"
        hanging = client.stream(pair.other, "tools/call", request_id="mine", name="o__hang", arguments={})
        async with hanging as events:
            await client.notice(pair.other, "notifications/cancelled", requestId="mine")
            assert [event async for event in events][-1]["message"]["error"]["message"] == "Request cancelled"

        async def told() -> bool:
            return await text() == "True"

        await asked(told)


async def test_a_log_message_reaches_its_client_while_the_other_hub_has_a_request_of_its_own(pair: Pair) -> None:
    async with client_at(pair.other) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(pair.other.served.hub.call_tool, "o__hang", {})

        async def arrived() -> bool:
            return pair.holder.served.hub.registry.slot("o").machine.life.calls == 1

        await asked(arrived)
        logged = client.stream(pair.other, "tools/call", name="o__log", arguments={"level": "error", "text": "oh"})
        async with logged as events:
            told = [event["message"] async for event in events if "message" in event]
        assert [one["params"]["data"] for one in told[:-1]] == ["oh"]
        tasks.cancel_scope.cancel()
