"""What survives a restart, and what a hub makes of a state file that is corrupt, newer, locked or out of reach."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest

from holdfast.config import Config
from holdfast.core import Catalog, Item, Kind, Listing, NameKey
from holdfast.core.lifecycle.table import State
from holdfast.errors import ServerDisabled
from holdfast.hub import state_store
from holdfast.hub.approvals import UNVERIFIED
from holdfast.hub.hub import Hub
from holdfast.hub.state_store import (
    SCHEMA_VERSION,
    Pins,
    StateWriter,
    Store,
    StoredServer,
    default_state_file,
    listing_from,
    listing_pieces,
)
from holdfast.testing import FakeClock
from tests.harness.open_hubs import config, defined, reaches, running, settled
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio
MakePeer = Callable[..., StdioPeer]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "state.sqlite"


def contents(state: Path) -> bytes:
    return state.read_bytes()


def beside(state: Path) -> list[str]:
    return [path.name for path in state.parent.iterdir() if path.name.startswith(state.name)]


@pytest.mark.requirement("LIFE-21")
async def test_the_last_good_catalog_is_listed_at_once_after_a_restart_and_marked_until_it_is_verified(
    state: Path,
) -> None:
    clock = FakeClock()
    async with McpPeer(offers=True) as peer:
        async with running({"a": peer}, hub={"state_file": state}) as hub:
            await settled(hub, peer)
            before = hub.catalog
        await peer.stop()
        async with running({"a": peer}, hub={"state_file": state}, clock=clock) as hub:
            restored = hub.catalog
            for kind in ("tools", "prompts", "resources", "templates"):
                now, then = getattr(restored, kind), getattr(before, kind)
                assert [(entry.name, entry.item) for entry in now] == [(entry.name, entry.item) for entry in then]
                assert not any(entry.verified for entry in now)
            marked = hub.tools()
            assert all(tool.meta[UNVERIFIED] is True for tool in marked)
            assert [tool.description for tool in marked] == [f"The peer's tool {tool.name[3:]}." for tool in marked]
            await reaches(hub, "a", State.PERMANENTLY_FAILED)
            assert len(hub.catalog.tools) == 5  # it is down, and its tools stay
            await peer.start()
            await clock.advance(1)
            await reaches(hub, "a")
            assert all(UNVERIFIED not in tool.meta for tool in hub.tools())


@pytest.mark.requirement("LIFE-21")
async def test_who_is_disabled_survives_a_restart_and_so_does_who_is_enabled_again(
    state: Path, stdio_peer: MakePeer
) -> None:
    peer = stdio_peer()
    async with running({"a": peer, "b": peer}, hub={"state_file": state}) as hub:
        await hub.ready()
        await hub.toggle("a", False)
    async with running({"a": peer, "b": peer}, hub={"state_file": state}) as hub:
        await hub.ready()
        assert hub.server_health("a").state is State.DISABLED
        assert {entry.server for entry in hub.catalog.tools} == {"b"}
        with pytest.raises(ServerDisabled):
            await hub.call_tool("a__echo")
        await hub.toggle("a", True)
        assert len(hub.catalog.tools) == 10
        await reaches(hub, "a")
    async with running({"a": peer, "b": peer}, hub={"state_file": state}) as hub:
        await hub.ready()
        assert hub.server_health("a").state is State.CONNECTED


@pytest.mark.requirement("LIFE-21", "LIFE-20")
async def test_another_definition_never_shows_the_tools_of_the_old_one_but_stays_disabled(
    state: Path, stdio_peer: MakePeer
) -> None:
    peer = stdio_peer()
    async with running({"a": peer, "b": peer}, hub={"state_file": state}) as hub:
        await hub.ready()
        await hub.toggle("b", False)
    other = stdio_peer("--tools", "1", "--never-answer")
    async with running({"a": other, "b": other}, hub={"state_file": state}) as hub:
        assert [*hub.catalog.tools] == []
        assert hub.server_health("b").state is State.DISABLED


@pytest.mark.requirement("LIFE-21")
async def test_a_name_given_out_before_a_restart_means_the_same_tool_after_it(state: Path) -> None:
    async with McpPeer() as first, McpPeer() as second:
        one, two = defined(first, prefix=""), defined(second, prefix="")
        async with running({"a": one}, hub={"state_file": state}) as hub:
            await hub.ready()
        async with running({"a": one, "b": two}, hub={"state_file": state}) as hub:
            await hub.ready()
            owners = {entry.name: entry.server for entry in hub.catalog.tools}
            assert (owners["echo"], owners["b__echo"]) == ("a", "b")
            assert len(owners) == 10


@pytest.mark.requirement("LIFE-21")
@pytest.mark.parametrize("damage", ["garbage", "truncated", "no table", "no json", "unknown kind"])
async def test_a_corrupt_file_is_set_aside_and_the_hub_starts(
    damage: str, state: Path, stdio_peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    peer = stdio_peer()
    async with running({"a": peer}, hub={"state_file": state}) as hub:
        await hub.ready()
    _damage(state, damage)
    broken = contents(state)
    async with running({"a": peer}, hub={"state_file": state}) as hub:
        await hub.ready()
        assert hub.server_health("a").state is State.CONNECTED
        assert contents(state.with_name("state.sqlite.corrupt-1")) == broken
        assert "set aside as state.sqlite.corrupt-1" in caplog.text
    async with running({"a": peer}, hub={"state_file": state}) as hub:
        assert len(hub.catalog.tools) == 5  # and the new file is a good one


def _damage(state: Path, how: str) -> None:
    if how == "garbage":
        state.write_bytes(b"this is no database" * 100)
    elif how == "truncated":
        state.write_bytes(state.read_bytes()[:5000])
    else:
        statement = {
            "no table": "DROP TABLE names",
            "no json": "UPDATE servers SET listing = '{]'",
            "unknown kind": "UPDATE names SET kind = 'gizmo'",
        }[how]
        with closing(sqlite3.connect(state)) as database, database:
            database.execute(statement)


@pytest.mark.requirement("LIFE-21")
async def test_a_file_of_a_newer_version_is_left_alone(
    state: Path, stdio_peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    peer = stdio_peer()
    async with running({"a": peer}, hub={"state_file": state}) as hub:
        await hub.ready()
    with closing(sqlite3.connect(state)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    newer = contents(state)
    async with running({"a": peer}, hub={"state_file": state}) as hub:
        await hub.ready()
        await hub.toggle("a", False)
    assert contents(state) == newer
    assert beside(state) == ["state.sqlite"]
    assert "newer Holdfast" in caplog.text


@pytest.mark.requirement("LIFE-21")
async def test_a_file_that_another_process_holds_is_not_taken_for_corrupt(
    state: Path, stdio_peer: MakePeer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_store, "BUSY_SECONDS", 0.05)
    peer = stdio_peer()
    async with running({"a": peer}, hub={"state_file": state}) as hub:
        await hub.ready()
    with closing(sqlite3.connect(state, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        async with running({"a": peer}, hub={"state_file": state}) as hub:
            await hub.ready()
            assert hub.server_health("a").state is State.CONNECTED
        holder.execute("ROLLBACK")
    assert "locked" in caplog.text
    assert beside(state) == ["state.sqlite"]


@pytest.mark.requirement("LIFE-21")
async def test_a_state_file_that_cannot_be_made_does_not_keep_the_hub_from_its_work(
    tmp_path: Path, stdio_peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    async with running({"a": stdio_peer()}, hub={"state_file": tmp_path / "taken" / "state.sqlite"}) as hub:
        await hub.ready()
        assert (await hub.call_tool("a__echo", {"text": "works"})).text == "works"
    assert "could not be written" in caplog.text


@pytest.mark.requirement("LIFE-21", "MSG-6")
async def test_no_secret_is_in_the_file(state: Path, stdio_peer: MakePeer) -> None:
    secret = "hunter2-hunter2-hunter2"
    async with McpPeer(auth=f"Bearer {secret}") as peer:
        guarded = defined(peer, headers={"Authorization": f"Bearer {secret}"})
        child = defined(stdio_peer(), env={"TOKEN": secret})
        async with running({"a": guarded, "b": child}, hub={"state_file": state}) as hub:
            await hub.ready()
            assert len(hub.catalog.tools) == 10
    assert secret.encode() not in contents(state)


@pytest.mark.requirement("LIFE-21")
async def test_a_file_of_the_users_has_a_place_of_its_own_in_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one, two = default_state_file(Path("a/mcp.json")), default_state_file(Path("b/mcp.json"))
    assert one != two
    assert one.parent == tmp_path / "holdfast"
    async with Hub.from_config({"mcpServers": {}}):
        pass
    assert not list(tmp_path.rglob("*.sqlite")), "a mapping is kept only if it is said where"  # noqa: ASYNC240 - of a test
    async with Hub(config({}), state_file=one):
        pass
    assert one.exists()


@pytest.mark.requirement("LIFE-21")
def test_a_hub_that_saves_for_the_first_time_keeps_the_switch_of_another(tmp_path: Path) -> None:
    first, second = Store(tmp_path / "state.sqlite"), Store(tmp_path / "state.sqlite")
    first.load()
    second.load()  # before the other hub wrote anything
    first.save({"one": StoredServer(fingerprint="f", disabled=True, listing=None, names={})})
    second.save({"one": StoredServer(fingerprint="f", disabled=False, listing=None, names={})})
    assert Store(tmp_path / "state.sqlite").load()["one"].disabled
    assert second.switches() == {"one": True}


@pytest.mark.requirement("LIFE-21", "SEC-4")
def test_a_name_that_is_no_text_keeps_nothing_else_out_of_the_file(tmp_path: Path) -> None:
    odd, plain = NameKey(Kind.TOOL, "evil", "\ud800"), NameKey(Kind.RESOURCE, "evil", "a:b")
    listing = Listing(server="evil", generation=1, tools=(Item("\ud800", {"name": "\ud800"}),))
    evil = StoredServer(fingerprint="e", listing=listing, names={odd: "evil____7eb1abb6", plain: "a:b"})
    assert Store(tmp_path / "state.sqlite").save({"evil": evil, "one": StoredServer(fingerprint="f", disabled=True)})
    read = Store(tmp_path / "state.sqlite").load()
    assert read["one"].disabled
    assert read["evil"].names == {plain: "a:b"}
    assert read["evil"].listing is not None
    assert read["evil"].listing.tools == listing.tools


def stored(**more: Any) -> StoredServer:
    return StoredServer(**{"fingerprint": "f", **more})


def tools(*names: str) -> Listing:
    return Listing(server="one", generation=0, tools=tuple(Item(name, {"name": name}) for name in names))


def names_of(*names: str) -> dict[NameKey, str]:
    return {NameKey(Kind.TOOL, "one", name): f"one__{name}" for name in names}


@pytest.mark.requirement("LIFE-21")
def test_a_hub_writes_what_it_changed_and_leaves_the_rest_as_another_wrote_it(tmp_path: Path) -> None:
    first, second = Store(tmp_path / "state.sqlite"), Store(tmp_path / "state.sqlite")
    assert first.load() == {}
    old, new = stored(listing=tools("x"), names=names_of("x")), stored(listing=tools("y"), names=names_of("y"))
    assert first.save({"one": old, "gone": old})
    assert second.load()["one"] == old
    assert first.save({"one": new})
    read = Store(tmp_path / "state.sqlite").load()
    assert read == {"one": new}, "a server that it no longer has is deleted, with its names"
    assert second.save({"one": replace(old, disabled=True)}), "the listing is the one that it read"
    read = Store(tmp_path / "state.sqlite").load()
    assert read == {"one": replace(new, disabled=True)}
    assert second.save({"one": replace(new, fingerprint="g", disabled=True)})
    assert Store(tmp_path / "state.sqlite").load()["one"].fingerprint == "g"


@pytest.mark.requirement("LIFE-21")
def test_a_switch_is_written_by_the_hub_that_made_it_and_told_to_the_other_once(tmp_path: Path) -> None:
    first, second = Store(tmp_path / "state.sqlite"), Store(tmp_path / "state.sqlite")
    first.save({"one": stored(), "two": stored()})
    second.load()
    assert second.switches() == {}
    first.save({"one": stored(disabled=True), "two": stored()})
    assert second.save({"one": stored(), "two": stored()}), "it does not know of the switch yet, and undoes nothing"
    assert second.switches() == {"one": True}
    assert second.switches() == {}
    assert second.save({"one": stored(), "two": stored()})
    assert Store(tmp_path / "state.sqlite").load()["one"].disabled, "it did not follow, which is no switch of its own"
    second.followed("one", disabled=True)
    second.save({"one": stored(), "two": stored()})
    assert not Store(tmp_path / "state.sqlite").load()["one"].disabled, "after it followed, this is one"
    assert first.switches() == {"one": False}


def test_a_store_that_cannot_be_read_tells_no_switches(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.sqlite")
    store.save({"one": stored()})
    (tmp_path / "state.sqlite").write_bytes(b"no database, and long enough to be looked at by SQLite" * 20)
    assert store.switches() is None


class Writes:
    """The writer of one hub whose servers, catalog and switches a test sets."""

    def __init__(self, file: Path, *, pins: Pins | None = None) -> None:
        self.config = config({"one": {"url": "http://127.0.0.1:9/mcp"}})
        self.off: frozenset[str] = frozenset()
        self.file = file
        self.store = Store(file)
        self.writer = StateWriter(self.store, pins or Pins(None), self.now)

    def now(self) -> tuple[Config, Catalog, frozenset[str]]:
        return self.config, Catalog().arrange({"one": None}), self.off

    def is_off(self) -> bool:
        return Store(self.file).load()["one"].disabled


@pytest.mark.requirement("LIFE-21")
async def test_a_switch_of_another_hub_between_the_read_and_the_first_poll_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "state.sqlite"
    other, ours = Store(file), Writes(file)
    mark = state_store.fingerprint(ours.config.servers["one"])
    other.save({"one": stored(fingerprint=mark)})
    ours.writer.restore(ours.config)
    other.save({"one": stored(fingerprint=mark, disabled=True)})
    told, came = list[tuple[str, bool]](), anyio.Event()

    def follow(server: str, disabled: bool) -> bool:
        told.append((server, disabled))
        came.set()
        return True

    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ours.writer.watch, follow, lambda _: None)
            await came.wait()
            tasks.cancel_scope.cancel()
    assert told == [("one", True)]


async def test_a_hub_without_a_file_writes_nothing_and_has_nothing_to_watch() -> None:
    writer = StateWriter(None, Pins(None), Writes(Path("unused")).now)
    writer.changed()
    await writer.watch(lambda *_: True, lambda _: None)
    await writer.close(Writes(Path("unused")).now())


async def test_the_state_of_a_hub_that_closes_is_that_of_its_end(tmp_path: Path) -> None:
    ours = Writes(tmp_path / "state.sqlite")
    ours.off = frozenset({"one"})
    last = ours.now()
    ours.off = frozenset()  # its slots no longer tell who is disabled
    await ours.writer.close(last)
    assert ours.is_off()


async def test_what_could_not_be_written_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_store, "LONGEST_PAUSE", 0.01)
    pins = Pins(tmp_path / "pins.json")
    pins.pin("one", "tool", {"description": "x"}, approved=True)
    ours = Writes(tmp_path / "state.sqlite", pins=pins)
    results, tried = [False, False], list[str]()
    save, add = ours.store.save, pins.save
    done = anyio.Event()

    def fails(what: str, real: Callable[[Any], bool]) -> Callable[[Any], bool]:
        failing = iter(results)

        def tries(given: Any) -> bool:
            tried.append(what)
            written = next(failing, True) and real(given)
            if tried.count("state") == tried.count("pins") == 3:
                anyio.from_thread.run_sync(done.set)
            return written

        return tries

    monkeypatch.setattr(ours.store, "save", fails("state", save))
    monkeypatch.setattr(pins, "save", fails("pins", add))
    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ours.writer.run)
            ours.off = frozenset({"one"})
            ours.writer.changed()
            await done.wait()
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert sorted(tried) == ["pins"] * 3 + ["state"] * 3, "and what was written is not written again"
    assert (ours.is_off(), pins.unsaved) == (True, False)
    again = Pins(tmp_path / "pins.json")
    again.take(again.read())
    assert again.of("one") == {"tool": {"description": "x"}}


async def test_what_a_person_did_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_store, "LONGEST_PAUSE", 3600.0)
    ours = Writes(tmp_path / "state.sqlite")
    failing, wrote = iter([False]), anyio.Event()

    def save(given: Any) -> bool:
        written = next(failing, True)
        anyio.from_thread.run_sync(wrote.set)
        return written

    monkeypatch.setattr(ours.store, "save", save)
    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ours.writer.run)
            ours.writer.changed()
            await wrote.wait()
            await anyio.wait_all_tasks_blocked()
            wrote = anyio.Event()
            ours.writer.changed(at_once=True)  # else it would wait for an hour after the failure
            await wrote.wait()
            tasks.cancel_scope.cancel()


def test_a_listing_is_the_same_after_it_was_text() -> None:
    whole = Listing(
        server="one",
        generation=0,
        tools=(Item("a", {"b": 1, "a": 2}), Item("b", {})),
        prompts=(Item("p", {}),),
        resources=(Item("r:1", {}),),
        templates=(Item("r:{x}", {}),),
    )
    for sort_keys in (True, False):
        text = "".join(listing_pieces(whole, sort_keys=sort_keys))
        assert listing_from("one", json.loads(text)) == whole
        assert ('{"a": 2, "b": 1}' in text) is sort_keys
    with pytest.raises(KeyError):
        listing_from("one", {})


def test_a_definition_is_another_one_if_its_address_or_its_filter_is_and_not_by_its_secrets() -> None:
    spec = config({"one": {"url": "http://127.0.0.1:9/mcp"}}).servers["one"]
    same = [replace(spec, headers={"Authorization": "x"}), replace(spec, env={"TOKEN": "x"}), replace(spec, id="two")]
    others = [replace(spec, url="http://127.0.0.1:9/other"), replace(spec, prefix="p"), replace(spec, args=("x",))]
    assert {state_store.fingerprint(one) for one in same} == {state_store.fingerprint(spec)}
    assert len({state_store.fingerprint(one) for one in (spec, *others)}) == 4
