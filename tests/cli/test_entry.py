"""The way in: help, version, wrong usage, and configurations that cannot be used."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from holdfast import __version__
from holdfast.access.audit_writer import AuditFiles, read_key
from holdfast.cli.entry import COMMANDS
from holdfast.cli.runner import command_named, run_command
from holdfast.testing import StdioServer
from tests.cli.command import HOLDFAST, Cli
from tests.cli.fleets import fleet
from tests.cli.hub_peer import NOW, hub_peer
from tests.cli.in_process import Inside, trusted
from tests.cli.serve_process import config


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_every_command_with_what_it_is_for(arguments: tuple[str, ...], cli: Cli) -> None:
    ran = cli.run(*arguments)
    assert (ran.returncode, ran.stderr) == (0, "")
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name}" in ran.stdout
        assert summary in ran.stdout


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_told(option: str, cli: Cli) -> None:
    assert cli.run(option).stdout == f"holdfast {__version__}\n"


def test_the_package_can_be_run_as_a_module(cli: Cli) -> None:
    ran = subprocess.run([sys.executable, "-m", "holdfast", "-V"], capture_output=True, text=True, check=True)
    assert ran.stdout == cli.run("-V").stdout


@pytest.mark.parametrize("command", [*COMMANDS, "auth status"])
def test_every_command_explains_itself(command: str, cli: Cli) -> None:
    ran = cli.run(*command.split(), "--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"Usage: holdfast {command}" in ran.stdout


def test_an_unknown_command_is_wrong_usage_with_the_nearest_one(cli: Cli) -> None:
    near, far = cli.run("tool"), cli.run("--frobnicate")
    assert (near.returncode, near.stdout) == (2, "")
    assert near.stderr == "error: there is no command `tool`\n\nhint: did you mean `holdfast tools`?\n"
    assert far.returncode == 2
    assert "`holdfast --help` lists the commands" in far.stderr


def test_an_unknown_option_is_wrong_usage(cli: Cli) -> None:
    ran = cli.run("tools", "--frobnicate")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--frobnicate" in ran.stderr


@pytest.mark.requirement("DX-4")
@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("tools", "--jso"), "no such option: --jso", "did you mean `--json`?"),
        (("tools", "--config"), "option `--config` requires an argument", "`holdfast tools --help` shows the usage"),
        (("login",), "missing argument `SERVER`", "`holdfast login --help` shows the usage"),
        (("service", "instal"), "no such command `instal`", "did you mean `install`?"),
        (("serve", "--port", "x"), "invalid value for `--port`", "`holdfast serve --help` shows the usage"),
        (("tool",), "there is no command `tool`", "did you mean `holdfast tools`?"),
        (("serve", "--demo", "--config", "x"), "--demo and --config exclude each other", "use one of them"),
    ],
)
def test_every_wrong_usage_has_one_style(inside: Inside, arguments: tuple[str, ...], error: str, hint: str) -> None:
    ran = inside(*arguments)
    assert (ran.code, ran.out) == (2, "")
    first, empty, last = ran.err.splitlines()
    assert first.startswith(f"error: {error}")
    assert (empty, last) == ("", f"hint: {hint}")


JSON = {
    "access explain": ("access", "explain", "ada", "one/echo", "--config", "mcp.json"),
    "access test": ("access", "test", "expected.json", "--config", "mcp.json"),
    "access replay": ("access", "replay", "--policy", "mcp.json", "--path", "audit"),
    "tools": ("tools", "one"),
    "find": ("find", "say it again"),
    "check": ("check", "--wait", "0s"),
    "setup": ("setup", "--yes", "--no-service", "--config", "mcp.json"),
    "uninstall": ("uninstall", "--yes"),
    "call": ("call", "one", "echo"),
    "auth status": ("auth", "status"),
    "doctor": ("doctor", "one"),
    "import": ("import",),
    "trust": ("trust", "--list"),
    "list": ("list",),
    "add": ("add", "new", "--no-check"),
    "remove": ("remove", "one", "--file", "mcp.json"),
    "service install": ("service", "install", "--dry-run"),
    "service uninstall": ("service", "uninstall"),
    "service status": ("service", "status"),
    "status": ("status",),
    "reconnect": ("reconnect", "notes"),
    "enable": ("enable", "notes"),
    "disable": ("disable", "notes"),
    "approve": ("approve",),
    "logs": ("logs", "notes"),
    "audit verify": ("audit", "verify", "audit", "--key-file", "audit.key"),
}
"""A run of every command that has ``--json``."""

AFTER = {"add": ("--", "x")}


def commands_with_json() -> list[str]:
    found = []
    for name in COMMANDS:
        command = command_named(name)
        each = {f"{name} {sub}": one for sub, one in command.commands.items()} if hasattr(command, "commands") else {}
        found += [at for at, one in (each or {name: command}).items() if any("--json" in o.opts for o in one.params)]
    return found


@pytest.mark.requirement("DX-4")
def test_every_json_output_has_a_version(inside: Inside, tmp_path: Path) -> None:
    assert sorted(JSON) == sorted(commands_with_json())
    line = {"at": NOW, "source": "stderr", "level": "", "text": "here"}
    with StdioServer({"echo": "says it again"}) as one, hub_peer(*fleet()) as hub:
        trusted(config(tmp_path / "mcp.json", one=one.definition))
        AuditFiles(tmp_path / "audit", read_key(tmp_path / "audit.key", make=True)).write([])
        hub.answers["GET /api/servers/notes/logs"] = (200, {"server": "notes", "lines": [line]})
        hub.answers["GET /api/approvals"] = (200, {"approvals": []})
        (tmp_path / "expected.json").write_text('{"tests": [{"user": "ada", "tool": "one/echo", "expect": "allow"}]}')
        hub.answers["GET /api/catalog"] = (200, {"version": 1})
        for name, arguments in JSON.items():
            at_hub = {} if name in ("tools", "find", "call") else hub.environment  # those would be its MCP clients
            ran = inside(*arguments, "--json", *AFTER.get(name, ()), environment=at_hub)
            assert isinstance(json.loads(ran.out)["version"], int), f"{name}: {ran.out}{ran.err}"


def test_without_a_configuration_it_says_where_it_looked(cli: Cli) -> None:
    ran = cli.run("tools")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: no configuration file was found\n\nhint: looked at: ")
    assert str(cli.folder / "mcp.json") in ran.stderr


@pytest.mark.parametrize("command", [("tools",), ("call", "a", "b"), ("tools", "--json")])
def test_a_broken_configuration_is_told_with_its_place_and_no_traceback(command: tuple[str, ...], cli: Cli) -> None:
    (cli.folder / "mcp.json").write_text('{\n  "mcpServers": {,}\n}')
    ran = cli.run(*command)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"{cli.folder / 'mcp.json'}:2:18" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_reader_that_goes_away_is_no_error(cli: Cli) -> None:
    with subprocess.Popen([HOLDFAST, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        ran.stdout.close()
        assert ran.stderr.read() == b""
    assert ran.returncode == 0


def test_an_unexpected_error_is_a_sentence_and_with_debug_a_traceback_without_secrets(cli: Cli) -> None:
    program = (
        "import holdfast.cli.tools as room, sys\n"
        "def load_servers(*given, **more): raise KeyError('token=hunter22')\n"
        "room.load_servers = load_servers\n"
        "sys.argv = ['holdfast', 'tools']\n"
        "from holdfast.cli.entry import main; main()"
    )
    for debug, traceback in (("", False), ("1", True)):
        ran = subprocess.run(
            [sys.executable, "-c", program],
            env={**cli.environment, "HOLDFAST_DEBUG": debug},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 1
        assert "an unexpected error in Holdfast (KeyError)" in ran.stderr
        assert ("Traceback" in ran.stderr) == traceback
        assert "hunter22" not in ran.stderr


@pytest.mark.requirement("DX-13")
def test_a_home_that_is_no_folder_is_an_error_with_a_hint(cli: Cli, tmp_path: Path) -> None:
    (home := tmp_path / "file").write_text("")
    (config := tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    ran = cli.run("service", "install", "--config", str(config), HOME=str(home))
    assert ran.returncode == 1
    assert f"error: cannot use {home}" in ran.stderr
    assert f"HOME is {home}, which is not a folder that you can read" in ran.stderr
    assert "bug" not in ran.stderr
    joined = cli.run("serve", "--stdio", HOME=str(home))
    assert f"no hub could be started: {home}" in joined.stderr, "the place says what is to be changed"


@pytest.mark.requirement("DX-13")
def test_a_file_that_may_not_be_read_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> typer.Typer:
        raise PermissionError(errno.EACCES, "Permission denied", "/secret/mcp.json")

    assert run_command(load, [], program="holdfast tools") == 1
    said = capsys.readouterr().err
    assert "cannot use /secret/mcp.json: Permission denied" in said
    assert "hint: check its permissions" in said
