"""What is known of a fleet that is watched: the last word about each server, kept up to date by the hub's events.

Plain code: it waits for nothing and has no clock. ``now`` is the reader's own steady clock; the hub's time of day is
what the hub said last, and as much later as has passed here since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.cli.status_view import aged, worst_last
from holdfast.cli.status_words import clock, one_line, span, spoken
from holdfast.control.models import Activity, HubView, Server, Servers

__all__ = ["Board", "News", "news_of"]

KEPT_NEWS = 200
"""Lines; more than any terminal is high."""


@dataclass(frozen=True)
class News:
    """Something that happened, in a line."""

    at: float
    text: str

    def __str__(self) -> str:
        return f"{clock(self.at)}  {self.text}"


class Board:
    """The fleet as it was last told of."""

    def __init__(self, hub: HubView, fleet: Servers, now: float, *, only: Collection[str] = ()) -> None:
        self.hub = hub
        self._only = frozenset(only)
        self.news: deque[News] = deque(maxlen=KEPT_NEWS)
        self._hub_heard = now
        self._servers: dict[str, tuple[Server, float]] = {}
        self.replace(fleet, now)

    def replace(self, fleet: Servers, now: float) -> None:
        """Every server anew: at the start, and after events were missed."""
        self._servers.clear()
        for server in fleet.servers:
            self.learn(server, now)

    def take(self, event: str, data: Mapping[str, Any], now: float) -> News | None:
        """Learn from an event; what there is to tell of it, if anything."""
        match event:
            case "hello" | "hub":
                self.hub, self._hub_heard = HubView.model_validate(data), now
            case "server":
                self.learn(Server.model_validate(data), now)
            case "gone":
                self._servers.pop(str(data.get("server")), None)
            case "activity":
                self._take_activity(data)
        text = news_of(event, data) if self.concerns(event, data) else ""
        if not text:
            return None
        at = data.get("at")
        news = News(at if isinstance(at, int | float) else self.hub_now(now), text)
        self.news.append(news)
        return news

    def concerns(self, event: str, data: Mapping[str, Any]) -> bool:
        """Whether an event is about the hub, or about a server that is watched."""
        if not self._only or event in ("hello", "hub", "missed"):
            return True
        if event == "activity":
            return not self._only.isdisjoint(data)
        return data.get("id" if event == "server" else "server") in self._only

    def learn(self, server: Server, now: float) -> None:
        """The last word about a server."""
        if not self._only or server.id in self._only:
            self._servers[server.id] = (server, now)

    def hub_now(self, now: float) -> float:
        """The hub's time of day."""
        return self.hub.now + now - self._hub_heard

    def server(self, name: str, now: float) -> Server | None:
        """One server as it must be by now."""
        server, heard = self._servers.get(name, (None, 0.0))
        return None if server is None else aged(server, now - heard)

    def worst_first(self) -> list[Server]:
        """All of them as they were told; on a screen the top is what is always seen."""
        return worst_last(server for server, _ in self._servers.values())[::-1]

    def _take_activity(self, data: Mapping[str, Any]) -> None:
        for name, activity in data.items():
            if name in self._servers:
                server, heard = self._servers[name]
                known = {"activity": Activity.model_validate(activity)}
                self._servers[name] = (server.model_copy(update=known), heard)


def news_of(event: str, data: Mapping[str, Any]) -> str:
    """An event in a line for people; nothing where there is nothing to tell."""
    who = one_line(str(data.get("server", "")))
    match event:
        case "transition":
            why = one_line(str(data.get("reason") or "")) or spoken(str(data.get("cause") or ""))
            return f"{who}: {data.get('old')} -> {data.get('new')}{f': {why}' if why else ''}"
        case "retry":
            return f"{who}: attempt {data.get('attempt')} in {span(float(data.get('delay') or 0))}"
        case "breaker":
            return f"{who}: {_breaker_news(data)}"
        case "published":
            kinds = ", ".join(map(str, data.get("kinds") or ())) or "what it offers"
            return f"{who}: published anew: {kinds}"
        case "close_failed":
            return f"{who}: its old connection was not closed cleanly: {one_line(str(data.get('error', '')))}"
        case "gone":
            return f"{who}: no longer configured"
        case "missed":
            return f"{data.get('count')} events were missed"
        case "hub" if data.get("draining"):
            return "the hub is ending: no new calls are taken"
        case "hub" if data.get("config_problem"):
            return f"the last edit was not taken: {one_line(str(data['config_problem']))}"
        case _:
            return ""


def _breaker_news(data: Mapping[str, Any]) -> str:
    if data.get("state") != "open":
        return f"breaker {str(data.get('state', '')).replace('_', ' ')}"
    after = f" after {data['failures']} failures" if data.get("failures") else ""
    return f"breaker open for {span(float(data.get('retry_in') or 0))}{after}"
