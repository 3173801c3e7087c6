"""The logins of users, shared by the replicas of a fleet (AUTH-8).

Theory of operation. A login is a record, as a switch or an approval is: it has a stamp, the latest one wins, every
replica has a copy of it, and a store that was emptied gets it again. So a call never waits for Redis: the copy says
which token it uses. What differs from other records:

    login/USER/GRANT -> {"sealed": ...}      or {"removed": true} after a logout

``USER`` and ``GRANT`` are keyed digests: of the principal, and of the principal with issuer and resource. The value is
sealed with the keys of users' tokens (AES-256-GCM), and the name of the record is authenticated with it. So a reader of
Redis learns neither a token nor a name, and a value that is copied to the record of another user does not open there.

A key that is lost takes its digests with it: a hub with another key finds no login under its own names, and writes
under other ones. What it cannot open stays where it is, and is found again when the old key is back. While a key is
replaced, all replicas have both; each seals what it finds under the older one again.

Renewals. An authorization server that replaces refresh tokens revokes the login if one is used twice. So a renewal

1. takes the lease of the login in Redis (``SET NX PX``, with a value that no other holder has),
2. reads what the others wrote until then,
3. asks the authorization server,
4. writes the answer into its copy, and gives the lease back when Redis has it.

What can happen:

* Redis does not answer before 3: nothing is asked. The access token is used until it expires; then calls say why.
* Redis fails after 3: this replica goes on with its new token, and sends it when Redis is back. The lease stays until
  then, or until ``LEASE_SECONDS`` are over: no other replica uses the old refresh token meanwhile.
* The replica dies after 3: after ``LEASE_SECONDS`` another one tries the old refresh token. If the answer was lost with
  the replica, only a new login helps; if the request never arrived, the login goes on.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.from_thread

from holdfast.auth import Grant, GrantKey, StoreUnusable, UserRow, UserTokenStore, read_entry, write_entry
from holdfast.core import FleetMember, FleetRecord, record_value
from holdfast.fleet.redis_store import RedisAddress, RedisLeases, RedisStore
from holdfast.fleet.stores import SignedStore, StoreUnavailable
from holdfast.keys import KeyRing

if TYPE_CHECKING:
    from holdfast.fleet.fleet import ReplicaState

__all__ = ["LOGIN", "CommandUserTokens", "FleetUserTokens"]

log = logging.getLogger("holdfast.fleet")

Answer = TypeVar("Answer")

LOGIN: Final = "login"
PURPOSE: Final = "user tokens of a fleet"
NAME_PURPOSE: Final = "names of user tokens"
DIGEST_BYTES: Final = 16

WAIT_SECONDS: Final = 20.0
"""How long a renewal waits for the lease of another one: a request to an authorization server ends within that."""
PAUSE_SECONDS: Final = 0.1
READ_SECONDS: Final = 3.0
"""How long a renewal waits to read what the others wrote."""
STORED_SECONDS: Final = 2.0
"""How long the end of a renewal waits until Redis has the answer."""


class LoginSeal:
    """How logins are named and sealed."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def users(self, principal: str) -> tuple[str, ...]:
        """The digests of a principal, that of the key in force first."""
        return self._digests([principal])

    def records(self, principal: str, key: GrantKey) -> tuple[str, ...]:
        """The names of the records of a login, that of the key in force first."""
        grants = self._digests([principal, *key])
        return tuple(f"{LOGIN}/{user}/{grant}" for user, grant in zip(self.users(principal), grants, strict=True))

    def sealed(self, principal: str, grant: Grant) -> tuple[str, dict[str, object]]:
        """The name and the value of a login's record."""
        name = self.records(principal, grant.key)[0]
        content = json.dumps({"principal": principal, "grant": write_entry(grant)}).encode()
        return name, {"sealed": self._keys.seal_text(content, purpose=PURPOSE, about=name.encode())}

    def opened(self, record: FleetRecord) -> UserRow | None:
        """The login in a record; None if there is none any more. One that no key opens has no grant."""
        value = record_value(record)
        if "sealed" not in value:
            return None
        try:
            content = self._keys.open_text(str(value["sealed"]), purpose=PURPOSE, about=record.key.encode())
            said: dict[str, Any] = json.loads(content) if content is not None else {}
            grant = read_entry(said["grant"])
            return UserRow(str(said["principal"]), grant.key, grant)
        except (ValueError, KeyError, TypeError, AttributeError):
            return _UNREADABLE

    def rows(self, records: list[FleetRecord]) -> list[UserRow]:
        """The logins in records; of two versions under two keys the later one."""
        found: dict[tuple[str, GrantKey], UserRow] = {}
        unreadable = []
        # Under two keys a login has two names. The later write is the one that counts.
        for record in sorted(records, key=lambda one: one.stamp):
            row = self.opened(record)
            if row is not None and row.grant is not None:
                found[row.principal, row.key] = row
            elif row is not None:
                unreadable.append(row)
        return [*sorted(found.values(), key=lambda row: (row.principal, row.key)), *unreadable]

    def written(
        self,
        known: Callable[[str], FleetRecord | None],
        principal: str,
        before: Mapping[GrantKey, Grant],
        after: Mapping[GrantKey, Grant],
    ) -> list[tuple[str, dict[str, object]]]:
        """The names and values of the records that make ``after`` of what a user had ``before``."""
        changed = [grant for key, grant in after.items() if before.get(key) != grant]
        gone = [name for key in before if key not in after for name in self.records(principal, key)]
        gone += [older for grant in changed for older in self.records(principal, grant.key)[1:]]
        removed: list[tuple[str, dict[str, object]]] = [(name, {"removed": True}) for name in gone if known(name)]
        return [*(self.sealed(principal, grant) for grant in changed), *removed]

    def _digests(self, about: list[str]) -> tuple[str, ...]:
        named = json.dumps(about).encode()
        return tuple(one.hex() for one in self._keys.signatures(named, purpose=NAME_PURPOSE, size=DIGEST_BYTES))


_UNREADABLE: Final = UserRow("unknown", GrantKey("unknown", "unknown"), None)


class Renewals:
    """The renewals of this replica: one of each login at a time in the whole fleet."""

    def __init__(self, state: ReplicaState, leases: RedisLeases, *, place: str) -> None:
        self._state = state
        self._leases = leases
        self._place = place
        self._late: dict[str, tuple[str, tuple[str, ...]]] = {}
        """The leases that are given back when Redis has the records: their values, and the names of the records."""
        self._turns: dict[str, anyio.Lock] = {}
        """By lease. Two that want one here at a time would each note another value, and one is never given back."""

    @asynccontextmanager
    async def held(self, records: tuple[str, ...]) -> AsyncIterator[None]:
        """Hold the lease of a login, by the names of its records. Raises ``StoreUnusable``."""
        name = min(records)  # the same one at a replica that has the keys in another order
        turn = self._turns.setdefault(name, anyio.Lock())
        try:
            async with turn, self._leased(name, records):
                yield
        finally:
            if not turn.locked():  # the next one in the line would have it by now
                self._turns.pop(name, None)

    @asynccontextmanager
    async def _leased(self, name: str, records: tuple[str, ...]) -> AsyncIterator[None]:
        value = await self._taken(name)
        try:
            if not await self._state.catch_up(READ_SECONDS):
                raise self._unusable("it does not answer: the login is renewed when it does")
            yield
        finally:
            with anyio.move_on_after(STORED_SECONDS, shield=True):
                # The lease is held until Redis has the new refresh token: the next holder must not use the old one.
                while not self._are_stored(records):
                    await self._state.changed.wait()
            with anyio.CancelScope(shield=True):
                self._late[name] = value, records
                await self.give_back()

    async def give_back(self) -> None:
        """Give back the leases of what Redis has."""
        for name, (value, records) in list(self._late.items()):
            # Others were waited for since the list was made: a renewal may have taken this one again.
            if not self._are_stored(records) or self._late.get(name) != (value, records):
                continue
            # Out before the wait: a renewal that begins meanwhile must not go on with a lease that ends here.
            del self._late[name]
            try:
                await self._leases.give_back(name, value)
            except StoreUnavailable as exc:
                log.debug("a lease was not given back: %s", exc)
                self._late.setdefault(name, (value, records))
                return

    async def _taken(self, name: str) -> str:
        # A lease that this replica could not give back yet is its own: it goes on with the same value.
        value, unsent = self._late.pop(name, (secrets.token_hex(16), ()))
        until = self._state.now() + WAIT_SECONDS
        try:
            while not await self._leases.take(name, value):
                if self._state.now() > until:
                    raise self._unusable("another replica renews this login, or could not share it yet")
                await anyio.sleep(PAUSE_SECONDS)
        except BaseException as exc:
            # Redis may have given it, and the answer did not come. It is given back when Redis answers, and has what
            # the renewal before this one brought.
            self._late[name] = value, unsent
            if isinstance(exc, StoreUnavailable):
                raise self._unusable(f"it does not answer ({exc}): the login is renewed when it does") from exc
            raise
        return value

    def _are_stored(self, records: tuple[str, ...]) -> bool:
        return not any(record in self._state.member.outbox.unsent for record in records)

    def _unusable(self, why: str) -> StoreUnusable:
        return StoreUnusable(f"the users' logins in {self._place}: {why}", hint="check the store of the fleet")

    def __repr__(self) -> str:
        return f"<Renewals in {self._place}, {len(self._late)} leases to give back>"


class FleetUserTokens(UserTokenStore):
    """The logins of users in the records of a replica.

    ``keys`` finds the keys, and says what is missing.
    """

    def __init__(
        self,
        state: ReplicaState,
        *,
        keys: Callable[[], KeyRing],
        leases: RedisLeases,
        place: str,
    ) -> None:
        super().__init__()
        self._state = state
        self._find_keys = keys
        self._place = place
        self._renewals = Renewals(state, leases, place=place)
        self._names: dict[str, dict[str, None]] = {}
        """By the digest of a user, the names of her records."""
        self._changes = 0
        self._turn = threading.Lock()
        self._thread: int | None = None
        """The thread of the event loop: records are written there alone."""

    @property
    def place(self) -> str:
        """The address of the store."""
        return self._place

    def stamp(self, principal: str | None = None) -> object:
        """Changes when a record of this user does, or of any."""
        if principal is None:
            return self._changes
        return tuple(record.stamp for record in self._records_of(self._seal.users(principal)))

    def rows(self, principal: str | None = None) -> list[UserRow]:
        """The rows of a user, or of all."""
        return self._seal.rows(
            self._records_of(list(self._names) if principal is None else self._seal.users(principal))
        )

    def _records_of(self, users: Iterable[str]) -> list[FleetRecord]:
        names = [name for user in users for name in list(self._names.get(user, ()))]
        return [one for name in names if (one := self._state.member.book.get(name)) is not None]

    @contextmanager
    def changing(self, principal: str) -> Iterator[dict[GrantKey, Grant]]:
        """Change the grants of one user in this replica's copy; the next exchange sends what changed."""
        with self._turn:
            before = {row.key: row.grant for row in self.rows(principal) if row.grant is not None}
            after = dict(before)
            yield after
            write = partial(self._write, principal, before, after)
            # Grants change in threads; the copy of the records belongs to the event loop.
            if self._thread in (None, threading.get_ident()):
                write()
            else:
                anyio.from_thread.run_sync(write)

    def renewing(self, key: GrantKey, principal: str) -> AbstractAsyncContextManager[None]:
        """Hold the lease of one grant, with a copy that has what all others wrote before."""
        return self._renewals.held(self._seal.records(principal, key))

    def learn(self, rest: str, value: Mapping[str, object]) -> None:
        """Another replica wrote a record, or this one did; ``value`` is read when it is used."""
        user, slash, _ = rest.partition("/")
        if slash:
            self._names.setdefault(user, {})[f"{LOGIN}/{rest}"] = None
            self._changes += 1

    async def run(self) -> None:
        """Give leases back that could not be given back at once, and seal again what an older key sealed."""
        self._thread = threading.get_ident()
        is_sealed = False
        while True:
            changed = self._state.changed
            await self._renewals.give_back()
            if self._state.is_settled and not is_sealed and self._names:
                is_sealed = True
                await self._seal_again()
            await changed.wait()

    @cached_property
    def _seal(self) -> LoginSeal:
        return LoginSeal(self._find_keys())

    def _write(self, principal: str, before: Mapping[GrantKey, Grant], after: Mapping[GrantKey, Grant]) -> None:
        for name, value in self._seal.written(self._state.member.book.get, principal, before, after):
            self._state.write(name, value)
            self.learn(name.partition("/")[2], value)

    async def _seal_again(self) -> None:
        """Seal with the key in force what an older one sealed, so that the older one can go; count what none opens."""
        unreadable = 0
        for user in list(self._names):
            for record in self._records_of([user]):
                row = self._seal.opened(record)
                if row is None:
                    continue
                if row.grant is None:
                    unreadable += 1
                elif self._seal.users(row.principal)[0] != user:
                    newest = self._state.member.book.get(self._seal.records(row.principal, row.key)[0])
                    keeps = newest is not None and newest.stamp > record.stamp
                    self._write(row.principal, {}, {} if keeps else {row.key: row.grant})
            await anyio.lowlevel.checkpoint()
        if unreadable:
            log.error(
                "no key in force opens %d logins of users in %s: they stay there, and their users log in again. "
                "Put the old key back to use them: see HOLDFAST_USER_KEY",
                unreadable,
                self._place,
            )

    def __repr__(self) -> str:
        return f"<FleetUserTokens of {len(self._names)} users in {self._place}>"


class CommandUserTokens(UserTokenStore):
    """The same logins, for a command: a replica for a moment, which reads the store, perhaps writes, and is gone.

    It exchanges as one that leaves, so no other replica ever sees it as present. ``session_keys`` sign what it writes.
    """

    def __init__(self, address: RedisAddress, *, keys: KeyRing, session_keys: KeyRing) -> None:
        super().__init__()
        self._address = address
        self._seal = LoginSeal(keys)
        self._session_keys = session_keys
        self._changes = 0

    @property
    def place(self) -> str:
        """The address of the store."""
        return self._address.shown

    def stamp(self, principal: str | None = None) -> object:
        """Changes with each write of this command: each read is a new one."""
        return self._changes

    def rows(self, principal: str | None = None) -> list[UserRow]:
        """The rows of a user, or of all."""
        return self._rows(self._use(self._read), principal)

    @contextmanager
    def changing(self, principal: str) -> Iterator[dict[GrantKey, Grant]]:
        """Change the grants of one user; the replicas learn it with their next exchange."""
        member = self._use(self._read)
        before = {row.key: row.grant for row in self._rows(member, principal) if row.grant is not None}
        after = dict(before)
        yield after
        for name, value in self._seal.written(member.book.get, principal, before, after):
            member.write(name, value, time.time())
        self._use(partial(self._exchange, member, lambda: not member.outbox.unsent))
        self._changes += 1

    @asynccontextmanager
    async def renewing(self, key: GrantKey, principal: str) -> AsyncIterator[None]:
        """Hold the lease of one grant."""
        leases, value = RedisLeases(self._address), secrets.token_hex(16)
        name = min(self._seal.records(principal, key))
        try:
            try:
                with anyio.fail_after(WAIT_SECONDS):
                    while not await leases.take(name, value):  # noqa: ASYNC110 - a replica has it
                        await anyio.sleep(PAUSE_SECONDS)
            except (StoreUnavailable, TimeoutError) as exc:
                raise self._unusable(exc) from exc
            self._changes += 1
            yield
        finally:
            with anyio.CancelScope(shield=True):
                # Also after a renewal that failed: the replicas try again. A lease that stays ends by itself.
                with suppress(StoreUnavailable):
                    await leases.give_back(name, value)
                await leases.close()

    def _rows(self, member: FleetMember, principal: str | None) -> list[UserRow]:
        users = None if principal is None else self._seal.users(principal)
        named = ((one, one.key.split("/")) for one in member.book.values())
        return self._seal.rows(
            [one for one, (kind, *of) in named if kind == LOGIN and (users is None or of[0] in users)]
        )

    async def _read(self) -> FleetMember:
        """What the store has, in the copy of a replica that no other one knows."""
        member = FleetMember(f"command-{secrets.token_hex(8)}")
        await self._exchange(member, lambda: member.synced)
        return member

    async def _exchange(self, member: FleetMember, done: Callable[[], bool]) -> None:
        store = SignedStore(RedisStore(self._address), lambda: self._session_keys, self._address.fleet)
        try:
            with anyio.fail_after(WAIT_SECONDS):
                while not done():
                    now, nonce = anyio.current_time(), secrets.token_hex(8)
                    asked = member.request(now, chance=0.0, nonce=nonce, leaving=True)
                    member.receive(asked, await store.exchange(asked), now)
        except (StoreUnavailable, TimeoutError) as exc:
            raise self._unusable(exc) from exc
        finally:
            await store.close()

    def _use(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Do something with Redis, from any thread: commands call this where they need it."""
        with anyio.from_thread.start_blocking_portal() as portal:
            return portal.call(work)

    def _unusable(self, exc: Exception) -> StoreUnusable:
        return StoreUnusable(f"the users' logins in {self.place}: {exc}", hint="check HOLDFAST_FLEET, and Redis")

    def __repr__(self) -> str:
        return f"<CommandUserTokens in {self.place}>"
