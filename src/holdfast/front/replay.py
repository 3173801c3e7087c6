"""What legacy clients were sent lately, so that one whose stream broke can come back and read on (``Last-Event-ID``).

Each session has a log of its own: a stream is known by the id of its request, which every client counts from one,
so a log that sessions share would give one client's answers to another. A log is read on from where its reader was
until the answer is out, so nothing that comes while somebody reads is missed. All logs together stay within bounds:
the oldest messages give way, and a client that comes back for those is not helped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import anyio
from mcp.server.streamable_http import GET_STREAM_KEY, EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

__all__ = ["Bounds", "EventLog"]

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


class Bounds:
    """How much all logs of a hub may hold."""

    def __init__(self, most: int = ALL_BYTES) -> None:
        self._most = most
        self._events: dict[_Event, None] = {}
        self.held = 0
        """Bytes, as they go over the wire."""

    def add(self, event: _Event) -> None:
        """One more; the oldest of all give way to it."""
        self._events[event] = None
        self.held += event.size
        while self.held > self._most and len(self._events) > 1:
            oldest = next(iter(self._events))
            oldest.log.drop(oldest)

    def remove(self, event: _Event) -> None:
        """One less."""
        del self._events[event]
        self.held -= event.size


class EventLog(EventStore):
    """One session's log; ``standing`` is told when somebody begins (1) and ends (-1) to read its stream of notices."""

    def __init__(self, bounds: Bounds, standing: Callable[[int], None]) -> None:
        self._bounds = bounds
        self._standing = standing
        self._events: dict[int, _Event] = {}
        self._number = 0
        self._held = 0
        self._came = anyio.Event()
        self._closed = False

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Remember a message, or with None the beginning of a stream; the event's id."""
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
        """Send all that followed in the event's own stream, and go on with what comes, until the stream's answer.

        Never the stream's name: the SDK would then go on by itself, and miss what came in between.
        """
        known = last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < LONGEST_ID
        begun = self._events.get(int(last_event_id)) if known else None
        if begun is None or begun.is_answer:
            return None
        watching = begun.stream == GET_STREAM_KEY
        self._standing(watching)
        try:
            await self._follow(begun, send_callback)
        finally:
            self._standing(-watching)
        return None

    def drop(self, event: _Event) -> None:
        """Forget one."""
        del self._events[event.number]
        self._held -= event.size
        self._bounds.remove(event)

    def close(self) -> None:
        """The session is over: forget all."""
        self._closed = True
        for event in list(self._events.values()):
            self.drop(event)
        self._wake()

    async def _follow(self, begun: _Event, send: EventCallback) -> None:
        reached = begun.number
        while not self._closed:
            came = self._came
            for event in [one for one in self._events.values() if one.number > reached and one.stream == begun.stream]:
                reached = event.number
                if event.message is not None:
                    await send(EventMessage(event.message, str(event.number)))
                if event.is_answer:
                    return
            await came.wait()

    def _wake(self) -> None:
        self._came.set()
        self._came = anyio.Event()
