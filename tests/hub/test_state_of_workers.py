"""The workers of a hub write its state files at once, as processes: nothing is lost, and no reader sees a part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from holdfast.front.session_store import SessionStore
from holdfast.hub.state_store import Store, read_pins

pytestmark = pytest.mark.requirement("FLEET-8")

WRITERS, ROUNDS = 4, 8

# Each program gets a folder and its number, and begins when all of them are there.
COMMON = """from holdfast.cli.entry import main
import json, os, sys
from pathlib import Path
folder, number, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def begin():
    print("up", flush=True)
    sys.stdin.read()
"""

CATALOG = """
from holdfast.core import Item, Kind, Listing, NameKey
from holdfast.hub.state_store import Store, StoredServer
def stored(server, round, off=False):
    mark = f"{number}.{round}"
    listing = Listing(server=server, generation=0, tools=(Item(mark, {"name": mark, "description": mark * 2000}),))
    names = {NameKey(Kind.TOOL, server, mark): mark}
    return StoredServer(fingerprint=mark, disabled=off, listing=listing, names=names)
begin()
store = Store(folder / "state.sqlite")
known = store.load().get("all")
off = known is not None and known.disabled  # as a hub that starts takes it
for round in range(rounds):
    off = off or (number == 0 and round >= rounds // 2)
    store.save({f"own{number}": stored(f"own{number}", round), "all": stored("all", round, off)})
"""

APPROVALS = """
from holdfast.hub.state_store import PinChanges, PinnedTools, add_pins, read_pins
begin()
file = folder / "approvals.json"
for round in range(rounds):
    mine = {"description": f"{number} " * 500}
    seen = {f"own{number}": {f"t{round}": mine}, "all": {f"t{round}": mine}}
    approved = {("all", "approved")}
    if number == 0 and round == rounds // 2:
        seen["all"]["approved"] = {"description": "new"}
        add_pins(file, PinChanges(known=PinnedTools(seen, {}), approved=approved))
    else:
        seen["all"]["approved"] = {"description": "old"}
        assert add_pins(file, PinChanges(known=PinnedTools(seen, {})))
    first = read_pins(file).seen["all"][f"t{round}"]
    print(json.dumps([round, first["description"]]))
"""

SESSIONS = """
import anyio
from holdfast.front.session_store import SessionRecord, SessionStore
async def run():
    store = SessionStore(folder / "sessions.sqlite")
    for round in range(rounds):
        level = f"{number}.{round}"
        await store.save(bytes([number, round]) * 8, SessionRecord(until=4e9, seen=round, log_level=level))
        ended = number == 0 and round == rounds // 2
        await store.save(b"a" * 16, SessionRecord(until=4e9, seen=100 * number + round, ended=ended))
begin()
anyio.run(run)
"""

REGISTRY = """
from holdfast.control.hub_finder import RunningHub, registered, running_hubs
begin()
environ = {"XDG_STATE_HOME": str(folder)}
for round in range(rounds):
    hub = RunningHub(url="http://127.0.0.1:1", token=f"{round} " * 5000, pid=os.getpid(), started=float(round))
    with registered(hub, environ=environ):
        assert [one for one in running_hubs(environ) if one.pid == os.getpid()] == [hub]
"""


def write_at_once(program: str, folder: Path, *, warns: bool = False) -> list[str]:
    """What each of the writers printed. They say nothing on stderr unless they may warn."""
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", COMMON + program, str(folder), str(number), str(ROUNDS)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={"PATH": os.environ["PATH"]},
                    text=True,
                )
            )
            for number in range(WRITERS)
        ]
        for one in writers:
            assert one.stdout is not None
            assert one.stdout.readline() == "up\n", one.communicate()[1]
        for one in writers:
            assert one.stdin is not None
            one.stdin.close()
            one.stdin = None
        said = [one.communicate(timeout=60) for one in writers]
        assert [one.returncode for one in writers] == [0] * WRITERS, said
        assert warns or not any(err for _, err in said), said
    return [out for out, _ in said]


@pytest.mark.parametrize("damaged", [False, True], ids=["new-file", "damaged-file"])
def test_the_last_good_catalog(tmp_path: Path, *, damaged: bool) -> None:
    if damaged:
        (tmp_path / "state.sqlite").write_text("this is no database " * 100)
    write_at_once(CATALOG, tmp_path, warns=damaged)
    found = Store(tmp_path / "state.sqlite").load()
    assert found.keys() == {"all", *(f"own{number}" for number in range(WRITERS))}
    for server, one in found.items():
        assert one.listing is not None
        (tool,), (name,) = one.listing.tools, one.names.values()
        assert tool.raw["description"] == one.fingerprint * 2000  # one version, and whole
        assert name == one.fingerprint
        assert server == "all" or one.fingerprint == f"{server.removeprefix('own')}.{ROUNDS - 1}"
    assert found["all"].disabled  # one worker said so; the others knew nothing of it and wrote on
    assert len([*tmp_path.glob("*.corrupt-*")]) == damaged


def test_approvals(tmp_path: Path) -> None:
    said = write_at_once(APPROVALS, tmp_path)
    seen = read_pins(tmp_path / "approvals.json").seen
    tools = {f"t{number}" for number in range(ROUNDS)}
    assert seen["all"].keys() == {*tools, "approved"}
    assert all(seen[f"own{number}"].keys() == tools for number in range(WRITERS))
    assert seen["all"]["approved"] == {"description": "new"}
    # The version that was first stayed so for every worker.
    firsts = {(number, first) for out in said for number, first in map(json.loads, out.splitlines())}
    assert firsts == {(number, seen["all"][f"t{number}"]["description"]) for number in range(ROUNDS)}


def test_sessions(tmp_path: Path) -> None:
    write_at_once(SESSIONS, tmp_path)
    store = SessionStore(tmp_path / "sessions.sqlite")

    async def check() -> None:
        for number in range(WRITERS):
            for turn in range(ROUNDS):
                kept = await store.load(bytes([number, turn]) * 8)
                assert kept is not None
                assert (kept.seen, kept.log_level) == (turn, f"{number}.{turn}")
        common = await store.load(b"a" * 16)
        assert common is not None
        assert (common.ended, common.seen) == (True, 100 * (WRITERS - 1) + ROUNDS - 1)

    anyio.run(check)


def test_the_hubs_that_run(tmp_path: Path) -> None:
    write_at_once(REGISTRY, tmp_path)
    assert list((tmp_path / "holdfast/hubs").iterdir()) == []
