"""The token store: one small file for all grants, shared by every process of a user.

Theory of operation. Hubs, ``login`` and ``doctor`` of one user share one file, and each call of a server with a login
asks for its token. So reading must cost nothing and writing must be safe between processes:

* ``current`` says whether the file has changed, at the cost of one ``stat``. Only then it is read, in a thread
  (``StoreReader``), and the grants stay in memory (``known``). A login that another process made is seen
  within ``LOOK_SECONDS``.
* A change reads the file again under a lock (``_StoreFile.changing``), so that two processes lose nothing of each
  other, and replaces it atomically. A crash leaves the old file.
* Where there is a keyring, the secrets are there and not in the file; ``HOLDFAST_TOKEN_STORE=file`` turns that off. The
  file then names the grant, and the keyring has one entry for it. A keyring may be locked and wait for a person who is
  not there: reads have a time limit and are repeated after ``PAUSE``. Writes have none, because a renewed token must be
  kept; a keyring that refuses gets the file as its stand-in.
* ``renewing`` is the lease of one grant: one process asks the authorization server, and the others find the result.

What must never happen: a token is lost because a file is damaged (it is set aside, never deleted; one of a newer
version stays as it is) or because a keyring did not answer (the grant is left out of this read, and stays in the
store); a file that others can read; a grant whose token goes to two issuers' servers (an address belongs to one grant).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

import anyio
import anyio.to_thread

from holdfast.auth.grant import Grant, GrantKey, put_among, read_entry, secrets_of, with_secrets, write_entry
from holdfast.config import state_folder
from holdfast.errors import HoldfastError
from holdfast.files import FileLock, locked, private_folder, replace_file, set_aside

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

__all__ = [
    "CHOICE",
    "SERVICE",
    "GrantStore",
    "KeyringStorage",
    "SecretStorageClosed",
    "Stamp",
    "StoreReader",
    "StoreUnusable",
    "TokenStore",
    "find_keyring",
    "find_secret_storage",
    "renewing",
]

log = logging.getLogger("holdfast.auth")

CHOICE = "HOLDFAST_TOKEN_STORE"
"""The variable that selects where tokens are kept: ``file`` or ``keyring``; by default the keyring if there is one."""

SERVICE = "holdfast"


class SecretStorageClosed(Exception):
    """The keyring cannot be used: it is locked, absent, or it refuses."""


class KeyringStorage:
    """The OS keyring: one entry for each grant. Its methods block."""

    def __init__(self, backend: KeyringBackend) -> None:
        self._backend = backend

    def read(self, key: GrantKey) -> Mapping[str, str] | None:
        """The secrets of a grant; None if it has none. Raises ``SecretStorageClosed``."""
        try:
            text = self._backend.get_password(SERVICE, _entry(key))
            found = json.loads(text) if text else None
        except Exception as exc:  # every backend has errors of its own
            raise SecretStorageClosed(type(exc).__name__) from exc
        return found if isinstance(found, dict) else None

    def write(self, key: GrantKey, secrets: Mapping[str, str]) -> None:
        """Keep the secrets of a grant. Raises ``SecretStorageClosed``."""
        try:
            self._backend.set_password(SERVICE, _entry(key), json.dumps(dict(secrets)))
        except Exception as exc:  # every backend has errors of its own
            raise SecretStorageClosed(type(exc).__name__) from exc

    def remove(self, key: GrantKey) -> None:
        """Remove a grant's secrets; a failure is only logged."""
        try:
            self._backend.delete_password(SERVICE, _entry(key))
        except Exception as exc:  # noqa: BLE001 - every backend has errors of its own
            log.warning("the keyring did not remove the tokens of %s (%s)", key.resource, type(exc).__name__)


def find_secret_storage(environ: Mapping[str, str] = os.environ) -> KeyringStorage | None:
    """The keyring of this machine and user; None where there is none or the user turned it off."""
    choice = environ.get(CHOICE, "")
    if choice == "file":
        return None
    backend = find_keyring()
    if backend is None and choice == "keyring":
        log.warning("%s=keyring, but there is no keyring here: tokens are kept in a file", CHOICE)
    return KeyringStorage(backend) if backend is not None else None


def find_keyring() -> KeyringBackend | None:
    """The keyring of this machine and user; None where there is none."""
    try:
        import keyring  # noqa: PLC0415 - an extra, and slow to import
        from keyring.backends import fail, null  # noqa: PLC0415

        found = keyring.get_keyring()
    except Exception as exc:  # noqa: BLE001 - tokens must be kept also where a keyring is broken
        log.debug("no keyring: %s", type(exc).__name__)
        return None
    return None if isinstance(found, fail.Keyring | null.Keyring) else found


def _entry(key: GrantKey) -> str:
    return f"{key.issuer} {key.resource}"


VERSION = 1

LOCK = "auth.lock"
"""The name of the lock file of the store."""

Entries: TypeAlias = dict[GrantKey, Grant]
"""The grants as the file has them: without the secrets that the keyring has."""
Stamp: TypeAlias = tuple[int, ...] | None
"""Identifies a version of the file; None without a file."""

PAUSE = 5.0
"""Seconds before a failed read is repeated: a locked keyring is not asked at every look."""

READER_SECONDS = 5.0
"""How long a reader waits for another one: a reader that waits for the keyring must not build up a queue."""


class StoreUnusable(HoldfastError):
    """The store cannot be written; it has not changed."""


class _Read(NamedTuple):
    """What was read, and how long it is valid."""

    stamp: Stamp = None
    grants: tuple[Grant, ...] = ()
    until: float = math.inf
    """When to read again though the file has not changed; never after a complete read."""


class GrantStore(Protocol):
    """The grants of one person, or of the hub itself. All methods but ``renewing`` block."""

    @property
    def place(self) -> str:
        """Where they are kept, for people."""

    @property
    def current(self) -> bool:
        """Whether the last read is up to date. It costs little."""

    @property
    def known(self) -> tuple[Grant, ...]:
        """The grants of the last read."""

    def grants(self) -> tuple[Grant, ...]:
        """All grants; reads them again if they changed."""

    def get(self, key: GrantKey) -> Grant | None:
        """One grant."""
        return next((grant for grant in self.grants() if grant.key == key), None)

    def of(self, server: str) -> Grant | None:
        """The grant of the login to this address."""
        return next((grant for grant in self.grants() if server in grant.servers), None)

    def put(self, grant: Grant) -> Grant:
        """Keep a grant in place of the one with its key; an address belongs to one grant only."""

    def remove(self, key: GrantKey) -> bool:
        """Forget a grant; False if there was none."""

    def renewing(self, key: GrantKey) -> AbstractAsyncContextManager[None]:
        """Hold the lease of one grant: one process asks the authorization server, the others find the result."""


class TokenStore(GrantStore):
    """The grants of one user. Its methods block: call them in a thread where that matters."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        vault: Callable[[], KeyringStorage | None] = find_secret_storage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder or state_folder(os.environ)
        self._file = _StoreFile(self.folder)
        self.file = self._file.path
        self._find_vault = vault
        self._vaults: list[KeyringStorage | None] = []
        self._clock = clock
        self._read = _Read()
        self._reading = threading.Lock()

    @property
    def place(self) -> str:
        """The path of the file."""
        return str(self.file)

    @property
    def current(self) -> bool:
        """Whether the last read is up to date, as far as the keyring allows."""
        return self._read.stamp == self._file.stamp() and self._clock() < self._read.until

    @property
    def known(self) -> tuple[Grant, ...]:
        """The grants of the last read, without a look at the file."""
        return self._read.grants

    @property
    def exposed(self) -> bool:
        """Whether other users may read the file, which Holdfast never allows."""
        return self._file.exposed

    def damage(self) -> str:
        """Why the file cannot be read as a token store; empty if it can. The file stays where it is."""
        return self._file.damage()

    def grants(self) -> tuple[Grant, ...]:
        """All grants; reads the file again if it changed. A grant without its secrets is left out."""
        if not self.current and self._reading.acquire(timeout=READER_SECONDS):
            try:
                # One reader at a time: a slow one could otherwise replace newer content with older.
                if not self.current:
                    # The stamp before the content: a write in between makes this read out of date, and it is repeated.
                    stamp, self._file.missed = self._file.stamp(), False
                    found = tuple(_with_secrets(self._file.entries(), self._from_vault))
                    until = self._clock() + PAUSE if self._file.missed else math.inf
                    self._read = _Read(stamp, found, until)
            finally:
                self._reading.release()
        return self._read.grants

    def put(self, grant: Grant) -> Grant:
        """Keep a grant in place of the one with its key; an address belongs to one grant only."""
        # The keyring before the file: a file that names the keyring and finds nothing there would be a lost login.
        placed = self._placed(grant)
        with self._file.changing() as entries:
            kept = put_among(entries, placed)
        self.grants()
        return kept

    def remove(self, key: GrantKey) -> bool:
        """Forget a grant; False if there was none."""
        with self._file.changing() as entries:
            gone = entries.pop(key, None)
        if gone is not None and gone.source == "keyring" and (vault := self._vault) is not None:
            # After the file: tokens that no entry names are of no use to anyone, an entry without tokens is an error.
            vault.remove(key)
        self.grants()
        return gone is not None

    def renewing(self, key: GrantKey) -> AbstractAsyncContextManager[None]:
        """Hold the lease of one grant."""
        return renewing(self.folder, key)

    @property
    def _vault(self) -> KeyringStorage | None:
        """The keyring, found at the first use, since that takes a while."""
        if not self._vaults:
            self._vaults.append(self._find_vault())
        return self._vaults[0]

    def _from_vault(self, key: GrantKey) -> Mapping[str, str] | None:
        try:
            found = self._vault.read(key) if self._vault is not None else None
        except SecretStorageClosed as exc:
            self._file.missed = True
            told = self._read.until < math.inf  # it was logged a moment ago
            log.log(
                logging.DEBUG if told else logging.WARNING,
                "the keyring did not return the tokens of %s (%s)",
                key.resource,
                exc,
            )
            return None
        if found is None:
            log.warning("the keyring has no tokens of %s any more", key.resource)
        return found

    def _placed(self, grant: Grant) -> Grant:
        """Put the secrets into the keyring, or keep them in the file if there is none; the grant says which."""
        if self._vault is None:
            return replace(grant, source="file")
        try:
            self._vault.write(grant.key, secrets_of(grant))
        except SecretStorageClosed as exc:
            log.warning("the keyring did not accept the tokens (%s): they are kept in %s", exc, self.file)
            return replace(grant, source="file")
        return replace(grant, source="keyring")

    def __repr__(self) -> str:
        return f"<TokenStore {self.file}>"


def _with_secrets(entries: Entries, from_vault: Callable[[GrantKey], Mapping[str, str] | None]) -> Iterator[Grant]:
    """The grants; one whose secrets the keyring does not give is left out."""
    for key, grant in entries.items():
        if grant.source == "file":
            yield grant
        elif (secrets := from_vault(key)) is not None:
            yield with_secrets(grant, secrets)


class _StoreFile:
    """The file of the store: read, changed under a lock, and set aside where it is damaged."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "auth.json"
        self._lock = folder / LOCK
        self._text = str(self.path)
        self.missed = False
        """Whether the last read failed by no fault of the content: it is repeated soon."""

    def __repr__(self) -> str:
        return f"<_StoreFile {self.path}>"

    def stamp(self) -> Stamp:
        """Changes when the file does; None if there is none."""
        try:
            found = os.stat(self._text)  # noqa: PTH116 - it is asked for every call, and a Path costs as much again
        except OSError:
            return None
        return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)

    @property
    def exposed(self) -> bool:
        """Whether other users may read the file, which Holdfast never allows."""
        try:
            return bool(self.path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
        except OSError:
            return False

    def damage(self) -> str:
        """Why the file cannot be read as a token store; empty if it can. The file stays where it is."""
        try:
            self._parsed()
        except (OSError, _NewerFormat):
            return ""
        except _CORRUPT as exc:
            return type(exc).__name__
        return ""

    def entries(self) -> Entries:
        """The entries of the file; none, if it cannot be read."""
        try:
            return self._parsed()
        except (OSError, _NewerFormat) as exc:
            self.missed = isinstance(exc, OSError)
            log.warning("the token store %s cannot be read: %s", self.path, exc)
        except _CORRUPT:
            self._set_aside()
        return {}

    @contextmanager
    def changing(self) -> Iterator[Entries]:
        """Change the file under the lock: it is read first, and written when the block ends."""
        try:
            with locked(self._lock):
                entries = self._parsed_or_set_aside()
                yield entries
                document = {"version": VERSION, "grants": [write_entry(grant) for grant in entries.values()]}
                replace_file(self.path, json.dumps(document, indent=1))
        except (OSError, _NewerFormat) as exc:
            raise StoreUnusable(
                f"the token store {self.path} cannot be written: {getattr(exc, 'strerror', None) or exc}",
                hint="correct the owner and mode of its folder, or set XDG_STATE_HOME to another one",
            ) from exc

    def _parsed(self) -> Entries:
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        if document["version"] > VERSION:
            raise _NewerFormat("it was written by a newer Holdfast and stays as it is")
        return {grant.key: grant for grant in map(read_entry, document["grants"])}

    def _parsed_or_set_aside(self) -> Entries:
        try:
            return self._parsed()
        except _CORRUPT as exc:
            aside = set_aside(self.path)
            log.warning(
                "the token store %s is damaged (%s): set aside as %s", self.path, type(exc).__name__, aside.name
            )
            return {}

    def _set_aside(self) -> None:
        """Set the file aside under the lock, if it is still damaged: another process may have replaced it."""
        try:
            with locked(self._lock):
                self._parsed_or_set_aside()
        except (OSError, _NewerFormat) as exc:
            self.missed = isinstance(exc, OSError)
            log.warning("the token store %s is damaged and cannot be set aside: %s", self.path, exc)


class _NewerFormat(Exception):
    """A newer version of Holdfast wrote the file and still needs it."""


_CORRUPT = (ValueError, KeyError, TypeError, AttributeError)
"""What reading a damaged file raises."""


READ_SECONDS = 5.0
"""How long a read may take: an unlocked keyring answers in milliseconds."""


LOOK_SECONDS = 0.1
"""How often the file is looked at for a login of a server that has none."""


class StoreReader:
    """The reads of one store, one at a time, outside the shared thread pool."""

    def __init__(self, store: GrantStore, *, seconds: float = READ_SECONDS) -> None:
        self.seconds = seconds
        self._store = store
        self._turn = anyio.CapacityLimiter(1)
        self._looked_at = -math.inf

    async def up_to_date(self, *, within: float | None = None) -> bool:
        """Read the store if it changed; False if that could not be done in time."""
        if self._is_current():
            return True  # on the path of every call: a look at the file, and no more
        with anyio.move_on_after(within if within is not None else self.seconds):
            while not self._is_current():
                # A limiter of its own: a keyring that waits for a person holds one thread, not those of the program.
                await anyio.to_thread.run_sync(self._store.grants, abandon_on_cancel=True, limiter=self._turn)
            return True
        return False

    def _is_current(self) -> bool:
        # A call, because mypy takes a property that was false for false until the end.
        return self._store.current

    def grant_of(self, server: str) -> Grant | Literal["unknown"] | None:
        """The grant of a server without a wait, if the store need not be read for it.

        A server without a login needs no look at the file for each of its calls: a new login is looked for every
        ``LOOK_SECONDS``.
        """
        known, now = self._store.known, time.monotonic()
        grant = next((one for one in known if server in one.servers), None) if known else None
        if grant is None and now < self._looked_at + LOOK_SECONDS:
            return None
        if not self._is_current():
            return "unknown"
        self._looked_at = now
        return grant


LOCK_PAUSE = 0.05
"""Seconds between two tries: another process renews within a fraction of a second, and a try costs microseconds."""


@asynccontextmanager
async def renewing(folder: Path, key: GrantKey, principal: str = "") -> AsyncIterator[None]:
    """Hold the lock of one grant: one process asks the authorization server, the others find the result.

    ``principal`` is the user whose grant it is; empty for the hub's own.
    """
    named = (*key, principal) if principal else key
    which = hashlib.blake2s("\n".join(named).encode(), digest_size=8).hexdigest()
    # One lock for each grant: a slow authorization server must not hold up the renewal of another login.
    lock = FileLock(private_folder(folder) / f"auth-{which}.lock")
    try:
        while not lock.try_acquire():  # noqa: ASYNC110 - the lock belongs to another process
            await anyio.sleep(LOCK_PAUSE)
        yield
    finally:
        lock.release()
