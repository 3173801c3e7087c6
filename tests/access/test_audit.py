"""The audit: records in a chain that shows every change, written by a thread that no call waits for."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from holdfast.access import audit_reader, audit_writer
from holdfast.access.audit_reader import AuditFilter, AuditReader, checkpoints_in, latest_records, verify
from holdfast.access.audit_writer import (
    BUSY_SECONDS,
    LONGEST_TEXT,
    MANIFEST,
    START,
    AuditFiles,
    AuditKey,
    AuditRecord,
    AuditTrail,
    Checkpoint,
    audit_places,
    link_of,
    read_key,
    read_line,
    send_checkpoints,
)
from holdfast.config import AuditSettings, state_folder
from holdfast.core import Redactor
from holdfast.errors import UsageError
from holdfast.keys import SHORTEST_SECRET, mac
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.requirement("SEC-15")

KEY = AuditKey.of(b"k" * 32)
NOW = datetime(2026, 11, 18, tzinfo=UTC)


def called(tool: str = "get", principal: str = "bob") -> AuditRecord:
    return AuditRecord(time=NOW, event="call", principal=principal, server="jira", tool=tool, outcome="completed")


def write(folder: Path, *tools: str, close: bool = True, **options: object) -> Path:
    """The audit of one process; without ``close`` it was killed."""
    files = AuditFiles(folder, KEY, **options)  # type: ignore[arg-type]  # those of the constructor
    files.write(map(called, tools))
    if close:
        files.close()
    return max(folder.glob("audit-*.jsonl"), key=lambda file: file.stat().st_mtime_ns)


def lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True)


def rewrite(file: Path, content: Iterable[bytes]) -> None:
    file.write_bytes(b"".join(content))


# What a check finds, and what it cannot find.


def _change(file: Path) -> None:
    rewrite(
        file, (line.replace(b'"bob"', b'"eve"', 1) if number == 2 else line for number, line in enumerate(lines(file)))
    )


def _remove(file: Path) -> None:
    rewrite(file, (line for number, line in enumerate(lines(file)) if number != 2))


def _swap(file: Path) -> None:
    first, second, third, *rest = lines(file)
    rewrite(file, [first, third, second, *rest])


def _repeat(file: Path) -> None:
    first, second, *rest = lines(file)
    rewrite(file, [first, second, second, *rest])


def _cut_end(file: Path) -> None:
    rewrite(file, lines(file)[:-2])


def _cut_start(file: Path) -> None:
    rewrite(file, lines(file)[1:])


def _renumber(file: Path) -> None:
    """Remove a record, and let the numbers hide it."""
    kept = [line for number, line in enumerate(lines(file)) if number != 2]
    rewrite(file, (re.sub(rb'"n":\d+', b'"n":%d' % (number + 1), line) for number, line in enumerate(kept)))


def _other_key(file: Path) -> None:
    """Write the same history again, with a key that an intruder made."""
    forged = AuditFiles(file.parent / "forged", AuditKey.of(b"e" * 32))
    forged.write(map(called, "abc"))
    forged.close()
    rewrite(file, lines(next((file.parent / "forged").glob("audit-*.jsonl"))))
    shutil.rmtree(file.parent / "forged")


def _no_link(file: Path) -> None:
    rewrite(file, (re.sub(rb',"link":"[0-9a-f]+"', b"", line) if b'"c"' in line else line for line in lines(file)))


def _add(file: Path) -> None:
    rewrite(file, [*lines(file), b'{"n":7,"event":"call","link":"' + b"0" * 32 + b'"}\n'])


def _tear_closed(file: Path) -> None:
    rewrite(file, [*lines(file)[:-1], lines(file)[-1][:10]])


def _delete(file: Path) -> None:
    file.unlink()


def _rename(file: Path) -> None:
    file.rename(file.with_name(file.name.replace("-0001", "-0009")))


def _copy(file: Path) -> None:
    shutil.copy(file, file.with_name(file.name.replace("-0001", "-0002")))


def _delete_manifest(file: Path) -> None:
    (file.parent / "manifest.jsonl").unlink()


def _forget_in_manifest(file: Path) -> None:
    """Remove a file, and the entries that name it."""
    manifest = file.parent / "manifest.jsonl"
    rewrite(manifest, (line for line in lines(manifest) if file.name.encode() not in line))
    file.unlink()


MANIPULATIONS: dict[Callable[[Path], None], str] = {
    _change: "record 3 does not fit its link",
    _remove: "records are missing before it",
    _swap: "record 3 follows 1",
    _repeat: "it is in another place, or twice",
    _cut_end: "its end was cut off: it was closed after record 5",
    _cut_start: "its first record is missing",
    _renumber: "does not fit its link",
    _other_key: "written with another key",
    _no_link: "is not a record",
    _add: "it goes on after record 5",
    _tear_closed: "its end was cut off",
    _delete: "the file is missing",
    _rename: "it was written as",
    _copy: "the manifest does not name this file",
    _delete_manifest: "manifest.jsonl: the file is missing",
    _forget_in_manifest: "manifest.jsonl: record",
}


@pytest.mark.parametrize("manipulate", MANIPULATIONS, ids=lambda one: one.__name__.strip("_"))
def test_a_manipulation_of_the_files_is_found(tmp_path: Path, manipulate: Callable[[Path], None]) -> None:
    first = write(tmp_path, "a", "b", "c")
    write(tmp_path, "d")
    assert verify(tmp_path, KEY).count == 0
    manipulate(first)
    found = verify(tmp_path, KEY)
    assert found.count > 0
    assert any(MANIPULATIONS[manipulate] in problem for problem in found.problems), found.problems


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_edit_of_a_line_is_found(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("audit")
    file = write(folder, *"abcdef")
    before = lines(file)
    after = [*before]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(after) - 1))
        match data.draw(st.sampled_from(["drop", "swap", "twice", "byte"])):
            case "drop" if len(after) > 1:
                del after[at]
            case "swap":
                other = data.draw(st.integers(0, len(after) - 1))
                after[at], after[other] = after[other], after[at]
            case "twice":
                after.insert(at, after[data.draw(st.integers(0, len(after) - 1))])
            case _:
                place = data.draw(st.integers(0, len(after[at]) - 2))
                changed = bytes([data.draw(st.integers(32, 126))])
                after[at] = after[at][:place] + changed + after[at][place + 1 :]
    rewrite(file, after)
    assert (verify(folder, KEY).count > 0) == (after != before)


def test_the_end_of_a_file_that_was_not_closed_is_proven_only_from_outside(tmp_path: Path) -> None:
    points: list[Checkpoint] = []
    files = AuditFiles(tmp_path, KEY, checkpoint=points.append)
    files.write(map(called, "abc"))
    files.mark()
    files.write(map(called, "de"))
    file = next(tmp_path.glob("audit-*.jsonl"))
    rewrite(file, lines(file)[:3])

    silent = verify(tmp_path, KEY)
    assert (silent.count, len(silent.unproven)) == (0, 1)
    assert "nothing proves its end" in silent.unproven[0]
    told = checkpoints_in(f"Nov 18 09:00:01 host holdfast: {points[0]}\nand more")
    assert told == points
    assert "its end was cut off" in verify(tmp_path, KEY, told).problems[0]


def test_the_next_process_repeats_where_the_one_before_was(tmp_path: Path) -> None:
    killed = write(tmp_path, "a", "b", "c", close=False)
    write(tmp_path, "d")
    assert (verify(tmp_path, KEY).count, verify(tmp_path, KEY).unproven) == (0, [])
    rewrite(killed, lines(killed)[:-1])
    assert "its end was cut off" in verify(tmp_path, KEY).problems[0]


def test_the_missing_file_of_a_killed_process_is_found(tmp_path: Path) -> None:
    write(tmp_path, "a")
    files = AuditFiles(tmp_path, KEY)
    before = {*tmp_path.glob("audit-*.jsonl")}
    files.write([called("b")])
    (killed,) = {*tmp_path.glob("audit-*.jsonl")} - before
    killed.unlink()
    assert verify(tmp_path, KEY).problems == [f"{killed.name}: the file is missing"]


def test_a_history_that_was_written_again_with_the_key_does_not_fit_a_checkpoint(tmp_path: Path) -> None:
    points: list[Checkpoint] = []
    files = AuditFiles(tmp_path, KEY, checkpoint=points.append)
    files.write(map(called, "abc"))
    files.close()
    file = next(tmp_path.glob("audit-*.jsonl"))
    forged, link = [], START
    for number, line in enumerate(lines(file)):
        known = read_line(line[:-1])
        assert known is not None
        body = known.body.replace(b'"bob"', b'"eve"') if number == 2 else known.body
        link = link_of(KEY, link, body)
        forged.append(body[:-1] + b',"link":"' + link + b'"}\n')
    rewrite(file, forged)
    assert verify(file, KEY).count == 0  # the chain itself is whole
    assert f"{file.name}: record 5 is not the one of a checkpoint" in verify(tmp_path, KEY, points).problems


def test_half_a_line_at_the_end_is_what_a_crash_leaves(tmp_path: Path) -> None:
    killed = write(tmp_path, "a", "b", close=False)
    killed.write_bytes(killed.read_bytes() + b'{"n":4,"time":"20')
    found = verify(tmp_path, KEY)
    assert found.count == 0
    assert "a part of a record" in found.warnings[0]
    write(tmp_path, "c")  # the next process begins where the whole lines end
    assert verify(tmp_path, KEY).count == 0


def test_one_file_alone_can_be_checked(tmp_path: Path) -> None:
    file = write(tmp_path, "a", "b")
    assert verify(file, KEY).count == 0
    assert verify(file, AuditKey.of(b"o" * 32)).count > 0


def test_a_file_is_continued_in_the_next_one(tmp_path: Path) -> None:
    files = AuditFiles(tmp_path, KEY, rotate_bytes=300)
    for tool in "abcdef":
        files.write([called(tool)])
    files.close()
    found = verify(tmp_path, KEY)
    assert (found.count, found.files > 2, found.unproven) == (0, True, [])
    second = sorted(tmp_path.glob("audit-*.jsonl"))[1]
    second.unlink()
    assert any("the file is missing" in problem for problem in verify(tmp_path, KEY).problems)


def test_an_old_file_is_removed_with_an_entry_that_says_so(tmp_path: Path) -> None:
    old = write(tmp_path, "a")
    os.utime(old, (0, 0))
    write(tmp_path, "b", keep=3600.0)
    assert not old.exists()
    assert verify(tmp_path, KEY).count == 0


@pytest.mark.parametrize("by_rule", [True, False])
def test_a_file_that_goes_while_it_is_checked_or_read_is_missing_unless_the_hub_removed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_rule: bool
) -> None:
    """A check of all files takes seconds, and the hub goes on beside it."""
    first, last = sorted((write(tmp_path, "a"), write(tmp_path, "b")))

    def goes(key: AuditKey, before: bytes, body: bytes) -> bytes:
        if b'"call"' in body and last.exists():
            os.utime(last, (0, 0))
            if by_rule:
                AuditFiles(tmp_path, KEY, keep=3600.0).write([])
            else:
                last.unlink()
        return link_of(key, before, body)

    monkeypatch.setattr(audit_reader, "link_of", goes)
    assert verify(tmp_path, KEY).problems[:1] == ([] if by_rule else [f"{last.name}: the file is missing"])
    assert not last.exists()

    shutil.copy(first, last)

    class Gone(AuditFilter):
        def __call__(self, record: AuditRecord) -> bool:
            last.unlink(missing_ok=True)
            return super().__call__(record)

    assert len(list(AuditReader(tmp_path, Gone()).read())) == 1, "what is still there is read"


def test_a_file_that_the_hub_opens_while_a_check_begins_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a")
    names = list(tmp_path.glob("audit-*.jsonl"))

    def glob(folder: Path, pattern: str) -> list[Path]:
        monkeypatch.undo()
        write(folder, "b")
        return names

    monkeypatch.setattr(Path, "glob", glob)
    assert verify(tmp_path, KEY).problems == []


def test_a_checkpoint_of_a_file_that_was_removed_by_rule_is_no_problem_and_one_of_a_missing_file_is(
    tmp_path: Path,
) -> None:
    old = write(tmp_path, "a")
    os.utime(old, (0, 0))
    write(tmp_path, "b", keep=3600.0)
    assert verify(tmp_path, KEY, [Checkpoint(old.name, 1, START.hex())]).problems == []
    missing = verify(tmp_path, KEY, [Checkpoint("audit-never.jsonl", 1, START.hex())])
    assert missing.problems == ["audit-never.jsonl: a checkpoint names it, and the file is missing"]


def test_the_oldest_files_give_way_where_all_of_them_are_too_large(tmp_path: Path) -> None:
    old, older, fresh = (write(tmp_path, *"abc") for _ in range(3))
    os.utime(older, (1, 1))
    os.utime(old, (2, 2))
    write(tmp_path, "d", max_bytes=fresh.stat().st_size * 5 // 2)
    assert (older.exists(), old.exists(), fresh.exists()) == (False, True, True)
    assert verify(tmp_path, KEY).count == 0


def test_two_writers_at_once_share_one_manifest(tmp_path: Path) -> None:
    def run() -> None:
        files = AuditFiles(tmp_path, KEY, rotate_bytes=200)
        for tool in "abcdefgh":
            files.write([called(tool)])
        files.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = verify(tmp_path, KEY)
    assert (found.problems, found.unproven) == ([], [])


def test_the_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    file = tmp_path / "state" / "audit.key"
    made = read_key(file, make=True)
    assert read_key(file, make=False).name == made.name
    assert file.stat().st_mode & 0o077 == 0
    file.chmod(0o644)
    with pytest.raises(UsageError, match="not private"):
        read_key(file, make=False)
    with pytest.raises(UsageError, match="cannot be used"):
        read_key(tmp_path / "none", make=False)


# The thread.


class Disk(AuditFiles):
    """Files on a disk that can be full, or hang."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, KEY)
        self.full = False
        self.hangs = threading.Event()
        self.hangs.set()

    def write(self, records: Iterable[AuditRecord]) -> None:
        self.hangs.wait(PATIENCE)
        self._check()
        super().write(records)

    def _check(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps in shorter times."""
    monkeypatch.setattr(audit_writer, "SYNC_SECONDS", 0.01)
    monkeypatch.setattr(audit_writer, "GATHER_SECONDS", 0.001)


def wait_for(happened: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(int(PATIENCE / 0.005)):
        if happened():
            return
        tick.wait(0.005)
    raise TimeoutError


def tools_in(folder: Path) -> list[str]:
    return [record.tool for record in AuditReader(folder, AuditFilter()).read() if record.event == "call"]


def test_the_disk_is_made_safe_at_its_pace_and_not_for_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_writer, "SYNC_SECONDS", 3600.0)
    synced = []

    class Counted(AuditFiles):
        def sync(self) -> None:
            synced.append(trail.written)
            super().sync()

    trail = AuditTrail(Counted(tmp_path, KEY), KEY)
    trail.start()
    for number in (1, 2, 3):
        trail.add(called(f"tool {number}"))
        wait_for(lambda number=number: trail.written == number)  # type: ignore[misc]  # the number of this round
    assert synced == [], "to wait for the disk after each batch would take its time"
    trail.close()
    assert synced == [3], "an end is safe"


def test_a_checkpoint_is_given_once_a_minute_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[Checkpoint] = []
    trail = AuditTrail(AuditFiles(tmp_path, KEY, checkpoint=points.append), KEY)
    trail.start()
    trail.add(called("first"))
    wait_for(lambda: trail.written == 1)
    trail.add(called("second"))
    wait_for(lambda: trail.written == 2)
    assert points == []
    monkeypatch.setattr(audit_writer, "CHECKPOINT_SECONDS", 0.0)
    trail.add(called("third"))
    wait_for(lambda: bool(points) and points[-1].n == 4)  # the record that opened the file, and three calls
    monkeypatch.setattr(audit_writer, "CHECKPOINT_SECONDS", 3600.0)
    trail.close()
    assert points[-1].n == 5, "the end of the file is proven too"


def test_a_full_disk_is_an_alarm_and_nothing_is_lost_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(tmp_path)
    trail = AuditTrail(disk, KEY)
    trail.start()
    trail.add(called("before"))
    wait_for(lambda: trail.written == 1)
    disk.full = True
    trail.add(called("meanwhile"))
    wait_for(lambda: trail.failing != "")
    assert trail.failing == "No space left on device"
    assert trail.refusal() == ""  # it is not required
    assert "the audit cannot be written" in caplog.text
    disk.full = False
    wait_for(lambda: trail.failing == "")
    trail.close()
    assert tools_in(tmp_path) == ["before", "meanwhile"]
    assert (verify(tmp_path, KEY).problems, trail.lost) == ([], 0)


def test_a_full_disk_at_the_moment_of_a_new_file_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000_000.0]
    files = AuditFiles(tmp_path, KEY, rotate_seconds=60.0, wall=lambda: clock[0])

    def full(descriptor: int, length: int) -> None:  # what the manifest alone does
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Redacting(Redactor):
        def mask(self, text: str) -> str:
            clock[0] += 3600.0  # the time of the file is over while the arguments of a record are masked
            monkeypatch.setattr(os, "ftruncate", full)
            return super().mask(text)

    trail = AuditTrail(files, KEY, arguments="masked", redactor=lambda: Redacting(["s3cr3t"]))
    trail.start()
    trail.add(called("first"), b'{"text": "s3cr3t"}')
    trail.add(called("second"))
    wait_for(lambda: trail.written == 2)
    wait_for(lambda: bool(trail.failing) or tools_in(tmp_path) == ["first", "second"])
    monkeypatch.undo()
    wait_for(lambda: not trail.failing)
    trail.close()
    assert (sorted(tools_in(tmp_path)), verify(tmp_path, KEY).problems) == (["first", "second"], [])


def test_what_is_written_after_a_full_disk_is_made_safe(tmp_path: Path) -> None:
    synced = threading.Event()

    class Slow(Disk):
        def sync(self) -> None:
            super().sync()
            synced.set()

    really, refused = os.write, [True]

    def write_or_fail(descriptor: int, data: bytes) -> int:
        if refused and b'"call"' in data:
            refused.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really(descriptor, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", write_or_fail)
        trail = AuditTrail(Slow(tmp_path), KEY)
        trail.start()
        trail.add(called("held back"))
        assert synced.wait(PATIENCE), "no other record comes, and it is safe all the same"
    assert tools_in(tmp_path) == ["held back"]
    trail.close()


def test_half_of_a_surrogate_pair_in_a_text_is_written_as_its_escape_and_ends_no_audit(tmp_path: Path) -> None:
    trail = AuditTrail(AuditFiles(tmp_path, KEY), KEY, required=True)
    trail.start()
    odd = "a\ud800"
    trail.add(AuditRecord(time=NOW, event="call", principal=odd, groups=(odd,), program=odd, method=odd, tool=odd))
    trail.add(called("after"))
    wait_for(lambda: trail.written == 2)
    assert trail.refusal() == ""
    trail.close()
    assert tools_in(tmp_path) == ["a\\ud800", "after"]
    assert (verify(tmp_path, KEY).problems, trail.lost) == ([], 0)


def test_calls_are_refused_while_a_required_audit_cannot_be_written(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    trail = AuditTrail(disk, KEY, required=True, most_records=3)
    trail.start()
    assert trail.refusal() == ""
    disk.full = True
    trail.add(called("a"))
    wait_for(lambda: "No space left" in trail.refusal())
    disk.full = False
    wait_for(lambda: trail.refusal() == "")
    disk.hangs.clear()  # the disk does not answer: the queue fills up
    trail.add(called("taken"))
    wait_for(lambda: not trail._queue)
    for tool in "bcd":
        trail.add(called(tool))
    assert "too many records wait" in trail.refusal()
    trail.add(called("lost"))
    assert trail.lost == 1
    disk.hangs.set()
    wait_for(lambda: trail.refusal() == "")
    trail.close()
    records = list(AuditReader(tmp_path, AuditFilter()).read())
    assert [record.count for record in records if record.event == "lost"] == [1]
    assert "lost" not in [record.tool for record in records]


def test_a_required_audit_that_cannot_begin_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere = AuditFiles(tmp_path / "file" / "folder", KEY)
    with pytest.raises(OSError, match="Not a directory"):
        AuditTrail(nowhere, KEY, required=True).start()
    trail = AuditTrail(nowhere, KEY)
    trail.start()
    assert trail.failing == "Not a directory"
    trail.close()


def test_a_file_that_cannot_be_ended_on_a_full_disk_is_ended_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is tried again with each write, so for as long as the disk is full."""
    files, real, full = AuditFiles(tmp_path, KEY, rotate_bytes=1), os.write, [False]

    def write(descriptor: int, data: bytes) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    files.write([])
    full[0] = True
    for _ in range(5):
        with pytest.raises(OSError, match="No space"):
            files.write([])
    full[0] = False
    files.write([])
    files.close()
    first, second = sorted(tmp_path.glob("audit-*.jsonl"))
    for file in (first, second):
        assert [json.loads(line)["event"] for line in file.read_bytes().splitlines()] == ["opened", "closed"]
    assert verify(tmp_path, KEY).problems == []


def test_a_write_that_the_disk_cut_short_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = AuditFiles(tmp_path, KEY)
    files.write([called("a")])
    real, answers = os.write, iter([30, None])

    def short(descriptor: int, data: bytes) -> int:
        most = next(answers)
        if most is None:
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, data[:most])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        with pytest.raises(OSError, match="full"):
            files.write([called("b")])
    assert verify(tmp_path, KEY).warnings != []  # half a line, until there is room
    files.write([])
    files.close()
    assert (verify(tmp_path, KEY).problems, tools_in(tmp_path)) == ([], ["a", "b"])


def test_a_file_that_someone_removed_while_it_is_written_is_an_alarm(tmp_path: Path) -> None:
    file = write(tmp_path, "a", close=False)
    files = AuditFiles(tmp_path, KEY)
    files.write([called("b")])
    next(one for one in tmp_path.glob("audit-*.jsonl") if one != file).unlink()
    with pytest.raises(FileNotFoundError, match="was removed"):
        files.sync()
    files.write([called("c")])
    files.close()
    assert sorted(tools_in(tmp_path)) == ["a", "c"]
    assert any("the file is missing" in problem for problem in verify(tmp_path, KEY).problems)


def test_arguments_are_hashed_and_shown_without_secrets_only_if_asked_for(tmp_path: Path) -> None:
    arguments = json.dumps({"path": "x", "password": "hunter2hunter2", "note": "see s3cr3t-of-the-config"}).encode()
    for mode in ("hash", "masked"):
        files = AuditFiles(tmp_path / mode, KEY)
        trail = AuditTrail(files, KEY, arguments=mode, redactor=lambda: Redactor(["s3cr3t-of-the-config"]))
        trail.start()
        for _ in range(2):
            record = called()
            record.argument_bytes = len(arguments)
            trail.add(record, arguments)
        trail.close()
        first, second = AuditReader(tmp_path / mode, AuditFilter()).read()
        assert first.argument_hash == second.argument_hash == hash_of(arguments)
        text = next((tmp_path / mode).glob("audit-*.jsonl")).read_text()
        assert "hunter2" not in text
        assert "s3cr3t" not in text
        assert ('"path":"x"' in text) == (mode == "masked")


def hash_of(arguments: bytes) -> str:
    """What a holder of the key computes."""
    return mac(KEY.arguments, arguments).hex()[:32]


def test_checkpoints_go_to_syslog(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
        log.settimeout(PATIENCE)
        files = AuditFiles(tmp_path / "audit", KEY, checkpoint=send_checkpoints(str(tmp_path / "log")))
        files.write(map(called, "ab"))
        files.close()
        told = checkpoints_in(log.recv(4096).decode())
    assert [(one.n, one.file) for one in told] == [(4, next((tmp_path / "audit").glob("audit-*")).name)]
    assert verify(tmp_path / "audit", KEY, told).count == 0


@pytest.mark.parametrize("address", [f"{'a' * 70}.example:514", "127.0.0.1:²"])
def test_an_address_of_syslog_that_is_none_is_told_and_ends_no_audit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    trail = AuditTrail(AuditFiles(tmp_path, KEY, checkpoint=send_checkpoints(address)), KEY)
    trail.start()
    trail.add(called("a"))
    trail.close()
    assert "did not reach syslog" in caplog.text
    assert verify(tmp_path, KEY).unproven == [], "the file was ended well"


def test_the_latest_records_of_one_principal_are_found_in_all_files(tmp_path: Path) -> None:
    for principal, tools in (("bob", "ab"), ("eve", "cd"), ("bob", "e")):
        files = AuditFiles(tmp_path, KEY)
        files.write(called(tool, principal) for tool in tools)
        files.close()
    found = latest_records(tmp_path, AuditFilter(principal="bob"), 10)
    assert sorted(record.tool for record in found) == ["a", "b", "e"]
    assert len(latest_records(tmp_path, AuditFilter(), 2)) == 2


def test_the_places_of_the_audit_are_those_of_the_settings_or_in_the_state_folder(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    own = state_folder(environ)
    source = tmp_path / "config" / "mcp.json"
    assert audit_places(AuditSettings(), source, environ) == (own / "audit", own / "audit.key")
    named = AuditSettings(path="logs", key_file="/etc/key")
    assert audit_places(named, source, environ) == (source.parent / "logs", Path("/etc/key"))
    assert audit_places(named, None, environ)[0] == Path.cwd() / "logs"


def test_a_key_that_is_too_short_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "audit.key"
    file.touch(mode=0o600)
    for length, good in ((SHORTEST_SECRET - 1, False), (SHORTEST_SECRET, True)):
        file.write_text("k" * length)
        with nullcontext() if good else pytest.raises(UsageError, match="fewer than"):
            read_key(file, make=False)


def test_a_part_of_an_entry_that_a_crash_left_in_the_manifest_gives_way(tmp_path: Path) -> None:
    write(tmp_path, "get")
    with (tmp_path / MANIFEST).open("ab") as manifest:
        manifest.write(b'{"time": "half of')
    write(tmp_path, "get")
    assert verify(tmp_path, KEY).problems == []


def test_a_manifest_without_room_keeps_what_it_had_and_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "get")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    really = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: really(descriptor, data[:10]))
    with pytest.raises(OSError, match="no room"):
        write(tmp_path, "get")
    monkeypatch.undo()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_folder_without_an_audit_is_a_mistake_of_the_one_who_asks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no audit files"):
        verify(tmp_path, KEY)
    write(tmp_path, "get").unlink()
    assert verify(tmp_path, KEY).problems, "the manifest knows of a file"


def test_a_file_without_a_record_is_what_a_crash_leaves(tmp_path: Path) -> None:
    file = write(tmp_path, "get", close=False)
    file.write_bytes(b"")
    found = verify(tmp_path, KEY)
    assert any("it has no record" in warning for warning in found.warnings)


def test_what_is_no_call_is_recorded_with_its_values_cut(tmp_path: Path) -> None:
    trail = AuditTrail(AuditFiles(tmp_path, KEY), KEY)
    trail.start()
    trail.event("login", principal="x" * (LONGEST_TEXT + 1))
    trail.close()
    (record,) = latest_records(tmp_path, AuditFilter(principal="x" * LONGEST_TEXT), 9)
    assert record.event == "login"


def test_a_file_that_a_process_may_still_write_stays_though_all_are_too_large(tmp_path: Path) -> None:
    busy, old = (write(tmp_path, *"abc") for _ in range(2))
    now = busy.stat().st_mtime
    os.utime(old, (now - BUSY_SECONDS, now - BUSY_SECONDS))
    os.utime(busy, (now - BUSY_SECONDS + 1, now - BUSY_SECONDS + 1))
    write(tmp_path, "d", max_bytes=1, wall=lambda: now)
    assert (busy.exists(), old.exists()) == (True, False)
    write(tmp_path, "e", keep=10.0, wall=lambda: now)
    assert not busy.exists(), "one that has expired goes at any size"
