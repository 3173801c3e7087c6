"""``holdfast status --watch``: the servers live, full screen on a terminal, or as lines elsewhere.

Theory of operation. The hub sends an event for each change, and a new view of each server that changed (see
``control_events``). ``WatchedFleet`` keeps the last view of each, with the time at which it came: a view has countdowns
("next try in 12 s"), and no event counts them down. The picture (``frame``) is made of these views and the present
time, by the same functions as the output of ``status``, so the two cannot tell different things. It is drawn after each
event and key, and once a second for the countdowns.

The watch only looks. What a person can do about a server is on the screen as a command to paste; the status page has
buttons. So two keys are enough, the space bar and q, and each is one byte (ADR 0014). What begins with an escape is an
arrow key or a function key, comes in one piece, and does nothing. Ctrl-C and Ctrl-Z stay signals, as in any program.
Ctrl-Z would stop the process in the middle of a picture, so its signal is taken here: the terminal is given back first,
and entered again when the shell lets the process go on.

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
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
from rich.console import Console
from rich.text import Text

from holdfast.cli.command_options import ask, chosen
from holdfast.cli.output import Page, counted, data_console, page_of, print_error, print_json_line
from holdfast.cli.status_view import aged, clock, heading, matches, one_line, overview, tally, worst_first, worst_last
from holdfast.control import ControlClient, HubView, RunningHub, Server, Servers
from holdfast.core import command_line
from holdfast.errors import HoldfastError, NoHub

__all__ = ["WatchState", "WatchedFleet", "event_text", "frame", "watch_hub"]

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


KEYS = "space next page  q quit"

_QUIT = frozenset(b"qQ\x04")
"""The bytes that end the watch; the last one is Ctrl-D."""


@dataclass
class WatchState:
    """Where the picture is."""

    top: int = 0
    """The first visible line below the heading."""
    page: int = 10
    """The lines of a page; set when the screen is drawn."""
    prompt: str = KEYS
    """The last line."""
    words: str = ""
    """Only servers with these words are shown."""


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
    state.top = state.top if state.top < len(body) else 0  # after the last page comes the first
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
            state = WatchState(words=words, prompt="asking the hub for its events ...")
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
        self._before = termios.tcgetattr(sys.stdin)
        self._changed = anyio.Event()
        self._ended: HoldfastError | None = None
        self._code = 0

    async def run(self) -> int:
        """Run until the end, and restore the terminal."""
        try:
            self._enter()
            async with anyio.create_task_group() as tasks:
                for part in (self._follow, self._take_keys, self._take_signals):
                    tasks.start_soon(part, tasks.cancel_scope)
                await self._draw_on_changes()
        finally:
            self._leave()
        if self._ended is not None:
            print_error(self._ended.message, self._ended.hint)
            return 1
        return self._code

    def _enter(self) -> None:
        """Use the whole terminal, also after another program used it."""
        tty.setcbreak(sys.stdin)
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)

    def _leave(self) -> None:
        with suppress(OSError, termios.error):  # a closed terminal needs no restore
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def _draw(self) -> None:
        """Draw over the last picture, without flicker."""
        columns, height = os.get_terminal_size(sys.stdout.fileno())  # not Rich's, which obeys a COLUMNS that grew old
        page = Page(width=columns or 80, ascii_only=self._console.options.ascii_only, full_screen=True)
        with self._console.capture() as capture:
            for line in frame(self._fleet, self._state, page, height or 24, time.monotonic()):
                self._console.print(line, soft_wrap=True)
        # Each line is cleared before it is drawn: a clear after a full-width line would erase its last character.
        sys.stdout.write("\x1b[H" + "\r\n".join(f"\x1b[K{line}" for line in capture.get().splitlines()))
        sys.stdout.flush()

    async def _draw_on_changes(self) -> None:
        while True:
            self._changed = anyio.Event()
            self._draw()
            await anyio.sleep(DRAW_SECONDS)
            with anyio.move_on_after(TICK_SECONDS):
                await self._changed.wait()

    async def _follow(self, whole: anyio.CancelScope) -> None:
        try:
            async for name, data in _events(self._control):
                await _apply(self._control, self._fleet, name, data)
                self._state.prompt = KEYS
                self._changed.set()
            self._ended = _ended(self._control)
        except HoldfastError as exc:
            self._ended = exc
        whole.cancel()

    async def _take_keys(self, whole: anyio.CancelScope) -> None:
        while True:
            await anyio.wait_readable(sys.stdin)
            keys = b""
            with suppress(OSError):  # Linux reports a closed terminal this way
                keys = os.read(sys.stdin.fileno(), 1024)
            if not keys or (not keys.startswith(b"\x1b") and not _QUIT.isdisjoint(keys)):
                break
            self._state.top += self._state.page * keys.count(b" ")
            self._changed.set()
        whole.cancel()

    async def _take_signals(self, whole: anyio.CancelScope) -> None:
        ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        with anyio.open_signal_receiver(*ending, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT) as signals:
            async for number in signals:
                if number in ending:
                    self._code = 128 + number
                    whole.cancel()
                if number == signal.SIGTSTP:
                    self._leave()
                    signal.raise_signal(signal.SIGSTOP)
                if number == signal.SIGCONT:  # the shell used the terminal in the meantime
                    self._enter()
                self._changed.set()
