"""What the tests of logins share: a guarded server, a token store of the test's own, and ways to log in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.auth.token_store import TokenStore
from tests.peers.guarded import PLANTED, Guarded, guarded, guarded_at, guarded_pair
from tests.peers.ports import free_port


@pytest.fixture(scope="session")
def pair() -> Iterator[str]:
    """A server that asks for a login and its authorization server, in a process of their own."""
    with guarded_pair() as address:
        yield address


@pytest.fixture
async def peer(pair: str) -> AsyncIterator[Guarded]:
    """That server, as if it had just begun."""
    async with guarded_at(pair) as running:
        yield running


@pytest.fixture
async def thief() -> AsyncIterator[Guarded]:
    """Another such server."""
    async with guarded() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "state", vault=lambda: None)


@pytest.fixture(name="free_port")
def a_free_port() -> int:
    return free_port()


@pytest.fixture(autouse=True)
def nothing_planted_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Iterator[None]:
    """Fail every test that leaves a token in a log, in an output, or in a file that is not the store."""
    caplog.set_level("DEBUG")
    yield
    shown = capfd.readouterr()
    assert PLANTED not in caplog.text
    assert PLANTED not in shown.out + shown.err
    for file in tmp_path.rglob("*"):
        if file.is_file() and not file.name.startswith("auth.json"):
            assert PLANTED.encode() not in file.read_bytes(), file
