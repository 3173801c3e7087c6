"""The event stream: what happens is told once to each who follows, and costs nothing while nothing does."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from holdfast.config.read import config_from_mapping
from holdfast.control.server import control_events as feeds
from holdfast.control.server.control_events import EVENTS, KEEP_ALIVE, EventStream, _Follower, event_for
from holdfast.control.server.views import AT_ONCE, History, HubInfo, Views
from holdfast.core.breaker import ClosedAgain
from holdfast.core.lifecycle.events import AccessChanged, BreakerChanged, CloseFailed, RetryPlanned, Transition
from holdfast.core.lifecycle.table import State
from holdfast.hub.hub import Hub
from holdfast.hub.journal import CallEnded, HubRecord, Published, ToolApproved, ToolChanged
from holdfast.testing import HttpServer
from tests.control.server.controlled_hub import following, steered

pytestmark = pytest.mark.anyio

MISSING = {"command": "no-such-command-anywhere"}


@pytest.mark.requirement("OBS-1", "HUB-5")
async def test_a_death_and_a_recovery_are_told_step_by_step() -> None:
    async with HttpServer({"a": "one"}) as up, steered({"up": up.definition}) as hub, following(hub.control) as seen:
        await up.stop()
        await seen.until("transition", lambda data: data["new"] == "reconnecting")
        shown = await seen.until("server", lambda data: data["state"] == "reconnecting")
        assert shown["id"] == "up"
        assert shown["last_error"]["text"]
        await up.start()
        await seen.until("transition", lambda data: data["new"] == "connected")
        await seen.until("server", lambda data: data["state"] == "connected" and data["reconnects_total"] == 1)
    assert seen.names()[0] == "hello"
    assert set(seen.names()) <= set(EVENTS)


@pytest.mark.requirement("OBS-1")
async def test_everyone_who_follows_is_told_the_same() -> None:
    async with HttpServer({"a": "one"}) as up, steered({"up": up.definition}) as hub:
        async with following(hub.control) as first, following(hub.control) as second:
            await hub.control.act("up", "disable")
            for seen in (first, second):
                await seen.until("server", lambda data: data["state"] == "disabled")
        steps = [
            [(data["old"], data["new"]) for name, data in seen.events if name == "transition"]
            for seen in (first, second)
        ]
    assert steps[0] == steps[1] == [("connected", "disabling"), ("disabling", "disabled")]


@pytest.mark.requirement("OBS-1", "LIFE-20")
async def test_servers_that_come_and_go_are_told() -> None:
    definitions = {"old": {**MISSING, "enabled": False}, "stays": MISSING}
    async with steered(definitions) as hub, following(hub.control) as seen:
        await hub.hub.apply(config_from_mapping({"mcpServers": {"stays": MISSING, "new": MISSING}}))
        assert await seen.until("gone") == {"server": "old"}
        await seen.until("server", lambda data: data["id"] == "new" and data["state"] == "parked")
        assert not [data for name, data in seen.events if name == "server" and data["id"] == "stays"]
        assert hub.admin.history.servers.keys() == {"stays", "new"}


@pytest.mark.requirement("OBS-1")
async def test_calls_are_told_as_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "ACTIVITY_SECONDS", 0.05)
    async with HttpServer({"a": "one"}) as up, steered({"up": up.definition}) as hub, following(hub.control) as seen:
        await hub.hub.call_tool("up__a")
        picture = await seen.until("activity")
    assert sum(picture["up"]["calls"]) == 1
    assert "server" not in seen.names()


@pytest.mark.requirement("HUB-5")
async def test_that_the_hub_drains_is_told_and_then_the_stream_ends() -> None:
    async with steered({"x": MISSING}) as hub:
        event_for = []
        with anyio.fail_after(20):
            async for event in hub.control.events():
                event_for.append((event.name, json.loads(event.data)["draining"]))
                if event.name == "hello":
                    hub.admin.drains()
                    hub.admin.close()
    assert event_for == [("hello", False), ("hub", True)]


# Without a socket, by hand: what one reader gets.


@pytest.fixture
async def feed() -> AsyncIterator[EventStream]:
    async with Hub(config_from_mapping({"mcpServers": {}})) as hub:
        yield EventStream(Views(hub, History(), HubInfo(endpoint="")), wall=lambda: 1.0)


@pytest.mark.parametrize(
    "record",
    [
        RetryPlanned(server="x", attempt=1, delay=1.0, at=0.0),
        AccessChanged(server="x", denied=True, reason="no", at=0.0),
        Published(server="x", version=1, kinds=("tools",), at=0.0),
        CloseFailed(server="x", generation=1, error="late", at=0.0),
        ToolChanged(server="x", tool="t", held=True, at=0.0),
        ToolApproved(server="x", tool="t", at=0.0),
    ],
    ids=lambda record: type(record).__name__,
)
def test_the_reference_names_every_field_of_an_event(record: HubRecord) -> None:
    event = event_for(record, 0.0)
    assert event is not None
    _, name, data = event
    fields = re.search(r"\{(.*?)\}", EVENTS[name])
    assert fields is not None
    assert fields[1].split(", ") == [*data]


def _retry(server: str = "x", attempt: int = 1) -> HubRecord:
    return RetryPlanned(server=server, attempt=attempt, delay=1.0, at=0.0)


def _names(frames: bytes) -> Iterator[tuple[str, Any]]:
    for block in frames.decode().split("\n\n"):
        if block:
            lines = dict(line.split(": ", 1) for line in block.split("\n"))
            yield lines["event"], json.loads(lines["data"])


@pytest.mark.requirement("OBS-1")
async def test_a_reader_that_is_too_slow_is_told_how_much_it_missed(feed: EventStream) -> None:
    frames = feed.follow()
    await anext(frames)
    for attempt in range(feeds.BACKLOG + 5):
        feed.handle(_retry(attempt=attempt))
    events = list(_names(await anext(frames)))
    assert events[0] == ("missed", {"count": 5})
    assert [data["attempt"] for name, data in events if name == "retry"] == list(range(5, feeds.BACKLOG + 5))
    await frames.aclose()
    assert not feed._followers


@pytest.mark.requirement("OBS-1")
async def test_while_nothing_happens_a_stream_brings_a_sign_of_life_and_nothing_else(
    feed: EventStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "KEEP_ALIVE_SECONDS", 0.01)
    frames = feed.follow()
    await anext(frames)
    with anyio.fail_after(20):
        assert [await anext(frames) for _ in range(3)] == [KEEP_ALIVE] * 3
    await frames.aclose()


@pytest.mark.requirement("OBS-1")
async def test_numbers_of_events_only_grow(feed: EventStream) -> None:
    frames = feed.follow()
    received = await anext(frames)
    for _ in range(3):
        feed.handle(_retry())
        received += await anext(frames)
    numbers = [int(line.removeprefix("id: ")) for line in received.decode().split("\n") if line.startswith("id: ")]
    assert numbers == sorted(set(numbers))
    await frames.aclose()


@pytest.mark.requirement("OBS-1")
def test_every_record_that_is_told_has_a_name_of_its_own() -> None:
    records: list[HubRecord] = [
        Transition(server="x", old=State.CONNECTED, new=State.RECONNECTING, cause="c", at=0.0, generation=1),
        _retry(),
        BreakerChanged(server="x", change=ClosedAgain(at=0.0, refused=2)),
        CloseFailed(server="x", generation=1, error="e", at=0.0),
    ]
    events = [event_for(record, 5.0) for record in records]
    assert [event[1] for event in events if event is not None] == ["transition", "retry", "breaker", "close_failed"]
    assert all(event is not None and event[2]["at"] == 5.0 for event in events)
    call = CallEnded(server="x", method="m", outcome="completed", waited=0.0, seconds=0.1, at=0.0)
    assert event_for(call, 5.0) is None


class Watched(set[Any]):
    """Reports when a follower was removed."""

    def __init__(self) -> None:
        super().__init__()
        self.left = anyio.Event()

    def discard(self, element: object) -> None:
        super().discard(element)
        self.left.set()


@pytest.mark.requirement("OBS-1")
async def test_a_follower_that_leaves_is_removed() -> None:
    async with steered({"x": MISSING}) as hub:
        followers = hub.admin.events._followers = Watched()
        async with following(hub.control):
            assert len(followers) == 1
        with anyio.fail_after(20):
            await followers.left.wait()
        assert not followers


@pytest.mark.requirement("OBS-1")
def test_a_server_that_changes_many_times_in_a_moment_is_shown_once() -> None:
    follower = _Follower()
    for _ in range(10):
        follower.touched("x")
    assert follower.to_show(1.0) == ["x"]
    for _ in range(10):
        follower.touched("x")
    assert follower.to_show(1.0 + feeds.AGAIN_SECONDS / 2) == []
    assert follower.to_show(1.0 + feeds.AGAIN_SECONDS) == ["x"]
    assert follower.to_show(9.0) == []


@pytest.mark.requirement("LIFE-14")
def test_a_fleet_that_changes_all_at_once_is_shown_a_few_at_a_time() -> None:
    follower, servers = _Follower(), [f"s{number}" for number in range(2 * AT_ONCE + 1)]
    for server in servers:
        follower.touched(server)
    shown = [follower.to_show(1.0) for _ in range(4)]
    assert [len(some) for some in shown] == [AT_ONCE, AT_ONCE, 1, 0]
    assert [server for some in shown for server in some] == servers


@pytest.mark.requirement("SEC-7", "OBS-1")
async def test_the_calls_of_a_thousand_servers_are_told_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "ACTIVITY_SECONDS", 0.0)
    definitions = {f"s{number}": {**MISSING, "enabled": False} for number in range(3 * AT_ONCE + 1)}
    async with Hub(config_from_mapping({"mcpServers": definitions})) as hub:
        history = History()
        feed = EventStream(Views(hub, history, HubInfo(endpoint="")), wall=lambda: 1.0)
        stream = feed.follow()
        await anext(stream)
        for server in definitions:
            history.called_elsewhere(server, 1, 0, error="")
            feed.called(server)
        told: list[int] = []
        with anyio.fail_after(20):
            while sum(told) < len(definitions):
                frames = re.findall(rb"event: activity\ndata: (.*)", await anext(stream))
                told += [len(json.loads(frame)) for frame in frames]
                feed.called("s0")  # what goes on does not keep the others from being told
        await stream.aclose()
    assert max(told) <= AT_ONCE
