"""The sessions of legacy clients over HTTP, of all endpoints of a hub.

A session is in memory while it is used, and for five minutes after. Then it is dropped: its id is a sealed ticket, and
what changed during it is in the store, so that it is rebuilt when its client comes back, here or on another replica.
Its own connections to servers linger for a while. A session ends when its client ends it, when it idled for a day, or
after 30 days; an ended session stays ended, also for a request that was on its way when the end came.

What can happen at the same time: two requests bring an id that is not in memory, and both rebuild its session; an end
comes while one of them reads what is kept. So after the last wait of a rebuild everything is looked at again
(``HttpSessions.find``), and from there to the table of sessions nothing waits. An end is written first and then
carried out, so a request that comes in between finds it either in memory or in the store.

Use is counted in memory, and noted in the store once an hour: a note for each request would cost more than the request.
So what the store says may be an hour old, and a session ends late rather than early.

What must never happen: a session is rebuilt for another principal or endpoint than its own, or an ended one revives.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.access import Principal, PrincipalUse, QuotaExceeded, Quotas
from holdfast.core import question_number
from holdfast.endpoint import CHANGES_CLIENT, Broker, Client, Exchange, program_in
from holdfast.front.session_id import SessionIds, SessionTicket
from holdfast.front.session_store import NOTE_SECONDS, SessionRecord
from holdfast.front.streams import Backlog, EventLog, LogBounds, MessageStream

if TYPE_CHECKING:
    from holdfast.front.http import HttpEndpoint

__all__ = ["HttpSession", "HttpSessions"]

SESSION_IDLE_SECONDS = 300.0
"""A session without a stream and without a request is dropped from memory after this time, and rebuilt when used."""

SWEEP_SECONDS = 60.0
"""How often sessions are looked through for idle ones, and the times of last use are written."""

OPENING_SECONDS: Final = 5.0
"""How long a client may take to open its stream of notices, before it counts as having none."""

LOOKING_SECONDS: Final = 0.5
"""How often the other replicas are asked meanwhile whether it opened its stream there."""

EVICTED_SHARE = 10
"""One in so many idle sessions gives way at once where room is needed: they are not sorted for each new one."""


class HttpSession:
    """One legacy client. It is small: thousands of them may wait for clients that do not come back."""

    __slots__ = (
        "_opened", "_peers", "ended", "endpoint", "exchange", "header", "id", "keeps_lists", "listening_since", "log",
        "missed", "noted_at", "notices", "principal", "rebuilt", "serving", "stream_at", "ticket", "use", "used_at",
    )  # fmt: skip

    def __init__(
        self,
        sessions: HttpSessions,
        endpoint: HttpEndpoint,
        session_id: str,
        ticket: SessionTicket,
        principal: Principal,
        use: PrincipalUse,
    ) -> None:
        """``use`` counts it, until it is dropped."""
        self.endpoint: HttpEndpoint | None = endpoint
        """The one that it opens at, and no other; None once it ended."""
        self.id = session_id
        self.ticket = ticket
        self.header = b"mcp-session-id: " + session_id.encode("ascii") + b"\r\n"
        self.principal = principal
        self.use = use
        self._peers = endpoint.peers
        self.rebuilt = False
        """Whether it was rebuilt from its id, and its client has not been told yet what it may have missed."""
        self.missed = False
        """Whether a list or a resource changed while no stream was open here on which to tell it."""
        self.keeps_lists = False
        """Whether the store has the lists of its client, because it had a stream on which a change can be told."""
        self.noted_at = float(ticket.issued)
        """The time of last use that the store has."""
        tag = self._peers.tag if self._peers is not None else ""
        self.log = EventLog(sessions.bounds, ticket.id, tag)
        self.notices = MessageStream(self, None, sessions.backlog)
        self.used_at = asyncio.get_running_loop().time()
        self.serving = 0
        """How many HTTP requests of it are being served."""
        self.ended = False
        self._opened: asyncio.Future[None] | None = None
        self.listening_since = 0.0
        """When the stream of notices was opened here, on the monotonic clock."""
        self.stream_at = ""
        """The other replica that has the stream of notices, as far as it is known."""
        # Another process, or this one before the session idled, may have asked the same client: so the numbers of
        # questions begin anywhere. The tag says which replica asked.
        first = question_number(tag, secrets.randbits(31)) if tag else secrets.randbits(48)
        self.exchange = Exchange(
            endpoint.server,
            self.notices,
            era="legacy",
            owner=ticket.id,
            principal=principal,
            first_question=first,
            keep=partial(sessions.keep, self),
            roots=endpoint.roots_of(principal),
        )

    @property
    def client(self) -> Client:
        """Its client, which shook hands."""
        assert self.exchange.client is not None  # noqa: S101 - a session begins with the handshake
        return self.exchange.client

    @property
    def idle(self) -> bool:
        """Whether nothing of it is under way: no request, no stream, no question."""
        return not self.serving and not self.exchange.questions

    @property
    def listening(self) -> bool:
        """Whether its stream of notices is open."""
        return self.notices.is_open

    def opened(self) -> None:
        """The stream of notices is open."""
        self.listening_since = time.monotonic()
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)

    def deliver_elsewhere(self, message: bytes) -> None:
        """A notice for a client whose stream is not here; a hub that is alone keeps it in the log."""
        if self._peers is not None:
            self._peers.notices.deliver(self, message)

    async def is_listening_soon(self) -> bool:
        """Whether the client has its stream of notices open, here or on another replica; it may take a moment."""
        loop = asyncio.get_running_loop()
        until = loop.time() + OPENING_SECONDS
        while not self.listening:
            if self._peers is not None and await self._peers.notices.find(self):
                return True
            if loop.time() >= until:
                return False
            self._opened = loop.create_future()
            try:
                async with asyncio.timeout(LOOKING_SECONDS if self._peers is not None else OPENING_SECONDS):
                    await self._opened
            except TimeoutError:
                continue
        return True

    def end(self, *, lingering: bool) -> None:
        """It is over, or dropped from memory: nothing of it goes on. Its own connections may linger."""
        self.ended = True  # first: what the next lines end may look at it
        self.exchange.close("the session ended", lingering=lingering)
        self.end_notices()
        self.log.close()
        # Nothing refers back to it from here on, so its memory is free at once.
        self.notices.session, self._peers, self.endpoint = None, None, None

    def end_notices(self) -> None:
        """End the stream of notices; the client may open it again."""
        reply = self.notices.reply
        if reply is not None and not reply.done:
            reply.end()

    def __repr__(self) -> str:
        state = "ended" if self.ended else "idle" if self.idle else f"serving={self.serving}"
        return f"<HttpSession {self.ticket.id.hex()[:8]} of {self.principal.name} {state} listening={self.listening}>"


class HttpSessions:
    """The sessions that are in memory, and the way back of those that are not."""

    def __init__(
        self, broker: Broker, ids: SessionIds, *, bounds: LogBounds, backlog: Backlog, quotas: Quotas, has_peers: bool
    ) -> None:
        """With ``has_peers`` all lists of clients are kept: another replica may have to tell that one changed."""
        self._broker = broker
        self.ids = ids
        self.bounds = bounds
        self.backlog = backlog
        self._quotas = quotas
        self._keeps_all_lists = has_peers
        self._sessions: dict[str, HttpSession] = {}
        self._by_ticket: dict[bytes, HttpSession] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    # One comes.

    def begin(
        self,
        endpoint: HttpEndpoint,
        principal: Principal,
        version: str,
        capabilities: Mapping[str, Any],
        client_info: object,
    ) -> HttpSession | QuotaExceeded:
        """A new session, after a handshake."""
        use = self._quotas.begin_session(principal.name, self._make_room)
        if isinstance(use, QuotaExceeded):
            return use
        named = client_info if isinstance(client_info, Mapping) else {}
        session_id, ticket = self.ids.issue(
            endpoint=endpoint.label,
            principal=principal.name,
            version=version,
            client={key: value for key in ("name", "version") if isinstance(value := named.get(key), str)},
            capabilities=capabilities,
        )
        return self._add(endpoint, session_id, ticket, principal, use)

    async def find(
        self, endpoint: HttpEndpoint, session_id: str, principal: Principal
    ) -> HttpSession | QuotaExceeded | None:
        """The session of an id, rebuilt if it is not in memory; None if the id is not valid for this principal here."""
        if (known := self._sessions.get(session_id)) is not None:
            return known if known.principal.name == principal.name and known.endpoint is endpoint else None
        opened = await self.ids.open(session_id, endpoint=endpoint.label, principal=principal.name)
        if opened is None:
            return None
        ticket, record = opened
        listed = await self.ids.listed(ticket)
        # From here on nothing waits: no end of the session, and no second rebuild of it, can come between.
        if self.ids.has_ended(ticket):
            return None
        if session_id in self._sessions:  # another request was faster
            return await self.find(endpoint, session_id, principal)
        use = self._quotas.begin_session(principal.name, self._make_room)
        if isinstance(use, QuotaExceeded):
            return use
        session = self._add(endpoint, session_id, ticket, principal, use, rebuilt=True)
        session.client.listed = dict(listed) if listed is not None else None
        session.keeps_lists = listed is not None
        if record is not None:
            self.changed(ticket.id, record)
        return session

    def _add(
        self,
        endpoint: HttpEndpoint,
        session_id: str,
        ticket: SessionTicket,
        principal: Principal,
        use: PrincipalUse,
        *,
        rebuilt: bool = False,
    ) -> HttpSession:
        session = HttpSession(self, endpoint, session_id, ticket, principal, use)
        session.rebuilt = rebuilt
        program = program_in(ticket.client)
        client = session.exchange.begin(ticket.version, ticket.capabilities, program=program, rebuilt=rebuilt)
        client.home = ticket.home
        self._sessions[session_id] = self._by_ticket[ticket.id] = session
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        return session

    def _make_room(self, principal: str) -> None:
        """Drop the sessions of a principal that are idle longest."""
        idle = [one for one in self._sessions.values() if one.idle and one.principal.name == principal]
        idle.sort(key=lambda one: one.used_at)
        for one in idle[: len(idle) // EVICTED_SHARE + 1]:
            self.drop(one)

    # What is kept of one.

    def changed(self, session: bytes, record: SessionRecord) -> None:
        """What is kept of a session changed; if it is in memory, its log level and subscriptions follow."""
        if (one := self._by_ticket.get(session)) is not None:
            one.noted_at = max(one.noted_at, record.seen)
            if one.client.log_level != record.log_level:
                self._broker.servers.set_log_level(one.client, record.log_level)
            self._broker.servers.follow_subscriptions(one.client, record.subscribed)

    async def keep(self, session: HttpSession, method: str) -> None:
        """Write what a request changed, so that it outlives the process."""
        client = session.client
        if method in CHANGES_CLIENT:
            session.noted_at = self.ids.wall()
            await self.ids.keep(
                session.ticket,
                seen=session.noted_at,
                log_level=client.log_level,
                subscribed=frozenset(client.subscribed),
            )
        elif session.keeps_lists or self._keeps_all_lists:
            self.keep_lists(session)

    def keep_lists(self, session: HttpSession) -> None:
        """Write which lists a client has, in the background."""
        if session.client.listed is not None:
            session.keeps_lists = True
            self._broker.start(self.ids.keep_listed, session.ticket, dict(session.client.listed))

    # One goes.

    async def end(self, session: HttpSession) -> None:
        """Its client ended it: no hub with this store opens its id again."""
        await self.ids.end(session.ticket)  # first: a request that comes meanwhile must not rebuild it
        self.drop(session, released=True)

    def ended(self, session: bytes) -> None:
        """Another hub ended a session."""
        self.ids.ended(session)
        self._broker.hub.registry.clients.release(session)
        if (one := self._by_ticket.get(session)) is not None:
            self.drop(one, released=True)

    def drop(self, session: HttpSession, *, released: bool = False) -> None:
        """Forget a session. Unless it is over, its own connections stay for a while: it may come back."""
        if self._sessions.pop(session.id, None) is not None:
            self._by_ticket.pop(session.ticket.id, None)
            session.use.end_session()
        session.end(lingering=not released)

    def close(self, endpoint: HttpEndpoint | None = None) -> None:
        """Drop every session, or those of one endpoint: their streams end, and their ids stay valid."""
        for session in self.all():
            if endpoint is None or session.endpoint is endpoint:
                self.drop(session)
        if self._sweeper is not None and not self._sessions:
            self._sweeper.cancel()
            self._sweeper = None

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now, wall = loop.time(), self.ids.wall()
        to_note: list[Callable[[], Awaitable[None]]] = []
        for session in self.all():
            # Use is counted on the monotonic clock, and noted by the wall: other processes read the note.
            seen = wall if session.serving else wall - (now - session.used_at)
            if seen - session.noted_at > NOTE_SECONDS:
                session.noted_at = seen
                to_note.append(partial(self.ids.note, session.ticket, seen=seen))
                if session.listening and session.client.listed is not None:
                    to_note.append(partial(self.ids.keep_listed, session.ticket, session.client.listed))
            if self.ids.is_over(session.ticket):
                self.drop(session, released=True)
            elif session.idle and session.used_at < now - SESSION_IDLE_SECONDS:
                self.drop(session)
        if to_note:
            self._broker.start(_one_by_one, to_note)
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep) if self._sessions else None

    # All of them.

    def all(self) -> list[HttpSession]:
        """The sessions in memory."""
        return list(self._sessions.values())

    def in_use(self, endpoint: HttpEndpoint, session_id: str, principal: str) -> HttpSession | None:
        """A session of an endpoint that is in memory, if it is of this principal."""
        found = self._sessions.get(session_id)
        return found if found is not None and found.endpoint is endpoint and found.principal.name == principal else None


async def _one_by_one(work: list[Callable[[], Awaitable[None]]]) -> None:
    for one in work:
        await one()
