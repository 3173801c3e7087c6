"""The logins of the hub's users: one encrypted row for each principal, issuer and resource (AUTH-8).

Theory of operation. A hub that many people use keeps a login of each of them for each server. Their tokens are never in
the keyring or the file of the hub's own logins. They are in one SQLite file:

    grants    principal, issuer, resource -> the grant, sealed
    lock      one row, sealed with the key in force: tells whether a key opens this file

A row is sealed with AES-256-GCM (``keys.py``). Its principal, issuer and resource are authenticated with it, so a row
that someone copies to another principal does not open there. The key comes from ``HOLDFAST_USER_KEY``, from the file
that ``HOLDFAST_USER_KEY_FILE`` names, from the keyring with ``HOLDFAST_USER_KEY_FILE=keyring``, or is made once in the
state folder. One key a line: the first seals, all of them open. The hub seals all rows again with the first one when it
starts, so the old key can then be removed.

What must never happen:

* A token is lost because a key is: a hub whose keys do not open the file sets it aside (``NAME.corrupt-N``) and begins
  another one. With the old key the old file can be put back. A command never sets it aside: its key may be the wrong
  one.
* Two processes use one refresh token: the authorization server would revoke the login. ``renewing`` holds the lease of
  one grant; the kernel takes it from a process that ends.
* A row that does not open is taken for no login and overwritten silently: it is logged, and the others stay usable.

``UserTokenStore`` is what every store of users' logins has in common. ``UserTokens`` is the file; the replicas of a
fleet share theirs (``fleet/user_logins.py``). ``UserTokenStore.of`` gives the logins of one principal the form of a
``GrantStore``, so renewals and logins work with them as with the hub's own.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from holdfast.auth.credentials import Logins, takes_login
from holdfast.auth.token_endpoint import canonical
from holdfast.auth.token_store import (
    SERVICE,
    Grant,
    GrantKey,
    GrantStore,
    StoreUnusable,
    find_keyring,
    read_entry,
    renewing,
    write_entry,
)
from holdfast.config import ServerSpec, state_folder
from holdfast.core import command_line
from holdfast.errors import HoldfastError, UsageError
from holdfast.files import (
    FileStamp,
    NotPrivate,
    file_stamp,
    locked,
    make_secret,
    private_folder,
    read_private,
    set_aside,
)
from holdfast.keys import SHORTEST_SECRET, KeyRing

__all__ = [
    "KEY_FILE_VARIABLE",
    "KEY_VARIABLE",
    "UserGrants",
    "UserRow",
    "UserTokenStore",
    "UserTokens",
    "find_user_keys",
]

log = logging.getLogger("holdfast.auth")

KEY_VARIABLE = "HOLDFAST_USER_KEY"
KEY_FILE_VARIABLE = "HOLDFAST_USER_KEY_FILE"
KEYRING = "keyring"
KEYRING_ENTRY = "user tokens"

FILE_NAME = "user-tokens.sqlite"
OWN_KEY_NAME = "user-tokens.key"

PURPOSE = "user tokens"
LOCK_TEXT = b"holdfast user tokens 1"

BUSY_SECONDS = 5.0
"""How long a write waits for the write of another process."""

MOST_KNOWN = 2_048
"""Users whose logins this process has in memory; the least recently used give way and are read again."""

_MAKE = "make a key: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS grants (
    principal TEXT NOT NULL, issuer TEXT NOT NULL, resource TEXT NOT NULL, sealed BLOB NOT NULL,
    PRIMARY KEY (principal, issuer, resource)
) STRICT;
CREATE TABLE IF NOT EXISTS lock (id INTEGER PRIMARY KEY CHECK (id = 0), sealed BLOB NOT NULL) STRICT;
"""


# Keys.


def find_user_keys(folder: Path, environ: Mapping[str, str] = os.environ, *, makes: bool = True) -> KeyRing:
    """The keys that seal users' tokens. Raises ``HoldfastError`` if what the operator gave has no usable key.

    ``makes``: without a given key the hub makes one in its folder. Replicas of a fleet do not: all need the same.
    """
    given, named = environ.get(KEY_VARIABLE, ""), environ.get(KEY_FILE_VARIABLE, "")
    if given and named:
        raise UsageError(f"{KEY_VARIABLE} and {KEY_FILE_VARIABLE} exclude each other", hint="set one of them")
    if given:
        return _ring(given.encode("utf-8", "surrogateescape"), KEY_VARIABLE)
    if named == KEYRING:
        return _ring(_from_keyring().encode(), "the keyring")
    if not named and not makes:
        raise UsageError(
            "the replicas of a fleet need a key for the logins of users that all of them have",
            hint=f"{_MAKE}, and start each replica with the same {KEY_VARIABLE} or {KEY_FILE_VARIABLE}",
        )
    file = Path(named) if named else folder / OWN_KEY_NAME
    try:
        if not named and not file.exists():
            make_secret(file)
        return _ring(read_private(file), f"the file {file}")
    except NotPrivate as exc:
        raise HoldfastError(f"the key of users' tokens is not private: {exc}", hint=f"run: {exc.command}") from exc
    except OSError as exc:
        hint = f"check {KEY_FILE_VARIABLE}" if named else f"set {KEY_VARIABLE}"
        raise HoldfastError(
            f"the key of users' tokens in {file} cannot be read or made: {exc.strerror}", hint=hint
        ) from exc


def _from_keyring() -> str:
    keyring = find_keyring()
    if keyring is None:
        raise HoldfastError(f"{KEY_FILE_VARIABLE}=keyring, but there is no keyring here", hint=f"set {KEY_VARIABLE}")
    try:
        found = keyring.get_password(SERVICE, KEYRING_ENTRY)
        if not found:
            found = secrets.token_urlsafe(48)
            keyring.set_password(SERVICE, KEYRING_ENTRY, found)
    except Exception as exc:  # every backend has errors of its own
        raise HoldfastError(
            f"the keyring did not give the key of users' tokens ({type(exc).__name__})", hint="unlock it"
        ) from exc
    return found


def _ring(content: bytes, where: str) -> KeyRing:
    keys = [line.strip() for line in content.splitlines() if line.strip()]
    if not keys or any(len(key) < SHORTEST_SECRET for key in keys):
        raise UsageError(f"{where} needs keys of at least {SHORTEST_SECRET} bytes, one a line", hint=_MAKE)
    return KeyRing(keys)


# What all stores have.


class UserRow(NamedTuple):
    """One login in a store; no grant where no key in force opens it."""

    principal: str
    key: GrantKey
    grant: Grant | None


class UserTokenStore(ABC):
    """The logins of all users. Its methods block, but ``stamp`` and ``renewing``: call them in a thread."""

    def __init__(self) -> None:
        self.of = lru_cache(maxsize=MOST_KNOWN)(partial(UserGrants, self))
        """The logins of one user."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where they are kept, for people."""

    def check(self) -> None:
        """See that there are keys, and that they fit what is kept. Raises ``HoldfastError``."""
        self.rows("")  # no user has this name: the keys are found and checked, and nothing is read

    @abstractmethod
    def stamp(self, principal: str | None = None) -> object:
        """Changes when a login of this user does, or of any. Each call asks for it: it costs little and never waits."""

    @abstractmethod
    def rows(self, principal: str | None = None) -> list[UserRow]:
        """The rows of a user, or of all."""

    @abstractmethod
    def changing(self, principal: str) -> AbstractContextManager[dict[GrantKey, Grant]]:
        """Change the grants of one user: all of it, or nothing. Raises ``StoreUnusable``."""

    @abstractmethod
    def renewing(self, key: GrantKey, principal: str) -> AbstractAsyncContextManager[None]:
        """Hold the lease of one grant. Raises ``StoreUnusable`` if it cannot be had."""


# The file.


class UserTokens(UserTokenStore):
    """The logins of all users in one file.

    ``keeps``: this is the hub, which seals rows again and sets a file aside that its keys do not open.
    """

    def __init__(
        self, folder: Path | None = None, *, keys: KeyRing | None = None, keeps: bool = False, path: Path | None = None
    ) -> None:
        super().__init__()
        self.folder = folder or state_folder(os.environ)
        self.file = path or self.folder / FILE_NAME
        self._given = keys
        self._keeps = keeps
        self._opened: KeyRing | None = None
        self._turn = threading.Lock()

    @property
    def place(self) -> str:
        """The path of the file."""
        return str(self.file)

    def stamp(self, principal: str | None = None) -> FileStamp:
        """Changes when the file does."""
        _ = principal  # one file has the logins of all users
        return file_stamp(self.file)

    def renewing(self, key: GrantKey, principal: str) -> AbstractAsyncContextManager[None]:
        """Hold the lock of one grant; the kernel takes it from a process that ends."""
        return renewing(self.folder, key, principal)

    @contextmanager
    def changing(self, principal: str) -> Iterator[dict[GrantKey, Grant]]:
        """Change the grants of one user in one transaction. Raises ``StoreUnusable``."""
        keys = self.keys
        with self._database() as database, database:
            database.execute("BEGIN IMMEDIATE")
            # Read inside the transaction: another process may have renewed a grant since the last look.
            rows = self._opened_rows(database, keys, principal)
            after = {row.key: row.grant for row in rows if row.grant is not None}
            known = dict(after)
            yield after
            for key in known.keys() - after.keys():
                where = (principal, *key)
                database.execute("DELETE FROM grants WHERE principal = ? AND issuer = ? AND resource = ?", where)
            for key, grant in after.items():
                if known.get(key) != grant:
                    content = json.dumps(write_entry(replace(grant, source="file"))).encode()
                    sealed = keys.seal(content, purpose=PURPOSE, about=_about(principal, key))
                    database.execute("INSERT OR REPLACE INTO grants VALUES (?, ?, ?, ?)", (principal, *key, sealed))

    @property
    def keys(self) -> KeyRing:
        """The keys in force, checked against the file once. Raises ``HoldfastError``."""
        with self._turn:
            if self._opened is None:
                keys = self._given or find_user_keys(self.folder)
                self._check(keys)
                self._opened = keys
            return self._opened

    def _check(self, keys: KeyRing) -> None:
        """See that the keys open the file. The hub sets one aside that they do not open, and seals rows again."""
        if not self.file.exists():
            return
        try:
            with locked(self.folder / f"{FILE_NAME}.lock"):
                with closing(self._open()) as database:
                    row = database.execute("SELECT sealed FROM lock").fetchone()
                    # One known text, sealed: it shows whether the keys fit without a look at the logins of users.
                    ours = row is None or keys.open(row[0], purpose=PURPOSE) == LOCK_TEXT
                    is_old = row is None or keys.newest.open(row[0], purpose=PURPOSE) is None
                    if ours and is_old and self._keeps:
                        self._seal_again(database, keys)
                if ours:
                    return
                # A command with the wrong key must not take the logins away from the hub that has the right one.
                if not self._keeps:
                    raise StoreUnusable(
                        f"the key of this command does not open {self.file}",
                        hint=f"set {KEY_VARIABLE} or {KEY_FILE_VARIABLE} as the hub has it",
                    )
                aside = set_aside(self.file)
                log.error(
                    "no key in force opens the users' tokens: they are set aside as %s, and users have to log in "
                    "again. Put the old key back to use them: see %s",
                    aside.name,
                    KEY_FILE_VARIABLE,
                )
        except sqlite3.DatabaseError as exc:
            if not self._keeps or exc.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise self._unusable(exc) from exc
            log.error("the users' tokens are damaged and set aside as %s: %s", set_aside(self.file).name, exc)  # noqa: TRY400 - a traceback adds nothing
        except OSError as exc:
            raise self._unusable(exc) from exc

    def _seal_again(self, database: sqlite3.Connection, keys: KeyRing) -> None:
        """Seal every row with the first key, so that an older one can be removed."""
        with database:
            database.execute("BEGIN IMMEDIATE")
            rows = database.execute("SELECT principal, issuer, resource, sealed FROM grants").fetchall()
            for principal, issuer, resource, sealed in rows:
                about = _about(principal, GrantKey(issuer, resource))
                content = keys.open(sealed, purpose=PURPOSE, about=about)
                # What no key opens stays as it is: an operator may put the old key back.
                if content is not None:
                    again = keys.seal(content, purpose=PURPOSE, about=about)
                    where = (again, principal, issuer, resource)
                    database.execute(
                        "UPDATE grants SET sealed = ? WHERE principal = ? AND issuer = ? AND resource = ?", where
                    )
            database.execute("INSERT OR REPLACE INTO lock VALUES (0, ?)", (keys.seal(LOCK_TEXT, purpose=PURPOSE),))

    def rows(self, principal: str | None = None) -> list[UserRow]:
        """The rows of a user, or of all."""
        keys = self.keys
        if not self.file.exists():
            return []
        with self._database() as database:
            return self._opened_rows(database, keys, principal)

    def _opened_rows(self, database: sqlite3.Connection, keys: KeyRing, principal: str | None) -> list[UserRow]:
        of_one = "" if principal is None else " WHERE principal = ?"
        query = f"SELECT principal, issuer, resource, sealed FROM grants{of_one} ORDER BY 1, 2, 3"  # noqa: S608 - fixed texts
        rows = database.execute(query, () if principal is None else (principal,)).fetchall()
        return [
            UserRow(owner, key := GrantKey(issuer, resource), _grant_in(keys, owner, key, sealed))
            for owner, issuer, resource, sealed in rows
        ]

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """The file, open; what is wrong with it is a ``StoreUnusable``."""
        try:
            private_folder(self.folder)
            with closing(self._open()) as database:
                yield database
        except (sqlite3.Error, OSError) as exc:
            raise self._unusable(exc) from exc

    def _open(self) -> sqlite3.Connection:
        new = not self.file.exists()
        database = sqlite3.connect(self.file, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            if new:
                self.file.chmod(0o600)
            if database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'lock'").fetchone() == (0,):
                database.executescript(_SCHEMA)
                keys = self._given or find_user_keys(self.folder)
                database.execute("INSERT OR IGNORE INTO lock VALUES (0, ?)", (keys.seal(LOCK_TEXT, purpose=PURPOSE),))
        except BaseException:
            database.close()
            raise
        return database

    def _unusable(self, exc: Exception) -> StoreUnusable:
        return StoreUnusable(
            f"the users' tokens in {self.file} cannot be used: {getattr(exc, 'strerror', None) or exc}",
            hint="correct the owner and mode of its folder, or set XDG_STATE_HOME to another one",
        )

    def __repr__(self) -> str:
        return f"<UserTokens {self.file}, {self.of.cache_info().currsize} users in memory>"


def _about(principal: str, key: GrantKey) -> bytes:
    """What a row is bound to: a row that is moved to another user, or another server, does not open."""
    return json.dumps([principal, *key]).encode()


def _grant_in(keys: KeyRing, principal: str, key: GrantKey, sealed: bytes) -> Grant | None:
    content = keys.open(sealed, purpose=PURPOSE, about=_about(principal, key))
    if content is None:
        return None
    try:
        grant = read_entry(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # a newer version wrote it
    return grant if grant.key == key else None


class UserGrants(GrantStore):
    """The logins of one user."""

    def __init__(self, tokens: UserTokenStore, principal: str) -> None:
        super().__init__()
        self._tokens = tokens
        self.principal = principal
        self.logins = Logins(self, command=self._command)
        """What renews them; one for each user, so that one process asks once."""

    @property
    def place(self) -> str:
        """Where they are kept, for people."""
        return self._tokens.place

    def stamp(self) -> object:
        """Changes when a login of this user does."""
        return self._tokens.stamp(self.principal)

    def read(self) -> tuple[tuple[Grant, ...], bool]:
        """All grants of this user. One that does not open is left out and logged."""
        found = self._tokens.rows(self.principal)
        for row in found:
            if row.grant is None:
                log.warning("a login to %s does not open: its user has to log in again", row.key.resource)
        return tuple(row.grant for row in found if row.grant is not None), True

    def changing(self) -> AbstractContextManager[dict[GrantKey, Grant]]:
        """Change the grants of this user."""
        return self._tokens.changing(self.principal)

    def renewing(self, key: GrantKey) -> AbstractAsyncContextManager[None]:
        """Hold the lease of one grant."""
        return self._tokens.renewing(key, self.principal)

    def address_of(self, spec: ServerSpec) -> str:
        """The address by which a login to a server is found; empty for a server that takes none."""
        return canonical(spec.url) if takes_login(spec) else ""

    def lacks_login(self, spec: ServerSpec) -> bool:
        """Whether a server takes a login, and this user has none that is still accepted; without a read."""
        server = self.address_of(spec)
        return bool(server) and not any(server in one.servers and not one.refused for one in self.known)

    def _command(self, server: str) -> str:
        return command_line("login", server=server, options=("--user", self.principal))

    def __repr__(self) -> str:
        return f"<UserGrants of {self.principal}: {len(self.known)}>"
