"""The text of the status, for arbitrary servers and widths."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from holdfast.cli.output import Page
from holdfast.cli.status_view import (
    aged,
    card,
    clock,
    heading,
    left,
    needs_attention,
    span,
    table,
    tally,
    worst_last,
)
from holdfast.cli.status_watch import WatchedFleet, WatchState, event_text, frame
from holdfast.control.models import Activity, BreakerView, FleetView, HubView, Replica, Server, Servers, Status
from tests.cli.fleets import fleet
from tests.cli.hub_peer import NOW, server

HUB = HubView(version="1", pid=1, now=NOW, started=NOW - 5, endpoint="http://127.0.0.1:1/mcp", config="mcp.json")
STATUSES: tuple[Status, ...] = ("available", "transient", "permanent", "denied", "idle", "disabled")

words = st.text(max_size=60)
numbers = st.lists(st.integers(0, 10_000), max_size=40).map(tuple)
activities = st.builds(Activity, step=st.just(10.0), until=st.just(NOW), calls=numbers, errors=numbers)
servers = st.builds(
    server,
    words,
    st.sampled_from(STATUSES),
    summary=words,
    action=words,
    reason=words,
    target=words,
    held=st.lists(words, max_size=2).map(tuple),
    retry_in=st.none() | st.floats(0, 1e6),
    breaker=st.builds(BreakerView, state=st.sampled_from(("open", "closed", "half_open")), retry_in=st.none()),
    activity=st.none() | activities,
    tools=st.integers(0, 10_000),
)
fleets = st.lists(servers, max_size=6, unique_by=lambda one: one.id)


@given(fleet=fleets, width=st.integers(20, 220), ascii_only=st.booleans())
def test_no_line_is_wider_than_the_page_and_none_has_anything_that_a_terminal_obeys(
    fleet: list[Server], width: int, ascii_only: bool
) -> None:
    page = Page(width=width, ascii_only=ascii_only)
    lines = [*heading(HUB, NOW, page), *table(fleet, NOW, page), *needs_attention(fleet, page)]
    for one in fleet:
        lines += card(one, NOW, page)
    for line in lines:
        assert line.cell_len <= width
        assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in line.plain)


@given(fleet=fleets, width=st.integers(20, 220), height=st.integers(4, 60), in_full=st.booleans())
def test_a_picture_is_as_high_as_the_screen_and_no_wider(
    fleet: list[Server], width: int, height: int, in_full: bool
) -> None:
    only = [one.id for one in fleet] if in_full else []
    watched = WatchedFleet(HUB, Servers(now=NOW, servers=tuple(fleet)), 100.0, only=only)
    watched.take("missed", {"count": 1}, 100.0)
    lines = frame(watched, WatchState(), Page(width=width, full_screen=True), height, 101.0)
    assert len(lines) == height
    assert all(line.cell_len <= width and "\n" not in line.plain for line in lines)


def test_the_worst_come_last_and_the_same_are_in_order_of_their_names() -> None:
    names = [one.id for one in worst_last([*fleet(), server("alpha", "permanent"), server("beta", "permanent")])]
    assert names == ["notes", "archive", "scratch", "ticker", "vault", "alpha", "beta", "calendar"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.6, "1s"), (59.4, "59s"), (60, "1m"), (3599, "59m"), (7300, "2h"), (2e5, "2d")]
)
def test_a_span_is_told_in_its_largest_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_countdowns_go_on_and_end_at_now() -> None:
    told = server("a", "transient", retry_in=5, breaker=BreakerView(state="open", retry_in=2))
    later = aged(told, 3)
    assert (later.retry_in, later.breaker.retry_in) == (2, 0)
    assert (left(later.retry_in), left(aged(told, 9).retry_in), left(None)) == ("2s", "now", "")


def test_the_sum_tells_who_comes_back_and_who_needs_somebody() -> None:
    assert tally([]) == "no servers are configured"
    assert tally([server("a")]) == "1 of 1 server available"
    assert tally(fleet()) == "1 of 6 servers available, 1 idle, 1 disabled, 1 coming back, 2 need attention"


# What is watched


def watched_fleet(*only: str) -> WatchedFleet:
    return WatchedFleet(HUB, Servers(now=NOW, servers=fleet()), 100.0, only=only)


def test_a_watched_fleet_learns_from_events_and_counts_from_when_it_heard_them() -> None:
    it = watched_fleet()
    it.take("server", server("ticker", "transient", retry_in=10).model_dump(mode="json"), 200.0)
    assert {one.id: one.retry_in for one in it.servers(204.0)}["ticker"] == 6
    assert it.hub_now(260.0) == NOW + 160
    assert it.take("gone", {"server": "ticker"}, 205.0)
    assert "ticker" not in [one.id for one in it.servers(205.0)]


def test_a_watched_fleet_of_some_servers_leaves_the_others_out() -> None:
    it = watched_fleet("vault")
    assert [one.id for one in it.servers(101.0)] == ["vault"]
    assert it.take("gone", {"server": "notes"}, 101.0) == ""
    assert it.take("retry", {"server": "vault", "text": "reconnect attempt 1 in at most 2.0 s"}, 101.0)
    assert it.take("missed", {"count": 3}, 101.0)
    it.take("server", server("notes").model_dump(mode="json"), 101.0)
    assert [one.id for one in it.servers(101.0)] == ["vault"]


@pytest.mark.parametrize(
    ("event", "data", "text"),
    [
        ("transition", {"server": "a", "text": "lost: it\nfell; reconnecting"}, "a: lost: it fell; reconnecting"),
        ("published", {"server": "a", "text": ""}, ""),
        ("gone", {"server": "a"}, "a: no longer configured"),
        ("missed", {"count": 1}, "1 event was missed"),
        ("missed", {"count": 4}, "4 events were missed"),
        ("hub", {"draining": True}, "the hub is shutting down: it takes no new calls"),
        ("hub", {"config_problem": "mcp.json:1:1: no"}, "the last config change was not applied: mcp.json:1:1: no"),
        ("hub", {}, ""),
        ("something-new", {"server": "a"}, ""),
    ],
)
def test_each_event_is_told_in_a_line(event: str, data: dict[str, object], text: str) -> None:
    assert event_text(event, data) == text


@pytest.mark.requirement("FLEET-2", "FLEET-3")
def test_the_heading_names_the_replicas_and_what_is_not_shared() -> None:
    page = Page(width=140, ascii_only=False)
    replicas = tuple(
        Replica(
            id=f"r{number:02}", here=number == 11, host=f"host-{number}", pid=number, version="1.2", started=NOW - 60
        )
        for number in range(12)
    )
    shared = FleetView(store="redis://store:6379", shared=True, replicas=replicas)
    told = "\n".join(str(line) for line in heading(HUB.model_copy(update={"fleet": shared}), NOW, page))
    assert "fleet: 12 replicas on redis://store:6379" in told
    assert "r11 on host-11, pid 11, 1.2, up 1m, this one" in told
    assert "and 2 more" in told
    assert "not shared" not in told
    alone = shared.model_copy(update={"shared": False, "not_shared_since": NOW - 30, "not_shared": ("crm", "mail")})
    told = "\n".join(str(line) for line in heading(HUB.model_copy(update={"fleet": alone}), NOW, page))
    assert f"not shared since {clock(NOW - 30)} (30s): the store does not answer" in told
    assert "hold on this replica only: crm, mail" in told
    workers = tuple(one.model_copy(update={"worker": number}) for number, one in enumerate(replicas[:2], start=1))
    local = FleetView(store="the broker of this machine", shared=True, replicas=workers)
    told = "\n".join(str(line) for line in heading(HUB.model_copy(update={"fleet": local}), NOW, page))
    assert "fleet: 2 workers on the broker of this machine" in told


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize(
    ("lag", "said"),
    [
        (0.004, "event loop: 4 ms largest delay in the last minute"),
        (0.8, "800 ms largest delay"),
        (0.8, "holds up the hub"),
    ],
)
def test_the_delay_of_the_event_loop_is_a_line_of_the_heading(lag: float, said: str) -> None:
    page = Page(width=140, ascii_only=False)
    told = "\n".join(str(line) for line in heading(HUB.model_copy(update={"loop_lag": lag}), NOW, page))
    assert said in told
    assert "event loop" not in "\n".join(str(line) for line in heading(HUB, NOW, page))
