"""The commands for a running hub against a real ``holdfast serve`` with real servers behind it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import pytest

from tests.cli.running import Cli, stdio
from tests.cli.served import Served, config, environment, run, served
from tests.peers.stdio import StdioPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-5", "OBS-1")]

Holdfast: TypeAlias = Callable[..., Awaitable[subprocess.CompletedProcess[str]]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def files(tmp_path: Path) -> StdioPeer:
    return StdioPeer("--tools", "2", "--stderr", "files is here", folder=tmp_path)


@pytest.fixture
async def hub(home: Path, files: StdioPeer) -> AsyncIterator[Served]:
    config(home / "mcp.json", files=stdio(files), typo={"command": "no-such-command-at-all"})
    async with served(home) as hub:
        await hub.said("files: connecting -> connected")
        await hub.said("typo: connecting -> permanently_failed")
        yield hub


@pytest.fixture
def holdfast(home: Path) -> Holdfast:
    """Runs a command as the same user does in a second terminal: it is not told where the hub is."""

    async def holdfast(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        ran = await anyio.to_thread.run_sync(partial(run, *arguments, home=home))
        assert ran.returncode == code, ran.stdout + ran.stderr
        assert "Traceback" not in ran.stderr
        return ran

    return holdfast


async def test_an_operator_sees_what_is_wrong_and_steers_it(hub: Served, holdfast: Holdfast) -> None:
    told: dict[str, Any] = json.loads((await holdfast("status", "--json", code=1)).stdout)
    assert told["hub"]["endpoint"] == hub.url
    states = {one["id"]: (one["status"], one["state"], one["tools"]) for one in told["servers"]}
    assert states == {"files": ("available", "connected", 2), "typo": ("permanent", "permanently_failed", 0)}

    shown = (await holdfast("status", code=1)).stdout
    assert "the command `no-such-command-at-all` was not found" in shown
    assert shown.index("files") < shown.index("typo")

    refused = await holdfast("reconnect", "typo", code=1)
    assert "no-such-command-at-all" in refused.stderr

    assert "disabled" in (await holdfast("disable", "files")).stdout
    assert "holdfast enable files" in (await holdfast("reconnect", "files", code=1)).stderr
    assert "- disabled" in (await holdfast("status", "files")).stdout

    await holdfast("enable", "files")
    await hub.said("files: disabled -> connecting")
    assert "✓ available" in (await holdfast("reconnect", "files")).stdout

    written = (await holdfast("logs", "files")).stdout
    assert "  stderr  files is here\n" in written
    assert "  hub     connecting -> connected" in written
    assert (await holdfast("approve")).stdout == ""


async def test_watching_shows_a_server_die_and_come_back_and_says_when_the_hub_ends(
    hub: Served, home: Path, files: StdioPeer
) -> None:
    cli = Cli(home)
    cli.size = (100, 30)
    with cli.on_terminal("status", "--watch", **environment(home) | {"TERM": "xterm-256color"}) as terminal:

        async def on_screen(text: str) -> None:
            with anyio.fail_after(60):
                await anyio.to_thread.run_sync(terminal.until_on_screen, text, abandon_on_cancel=True)

        await on_screen("q quit")
        await on_screen("files   ✓ available")
        os.kill(files.pids[-1], signal.SIGKILL)
        await on_screen("files: connected -> reconnecting: ")
        await on_screen("files: reconnecting -> connected: dial succeeded")
        await on_screen("1 of 2 servers available, 1 needs attention")
        terminal.press("r")
        await on_screen("typo: MCP server 'typo' could not be connected")
        hub.send(signal.SIGTERM)
        with anyio.fail_after(60):
            assert await anyio.to_thread.run_sync(terminal.code, abandon_on_cancel=True) == 1
    assert " ended\r\n" in terminal.seen
    assert await hub.ended() == 0


async def test_of_several_hubs_the_one_is_meant_that_serves_the_file_found_from_here(
    hub: Served, home: Path, tmp_path: Path, holdfast: Holdfast
) -> None:
    elsewhere = config(tmp_path / "other.json", lonely={"command": "no-such-command-at-all"})
    async with served(home, "--config", str(elsewhere)) as other:
        here = json.loads((await holdfast("status", "--json", code=1)).stdout)
        there = json.loads((await holdfast("status", "--json", "--config", str(elsewhere), code=1)).stdout)
        assert (here["hub"]["endpoint"], there["hub"]["endpoint"]) == (hub.url, other.url)
        (home / "mcp.json").rename(home / "renamed.json")
        refused = (await holdfast("status", code=1)).stderr
        assert "several hubs are running here" in refused
        base = other.url.removesuffix("/mcp")
        assert f"--url {base}" in refused
        named = json.loads((await holdfast("status", "--json", "--url", base, code=1)).stdout)
        assert named["hub"]["endpoint"] == other.url
