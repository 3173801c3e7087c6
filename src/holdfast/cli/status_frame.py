"""One picture of the watched fleet, as many lines as the screen has.

Pure but for the desk, which learns how far it can scroll. Only what can be seen is laid out: a fleet may have
hundreds of servers, and the picture is drawn anew every second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.text import Text

from holdfast.cli.page import Page
from holdfast.cli.status_board import Board
from holdfast.cli.status_card import card
from holdfast.cli.status_desk import Desk
from holdfast.cli.status_view import heading, table
from holdfast.cli.status_words import advice, tally
from holdfast.control.models import Server

__all__ = ["frame"]

MARGIN = 2
"""Cells before each line of the list: the selected one has a sign there."""


def frame(board: Board, desk: Desk, page: Page, height: int, now: float) -> list[Text]:
    """The picture."""
    servers = board.worst_first()
    desk.settle([server.id for server in servers])
    top = [*heading(board.hub, board.hub_now(now), page), page.fit(Text(tally(servers)))]
    room = max(1, height - len(top) - 1)
    shown = board.server(desk.selected, now)
    body = _card(shown, board, desk, page, room, now) if desk.in_full and shown else None
    if body is None:
        body = _list(servers, shown, board, desk, page, room, now)
    body += [Text()] * (room - len(body))
    return [*top, *body[:room], page.fit(Text(desk.prompt, style="reverse"))][:height]


def _card(server: Server, board: Board, desk: Desk, page: Page, room: int, now: float) -> list[Text]:
    lines = [Text(), *(page.fit(line) for line in card(server, board.hub_now(now), page))]
    desk.page, desk.top = room, max(0, min(desk.top, len(lines) - room))
    return lines[desk.top : desk.top + room]


def _list(
    servers: Sequence[Server], shown: Server | None, board: Board, desk: Desk, page: Page, room: int, now: float
) -> list[Text]:
    words = [Text(), *(page.fit(line) for line in advice(shown, page))][: room // 3] if shown else []
    news_least = min(len(board.news) + 1, room // 4) if board.news else 0
    height = max(1, min(len(servers), room - 2 - len(words) - news_least))
    lines = [Text(), *_rows(servers, board, desk, page, height, now), *words]
    return lines + _news(board, page, room - len(lines))


def _rows(servers: Sequence[Server], board: Board, desk: Desk, page: Page, height: int, now: float) -> list[Text]:
    names = [server.id for server in servers]
    at = names.index(desk.selected) if desk.selected in names else 0
    desk.page = height
    desk.top = max(0, min(max(desk.top, at - height + 1), at, len(names) - height))
    visible = [server for name in names[desk.top : desk.top + height] if (server := board.server(name, now))]
    title, *lines = table(visible, board.hub_now(now), replace(page, width=page.width - MARGIN))
    drawn = [Text.assemble(" " * MARGIN, title)]
    for server, line in zip(visible, lines, strict=True):
        is_it = server.id == desk.selected
        line.stylize("reverse" if is_it else "")
        drawn.append(Text.assemble("> " if is_it else " " * MARGIN, line))
    return drawn


def _news(board: Board, page: Page, room: int) -> list[Text]:
    """What happened last, the latest lowest."""
    if room < 2 or not board.news:
        return []
    latest = list(board.news)[-(room - 1) :]
    return [Text(), *(page.fit(Text(str(news), style="dim")) for news in latest)]
