"""The store of replicas in Redis, with Redis's own primitives (6.2 and later).

    meta          hash: the epoch, and the sequence number of the last write
    records       hash: each record under its key, as its stamp and its signed value
    changes       stream, capped: the latest writes, under their sequence numbers
    replicas      set: the names of replicas; those that are present have a key
    replica:NAME  what a replica says of itself; it ends by itself when the replica does not say it again
    claim:KEY     the right to probe (``SET NX PX``)
    lease:LOGIN   the right to renew a login, with the value of its holder
    events:LOG    stream, capped: the sealed events of a session's stream

A replica reads ``records`` whole at its start, in pages, and follows ``changes`` from then on. One script does what no
primitive does: write a record if its stamp is newer, and give the write the next number. Nothing else is atomic, and
nothing needs to be: every record says by its stamp which one is newer, and a claim that two replicas have for a moment
costs one dial.

What can happen to it:
- Redis is full and evicts any one of these keys. Without ``meta`` or ``records`` a new epoch begins: every replica
  sends its copy again. Without ``changes``, or where more than its cap was written meanwhile, the numbers have a gap,
  and the replica reads ``records`` whole once more.
- Another program writes into it. What it writes has no signature of the fleet; what is too large is not read.

Every wait is bounded, and nothing is repeated: a failed exchange is reported, and the next one follows soon. Redis,
Valkey and Redis behind Sentinel (``redis+sentinel://``) are supported.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import anyio

from holdfast.core import (
    BATCH,
    PRESENT_SECONDS,
    ClaimAnswer,
    FleetExchange,
    FleetRecord,
    FleetReply,
    is_stamp,
)
from holdfast.errors import UsageError
from holdfast.fleet.stores import KEPT_SECONDS, LogWrite, StoreUnavailable

__all__ = [
    "MOST_CHANGES",
    "RedisAddress",
    "RedisClient",
    "RedisEvents",
    "RedisLeases",
    "RedisStore",
]

LEASE_SECONDS: Final = 300.0
"""How long a lease outlives a holder that cannot give it back: longer than Redis is usually away."""

PREFIX: Final = "holdfast2"
"""Another one than that of replicas of earlier releases, which wrote another form: the two do not share."""

EXCHANGE_SECONDS: Final = 1.0
"""A store that takes longer is treated like one that is gone; no call waits for it."""

MOST_CHANGES: Final = 10_000
"""Writes that the stream keeps: more than replicas write between two exchanges of one."""

LARGEST_VALUE: Final = 8 * 1024 * 1024
"""Bytes of a record. A listing, the largest one, has far less; another program may have written more."""

MOST_REPLICAS: Final = 500
"""Replicas in the store: more than that is not a fleet."""

LARGEST_PRESENCE: Final = 4 * 1024
"""Bytes of what a replica says of itself, signed; some 500 are usual."""

_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
_DEFAULT_FLEET = "default"

WRITE_NEWER: Final = """
local meta, records, changes = KEYS[1], KEYS[2], KEYS[3]
local epoch, sequence = redis.call('HGET', meta, 'epoch'), tonumber(redis.call('HGET', meta, 'sequence'))
if not epoch or not sequence or (sequence > 0 and redis.call('EXISTS', records) == 0) then
  epoch, sequence = ARGV[1], 0
  redis.call('DEL', changes)
  redis.call('HSET', meta, 'epoch', epoch, 'sequence', 0)
end
for i = 3, #ARGV, 3 do
  local key, stamp = ARGV[i], ARGV[i + 1]
  local known = redis.call('HGET', records, key)
  if not known or string.match(known, '^%S*') < stamp then
    sequence = sequence + 1
    local entry = stamp .. ' ' .. ARGV[i + 2]
    redis.call('HSET', records, key, entry)
    redis.call('XADD', changes, 'MAXLEN', '~', ARGV[2], '0-' .. sequence, 'key', key, 'entry', entry)
    redis.call('HSET', meta, 'sequence', sequence)
  end
end
return {epoch, sequence}
"""


@dataclass(frozen=True)
class RedisAddress:
    """Where the store of a fleet is."""

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    service: str = ""
    """The name of the master, behind Sentinel."""
    fleet: str = _DEFAULT_FLEET
    ca_file: str | None = None

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Read a URL: ``redis[s]://[user:password@]host[:port][/db]?fleet=NAME``, or ``redis+sentinel://host,host/name``."""
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.netloc:
            raise UsageError(
                "the address of the fleet's store is not a Redis URL",
                hint="write redis://HOST:6379, rediss://… with TLS, or redis+sentinel://HOST:26379,HOST:26379/NAME",
            )
        login, _, places = parts.netloc.rpartition("@")
        username, _, password = login.partition(":")
        sentinel = parts.scheme.endswith("+sentinel")
        query = _query(parts.query, tls=parts.scheme.startswith("rediss"))
        first, _, second = parts.path.strip("/").partition("/")
        try:
            hosts = tuple(_place(one, 26379 if sentinel else 6379) for one in places.split(","))
            database = int((second if sentinel else first) or 0)
        except ValueError as exc:
            raise UsageError(
                "the fleet's address has a port or a database that is not a number",
                hint="write special characters of a user name or password as %XX: # is %23, / is %2F, ? is %3F",
            ) from exc
        if len(hosts) > 1 and not sentinel:
            raise UsageError(
                "the fleet's address has several hosts",
                hint="a fleet has one Redis; write redis+sentinel://HOST:26379,HOST:26379/NAME for one behind Sentinel",
            )
        if sentinel and not first:
            raise UsageError("the fleet's address names no service", hint="write redis+sentinel://HOST:26379/NAME")
        return cls(
            scheme=parts.scheme,
            hosts=hosts,
            username=unquote(username) or None,
            password=unquote(password) or None,
            database=database,
            service=unquote(first) if sentinel else "",
            fleet=query.get("fleet", _DEFAULT_FLEET),
            ca_file=query.get("ca"),
        )

    @property
    def shown(self) -> str:
        """For people, without the password. It names the fleet: replicas with another one do not see each other."""
        places = ",".join(f"{host}:{port}" for host, port in self.hosts)
        fleet = f"?fleet={self.fleet}" if self.fleet != _DEFAULT_FLEET else ""
        return f"{self.scheme}://{places}{f'/{self.service}' if self.service else ''}{fleet}"


def _query(text: str, *, tls: bool) -> dict[str, str]:
    query = dict(parse_qsl(text, keep_blank_values=True))
    if unknown := set(query) - {"fleet", "ca"}:
        raise UsageError(f"the fleet's address has an unknown parameter: {min(unknown)}", hint="use fleet or ca")
    if empty := [name for name, value in query.items() if not value]:
        raise UsageError(f"the fleet's address has no value for `{empty[0]}`", hint="leave the parameter out")
    if "ca" in query and not tls:
        raise UsageError("the fleet's address names an authority, and does not use TLS", hint="write rediss://")
    return query


def _place(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(text)
    return parts.hostname, parts.port or port


class RedisClient:
    """One connection to Redis, made when it is used first, and again after a failure (``StoreUnavailable``)."""

    def __init__(self, address: RedisAddress) -> None:
        library()  # a missing package ends the start, and not the first exchange
        self.address = address
        self.connections = 0
        """How many were made so far."""
        self._client: Any = None
        self._connected = False
        self._using = anyio.Lock()

    @property
    def name(self) -> str:
        """Its address for people, without the password."""
        return self.address.shown

    def key(self, name: str) -> str:
        """A key of this fleet. Those of one fleet have the same hash tag, so that a script may use several."""
        return f"{PREFIX}:{{{self.address.fleet}}}:{name}"

    @asynccontextmanager
    async def using(self) -> AsyncIterator[Any]:
        """The client of the library, for what is done within the time for it."""
        redis = library()
        try:
            with anyio.fail_after(EXCHANGE_SECONDS):
                # One at a time: so there is one connection, and one copy of the store behind it.
                async with self._using:
                    if self._client is None:
                        self._client = connect(self.address)
                    if not self._connected:
                        self._connected = True
                        self.connections += 1
                    yield self._client
        except (redis.RedisError, OSError, TimeoutError, ValueError, TypeError, KeyError, IndexError) as exc:
            await self._disconnect()
            raise StoreUnavailable(reason(exc)) from exc

    async def _disconnect(self) -> None:
        """End the connection, and keep the client: its TLS context has all authorities of the system, 12 MB of them."""
        self._connected = False
        if self._client is not None:
            with anyio.move_on_after(EXCHANGE_SECONDS, shield=True), suppress(OSError, library().RedisError):
                await self._client.connection_pool.disconnect(inuse_connections=True)

    async def close(self) -> None:
        """End the connection."""
        await self._disconnect()
        self._client = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} connections={self.connections}>"


class RedisStore(RedisClient):
    """A ``FleetStore``. Used by one task."""

    def __init__(self, address: RedisAddress) -> None:
        super().__init__(address)
        self._whole: tuple[str, int, int] | None = None
        """While the records are read whole: the epoch, the number at the beginning, and where ``HSCAN`` goes on."""

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        """Write what is new here, and read what is new there."""
        key = self.key
        async with self.using() as client, client.pipeline(transaction=False) as pipe:
            # First, so that the numbers that come back include what this replica wrote.
            flat = [part for one in asked.records for part in (one.key, one.stamp, one.value)]
            keys = [key("meta"), key("records"), key("changes")]
            await client.register_script(WRITE_NEWER)(keys=keys, args=[asked.nonce, MOST_CHANGES, *flat], client=pipe)
            pipe.time()
            pipe.xrange(key("changes"), f"(0-{asked.cursor}", "+", count=BATCH)
            for claim in asked.claims:
                # XX: an extension of a claim that ended meanwhile takes nothing. It is asked for as a new one.
                right = {"xx": True} if claim.extends else {"nx": True}
                pipe.set(key(f"claim:{claim.key}"), asked.replica, px=_milliseconds(claim.seconds), **right)
                pipe.get(key(f"claim:{claim.key}"))
                pipe.pttl(key(f"claim:{claim.key}"))
            for release in asked.releases:
                # It has no holder until a next try makes sense: no other replica tries before. XX: one that ended
                # is not brought back.
                pipe.set(key(f"claim:{release.key}"), "", xx=True, px=_milliseconds(release.delay))
            if asked.drops:
                pipe.hdel(key("records"), *asked.drops)
            if asked.leaving:
                pipe.delete(key(f"replica:{asked.replica}"))
                pipe.srem(key("replicas"), asked.replica)
            else:
                pipe.set(key(f"replica:{asked.replica}"), asked.presence, px=_milliseconds(PRESENT_SECONDS))
                pipe.sadd(key("replicas"), asked.replica)
            told: list[Any] = await pipe.execute()
        try:
            (said, number), (seconds, micros), changes, *answers = told
            epoch, sequence, wall = _text(said), int(number), float(seconds) + float(micros) / 1e6
            # A cursor beyond the last number belongs to a store that was restored from an older copy.
            follows = self._whole is None and asked.epoch == epoch and asked.cursor <= sequence
            records, cursor = _followed(changes, asked.cursor) if follows else ([], None)
            claims = tuple(
                _answered(claim.key, asked.replica, *answers[3 * at : 3 * at + 3])
                for at, claim in enumerate(asked.claims)
            )
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise StoreUnavailable(f"its answer cannot be used ({type(exc).__name__})") from exc
        if cursor is None or (not changes and cursor < sequence):
            if asked.epoch != epoch:
                self._whole = None  # a page before this one was of another store, or of another connection
            records, cursor = await self._page(epoch, sequence)
        replicas = await self._roster() if asked.roster else None
        return FleetReply(
            epoch=epoch,
            sequence=sequence,
            cursor=cursor,
            records=tuple(records),
            claims=claims,
            replicas=replicas,
            wall=wall,
        )

    async def _page(self, epoch: str, sequence: int) -> tuple[list[FleetRecord], int]:
        """The next page of all records. After the last one ``changes`` is followed from where the first one began."""
        if self._whole is None or self._whole[0] != epoch:
            self._whole = epoch, sequence, 0
        _, began, position = self._whole
        async with self.using() as client:
            at, page = await client.hscan(self.key("records"), position, count=BATCH)
            position, found = int(at), dict(page)
        self._whole = (epoch, began, position) if position else None
        records = [one for key, entry in found.items() if (one := _record_in(key, entry)) is not None]
        return records, 0 if position else began

    async def _roster(self) -> dict[str, str]:
        key = self.key
        async with self.using() as client:
            if await client.scard(key("replicas")) > MOST_REPLICAS:
                # Another program wrote them. Those of the fleet write theirs again within a second.
                await client.unlink(key("replicas"))
                return {}
            names = sorted(map(_text, await client.smembers(key("replicas"))))
            async with client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.getrange(key(f"replica:{name}"), 0, LARGEST_PRESENCE)
                said = dict(zip(names, await pipe.execute(), strict=True))
            if gone := [name for name, text in said.items() if not text]:
                await client.srem(key("replicas"), *gone)
            return {name: _text(text) for name, text in said.items() if text and len(text) <= LARGEST_PRESENCE}


class RedisEvents(RedisClient):
    """An ``EventStore``. It has a connection of its own, so that events never delay an exchange."""

    async def append(self, writes: Sequence[LogWrite]) -> None:
        """Add blobs to logs, each a capped stream that ends by itself."""
        async with self.using() as client, client.pipeline(transaction=False) as pipe:
            for write in writes:
                key = self.key(f"events:{write.log}")
                pipe.xadd(key, {"blob": write.blob}, maxlen=write.keep, approximate=False)
                pipe.expire(key, int(KEPT_SECONDS))
            await pipe.execute()

    async def read(self, log: str) -> list[bytes]:
        """The blobs of a log, oldest first."""
        async with self.using() as client:
            found = await client.xrange(self.key(f"events:{log}"))
            blobs = [fields[b"blob"] for _, fields in found]
            if not all(isinstance(one, bytes) for one in blobs):
                raise ValueError("its answer is no list of events")
            return blobs


class RedisLeases(RedisClient):
    """Leases of logins (``user_logins``). One that its holder does not give back ends by itself."""

    async def take(self, name: str, value: str) -> bool:
        """Take a lease, or take it once more with the value of before; ``StoreUnavailable`` if Redis fails."""
        key = self.key(f"lease:{name}")
        async with self.using() as client:
            px = int(LEASE_SECONDS * 1000)
            if await client.set(key, value, nx=True, px=px):
                return True
            # It was taken before and not given back: what is left of its time may be too short for another renewal.
            return await client.get(key) == value.encode() and bool(await client.pexpire(key, px))

    async def give_back(self, name: str, value: str) -> None:
        """End a lease, if it is still that of this holder."""
        key = self.key(f"lease:{name}")
        async with self.using() as client, client.pipeline(transaction=True) as pipe:
            await pipe.watch(key)
            # Only if it is still ours: it may have ended, and belong to another replica by now.
            if await pipe.get(key) == value.encode():
                pipe.multi()
                pipe.delete(key)
                await pipe.execute()


def _followed(changes: Any, cursor: int) -> tuple[list[FleetRecord], int | None]:
    """The records of changes that follow a number, and the last number; no number if some are missing."""
    records = list[FleetRecord]()
    for number, fields in changes:
        at = int(_text(number).partition("-")[2])
        if at != cursor + 1:
            return [], None  # the stream was capped, or another program wrote into it
        cursor = at
        if (record := _record_in(fields[b"key"], fields[b"entry"])) is not None:
            records.append(record)
    return records, cursor


def _record_in(key: bytes, entry: bytes) -> FleetRecord | None:
    """The record of a field of ``records``; None if another program wrote it."""
    # Before it is decoded: what another program wrote may be of any size.
    if len(entry) > LARGEST_VALUE:
        return None
    stamp, space, value = _text(entry).partition(" ")
    return FleetRecord(_text(key), stamp, value) if space and is_stamp(stamp) else None


def _answered(key: str, replica: str, done: object, holder: bytes | None, left: int) -> ClaimAnswer:
    """The answer to ``SET``, ``GET`` and ``PTTL``. A claim that ends between them is asked for again at once."""
    if done:
        return ClaimAnswer(key, True, holder=replica)
    return ClaimAnswer(key, False, max(0, int(left)) / 1000, _text(holder or b""))


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def _text(said: bytes | str) -> str:
    return said if isinstance(said, str) else said.decode("utf-8", "surrogateescape")


def connect(address: RedisAddress) -> Any:
    """A client with one connection; every wait of it is bounded, and nothing is tried twice."""
    redis = library()
    from redis.asyncio.retry import Retry  # noqa: PLC0415 - an extra
    from redis.backoff import NoBackoff  # noqa: PLC0415 - an extra

    options: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "db": address.database,
        "socket_timeout": EXCHANGE_SECONDS,
        "socket_connect_timeout": EXCHANGE_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "holdfast",
    }
    if address.scheme.startswith("rediss"):
        # Before its version 6 the library does not compare the name in the certificate by default.
        options |= {"ssl": True, "ssl_ca_certs": address.ca_file, "ssl_check_hostname": True}
    if address.service:
        options.pop("retry")
        sentinel = redis.asyncio.sentinel.Sentinel(list(address.hosts), sentinel_kwargs=options | {"db": 0}, **options)
        return sentinel.master_for(address.service)
    host, port = address.hosts[0]
    return redis.asyncio.Redis(host=host, port=port, **options)


def library() -> Any:
    """The package redis; an error with a hint if it is not installed."""
    try:
        import redis.asyncio  # noqa: PLC0415 - an extra
        import redis.asyncio.sentinel  # noqa: PLC0415 - an extra
    except ImportError as exc:
        raise UsageError(
            "a fleet on Redis needs the package redis",
            hint="install Holdfast with its extra, in its clone: pipx install --force '.[fleet]'",
        ) from exc
    return redis


def reason(exc: Exception) -> str:
    """What went wrong, in a line."""
    if isinstance(exc, TimeoutError):
        return f"no answer within {EXCHANGE_SECONDS:g} s"
    said = f"{type(exc).__name__}: {exc}".splitlines()[0]
    return said.partition(" script: ")[0][:200]  # Redis adds the hash of the script, which helps no one
