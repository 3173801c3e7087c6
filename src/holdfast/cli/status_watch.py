"""``holdfast status --watch``: the servers live, full screen on a terminal, or as lines elsewhere.

Waits for events, keys, signals and the clock, and draws.
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
from holdfast.cli.status_board import EventLine, WatchedFleet
from holdfast.cli.status_desk import KeyAction, WatchState
from holdfast.cli.status_frame import frame
from holdfast.cli.status_view import heading, needs_attention, table, worst_last
from holdfast.cli.status_words import one_line
from holdfast.cli.terminal import Screen
from holdfast.control.client import Control
from holdfast.control.find import Found
from holdfast.errors import HoldfastError, NoHub

__all__ = ["watch_hub"]

TICK_SECONDS = 1.0
"""Redraw at least this often, because countdowns change without events."""

DRAW_SECONDS = 0.05
"""The least time between two pictures. A burst of events is drawn once."""

LOOK_SECONDS = 2.0

_PROGRESS = {"reconnect": "reconnecting", "enable": "enabling", "disable": "disabling"}


def watch_hub(found: Found, names: Sequence[str], *, as_json: bool) -> int:
    """Watch until the user quits or the hub ends. Returns the exit code."""
    console = data_console()

    async def watch(control: Control) -> int:
        hub, servers = await control.hub(), await control.servers()
        only = chosen(names, (server.id for server in servers.servers))
        watched = WatchedFleet(hub, servers, time.monotonic(), only=only)
        if as_json:
            await _as_json(control, watched)
        elif not _has_screen(console):
            await _as_lines(control, watched, console)
        else:
            state = WatchState(in_full=len(only) == 1, message="asking the hub for its events ...")
            return await _WatchScreen(control, watched, state, console).run()
        raise _ended(control)

    return ask(found, watch)


def _has_screen(console: Console) -> bool:
    """Whether stdin and stdout are a terminal that can be drawn on."""
    return console.is_terminal and not console.is_dumb_terminal and os.isatty(0) and os.isatty(1)


def _ended(control: Control) -> NoHub:
    return NoHub(f"the hub at {control.url} ended", hint="start it again with `holdfast serve`")


# As lines


async def _as_json(control: Control, watched: WatchedFleet) -> None:
    async with aclosing(_events(control)) as events:
        async for name, data in events:
            if watched.concerns(name, data):
                print_json_line({"event": name, "data": data})


async def _as_lines(control: Control, watched: WatchedFleet, console: Console) -> None:
    page = page_of(console)
    async with aclosing(_events(control)) as events:
        async for name, data in events:
            line = await _apply(control, watched, name, data)
            lines = _first_lines(watched, page) if name == "hello" else [Text(str(line))] if line else []
            for text in lines:
                console.print(text, soft_wrap=True)


def _first_lines(watched: WatchedFleet, page: Page) -> list[Text]:
    now = watched.hub_now(time.monotonic())
    servers = worst_last(watched.worst_first())
    return [
        *heading(watched.hub, now, page),
        Text(),
        *table(servers, now, page),
        *needs_attention(servers, page),
        Text(),
    ]


async def _events(control: Control) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    async with aclosing(control.events()) as events:
        async for event in events:
            data = json.loads(event.data)
            yield event.name, data if isinstance(data, dict) else {}


async def _apply(control: Control, watched: WatchedFleet, name: str, data: dict[str, Any]) -> EventLine | None:
    """Apply an event to the watched servers; returns its line of text.

    The servers are read after the first event of the stream, so that no change is missed in between.
    """
    if name in ("hello", "missed"):
        watched.replace(await control.servers(), time.monotonic())
    return watched.take(name, data, time.monotonic())


# On a screen


class _WatchScreen:
    """The watch on one terminal."""

    def __init__(self, control: Control, watched: WatchedFleet, state: WatchState, console: Console) -> None:
        self._control = control
        self._fleet = watched
        self._state = state
        self._console = console
        self._screen = Screen(console)
        self._changed = anyio.Event()
        self._ended: HoldfastError | None = None
        self._code = 0

    async def run(self) -> int:
        """Run until the end, and restore the terminal."""
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
        self._screen.draw(frame(self._fleet, self._state, page, lines, time.monotonic()))

    async def _follow(self, tasks: anyio.abc.TaskGroup) -> None:
        try:
            async for name, data in _events(self._control):
                await _apply(self._control, self._fleet, name, data)
                if name == "hello":
                    self._state.message = ""
                self._changed.set()
            self._ended = _ended(self._control)
        except HoldfastError as exc:
            self._ended = exc
        tasks.cancel_scope.cancel()

    async def _look_at_selected(self, tasks: anyio.abc.TaskGroup) -> None:
        """Read the selected server again: its text names seconds, and no event counts them down."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            server = self._fleet.server(self._state.selected, time.monotonic())
            if server is not None and (server.retry_in or server.breaker.retry_in):
                with suppress(HoldfastError):  # the task that follows the events reports it
                    self._fleet.learn(await self._control.server(server.id), time.monotonic())

    async def _take_keys(self, tasks: anyio.abc.TaskGroup) -> None:
        async for key in self._screen.keys():
            action = self._state.press(key, [server.id for server in self._fleet.worst_first()])
            if action is not None and action.kind == "quit":
                break
            if action is not None:
                self._perform(action, tasks)
            self._changed.set()
        tasks.cancel_scope.cancel()

    def _perform(self, action: KeyAction, tasks: anyio.abc.TaskGroup) -> None:
        if action.kind == "suspend":
            self._screen.suspend()
        elif action.kind == "redraw":
            self._screen.enter_full_screen()
        else:
            self._state.message = f"{_PROGRESS[action.kind]} {one_line(action.server)} ..."
            tasks.start_soon(self._act, action)

    async def _act(self, action: KeyAction) -> None:
        try:
            server = await getattr(self._control, action.kind)(action.server)
        except HoldfastError as exc:
            self._state.message = one_line(f"{action.server}: {exc.message}")
        else:
            self._fleet.learn(server, time.monotonic())
            self._state.message = one_line(server.summary)
        self._changed.set()

    async def _take_signals(self, tasks: anyio.abc.TaskGroup) -> None:
        ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        with anyio.open_signal_receiver(*ending, signal.SIGWINCH, signal.SIGCONT) as signals:
            async for number in signals:
                if number in ending:
                    self._code = 128 + number
                    tasks.cancel_scope.cancel()
                if number == signal.SIGCONT:  # the shell used the terminal in the meantime
                    self._screen.enter_full_screen()
                self._changed.set()
