"""The sessions of legacy clients in memory: who finds one, when it is dropped, and what of it is kept (FLEET-1)."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from holdfast.access import LOCAL, Principal, QuotaExceeded, Quotas
from holdfast.config import QuotaSettings
from holdfast.endpoint import EndpointAddress, Exchange
from holdfast.fleet import SharedEvent
from holdfast.front.app import Front
from holdfast.front.http import HttpEndpoint
from holdfast.front.session_id import SessionIds, SessionKeys
from holdfast.front.session_store import HttpSession, HttpSessions, SessionRecord, SessionStore
from holdfast.front.streams import StreamOpener
from holdfast.hub.hub import Hub
from tests.front.test_streams import Client
from tests.harness.waiting import PATIENCE, all_blocked, came_true, jump

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-1")]

ADA, BOB = Principal(name="ada", source="token"), Principal(name="bob", source="token")
HOUR, DAY = 3_600.0, 86_400.0
SWEEP = 61.0
"""After so many seconds the hub has looked at its sessions."""
FAR = 4e9


class Reply:
    """A stream of notices that is open until it is ended."""

    def __init__(self) -> None:
        self.done = self.started = self.streams = True
        self.done = False
        self.out = SimpleNamespace(lost=False, unread=0)

    def end(self) -> None:
        self.done = True


class Replicas:
    """Other replicas; ``listening`` says whether a client has its stream of notices at one of them."""

    tag = ""

    def __init__(self) -> None:
        self.listening = False
        self.asked = 0
        self.delivered: list[bytes] = []
        self.notices = self

    async def find(self, session: HttpSession) -> bool:
        self.asked += 1
        return self.listening

    def deliver(self, session: HttpSession, message: bytes) -> None:
        self.delivered.append(message)


class Scene:
    """The sessions of a hub without servers, and its clock."""

    def __init__(self, hub: Hub) -> None:
        self.now = 1_790_000_000.0
        self.store = SessionStore()
        self.limit = 2_000
        ids = SessionIds(SessionKeys.for_this_process(), self.store, wall=lambda: self.now)
        self.front = Front(hub, ids, Quotas(lambda: QuotaSettings(sessions=self.limit)))
        self.all = self.endpoint()
        self.finding = self.endpoint(tools="find")
        self.released: list[object] = []

    def endpoint(self, **about: Any) -> HttpEndpoint:
        found = self.front.endpoint_of(EndpointAddress(**about))
        assert found is not None
        return found

    @property
    def sessions(self) -> HttpSessions:
        return self.front.sessions

    def begin(self, principal: Principal = ADA, at: HttpEndpoint | None = None, info: object = None) -> HttpSession:
        made = self.sessions.begin(at or self.all, principal, "2025-11-25", {"roots": {}}, info)
        assert isinstance(made, HttpSession)
        return made

    async def find(self, session: HttpSession, principal: Principal = ADA) -> HttpSession | None:
        found = await self.sessions.find(self.all, session.id, principal)
        assert not isinstance(found, QuotaExceeded)
        return found

    async def pass_time(self, seconds: float) -> None:
        self.now += seconds
        await jump(seconds)


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    hub = Hub.from_config({"mcpServers": {}})
    async with hub, anyio.create_task_group() as tasks:
        made = Scene(hub)
        monkeypatch.setattr(hub.registry.clients, "release", made.released.append)
        await tasks.start(made.front.run)
        yield made
        tasks.cancel_scope.cancel()


async def test_a_session_is_found_by_its_principal_at_its_endpoint_alone(scene: Scene) -> None:
    session = scene.begin(info={"name": "editor", "version": 7, "title": "no part of an id"})
    assert session.ticket.client == {"name": "editor"}
    assert scene.begin(info=["no object"]).ticket.client == {}
    for dropped in (False, True):
        if dropped:
            scene.sessions.drop(session)
        assert await scene.find(session, BOB) is None
        assert await scene.sessions.find(scene.finding, session.id, ADA) is None
        assert await scene.sessions.find(scene.all, session.id[:-2], ADA) is None
    back = await scene.find(session)
    assert back is not None
    assert (back.client.program, back.client.home) == ("editor", session.ticket.home)
    assert (session.rebuilt, back.rebuilt) == (False, True)
    assert await scene.find(session) is back


async def test_replicas_find_only_a_session_that_is_in_memory(scene: Scene) -> None:
    session = scene.begin()
    assert scene.sessions.in_use(scene.all, session.id, "ada") is session
    assert scene.sessions.in_use(scene.all, session.id, "bob") is None
    assert scene.sessions.in_use(scene.finding, session.id, "ada") is None
    scene.sessions.drop(session)
    assert scene.sessions.in_use(scene.all, session.id, "ada") is None


async def test_requests_that_come_together_rebuild_one_session(tmp_path: Path) -> None:
    """The store answers from a thread, so both find that the session is not in memory."""
    hub = Hub.from_config({"mcpServers": {}})
    async with hub, anyio.create_task_group() as tasks:
        front = Front(hub, SessionIds(store=SessionStore(tmp_path / "s.sqlite")))
        await tasks.start(front.run)
        endpoint = front.endpoint_of(EndpointAddress())
        assert endpoint is not None
        session = front.sessions.begin(endpoint, ADA, "2025-11-25", {}, {})
        assert isinstance(session, HttpSession)
        front.sessions.drop(session)
        found = await asyncio.gather(*(front.sessions.find(endpoint, session.id, ADA) for _ in range(3)))
        assert len({id(one) for one in found}) == 1
        assert front.sessions.all() == [found[0]]
        tasks.cancel_scope.cancel()


async def test_a_rebuilt_session_has_what_was_kept_of_it(scene: Scene) -> None:
    session = scene.begin()
    assert session.client.listed == {}
    scene.sessions.drop(session)
    unknown = await scene.find(session)
    assert unknown is not None
    assert (unknown.client.listed, unknown.keeps_lists) == (None, False)
    scene.sessions.drop(unknown)
    record = SessionRecord(until=FAR, seen=scene.now + 5, log_level="error", subscribed=frozenset({("", "status:")}))
    await scene.store.save(session.ticket.id, record)
    await scene.store.save_listed(session.ticket.id, {"tools/list": "0:aa"}, until=FAR)
    back = await scene.find(session)
    assert back is not None
    assert (back.client.log_level, back.client.subscribed) == ("error", {("", "status:")})
    assert (back.client.listed, back.keeps_lists) == ({"tools/list": "0:aa"}, True)
    assert back.noted_at == scene.now + 5


async def test_what_another_replica_changed_of_a_session_is_followed(scene: Scene) -> None:
    session = scene.begin()
    noted = session.noted_at
    scene.sessions.changed(b"unknown", SessionRecord(until=FAR, seen=0.0, log_level="error"))
    scene.sessions.changed(session.ticket.id, SessionRecord(until=FAR, seen=0.0, log_level="error"))
    assert (session.client.log_level, session.noted_at) == ("error", noted), "the later use counts"
    scene.sessions.changed(session.ticket.id, SessionRecord(until=FAR, seen=noted + 9, log_level=None))
    assert (session.client.log_level, session.noted_at) == (None, noted + 9)


async def test_what_a_request_changed_is_kept_and_lists_only_where_a_change_can_be_told(scene: Scene) -> None:
    session = scene.begin()
    session.client.listed = {"tools/list": "0:aa"}
    session.client.log_level, session.client.subscribed = "error", {("", "status:")}
    scene.now += 100
    await scene.sessions.keep(session, "tools/list")
    await anyio.wait_all_tasks_blocked()
    assert (scene.store.records, scene.store.lists) == ({}, {}), "it never had a stream of notices"
    await scene.sessions.keep(session, "logging/setLevel")
    (kept,) = scene.store.records.values()
    assert (kept.seen, kept.log_level, kept.subscribed) == (scene.now, "error", frozenset({("", "status:")}))
    assert session.noted_at == scene.now
    scene.sessions.keep_lists(session)
    await anyio.wait_all_tasks_blocked()
    assert [lists for _, lists in scene.store.lists.values()] == [{"tools/list": "0:aa"}]
    session.client.listed["prompts/list"] = "0:bb"
    await scene.sessions.keep(session, "prompts/list")
    await anyio.wait_all_tasks_blocked()
    assert [lists for _, lists in scene.store.lists.values()] == [{"tools/list": "0:aa", "prompts/list": "0:bb"}]


async def test_lists_that_are_not_known_are_not_kept(scene: Scene) -> None:
    session = scene.begin()
    session.client.listed = None
    scene.sessions.keep_lists(session)
    await anyio.wait_all_tasks_blocked()
    assert (session.keeps_lists, scene.store.lists) == (False, {})


async def test_an_ended_session_is_found_by_no_one_and_its_connections_end(scene: Scene) -> None:
    session, elsewhere, gone = scene.begin(), scene.begin(), scene.begin()
    await scene.sessions.end(session)
    assert await scene.find(session) is None
    scene.sessions.ended(elsewhere.ticket.id)
    assert await scene.find(elsewhere) is None
    scene.sessions.drop(gone)
    scene.sessions.ended(gone.ticket.id)
    assert await scene.find(gone) is None
    assert {session.ticket.id, elsewhere.ticket.id, gone.ticket.id} <= set(scene.released)
    assert scene.sessions.all() == []


async def test_a_session_that_is_dropped_twice_gives_one_place_back(scene: Scene) -> None:
    scene.limit = 2
    one, other = scene.begin(), scene.begin()
    other.serving = 1
    scene.sessions.drop(one)
    scene.sessions.drop(one)
    scene.begin().serving = 1
    refused = scene.sessions.begin(scene.all, ADA, "2025-11-25", {}, {})
    assert isinstance(refused, QuotaExceeded)
    assert isinstance(await scene.sessions.find(scene.all, one.id, ADA), QuotaExceeded), "a rebuilt one counts too"
    assert isinstance(scene.sessions.begin(scene.all, BOB, "2025-11-25", {}, {}), HttpSession)


async def test_the_sessions_that_are_idle_longest_give_way_first(scene: Scene) -> None:
    scene.limit = 12
    made = [scene.begin() for _ in range(12)]
    others = scene.begin(BOB)
    others.used_at = 0.0
    for number, session in enumerate(made):
        session.used_at = 1_000.0 - number
    made[-1].serving = 1
    new = scene.begin()
    assert set(scene.sessions.all()) == {*made[:-3], made[-1], others, new}, (
        "one in ten of those that are idle, and one"
    )


async def test_an_endpoint_that_closes_drops_its_own_sessions(scene: Scene) -> None:
    mine, other = scene.begin(), scene.begin(at=scene.finding)
    scene.sessions.close(scene.all)
    assert scene.sessions.all() == [other]
    assert (mine.ended, mine.endpoint, other.ended) == (True, None, False)
    scene.sessions.close()
    assert scene.sessions.all() == []


class Outlet:
    """A client that is asked and does not answer."""

    async def reach(self, method: str) -> Outlet:
        return self

    def put_question(self, message: bytes) -> None: ...

    def tell(self, method: str, params: object) -> None: ...


async def test_an_idle_session_is_dropped_after_five_minutes_and_one_in_use_is_not(scene: Scene) -> None:
    _idle, serving, asking, recent = (scene.begin() for _ in range(4))
    serving.serving = 1
    question = asyncio.create_task(asking.exchange.questions.ask(cast("Any", Outlet()), "roots/list", None))
    await scene.pass_time(SWEEP)
    assert len(scene.sessions.all()) == 4
    recent.used_at = asyncio.get_running_loop().time()
    await scene.pass_time(4 * 60 + 10)
    assert set(scene.sessions.all()) == {serving, asking, recent}
    question.cancel()
    await asyncio.wait([question])
    serving.serving = 0
    await scene.pass_time(10 * 60)
    assert scene.sessions.all() == []
    again = scene.begin()
    await scene.pass_time(10 * 60)
    assert (scene.sessions.all(), again.ended) == ([], True), "they are looked through again"


async def test_the_last_use_is_noted_by_the_hour_with_the_lists_of_one_that_listens(scene: Scene) -> None:
    used, listening = scene.begin(), scene.begin()
    listening.serving = 1
    listening.notices.reply = cast("Any", Reply())
    listening.client.listed = {"tools/list": "0:aa"}
    used.serving = 1
    await scene.pass_time(HOUR - 200)
    assert scene.store.records == {}
    used.serving, used.used_at = 0, asyncio.get_running_loop().time()
    last_use = scene.now
    listening.listening_since = 1.0
    await scene.pass_time(SWEEP)
    assert scene.store.records == {}
    used.noted_at = last_use - 2 * HOUR
    await scene.pass_time(SWEEP)
    assert abs(scene.store.records[used.ticket.id].seen - last_use) < 1, "when it was used, not when it was noted"
    assert listening.ticket.id not in scene.store.records
    await scene.pass_time(200)
    assert scene.store.records[listening.ticket.id].seen == scene.now, "it is in use now"
    assert [*scene.store.lists] == [listening.ticket.id]


async def test_a_session_in_use_ends_with_its_longest_life(scene: Scene) -> None:
    session = scene.begin()
    session.serving = 1
    await scene.pass_time(30 * DAY - 1)
    assert scene.sessions.all() == [session]
    await scene.pass_time(SWEEP)
    assert scene.sessions.all() == []
    assert session.ended


# The stream of notices.


async def _listens_soon(session: HttpSession) -> asyncio.Task[bool]:
    asked = asyncio.create_task(session.is_listening_soon())
    await anyio.wait_all_tasks_blocked()
    return asked


async def test_a_client_has_five_seconds_to_open_its_stream(scene: Scene) -> None:
    session = scene.begin()
    asked = await _listens_soon(session)
    assert not asked.done()
    await jump(3.0)
    assert not asked.done()
    await jump(3.0)
    assert await asked is False
    asked = await _listens_soon(session)
    session.notices.reply = cast("Any", Reply())
    session.opened(LOCAL)
    session.opened(LOCAL)
    with anyio.fail_after(PATIENCE):
        assert await asked is True
    assert await session.is_listening_soon() is True
    session.end_notices()
    assert not session.listening
    session.end_notices()


async def test_each_question_that_waits_for_the_stream_goes_on_when_it_opens(scene: Scene) -> None:
    session = scene.begin()
    waiting = [await _listens_soon(session) for _ in range(3)]
    session.notices.reply = cast("Any", Reply())
    session.opened(LOCAL)
    await anyio.wait_all_tasks_blocked()
    assert [one.done() for one in waiting] == [True, True, True]


async def test_a_stream_at_another_replica_is_found_also_a_moment_later(scene: Scene) -> None:
    session, replicas = scene.begin(), Replicas()
    assert session.stream_at == "", "no replica is known to have it"
    session._peers = cast("Any", replicas)
    session.notices.tell("notifications/message", {"level": "error"})
    assert len(replicas.delivered) == 1
    session.notices.tell("notifications/tools/list_changed", None, everywhere=True)
    assert len(replicas.delivered) == 1, "each replica learns of it by itself"
    asked = await _listens_soon(session)
    assert (asked.done(), replicas.asked) == (False, 1)
    replicas.listening = True
    await jump(0.6)
    assert await asked is True
    assert replicas.asked == 2
    replicas.listening = False
    asked = await _listens_soon(session)
    for _ in range(11):
        await jump(0.5)
    await came_true(asked.done)
    assert await asked is False


class Shared:
    """The events of a session at another replica, of which none is left; reading them takes a moment."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile

    async def follow(self, *_: object, **__: object) -> AsyncIterator[SharedEvent]:
        self._meanwhile()
        for event in list[SharedEvent]():
            yield event


def comes_back(scene: Scene, meanwhile: Callable[[], None]) -> Client:
    """A client that opens its stream again, with an event of another replica; ``meanwhile`` is done on the way."""
    scene.sessions.ids.events = cast("Any", Shared(meanwhile))
    return Client(takes_streams=False, headers=b"last-event-id: 00000000.1\r\n")


async def test_a_session_that_ends_while_its_stream_is_opened_gets_none(scene: Scene) -> None:
    session = scene.begin()
    client = comes_back(scene, lambda: scene.sessions.drop(session, released=True))
    with anyio.fail_after(PATIENCE):
        assert not await StreamOpener(scene.all).open(client.request, client.reply, session)
    assert (client.read, session.listening) == (b"", False)


@pytest.mark.requirement("FLEET-3")
async def test_a_stream_begins_once_however_long_the_events_of_another_replica_take(scene: Scene) -> None:
    def five_seconds_pass() -> None:
        client.timer.ring()

    session = scene.begin()
    client = comes_back(scene, five_seconds_pass)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(StreamOpener(scene.all).open, client.request, client.reply, session)
        await all_blocked()
        assert (session.listening, client.read.count(b"HTTP/1.1 200")) == (True, 1)
        session.end_notices()


async def test_an_ended_session_holds_nothing(scene: Scene) -> None:
    session = scene.begin()
    reply = Reply()
    session.notices.reply = cast("Any", reply)
    assert session.listening
    session.log.add(session.notices, b"an event")
    assert scene.sessions.bounds.held > 0
    scene.sessions.drop(session)
    assert (session.ended, reply.done, scene.sessions.bounds.held) == (True, True, 0)
    assert (session.notices.session, session.endpoint) == (None, None)


async def test_a_new_session_has_nothing_behind_it(scene: Scene) -> None:
    session = scene.begin()
    assert (session.serving, session.ended, session.missed, session.keeps_lists, session.rebuilt) == (0, *[False] * 4)
    assert (session.listening_since, session.stream_at, session.idle, session.listening) == (0.0, "", True, False)
    assert session.noted_at == session.ticket.issued
    assert session.header == f"mcp-session-id: {session.id}\r\n".encode()
    assert session.used_at == pytest.approx(asyncio.get_running_loop().time(), abs=5)
    session.serving = 1
    assert not session.idle


async def test_the_stream_of_notices_is_for_the_rights_of_the_credential_that_opened_it(scene: Scene) -> None:
    session = scene.begin()
    assert session.client.identity == ADA
    before = time.monotonic()
    session.opened(LOCAL)
    assert session.client.identity is LOCAL
    assert before <= session.listening_since <= time.monotonic()


async def test_a_hub_that_is_alone_sends_no_notice_elsewhere(scene: Scene) -> None:
    session = scene.begin()
    session.deliver_elsewhere(b"a notice")  # and does not fail
    session._peers = cast("Any", replicas := Replicas())
    session.deliver_elsewhere(b"a notice")
    assert replicas.delivered == [b"a notice"]


async def test_questions_are_numbered_from_anywhere_and_by_the_replica_that_asks(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def randbits(count: int) -> int:
        asked.append(count)
        return 5

    monkeypatch.setattr(secrets, "randbits", randbits)
    scene.begin()
    assert asked == [48]
    replicas = Replicas()
    replicas.tag = "0000a"
    monkeypatch.setattr(scene.all, "peers", replicas)
    session = scene.begin()
    assert asked == [48, 31]
    assert session.log.event_id(session.notices, 1).startswith(b"0000a"), "so other replicas know whose event it is"


@pytest.mark.parametrize(("idle_for", "stays"), [(300.0, True), (300.5, False)])
async def test_a_session_is_idle_for_five_minutes_to_the_second(scene: Scene, idle_for: float, stays: bool) -> None:
    session = scene.begin()
    session.used_at = asyncio.get_running_loop().time() - idle_for + (0.2 if stays else 0.0)
    scene.sessions.sweep()
    assert (session in scene.sessions.all()) is stays


async def test_a_use_is_noted_when_the_store_lags_by_more_than_an_hour(scene: Scene) -> None:
    session = scene.begin()
    session.serving = 1
    session.noted_at = scene.now - HOUR
    scene.sessions.sweep()
    await anyio.wait_all_tasks_blocked()
    assert scene.store.records == {}
    session.noted_at = scene.now - HOUR - 1
    scene.sessions.sweep()
    await anyio.wait_all_tasks_blocked()
    assert (scene.store.records[session.ticket.id].seen, session.noted_at) == (scene.now, scene.now)
    assert scene.store.lists == {}, "it has no stream on which a change of a list could be told"


async def test_the_lists_of_a_session_that_listens_and_was_given_none_are_not_noted(scene: Scene) -> None:
    session = scene.begin()
    session.serving, session.client.listed = 1, None
    session.notices.reply = cast("Any", Reply())
    session.noted_at = scene.now - 2 * HOUR
    scene.sessions.sweep()
    await anyio.wait_all_tasks_blocked()
    assert ([*scene.store.records], scene.store.lists) == ([session.ticket.id], {})


async def test_a_stream_that_has_ended_is_not_ended_again(scene: Scene) -> None:
    session, reply = scene.begin(), Reply()
    ends: list[Reply] = []
    reply.end = lambda: ends.append(reply)  # type: ignore[method-assign]
    session.notices.reply = cast("Any", reply)
    session.end_notices()
    reply.done = True
    session.end_notices()
    assert ends == [reply]


async def test_sessions_are_looked_through_only_while_there_are_some(scene: Scene) -> None:
    scene.begin()
    sweeper = cast("Any", scene.sessions._sweeper)
    other = scene.begin(at=scene.finding)
    assert [scene.sessions._sweeper] == [sweeper], "one timer is for all of them"
    assert not sweeper.cancelled()
    scene.sessions.close(scene.all)
    assert (scene.sessions._sweeper, sweeper.cancelled()) == (sweeper, False), "one is left"
    scene.sessions.close()
    assert (scene.sessions._sweeper, sweeper.cancelled(), other.ended) == (None, True, True)
    scene.sessions.close()
    assert scene.sessions.all() == []


async def test_the_own_connections_of_a_dropped_session_linger_and_those_of_an_ended_one_do_not(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, bool]] = []
    monkeypatch.setattr(Exchange, "close", lambda _, why, *, lingering=False: said.append((why, lingering)))
    for released in (False, True):
        scene.sessions.drop(scene.begin(), released=released)
    await scene.sessions.end(scene.begin())
    assert said == [("the session ended", True), ("the session ended", False), ("the session ended", False)]
