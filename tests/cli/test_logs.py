"""``holdfast logs``: the last lines about a server, and those that come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.command import Cli
from tests.cli.hub_peer import NOW, HubPeer, hub_peer, server
from tests.cli.in_process import Inside

pytestmark = pytest.mark.requirement("HUB-5")


def line(text: str, source: str = "stderr", level: str = "") -> dict[str, Any]:
    return {"at": NOW, "source": source, "level": level, "text": text}


@pytest.fixture
def hub() -> Iterator[HubPeer]:
    with hub_peer(server("notes")) as peer:
        lines = [line("ready"), line("connecting -> connected", "hub", "info")]
        peer.answers["GET /api/servers/notes/logs"] = (200, {"server": "notes", "lines": lines})
        yield peer


def test_each_line_is_shown_with_its_time_and_where_it_came_from(inside: Inside, hub: HubPeer) -> None:
    ran = inside("logs", "notes", "-n", "2", environment=hub.environment)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "22:13:20  stderr  ready\n22:13:20  hub     connecting -> connected\n"


def test_programs_get_a_json_object_a_line(inside: Inside, hub: HubPeer) -> None:
    ran = inside("logs", "notes", "--json", environment=hub.environment)
    assert [json.loads(one) for one in ran.out.splitlines()] == [
        {"version": 1, **line("ready")},
        {"version": 1, **line("connecting -> connected", "hub", "info")},
    ]


@pytest.mark.requirement("MSG-6")
def test_what_a_server_wrote_cannot_steer_the_terminal(inside: Inside, hub: HubPeer) -> None:
    evil = line("\x1b]0;owned\x07\x1b[31mred [bold]x[/bold]")
    hub.answers["GET /api/servers/notes/logs"] = (200, {"server": "notes", "lines": [evil]})
    assert inside("logs", "notes", environment=hub.environment).out == "22:13:20  stderr  red [bold]x[/bold]\n"


def test_following_shows_the_last_lines_and_those_that_come_until_the_hub_ends(cli: Cli, hub: HubPeer) -> None:
    with cli.on_terminal("logs", "notes", "-f", "-n", "5", TZ="UTC", **hub.environment) as terminal:
        hub.watched()
        hub.tell("line", line("one"))
        terminal.until("22:13:20  stderr  one")
        hub.tell("line", line("two"))
        terminal.until("22:13:20  stderr  two")
        hub.end()
        assert terminal.code() == 1
    assert "no more lines of `notes`" in terminal.text
    assert ("GET /api/servers/notes/logs/stream?lines=5", None) in hub.asked


def test_an_unknown_server_is_told_with_the_nearest(inside: Inside, hub: HubPeer) -> None:
    ran = inside("logs", "note", environment=hub.environment)
    assert (ran.code, ran.out) == (1, "")
    assert "did you mean `notes`?" in ran.err
