"""A Redis that lost a part of what it had, or that answers nonsense: no decision is lost, and no hub ends."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core import FleetExchange, FleetMember, FleetRecord, FleetReply, State
from holdfast.fleet import Fleet, RedisAddress, RedisEvents, RedisStore, SignedStore, StoreUnavailable, redis_store
from holdfast.keys import KeyRing
from tests.front.loop_steps import LONGEST_STEP, measured_loop
from tests.harness.open_hubs import PATIENCE, reaches, running
from tests.harness.waiting import came_true
from tests.peers.redis import RedisPeer, has_redis
from tests.peers.tls import Certificates

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-3")]
needs_redis = pytest.mark.skipif(not has_redis(), reason="redis-server is not installed")


def ring() -> KeyRing:
    return KeyRing([b"k" * 32])


OFF = FleetRecord("switch/s", f"1{1:016x}.a", "off")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def redis(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RedisPeer]:
    async with RedisPeer(tmp_path_factory.mktemp("redis") / "data") as peer:
        yield peer


@needs_redis
@pytest.mark.parametrize("part", ["meta", "records", "changes"])
async def test_a_store_that_lost_a_part_is_whole_again_when_its_replicas_have_exchanged(
    redis: RedisPeer, part: str
) -> None:
    """Redis is full and evicted a key: what was decided is known to the next replica all the same."""
    store = RedisStore(RedisAddress.parse(f"{redis.url}?fleet={part}"))
    member = FleetMember("a", records=(OFF,))

    async def turn(one: FleetMember, now: float) -> None:
        asked = one.request(now, chance=0.5, nonce=f"{one.replica}{now}")
        one.receive(asked, await store.exchange(asked), now)

    for now in range(4):
        await turn(member, float(now))
    assert member.synced
    await redis.command("DEL", f"holdfast2:{{{part}}}:{part}")
    member.write("switch/other", {"off": True}, 10.0)
    for now in range(4, 10):
        await turn(member, float(now))
    fresh = FleetMember("c")
    for now in range(10, 14):
        await turn(fresh, float(now))
    assert fresh.synced
    assert {record.key for record in fresh.book.values()} == {"switch/s", "switch/other"}
    await store.close()


@needs_redis
async def test_more_changes_than_the_stream_keeps_are_read_whole(
    redis: RedisPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MOST_CHANGES", 1)
    store = RedisStore(RedisAddress.parse(f"{redis.url}?fleet=capped"))
    writer, reader = FleetMember("a"), FleetMember("b")

    async def turn(one: FleetMember, now: float) -> None:
        asked = one.request(now, chance=0.5, nonce="n")
        one.receive(asked, await store.exchange(asked), now)

    for now in range(3):
        await turn(writer, float(now))
        await turn(reader, float(now))
    for number in range(600):  # Redis caps a stream by whole nodes of a hundred entries
        writer.write(f"switch/{number}", {"off": True}, 1.0)
    for now in range(3, 12):
        await turn(writer, float(now))
    for now in range(12, 30):
        await turn(reader, float(now))
    assert len(list(reader.book)) == 600
    await store.close()


@needs_redis
async def test_a_presence_that_cannot_be_read_is_removed_and_the_others_are_told(redis: RedisPeer) -> None:
    store = RedisStore(RedisAddress.parse(f"{redis.url}?fleet=garbage"))
    await redis.command("SADD", "holdfast2:{garbage}:replicas", "gone", "large")
    await redis.command("SET", "holdfast2:{garbage}:replica:large", "x" * 100_000)
    reply = await store.exchange(FleetExchange(replica="a", nonce="n", presence="p", roster=True))
    assert reply.replicas == {"a": "p"}
    await store.close()


@needs_redis
@pytest.mark.parametrize("part", ["meta", "records", "changes"])
async def test_a_disabled_server_stays_disabled_on_a_fresh_replica_though_redis_evicted_a_key(
    redis: RedisPeer, part: str
) -> None:
    address = RedisAddress.parse(f"{redis.url}?fleet=evicted-{part}")

    def fleet(name: str) -> Fleet:
        return Fleet(SignedStore(RedisStore(address), ring, "test"), replica=name, keys=ring)

    servers = {"one": {"command": "no-such-command"}}
    async with running(servers, hub={"fleet": fleet("r1")}) as first:
        await first.toggle("one", enabled=False)
        assert await first.registry.scope("one") == "the fleet"
        await redis.command("DEL", f"holdfast2:{{evicted-{part}}}:{part}")
        async with running(servers, hub={"fleet": fleet("r2")}) as fresh:
            await reaches(fresh, "one", State.DISABLED)


@needs_redis
async def test_a_record_that_another_program_wrote_ends_no_hub(redis: RedisPeer) -> None:
    address = RedisAddress.parse(f"{redis.url}?fleet=foreign")
    fleet = Fleet(signed := SignedStore(RedisStore(address), ring, "test"), replica="r1", keys=ring)
    async with running({}, hub={"fleet": fleet}):
        await came_true(lambda: fleet.state.is_shared)
        stranger = RedisStore(address)
        await stranger.exchange(FleetExchange(replica="x", presence="é.", records=(replace(OFF, value="é.off"),)))
        await stranger.close()
        await came_true(lambda: signed.refused >= 2 and fleet.member.strangers == 1)
        assert fleet.state.is_shared


class Held:
    """A store that holds one record and one replica: what was sent to it, or what a program put there."""

    name, connections = "held", 1

    def __init__(self, record: FleetRecord = OFF, replica: tuple[str, str] = ("x", "")) -> None:
        self.record, self.replica = record, replica

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        if asked.records:
            (self.record,), self.replica = asked.records, (asked.replica, asked.presence)
        return FleetReply(
            epoch="e", sequence=1, cursor=1, records=(self.record,), replicas=dict([self.replica]), claims=()
        )

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("text", ["é.off", "\ud800.off", "off", ""])
async def test_no_text_counts_as_signed_that_no_replica_signed(text: str) -> None:
    signed = SignedStore(Held(replace(OFF, value=text), ("x", text)), lambda: KeyRing([b"k" * 32]), "test")
    reply = await signed.exchange(FleetExchange(replica="a"))
    assert (reply.records, reply.replicas, reply.strangers) == ((), {}, 1)
    assert signed.refused == 2


async def test_a_signature_holds_for_one_key_one_stamp_one_replica_and_one_fleet() -> None:
    held, keys = Held(), lambda: KeyRing([b"k" * 32])
    asked = FleetExchange(replica="a", presence="here", records=(OFF,))
    reply = await SignedStore(held, keys, "blue").exchange(asked)
    assert (reply.records, reply.replicas) == ((OFF,), {"a": "here"})
    sent, said = held.record, held.replica[1]

    async def read(record: FleetRecord, replica: str = "a", fleet: str = "blue") -> tuple[int, int]:
        held.record, held.replica = record, (replica, said)
        found = await SignedStore(held, keys, fleet).exchange(FleetExchange(replica="b"))
        return len(found.records), len(found.replicas or ())

    assert await read(sent) == (1, 1)
    assert await read(replace(sent, key="switch/other")) == (0, 1)
    assert await read(replace(sent, stamp=f"1{2:016x}.a")) == (0, 1)
    assert await read(replace(sent, value=sent.value.replace("off", "on"))) == (0, 1)
    assert await read(sent, replica="b") == (1, 0)
    assert await read(sent, fleet="green") == (0, 0)


def _text(said: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(said), said)


HELLO = b"%1\r\n$5\r\nproto\r\n:3\r\n"
NONSENSE = {
    "nothing": b"$-1\r\n",
    "a number": b":7\r\n",
    "a list": b"*1\r\n$1\r\nx\r\n",
    "no JSON": _text(b"OK"),
    "a JSON text": _text(b'"x"'),
    "an endless number": _text(
        b'{"epoch":"e","sequence":1e999,"cursor":1,"age":0,"records":[],"claims":[],"replicas":{}}'
    ),
    "a deep list": _text(b"[" * 200_000),
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a wrong length": b"$x\r\n",
    "the end": b"",
}


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[RedisAddress]:
    """A Redis that gives this answer to everything after the beginning of a connection."""

    async def serve(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            try:
                while b"HELLO" in (asked := await stream.receive()) or b"CLIENT" in asked:
                    await stream.send(HELLO * asked.count(b"HELLO") + b"+OK\r\n" * asked.count(b"CLIENT"))
                await stream.send(answer)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(listener.serve, serve))
        yield RedisAddress.parse(f"redis://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
async def test_an_answer_that_makes_no_sense_is_a_store_that_cannot_be_used(answer: bytes) -> None:
    async with answering(answer) as address:
        store = RedisStore(address)
        with anyio.fail_after(PATIENCE), pytest.raises(StoreUnavailable):
            await store.exchange(FleetExchange(replica="a", nonce="n"))
        await store.close()


@pytest.mark.parametrize("name", ["nothing", "a number", "no JSON", "a list of numbers", "another protocol"])
async def test_events_that_make_no_sense_are_a_store_that_cannot_be_used(name: str) -> None:
    async with answering({**NONSENSE, "a list of numbers": b"*1\r\n:7\r\n"}[name]) as address:
        events = RedisEvents(address)
        with anyio.fail_after(PATIENCE), pytest.raises(StoreUnavailable):
            await events.read("log")
        await events.close()


@needs_redis
async def test_an_outage_of_a_store_with_tls_makes_no_further_tls_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has all authorities of the system: 12 MB an outage, which the C library does not give back."""
    made: list[ssl.SSLContext] = []

    def counted(*args: Any, **options: Any) -> ssl.SSLContext:
        made.append(create(*args, **options))
        return made[-1]

    create = ssl.create_default_context
    tls = Certificates().write_server(tmp_path)
    async with RedisPeer(tmp_path / "redis", password="secret", tls=tls) as redis:
        address = RedisAddress.parse(redis.url)
        monkeypatch.setattr(ssl, "create_default_context", counted)
        stores = RedisStore(address), RedisStore(replace(address, fleet="other"))
        connections = []
        for outage in range(3):
            for store in stores:
                assert (await store.exchange(FleetExchange(replica="a", nonce="n"))).epoch == "n"
            connections.append(stores[0].connections)
            monkeypatch.setattr(ssl, "create_default_context", create)  # not for those of the operator's client
            await redis.kill()
            monkeypatch.setattr(ssl, "create_default_context", counted)
            for store in stores * 3:
                with pytest.raises(StoreUnavailable):
                    await store.exchange(FleetExchange(replica="a", nonce="n"))
            monkeypatch.setattr(ssl, "create_default_context", create)
            if outage < 2:
                await redis.start()
            monkeypatch.setattr(ssl, "create_default_context", counted)
        for store in stores:
            await store.close()
    assert len(made) == len(stores), "one for each connection, however often it is made again"
    assert connections == sorted(set(connections)), "a connection that was made again is noticed"


@needs_redis
async def test_a_flood_of_forged_replicas_costs_the_loop_little_and_hides_no_replica(redis: RedisPeer) -> None:
    """Another program with access to Redis wrote them. 20,000 cost 3.8 s of the event loop at each exchange."""
    address = replace(RedisAddress.parse(redis.url), fleet="flooded")
    one, other = (SignedStore(RedisStore(address), lambda: KeyRing([b"k" * 32]), "flooded") for _ in range(2))
    await one.exchange(FleetExchange(replica="a", nonce="n", presence="{}"))
    forged = 'for i = 1, 20000 do redis.call("SADD", KEYS[1], "x" .. i) end'
    asked = FleetExchange(replica="b", nonce="n", roster=True, presence="{}")

    async def flooded() -> None:
        await redis.command("EVAL", forged, "1", "holdfast2:{flooded}:replicas")
        reply = await other.exchange(asked)
        assert reply.replicas is not None
        assert len(reply.replicas) + reply.strangers <= redis_store.MOST_REPLICAS

    with measured_loop() as steps:
        assert await steps.longest_in(flooded) < LONGEST_STEP, steps.what
    await one.exchange(FleetExchange(replica="a", nonce="n", presence="{}"))
    reply = await other.exchange(asked)
    assert set(reply.replicas or ()) == {"a", "b"}
    await redis.command("SADD", "holdfast2:{flooded}:replicas", "large")
    await redis.command("SET", "holdfast2:{flooded}:replica:large", "x" * 100_000)
    reply = await other.exchange(asked)
    assert (set(reply.replicas or ()), reply.strangers) == ({"a", "b"}, 0)
    await one.close()
    await other.close()
