"""What a session has, all replicas of a fleet know: its end, log level, subscriptions and the events of its streams."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.config.read import config_from_mapping
from holdfast.core import FleetExchange, FleetReply, SharedStore, replica_tag
from holdfast.endpoint import EndpointAddress
from holdfast.fleet import (
    EventStore,
    Fleet,
    LocalStore,
    LogWrite,
    RedisAddress,
    RedisEvents,
    SignedStore,
    StoreUnavailable,
    serve_broker,
    shared_events,
)
from holdfast.fleet.fleet import ReplicaState
from holdfast.fleet.shared_events import SharedEvent, SharedEvents
from holdfast.fleet.stores import MemoryEvents
from holdfast.front import requests
from holdfast.front.app import Front, create_app
from holdfast.front.session_id import SessionIds, SessionKeys
from holdfast.front.session_store import FleetSessions, HttpSessions, SessionRecord
from holdfast.hub.hub import Hub
from holdfast.keys import KeyRing
from holdfast.serve.replicas import session_ids
from tests.harness.open_hubs import fleet_of
from tests.harness.raw_session import Session
from tests.harness.waiting import came_true
from tests.harness.web import serving
from tests.peers.peer_server import Origin, running
from tests.peers.redis import RedisPeer, has_redis

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-2")]

KEY = b"k" * 32
PATIENCE = 30


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer becomes an event stream at once, and not only when it takes long."""
    monkeypatch.setattr(requests, "STREAM_AFTER_SECONDS", 0.0)


class Shared:
    """A store in this process that can be switched off, and what it got to see."""

    def __init__(self) -> None:
        self.content = SharedStore()
        self.memory = MemoryEvents()
        self.up = True
        self.connections = 1
        self.reads = 0
        self.name = "the test's store"
        self.seen: list[str] = []

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        self._check()
        self.seen += [record.value for record in asked.records]
        return replace(self.content.exchange(asked, anyio.current_time()), wall=time.time())

    async def append(self, writes: Any) -> None:
        self._check()
        self.memory.put(writes)

    async def read(self, log: str) -> list[bytes]:
        self._check()
        self.reads += 1
        return self.memory.blobs(log)

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if not self.up:
            raise StoreUnavailable("it is switched off")


class Replica:
    """One hub of the fleet."""

    def __init__(self, hub: Hub, front: Front, base: str, http: httpx2.AsyncClient) -> None:
        self.hub, self.front, self.base, self.http = hub, front, base, http

    @property
    def sessions(self) -> HttpSessions:
        found = self.front.endpoint_of(EndpointAddress())
        assert found is not None
        return found.sessions

    def session(self, like: Session | None = None) -> Session:
        """A session of this replica, or the same session as another replica's."""
        made = Session(self.http, f"{self.base}/mcp")
        if like is not None:
            made.headers = dict(like.headers)
        return made

    async def ask(self, session: Session, method: str, **params: Any) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": 9, "method": method, "params": params}
        return await self.http.post(f"{self.base}/mcp", json=body, headers=session.headers)


@asynccontextmanager
async def replica(store: Shared, origin: Origin, *, shared: bool = True, ahead: float = 0.0) -> AsyncIterator[Replica]:
    def wall() -> float:
        return time.time() + ahead

    keys = SessionKeys([KEY], shared=True)
    fleet = Fleet(SignedStore(store, lambda: keys.ring, "test"), events=store, keys=lambda: keys.ring, wall=wall)
    ids = session_ids(keys, None, fleet) if shared else SessionIds(keys, wall=wall)
    hub = Hub(config_from_mapping({"mcpServers": {"o": {"url": origin.url}}}), fleet=fleet)
    app = create_app(hub, ids=ids, fleet=fleet)
    async with hub, serving(app) as base, httpx2.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        assert await hub.ready(PATIENCE)
        yield Replica(hub, app.state.front, base, http)


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Origin, Shared, Replica, Replica]]:
    store = Shared()
    async with (
        running("legacy") as origin,
        replica(store, origin) as first,
        replica(store, origin) as second,
    ):
        yield origin, store, first, second


@pytest.mark.requirement("FLEET-1")
async def test_a_session_that_is_ended_on_one_replica_is_ended_on_all_and_on_a_fresh_one() -> None:
    async with two() as (origin, store, first, second):
        session = first.session()
        await session.begin()
        assert (await second.ask(session, "ping")).status_code == 200
        async with second.session(session).notices() as notices:
            await session.end()
            with anyio.fail_after(PATIENCE):
                assert [event async for event in notices if "list_changed" not in event["data"]] == []  # it ends
        assert (await second.ask(session, "ping")).status_code == 404
        async with replica(store, origin) as fresh:
            await came_true(lambda: fleet_of(fresh.hub).member.synced)
            assert (await fresh.ask(session, "ping")).status_code == 404


@pytest.mark.requirement("FLEET-1")
@pytest.mark.parametrize("ahead", [90_000.0, -90_000.0])
async def test_a_replica_with_a_wrong_clock_serves_the_sessions_of_others_and_they_serve_its_own(ahead: float) -> None:
    store = Shared()
    async with (
        running("legacy") as origin,
        replica(store, origin) as good,
        replica(store, origin, ahead=ahead) as wrong,
    ):
        fleets = [fleet_of(one.hub) for one in (good, wrong)]
        await came_true(lambda: all(len(fleet.state.clock.wrong) == 1 and fleet.state.is_settled for fleet in fleets))
        assert fleets[0].state.clock.wrong.keys() == {fleets[1].replica}
        for at, elsewhere in ((good, wrong), (wrong, good)):
            session = at.session()
            await session.begin()
            assert (await elsewhere.ask(session, "ping")).status_code == 200
            await session.end()
            async with replica(store, origin) as fresh:
                fleet = fleet_of(fresh.hub)
                await came_true(lambda fleet=fleet: fleet.state.is_settled)  # type: ignore[misc]
                assert (await fresh.ask(session, "ping")).status_code == 404


async def test_a_log_level_and_a_subscription_hold_on_the_replica_that_has_the_stream() -> None:
    async with two() as (_origin, store, first, second):
        session = first.session()
        await session.begin()
        uri = (await first.ask(session, "resources/list")).json()["result"]["resources"][0]["uri"]
        async with second.session(session).notices() as notices:
            await first.ask(session, "logging/setLevel", level="error")
            await first.ask(session, "resources/subscribe", uri=uri)
            (there,) = second.sessions.all()
            await came_true(lambda: there.client.subscribed)
            assert there.client.log_level == "error"
            ((_, original),) = there.client.subscribed
            await second.ask(session, "tools/call", name="o__touch", arguments={"uri": original})
            with anyio.fail_after(PATIENCE):
                async for event in notices:
                    if event.get("data") and "resources/updated" in event["data"]:
                        break
            await first.ask(session, "resources/unsubscribe", uri=uri)
            await came_true(lambda: not there.client.subscribed)
        assert not any(uri in value for value in store.seen), "the store can read what a session subscribed to"


async def test_a_note_of_last_use_takes_nothing_back_that_another_replica_changed() -> None:
    async with two() as (_, _store, first, second):
        session = first.session()
        await session.begin()
        await second.ask(session, "ping")
        await first.ask(session, "logging/setLevel", level="error")
        (here,), (there,) = first.sessions.all(), second.sessions.all()
        await came_true(lambda: there.client.log_level == "error")
        await second.front._ids.note(there.ticket, seen=second.front._ids.wall() + 7_200)
        await came_true(lambda: here.noted_at > here.ticket.issued + 7_000)
        assert here.client.log_level == "error"


async def test_a_stream_whose_replica_died_is_read_on_at_another_one() -> None:
    """The first replica ends while the client is away; the answer came before that."""
    store = Shared()
    async with running("legacy") as origin, replica(store, origin) as second:
        async with replica(store, origin) as first:
            session = first.session()
            await session.begin()
            async with session.call("o__wait", {}) as events:
                begun = await anext(events)
                with anyio.fail_after(PATIENCE):
                    await origin.waiting.wait()
            origin.go.set()
            await came_true(lambda: store.memory.held)
        again = second.session(session)
        with anyio.fail_after(PATIENCE):
            (answer,) = await again.come_back(after=begun["id"])
            assert json.loads(answer["data"])["result"]["content"][0]["text"] == "waited"
            assert await again.come_back(after=answer["id"]) != [answer]
        assert all(b"waited" not in blob for _, blobs in store.memory._logs.values() for blob in blobs)


async def test_a_stream_of_a_replica_that_lives_is_followed_to_its_end() -> None:
    async with two() as (origin, _store, first, second):
        session = first.session()
        await session.begin()
        async with session.call("o__wait", {}) as events:
            begun = await anext(events)
        read: list[dict[str, str]] = []

        async def come_back() -> None:
            read.extend(await second.session(session).come_back(after=begun["id"]))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(come_back)
                await origin.waiting.wait()
                origin.go.set()
        assert [json.loads(event["data"])["result"]["content"][0]["text"] for event in read] == ["waited"]


async def test_without_the_store_a_lost_answer_is_told_and_a_session_goes_on() -> None:
    store = Shared()
    async with running("legacy") as origin, replica(store, origin) as second:
        async with replica(store, origin) as first:
            session = first.session()
            await session.begin()
            store.up = False
            async with session.call("o__wait", {}) as events:
                begun = await anext(events)
            origin.go.set()
        again = second.session(session)
        with anyio.fail_after(PATIENCE):
            assert (await second.ask(session, "ping")).status_code == 200
            (told,) = await again.come_back(after=begun["id"])
        assert "is lost" in told["data"]
        await came_true(lambda: fleet_of(second.hub).state.not_shared_since)


# Sealing.


async def test_more_subscriptions_than_fit_are_left_out_and_the_rest_is_shared() -> None:
    fleet = Fleet(SignedStore(Shared(), lambda: KeyRing([KEY]), "test"), keys=lambda: KeyRing([KEY]))
    sessions = FleetSessions(fleet, SessionKeys([KEY], shared=True), wall=lambda: 1_000.0)
    many = frozenset(("o", f"file:///{number:0200d}") for number in range(1_000))
    await sessions.save(b"s" * 16, SessionRecord(until=9e9, seen=1_000.0, log_level="error", subscribed=many))
    (record,) = fleet.member.book.values()
    assert len(record.value) < 64 * 1024
    loaded = await FleetSessions(fleet, SessionKeys([KEY], shared=True)).load(b"s" * 16)
    assert loaded is not None
    assert (loaded.log_level, loaded.subscribed) == ("error", frozenset())


# The events of streams.


def shared(store: EventStore, **more: Any) -> SharedEvents:
    options: dict[str, Any] = {"replica": "r", "replicas": lambda: (), **more}
    return SharedEvents(store, lambda: KeyRing([KEY]), **options)


@pytest.fixture
async def event_stores(tmp_path: Path) -> AsyncIterator[dict[str, EventStore]]:
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: serve_broker(tmp_path / "broker", task_status=task_status))
        stores: dict[str, EventStore] = {"broker": LocalStore(tmp_path / "broker")}
        if has_redis():
            redis = await stack.enter_async_context(RedisPeer(tmp_path / "redis"))
            stores["redis"] = RedisEvents(RedisAddress.parse(redis.url))
        yield stores
        for store in stores.values():
            await store.close()
        tasks.cancel_scope.cancel()


async def test_every_event_store_keeps_the_latest_blobs_of_each_log(event_stores: dict[str, EventStore]) -> None:
    for name, store in event_stores.items():
        for number in range(5):
            await store.append([LogWrite("a", b"\x00\xff%d" % number, 3), LogWrite("b", b"b", 1)])
        assert await store.read("a") == [b"\x00\xff2", b"\x00\xff3", b"\x00\xff4"], name
        assert await store.read("b") == [b"b"], name
        assert await store.read("other") == [], name


async def test_a_flood_of_events_stays_within_every_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = MemoryEvents()
    events = shared(store)
    monkeypatch.setattr(shared_events, "REPLICA_BYTES", 3 * 1024 * 1024)
    events.add(b"s" * 16, "m", SharedEvent(0, "", False, b"x" * (shared_events.LARGEST_EVENT + 1)))
    assert events.dropped == 1
    for number in range(200):
        events.add(b"s" * 16, "m", SharedEvent(number, "", False, b"x" * 50_000))
        assert events._queued <= shared_events.QUEUE_BYTES
    assert events.dropped > 100
    while writes := events._batch():
        assert (
            sum(len(write.blob) for write in writes) <= shared_events.BATCH_BYTES + shared_events.LARGEST_EVENT + 1_000
        )
        store.put(writes)
        assert store.held <= shared_events.LOG_BYTES
        for number in range(20):
            events.add(b"s" * 16, "m", SharedEvent(number, "", False, b"x" * 50_000))
    assert events._spent <= 3 * 1024 * 1024


async def test_why_events_are_not_shared_is_known_until_a_write_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_events, "RETRY_SECONDS", 0.0)
    store: Any = Shared()
    events = shared(store)
    for store.up, problem in ((False, "it is switched off"), (True, "")):
        events.add(b"s" * 16, "m", SharedEvent(1, "", False, b"x"))
        await events._write(events._batch())
        assert (events.problem, events.dropped) == (problem, 1)


def test_the_broker_forgets_logs_after_a_while_and_beyond_its_bound() -> None:
    now = 0.0
    store = MemoryEvents(most=1_000, clock=lambda: now)
    for number in range(20):
        store.put([LogWrite(str(number), b"x" * 100, 5)])
    assert store.held <= 1_000
    assert store.blobs("0") == []
    assert store.blobs("19")
    now = 301.0
    assert store.blobs("19") == []
    store.put([LogWrite("new", b"x", 1)])
    assert store.held == 1


def test_the_broker_counts_each_blob_of_a_log_that_it_forgets() -> None:
    now = 0.0
    store = MemoryEvents(most=1_000, clock=lambda: now)
    for log in ("long", "short"):
        store.put([LogWrite(log, b"x" * size, 2) for size in (100, 200, 300)])
    assert store.held == 1_000, "of three blobs the latest two stay"
    store.put([LogWrite("new", b"x", 1)])
    assert (store.held, store.blobs("long"), len(store.blobs("short"))) == (501, [], 2)
    now = 300.0
    assert store.blobs("short") == [], "a log ends with the last moment of its time"
    store.put([])
    assert store.held == 0


async def test_the_events_after_one_come_in_order_and_each_comes_once() -> None:
    """A log may have an event twice, and in any order: it is written in batches, and read again and again."""
    store: Any = Shared()
    events = shared(store)
    log, session = replica_log(), b"s" * 16
    for number, suffix in ((3, "1"), (1, "1"), (2, "1"), (2, "1"), (4, "other"), (5, "1")):
        events.add(session, log, SharedEvent(number, suffix, number == 3, b"%d" % number))
        await store.append(events._batch())
    found = [one async for one in events.follow(session, log, "1", after=1, wanted=lambda: True)]
    assert [one.number for one in found] == [2, 3], "up to the last one of its stream"
    rest = [one async for one in events.follow(session, log, "1", after=3, wanted=lambda: True)]
    assert [one.number for one in rest] == [5]


@pytest.mark.parametrize(("limit", "reads"), [(0, 0), (2, 2), (100, 3)])
async def test_a_stream_is_followed_while_its_reader_wants_it_and_no_longer_than_the_limit(
    limit: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_events, "FOLLOW_SECONDS", 0.0)
    store: Any = Shared()
    times, wishes = itertools.count(step=shared_events.LONGEST_FOLLOW / 4), itertools.count()
    events = shared(store, replicas=lambda: ["there"], clock=lambda: next(times))
    log = f"{replica_tag('there')}mark"
    following = events.follow(b"s" * 16, log, "1", after=0, wanted=lambda: next(wishes) < limit)
    assert [one async for one in following] == []
    assert store.reads == reads


def test_what_a_replica_wrote_counts_for_a_while_and_a_log_that_is_over_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_events, "LOG_BLOBS", 2)
    monkeypatch.setattr(shared_events, "REPLICA_BYTES", 400)
    now = 0.0
    store: Any = Shared()
    events = shared(store, clock=lambda: now)

    def written(log: str, size: int = 10) -> list[int]:
        """How many blobs of it are kept."""
        events.add(b"s" * 16, log, SharedEvent(1, "", False, b"x" * size))
        return [write.keep for write in events._batch()]

    assert [written("a") for _ in range(3)] == [[1], [2], [2]]
    assert (written("b", 300), events.dropped) == ([1], 0)
    assert (written("b", 100), events.dropped) == ([], 1)
    now = shared_events.WINDOW_SECONDS
    assert (written("b", 100), events.dropped) == ([], 2), "the time is not over yet"
    now += 1.0
    assert (written("b", 300), events.dropped) == ([2], 2)
    assert written("a") == [1]


def replica_log() -> str:
    """The mark of a log whose replica is gone: it is not followed."""
    return f"{replica_tag('gone')}mark"


@pytest.mark.requirement("FLEET-1")
async def test_idle_sessions_expire_by_their_last_use_on_any_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only while every use is known here: a replica that is cut off lets no session expire."""
    now = 1_800_000_000.0
    fleet = Fleet(SignedStore(Shared(), lambda: KeyRing([KEY]), "test"), keys=lambda: KeyRing([KEY]))
    all_known = True
    monkeypatch.setattr(ReplicaState, "keeps_all", property(lambda _: all_known))
    keys = SessionKeys([KEY], shared=True)
    ids = SessionIds(keys, FleetSessions(fleet, keys, wall=lambda: now), wall=lambda: now)
    named = {"endpoint": None, "principal": "ada"}
    session_id, ticket = ids.issue(**named, version="2025-11-25", client={}, capabilities={})  # type: ignore[arg-type]
    now += 26 * 3600
    assert await ids.open(session_id, endpoint=None, principal="ada") is None
    await ids.note(ticket, seen=now - 3600)  # as another replica would
    assert await ids.open(session_id, endpoint=None, principal="ada") is not None
    now += 26 * 3600
    assert await ids.open(session_id, endpoint=None, principal="ada") is None
    all_known = False
    assert await ids.open(session_id, endpoint=None, principal="ada") is not None
    await ids.end(ticket)
    assert await ids.open(session_id, endpoint=None, principal="ada") is None


@pytest.mark.requirement("FLEET-1")
async def test_a_replica_whose_copy_gave_way_does_not_say_that_it_knows_every_session() -> None:
    fleet = Fleet(Shared(), keys=lambda: KeyRing([KEY]))
    async with Hub(config_from_mapping({"mcpServers": {}}), fleet=fleet):
        assert not fleet.state.keeps_all
        await came_true(lambda: fleet.state.keeps_all)
        fleet.member.expiring.crowded = True
        assert not fleet.state.keeps_all


@pytest.mark.requirement("FLEET-2", "FLEET-3")
async def test_an_answer_of_a_store_that_was_connected_to_again_meanwhile_is_not_used() -> None:
    """The question was for another copy of the store: the answer may begin after records that it lacks."""
    store = _Moved()
    fleet = Fleet(store, keys=lambda: KeyRing([KEY]))
    async with Hub(config_from_mapping({"mcpServers": {}}), fleet=fleet):
        await came_true(lambda: fleet.member.synced)
        assert [one.epoch for one in store.asked[:1]] == [""]
        await came_true(lambda: len(store.asked) >= 2)
        assert store.asked[1].epoch, "the answer on the first connection was used"
        moved = len(store.asked)
        store.moves = True
        await came_true(lambda: len(store.asked) >= moved + 3)
        assert fleet.failures == 0
    assert [one.epoch == "" for one in store.asked[moved : moved + 3]] == [False, True, False]


class _Moved(Shared):
    """Its client connects by itself within an exchange: the first one, and one that the test names."""

    def __init__(self) -> None:
        super().__init__()
        self.connections = 0
        self.moves = True
        self.asked: list[FleetExchange] = []

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        self.asked.append(asked)
        if self.moves:
            self.connections, self.moves = self.connections + 1, False
        return await super().exchange(asked)
