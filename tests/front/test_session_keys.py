"""Where session keys come from, and what happens if one is short, unreadable, new or replaced."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError, UsageError
from holdfast.front import session_id
from holdfast.front.session_id import KEY_VARIABLE, SessionKeys, SessionTicket

pytestmark = pytest.mark.requirement("FLEET-1")

OLD = "the old key, thirty-two bytes long"
NEW = "ein neuer Schlüssel: any characters at all"
TICKET = SessionTicket(b"0123456789abcdef", "2025-11-25", 0, "", {}, {})


@pytest.fixture(autouse=True)
def private_files() -> Iterator[None]:
    """New files are private, as those with keys must be."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def _seal(keys: SessionKeys) -> str:
    return keys.seal.seal(TICKET, endpoint=None, principal="local")


def _opens(keys: SessionKeys, session_id: str) -> bool:
    return keys.seal.open(session_id, endpoint=None, principal="local") is not None


def test_a_file_and_a_variable_with_the_same_key_open_each_others_ids(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"\n{NEW}\n")
    by_file = SessionKeys.find(file=file, environ={})
    by_variable = SessionKeys.find(environ={KEY_VARIABLE: NEW})
    assert _opens(by_variable, _seal(by_file))
    assert by_file.shared
    assert by_variable.shared


@pytest.mark.requirement("SEC-11", "FLEET-2")
def test_a_label_is_the_same_at_every_replica_while_a_key_is_replaced_and_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(OLD)
    keys = SessionKeys.find(file=file, environ={})
    label = keys.label("ada")
    assert len(label) == 16
    assert label not in (keys.label("bob"), SessionKeys.for_this_process().label("ada"))
    assert SessionKeys.find(environ={KEY_VARIABLE: f"{NEW}\n{OLD}"}).label("ada") == label
    file.write_text(NEW)
    keys.refresh(now=True)
    assert keys.label("ada") == SessionKeys.find(environ={KEY_VARIABLE: NEW}).label("ada") != label


def test_a_key_is_replaced_without_the_loss_of_a_session(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(OLD)
    keys = SessionKeys.find(file=file, environ={})
    before = _seal(keys)
    file.write_text(f"{NEW}\n{OLD}\n")
    assert keys.refresh(now=True)
    after = _seal(keys)
    assert _opens(keys, before)
    file.write_text(NEW)
    assert keys.refresh(now=True)
    assert _opens(keys, after)
    assert not _opens(keys, before)
    assert keys.notice == ""


def test_a_file_that_becomes_bad_changes_nothing_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text(OLD)
    keys = SessionKeys.find(file=file, environ={})
    before = _seal(keys)
    file.write_text("short")
    assert not keys.refresh(now=True)
    file.unlink()
    assert not keys.refresh(now=True)
    assert _opens(keys, before)
    assert caplog.text.count("stay in force") == 2
    assert "short" not in caplog.text


def test_keys_that_replace_all_others_are_announced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text(OLD)
    keys = SessionKeys.find(file=file, environ={})
    file.write_text(NEW)
    assert keys.refresh(now=True)
    assert "sessions from before must reconnect" in keys.notice
    assert keys.notice in caplog.text


@pytest.mark.parametrize("content", ["", " \n\n", "too short", f"{OLD}\nshort\n", "x" * 100_000])
def test_a_file_without_a_usable_key_is_refused_with_a_hint(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(UsageError) as refused:
        SessionKeys.find(file=file, environ={})
    assert refused.value.hint
    assert "short\n" not in str(refused.value)


def test_a_file_that_is_not_there_and_two_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="cannot read"):
        SessionKeys.find(file=tmp_path / "none", environ={})
    with pytest.raises(UsageError, match="exclude each other"):
        SessionKeys.find(file=tmp_path / "none", environ={KEY_VARIABLE: OLD})
    with pytest.raises(UsageError, match="fewer than 32 bytes"):
        SessionKeys.find(environ={KEY_VARIABLE: "short"})


def test_the_hubs_own_key_is_made_once_and_is_private(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "of-an-earlier-hub.sqlite").touch()
    with caplog.at_level(logging.INFO):
        first = SessionKeys.find(environ={}, kept_in=folder)
    second = SessionKeys.find(environ={}, kept_in=folder)
    assert _opens(second, _seal(first))
    assert stat.S_IMODE((folder / "session.key").stat().st_mode) == 0o600
    assert "must reconnect" in first.notice
    assert second.notice == ""
    assert not second.shared
    key = (folder / "session.key").read_text().strip()
    assert key not in caplog.text + repr(first)


def test_the_first_key_of_all_worries_no_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert SessionKeys.find(environ={}, kept_in=tmp_path).notice == ""
    assert "made a session key" in caplog.text


def test_a_folder_that_cannot_be_written_leaves_a_key_for_this_process(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    keys = SessionKeys.find(environ={}, kept_in=blocked / "state")
    assert _opens(keys, _seal(keys))
    assert "sessions end with this hub" in keys.notice


def test_a_key_of_our_own_that_is_damaged_refuses_the_start(tmp_path: Path) -> None:
    (tmp_path / "session.key").write_text("damaged")
    with pytest.raises(UsageError, match="fewer than 32 bytes"):
        SessionKeys.find(environ={}, kept_in=tmp_path)


@pytest.mark.requirement("SEC-10")
def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(OLD)
    file.chmod(0o644)
    with pytest.raises(HoldfastError, match="not private") as refused:
        SessionKeys.find(file=file, environ={}, kept_in=None)
    assert refused.value.hint == f"run: chmod 600 {file}"


def test_a_key_that_is_there_is_used_though_its_folder_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _seal(SessionKeys.kept(tmp_path))

    def refused(file: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(session_id, "make_secret", refused)
    keys = SessionKeys.kept(tmp_path)
    assert _opens(keys, before)
    assert (keys.is_of_one_process, keys.notice) == (False, "")
    (tmp_path / "session.key").unlink()
    keys = SessionKeys.kept(tmp_path)
    assert not _opens(keys, before)
    assert keys.is_of_one_process
    assert "sessions end with this hub" in keys.notice


def test_without_a_file_a_variable_or_a_folder_the_key_ends_with_the_process(tmp_path: Path) -> None:
    for environ in ({}, {KEY_VARIABLE: ""}):
        keys = SessionKeys.find(environ=environ)
        assert (keys.is_of_one_process, keys.shared, keys.notice) == (True, False, "")
        assert not _opens(SessionKeys.find(environ=environ), _seal(keys))
        assert not keys.refresh(now=True), "there is no file to read again"
    (tmp_path / "keys").write_text(OLD)
    for found in (
        SessionKeys.find(environ={KEY_VARIABLE: OLD}, kept_in=tmp_path),
        SessionKeys.find(file=tmp_path / "keys", environ={KEY_VARIABLE: ""}, kept_in=tmp_path),
        SessionKeys.find(environ={}, kept_in=tmp_path),
    ):
        assert not found.is_of_one_process
    assert (tmp_path / "session.key").exists(), "made only where nothing else was given"


def test_the_variable_of_the_process_is_read_where_no_other_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, OLD)
    assert _opens(SessionKeys.find(), _seal(SessionKeys.find(environ={KEY_VARIABLE: OLD})))
    assert SessionKeys.find(environ={}).is_of_one_process


def test_a_key_has_32_bytes_and_a_file_of_keys_at_most_64_kib(tmp_path: Path) -> None:
    assert SessionKeys.find(environ={KEY_VARIABLE: "k" * 32}).shared
    for text, said in (
        ("k" * 31, "the key of HOLDFAST_SESSION_KEY has fewer than 32 bytes"),
        (f"{OLD}\n{'k' * 31}", "key 2 of HOLDFAST_SESSION_KEY has fewer than 32 bytes"),
        (" \n", "HOLDFAST_SESSION_KEY holds no key"),
    ):
        with pytest.raises(UsageError) as refused:
            SessionKeys.find(environ={KEY_VARIABLE: text})
        assert refused.value.message == said
    file = tmp_path / "keys"
    file.write_text(OLD.ljust(session_id.LARGEST_FILE, "x"))
    assert SessionKeys.find(file=file, environ={}).shared
    file.write_text(OLD.ljust(session_id.LARGEST_FILE + 1, "x"))
    with pytest.raises(UsageError) as large:
        SessionKeys.find(file=file, environ={})
    assert large.value.message == f"the session key file {file} is larger than 64 KiB"


def test_a_file_of_keys_is_looked_at_once_a_second_and_who_shows_its_notice_is_told(tmp_path: Path) -> None:
    file, now, told = tmp_path / "keys", 100.0, list[str]()
    file.write_text(OLD)
    keys = SessionKeys([OLD.encode()], file=file, shared=True, clock=lambda: now)
    keys.on_notice = lambda: told.append(keys.notice)
    file.write_text(NEW)
    now += 0.9
    assert (keys.refresh(), told) == (False, [])
    now += 0.1
    assert (keys.refresh(), told) == (True, [session_id.NEW_KEY])
    file.write_text(f"{NEW}\n\n")
    now += 0.5
    assert not keys.refresh(), "it was looked at half a second before"
    now += 1
    assert (keys.refresh(), keys.refresh(now=True)) == (False, False), "another file with the same keys"
    assert told == [session_id.NEW_KEY]
    file.write_text(OLD)
    now += 1
    assert keys.ring is keys.ring
    assert told == [session_id.NEW_KEY, session_id.NEW_KEY], "to ask for the keys looks at the file"
