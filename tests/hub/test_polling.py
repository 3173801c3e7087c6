"""The polls of a hub come together, and a disk that hangs holds up none of the others."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from holdfast.control.server.metrics import LoopLag
from holdfast.files import FileStamp, file_stamp
from holdfast.front import SessionStore
from holdfast.hub import Hub, hub_clock, next_poll, stamps

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("PERF-4")]


@pytest.mark.parametrize(("now", "due"), [(0.0, 0.5), (0.2, 0.5), (0.5, 1.0), (0.4995, 1.0), (7.99, 8.5), (7.98, 8.0)])
def test_polls_of_one_period_share_their_times_and_one_that_woke_early_does_not_wake_twice(
    now: float, due: float
) -> None:
    assert next_poll(now, 0.5) == due


async def test_a_look_at_files_does_not_hold_up_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def counted(file: Path) -> FileStamp:
        looked.append(threading.get_ident())
        return file_stamp(file)

    monkeypatch.setattr(hub_clock, "file_stamp", counted)
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("22")
    one, two, none = tmp_path / "one", tmp_path / "two", tmp_path / "none"
    with anyio.fail_after(5):
        assert await stamps(one, two, None, none) == (file_stamp(one), file_stamp(two), None, None)
        assert await stamps() == ()
    assert threading.get_ident() not in looked
    assert len(looked) == 3


async def test_the_polls_of_an_idle_hub_come_at_the_same_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wake-up of an idle hub serves all of them."""
    due: dict[str, float] = {}
    came = anyio.Event()

    async def noted(delay: float) -> None:
        caller = sys._getframe(1)
        if caller.f_code.co_name == "sleep_until_poll" and caller.f_back is not None:
            caller = caller.f_back
        due[caller.f_globals["__name__"]] = anyio.current_time() + delay
        if len(due) == 5:
            came.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(anyio, "sleep", noted)
    hub = Hub.from_config({"mcpServers": {}}, state_file=tmp_path / "state.sqlite")
    async with hub, anyio.create_task_group() as tasks:
        tasks.start_soon(SessionStore(tmp_path / "sessions.sqlite").run, lambda _: None, lambda *_: None)
        tasks.start_soon(LoopLag().run)
        with anyio.fail_after(5):
            await came.wait()
        tasks.cancel_scope.cancel()
    assert due.keys() == {
        "holdfast.hub.state_store",
        "holdfast.hub.registry",
        "holdfast.hub.owned_slots",
        "holdfast.front.session_store",
        "holdfast.control.server.metrics",
    }
    assert all(when % 0.5 == pytest.approx(0, abs=0.02) or when % 0.5 > 0.48 for when in due.values()), due


async def test_a_disk_that_hangs_holds_up_no_poll_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    hangs, other = tmp_path / "hangs", tmp_path / "other"
    other.write_text("1")

    def look(file: Path) -> FileStamp:
        if file == hangs:
            goes_on.wait(10)
        return file_stamp(file)

    monkeypatch.setattr(hub_clock, "file_stamp", look)
    try:
        with anyio.fail_after(5):
            hanging = asyncio.create_task(stamps(hangs))
            assert await stamps(other) == (file_stamp(other),)
            assert not hanging.done()
            goes_on.set()
            assert await hanging == (None,)
    finally:
        goes_on.set()


async def test_a_poll_that_ends_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, begun = threading.Event(), threading.Event()

    def look(_: Path) -> FileStamp:
        begun.set()
        goes_on.wait(10)
        return None

    monkeypatch.setattr(hub_clock, "file_stamp", look)
    try:
        with anyio.fail_after(5):
            hanging = asyncio.create_task(stamps(tmp_path / "hangs"))
            await anyio.to_thread.run_sync(begun.wait)
            hanging.cancel()
            await asyncio.wait([hanging])
        assert hanging.cancelled()
    finally:
        goes_on.set()
