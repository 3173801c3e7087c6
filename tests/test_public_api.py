"""The public names: few, importable, and cheap until they are used."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import Hub, errors
from holdfast.errors import HubNotOpen

HEAVY = {"mcp", "mcp_types", "httpx2", "pydantic", "typer", "rich", "anyio", "asyncio"}
NETWORK = {"mcp", "mcp_types", "httpx2"}


def imported_by(program: str, *, cwd: Path | None = None, code: int = 0) -> set[str]:
    """The top-level modules that a program of its own has imported when it ends."""
    tell = f"import atexit, json, sys\natexit.register(lambda: print(json.dumps(sorted(sys.modules))))\n{program}"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd or "/nonexistent")}
    ran = subprocess.run(
        [sys.executable, "-c", tell], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == code, ran.stderr
    return {name.partition(".")[0] for name in json.loads(ran.stdout.splitlines()[-1])}


def command(*arguments: str) -> str:
    return f"sys.argv = {['holdfast', *arguments]!r}\nfrom holdfast.cli.entry import main\nmain()"


def test_beside_the_errors_there_are_at_most_twenty_public_names_in_order() -> None:
    assert len({*holdfast.__all__} - {*errors.__all__}) <= 20
    assert sorted(holdfast.__all__) == list(holdfast.__all__) == dir(holdfast)


@pytest.mark.requirement("LIFE-8")
def test_every_error_that_a_hub_or_a_load_raises_can_be_imported_from_the_package() -> None:
    """The others are of the command line, of the control API and of what a hub serves."""
    of_commands = {"HubRefused", "LoginFailed", "NoHub", "Problem", "UsageError"}
    of_commands |= {"CallForbidden", "NotApproved", "NotAudited", "NotAuthorized"}  # of endpoints
    raised = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert raised - {*holdfast.__all__} == of_commands


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_can_be_imported_and_explains_itself(name: str) -> None:
    value = getattr(importlib.import_module("holdfast"), name)
    assert name == "__version__" or inspect.getdoc(value)
    assert getattr(holdfast, name) is value


@pytest.mark.requirement("PERF-10")
def test_a_client_that_joins_imports_nothing_that_it_does_not_need() -> None:
    """Each of these takes as long as a tenth of a start of Python, or more."""
    start = 'from holdfast.serve import JoinOptions, join_hub\nJoinOptions.read(["--stdio"], {"HOME": "/"})'
    unwanted = {*HEAVY, "dataclasses", "hashlib", "importlib", "pathlib", "subprocess", "typing", "urllib"}
    bare = imported_by("pass")
    assert not (imported_by(f"from holdfast.cli import main\n{start}") - bare) & unwanted


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'frobnicate'"):
        holdfast.frobnicate  # noqa: B018 - asking for it is the test


@pytest.mark.requirement("PERF-5")
def test_importing_the_package_imports_nothing_that_costs() -> None:
    assert not imported_by("import holdfast") & HEAVY


@pytest.mark.requirement("PERF-5")
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_nothing_that_costs(option: str) -> None:
    assert not imported_by(command(option)) & HEAVY


@pytest.mark.requirement("PERF-5")
@pytest.mark.parametrize("arguments", [("tools", "--help"), ("call", "--help"), ("call", "a", "b", "c")])
def test_help_of_a_command_and_wrong_usage_do_not_import_a_client(arguments: tuple[str, ...]) -> None:
    assert not imported_by(command(*arguments), code=2 if "c" in arguments else 0) & NETWORK


@pytest.mark.requirement("PERF-5")
def test_the_help_of_every_command_imports_no_models() -> None:
    program = "from holdfast.cli.entry import COMMANDS, run\nfor name in COMMANDS: run([name, '--help'])"
    assert not imported_by(program) & {*NETWORK, "pydantic"}


@pytest.mark.requirement("PERF-5")
@pytest.mark.parametrize("name", ["tools", "call a b"])
def test_a_broken_configuration_is_told_without_importing_a_client(name: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text("{")
    assert not imported_by(command(*name.split()), cwd=tmp_path, code=1) & NETWORK


@pytest.mark.requirement("LOAD-1")
def test_a_text_can_be_classified_without_importing_a_client() -> None:
    assert not imported_by("import holdfast; holdfast.classify_load_error('x')") & {*NETWORK, "anyio", "asyncio"}


def test_a_hub_shows_what_programs_use_and_nothing_of_its_inside() -> None:
    shown = {name for name in dir(Hub) if not name.startswith("_")}
    assert shown == {
        *("from_config", "close", "config", "ready", "events", "listen"),
        *("catalog", "tools", "servers", "server_health", "warnings", "approvals"),
        *("find_tools", "call_tool", "read_result", "get_prompt", "read_resource", "complete"),
        *("reconnect", "toggle", "logged_in", "apply", "approve"),
    }


@pytest.mark.parametrize(
    "use",
    [
        lambda hub: hub.catalog,
        lambda hub: hub.servers,
        lambda hub: hub.tools(),
        lambda hub: hub.warnings(),
        lambda hub: hub.server_health("a"),
        lambda hub: hub.logged_in("a"),
        lambda hub: hub.approve("a"),
    ],
)
def test_a_hub_that_is_used_before_async_with_says_so(use: Callable[[Hub], object]) -> None:
    hub = Hub.from_config({"mcpServers": {"a": {"command": "x"}}})
    with pytest.raises(HubNotOpen, match="not open yet") as error:
        use(hub)
    assert "async with" in error.value.hint
    assert repr(hub) == "<Hub of 1 server, catalog 0, not open>"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "use",
    [
        lambda hub: hub.call_tool("a__b"),
        lambda hub: hub.get_prompt("a__b"),
        lambda hub: hub.read_resource("x://y"),
        lambda hub: hub.read_resource("x://y", server="a"),
        lambda hub: hub.complete({"name": "a__b"}, {"name": "x", "value": "y"}),
        lambda hub: hub.ready(),
        lambda hub: hub.reconnect("a"),
        lambda hub: hub.toggle("a", True),
        lambda hub: hub.apply(hub.config),
    ],
)
async def test_a_call_before_async_with_says_so(use: Callable[[Hub], Awaitable[object]]) -> None:
    hub = Hub.from_config({"mcpServers": {"a": {"command": "x"}}})
    with pytest.raises(HubNotOpen, match="not open yet"):
        await use(hub)
