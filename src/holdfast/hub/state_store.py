"""The state that survives a restart: last good listings, assigned names, disabled servers, and the pins of approvals.

Theory of operation. One SQLite file and one JSON file beside it, written in the background: changes coalesce, and a
worker thread writes. Several hubs of one configuration may share them, so a hub writes only what it changed, and polls
for the switches and approvals of the others. ``Store`` is the SQLite file, ``Pins`` is what the JSON file holds, and
``StateWriter`` says when both are written, read and followed.

To know what it changed itself, a store keeps two pictures, because a row has two writers:

* ``_known``: the rows as they were last read or written. What equals it needs no write.
* ``_own``: the servers of its last write, and whether each was disabled in this hub. What differs from it was switched
  here. A hub that has not followed the switch of another one yet differs from the file, and must not undo that switch.
  What is missing in the next write was removed from the configuration here; rows that this hub never had are those of
  a hub with other servers, and stay.

What must never happen:

* A hub undoes what another one wrote. So listings and switches are two statements, and only the changed one is run.
* A switch is missed. The first poll looks at the files in any case, and the lock ``_writing`` keeps a poll from taking
  the rows of our own write for those of another hub.
* A file is lost that may be good. One that does not parse is set aside and kept; one that is locked, out of reach or
  of a newer version is left alone, and the hub starts without it.
* The tools of one server are shown for another. A row has the hash of the definition; it holds no secret.

Pins are the version of each watched text that was first seen or last approved (approvals.py). They have a file of their
own, because a server cannot be asked again for what it first said: a state file that is damaged and set aside must not
take them along. A hub never writes its own picture over the file: it collects changes (``PinChanges``) and merges them
under a lock. In a merge the version that was seen first stays, unless a person approved another one.

What must never happen to them:

* A version that is in the file is replaced by one that no person approved, because two hubs wrote at the same time.
* A file that cannot be read counts as empty: then everything would be new and pinned as it is now. While ``unread`` is
  true, no text has a baseline, and what is held stays held. A file that does not parse is set aside and kept.
* A change that could not be written is forgotten: ``not_saved`` puts it back.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import msgspec

from holdfast.config import Config, ServerSpec, state_folder
from holdfast.core import Catalog, Item, Kind, Listing, NameKey
from holdfast.files import (
    PRIVATE_FILE,
    FileStamp,
    file_stamp,
    locked,
    private_folder,
    replace_file,
    set_aside,
    set_aside_once,
)
from holdfast.hub.hub_clock import sleep_until_poll, stamps
from holdfast.wire import is_text

__all__ = [
    "HubState",
    "PinChanges",
    "PinnedTools",
    "Pins",
    "StateWriter",
    "Store",
    "StoredServer",
    "ToolTexts",
    "add_pins",
    "arranged",
    "beside",
    "beside_mark",
    "default_state_file",
    "fingerprint",
    "listing_from",
    "listing_pieces",
    "merged",
    "read_pins",
    "written_prefixes",
]

log = logging.getLogger("holdfast.hub")

SCHEMA_VERSION = 1
POLL_SECONDS = 0.5
"""Seconds between two polls for changes by other hubs. A poll costs microseconds."""
BUSY_SECONDS = 5.0
"""How long to wait for another process that writes the same file."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS servers (
    id TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, disabled INTEGER NOT NULL, listing TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS names (
    kind TEXT NOT NULL, server TEXT NOT NULL, original TEXT NOT NULL, name TEXT NOT NULL,
    PRIMARY KEY (kind, server, original)
) STRICT;
"""


@dataclass(frozen=True, kw_only=True)
class StoredServer:
    """The stored state of one server."""

    fingerprint: str
    disabled: bool = False
    listing: Listing | None = None
    names: Mapping[NameKey, str] = field(default_factory=dict)


class Store:
    """One state file. Each method opens and closes it, so that any worker thread may call it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read_only = False
        self._known: dict[str, StoredServer] = {}
        """The rows as this hub read or wrote them last."""
        self._own: dict[str, bool] = {}
        """The servers of the last write, and whether each was disabled in this hub."""

    def load(self) -> dict[str, StoredServer]:
        """Everything that is stored; nothing if the file cannot be read. A corrupt file is set aside."""
        # Before the read: another hub may replace a bad file meanwhile, and the new one must not be set aside.
        seen = file_stamp(self.file)
        try:
            if not self.file.exists():
                return {}
            with closing(self._open()) as database:
                self._known = _read(database)
                return dict(self._known)
        except (OSError, _NewerSchema, sqlite3.Error, ValueError, KeyError, TypeError, AttributeError) as exc:
            if _out_of_reach(exc):
                log.warning("the state file %s cannot be read: %s", self.file, exc)
            else:
                self._set_aside(seen, exc)
        return {}

    def save(self, servers: Mapping[str, StoredServer]) -> bool:
        """Write what changed since this hub read or wrote it last, all of it or nothing; False if that failed.

        Other rows, and other columns of the same rows, stay as another hub wrote them.
        """
        # Not a failure: a failure would be tried again for ever.
        if self._read_only:
            return True
        try:
            private_folder(self.file.parent)
            with closing(self._open()) as database, database:
                switched = self._switched(servers)
                _write(database, self._known, servers, switched)
                for server in self._own.keys() - servers.keys():
                    database.execute("DELETE FROM servers WHERE id = ?", (server,))
                    database.execute("DELETE FROM names WHERE server = ?", (server,))
            self._known = {
                server: one
                if server in switched or server not in self._known
                # A switch of another hub that this hub does not follow yet, or not any more because it closes.
                else replace(one, disabled=self._known[server].disabled)
                for server, one in servers.items()
            }
            self._own = {server: one.disabled for server, one in servers.items()}
        except (sqlite3.Error, OSError, ValueError, _NewerSchema) as exc:
            log.warning("the state file %s could not be written: %s", self.file, exc)
            return False
        return True

    def _switched(self, servers: Mapping[str, StoredServer]) -> frozenset[str]:
        """The servers that this hub itself enabled or disabled since its last write."""
        stored = {server: known.disabled for server, known in self._known.items()}
        # Compared with its own last write: what another hub switched is no switch of this one. Compared with the
        # file too: where both did the same, there is nothing to write.
        return frozenset(
            server
            for server, one in servers.items()
            if one.disabled != self._own.get(server, stored.get(server, False))
            and one.disabled != stored.get(server, False)
        )

    def switches(self) -> dict[str, bool] | None:
        """The servers that another hub enabled or disabled since the last call, and whether they are disabled.

        None if the file cannot be read now.
        """
        try:
            with closing(self._open()) as database:
                rows = dict(database.execute("SELECT id, disabled FROM servers"))
        except (sqlite3.Error, OSError, _NewerSchema) as exc:
            log.debug("the state file %s cannot be read: %s", self.file, exc)
            return None
        changed = {
            server: bool(rows[server])
            for server, one in self._known.items()
            if server in rows and bool(rows[server]) != one.disabled
        }
        # Also if the hub does not follow: a switch is told once.
        self._known |= {server: replace(self._known[server], disabled=off) for server, off in changed.items()}
        return changed

    def followed(self, server: str, *, disabled: bool) -> None:
        """This hub did what another one had written: to do the opposite is a switch of its own from now on."""
        self._own[server] = disabled

    def _open(self) -> sqlite3.Connection:
        # Asked before SQLite makes the file: only a new one gets its mode, one of the user keeps what she set.
        new = not self.file.exists()
        # IMMEDIATE: a transaction takes the write lock at its beginning, where it may wait for another hub. A
        # transaction that reads first and wants the lock later fails at once.
        database = sqlite3.connect(self.file, timeout=BUSY_SECONDS, isolation_level="IMMEDIATE")
        try:
            if new:
                self.file.chmod(PRIVATE_FILE)
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                # For this run: the newer version goes on using the file, and would lose what it keeps there.
                self._read_only = True
                raise _NewerSchema(f"a newer Holdfast wrote it (schema {version}); it is not changed")
            if version < SCHEMA_VERSION:
                # A new file, or one after another was set aside: every row is to be written.
                self._known = {}
                database.executescript(_SCHEMA)
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except BaseException:
            database.close()
            raise
        return database

    def _set_aside(self, seen: FileStamp, exc: Exception) -> None:
        try:
            aside = set_aside_once(self.file, seen)
        except OSError as refusal:
            self._read_only = True
            log.warning("the state file %s cannot be read (%s) and cannot be set aside: %s", self.file, exc, refusal)
        else:
            where = f"set aside as {aside.name}" if aside is not None else "another hub has set it aside"
            log.warning("the state file %s cannot be read (%s): %s", self.file, exc, where)


class _NewerSchema(Exception):
    """A newer version of Holdfast wrote the file, and still needs it."""


def _out_of_reach(exc: Exception) -> bool:
    """Whether the file itself may be good: another process locks it, the disk fails, or its version is newer."""
    # The low byte is the kind of error; the rest says where it happened.
    kind = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    return kind in _OUT_OF_REACH or isinstance(exc, OSError | _NewerSchema)


_OUT_OF_REACH = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
    }
)


def default_state_file(config: Path) -> Path:
    """The state file of a configuration file, in the user's state folder."""
    which = hashlib.blake2s(str(config.absolute()).encode(), digest_size=8).hexdigest()
    return state_folder(os.environ) / f"{which}.sqlite"


def fingerprint(spec: ServerSpec) -> str:
    """Identifies a definition without storing it."""
    # Without environment and headers. They hold secrets, and a server with another token is the same server.
    identity = (spec.transport, spec.url, spec.command, spec.args, str(spec.cwd), spec.prefix, spec.tools)
    return hashlib.blake2s(repr(identity).encode(), digest_size=16).hexdigest()


def _read(database: sqlite3.Connection) -> dict[str, StoredServer]:
    names: dict[str, dict[NameKey, str]] = {}
    for kind, server, original, name in database.execute("SELECT kind, server, original, name FROM names"):
        names.setdefault(server, {})[NameKey(Kind(kind), server, original)] = name
    rows = database.execute("SELECT id, fingerprint, disabled, listing FROM servers")
    return {
        server: StoredServer(
            fingerprint=mark,
            disabled=bool(disabled),
            listing=listing_from(server, json.loads(listing)) if listing else None,
            names=names.get(server, {}),
        )
        for server, mark, disabled, listing in rows
    }


def _write(
    database: sqlite3.Connection,
    before: Mapping[str, StoredServer],
    after: Mapping[str, StoredServer],
    switched: frozenset[str],
) -> None:
    for server, one in after.items():
        known = before.get(server)
        if known is None or (known.fingerprint, known.listing) != (one.fingerprint, one.listing):
            listing = "".join(listing_pieces(one.listing)) if one.listing else None
            database.execute(_WRITE_LISTING, (server, one.fingerprint, one.disabled, listing))
        if server in switched:
            database.execute(_WRITE_SWITCH, (server, one.fingerprint, one.disabled))
        if known is None or known.names != one.names:
            database.execute("DELETE FROM names WHERE server = ?", (server,))
            # SQLite takes no half of a surrogate pair. Such a name is given out again, and is the same.
            given = ((key, name) for key, name in one.names.items() if is_text(key.original) and is_text(name))
            rows = [(key.kind.value, server, key.original, name) for key, name in given]
            database.executemany("INSERT INTO names VALUES (?, ?, ?, ?)", rows)


# Two statements, so that a hub which learned a listing does not undo the switch that another hub wrote.
_WRITE_LISTING = """
INSERT INTO servers VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, listing = excluded.listing
"""
_WRITE_SWITCH = """
INSERT INTO servers VALUES (?, ?, ?, NULL) ON CONFLICT (id) DO UPDATE SET disabled = excluded.disabled
"""

# The pins: what each watched text said when it was first seen or last approved.


PINS_FORMAT = 1

ToolTexts: TypeAlias = dict[str, Mapping[str, Any]]
"""The watched parts of tools, by their keys (``core.key_of``)."""


@dataclass(frozen=True)
class PinnedTools:
    """The content of the file, by server. Neither part has a default: a file without one is damaged."""

    seen: Mapping[str, ToolTexts]
    """As first seen, or as last approved."""
    changed: Mapping[str, ToolTexts]
    """The current version of those that changed."""


@dataclass(kw_only=True)
class PinChanges:
    """The changes of one hub since its last write."""

    known: PinnedTools = field(default_factory=lambda: PinnedTools({}, {}))
    """All pins, and the changes of the servers that this hub has listed; filled in when they are taken."""
    approved: set[tuple[str, str]] = field(default_factory=set)
    """Servers and tools that were approved: only these replace a pinned version."""
    dropped: set[tuple[str, str]] = field(default_factory=set)
    """Servers and tools that are dropped."""
    gone: set[str] = field(default_factory=set)
    """Servers that are no longer configured."""


def merged(pinned: PinnedTools, changes: PinChanges) -> PinnedTools:
    """The content with the changes: the version that was seen first stays, unless another one was approved."""
    seen = {server: dict(tools) for server, tools in pinned.seen.items() if server not in changes.gone}
    for server, tool in changes.dropped:
        seen.get(server, {}).pop(tool, None)
    for server, tools in changes.known.seen.items():
        there = seen.setdefault(server, {})
        there.update(
            {tool: what for tool, what in tools.items() if tool not in there or (server, tool) in changes.approved}
        )
    changed = {server: tools for server, tools in pinned.changed.items() if server not in changes.gone}
    return PinnedTools(seen, _still_changed(seen, {**changed, **changes.known.changed}))


class Pins:
    """The pins of one hub, and the current version of what changed.

    Without a file they last for this run. Those of a ``lock`` are never replaced, and have no file.
    """

    def __init__(self, file: Path | None, *, lock: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None) -> None:
        self.file = file if lock is None else None
        self.is_lock = lock is not None
        self.seen: dict[str, ToolTexts] = {server: dict(texts) for server, texts in (lock or {}).items()}
        """By server, the version of each text that was first seen or last approved."""
        self.changed: dict[str, ToolTexts] = {}
        """By server, the current version of the texts that differ from their pins."""
        self.unread = False
        """Whether a file may exist that could not be read."""
        self.unsaved = False
        """Whether changes wait to be written."""
        self._touched: set[str] = set()
        """Servers whose changes are known better here than in the file."""
        self._changes = PinChanges()
        """What is not written yet."""

    def __repr__(self) -> str:
        waiting = sum(map(len, self.changed.values()))
        state = "unread" if self.unread else "unsaved" if self.unsaved else "saved"
        return f"<Pins of {len(self.seen)} servers, {waiting} changed, {state}>"

    def of(self, server: str) -> Mapping[str, Mapping[str, Any]]:
        """The pinned texts of a server, by their keys."""
        return self.seen.get(server, {})

    def has(self, server: str, key: str, text: Mapping[str, Any]) -> bool:
        """Whether a text is the pinned one, or one that was approved beside it."""
        return _is_known(self.of(server), key, text)

    def pin(self, server: str, key: str, text: Mapping[str, Any], *, approved: bool) -> None:
        """Pin a text: the first version that was seen, or one that was approved and replaces another."""
        self.seen.setdefault(server, {})[key] = text
        self.unsaved = True
        self._changes.dropped.discard((server, key))
        if approved:
            self._changes.approved.add((server, key))

    def note_changes(self, server: str, changed: ToolTexts) -> None:
        """Use the result of a comparison with the server's latest listing."""
        self.unsaved |= changed != self.changed.get(server, {})
        self.changed[server] = changed
        self._touched.add(server)

    def drop(self, server: str, keys: Sequence[str]) -> None:
        """Drop some pins of a server."""
        for key in keys:
            del self.seen[server][key]
            self._changes.dropped.add((server, key))
            self.unsaved = True

    def forget(self, server: str) -> None:
        """Drop everything about a removed server; a lock keeps what it has."""
        self.changed.pop(server, None)
        self._touched.discard(server)
        if self.is_lock:
            return
        self.unsaved |= self.seen.pop(server, None) is not None
        self._changes.gone.add(server)
        self._changes.approved = {one for one in self._changes.approved if one[0] != server}

    def read(self) -> PinnedTools | None:
        """The content of the file; None if it cannot be read now. For a worker thread: a large file takes a while."""
        try:
            return read_pins(self.file) if self.file is not None else PinnedTools({}, {})
        except OSError as exc:
            if not self.unread:  # else it is tried again and again, and was said once
                until = "until then, the tools of servers whose changes are held are held"
                log.warning("%s cannot be read (%s): %s", self.file, exc, until)
        return None

    def take(self, known: PinnedTools | None) -> None:
        """Use what was read; while the file cannot be read, no tool has a baseline."""
        self.unread = known is None
        if known is None:
            return
        for server, texts in known.seen.items():
            if server not in self._changes.gone:
                ours = self.seen.get(server, {})
                # What was approved here since the last write is newer than the file.
                approved = {key: text for key, text in ours.items() if (server, key) in self._changes.approved}
                self.seen[server] = {**ours, **texts, **approved}
        self.changed |= {server: dict(texts) for server, texts in known.changed.items() if server not in self._touched}

    def to_save(self) -> PinChanges:
        """Take the changes that must be written; from now on they count as written."""
        changes, self._changes, self.unsaved = self._changes, PinChanges(), False
        touched = {*self._touched, *(server for server, _ in changes.approved)}
        # Copies: a thread writes them, and this hub goes on meanwhile.
        changes.known = PinnedTools(
            {server: dict(texts) for server, texts in self.seen.items()},
            {server: dict(texts) for server, texts in self.changed.items() if server in touched},
        )
        return changes

    def save(self, changes: PinChanges) -> bool:
        """Write the changes; False if that failed. For a worker thread, one at a time."""
        return self.file is None or add_pins(self.file, changes)

    def not_saved(self, changes: PinChanges) -> None:
        """The changes were not written: write them the next time."""
        new, self.unsaved = self._changes, True
        self._changes = PinChanges(
            approved=changes.approved | new.approved,
            dropped=changes.dropped | new.dropped,
            gone=changes.gone | new.gone,
        )


def read_pins(file: Path) -> PinnedTools:
    """The content of the file; an ``OSError`` says that one may exist which cannot be read now."""
    try:
        return _parsed_pins(file)
    except ValueError:
        with locked(file.with_name(f"{file.name}.lock")):
            return _read_locked(file)


def add_pins(file: Path, changes: PinChanges) -> bool:
    """Merge the changes of a hub into the file; False if that failed, which is logged."""
    try:
        with locked(file.with_name(f"{file.name}.lock")):
            known = merged(_read_locked(file), changes)
            replace_file(file, json.dumps({"format": PINS_FORMAT, "seen": known.seen, "changed": known.changed}))
    except OSError as exc:
        log.warning("%s could not be written: %s", file, exc)
        return False
    return True


def _read_locked(file: Path) -> PinnedTools:
    """Read the file, and set it aside if it does not parse; the lock keeps other hubs out."""
    try:
        return _parsed_pins(file)
    except ValueError as exc:
        aside = set_aside(file)
        log.warning("%s cannot be read (%s): every tool counts as new", file, exc)
        log.warning("it was kept as %s", aside)
        return PinnedTools({}, {})


def _parsed_pins(file: Path) -> PinnedTools:
    try:
        read = msgspec.convert(json.loads(file.read_text(encoding="utf-8")), PinnedTools)
    except FileNotFoundError:
        return PinnedTools({}, {})
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc
    return PinnedTools(read.seen, _still_changed(read.seen, read.changed))


def _still_changed(seen: Mapping[str, ToolTexts], changed: Mapping[str, ToolTexts]) -> dict[str, ToolTexts]:
    return {
        server: {
            tool: what for tool, what in tools.items() if server in seen and not _is_known(seen[server], tool, what)
        }
        for server, tools in changed.items()
    }


_BESIDE = "\0beside\0"


def beside(key: str, text: Mapping[str, Any]) -> str:
    """The key under which a text is pinned beside the first one of its key: it has the hash of the text."""
    written = json.dumps(text, sort_keys=True, separators=(",", ":")).encode()
    return f"{_BESIDE}{hashlib.sha256(written).hexdigest()}\0{key}"


def beside_mark(key: str) -> Mapping[str, Any]:
    """What is pinned under that key. No text of a tool has this part: no server can pin it by a name that it chose."""
    return {"beside": key}


def _is_known(pinned: Mapping[str, Mapping[str, Any]], key: str, text: Mapping[str, Any]) -> bool:
    return pinned.get(key) == text or (key in pinned and pinned.get(beside(key, text)) == beside_mark(key))


# When the state is written, read and followed.


HubState: TypeAlias = tuple[Config, Catalog, frozenset[str]]
"""The configuration, the catalog and the disabled servers of one moment."""


LONGEST_PAUSE = 2.0
"""Seconds between two writes, at most: what a hub learned in them is lost if it is killed."""


class StateWriter:
    """The one writer of the store and of the approvals file; without a store, nothing is written."""

    def __init__(self, store: Store | None, pins: Pins, snapshot: Callable[[], HubState]) -> None:
        self._store = store
        self._pins = pins
        self._snapshot = snapshot
        self._dirty = anyio.Event()
        self._hurry = anyio.Event()
        self._writing = anyio.Lock()

    def restore(self, config: Config) -> Catalog:
        """Read the last good catalog, for the servers whose definition is unchanged."""
        self._pins.take(self._pins.read())
        catalog = arranged(Catalog(), config)
        kept = self._store.load() if self._store is not None else {}
        specs = [server for server in config.servers.values() if not server.problems and server.id in kept]
        same = [kept[spec.id] for spec in specs if kept[spec.id].fingerprint == fingerprint(spec)]
        catalog = catalog.restore_names({key: name for one in same for key, name in one.names.items()})
        catalog = catalog.publish_all([one.listing for one in same if one.listing is not None])
        for server in config.servers:
            # After the listings: to publish one shows its server again.
            if server in kept and kept[server].disabled:
                # A disabled server stays disabled after a restart, also with a new definition.
                catalog = catalog.withdraw(server)
        return catalog

    def changed(self, *, at_once: bool = False) -> None:
        """Write soon: the state changed. What a person did is written at once: other hubs follow it."""
        self._dirty.set()
        if at_once:
            self._hurry.set()

    async def run(self) -> None:
        """Write after each change, until cancelled."""
        while True:
            await self._dirty.wait()
            # Before the write: what changes while the thread writes sets the new event, and is written next.
            self._dirty, self._hurry = anyio.Event(), anyio.Event()
            began = anyio.current_time()
            written = await self._write()
            # A fleet that comes up changes all the time: the writes take a tenth of it, or less.
            pause = min(9 * (anyio.current_time() - began), LONGEST_PAUSE) if written else LONGEST_PAUSE
            with anyio.move_on_after(pause):
                await self._hurry.wait()
            if not written:
                self._dirty.set()  # nothing else may change for days: what a person approved is not left unwritten

    async def watch(
        self, on_switch: Callable[[str, bool], bool], on_approvals: Callable[[PinnedTools | None], None]
    ) -> None:
        """Follow the switches and approvals of other hubs that share the state, until cancelled.

        ``on_switch`` says whether the hub follows, ``on_approvals`` gets what the file of the pins says now.
        """
        if self._store is None:
            return
        # Of no state: the first poll looks at both files, so that nothing is missed since they were read.
        switches: FileStamp = None
        approvals: FileStamp = None
        while True:
            await sleep_until_poll(POLL_SECONDS)
            async with self._writing:
                # Under the lock: the rows of a write that is under way would be taken for those of another hub.
                # Both stamps are older than what is read below: a write in between is seen by the next poll.
                before = approvals
                now, approvals = await stamps(self._store.file, self._pins.file)
                changed = await anyio.to_thread.run_sync(self._store.switches) if now != switches else {}
                # If the file could not be read, the next poll sees the old stamp and looks again.
                if changed is not None:
                    switches = now
                for server, disabled in (changed or {}).items():
                    if on_switch(server, disabled):
                        self._store.followed(server, disabled=disabled)
                # Under the lock too: what is approved here meanwhile is not written yet, and so not taken back.
                if approvals != before or self._pins.unread:
                    on_approvals(await anyio.to_thread.run_sync(self._pins.read))

    async def close(self, last: HubState) -> None:
        """Write for the last time."""
        self._snapshot = lambda: last  # the slots of a hub that closes no longer tell who is disabled
        await self._write()

    async def _write(self) -> bool:
        """Write what differs from the files; False if something could not be written, and is to be tried again."""
        store = self._store
        if store is None:
            return True
        async with self._writing:
            state = self._snapshot()
            # In a thread, also what is stored is made: a large fleet takes longer than a step of the event loop may.
            written = await anyio.to_thread.run_sync(lambda: store.save(_stored(*state)))
            if self._pins.unsaved:
                changes = self._pins.to_save()
                if not await anyio.to_thread.run_sync(self._pins.save, changes):
                    self._pins.not_saved(changes)
                    return False
            return written


def arranged(catalog: Catalog, config: Config) -> Catalog:
    """The catalog with the servers of a configuration, in its order: all names follow from these and their length."""
    return catalog.arrange(written_prefixes(config), longest=config.settings.name_length)


def written_prefixes(config: Config) -> dict[str, str | None]:
    """The prefix of each server as the configuration has it, in its order."""
    return {server.id: server.prefix for server in config.servers.values()}


def _unstamped(listing: Listing | None) -> Listing | None:
    """The listing as it is read from the file: the generation is not stored."""
    return replace(listing, generation=0, instructions=None) if listing is not None else None


def _stored(config: Config, catalog: Catalog, off: frozenset[str]) -> dict[str, StoredServer]:
    names: dict[str, dict[NameKey, str]] = {}
    for key, name in catalog.names.items():
        names.setdefault(key.server, {})[key] = name
    return {
        server.id: StoredServer(
            fingerprint=fingerprint(server) if not server.problems else "",
            disabled=server.id in off,
            listing=_unstamped(catalog.servers[server.id].listing),
            names=names.get(server.id, {}),
        )
        for server in config.servers.values()
        if server.id in catalog.servers
    }


# The listing of a server as text: in the state file, and in the store of a fleet. A listing may have tens of megabytes.
# It is written item by item, because a JSON encoder holds the interpreter until it is done, also in a thread.


def listing_pieces(listing: Listing, *, sort_keys: bool = False) -> Iterator[str]:
    """The text in pieces, of one item at most."""
    lead = "{"
    for kind in sorted(Kind, key=lambda kind: kind.value):
        yield f"{lead}{json.dumps(kind.value)}: ["
        between = ""
        for item in listing.of(kind):
            yield between + json.dumps([item.name, item.raw], sort_keys=sort_keys)
            between = ", "
        yield "]"
        lead = ", "
    yield "}"


def listing_from(server: str, read: Mapping[str, Iterable[tuple[str, Mapping[str, Any]]]]) -> Listing:
    """The listing that such a text is; raises ``KeyError``, ``TypeError`` or ``ValueError`` if it is none."""

    def items(kind: Kind) -> tuple[Item, ...]:
        return tuple(Item(str(name), dict(raw)) for name, raw in read[kind.value])

    return Listing(
        server=server,
        generation=0,
        tools=items(Kind.TOOL),
        prompts=items(Kind.PROMPT),
        resources=items(Kind.RESOURCE),
        templates=items(Kind.TEMPLATE),
    )
