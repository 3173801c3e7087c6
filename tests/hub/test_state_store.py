"""What survives a restart, and what a hub makes of a state file that is corrupt, newer, locked or out of reach."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.core import Item, Kind, Listing, NameKey
from holdfast.core.lifecycle.table import State
from holdfast.errors import ServerDisabled
from holdfast.hub import state_store
from holdfast.hub.approvals import UNVERIFIED
from holdfast.hub.hub import Hub
from holdfast.hub.state_store import SCHEMA_VERSION, Store, StoredServer, default_state_file
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
    async with Hub.from_config({"mcpServers": {}}) as hub:
        assert hub.registry.writer._store is None  # a mapping is kept only if it is said where
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
