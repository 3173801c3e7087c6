"""The event stream: a follower receives each record, and the new view of a server after it changed.

Theory of operation. Records come in bursts of thousands, from inside a step of the hub; followers are slow, and may be
gone. So the two sides meet in one object for each follower (``_Follower``), which never makes the other side wait:

* A record is written once as JSON and appended to each follower's queue. The queue is bounded: over ``BACKLOG`` the
  oldest event is dropped, and ``missed`` tells the follower to read everything again.
* A view of a server is not queued. A record only marks the server as touched, and the view is made when it is sent. So
  a server that changes many times in a moment is sent once, in its last state, and a view is never older than the
  records before it. One server is sent at most every ``AGAIN_SECONDS``.
* Calls are not events: there are too many. They mark the server as active, and the follower gets a summary every
  ``ACTIVITY_SECONDS``, in parts where many servers were called: the picture of one takes 0.2 ms.

What must never happen: an event waits for a follower; an idle stream costs work (a server is viewed only after a record
named it); many views hold up the event loop (``AT_ONCE``); a follower stays in the set after its reader left.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count, islice
from typing import Any

import anyio
import anyio.lowlevel
from starlette.types import Receive

from holdfast.control.server.log_buffer import log_text
from holdfast.control.server.views import AT_ONCE, Views, change_of
from holdfast.core import Tripped, to_milliseconds
from holdfast.errors import UnknownServer
from holdfast.hub import (
    AccessChanged,
    BreakerChanged,
    CloseFailed,
    HubRecord,
    Published,
    RetryPlanned,
    ToolApproved,
    ToolChanged,
    Transition,
)

__all__ = ["EVENTS", "KEEP_ALIVE", "KEEP_ALIVE_SECONDS", "EventStream", "end_with_reader", "event_for", "frame"]

EVENTS: Mapping[str, str] = {
    "hello": "The first event: the hub itself, a HubView",
    "server": "A server after a change, a Server",
    "gone": "A server is no longer configured: {server}",
    "hub": "The hub itself after a change, a HubView: it drains, or its notice, the problem with its file or its "
    "joined clients changed",
    "activity": "Recent calls, every few seconds, of servers that had any: an Activity by server",
    "transition": "A server went from one state to another: {server, text} and a Change",
    "retry": "A reconnect is planned, after this delay at the latest: {server, attempt, delay, at, text}",
    "breaker": "A server's breaker opened or closed: {server, state, retry_in, failures, refused, at, text}",
    "access": "A server denies calls and its listing, or no longer does: {server, denied, reason, at, text}",
    "published": "The catalog changed: {server, version, kinds, at, text}",
    "close_failed": "An old connection did not close cleanly: {server, generation, error, at, text}",
    "tool_changed": "A tool, a prompt or the instructions changed since first seen: {server, tool, kind, new, "
    "held, at, text}",
    "tool_approved": "The change of one of these was approved: {server, tool, kind, at, text}",
    "missed": "The reader was too slow and missed events: {count}. Read everything again",
}
"""The events by name. ``text`` says in words what happened, as the log does; it is empty where the log has no line."""

KEEP_ALIVE = b": \n\n"
"""A comment that keeps the stream alive."""

KEEP_ALIVE_SECONDS = 15.0
BACKLOG = 1024
"""Events that wait for a slow reader; then the oldest are dropped."""

AGAIN_SECONDS = 0.2
"""The shortest time between two views of one server: no one reads faster."""

ACTIVITY_SECONDS = 2.0


class EventStream:
    """Receives every record and sends it to every follower."""

    def __init__(self, views: Views, *, wall: Callable[[], float]) -> None:
        self._views = views
        self._wall = wall
        self._followers: set[_Follower] = set()
        self._numbers = count(1)
        self._closed = False

    def handle(self, record: HubRecord) -> None:
        """Send a record to every follower."""
        if self._followers and (event := event_for(record, self._wall())) is not None:
            server, name, data = event
            rounded = {key: to_milliseconds(one) if isinstance(one, float) else one for key, one in data.items()}
            text = json.dumps(rounded, separators=(",", ":"))
            for follower in self._followers:
                follower.put(name, text)
                follower.touched(server)

    def gone(self, server: str) -> None:
        """A server is no longer configured."""
        for follower in self._followers:
            follower.gone(server)

    def called(self, server: str) -> None:
        """Calls of a server ended, here or in another worker."""
        for follower in self._followers:
            follower.called(server)

    def touched(self, server: str) -> None:
        """A server changed in a way that no record reports."""
        for follower in self._followers:
            follower.touched(server)

    def hub_changed(self) -> None:
        """The view of the hub itself changed."""
        for follower in self._followers:
            follower.put("hub", self._views.hub().model_dump_json())

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        for follower in self._followers:
            follower.came.set()

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Yield the stream for one follower, as bytes."""
        follower = _Follower()
        self._followers.add(follower)
        try:
            yield self._frame("hello", self._views.hub().model_dump_json())
            while True:
                if frames := b"".join(self._due(follower)):
                    yield frames
                    await anyio.lowlevel.checkpoint()  # calls of tools get a turn in between
                # Only when nothing is due: the last events of a hub that ends are still sent.
                elif self._closed:
                    return
                elif not await follower.news():
                    yield KEEP_ALIVE
        finally:
            self._followers.discard(follower)

    def _due(self, follower: _Follower) -> Iterator[bytes]:
        """Yield the due frames: records first, then the views of the servers that they named."""
        for name, data in follower.take():
            yield self._frame(name, data)
        now = anyio.current_time()
        for server in follower.to_show(now):
            try:
                yield self._frame("server", self._views.server(server).model_dump_json())
            except UnknownServer:  # it was removed meanwhile; `gone` reports that
                continue
        if active := follower.active_since(now):
            pictures = {server: self._views.activity(server) for server in active}
            shown = {server: one.model_dump(mode="json") for server, one in pictures.items() if one is not None}
            yield self._frame("activity", json.dumps(shown, separators=(",", ":")))

    def _frame(self, name: str, data: str) -> bytes:
        return frame(name, data, next(self._numbers))


class _Follower:
    """What waits for one follower."""

    def __init__(self) -> None:
        self.came = anyio.Event()
        self._waiting: deque[tuple[str, str]] = deque(maxlen=BACKLOG)
        self._missed = 0
        self._show_at: dict[str, float] = {}
        self._shown_at: dict[str, float] = {}
        self._active: set[str] = set()
        self._active_at = float("inf")
        self._summed: set[str] = set()
        """The servers of the summary that is sent now, some at a time."""

    def put(self, name: str, data: str) -> None:
        self._missed += len(self._waiting) == BACKLOG
        self._waiting.append((name, data))
        self.came.set()

    def touched(self, server: str) -> None:
        # Many changes at once are one view: a flapping server must not flood its watchers.
        if server not in self._show_at:
            self._show_at[server] = self._shown_at.get(server, float("-inf")) + AGAIN_SECONDS
            self.came.set()

    def gone(self, server: str) -> None:
        self._show_at.pop(server, None)
        # Else a server that is added again at once would be shown late.
        self._shown_at.pop(server, None)
        self._active.discard(server)
        self._summed.discard(server)
        self.put("gone", json.dumps({"server": server}))

    def called(self, server: str) -> None:
        """Note a call; the follower wakes only to set its timer."""
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
        """Return some of the due servers; the rest come next."""
        due = list(islice((server for server, at in self._show_at.items() if at <= now), AT_ONCE))
        for server in due:
            del self._show_at[server]
            self._shown_at[server] = now
        return due

    def active_since(self, now: float) -> list[str]:
        """Return some of the servers whose calls are due to be told; the rest come next.

        A server that is called again meanwhile waits for the next summary: else a busy hub would never be done.
        """
        if now >= self._active_at:
            self._summed |= self._active
            self._active, self._active_at = set(), float("inf")
        some = sorted(self._summed)[:AT_ONCE]
        self._summed.difference_update(some)
        return some

    async def news(self) -> bool:
        """Wait for the next event or timer; False after a long silence."""
        silent_at = anyio.current_time() + KEEP_ALIVE_SECONDS
        until = min((silent_at, self._active_at, *self._show_at.values()))
        with anyio.CancelScope(deadline=until):
            await self.came.wait()
        return until < silent_at or self.came.is_set()


_FIELDS: Mapping[type[HubRecord], tuple[str, tuple[str, ...]]] = {
    RetryPlanned: ("retry", ("attempt", "delay")),
    AccessChanged: ("access", ("denied", "reason")),
    Published: ("published", ("version", "kinds")),
    CloseFailed: ("close_failed", ("generation", "error")),
    ToolChanged: ("tool_changed", ("tool", "kind", "new", "held")),
    ToolApproved: ("tool_approved", ("tool", "kind")),
}
"""The records whose event is some of their fields: its name, and the fields."""


def event_for(record: HubRecord, at: float) -> tuple[str, str, dict[str, Any]] | None:
    """Return the server, name and data of a record's event; None if it has no event."""
    match record:
        case Transition():
            name, data = "transition", change_of(record, at).model_dump()
        case BreakerChanged(change=Tripped() as trip):
            state = {"state": "open", "retry_in": trip.retry_in, "failures": trip.failures}
            name, data = "breaker", {**state, "refused": trip.refused}
        case BreakerChanged(change=closed):
            name, data = "breaker", {"state": "closed", "retry_in": None, "failures": 0, "refused": closed.refused}
        case RetryPlanned() | AccessChanged() | Published() | CloseFailed() | ToolChanged() | ToolApproved():
            name, sent = _FIELDS[type(record)]
            data = {field: getattr(record, field) for field in sent}
        case _:
            return None
    line = log_text(record)  # a reader tells it in the words of the log
    return record.server, name, {"server": record.server, **data, "at": at, "text": line[2] if line else ""}


async def end_with_reader(receive: Receive, stream: anyio.CancelScope) -> None:
    """Cancel a stream when its reader leaves."""
    with suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
    stream.cancel()


def frame(name: str, data: str, number: int) -> bytes:
    """Return one event as bytes; JSON contains no line end."""
    return f"id: {number}\nevent: {name}\ndata: {data}\n\n".encode()
