"""Codes and tokens that every worker of one supervisor accepts."""

from __future__ import annotations

import string
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.control.server.status_page import CODE_SECONDS, BrowserSessions

pytestmark = pytest.mark.requirement("FLEET-8", "SEC-2")

TOKEN, KEY = "the control token of all", b"a key that only the workers have"


class Wall:
    now = time.time()

    def __call__(self) -> float:
        return self.now


def worker(folder: Path, wall: Wall, key: bytes = KEY) -> BrowserSessions:
    return BrowserSessions(TOKEN, key=key, used_in=folder / "codes", wall=wall)


def test_a_code_of_one_worker_signs_in_at_another_one_once(tmp_path: Path) -> None:
    first, second = worker(tmp_path, Wall()), worker(tmp_path, Wall())
    code = first.new_code()
    token = second.sign_in(code)
    assert token is not None
    assert first.sign_in(code) is second.sign_in(code) is None
    assert first.access(token) == second.access(token) == "session"


def test_codes_and_tokens_expire_and_a_new_control_token_ends_them(tmp_path: Path) -> None:
    wall = Wall()
    one = worker(tmp_path, wall)
    old, code, other = one.new_code(), one.new_code(), one.new_code()
    token = one.sign_in(code)
    assert token is not None
    wall.now += CODE_SECONDS
    assert one.sign_in(old) is None
    assert one.access(token) == "session"
    one.use_control_token("another control token of all")
    assert one.access(token) is None
    assert one.sign_in(other) is None


@pytest.mark.parametrize("forged", ["", "x", "é", "A" * 76, "=" * 8])
def test_what_was_not_signed_here_is_not_accepted(forged: str, tmp_path: Path) -> None:
    one, stranger = worker(tmp_path, Wall()), worker(tmp_path, Wall(), b"another key that no worker here has")
    token = stranger.sign_in(stranger.new_code())
    assert token is not None
    for bad in (forged, token, token[:-1] + "A", one.new_code()):
        assert one.access(bad) is None
    assert one.sign_in(forged) is None
    assert one.sign_in(token) is None


@pytest.mark.requirement("SEC-2", "SEC-20")
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "written",
    [
        lambda code: f"{code}!",
        lambda code: f"{code}=",
        lambda code: f"{code[:9]} {code[9:]}",
        lambda code: f"{code[:-1]}{_next(code[-1])}",
    ],
    ids=["a character more", "padding", "a blank within", "other unused bits"],
)
def test_a_used_code_works_in_no_other_spelling(tmp_path: Path, written: Callable[[str], str], *, shared: bool) -> None:
    sessions = BrowserSessions(TOKEN, used_in=tmp_path / "codes" if shared else None)
    code = sessions.new_code()
    token = sessions.sign_in(code)
    assert token is not None
    assert sessions.sign_in(written(code)) is None
    assert sessions.left(written(token)) is None, "the audit tells the pages apart by their tokens"


def _next(char: str) -> str:
    """A character of base64 whose lowest bit alone is another one."""
    digits = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    return digits[digits.index(char) ^ 1]
