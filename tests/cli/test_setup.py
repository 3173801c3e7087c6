"""``holdfast setup`` goes from nothing to working servers, and ``holdfast uninstall`` back."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

import pytest

from tests.cli.command import Cli
from tests.cli.in_process import Inside

pytestmark = pytest.mark.requirement("DX-10")

SERVER = str(Path(__file__).parents[2] / "docs" / "examples" / "files_server.py")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with three clients, on a machine where systemd cannot run services of users."""
    files = {"command": sys.executable, "args": [SERVER]}
    clients = {
        ".cursor/mcp.json": {
            "mcpServers": {"files": {"type": "stdio", **files}, "gone": {"command": "no-such-program"}}
        },
        ".gemini/settings.json": {"mcpServers": {"old": files}, "mcp": {"excluded": ["old"]}},
        ".config/opencode/opencode.json": {"mcp": {"files": {"type": "local", "command": [sys.executable, SERVER]}}},
    }
    for name, value in clients.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(value, indent=4))
    _systemctl(tmp_path, monkeypatch, code=1)
    return tmp_path


def _systemctl(home: Path, monkeypatch: pytest.MonkeyPatch, *, code: int) -> None:
    programs = home / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "systemctl").write_text(f"#!/bin/sh\necho no bus >&2\nexit {code}\n")
    (programs / "systemctl").chmod(0o755)
    if str(programs) not in os.environ["PATH"]:
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")


def _files(home: Path) -> dict[str, str]:
    names = (".cursor/mcp.json", ".gemini/settings.json", ".config/opencode/opencode.json")
    return {name: (home / name).read_text() for name in names}


def test_setup_imports_connects_and_checks_and_uninstall_undoes_it(inside: Inside, home: Path) -> None:
    before = _files(home)
    ran = inside("setup", "--yes", "--json")
    told = json.loads(ran.out)
    assert ran.code == 1  # a server is left to do something about
    assert {row["server"]: row["verdict"] for row in told["checks"]} == {"files": "ready", "gone": "permanent"}
    assert (told["service"]["running"], "no bus" in told["service"]["reason"]) == (False, True)
    assert {one["client"] for one in told["pointed"]} == {"cursor", "gemini", "opencode"}
    ours = json.loads((home / ".config/holdfast/mcp.json").read_text())["mcpServers"]
    assert (sorted(ours), ours["old"]["enabled"]) == (["files", "gone", "old"], False)
    # No service: a URL would point at nothing, so each client starts or joins the hub.
    entry = json.loads((home / ".config/opencode/opencode.json").read_text())["mcp"]["holdfast"]
    assert (entry["type"], entry["command"][1:3]) == ("local", ["serve", "--stdio"])
    undone = inside("uninstall", "--yes", "--json")
    assert (undone.code, json.loads(undone.out)["problems"]) == (0, [])
    assert _files(home) == before
    assert not (home / ".config/holdfast/mcp.json").exists()
    assert json.loads(inside("uninstall", "--yes", "--json").out)["done"] == []


def test_uninstall_restores_what_setup_wrote_also_where_no_service_was_wanted(inside: Inside, home: Path) -> None:
    ours = home / ".config/holdfast/mcp.json"
    ours.parent.mkdir(parents=True)
    ours.write_text(mine := '{"mcpServers": {}} // mine\n')
    for _ in range(2):  # the second setup does not forget what was before the first
        assert json.loads(inside("setup", "--yes", "--no-service", "--json").out)["service"]["reason"]
    assert ours.read_text() != mine
    assert f"{ours} is as it was" in json.loads(inside("uninstall", "--yes", "--json").out)["done"]
    assert ours.read_text() == mine


def test_where_no_service_is_wanted_no_line_says_that_the_hub_runs_in_the_background(
    inside: Inside, home: Path
) -> None:
    first = inside("setup", "--yes", "--no-service")
    assert "in the background" not in first.out
    steps = [line[0] for line in first.out.splitlines() if line[1:3] == ". "]
    assert steps == ["1", "2", "3", "4", "5"]
    assert "To look at them: holdfast check." in first.err, "no hub runs that `status` could show"
    again = inside("setup", "--yes", "--no-service")
    assert f"{home / '.config/holdfast/mcp.json'} stays as it is" in again.out


def test_with_a_service_clients_get_the_address_of_the_hub(
    inside: Inside, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _systemctl(home, monkeypatch, code=0)
    told = json.loads(inside("setup", "--yes", "--json", "--wait", "20").out)
    assert told["service"]["running"]
    entry = json.loads((home / ".cursor/mcp.json").read_text())["mcpServers"]["holdfast"]
    assert entry["url"] == "http://127.0.0.1:4653/mcp"
    removed = json.loads(inside("uninstall", "--yes", "--json").out)["done"]
    assert sum("holdfast.s" in line for line in removed) == 2


def test_what_a_person_changed_since_stays(inside: Inside, home: Path) -> None:
    assert inside("setup", "--yes", "--json").code == 1
    ours = home / ".config/holdfast/mcp.json"
    ours.write_text(ours.read_text().replace('"gone"', '"mine"'))
    cursor = home / ".cursor/mcp.json"
    cursor.write_text(json.dumps({**json.loads(cursor.read_text()), "theme": "dark"}))
    told = json.loads(inside("uninstall", "--yes", "--json").out)
    assert '"mine"' in ours.read_text()
    assert str(ours) in told["left"].values()
    now = json.loads(cursor.read_text())
    assert (sorted(now["mcpServers"]), now["theme"]) == (["files", "gone"], "dark")


def test_nothing_is_changed_where_nobody_can_be_asked(inside: Inside, home: Path, cli: Cli) -> None:
    before = _files(home)
    for command in ("setup", "uninstall"):
        ran = inside(command, "--json")
        assert (ran.code, "nothing was changed" in ran.err) == (1, True)
    assert _files(home) == before
    without_clients = cli.run("setup", "--yes")
    assert (without_clients.returncode, "holdfast add" in without_clients.stderr) == (1, True)


def test_on_a_terminal_it_shows_what_will_change_and_asks_once(inside: Inside, home: Path, cli: Cli) -> None:
    cli.folder = home
    cli.environment |= {"HOME": str(home), "PATH": os.environ["PATH"]}
    with cli.on_terminal("setup") as terminal:
        terminal.until("Do this? [Y/n]")
        assert "gets the hub instead of files, gone" in terminal.text
        terminal.press("y\n")
        terminal.until("1 of 2 servers work.")
        assert terminal.code() == 1
    assert "files  ready  2 tools" in terminal.text
    assert "gone: " in terminal.text


def test_what_setup_keeps_of_a_file_is_kept_until_the_file_is_restored(inside: Inside, home: Path) -> None:
    ours = home / ".config/holdfast/mcp.json"
    ours.parent.mkdir(parents=True)
    ours.write_text(mine := '{"mcpServers": {}} // mine\n')
    assert inside("setup", "--yes", "--no-service", "--json").code == 1
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # as on a full disk
    try:
        failed = inside("uninstall", "--yes", "--json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (failed.code, "Traceback" in failed.err) == (1, False)
    assert f"{ours} is as it was" in json.loads(inside("uninstall", "--yes", "--json").out)["done"]
    assert ours.read_text() == mine
