"""What changes during a legacy session, and outlives the process: when it was seen, its end, log level, subscriptions.

A ticket cannot be changed once its client has it, so this is kept beside it. What must never happen: an ended session
opens again. So an end is never taken back, in memory, in the file and between hubs that share the file. What could not
be written stays in memory and goes with the next write; a write is one transaction.

Kept too is the digest of each list that a client with a stream of notices was given: after a restart the hub announces
a changed list only if it did change. That is kept on this machine alone, and for as long as an idle session lives.

``SessionStore`` keeps it in memory until it is in a file that the hubs of one configuration share, written row by row;
without a file it stays in memory. A session leaves a row only when it has something to keep: it lived for an hour, set
its log level, subscribed to a resource, or was ended. A row goes when its session would have expired.

``FleetSessions`` is the same store in a fleet: what one replica knows about a session, all of them know within a
second. Nothing waits for the fleet's store: a change goes out with the next exchange, and every replica has a copy of
all states, so a session is rebuilt without a question to anyone. The store is not trusted with the content: it is
sealed with a key that is derived for each session from the session key. The file of this machine keeps the same.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec

from holdfast.files import FileStamp, file_stamp, private_folder, set_aside_once
from holdfast.fleet import SESSION_PURPOSE
from holdfast.hub import sleep_until_poll, stamps

if TYPE_CHECKING:
    from holdfast.fleet import Fleet
    from holdfast.front.session_id import SessionKeys

__all__ = [
    "IDLE_SECONDS",
    "NOTE_SECONDS",
    "SESSION_SECONDS",
    "FleetSessions",
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
            if now != stamp and (ended := await anyio.to_thread.run_sync(_all_ended, self.file)) is not None:
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


def _all_ended(file: Path) -> set[bytes] | None:
    try:
        if not file.exists():
            return set()
        with closing(_open(file)) as database:
            return {key for (key,) in database.execute("SELECT id FROM sessions WHERE ended")}
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
        if self._fleet.state.kept(_ended(session)) is not None or (own is not None and own.ended):
            return _ENDED
        fleets = self._opened(session, self._fleet.state.kept(_state(session)) or {})
        return max(filter(None, (own, fleets)), key=lambda one: one.seen, default=None)

    async def save(self, session: bytes, record: SessionRecord) -> None:
        """Keep a record: for the fleet with the next exchange, and on this machine when this returns."""
        until = min(record.until, self._wall() + KEPT_SECONDS)
        if record.ended:
            self._fleet.state.write(_ended(session), {"until": until})
        else:
            self._fleet.state.write(_state(session), {"until": until, "sealed": self._sealed(session, record)})
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


def _ended(session: bytes) -> str:
    return f"ended/{session.hex()}"


def _state(session: bytes) -> str:
    return f"session/{session.hex()}"


def _session(name: str) -> bytes | None:
    try:
        return bytes.fromhex(name)
    except ValueError:
        return None
