"""What every test shares: the event loop's kind, a few fixtures, and a guard against things left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.peers.leaks import no_leaks, no_processes_left
from tests.peers.stdio import StdioPeer
from tests.peers.tls import Certificates

# How long an example takes tells of the machine, not of the code.
hypothesis.settings.register_profile("holdfast", deadline=None)
hypothesis.settings.load_profile("holdfast")


@pytest.fixture(autouse=True, scope="session")
def state_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whoever runs the tests has logins of their own: no test is to use them, nor their keyring."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("HOLDFAST_TOKEN_STORE", "file")
        yield


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail every test, and every fixture of one, that leaves a process or a task behind."""
    if "anyio_backend" in request.fixturenames:
        request.getfixturevalue("no_task_or_process_left")
        yield
        return
    with no_processes_left():
        yield


@pytest.fixture
async def no_task_or_process_left() -> AsyncIterator[None]:
    async with no_leaks(kinds=("tasks", "processes")):
        yield


@pytest.fixture(scope="session")
def certificates() -> Certificates:
    """A certificate authority and servers' certificates, good and bad."""
    return Certificates()


@pytest.fixture
def stdio_peer(tmp_path: Path) -> Callable[..., StdioPeer]:
    """Makes stdio peers whose logs lie in the test's own folder: ``stdio_peer("--era", "modern")``."""
    return lambda *flags: StdioPeer(*flags, folder=tmp_path)
