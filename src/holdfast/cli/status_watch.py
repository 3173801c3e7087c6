"""``holdfast status --watch``: the fleet live, on the whole screen of a terminal or as lines elsewhere.

The shell around the board, the desk and the screen: it waits for events, keys, signals and the second, and draws.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any

import anyio
import anyio.abc
from rich.console import Console
from rich.text import Text

from holdfast.cli.output import data_console, print_error, print_json_line
from holdfast.cli.page import Page, page_of
from holdfast.cli.reaching import ask, chosen
from holdfast.cli.status_board import Board, News
from holdfast.cli.status_desk import Desk, Wish
from holdfast.cli.status_frame import frame
from holdfast.cli.status_view import counsel, heading, table, worst_last
from holdfast.cli.status_words import one_line
from holdfast.cli.terminal import Screen
from holdfast.control.client import Control
from holdfast.control.find import Found
from holdfast.errors import HoldfastError, NoHub

__all__ = ["watch_hub"]

TICK_SECONDS = 1.0
"""Countdowns go on although nothing happens."""

DRAW_SECONDS = 0.05
"""Between two pictures at least: however much happens, an eye sees no more."""

LOOK_SECONDS = 2.0

_DOING = {"reconnect": "reconnecting", "enable": "switching on", "disable": "switching off"}


def watch_hub(found: Found, names: Sequence[str], *, as_json: bool) -> int:
    """Watch until the person, or the hub, ends it; returns the exit code."""
    console = data_console()

    async def watch(control: Control) -> int:
        hub, fleet = await control.hub(), await control.servers()
        only = chosen(names, (server.id for server in fleet.servers))
        board = Board(hub, fleet, time.monotonic(), only=only)
        if as_json:
            await _as_json(control, board)
        elif not _has_screen(console):
            await _as_lines(control, board, console)
        else:
            desk = Desk(in_full=len(only) == 1, message="asking the hub for its events ...")
            return await _Watch(control, board, desk, console).run()
        raise _ended(control)

    return ask(found, watch)


def _has_screen(console: Console) -> bool:
    """Whether this is a terminal that can be drawn on, and somebody sits at it."""
    return console.is_terminal and not console.is_dumb_terminal and os.isatty(0) and os.isatty(1)


def _ended(control: Control) -> NoHub:
    return NoHub(f"the hub at {control.url} ended", hint="start it again with `holdfast serve`")


# As lines


async def _as_json(control: Control, board: Board) -> None:
    async with aclosing(_events(control)) as events:
        async for name, data in events:
            if board.concerns(name, data):
                print_json_line({"event": name, "data": data})


async def _as_lines(control: Control, board: Board, console: Console) -> None:
    page = page_of(console)
    async with aclosing(_events(control)) as events:
        async for name, data in events:
            news = await _taken(control, board, name, data)
            lines = _first_lines(board, page) if name == "hello" else [Text(str(news))] if news else []
            for line in lines:
                console.print(line, soft_wrap=True)


def _first_lines(board: Board, page: Page) -> list[Text]:
    now = board.hub_now(time.monotonic())
    servers = worst_last(board.worst_first())
    return [*heading(board.hub, now, page), Text(), *table(servers, now, page), *counsel(servers, page), Text()]


async def _events(control: Control) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    async with aclosing(control.events()) as events:
        async for event in events:
            data = json.loads(event.data)
            yield event.name, data if isinstance(data, dict) else {}


async def _taken(control: Control, board: Board, name: str, data: dict[str, Any]) -> News | None:
    """Have the board learn of an event; what there is to tell of it.

    Whatever happens after the hub's first event is told: what is asked for then leaves no gap.
    """
    if name in ("hello", "missed"):
        board.replace(await control.servers(), time.monotonic())
    return board.take(name, data, time.monotonic())


# On a screen


class _Watch:
    """One person at one terminal."""

    def __init__(self, control: Control, board: Board, desk: Desk, console: Console) -> None:
        self._control = control
        self._board = board
        self._desk = desk
        self._console = console
        self._screen = Screen(console)
        self._changed = anyio.Event()
        self._ended: HoldfastError | None = None
        self._code = 0

    async def run(self) -> int:
        """Until it ends; the terminal is as it was by then."""
        with self._screen:
            async with anyio.create_task_group() as tasks:
                for part in (self._follow, self._take_keys, self._take_signals, self._look_at_selected):
                    tasks.start_soon(part, tasks)
                await self._draw_on_changes()
        if self._ended is not None:
            print_error(self._ended.message, self._ended.hint)
            return 1
        return self._code

    async def _draw_on_changes(self) -> None:
        while True:
            self._changed = anyio.Event()
            self._draw()
            await anyio.sleep(DRAW_SECONDS)
            with anyio.move_on_after(TICK_SECONDS):
                await self._changed.wait()

    def _draw(self) -> None:
        columns, lines = self._screen.size
        page = Page(width=columns, ascii_only=self._console.options.ascii_only)
        self._screen.draw(frame(self._board, self._desk, page, lines, time.monotonic()))

    async def _follow(self, tasks: anyio.abc.TaskGroup) -> None:
        try:
            async for name, data in _events(self._control):
                await _taken(self._control, self._board, name, data)
                if name == "hello":
                    self._desk.message = ""
                self._changed.set()
            self._ended = _ended(self._control)
        except HoldfastError as exc:
            self._ended = exc
        tasks.cancel_scope.cancel()

    async def _look_at_selected(self, tasks: anyio.abc.TaskGroup) -> None:
        """Its words name seconds, which no event counts down."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            server = self._board.server(self._desk.selected, time.monotonic())
            if server is not None and (server.retry_in or server.breaker.retry_in):
                with suppress(HoldfastError):  # whoever follows the events finds out, and says so
                    self._board.learn(await self._control.server(server.id), time.monotonic())

    async def _take_keys(self, tasks: anyio.abc.TaskGroup) -> None:
        async for key in self._screen.keys():
            wish = self._desk.press(key, [server.id for server in self._board.worst_first()])
            if wish is not None and wish.kind == "quit":
                break
            if wish is not None:
                self._fulfil(wish, tasks)
            self._changed.set()
        tasks.cancel_scope.cancel()

    def _fulfil(self, wish: Wish, tasks: anyio.abc.TaskGroup) -> None:
        if wish.kind == "suspend":
            self._screen.suspend()
        elif wish.kind == "redraw":
            self._screen.take()
        else:
            self._desk.message = f"{_DOING[wish.kind]} {one_line(wish.server)} ..."
            tasks.start_soon(self._act, wish)

    async def _act(self, wish: Wish) -> None:
        try:
            server = await getattr(self._control, wish.kind)(wish.server)
        except HoldfastError as exc:
            self._desk.message = one_line(f"{wish.server}: {exc.message}")
        else:
            self._board.learn(server, time.monotonic())
            self._desk.message = one_line(server.summary)
        self._changed.set()

    async def _take_signals(self, tasks: anyio.abc.TaskGroup) -> None:
        ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        with anyio.open_signal_receiver(*ending, signal.SIGWINCH, signal.SIGCONT) as signals:
            async for number in signals:
                if number in ending:
                    self._code = 128 + number
                    tasks.cancel_scope.cancel()
                if number == signal.SIGCONT:  # the shell had the terminal meanwhile
                    self._screen.take()
                self._changed.set()
