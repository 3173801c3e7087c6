"""``holdfast status --watch``: the servers live, full screen on a terminal, or as lines elsewhere.

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
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import anyio
import anyio.abc
from rich.console import Console
from rich.text import Text

from holdfast.cli.output import Page, counted, data_console, page_of, print_error, print_json_line
from holdfast.cli.running_hub import ask, chosen
from holdfast.cli.status_view import (
    STYLES,
    advice,
    aged,
    card,
    cause_words,
    clock,
    folded,
    grouped,
    heading,
    matches,
    need,
    needs_attention,
    one_line,
    span,
    table,
    tally,
    worst_first,
    worst_last,
    wrapped_command,
)
from holdfast.cli.terminal import Screen
from holdfast.control import Activity, ControlClient, HubView, RunningHub, Server, ServerAction, Servers
from holdfast.core import command_line
from holdfast.errors import HoldfastError, NoHub

__all__ = [
    "LIST_KEYS",
    "ActionKind",
    "EventLine",
    "KeyAction",
    "WatchState",
    "WatchedFleet",
    "event_text",
    "frame",
    "watch_hub",
]

KEPT_LINES = 200
"""Lines. No terminal is higher."""


@dataclass(frozen=True)
class EventLine:
    """One event as a line of text."""

    at: float
    text: str

    def __str__(self) -> str:
        return f"{clock(self.at)}  {self.text}"


class WatchedFleet:
    """The servers as the hub last reported them."""

    def __init__(self, hub: HubView, fleet: Servers, now: float, *, only: Collection[str] = ()) -> None:
        self.hub = hub
        self._only = frozenset(only)
        self.events: deque[EventLine] = deque(maxlen=KEPT_LINES)
        self._hub_heard = now
        self._servers: dict[str, tuple[Server, float]] = {}
        self.replace(fleet, now)

    def replace(self, fleet: Servers, now: float) -> None:
        """Replace all servers: at the start, and after missed events."""
        self._servers.clear()
        for server in fleet.servers:
            self.learn(server, now)

    def take(self, event: str, data: Mapping[str, Any], now: float) -> EventLine | None:
        """Apply an event; returns its line of text, or None."""
        match event:
            case "hello" | "hub":
                self.hub, self._hub_heard = HubView.model_validate(data), now
            case "server":
                self.learn(Server.model_validate(data), now)
            case "gone":
                self._servers.pop(str(data.get("server")), None)
            case "activity":
                self._take_activity(data)
        text = event_text(event, data) if self.concerns(event, data) else ""
        if not text:
            return None
        at = data.get("at")
        line = EventLine(at if isinstance(at, int | float) else self.hub_now(now), text)
        self.events.append(line)
        return line

    def concerns(self, event: str, data: Mapping[str, Any]) -> bool:
        """Whether an event is about the hub or about a watched server."""
        if not self._only or event in ("hello", "hub", "missed"):
            return True
        if event == "activity":
            return not self._only.isdisjoint(data)
        return data.get("id" if event == "server" else "server") in self._only

    def learn(self, server: Server, now: float) -> None:
        """Store the newest report of a server."""
        if not self._only or server.id in self._only:
            self._servers[server.id] = (server, now)

    def hub_now(self, now: float) -> float:
        """The current time of the hub."""
        return self.hub.now + now - self._hub_heard

    def server(self, name: str, now: float) -> Server | None:
        """One server, with its countdowns moved on to ``now``."""
        server, heard = self._servers.get(name, (None, 0.0))
        return None if server is None else aged(server, now - heard)

    def worst_first(self) -> list[Server]:
        """All servers, the worst first, because the top of a screen is always visible."""
        return worst_first(server for server, _ in self._servers.values())

    def _take_activity(self, data: Mapping[str, Any]) -> None:
        for name, activity in data.items():
            if name in self._servers:
                server, heard = self._servers[name]
                known = {"activity": Activity.model_validate(activity)}
                self._servers[name] = (server.model_copy(update=known), heard)


def event_text(event: str, data: Mapping[str, Any]) -> str:
    """An event as a line of text; empty if it needs no line."""
    who = one_line(str(data.get("server", "")))
    match event:
        case "transition":
            why = one_line(str(data.get("reason") or "")) or cause_words(str(data.get("cause") or ""))
            return f"{who}: {data.get('old')} -> {data.get('new')}{f': {why}' if why else ''}"
        case "retry":
            return f"{who}: attempt {data.get('attempt')} in at most {span(float(data.get('delay') or 0))}"
        case "breaker":
            return f"{who}: {_breaker_text(data)}"
        case "published":
            kinds = ", ".join(map(str, data.get("kinds") or ())) or "its listing"
            return f"{who}: published {kinds}"
        case "access":
            words = "calls and the listing are denied" if data.get("denied") else "calls are no longer denied"
            return f"{who}: {words}"
        case "close_failed":
            return f"{who}: its old connection was not closed cleanly: {one_line(str(data.get('error', '')))}"
        case "gone":
            return f"{who}: no longer configured"
        case "missed":
            count = int(data.get("count") or 0)
            return f"{counted(count, 'event')} {'was' if count == 1 else 'were'} missed"
        case "hub" if data.get("draining"):
            return "the hub is shutting down: it takes no new calls"
        case "hub" if data.get("config_problem"):
            return f"the last config change was not applied: {one_line(str(data['config_problem']))}"
        case _:
            return ""


def _breaker_text(data: Mapping[str, Any]) -> str:
    if data.get("state") != "open":
        return f"breaker {str(data.get('state', '')).replace('_', ' ')}"
    after = f" after {counted(int(data['failures']), 'failure')}" if data.get("failures") else ""
    return f"breaker open for {span(float(data.get('retry_in') or 0))}{after}"


ActionKind: TypeAlias = Literal["quit", "suspend", "redraw"] | ServerAction

LIST_KEYS = "up/down select  enter details  r reconnect  e enable  d disable  / find  q quit"
CARD_KEYS = "up/down scroll  esc back  r reconnect  e enable  d disable  q quit"

_ENDING = ("q", "Q", "ctrl-c", "ctrl-d")
_BACK = ("escape", "left", "backspace", "h")
_ACTS: dict[str, ActionKind] = {"r": "reconnect", "e": "enable"}


@dataclass(frozen=True)
class KeyAction:
    """What the caller has to do."""

    kind: ActionKind
    server: str = ""


@dataclass
class WatchState:
    """The selection, the scroll position and the prompt."""

    selected: str = ""
    in_full: bool = False
    """Whether the details of the selected server are shown instead of the list."""
    top: int = 0
    """The first visible line."""
    asking: str = ""
    """The server that is disabled if the answer is yes."""
    message: str = ""
    """The result of the last action."""
    page: int = 10
    """The lines of a page; set when the screen is drawn."""
    words: str = ""
    """Only servers with these words are shown."""
    is_typing: bool = False
    """Whether keys go into the filter."""

    def settle(self, names: Sequence[str]) -> None:
        """Select a server that still exists."""
        if self.selected not in names:
            self.selected, self.in_full, self.asking = names[0] if names else "", False, ""

    def press(self, key: str, names: Sequence[str]) -> KeyAction | None:
        """Handle a key. ``names`` are the servers in the order on the screen."""
        self.message = ""
        if self.is_typing and key not in ("ctrl-c", "ctrl-z", "ctrl-l"):
            self._type(key)
            return None
        if key in _ENDING:
            return KeyAction("quit")
        if key == "ctrl-z":
            return KeyAction("suspend")
        if key == "ctrl-l":
            return KeyAction("redraw")
        if self.asking:
            return self._answer(key)
        if key in _ACTS and self.selected:
            return KeyAction(_ACTS[key], self.selected)
        if key == "/" or (key == "escape" and self.words and not self.in_full):
            self.is_typing, self.in_full = key == "/", False
            self.words = self.words if key == "/" else ""
        elif key == "d":
            self.asking = self.selected
        elif self.in_full:
            self._move_in_card(key)
        else:
            self._move_in_list(key, names)
        return None

    @property
    def prompt(self) -> str:
        """The last line of the screen: a question, the result of an action, or the keys."""
        if self.asking:
            return f"disable {self.asking}? its calls in flight end with an error  [y/n]"
        if self.is_typing:
            return f"filter: {self.words}_  enter keep  esc clear"
        return self.message or (CARD_KEYS if self.in_full else LIST_KEYS)

    def _type(self, key: str) -> None:
        if key == "escape":
            self.words, self.is_typing = "", False
        elif key == "enter":
            self.is_typing = False
        elif key == "backspace":
            self.words = self.words[:-1]
        elif len(key) == 1 and key.isprintable():
            self.words += key

    def _answer(self, key: str) -> KeyAction | None:
        server, self.asking = self.asking, ""
        return KeyAction("disable", server) if key in ("y", "Y") else None

    def _move_in_list(self, key: str, names: Sequence[str]) -> None:
        if key in ("enter", "right", "l") and self.selected:
            self.in_full, self.top = True, 0
            return
        at = names.index(self.selected) if self.selected in names else 0
        to = self._moved(key, at, len(names))
        if names:
            self.selected = names[to]

    def _move_in_card(self, key: str) -> None:
        if key in _BACK or key == "enter":
            self.in_full, self.top = False, 0
            return
        self.top = self._moved(key, self.top, 10_000)

    def _moved(self, key: str, at: int, length: int) -> int:
        to = {
            "up": at - 1,
            "k": at - 1,
            "down": at + 1,
            "j": at + 1,
            "page_up": at - self.page,
            "page_down": at + self.page,
            "home": 0,
            "g": 0,
            "end": length - 1,
            "G": length - 1,
        }.get(key, at)
        return max(0, min(to, length - 1))


MARGIN = 2
"""The width of the mark of the selected server."""


def frame(watched: WatchedFleet, state: WatchState, page: Page, height: int, now: float) -> list[Text]:
    """The picture."""
    every = watched.worst_first()
    servers = [server for server in every if matches(server, state.words)]
    state.settle([server.id for server in servers])
    top = [*heading(watched.hub, watched.hub_now(now), page), page.fit(Text(tally(every)))]
    top += _causes(servers, page)[: height // 4]
    if state.words:
        top.append(
            page.fit(Text(f"filter: {state.words}  ({len(servers)} of {counted(len(every), 'server')})", style="cyan"))
        )
    room = max(1, height - len(top) - 1)
    shown = watched.server(state.selected, now)
    body = _card(shown, watched, state, page, room, now) if state.in_full and shown else None
    if body is None:
        body = _list(servers, shown, watched, state, page, room, now)
    body += [Text()] * (room - len(body))
    return [*top, *body[:room], page.fit(Text(state.prompt, style="reverse"))][:height]


def _causes(servers: Sequence[Server], page: Page) -> list[Text]:
    """A line for each cause that several servers share: most of the answer to "what needs me?"."""
    groups = [group for group in grouped(servers) if need(group.servers[0]) and group.is_folded]
    return [page.fit(Text(group.title, style=STYLES[group.servers[0].status])) for group in groups]


def _card(server: Server, watched: WatchedFleet, state: WatchState, page: Page, room: int, now: float) -> list[Text]:
    lines = [Text(), *(page.fit(line) for line in card(server, watched.hub_now(now), page, wrap_command=True))]
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
    words = _advice(shown, page, room) if shown else []
    events_least = min(len(watched.events) + 1, room // 4) if watched.events else 0
    height = max(1, min(len(servers), room - 2 - len(words) - events_least))
    lines = [Text(), *_rows(servers, watched, state, page, height, now), *words]
    return lines + _event_lines(watched, page, room - len(lines))


def _advice(shown: Server, page: Page, room: int) -> list[Text]:
    """What to do about the selected server. Its command is never cut; the other lines get what is left."""
    command = wrapped_command(one_line(shown.command), page.width) if shown.command else []
    rest = advice(shown.model_copy(update={"command": ""}), page)
    return [Text(), *(page.fit(line) for line in rest)][: max(1, room // 3 - len(command))] + command


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


TICK_SECONDS = 1.0
"""Redraw at least this often, because countdowns change without events."""

DRAW_SECONDS = 0.05
"""The least time between two pictures. A burst of events is drawn once."""

LOOK_SECONDS = 2.0

_PROGRESS = {"reconnect": "reconnecting", "enable": "enabling", "disable": "disabling"}


def watch_hub(found: RunningHub, names: Sequence[str], words: str = "", *, as_json: bool) -> int:
    """Watch until the user quits or the hub ends. Returns the exit code."""
    console = data_console()

    async def watch(control: ControlClient) -> int:
        hub, servers = await control.hub(), await control.servers()
        only = chosen(names, (server.id for server in servers.servers))
        watched = WatchedFleet(hub, servers, time.monotonic(), only=only)
        if as_json:
            await _as_json(control, watched)
        elif not _has_screen(console):
            await _as_lines(control, watched, console)
        else:
            state = WatchState(words=words, in_full=len(only) == 1, message="asking the hub for its events ...")
            return await _WatchScreen(control, watched, state, console).run()
        raise _ended(control)

    return ask(found, watch)


def _has_screen(console: Console) -> bool:
    """Whether stdin and stdout are a terminal that can be drawn on."""
    return console.is_terminal and not console.is_dumb_terminal and os.isatty(0) and os.isatty(1)


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
            lines = _first_lines(watched, page) if name == "hello" else [Text(str(line))] if line else []
            for text in lines:
                console.print(text, soft_wrap=True)


def _first_lines(watched: WatchedFleet, page: Page) -> list[Text]:
    now = watched.hub_now(time.monotonic())
    servers = worst_last(watched.worst_first())
    return [
        *heading(watched.hub, now, page),
        Text(),
        *table(folded(servers), now, page),
        *needs_attention(servers, page),
        Text(),
    ]


async def _events(control: ControlClient) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    async with aclosing(control.events()) as events:
        async for event in events:
            data = json.loads(event.data)
            yield event.name, data if isinstance(data, dict) else {}


async def _apply(control: ControlClient, watched: WatchedFleet, name: str, data: dict[str, Any]) -> EventLine | None:
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
            shown = [server.id for server in self._fleet.worst_first() if matches(server, self._state.words)]
            action = self._state.press(key, shown)
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
        elif action.kind != "quit":
            self._state.message = f"{_PROGRESS[action.kind]} {one_line(action.server)} ..."
            tasks.start_soon(self._act, action.server, action.kind)

    async def _act(self, name: str, action: ServerAction) -> None:
        try:
            server = await self._control.act(name, action)
        except HoldfastError as exc:
            self._state.message = one_line(f"{name}: {exc.message}")
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
