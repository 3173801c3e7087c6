"""The status of a hundred servers: equal causes are one row, the most urgent are seen first, no command is cut."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from holdfast.cli.output import Page
from holdfast.cli.status_view import folded, grouped, matches, table, worst_first, worst_last, wrapped_command
from holdfast.cli.status_watch import WatchedFleet, WatchState, frame
from holdfast.control import HubView, Server, Servers
from tests.cli.command import Cli
from tests.cli.hub_peer import NOW, HubPeer, hub_peer, server
from tests.cli.in_process import Inside

pytestmark = pytest.mark.requirement("DX-5")

HUB = HubView(version="1", pid=1, now=NOW, started=NOW - 5, endpoint="http://127.0.0.1:1/mcp", config="mcp.json")
GATEWAY = "https://gateway.internal/mcp"


def hundred() -> tuple[Server, ...]:
    """18 refused at one gateway, 5 denied, 15 that come back, one with a held tool, and 61 that are well."""
    refused = [
        server(
            f"gw-{number:02}",
            "permanent",
            transport="http",
            target=f"{GATEWAY}/{number}",
            reason="connection refused",
            summary=f"MCP server 'gw-{number:02}' is unavailable: connection refused.",
            action="start the server",
            command=f"holdfast reconnect gw-{number:02}",
        )
        for number in range(18)
    ]
    denied = [
        server(
            f"deny-{number}",
            "denied",
            reason="it answered 401",
            action="log in",
            command=f"holdfast login deny-{number}",
        )
        for number in range(5)
    ]
    coming = [server(f"slow-{number:02}", "transient", reason=f"not ready for {number} min") for number in range(15)]
    held = [server("waits", action="approve the change", command="holdfast approve waits", held=("x",))]
    well = [server(f"well-{number:02}", tools=2) for number in range(61)]
    return (*well, *held, *coming, *denied, *refused)


@pytest.fixture
def hub() -> Iterator[HubPeer]:
    with hub_peer(*hundred()) as peer:
        yield peer


def test_equal_causes_are_one_row_with_the_number_the_cause_and_the_host(inside: Inside, hub: HubPeer) -> None:
    ran = inside("status", environment={**hub.environment, "COLUMNS": "100"})
    lines = ran.out.splitlines()
    (refused,) = [line for line in lines if line.startswith("18 servers  ")]
    assert "connection refused at gateway.internal: gw-00, gw-01" in refused
    assert "18 servers: connection refused at gateway.internal  parked" in lines
    assert [line for line in lines if line.startswith("15 servers  ")], "durations in a cause do not matter"
    assert len(lines) < 50
    assert ran.err == "\n62 of 100 servers available, 15 coming back, 23 need attention\n"


def test_the_command_for_a_group_is_one_where_it_takes_several_servers(inside: Inside, hub: HubPeer) -> None:
    lines = inside("status", environment=hub.environment).out.splitlines()
    names = " ".join(f"gw-{number:02}" for number in range(18))
    assert f"  $ holdfast reconnect {names}" in lines
    assert [line for line in lines if "holdfast login" in line] == [f"  $ holdfast login deny-{n}" for n in range(5)]


def test_all_shows_every_server_and_a_filter_some(inside: Inside, hub: HubPeer) -> None:
    every = inside("status", "--all", environment=hub.environment).out
    assert all(f"\n{one.id} " in every for one in hundred())
    ran = inside("status", "--filter", "parked GW-0", "--json", environment=hub.environment)
    assert [one["id"] for one in json.loads(ran.out)["servers"]] == [f"gw-{number:02}" for number in range(10)]
    assert inside("status", "--filter", "well-", environment=hub.environment).code == 0


def test_the_most_urgent_come_last_in_a_list_and_first_on_a_screen() -> None:
    order = [one.id.partition("-")[0] for one in worst_last(hundred())]
    assert list(dict.fromkeys(order)) == ["well", "slow", "waits", "deny", "gw"]
    assert [one.id for one in worst_first(hundred())[:2]] == ["gw-00", "gw-01"]


def test_a_gateway_that_is_down_is_a_group_of_its_own_among_equal_causes() -> None:
    alone = [
        server(f"far-{number}", "permanent", target=f"https://h{number}.test/mcp", reason="connection refused")
        for number in range(4)
    ]
    titles = [group.title for group in grouped([*alone, *hundred()[-18:]])]
    assert titles == ["4 servers: connection refused", "18 servers: connection refused at gateway.internal"]


def test_few_servers_are_not_folded() -> None:
    few = [*hundred()[:11], *hundred()[-3:]]
    assert folded(few) == few


@given(st.lists(st.sampled_from(hundred()), max_size=40, unique_by=lambda one: one.id))
def test_no_server_is_lost_or_shown_twice_by_folding(servers: list[Server]) -> None:
    shown = "\n".join(line.plain for line in table(folded(worst_last(servers)), NOW, Page(width=80, cut=False)))
    for one in servers:
        assert len([word for word in shown.replace(",", " ").split() if word == one.id]) == 1


words = st.text(alphabet="abcdefgh-./0123456789", min_size=1, max_size=70)


@given(st.lists(words, min_size=1, max_size=12), st.integers(12, 120))
def test_a_wrapped_command_is_whole_and_a_shell_reads_it_as_one(arguments: list[str], width: int) -> None:
    command = shlex.join(arguments)
    lines = [line.plain for line in wrapped_command(command, width)]
    assert all(len(line) <= width for line in lines)
    pasted = "\n".join(lines).removeprefix("  $ ").replace("\\\n", "")
    assert pasted == command


# The screen


def watched() -> WatchedFleet:
    return WatchedFleet(HUB, Servers(now=NOW, servers=hundred()), 100.0)


def drawn(state: WatchState, *, width: int = 80, height: int = 24) -> list[str]:
    page = Page(width=width, full_screen=True)
    return [line.plain for line in frame(watched(), state, page, height, 101.0)]


def test_the_first_screen_answers_what_needs_me() -> None:
    screen = drawn(WatchState())
    assert screen[1] == "62 of 100 servers available, 15 coming back, 23 need attention"
    assert "18 servers: connection refused at gateway.internal  parked" in screen
    rows = [line.split("  ")[0] for line in screen[4:8]]
    assert rows == ["18 servers", "5 servers", "waits", "15 servers"]


def test_a_command_is_whole_on_a_narrow_screen() -> None:
    screen = drawn(WatchState(words="gw-07"), width=20, height=30)
    (at,) = [number for number, line in enumerate(screen) if line.startswith("  $ ")]
    assert "".join(screen[at : at + 2]).removeprefix("  $ ").replace("\\", "") == "holdfast reconnect gw-07"


def test_a_filter_narrows_the_picture_and_says_so() -> None:
    assert "filter: deny  (5 of 100 servers)" in drawn(WatchState(words="deny"))


def test_after_the_last_page_comes_the_first() -> None:
    state = WatchState()
    pages = [drawn(state)]
    while len(pages) < 2 or state.top:
        state.top += state.page
        pages.append(drawn(state))
    assert pages[1] != pages[0]
    assert pages[-1] == pages[0]


def test_words_of_a_filter_are_looked_for_everywhere() -> None:
    one = server("Files", "denied", reason="it answered 401", target=GATEWAY)
    assert matches(one, "")
    assert matches(one, "files 401 gateway.internal DENIED")
    assert not matches(one, "files 403")


def test_on_a_terminal_a_filter_narrows_the_list_live(cli: Cli, hub: HubPeer) -> None:
    with cli.on_terminal("status", "--watch", "--filter", "deny", **hub.environment) as terminal:
        terminal.until_on_screen("filter: deny  (5 of 100 servers)")
        terminal.until_on_screen("holdfast login deny-0")
        terminal.press("q")
        assert terminal.code() == 0
