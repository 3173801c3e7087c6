"""Completion: the candidates, and the scripts in real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.completion import SCRIPTS, candidates
from holdfast.cli.entry import COMMANDS
from tests.cli.fleets import fleet
from tests.cli.hub_peer import HubPeer, hub_peer
from tests.cli.in_process import Inside, trusted
from tests.cli.serve_process import config, environment

pytestmark = pytest.mark.requirement("DX-4")

PROGRAMS = Path(sys.executable).parent

BASH = """
source <(holdfast completion bash)
complete -p holdfast
COMP_WORDS=(holdfast "$@") COMP_CWORD=$#
_holdfast
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
autoload -Uz compinit; compinit -u -D
source <(holdfast completion zsh)
print $_comps[holdfast]
compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -l -- "$@" }
_files() { print files }
words=(holdfast "$@") CURRENT=$(( $# + 1 ))
_holdfast
"""
FISH = """
holdfast completion fish | source
complete -C "holdfast $argv"
"""


@pytest.fixture
def hub() -> Iterator[HubPeer]:
    tools = [
        {"name": "notes__add", "server": "notes", "original": "add"},
        {"name": "notes__list", "server": "notes", "original": "list"},
        {"name": "vault__open", "server": "vault", "original": "open"},
    ]
    with hub_peer(*fleet()) as peer:
        peer.answers["GET /api/catalog"] = (200, {"version": 1, "tools": tools})
        yield peer


def values(inside: Inside, hub: HubPeer | None, *words: str) -> list[str]:
    ran = inside("__complete", *words, environment=hub.environment if hub else {})
    return [line.partition("\t")[0] for line in ran.out.splitlines()]


def test_commands_and_subcommands_are_completed(inside: Inside) -> None:
    assert values(inside, None, "") == [*COMMANDS, "--help", "--version"]
    assert values(inside, None, "re") == [name for name in COMMANDS if name.startswith("re")]
    assert values(inside, None, "service", "") == [
        "install",
        "upgrade",
        "uninstall",
        "status",
        "logs",
        "--quiet",
        "--help",
    ]
    assert values(inside, None, "no-such-command", "") == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_every_command_is_completed(command: str) -> None:
    assert "--help" in [one.value for one in candidates([command, "--"])]


def test_an_option_is_followed_by_its_choices_or_by_files(inside: Inside) -> None:
    assert values(inside, None, "serve", "--log-format", "") == ["console", "json"]
    assert values(inside, None, "approve", "--kind", "") == ["tool", "prompt", "instructions"]
    assert values(inside, None, "serve", "--config", "x") == [":files"]
    assert values(inside, None, "serve", "--port", "") == []


def test_servers_and_tools_are_those_of_the_running_hub(inside: Inside, hub: HubPeer) -> None:
    names = [server.id for server in fleet()]
    assert values(inside, hub, "reconnect", "") == names
    assert values(inside, hub, "reconnect", "notes", "") == [name for name in names if name != "notes"]
    assert values(inside, hub, "call", "notes", "") == ["add", "list"]
    assert values(inside, hub, "call", "notes", "li") == ["list"]
    assert "notes\tconnected\n" in inside("__complete", "status", "no", environment=hub.environment).out


def test_without_a_hub_servers_are_those_of_the_configuration(inside: Inside, tmp_path: Path) -> None:
    trusted(config(tmp_path / "mcp.json", one={"command": "x"}, two={"url": "not a url"}))
    other = config(tmp_path / "other.json", three={"command": "x"})
    assert values(inside, None, "tools", "") == ["one", "two"]
    assert values(inside, None, "tools", "--config", str(other), "") == ["three"]
    assert values(inside, None, "doctor", "e") == ["explain"]
    assert values(inside, None, "doctor", "explain", "HF-REF") == ["HF-REFUSED"]


def test_a_broken_configuration_completes_nothing_and_prints_nothing(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text("{")
    ran = inside("__complete", "tools", "")
    assert (ran.out, ran.err) == ("", "")


def test_an_unknown_shell_is_wrong_usage(inside: Inside) -> None:
    ran = inside("completion", "tcsh")
    assert ran.code == 2
    assert "known: bash, zsh, fish" in ran.err


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_shell_completes_commands_servers_and_files(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    trusted(config(tmp_path / "mcp.json", first={"command": "x"}, second={"command": "x"}), environment(tmp_path))
    (tmp_path / "mcp-other.json").write_text("{}")

    def completed(*words: str) -> list[str]:
        script = {"bash": [BASH, "bash", *words], "zsh": [ZSH, "zsh", *words], "fish": [FISH, " ".join(words)]}[shell]
        options = ["-f", "-c"] if shell == "zsh" else ["-c"]
        ran = subprocess.run(
            [program, *options, *script],
            cwd=tmp_path,
            env={**environment(tmp_path), "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ran.stderr == ""
        return [line.partition("\t")[0] for line in ran.stdout.splitlines()]

    assert {"status"} <= set(completed("stat"))
    assert {"first", "second"} <= set(completed("tools", ""))
    if shell == "fish":
        assert completed("serve", "--config", "mcp-o") == ["mcp-other.json"]
