"""The demo's servers are real, fail each in its own way, and can be broken and healed while a hub runs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from holdfast.config.read import load_config
from holdfast.control.hub_finder import RunningHub, registered
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from holdfast.demo_servers import FAULTS, DemoControl, demo_fleet, running_demo
from holdfast.errors import HoldfastError, ServerUnavailable, UnknownServer, UsageError
from holdfast.hub.hub import Hub
from holdfast.hub.reload import Reloader
from holdfast.testing import HttpServer
from tests.harness.waiting import came_true

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _shorter_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.demo_servers.WARM_UP", 1.2)
    monkeypatch.setattr("holdfast.demo_servers.LIFE", 2.0)


@asynccontextmanager
async def demo() -> AsyncIterator[tuple[Hub, DemoControl, Reloader]]:
    async with demo_fleet() as control, Hub(load_config(control.config_file)) as hub:
        with anyio.fail_after(60):
            await hub.ready()
            yield hub, control, Reloader(hub, control.config_file)


async def until(hub: Hub, server: str, wanted: Callable[[Health], bool]) -> Health:
    """Wait for a server to be so, woken by each of the hub's records."""
    records = hub.events()
    while not wanted(health := hub.server_health(server)):
        await anext(records)
    return health


async def reloaded(control: DemoControl, reloader: Reloader, text: str, *, has: bool) -> None:
    """Wait until the file was written again, and let the hub read it."""
    await came_true(lambda: (text in control.config_file.read_text()) is has)
    assert await reloader.look() or await reloader.look()


async def calls_without_end(hub: Hub, tool: str, **arguments: str) -> None:
    while True:
        await hub.call_tool(tool, arguments)


def state(*wanted: State) -> Callable[[Health], bool]:
    return lambda health: health.state in wanted


async def test_each_server_fails_in_its_own_way_and_one_does_not() -> None:
    async with demo() as (hub, _, _):
        servers = hub.servers
        assert servers["notes"].state is State.CONNECTED
        assert servers["vault"].state is State.DENIED
        assert servers["calendar"].state is State.PERMANENTLY_FAILED
        assert "calender-mcp" in servers["calendar"].reason
        assert "rope" in (await hub.call_tool("notes__list_notes")).text
        await until(hub, "weather", state(State.CONNECTED))
        assert "Oslo" in (await hub.call_tool("weather__forecast", {"city": "Oslo"})).text


async def test_the_flapping_server_comes_and_goes_until_it_is_healed() -> None:
    async with demo() as (hub, control, _):
        first = await until(hub, "ticker", state(State.CONNECTED))
        await until(hub, "ticker", lambda health: health.generation != first.generation)
        control.heal("ticker")
        await until(hub, "ticker", state(State.CONNECTED))
        assert "ACME" in (await hub.call_tool("ticker__price", {"symbol": "ACME"})).text


async def test_what_is_wrong_in_the_definition_is_mended_there() -> None:
    async with demo() as (hub, control, reloader):
        control.heal("vault")
        await reloaded(control, reloader, "X-Demo-Key", has=True)
        control.heal("calendar")
        await reloaded(control, reloader, "calender-mcp", has=False)
        await until(hub, "vault", state(State.CONNECTED))
        await until(hub, "calendar", state(State.CONNECTED))
        assert "tide" in (await hub.call_tool("calendar__today")).text
        control.break_server("vault")
        await reloaded(control, reloader, "X-Demo-Key", has=False)
        await until(hub, "vault", state(State.DENIED))


async def test_a_server_that_is_broken_loses_no_tool_and_comes_back() -> None:
    async with demo() as (hub, control, _):
        for way in ("down", "hanging"):
            assert control.break_server("notes", way) == way
            if way == "down":
                await until(hub, "notes", state(State.RECONNECTING, State.PERMANENTLY_FAILED))
                with pytest.raises(ServerUnavailable):
                    await hub.call_tool("notes__list_notes")
            assert "notes__list_notes" in [tool.name for tool in hub.catalog.tools]
            control.heal("notes")
            await until(hub, "notes", state(State.CONNECTED))
            assert "rope" in (await hub.call_tool("notes__list_notes")).text


async def test_an_http_server_that_is_down_does_not_listen_and_returns_to_its_port() -> None:
    async with demo() as (hub, control, _):
        await until(hub, "weather", state(State.CONNECTED))
        control.break_server("weather", "down")
        with pytest.raises(HoldfastError):
            await calls_without_end(hub, "weather__forecast", city="Oslo")
        control.heal("weather")
        await until(hub, "weather", state(State.CONNECTED))


async def test_what_arrived_at_a_server_is_not_kept_as_long_as_the_demo_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[HttpServer] = []

    class Remembered(HttpServer):
        async def start(self) -> None:
            made.append(self)
            await super().start()

    monkeypatch.setattr("holdfast.demo_servers.HttpServer", Remembered)
    async with demo() as (hub, _, _):
        await until(hub, "weather", state(State.CONNECTED))
        assert made
        await came_true(lambda: not any(one.asked for one in made))


async def test_an_error_while_the_demo_runs_is_that_error() -> None:
    with pytest.raises(UsageError):
        async with demo_fleet():
            raise UsageError("it cannot be served so")


async def test_nonsense_is_refused_with_what_would_do() -> None:
    async with demo_fleet() as control:
        with pytest.raises(UnknownServer) as unknown:
            control.heal("note")
        assert "notes" in unknown.value.hint
        with pytest.raises(UsageError) as wrong:
            control.break_server("notes", "denied")
        assert wrong.value.hint == "it can be: down, hanging"


async def test_every_server_of_the_table_is_in_the_file_and_the_folder_is_gone_afterwards() -> None:
    async with demo_fleet() as control:
        assert list(load_config(control.config_file).servers) == list(FAULTS)
        assert control.config_file.stat().st_mode & 0o077 == 0
    assert not control.folder.exists()


def demo_hub(folder: Path, pid: int, port: int) -> RunningHub:
    """As the hub of a demo tells of itself."""
    config = str(folder / "mcp.json")
    return RunningHub(url=f"http://127.0.0.1:{port}", token="t", pid=pid, started=port, config=config, demo=True)


@pytest.mark.requirement("DX-13")
def test_a_second_terminal_finds_the_demo_that_was_started_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(HoldfastError) as none:
        running_demo()
    assert "holdfast serve --demo" in none.value.hint
    with registered(demo_hub(tmp_path / "second", os.getppid(), 2)):
        with registered(demo_hub(tmp_path / "first", os.getpid(), 1)):
            control, url = running_demo()
            assert (control.folder, url) == (tmp_path / "first", "http://127.0.0.1:1/mcp")
        assert running_demo()[1] == "http://127.0.0.1:2/mcp", "the second one is controlled when the first has ended"
    with registered(replace(demo_hub(tmp_path, os.getpid(), 1), demo=False)), pytest.raises(HoldfastError):
        running_demo()
