"""The messages to HTTP clients: streams, the log that resumes one that broke, and bounds on what is not read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from mcp import MCPError
from mcp_types import INVALID_REQUEST

from holdfast.front.inbound import notice_message
from holdfast.front.requests import Reply

if TYPE_CHECKING:
    from holdfast.front.sessions import HttpSession

__all__ = ["Backlog", "EventLog", "LogBounds", "MessageStream"]

log = logging.getLogger("holdfast.front")

RETRY_MILLISECONDS: Final = 1_000
"""How soon a client whose stream was cut is asked to come back."""

PRIMED_SINCE: Final = "2025-11-25"
"""From this version on a client understands an event without data, which tells where a stream can be resumed."""

LOGGED_EVENTS, LOGGED_BYTES = 1_000, 4 * 1024 * 1024
"""How much of what a client was sent is kept for it, should its stream break."""

ALL_LOGGED_BYTES: Final = 64 * 1024 * 1024
SESSION_UNREAD_BYTES: Final = 32 * 1024 * 1024
ALL_UNREAD_BYTES: Final = 256 * 1024 * 1024


# What clients have not read yet, and what they may ask for again.


class Backlog:
    """What all clients together have not read; the one that reads least is cut off where it is too much."""

    def __init__(self, *, per_session: int = SESSION_UNREAD_BYTES, most: int = ALL_UNREAD_BYTES) -> None:
        self._per_session = per_session
        self._most = most
        self._unread: dict[Reply, object] = {}

    def wrote(self, reply: Reply, owner: object) -> None:
        """Something was written; cut this reader off if it, or all together, are over a bound."""
        if reply.unread == 0:
            self._unread.pop(reply, None)
            return
        self._unread[reply] = owner
        for one in [one for one in self._unread if one.lost or one.unread == 0]:
            del self._unread[one]
        own = [one for one, whose in self._unread.items() if whose is owner]
        if len(own) > 1 and sum(one.unread for one in own) > self._per_session:
            self._cut(reply)
        while len(self._unread) > 1 and sum(one.unread for one in self._unread) > self._most:
            self._cut(max(self._unread, key=lambda one: one.unread))

    def _cut(self, reply: Reply) -> None:
        log.warning("a client does not read its answers: its connection is closed (%d bytes unread)", reply.unread)
        self._unread.pop(reply, None)
        reply.abort()


class LogBounds:
    """How much the event logs of all sessions may hold."""

    def __init__(self, most: int = ALL_LOGGED_BYTES) -> None:
        self._most = most
        self._events: dict[_Event, None] = {}
        self.held = 0
        """Bytes, as they go over the wire."""

    def add(self, event: _Event) -> None:
        """One more; the oldest of all give way to it."""
        self._events[event] = None
        self.held += len(event.message)
        while self.held > self._most and len(self._events) > 1:
            oldest = next(iter(self._events))
            oldest.log.drop(oldest)

    def remove(self, event: _Event) -> None:
        """One less."""
        del self._events[event]
        self.held -= len(event.message)


class _Event:
    __slots__ = ("log", "message", "number", "stream")

    def __init__(self, log: EventLog, number: int, stream: MessageStream, message: bytes) -> None:
        self.log = log
        self.number = number
        self.stream = stream
        self.message = message


class EventLog:
    """What one session was sent on its streams, so that a stream that broke can be read on (``Last-Event-ID``)."""

    def __init__(self, bounds: LogBounds) -> None:
        self._bounds = bounds
        self._events: dict[int, _Event] = {}
        self._number = 0
        self._held = 0

    def add(self, stream: MessageStream, message: bytes) -> int:
        """Keep a message; the number of its event. An empty one marks where a stream begins."""
        self._number += 1
        event = self._events[self._number] = _Event(self, self._number, stream, message)
        self._held += len(message)
        self._bounds.add(event)
        while len(self._events) > LOGGED_EVENTS or (self._held > LOGGED_BYTES and len(self._events) > 1):
            self.drop(next(iter(self._events.values())))
        return self._number

    def stream_of(self, event_id: str) -> tuple[MessageStream, int] | None:
        """The stream of an event, and the event's number; None if it is not kept any more."""
        known = event_id.isascii() and event_id.isdigit() and len(event_id) < 20
        event = self._events.get(int(event_id)) if known else None
        return (event.stream, event.number) if event is not None else None

    def after(self, stream: MessageStream, number: int) -> Iterator[tuple[int, bytes]]:
        """What followed on the same stream."""
        for event in list(self._events.values()):
            if event.number > number and event.stream is stream and event.message:
                yield event.number, event.message

    def drop(self, event: _Event) -> None:
        """Forget one."""
        del self._events[event.number]
        self._held -= len(event.message)
        self._bounds.remove(event)

    def close(self) -> None:
        """Forget all."""
        for event in list(self._events.values()):
            self.drop(event)


# A session and its streams.


class MessageStream:
    """The messages of one request, or a session's notices, on their way to the client. A ``Channel``."""

    __slots__ = ("backlog", "done", "logged", "reply", "session")

    def __init__(self, session: HttpSession | None, reply: Reply | None, backlog: Backlog) -> None:
        self.session = session
        self.reply = reply
        self.backlog = backlog
        self.logged = False
        self.done = False
        if reply is not None and session is not None:
            reply.on_stream = self._prime

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification; a client that takes no event stream gets the result alone."""
        self.send(notice_message(method, params))

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """The client's answer; only a session can be asked."""
        if self.session is None or (self.reply is not None and not self.reply.streams):
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach the client: it takes no event stream")
        # A call that was answered meanwhile has no stream any more: the client's own is left.
        return await self.session.ask(self.session.notices if self.done else self, method, params)

    def send(self, message: bytes) -> None:
        """A message that precedes the result."""
        reply = self.reply
        if self.done or (reply is not None and not reply.streams):
            return
        if reply is not None and not reply.started and not reply.lost:
            reply.begin()
        number = self._log(message)
        if reply is not None and not reply.done:
            reply.event(message, event_id=number)
            self.backlog.wrote(reply, self.session or reply)

    def finish(self, message: bytes, *, status: int = 200, resumable: bool = True) -> None:
        """The result. A client of the first TypeScript SDK resumes after an error that has an event id."""
        if self.done:
            return
        reply = self.reply
        number = self._log(message) if resumable and reply is not None and reply.started else b""
        self.done = True
        if reply is not None and not reply.done:
            reply.result(message, status=status, event_id=number)
            self.backlog.wrote(reply, self.session or reply)

    def resume(self, reply: Reply, after: int) -> None:
        """Go on at another connection: first what was missed, then what comes."""
        session = self.session
        assert session is not None  # noqa: S101 - only a session has a log
        before, self.reply = self.reply, reply
        if before is not None and before is not reply and not before.done:
            before.end()
        for number, message in session.log.after(self, after):
            reply.event(message, event_id=b"%d" % number)
        if self.done:
            reply.end()

    def _prime(self) -> bytes:
        """The first event, which says where the stream can be resumed."""
        session = self.session
        if session is None or session.version < PRIMED_SINCE:
            return b""
        self.logged = True
        return b"id: %d\nretry: %d\ndata: \n\n" % (session.log.add(self, b""), RETRY_MILLISECONDS)

    def _log(self, message: bytes) -> bytes:
        return b"%d" % self.session.log.add(self, message) if self.session is not None else b""
