"""How each command for a running hub looks in 80 and in 200 columns, with and without colour."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from holdfast.cli.output import Page
from holdfast.cli.status_watch import WatchedFleet, WatchState, frame
from holdfast.control.models import Servers
from tests.cli.fleets import fleet
from tests.cli.hub_peer import NOW, HubPeer, hub_peer
from tests.cli.in_process import Inside
from tests.cli.snapshots import assert_as_kept
from tests.cli.test_approve import EXPORT, SEARCH
from tests.cli.test_logs import line

COLUMNS = ("80", "200")

LINE_CLEARED = "\x1b[2K"
"""What ends a moving line: how often that moved is a matter of time."""

COMMANDS = {
    "in-full": ("status", "vault", "ticker"),
    "reconnect": ("reconnect", "notes", "vault"),
    "disable": ("disable", "scratch"),
    "enable": ("enable", "archive"),
    "logs": ("logs", "notes"),
    "approve": ("approve",),
}


@pytest.fixture
def hub() -> Iterator[HubPeer]:
    lines = [
        line("ready"),
        line("breaker open for 60 s after 3 failures", "hub", "warning"),
        line(" ".join(["long"] * 40)),
    ]
    with hub_peer(*fleet()) as peer:
        peer.answers["POST /api/servers/vault/reconnect"] = (502, {"error": "it answered 401", "hint": "log in"})
        peer.answers["GET /api/servers/notes/logs"] = (200, {"server": "notes", "lines": lines})
        peer.answers["GET /api/approvals"] = (200, {"approvals": [SEARCH, EXPORT]})
        yield peer


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_looks_as_it_did_in_any_width_and_colour(name: str, inside: Inside, hub: HubPeer) -> None:
    shown = []
    for columns in COLUMNS:
        for plain in ("1", ""):
            terminal = {"COLUMNS": columns, "NO_COLOR": plain, "FORCE_COLOR": "1", "TERM": "xterm"}
            ran = inside(*COMMANDS[name], environment={**hub.environment, **terminal})
            told = ran.err.rpartition(LINE_CLEARED)[2]
            shown += [f"=== {columns} columns{'' if plain else ', colour'}\n{ran.out}--- stderr\n{told}"]
    assert_as_kept(f"looks-{name}", "".join(shown))


@pytest.mark.parametrize("in_full", [False, True])
def test_the_watch_looks_as_it_did_in_any_width_and_colour(in_full: bool, inside: Inside) -> None:
    only = ["ticker"] if in_full else []
    watched = WatchedFleet(HubPeer().hub, Servers(now=NOW, servers=fleet()), 0.0, only=only)
    watched.take("retry", {"server": "ticker", "text": "reconnect attempt 3 in at most 4.0 s", "at": NOW}, 1.0)
    shown = []
    for columns in COLUMNS:
        for plain in (True, False):
            console = Console(
                file=io.StringIO(), width=int(columns), force_terminal=True, color_system="standard", no_color=plain
            )
            for one in frame(watched, WatchState(), Page(width=int(columns), full_screen=True), 24, 2.0):
                console.print(one, soft_wrap=True)
            assert isinstance(console.file, io.StringIO)
            shown.append(f"=== {columns} columns{'' if plain else ', colour'}\n{console.file.getvalue()}")
    assert_as_kept(f"looks-watch-{'in-full' if in_full else 'list'}", "".join(shown))
