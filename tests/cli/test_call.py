"""``holdfast call``: one call, its result for people or programs, and every failure a clear one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cli.command import LONGEST, Cli, stdio
from tests.peers.http_fault import closed_port
from tests.peers.stdio import StdioPeer

SECRET = "hunter22-of-ours"


@pytest.fixture
def peer(cli: Cli, stdio_peer: Callable[..., StdioPeer]) -> StdioPeer:
    """A healthy server, configured as ``a``."""
    healthy = stdio_peer()
    cli.configure({"a": stdio(healthy)})
    return healthy


@pytest.mark.usefixtures("peer")
def test_a_result_is_printed_and_nothing_else(cli: Cli) -> None:
    ran = cli.run("call", "a", "echo", "text=héllo [bold]you[/bold]")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "héllo [bold]you[/bold]\n", "")


@pytest.mark.usefixtures("peer")
def test_arguments_are_of_the_types_that_the_tool_wants(cli: Cli) -> None:
    ran = cli.run("call", "a", "add", "b=2.5", "--args", '{"a": 1}', "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout) == {
        "version": 1,
        "content": [{"type": "text", "text": "3.5"}],
        "isError": False,
    }


@pytest.mark.usefixtures("peer")
def test_an_error_of_the_tool_is_shown_and_exits_with_one(cli: Cli) -> None:
    ran = cli.run("call", "a", "fail")
    assert (ran.returncode, ran.stdout) == (1, "this tool always fails\n")
    assert ran.stderr == "error: the tool `fail` reported an error\n"


@pytest.mark.usefixtures("peer")
@pytest.mark.requirement("DX-13")
def test_a_name_that_find_shows_is_answered_with_the_command_to_type(cli: Cli) -> None:
    ran = cli.run("call", "a__echo", "text=x")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(
        "error: no server named `a__echo` is configured\n\nhint: write the server and its tool"
    )
    assert " call a echo" in ran.stderr


@pytest.mark.usefixtures("peer")
def test_an_unknown_tool_is_told_with_the_nearest_one(cli: Cli) -> None:
    ran = cli.run("call", "a", "ecko")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "error: the server `a` has no tool `ecko`\n\nhint: did you mean `echo`?\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("text",), "`text` is not key=value"),
        (("--args", "[1]"), "--args is JSON, but not an object"),
        (("--args", "{"), "--args is not JSON"),
    ],
)
def test_arguments_that_cannot_be_read_are_wrong_usage_and_start_nothing(
    arguments: tuple[str, ...], error: str, cli: Cli, peer: StdioPeer
) -> None:
    ran = cli.run("call", "a", "echo", *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert error in ran.stderr
    assert "hint: " in ran.stderr
    assert peer.starts == 0


def test_a_value_of_the_wrong_type_is_wrong_usage_and_nothing_is_called(cli: Cli, peer: StdioPeer) -> None:
    ran = cli.run("call", "a", "add", "a=one")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "`a` takes number, not `one`" in ran.stderr
    assert "tools/call" not in peer.methods


@pytest.mark.requirement("MSG-6")
def test_a_call_that_fails_says_why_and_what_to_do_and_shows_no_secret(cli: Cli) -> None:
    with closed_port() as port:
        cli.configure({"down": {"url": f"http://me:{SECRET}@127.0.0.1:{port}/?token={SECRET}"}})
        ran = cli.run("call", "down", "echo", HOLDFAST_DEBUG="1")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: the call to `down` failed: nothing listens at its address")
    assert "hint: start the server" in ran.stderr
    assert SECRET not in ran.stderr


@pytest.mark.timeout(LONGEST)
def test_on_a_terminal_the_call_is_shown_while_it_runs_and_ctrl_c_ends_it(cli: Cli, peer: StdioPeer) -> None:
    with cli.on_terminal("call", "a", "slow", "text=[/x]") as terminal:
        terminal.until("calling slow at a")
        terminal.press("\x03")
        assert terminal.code() == 130
    assert "Traceback" not in terminal.text
    assert peer.living == []
