"""The messages to HTTP clients: event streams, the log that resumes one that broke, and bounds on what is not read.

An answer is plain JSON. It becomes an event stream at the first message that precedes the result, or when the result
takes longer than 5 s (``requests.Reply``). Each event of a session has an id: the mark of its log, its number there,
and the request of its stream. With the last id that it saw a client comes back, and reads what followed (``EventLog``).

What must never happen: an event is sent twice on one stream, something follows the result, or a client that does not
read makes the hub hold more than its bounds (``Backlog``, ``LogBounds``). The one that reads least is cut off, and
comes back with the last event that it saw.

A client comes back by GET (``StreamOpener``). If the log here has its last event, the stream goes on from there. If
another replica has it, that one goes on with it. If no replica does, what the replicas shared of it is sent. What is
lost then is said: a request whose answer is lost gets an error, and for notices the client is told to list again what
may have changed meanwhile. A stream goes on only for a caller with the rights of the one that it was made for.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from mcp import MCPError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, ErrorData

from holdfast.endpoint import error_message, notice_message, result_message, result_pieces
from holdfast.fleet import SharedEvent, SharedEvents
from holdfast.front.requests import OutputBuffer, Reply, Request
from holdfast.keys import as_text, from_text
from holdfast.wire import Bytes, RawObject, loads

if TYPE_CHECKING:
    from holdfast.access import Principal
    from holdfast.front.http import HttpEndpoint
    from holdfast.front.session_store import HttpSession

__all__ = [
    "Backlog",
    "EventId",
    "EventLog",
    "LogBounds",
    "MessageStream",
    "StreamOpener",
]

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

CANCELLED: Final = ErrorData(code=-32800, message="Request cancelled")
"""What a legacy client's request ends with that it cancelled."""

TOLD_LATER: Final = (
    "notifications/tools/list_changed",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
    "notifications/resources/updated",
)
"""A client that had no stream when such a change happened learns of it when it opens one."""


# What clients have not read yet, and what they may ask for again.


@dataclass
class _Unread:
    """How much was not read, at how many connections."""

    connections: int = 0
    size: int = 0

    def exceeds(self, bound: int) -> bool:
        """One answer may be larger than a bound: the only reader is not cut off for the size of what it asked for."""
        return self.connections > 1 and self.size > bound


class Backlog:
    """What all clients together have not read, by the memory that it takes.

    Where it is too much, the client is cut off that has most of it unread.

    One event for a thousand clients that do not read is a thousand writes in one step of the event loop (SEC-7). So a
    write asks its own connection alone. The others count with what they had not read when they were asked last. All
    are asked again where these counts are over a bound, and after as many writes as there were connections: that
    takes out of the counts what was read meanwhile, and the connections that are gone.
    """

    def __init__(self, *, per_session: int = SESSION_UNREAD_BYTES, most: int = ALL_UNREAD_BYTES) -> None:
        self._per_session = per_session
        self._most = most
        # By connection: what its last reply has not sent is all that the connection has not sent.
        self._held: dict[OutputBuffer, tuple[Reply, object, int]] = {}
        # The sums of these: of each owner, and of all.
        self._owners: dict[object, _Unread] = {}
        self._all = _Unread()
        self._writes_left = 0
        """Until all connections are asked again."""

    def wrote(self, reply: Reply, owner: object) -> None:
        """Something was written; cut this reader off if it, or all together, are over a bound."""
        if self._held:
            self._drop(reply.out)
        if not reply.out.unread:
            return
        self._hold(reply, owner)
        self._writes_left -= 1
        if self._writes_left < 0 or self._owner_exceeds(owner) or self._all.exceeds(self._most):
            self._ask_all()
        if self._owner_exceeds(owner):
            self._cut(reply)
        while self._all.exceeds(self._most):
            most_behind, _, _ = max(self._held.values(), key=lambda held: held[0].out.unread)
            self._cut(most_behind)

    def _owner_exceeds(self, owner: object) -> bool:
        return owner in self._owners and self._owners[owner].exceeds(self._per_session)

    def _ask_all(self) -> None:
        for out, (reply, owner, _) in [*self._held.items()]:
            self._drop(out)
            if out.held and not out.lost:
                self._hold(reply, owner)
        self._writes_left = len(self._held)

    def _hold(self, reply: Reply, owner: object) -> None:
        size = reply.out.held
        self._held[reply.out] = reply, owner, size
        for one in (self._all, self._owners.setdefault(owner, _Unread())):
            one.connections += 1
            one.size += size

    def _drop(self, out: OutputBuffer) -> None:
        if out not in self._held:
            return
        _, owner, size = self._held.pop(out)
        for one in (self._all, self._owners[owner]):
            one.connections -= 1
            one.size -= size
        if not self._owners[owner].connections:
            del self._owners[owner]

    def _cut(self, reply: Reply) -> None:
        log.warning("a client does not read its answers: its connection is closed (%d bytes unread)", reply.out.held)
        self._drop(reply.out)
        reply.abort()


class LogBounds:
    """How much the event logs of all sessions may hold."""

    def __init__(self, most: int = ALL_LOGGED_BYTES, *, shared: SharedEvents | None = None) -> None:
        self._most = most
        self.shared = shared
        """Tells the other replicas; None for a hub that is alone."""
        # In order of age. The oldest one of a plain dict is behind the places of all that were removed before it.
        self._events: OrderedDict[_Event, None] = OrderedDict()
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


class _Event(msgspec.Struct, eq=False):
    log: EventLog
    number: int
    stream: MessageStream
    message: bytes


class EventLog:
    """What one session was sent on its streams, so that a stream that broke can be read on (``Last-Event-ID``)."""

    __slots__ = ("_bounds", "_events", "_held", "_mark", "_number", "_session")

    def __init__(self, bounds: LogBounds, session: bytes = b"", tag: str = "") -> None:
        self._bounds = bounds
        self._session = session
        self._events: OrderedDict[int, _Event] = OrderedDict()  # as in LogBounds
        self._number = 0
        self._held = 0
        self._mark = (tag or (bounds.shared.tag if bounds.shared is not None else "")) + secrets.token_hex(4)
        """Tells the events of this log from those of the same session in another process, or before it idled."""

    def add(self, stream: MessageStream, message: bytes, *, final: bool = False, private: bool = False) -> int:
        """Keep a message; the number of its event. An empty one marks where a stream begins.

        A ``private`` one is of use here alone: another replica could not take the answer to a question.
        """
        self._number += 1
        if self._bounds.shared is not None and not private:
            event = SharedEvent(self._number, _suffix(stream.request), final, bytes(message))
            self._bounds.shared.add(self._session, self._mark, event)
        kept = self._events[self._number] = _Event(self, self._number, stream, message)
        self._held += len(message)
        self._bounds.add(kept)
        while len(self._events) > LOGGED_EVENTS or (self._held > LOGGED_BYTES and len(self._events) > 1):
            self.drop(next(iter(self._events.values())))
        return self._number

    def event_id(self, stream: MessageStream, number: int) -> bytes:
        """The id of an event; it names the request of its stream, so that a client can be told what was lost."""
        return f"{self._mark}.{number}{_suffix(stream.request)}".encode()

    def stream_of(self, event_id: EventId) -> MessageStream | None:
        """The stream of an event; None if the event is not kept any more."""
        event = self._events.get(event_id.number) if event_id.mark == self._mark else None
        return event.stream if event is not None else None

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


_EVENT_ID: Final = re.compile(
    r"(?P<mark>(?P<tag>[0-9a-f]{5})?[0-9a-f]{8})\.(?P<number>[0-9]{1,15})(?P<call>\.[A-Za-z0-9_-]*)?"
)
_LONGEST_REQUEST_ID: Final = 96
"""Bytes. A longer one is not part of an event's id."""


class EventId(NamedTuple):
    """The id of an event in its parts. The event may be of another process, or of too long ago."""

    mark: str
    """The log that it is of."""
    tag: str
    """The replica that made it; empty for a hub that is alone."""
    number: int
    suffix: str
    """Names the request of its stream; empty for an event of the notices."""

    @classmethod
    def read(cls, written: str) -> EventId | None:
        """The parts of an id; None if it is not of our making."""
        found = _EVENT_ID.fullmatch(written)
        return cls(found["mark"], found["tag"] or "", int(found["number"]), found["call"] or "") if found else None

    @property
    def request(self) -> bytes | None:
        """The id of the request of its stream, as JSON; None if it is not known."""
        try:
            raw = from_text(self.suffix[1:]) or b""
            return raw if isinstance(loads(raw), str | int) else None
        except ValueError:
            return None


# A session and its streams.


class MessageStream(msgspec.Struct, eq=False):
    """The messages of one request, or a session's notices, on their way to the client.

    It is the ``MessageReply`` of the exchange. A request of the modern era has no session, and nothing of its stream
    is kept.
    """

    session: HttpSession | None
    reply: Reply | None
    """None when it is answered: the log keeps the stream, and a reply holds its request and its connection."""
    backlog: Backlog
    request: bytes | None = None
    """The id of the request; None for notices."""
    rights: str = ""
    """What its reader may see (``View.rights``); one who may see something else does not resume it."""
    _answered_whole: bool = False
    """Whether its client took no event stream, and has its answer."""
    done: bool = False

    # What precedes an answer, or belongs to none.

    @property
    def is_open(self) -> bool:
        """Whether the client reads it now."""
        return self.reply is not None and not self.reply.done and not self.reply.out.lost

    def tell(self, method: str, params: Mapping[str, Any] | None, *, everywhere: bool = False) -> None:
        """Send a notification; a client that takes no event stream gets the result alone.

        ``everywhere`` says that each replica learns of it, so that the one with the client's stream sends it too.
        """
        if method in TOLD_LATER and self.session is not None and self is self.session.notices:
            self.session.missed |= not self.is_open
        self.send(notice_message(method, params), everywhere=everywhere)

    async def reach(self, method: str) -> MessageStream:
        """The stream on which the client can be asked; only a session can be asked."""
        session, reply = self.session, self.reply
        if session is None or self._answered_whole or (reply is not None and not reply.streams):
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach the client: it takes no event stream")
        if self is not session.notices:
            # A call that was answered meanwhile has no stream any more: the client's own is left.
            return await session.notices.reach(method) if self.done else self
        if not await session.is_listening_soon():
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach the client: it has no notification stream open")
        return self

    def put_question(self, message: bytes) -> None:
        """Send a request of the hub. Another replica that resumes the stream has no use for it."""
        self.send(message, private=True)

    def send(self, message: bytes, *, everywhere: bool = False, private: bool = False) -> None:
        """A message that precedes the result; a notice goes to the replica that has the client's stream."""
        reply = self.reply
        if self.done or (reply is not None and not reply.streams):
            return
        # The stream begins before the event is logged: its first event must have the lower number.
        if reply is not None and not reply.out.lost:
            reply.begin()
        number = self._log(message, private=private)
        if reply is not None and not reply.done:
            reply.event(message, event_id=number)
            self.backlog.wrote(reply, self.session or reply)
        elif self.session is not None and self is self.session.notices and not everywhere:
            self.session.deliver_elsewhere(message)

    # The answer.

    def result(self, request_id: Bytes, result: RawObject | bytes) -> None:
        """The result; a large one goes out in the pieces that it came in."""
        large = isinstance(result, RawObject) and result.is_large
        self._finish((result_pieces if large else result_message)(request_id, result))

    def error(self, request_id: Bytes | None, error: ErrorData) -> None:
        """The error; over HTTP the modern era has a status for some of them."""
        of_code = ERROR_CODE_HTTP_STATUS.get(error.code, 200) if self.session is None else 200
        status = 400 if request_id is None else of_code
        self._finish(error_message(request_id, error), status=status, resumable=False)

    def cancelled(self, request_id: Bytes) -> None:
        """The client gave the request up. A legacy client gets an error: its stream would not end otherwise."""
        if self.session is None:
            self.done = True
            return
        if self.reply is not None and self.reply.streams:
            self.reply.begin()  # a client that leaves takes a plain answer to a request that it gave up for a fault
        self._finish(error_message(request_id, CANCELLED), resumable=False)

    def _finish(self, message: bytes | list[Bytes], *, status: int = 200, resumable: bool = True) -> None:
        """The last message, which may be in pieces.

        A client of the first TypeScript SDK resumes after an error that has an event id: so an error has none.
        """
        reply = self.reply
        if self.done or reply is None:
            return
        self.done = True
        if reply.started:
            whole = b"".join(message) if isinstance(message, list) else message
            reply.result(whole, event_id=self._log(whole, final=True) if resumable else b"")
        elif not reply.done:
            # A plain answer is not logged: it goes out whole, or its client never had an event to come back with.
            reply.plain(status, message)
        self.backlog.wrote(reply, self.session or reply)
        self._answered_whole = not reply.streams
        self.reply = None

    # A stream that broke.

    def resume(self, reply: Reply, after: int) -> None:
        """Go on at another connection: first what was missed, then what comes."""
        session = self.session
        assert session is not None  # noqa: S101 - only a session has a log
        before, self.reply = self.reply, reply
        if before is not None and before is not reply and not before.done:
            before.end()
        for number, message in session.log.after(self, after):
            reply.event(message, event_id=session.log.event_id(self, number))
        if self.done:
            reply.end()
            self.reply = None

    def prime(self) -> bytes:
        """The first event, which says where the stream can be resumed."""
        session = self.session
        if session is None or session.ticket.version < PRIMED_SINCE:
            return b""
        first = session.log.event_id(self, session.log.add(self, b""))
        return b"id: %b\nretry: %d\ndata: \n\n" % (first, RETRY_MILLISECONDS)

    def _log(self, message: bytes, *, final: bool = False, private: bool = False) -> bytes:
        if self.session is None:
            return b""
        events = self.session.log
        return events.event_id(self, events.add(self, message, final=final, private=private))

    def __repr__(self) -> str:
        what = "notices" if self.session is not None and self is self.session.notices else "request"
        state = "done" if self.done else "open" if self.is_open else "waiting"
        return f"<MessageStream {what}{_suffix(self.request)} {state}>"


@lru_cache(maxsize=256)
def _suffix(request: bytes | None) -> str:
    """What an event's id says about its stream: nothing for notices, else the id of the request."""
    if request is None:
        return ""
    return "." + (as_text(request) if len(request) <= _LONGEST_REQUEST_ID else "")


# A stream that is opened, or goes on.


ANSWER_LOST: Final = ErrorData(
    code=INTERNAL_ERROR,
    message="the answer to this request is lost: the hub was restarted, its events are no longer kept, or they were "
    "for a caller with other rights. "
    "Whether the server carried the request out is not known.",
)


class StreamOpener:
    """Opens and resumes the streams of one endpoint."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self._endpoint = endpoint
        self._ids = endpoint.sessions.ids

    async def open(self, request: Request, reply: Reply, session: HttpSession) -> bool:
        """Serve a stream until it ends; False if the session has its stream of notices already."""
        given, peers = request.headers.get("last-event-id"), self._endpoint.peers
        last = EventId.read(given) if given is not None else None
        rights = session.client.view.seen_by(request.principal).rights
        stream = session.log.stream_of(last) if last is not None else None
        if last is not None and stream is None and peers is not None and await peers.resume(last.tag, request, reply):
            return True
        reply.wait_for_result(session.header)
        reply.streams = True  # not before: no stream begins by itself, as it may be refused still
        if stream is not None and stream.rights != rights:
            stream = None  # what it says was for other eyes: another token of the principal, or other rules
        if last is not None and stream is not None:
            reply.begin()
            stream.resume(reply, last.number)
            if stream is session.notices:
                session.missed = False  # it was in what followed
                session.opened(request.principal)
        elif given is None or (last is not None and not last.suffix):
            if not await self._open_notices(session, last, request.principal, reply):
                return False
        else:
            reply.begin()
            if last is not None:
                await self._resume_lost(session, last, rights, reply)
            reply.end()
        await reply.ended()
        return True

    async def _open_notices(
        self, session: HttpSession, lost: EventId | None, principal: Principal, reply: Reply
    ) -> bool:
        rights = session.client.view.seen_by(principal).rights
        missed = [event async for event in self._shared(session, lost, rights, reply)] if lost is not None else []
        # From here on nothing waits. Another credential that finds the stream open must not change for whom it is.
        if session.listening or session.ended:
            return False
        session.notices.reply, session.notices.rights = reply, rights
        reply.begin()
        for event_id, event in missed:
            reply.event(event.message, event_id=event_id)
        session.opened(principal)
        if session.rebuilt or session.missed or lost is not None:
            session.rebuilt = session.missed = False
            self._endpoint.server.broker.start(self._tell_missed, session)
        self._endpoint.sessions.keep_lists(session)
        return True

    async def _tell_missed(self, session: HttpSession) -> None:
        """Let a client list and read again what may have changed while it could not be told."""
        client = session.client
        # Another worker may have given out a list: the file has what all of them gave out.
        listed = client.listed if self._endpoint.peers is None else await self._ids.listed(session.ticket)
        await self._endpoint.server.of(client.principal).own.tell_missed(client, listed)

    async def _resume_lost(self, session: HttpSession, lost: EventId, rights: str, reply: Reply) -> None:
        """Send what followed in the stream of a request on another replica; or that its answer is lost."""
        async for event_id, event in self._shared(session, lost, rights, reply):
            reply.event(event.message, event_id=event_id)
            if event.final:
                return
        if lost.request is not None:
            reply.event(error_message(lost.request, ANSWER_LOST))

    async def _shared(
        self, session: HttpSession, lost: EventId, rights: str, reply: Reply
    ) -> AsyncIterator[tuple[bytes, SharedEvent]]:
        """The events of a stream that another replica had, with their ids, as far as the replicas share them."""
        if self._ids.events is None or rights:
            return  # whose rights these events were for is not known
        following = self._ids.events.follow(
            session.ticket.id,
            lost.mark,
            lost.suffix,
            after=lost.number,
            wanted=lambda: not reply.out.lost and not session.ended,
        )
        async for event in following:
            yield f"{lost.mark}.{event.number}{lost.suffix}".encode(), event
