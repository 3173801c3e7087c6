"""Recent events of legacy sessions, so that a client whose stream broke can resume it (``Last-Event-ID``).

Each session has its own log: a stream is named by the id of its request, and every client counts from one, so a
shared log would give one client's answers to another. A resumed stream follows its log until the answer is sent,
so no event is lost in between. All logs together stay within bounds: the oldest events are dropped, and a client
that asks for dropped events gets none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import anyio
from mcp.server.streamable_http import GET_STREAM_KEY, EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

__all__ = ["EventLog", "ReplayBudget"]

SESSION_EVENTS = 1_000
SESSION_BYTES = 4 * 1024 * 1024
LONGEST_ID = 19
ALL_BYTES = 64 * 1024 * 1024


@dataclass(eq=False)
class _Event:
    log: EventLog
    number: int
    stream: str
    message: JSONRPCMessage | None
    size: int

    @property
    def is_answer(self) -> bool:
        return isinstance(self.message, JSONRPCResponse | JSONRPCError) and self.stream != GET_STREAM_KEY


class ReplayBudget:
    """The bound on the events of all sessions of a hub."""

    def __init__(self, most: int = ALL_BYTES) -> None:
        self._most = most
        self._events: dict[_Event, None] = {}
        self.held = 0
        """Bytes on the wire."""

    def add(self, event: _Event) -> None:
        """Add an event; drop the oldest of all sessions if the bound is exceeded."""
        self._events[event] = None
        self.held += event.size
        while self.held > self._most and len(self._events) > 1:
            oldest = next(iter(self._events))
            oldest.log.drop(oldest)

    def remove(self, event: _Event) -> None:
        """Remove an event."""
        del self._events[event]
        self.held -= event.size


class EventLog(EventStore):
    """One session's log; ``on_follow`` gets 1 when a client resumes its notification stream, and -1 when that ends."""

    def __init__(self, bounds: ReplayBudget, on_follow: Callable[[int], None]) -> None:
        self._bounds = bounds
        self._on_follow = on_follow
        self._events: dict[int, _Event] = {}
        self._number = 0
        self._held = 0
        self._came = anyio.Event()
        self._closed = False

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store a message (None marks the start of a stream) and return the event's id."""
        size = len(message.model_dump_json(by_alias=True, exclude_unset=True)) if message is not None else 0
        self._number += 1
        if not self._closed:
            event = self._events[self._number] = _Event(self, self._number, stream_id, message, size)
            self._held += size
            self._bounds.add(event)
            while len(self._events) > SESSION_EVENTS or (self._held > SESSION_BYTES and len(self._events) > 1):
                self.drop(next(iter(self._events.values())))
        self._wake()
        return str(self._number)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send the later events of the same stream, and follow it until its answer.

        It returns None, not the stream's name: the SDK would then follow the stream itself and miss events between.
        """
        known = last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < LONGEST_ID
        start = self._events.get(int(last_event_id)) if known else None
        if start is None or start.is_answer:
            return None
        watching = start.stream == GET_STREAM_KEY
        self._on_follow(watching)
        try:
            await self._follow(start, send_callback)
        finally:
            self._on_follow(-watching)
        return None

    def drop(self, event: _Event) -> None:
        """Drop one event."""
        del self._events[event.number]
        self._held -= event.size
        self._bounds.remove(event)

    def close(self) -> None:
        """End the session: drop all events."""
        self._closed = True
        for event in list(self._events.values()):
            self.drop(event)
        self._wake()

    async def _follow(self, start: _Event, send: EventCallback) -> None:
        reached = start.number
        while not self._closed:
            came = self._came
            for event in [one for one in self._events.values() if one.number > reached and one.stream == start.stream]:
                reached = event.number
                if event.message is not None:
                    await send(EventMessage(event.message, str(event.number)))
                if event.is_answer:
                    return
            await came.wait()

    def _wake(self) -> None:
        self._came.set()
        self._came = anyio.Event()
