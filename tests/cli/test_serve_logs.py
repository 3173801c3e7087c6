"""What ``holdfast serve`` logs, seen from outside: as asked for, and without anybody's secret."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from holdfast.testing import HttpServer
from tests.cli.serve_process import config, run, served
from tests.peers.http_fault import FaultServer, respond

pytestmark = pytest.mark.anyio

SECRET = "s3cret-of-the-server-itself"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.mark.requirement("OBS-1", "MSG-6")
async def test_a_log_for_programs_is_one_object_a_line_and_shows_no_secret(tmp_path: Path, home: Path) -> None:
    async with FaultServer(respond(403, f"the key {SECRET} may not")) as one:
        definition = {"type": "http", "url": f"{one.origin}/mcp", "headers": {"x-key": SECRET}}
        file = config(tmp_path / "mcp.json", one=definition)
        async with served(home, "--config", str(file), HOLDFAST_LOG_FORMAT="json") as hub:
            await hub.said('"new": "denied"')
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0
        lines = [json.loads(line) for line in hub.err.splitlines()]
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
        [last] = [line for line in lines if line.get("new") == "denied"]
        assert (last["event"], last["server"]) == ("transition", "one")
        assert "***" in last["reason"]
        assert SECRET not in hub.err + hub.out


@pytest.mark.requirement("OBS-1")
async def test_the_level_says_how_much_is_logged(tmp_path: Path, home: Path) -> None:
    async with HttpServer({"a": "one"}) as one:
        file = config(tmp_path / "mcp.json", one=one.definition)
        async with served(home, "--config", str(file), "--log-level", "debug") as loud:
            await loud.said(": connected")
            await loud.said("tools of one changed")
            loud.send(signal.SIGTERM)
            assert await loud.ended() == 0
        async with served(home, "--config", str(file), "--log-level", "error") as quiet:
            assert (await quiet.call("one__a")).text == "one"
            quiet.send(signal.SIGTERM)
            assert await quiet.ended() == 0
        assert quiet.err == ""


async def test_a_format_that_there_is_not_is_wrong_usage(home: Path) -> None:
    ran = run("serve", "--log-format", "xml", home=home)
    assert ran.returncode == 2
    assert "console" in ran.stderr
