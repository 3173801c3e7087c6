"""Files that processes share: replaced whole, locked, set aside, private."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import files
from holdfast.files import (
    FileLock,
    NotPrivate,
    file_stamp,
    locked,
    make_private,
    make_secret,
    private_folder,
    read_private,
    replace_file,
    require_private,
    set_aside,
    set_aside_once,
)

SRC = Path(files.__file__).parent


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_a_new_file_and_a_new_folder_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = private_folder(tmp_path / "state" / "holdfast")
        replace_file(folder / "auth.json", "{}")
    finally:
        os.umask(before)
    assert (mode(folder), mode(folder / "auth.json")) == (0o700, 0o600)


def test_a_replaced_file_keeps_its_mode_only_if_asked(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    replace_file(file, "1", mode=0o640, keep_mode=True)
    assert mode(file) == 0o640
    file.chmod(0o604)
    replace_file(file, "2", mode=0o640, keep_mode=True)
    assert (mode(file), file.read_text()) == (0o604, "2")
    replace_file(file, "3")
    assert (mode(file), file.read_text()) == (0o600, "3")


def test_text_and_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    replace_file(tmp_path / "text", "ü\r\n\n")
    replace_file(tmp_path / "bytes", b"\xff\r\n")
    assert (tmp_path / "text").read_bytes() == b"\xc3\xbc\r\n\n"
    assert (tmp_path / "bytes").read_bytes() == b"\xff\r\n"


def test_a_failed_replacement_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mcp.json"
    replace_file(file, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, "new")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("mcp.json", "old")]


def test_a_damaged_file_is_set_aside_beside_those_of_before(tmp_path: Path) -> None:
    for number, content in enumerate(["first", "second"], start=1):
        file = tmp_path / "auth.json"
        file.write_text(content)
        aside = set_aside(file)
        assert (aside.name, aside.read_text(), file.exists()) == (f"auth.json.corrupt-{number}", content, False)


@pytest.mark.requirement("GW-5")
def test_a_damaged_file_that_two_processes_saw_is_set_aside_once(tmp_path: Path) -> None:
    file = tmp_path / "state.sqlite"
    file.write_text("damaged")
    seen = file_stamp(file)
    assert set_aside_once(file, seen) == tmp_path / "state.sqlite.corrupt-1"
    assert set_aside_once(file, seen) is None  # there is none
    file.write_text("the new one")
    assert set_aside_once(file, seen) is None
    assert file.read_text() == "the new one"


def test_a_lock_is_held_once_and_can_be_handed_on(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "config.lock"), FileLock(tmp_path / "config.lock")
    assert (first.try_acquire(), first.try_acquire(), second.try_acquire()) == (True, True, False)
    first.release()
    assert (second.try_acquire(), first.try_acquire()) == (True, False)
    second.release()


def test_a_lock_is_free_again_after_its_holder_was_killed(tmp_path: Path) -> None:
    file = tmp_path / "config.lock"
    program = (
        "import sys, os, signal; from pathlib import Path; from holdfast.files import FileLock\n"
        "lock = FileLock(Path(sys.argv[1])); lock.try_acquire(); print('held', flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(file)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        lock = FileLock(file)
        assert lock.try_acquire() is False
        holder.kill()
    with locked(file):
        assert lock.try_acquire() is False
    assert lock.try_acquire() is True
    lock.release()


def test_a_secret_is_made_once_however_many_ask_for_it_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "state" / "a.key"
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(make_secret, [file] * 8))
    assert sorted(made) == [False] * 7 + [True]
    first = file.read_text(encoding="utf-8")
    assert len(first.strip()) == 96
    assert mode(file) == 0o600
    assert not make_secret(file)
    assert file.read_text(encoding="utf-8") == first


def test_no_other_module_replaces_files_or_locks_them_by_itself() -> None:
    """One implementation: a second would miss the private mode, the sync or the clean-up.

    The process that joins a hub loads nothing that it can do without, so it takes its lock by itself.
    """
    forbidden = re.compile(r"\b(os\.replace|tempfile\.mkstemp|fcntl\.flock)\b")
    found = {
        str(file.relative_to(SRC))
        for file in SRC.rglob("*.py")
        if file.name not in ("files.py", "join_address.py") and forbidden.search(file.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_a_private_folder_has_private_parents_and_leaves_those_that_exist(tmp_path: Path) -> None:
    there = tmp_path / "home"
    there.mkdir(mode=0o755)
    private_folder(there / "state" / "holdfast" / "hubs")
    made = ("state", "state/holdfast", "state/holdfast/hubs")
    assert [(there / name).stat().st_mode & 0o777 for name in made] == [0o700] * 3
    assert there.stat().st_mode & 0o777 == 0o755


def test_what_other_users_could_read_is_taken_from_them_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    inner = folder / "inner"
    inner.mkdir(parents=True)
    folder.chmod(0o755)
    inner.chmod(0o700)
    token = inner / "token"
    token.write_text("secret")
    token.chmod(0o644)
    elsewhere = tmp_path / "shared.txt"
    elsewhere.write_text("for all")
    elsewhere.chmod(0o644)
    (folder / "link").symlink_to(elsewhere)

    assert set(make_private(folder)) == {folder, token}

    assert (mode(folder), mode(inner), mode(token)) == (0o700, 0o700, 0o600)
    assert mode(elsewhere) == 0o644, "a link leads out of the folder, and what it leads to is not ours"


def test_a_secret_that_other_users_can_read_is_not_used_and_the_error_says_how_to_correct_it(tmp_path: Path) -> None:
    file = tmp_path / "the token"
    file.write_bytes(b"secret")
    file.chmod(0o600)
    assert read_private(file, largest=3) == b"sec"

    file.chmod(0o604)

    for read in (read_private, require_private):
        with pytest.raises(NotPrivate) as refused:
            read(file)
        assert refused.value.command == f"chmod 600 '{file}'"
