"""``holdfast find``: tools by what they do, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cli.command import Cli, stdio
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.requirement("FIND-5")


@pytest.fixture
def peer(cli: Cli, stdio_peer: Callable[..., StdioPeer]) -> StdioPeer:
    """A healthy server, configured as ``a``."""
    healthy = stdio_peer()
    cli.configure({"a": stdio(healthy), "gone": {"command": "holdfast-no-such-program"}})
    return healthy


@pytest.mark.usefixtures("peer")
def test_people_see_how_the_best_tool_is_called(cli: Cli) -> None:
    ran = cli.run("find", "which tool adds?", "--limit", "1")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "a__add(a?: number, b?: number)\n  The peer's tool add.\n"


@pytest.mark.usefixtures("peer")
def test_programs_see_the_state_of_each_hit(cli: Cli) -> None:
    ran = cli.run("find", "add", "--json", "--server", "a")
    (hit, *_) = json.loads(ran.stdout)["tools"]
    assert (hit["name"], hit["server"], hit["available"], hit["state"]) == ("a__add", "a", True, "connected")
    assert (hit["reason"], hit["retryIn"]) == (None, None)


@pytest.mark.usefixtures("peer")
def test_a_search_without_a_hit_exits_with_one_and_names_the_full_list(cli: Cli) -> None:
    ran = cli.run("find", "?!")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "no tool was found; `holdfast tools` lists them all\n"


@pytest.mark.usefixtures("peer")
def test_an_unknown_server_is_named(cli: Cli) -> None:
    ran = cli.run("find", "add", "--server", "b")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "error: no server named `b` is configured\n\nhint: known: a, gone\n"
