"""The event stream: whoever follows it is told each record as it is made, and how a server is once that changed.

Following costs nothing while nothing happens: no server is looked at unless a record named it. A server that
changes many times in a moment is shown once, as it is by then; calls are told as a picture every few seconds.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from itertools import count, islice
from typing import Any

import anyio
import anyio.lowlevel

from holdfast.admin.history import change_of
from holdfast.admin.views import AT_ONCE, Views
from holdfast.core.breaker import Tripped
from holdfast.errors import UnknownServer
from holdfast.hub.records import (
    BreakerChanged,
    CallEnded,
    CloseFailed,
    HubRecord,
    Published,
    RetryPlanned,
    ToolApproved,
    ToolChanged,
    Transition,
)

__all__ = ["EVENTS", "KEEP_ALIVE", "KEEP_ALIVE_SECONDS", "Feed", "frame", "told"]

EVENTS: Mapping[str, str] = {
    "hello": "The first one: the hub itself, a HubView",
    "server": "A server as it is now, a Server: whenever something about it changed",
    "gone": "A server that is no longer configured: {server}",
    "hub": "The hub itself, a HubView: it drains, or its configuration cannot be used as it is now, or can again",
    "activity": "The calls of servers that had some, every few seconds: an Activity by server",
    "transition": "A server went from one state to another: {server} and a Change",
    "retry": "A server will be dialed again: {server, attempt, delay, at}",
    "breaker": "A server's breaker opened or closed: {server, state, at, retry_in, failures, refused}",
    "published": "The catalog is another one now: {server, version, kinds, at}",
    "close_failed": "An old connection did not close cleanly: {server, generation, error, at}",
    "tool_changed": "A tool is not what it was when it was first seen: {server, tool, held, at}",
    "tool_approved": "Somebody approved what a tool says now: {server, tool, at}",
    "missed": "The reader was too slow, and so many events were left out: {count}. Ask for everything anew",
}
"""What is told, by name."""

KEEP_ALIVE = b": \n\n"
"""A comment: it says that the stream is alive, and nothing else."""

KEEP_ALIVE_SECONDS = 15.0
BACKLOG = 1024
"""Events that wait for a slow reader; then the oldest give way."""

AGAIN_SECONDS = 0.2
"""How soon a server is shown again: faster than this nobody reads."""

ACTIVITY_SECONDS = 2.0


class Feed:
    """Told of every record; tells everyone who follows."""

    def __init__(self, views: Views, *, wall: Callable[[], float]) -> None:
        self._views = views
        self._wall = wall
        self._followers: set[_Follower] = set()
        self._numbers = count(1)
        self._closed = False

    def happened(self, record: HubRecord) -> None:
        """Take a record."""
        if not self._followers:
            return
        if isinstance(record, CallEnded):
            for follower in self._followers:
                follower.called(record.server)
        elif (event := told(record, self._wall())) is not None:
            server, name, data = event
            for follower in self._followers:
                follower.put(name, json.dumps(data, separators=(",", ":")))
                follower.touched(server)

    def gone(self, server: str) -> None:
        """A server is no longer configured."""
        for follower in self._followers:
            follower.gone(server)

    def touched(self, server: str) -> None:
        """Something about a server changed that no record tells."""
        for follower in self._followers:
            follower.touched(server)

    def hub_changed(self) -> None:
        """The hub itself is another than it was."""
        for follower in self._followers:
            follower.put("hub", self._views.hub().model_dump_json())

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        for follower in self._followers:
            follower.came.set()

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """The stream for one reader, as bytes."""
        follower = _Follower()
        self._followers.add(follower)
        try:
            yield self._frame("hello", self._views.hub().model_dump_json())
            while True:
                if frames := b"".join(self._due(follower)):
                    yield frames
                    await anyio.lowlevel.checkpoint()  # whoever calls tools gets a turn in between
                elif self._closed:
                    return
                elif not await follower.news():
                    yield KEEP_ALIVE
        finally:
            self._followers.discard(follower)

    def _due(self, follower: _Follower) -> Iterator[bytes]:
        """What is to be told now: records first, then what they led to."""
        for name, data in follower.take():
            yield self._frame(name, data)
        now = anyio.current_time()
        for server in follower.to_show(now):
            try:
                yield self._frame("server", self._views.server(server).model_dump_json())
            except UnknownServer:  # it went away meanwhile, and that is told
                continue
        if active := follower.active_since(now):
            pictures = {server: self._views.activity(server) for server in sorted(active)}
            shown = {server: one.model_dump(mode="json") for server, one in pictures.items() if one is not None}
            yield self._frame("activity", json.dumps(shown, separators=(",", ":")))

    def _frame(self, name: str, data: str) -> bytes:
        return frame(name, data, next(self._numbers))


class _Follower:
    """What waits for one reader."""

    def __init__(self) -> None:
        self.came = anyio.Event()
        self._waiting: deque[tuple[str, str]] = deque(maxlen=BACKLOG)
        self._missed = 0
        self._show_at: dict[str, float] = {}
        self._shown_at: dict[str, float] = {}
        self._active: set[str] = set()
        self._active_at = float("inf")

    def put(self, name: str, data: str) -> None:
        self._missed += len(self._waiting) == BACKLOG
        self._waiting.append((name, data))
        self.came.set()

    def touched(self, server: str) -> None:
        if server not in self._show_at:
            self._show_at[server] = self._shown_at.get(server, float("-inf")) + AGAIN_SECONDS
            self.came.set()

    def gone(self, server: str) -> None:
        self._show_at.pop(server, None)
        self._shown_at.pop(server, None)
        self._active.discard(server)
        self.put("gone", json.dumps({"server": server}))

    def called(self, server: str) -> None:
        """A call alone wakes nobody but to set the clock."""
        self._active.add(server)
        if self._active_at == float("inf"):
            self._active_at = anyio.current_time() + ACTIVITY_SECONDS
            self.came.set()

    def take(self) -> list[tuple[str, str]]:
        taken = [("missed", json.dumps({"count": self._missed}))] if self._missed else []
        taken += self._waiting
        self._waiting.clear()
        self._missed = 0
        self.came = anyio.Event()
        return taken

    def to_show(self, now: float) -> list[str]:
        """A few of those that are due; the rest are due still, and come next."""
        due = list(islice((server for server, at in self._show_at.items() if at <= now), AT_ONCE))
        for server in due:
            del self._show_at[server]
            self._shown_at[server] = now
        return due

    def active_since(self, now: float) -> set[str]:
        if now < self._active_at:
            return set()
        active, self._active, self._active_at = self._active, set(), float("inf")
        return active

    async def news(self) -> bool:
        """Wait until there may be something to tell; False if there was nothing for long."""
        silent_at = anyio.current_time() + KEEP_ALIVE_SECONDS
        until = min((silent_at, self._active_at, *self._show_at.values()))
        with anyio.CancelScope(deadline=until):
            await self.came.wait()
        return until < silent_at or self.came.is_set()


def told(record: HubRecord, at: float) -> tuple[str, str, dict[str, Any]] | None:
    """A record as an event: whose it is, its name, and its data; None for one that is not told."""
    match record:
        case Transition():
            return record.server, "transition", {"server": record.server, **change_of(record, at).model_dump()}
        case RetryPlanned():
            data = {"server": record.server, "attempt": record.attempt, "delay": record.delay, "at": at}
            return record.server, "retry", data
        case BreakerChanged():
            return record.server, "breaker", _breaker(record, at)
        case Published():
            data = {"server": record.server, "version": record.version, "kinds": list(record.kinds), "at": at}
            return record.server, "published", data
        case CloseFailed():
            data = {"server": record.server, "generation": record.generation, "error": record.error, "at": at}
            return record.server, "close_failed", data
        case ToolChanged():
            data = {"server": record.server, "tool": record.tool, "held": record.held, "at": at}
            return record.server, "tool_changed", data
        case ToolApproved():
            return record.server, "tool_approved", {"server": record.server, "tool": record.tool, "at": at}
    return None


def _breaker(record: BreakerChanged, at: float) -> dict[str, Any]:
    change = record.change
    data = {"server": record.server, "at": at, "refused": change.refused}
    if isinstance(change, Tripped):
        return {**data, "state": "open", "retry_in": change.retry_in, "failures": change.failures}
    return {**data, "state": "closed", "retry_in": None, "failures": 0}


def frame(name: str, data: str, number: int) -> bytes:
    """One event, as it is sent; JSON has no line end in it."""
    return f"id: {number}\nevent: {name}\ndata: {data}\n\n".encode()
