"""What a hint tells a person to type works in that person's shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from holdfast.control.control_client import ControlClient
from holdfast.control.hub_finder import find_hub
from holdfast.errors import HubRefused
from holdfast.serve.program import here
from tests.cli.command import HOLDFAST, Cli
from tests.cli.serve_process import served
from tests.peers.guarded import guarded

pytestmark = pytest.mark.requirement("DOC-8", "HUB-5")


def without_us(path: str) -> str:
    """A PATH on which no folder has our program."""
    return os.pathsep.join(one for one in path.split(os.pathsep) if not (Path(one) / "holdfast").exists())


def hint(cli: Cli, *command: str, **environment: str) -> str:
    """The command between backticks in the hint of a command that fails."""
    ran = subprocess.run(
        command, cwd=cli.folder, env={**cli.environment, **environment}, capture_output=True, text=True, check=False
    )
    found = re.search(r"hint: .*?`([^`]+)`", ran.stderr)
    assert found, ran.stderr
    return found[1]


def installed(cli: Cli) -> str:
    """A PATH as `pipx` and `uv tool` leave it: a folder with a link into an environment of its own."""
    folder = cli.folder / "local" / "bin"
    folder.mkdir(parents=True)
    (folder / "holdfast").symlink_to(HOLDFAST)
    return f"{folder}{os.pathsep}{without_us(cli.environment['PATH'])}"


def test_a_link_on_the_path_is_typed_by_its_name(cli: Cli) -> None:
    assert hint(cli, "holdfast", "status", PATH=installed(cli)) == "holdfast serve"
    link = cli.folder / "local" / "bin" / "holdfast"
    assert hint(cli, str(link), "doctr", PATH=without_us(cli.environment["PATH"])) == f"{link} doctor"


def test_a_program_that_is_not_on_the_path_is_typed_as_it_was(cli: Cli) -> None:
    path = without_us(cli.environment["PATH"])
    (cli.folder / "bin").symlink_to(HOLDFAST.parent)
    assert hint(cli, "bin/holdfast", "status", PATH=path) == "bin/holdfast serve"
    assert hint(cli, str(HOLDFAST), "status", PATH=path) == f"{HOLDFAST} serve"


@pytest.mark.parametrize(
    ("arguments", "variable", "named"),
    [
        ((), "", ""),
        (("--config", "mcp.json"), "", "mcp.json"),  # a found project's file would need trust
        (("--config", "own/holdfast/mcp.json"), "", "own/holdfast/mcp.json"),  # the project's file is found first
        (("--config=other.json",), "", "other.json"),
        (("--config", "other.json"), "mcp.json", "other.json"),
        ((), "other.json", "other.json"),
        (("--", "--config", "other.json"), "", ""),
    ],
)
def test_the_file_is_named_where_a_command_without_it_would_use_another_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], variable: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mcp.json", "other.json"):
        (tmp_path / name).write_text("{}")
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "own"), **({"HOLDFAST_CONFIG": variable} if variable else {})}
    assert here(arguments, environ).config == named


def test_the_users_own_file_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "holdfast").mkdir()
    (tmp_path / "holdfast" / "mcp.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert here(("--config", "../holdfast/mcp.json"), {"XDG_CONFIG_HOME": str(tmp_path)}).config == ""


@pytest.mark.requirement("DOC-4")
def test_a_command_of_doctor_for_a_named_file_checks_that_file_when_it_is_pasted(cli: Cli) -> None:
    program = "import sys; sys.exit('Error: connect ECONNREFUSED 127.0.0.1:6379')"
    down = {"command": sys.executable, "args": ["-ISc", program]}
    (cli.folder / "my servers.json").write_text(json.dumps({"mcpServers": {"down": down}}))
    first = cli.run("doctor", "--config", "my servers.json")
    printed = re.search(r"\$ (holdfast doctor .*)", first.stdout)
    assert printed, first.stdout
    assert printed[1] == "holdfast doctor down --config 'my servers.json'"
    pasted = subprocess.run(
        ["sh", "-c", printed[1]], cwd=cli.folder, env=cli.environment, capture_output=True, text=True, check=False
    )
    assert (pasted.returncode, "FAILED   down" in pasted.stdout) == (1, True)


@pytest.mark.anyio
async def test_what_a_hub_proposes_works_in_any_folder(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    home = cli.folder / "home"
    file = cli.folder / "my servers.json"
    file.write_text(json.dumps({"mcpServers": {"down": {"command": "no-such-command"}}}))
    path = without_us(cli.environment["PATH"])
    async with served(home, "--config", str(file), PATH=path) as hub:
        monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
        async with ControlClient(find_hub()) as control:
            server = await control.server("down")
        async with httpx2.AsyncClient() as browser:
            page = (await browser.get(hub.url.removesuffix("/mcp") + "/")).text
    typed = shlex.split(server.command)
    assert typed[-5:] == [str(HOLDFAST), "doctor", "down", "--config", str(file)]
    assert f'data-command="{HOLDFAST} status --open --config &#x27;{file}&#x27;"' in page
    assert f"{HOLDFAST} doctor --config '{file}'" in hub.err


@pytest.mark.anyio
async def test_a_model_and_its_user_get_the_command_that_works(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    home, file = cli.folder / "home", cli.folder / "servers.json"
    async with guarded() as peer:
        file.write_text(json.dumps({"mcpServers": {"files": peer.defined()}}))
        async with served(home, "--config", str(file)) as hub:
            monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
            async with ControlClient(find_hub()) as control:
                with pytest.raises(HubRefused) as refused:
                    await control.act("files", "reconnect")
                server = await control.server("files")
            told = (await hub.call("holdfast_status")).text
    command = f"holdfast login files --config {file}"
    assert server.command == command
    assert f"`{command}`" in told
    assert f"`{command}`" in refused.value.message + refused.value.hint


@pytest.mark.anyio
async def test_a_hub_that_serves_the_users_own_file_does_not_name_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    home = cli.folder / "home"
    own = home / ".config" / "holdfast" / "mcp.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"mcpServers": {"down": {"command": "no-such-command"}}}))
    async with served(home, "--config", str(own)) as hub:
        monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
        async with ControlClient(find_hub()) as control:
            assert (await control.server("down")).command == "holdfast doctor down"
        async with httpx2.AsyncClient() as browser:
            page = (await browser.get(hub.url.removesuffix("/mcp") + "/")).text
            behind = await browser.get(hub.url.removesuffix("/mcp") + "/", headers={"x-forwarded-for": "10.0.0.1"})
    assert 'data-command="holdfast status --open"' in page
    assert behind.text == page
