"""``holdfast status --watch``: the servers live, full screen on a terminal, or as lines elsewhere.

Theory of operation. The hub sends an event for each change, and a new view of each server that changed (see
``control_events``). ``WatchedFleet`` keeps the last view of each, with the time at which it came: a view has countdowns
("next try in 12 s"), and no event counts them down. The picture (``frame``) is made of these views and the present
time, by the same functions as the output of ``status``, so the two cannot tell different things. It is drawn after each
event and key, and once a second for the countdowns.

The watch only looks. What a person can do about a server is on the screen as a command to paste; the status page has
buttons.

What must never happen: a change is missed between the first read and the stream (so everything is read again after the
first event of the stream, and after ``missed``); a command is cut; the terminal stays in full-screen mode, also
after a signal or a fault.

The watched servers, the state of the screen and each picture are pure. Only ``watch_hub`` waits for events, keys,
signals and the clock, and draws.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import anyio
import anyio.abc
from rich.console import Console
from rich.text import Text

from holdfast.cli.output import Page, counted, data_console, page_of, print_error, print_json_line
from holdfast.cli.running_hub import ask, chosen
from holdfast.cli.status_view import aged, clock, heading, matches, one_line, overview, tally, worst_first, worst_last
from holdfast.cli.terminal import Screen
from holdfast.control import ControlClient, HubView, RunningHub, Server, Servers
from holdfast.core import command_line
from holdfast.errors import HoldfastError, NoHub

__all__ = ["KeyAction", "WatchState", "WatchedFleet", "event_text", "frame", "watch_hub"]

KEPT_LINES = 200
"""Lines. No terminal is higher."""


class WatchedFleet:
    """The servers as the hub last reported them."""

    def __init__(self, hub: HubView, fleet: Servers, now: float, *, only: Collection[str] = ()) -> None:
        self.hub = hub
        self.only = frozenset(only)
        """The servers that were named; empty for all."""
        self.events: deque[str] = deque(maxlen=KEPT_LINES)
        self._hub_heard = now
        self._servers: dict[str, tuple[Server, float]] = {}
        self.replace(fleet, now)

    def replace(self, fleet: Servers, now: float) -> None:
        """Replace all servers: at the start, and after missed events."""
        self._servers.clear()
        for server in fleet.servers:
            self._learn(server, now)

    def take(self, event: str, data: Mapping[str, Any], now: float) -> str:
        """Apply an event; returns its line of text, which is empty if it needs none."""
        match event:
            case "hello" | "hub":
                self.hub, self._hub_heard = HubView.model_validate(data), now
            case "server":
                self._learn(Server.model_validate(data), now)
            case "gone":
                self._servers.pop(str(data.get("server")), None)
        text = event_text(event, data) if self.concerns(event, data) else ""
        if not text:
            return ""
        at = data.get("at")
        line = f"{clock(at if isinstance(at, int | float) else self.hub_now(now))}  {text}"
        self.events.append(line)
        return line

    def concerns(self, event: str, data: Mapping[str, Any]) -> bool:
        """Whether an event is about the hub or about a watched server."""
        if not self.only or event in ("hello", "hub", "missed"):
            return True
        if event == "activity":
            return not self.only.isdisjoint(data)
        return data.get("id" if event == "server" else "server") in self.only

    def hub_now(self, now: float) -> float:
        """The current time of the hub."""
        return self.hub.now + now - self._hub_heard

    def servers(self, now: float) -> list[Server]:
        """All servers, with their countdowns moved on to ``now``."""
        return [aged(server, now - heard) for server, heard in self._servers.values()]

    def _learn(self, server: Server, now: float) -> None:
        if not self.only or server.id in self.only:
            self._servers[server.id] = (server, now)


def event_text(event: str, data: Mapping[str, Any]) -> str:
    """An event as a line of text; empty if it needs no line. What happened to a server is told in the hub's words."""
    match event:
        case "gone":
            text = "no longer configured"
        case "missed":
            count = int(data.get("count") or 0)
            return f"{counted(count, 'event')} {'was' if count == 1 else 'were'} missed"
        case "hub" if data.get("draining"):
            return "the hub is shutting down: it takes no new calls"
        case "hub" if data.get("config_problem"):
            return f"the last config change was not applied: {one_line(str(data['config_problem']))}"
        case _:
            text = one_line(str(data.get("text") or ""))
    return f"{one_line(str(data.get('server', '')))}: {text}" if text else ""


KeyAction: TypeAlias = Literal["quit", "suspend", "redraw"]
"""What the caller has to do."""

KEYS = "up/down scroll  / filter  q quit"

_ALWAYS: Mapping[str, KeyAction] = {"ctrl-c": "quit", "ctrl-z": "suspend", "ctrl-l": "redraw"}
"""The keys that act also while a filter is typed."""

_ENDING = ("q", "Q", "ctrl-d")


@dataclass
class WatchState:
    """The scroll position and the filter."""

    top: int = 0
    """The first visible line below the heading."""
    message: str = ""
    """Shown instead of the keys."""
    page: int = 10
    """The lines of a page; set when the screen is drawn."""
    words: str = ""
    """Only servers with these words are shown."""
    is_typing: bool = False
    """Whether keys go into the filter."""

    def press(self, key: str) -> KeyAction | None:
        """Handle a key."""
        if key in _ALWAYS:
            return _ALWAYS[key]
        if self.is_typing:
            self._type(key)
        elif key in _ENDING:
            return "quit"
        elif key == "/":
            self.is_typing = True
        elif key == "escape":
            self.words = ""
        else:
            # A picture ends at its last line: ``frame`` puts a position beyond it right.
            moves = {"up": -1, "down": 1, "page_up": -self.page, "page_down": self.page, "home": -self.top}
            self.top = KEPT_LINES**2 if key == "end" else max(0, self.top + moves.get(key, 0))
        return None

    @property
    def prompt(self) -> str:
        """The last line of the screen: the filter while it is typed, a message, or the keys."""
        return f"filter: {self.words}_  enter keep  esc clear" if self.is_typing else self.message or KEYS

    def _type(self, key: str) -> None:
        if key == "escape":
            self.words, self.is_typing = "", False
        elif key == "enter":
            self.is_typing = False
        elif key == "backspace":
            self.words = self.words[:-1]
        elif len(key) == 1 and key.isprintable():
            self.words, self.top = self.words + key, 0


def frame(watched: WatchedFleet, state: WatchState, page: Page, height: int, now: float) -> list[Text]:
    """The picture: the hub, what ``status`` shows (the worst first, which is always visible), and the latest events."""
    every, at = worst_first(watched.servers(now)), watched.hub_now(now)
    shown = [server for server in every if matches(server, state.words)]
    top = [*heading(watched.hub, at, page), page.fit(Text(tally(every)))]
    if state.words:
        found = f"filter: {state.words}  ({len(shown)} of {counted(len(every), 'server')})"
        top.append(page.fit(Text(found, style="cyan")))
    room = max(1, height - len(top) - 1)
    latest = [page.fit(Text(line, style="dim")) for line in list(watched.events)[-max(1, room // 4) :]]
    body = overview(shown, at, page, in_full=bool(watched.only))
    state.page = max(1, room - len(latest))
    state.top = max(0, min(state.top, len(body) - state.page))
    body = body[state.top : state.top + state.page]
    body += [Text()] * (state.page - len(body))
    return [*top, *body, *latest, page.fit(Text(state.prompt, style="reverse"))][-height:]


TICK_SECONDS = 1.0
"""Redraw at least this often, because countdowns change without events."""

DRAW_SECONDS = 0.05
"""The least time between two pictures. A burst of events is drawn once."""


def watch_hub(found: RunningHub, names: Sequence[str], words: str = "", *, as_json: bool) -> int:
    """Watch until the user quits or the hub ends. Returns the exit code."""
    console = data_console()

    async def watch(control: ControlClient) -> int:
        hub, servers = await control.hub(), await control.servers()
        only = chosen(names, (server.id for server in servers.servers))
        watched = WatchedFleet(hub, servers, time.monotonic(), only=only)
        if as_json:
            await _as_json(control, watched)
        elif console.is_terminal and not console.is_dumb_terminal and os.isatty(0) and os.isatty(1):
            state = WatchState(words=words, message="asking the hub for its events ...")
            return await _WatchScreen(control, watched, state, console).run()
        else:
            await _as_lines(control, watched, console)
        raise _ended(control)

    return ask(found, watch)


def _ended(control: ControlClient) -> NoHub:
    return NoHub(f"the hub at {control.url} ended", hint=f"start it again with `{command_line('serve')}`")


# As lines


async def _as_json(control: ControlClient, watched: WatchedFleet) -> None:
    async with aclosing(_events(control)) as events:
        async for name, data in events:
            if watched.concerns(name, data):
                print_json_line({"event": name, "data": data})


async def _as_lines(control: ControlClient, watched: WatchedFleet, console: Console) -> None:
    page = page_of(console)
    async with aclosing(_events(control)) as events:
        async for name, data in events:
            line = await _apply(control, watched, name, data)
            lines = [Text(line)] if line else []
            if name == "hello":
                now = time.monotonic()
                at = watched.hub_now(now)
                body = overview(worst_last(watched.servers(now)), at, page, in_full=bool(watched.only))
                lines = [*heading(watched.hub, at, page), *body, Text()]
            for text in lines:
                console.print(text, soft_wrap=True)


async def _events(control: ControlClient) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    async with aclosing(control.events()) as events:
        async for event in events:
            data = json.loads(event.data)
            yield event.name, data if isinstance(data, dict) else {}


async def _apply(control: ControlClient, watched: WatchedFleet, name: str, data: dict[str, Any]) -> str:
    """Apply an event to the watched servers; returns its line of text.

    The servers are read after the first event of the stream, so that no change is missed in between.
    """
    if name in ("hello", "missed"):
        watched.replace(await control.servers(), time.monotonic())
    return watched.take(name, data, time.monotonic())


# On a screen


class _WatchScreen:
    """The watch on one terminal."""

    def __init__(self, control: ControlClient, watched: WatchedFleet, state: WatchState, console: Console) -> None:
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
                for part in (self._follow, self._take_keys, self._take_signals):
                    tasks.start_soon(part, tasks.cancel_scope)
                await self._draw_on_changes()
        if self._ended is not None:
            print_error(self._ended.message, self._ended.hint)
            return 1
        return self._code

    async def _draw_on_changes(self) -> None:
        while True:
            self._changed = anyio.Event()
            columns, lines = self._screen.size
            page = Page(width=columns, ascii_only=self._console.options.ascii_only, full_screen=True)
            self._screen.draw(frame(self._fleet, self._state, page, lines, time.monotonic()))
            await anyio.sleep(DRAW_SECONDS)
            with anyio.move_on_after(TICK_SECONDS):
                await self._changed.wait()

    async def _follow(self, whole: anyio.CancelScope) -> None:
        try:
            async for name, data in _events(self._control):
                await _apply(self._control, self._fleet, name, data)
                self._state.message = ""
                self._changed.set()
            self._ended = _ended(self._control)
        except HoldfastError as exc:
            self._ended = exc
        whole.cancel()

    async def _take_keys(self, whole: anyio.CancelScope) -> None:
        async for key in self._screen.keys():
            action = self._state.press(key)
            if action == "quit":
                break
            if action == "suspend":
                self._screen.suspend()
            elif action == "redraw":
                self._screen.enter_full_screen()
            self._changed.set()
        whole.cancel()

    async def _take_signals(self, whole: anyio.CancelScope) -> None:
        ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        with anyio.open_signal_receiver(*ending, signal.SIGWINCH, signal.SIGCONT) as signals:
            async for number in signals:
                if number in ending:
                    self._code = 128 + number
                    whole.cancel()
                if number == signal.SIGCONT:  # the shell used the terminal in the meantime
                    self._screen.enter_full_screen()
                self._changed.set()
