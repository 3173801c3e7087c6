"""What the store of replicas keeps in Redis, for how long, and what it costs Redis to be asked (FLEET-2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from holdfast.core import PRESENT_SECONDS, FleetExchange, FleetMember, FleetRecord
from holdfast.core.replicas.store import Claim, ClaimRelease
from holdfast.fleet import LogWrite, RedisAddress, RedisEvents, RedisLeases, RedisStore, StoreUnavailable, redis_store
from holdfast.fleet.redis_store import LEASE_SECONDS, connect, reason
from holdfast.fleet.stores import KEPT_SECONDS
from tests.peers.redis import RedisPeer, has_redis

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-2")]
needs_redis = pytest.mark.skipif(not has_redis(), reason="redis-server is not installed")

OFF = FleetRecord("switch/s", f"1{1:016x}.a", "off")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def redis(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RedisPeer]:
    async with RedisPeer(tmp_path_factory.mktemp("redis") / "data") as peer:
        yield peer


@pytest.fixture
async def store(redis: RedisPeer) -> AsyncIterator[RedisStore]:
    await redis.command("FLUSHALL")
    made = RedisStore(RedisAddress.parse(redis.url))
    yield made
    await made.close()


def key(name: str) -> str:
    return f"holdfast2:{{default}}:{name}"


async def commands(redis: RedisPeer) -> set[str]:
    """The commands that Redis ran since its counters were reset."""
    return set(await redis.command("INFO", "commandstats"))


async def turn(store: RedisStore, member: FleetMember, now: float) -> list[str]:
    """One exchange; the keys of the records that it brought."""
    asked = member.request(now, chance=0.5, nonce="n")
    reply = await store.exchange(asked)
    member.receive(asked, reply, now)
    return [record.key for record in reply.records]


@needs_redis
async def test_a_replica_that_follows_the_changes_reads_what_is_new_and_never_all(
    redis: RedisPeer, store: RedisStore
) -> None:
    writer, reader = FleetMember("a"), FleetMember("b")
    other = RedisStore(store.address)
    for number in range(3):
        writer.write(f"switch/{number}", {"off": True}, 1.0)
    for now in range(4):
        await turn(store, writer, float(now))
        await turn(other, reader, float(now))
    assert reader.synced
    await redis.command("CONFIG", "RESETSTAT")
    for number in (3, 4):
        writer.write(f"switch/{number}", {"off": True}, 1.0)
        await turn(store, writer, 5.0 + number)
        assert await turn(other, reader, 5.0 + number) == [f"switch/{number}"]
    assert await turn(other, reader, 20.0) == []
    assert "cmdstat_hscan" not in await commands(redis)
    await other.close()


@needs_redis
async def test_a_store_that_is_used_again_after_it_was_closed_or_failed_counts_another_connection(
    store: RedisStore,
) -> None:
    async def ask() -> None:
        async with store.using() as client:
            await client.ping()

    assert store.connections == 0
    for _ in range(2):
        await ask()
    assert store.connections == 1
    await store.close()
    await ask()
    assert store.connections == 2
    with pytest.raises(StoreUnavailable, match="broken"):
        async with store.using():
            raise OSError("broken")
    await ask()
    assert store.connections == 3


@needs_redis
async def test_a_record_that_is_over_leaves_redis(redis: RedisPeer, store: RedisStore) -> None:
    await store.exchange(FleetExchange(replica="a", nonce="n", records=(OFF, replace(OFF, key="switch/other"))))
    await store.exchange(FleetExchange(replica="a", nonce="n", drops=(OFF.key,)))
    assert await redis.command("HKEYS", key("records")) == [b"switch/other"]


@needs_redis
async def test_a_replica_is_present_until_it_leaves_and_at_most_for_the_time_of_its_presence(
    redis: RedisPeer, store: RedisStore
) -> None:
    async def present() -> dict[str, str]:
        reply = await store.exchange(FleetExchange(replica="b", nonce="n", presence="{}", roster=True))
        return dict(reply.replicas or {})

    await store.exchange(FleetExchange(replica="a", nonce="n", presence="here"))
    assert await present() == {"a": "here", "b": "{}"}
    assert PRESENT_SECONDS * 500 < await redis.command("PTTL", key("replica:a")) <= PRESENT_SECONDS * 1000
    await store.exchange(FleetExchange(replica="a", nonce="n", leaving=True))
    assert await redis.command("SISMEMBER", key("replicas"), "a") == 0
    assert await present() == {"b": "{}"}
    await redis.command("SADD", key("replicas"), "ended")
    assert await present() == {"b": "{}"}
    assert await redis.command("SMEMBERS", key("replicas")) in ({b"b"}, [b"b"]), "a name without a presence goes"


@needs_redis
async def test_what_is_exactly_as_large_as_allowed_is_read_and_what_is_larger_is_not(
    redis: RedisPeer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = replace(OFF, key="small", value="x" * 50), replace(OFF, key="large", value="x" * 51)
    monkeypatch.setattr(redis_store, "LARGEST_VALUE", len(f"{OFF.stamp} {small.value}"))
    monkeypatch.setattr(redis_store, "LARGEST_PRESENCE", 20)
    monkeypatch.setattr(redis_store, "MOST_REPLICAS", 2)
    await store.exchange(FleetExchange(replica="a", nonce="n", records=(small, large), presence="x" * 21))
    await redis.command("HSET", key("records"), "foreign", "no stamp", "bare", OFF.stamp)
    asked = FleetExchange(replica="b", nonce="n", presence="x" * 20, roster=True)
    reply = await store.exchange(asked)
    assert reply.records == (small,)
    assert reply.replicas == {"b": "x" * 20}
    await redis.command("SADD", key("replicas"), "forged")
    assert (await store.exchange(asked)).replicas == {}, "more names than a fleet has: another program wrote them"
    assert (await store.exchange(asked)).replicas == {"b": "x" * 20}


@needs_redis
async def test_a_right_that_ended_is_neither_extended_nor_given_back(redis: RedisPeer, store: RedisStore) -> None:
    extended = await store.exchange(FleetExchange(replica="a", nonce="n", claims=(Claim("x", extends=True),)))
    await store.exchange(FleetExchange(replica="a", nonce="n", releases=(ClaimRelease("x", 60.0),)))
    assert await redis.command("EXISTS", key("claim:x")) == 0
    (answer,) = extended.claims
    assert (answer.granted, answer.wait, answer.holder) == (False, 0.0, ""), "it is asked for as a new one at once"


@needs_redis
async def test_several_rights_of_one_exchange_are_each_answered_by_name(store: RedisStore) -> None:
    claims = tuple(Claim(name, 60.0) for name in ("x", "y", "z"))
    await store.exchange(FleetExchange(replica="a", nonce="n", claims=claims[1:2]))
    reply = await store.exchange(FleetExchange(replica="b", nonce="n", claims=claims))
    assert [(one.key, one.granted, one.holder) for one in reply.claims] == [
        ("x", True, "b"),
        ("y", False, "a"),
        ("z", True, "b"),
    ]


@needs_redis
@pytest.mark.requirement("AUTH-8")
async def test_a_lease_is_of_one_holder_until_that_one_gives_it_back_or_its_time_is_over(
    redis: RedisPeer, store: RedisStore
) -> None:
    leases = RedisLeases(store.address)
    assert await leases.take("login", "one")
    assert LEASE_SECONDS * 500 < await redis.command("PTTL", key("lease:login")) <= LEASE_SECONDS * 1000
    assert not await leases.take("login", "other")
    await redis.command("PEXPIRE", key("lease:login"), "5000")
    assert await leases.take("login", "one"), "its holder may take it once more"
    assert await redis.command("PTTL", key("lease:login")) > LEASE_SECONDS * 500, "and has its whole time again"
    await leases.give_back("login", "other")
    assert not await leases.take("login", "other")
    await leases.give_back("login", "one")
    assert await leases.take("login", "other")
    await leases.close()


@needs_redis
async def test_a_log_of_events_ends_a_while_after_its_last_event(redis: RedisPeer, store: RedisStore) -> None:
    events = RedisEvents(store.address)
    await events.append([LogWrite("log", b"one", 2)])
    await redis.command("EXPIRE", key("events:log"), "1")
    await events.append([LogWrite("log", b"two", 2)])
    assert KEPT_SECONDS / 2 < await redis.command("TTL", key("events:log")) <= KEPT_SECONDS
    assert await events.read("log") == [b"one", b"two"]
    await events.close()


def test_an_address_is_read_with_all_that_it_names() -> None:
    read = RedisAddress.parse("rediss://ada:p%40ss@one:6380/3?fleet=blue&ca=/ca.pem")
    assert read == RedisAddress(
        scheme="rediss",
        hosts=(("one", 6380),),
        username="ada",
        password="p@ss",
        database=3,
        fleet="blue",
        ca_file="/ca.pem",
    )
    behind = RedisAddress.parse("redis+sentinel://one,two:26380/ma%69n/3")
    assert behind == RedisAddress("redis+sentinel", (("one", 26379), ("two", 26380)), service="main", database=3)
    assert "p@ss" not in repr(read)


def test_a_client_waits_a_bounded_time_and_tries_nothing_twice() -> None:
    options = connect(RedisAddress.parse("redis://ada:secret@host/3")).connection_pool.connection_kwargs
    assert options["socket_timeout"] == options["socket_connect_timeout"] == redis_store.EXCHANGE_SECONDS
    assert (options["username"], options["password"], options["db"]) == ("ada", "secret", 3)
    assert options["retry"]._retries == 0
    assert (options["host"], options["port"], options["client_name"]) == ("host", 6379, "holdfast")
    assert not any(name.startswith("ssl") for name in options)


def test_the_client_of_a_store_behind_sentinel_asks_each_of_them_for_the_master() -> None:
    pool = connect(RedisAddress.parse("redis+sentinel://ada:secret@one:1,two/master/3")).connection_pool
    assert (pool.service_name, pool.connection_kwargs["db"]) == ("master", 3)
    asked = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"], one["db"]) for one in asked] == [("one", 1, 0), ("two", 26379, 0)]
    for options in (*asked, pool.connection_kwargs):
        assert (options["username"], options["password"]) == ("ada", "secret")
        assert options["socket_timeout"] == options["socket_connect_timeout"] == redis_store.EXCHANGE_SECONDS


def test_a_client_with_tls_compares_the_name_in_the_certificate() -> None:
    options = connect(RedisAddress.parse("rediss://host?ca=/etc/authority.pem")).connection_pool.connection_kwargs
    assert (options["ssl_check_hostname"], options["ssl_cert_reqs"]) == (True, "required")
    assert options["ssl_ca_certs"] == "/etc/authority.pem"


def test_a_reason_is_one_short_line_without_the_hash_of_a_script() -> None:
    assert reason(TimeoutError()) == "no answer within 1 s"
    assert reason(ValueError("first\nsecond")) == "ValueError: first"
    assert reason(ValueError("MISCONF is full script: 0a1b, on @user_script")) == "ValueError: MISCONF is full"
    assert len(reason(ValueError("x" * 1000))) == 200
