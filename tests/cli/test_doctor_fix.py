"""``holdfast doctor`` as a process: what it prints can be pasted, and ``--fix`` does what it shows and no more."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import Cli

PLACEHOLDER = {"command": "no-such-command", "env": {"API_KEY": "<YOUR_API_KEY>"}}


def store_of(cli: Cli) -> Path:
    file = cli.folder / ".local" / "state" / "holdfast" / "auth.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def typed(printed: str) -> list[str]:
    """The commands that were printed to paste."""
    return [line.removeprefix("      $ ") for line in printed.splitlines() if line.startswith("      $ ")]


@pytest.mark.requirement("DOC-8")
@pytest.mark.parametrize(
    "damage",
    ['{"version": 1, "gra', '{"version": 1, "grants": [{"server": "x"}]}', '{"version": 1, "grants": [1]}', "[]"],
    ids=["cut", "an entry without its keys", "an entry of another kind", "another document"],
)
def test_a_damaged_token_store_is_reported_and_stays_until_fix_sets_it_aside(cli: Cli, damage: str) -> None:
    cli.configure({"server": {"url": "http://127.0.0.1:1/mcp"}})
    store = store_of(cli)
    store.write_text(damage)
    store.chmod(0o600)
    for _ in range(2):
        seen = cli.run("doctor", "--timeout", "10")
        assert "HF-TOKENS-CORRUPT" in seen.stdout
        assert store.read_text() == damage
    fixed = cli.run("doctor", "--fix", "--timeout", "10")
    assert "auth.json.corrupt-1" in fixed.stdout
    assert store.with_name("auth.json.corrupt-1").read_text() == damage


@pytest.mark.requirement("DOC-4")
def test_findings_about_files_have_a_heading_of_their_own(cli: Cli) -> None:
    cli.configure({"zebra": {"command": "no-such-command"}, "well": {"command": "x", "enabled": False}})
    store = store_of(cli)
    store.write_text("[]")
    store.chmod(0o600)
    lines = cli.run("doctor", "--timeout", "10").stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "HF-TOKENS-CORRUPT" in line)
    assert lines[at - 1].split()[:2] == ["warning", "files"]


@pytest.mark.requirement("DOC-1", "DOC-4")
def test_a_command_to_paste_runs_with_the_environment_that_the_server_had(cli: Cli) -> None:
    script = cli.folder / "server.py"
    script.write_text("import os, sys\nprint(sorted(os.environ), file=sys.stderr)\nsys.exit('no more')\n")
    definition = {"command": sys.executable, "args": [str(script)], "env": {"GIVEN": "${env:SHELL_VALUE}"}}
    cli.configure({"server": definition})
    seen = cli.run("doctor", "--timeout", "20", SHELL_VALUE="given-by-the-shell", EXTRA="only-the-shell-has-this")
    (command,) = typed(seen.stdout)
    assert "with the environment that Holdfast gives it" in " ".join(seen.stdout.split())
    again = subprocess.run(
        ["sh", "-c", command],
        cwd=cli.folder,
        env={**cli.environment, "SHELL_VALUE": "given-by-the-shell", "EXTRA": "only-the-shell-has-this"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    told = re.search(r"\| (\[.*\])", seen.stdout)
    assert told
    by_hand = again.stderr.splitlines()[0]
    assert "EXTRA" not in by_hand
    assert "GIVEN" in by_hand
    mark = {"HOLDFAST_WARDEN"}
    assert _names(by_hand) - mark == {name for name in _names(told[1]) if not name.startswith("HOLDFAST_")}


def _names(listed: str) -> set[str]:
    return set(json.loads(listed.replace("'", '"')))


@pytest.mark.requirement("DOC-8")
@pytest.mark.parametrize(
    "definition",
    [
        {"command": "nope;>pwned"},
        {"command": "./nope;>pwned"},
        {"command": "sh", "args": ["-c", "exit 3", ";>pwned"]},
        {"command": "x", "cwd": "$(>pwned)"},
        {"url": "http://127.0.0.1:1/;>pwned"},
    ],
    ids=["a name", "a path", "an argument", "a folder", "an address"],
)
def test_no_command_to_paste_runs_what_the_file_says(cli: Cli, definition: dict[str, object]) -> None:
    cli.configure({"x;>pwned": definition})
    seen = cli.run("doctor", "--timeout", "10")
    assert typed(seen.stdout)
    for command in typed(seen.stdout):
        subprocess.run(
            ["sh", "-c", command],
            cwd=cli.folder,
            env={**cli.environment, "EDITOR": "true"},
            capture_output=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
    assert not list(cli.folder.rglob("pwned"))


@pytest.mark.requirement("DOC-8")
def test_a_name_that_looks_like_an_option_is_not_one_in_a_command_to_paste(cli: Cli) -> None:
    cli.configure({"--fix": {"command": "sh", "args": ["-c", "kill -9 $$"]}})
    seen = cli.run("doctor", "--timeout", "1")
    ours = [command for command in typed(seen.stdout) if command.startswith("holdfast doctor")]
    assert ours
    assert all(command.endswith(" -- --fix") for command in ours)


@pytest.mark.requirement("DOC-8")
def test_fix_shows_a_diff_keeps_a_backup_and_can_be_undone(cli: Cli) -> None:
    cli.configure({"server": PLACEHOLDER})
    file = cli.folder / "mcp.json"
    before = file.read_text()
    fixed = cli.run("doctor", "--config", "mcp.json", "--fix", "--timeout", "10", API_KEY="s3cret-s3cret")
    after = json.loads(file.read_text())
    assert after["mcpServers"]["server"]["env"] == {"API_KEY": "${env:API_KEY}"}
    assert "+" in fixed.stderr
    assert "${env:API_KEY}" in fixed.stderr
    assert "--fix, done: mcpServers.server.env.API_KEY is now" in " ".join(fixed.stdout.split())
    assert "s3cret-s3cret" not in fixed.stdout + fixed.stderr
    assert "HF-PLACEHOLDER" not in fixed.stdout.partition("--fix")[0]
    undone = cli.run("doctor", "--config", "mcp.json", "--undo")
    assert (undone.returncode, file.read_text()) == (0, before)
    assert cli.run("doctor", "--config", "mcp.json", "--undo").returncode == 1


@pytest.mark.requirement("DOC-8")
@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_fix_asks_before_it_writes(cli: Cli, answer: str) -> None:
    cli.configure({"server": PLACEHOLDER})
    file = cli.folder / "mcp.json"
    before = file.read_text()
    with cli.on_terminal("doctor", "--config", "mcp.json", "--fix", "--timeout", "10") as terminal:
        terminal.until("Write ")
        assert file.read_text() == before
        terminal.press(f"{answer}\r")
        terminal.code()
    assert ("${env:API_KEY}" in file.read_text()) is (answer == "y")


@pytest.mark.requirement("DOC-8")
def test_fix_writes_no_edit_that_has_an_alternative_unless_a_person_says_so(cli: Cli) -> None:
    cli.configure({"server": {"url": "http://203.0.113.7/mcp", "headers": {"X-Key": "k3y-k3y-k3y"}}})
    file = cli.folder / "mcp.json"
    before = file.read_text()
    seen = cli.run("doctor", "--config", "mcp.json", "--fix", "--timeout", "3")
    assert file.read_text() == before
    if "HF-PLAIN-CREDENTIALS" in seen.stdout:  # else the network here answers for that address
        assert "needs your decision" in " ".join(seen.stdout.split())


@pytest.mark.requirement("DOC-8")
def test_fix_renames_a_misspelt_key_and_then_finds_what_is_left(cli: Cli) -> None:
    file = cli.folder / "mcp.json"
    file.write_text('{"mcpservers": {"server": {"comand": "no-such-command"}}}')
    for _ in range(2):
        cli.run("doctor", "--config", "mcp.json", "--fix", "--timeout", "10")
    assert json.loads(file.read_text()) == {"mcpServers": {"server": {"command": "no-such-command"}}}


@pytest.mark.requirement("DOC-8")
def test_the_mode_of_the_file_stays_after_an_edit(cli: Cli) -> None:
    cli.configure({"server": PLACEHOLDER})
    file = cli.folder / "mcp.json"
    file.chmod(0o640)
    cli.run("doctor", "--config", "mcp.json", "--fix", "--timeout", "10", API_KEY="x")
    assert "${env:API_KEY}" in file.read_text()
    assert file.stat().st_mode & 0o777 in (0o600, 0o640)
