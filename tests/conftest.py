"""Shared by every test: the event loop, a few fixtures, and a check for leaked tasks and processes."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.peers.leaks import no_leaks, no_processes_left
from tests.peers.stdio import StdioPeer
from tests.peers.tls import Certificates, read_authorities_once
from tests.peers.warm_python import warm_python

# The time of one example depends on the machine, not on the code.
hypothesis.settings.register_profile("holdfast", deadline=None)
hypothesis.settings.load_profile("holdfast")


SLOW = (
    "integrations",
    "control/server/test_page",
    "clients",
    "conformance",
    "hub/test_fleet",
    "cli/test_serve_",
    "front/test_lo",
)
"""The files with the tests that take longest. They come first: what is left at the end keeps no worker waiting."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.removeprefix("tests/").startswith(SLOW))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of collected tests stay in memory: a collector that walks them again and again takes a tenth of the
    suite's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture(autouse=True, scope="session")
def private_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test uses the logins, the state or the keyring of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("HOLDFAST_TOKEN_STORE", "file")
        yield


@pytest.fixture(autouse=True, scope="session")
def quick_http_clients() -> Iterator[None]:
    """A test's HTTP client takes a fraction of a millisecond to make, not 27."""
    with pytest.MonkeyPatch.context() as patch:
        read_authorities_once(patch)
        yield


@pytest.fixture(autouse=True, scope="session")
def warm_processes(private_state_folder: None) -> Iterator[None]:
    """Start the programs of this repository from a process that has imported their modules."""
    with warm_python():
        yield


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process or a task behind, its fixtures included."""
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
    """A certificate authority with valid and invalid server certificates."""
    return Certificates()


@pytest.fixture
def stdio_peer(tmp_path: Path) -> Callable[..., StdioPeer]:
    """Makes stdio peers that write their logs into the test's folder: ``stdio_peer("--era", "modern")``."""
    return lambda *flags: StdioPeer(*flags, folder=tmp_path)
