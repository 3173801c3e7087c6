"""``holdfast demo`` drives a demo that runs elsewhere, and shows what a client sees."""

from __future__ import annotations

import re
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
def holdfast(home: Path) -> Demo:
    async def holdfast(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        ran = await anyio.to_thread.run_sync(partial(run, *arguments, home=home))
        assert ran.returncode == code, ran.stdout + ran.stderr
        assert "Traceback" not in ran.stderr
        return ran

    return holdfast


@pytest.fixture
def demo(holdfast: Demo) -> Demo:
    return partial(holdfast, "demo")


@pytest.fixture
async def hub(home: Path) -> AsyncIterator[Served]:
    async with served(home, "--demo") as hub:
        await hub.said("notes: connected")
        await hub.said("calendar: parked")
        yield hub


async def test_it_shows_every_server_and_why(hub: Served, demo: Demo) -> None:
    await hub.said("vault: denied")
    shown = (await demo()).stdout
    assert "\nvault     denied\n" in shown
    assert "\ncalendar  mistyped\n" in shown
    _, said = shown.split("What the hub says of them:\n")
    assert re.search(r"notes +. connected", said)
    assert re.search(r"calendar +. parked .*the command `calender-mcp` was not found", said)


async def test_its_tools_are_listed_and_called_like_those_of_any_hub(hub: Served, demo: Demo, holdfast: Demo) -> None:
    assert f"holdfast call notes list_notes --url {hub.url}" in (await demo()).stderr
    assert "list_notes" in (await holdfast("tools", "notes", "--url", hub.url)).stdout
    assert "Buy rope" in (await holdfast("call", "notes", "list_notes", "--url", hub.url)).stdout
    await hub.said("weather: connected")
    assert "Oslo: a light breeze" in (await holdfast("call", "weather", "forecast", "city=Oslo")).stdout


async def test_it_breaks_and_heals(hub: Served, demo: Demo, holdfast: Demo) -> None:
    assert "notes is down now" in (await demo("break", "notes")).stdout
    await hub.said("notes: lost")
    failed = await holdfast("call", "notes", "list_notes", code=1)
    assert "error: the call to `notes` failed: " in failed.stderr
    assert "the tool" not in failed.stderr, "it was not asked"
    assert failed.stdout == ""
    await demo("heal", "notes")
    await hub.said("notes: connected", times=2)
    await demo("heal", "calendar")
    await hub.said("calendar: connected")
    assert "tide" in (await holdfast("call", "calendar", "today")).stdout


async def test_the_tour_ends_well(hub: Served, demo: Demo) -> None:
    shown = (await demo("tour")).stdout
    assert shown.count("Buy rope") == 2
    numbered = [line[0] for line in shown.splitlines() if line[1:3] == ". "]
    assert numbered == ["1", "2", "3", "4"], "a result is told apart from the steps, and no line is cut in two"
    assert "keeps its tools in the list.\n" in shown
    assert "MCP server 'notes'" in shown


async def test_without_a_demo_it_says_how_to_start_one(demo: Demo) -> None:
    assert "holdfast serve --demo" in (await demo(code=1)).stderr


async def test_a_demo_that_ended_is_not_found_any_more(hub: Served, demo: Demo) -> None:
    hub.send(signal.SIGTERM)
    await hub.ended()
    assert "no demo is running" in (await demo("heal", "notes", code=1)).stderr


async def test_nonsense_is_told(hub: Served, demo: Demo) -> None:
    assert "the demo has no server `note`" in (await demo("break", "note", code=1)).stderr
    assert "it can be: down, hanging" in (await demo("break", "notes", "--how", "denied", code=2)).stderr
