"""What survives a restart: the last good listings, the names that were given out, and who is disabled.

One SQLite file, written whole in one transaction. A file that cannot be read is set aside, never
deleted, and the hub starts without it. No secret is in it: servers are told apart by a hash of
their definition, so that a changed definition never shows another server's tools.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.config.find import state_folder
from holdfast.config.spec import ServerSpec
from holdfast.core.catalog import Item, Listing, NameKey
from holdfast.core.names import Kind
from holdfast.files import private_folder, set_aside

__all__ = ["Kept", "Store", "default_state_file", "fingerprint"]

log = logging.getLogger("holdfast.hub")

SCHEMA_VERSION = 1
BUSY_SECONDS = 5.0
"""How long another process that writes the same file is waited for."""

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
class Kept:
    """What is kept of one server."""

    fingerprint: str
    disabled: bool = False
    listing: Listing | None = None
    names: Mapping[NameKey, str] = field(default_factory=dict)


class Store:
    """One file. Every method opens and closes it, so that a worker thread may call any of them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._hands_off = False

    def load(self) -> dict[str, Kept]:
        """All that is kept; nothing, if it cannot be read. A corrupt file is set aside."""
        try:
            if not self._file.exists():
                return {}
            with closing(self._open()) as database:
                return _read(database)
        except (OSError, _Newer) as exc:
            log.warning("the state file %s cannot be read: %s", self._file, exc)
        except (sqlite3.Error, ValueError, KeyError, TypeError, AttributeError) as exc:
            if _out_of_reach(exc):
                log.warning("the state file %s cannot be read: %s", self._file, exc)
            else:
                self._set_aside(exc)
        return {}

    def save(self, servers: Mapping[str, Kept]) -> None:
        """Write everything, or nothing."""
        if self._hands_off:
            return
        try:
            private_folder(self._file.parent)
            with closing(self._open()) as database, database:
                _write(database, servers)
        except (sqlite3.Error, OSError, ValueError, _Newer) as exc:
            log.warning("the state file %s could not be written: %s", self._file, exc)

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._file, timeout=BUSY_SECONDS, isolation_level="IMMEDIATE")
        try:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                self._hands_off = True
                raise _Newer(f"it was written by a newer Holdfast (schema {version}), and is left alone")
            if version < SCHEMA_VERSION:
                database.executescript(_SCHEMA)
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except BaseException:
            database.close()
            raise
        return database

    def _set_aside(self, exc: Exception) -> None:
        try:
            aside = set_aside(self._file)
        except OSError as refusal:
            self._hands_off = True
            log.warning("the state file %s cannot be read (%s), nor set aside: %s", self._file, exc, refusal)
        else:
            log.warning("the state file %s cannot be read (%s): set aside as %s", self._file, exc, aside.name)


class _Newer(Exception):
    """The file is a newer version's: that one still wants it."""


def _out_of_reach(exc: Exception) -> bool:
    """Whether nothing is wrong with the file: another process holds it, or the disk does not give it."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF in _OUT_OF_REACH


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
    """Where the state of a configuration file is kept: in the user's state folder, a file for each."""
    which = hashlib.blake2s(str(config.absolute()).encode(), digest_size=8).hexdigest()
    return state_folder(os.environ) / f"{which}.sqlite"


def fingerprint(spec: ServerSpec) -> str:
    """Tells definitions apart without keeping any of them."""
    identity = (spec.transport, spec.url, spec.command, spec.args, str(spec.cwd), spec.prefix, spec.tools)
    return hashlib.blake2s(repr(identity).encode(), digest_size=16).hexdigest()


def _read(database: sqlite3.Connection) -> dict[str, Kept]:
    names: dict[str, dict[NameKey, str]] = {}
    for kind, server, original, name in database.execute("SELECT kind, server, original, name FROM names"):
        names.setdefault(server, {})[NameKey(Kind(kind), server, original)] = name
    rows = database.execute("SELECT id, fingerprint, disabled, listing FROM servers")
    return {
        server: Kept(
            fingerprint=mark,
            disabled=bool(disabled),
            listing=_listing_from(server, json.loads(listing)) if listing else None,
            names=names.get(server, {}),
        )
        for server, mark, disabled, listing in rows
    }


def _write(database: sqlite3.Connection, servers: Mapping[str, Kept]) -> None:
    database.execute("DELETE FROM servers")
    database.execute("DELETE FROM names")
    database.executemany(
        "INSERT INTO servers VALUES (?, ?, ?, ?)",
        [
            (server, kept.fingerprint, kept.disabled, json.dumps(_listing_to(kept.listing)) if kept.listing else None)
            for server, kept in servers.items()
        ],
    )
    database.executemany("INSERT INTO names VALUES (?, ?, ?, ?)", _name_rows(servers.values()))


def _name_rows(kept: Iterable[Kept]) -> Iterable[tuple[str, str, str, str]]:
    for one in kept:
        for key, name in one.names.items():
            yield key.kind.value, key.server, key.original, name


def _listing_to(listing: Listing) -> dict[str, list[list[object]]]:
    return {kind.value: [[item.name, item.raw] for item in listing.of(kind)] for kind in Kind}


def _listing_from(server: str, kept: Mapping[str, list[tuple[str, dict[str, object]]]]) -> Listing:
    items = {kind: tuple(Item(name, raw) for name, raw in kept[kind]) for kind in (kind.value for kind in Kind)}
    return Listing(server=server, generation=0, **items)
