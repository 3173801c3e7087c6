"""A hub without free file descriptors says so, keeps some for its clients, and blames no server (LIFE-30)."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from holdfast import load
from holdfast.core import State
from holdfast.testing import FakeClock, StdioServer
from holdfast.wire import dial
from tests.doctor.examination import Examination, clinic
from tests.harness.open_hubs import reaches, running, settled

__all__ = ["clinic"]

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LIFE-30")]


@contextmanager
def few_free(number: int) -> Iterator[None]:
    """Let this process open so many files more, and no others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(one.name) for one in Path("/dev/fd").iterdir()}
    limit = next(end for end in count() if end - sum(one < end for one in taken) == number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def servers() -> Iterator[dict[str, object]]:
    with ExitStack() as stack:
        yield {f"s{n}": stack.enter_context(StdioServer({"a": "1"})).definition for n in range(12)}


@pytest.fixture(autouse=True)
def say_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "_said_at", None)


async def test_a_hub_out_of_descriptors_calls_no_server_permanent_and_recovers(
    servers: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with running({"first": servers["s0"]}, clock=clock) as warm:
        await settled(warm)  # the warden and the threads of the process are there
        with few_free(24):
            async with running(servers, clock=clock) as hub:
                await settled(hub)
                health = hub.servers
                up = [name for name, one in health.items() if one.state is State.CONNECTED]
                waiting = {name: one for name, one in health.items() if name not in up}
                assert up
                assert waiting
                assert {one.state for one in waiting.values()} == {State.RECONNECTING}
                assert all("no free file descriptors" in one.reason for one in waiting.values())
                left, right = socket.socketpair()  # a client of the hub still gets a descriptor
                left.close()
                right.close()
                assert (await hub.call_tool(f"{up[0]}__a")).text == "1"
                resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1:] * 2)
                for _ in range(5):
                    await clock.advance(1)
                for name in waiting:
                    await reaches(hub, name)
    said = [record for record in caplog.records if "no free file descriptors" in record.getMessage()]
    assert len([record for record in said if record.levelname == "ERROR"]) == 1, "it is said once, not for each dial"


async def test_a_load_out_of_descriptors_is_transient(servers: dict[str, object]) -> None:
    await load({"mcpServers": {"s": servers["s0"]}})
    with few_free(24):
        result = await load({"mcpServers": servers, "holdfast": {"load": {"attempts": 1}}})
    assert result.transient
    assert result.permanent == []
    assert all("no free file descriptors" in error for error in result[2].values())


def test_a_look_at_the_descriptors_keeps_none() -> None:
    taken = sorted(one.name for one in Path("/dev/fd").iterdir())
    for _ in range(3):
        dial.require_descriptors()
    assert sorted(one.name for one in Path("/dev/fd").iterdir()) == taken


def test_a_shortage_is_found_behind_other_exceptions() -> None:
    try:
        try:
            raise OSError(24, "Too many open files")
        except OSError as exc:
            raise ConnectionError("it could not be reached") from exc
    except ConnectionError as exc:
        group = ExceptionGroup("both", [ValueError("x"), exc])
    assert dial.descriptor_shortage(group) is not None
    assert dial.descriptor_shortage(ValueError("x")) is None


def test_the_soft_limit_is_raised_at_start() -> None:
    program = (
        "import resource; from holdfast.wire import raise_descriptor_limit\n"
        "hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4096)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)); raise_descriptor_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


async def test_doctor_out_of_descriptors_says_how_to_get_more(
    clinic: Examination, servers: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial, "_limit", lambda: 4)
    clinic.matches("descriptors", await clinic.found(servers["s0"]))
