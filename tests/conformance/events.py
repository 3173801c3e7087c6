"""A memory of sent events, so that a client can come back to a stream that broke or was closed."""

from __future__ import annotations

import itertools

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCMessage

__all__ = ["MemoryEventStore"]


class MemoryEventStore(EventStore):
    """Keeps everything: a fixture's life is short."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._events: list[tuple[str, str, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Remember a message of a stream; gives the event's id."""
        event_id = str(next(self._ids))
        self._events.append((event_id, stream_id, message))
        return event_id

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send again what followed the event in its own stream."""
        stream_id = next((stream for event, stream, _ in self._events if event == last_event_id), None)
        for event_id, stream, message in list(self._events):
            if stream == stream_id and int(event_id) > int(last_event_id) and message is not None:
                await send_callback(EventMessage(message, event_id))
        return stream_id
