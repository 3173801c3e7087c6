"""A legacy client whose stream broke comes back with the last event that it saw, and reads on in its own stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest
from mcp.server.streamable_http import GET_STREAM_KEY, EventMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse

from holdfast.front import sessions
from holdfast.front.sessions import EventLog, ReplayBudget
from tests.front.conftest import Served, front
from tests.front.peer_server import Origin, running
from tests.front.raw_session import Session

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2")]


def _text(event: dict[str, str]) -> str:
    return str(json.loads(event["data"])["result"]["content"][0]["text"])


@asynccontextmanager
async def _scene() -> AsyncIterator[tuple[Origin, Served, httpx2.AsyncClient]]:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        httpx2.AsyncClient() as http,
    ):
        yield origin, served, http


async def test_an_answer_that_came_while_the_client_was_away_is_read_when_it_is_back() -> None:
    async with _scene() as (origin, served, http):
        session = Session(http, served.all)
        with anyio.fail_after(20):
            await session.begin()
            async with session.call("o__wait", {}) as events:
                first = await anext(events)
                await origin.waiting.wait()
            origin.go.set()
            (answer,) = await session.come_back(after=first["id"])
            again = await session.come_back(after=answer["id"])
    assert (first.get("data", ""), first["retry"]) == ("", "1000")
    assert _text(answer) == "waited"
    assert again == []


async def test_a_client_that_is_back_before_the_answer_reads_it_when_it_comes() -> None:
    async with _scene() as (origin, served, http):
        session = Session(http, served.all)
        read: list[dict[str, str]] = []

        async def come_back(after: str) -> None:
            read.extend(await session.come_back(after=after))

        with anyio.fail_after(20):
            await session.begin()
            async with session.call("o__wait", {}) as events:
                first = await anext(events)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(come_back, first["id"])
                await origin.waiting.wait()
                origin.go.set()
    assert [_text(event) for event in read] == ["waited"]


async def test_a_client_never_reads_on_in_another_clients_stream() -> None:
    async with _scene() as (origin, served, http):
        one, other = Session(http, served.all), Session(http, served.all)
        origin.go.set()
        with anyio.fail_after(20):
            await one.begin()
            await other.begin()
            async with other.call("o__echo", {"text": "theirs"}) as events:
                first = await anext(events)
                assert _text(await anext(events)) == "theirs"
            async with one.call("o__echo", {"text": "mine"}) as events:
                await anext(events)
            (answer,) = await one.come_back(after=first["id"])
    assert _text(answer) == "mine"


async def test_an_unknown_event_ends_the_stream_at_once() -> None:
    async with _scene() as (_, served, http):
        session = Session(http, served.all)
        with anyio.fail_after(20):
            await session.begin()
            assert [await session.come_back(after=event) for event in ("999", "-1", "x", "9" * 5_000)] == [[]] * 4


def _answer(text: str) -> JSONRPCResponse:
    return JSONRPCResponse(jsonrpc="2.0", id=1, result={"text": text})


async def _replayed(log: EventLog, after: str) -> list[str]:
    read: list[str] = []

    async def send(event: EventMessage) -> None:
        assert event.event_id is not None
        read.append(event.event_id)

    await log.replay_events_after(after, send)
    return read


async def test_a_session_keeps_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSION_EVENTS", 3)
    bounds = ReplayBudget()
    log = EventLog(bounds, lambda by: None)
    ids = [await log.store_event(str(number), _answer("x")) for number in range(5)]
    assert len(log._events) == 3
    assert await _replayed(log, ids[0]) == []


async def test_only_what_followed_in_the_same_stream_is_replayed() -> None:
    log = EventLog(ReplayBudget(), lambda by: None)
    first = await log.store_event("a", None)
    await log.store_event("b", _answer("theirs"))
    mine = await log.store_event("a", _answer("mine"))
    assert await _replayed(log, first) == [mine]


async def test_the_oldest_of_all_sessions_give_way_and_a_session_that_ended_holds_nothing() -> None:
    bounds = ReplayBudget(most=3_000)
    old, young = EventLog(bounds, lambda by: None), EventLog(bounds, lambda by: None)
    first = await old.store_event("a", None)
    await old.store_event("a", _answer("x" * 1_000))
    for number in range(5):
        await young.store_event(str(number), _answer("y" * 1_000))
    assert bounds.held <= 3_000
    assert await _replayed(old, first) == []
    young.close()
    old.close()
    assert bounds.held == 0


async def test_a_message_larger_than_all_bounds_is_kept_until_the_next() -> None:
    log = EventLog(ReplayBudget(most=10), lambda by: None)
    await log.store_event("a", _answer("x" * 100))
    assert len(log._events) == 1


async def test_a_resumed_notification_stream_gets_all_events_until_the_session_ends() -> None:
    readers: list[int] = []
    log = EventLog(ReplayBudget(), readers.append)
    notice = JSONRPCNotification(jsonrpc="2.0", method="notifications/tools/list_changed")
    first = await log.store_event(GET_STREAM_KEY, notice)
    read: list[str] = []
    came = anyio.Event()

    async def send(event: EventMessage) -> None:
        read.append(event.event_id or "")
        if len(read) == 2:
            came.set()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.replay_events_after, first, send)
            expected = [await log.store_event(GET_STREAM_KEY, notice) for _ in range(2)]
            await came.wait()
            log.close()
    assert read == expected
    assert readers == [1, -1]
