"""The token store: one small file for all grants, shared by every process of a user.

It is replaced whole or not at all, readable by its owner alone, and says of each grant everything but,
where there is a keyring, its secrets: those lie there. A file that cannot be read is set aside, never
deleted. Whoever wants to know whether anything changed asks ``current``: that costs a look at the file's date.
"""

from __future__ import annotations

import json
import logging
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from holdfast.auth.entries import key_of, read_entry, secrets_of, with_secrets, write_entry
from holdfast.auth.grant import Grant, GrantKey
from holdfast.auth.vault import Vault, VaultClosed, find_vault
from holdfast.config.find import state_folder
from holdfast.errors import HoldfastError
from holdfast.files import locked, replace_file, set_aside

__all__ = ["Stamp", "StoreUnusable", "TokenStore"]

log = logging.getLogger("holdfast.auth")

VERSION = 1

LOCK = "auth.lock"
"""The name of the lock file of the store."""

Entries: TypeAlias = dict[GrantKey, dict[str, Any]]
Stamp: TypeAlias = tuple[int, ...] | None
"""Tells one state of the store from another; None while there is no store."""

PAUSE = 5.0
"""Seconds after which what could not be read is tried again: a locked keyring is not to be asked at every look."""

PATIENCE = 5.0
"""Seconds that a reader waits for another: one whom the keyring keeps waiting must not gather a queue."""


class StoreUnusable(HoldfastError):
    """The store cannot be written: nothing has changed in it."""


class _Read(NamedTuple):
    """What was read, and how long it can be gone by."""

    stamp: Stamp = None
    grants: tuple[Grant, ...] = ()
    until: float = math.inf
    """When to read again though the file has not changed; never, if all of it was read."""


class TokenStore:
    """The grants of one user. Methods block for a moment: call them in a thread where that matters."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        vault: Callable[[], Vault | None] = find_vault,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder or state_folder(os.environ)
        self.file = self.folder / "auth.json"
        self._find_vault = vault
        self._vaults: list[Vault | None] = []
        self._clock = clock
        self._read = _Read()
        self._reading = threading.Lock()
        self._missed = False

    @property
    def current(self) -> bool:
        """Whether what was read last is what the file holds, or as much of it as can be had for the moment."""
        return self._read.stamp == self._stamp() and self._clock() < self._read.until

    @property
    def known(self) -> tuple[Grant, ...]:
        """The grants as they were read last, without a look at the file."""
        return self._read.grants

    @property
    def exposed(self) -> bool:
        """Whether others than its owner may read the file, which we never allow."""
        try:
            return bool(self.file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
        except OSError:
            return False

    def grants(self) -> tuple[Grant, ...]:
        """All grants; read anew if the file changed. One whose secrets the keyring does not give is left out."""
        if not self.current and self._reading.acquire(timeout=PATIENCE):
            try:
                self._read_anew()
            finally:
                self._reading.release()
        return self._read.grants

    def get(self, key: GrantKey) -> Grant | None:
        """One grant."""
        return next((grant for grant in self.grants() if grant.key == key), None)

    def of(self, server: str) -> Grant | None:
        """The grant that somebody logged in to this address with."""
        return next((grant for grant in self.grants() if server in grant.servers), None)

    def put(self, grant: Grant) -> Grant:
        """Keep a grant in place of whatever was kept under its key; an address belongs to one grant only."""
        kept = self._placed(grant)
        with self._changing() as entries:
            before = entries.pop(grant.key, {"servers": ()})
            servers = {*grant.servers, *before["servers"]}
            for entry in entries.values():
                entry["servers"] = [one for one in entry["servers"] if one not in servers]
            kept = replace(kept, servers=tuple(sorted(servers)))
            entries[grant.key] = write_entry(kept)
        self.grants()
        return kept

    def remove(self, key: GrantKey) -> bool:
        """Forget a grant; False if there was none."""
        with self._changing() as entries:
            gone = entries.pop(key, None)
        if gone is not None and gone["source"] == "keyring" and (vault := self._vault) is not None:
            vault.remove(key)
        self.grants()
        return gone is not None

    def _read_anew(self) -> None:
        """One at a time: else a slow reader could put what was there before in place of what is there now."""
        if self.current:
            return
        stamp, self._missed = self._stamp(), False
        found = tuple(self._with_secrets(self._entries()))
        self._read = _Read(stamp, found, self._clock() + PAUSE if self._missed else math.inf)

    @property
    def _vault(self) -> Vault | None:
        """Looked for when it is first needed: finding a keyring takes a while."""
        if not self._vaults:
            self._vaults.append(self._find_vault())
        return self._vaults[0]

    def _stamp(self) -> Stamp:
        try:
            found = self.file.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)

    def _entries(self) -> Entries:
        """What the file says of each grant; nothing, if it cannot be read."""
        try:
            return self._parsed()
        except (OSError, _Newer) as exc:
            self._missed = isinstance(exc, OSError)
            log.warning("the token store %s cannot be read: %s", self.file, exc)
        except _CORRUPT:
            self._set_aside()
        return {}

    def _parsed(self) -> Entries:
        try:
            document = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        if document["version"] > VERSION:
            raise _Newer("it was written by a newer Holdfast, and is left alone")
        return {key_of(entry): entry for entry in document["grants"]}

    def _set_aside(self) -> None:
        """Under the lock, and only if it still cannot be read: another process may have done so, and written anew."""
        try:
            with locked(self.folder / LOCK):
                self._parsed_or_set_aside()
        except (OSError, _Newer) as exc:
            self._missed = isinstance(exc, OSError)
            log.warning("the token store %s cannot be read, nor set aside: %s", self.file, exc)

    def _parsed_or_set_aside(self) -> Entries:
        try:
            return self._parsed()
        except _CORRUPT as exc:
            aside = set_aside(self.file)
            log.warning(
                "the token store %s is damaged (%s): set aside as %s", self.file, type(exc).__name__, aside.name
            )
            return {}

    def _with_secrets(self, entries: Entries) -> Iterator[Grant]:
        for key, entry in entries.items():
            grant = read_entry(entry)
            if grant.source == "file":
                yield grant
            elif (secrets := self._from_vault(key)) is not None:
                yield with_secrets(grant, secrets)

    def _from_vault(self, key: GrantKey) -> Mapping[str, str] | None:
        try:
            found = self._vault.read(key) if self._vault is not None else None
        except VaultClosed as exc:
            self._missed = True
            told = self._read.until < math.inf  # it was so a moment ago
            log.log(
                logging.DEBUG if told else logging.WARNING,
                "the keyring does not give the tokens of %s (%s)",
                key.resource,
                exc,
            )
            return None
        if found is None:
            log.warning("the tokens of %s are in a keyring that does not have them now", key.resource)
        return found

    def _placed(self, grant: Grant) -> Grant:
        """Put the secrets into the keyring, unless there is none or it refuses; the grant then says so."""
        if self._vault is None:
            return replace(grant, source="file")
        try:
            self._vault.write(grant.key, secrets_of(grant))
        except VaultClosed as exc:
            log.warning("the keyring takes no tokens (%s): they are kept in %s", exc, self.file)
            return replace(grant, source="file")
        return replace(grant, source="keyring")

    @contextmanager
    def _changing(self) -> Iterator[Entries]:
        """A change of the file: read under the lock, written as the block ends."""
        try:
            with locked(self.folder / LOCK):
                entries = self._parsed_or_set_aside()
                yield entries
                document = {"version": VERSION, "grants": [*entries.values()]}
                replace_file(self.file, json.dumps(document, indent=1))
        except (OSError, _Newer) as exc:
            raise StoreUnusable(
                f"the token store {self.file} cannot be written: {getattr(exc, 'strerror', None) or exc}",
                hint="correct the owner and mode of its folder, or set XDG_STATE_HOME to another one",
            ) from exc

    def __repr__(self) -> str:
        return f"<TokenStore {self.file}>"


class _Newer(Exception):
    """The file is a newer version's: that one still wants it."""


_CORRUPT = (ValueError, KeyError, TypeError, AttributeError)
"""How a damaged file shows when it is read."""
