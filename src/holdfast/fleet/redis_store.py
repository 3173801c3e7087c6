"""The store of a fleet in Redis: ``SharedStore.exchange`` as a script that runs inside Redis.

One connection, one command an exchange. Every wait is bounded, and nothing is repeated: a failed exchange is reported,
and the next one follows soon. Redis, Valkey and Redis behind Sentinel (``redis+sentinel://``) are supported.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import anyio

from holdfast.core import BATCH, BATCH_BYTES, PRESENT_SECONDS, STALE_SECONDS, FleetExchange, FleetReply
from holdfast.errors import UsageError
from holdfast.fleet.messages import StoreUnavailable, exchange_to, reply_from

__all__ = ["RedisAddress", "RedisClient", "RedisStore"]

Answer = TypeVar("Answer")

EXCHANGE_SECONDS = 1.0
"""A store that takes longer is treated like one that is gone; no call waits for it."""

LONGEST_STEP = 5.0
"""Seconds that pass for claims between two exchanges at most: more than a claim may be old, and less than the time for
which a lease is still valid after a renewal that is due."""

LARGEST_REPLY = 64 * 1024 * 1024
"""Bytes. The records of one exchange have far less, unless another program wrote them: those are not parsed."""

MOST_REPLICAS = 500
"""Replicas in the store: more than that is not a fleet."""

LARGEST_PRESENCE = 4 * 1024
"""Bytes of what a replica says of itself, signed and packed; some 500 are usual."""

_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
_DEFAULT_FLEET = "default"

SCRIPT = """
local asked = cjson.decode(ARGV[1])
local batch, present, most_bytes, stale = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local meta, stamps, values, index, claims, replicas = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

-- The clock of this machine may jump, and that of a replica that takes over shows another time. So claims and presence
-- count seconds of their own: those that passed between two exchanges, up to a few. With more, a jump would end rights
-- that their holders still use. With fewer, a claim that waited in a stopped Redis would not look old.
local time = redis.call('TIME')
local wall = tonumber(time[1]) + tonumber(time[2]) / 1000000
local now = tonumber(redis.call('HGET', meta, 'now')) or wall
local passed = wall - (tonumber(redis.call('HGET', meta, 'wall')) or wall)
now = now + math.min(math.max(passed, 0), tonumber(ARGV[6]))
redis.call('HSET', meta, 'wall', string.format('%.6f', wall), 'now', string.format('%.6f', now))

-- A Redis that is full may evict any one of these keys. What is left would lie, so a new epoch begins: every replica
-- sends all that it knows again, and no right is given while its holder may still use it.
local epoch = redis.call('HGET', meta, 'epoch')
local claimed = redis.call('HGET', meta, 'claimed')
local kept = redis.call('HLEN', stamps)
local torn = kept ~= redis.call('HLEN', values) or kept ~= redis.call('ZCARD', index)
if torn then redis.call('DEL', stamps, values, index) end
if epoch and claimed and redis.call('EXISTS', claims) == 0 then torn = true end
if epoch and asked.epoch == epoch and redis.call('EXISTS', replicas) == 0 then torn = true end
if torn or not epoch then
  epoch = asked.nonce
  redis.call('HSET', meta, 'epoch', epoch, 'epoch_at', string.format('%.6f', now))
  redis.call('HDEL', meta, 'claimed')
  claimed = false
  local last = redis.call('ZREVRANGE', index, 0, 0, 'WITHSCORES')[2]
  if last and tonumber(last) > (tonumber(redis.call('HGET', meta, 'sequence')) or 0) then
    redis.call('HSET', meta, 'sequence', last)
  end
end
local epoch_at = tonumber(redis.call('HGET', meta, 'epoch_at')) or now

for _, one in ipairs(asked.records) do
  local known = redis.call('HGET', stamps, one[1])
  if (not known) or known < one[2] then
    local number = redis.call('HINCRBY', meta, 'sequence', 1)
    redis.call('HSET', stamps, one[1], one[2])
    redis.call('HSET', values, one[1], one[3])
    redis.call('ZADD', index, number, one[1])
  end
end

for _, one in ipairs(asked.drops) do
  local known = redis.call('HGET', stamps, one[1])
  if known and known <= one[2] then
    redis.call('HDEL', stamps, one[1])
    redis.call('HDEL', values, one[1])
    redis.call('ZREM', index, one[1])
  end
end

local function comes_and_goes(key)
  if string.sub(key, 1, 7) == 'client/' or string.sub(key, 1, 6) == 'probe/' then return claims .. ':' .. key end
end
local function read(key)
  local own = comes_and_goes(key)
  local text
  if own then text = redis.call('GET', own) else text = redis.call('HGET', claims, key) end
  if text then return cjson.decode(text) end
  return {token = 0, holder = '', ['until'] = 0, next_at = 0}
end
local function write(key, state)
  local own = comes_and_goes(key)
  if own then
    local ends = math.max(state['until'], state.next_at, now)
    redis.call('SET', own, cjson.encode(state), 'EX', math.ceil(ends - now) + 86400)
    return
  end
  redis.call('HSET', claims, key, cjson.encode(state))
  if not claimed then
    redis.call('HSET', meta, 'claimed', '1')
    claimed = true
  end
end

for _, one in ipairs(asked.releases) do
  local state = read(one[1])
  if state.holder == asked.replica and state.token == one[2] then
    state.holder, state.next_at = '', now + one[3]
    write(one[1], state)
  end
end

local answers, wanted = {}, asked.claims
if asked.epoch ~= epoch or (asked.sent > 0 and now - asked.sent > stale) then wanted = {} end
for _, one in ipairs(wanted) do
  local key, known, due, ttl = one[1], one[2], one[3], one[4]
  local state = read(key)
  local held = state.holder ~= '' and state['until'] > now
  if held and state.holder == one[5] and state.holder ~= asked.replica then held = false end
  if held and state.holder ~= asked.replica then
    table.insert(answers, {key, false, state.token, state['until'] - now, state.holder})
  elseif ttl <= 0 then
    table.insert(answers, {key, false, state.token, 0, held and state.holder or ''})
  elseif held and state.token >= known then
    state['until'] = math.max(state['until'], now + due + ttl)
    write(key, state)
    table.insert(answers, {key, true, state.token, 0, asked.replica})
  elseif now + due < state.next_at - 0.001 then  -- a number keeps 14 digits in JSON
    table.insert(answers, {key, false, state.token, state.next_at - now, ''})
  else
    state.token = math.max(state.token, known) + 1
    state.holder, state['until'] = asked.replica, now + due + ttl
    write(key, state)
    table.insert(answers, {key, true, state.token, 0, asked.replica})
  end
end

-- More replicas than any fleet has: another program wrote them. To read them would hold up Redis and every hub. Those
-- of the fleet write theirs again within a second.
if redis.call('HLEN', replicas) > tonumber(ARGV[7]) then redis.call('UNLINK', replicas) end
if asked.leaving then
  redis.call('HDEL', replicas, asked.replica)
else
  redis.call('HSET', replicas, asked.replica, cjson.encode({now + present, asked.presence}))
end
local roster = cjson.null
if asked.roster then
  roster = {}
  local all = redis.call('HGETALL', replicas)
  for i = 1, #all, 2 do
    local read_well, entry = false, nil
    if #all[i + 1] <= tonumber(ARGV[8]) then read_well, entry = pcall(cjson.decode, all[i + 1]) end
    local known = read_well and type(entry) == 'table' and type(entry[1]) == 'number' and type(entry[2]) == 'string'
    if known and entry[1] > now then roster[all[i]] = entry[2] else redis.call('HDEL', replicas, all[i]) end
  end
end

local sequence = tonumber(redis.call('HGET', meta, 'sequence')) or 0
local since = 0
if asked.epoch == epoch and asked.cursor <= sequence then since = asked.cursor end
local found = redis.call('ZRANGEBYSCORE', index, '(' .. since, '+inf', 'WITHSCORES', 'LIMIT', 0, batch + 1)
local records, cursor, size = {}, sequence, 0
for i = 1, #found, 2 do
  if #records == batch or size >= most_bytes then
    cursor = tonumber(found[i - 1])
    break
  end
  local value, known = redis.call('HGET', values, found[i]), redis.call('HGET', stamps, found[i])
  if value and known then
    size = size + #value
    table.insert(records, {found[i], known, value})
  end
end
return cjson.encode({
  epoch = epoch, sequence = sequence, cursor = cursor, age = now - epoch_at,
  records = records, claims = answers, replicas = roster, now = now, wall = wall,
})
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

    def key(self, name: str) -> str:
        """A key of this fleet. Those of one fleet have the same hash tag, so that a script may use several."""
        return f"holdfast:{{{self.address.fleet}}}:{name}"

    async def use(self, work: Callable[[Any], Awaitable[Answer]]) -> Answer:
        """Do something with the client of the library, within the time for it."""
        redis = library()
        try:
            with anyio.fail_after(EXCHANGE_SECONDS):
                async with self._using:
                    if self._client is None:
                        self._client = connect(self.address)
                    if not self._connected:
                        self._connected = True
                        self.connections += 1
                    return await work(self._client)
        except (redis.RedisError, OSError, TimeoutError, ValueError, TypeError, RecursionError) as exc:
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
        client, self._client = self._client, None
        self._connected = False
        if client is not None:
            with anyio.move_on_after(EXCHANGE_SECONDS, shield=True), suppress(OSError, library().RedisError):
                await client.aclose()


class RedisStore:
    """A ``FleetStore``. Used by one task."""

    def __init__(self, address: RedisAddress) -> None:
        self._redis = RedisClient(address)
        limits = (BATCH, PRESENT_SECONDS, BATCH_BYTES, STALE_SECONDS, LONGEST_STEP, MOST_REPLICAS, LARGEST_PRESENCE)
        self._limits = tuple(map(str, limits))
        self._keys = [self._redis.key(name) for name in ("meta", "stamps", "values", "index", "claims", "replicas")]

    @property
    def connections(self) -> int:
        """See ``FleetStore``."""
        return self._redis.connections

    @property
    def name(self) -> str:
        """See ``FleetStore``."""
        return self._redis.address.shown

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        """See ``FleetStore``."""

        async def run(client: Any) -> FleetReply:
            script = client.register_script(SCRIPT)
            answer = await script(keys=self._keys, args=[json.dumps(exchange_to(asked)), *self._limits])
            if len(answer) > LARGEST_REPLY:
                raise ValueError("its answer is too large")
            return reply_from(json.loads(answer))

        return await self._redis.use(run)

    async def close(self) -> None:
        """See ``FleetStore``."""
        await self._redis.close()


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
    return redis.asyncio.Redis(host=host, port=port, single_connection_client=True, **options)


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
