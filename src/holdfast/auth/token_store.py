"""Grants, and the token store: one small file for all grants, shared by every process of a user.

A grant is the result of a login. It is plain, frozen data, and no ``repr`` shows a token or a client's secret. An entry
is a grant in the file, with or without its secrets. ``GrantStore`` is what each store of grants has in common: when it
is read, and what was read last. ``TokenStore`` is the file of this user; ``user_tokens`` has the logins of the hub's
users.

Theory of operation. Hubs, ``login`` and ``doctor`` of one user share one file, and each call of a server with a login
asks for its token. So reading must cost nothing and writing must be safe between processes:

* ``is_current`` says whether the file has changed, at the cost of one ``stat`` (3 microseconds). Only then it is read,
  in a thread (``up_to_date``), and the grants stay in memory (``known``).
* A change reads the file again under a lock (``changing``), so that two processes lose nothing of each other, and
  replaces it atomically. A crash leaves the old file.
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
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import anyio
import anyio.to_thread

from holdfast.auth.token_endpoint import OAuthClient
from holdfast.config import state_folder
from holdfast.errors import HoldfastError
from holdfast.files import FileLock, FileStamp, file_stamp, locked, private_folder, replace_file, set_aside

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

__all__ = [
    "CHOICE",
    "SERVICE",
    "Grant",
    "GrantKey",
    "GrantStore",
    "KeyringStorage",
    "SecretStorageClosed",
    "Source",
    "StoreUnusable",
    "TokenStore",
    "find_keyring",
    "find_secret_storage",
    "grant_of",
    "put_among",
    "read_entry",
    "renewing",
    "write_entry",
]

log = logging.getLogger("holdfast.auth")

# A grant: the result of a login, of one authorization server, for one resource, to one client.

Source: TypeAlias = Literal["keyring", "file"]
"""Where a grant's secrets are kept."""


class GrantKey(NamedTuple):
    """Identifies a grant: a token of one issuer is never sent to another, nor to another resource."""

    issuer: str
    resource: str


@dataclass(frozen=True, kw_only=True)
class Grant:
    """One login, as of its latest renewal."""

    issuer: str
    resource: str
    servers: tuple[str, ...]
    """The server addresses of this login: its token is sent to these and to no other."""
    client: OAuthClient
    token_endpoint: str
    revocation_endpoint: str = ""
    indicator: str | None = None
    """The ``resource`` that its requests name: None for its resource, empty for none."""
    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    scope: str = ""
    expires_at: float | None = None
    """When the access token ends, in seconds since 1970; None where the authorization server did not say."""
    login: str
    """Identifies the login; a renewal keeps it."""
    refused: str = ""
    """Why the authorization server no longer renews it; empty while it does."""
    ends_at: float | None = None
    """When the hub itself ends it, in seconds since 1970; None for a login that ends by a logout alone."""
    source: Source = "file"

    @property
    def key(self) -> GrantKey:
        """Its key in the store."""
        return GrantKey(self.issuer, self.resource)

    @property
    def named_resource(self) -> str:
        """The ``resource`` parameter of a renewal; empty for none."""
        return self.resource if self.indicator is None else self.indicator

    @property
    def refreshable(self) -> bool:
        """Whether a renewal can succeed."""
        return bool(self.refresh_token) and not self.refused

    def expired(self, now: float) -> bool:
        """Whether the access token has expired by this machine's clock."""
        return self.expires_at is not None and now >= self.expires_at

    def usable(self, now: float) -> bool:
        """Whether the next request can use it, after a renewal where needed."""
        return self.refreshable or not self.expired(now)


def put_among(grants: dict[GrantKey, Grant], grant: Grant) -> Grant:
    """Keep a grant in place of the one with its key; returns it with its addresses, those of the one before among them.

    An address belongs to one grant: a new login at another issuer takes it from the old one. A renewal of the old login
    may be under way then. What it brings takes no address back.
    """
    before = grants.pop(grant.key, None)
    known = {*before.servers} if before is not None else set[str]()
    is_renewal = before is not None and before.login == grant.login
    servers = known if is_renewal else {*grant.servers} | known
    for key, other in grants.items():
        grants[key] = replace(other, servers=tuple(one for one in other.servers if one not in servers))
    kept = grants[grant.key] = replace(grant, servers=tuple(sorted(servers)))
    return kept


SECRETS = ("access_token", "refresh_token")


def read_entry(entry: Mapping[str, Any]) -> Grant:
    """The grant; its tokens are empty where the keyring has them. Raises for an entry that is no grant."""
    client = OAuthClient(**entry["client"])
    return Grant(**{"access_token": "", **entry, "servers": tuple(entry["servers"]), "client": client})


def write_entry(grant: Grant) -> dict[str, Any]:
    """All of a grant, or all but its secrets where the keyring has those."""
    entry = asdict(grant)
    if grant.source == "keyring":
        for name in SECRETS:
            del entry[name]
        entry["client"]["secret"] = entry["client"]["key"] = None
    return entry


def secrets_of(grant: Grant) -> dict[str, str]:
    """The secrets of a grant, for the keyring."""
    pairs = {name: getattr(grant, name) for name in SECRETS}
    pairs |= {"client_secret": grant.client.secret, "client_key": grant.client.key}
    return {name: value for name, value in pairs.items() if value}


def with_secrets(grant: Grant, secrets: Mapping[str, str]) -> Grant:
    """A grant with its secrets put back."""
    return replace(
        grant,
        access_token=secrets.get("access_token", ""),
        refresh_token=secrets.get("refresh_token"),
        client=replace(grant.client, secret=secrets.get("client_secret"), key=secrets.get("client_key")),
    )


# The keyring.

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


# The store.

VERSION = 1

LOCK = "auth.lock"
"""The name of the lock file of the store."""

Entries: TypeAlias = dict[GrantKey, Grant]
"""The grants as the file has them: without the secrets that the keyring has."""

PAUSE = 5.0
"""Seconds before a failed read is repeated: a locked keyring is not asked at every look."""

READER_SECONDS = 5.0
"""How long a reader waits for another one: a reader that waits for the keyring must not build up a queue."""

READ_SECONDS = 5.0
"""How long a task waits for a read: an unlocked keyring answers in milliseconds."""


_NEVER_READ = object()
"""The stamp before the first read: no store has it, one without a file neither."""


class StoreUnusable(HoldfastError):
    """The store cannot be read or written; it has not changed."""


def grant_of(grants: Iterable[Grant], server: str) -> Grant | None:
    """The grant of the login to this address, among these."""
    return next((grant for grant in grants if server in grant.servers), None)


def _by_address(grants: Iterable[Grant]) -> dict[str, str]:
    return {address: grant.login for grant in grants for address in grant.servers}


class GrantStore(ABC):
    """The grants of one person, or of the hub itself, and what was read of them last.

    A store says how it is read and changed; when it is read is the same for all. All methods but ``up_to_date`` and
    ``renewing`` block: call them in a thread where that matters.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.known: tuple[Grant, ...] = ()
        """The grants of the last read, without a look at the store."""
        self._stamp: object = _NEVER_READ
        """Of the last read."""
        self._until = math.inf
        """When to read again though the store has not changed; never after a complete read."""
        self._followed: dict[str, str] = {}
        """By address the login that ``take_news`` told last, or that this process put there itself."""
        self._reading = threading.Lock()
        self._turn = anyio.CapacityLimiter(1)
        self.patience = READ_SECONDS
        """How many seconds a task waits for a read."""
        self.problem = ""
        """Why the last task that needed a read had none; empty if it had one."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where they are kept, for people."""

    @abstractmethod
    def stamp(self) -> object:
        """Changes when the grants do. Each call of a server asks for it: it costs little and never waits."""

    @abstractmethod
    def read(self) -> tuple[tuple[Grant, ...], bool]:
        """All grants that can be read now, and whether nothing was in the way of a complete read."""

    @abstractmethod
    def changing(self) -> AbstractContextManager[dict[GrantKey, Grant]]:
        """Change the grants: all of it, or nothing. Raises ``StoreUnusable``."""

    @abstractmethod
    def renewing(self, key: GrantKey) -> AbstractAsyncContextManager[None]:
        """Hold the lease of one grant: one process asks the authorization server, the others find the result."""

    def is_current(self) -> bool:
        """Whether the last read is up to date. It costs little."""
        return self._stamp == self.stamp() and self._clock() < self._until

    async def up_to_date(self, *, within: float | None = None) -> bool:
        """Read the grants if they changed; False if that could not be done, or not in time (``problem`` says why)."""
        if self.is_current():
            return True  # on the path of every call: a look at the stamp, and no more
        problem = "the token store does not answer: its keyring may wait to be unlocked"
        with anyio.move_on_after(within if within is not None else self.patience):
            try:
                while not self.is_current():
                    # A limiter of its own: a keyring that waits for a person holds one thread, not those of the
                    # program.
                    await anyio.to_thread.run_sync(self.grants, abandon_on_cancel=True, limiter=self._turn)
            except StoreUnusable as exc:
                # It passes, as a full disk does: it must end neither a login nor the hub, whose watch reads the store.
                problem = exc.message
                if problem != self.problem:
                    log.warning("%s", problem)
            else:
                self.problem = ""
                return True
        self.problem = problem
        return False

    def grants(self) -> tuple[Grant, ...]:
        """All grants; reads them again if they changed."""
        if not self.is_current() and self._reading.acquire(timeout=READER_SECONDS):
            try:
                # One reader at a time: a slow one could otherwise replace newer content with older.
                if not self.is_current():
                    # The stamp before the content: a write in between makes this read out of date, and it is repeated.
                    stamp = self.stamp()
                    # The grants before the stamp: else another thread could take the old ones for up to date.
                    self.known, is_complete = self.read()
                    if self._stamp is _NEVER_READ:
                        self._followed = _by_address(self.known)
                    self._stamp, self._until = stamp, math.inf if is_complete else self._clock() + PAUSE
            finally:
                self._reading.release()
        return self.known

    def take_news(self) -> set[str]:
        """The addresses whose login another process changed, since the last call of this or the first read.

        Any call may be the first to read such a change. So this compares with what was told, not with what was read.
        """
        before, self._followed = self._followed, _by_address(self.known)
        return {one for one in before.keys() | self._followed.keys() if before.get(one) != self._followed.get(one)}

    def get(self, key: GrantKey) -> Grant | None:
        """One grant."""
        return next((grant for grant in self.grants() if grant.key == key), None)

    def of(self, server: str) -> Grant | None:
        """The grant of the login to this address."""
        return grant_of(self.grants(), server)

    def put(self, grant: Grant) -> Grant:
        """Keep a grant in place of the one with its key; an address belongs to one grant only."""
        placed = self._placed(grant)
        with self.changing() as grants:
            kept = put_among(grants, placed)
        self.grants()
        self._followed |= dict.fromkeys(kept.servers, kept.login)
        return kept

    def remove(self, key: GrantKey) -> Grant | None:
        """Forget a grant; returns it, or None if there was none."""
        with self.changing() as grants:
            gone = grants.pop(key, None)
        self.grants()
        for address in gone.servers if gone is not None else ():
            self._followed.pop(address, None)
        return gone

    def _placed(self, grant: Grant) -> Grant:
        """The grant as it is kept, when its secrets are where they belong."""
        return replace(grant, source="file")


class TokenStore(GrantStore):
    """The grants of one user of this machine: one file, and the keyring where there is one."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        vault: Callable[[], KeyringStorage | None] = find_secret_storage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock=clock)
        self.folder = folder or state_folder(os.environ)
        self.file = self.folder / "auth.json"
        self._lock = self.folder / LOCK
        self._find_vault = vault

    @property
    def place(self) -> str:
        """The path of the file."""
        return str(self.file)

    def stamp(self) -> FileStamp:
        """Changes when the file does; None if there is none."""
        return file_stamp(self.file)

    def read(self) -> tuple[tuple[Grant, ...], bool]:
        """All grants. One whose secrets the keyring does not give is left out."""
        entries, is_complete = self._entries()
        found: list[Grant] = []
        for key, grant in entries.items():
            if grant.source == "file":
                found.append(grant)
                continue
            try:
                secrets = self._vault.read(key) if self._vault is not None else None
            except SecretStorageClosed as exc:
                is_complete = False
                told = self._until < math.inf  # it was logged a moment ago
                level = logging.DEBUG if told else logging.WARNING
                log.log(level, "the keyring did not return the tokens of %s (%s)", key.resource, exc)
                continue
            if secrets is None:
                log.warning("the keyring has no tokens of %s any more", key.resource)
            else:
                found.append(with_secrets(grant, secrets))
        return tuple(found), is_complete

    @contextmanager
    def changing(self) -> Iterator[Entries]:
        """Change the file under the lock: it is read first, and written when the block ends."""
        try:
            with locked(self._lock):
                entries = self._parsed_or_set_aside()
                yield entries
                document = {"version": VERSION, "grants": [write_entry(grant) for grant in entries.values()]}
                replace_file(self.file, json.dumps(document, indent=1))
        except (OSError, _NewerFormat) as exc:
            raise StoreUnusable(
                f"the token store {self.file} cannot be written: {getattr(exc, 'strerror', None) or exc}",
                hint="correct the owner and mode of its folder, or set XDG_STATE_HOME to another one",
            ) from exc

    def remove(self, key: GrantKey) -> Grant | None:
        """Forget a grant; returns it, or None if there was none."""
        gone = super().remove(key)
        if gone is not None and gone.source == "keyring" and self._vault is not None:
            # After the file: tokens that no entry names are of no use to anyone, an entry without tokens is an error.
            self._vault.remove(key)
        return gone

    def renewing(self, key: GrantKey) -> AbstractAsyncContextManager[None]:
        """Hold the lock of one grant; the kernel takes it from a process that ends."""
        return renewing(self.folder, key)

    def damage(self) -> str:
        """Why the file cannot be read as a token store; empty if it can. The file stays where it is."""
        try:
            self._parsed()
        except (OSError, _NewerFormat):
            return ""
        except _CORRUPT as exc:
            return type(exc).__name__
        return ""

    @cached_property
    def _vault(self) -> KeyringStorage | None:
        """The keyring, found at the first use, since that takes a while."""
        return self._find_vault()

    def _placed(self, grant: Grant) -> Grant:
        """Put the secrets into the keyring, or keep them in the file if there is none; the grant says which.

        The keyring comes before the file: a file that names the keyring and finds nothing there would be a lost login.
        """
        if self._vault is None:
            return replace(grant, source="file")
        try:
            self._vault.write(grant.key, secrets_of(grant))
        except SecretStorageClosed as exc:
            log.warning("the keyring did not accept the tokens (%s): they are kept in %s", exc, self.file)
            return replace(grant, source="file")
        return replace(grant, source="keyring")

    def _entries(self) -> tuple[Entries, bool]:
        """The entries of the file, none if it cannot be read; and whether another read could find more of them."""
        try:
            try:
                return self._parsed(), True
            except _CORRUPT:
                # Under the lock, and only if it is still damaged: another process may have replaced it.
                with locked(self._lock):
                    return self._parsed_or_set_aside(), True
        except (OSError, _NewerFormat) as exc:
            log.warning("the token store %s cannot be read: %s", self.file, exc)
            return {}, isinstance(exc, _NewerFormat)

    def _parsed(self) -> Entries:
        try:
            document = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        if document["version"] > VERSION:
            raise _NewerFormat("it was written by a newer Holdfast and stays as it is")
        return {grant.key: grant for grant in map(read_entry, document["grants"])}

    def _parsed_or_set_aside(self) -> Entries:
        try:
            return self._parsed()
        except _CORRUPT as exc:
            aside = set_aside(self.file)
            log.warning(
                "the token store %s is damaged (%s): set aside as %s", self.file, type(exc).__name__, aside.name
            )
            return {}

    def __repr__(self) -> str:
        return f"<TokenStore {self.file}>"


class _NewerFormat(Exception):
    """A newer version of Holdfast wrote the file and still needs it."""


_CORRUPT = (ValueError, KeyError, TypeError, AttributeError)
"""What reading a damaged file raises."""


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
