"""One picture of the watched servers, as high as the screen.

Pure, except that it updates the scroll position. Only visible lines are laid out, because a fleet may have hundreds
of servers and the picture is drawn every second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.text import Text

from holdfast.cli.page import Page
from holdfast.cli.status_board import WatchedFleet
from holdfast.cli.status_card import card
from holdfast.cli.status_desk import WatchState
from holdfast.cli.status_view import heading, table
from holdfast.cli.status_words import advice, tally
from holdfast.control.models import Server

__all__ = ["frame"]

MARGIN = 2
"""The width of the mark of the selected server."""


def frame(watched: WatchedFleet, state: WatchState, page: Page, height: int, now: float) -> list[Text]:
    """The picture."""
    servers = watched.worst_first()
    state.settle([server.id for server in servers])
    top = [*heading(watched.hub, watched.hub_now(now), page), page.fit(Text(tally(servers)))]
    room = max(1, height - len(top) - 1)
    shown = watched.server(state.selected, now)
    body = _card(shown, watched, state, page, room, now) if state.in_full and shown else None
    if body is None:
        body = _list(servers, shown, watched, state, page, room, now)
    body += [Text()] * (room - len(body))
    return [*top, *body[:room], page.fit(Text(state.prompt, style="reverse"))][:height]


def _card(server: Server, watched: WatchedFleet, state: WatchState, page: Page, room: int, now: float) -> list[Text]:
    lines = [Text(), *(page.fit(line) for line in card(server, watched.hub_now(now), page))]
    state.page, state.top = room, max(0, min(state.top, len(lines) - room))
    return lines[state.top : state.top + room]


def _list(
    servers: Sequence[Server],
    shown: Server | None,
    watched: WatchedFleet,
    state: WatchState,
    page: Page,
    room: int,
    now: float,
) -> list[Text]:
    words = [Text(), *(page.fit(line) for line in advice(shown, page))][: room // 3] if shown else []
    events_least = min(len(watched.events) + 1, room // 4) if watched.events else 0
    height = max(1, min(len(servers), room - 2 - len(words) - events_least))
    lines = [Text(), *_rows(servers, watched, state, page, height, now), *words]
    return lines + _event_lines(watched, page, room - len(lines))


def _rows(
    servers: Sequence[Server], watched: WatchedFleet, state: WatchState, page: Page, height: int, now: float
) -> list[Text]:
    names = [server.id for server in servers]
    at = names.index(state.selected) if state.selected in names else 0
    state.page = height
    state.top = max(0, min(max(state.top, at - height + 1), at, len(names) - height))
    visible = [server for name in names[state.top : state.top + height] if (server := watched.server(name, now))]
    title, *lines = table(visible, watched.hub_now(now), replace(page, width=page.width - MARGIN))
    drawn = [Text.assemble(" " * MARGIN, title)]
    for server, line in zip(visible, lines, strict=True):
        is_it = server.id == state.selected
        line.stylize("reverse" if is_it else "")
        drawn.append(Text.assemble("> " if is_it else " " * MARGIN, line))
    return drawn


def _event_lines(watched: WatchedFleet, page: Page, room: int) -> list[Text]:
    """The latest events, the newest at the bottom."""
    if room < 2 or not watched.events:
        return []
    latest = list(watched.events)[-(room - 1) :]
    return [Text(), *(page.fit(Text(str(line), style="dim")) for line in latest)]
