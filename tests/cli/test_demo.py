"""``holdfast demo`` drives a demo that runs elsewhere, and shows what a client sees."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from tests.cli.serve_process import Served, run, served

pytestmark = pytest.mark.anyio

Demo: TypeAlias = Callable[..., Awaitable[subprocess.CompletedProcess[str]]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def demo(home: Path) -> Demo:
    async def demo(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        ran = await anyio.to_thread.run_sync(partial(run, "demo", *arguments, home=home))
        assert ran.returncode == code, ran.stdout + ran.stderr
        assert "Traceback" not in ran.stderr
        return ran

    return demo


@pytest.fixture
async def hub(home: Path) -> AsyncIterator[Served]:
    async with served(home, "--demo") as hub:
        await hub.said("notes: connected")
        await hub.said("calendar: parked")
        yield hub


async def test_it_shows_every_server_and_why(hub: Served, demo: Demo) -> None:
    await hub.said("vault: denied")
    shown = (await demo()).stdout
    assert "notes     connected" in shown
    assert "vault     denied" in shown
    assert "the command `calender-mcp` was not found" in shown


async def test_it_lists_and_calls_as_a_client_does(hub: Served, demo: Demo) -> None:
    assert "notes__list_notes" in (await demo("tools")).stdout
    assert "Buy rope" in (await demo("call", "notes__list_notes")).stdout
    await hub.said("weather: connected")
    assert "Oslo: a light breeze" in (await demo("call", "weather__forecast", "city=Oslo")).stdout
    assert "unknown" in (await demo("call", "notes__no_such_tool", code=1)).stderr.lower()


async def test_it_breaks_and_heals(hub: Served, demo: Demo) -> None:
    assert "notes is down now" in (await demo("break", "notes")).stdout
    await hub.said("notes: lost")
    assert "MCP server 'notes'" in (await demo("call", "notes__list_notes", code=1)).stderr
    assert "notes__list_notes" in (await demo("tools")).stdout
    await demo("heal", "notes")
    await hub.said("notes: connected", times=2)
    await demo("heal", "calendar")
    await hub.said("calendar: connected")
    assert "tide" in (await demo("call", "calendar__today")).stdout


async def test_the_tour_ends_well(hub: Served, demo: Demo) -> None:
    shown = (await demo("tour")).stdout
    assert shown.count("Buy rope") == 2
    assert "MCP server 'notes'" in shown


async def test_without_a_demo_it_says_how_to_start_one(demo: Demo) -> None:
    assert "holdfast serve --demo" in (await demo(code=1)).stderr


async def test_a_demo_that_ended_is_not_found_any_more(hub: Served, demo: Demo) -> None:
    hub.send(signal.SIGTERM)
    await hub.ended()
    assert "no demo is running" in (await demo("tools", code=1)).stderr


async def test_nonsense_is_told(hub: Served, demo: Demo) -> None:
    assert "the demo has no server `note`" in (await demo("break", "note", code=1)).stderr
    assert "it can be: down, hanging" in (await demo("break", "notes", "--how", "denied", code=2)).stderr
