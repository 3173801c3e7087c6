"""The sessions of legacy clients over HTTP: those in memory, and what is kept of each for when it comes back.

A session is in memory while it is used, and for five minutes after. Then it is dropped: its id is a sealed ticket
(``session_id``), and what changed during it is in the store, so that it is rebuilt when its client comes back, here or
on another replica. Its own connections to servers linger for a while. A session ends when its client ends it, when it
idled for a day, or after 30 days; an ended session stays ended, also for a request that was on its way when the end
came.

**In memory** (``HttpSessions``). What can happen at the same time: two requests bring an id that is not in memory, and
both rebuild its session; an end comes while one of them reads what is kept. So after the last wait of a rebuild
everything is looked at again (``HttpSessions.find``), and from there to the table of sessions nothing waits. An end is
written first and then carried out, so a request that comes in between finds it either in memory or in the store.

Use is counted in memory, and noted in the store once an hour: a note for each request would cost more than the request.
So what the store says may be an hour old, and a session ends late rather than early.

**What is kept** (``SessionStore``): when a session was seen, its end, log level, subscriptions. A ticket cannot be
changed once its client has it, so this is kept beside it. An end is never taken back, in memory, in the file and
between hubs that share the file. What could not be written stays in memory and goes with the next write; a write is one
transaction. It is a file that the hubs of one configuration share, written row by row; without a file it stays in
memory. A session leaves a row only when it has something to keep: it lived for an hour, set its log level, subscribed
to a resource, or was ended. A row goes when its session would have expired.

Kept too is the digest of each list that a client with a stream of notices was given: after a restart the hub announces
a changed list only if it did change. That is kept on this machine alone, and for as long as an idle session lives.

``FleetSessions`` is the same store in a fleet: what one replica knows about a session, all of them know within a
second. Nothing waits for the fleet's store: a change goes out with the next exchange, and every replica has a copy of
all states, so a session is rebuilt without a question to anyone. The store is not trusted with the content: it is
sealed with a key that is derived for each session from the session key. The file of this machine keeps the same.

What must never happen: a session is rebuilt for another principal or endpoint than its own, or an ended one revives.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import anyio
import anyio.to_thread
import msgspec

from holdfast.access import Principal, PrincipalUse, QuotaExceeded, Quotas
from holdfast.core import question_number
from holdfast.endpoint import CHANGES_CLIENT, Broker, Exchange, program_in
from holdfast.files import FileStamp, file_stamp, private_folder, set_aside_once
from holdfast.fleet import SESSION_PURPOSE, Fleet
from holdfast.front.streams import Backlog, EventLog, LogBounds, MessageStream
from holdfast.hub import sleep_until_poll, stamps

if TYPE_CHECKING:
    from holdfast.front.http import HttpEndpoint
    from holdfast.front.session_id import SessionIds, SessionKeys, SessionTicket

__all__ = [
    "IDLE_SECONDS",
    "MOST_ENDED",
    "NOTE_SECONDS",
    "SESSION_SECONDS",
    "FleetSessions",
    "HttpSession",
    "HttpSessions",
    "SessionRecord",
    "SessionStore",
]

log = logging.getLogger("holdfast.front")

T = TypeVar("T")

IDLE_SECONDS: Final = 24 * 3600.0
"""A session that is not used for this long is over."""

SESSION_SECONDS: Final = 30 * 24 * 3600.0
"""No session lives longer."""

NOTE_SECONDS = 3_600.0
"""How far a stored time of last use may lag behind: a session in use costs one write an hour."""

POLL_SECONDS = 0.5
BUSY_SECONDS = 5.0
PRUNE_SECONDS = 3_600.0
MOST_ENDED = 10_000
"""How many ended sessions are remembered beside the store, so that no rebuild under way revives one. Clients may end
any number of them in the 30 days for which the file knows each (SEC-11)."""
MOST_IN_MEMORY = 100_000
"""Rows, for a hub without a file or with one that fails. The oldest give way."""


@dataclass(frozen=True, kw_only=True)
class SessionRecord:
    """What is kept of one session."""

    until: float
    """When the session expires at the latest, and the row with it."""
    seen: float
    """When it was used; up to an hour before its last use."""
    ended: bool = False
    log_level: str | None = None
    subscribed: frozenset[tuple[str, str]] = frozenset()
    """Server and original URI of each resource."""


_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    id BLOB PRIMARY KEY, until REAL NOT NULL, seen REAL NOT NULL, ended INTEGER NOT NULL, log_level TEXT,
    subscribed TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS sessions_until ON sessions (until);
CREATE INDEX IF NOT EXISTS sessions_ended ON sessions (seen) WHERE ended;
CREATE TABLE IF NOT EXISTS listed (id BLOB PRIMARY KEY, until REAL NOT NULL, lists TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS listed_until ON listed (until);
"""
"""The lists have a table of their own: an earlier version that shares the file writes rows of the other one."""
_WRITE_LISTED = """
INSERT INTO listed VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET
    until = max(until, excluded.until), lists = json_patch(lists, excluded.lists)
"""
"""Workers share the file, and a list may be given out by one that has not given out the others."""
_WRITE = """
INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
    seen = max(seen, excluded.seen), ended = max(ended, excluded.ended),
    log_level = excluded.log_level, subscribed = excluded.subscribed
"""


class SessionStore:
    """The records of sessions by their 16 bytes of id, and the lists of their clients.

    If the file fails, this process goes on with what it knows: what it could not write waits in memory.
    """

    def __init__(self, file: Path | None = None, *, wall: Callable[[], float] = time.time) -> None:
        self.file = file
        self._wall = wall
        self.records: dict[bytes, SessionRecord] = {}
        """Those that are not in the file."""
        self.lists: dict[bytes, tuple[float, Mapping[str, str]]] = {}
        """The same of the lists of each session's client, with the time until when they are kept."""
        self._ended: set[bytes] = set()
        self._pruned = 0.0
        self._writing = anyio.Lock()

    @property
    def shared(self) -> bool:
        """Whether every hub with the session key uses this store. One on another machine may have the key too."""
        return False

    async def load(self, session: bytes) -> SessionRecord | None:
        """The record of a session, or None; None too if the file cannot be read, which is logged."""
        unwritten = self.records.get(session)
        if unwritten is not None or self.file is None:
            return unwritten
        query = "SELECT until, seen, ended, log_level, subscribed FROM sessions WHERE id = ?"
        return await anyio.to_thread.run_sync(_read, self.file, query, session, _record)

    async def save(self, session: bytes, record: SessionRecord) -> None:
        """Keep a record: at once in memory, in the file when this returns. An ended session stays ended."""
        known = self.records.pop(session, None)  # and is put last: the oldest gives way where there are too many
        self.records[session] = known if known is not None and known.ended else record
        await self._write_pending()

    async def load_listed(self, session: bytes) -> Mapping[str, str] | None:
        """The lists that a session's client has, as digests by method; None if it is not known."""
        _, unwritten = self.lists.get(session, (0.0, None))
        if self.file is None:
            return unwritten
        query = "SELECT lists FROM listed WHERE id = ?"
        written = await anyio.to_thread.run_sync(_read, self.file, query, session, _lists)
        return written if unwritten is None else {**(written or {}), **unwritten}

    async def save_listed(self, session: bytes, listed: Mapping[str, str], *, until: float) -> None:
        """Keep the lists that a client has, until a time; other lists that are kept for it stay."""
        _, before = self.lists.pop(session, (0.0, {}))
        self.lists[session] = until, {**before, **listed}
        await self._write_pending()

    async def _write_pending(self) -> None:
        """Write all that waits, in one transaction: what came while the last write was under way goes together."""
        for unwritten in (self.records, self.lists):
            while len(unwritten) > MOST_IN_MEMORY:
                del unwritten[next(iter(unwritten))]
        if self.file is None:
            return
        with anyio.CancelScope(shield=True):  # a write that began is short, and its outcome must be known
            async with self._writing:
                records, lists = dict(self.records), dict(self.lists)
                waits = bool(records or lists)
                if waits and await anyio.to_thread.run_sync(self._write, self.file, records, lists):
                    # What was changed meanwhile is another object, and waits for the next write.
                    self.records = {key: one for key, one in self.records.items() if records.get(key) is not one}
                    self.lists = {key: one for key, one in self.lists.items() if lists.get(key) is not one}

    async def run(self, on_ended: Callable[[bytes], None], on_changed: Callable[[bytes, SessionRecord], None]) -> None:
        """Report sessions that another hub ended or, where the store can tell, changed, until cancelled."""
        stamp: FileStamp = None
        while self.file is not None:
            (now,) = await stamps(self.file)
            if now != stamp and (ended := await anyio.to_thread.run_sync(_last_ended, self.file)) is not None:
                stamp = now
                for session in ended - self._ended:
                    on_ended(session)
                self._ended = ended
            await sleep_until_poll(POLL_SECONDS)

    def _write(
        self, file: Path, records: dict[bytes, SessionRecord], listed: dict[bytes, tuple[float, Mapping[str, str]]]
    ) -> bool:
        rows = [
            (key, one.until, one.seen, one.ended, one.log_level, json.dumps(sorted(one.subscribed)))
            for key, one in records.items()
        ]
        seen = file_stamp(file)
        try:
            private_folder(file.parent)
            with closing(_open(file)) as database, database:
                database.executemany(_WRITE, rows)
                lists = [(key, until, json.dumps(dict(lists))) for key, (until, lists) in listed.items()]
                database.executemany(_WRITE_LISTED, lists)
                if (now := self._wall()) > self._pruned + PRUNE_SECONDS:
                    self._pruned = now
                    database.execute("DELETE FROM sessions WHERE until < ?", (now,))
                    database.execute("DELETE FROM listed WHERE until < ?", (now,))
        except (sqlite3.Error, OSError) as exc:
            _failed(file, "written", seen, exc)
            return False
        return True


def _read(file: Path, query: str, session: bytes, made_of: Callable[..., T]) -> T | None:
    """What a row of a session says; None if there is none, or the file cannot be read."""
    seen = file_stamp(file)
    try:
        if not file.exists():
            return None
        with closing(_open(file)) as database:
            row = database.execute(query, (session,)).fetchone()
        return made_of(*row) if row is not None else None
    except (sqlite3.Error, OSError, ValueError, TypeError, AttributeError) as exc:
        _failed(file, "read", seen, exc)
        return None


def _last_ended(file: Path) -> set[bytes] | None:
    """The sessions that ended last; None if the file cannot be read."""
    query = "SELECT id FROM sessions WHERE ended ORDER BY seen DESC LIMIT ?"
    try:
        if not file.exists():
            return set()
        with closing(_open(file)) as database:
            return {key for (key,) in database.execute(query, (MOST_ENDED,))}
    except (sqlite3.Error, OSError) as exc:
        log.debug("the session file %s cannot be read: %s", file, exc)
        return None


def _open(file: Path) -> sqlite3.Connection:
    new = not file.exists()
    database = sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level="IMMEDIATE")
    try:
        if new:
            file.chmod(0o600)
        database.executescript(_SCHEMA)  # where all of it is there, this takes no lock
    except BaseException:
        database.close()
        raise
    return database


def _failed(file: Path, what: str, seen: FileStamp, exc: Exception) -> None:
    log.warning("the session file %s could not be %s: %s", file, what, exc)
    damaged = getattr(exc, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    if damaged:
        try:
            if (aside := set_aside_once(file, seen)) is not None:
                log.warning("it is set aside as %s", aside.name)
        except OSError as refusal:
            log.warning("it cannot be set aside: %s", refusal)


def _lists(written: str) -> Mapping[str, str]:
    return {str(key): str(value) for key, value in json.loads(written).items()}


def _record(until: float, seen: float, ended: int, log_level: str | None, subscribed: str) -> SessionRecord:
    pairs: Iterable[tuple[str, str]] = ((str(server), str(uri)) for server, uri in json.loads(subscribed))
    return SessionRecord(until=until, seen=seen, ended=bool(ended), log_level=log_level, subscribed=frozenset(pairs))


# The sessions of a fleet.


LARGEST_STATE: Final = 16 * 1024
"""Bytes. A session with more subscriptions than fit shares its log level and its last use alone."""
KEPT_SECONDS: Final = IDLE_SECONDS + 2 * NOTE_SECONDS
"""How long a state is kept after the last use: by then every replica takes the session for expired."""


_ENDED: Final = SessionRecord(until=0.0, seen=0.0, ended=True)
"""Of an ended session nothing else is asked."""


class FleetSessions(SessionStore):
    """The store that the replicas of a fleet share."""

    def __init__(
        self,
        fleet: Fleet,
        keys: SessionKeys,
        file: Path | None = None,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(file, wall=wall)
        self._fleet = fleet
        self._keys = keys

    @property
    def shared(self) -> bool:
        """Whether every use of a session is known here; not while the store is away."""
        return self._fleet.state.keeps_all

    async def load(self, session: bytes) -> SessionRecord | None:
        """The record of a session: the later one of the fleet's and of this machine's. An ended session is ended."""
        own = await super().load(session)
        if self._fleet.state.kept(_key("ended", session)) is not None or (own is not None and own.ended):
            return _ENDED
        fleets = self._opened(session, self._fleet.state.kept(_key("session", session)) or {})
        return max(filter(None, (own, fleets)), key=lambda one: one.seen, default=None)

    async def save(self, session: bytes, record: SessionRecord) -> None:
        """Keep a record: for the fleet with the next exchange, and on this machine when this returns."""
        until = min(record.until, self._wall() + KEPT_SECONDS)
        if record.ended:
            self._fleet.state.write(_key("ended", session), {"until": until})
        else:
            self._fleet.state.write(_key("session", session), {"until": until, "sealed": self._sealed(session, record)})
        await super().save(session, record)

    async def run(self, on_ended: Callable[[bytes], None], on_changed: Callable[[bytes, SessionRecord], None]) -> None:
        """Report what other replicas, and other hubs of this machine, ended and changed."""

        def ended(name: str, _: Mapping[str, Any]) -> None:
            if (session := _session(name)) is not None:
                on_ended(session)

        def changed(name: str, value: Mapping[str, Any]) -> None:
            if (session := _session(name)) is not None and (record := self._opened(session, value)) is not None:
                on_changed(session, record)

        self._fleet.listen("ended", ended)
        self._fleet.listen("session", changed)
        await super().run(on_ended, on_changed)

    def _sealed(self, session: bytes, record: SessionRecord) -> str:
        content = [record.until, record.seen, record.log_level, sorted(record.subscribed)]
        written = msgspec.msgpack.encode(content)
        if len(written) > LARGEST_STATE:
            written = msgspec.msgpack.encode([*content[:3], []])
        return self._keys.ring.seal_text(written, purpose=SESSION_PURPOSE, about=b"state", salt=session)

    def _opened(self, session: bytes, value: Mapping[str, Any]) -> SessionRecord | None:
        sealed = str(value.get("sealed", ""))
        content = self._keys.ring.open_text(sealed, purpose=SESSION_PURPOSE, about=b"state", salt=session)
        try:
            until, seen, level, subscribed = msgspec.msgpack.decode(content or b"", type=_Content)
        except msgspec.MsgspecError:
            return None  # it does not open, or is of another version
        return SessionRecord(until=until, seen=seen, log_level=level, subscribed=frozenset(subscribed))


_Content = tuple[float, float, str | None, list[tuple[str, str]]]


def _key(kind: Literal["ended", "session"], session: bytes) -> str:
    """Under what the fleet keeps that a session was ended, or its state."""
    return f"{kind}/{session.hex()}"


def _session(name: str) -> bytes | None:
    try:
        return bytes.fromhex(name)
    except ValueError:
        return None


# The sessions in memory.

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
        "_opened", "_peers", "client", "ended", "endpoint", "exchange", "header", "id", "keeps_lists",
        "listening_since", "log", "missed", "noted_at", "notices", "principal", "rebuilt", "serving", "stream_at",
        "ticket", "use", "used_at",
    )  # fmt: skip

    def __init__(
        self,
        sessions: HttpSessions,
        endpoint: HttpEndpoint,
        session_id: str,
        ticket: SessionTicket,
        principal: Principal,
        use: PrincipalUse,
        *,
        rebuilt: bool = False,
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
        self.rebuilt = rebuilt
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
        self._opened: asyncio.Event | None = None
        """What the questions wait for that came before the stream of notices."""
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
        program = program_in(ticket.client)
        self.client = self.exchange.begin(ticket.version, ticket.capabilities, program=program, rebuilt=rebuilt)
        self.client.home = ticket.home

    @property
    def idle(self) -> bool:
        """Whether nothing of it is under way: no request, no stream, no question."""
        return not self.serving and not self.exchange.questions

    @property
    def listening(self) -> bool:
        """Whether its stream of notices is open."""
        return self.notices.is_open

    def opened(self, principal: Principal) -> None:
        """The stream of notices is open; from now on it is for the rights of this credential."""
        self.client.identity = principal
        self.listening_since = time.monotonic()
        if self._opened is not None:
            self._opened.set()
            self._opened = None

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
            self._opened = self._opened or asyncio.Event()
            with anyio.move_on_after(LOOKING_SECONDS if self._peers is not None else OPENING_SECONDS):
                await self._opened.wait()
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
        session = HttpSession(self, endpoint, session_id, ticket, principal, use, rebuilt=rebuilt)
        self._sessions[session_id] = self._by_ticket[ticket.id] = session
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self.sweep)
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

    def sweep(self) -> None:
        """Drop those that are idle or over, and note when the others were used. It comes round by itself."""
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
        self._sweeper = loop.call_later(SWEEP_SECONDS, self.sweep) if self._sessions else None

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
