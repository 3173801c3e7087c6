"""What the file of sessions keeps: for two hubs at once, after a failure, and no longer than a session may live."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import msgspec
import pytest

from holdfast.front import session_store
from holdfast.front.session_id import SessionIds, SessionKeys, SessionTicket
from holdfast.front.session_store import (
    KEPT_SECONDS,
    LARGEST_STATE,
    FleetSessions,
    SessionRecord,
    SessionStore,
)
from holdfast.keys import KeyRing
from tests.harness.waiting import came_true

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-1")]

ONE, OTHER = b"1" * 16, b"2" * 16
FAR = 4e9


def _record(**changes: object) -> SessionRecord:
    return SessionRecord(**({"until": FAR, "seen": 10.0} | changes))  # type: ignore[arg-type]  # the test's own


def _names_in(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    return SessionStore() if request.param == "memory" else SessionStore(tmp_path / "state" / "s.sqlite")


async def test_a_record_is_read_as_it_was_written(store: SessionStore) -> None:
    record = _record(log_level="debug", subscribed=frozenset({("a", "file:///x"), ("", "holdfast://status")}))
    assert await store.load(ONE) is None
    await store.save(ONE, record)
    assert await store.load(ONE) == record
    assert await store.load(OTHER) is None


async def test_an_ended_session_stays_ended(store: SessionStore) -> None:
    await store.save(ONE, _record(ended=True))
    await store.save(ONE, _record(seen=20.0))
    found = await store.load(ONE)
    assert found is not None
    assert found.ended


async def test_two_hubs_on_one_file_lose_nothing_and_see_each_others_ends_at_once(tmp_path: Path) -> None:
    file = tmp_path / "s.sqlite"
    one, other = SessionStore(file), SessionStore(file)
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon((one, other)[number % 2].save, bytes([number]) * 16, _record(seen=float(number)))
    for number in range(20):
        found = await (other, one)[number % 2].load(bytes([number]) * 16)
        assert found is not None
        assert found.seen == number
    reported: list[bytes] = []
    heard = anyio.Event()

    def ended(session: bytes) -> None:
        reported.append(session)
        heard.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.run, ended, lambda *_: None)
        await one.save(ONE, _record(ended=True))
        assert (await other.load(ONE)) == _record(ended=True)
        with anyio.fail_after(10):
            await heard.wait()
        tasks.cancel_scope.cancel()
    assert reported == [ONE]


async def test_the_file_is_private_and_a_row_goes_with_its_session(tmp_path: Path) -> None:
    file, now = tmp_path / "s.sqlite", 1_000.0
    store = SessionStore(file, wall=lambda: now)
    await store.save(ONE, _record(until=2_000.0))
    now = 10_000.0
    await store.save(OTHER, _record())
    with closing(sqlite3.connect(file)) as database:
        assert [key for (key,) in database.execute("SELECT id FROM sessions")] == [OTHER]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_damaged_file_is_set_aside_and_nothing_known_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "s.sqlite"
    file.write_bytes(b"this is not a database, whatever its name says" * 100)
    store = SessionStore(file)
    await store.save(ONE, _record(ended=True))
    found = await store.load(ONE)
    assert found is not None
    assert found.ended
    assert (tmp_path / "s.sqlite.corrupt-1").exists()
    await store.save(OTHER, _record())
    assert await SessionStore(file).load(ONE) == _record(ended=True)


async def test_a_folder_that_cannot_be_written_leaves_the_records_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = SessionStore(blocked / "s.sqlite")
    await store.save(ONE, _record(ended=True))
    assert await store.load(ONE) == _record(ended=True)
    assert "could not be written" in caplog.text


async def test_a_hub_without_a_file_keeps_what_was_saved_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_store, "MOST_IN_MEMORY", 2)
    store, third = SessionStore(), b"3" * 16
    for session in (ONE, OTHER, ONE, third):
        await store.save(session, _record())
        await store.save_listed(session, {"tools/list": "0:aa"}, until=FAR)
    for session, kept in ((ONE, True), (OTHER, False), (third, True)):
        assert (await store.load(session) is not None) is kept
        assert (await store.load_listed(session) is not None) is kept


async def test_a_file_that_is_only_read_is_not_made(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "s.sqlite")
    assert await store.load(ONE) is None
    assert await store.load_listed(ONE) is None
    assert not _names_in(tmp_path)


async def test_what_is_written_leaves_the_memory_and_another_hub_may_change_it(tmp_path: Path) -> None:
    one, other = SessionStore(tmp_path / "s.sqlite"), SessionStore(tmp_path / "s.sqlite")
    await one.save(ONE, _record(log_level="error"))
    await one.save_listed(ONE, {"tools/list": "0:aa"}, until=FAR)
    await other.save(ONE, _record(log_level="debug"))
    await other.save_listed(ONE, {"tools/list": "0:bb"}, until=FAR)
    assert await one.load(ONE) == _record(log_level="debug")
    assert await one.load_listed(ONE) == {"tools/list": "0:bb"}


async def test_a_change_that_comes_while_an_earlier_one_is_written_is_written_too(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "s.sqlite")
    async with anyio.create_task_group() as tasks:
        for level in ("error", "info", "debug"):
            tasks.start_soon(store.save, ONE, _record(log_level=level))
            tasks.start_soon(partial(store.save_listed, ONE, {level: "0:aa"}, until=FAR))
    again = SessionStore(tmp_path / "s.sqlite")
    assert await again.load(ONE) == _record(log_level="debug")
    assert set(await again.load_listed(ONE) or ()) == {"error", "info", "debug"}


async def test_rows_that_no_hub_wrote_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "s.sqlite"
    store = SessionStore(file)
    await store.save(ONE, _record())
    await store.save_listed(ONE, {}, until=FAR)
    for subscribed, lists in (("7", "7"), ("no json", "no json"), ("[1]", "[1]")):
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("UPDATE sessions SET subscribed = ?", (subscribed,))
            database.execute("UPDATE listed SET lists = ?", (lists,))
        assert await store.load(ONE) is None
        assert await store.load_listed(ONE) is None
    assert caplog.text.count("could not be read") == 6
    assert _names_in(tmp_path) == ["s.sqlite"], "the file itself is sound"


async def test_a_file_of_an_earlier_version_gets_what_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "s.sqlite"
    await SessionStore(file).save(ONE, _record())
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("DROP TABLE listed")
    assert await SessionStore(file).load_listed(ONE) is None
    await SessionStore(file).save_listed(ONE, {"tools/list": "0:aa"}, until=FAR)
    assert await SessionStore(file).load_listed(ONE) == {"tools/list": "0:aa"}
    assert await SessionStore(file).load(ONE) == _record()


async def test_rows_are_looked_through_once_an_hour(tmp_path: Path) -> None:
    now = 10_000.0
    store = SessionStore(tmp_path / "s.sqlite", wall=lambda: now)
    await store.save(ONE, _record(until=11_000.0))
    await store.save_listed(ONE, {}, until=11_000.0)
    now = 12_000.0
    await store.save(OTHER, _record())
    assert await store.load(ONE) is not None, "that it expired is seen by its ticket"
    now = 14_000.0
    await store.save(OTHER, _record())
    assert (await store.load(ONE), await store.load_listed(ONE)) == (None, None)


async def test_the_next_end_is_reported_and_no_end_twice(tmp_path: Path) -> None:
    one, other = SessionStore(tmp_path / "s.sqlite"), SessionStore(tmp_path / "s.sqlite")
    reported: list[bytes] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.run, reported.append, lambda *_: None)
        for session in (ONE, OTHER):
            await one.save(session, _record(ended=True))
            await came_true(lambda session=session: session in reported)  # type: ignore[misc]
        tasks.cancel_scope.cancel()
    assert reported == [ONE, OTHER]


@pytest.mark.requirement("LIFE-18")
@pytest.mark.requirement("SEC-11")
async def test_of_all_ends_in_the_file_only_the_latest_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_store, "MOST_ENDED", 3)
    mine, other = (SessionStore(tmp_path / "s.sqlite") for _ in range(2))
    ends, reported = [bytes([number]) * 16 for number in range(6)], list[bytes]()
    for at, session in enumerate(ends[:5]):
        await mine.save(session, _record(ended=True, seen=float(at)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.run, reported.append, lambda *_: None)
        await came_true(lambda: len(reported) >= 3)
        await mine.save(ends[5], _record(ended=True, seen=5.0))
        await came_true(lambda: ends[5] in reported)
        tasks.cancel_scope.cancel()
    assert sorted(reported) == ends[2:]


async def test_lists_that_could_not_be_written_are_known_beside_those_that_were(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    store = SessionStore(folder / "s.sqlite")
    await store.save_listed(ONE, {"tools/list": "0:aa", "prompts/list": "0:bb"}, until=FAR)
    folder.rename(tmp_path / "away")
    folder.write_text("no folder")
    await store.save_listed(ONE, {"tools/list": "0:cc"}, until=FAR)
    assert await store.load_listed(ONE) == {"tools/list": "0:cc"}
    folder.unlink()
    (tmp_path / "away").rename(folder)
    assert await store.load_listed(ONE) == {"tools/list": "0:cc", "prompts/list": "0:bb"}


@pytest.mark.requirement("LIFE-18")
async def test_the_lists_of_a_client_are_kept_together_whichever_worker_gave_them_out(tmp_path: Path) -> None:
    one, other = SessionStore(tmp_path / "s.sqlite"), SessionStore(tmp_path / "s.sqlite")
    assert await one.load_listed(ONE) is None
    await one.save_listed(ONE, {}, until=FAR)
    assert await other.load_listed(ONE) == {}
    await other.save_listed(ONE, {"tools/list": "0:aa"}, until=FAR)
    await one.save_listed(ONE, {"prompts/list": "0:bb"}, until=FAR)
    await one.save_listed(ONE, {"prompts/list": "0:cc"}, until=FAR)
    assert await other.load_listed(ONE) == {"tools/list": "0:aa", "prompts/list": "0:cc"}


@pytest.mark.requirement("LIFE-18")
async def test_a_hub_that_shares_its_key_with_other_machines_does_not_claim_to_know_a_clients_lists() -> None:
    ticket = SessionTicket(ONE, "2025-11-25", 1, "home", {}, {})
    for shared, workers, known in ((False, False, True), (True, False, False), (True, True, True)):
        ids = SessionIds(SessionKeys([b"k" * 32], shared=shared), SessionStore(), one_machine=workers)
        await ids.keep_listed(ticket, {"tools/list": "0:aa"})
        assert await ids.listed(ticket) == ({"tools/list": "0:aa"} if known else None)


class SharedState:
    """What the replicas of a fleet share, and who listens to it."""

    def __init__(self) -> None:
        self.kept_values: dict[str, Any] = {}
        self.listening: dict[str, Any] = {}
        self.state = SimpleNamespace(keeps_all=True, kept=self.kept_values.get, write=self.kept_values.__setitem__)

    def listen(self, kind: str, heard: Any) -> None:
        self.listening[kind] = heard


def fleet_sessions(shared: SharedState, file: Path | None = None, key: bytes = b"k" * 32) -> FleetSessions:
    keys = SimpleNamespace(ring=KeyRing([key]))
    return FleetSessions(cast("Any", shared), cast("Any", keys), file, wall=lambda: 100.0)


@pytest.mark.requirement("FLEET-2")
async def test_a_session_of_a_fleet_is_known_at_every_replica_with_the_key() -> None:
    shared = SharedState()
    here, there = fleet_sessions(shared), fleet_sessions(shared)
    assert here.shared
    record = _record(log_level="debug", subscribed=frozenset({("a", "file:///x")}))
    assert await there.load(ONE) is None
    await here.save(ONE, record)
    assert await there.load(ONE) == record
    assert await there.load(OTHER) is None
    assert await fleet_sessions(shared, key=b"x" * 32).load(ONE) is None
    ((name, value),) = shared.kept_values.items()
    assert value["until"] == 100.0 + KEPT_SECONDS, "no replica needs it for longer"
    assert "file:///x" not in str(value)
    shared.kept_values[name.replace(ONE.hex(), OTHER.hex())] = value
    assert await there.load(OTHER) is None, "a state is bound to its session"
    for damaged in ({}, {"sealed": "no base64!"}, {"sealed": "AAAA"}):
        shared.kept_values[name] = damaged
        assert await there.load(ONE) is None
    await here.save_listed(ONE, {"tools/list": "digest"}, until=FAR)
    assert await here.load_listed(ONE) == {"tools/list": "digest"}
    assert await there.load_listed(ONE) is None, "that is too much for the fleet"


@pytest.mark.requirement("FLEET-2")
async def test_the_later_record_counts_and_an_end_counts_for_ever(tmp_path: Path) -> None:
    shared, beside = SharedState(), SessionStore(tmp_path / "s.sqlite")
    here, there = fleet_sessions(shared, beside.file), fleet_sessions(shared)
    await there.save(ONE, _record(seen=20.0, log_level="error"))
    await beside.save(ONE, _record(seen=10.0))
    found = await here.load(ONE)
    assert found is not None
    assert found.log_level == "error"
    await beside.save(ONE, _record(seen=30.0, log_level="info"))
    found = await here.load(ONE)
    assert found is not None
    assert (found.log_level, found.ended) == ("info", False)
    await there.save(ONE, _record(ended=True))
    for one in (here, there, fleet_sessions(shared)):
        found = await one.load(ONE)
        assert found is not None
        assert found.ended
    await beside.save(OTHER, _record(ended=True))
    found = await here.load(OTHER)
    assert found is not None
    assert found.ended, "it ended on this machine while the store was away"


@pytest.mark.requirement("FLEET-2")
async def test_a_session_with_too_many_subscriptions_shares_the_rest() -> None:
    shared = SharedState()
    many = frozenset(("a", f"file:///{number}/{'x' * 100}") for number in range(200))
    await fleet_sessions(shared).save(ONE, _record(log_level="debug", subscribed=many))
    assert await fleet_sessions(shared).load(ONE) == _record(log_level="debug")


@pytest.mark.requirement("FLEET-2")
async def test_ends_and_changes_at_other_replicas_are_reported() -> None:
    shared = SharedState()
    here = fleet_sessions(shared)
    ended: list[bytes] = []
    changed: list[tuple[object, ...]] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(here.run, ended.append, lambda *about: changed.append(about))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    await fleet_sessions(shared).save(ONE, _record(log_level="debug"))
    (value,) = shared.kept_values.values()
    for name in (ONE.hex(), "no hex"):
        shared.listening["ended"](name, {})
        shared.listening["session"](name, value)
    shared.listening["session"](OTHER.hex(), value)
    assert (ended, changed) == ([ONE], [(ONE, _record(log_level="debug"))])


@pytest.mark.requirement("FLEET-2")
async def test_a_state_of_16_kib_is_shared_whole_and_one_byte_more_without_its_subscriptions() -> None:
    def record(size: int) -> SessionRecord:
        return _record(log_level="debug", subscribed=frozenset({("a", "x" * size)}))

    sizes = range(LARGEST_STATE - 40, LARGEST_STATE)
    (largest,) = (size for size in sizes if len(_written(record(size))) == LARGEST_STATE)
    for size, shared_whole in ((largest, True), (largest + 1, False)):
        shared = SharedState()
        await fleet_sessions(shared).save(ONE, record(size))
        whole = record(size) if shared_whole else _record(log_level="debug")
        assert await fleet_sessions(shared).load(ONE) == whole


def _written(record: SessionRecord) -> bytes:
    return msgspec.msgpack.encode([record.until, record.seen, record.log_level, sorted(record.subscribed)])


@pytest.mark.requirement("FLEET-2")
async def test_the_fleet_keeps_a_state_no_longer_than_its_session_may_live() -> None:
    shared = SharedState()
    await fleet_sessions(shared).save(ONE, _record(until=150.0))
    await fleet_sessions(shared).save(OTHER, _record(until=160.0, ended=True))
    assert {name: value["until"] for name, value in shared.kept_values.items()} == {
        f"session/{ONE.hex()}": 150.0,
        f"ended/{OTHER.hex()}": 160.0,
    }
    assert "sealed" not in shared.kept_values[f"ended/{OTHER.hex()}"], "of an ended session nothing else is asked"
    assert not SessionStore().shared
    shared.state.keeps_all = False
    assert not fleet_sessions(shared).shared


async def test_a_row_goes_when_its_time_is_over_and_not_at_that_moment(tmp_path: Path) -> None:
    now = 10_000.0
    store = SessionStore(tmp_path / "s.sqlite", wall=lambda: now)
    await store.save(ONE, _record())
    await store.save(OTHER, _record(until=13_601.0))
    await store.save_listed(OTHER, {}, until=13_601.0)
    now = 13_600.0
    await store.save(ONE, _record())
    now = 13_601.0
    await store.save(ONE, _record())
    assert (await store.load(OTHER), await store.load_listed(OTHER)) == (_record(until=13_601.0), {})
    now = 17_201.0
    await store.save(ONE, _record())
    assert await store.load(OTHER) is not None, "once an hour, not at the hour"
    now = 17_202.0
    await store.save(ONE, _record())
    assert (await store.load(OTHER), await store.load_listed(OTHER)) == (None, None)


async def test_a_hub_without_a_file_reports_no_ends_and_does_not_wait_for_any() -> None:
    with anyio.fail_after(10):
        await SessionStore().run(lambda _: None, lambda *_: None)


async def test_without_a_file_the_last_record_of_as_many_as_there_may_be_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session_store, "MOST_IN_MEMORY", 2)
    store = SessionStore()
    for session in (ONE, OTHER):
        await store.save(session, _record())
    assert [*store.records] == [ONE, OTHER]
    written = SessionStore(tmp_path / "s.sqlite")
    await written.save(ONE, _record())
    await written.save_listed(ONE, {}, until=FAR)
    assert (written.records, written.lists) == ({}, {}), "what is in the file is not in memory"


@pytest.mark.requirement("FLEET-2")
async def test_what_the_fleet_was_told_is_kept_on_this_machine_too(tmp_path: Path) -> None:
    shared = SharedState()
    here = fleet_sessions(shared, tmp_path / "s.sqlite")
    await here.save(ONE, _record(log_level="debug"))
    shared.kept_values.clear()
    assert await here.load(ONE) == _record(log_level="debug")
