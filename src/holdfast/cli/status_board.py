"""The watched servers, kept up to date by the events of the hub.

Pure. ``now`` is the local monotonic clock. The time of the hub is its last reported time plus the local time since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.cli.status_view import aged, worst_last
from holdfast.cli.status_words import cause_words, clock, one_line, span
from holdfast.control.models import Activity, HubView, Server, Servers

__all__ = ["EventLine", "WatchedFleet", "event_text"]

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
        return worst_last(server for server, _ in self._servers.values())[::-1]

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
            return f"{who}: attempt {data.get('attempt')} in {span(float(data.get('delay') or 0))}"
        case "breaker":
            return f"{who}: {_breaker_text(data)}"
        case "published":
            kinds = ", ".join(map(str, data.get("kinds") or ())) or "its listing"
            return f"{who}: published {kinds}"
        case "close_failed":
            return f"{who}: its old connection was not closed cleanly: {one_line(str(data.get('error', '')))}"
        case "gone":
            return f"{who}: no longer configured"
        case "missed":
            return f"{data.get('count')} events were missed"
        case "hub" if data.get("draining"):
            return "the hub is shutting down: it takes no new calls"
        case "hub" if data.get("config_problem"):
            return f"the last config change was not applied: {one_line(str(data['config_problem']))}"
        case _:
            return ""


def _breaker_text(data: Mapping[str, Any]) -> str:
    if data.get("state") != "open":
        return f"breaker {str(data.get('state', '')).replace('_', ' ')}"
    after = f" after {data['failures']} failures" if data.get("failures") else ""
    return f"breaker open for {span(float(data.get('retry_in') or 0))}{after}"
