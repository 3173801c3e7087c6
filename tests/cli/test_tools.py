"""``holdfast tools`` as people and programs use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio.to_thread
import pytest

from tests.cli.command import HOLDFAST, LONGEST, Cli, stdio
from tests.peers import heavy_server
from tests.peers.http_fault import FaultServer, closed_port, respond
from tests.peers.leaks import alive
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

SECRET = "hunter22-of-ours"

Make = Callable[..., StdioPeer]


def mixed(port: int, stdio_peer: Make) -> dict[str, object]:
    """A healthy server, and one of each kind of failure that needs no other peer."""
    return {
        "files": stdio(stdio_peer("--tools", "2")),
        "down": {"url": f"http://me:{SECRET}@127.0.0.1:{port}/mcp?api_key={SECRET}"},
        "broken": stdio(
            stdio_peer("--exit-at-once", "3", "--stderr", f"cannot use {SECRET}"), env={"API_KEY": "${OUR_KEY}"}
        ),
        "bad": {"url": 5},
        "off": {"command": "no-such-command", "enabled": False},
    }


@pytest.mark.requirement("MSG-2", "MSG-6")
def test_people_see_each_servers_tools_or_the_true_reason_and_no_secret(cli: Cli, stdio_peer: Make) -> None:
    with closed_port() as port:
        cli.configure(mixed(port, stdio_peer))
        ran = cli.run("tools", OUR_KEY=SECRET)
    assert ran.returncode == 1
    shown = ran.stdout.splitlines()
    assert shown[0].startswith("files  available  2 tools, ")
    assert shown[1:3] == ["  echo  The peer's tool echo.", "  add   The peer's tool add."]
    told = [line.strip() for line in shown if "Tools from this server will not work" in line]
    assert len(told) == 3
    assert told[0].startswith("MCP server 'down' is unavailable: nothing listens at its address (connection refused).")
    assert told[1].startswith("MCP server 'broken' is unavailable: its process exited with code 3")
    assert "cannot use ***" in told[1]
    assert told[2].startswith("MCP server 'bad' is unavailable: ")
    assert sum(line.startswith("  hint: ") for line in shown) == 3
    assert ran.stderr == "1 of 4 servers available, 2 tools; `holdfast doctor` checks the others\n"
    assert SECRET not in ran.stdout + ran.stderr
    assert "\x1b" not in ran.stdout + ran.stderr
    assert "off" not in ran.stdout


@pytest.mark.requirement("MSG-11")
def test_no_name_of_a_tool_forges_a_line(cli: Cli, tmp_path: Path) -> None:
    forged = {"name": "a\nother  available\x1b[2J\ud800", "inputSchema": {"type": "object"}}
    (tmp_path / "tools.list").write_text(json.dumps({"tools": [forged]}))
    cli.configure({"evil": {"command": sys.executable, "args": [heavy_server.__file__, str(tmp_path)]}})
    ran = cli.run("tools")
    assert ran.stdout.splitlines()[1:] == ["  a other available"]


@pytest.mark.requirement("LOAD-6", "MSG-6")
def test_programs_get_every_outcome_as_json(cli: Cli, stdio_peer: Make) -> None:
    with closed_port() as port:
        cli.configure(mixed(port, stdio_peer))
        ran = cli.run("tools", "--json", OUR_KEY=SECRET, PYTHONIOENCODING="latin-1")
    assert (ran.returncode, ran.stderr) == (1, "")
    servers = json.loads(ran.stdout)["servers"]
    assert [(server["id"], server["status"], server["attempts"]) for server in servers] == [
        ("files", "available", 1),
        ("down", "permanent", 1),
        ("broken", "permanent", 1),
        ("bad", "permanent", 1),
    ]
    for server in servers:
        assert set(server) == {"id", "status", "attempts", "error", "hint", "tools", "elapsed_ms"}
        assert (server["error"] is None) == (server["status"] == "available")
    assert servers[0]["tools"][0] == {
        "name": "echo",
        "description": "The peer's tool echo.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    }
    assert SECRET not in ran.stdout


@pytest.mark.anyio
@pytest.mark.requirement("MSG-3", "MSG-6")
async def test_a_denial_is_told_as_one_and_its_credentials_are_not(cli: Cli) -> None:
    async with McpPeer(auth="Bearer other") as peer:
        cli.configure({"crm": {"url": peer.url, "headers": {"Authorization": f"Bearer {SECRET}"}}})
        ran = await anyio.to_thread.run_sync(cli.run, "tools")
        await peer.all_closed()
    assert ran.returncode == 1
    assert ran.stdout.startswith("crm  denied\n  MCP server 'crm' denied access: the credentials configured for")
    assert "is not retried" in ran.stdout
    assert "starting up" not in ran.stdout
    assert SECRET not in ran.stdout + ran.stderr
    assert len(peer.requests) == 1


@pytest.mark.anyio
@pytest.mark.requirement("MSG-9", "MSG-10")
async def test_a_server_that_is_not_ready_is_told_with_its_reason_once_and_one_is_not_counted_as_many(cli: Cli) -> None:
    async with McpPeer() as good, FaultServer(respond(503)) as down:
        config = {"one": {"url": good.url, "tools": ["echo"]}, "down": {"url": f"{down.origin}/mcp"}}
        cli.configure(config, load={"backoff": "1ms"})
        ran = await anyio.to_thread.run_sync(cli.run, "tools")
    told = "MCP server 'down' is not ready yet: it answered HTTP 503; it is tried again at the next load."
    assert f"down  transient  3 attempts\n  {told}\n" in ran.stdout
    assert ran.stdout.count("503") == 1
    assert "one  available  1 tool, " in ran.stdout
    assert ran.stderr.startswith("1 of 2 servers available, 1 tool;")


def test_where_every_chosen_server_is_available_the_exit_code_is_zero(cli: Cli, stdio_peer: Make) -> None:
    cli.configure({"good": stdio(stdio_peer()), "bad": {"command": "no-such-command"}})
    ran = cli.run("tools", "good")
    assert ran.returncode == 0
    assert ran.stderr == "1 of 1 server available, 5 tools\n"


def test_an_unknown_server_is_told_with_those_that_are_known(cli: Cli) -> None:
    cli.configure({"a": {"command": "x"}, "b": {"command": "y"}})
    ran = cli.run("tools", "c")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "error: no server named `c` is configured\n\nhint: known: a, b\n"


def test_a_configuration_without_servers_is_fine(cli: Cli) -> None:
    cli.configure({})
    ran = cli.run("tools")
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr.endswith("has no servers\n")


@pytest.mark.parametrize("arguments", [("tools",), ("tools", "--json")])
def test_a_reader_that_goes_away_gets_no_traceback(arguments: tuple[str, ...], cli: Cli, stdio_peer: Make) -> None:
    cli.configure({"a": stdio(stdio_peer("--tools", "3000"))})
    with subprocess.Popen(
        [HOLDFAST, *arguments], cwd=cli.folder, env=cli.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        assert ran.stdout.readline()
        ran.stdout.close()
        told = ran.stderr.read().decode()
    assert "Traceback" not in told
    assert "unexpected" not in told
    assert "Broken" not in told


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_a_full_disk_is_told_and_no_traceback(cli: Cli) -> None:
    cli.configure({"a": {"command": "no-such-command"}})
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [HOLDFAST, "tools"], cwd=cli.folder, env=cli.environment, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert ran.returncode == 1
    assert ran.stderr == b"error: cannot write the output: No space left on device\n"


# On a terminal

COLOURED = "\x1b[32m"  # green, as an available server is


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_there_is_colour_on_a_terminal_unless_it_is_not_wanted(no_colour: str, cli: Cli, stdio_peer: Make) -> None:
    # A name that would be markup, were names taken for it.
    cli.configure({"we[/bold]ird": stdio(stdio_peer())})
    with cli.on_terminal("tools", **({"NO_COLOR": no_colour} if no_colour else {})) as terminal:
        assert terminal.code() == 0
    assert "we[/bold]ird  available" in terminal.text
    assert (COLOURED in terminal.seen) == (not no_colour)


@pytest.mark.timeout(LONGEST)
def test_progress_is_shown_and_ctrl_c_ends_everything(cli: Cli, stdio_peer: Make, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    os.mkfifo(journal)
    slow = stdio_peer("--never-answer", "--grandchild", "--log", str(journal))
    cli.configure({"fast": stdio(stdio_peer()), "[red]slow": stdio(slow)}, load={"attemptTimeout": "40s"})
    with cli.on_terminal("tools") as terminal, os.fdopen(os.open(journal, os.O_RDWR)) as heard:
        terminal.until("1 of 2 servers answered; waiting for [red]slow")
        pids = [int(heard.readline().split()[1]) for _ in ("the child", "its own child")]
        assert all(map(alive, pids))
        terminal.press("\x03")
        assert terminal.code() == 130
    assert "Traceback" not in terminal.text
    assert not any(map(alive, pids))
