"""A legacy client whose stream broke comes back with the last event that it saw, and reads on in its own stream."""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest

from holdfast.front import requests, streams
from holdfast.front.listener import HttpConnection
from holdfast.front.streams import Backlog, EventId, EventLog, LogBounds, MessageStream
from tests.harness.raw_session import Session
from tests.harness.served_hub import Served, front
from tests.harness.waiting import came_true
from tests.peers.peer_server import Origin, running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2")]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer becomes an event stream at once, and not only when it takes long."""
    monkeypatch.setattr(requests, "STREAM_AFTER_SECONDS", 0.0)


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


@pytest.mark.requirement("HUB-17")
async def test_a_request_with_an_id_in_flight_is_refused_and_the_first_gets_its_answer() -> None:
    async with _scene() as (origin, served, http):
        session = Session(http, served.all)
        with anyio.fail_after(20):
            await session.begin()
            async with session.call("o__wait", {}) as events:
                await anext(events)
                await origin.waiting.wait()
                async with session.request("ping", status=400) as refused:
                    told = json.loads((await anext(refused))["data"])
                origin.go.set()
                answer = await anext(events)
            async with session.request("ping") as again:
                assert json.loads((await anext(again))["data"]) == {"jsonrpc": "2.0", "id": 7, "result": {}}
    assert (told["id"], told["error"]["message"]) == (None, "the id 7 is in flight already")
    assert _text(answer) == "waited"


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


@pytest.mark.requirement("HUB-17", "PERF-8")
async def test_the_log_of_answered_calls_keeps_no_request_and_no_connection() -> None:
    async with _scene() as (_, served, http):
        session = Session(http, served.all)
        with anyio.fail_after(20):
            await session.begin()
            before, answer = _alive(requests.Reply), dict[str, str]()
            for _ in range(5):
                async with session.call("o__count", {"n": 2}) as events:
                    *_, answer = [event async for event in events]
                    assert _text(answer) == "done"
        await came_true(lambda: _alive(requests.Reply) <= before, within=10)
        assert await session.come_back(after=answer["id"]) == []
        await came_true(lambda: _alive(requests.Reply) <= before, within=10)


async def test_a_connection_whose_client_left_while_it_was_served_is_forgotten_at_once() -> None:
    before = _alive(HttpConnection)
    async with _scene() as (origin, served, http):
        session = Session(http, served.all)
        with anyio.fail_after(20):
            await session.begin()
            async with session.call("o__wait", {}):
                await origin.waiting.wait()
            origin.go.set()
        await came_true(lambda: _alive(HttpConnection) <= before, within=10)


def _alive(kind: type) -> int:
    gc.collect()
    return sum(type(one) is kind for one in gc.get_objects())


async def test_a_client_never_reads_on_in_another_clients_stream() -> None:
    async with _scene() as (_, served, http):
        one, other = Session(http, served.all), Session(http, served.all)
        with anyio.fail_after(20):
            await one.begin()
            await other.begin()
            async with other.call("o__log", {"level": "error", "text": "theirs"}) as events:
                first = await anext(events)
                assert "theirs" in (await anext(events))["data"]
            async with one.call("o__log", {"level": "error", "text": "mine"}) as events:
                await anext(events)
            read = [event["data"] for event in await one.come_back(after=first["id"])]
    assert len(read) == 1
    assert "is lost" in read[0]


async def test_an_unknown_event_ends_the_stream_at_once() -> None:
    async with _scene() as (_, served, http):
        session = Session(http, served.all)
        with anyio.fail_after(20):
            await session.begin()
            assert [await session.come_back(after=event) for event in ("999", "-1", "x", "9" * 5_000)] == [[]] * 4


def _log(bounds: LogBounds) -> EventLog:
    return EventLog(bounds)


def _stream() -> MessageStream:
    return MessageStream(None, None, Backlog())


def test_a_session_keeps_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LOGGED_EVENTS", 3)
    bounds, stream = LogBounds(), _stream()
    log = _log(bounds)
    numbers = [log.add(stream, b"x") for _ in range(5)]
    assert bounds.held == 3
    first, last = (EventId.read(log.event_id(stream, number).decode()) for number in (numbers[0], numbers[4]))
    assert first is not None
    assert last is not None
    assert log.stream_of(first) is None
    assert log.stream_of(last) is stream


def test_only_what_followed_in_the_same_stream_is_replayed() -> None:
    log, one, other = _log(LogBounds()), _stream(), _stream()
    first = log.add(one, b"")
    log.add(other, b"theirs")
    mine = log.add(one, b"mine")
    assert list(log.after(one, first)) == [(mine, b"mine")]


def test_the_oldest_of_all_sessions_give_way_and_a_session_that_ended_holds_nothing() -> None:
    bounds = LogBounds(most=3_000)
    old, young, stream = _log(bounds), _log(bounds), _stream()
    first = old.add(stream, b"")
    old.add(stream, b"x" * 1_000)
    for _ in range(5):
        young.add(stream, b"y" * 1_000)
    assert bounds.held <= 3_000
    assert list(old.after(stream, first)) == []
    young.close()
    old.close()
    assert bounds.held == 0


def test_a_message_larger_than_all_bounds_is_kept_until_the_next() -> None:
    bounds = LogBounds(most=10)
    _log(bounds).add(_stream(), b"x" * 100)
    assert bounds.held == 100


async def _grow(session: Session) -> None:
    async with session.call("o__grow", {}) as events:
        assert [event async for event in events]


async def test_a_resumed_notification_stream_gets_all_events_until_the_session_ends() -> None:
    async with _scene() as (_, served, http):
        session = Session(http, served.all)
        with anyio.fail_after(20):
            await session.begin()
            async with session.notices() as notices:
                await _grow(session)
                first = await anext(notices)
            await _grow(session)
            async with session.notices(after=first["id"]) as notices:
                missed = await anext(notices)
                await _grow(session)
                following = await anext(notices)
            async with session.notices(after=following["id"]) as notices:
                await session.end()
                assert [event async for event in notices] == []
    assert len({event["id"] for event in (first, missed, following)}) == 3
