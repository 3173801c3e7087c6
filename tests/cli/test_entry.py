"""The way in: help, version, wrong usage, and configurations that cannot be used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast import __version__
from holdfast.cli.entry import COMMANDS
from tests.cli.command import HOLDFAST, Cli


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


@pytest.mark.parametrize("command", [*COMMANDS, "config show"])
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
        "def load_trusted(path): raise KeyError('token=hunter22')\n"
        "room.load_trusted = load_trusted\n"
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
